"""Live folds: the newest known labels validate, nothing is tested, and segments do not overlap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtest.splits.folds import Fold, LivePlan, live_fold

DAYS_T = np.arange("2020-01-01", "2021-01-01", dtype="datetime64[D]")


def fold_of(sessions: int, delay: int, horizon: int, first: int, **lengths: int | None) -> Fold:
    plan = LivePlan(through=DAYS_T[sessions - 1].item(), **lengths)  # type: ignore[arg-type]  # keywords
    return live_fold(DAYS_T, plan, delay, horizon, first)


def test_literal_sessions() -> None:
    fold = fold_of(100, train=50, valid=10, embargo=2, first=5, delay=1, horizon=5)
    # labels of decisions up to 93 end by session 99; 8 sessions between the segments: 1 + 5 + 2
    assert (fold.valid[0], fold.valid[-1]) == (84, 93)
    assert (fold.train[0], fold.train[-1]) == (26, 75)
    assert len(fold.test) == 0
    assert (fold.index, fold.name) == (0, "live")


def test_all_sessions_train_without_a_length() -> None:
    fold = fold_of(100, train=None, valid=10, embargo=0, first=5, delay=0, horizon=1)
    assert (fold.train[0], fold.train[-1], fold.valid[-1]) == (5, 87, 98)


@given(
    sessions=st.integers(1, 300),
    train=st.none() | st.integers(1, 120),
    valid=st.integers(1, 60),
    embargo=st.integers(0, 10),
    first=st.integers(0, 40),
    delay=st.integers(0, 5),
    horizon=st.integers(1, 20),
)
def test_no_label_ends_after_the_data_or_in_the_next_segment(
    *, sessions: int, train: int | None, valid: int, embargo: int, first: int, delay: int, horizon: int
) -> None:
    lengths, span = {"train": train, "valid": valid, "embargo": embargo}, delay + horizon
    needed = first + (train or 1) + span + embargo + valid + span
    if sessions < needed:
        with pytest.raises(ValueError, match=f"A live fold needs {needed} sessions"):
            fold_of(sessions, delay, horizon, first, **lengths)
        return
    fold = fold_of(sessions, delay, horizon, first, **lengths)
    assert fold.valid[-1] + span == sessions - 1, "the newest known label is used"
    assert fold.train[-1] + span + embargo == fold.valid[0] - 1
    assert len(fold.valid) == valid
    assert len(fold.train) == train if train else fold.train[0] == first
    assert fold.train[0] >= first
    assert np.array_equal(np.diff(fold.train), np.ones(len(fold.train) - 1))
    assert not fold.train.flags.writeable


@pytest.mark.parametrize("wrong", [{"valid": 0}, {"train": 0}, {"embargo": -1}])
def test_lengths_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    settings = {"through": "2020-05-01", "train": 5, "valid": 5, "embargo": 0, **wrong}
    with pytest.raises(ValueError, match=rf"{next(iter(wrong))}\n.*greater than or equal"):
        LivePlan.model_validate(settings)
