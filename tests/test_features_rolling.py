"""Rolling statistics against pandas, and what a cumulative sum would get wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from features import rolling

FloatArray = npt.NDArray[np.float64]
nan = float("nan")


@pytest.fixture(scope="module", name="x_TN")
def gappy_returns() -> FloatArray:
    rng = np.random.default_rng(0)
    x = rng.normal(0.001, 0.02, (200, 11))
    x[rng.random(x.shape) < 0.15] = nan
    x[:40, 3] = nan
    x[:, 4] = nan
    x[50:120, 5] = 0.0
    return x


@pytest.mark.parametrize("window", [1, 2, 3, 5, 21, 63, 64, 252])
@pytest.mark.parametrize("name", ["mean", "std", "skewness", "max", "median"])
def test_rolling_equals_pandas(x_TN: FloatArray, window: int, name: str) -> None:
    least = max((window + 1) // 2, {"std": 2, "skewness": 3}.get(name, 1))
    if window < least:
        assert np.isnan(getattr(rolling, f"rolling_{name}")(x_TN, window, 1)).all()
        return
    windows = pd.DataFrame(x_TN).rolling(window, min_periods=least)
    if name == "skewness":
        expected = windows.apply(lambda v: pd.Series(v).skew(), raw=True).to_numpy()
        n = windows.count().to_numpy()
        with np.errstate(invalid="ignore", divide="ignore"):
            expected = expected * (n - 2) / np.sqrt(n * (n - 1))  # pandas corrects for bias; here it is not
        expected[windows.std().to_numpy() < 1e-12] = nan
    else:
        expected = getattr(windows, name)().to_numpy()
    actual = getattr(rolling, f"rolling_{name}")(x_TN, window, (window + 1) // 2)
    np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-10)


def test_sums_and_counts_treat_the_unknown_as_nothing(x_TN: FloatArray) -> None:
    frame = pd.DataFrame(x_TN)
    counts = frame.notna().rolling(13, min_periods=1).sum().to_numpy()
    np.testing.assert_array_equal(rolling.rolling_count(x_TN, 13), counts)
    sums = frame.fillna(0.0).rolling(13, min_periods=1).sum().to_numpy()
    np.testing.assert_allclose(rolling.rolling_sum(x_TN, 13), sums, rtol=1e-9, atol=1e-12)


def test_a_huge_value_leaves_no_trace_once_it_has_left_the_window() -> None:
    x_TN = np.full((60, 1), 0.1)
    spoilt_TN = x_TN.copy()
    spoilt_TN[5] = 1e18
    for window in (3, 7, 21):
        clean, spoilt = rolling.rolling_sum(x_TN, window), rolling.rolling_sum(spoilt_TN, window)
        assert clean[5 + window :].tobytes() == spoilt[5 + window :].tobytes()


@pytest.mark.parametrize(
    "of",
    [
        lambda x: rolling.rolling_mean(x, 21, 5),
        lambda x: rolling.rolling_std(x, 21, 5),
        lambda x: rolling.rolling_skewness(x, 21, 5),
        lambda x: rolling.rolling_max(x, 21, 5),
        lambda x: rolling.rolling_median(x, 21, 5),
        rolling.carry,
        lambda x: rolling.lag(x, 3),
    ],
)
def test_rows_outside_the_window_change_nothing_to_the_bit(
    x_TN: FloatArray, of: Callable[[FloatArray], FloatArray]
) -> None:
    t = 117
    later_TN = x_TN.copy()
    later_TN[t + 1 :] = np.random.default_rng(1).normal(size=later_TN[t + 1 :].shape) * 1e9
    assert of(x_TN)[: t + 1].tobytes() == of(later_TN)[: t + 1].tobytes()
    assert of(x_TN)[: t + 1].tobytes() == of(x_TN[: t + 1]).tobytes()


def test_lag_and_carry_by_hand() -> None:
    x_TN = np.array([[nan], [1.0], [nan], [3.0], [nan]])
    np.testing.assert_array_equal(rolling.lag(x_TN, 2)[:, 0], [nan, nan, nan, 1.0, nan])
    np.testing.assert_array_equal(rolling.lag(x_TN, 9)[:, 0], [nan] * 5)
    np.testing.assert_array_equal(rolling.carry(x_TN)[:, 0], [nan, 1.0, 1.0, 3.0, 3.0])


def test_looking_ahead_and_empty_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="A lag of -1 sessions looks ahead"):
        rolling.lag(np.zeros((3, 1)), -1)
    with pytest.raises(ValueError, match="window of 0 sessions is empty"):
        rolling.rolling_sum(np.zeros((3, 1)), 0)
