"""The benchmark of long-only books: the equally weighted universe.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import numpy as np

from features.arrays import BoolArray, FloatArray


def equal_weighted(universe_TN: BoolArray, like_TN: FloatArray) -> FloatArray:
    """Hold every firm of the universe at equal weight.

    Parameters
    ----------
    universe_TN : ndarray of bool, shape (T, N)
        Firms that may be held, known at the close of t.
    like_TN : ndarray of shape (T, N)
        Target weights of the book to compare with. Rows of NaN are copied, so that the benchmark trades on
        the same dates.

    Returns
    -------
    ndarray of shape (T, N)
        Target weights ``1/n``, known at the close of t; NaN rows = no decision.
    """
    count_T1 = universe_TN.sum(axis=1, keepdims=True)
    weight_TN: FloatArray = universe_TN / np.maximum(count_T1, 1)
    weight_TN[np.isnan(like_TN).any(axis=1)] = np.nan
    return weight_TN
