"""Walk-forward folds: train, validation and test dates in that order, purged by the label and embargoed.

A decision at ``t`` is labelled with the return over ``(t+delay, t+delay+horizon]``. Between a segment's
last date and the next segment's first session lie ``gap = delay + horizon + embargo`` sessions, so a label
is known more than ``embargo`` sessions before the next segment starts.

Shape suffix: T sessions. Times are session indices; index t is the close of session t.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Literal

import numpy as np

from features.arrays import DateArray, IntArray

Scheme = Literal["expanding", "rolling"]
Day = dt.date | np.datetime64


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """The decision dates of one fold.

    Attributes
    ----------
    index : int
        Position in the walk, from 0.
    train, valid, test : ndarray of int
        Session indices, ascending, read-only; each segment ends before the next one starts.
    """

    index: int
    train: IntArray
    valid: IntArray
    test: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """How sessions are cut into folds; lengths count decision dates that are kept, gaps come on top.

    Attributes
    ----------
    scheme : {"expanding", "rolling"}
        Training dates start at ``first`` in every fold, or are always the last ``train`` before the gap.
    train, valid, test : int
        Decision dates a segment, at least 1; for ``expanding``, ``train`` is the first fold's.
    embargo : int
        Sessions left out on top of the purge, at least 0. There is no default: state it.
    step : int or None
        Sessions between the starts of two test segments, at least ``test`` (they never overlap); None:
        ``test``.
    max_folds : int or None
        Keep the earliest that many folds; None: all that fit.
    first : int
        First usable session.
    stop : int or None
        Sessions from here on are neither decided on nor seen by a label; None: the data's end.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    scheme: Scheme
    train: int
    valid: int
    test: int
    embargo: int
    step: int | None = None
    max_folds: int | None = None
    first: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        if self.scheme not in ("expanding", "rolling"):
            msg = f"Unknown scheme {self.scheme!r}: choose expanding or rolling."
            raise ValueError(msg)
        for name in ("train", "valid", "test", "max_folds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                msg = f"{name} is {value}: it counts dates or folds and must be at least 1."
                raise ValueError(msg)
        for name in ("embargo", "first"):
            if getattr(self, name) < 0:
                msg = f"{name} is {getattr(self, name)}: it counts sessions and must be at least 0."
                raise ValueError(msg)
        if self.step is not None and self.step < self.test:
            msg = f"step is {self.step} and test is {self.test}: make step at least test, or tests overlap."
            raise ValueError(msg)


def make_folds(n_sessions: int, plan: FoldPlan, delay: int, horizon: int) -> list[Fold]:
    """Split sessions into walk-forward folds, counted from ``plan.first``.

    With ``gap = delay + horizon + embargo``, fold k tests ``[e, e + test)`` where ``e = first + train + gap
    + valid + gap + k * step``; its validation dates are ``[e - gap - valid, e - gap)`` and its training
    dates end ``gap`` sessions before those. Every date t before a segment that starts at s thus has ``t +
    delay + horizon + embargo < s``.

    Only whole folds are made: all ``test`` dates fit and their labels end inside the data (before ``stop``).
    Because folds are counted from the start, fold k stays the same when sessions are appended; up to
    ``step - 1`` of the latest decidable sessions may belong to no fold yet.

    Parameters
    ----------
    n_sessions : int
        Sessions in the data.
    plan : FoldPlan
        Lengths, embargo and scheme.
    delay : int
        Sessions between decision and trade, at least 0.
    horizon : int
        Sessions held, at least 1.

    Returns
    -------
    list of Fold
        At least one, in time order, test segments disjoint.

    Raises
    ------
    ValueError
        If not even one fold fits (says how many sessions are needed), or delay or horizon is out of range.
    """
    gap = _label_span(delay, horizon) + plan.embargo
    stop = n_sessions if plan.stop is None else min(plan.stop, n_sessions)
    step = plan.test if plan.step is None else plan.step
    first_test = plan.first + plan.train + gap + plan.valid + gap
    needed = first_test + plan.test + delay + horizon
    if needed > stop:
        msg = (
            f"One fold needs {needed} sessions ({plan.first} before the first usable one, "
            f"train {plan.train}, valid {plan.valid}, test {plan.test}, "
            f"two gaps of {gap} = delay {delay} + horizon {horizon} + embargo {plan.embargo}, "
            f"and {delay + horizon} for the last label) and there are {stop}: "
            "shorten train, valid or test, or bring a longer history."
        )
        raise ValueError(msg)
    n_folds = (stop - needed) // step + 1
    if plan.max_folds is not None:
        n_folds = min(n_folds, plan.max_folds)
    folds = []
    for k in range(n_folds):
        test_from = first_test + k * step
        valid_from = test_from - gap - plan.valid
        train_to = valid_from - gap
        train_from = plan.first if plan.scheme == "expanding" else train_to - plan.train
        folds.append(
            Fold(
                index=k,
                train=_dates(train_from, train_to),
                valid=_dates(valid_from, test_from - gap),
                test=_dates(test_from, test_from + plan.test),
            )
        )
    return folds


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

    Training takes the sessions of ``[train_from, valid_from)``, validation ``[valid_from, test_from)``,
    both without their last ``delay + horizon + embargo``; test takes ``[test_from, test_to]``, both days
    included. Test dates are kept as given: where the data end before a label does, that label is NaN and
    metrics skip it.

    Parameters
    ----------
    dates_T : ndarray of datetime64[D], shape (T,)
        Sessions, ascending.
    train_from, valid_from, test_from, test_to : date or datetime64
        Days; one that is no session stands for the next session (``test_to``: the one before).
    embargo, delay, horizon : int
        As in `FoldPlan` and `make_folds`.

    Returns
    -------
    Fold
        With index 0.

    Raises
    ------
    ValueError
        If the days are out of order, a segment holds no session, or purging leaves none of one.
    """
    gap = _label_span(delay, horizon) + embargo
    if embargo < 0:
        msg = f"embargo is {embargo}: it counts sessions and must be at least 0."
        raise ValueError(msg)
    days = [
        np.datetime64(day).astype("datetime64[D]") for day in (train_from, valid_from, test_from, test_to)
    ]
    if not days[0] < days[1] < days[2] <= days[3]:
        msg = (
            "A fold needs train_from < valid_from < test_from <= test_to, "
            f"not {days[0]}, {days[1]}, {days[2]}, {days[3]}."
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
                f"The {name} segment has {stop - start} sessions and needs more than {purge} "
                f"(delay {delay} + horizon {horizon} + embargo {embargo} are purged before "
                f"the next segment): move its dates; the data hold {span}."
            )
            raise ValueError(msg)
    return Fold(
        index=0,
        train=_dates(train_start, valid_start - gap),
        valid=_dates(valid_start, test_start - gap),
        test=_dates(test_start, test_stop),
    )


def _label_span(delay: int, horizon: int) -> int:
    if delay < 0 or horizon < 1:
        msg = f"A label needs delay >= 0 and horizon >= 1, not {delay} and {horizon}."
        raise ValueError(msg)
    return delay + horizon


def _dates(start: int, stop: int) -> IntArray:
    dates: IntArray = np.arange(start, stop, dtype=np.int64)
    dates.flags.writeable = False  # folds are shared by every model and seed
    return dates
