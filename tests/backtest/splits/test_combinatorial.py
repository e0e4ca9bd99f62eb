"""Combinatorial folds against skfolio, by hand, and the rule that no label reaches another segment."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from separated_folds import assert_separated
from skfolio.model_selection import CombinatorialPurgedCV

from backtest.splits.combinatorial import CombinatorialPlan, combinatorial_folds, path_folds, within
from backtest.splits.folds import FoldPlan, make_folds


@settings(max_examples=100)
@given(
    groups=st.integers(3, 6),
    tested=st.integers(1, 4),
    first=st.integers(0, 20),
    surplus=st.integers(0, 120),
    delay=st.integers(0, 3),
    horizon=st.integers(1, 6),
    embargo=st.integers(0, 4),
)
def test_combinatorial_folds_are_purged_on_both_sides(
    *, groups: int, tested: int, first: int, surplus: int, delay: int, horizon: int, embargo: int
) -> None:
    k = min(tested, groups - 2)
    plan = CombinatorialPlan(groups=groups, test_groups=k, embargo=embargo)
    gap = delay + horizon + embargo
    shortest = first + groups * (2 * gap + 1) + delay + horizon
    with pytest.raises(ValueError, match="are too short"):
        combinatorial_folds(shortest - 1, plan, delay, horizon, first)
    n_sessions = shortest + surplus
    folds = combinatorial_folds(n_sessions, plan, delay, horizon, first)
    assert len(folds) == plan.n_folds == math.comb(groups, k)
    for index, fold in enumerate(folds):
        assert fold.index == index
        assert_separated(fold, delay, horizon, embargo)
        assert fold.train[0] >= first
    times = np.bincount(np.concatenate([fold.test for fold in folds]), minlength=n_sessions)
    newest = n_sessions - 1 - delay - horizon
    assert set(times[first : newest + 1]) == {plan.n_paths}, "every usable session is tested equally often"
    assert times[:first].sum() + times[newest + 1 :].sum() == 0
    fold_PT = path_folds(folds, n_sessions)
    assert fold_PT.shape == (plan.n_paths, n_sessions)
    assert (fold_PT[:, first : newest + 1] >= 0).all()
    for fold in folds:
        assert ((fold_PT == fold.index).sum(axis=0)[fold.test] == 1).all(), "a forecast is in one path"


@pytest.mark.parametrize(("groups", "tested"), [(4, 2), (6, 2), (6, 3), (5, 2)])
def test_splits_and_paths_are_those_of_skfolio(groups: int, tested: int) -> None:
    n_sessions, delay, horizon, embargo = 305, 1, 3, 2
    gap, known = delay + horizon + embargo, n_sessions - delay - horizon
    plan = CombinatorialPlan(groups=groups, test_groups=tested, embargo=embargo)
    folds = combinatorial_folds(n_sessions, plan, delay, horizon)
    peer = CombinatorialPurgedCV(n_folds=groups, n_test_folds=tested, purged_size=gap)
    assert (plan.n_folds, plan.n_paths) == (peer.n_splits, peer.n_test_paths)
    fold_PT = path_folds(folds, n_sessions)
    paths = peer.get_path_ids()
    for fold, of_groups, (kept_T, parts) in zip(folds, paths, peer.split(np.zeros((known, 1))), strict=True):
        np.testing.assert_array_equal(fold.test, np.concatenate(parts))
        # what skfolio keeps is our training, our validation, and the gap between the two
        assert set(fold.train) | set(fold.valid) <= set(kept_T)
        between = np.setdiff1d(kept_T, np.concatenate([fold.train, fold.valid]))
        group_T = np.minimum(np.arange(known) // (known // groups), groups - 1)
        validating_T = group_T == group_T[fold.valid[0]]
        assert within(validating_T, gap)[between].all()
        np.testing.assert_array_equal(fold.valid, np.intersect1d(kept_T, np.flatnonzero(validating_T)))
        for part, path in zip(parts, of_groups, strict=True):
            assert (fold_PT[path, part] == fold.index).all()


def test_folds_by_hand() -> None:
    plan = CombinatorialPlan(groups=4, test_groups=2, embargo=0)
    folds = combinatorial_folds(22, plan, delay=0, horizon=1)  # groups 0-4, 5-9, 10-14, 15-20; gaps of 1
    assert [fold.name for fold in folds[:2]] == ["groups 1 and 2", "groups 1 and 3"]
    second = folds[1]
    assert second.test.tolist() == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert second.valid.tolist() == [16, 17, 18, 19, 20]
    assert second.train.tolist() == [6, 7, 8]
    fold_PT = path_folds(folds, 22)
    assert fold_PT[:, [0, 5, 10, 15, 20, 21]].tolist() == [
        [0, 0, 1, 2, 2, -1],
        [1, 3, 3, 4, 4, -1],
        [2, 4, 5, 5, 5, -1],
    ]


def test_walk_forward_folds_are_one_path() -> None:
    folds = make_folds(60, FoldPlan(scheme="rolling", train=10, valid=5, test=5, embargo=0), 0, 1)
    fold_PT = path_folds(folds, 60)
    assert len(fold_PT) == 1
    for fold in folds:
        assert (fold_PT[0, fold.test] == fold.index).all()
    assert (fold_PT >= 0).sum() == sum(len(fold.test) for fold in folds)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"groups": 2}, r"groups\n.*equal to 3"),
        ({"test_groups": 0}, r"test_groups\n.*equal to 1"),
        ({"test_groups": 4}, "must be at most groups - 2"),
        ({"embargo": -1}, r"embargo\n.*equal to 0"),
    ],
)
def test_an_invalid_plan_is_refused(setting: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CombinatorialPlan.model_validate({"groups": 5, "test_groups": 2, "embargo": 0, **setting})
