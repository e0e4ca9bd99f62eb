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
