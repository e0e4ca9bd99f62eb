"""Deliveries with sessions, periods, events and splits that were known early, and honest ones like them.

python benchmarks/audit_early.py --data ../shared/data --count 40             # to choose limits
python benchmarks/audit_early.py --data ../shared/data --count 40 --held-out  # the other firms

Markets are those of `audit_false_alarms`. On each, some of the cases are drawn, and some honest inputs of
other benchmarks; the checks `bars`, `leads` and `splits` answer.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from audit_bases import Array, Base, Tables, carry
from audit_clean import CLEAN, Case, lag, past, volatility
from audit_doctored import ahead, forward_return
from audit_false_alarms import ROOT, draw
from audit_fresh import FRESH_CLEAN, SECOND_CLEAN

from backtest.look_ahead import bars, leads, splits
from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import VERDICTS, Result
from features.arrays import BoolArray, IntArray
from features.information_coefficient import rank_ic_by_date
from features.panel.panel import build_panel

HORIZONS: Final = (1, 5, 21)
_QUARTER: Final = 63  # sessions between two events of a firm, in the mean
_SPLIT: Final = 2.0


def drawn(base: Base, share: float) -> BoolArray:
    """Some of the firms: at least three."""
    order = np.random.default_rng((base.seed, 61)).permutation(len(base.tickers_N))
    return np.isin(np.arange(len(order)), order[: max(round(share * len(order)), 3)])


def early_firms(base: Base, share: float) -> Tables:
    """Some of the firms have the bars of the next session."""
    some_N = drawn(base, share)
    return base.with_bars(**{name: np.where(some_N, ahead(x_TN), x_TN) for name, x_TN in base.bars.items()})


def trades_later(base: Base, share: float, later: float) -> Tables:
    """Some of the firms close later than the market, with a share of its next move behind them."""
    some_N, close_TN = drawn(base, share), carry(base.bars["close"])
    after_TN = ahead(close_TN * np.nan_to_num(base.bars["split_ratio"], nan=1.0))
    moved_TN = close_TN ** (1.0 - later) * np.where(np.isfinite(after_TN), after_TN, close_TN) ** later
    moved_TN = np.where(some_N & np.isfinite(base.bars["close"]), moved_TN, base.bars["close"])
    high_TN, low_TN = np.fmax(base.bars["high"], moved_TN), np.fmin(base.bars["low"], moved_TN)
    return base.with_bars(close=moved_TN, high=high_TN, low=low_TN)


def common_factor(base: Base, which: int) -> Array:
    """Series [T] of a principal component of the returns, with a deviation of 1."""
    r = np.clip(np.nan_to_num(base.return_TN), -0.15, 0.15)
    r = (r - r.mean(axis=0)) / np.maximum(r.std(axis=0), 1e-9)
    factor_T = r @ np.linalg.eigh(r.T @ r)[1][:, -which]
    return np.asarray(factor_T / factor_T.std())


def macro(base: Base, which: int, strength: float, k: int) -> Array:
    """A rate [T, 1] whose move of session t + k is linked to a common factor of the returns."""
    noise_T = base.noise(62)[:, 0]
    move_T = strength * common_factor(base, which) + np.sqrt(1.0 - strength**2) * noise_T
    move_T1 = move_T[:, None]
    return ahead(move_T1, k) if k > 0 else lag(move_T1, -k) if k else move_T1


def for_all(base: Base, series_T1: Array) -> Array:
    """One value for all firms of a date."""
    return series_T1 + np.zeros(base.close_TN.shape)


def exposed(base: Base, series_T1: Array) -> Array:
    """Betas that never change, times a series."""
    return np.asarray((0.5 + base.noise(63)[0]) * series_T1)


def periods(base: Base, unit: str) -> IntArray:
    """Number [T] of the calendar week or month of each session."""
    days = base.dates_T.astype("datetime64[D]").astype(np.int64)
    if unit == "week":
        return np.unique((days + 3) // 7, return_inverse=True)[1]
    return np.unique(base.dates_T.astype("datetime64[M]"), return_inverse=True)[1]


def of_periods(base: Base, x_TN: Array, unit: str, kind: str, label: str) -> Array:
    """Value of a period, held from its start, or from its end until the next one ends.

    ``kind`` is the mean of the period, or its last value. ``label`` is ``start``, ``end`` or ``nearest``.
    """
    own_T = periods(base, unit)
    rows = []
    for p in range(own_T.max() + 1):
        part = x_TN[own_T == p]
        rows.append(np.nanmean(part, axis=0) if kind == "mean" else carry(part)[-1])
    value_PN = np.asarray(rows)
    last_P = np.searchsorted(own_T, np.arange(len(rows)), side="right") - 1
    at_T = np.arange(len(own_T))
    if label == "start":
        return np.asarray(value_PN[own_T])
    if label == "nearest":
        return np.asarray(value_PN[np.abs(at_T[:, None] - last_P).argmin(axis=1)])
    place_T = np.searchsorted(last_P, at_T, side="right") - 1
    return np.where((place_T >= 0)[:, None], value_PN[np.maximum(place_T, 0)], np.nan)


def mood(base: Base, strength: float) -> Array:
    """A daily figure that is linked to the return of its own session."""
    size = np.nan_to_num(np.nanstd(base.return_TN, axis=0))
    own = base.return_TN / np.maximum(size, 1e-9)
    return np.asarray(strength * own + np.sqrt(1 - strength**2) * base.noise(64))


def events(base: Base, spread: float) -> Array:
    """Whether a firm has an event on a session: about once a quarter, give or take ``spread`` sessions."""
    rng = np.random.default_rng((base.seed, 65))
    T, N = base.close_TN.shape
    length = np.maximum(np.rint(_QUARTER + spread * rng.standard_normal((40 + base.whole // 40, N))), 10)
    day = rng.integers(0, _QUARTER, N) + np.cumsum(length, axis=0) - _QUARTER
    out = np.zeros((T + 400, N), dtype=bool)
    for n in range(N):
        at = day[:, n].astype(int)
        out[at[(at >= 0) & (at < len(out))], n] = True
    return out


def to_event(base: Base, spread: float, kind: str) -> Array:
    """Sessions to the next event.

    ``known``: always exact. ``revised``: a quarter after the last event, until the date is confirmed 15
    sessions before. ``announced``: unknown until the date is announced, 10 to 30 sessions before. ``days``:
    always exact, in calendar days.
    """
    is_TN = events(base, spread)
    T = len(base.close_TN)
    at = np.arange(len(is_TN))[:, None]
    following = np.minimum.accumulate(np.where(is_TN, at, len(is_TN))[::-1], axis=0)[::-1]
    exact = (following - at)[:T].astype(float)
    if kind == "days":
        number_T = base.dates_T.astype("datetime64[D]").astype(float)
        beyond = number_T[-1] + 1.4 * np.arange(1, 401)
        day_T = np.concatenate([number_T, np.rint(beyond)])
        return np.asarray(day_T[np.minimum(following[:T], len(day_T) - 1)] - number_T[:, None])
    if kind == "known":
        return exact
    if kind == "announced":
        before = np.random.default_rng((base.seed, 66)).integers(10, 30, (4000, 1))[following[:T] % 4000][
            :, :, 0
        ]
        return np.where(exact <= before, exact, np.nan)
    last = np.maximum.accumulate(np.where(is_TN, at, -1), axis=0)
    before = np.vstack([np.full_like(last[:1], -1), last[:-1]])[:T]
    guess = np.maximum(before + _QUARTER - at[:T], 1)
    return np.where((exact <= 15) | (before < 0), exact, np.where(guess > 15, guess, 16)).astype(float)


def split_factor(base: Base, share: float) -> Array:
    """What the splits of some firms multiply to up to each session [T, N].

    A firm splits its shares once, ten sessions after its price stands 60% above its lowest so far.
    """
    ratio, risen = np.ones(base.close_TN.shape), base.carried_TN >= 1.6 * np.fmin.accumulate(base.carried_TN)
    for n in np.flatnonzero(risen.any(axis=0) & drawn(base, share)):
        after = np.flatnonzero(np.isfinite(base.bars["close"][:, n]))
        after = after[after >= risen[:, n].argmax() + 10]
        ratio[after[:1], n] = _SPLIT
    return np.asarray(np.cumprod(ratio, axis=0), dtype=np.float64)


def quoted(base: Base, share: float) -> Array:
    """Closes of firms that split their shares."""
    return np.asarray(base.bars["close"] / split_factor(base, share))


def traded(base: Base, share: float, *, adjusted: bool) -> Array:
    """Volumes of firms that split their shares, or volumes adjusted for these splits."""
    done = split_factor(base, share)
    return np.asarray(base.bars["volume"] * (done[-1] if adjusted else done))


def dollars(base: Base, share: float, *, adjusted: bool) -> Array:
    """Volume in money, of volumes as traded or adjusted for later splits."""
    return traded(base, share, adjusted=adjusted) * quoted(base, share)


def with_splits(base: Base, share: float = 0.5, *, adjusted: bool = False) -> Tables:
    """Prices and volumes of firms that split their shares; or volumes adjusted for these splits."""
    done = split_factor(base, share)
    bars = {name: base.bars[name] / done for name in ("open", "high", "low", "close")}
    ratio = done / np.vstack([done[:1], done[:-1]])
    volume = traded(base, share, adjusted=adjusted)
    return base.with_bars(**bars, volume=volume, split_ratio=base.bars["split_ratio"] * ratio)


def share_count(base: Base, share: float, *, adjusted: bool) -> Array:
    """Shares outstanding, which grow a little every quarter and change at splits; or adjusted for them."""
    recorded = np.nan_to_num(base.bars["split_ratio"], nan=1.0)
    quarter = np.arange(len(recorded))[:, None] // _QUARTER
    grown = 1e7 * np.exp(base.noise(68)[0]) * 1.005**quarter
    own = split_factor(base, share) * np.cumprod(recorded, axis=0)
    return np.asarray(grown * (own[-1] if adjusted else own))


def with_own(base: Base, x_TN: Array, share: float, name: str = "signal") -> Tables:
    """The market with splits, and an input."""
    return {**with_splits(base, share), "inputs": base.rows(name, x_TN)}


def capital(base: Base, share: float, *, adjusted: str) -> Array:
    """Capitalisation: shares outstanding times the price, both as of t, or one of them adjusted."""
    recorded = np.cumprod(np.nan_to_num(base.bars["split_ratio"], nan=1.0), axis=0)
    own, price = split_factor(base, share) * recorded, quoted(base, share)
    price = price * own / own[-1] if adjusted == "price" else price
    return np.asarray(share_count(base, share, adjusted=adjusted == "count") * price)


Make = Callable[[Base], Array]


def _input(make: Make, *expects: str, twin: Make | None = None) -> Case:
    pair = (make, twin) if twin else None
    return Case(lambda b: b.with_input(make(b)), expects=expects, of_input=True, pair=pair)


def _rate(make: Callable[[Base, Array], Array], which: int, strength: float, k: int) -> Make:
    return lambda b: make(b, macro(b, which, strength, k))


def _held(make: Make, unit: str, kind: str, label: str) -> Make:
    return lambda b: of_periods(b, make(b), unit, kind, label)


def _early_mean(share: float, k: int) -> Make:
    def mean(base: Base) -> Array:
        own = np.nanmean(base.return_TN[:, drawn(base, share)], axis=1, keepdims=True)
        return for_all(base, ahead(own, k) if k else own)

    return mean


def _of_splits(make: Callable[..., Array], share: float, name: str, **doctored: object) -> Case:
    """An input of firms that split their shares, doctored and as it was."""
    honest = {key: "" if isinstance(value, str) else False for key, value in doctored.items()}
    pair = partial(make, share=share, **doctored), partial(make, share=share, **honest)
    return Case(lambda b: with_own(b, pair[0](b), share, name), expects=(name,), pair=pair)


def _log_volume(base: Base) -> Array:
    return np.asarray(np.log1p(base.bars["volume"]))


_OWN: Final = ("signal",)
EARLY_DOCTORED: Final[dict[str, Case]] = {
    **{
        f"{name} of the firms a session early": Case(
            partial(early_firms, share=share),
            expects=("next session",),
            pair=(_early_mean(share, 1), _early_mean(share, 0)),
        )
        for name, share in (("three", 0.0), ("10%", 0.1), ("30%", 0.3))
    },
    **{
        f"{kind} of the next session, {s}, factor {which}": _input(
            _rate(make, which, s, 1), *_OWN, twin=_rate(make, which, s, 0)
        )
        for kind, make in (("a rate", for_all), ("betas times a rate", exposed))
        for which in (1, 2)
        for s in (0.4, 0.7, 0.95)
    },
    **{
        f"{what}, by {unit}, labelled {label}": _input(
            _held(make, unit, kind, label), *_OWN, twin=_held(make, unit, kind, "end")
        )
        for what, make, kind in (
            ("mean of volume", _log_volume, "mean"),
            ("mood of 0.2", partial(mood, strength=0.2), "mean"),
            ("mood of 0.5", partial(mood, strength=0.5), "mean"),
            ("momentum", partial(past, days=126), "last"),
            ("volatility", partial(volatility, days=21), "last"),
        )
        for unit in ("week", "month")
        for label in ("start", "nearest")
    },
    **{
        f"an exact countdown to events, spread {spread}": _input(
            partial(to_event, spread=spread, kind="known"),
            *_OWN,
            twin=partial(to_event, spread=spread, kind="revised"),
        )
        for spread in (6.0, 12.0, 20.0)
    },
    "an exact countdown in days": _input(
        partial(to_event, spread=12.0, kind="days"),
        *_OWN,
        twin=partial(to_event, spread=12.0, kind="revised"),
    ),
    **{
        f"volumes adjusted for later splits of {name} of the firms": Case(
            partial(with_splits, share=share, adjusted=True),
            expects=("olume",),
            pair=(
                partial(dollars, share=share, adjusted=True),
                partial(dollars, share=share, adjusted=False),
            ),
        )
        for name, share in (("15%", 0.15), ("50%", 0.5))
    },
    **{
        f"capitalisation with adjusted {what}s, splits of {name}": _of_splits(
            capital, share, "signal", adjusted=what
        )
        for what in ("price", "count")
        for name, share in (("15%", 0.15), ("50%", 0.5))
    },
    "share counts adjusted for later splits": _of_splits(share_count, 0.5, "shares", adjusted=True),
}
EARLY_CLEAN: Final[dict[str, Case]] = {
    "firms that trade later than the market": Case(lambda b: trades_later(b, 0.1, 0.75)),
    **{
        f"{kind} of {when}, factor {which}": _input(_rate(make, which, 0.7, k))
        for kind, make in (("a rate", for_all), ("betas times a rate", exposed))
        for which in (1, 2)
        for when, k in (("today", 0), ("yesterday", -1))
    },
    **{
        f"{what}, by {unit}, labelled at the end": _input(_held(make, unit, kind, "end"))
        for what, make, kind in (
            ("mean of volume", _log_volume, "mean"),
            ("mood of 0.5", partial(mood, strength=0.5), "mean"),
            ("momentum", partial(past, days=126), "last"),
            ("volatility", partial(volatility, days=21), "last"),
        )
        for unit in ("week", "month")
    },
    "a countdown to estimated events": _input(lambda b: to_event(b, 12.0, "revised")),
    "a countdown to announced events": _input(lambda b: to_event(b, 12.0, "announced")),
    "a countdown to the month's end": _input(
        lambda b: for_all(
            b,
            (periods(b, "month")[:, None] == np.arange(periods(b, "month").max() + 1))[::-1].cumsum(axis=0)[
                ::-1
            ][np.arange(len(b.close_TN)), periods(b, "month")][:, None]
            - 1.0,
        )
    ),
    "firms that split their shares": Case(with_splits),
    "share counts that change at splits": Case(
        lambda b: with_own(b, share_count(b, 0.5, adjusted=False), 0.5, "shares")
    ),
    "share counts that change at the next report": Case(
        lambda b: with_own(b, np.fmin(lag(share_count(b, 0.5, adjusted=False), 45), 1e12), 0.5, "shares")
    ),
    "capitalisation at splits": Case(lambda b: with_own(b, capital(b, 0.5, adjusted=""), 0.5)),
    "the raw price at splits": Case(lambda b: with_own(b, quoted(b, 0.5), 0.5)),
}


def information(base: Base, x_TN: Array) -> Array:
    """Mean daily rank ICs [2, 3] of a signal with the returns of the next 1, 5 and 21 sessions.

    First as it is, then times each firm's slope of the next return on it: slopes of the first half of the
    sessions, ICs of the second half. So a signal with one value for all firms of a date counts too.
    """
    next_TN, half = ahead(base.return_TN), len(x_TN) // 2
    known_TN = np.isfinite(x_TN) & np.isfinite(next_TN)
    known_TN[half:] = False
    off_TN = np.where(known_TN, x_TN - np.nanmean(np.where(known_TN, x_TN, np.nan), axis=0), 0.0)
    slope_N = (off_TN * np.where(known_TN, next_TN, 0.0)).sum(axis=0) / np.maximum(
        (off_TN**2).sum(axis=0), 1e-12
    )
    signals = x_TN, np.where(np.arange(len(x_TN))[:, None] >= half, x_TN * slope_N, np.nan)
    ics = [[rank_ic_by_date(own, forward_return(base, days)) for days in HORIZONS] for own in signals]
    return np.asarray(np.nan_to_num(np.nanmean(ics, axis=2)))


def costs(base: Base, case: Case) -> Array | None:
    """ICs (`information`) of what a doctored case gives less those of its honest twin; None without one."""
    return None if case.pair is None else np.subtract(*(information(base, make(base)) for make in case.pair))


def worst_cost(found: Sequence[Array]) -> float:
    """Largest |mean| cost over markets that is at least two standard errors; 0 without one."""
    if not found:
        return 0.0
    mean = np.abs(np.mean(found, axis=0))
    error = np.std(found, axis=0, ddof=1) / len(found) ** 0.5 if len(found) > 1 else np.zeros_like(mean)
    return float(np.max(mean, where=mean >= 2.0 * error, initial=0.0))


def delivered(tables: Tables) -> Delivery:
    """A delivery of tables, all firms of which may be forecast."""
    panel = build_panel(tables["prices"], tables["securities"])
    names = tuple(tables["inputs"]["name"].unique()) if "inputs" in tables else ()
    index = tables["membership"]["universe"][0] if "membership" in tables else None
    columns = np.arange(panel.n_firms)
    return Delivery(panel, panel.traded_TN, tables, names, columns, 1, membership=index)


ChecksOf = Callable[[Case], tuple[Callable[[Delivery], Result], ...]]


def answers(base: Base, cases: dict[str, Case], checks_of: ChecksOf) -> Iterator[tuple[str, str]]:
    """Name and verdict of each case; one that expects words counts if the sentence has one of them."""
    inputs = [
        case.make(base)["inputs"].with_columns(name=pl.lit(name))
        for name, case in cases.items()
        if case.of_input
    ]
    if inputs:
        found = leads.check(delivered({**base.tables, "inputs": pl.concat(inputs)})).evidence
        by_name = found.group_by("subject").agg(pl.col("verdict").sort().first())
        yield from ((name.removeprefix("input "), verdict) for name, verdict in by_name.iter_rows())
    for name, case in cases.items():
        if not case.of_input:
            data = delivered(case.make(base))
            results = [check(data) for check in checks_of(case)]
            said = [
                one
                for one in results
                if not case.expects or any(word in one.sentence for word in case.expects)
            ]
            yield name, min((one.verdict for one in said), key=VERDICTS.index, default="pass")


def main() -> None:
    """Print how often each case fails, or is warned about."""
    others = {name: case for name, case in {**CLEAN, **FRESH_CLEAN, **SECOND_CLEAN}.items() if case.of_input}
    kinds = {"doctored": EARLY_DOCTORED, "honest": EARLY_CLEAN, "other honest inputs": others}
    count(__doc__, kinds, lambda _: (bars.bars, leads.check, splits.check))


def _worst(found: list[tuple[Array, str]]) -> str:
    return f"{worst_cost([one for one, _ in found]):>8.3f} cost"


def count(
    description: str | None,
    kinds: Mapping[str, dict[str, Case]],
    checks_of: ChecksOf,
    cost_of: Callable[[Base, Case], Array | None] = costs,
    shown: Callable[[list[tuple[Array, str]]], str] = _worst,
) -> None:
    """Read the command line, ask the checks about cases of each kind on many markets, and print counts.

    ``shown`` words the costs and verdicts of a doctored case on its markets.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--held-out", action="store_true", help="firms on which no limit was chosen")
    parser.add_argument("--drawn", type=int, default=8, help="cases of a kind for each market")
    parser.add_argument("--only", default="", help="part of the names of the cases that are drawn from")
    given = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    np.seterr(all="ignore")
    counts: Counter[tuple[str, str, str]] = Counter()
    cost: dict[str, list[tuple[Array, str]]] = defaultdict(list)
    for k in range(given.count):
        base = draw(given.data, k, held_out=given.held_out)
        for kind, cases in kinds.items():
            names = sorted(name for name in cases if given.only in name)
            some = min(given.drawn, len(names))
            drawn = np.random.default_rng((k, len(kind))).choice(names, some, replace=False)
            for name, verdict in answers(base, {name: cases[name] for name in drawn.tolist()}, checks_of):
                counts[kind, name, verdict] += 1
                if kind == "doctored" and (one := cost_of(base, cases[name])) is not None:
                    cost[name].append((one, verdict))
                if kind != "doctored" and verdict in ("fail", "warn"):
                    print(f"{verdict:<5}{base.name}: {name}", flush=True)
    for kind in kinds:
        own = {
            name: {v: counts[kind, name, v] for v in ("fail", "warn", "pass", "skipped")}
            for name in sorted({name for kind_, name, _ in counts if kind_ == kind})
        }
        if kind == "doctored":
            for name, found in own.items():
                print(
                    f"{name:<60}{found['fail']:>4} fail {found['warn']:>4} warn of {sum(found.values()):>4}"
                    f"{shown(cost[name])}"
                )
        total = sum(sum(found.values()) for found in own.values())
        fail, warn = (sum(found[v] for found in own.values()) for v in ("fail", "warn"))
        print(f"{kind}: {fail} fail, {warn} warn of {total}", flush=True)


if __name__ == "__main__":
    main()
