"""Prices against themselves: closes, opens and volumes that no market makes.

A price that was averaged, clipped, moved or filled with later ones keeps its level but not its small print:
the next session's news move today's open, a gap jumps when it begins instead of when it ends, or returns
stop at a bound.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from backtest.look_ahead.finding import Verdict
from features.arrays import BoolArray, FloatArray
from features.panel.derived import carried_close
from pipelines.audit.lead_sums import lead_correlations, pooled_correlations
from pipelines.audit.result import Result
from pipelines.audit.series import clipped, demeaned, news, residual_returns
from pipelines.audit.subject import Subject

NAME = "bars"
OPEN_RATIO: Final = 0.7
"""Mean |open to close| over mean |open to previous close|, below which the open may be one of the next
session. Liquid prices have 1.5 to 2.5. Firms that trade on few sessions have less, because their previous
close is old."""
OPEN_SLOPE: Final = 0.6
"""Minimum slope of the next return on the move from today's close to today's open. It is 1 if the open is the
next session's, 0.5 if closes bounce between bid and ask, and 0 otherwise."""
OWN_OPENS: Final = 0.5
"""Share of bars whose open is not their close, above which closes count as traded. Net asset values and other
appraisals have one price a session, and honest ones are averages of the past."""
AUTOCORRELATION: Final = 0.10
"""Median first autocorrelation of the firms' residual returns. Real prices have -0.06 to 0.02; an average of
three closes with a weight of 0.1 on each neighbour has 0.24."""
SUSPECT_AUTOCORRELATION: Final = 0.05
REPEATS: Final = 60
"""Minimum number of repeated closes, with a move before and after."""
REPEAT_RATIO: Final = 1.25
"""Mean |return| into repeated closes over that out of them. A halt that is filled forward has less than 1."""
EXTREMES: Final = 0.01
"""Mean share of a firm's rows at its own highest or lowest close. Real prices have 0.2%."""
CLIPPED: Final = 0.004
"""Mean share of a firm's returns that equal its own largest or smallest one, to nine digits."""
ON_GRID, OFF_GRID = 0.9, 0.5
"""Share of closes in whole cents, or in 64ths as US prices were quoted until 2001, late and early in the
sample, if early prices were divided by later events."""
GAP_DAYS: Final = 7
"""Days from the last price to the delisting, beyond which the last prices are missing."""
_NEWEST: Final = 20
"""Sessions at the end, before which hardly any firm pays a dividend: these prices are as quoted."""
_SAME: Final = 1e-9
_LARGEST: Final = 0.15
_FEWEST: Final = 500
_FEWEST_FIRMS: Final = 5


@dataclass(frozen=True, slots=True)
class _Fact:
    """One number of the prices, its limit, and what it means beyond it."""

    what: str
    value: float
    limit: float
    verdict: Verdict
    sentence: str = ""


def check(subject: Subject) -> Result:
    """Test opens, closes, gaps, extremes, the cent grid and the last prices for what later prices leave."""
    rules: tuple[Callable[[Subject], Iterator[_Fact]], ...] = (
        _opens,
        _averages,
        _moved,
        _gaps,
        _bounds,
        _adjusted,
        _tails,
    )
    facts = [fact for rule in rules for fact in rule(subject)]
    evidence = pl.DataFrame(
        [{name: getattr(fact, name) for name in _Fact.__slots__} for fact in facts], infer_schema_length=None
    )
    alarms = sorted(
        (fact for fact in facts if fact.verdict in ("fail", "warn")), key=lambda fact: fact.verdict != "fail"
    )
    if not facts:
        return Result(NAME, "skipped", "There are too few prices.")
    if alarms:
        more = "".join(f" Also: {fact.what} {fact.value:.3g} (limit {fact.limit:g})." for fact in alarms[1:])
        return Result(NAME, alarms[0].verdict, f"{alarms[0].sentence}{more}", evidence)
    shown = ", ".join(f"{fact.what} {fact.value:.2g}" for fact in facts)
    return Result(NAME, "pass", f"Prices look like prices: {shown}.", evidence)


def _own_opens(subject: Subject) -> BoolArray:
    """Bars [T, N] whose open is another price than their close."""
    panel = subject.dataset.panel
    if panel.open_TN is None:
        return np.zeros(panel.close_TN.shape, dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(panel.open_TN - panel.close_TN) > _SAME * panel.close_TN)


def _opens(subject: Subject) -> Iterator[_Fact]:
    panel = subject.dataset.panel
    if panel.open_TN is None:
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        move = np.log(panel.open_TN[1:-1] / panel.close_TN[1:-1])
        to_previous = np.abs(np.log(panel.open_TN[1:-1] / carried_close(panel)[:-2]))
        later = np.log(panel.close_TN[2:] / panel.close_TN[1:-1])
    known = np.isfinite(move) & np.isfinite(to_previous) & np.isfinite(later) & _own_opens(subject)[1:-1]
    if known.sum() < _FEWEST:
        return
    below = max(float(np.mean(to_previous[known])), 1e-12)
    ratio = float(np.mean(np.abs(move[known]))) / below
    x, y = np.clip(move[known], -_LARGEST, _LARGEST), np.clip(later[known], -_LARGEST, _LARGEST)
    slope = float(x @ y / (x @ x))
    yield _Fact(
        "open to close over open to previous close",
        ratio,
        OPEN_RATIO,
        "fail" if ratio < OPEN_RATIO and slope >= OPEN_SLOPE else "pass",
        f"The open is that of a later session: it is {ratio:.2f} times as far from the close of its session "
        f"as from the close before, and the next return is {slope:.2f} times the move from close to open. "
        "Move the opens back by one session.",
    )


def _averages(subject: Subject) -> Iterator[_Fact]:
    news_TN = clipped(residual_returns(subject))
    c_N = lead_correlations(news_TN, news_TN, 1)
    c_N = c_N[c_N != 0]
    if len(c_N) < _FEWEST_FIRMS:
        return
    middle = float(np.median(c_N))
    priced_TN = np.isfinite(subject.dataset.panel.close_TN)
    traded = float(_own_opens(subject)[priced_TN].mean()) >= OWN_OPENS
    verdict: Verdict = "fail" if middle >= AUTOCORRELATION and traded else "warn"
    cure = (
        "ask for closes as traded."
        if traded
        else "ask for closes as traded. Net asset values and appraisals are averages of the past without "
        "look-ahead, but nobody can trade at them."
    )
    yield _Fact(
        "autocorrelation",
        middle,
        AUTOCORRELATION,
        verdict if middle >= SUSPECT_AUTOCORRELATION else "pass",
        "The closes are averages of several sessions: the returns of a firm, less the market's, have a "
        f"first autocorrelation of {middle:+.2f} in the median of {len(c_N)} firms, and traded prices about "
        f"zero or less. If the average is centred, today's close contains tomorrow's: {cure}",
    )


def _moved(subject: Subject) -> Iterator[_Fact]:
    """Volume and the size of returns belong to the same session."""
    panel = subject.dataset.panel
    if panel.volume_TN is None:
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        size_TN = news(demeaned(np.log(np.abs(residual_returns(subject)) + 1e-3)), 3)
        volume_TN = news(demeaned(np.log1p(panel.volume_TN)), 3)
    same = lead_correlations(size_TN, volume_TN, 0)
    if (same != 0).sum() < _FEWEST_FIRMS:
        return
    now = float(same[same != 0].mean())
    late = float(pooled_correlations(size_TN, volume_TN)[0][0])
    early = float(pooled_correlations(volume_TN, size_TN)[0][0])
    best, which = max((late, "before"), (early, "after"))
    moved = best >= 0.08 and best > 1.5 * max(now, 0.0)
    yield _Fact(
        "volume with the size of the return, off the session",
        best,
        max(1.5 * now, 0.08),
        "fail" if moved else "pass",
        f"Closes and volume are of different sessions: volume correlates by {best:+.2f} with the size of the "
        f"return of the session {which}, and by {now:+.2f} with that of its own. Compare both with an "
        "exchange's record of a single day.",
    )


def _gaps(subject: Subject) -> Iterator[_Fact]:
    """The move around closes that repeat: after them if they are filled forward, before them if backwards."""
    close_TN = subject.dataset.panel.raw_close_TN
    into = out = 0.0
    count = larger = 0
    for close_T in close_TN.T:
        known = close_T[np.isfinite(close_T)]
        if len(known) < 30:
            continue
        edges = np.flatnonzero(np.concatenate([[True], known[1:] != known[:-1], [True]]))
        first, last = edges[:-1], edges[1:] - 1
        long = (last - first >= 2) & (first > 0) & (last < len(known) - 1)
        if not long.any():
            continue
        moves = np.minimum(np.abs(np.log(known[1:] / known[:-1])), 1.0)
        before, after = moves[first[long] - 1], moves[last[long]]
        into += float(before.sum())
        out += float(after.sum())
        larger += int((before > after).sum())
        count += int(long.sum())
    if count < REPEATS:
        return
    ratio = into / max(out, 1e-12)
    yield _Fact(
        "move into over out of repeated closes",
        ratio,
        REPEAT_RATIO,
        "fail" if ratio >= REPEAT_RATIO and _is_usual(larger, count) else "pass",
        f"Gaps in the closes were filled backwards: the mean move into {count:,} runs of repeated closes is "
        f"{ratio:.1f} times the move out of them, so the price of a gap's end stands at its beginning. Leave "
        "gaps empty.",
    )


def _is_usual(larger: int, count: int) -> bool:
    """Whether more than half of the runs begin with the larger move.

    Prices that are pinned after a takeover move the mean, but they are few runs.
    """
    return larger - 0.5 * count >= 3.0 * 0.5 * math.sqrt(count)


def _bounds(subject: Subject) -> Iterator[_Fact]:
    panel = subject.dataset.panel
    at, equal = [], []
    for close_T, return_T in zip(panel.raw_close_TN.T, residual_free(subject).T, strict=True):
        known = close_T[np.isfinite(close_T)]
        if len(known) >= 250 and len(np.unique(known)) > 50:
            at.append(_at_extremes(known))
        moves = return_T[np.isfinite(return_T)]
        if len(moves) >= 250 and len(np.unique(moves)) > 100:
            equal.append(_at_extremes(moves))
    if len(at) < _FEWEST_FIRMS:
        return
    share = float(np.median(at))
    yield _Fact(
        "share of closes at a firm's extremes",
        share,
        EXTREMES,
        "fail" if share >= EXTREMES else "pass",
        f"Closes are clipped at bounds of the whole sample: a firm has {share:.1%} of its closes at its own "
        "maximum or minimum, and the bound was not known before the sample ended.",
    )
    share = float(np.median(equal)) if len(equal) >= _FEWEST_FIRMS else 0.0
    yield _Fact(
        "share of returns at a firm's extremes",
        share,
        CLIPPED,
        "fail" if share >= CLIPPED else "pass",
        f"Returns are clipped at bounds of the whole sample: a firm has {share:.1%} of its returns exactly "
        "at its largest or smallest one, and the bound was not known before the sample ended.",
    )


def residual_free(subject: Subject) -> FloatArray:
    """Simple returns of the closes as quoted, to compare them for equality."""
    close_TN = subject.dataset.panel.raw_close_TN
    return np.asarray(close_TN[1:] / close_TN[:-1] - 1.0)


def _at_extremes(x: FloatArray) -> float:
    """Share of values at the largest and at the smallest value, beyond one ordinary stay at each.

    A price that is quoted on few sessions repeats, also at its extremes. An ordinary stay is as long as 19 of
    20 stays at any value.
    """
    near = 1e-9 * max(abs(float(x.max())), abs(float(x.min())))
    stays = np.diff(np.flatnonzero(np.concatenate([[True], np.abs(np.diff(x)) > near, [True]])))
    usual = float(np.quantile(stays, 0.95))
    hits = int((x >= x.max() - near).sum()) + int((x <= x.min() + near).sum())
    return max(hits - 2.0 * usual, 0.0) / len(x)


def _adjusted(subject: Subject) -> Iterator[_Fact]:
    close_TN = subject.dataset.panel.raw_close_TN
    shares = []
    for part, fewest in ((close_TN[: len(close_TN) // 3], 60), (close_TN[-_NEWEST:], 10)):
        known_TN = np.isfinite(part)
        quoted = np.where(known_TN, part, 0.0)
        on_grid = _on_grid(quoted, 100.0) | _on_grid(quoted, 64.0)  # US prices were fractions until 2001
        count_N = known_TN.sum(axis=0)
        share_N = (on_grid & known_TN).sum(axis=0) / np.maximum(count_N, 1)
        shares.append(np.where(count_N >= fewest, share_N, np.nan))
    both = np.isfinite(shares[0]) & np.isfinite(shares[1])
    if both.sum() < _FEWEST_FIRMS:
        return
    moved = float(((shares[0] < OFF_GRID) & (shares[1] > ON_GRID))[both].mean())
    yield _Fact(
        "share of firms whose closes leave the grid of ticks in the past",
        moved,
        OFF_GRID,
        "warn" if moved >= OFF_GRID else "pass",
        f"Prices are adjusted with later events: {moved:.0%} of the firms trade in whole cents late in the "
        "sample and not early in it, so their levels know the splits and dividends that came later. "
        "Returns are right; do not use levels, a minimum price or dollar volume, or deliver prices as "
        "quoted.",
    )


def _on_grid(price: FloatArray, ticks: float) -> BoolArray:
    """Whether prices are whole numbers of ticks, of which a unit of currency has so many."""
    return np.asarray(np.abs(price * ticks - np.rint(price * ticks)) < 0.02)


def _tails(subject: Subject) -> Iterator[_Fact]:
    securities = subject.tables.get("securities")
    if securities is None or securities["delisted_on"].null_count() == securities.height:
        return
    ended = securities.drop_nulls("delisted_on").group_by("ticker").agg(pl.col("delisted_on").max())
    last = subject.tables["prices"].group_by("ticker").agg(pl.col("date").max().alias("last"))
    newest = subject.tables["prices"]["date"].max()
    gap = (pl.col("delisted_on") - pl.col("last")).dt.total_days()
    rows = ended.filter(pl.col("delisted_on") <= newest).join(last, on="ticker").with_columns(gap=gap)
    if rows.height < _FEWEST_FIRMS:
        return
    early = rows.filter(pl.col("gap") > GAP_DAYS)
    share = early.height / rows.height
    days = float(early["gap"].median() or 0.0)  # type: ignore[arg-type]
    cut = share >= 0.5
    yield _Fact(
        "share of delisted firms whose last prices are missing",
        share,
        0.5,
        "warn" if cut else "pass",
        f"The last prices before a delisting are missing for {early.height} of {rows.height} delisted "
        f"firms: they end {days:.0f} days before (median). The fall of a failing firm is in these days; "
        "nobody who holds it can leave before it.",
    )
