"""Deliveries whose firms, members or dividends were chosen or dated with hindsight, and honest ones.

python benchmarks/audit_selection.py --data ../shared/data --count 40             # to choose limits
python benchmarks/audit_selection.py --data ../shared/data --count 40 --held-out  # the other firms

Markets are those of `audit_false_alarms`, and cases are drawn as in `audit_early`. Of honest deliveries, only
the rule that looks for the same cause is counted; `audit_false_alarms` counts all. The cost of a doctored
delivery is what a book earns on it that holds all firms, members or firms with a value of the input in equal
weights, beyond what it earns on an honest one.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import polars as pl
from audit_bases import Array, Base, Tables
from audit_clean import Case, past, statements, volatility
from audit_doctored import ahead
from audit_early import count, delivered

from backtest.look_ahead import coverage, hindsight, splits
from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import Result
from backtest.look_ahead.returns import session_returns
from features.arithmetic.rolling import rolling_mean


def scaled(base: Base, factor_TN: Array, **changed: Array) -> Tables:
    """Prices times a factor."""
    bars = {name: base.bars[name] * factor_TN for name in ("open", "high", "low", "close")}
    return base.with_bars(**{**bars, **changed})


def paying(base: Base, share: float, early: int, *, falls: bool = True) -> Tables:
    """Most firms pay a share of their price every 63 sessions or so; recorded so many sessions early."""
    rng = np.random.default_rng((base.seed, 71))
    close_TN, (T, N) = base.bars["close"], base.close_TN.shape
    factor_TN, paid_TN = np.ones((T, N)), np.zeros((T, N))
    for n in np.flatnonzero(rng.random(N) < 0.6):
        for start in range(int(rng.integers(5, 63)), T, 63):
            t = start + int(rng.integers(-3, 4))
            size = share * np.exp(0.4 * rng.standard_normal())
            if 11 < t < T - 11 and np.isfinite(close_TN[[t - 1, t, t - early], n]).all():
                paid_TN[t - early, n] = size * close_TN[t - 1, n] * factor_TN[t - 1, n]
                factor_TN[t:, n] *= 1.0 - size * falls
    return scaled(base, factor_TN, dividend=np.nan_to_num(base.bars["dividend"]) + paid_TN)


_DEAR: Final = 0.5  # Sharpe ratio that a leak adds, from which most must be found
MIXED: Final = 99  # each change is 1 to 5 sessions early


def gain(base: Base, at_N: Array, sessions: int) -> Array:
    """Log return [N] over the next sessions, or up to the last one, less the mean of all firms; by rank."""
    log_TN, T = np.log(base.carried_TN), len(base.carried_TN)
    log_TN = np.nan_to_num(log_TN - np.nanmean(log_TN, axis=1, keepdims=True))
    first = np.clip(at_N.astype(int), 0, T - 1)
    own = np.arange(log_TN.shape[1])
    found = log_TN[np.clip(first + sessions, 0, T - 1), own] - log_TN[first, own]
    order = np.argsort(np.argsort(found))
    return np.asarray((order + 0.5) / len(order) * 3.4 - 1.7)


def since(base: Base, at_N: Array) -> Array:
    """Rows [T, N] from a session on."""
    return np.asarray(np.arange(len(base.close_TN))[:, None] >= at_N)


def firsts(base: Base) -> Array:
    """First session [N] of each firm."""
    return np.asarray(np.isfinite(base.close_TN).argmax(axis=0), dtype=np.float64)


def chosen(base: Base, strength: float) -> Array:
    """Half of the firms are covered, each from some session on: those that do well in the year after it."""
    T, N = base.close_TN.shape
    rng = np.random.default_rng((base.seed, 81))
    at_N = firsts(base) + rng.uniform(0.0, 0.6, N) * T
    score_N = strength * gain(base, at_N, 252) + np.sqrt(1.0 - strength**2) * rng.standard_normal(N)
    return since(base, np.where(score_N > np.median(score_N), at_N, T))


def timed(base: Base, draws: int) -> Array:
    """Three of four firms are covered from the best of some sessions on: before their best half year."""
    T, N = base.close_TN.shape
    rng = np.random.default_rng((base.seed, 83))
    at_DN = firsts(base) + rng.uniform(0.0, 0.7, (draws, N)) * T
    best_N = np.argmax([gain(base, at_N, 126) for at_N in at_DN], axis=0)
    return since(base, np.where(rng.random(N) < 0.75, at_DN[best_N, np.arange(N)], T))


def known_choice(base: Base, by: str) -> Array:
    """Half of the firms are covered, each from some session on, for what is known then."""
    T, N = base.close_TN.shape
    rng = np.random.default_rng((base.seed, 84))
    at_N = firsts(base) + rng.uniform(0.0, 0.6, N) * T
    row_N, own_N = np.minimum(at_N.astype(int), T - 1), np.arange(N)
    if by == "age":
        return since(base, firsts(base) + np.where(firsts(base) > 0, 252, 20))
    if by == "return":
        before_N = np.maximum(at_N - 252, firsts(base))
        score_N = gain(base, before_N, 252) * (at_N - before_N > 60)
    elif by == "size":
        value_TN = np.nan_to_num(base.bars["close"] * base.bars["volume"])
        score_N = rolling_mean(value_TN, 63, 1)[row_N, own_N]
    elif by == "industry":
        score_N = rng.standard_normal(200)[base.group_N % 200] + 1e-3 * rng.standard_normal(N)
    else:
        score_N = rng.standard_normal(N)
    return since(base, np.where(score_N > np.median(score_N), at_N, T))


def covered(base: Base, rows_TN: Array, table: str) -> Tables:
    """An input of noise, statements or a list of members, from the first session of a firm's coverage on."""
    if table == "input":
        return base.with_input(np.where(rows_TN, base.noise(85), np.nan))
    any_N, first_N = np.any(rows_TN, axis=0), np.argmax(rows_TN, axis=0)
    days = [base.dates_T[t].astype("datetime64[D]").item() for t in first_N]
    start = pl.DataFrame(
        {
            "ticker": np.asarray(base.tickers_N)[any_N],
            "start": [d for d, a in zip(days, any_N, strict=True) if a],
        },
        schema={"ticker": pl.String, "start": pl.Date},
    )
    if table == "statements":
        rows = (
            statements(base, (30, 60)).join(start, on="ticker").filter(pl.col("known_at") >= pl.col("start"))
        )
        return {**base.tables, "fundamentals": rows.drop("start")}
    listed = start.select(
        pl.lit("index").alias("universe"), "ticker", from_date="start", to_date=pl.lit(None, pl.Date)
    )
    return {**base.tables, "membership": listed}


def joining(base: Base, jump: float, early: int) -> Tables:
    """An index of half of the firms: every quarter, some that fell are replaced by some that rose.

    Prices jump when changes are announced, 10 sessions before they come into force; the list has them so many
    sessions early, before the announcement, or at the end of that session (0), or when in force (-10).
    """
    T, N = base.close_TN.shape
    rng = np.random.default_rng((base.seed, 86))
    factor_TN = np.ones((T, N))
    inside_N = np.less(rng.random(N), 0.5) & np.isfinite(base.close_TN[0])
    begin: dict[int, int] = dict.fromkeys(np.flatnonzero(inside_N).tolist(), 0)
    rows = []
    for t in range(70, T - 25, 63):
        known_N = np.isfinite(base.close_TN[t]) & np.isfinite(base.close_TN[t - 63])
        past_N = np.where(known_N, base.carried_TN[t] / base.carried_TN[t - 63], np.nan)
        past_N += 0.2 * rng.standard_normal(N)
        count = max(round(0.08 * N), 1)
        joins = [n for n in np.argsort(-np.nan_to_num(past_N, nan=-9.0)) if not inside_N[n] and known_N[n]][
            :count
        ]
        leaves = [n for n in np.argsort(np.nan_to_num(past_N, nan=99.0)) if inside_N[n] and known_N[n]][
            : len(joins)
        ]
        for n in joins:
            factor_TN[t:, n] *= 1.0 + jump * np.exp(0.5 * rng.standard_normal())
            begin[n] = t - (int(rng.integers(1, 6)) if early == MIXED else early)
        for n in leaves:
            factor_TN[t:, n] /= 1.0 + jump * np.exp(0.5 * rng.standard_normal())
            rows.append((n, begin.pop(n), t - (int(rng.integers(1, 6)) if early == MIXED else early)))
        inside_N[joins], inside_N[leaves] = True, False
    rows += [(n, first, T) for n, first in begin.items()]
    day = [one.astype("datetime64[D]").item() for one in base.dates_T] + [None]
    frame = pl.DataFrame(
        [("index", base.tickers_N[n], day[first], day[last]) for n, first, last in rows],
        schema={"universe": pl.String, "ticker": pl.String, "from_date": pl.Date, "to_date": pl.Date},
        orient="row",
    )
    return {**scaled(base, factor_TN), "membership": frame}


def listed(base: Base, incubated: float, *, pop: float = 0.0, rising: bool = False) -> Tables:
    """Half of the firms are listed during the sample; some histories begin with a half year above the mean.

    Prices may jump on the second session, and firms may be listed only after the market rose.
    """
    T, N = base.close_TN.shape
    rng = np.random.default_rng((base.seed, 87))
    late_N, kept_N = np.less(rng.random(N), 0.5), np.less(rng.random(N), incubated)
    close_TN, factor_TN = base.bars["close"].copy(), np.ones((T, N))
    log_TN = np.log(base.carried_TN)
    market_T = np.nanmean(log_TN, axis=1)
    log_TN = log_TN - market_T[:, None]
    for n in np.flatnonzero(late_N):
        draws = rng.uniform(0.05, 0.8, 5 if rising else 1) * T
        at = int(max(draws, key=lambda t: market_T[int(t)] - market_T[max(int(t) - 126, 0)]))
        while kept_N[n] and at + 120 < T and not log_TN[at + 120, n] > log_TN[at, n]:
            at += 120
        if kept_N[n] and at + 120 >= T:
            at = T
        close_TN[:at, n] = np.nan
        factor_TN[: at + 1, n] /= 1.0 + pop
    tables = scaled(base, factor_TN, close=close_TN * factor_TN)
    return {name: frame for name, frame in tables.items() if name != "membership"}  # of the histories before


def leaving(base: Base, value: Callable[[Base, Array], Array]) -> Tables:
    """8% of the firms leave in a year, after a fall; an input is made of the sessions [T, N] to each end."""
    T, N = base.close_TN.shape
    rng = np.random.default_rng((base.seed, 88))
    known_TN, factor_TN = np.isfinite(base.bars["close"]), np.ones((T, N))
    left_TN = np.full((T, N), np.inf)
    for n in range(N):
        rows = np.flatnonzero(known_TN[:, n])
        hit = np.flatnonzero(rng.random(T) < 0.08 / 252)
        hit = hit[(hit > rows[0] + 20) & (hit < min(rows[-1], T - 30))]
        if len(hit):
            size = min(60, int(hit[0] - rows[0]))
            factor_TN[hit[0] - size : hit[0] + 1, n] = np.exp(np.linspace(0.0, np.log(0.5), size + 1))
            factor_TN[hit[0] + 1 :, n] = np.nan
            left_TN[:, n] = hit[0] - np.arange(T)
    tables = scaled(base, np.nan_to_num(factor_TN, nan=1.0), close=base.bars["close"] * factor_TN)
    value_TN = np.where(np.isfinite(factor_TN), value(base, left_TN), np.nan)
    return {**tables, "inputs": base.rows("signal", value_TN)}


def of_the_doomed(base: Base, left_TN: Array, sessions: int, constant: float) -> Array:
    """Slow noise, which is one number in the last sessions of firms that leave."""
    return np.where(left_TN < sessions, constant, rolling_mean(base.noise(89), 21, 1))


def distress(base: Base, left_TN: Array) -> Array:
    """A flag that one firm in ten has, and two of three of those that leave within 400 sessions."""
    flag_TN = base.noise(90)[0] + 1.7 * (left_TN < 400) > 1.28
    return np.asarray(np.where(np.isfinite(base.close_TN), flag_TN, np.nan))


def value_of_book(tables: Tables) -> Array:
    """Annual return and Sharpe ratio of a book that holds all firms that it may hold, and IC of the choice.

    It may hold firms that a list of members, or else an input, covers; or all that trade.
    """
    data = delivered(tables)
    traded_TN, chosen_TN = data.panel.traded_TN, data.panel.traded_TN
    if data.inputs:
        chosen_TN = traded_TN & np.isfinite(data.input(data.inputs[0]))
    elif data.membership is not None:
        chosen_TN = traded_TN & data.member_TN
    later_TN = ahead(np.clip(session_returns(data.panel.total_return_index_TN, traded_TN), -0.6, 0.8))
    known_TN = np.isfinite(later_TN)
    chosen_TN = chosen_TN & known_TN
    count_T, all_T = chosen_TN.sum(axis=1), np.maximum(known_TN.sum(axis=1), 1)
    daily_T = np.where(chosen_TN, later_TN, 0.0).sum(axis=1)[count_T >= 5] / count_T[count_T >= 5]
    mean_T, share_T = np.where(known_TN, later_TN, 0.0).sum(axis=1) / all_T, count_T / all_T
    own_TN = np.where(known_TN, later_TN - mean_T[:, None], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation_T = np.sqrt((own_TN**2).sum(axis=1) / all_T * share_T * (1.0 - share_T))
        ic_T = np.where(chosen_TN, own_TN, 0.0).sum(axis=1) / all_T / deviation_T
    annual, deviation = 252.0 * daily_T.mean(), 252.0**0.5 * daily_T.std()
    known_T = np.isfinite(ic_T)
    return np.array([annual, annual / deviation, ic_T[known_T].mean() if known_T.any() else 0.0])


DIVIDENDS: Final = ("their ex-dates", "may be counted twice", "dates of dividends", "dates of small splits")
JOINERS: Final = ("dated too early", "before they rise", "before they fall")
SUCCESS: Final = ("begins with success", "chosen by later returns")
NEW: Final = ("New firms begin with success",)
DOOMED: Final = ("knows which firms stop trading",)
CHECKS: Final[dict[tuple[str, ...], Callable[[Delivery], Result]]] = {
    DIVIDENDS: splits.check,
    JOINERS: hindsight.membership,
    SUCCESS: coverage.check,
    NEW: coverage.check,
    DOOMED: hindsight.survivorship,
}
_TABLES: Final = ("input", "statements", "members")


def _covered(rows: Callable[[Base], Array], table: str) -> Case:
    return Case(lambda b: covered(b, rows(b), table), expects=SUCCESS)


DOCTORED: Final[dict[str, Case]] = {
    **{
        f"dividends of {share:.1%}, {early} session(s) early": Case(
            partial(paying, share=share, early=early), expects=DIVIDENDS
        )
        for share in (0.005, 0.01, 0.02)
        for early in (1, 3, -2)
    },
    **{
        f"dividends of {share:.1%} that prices do not show": Case(
            partial(paying, share=share, early=0, falls=False), expects=DIVIDENDS
        )
        for share in (0.005, 0.02)
    },
    **{
        f"joiners {'1 to 5' if early == MIXED else early} session(s) early, {jump:.0%}": Case(
            partial(joining, jump=jump, early=early), expects=JOINERS
        )
        for jump in (0.01, 0.02, 0.03, 0.05)
        for early in (1, 3, 5, MIXED)
    },
    **{
        f"coverage by the next year's return, {strength}, {table}": _covered(
            partial(chosen, strength=strength), table
        )
        for strength in (0.5, 0.7, 1.0)
        for table in _TABLES
    },
    **{
        f"coverage from the best of {draws} days on, {table}": _covered(partial(timed, draws=draws), table)
        for draws in (2, 3, 5, 8)
        for table in _TABLES
    },
    **{
        f"new firms, {share:.0%} of them incubated": Case(partial(listed, incubated=share), expects=NEW)
        for share in (0.5, 0.7, 1.0)
    },
    **{
        f"an input that is {constant} in the last {sessions} sessions of leavers": Case(
            partial(leaving, value=partial(of_the_doomed, sessions=sessions, constant=constant)),
            expects=DOOMED,
        )
        for sessions in (150, 252, 9999)
        for constant in (0.0, -1.0, np.nan)
    },
}
HONEST: Final[dict[str, Case]] = {
    **{
        f"dividends of {share:.1%}": Case(partial(paying, share=share, early=0), expects=DIVIDENDS)
        for share in (0.005, 0.01, 0.02)
    },
    "dividends as they are": Case(lambda b: b.tables, expects=DIVIDENDS),
    **{
        f"joiners {-early} session(s) after the announcement, {jump:.0%}": Case(
            partial(joining, jump=jump, early=early), expects=JOINERS
        )
        for jump in (0.0, 0.02, 0.05)
        for early in (0, -2, -10)
    },
    "the list of members as it is": Case(lambda b: b.tables, expects=JOINERS),
    **{
        f"coverage by {by}, {table}": _covered(partial(known_choice, by=by), table)
        for by in ("return", "size", "industry", "age", "chance")
        for table in _TABLES
    },
    **{
        f"new firms{what}": Case(partial(listed, incubated=0.0, pop=pop, rising=rising), expects=NEW)
        for what, pop, rising in (
            ("", 0.0, False),
            (" that rise on their first day", 0.2, False),
            (" after a rise", 0.0, True),
        )
    },
    "new firms as they are": Case(lambda b: b.tables, expects=NEW),
    **{
        f"an input of leavers that is 0 in the last {sessions} sessions": Case(
            partial(leaving, value=partial(of_the_doomed, sessions=sessions, constant=0.0)), expects=DOOMED
        )
        for sessions in (20, 63)
    },
    "the volatility of leavers": Case(partial(leaving, value=lambda b, _: volatility(b, 63)), expects=DOOMED),
    "the return of leavers over a year": Case(
        partial(leaving, value=lambda b, _: past(b, 252)), expects=DOOMED
    ),
    "a flag of distress of leavers": Case(partial(leaving, value=distress), expects=DOOMED),
}
_HONEST_TWINS: Final[dict[tuple[str, ...], Callable[[Base], Tables]]] = {
    JOINERS: partial(joining, jump=0.0, early=0),
    SUCCESS: lambda b: {"prices": b.tables["prices"], "securities": b.tables["securities"]},
    NEW: partial(listed, incubated=0.0),
}


def cost(base: Base, case: Case) -> Array | None:
    """Annual return, Sharpe ratio and IC that a doctored delivery adds to an honest one; None: not known."""
    tables = case.make(base)
    changed = tables.get("fundamentals") is not base.tables.get("fundamentals")
    if case.expects not in _HONEST_TWINS or changed:
        return None
    return value_of_book(tables) - value_of_book(_HONEST_TWINS[case.expects](base))


def shown(found: list[tuple[Array, str]]) -> str:
    """Mean costs, and alarms of the deliveries that cost most."""
    if not found:
        return ""
    annual, sharpe, ic = np.nanmean([one for one, _ in found], axis=0)
    dear = [verdict in ("fail", "warn") for one, verdict in found if one[1] >= _DEAR]
    words = f"{annual:>8.1%} a year, Sharpe {sharpe:.2f}, IC {ic:.3f}"
    return f"{words}; {sum(dear)} of {len(dear)} with {_DEAR} or more" if dear else words


def main() -> None:
    """Print how often each case fails, or is warned about."""
    kinds = {"doctored": DOCTORED, "honest": HONEST}
    count(__doc__, kinds, lambda case: (CHECKS[case.expects],), cost, shown)


if __name__ == "__main__":
    main()
