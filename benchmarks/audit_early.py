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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from audit_bases import Array, Base, Tables, carry
from audit_clean import CLEAN, Case, lag, past, volatility
from audit_doctored import ahead
from audit_false_alarms import ROOT, draw, is_input
from audit_fresh import FRESH_CLEAN, SECOND_CLEAN

from backtest.look_ahead import bars, leads, splits
from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import VERDICTS, Result
from features.arrays import BoolArray, IntArray
from features.panel.panel import build_panel

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
    after_TN = ahead(close_TN * np.nan_to_num(ahead(base.bars["split_ratio"]), nan=1.0))
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


def split_factor(base: Base, share: float) -> tuple[Array, Array]:
    """Split ratios [T, N] of one split for some firms, and what they multiply to up to each session."""
    rng = np.random.default_rng((base.seed, 67))
    T, N = base.close_TN.shape
    ratio = np.ones((base.whole, N))
    at = rng.integers(base.whole // 5, base.whole * 4 // 5, N)
    ratio[at, np.arange(N)] = np.where(drawn(base, share), _SPLIT, 1.0)
    return ratio[:T], np.cumprod(ratio[:T], axis=0, dtype=np.float64)


def with_splits(base: Base, share: float = 0.5, *, adjusted_volume: bool = False) -> Tables:
    """Prices and volumes of firms that split their shares; or volumes adjusted for these splits."""
    ratio, done = split_factor(base, share)
    left = _SPLIT ** drawn(base, share) / done  # what is still to come
    bars = {name: base.bars[name] * left for name in ("open", "high", "low", "close")}
    volume = base.bars["volume"] if adjusted_volume else base.bars["volume"] / left
    return base.with_bars(**bars, volume=volume, split_ratio=base.bars["split_ratio"] * ratio)


def share_count(base: Base, share: float, *, adjusted: bool) -> Array:
    """Shares outstanding, which grow a little every quarter and change at splits; or adjusted for them."""
    T = len(base.close_TN)
    recorded = np.nan_to_num(base.bars["split_ratio"], nan=1.0)
    grown = 1e7 * np.exp(base.noise(68)[0]) * 1.005 ** (np.arange(T)[:, None] // _QUARTER)
    own = split_factor(base, share)[1] * np.cumprod(recorded, axis=0)
    return np.asarray(grown if adjusted else grown * own)


def with_own(base: Base, x_TN: Array, share: float) -> Tables:
    """The market with splits, and an input."""
    return {**with_splits(base, share), "inputs": base.rows("signal", x_TN)}


def capital(base: Base, share: float, *, adjusted: str) -> Array:
    """Capitalisation: shares outstanding times the price, both as of t, or one of them adjusted."""
    left = _SPLIT ** drawn(base, share) / split_factor(base, share)[1]
    price = base.close_TN if adjusted == "price" else base.bars["close"] * left
    return np.asarray(share_count(base, share, adjusted=adjusted == "count") * price)


Make = Callable[[Base], Array]


def _input(make: Make, *expects: str) -> Case:
    return Case(lambda b: b.with_input(make(b)), expects=expects, of_input=True)


def _rate(make: Callable[[Base, Array], Array], which: int, strength: float, k: int) -> Make:
    return lambda b: make(b, macro(b, which, strength, k))


def _held(make: Make, unit: str, kind: str, label: str) -> Make:
    return lambda b: of_periods(b, make(b), unit, kind, label)


def _capital(share: float, adjusted: str) -> Case:
    return Case(lambda b: with_own(b, capital(b, share, adjusted=adjusted), share), expects=_OWN)


def _log_volume(base: Base) -> Array:
    return np.asarray(np.log1p(base.bars["volume"]))


_OWN: Final = ("signal",)
EARLY_DOCTORED: Final[dict[str, Case]] = {
    **{
        f"{name} of the firms a session early": Case(
            partial(early_firms, share=share), expects=("next session",)
        )
        for name, share in (("three", 0.0), ("10%", 0.1), ("30%", 0.3))
    },
    **{
        f"{kind} of the next session, {s}, factor {which}": _input(_rate(make, which, s, 1), *_OWN)
        for kind, make in (("a rate", for_all), ("betas times a rate", exposed))
        for which in (1, 2)
        for s in (0.4, 0.7, 0.95)
    },
    **{
        f"{what}, by {unit}, labelled {label}": _input(_held(make, unit, kind, label), *_OWN)
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
            partial(to_event, spread=spread, kind="known"), *_OWN
        )
        for spread in (6.0, 12.0, 20.0)
    },
    "an exact countdown in days": _input(lambda b: to_event(b, 12.0, "days"), *_OWN),
    **{
        f"volumes adjusted for later splits of {name} of the firms": Case(
            partial(with_splits, share=share, adjusted_volume=True), expects=("olume",)
        )
        for name, share in (("15%", 0.15), ("50%", 0.5))
    },
    **{
        f"capitalisation with adjusted {what}s, splits of {name}": _capital(share, what)
        for what in ("price", "count")
        for name, share in (("15%", 0.15), ("50%", 0.5))
    },
    "share counts adjusted for later splits": Case(
        lambda b: with_own(b, share_count(b, 0.5, adjusted=True), 0.5), expects=_OWN
    ),
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
        lambda b: with_own(b, share_count(b, 0.5, adjusted=False), 0.5)
    ),
    "share counts that change at the next report": Case(
        lambda b: with_own(b, np.fmin(lag(share_count(b, 0.5, adjusted=False), 45), 1e12), 0.5)
    ),
    "capitalisation at splits": Case(lambda b: with_own(b, capital(b, 0.5, adjusted=""), 0.5)),
    "the raw price at splits": Case(
        lambda b: {
            **with_splits(b),
            "inputs": b.rows("signal", b.bars["close"] * _SPLIT ** drawn(b, 0.5) / split_factor(b, 0.5)[1]),
        }
    ),
}


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
    others = {name: case for name, case in {**CLEAN, **FRESH_CLEAN, **SECOND_CLEAN}.items() if is_input(case)}
    kinds = {"doctored": EARLY_DOCTORED, "honest": EARLY_CLEAN, "other honest inputs": others}
    count(__doc__, kinds, lambda _: (bars.bars, leads.check, splits.check))


def count(description: str | None, kinds: Mapping[str, dict[str, Case]], checks_of: ChecksOf) -> None:
    """Read the command line, ask the checks about cases of each kind on many markets, and print counts."""
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
    for k in range(given.count):
        base = draw(given.data, k, held_out=given.held_out)
        for kind, cases in kinds.items():
            names = sorted(name for name in cases if given.only in name)
            some = min(given.drawn, len(names))
            drawn = np.random.default_rng((k, len(kind))).choice(names, some, replace=False)
            for name, verdict in answers(base, {name: cases[name] for name in drawn.tolist()}, checks_of):
                counts[kind, name, verdict] += 1
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
                )
        total = sum(sum(found.values()) for found in own.values())
        fail, warn = (sum(found[v] for found in own.values()) for v in ("fail", "warn"))
        print(f"{kind}: {fail} fail, {warn} warn of {total}", flush=True)


if __name__ == "__main__":
    main()
