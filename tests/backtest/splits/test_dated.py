"""Dated folds: no label reaches into a later segment, for any dates."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from separated_folds import assert_in_order, assert_separated

from backtest.splits.folds import DatedPlan, dated_fold

DAYS_T = np.arange("2020-01-01", "2021-12-31", dtype="datetime64[D]")
DAYS_T = DAYS_T[np.is_busday(DAYS_T)]
reach = {"delay": st.integers(0, 6), "horizon": st.integers(1, 25), "embargo": st.integers(0, 12)}


@settings(max_examples=100)
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
            dated_fold(DAYS_T, DatedPlan(**keys, embargo=embargo), delay, horizon)
        return
    fold = dated_fold(DAYS_T, DatedPlan(**keys, embargo=embargo), delay, horizon)
    assert_separated(fold, delay, horizon, embargo)
    assert_in_order(fold)
    np.testing.assert_array_equal(fold.train, np.arange(train, valid - gap))
    np.testing.assert_array_equal(fold.test, np.arange(test, last + 1))


def test_dates_of_a_dated_fold() -> None:
    plan = DatedPlan(
        train_from=dt.date(2020, 1, 4),  # a Saturday
        valid_from=dt.date(2020, 3, 1),  # a Sunday
        test_from=dt.date(2020, 4, 1),
        test_to=dt.date(2020, 5, 2),  # a Saturday
        embargo=0,
    )
    fold = dated_fold(DAYS_T, plan, delay=0, horizon=1)
    assert [str(DAYS_T[part[i]]) for part in (fold.train, fold.valid, fold.test) for i in (0, -1)] == [
        "2020-01-06",
        "2020-02-27",
        "2020-03-02",
        "2020-03-30",
        "2020-04-01",
        "2020-05-01",
    ]


@pytest.mark.parametrize(
    ("days", "embargo", "horizon", "message"),
    [
        (("2020-03-01", "2020-02-01", "2020-04-01", "2020-05-01"), 0, 1, "train_from < valid_from"),
        (("2020-01-01", "2020-02-01", "2020-02-05", "2020-05-01"), 3, 1, "valid segment has 2 sessions"),
        (("2020-01-01", "2020-02-01", "2022-02-05", "2022-05-01"), 0, 1, "test segment has 0 sessions"),
        (("2020-01-01", "2020-02-01", "2020-03-01", "2020-05-01"), -1, 1, r"embargo\n.*equal to 0"),
        (("2020-01-01", "2020-02-01", "2020-03-01", "2020-05-01"), 0, 0, "horizon 0"),
    ],
)
def test_invalid_dated_fold_raises(
    days: tuple[str, str, str, str], embargo: int, horizon: int, message: str
) -> None:
    train, valid, test, last = (dt.date.fromisoformat(day) for day in days)
    keys = {"train_from": train, "valid_from": valid, "test_from": test, "test_to": last, "embargo": embargo}
    with pytest.raises(ValueError, match=message):
        dated_fold(DAYS_T, DatedPlan.model_validate(keys), delay=0, horizon=horizon)
