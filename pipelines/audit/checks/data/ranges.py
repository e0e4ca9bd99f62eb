"""Prices of the next session in today's bar: ranges that hold its close, and closes that are its opens.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from features.arrays import BoolArray, FloatArray
from features.panel.derived import carried_close
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

NAME = "ranges"
LARGE: Final = 1.5
"""Moves that are counted, in medians of the firm's moves. A price that moves by one tick stays in an honest
range of a few ticks."""
HELD: Final = 0.75
"""Share of the next closes after large moves between today's low and high, over all firms, above which ranges
reach ahead. Real prices have 0.2 to 0.4, ranges of calendar weeks 0.8, and a range over k past sessions holds
more of the closes before."""
FIRM_HELD: Final = 0.95
"""The same for single firms, at least three."""
AHEAD: Final = -0.08
"""Minimum of that share less the share of the previous closes, which a range over past sessions holds."""
EQUAL: Final = 0.5
"""Share of sessions on which a firm opens exactly at its previous close, above which one of the two prices is
not its own: a missing open was filled with the previous close, or the close is the next open."""
GAP: Final = 0.15
"""Minimum correlation of the mean return of such firms with the other firms' mean move from close to open
that follows, beyond that of the others' mean return. Closes that were known then have about zero."""
GAP_DEVIATIONS: Final = 6.0
_SEVERAL: Final = 2
_SEVERAL_RANGES: Final = 3
_FEWEST: Final = 100
_FEWEST_OTHERS: Final = 5
_EXACT: Final = 1e-7
_LARGEST: Final = 0.15
_NAMED: Final = 3


def check(subject: Subject) -> Result:
    """Test whether today's range holds the next close, and whether closes know the next opens."""
    panel = subject.dataset.panel
    if panel.open_TN is None and (panel.high_TN is None or panel.low_TN is None):
        return Result(NAME, "skipped", "The prices have no opens, highs and lows.")
    if not _has_moves(subject):
        reason = f"fewer than {_FEWEST} bars have a range, or an open that is not their close"
        return Result(NAME, "skipped", f"Not examined, because {reason}.")
    findings = [*_ranges(subject), *_next_opens(subject)]
    if findings:
        evidence = pl.DataFrame({"finding": findings})
        return Result(NAME, "fail", findings[0], evidence)
    return Result(NAME, "pass", "No range holds the close of the next session, and no close is a later open.")


def _has_moves(subject: Subject) -> bool:
    panel = subject.dataset.panel
    with np.errstate(invalid="ignore"):
        ranges = 0 if panel.high_TN is None or panel.low_TN is None else (panel.high_TN > panel.low_TN).sum()
        opens = 0 if panel.open_TN is None else (np.abs(panel.open_TN - panel.close_TN) > 0).sum()
    return int(max(ranges, opens)) >= _FEWEST


def _ranges(subject: Subject) -> Iterator[str]:
    panel = subject.dataset.panel
    if panel.high_TN is None or panel.low_TN is None:
        return
    high_TN, low_TN, close_TN = panel.high_TN, panel.low_TN, panel.close_TN
    after = _held(high_TN[:-1], low_TN[:-1], close_TN[:-1], close_TN[1:])
    before = _held(high_TN[1:], low_TN[1:], close_TN[1:], close_TN[:-1])
    count_N = np.minimum(after[1], before[1])
    if count_N.sum() < _FEWEST:
        return
    share, share_before = (float(held_N.sum() / max(moves_N.sum(), 1)) for held_N, moves_N in (after, before))
    if share >= HELD and share >= share_before + AHEAD:
        yield (
            f"Highs and lows reach ahead: after large moves, {share:.0%} of the closes lie between the low "
            f"and the high of the session before ({share_before:.0%} between those of the session after), "
            "and in a market fewer than half of them do. The range was taken over several sessions: ask for "
            "that of each session."
        )
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        share_N, before_N = (held_N / moves_N for held_N, moves_N in (after, before))
    hit_N = (count_N >= _FEWEST) & (share_N >= FIRM_HELD) & (share_N >= before_N + AHEAD)
    if hit_N.sum() >= _SEVERAL_RANGES:
        yield (
            f"Highs and lows of {_names(hit_N, subject)} reach ahead: {np.median(share_N[hit_N]):.0%} of "
            f"their closes lie between the low and the high of the session before, and {share:.0%} of all "
            "firms' do. The range was taken over several sessions: ask for that of each session."
        )


def _held(
    high_TN: FloatArray, low_TN: FloatArray, close_TN: FloatArray, other_TN: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Per firm: closes of the other session within the range, and closes of it, both after large moves."""
    size_TN = np.abs(other_TN - close_TN)
    size_TN = np.where(size_TN > _EXACT * np.abs(close_TN), size_TN, np.nan)
    some_N = np.isfinite(size_TN).any(axis=0)
    usual_N = np.full(size_TN.shape[1], np.nan)
    usual_N[some_N] = np.nanmedian(size_TN[:, some_N], axis=0)
    with np.errstate(invalid="ignore"):
        moved_TN = (size_TN > LARGE * usual_N) & (high_TN > low_TN)
        inside_TN = (other_TN <= high_TN * (1 + _EXACT)) & (other_TN >= low_TN * (1 - _EXACT)) & moved_TN
    return inside_TN.sum(axis=0).astype(np.float64), moved_TN.sum(axis=0).astype(np.float64)


def _next_opens(subject: Subject) -> Iterator[str]:
    """Firms that open at their previous close although the others do not, and move with the others' gap."""
    panel = subject.dataset.panel
    if panel.open_TN is None:
        return
    before_TN = carried_close(panel)[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        gap_TN = np.log(panel.open_TN[1:] / before_TN)  # row t: from the close of t to the open of t + 1
        return_TN = np.log(panel.close_TN[1:-1] / before_TN[:-1])  # row t: of session t + 1
    known_TN = np.isfinite(gap_TN)
    count_N = known_TN.sum(axis=0)
    equal_N = (np.abs(np.where(known_TN, gap_TN, np.inf)) <= _EXACT).sum(axis=0)
    odd_N = (count_N >= _FEWEST) & (equal_N >= EQUAL * np.maximum(count_N, 1))
    others_N = (count_N >= _FEWEST) & ~odd_N
    if odd_N.sum() < _SEVERAL or others_N.sum() < _FEWEST_OTHERS:
        return
    others_TN = np.where(known_TN, np.clip(gap_TN, -_LARGEST, _LARGEST), np.nan)[:, others_N]
    some_T = np.isfinite(others_TN).any(axis=1)
    market_T = np.full(len(others_TN), np.nan)
    market_T[some_T] = np.nanmean(others_TN[some_T], axis=1)
    clipped_TN = np.clip(return_TN, -_LARGEST, _LARGEST)
    (c, pairs), (usual, _) = (_correlation(clipped_TN[:, some], market_T[1:]) for some in (odd_N, others_N))
    if c - max(usual, 0.0) < max(GAP, GAP_DEVIATIONS / np.sqrt(max(pairs, 1))):
        return
    yield (
        f"The closes of {_names(odd_N, subject)} are the opens of the next session: these firms open exactly "
        f"at their previous close, and their mean return correlates by {c:+.2f} with the others' move from "
        f"close to open that follows (that of the others by {usual:+.2f}). Move their closes back to the "
        "session's end."
    )


def _correlation(x_TN: FloatArray, y_T: FloatArray) -> tuple[float, int]:
    """Correlation of the mean over firms with a series, and the number of sessions."""
    known_T = np.isfinite(x_TN).any(axis=1) & np.isfinite(y_T)
    if known_T.sum() < _FEWEST:
        return 0.0, 0
    mean_T = np.nanmean(x_TN[known_T], axis=1)
    if mean_T.std() == 0 or y_T[known_T].std() == 0:
        return 0.0, 0
    return float(np.corrcoef(mean_T, y_T[known_T])[0, 1]), int(known_T.sum())


def _names(hit_N: BoolArray, subject: Subject) -> str:
    named = [subject.dataset.panel.tickers_N[n] for n in np.flatnonzero(hit_N)]
    more = ", ..." if len(named) > _NAMED else ""
    return f"{len(named)} firms ({', '.join(named[:_NAMED])}{more})"
