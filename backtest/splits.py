"""Walk-forward folds: train, validation and test dates in that order, purged by the label and embargoed.

The label of a decision at ``t`` is the return over ``(t+delay, t+delay+horizon]``. There are
``gap = delay + horizon + embargo`` sessions between a segment's last date and the next segment's first
session, so all labels of a segment are known more than ``embargo`` sessions before the next one starts.

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
        Number of the fold, from 0.
    train, valid, test : ndarray of int
        Session indices, ascending and read-only. Each segment ends before the next one starts.
    """

    index: int
    train: IntArray
    valid: IntArray
    test: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """How sessions are split into folds. Lengths count decision dates; gaps are added between segments.

    Attributes
    ----------
    scheme : {"expanding", "rolling"}
        Training dates start at ``first`` in every fold (expanding), or are always the last ``train`` dates
        before the gap (rolling).
    train, valid, test : int
        Decision dates per segment, at least 1. For ``expanding``, ``train`` is the length in the first fold.
    embargo : int
        Sessions left out in addition to the purge, at least 0. It has no default and must be set.
    step : int or None
        Sessions between the starts of two test segments, at least ``test``, so that tests never overlap;
        None: ``test``.
    max_folds : int or None
        Keep only this many folds, the earliest; None: all that fit.
    first : int
        First usable session.
    stop : int or None
        Sessions from this one on are used neither for decisions nor by labels; None: the end of the data.

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
                msg = f"{name} is {value}; it must be at least 1."
                raise ValueError(msg)
        for name in ("embargo", "first"):
            if getattr(self, name) < 0:
                msg = f"{name} is {getattr(self, name)} sessions; it must be at least 0."
                raise ValueError(msg)
        if self.step is not None and self.step < self.test:
            msg = (
                f"step is {self.step} and test is {self.test}; step must be at least test, or tests overlap."
            )
            raise ValueError(msg)


def make_folds(n_sessions: int, plan: FoldPlan, delay: int, horizon: int) -> list[Fold]:
    """Split sessions into walk-forward folds, counted from ``plan.first``.

    With ``gap = delay + horizon + embargo``, the test dates of fold k are ``[e, e + test)`` where
    ``e = first + train + gap + valid + gap + k * step``. Its validation dates are
    ``[e - gap - valid, e - gap)``, and its training dates end ``gap`` sessions before those. Every date t
    before a segment that starts at s therefore has ``t + delay + horizon + embargo < s``.

    Only complete folds are returned: all ``test`` dates fit, and their labels end inside the data (before
    ``stop``). Folds are counted from the start, so fold k does not change when sessions are appended. Up to
    ``step - 1`` of the latest possible decision dates may not belong to any fold yet.

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
        At least one, in time order, with disjoint test segments.

    Raises
    ------
    ValueError
        If no fold fits (the message gives the number of sessions needed), or delay or horizon is out of
        range.
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
            f"and {delay + horizon} for the last label), but there are {stop}: "
            "shorten train, valid or test, or use a longer history."
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
        As in `FoldPlan` and `make_folds`.

    Returns
    -------
    Fold
        With index 0.

    Raises
    ------
    ValueError
        If the days are out of order, or a segment has no session before or after purging.
    """
    gap = _label_span(delay, horizon) + embargo
    if embargo < 0:
        msg = f"embargo is {embargo} sessions; it must be at least 0."
        raise ValueError(msg)
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
        train=_dates(train_start, valid_start - gap),
        valid=_dates(valid_start, test_start - gap),
        test=_dates(test_start, test_stop),
    )


def _label_span(delay: int, horizon: int) -> int:
    if delay < 0 or horizon < 1:
        msg = f"The label has delay {delay} and horizon {horizon}; they must be at least 0 and at least 1."
        raise ValueError(msg)
    return delay + horizon


def _dates(start: int, stop: int) -> IntArray:
    dates: IntArray = np.arange(start, stop, dtype=np.int64)
    dates.flags.writeable = False  # folds are shared by every model and seed
    return dates
