"""Folds: the decision dates for training, validation and test, and the gap that separates them.

The label of a decision at ``t`` is the return over ``(t+delay, t+delay+horizon]``. Two segments of a fold
are separated by ``gap = delay + horizon + embargo`` sessions without a decision, so that all labels of the
earlier one are known more than ``embargo`` sessions before the later one starts.

Here are the folds of fixed lengths (`make_folds`), between given days (`dated_fold`), and of a model that is
trained for use (`live_fold`).

Shape suffix: T sessions. Times are session indices; index t is the close of session t.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Literal

import numpy as np

from features.arrays import DateArray, IntArray


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

    Examples
    --------
    >>> plan = FoldPlan(scheme="rolling", train=10, valid=5, test=5, embargo=1)
    >>> fold = make_folds(30, plan, delay=0, horizon=1)[-1]
    >>> fold.train[[0, -1]], fold.valid[[0, -1]], fold.test[[0, -1]]
    (array([ 5, 14]), array([17, 21]), array([24, 28]))
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


Scheme = Literal["expanding", "rolling"]
Anchor = Literal["end", "start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """How sessions are split into folds. Lengths count decision dates; gaps are added between segments.

    Attributes
    ----------
    scheme : {"expanding", "rolling"}
        Training dates start at ``first`` in every fold (expanding), or are always the last ``train`` dates
        before the gap (rolling).
    train, valid, test : int
        Decision dates per segment, at least 1. For ``expanding``, the first fold has at least ``train``.
    embargo : int
        Sessions left out in addition to the purge, at least 0. It has no default and must be set.
    step : int or None
        Sessions between the starts of two test segments, at least ``test``, so that tests never overlap;
        None: ``test``.
    max_folds : int or None
        Keep only this many folds: the latest with ``anchor="end"``, the earliest with ``"start"``. None: all
        that fit.
    anchor : {"end", "start"}
        Where test segments are counted from. ``end``: the newest session with a known label is the last one
        of the last test, and the segments before it follow backwards. ``start``: the first test starts as
        early as possible, and up to ``step - 1`` of the newest sessions are in no test.
    first : int
        First usable session.

    Raises
    ------
    ValueError
        If a value is out of range.

    Examples
    --------
    >>> FoldPlan(scheme="expanding", train=250, valid=60, test=60, embargo=5).anchor
    'end'
    """

    scheme: Scheme
    train: int
    valid: int
    test: int
    embargo: int
    step: int | None = None
    max_folds: int | None = None
    anchor: Anchor = "end"
    first: int = 0

    def __post_init__(self) -> None:
        if self.scheme not in ("expanding", "rolling"):
            msg = f"Unknown scheme {self.scheme!r}: choose expanding or rolling."
            raise ValueError(msg)
        if self.anchor not in ("end", "start"):
            msg = f"Unknown anchor {self.anchor!r}: choose end or start."
            raise ValueError(msg)
        lengths = {"train": self.train, "valid": self.valid, "test": self.test}
        require_at_least(1, {**lengths, "max_folds": self.max_folds})
        require_at_least(0, {"embargo": self.embargo, "first": self.first})
        if self.step is not None and self.step < self.test:
            msg = (
                f"step is {self.step} and test is {self.test}; step must be at least test, or tests overlap."
            )
            raise ValueError(msg)


def make_folds(n_sessions: int, plan: FoldPlan, delay: int, horizon: int) -> list[Fold]:
    """Split sessions into walk-forward folds of fixed lengths.

    With ``gap = delay + horizon + embargo``, a fold whose test starts at session ``e`` has the test dates
    ``[e, e + test)`` and the validation dates ``[e - gap - valid, e - gap)``, and its training dates end
    ``gap`` sessions before those. Every date t before a segment that starts at s therefore has
    ``t + delay + horizon + embargo < s``. Successive tests start ``step`` sessions apart.

    All folds are complete: every ``test`` date fits, its label ends inside the data, and there are at least
    ``train`` training dates. With ``anchor="end"`` the last test ends with the newest date whose label is
    known; appending a session moves every fold by one session. With ``anchor="start"`` the first test starts
    at ``first + train + gap + valid + gap``; new sessions add folds and change none.

    Parameters
    ----------
    n_sessions : int
        Sessions in the data.
    plan : FoldPlan
        Lengths, embargo, scheme and anchor.
    delay : int
        Sessions between decision and trade, at least 0.
    horizon : int
        Sessions held, at least 1.

    Returns
    -------
    list of Fold
        At least one, in time order, with disjoint test segments.

    Raises
    ------
    ValueError
        If no fold fits (the message gives the number of sessions needed), or delay or horizon is out of
        range.

    Examples
    --------
    >>> plan = FoldPlan(scheme="rolling", train=4, valid=2, test=2, embargo=1)
    >>> make_folds(15, plan, delay=0, horizon=1)[0].test
    array([10, 11])
    """
    span = label_span(delay, horizon)
    gap = span + plan.embargo
    step = plan.test if plan.step is None else plan.step
    first_test = plan.first + plan.train + gap + plan.valid + gap
    needed = first_test + plan.test + span
    if needed > n_sessions:
        msg = (
            f"One fold needs {needed} sessions ({plan.first} before the first usable one, "
            f"train {plan.train}, valid {plan.valid}, test {plan.test}, "
            f"two gaps of {gap} = delay {delay} + horizon {horizon} + embargo {plan.embargo}, "
            f"and {span} for the last label), but there are {n_sessions}: "
            "shorten train, valid or test, or use a longer history."
        )
        raise ValueError(msg)
    fitting = (n_sessions - needed) // step + 1
    n_folds = fitting if plan.max_folds is None else min(fitting, plan.max_folds)
    if plan.anchor == "end":
        first_test = n_sessions - span - plan.test - (n_folds - 1) * step
    folds = []
    for k in range(n_folds):
        test_from = first_test + k * step
        valid_from = test_from - gap - plan.valid
        train_to = valid_from - gap
        train_from = plan.first if plan.scheme == "expanding" else train_to - plan.train
        folds.append(
            Fold(
                index=k,
                train=sessions_between(train_from, train_to),
                valid=sessions_between(valid_from, test_from - gap),
                test=sessions_between(test_from, test_from + plan.test),
            )
        )
    return folds


Day = dt.date | np.datetime64


def dated_fold(
    dates_T: DateArray,
    *,
    train_from: Day,
    valid_from: Day,
    test_from: Day,
    test_to: Day,
    embargo: int,
    delay: int,
    horizon: int,
) -> Fold:
    """Build one fold between given days, as published benchmarks define it.

    Training uses the sessions of ``[train_from, valid_from)`` and validation those of
    ``[valid_from, test_from)``, both without their last ``delay + horizon + embargo`` sessions. The test uses
    ``[test_from, test_to]``, both days included. Test dates are not purged: if the data end before a label
    does, the label is NaN and metrics skip it.

    Parameters
    ----------
    dates_T : ndarray of datetime64[D], shape (T,)
        Sessions, ascending.
    train_from, valid_from, test_from, test_to : date or datetime64
        Days. A day that is not a session means the next session (for ``test_to``: the previous one).
    embargo, delay, horizon : int
        As in `backtest.splits.folds`.

    Returns
    -------
    Fold
        With index 0.

    Raises
    ------
    ValueError
        If the days are out of order, or a segment has no session before or after purging.

    Examples
    --------
    >>> days = np.arange("2024-01-01", "2024-02-01", dtype="datetime64[D]")
    >>> segments = {"train_from": days[0], "valid_from": days[9], "test_from": days[19], "test_to": days[30]}
    >>> dated_fold(days, **segments, embargo=0, delay=0, horizon=1).valid[[0, -1]]
    array([ 9, 17])
    """
    require_at_least(0, {"embargo": embargo})
    gap = label_span(delay, horizon) + embargo
    days = [
        np.datetime64(day).astype("datetime64[D]") for day in (train_from, valid_from, test_from, test_to)
    ]
    if not days[0] < days[1] < days[2] <= days[3]:
        msg = (
            f"The fold's days are {days[0]}, {days[1]}, {days[2]} and {days[3]}; they must satisfy "
            "train_from < valid_from < test_from <= test_to."
        )
        raise ValueError(msg)
    days_T = dates_T.astype("datetime64[D]")
    train_start, valid_start, test_start = (int(np.searchsorted(days_T, day)) for day in days[:3])
    test_stop = int(np.searchsorted(days_T, days[3], side="right"))
    for name, start, stop, purge in (
        ("train", train_start, valid_start, gap),
        ("valid", valid_start, test_start, gap),
        ("test", test_start, test_stop, 0),
    ):
        if stop - start <= purge:
            span = f"{days_T[0]} to {days_T[-1]}" if len(days_T) else "no session"
            msg = (
                f"The {name} segment has {stop - start} sessions, but it needs more than {purge} "
                f"(delay {delay} + horizon {horizon} + embargo {embargo} are purged before "
                f"the next segment): move its dates. The data cover {span}."
            )
            raise ValueError(msg)
    return Fold(
        index=0,
        train=sessions_between(train_start, valid_start - gap),
        valid=sessions_between(valid_start, test_start - gap),
        test=sessions_between(test_start, test_stop),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePlan:
    """Lengths of a live fold, in decision dates.

    Attributes
    ----------
    train : int or None
        Length of the training segment, at least 1; None: all dates from ``first`` on.
    valid : int
        Length of the validation segment, at least 1.
    embargo : int
        Sessions left out between the segments in addition to the purge, at least 0.
    first : int
        First usable session.

    Raises
    ------
    ValueError
        If a value is out of range.

    Examples
    --------
    >>> LivePlan(train=None, valid=60, embargo=5).valid
    60
    """

    train: int | None
    valid: int
    embargo: int
    first: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, {"train": self.train, "valid": self.valid})
        require_at_least(0, {"embargo": self.embargo, "first": self.first})


def live_fold(n_sessions: int, plan: LivePlan, delay: int, horizon: int) -> Fold:
    """Make the fold of a model that forecasts the sessions after the newest one.

    With ``span = delay + horizon``, the validation dates are the last ``valid`` dates whose label is known at
    the close of the newest session, ``[n - span - valid, n - span)`` for ``n = n_sessions``. Training ends
    ``span + embargo`` sessions before the first of them. The test is empty.

    Parameters
    ----------
    n_sessions : int
        Sessions in the data.
    plan : LivePlan
        Lengths and embargo.
    delay : int
        Sessions between decision and trade, at least 0.
    horizon : int
        Sessions held, at least 1.

    Returns
    -------
    Fold
        With index 0, the name ``live`` and an empty test.

    Raises
    ------
    ValueError
        If the segments do not fit (the message gives the number of sessions needed), or delay or horizon is
        out of range.

    Examples
    --------
    >>> live_fold(100, LivePlan(train=None, valid=20, embargo=1), delay=0, horizon=1).valid[[0, -1]]
    array([79, 98])
    """
    span = label_span(delay, horizon)
    gap = span + plan.embargo
    train = 1 if plan.train is None else plan.train
    needed = plan.first + train + gap + plan.valid + span
    if needed > n_sessions:
        msg = (
            f"A live fold needs {needed} sessions ({plan.first} before the first usable one, train {train}, "
            f"valid {plan.valid}, a gap of {gap} = delay {delay} + horizon {horizon} + embargo "
            f"{plan.embargo}, and {span} for the last label), but there are {n_sessions}: "
            "shorten train or valid, or use a longer history."
        )
        raise ValueError(msg)
    valid_to = n_sessions - span
    valid_from = valid_to - plan.valid
    train_to = valid_from - gap
    train_from = plan.first if plan.train is None else train_to - plan.train
    return Fold(
        index=0,
        train=sessions_between(train_from, train_to),
        valid=sessions_between(valid_from, valid_to),
        test=sessions_between(n_sessions, n_sessions),
        name="live",
    )
