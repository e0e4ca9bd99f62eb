"""Folds: no label reaches into a later segment, for any settings."""

from __future__ import annotations

import datetime as dt
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backtest.splits import Fold, FoldPlan, dated_fold, make_folds

DAYS_T = np.arange("2020-01-01", "2021-12-31", dtype="datetime64[D]")
DAYS_T = DAYS_T[np.is_busday(DAYS_T)]


def assert_separated(fold: Fold, delay: int, horizon: int, embargo: int) -> None:
    """Enumerate every label span as a set of sessions and compare it with later segments."""
    for segment, later in (
        (fold.train, (fold.valid, fold.test)),
        (fold.valid, (fold.test,)),
    ):
        assert len(segment)
        spans = {s for t in segment for s in range(t + delay + 1, t + delay + horizon + 1)}
        for other in later:
            assert spans.isdisjoint(other.tolist())
            assert segment[-1] + delay + horizon + embargo < other[0]
    for segment in (fold.train, fold.valid, fold.test):
        assert len(segment)
        np.testing.assert_array_equal(segment, np.arange(segment[0], segment[-1] + 1))
        assert not segment.flags.writeable


sizes = st.integers(1, 40)
reach = {"delay": st.integers(0, 6), "horizon": st.integers(1, 25), "embargo": st.integers(0, 12)}


@settings(max_examples=150, deadline=None)
@given(
    scheme=st.sampled_from(["expanding", "rolling"]),
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
        first=first,
    )
    with pytest.raises(ValueError, match="One fold needs") as caught:
        make_folds(0, plan, delay, horizon)
    needed = int(str(caught.value).split()[3])
    with pytest.raises(ValueError, match=f"there are {needed - 1}:"):
        make_folds(needed - 1, plan, delay, horizon)

    n_sessions = needed + surplus
    folds = make_folds(n_sessions, plan, delay, horizon)
    possible = surplus // (step or test) + 1
    assert len(folds) == (possible if max_folds is None else min(possible, max_folds))
    tested: set[int] = set()
    for k, fold in enumerate(folds):
        assert fold.index == k
        assert_separated(fold, delay, horizon, embargo)
        assert (len(fold.valid), len(fold.test)) == (valid, test)
        assert len(fold.train) == (train + k * (step or test) if scheme == "expanding" else train)
        assert fold.train[0] == (first if scheme == "expanding" else first + k * (step or test))
        assert fold.test[-1] + delay + horizon <= n_sessions - 1  # the last label ends inside the data
        assert tested.isdisjoint(fold.test.tolist())
        tested |= set(fold.test.tolist())
    longer = make_folds(n_sessions + 7, plan, delay, horizon)
    for old, new in zip(folds, longer, strict=False):  # appended sessions do not change folds
        np.testing.assert_array_equal(old.train, new.train)
        np.testing.assert_array_equal(old.test, new.test)


@settings(max_examples=100, deadline=None)
@given(
    starts=st.lists(st.integers(0, len(DAYS_T) - 1), min_size=4, max_size=4, unique=True).map(sorted), **reach
)
def test_labels_of_a_dated_fold_do_not_reach_later_segments(
    starts: list[int], delay: int, horizon: int, embargo: int
) -> None:
    train, valid, test, last = starts
    gap = delay + horizon + embargo
    days = [DAYS_T[i].item() for i in starts]
    keys = dict(zip(("train_from", "valid_from", "test_from", "test_to"), days, strict=True))
    if valid - train <= gap or test - valid <= gap:
        with pytest.raises(ValueError, match="needs more than"):
            dated_fold(DAYS_T, **keys, embargo=embargo, delay=delay, horizon=horizon)
        return
    fold = dated_fold(DAYS_T, **keys, embargo=embargo, delay=delay, horizon=horizon)
    assert_separated(fold, delay, horizon, embargo)
    np.testing.assert_array_equal(fold.train, np.arange(train, valid - gap))
    np.testing.assert_array_equal(fold.test, np.arange(test, last + 1))


def test_dates_of_rolling_folds() -> None:
    plan = FoldPlan(scheme="rolling", train=10, valid=5, test=5, embargo=1)
    folds = make_folds(36, plan, delay=1, horizon=2)
    assert [
        [str(DAYS_T[part[i]]) for part in (f.train, f.valid, f.test) for i in (0, -1)] for f in folds
    ] == [
        ["2020-01-01", "2020-01-14", "2020-01-21", "2020-01-27", "2020-02-03", "2020-02-07"],
        ["2020-01-08", "2020-01-21", "2020-01-28", "2020-02-03", "2020-02-10", "2020-02-14"],
    ]
    # a decision on 2020-01-14 is traded on the 15th, its label ends on the 17th, and the 20th is the embargo


def test_dates_of_a_dated_fold() -> None:
    fold = dated_fold(
        DAYS_T,
        train_from=dt.date(2020, 1, 4),  # a Saturday
        valid_from=np.datetime64("2020-03-01", "D"),  # a Sunday
        test_from=dt.date(2020, 4, 1),
        test_to=dt.date(2020, 5, 2),  # a Saturday
        embargo=0,
        delay=0,
        horizon=1,
    )
    assert [str(DAYS_T[part[i]]) for part in (fold.train, fold.valid, fold.test) for i in (0, -1)] == [
        "2020-01-06",
        "2020-02-27",
        "2020-03-02",
        "2020-03-30",
        "2020-04-01",
        "2020-05-01",
    ]


def test_last_label_ends_before_stop() -> None:
    plan = FoldPlan(scheme="expanding", train=10, valid=5, test=5, embargo=0, stop=40)
    folds = make_folds(1000, plan, delay=1, horizon=3)
    assert max(fold.test[-1] for fold in folds) + 4 < 40


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"train": 0}, "train is 0"),
        ({"max_folds": 0}, "max_folds is 0"),
        ({"embargo": -1}, "embargo is -1"),
        ({"first": -2}, "first is -2"),
        ({"step": 4}, "step must be at least test"),
        ({"scheme": "sliding"}, "choose expanding or rolling"),
    ],
)
def test_invalid_plan_raises(setting: dict[str, object], message: str) -> None:
    plan = {"scheme": "rolling", "train": 10, "valid": 5, "test": 5, "embargo": 0} | setting
    with pytest.raises(ValueError, match=message):
        FoldPlan(**plan)  # type: ignore[arg-type]  # wrong on purpose


def test_embargo_has_no_default() -> None:
    with pytest.raises(TypeError, match="embargo"):
        FoldPlan(scheme="rolling", train=10, valid=5, test=5)  # type: ignore[call-arg]  # wrong on purpose


@pytest.mark.parametrize(
    ("days", "embargo", "horizon", "message"),
    [
        (("2020-03-01", "2020-02-01", "2020-04-01", "2020-05-01"), 0, 1, "train_from < valid_from"),
        (("2020-01-01", "2020-02-01", "2020-02-05", "2020-05-01"), 3, 1, "valid segment has 2 sessions"),
        (("2020-01-01", "2020-02-01", "2022-02-05", "2022-05-01"), 0, 1, "test segment has 0 sessions"),
        (("2020-01-01", "2020-02-01", "2020-03-01", "2020-05-01"), -1, 1, "embargo is -1"),
        (("2020-01-01", "2020-02-01", "2020-03-01", "2020-05-01"), 0, 0, "horizon 0"),
    ],
)
def test_invalid_dated_fold_raises(
    days: tuple[str, str, str, str], embargo: int, horizon: int, message: str
) -> None:
    train, valid, test, last = (dt.date.fromisoformat(day) for day in days)
    with pytest.raises(ValueError, match=message):
        dated_fold(
            DAYS_T,
            train_from=train,
            valid_from=valid,
            test_from=test,
            test_to=last,
            embargo=embargo,
            delay=0,
            horizon=horizon,
        )
