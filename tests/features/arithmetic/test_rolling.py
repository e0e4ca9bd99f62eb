"""Rolling statistics against a loop over windows, and cases in which cumulative sums are inaccurate."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from features.arithmetic import parallel, rolling
from features.arithmetic import rolling as regressions

FloatArray = npt.NDArray[np.float64]
Rolled = Callable[[FloatArray, int, int], FloatArray]
Reference = Callable[[FloatArray], float]
nan = float("nan")


def regressor(x_TN: FloatArray) -> FloatArray:
    """A regressor that is the same for all firms and known on other sessions than x."""
    rng = np.random.default_rng(5)
    m_T1 = rng.normal(0.0, 0.01, (1000, 1))[: len(x_TN)]
    m_T1[7::40] = nan
    return m_T1


def of_known(statistic: Reference) -> Callable[[FloatArray, FloatArray], float]:
    return lambda y, _: statistic(y[~np.isnan(y)])


def skewness(x: FloatArray) -> float:
    middle = math.fsum(x) / len(x)
    square = math.fsum((v - middle) ** 2 for v in x) / len(x)
    return math.fsum((v - middle) ** 3 for v in x) / len(x) / square**1.5 if square > 1e-20 else nan


def line(y: FloatArray, x: FloatArray) -> tuple[float, float]:
    both = ~(np.isnan(y) | np.isnan(x))
    y, x = y[both], x[both]
    design = np.stack([np.ones(len(x)), x], axis=1)
    if len(x) < 3:
        return nan, nan
    coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
    rest = y - design @ coefficients
    return float(coefficients[1]), math.sqrt(math.fsum(rest * rest) / (len(x) - 2))


def correlation(y: FloatArray, x: FloatArray) -> float:
    both = ~(np.isnan(y) | np.isnan(x))
    y, x = y[both], x[both]
    flat = len(y) == 0 or np.ptp(y) == 0 or np.ptp(x) == 0
    return nan if flat else float(np.corrcoef(y, x)[0, 1])


def known(y: FloatArray, _: FloatArray) -> int:
    return int((~np.isnan(y)).sum())


def both_known(y: FloatArray, x: FloatArray) -> int:
    return int((~(np.isnan(y) | np.isnan(x))).sum())


# name: our function, the statistic of one window, its known values, the minimum number of values
CASES: dict[str, tuple[Rolled, Callable[[FloatArray, FloatArray], float], Callable[..., int], int]] = {
    "count": (lambda x, w, _: rolling.rolling_count(x, w), of_known(len), known, 0),
    "sum": (lambda x, w, _: rolling.rolling_sum(x, w), of_known(math.fsum), known, 0),
    "mean": (rolling.rolling_mean, of_known(lambda x: math.fsum(x) / len(x)), known, 1),
    "std": (rolling.rolling_std, of_known(lambda x: float(np.std(x, ddof=1))), known, 2),
    "skewness": (rolling.rolling_skewness, of_known(skewness), known, 3),
    "max": (rolling.rolling_max, of_known(max), known, 1),
    "median": (rolling.rolling_median, of_known(lambda x: float(np.median(x))), known, 1),
    "slope": (
        lambda x, w, least: rolling.rolling_regression(x, regressor(x), w, least)[0],
        lambda y, x: line(y, x)[0],
        both_known,
        3,
    ),
    "correlation": (
        lambda x, w, least: regressions.rolling_correlation(x, regressor(x), w, least),
        correlation,
        both_known,
        2,
    ),
    "residual": (
        lambda x, w, least: rolling.rolling_regression(x, regressor(x), w, least)[1],
        lambda y, x: line(y, x)[1],
        both_known,
        3,
    ),
}
EVERY = pytest.mark.parametrize("name", CASES)


def by_loop(name: str, x_TN: FloatArray, window: int, least: int) -> FloatArray:
    """Compute each window separately."""
    _, statistic, count, needed = CASES[name]
    m_T1 = regressor(x_TN)
    out_TN = np.full(x_TN.shape, nan)
    for t in range(len(x_TN)):
        rows = slice(max(t - window + 1, 0), t + 1)
        for n in range(x_TN.shape[1]):
            y, m = x_TN[rows, n], m_T1[rows, 0]
            if needed == 0 or count(y, m) >= max(least, needed):
                out_TN[t, n] = statistic(y, m)
    return out_TN


@pytest.fixture(scope="module", name="x_TN")
def gappy_returns() -> FloatArray:
    """Returns with gaps, a late listing, a firm without values, constant periods, and one huge tick."""
    rng = np.random.default_rng(0)
    x = rng.normal(0.001, 0.02, (150, 8))
    x[rng.random(x.shape) < 0.15] = nan
    x[:40, 3] = nan
    x[:, 4] = nan
    x[50:120, 5] = 0.0
    x[60:64, 6] = nan
    x[70, 7] = 1e9
    return x


@EVERY
@pytest.mark.parametrize("window", [1, 2, 3, 5, 21, 63, 64, 400])
def test_rolling_statistics_equal_a_loop_over_windows(x_TN: FloatArray, name: str, window: int) -> None:
    least = min((window + 1) // 2, 60)
    actual, expected = CASES[name][0](x_TN, window, least), by_loop(name, x_TN, window, least)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    # moments of windows with the huge tick lose digits; later windows must not
    spoilt_TN = np.zeros(x_TN.shape, dtype=np.bool_)
    if name in {"std", "skewness", "slope", "correlation", "residual"}:
        spoilt_TN[70 : 70 + window, 7] = True
    near = np.where(spoilt_TN, 0.0, actual), np.where(spoilt_TN, 0.0, expected)
    digits = 1e-7 if name == "correlation" else 1e-9  # with two nearly equal sessions, fewer digits remain
    np.testing.assert_allclose(*near, rtol=digits, atol=1e-12)
    assert np.isfinite(actual).any() == (window >= CASES[name][3])


@EVERY
def test_results_do_not_depend_on_memory_layout(x_TN: FloatArray, name: str) -> None:
    roll = CASES[name][0]
    expected = roll(x_TN, 21, 5).tobytes()
    wide_TN = np.full((300, 16), 7.0)
    wide_TN[::2, ::2] = x_TN
    assert roll(wide_TN[::2, ::2], 21, 5).tobytes() == expected
    assert roll(np.asfortranarray(x_TN), 21, 5).tobytes() == expected
    frozen_TN = x_TN.copy()
    frozen_TN.setflags(write=False)
    assert roll(frozen_TN, 21, 5).tobytes() == expected


@EVERY
def test_inputs_are_not_modified(x_TN: FloatArray, name: str) -> None:
    before = x_TN.tobytes()
    CASES[name][0](x_TN, 21, 5)
    assert x_TN.tobytes() == before


@EVERY
def test_windows_without_values_give_nan_or_zero(name: str) -> None:
    roll = CASES[name][0]
    for shape in ((0, 3), (5, 0), (1, 1)):
        assert roll(np.full(shape, nan), 3, 1).shape == shape
    of_nothing = roll(np.full((9, 2), nan), 3, 1)
    assert (of_nothing == 0).all() if CASES[name][3] == 0 else np.isnan(of_nothing).all()


@EVERY
@pytest.mark.parametrize("window", [5, 21, 63])
def test_results_depend_only_on_rows_of_the_window(x_TN: FloatArray, name: str, window: int) -> None:
    if name in {"slope", "residual"}:  # the regressor must be shifted with the rows
        m_T1 = regressor(x_TN)

        def roll(rows: slice, x: FloatArray) -> FloatArray:
            return np.stack(rolling.rolling_regression(x[rows], m_T1[rows], window, 3))

    elif name == "correlation":

        def roll(rows: slice, x: FloatArray) -> FloatArray:
            return regressions.rolling_correlation(x[rows], regressor(x)[rows], window, 3)[None]

    else:

        def roll(rows: slice, x: FloatArray) -> FloatArray:
            return CASES[name][0](x[rows], window, 3)[None]

    rng = np.random.default_rng(1)
    everything = roll(slice(None), x_TN)
    for t in (64, 99, 117, 149):
        first = t - window + 1
        single = roll(slice(max(first, 0), t + 1), x_TN)
        assert single[:, -1].tobytes() == everything[:, t].tobytes()
        other_TN = x_TN.copy()
        other_TN[t + 1 :] = rng.normal(size=other_TN[t + 1 :].shape) * 1e9
        other_TN[: max(first, 0)] = rng.normal(size=other_TN[: max(first, 0)].shape) * 1e15
        assert roll(slice(None), other_TN)[:, t].tobytes() == everything[:, t].tobytes()


@EVERY
def test_tiles_and_threads_do_not_change_a_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    x_TN = rng.normal(0.0, 0.02, (90, 150))
    x_TN[rng.random(x_TN.shape) < 0.1] = nan
    roll = CASES[name][0]
    expected = roll(x_TN, 21, 5).tobytes()
    single = np.concatenate([roll(x_TN[:, n : n + 1], 21, 5) for n in range(150)], axis=1)
    assert single.tobytes() == expected
    monkeypatch.setattr(parallel, "_CELLS", 16 * 90)
    assert len(parallel.firm_blocks(90, 150)) == 10
    for threads in (1, 2, 7):
        monkeypatch.setattr(parallel, "n_threads", lambda threads=threads: threads)
        assert roll(x_TN, 21, 5).tobytes() == expected


def test_huge_values_do_not_affect_later_windows() -> None:
    x_TN = np.full((60, 1), 0.1)
    spoilt_TN = x_TN.copy()
    spoilt_TN[5] = 1e18
    for window in (3, 7, 21):
        clean, spoilt = rolling.rolling_sum(x_TN, window), rolling.rolling_sum(spoilt_TN, window)
        assert clean[5 + window :].tobytes() == spoilt[5 + window :].tobytes()
        assert spoilt[5 + window - 1] != clean[5 + window - 1]


def test_infinite_values_do_not_affect_later_windows() -> None:
    x_TN = np.random.default_rng(3).normal(size=(60, 2))
    spoilt_TN = x_TN.copy()
    spoilt_TN[5, 0], spoilt_TN[8, 1] = np.inf, -np.inf
    for name, (roll, *_) in CASES.items():
        clean, spoilt = roll(x_TN, 7, 3), roll(spoilt_TN, 7, 3)
        assert clean[16:].tobytes() == spoilt[16:].tobytes(), name
    assert rolling.rolling_max(spoilt_TN, 7, 3)[6, 0] == np.inf
    assert rolling.rolling_median(spoilt_TN, 3, 3)[8, 1] == max(x_TN[6:8, 1].min(), -np.inf)


def test_medians_equal_pandas_on_ties_and_signed_zeros() -> None:
    rng = np.random.default_rng(4)
    x_TN = np.round(rng.normal(size=(300, 5)), 1)  # many ties, including 0 and -0
    x_TN[rng.random(x_TN.shape) < 0.2] = nan
    for window in (2, 7, 50):
        expected = pd.DataFrame(x_TN).rolling(window, min_periods=1).median().to_numpy()
        np.testing.assert_array_equal(rolling.rolling_median(x_TN, window, 1), expected)


def test_lag_and_carry_by_hand() -> None:
    x_TN = np.array([[nan], [1.0], [nan], [3.0], [nan], [nan]])
    np.testing.assert_array_equal(rolling.lag(x_TN, 2)[:, 0], [nan, nan, nan, 1.0, nan, 3.0])
    np.testing.assert_array_equal(rolling.lag(x_TN, 0), x_TN)
    np.testing.assert_array_equal(rolling.lag(x_TN, 9)[:, 0], [nan] * 6)
    np.testing.assert_array_equal(rolling.carry(x_TN)[:, 0], [nan, 1.0, 1.0, 3.0, 3.0, 3.0])
    carried_TN, age_TN = rolling.carry_and_age(x_TN, 1)
    np.testing.assert_array_equal(carried_TN[:, 0], [nan, 1.0, 1.0, 3.0, 3.0, nan])
    np.testing.assert_array_equal(age_TN[:, 0], [np.inf, 0, 1, 0, 1, 2])


def test_negative_lags_and_empty_windows_raise() -> None:
    with pytest.raises(ValueError, match="The lag is -1 sessions; it must be at least 0"):
        rolling.lag(np.zeros((3, 1)), -1)
    for roll, *_ in CASES.values():
        with pytest.raises(ValueError, match="window is 0 sessions; it must be at least 1"):
            roll(np.zeros((3, 1)), 0, 1)
