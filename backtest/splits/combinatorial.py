"""Combinatorial purged cross-validation: every choice of groups is tested once, and the tests form paths.

A walk-forward gives one path of out-of-sample results. Here the history is cut into groups of sessions, and a
model is trained for every choice of groups to be tested, on the groups that are not. Each session is tested
several times by different models, so that several paths cover the whole history (Lopez de Prado 2018,
chapter 12). Training sessions lie on both sides of a test: the results show how much a backtest depends on
what it was trained on, and not what could have been earned.

Shape suffixes: T sessions, P paths. Times are session indices; index t is the close of session t.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from backtest.splits.folds import Fold, label_span
from features.arrays import BoolArray, IntArray, frozen
from features.options import Options


class CombinatorialPlan(Options):
    """Combinatorial purged cross-validation: one fold for every choice of groups that are tested.

    Examples
    --------
    >>> CombinatorialPlan(groups=6, test_groups=2, embargo=5).n_paths
    5
    """

    scheme: Literal["combinatorial"] = "combinatorial"
    """Selects this scheme."""
    groups: int = Field(ge=3)
    """Number N of groups of consecutive sessions that the history is cut into."""
    test_groups: int = Field(ge=1)
    """Number k of groups that are tested together, at most ``groups - 2``. There are ``N! / (k! (N - k)!)``
    folds, and ``k / N`` times as many paths."""
    embargo: int = Field(ge=0)
    """Sessions left out on both sides of a test and of the validation, in addition to the purge of label
    spans."""

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if self.test_groups > self.groups - 2:
            raise ValueError(
                f"test_groups is {self.test_groups} and groups is {self.groups}; test_groups must be at most "
                "groups - 2, because one group validates and at least one trains"
            )
        return self

    @property
    def n_folds(self) -> int:
        """Number of folds: ``N! / (k! (N - k)!)``."""
        return math.comb(self.groups, self.test_groups)

    @property
    def n_paths(self) -> int:
        """Number of paths: ``n_folds * k / N``."""
        return self.n_folds * self.test_groups // self.groups


def combinatorial_folds(
    n_sessions: int, plan: CombinatorialPlan, delay: int, horizon: int, first: int = 0
) -> list[Fold]:
    """Make one fold for every choice of groups that are tested.

    The sessions from ``first`` to the newest one with a known label are cut into N groups of equal length;
    the last group has the remainder as well. The newest group that is not tested validates, and the others
    train. A validation date is left out if it is within ``gap = delay + horizon + embargo`` sessions of a
    tested group, and a training date if it is within ``gap`` sessions of a tested group or of the validating
    one, before or after. So no label of one segment overlaps a label or a decision date of another.

    The arguments are those of `backtest.splits.folds.make_folds`. Folds are in the order of
    `itertools.combinations`, named by the groups that are tested, counted from 1. ValueError if a segment is
    empty after purging, or delay or horizon is out of range.

    Examples
    --------
    >>> plan = CombinatorialPlan(groups=4, test_groups=2, embargo=1)
    >>> folds = combinatorial_folds(100, plan, delay=0, horizon=1)
    >>> len(folds), folds[0].name
    (6, 'groups 1 and 2')
    """
    span = label_span(delay, horizon)
    gap = span + plan.embargo
    usable = n_sessions - span - first
    length = usable // plan.groups
    if length <= 2 * gap:  # a group between two others keeps at least one session
        raise ValueError(
            f"{plan.groups} groups of {max(length, 0)} sessions are too short: each loses {gap} sessions "
            f"(delay {delay} + horizon {horizon} + embargo {plan.embargo}) on both sides, so it needs more "
            f"than {2 * gap}: use fewer groups or a longer history."
        )
    sessions_T = np.arange(first, first + usable)
    group_T = np.minimum(np.arange(usable) // length, plan.groups - 1)
    folds = []
    for k, tested in enumerate(combinations(range(plan.groups), plan.test_groups)):
        validating = max(set(range(plan.groups)) - set(tested))
        test_T, valid_T = np.isin(group_T, tested), group_T == validating
        near_test_T = within(test_T, gap)
        *others, last = (str(group + 1) for group in tested)
        folds.append(
            Fold(
                index=k,
                train=frozen(sessions_T[~near_test_T & ~within(valid_T, gap)]),
                valid=frozen(sessions_T[valid_T & ~near_test_T]),
                test=frozen(sessions_T[test_T]),
                name=f"groups {', '.join(others)} and {last}" if others else f"group {last}",
            )
        )
    return folds


def within(chosen_T: BoolArray, gap: int) -> BoolArray:
    """Mark the sessions that are chosen, or at most ``gap`` sessions before or after a chosen one."""
    count_T = np.concatenate([[0], np.cumsum(chosen_T)])
    at_T = np.arange(len(chosen_T))
    before_T, after_T = np.maximum(at_T - gap, 0), np.minimum(at_T + gap + 1, len(chosen_T))
    return count_T[after_T] > count_T[before_T]


def path_folds(folds: Sequence[Fold], n_sessions: int) -> IntArray:
    """Assign tests to paths: path p has, on every session, the p-th of the folds that test this session.

    Walk-forward folds are one path. Combinatorial folds are ``n_folds * k / N`` paths, each of which covers
    every group once.

    Folds are in the order of their indices. Returned is, of shape (P, T), the index of the fold whose
    forecasts the path uses; -1 on sessions that are not tested.

    Examples
    --------
    >>> plan = CombinatorialPlan(groups=3, test_groups=1, embargo=0)
    >>> folds = combinatorial_folds(40, plan, delay=0, horizon=1)
    >>> path_folds(folds, 40)[0, [0, 20, 38, 39]]
    array([ 0,  1,  2, -1])
    """
    times_T = np.zeros(n_sessions, dtype=np.int64)
    for fold in folds:
        times_T[fold.test] += 1
    fold_PT = np.full((int(times_T.max(initial=0)), n_sessions), -1, dtype=np.int64)
    times_T[:] = 0
    for fold in folds:
        fold_PT[times_T[fold.test], fold.test] = fold.index
        times_T[fold.test] += 1
    return fold_PT
