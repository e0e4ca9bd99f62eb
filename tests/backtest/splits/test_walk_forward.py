"""Folds: no label reaches into a later segment, for any settings."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from separated_folds import assert_in_order, assert_separated
from skfolio.model_selection import WalkForward

from backtest.splits.folds import FoldPlan, make_folds

DAYS_T = np.arange("2020-01-01", "2021-12-31", dtype="datetime64[D]")
DAYS_T = DAYS_T[np.is_busday(DAYS_T)]


sizes = st.integers(1, 40)
reach = {"delay": st.integers(0, 6), "horizon": st.integers(1, 25), "embargo": st.integers(0, 12)}


@settings(max_examples=150)
@given(
    scheme=st.sampled_from(["expanding", "rolling"]),
    anchor=st.sampled_from(["end", "start"]),
    train=sizes,
    valid=sizes,
    test=sizes,
    extra_step=st.integers(0, 10) | st.none(),
    max_folds=st.integers(1, 5) | st.none(),
    first=st.integers(0, 30),
    surplus=st.integers(0, 150),
    **reach,
)
def test_labels_of_walk_forward_folds_do_not_reach_later_segments(
    *,
    scheme: Literal["expanding", "rolling"],
    anchor: Literal["end", "start"],
    train: int,
    valid: int,
    test: int,
    extra_step: int | None,
    max_folds: int | None,
    first: int,
    surplus: int,
    delay: int,
    horizon: int,
    embargo: int,
) -> None:
    step = None if extra_step is None else test + extra_step
    plan = FoldPlan(
        scheme=scheme,
        train=train,
        valid=valid,
        test=test,
        embargo=embargo,
        step=step,
        max_folds=max_folds,
        anchor=anchor,
    )
    with pytest.raises(ValueError, match="One fold needs") as caught:
        make_folds(0, plan, delay, horizon, first)
    needed = int(str(caught.value).split()[3])
    with pytest.raises(ValueError, match=f"there are {needed - 1}:"):
        make_folds(needed - 1, plan, delay, horizon, first)

    n_sessions = needed + surplus
    folds = make_folds(n_sessions, plan, delay, horizon, first)
    possible = surplus // (step or test) + 1
    assert len(folds) == (possible if max_folds is None else min(possible, max_folds))
    tested: set[int] = set()
    for k, fold in enumerate(folds):
        assert fold.index == k
        assert_separated(fold, delay, horizon, embargo)
        assert_in_order(fold)
        assert (len(fold.valid), len(fold.test)) == (valid, test)
        assert fold.test[0] == folds[0].test[0] + k * (step or test)
        if scheme == "rolling":
            assert len(fold.train) == train
        else:
            assert fold.train[0] == first
            assert len(fold.train) >= train
        assert fold.train[0] >= first
        assert fold.test[-1] + delay + horizon <= n_sessions - 1  # the last label ends inside the data
        assert tested.isdisjoint(fold.test.tolist())
        tested |= set(fold.test.tolist())
    newest = n_sessions - 1 - delay - horizon
    if anchor == "end":
        assert newest in tested, "the newest session with a known label is tested"
        if max_folds is None and scheme == "expanding":
            assert len(folds[0].train) < train + (step or test), "no earlier fold would fit"
    else:
        assert folds[0].train[0] == first
        assert len(folds[0].train) == train
    longer = make_folds(n_sessions + 7, plan, delay, horizon, first)
    if anchor == "start":
        for old, new in zip(folds, longer, strict=False):  # appended sessions do not change folds
            np.testing.assert_array_equal(old.train, new.train)
            np.testing.assert_array_equal(old.test, new.test)
    else:
        assert longer[-1].test[-1] == folds[-1].test[-1] + 7


@pytest.mark.parametrize("anchor", ["end", "start"])
@pytest.mark.parametrize("scheme", ["expanding", "rolling"])
@pytest.mark.parametrize("n_sessions", [97, 100, 104, 131])
def test_folds_are_those_of_skfolio(
    scheme: Literal["expanding", "rolling"], anchor: Literal["end", "start"], n_sessions: int
) -> None:
    """Skfolio knows no validation segment, so the sessions between training and test are its purge."""
    train, valid, test, embargo, delay, horizon = 20, 6, 11, 2, 1, 3
    gap, known = delay + horizon + embargo, n_sessions - delay - horizon
    plan = FoldPlan(scheme=scheme, train=train, valid=valid, test=test, embargo=embargo, anchor=anchor)
    folds = make_folds(n_sessions, plan, delay, horizon)
    between = gap + valid + gap
    unused = (known - train - between) % test if anchor == "end" else 0
    grows = scheme == "expanding"
    peer = WalkForward(
        test_size=test,
        train_size=train + (unused if grows else 0),
        purged_size=between,
        expand_train=grows,
    )
    offset = 0 if grows else unused
    expected = list(peer.split(np.zeros((known - offset, 1))))
    assert len(folds) == len(expected) > 3
    for fold, (train_T, test_T) in zip(folds, expected, strict=True):
        np.testing.assert_array_equal(fold.train, train_T + offset)
        np.testing.assert_array_equal(fold.test, test_T + offset)
    validation = WalkForward(test_size=test, train_size=valid, purged_size=gap)
    start = int(folds[0].valid[0])
    for fold, (valid_T, test_T) in zip(folds, validation.split(np.zeros((known - start, 1))), strict=True):
        np.testing.assert_array_equal(fold.valid, valid_T + start)
        np.testing.assert_array_equal(fold.test, test_T + start)


def test_dates_of_rolling_folds() -> None:
    plan = FoldPlan(scheme="rolling", train=10, valid=5, test=5, embargo=1, anchor="start")
    folds = make_folds(36, plan, delay=1, horizon=2)
    assert [
        [str(DAYS_T[part[i]]) for part in (f.train, f.valid, f.test) for i in (0, -1)] for f in folds
    ] == [
        ["2020-01-01", "2020-01-14", "2020-01-21", "2020-01-27", "2020-02-03", "2020-02-07"],
        ["2020-01-08", "2020-01-21", "2020-01-28", "2020-02-03", "2020-02-10", "2020-02-14"],
    ]
    # a decision on 2020-01-14 is traded on the 15th, its label ends on the 17th, and the 20th is the embargo


def test_sessions_of_expanding_folds_from_the_newest_backwards() -> None:
    plan = FoldPlan(scheme="expanding", train=10, valid=5, test=5, embargo=1)
    folds = make_folds(39, plan, delay=1, horizon=2)
    # the label of session 35 ends with the last session, 38; gaps of 4 sessions
    assert [[int(part[i]) for part in (f.train, f.valid, f.test) for i in (0, -1)] for f in folds] == [
        [0, 12, 17, 21, 26, 30],
        [0, 17, 22, 26, 31, 35],
    ]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"train": 0}, r"train\n.*equal to 1"),
        ({"max_folds": 0}, r"max_folds\n.*equal to 1"),
        ({"embargo": -1}, r"embargo\n.*equal to 0"),
        ({"step": 4}, "step must be at least test"),
        ({"scheme": "sliding"}, "'expanding' or 'rolling'"),
        ({"anchor": "middle"}, "'end' or 'start'"),
    ],
)
def test_invalid_plan_raises(setting: dict[str, object], message: str) -> None:
    plan = {"scheme": "rolling", "train": 10, "valid": 5, "test": 5, "embargo": 0} | setting
    with pytest.raises(ValueError, match=message):
        FoldPlan.model_validate(plan)


def test_embargo_has_no_default() -> None:
    with pytest.raises(ValueError, match=r"embargo\n.*required"):
        FoldPlan(scheme="rolling", train=10, valid=5, test=5)  # type: ignore[call-arg]  # wrong on purpose
