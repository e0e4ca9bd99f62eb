"""Label spans: no training or validation label ends inside a later segment, and the embargo is respected.

The check is plain arithmetic on the folds' sessions and does not use `backtest.splits`.
"""

from __future__ import annotations

from itertools import permutations
from typing import Final

import numpy as np
import polars as pl

from features.arrays import IntArray
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

NAME = "label_spans"
_BACKWARD: Final = {("valid", "train"), ("test", "train"), ("test", "valid")}


def check(subject: Subject) -> Result:
    """Measure, for each fold, the gap between the last label of a segment and the segment that follows.

    The label of a decision at t spans ``(t+delay, t+delay+horizon]``, with the longest delay in use.
    ``t + delay + horizon + embargo`` must be before the next session of another segment. Segments follow each
    other in the order of train, validation and test, except in combinatorial folds, where every segment can
    follow every other one.
    """
    label, embargo = subject.config.label, subject.config.folds.embargo
    span = label.max_delay + label.horizon
    forward = subject.config.folds.scheme != "combinatorial"
    rows: list[dict[str, object]] = []
    problems: list[str] = []
    for fold in subject.folds:
        segments = {"train": fold.train, "valid": fold.valid, "test": fold.test}
        for name, following in permutations(segments, 2):
            nearest = _nearest(segments[name], segments[following])
            if nearest is None:
                continue
            if forward and (name, following) in _BACKWARD:
                problems.append(f"Fold {fold.index}: {following} sessions lie after {name} sessions.")
            if forward and (name, following) == ("train", "test"):
                continue  # validation lies between them
            last, start = nearest
            ends = last + span
            free = start - ends - 1
            rows.append(
                {
                    "fold": fold.index,
                    "segment": name,
                    "last_decision": subject.day(last),
                    "label_ends": subject.day(min(ends, subject.dataset.panel.n_sessions - 1)),
                    "next_segment": following,
                    "next_starts": subject.day(start),
                    "sessions_between": free,
                    "embargo": embargo,
                }
            )
            if free < 0:
                problems.append(
                    f"Fold {fold.index}: the last {name} label ends on session {ends}, but {following} "
                    f"starts on session {start}: they overlap by {-free} session(s)."
                )
            elif free < embargo:
                problems.append(
                    f"Fold {fold.index}: there are {free} session(s) between the last {name} label and "
                    f"{following}, but the embargo is {embargo}."
                )
    problems += _overlaps(subject)
    evidence = pl.DataFrame(rows)
    if problems:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        return Result(NAME, "fail", f"{problems[0]}{more}", evidence)
    least = min(int(str(row["sessions_between"])) for row in rows)
    return Result(
        NAME,
        "pass",
        f"{len(subject.folds)} fold(s): every label of delay up to {label.max_delay} and horizon "
        f"{label.horizon} ends before the next segment, with at least {least} session(s) in "
        f"between; the embargo is {embargo}.",
        evidence,
    )


def _nearest(segment: IntArray, other: IntArray) -> tuple[int, int] | None:
    """Find the closest pair of a session and a later one of another segment; None if nothing is later."""
    at = np.searchsorted(other, segment, side="right")
    followed = at < len(other)
    if not followed.any():
        return None
    sessions, later = segment[followed], other[at[followed]]
    closest = int((later - sessions).argmin())
    return int(sessions[closest]), int(later[closest])


def _overlaps(subject: Subject) -> list[str]:
    """Find segments of a fold that share sessions, and test sessions that two folds share.

    Combinatorial folds share test sessions: each session is tested equally often.
    """
    if subject.config.folds.scheme == "combinatorial":
        times = np.unique(np.concatenate([fold.test for fold in subject.folds]), return_counts=True)[1]
        uneven = len(np.unique(times)) > 1
        return ["Some sessions are tested more often than others."] if uneven else []
    problems = []
    tested: set[int] = set()
    for fold in subject.folds:
        for left, right in (("train", "valid"), ("train", "test"), ("valid", "test")):
            if np.intersect1d(getattr(fold, left), getattr(fold, right)).size:
                problems.append(f"Fold {fold.index}: {left} and {right} share sessions.")
        again = tested & set(fold.test.tolist())
        if again:
            problems.append(f"Fold {fold.index} shares {len(again)} test session(s) with an earlier fold.")
        tested |= set(fold.test.tolist())
    return problems
