"""Calendar folds against skfolio, literal dates, and the rule that no label reaches another segment."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from separated_folds import assert_in_order, assert_separated
from skfolio.model_selection import WalkForward

from backtest.splits.calendar import CalendarPlan, calendar_folds

ALL_T = np.arange("2003-01-01", "2012-12-31", dtype="datetime64[D]")
ALL_T = ALL_T[np.is_busday(ALL_T)]


def periods_of(days_T: np.ndarray, period: Literal["year", "quarter"]) -> list[str]:
    """Name the period of every day, with pandas."""
    index = pd.DatetimeIndex(days_T)
    return [str(one) for one in index.to_period("Y" if period == "year" else "Q")]


@settings(max_examples=120)
@given(
    period=st.sampled_from(["year", "quarter"]),
    window=st.sampled_from(["expanding", "rolling"]),
    train=st.integers(1, 6),
    valid=st.integers(1, 3),
    first=st.integers(0, 400),
    start=st.integers(0, 300),
    length=st.integers(300, len(ALL_T) - 300),
    delay=st.integers(0, 3),
    horizon=st.integers(1, 10),
    embargo=st.integers(0, 5),
)
def test_calendar_folds_are_purged_and_test_the_newest_session(
    *,
    period: Literal["year", "quarter"],
    window: Literal["expanding", "rolling"],
    train: int,
    valid: int,
    first: int,
    start: int,
    length: int,
    delay: int,
    horizon: int,
    embargo: int,
) -> None:
    days_T = ALL_T[start : start + length]
    plan = CalendarPlan(period=period, window=window, train=train, valid=valid, embargo=embargo)
    try:
        folds = calendar_folds(days_T, plan, delay, horizon, first)
    except ValueError as error:
        assert "One fold needs" in str(error)  # noqa: PT017 (either answer is right)
        usable = periods_of(days_T[first : len(days_T) - delay - horizon], period)
        assert len(set(usable)) <= train + valid + 1, "there was room for a fold"
        return
    names = periods_of(days_T, period)
    newest = len(days_T) - 1 - delay - horizon
    assert folds[-1].test[-1] == newest
    for k, fold in enumerate(folds):
        assert fold.index == k
        assert_separated(fold, delay, horizon, embargo)
        assert_in_order(fold)
        own = [t for t, name in enumerate(names) if name == fold.name and t <= newest]
        assert fold.test.tolist() == own, "a test is a whole period, as far as labels are known"
        assert len({names[t] for t in fold.valid}) == valid
        trained = {names[t] for t in fold.train}
        assert len(trained) == train if window == "rolling" else len(trained) >= train
        assert fold.train[0] >= first
        if window == "expanding":
            assert fold.train[0] == first
    assert [fold.name for fold in folds] == sorted({names[t] for f in folds for t in f.test})
    longer = ALL_T[start : start + length + 200]
    for old, new in zip(folds[:-1], calendar_folds(longer, plan, delay, horizon, first), strict=False):
        for segment in ("train", "valid", "test"):  # complete periods do not change
            np.testing.assert_array_equal(getattr(old, segment), getattr(new, segment))


@pytest.mark.parametrize(("period", "frequency"), [("year", "YS"), ("quarter", "QS")])
@pytest.mark.parametrize("window", ["expanding", "rolling"])
def test_calendar_folds_are_those_of_skfolio(
    period: Literal["year", "quarter"], frequency: str, window: Literal["expanding", "rolling"]
) -> None:
    gap, train, valid = 1 + 5 + 2, 3, 1
    plan = CalendarPlan(period=period, window=window, train=train, valid=valid, embargo=2)
    folds = calendar_folds(ALL_T, plan, delay=1, horizon=5)
    known = pd.DataFrame(index=pd.DatetimeIndex(ALL_T[: len(ALL_T) - 6]), data={"x": 0.0})
    grows = window == "expanding"
    # skfolio has no validation: its training includes ours and the gap between the two
    peer = WalkForward(
        test_size=1,
        train_size=train + valid,
        freq=frequency,
        purged_size=gap,
        expand_train=grows,
        reduce_test=True,
    )
    expected = list(peer.split(known))
    assume(expected)
    assert len(folds) >= 6
    for fold, (before_T, test_T) in zip(folds[::-1], expected[::-1], strict=False):
        np.testing.assert_array_equal(fold.test, test_T)
        assert fold.valid[-1] == before_T[-1]
        assert fold.train[0] == before_T[0]
        assert len(fold.train) + gap + len(fold.valid) == len(before_T)


def test_dates_of_calendar_folds() -> None:
    plan = CalendarPlan(period="quarter", window="rolling", train=2, valid=1, embargo=1, max_folds=2)
    folds = calendar_folds(ALL_T[:370], plan, delay=1, horizon=2)  # to 2004-06-01
    assert [
        [fold.name, *(str(ALL_T[part[i]]) for part in (fold.train, fold.valid, fold.test) for i in (0, -1))]
        for fold in folds
    ] == [
        ["2004Q1", "2003-04-01", "2003-09-24", "2003-10-01", "2003-12-25", "2004-01-01", "2004-03-31"],
        ["2004Q2", "2003-07-01", "2003-12-25", "2004-01-01", "2004-03-25", "2004-04-01", "2004-05-27"],
    ]
    # gap of 4: after 2003-09-24 come the 25th, 26th, 29th and 30th; the label of 2004-05-27 ends on June 1st


def test_a_first_period_that_began_earlier_is_not_whole() -> None:
    plan = CalendarPlan(period="year", window="expanding", train=2, valid=1, embargo=0)
    whole = calendar_folds(ALL_T, plan, 0, 1)
    assert whole[0].name == "2006"
    late = calendar_folds(ALL_T[20:], plan, 0, 1)  # starts on 2003-01-29: 2004 and 2005 are the whole years
    assert late[0].name == "2007"
    assert late[0].train[0] == 0, "the rest of 2003 trains nevertheless"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"train": 0}, r"train\n.*equal to 1"),
        ({"max_folds": 0}, r"max_folds\n.*equal to 1"),
        ({"embargo": -1}, r"embargo\n.*equal to 0"),
        ({"period": "month"}, "'year' or 'quarter'"),
        ({"window": "sliding"}, "'expanding' or 'rolling'"),
    ],
)
def test_an_invalid_plan_is_refused(setting: dict[str, object], message: str) -> None:
    plan = {"period": "year", "window": "rolling", "train": 2, "valid": 1, "embargo": 0} | setting
    with pytest.raises(ValueError, match=message):
        CalendarPlan.model_validate(plan)


def test_what_cannot_be_split_is_refused() -> None:
    plan = CalendarPlan(period="year", window="rolling", train=12, valid=1, embargo=0)
    with pytest.raises(ValueError, match=r"12 whole years .* a test in 2016, but the data are usable from"):
        calendar_folds(ALL_T, plan, 0, 1)
    short = CalendarPlan(period="quarter", window="rolling", train=1, valid=1, embargo=0)
    with pytest.raises(ValueError, match=r"The fold of 2003Q3 has no train session after 80 sessions"):
        calendar_folds(ALL_T, short, 0, 80)
    with pytest.raises(ValueError, match="horizon 0"):
        calendar_folds(ALL_T, short, 0, 0)
    with pytest.raises(ValueError, match="have no session"):
        calendar_folds(ALL_T[:0], short, 0, 1)
