"""Ranks within a date, by sorting packed float32 and by sorting float64, against scipy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from features.arithmetic import transforms
from features.arithmetic.transforms import rank_normal
from features.information_coefficient import average_ranks

FloatArray = npt.NDArray[np.float64]


def edge_cases(seed: int, dtype: type[np.floating]) -> FloatArray:
    """Both signs, ties, both zeros, the smallest and largest numbers, NaN and infinities."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(40, 90)) * 10.0 ** rng.integers(-30, 30, (40, 90))).astype(dtype)
    x[:, :30] = np.round(rng.normal(size=(40, 30)), 1)
    x[:, 30:34] = 0.0, -0.0, 1e-45, -1e-45
    x[:, 34:36] = np.finfo(np.float32).max, np.finfo(np.float32).min
    x[rng.random(x.shape) < 0.1] = np.nan
    x[3, 40:44] = np.inf, -np.inf, np.inf, np.nan
    x[5], x[6] = np.nan, -2.5
    x[7, 1:] = np.nan
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ranks_of_edge_cases_equal_scipy(dtype: type[np.floating]) -> None:
    x_TN = edge_cases(0, dtype)
    mask_TN = np.random.default_rng(1).random(x_TN.shape) < 0.9
    expected = np.full(x_TN.shape, np.nan)
    for t in range(len(x_TN)):
        use = mask_TN[t] & np.isfinite(x_TN[t])
        if use.any():
            expected[t, use] = stats.norm.ppf((stats.rankdata(x_TN[t, use]) - 0.5) / use.sum())
    np.testing.assert_allclose(rank_normal(x_TN, mask_TN), expected, rtol=1e-6, atol=1e-7)


def test_float32_and_float64_sorts_agree_to_the_bit() -> None:
    single_TN = edge_cases(2, np.float32)
    mask_TN = np.ones(single_TN.shape, dtype=np.bool_)
    packed_TN = rank_normal(single_TN, mask_TN)
    # one value outside float32 sends the block to the float64 sort; it is the smallest, so the order is kept
    finer_TN = np.column_stack([single_TN.astype(np.float64), np.full(len(single_TN), np.nan)])
    finer_TN[5, -1] = 0.1
    wider_TN = np.column_stack([mask_TN, mask_TN[:, 0]])
    assert np.float64(np.float32(0.1)) != 0.1
    np.testing.assert_array_equal(rank_normal(finer_TN, wider_TN)[:, :-1], packed_TN)


def test_values_that_differ_only_in_float64_are_not_tied() -> None:
    x_TN = np.array([[1.0, 1.0 + 1e-12, 1.0 - 1e-12, 1.0]])
    score_TN = rank_normal(x_TN, np.ones(x_TN.shape, dtype=np.bool_))
    assert score_TN[0, 2] < score_TN[0, 0] == score_TN[0, 3] < score_TN[0, 1]


def test_each_date_is_ranked_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    x_TN = edge_cases(3, np.float32)
    mask_TN = np.ones(x_TN.shape, dtype=np.bool_)
    together = rank_normal(x_TN, mask_TN).tobytes()
    monkeypatch.setattr(transforms, "_CELLS", 1)
    assert rank_normal(x_TN, mask_TN).tobytes() == together


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_average_ranks_equal_scipy_to_the_bit(dtype: type[np.floating]) -> None:
    x_RN = edge_cases(3, dtype)
    expected = stats.rankdata(x_RN, axis=1, nan_policy="omit")
    np.testing.assert_array_equal(average_ranks(x_RN), expected)
    for columns in (0, 1):
        few_RN = x_RN[:, :columns]
        assert average_ranks(few_RN).shape == few_RN.shape
    assert average_ranks(np.array([[7.0], [np.nan]])).tolist()[0] == [1.0]
