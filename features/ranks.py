"""Ranks within rows; tied values share their mean rank."""

import numpy as np

from features.arrays import AnyFloatArray, FloatArray


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
