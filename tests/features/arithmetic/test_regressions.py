"""Regressions on series without variation, and sessions on the weekday of the next session."""

from __future__ import annotations

import datetime as dt

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

from features.arithmetic.rolling import residual_skewness, rolling_correlation, rolling_regression
from features.library.characteristics import CHARACTERISTICS
from features.panel.panel import Panel, build_panel

FloatArray = npt.NDArray[np.float64]
nan = float("nan")


@pytest.mark.parametrize("constant", [0.01, -0.003, 1.0 / 3.0, 1e-9, 0.0, 7e5])
@pytest.mark.parametrize("window", [5, 21, 63, 252])
def test_regression_on_a_constant_is_nan(constant: float, window: int) -> None:
    y_TN = np.random.default_rng(0).normal(0.0, 0.02, (600, 3))
    x_TN = np.full_like(y_TN, constant)
    slope_TN, residual_TN = rolling_regression(y_TN, x_TN, window, 3)
    assert np.isnan(slope_TN).all()
    assert np.isnan(residual_TN).all()
    assert np.isnan(rolling_correlation(y_TN, x_TN, window, 3)).all()
    assert np.isnan(rolling_correlation(x_TN, y_TN, window, 3)).all()
    for values_TN in (*residual_skewness(y_TN, x_TN, window, 3), *residual_skewness(x_TN, y_TN, window, 3)):
        assert np.isnan(values_TN).all()


def test_regression_on_tiny_values_has_a_slope() -> None:
    """The tolerance is relative to the size of the sums, so values on a tiny scale are not constant."""
    rng = np.random.default_rng(1)
    x_TN = 1e-12 * rng.normal(0.3, 1.0, (300, 2))
    y_TN = 2.0 * x_TN + 1e-13 * rng.normal(size=(300, 2))
    slope_TN, _ = rolling_regression(y_TN, x_TN, 63, 32)
    expected = np.polyfit(x_TN[-63:, 0] * 1e12, y_TN[-63:, 0] * 1e12, 1)[0]
    np.testing.assert_allclose(slope_TN[-1, 0], expected, rtol=1e-9)


def test_perfect_fit_has_zero_residual() -> None:
    x_TN = np.random.default_rng(2).normal(0.0, 0.01, (300, 1))
    _, residual_TN = rolling_regression(3.0 * x_TN, x_TN, 63, 32)
    np.testing.assert_array_equal(residual_TN[63:], 0.0)


def of_dates(days: list[dt.date], rise_T: FloatArray) -> Panel:
    null = pl.lit(None, dtype=pl.Float64)
    prices = pl.DataFrame({"date": days, "ticker": ["A"] * len(days), "close": np.cumprod(1.0 + rise_T)})
    return build_panel(
        prices.with_columns(
            open=null, high=null, low=null, volume=null, split_ratio=pl.lit(1.0), dividend=pl.lit(0.0)
        )
    )


def calendar(weekdays: set[int], holidays: set[dt.date], weeks: int = 40) -> list[dt.date]:
    days = (dt.date(2021, 1, 4) + dt.timedelta(days=i) for i in range(7 * weeks))
    return [day for day in days if day.weekday() in weekdays and day not in holidays]


@pytest.mark.parametrize(
    "weekdays",
    [{0, 1, 2, 3, 4}, {6, 0, 1, 2, 3}, set(range(7))],
    ids=["Monday to Friday", "Sunday to Thursday", "every day"],
)
def test_same_weekday_follows_the_calendar_despite_holidays(weekdays: set[int]) -> None:
    """Prices rise by 1% on Mondays, 2% on Tuesdays and so on, so the mean identifies the weekday."""
    holidays = {dt.date(2021, 1, 18), dt.date(2021, 5, 31), dt.date(2021, 7, 5), dt.date(2021, 6, 17)}
    days = calendar(weekdays, holidays)
    rise_T = np.array([0.01 * (day.weekday() + 1) for day in days], dtype=np.float64)
    feature = CHARACTERISTICS["same_weekday_return_100"]
    value_T = feature.compute(of_dates(days, rise_T))[:, 0]
    known = np.flatnonzero(np.isfinite(value_T))
    np.testing.assert_array_equal(known, np.arange(feature.warmup, len(days)))
    for t in known[:-1]:
        following = days[t] + dt.timedelta(days=1)  # holidays are not predicted
        while following.weekday() not in weekdays:
            following += dt.timedelta(days=1)
        assert value_T[t] == pytest.approx(0.01 * (following.weekday() + 1)), days[t]


def test_same_weekday_needs_ten_of_twenty_weeks() -> None:
    """A market that opens on Saturdays is expected to do so only after ten weeks."""
    days = calendar({0, 1, 2, 3, 4}, set(), 36)
    began = dt.date(2021, 6, 1)
    saturdays = {day + dt.timedelta(days=1) for day in days if day.weekday() == 4 and day >= began}
    days = sorted({*days, *saturdays})
    rise_T = np.array([0.01 * (day.weekday() + 1) for day in days], dtype=np.float64)
    feature = CHARACTERISTICS["same_weekday_return_100"]
    value_T = feature.compute(of_dates(days, rise_T))[:, 0]
    fridays = [t for t, day in enumerate(days) if day.weekday() == 4 and day >= began]
    np.testing.assert_allclose(value_T[fridays], [0.01] * 10 + [0.06] * 5)
