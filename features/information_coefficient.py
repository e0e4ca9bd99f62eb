"""The information coefficient (IC): the cross-sectional correlation of forecasts and labels, date by date.

Early stopping, tuning, backtests and comparisons of attributions all use this one definition.

Shape suffixes: T dates, N firms, M known (date, firm) pairs.
"""

import math

import numpy as np

from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray, require_shape

MIN_FIRMS = 3


def average_ranks(x_RN: AnyFloatArray) -> FloatArray:
    """Rank the known values of each row from 1; ties share their mean rank, and NaN stays NaN.

    The same as ``scipy.stats.rankdata(x, axis=1, nan_policy="omit")``, whose import takes half a second.

    Examples
    --------
    >>> average_ranks(np.array([[3.0, np.nan, 1.0, 3.0]]))
    array([[2.5, nan, 1. , 2.5]])
    """
    order_RN = np.argsort(x_RN, axis=1)  # NaN at the end
    sorted_RN = np.take_along_axis(x_RN, order_RN, axis=1)
    is_new_RN = np.ones(x_RN.shape, dtype=bool)
    is_new_RN[:, 1:] = sorted_RN[:, 1:] != sorted_RN[:, :-1]
    first_G = np.flatnonzero(is_new_RN)  # of each group of equal values; a row begins a group
    size_G = np.diff(first_G, append=x_RN.size)
    rank_G = first_G % max(x_RN.shape[1], 1) + (size_G + 1) / 2.0
    rank_RN = np.empty(x_RN.shape)
    np.put_along_axis(rank_RN, order_RN, np.repeat(rank_G, size_G).reshape(x_RN.shape), axis=1)
    rank_RN[np.isnan(x_RN)] = np.nan
    return rank_RN


def ic_by_date(forecast_TN: AnyFloatArray, label_TN: AnyFloatArray) -> FloatArray:
    """Pearson correlation of forecast and label within each date.

    ``sum (f - mean f)(y - mean y) / sqrt(sum (f - mean f)^2 sum (y - mean y)^2)``, in float64, over the firms
    of the date that have both. Other firms do not enter the sums: adding columns of NaN changes no bit.

    Parameters
    ----------
    forecast_TN, label_TN : ndarray of shape (T, N)
        Forecasts made at t and the labels they forecast. NaN and infinite values count as unknown.

    Returns
    -------
    ndarray of shape (T,)
        In [-1, 1]. 0 where the forecast is constant, because it ranks no firm above another. NaN where the
        IC is undefined: fewer than 3 firms have both, or the label is constant.

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> ic_by_date(np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]]), np.array([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]]))
    array([1., 0.])
    """
    require_shape("the label", label_TN, forecast_TN.shape)
    known_TN = np.isfinite(forecast_TN) & np.isfinite(label_TN)
    date_M = np.nonzero(known_TN)[0]
    count_T = known_TN.sum(axis=1)

    def centred(x_TN: AnyFloatArray) -> tuple[FloatArray, FloatArray]:
        """Deviations from the date's mean, and their sum of squares, exactly 0 where all values are equal."""
        x_M = x_TN[known_TN].astype(np.float64)
        deviation_M = x_M - (_sums(x_M, date_M, len(count_T)) / np.maximum(count_T, 1))[date_M]
        first_T = np.concatenate([[0], np.cumsum(count_T)[:-1]])
        varies_T = _sums((x_M != x_M[first_T[date_M]]).astype(np.float64), date_M, len(count_T)) > 0
        return deviation_M, np.where(varies_T, _sums(deviation_M**2, date_M, len(count_T)), 0.0)

    (x_M, x_T), (y_M, y_T) = centred(forecast_TN), centred(label_TN)
    size_T = np.sqrt(x_T) * np.sqrt(y_T)
    out_T = np.where((count_T >= MIN_FIRMS) & (y_T > 0), 0.0, np.nan)
    np.divide(
        _sums(x_M * y_M, date_M, len(count_T)), size_T, out=out_T, where=(size_T > 0) & ~np.isnan(out_T)
    )
    clipped_T: FloatArray = np.clip(out_T, -1.0, 1.0)
    return clipped_T


def rank_ic_by_date(forecast_TN: AnyFloatArray, label_TN: AnyFloatArray) -> FloatArray:
    """Spearman correlation within each date: `ic_by_date` of average ranks, with the same NaN rules.

    Ties share their mean rank (`average_ranks`).

    Examples
    --------
    >>> rank_ic_by_date(np.array([[1.0, 2.0, 9.0]]), np.array([[0.1, 0.3, 0.2]]))
    array([0.5])
    """
    require_shape("the label", label_TN, forecast_TN.shape)
    unknown_TN = ~(np.isfinite(forecast_TN) & np.isfinite(label_TN))
    ranks = (
        average_ranks(np.where(unknown_TN, np.nan, x_TN.astype(np.float64)))
        for x_TN in (forecast_TN, label_TN)
    )
    return ic_by_date(*ranks)


def is_constant(x_TN: AnyFloatArray) -> BoolArray:
    """Flag the dates on which all known values are equal, or no value is known. Shape (T,)."""
    known_TN = np.isfinite(x_TN)
    high_T = np.max(x_TN, axis=1, initial=-np.inf, where=known_TN)
    low_T = np.min(x_TN, axis=1, initial=np.inf, where=known_TN)
    constant_T: BoolArray = high_T <= low_T
    return constant_T


def mean_known(x_T: FloatArray) -> float:
    """Mean of the known values; NaN if there are none."""
    known_T = x_T[~np.isnan(x_T)]
    return float(known_T.mean()) if len(known_T) else math.nan


def _sums(x_M: FloatArray, date_M: IntArray, n_dates: int) -> FloatArray:
    """Sum by date, in the order of the values."""
    sum_T: FloatArray = np.bincount(date_M, weights=x_M, minlength=n_dates).astype(np.float64)
    return sum_T
