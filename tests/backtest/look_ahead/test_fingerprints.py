"""Statistics of the whole sample that are exact by construction."""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl
import pytest

from backtest.look_ahead.full_sample import whole_sample_scale

T, N = 200, 12


def rows(value_TN: np.ndarray) -> pl.DataFrame:
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=t) for t in range(T) for _ in range(N)]
    return pl.DataFrame(
        {
            "date": days,
            "ticker": [f"F{n:02}" for n in range(N)] * T,
            "value": value_TN.ravel(),
        }
    )


@pytest.fixture
def known() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.cumsum(rng.normal(size=(T, N)), axis=0) * rng.uniform(0.5, 3, N) + rng.normal(0, 5, N)


def test_a_column_as_it_was_known_passes(known: np.ndarray) -> None:
    assert whole_sample_scale("the signal", rows(known)).verdict == "pass"
    running_TN = known - np.cumsum(known, axis=0) / np.arange(1, T + 1)[:, None]
    assert whole_sample_scale("the signal", rows(running_TN)).verdict == "pass"


def test_a_mean_of_the_whole_sample_that_was_taken_off_fails(known: np.ndarray) -> None:
    found = whole_sample_scale("the signal", rows(known - known.mean(axis=0)))
    assert (found.check, found.verdict) == ("demeaned", "fail")
    both = whole_sample_scale("the signal", rows((known - known.mean(axis=0)) / known.std(axis=0)))
    assert (both.check, both.verdict) == ("standardised", "fail")


def test_an_indicator_that_reaches_its_bound_is_no_column_divided_by_its_maximum() -> None:
    """The share of rises in the moves of seven sessions is 1, within a rounding, for nearly every firm."""
    rng = np.random.default_rng(1)
    move_TN = rng.normal(size=(T, N)) + 0.45
    move_TN[: T // 2, ::2] -= 0.9  # each firm is there in one half only
    move_TN[T // 2 :, 1::2] -= 0.9
    up_TN, all_TN = np.cumsum(np.maximum(move_TN, 0.0), axis=0), np.cumsum(np.abs(move_TN), axis=0)
    share_TN = np.full((T, N), np.nan)
    share_TN[7:] = (up_TN[7:] - up_TN[:-7]) / (all_TN[7:] - all_TN[:-7])
    top_N = np.nanmax(share_TN, axis=0)
    assert (np.abs(top_N - 1.0) < 1e-9).mean() > 0.9
    assert (share_TN == top_N).sum(axis=0).mean() < 3
    frame = rows(share_TN).drop_nans()
    assert whole_sample_scale("the signal", frame).verdict == "pass"
    price_TN = np.exp(np.cumsum(0.02 * rng.normal(size=(T, N)), axis=0))
    found = whole_sample_scale("the signal", rows(price_TN / price_TN.max(axis=0)))
    assert (found.check, found.verdict) == ("maximum", "fail")
