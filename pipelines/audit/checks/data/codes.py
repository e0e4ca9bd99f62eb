"""Codes and names that were made from later returns: groups, and the order of the tickers.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.look_ahead.finding import Verdict
from features.arrays import FloatArray
from pipelines.audit.result import Result
from pipelines.audit.series import residual_returns
from pipelines.audit.subject import Subject

NAME = "codes"
EXPLAINED: Final = 0.80
"""Share of the variance of total returns that groups explain, adjusted for their number. Industries explain
about half, and sub-industries of two or three firms up to 0.7."""
ORDER: Final = 0.5
"""Minimum |rank correlation| of the alphabetical order of tickers with total returns."""
DEVIATIONS: Final = 5.0
"""Minimum z statistic of that correlation: 1 in 2 million by chance."""
SPAN: Final = 126
"""Sessions before and after the day on which groups were drawn up."""
REDRAWN: Final = 0.04
"""Minimum rise, after that day, of the share of the variance of daily returns that groups explain."""
_FEWEST: Final = 20


def check(subject: Subject) -> Result:
    """Compare groups and the order of tickers with the firms' returns over the whole sample."""
    total_N = _total_returns(subject)
    facts = [*_groups(subject, total_N), *_redrawn(subject), *_tickers(total_N)]
    if not facts:
        return Result(
            NAME, "skipped", f"Fewer than {_FEWEST} firms have a return over at least half of the sample."
        )
    evidence = pl.DataFrame(facts, infer_schema_length=None)
    alarms = sorted((fact for fact in facts if fact["verdict"] != "pass"), key=lambda fact: fact["verdict"])
    if alarms:
        return Result(NAME, alarms[0]["verdict"], alarms[0]["sentence"], evidence)
    shown = "; ".join(f"{fact['what']} {fact['value']:+.2f} (limit {fact['limit']:g})" for fact in facts)
    return Result(
        NAME, "pass", f"Neither groups nor the order of tickers tell total returns: {shown}.", evidence
    )


def _total_returns(subject: Subject) -> FloatArray:
    """Mean log return per session of firms with at least half of the sessions; NaN for all others."""
    panel = subject.dataset.panel
    close_TN = np.where(panel.traded_TN, panel.total_return_index_TN, np.nan)
    known_TN = np.isfinite(close_TN) & (close_TN > 0)
    count_N = known_TN.sum(axis=0)
    first, last = known_TN.argmax(axis=0), len(close_TN) - 1 - known_TN[::-1].argmax(axis=0)
    own = np.arange(panel.n_firms)
    long_N = count_N >= len(close_TN) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        total_N = np.log(close_TN[last, own] / close_TN[first, own]) / np.maximum(last - first, 1)
    return np.where(long_N, total_N, np.nan)


def _groups(subject: Subject, total_N: FloatArray) -> Iterator[dict[str, Any]]:
    panel = subject.dataset.panel
    if not panel.groups_S:
        return
    group_N = panel.group_TN.max(axis=0)
    known = np.isfinite(total_N) & (group_N >= 0)
    share = explained_share(total_N[known], group_N[known])
    if share is None:
        return
    verdict: Verdict = "fail" if share >= EXPLAINED else "pass"
    yield {
        "what": "share of total returns that groups explain",
        "value": share,
        "limit": EXPLAINED,
        "verdict": verdict,
        "sentence": f"The groups know later returns: they explain {share:.0%} of the differences between "
        "the firms' returns over the whole sample, and industries explain at most half. The codes were "
        "probably made from these returns: use a classification with the dates on which it was published.",
    }


def _redrawn(subject: Subject) -> Iterator[dict[str, Any]]:
    """Groups that are drawn up within the sample, and explain what comes after that day better than before.

    Groups that were drawn from the past explain it at least as well as what follows, and industries explain
    both alike.
    """
    group_TN = subject.dataset.panel.group_TN
    known_T = (group_TN >= 0).sum(axis=1)
    moved_T = (group_TN[1:] != group_TN[:-1]) & (group_TN[1:] >= 0) & (group_TN[:-1] >= 0)
    days = np.flatnonzero(moved_T.sum(axis=1) >= np.maximum(known_T[1:] / 2, _FEWEST)) + 1
    days = days[(days >= SPAN) & (days <= len(group_TN) - SPAN)]
    if not len(days):
        return
    return_TN = residual_returns(subject)
    before, after = (
        np.array(
            [
                share
                for day in days
                for t in range(day + first, day + first + SPAN)
                if (share := _share_of_day(return_TN[t], group_TN[day])) is not None
            ]
        )
        for first in (-SPAN, 0)
    )
    if min(len(before), len(after)) < SPAN // 2:
        return
    more = float(after.mean() - before.mean())
    z = more / float(np.sqrt(after.var() / len(after) + before.var() / len(before)))
    verdict: Verdict = "warn" if more >= REDRAWN and z >= DEVIATIONS else "pass"
    day = subject.day(int(days[0]))
    yield {
        "what": "share of daily returns that groups explain after the day they were drawn up, less before",
        "value": more,
        "limit": REDRAWN,
        "verdict": verdict,
        "sentence": f"The groups may know later returns: those drawn up on {day} and {len(days) - 1} other "
        f"days explain {after.mean():.0%} of the differences between daily returns in the {SPAN} sessions "
        f"after, and {before.mean():.0%} in those before (z {z:.0f}). Groups drawn from the past explain the "
        "past at least as well: ask for the day on which they were published, or compare with an earlier "
        "delivery (audit --vintage).",
    }


def _share_of_day(return_N: FloatArray, group_N: npt.NDArray[np.integer]) -> float | None:
    known_N = np.isfinite(return_N) & (group_N >= 0)
    return explained_share(np.clip(return_N[known_N], -0.1, 0.1), group_N[known_N])


def explained_share(value_N: FloatArray, group_N: npt.NDArray[np.integer]) -> float | None:
    """Adjusted R squared of values on groups of at least two; None with fewer than 20 degrees of freedom."""
    names, code_N, count_S = np.unique(group_N, return_inverse=True, return_counts=True)
    kept = count_S[code_N] >= 2
    value_N, code_N = value_N[kept], code_N[kept]
    groups = int((count_S >= 2).sum())
    if len(value_N) < groups + _FEWEST or groups < 2:
        return None
    total_S = np.bincount(code_N, value_N, len(names))
    inside = value_N - (total_S / np.maximum(count_S, 1))[code_N]
    around = value_N - value_N.mean()
    return float(1.0 - (inside @ inside / (len(value_N) - groups)) / (around @ around / (len(value_N) - 1)))


def _tickers(total_N: FloatArray) -> Iterator[dict[str, Any]]:
    known = np.flatnonzero(np.isfinite(total_N))
    if len(known) < _FEWEST:
        return
    rank = np.argsort(np.argsort(total_N[known]))
    correlation = float(np.corrcoef(rank, np.arange(len(known)))[0, 1])
    z = abs(np.arctanh(np.clip(correlation, -0.999999, 0.999999))) * np.sqrt(len(known) - 3)
    yield {
        "what": "rank correlation of the tickers' order with total returns",
        "value": correlation,
        "limit": ORDER,
        "verdict": "fail" if abs(correlation) >= ORDER and z >= DEVIATIONS else "pass",
        "sentence": f"The order of the tickers knows later returns: its rank correlation with the return "
        f"over the whole sample is {correlation:+.2f} over {len(known)} firms. The names were probably "
        "given after sorting by performance: a model that sees firms in this order can learn it.",
    }
