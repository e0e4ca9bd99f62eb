"""One fold: the decision dates for training, validation and test, and the gap that separates them.

The label of a decision at ``t`` is the return over ``(t+delay, t+delay+horizon]``. Two segments of a fold
are separated by ``gap = delay + horizon + embargo`` sessions without a decision, so that all labels of the
earlier one are known more than ``embargo`` sessions before the later one starts.

Shape suffix: T sessions. Times are session indices; index t is the close of session t.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.arrays import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """The decision dates of one fold.

    Attributes
    ----------
    index : int
        Number of the fold, from 0.
    train, valid, test : ndarray of int
        Session indices, ascending and read-only. In walk-forward schemes each segment ends before the next
        one starts. In combinatorial folds the segments may consist of several stretches, and training
        sessions may lie after test sessions.
    name : str
        What is tested: ``2016`` or ``2016Q3`` for calendar folds, ``groups 1 and 4`` for combinatorial ones.
        Empty for other schemes.
    """

    index: int
    train: IntArray
    valid: IntArray
    test: IntArray
    name: str = ""


def label_span(delay: int, horizon: int) -> int:
    """Sessions from a decision to the end of its label: ``delay + horizon``.

    Raises
    ------
    ValueError
        If ``delay`` is negative or ``horizon`` is below 1.
    """
    if delay < 0 or horizon < 1:
        msg = f"The label has delay {delay} and horizon {horizon}; they must be at least 0 and at least 1."
        raise ValueError(msg)
    return delay + horizon


def require_at_least(least: int, settings: dict[str, int | None]) -> None:
    """Raise ValueError if a setting is below ``least``; None is allowed."""
    for name, value in settings.items():
        if value is not None and value < least:
            msg = f"{name} is {value}; it must be at least {least}."
            raise ValueError(msg)


def sessions_between(start: int, stop: int) -> IntArray:
    """Return the session indices of ``[start, stop)``, read-only."""
    return read_only(np.arange(start, stop, dtype=np.int64))


def read_only(sessions: IntArray) -> IntArray:
    """Protect session indices from changes, because all models and seeds share a fold."""
    sessions.flags.writeable = False
    return sessions
