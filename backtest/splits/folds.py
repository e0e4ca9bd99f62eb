"""Folds: the decision dates for training, validation and test, and the gap that separates them.

The label of a decision at ``t`` is the return over ``(t+delay, t+delay+horizon]``. Two segments of a fold
are separated by ``gap = delay + horizon + embargo`` sessions without a decision, so that all labels of the
earlier one are known more than ``embargo`` sessions before the later one starts.

Here are the folds of fixed lengths (`make_folds`), between given days (`dated_fold`), and of a model that is
trained for use (`live_fold`).

Shape suffix: T sessions. Times are session indices; index t is the close of session t.
"""

import datetime as dt
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from features.arrays import DateArray, IntArray, frozen
from features.options import Options


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """The decision dates of one fold.

    Examples
    --------
    >>> plan = FoldPlan(scheme="rolling", train=10, valid=5, test=5, embargo=1)
    >>> fold = make_folds(30, plan, delay=0, horizon=1)[-1]
    >>> fold.train[[0, -1]], fold.valid[[0, -1]], fold.test[[0, -1]]
    (array([ 5, 14]), array([17, 21]), array([24, 28]))
    """

    index: int
    """Number of the fold, from 0."""
    train: IntArray
    valid: IntArray
    test: IntArray
    """`train`, `valid`, `test`: session indices, ascending and read-only. In walk-forward schemes each
    segment ends before the next one starts. In combinatorial folds the segments may consist of several
    stretches, and training sessions may lie after test sessions."""
    name: str = ""
    """What is tested: ``2016`` or ``2016Q3`` for calendar folds, ``groups 1 and 4`` for combinatorial ones.
    Empty for other schemes."""


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


def fold_between(
    index: int, train: tuple[int, int], valid: tuple[int, int], test: tuple[int, int], name: str = ""
) -> Fold:
    """Return the fold whose segments are all sessions from a first one up to, but without, a last one."""
    train_S, valid_S, test_S = (frozen(np.arange(*ends, dtype=np.int64)) for ends in (train, valid, test))
    return Fold(index, train_S, valid_S, test_S, name)


class FoldPlan(Options):
    """Walk-forward folds of fixed lengths. All lengths are in sessions.

    Examples
    --------
    >>> FoldPlan(scheme="expanding", train=250, valid=60, test=60, embargo=5).anchor
    'end'
    """

    scheme: Literal["expanding", "rolling"]
    """``expanding`` trains on all sessions up to the purge; ``rolling`` on the last ``train`` of them."""
    train: int = Field(ge=1)
    """Length of the training segment; for ``expanding``, at least that of the first fold."""
    valid: int = Field(ge=1)
    """Length of the validation segment."""
    test: int = Field(ge=1)
    """Length of the test segment."""
    embargo: int = Field(ge=0)
    """Sessions left out between segments, in addition to the purge of label spans."""
    step: int | None = Field(default=None, ge=1)
    """Sessions from the start of one test segment to the start of the next, at least ``test``, so that tests
    never overlap. Null: ``test``."""
    max_folds: int | None = Field(default=None, ge=1)
    """Maximum number of folds; the latest are kept, or the earliest with ``anchor: start``. Null: all that
    fit."""
    anchor: Literal["end", "start"] = "end"
    """``end`` lays the test segments backwards from the newest session with a known label, so that the latest
    data are tested. ``start`` lays them forwards from the first possible one, so that new data add folds and
    change none."""

    @model_validator(mode="after")
    def _check_step(self) -> Self:
        if self.step is not None and self.step < self.test:
            raise ValueError(
                f"step is {self.step} and test is {self.test}; step must be at least test, or tests overlap."
            )
        return self


def make_folds(n_sessions: int, plan: FoldPlan, delay: int, horizon: int, first: int = 0) -> list[Fold]:
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
    first : int
        First usable session.

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
    first_test = first + plan.train + gap + plan.valid + gap
    needed = first_test + plan.test + span
    if needed > n_sessions:
        raise ValueError(
            f"One fold needs {needed} sessions ({first} before the first usable one, "
            f"train {plan.train}, valid {plan.valid}, test {plan.test}, "
            f"two gaps of {gap} = delay {delay} + horizon {horizon} + embargo {plan.embargo}, "
            f"and {span} for the last label), but there are {n_sessions}: "
            "shorten train, valid or test, or use a longer history."
        )
    fitting = (n_sessions - needed) // step + 1
    n_folds = fitting if plan.max_folds is None else min(fitting, plan.max_folds)
    if plan.anchor == "end":
        first_test = n_sessions - span - plan.test - (n_folds - 1) * step
    folds = []
    for k in range(n_folds):
        test_from = first_test + k * step
        valid_from = test_from - gap - plan.valid
        train_to = valid_from - gap
        train_from = first if plan.scheme == "expanding" else train_to - plan.train
        train, valid = (train_from, train_to), (valid_from, test_from - gap)
        folds.append(fold_between(k, train, valid, (test_from, test_from + plan.test)))
    return folds


class DatedPlan(Options):
    """One fold with given dates, as published benchmarks define it.

    A day that is not a session means the next session (for ``test_to``: the previous one).

    Examples
    --------
    >>> days = {"train_from": "2024-01-01", "valid_from": "2024-01-10", "test_from": "2024-01-20"}
    >>> DatedPlan(**days, test_to="2024-01-31", embargo=0).test_to
    datetime.date(2024, 1, 31)
    """

    scheme: Literal["dated"] = "dated"
    """Selects this scheme."""
    train_from: dt.date
    """First date of the training segment."""
    valid_from: dt.date
    """First date of the validation segment."""
    test_from: dt.date
    """First date of the test segment."""
    test_to: dt.date
    """Last date of the test segment, inclusive."""
    embargo: int = Field(ge=0)
    """Sessions left out between segments, in addition to the purge of label spans."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.train_from < self.valid_from < self.test_from <= self.test_to:
            raise ValueError(
                "train_from < valid_from < test_from <= test_to must hold, "
                f"but the dates are {self.train_from}, {self.valid_from}, {self.test_from}, {self.test_to}"
            )
        return self


def dated_fold(dates_T: DateArray, plan: DatedPlan, delay: int, horizon: int, first: int = 0) -> Fold:
    """Build one fold between given days.

    Training uses the sessions of ``[train_from, valid_from)`` and validation those of
    ``[valid_from, test_from)``, both without their last ``delay + horizon + embargo`` sessions. The test uses
    ``[test_from, test_to]``, both days included. Test dates are not purged: if the data end before a label
    does, the label is NaN and metrics skip it.

    Sessions are ascending; the other arguments are those of `make_folds`. The fold has index 0. ValueError if
    a segment has no session before or after purging.

    Examples
    --------
    >>> days_T = np.arange("2024-01-01", "2024-02-01", dtype="datetime64[D]")
    >>> days = {"train_from": "2024-01-01", "valid_from": "2024-01-10", "test_from": "2024-01-20"}
    >>> plan = DatedPlan(**days, test_to="2024-01-31", embargo=0)
    >>> dated_fold(days_T, plan, delay=0, horizon=1).valid[[0, -1]]
    array([ 9, 17])
    """
    gap = label_span(delay, horizon) + plan.embargo
    days = [np.datetime64(day) for day in (plan.train_from, plan.valid_from, plan.test_from, plan.test_to)]
    days_T = dates_T.astype("datetime64[D]")
    train_start, valid_start, test_start = (int(np.searchsorted(days_T, day)) for day in days[:3])
    train_start = max(train_start, first)
    test_stop = int(np.searchsorted(days_T, days[3], side="right"))
    for name, start, stop, purge in (
        ("train", train_start, valid_start, gap),
        ("valid", valid_start, test_start, gap),
        ("test", test_start, test_stop, 0),
    ):
        if stop - start <= purge:
            span = f"{days_T[0]} to {days_T[-1]}" if len(days_T) else "no session"
            raise ValueError(
                f"The {name} segment has {stop - start} sessions, but it needs more than {purge} "
                f"(delay {delay} + horizon {horizon} + embargo {plan.embargo} are purged before "
                f"the next segment): move its dates. The data cover {span}."
            )
    train, valid = (train_start, valid_start - gap), (valid_start, test_start - gap)
    return fold_between(0, train, valid, (test_start, test_stop))


class LivePlan(Options):
    """One fold without a test, for a model that is used: it trains on the newest known labels.

    Lengths are in sessions. Such a run makes no test forecasts and cannot be backtested.

    Examples
    --------
    >>> LivePlan(valid=60, embargo=5, through="2024-06-28").train is None
    True
    """

    scheme: Literal["live"] = "live"
    """Selects this scheme."""
    through: dt.date
    """Date of the data: what was not known at the close of this session is left out."""
    train: int | None = Field(default=None, ge=1)
    """Length of the training segment. Null: all sessions."""
    valid: int = Field(ge=1)
    """Length of the validation segment; its last label ends on ``through``."""
    embargo: int = Field(ge=0)
    """Sessions left out between the segments, in addition to the purge of label spans."""


def live_fold(dates_T: DateArray, plan: LivePlan, delay: int, horizon: int, first: int = 0) -> Fold:
    """Make the fold of a model that forecasts the sessions after the newest one.

    With ``span = delay + horizon``, the validation dates are the last ``valid`` dates whose label is known at
    the close of the newest session up to ``through``, ``[n - span - valid, n - span)`` for n sessions.
    Training ends ``span + embargo`` sessions before the first of them. The test is empty.

    Sessions are ascending; the other arguments are those of `make_folds`. The fold has index 0 and the name
    ``live``. ValueError if the segments do not fit (the message gives the number of sessions needed), or
    delay or horizon is out of range.

    Examples
    --------
    >>> days_T = np.arange("2024-01-01", "2024-04-10", dtype="datetime64[D]")
    >>> plan = LivePlan(valid=20, embargo=1, through="2024-04-09")
    >>> live_fold(days_T, plan, delay=0, horizon=1).valid[[0, -1]]
    array([79, 98])
    """
    n_sessions = int(np.searchsorted(dates_T, np.datetime64(plan.through), side="right"))
    span = label_span(delay, horizon)
    gap = span + plan.embargo
    train = 1 if plan.train is None else plan.train
    needed = first + train + gap + plan.valid + span
    if needed > n_sessions:
        raise ValueError(
            f"A live fold needs {needed} sessions ({first} before the first usable one, train {train}, "
            f"valid {plan.valid}, a gap of {gap} = delay {delay} + horizon {horizon} + embargo "
            f"{plan.embargo}, and {span} for the last label), but there are {n_sessions}: "
            "shorten train or valid, or use a longer history."
        )
    valid_to = n_sessions - span
    valid_from = valid_to - plan.valid
    train_to = valid_from - gap
    train_from = first if plan.train is None else train_to - plan.train
    return fold_between(0, (train_from, train_to), (valid_from, valid_to), (n_sessions, n_sessions), "live")
