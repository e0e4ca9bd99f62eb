"""Compiled loop behind `features.panel.holder_returns.holder_market`: one pass over the panel.

Importing this module imports numba, so it is imported inside functions. Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.kernels import compiled
from features.arrays import BoolArray, FloatArray


@compiled
def hold(  # noqa: PLR0917  # a compiled loop takes its arrays by position
    index_TN: FloatArray,
    traded_TN: BoolArray,
    delisted_TN: BoolArray,
    value_TN: FloatArray,
    known_TN: BoolArray,
    tradable_TN: BoolArray,
    gone_TN: BoolArray,
) -> None:
    """Fill the four arrays of a `HolderMarket`; arguments in the order of its function and its fields.

    A firm is gone only once its index no longer changes while it is delisted: before that, holders wait.
    """
    T, N = index_TN.shape
    last_N = np.full(N, np.nan)
    for t in range(T):
        index, traded, delisted = index_TN[t], traded_TN[t], delisted_TN[t]
        value, known, tradable, gone = value_TN[t], known_TN[t], tradable_TN[t], gone_TN[t]
        for i in range(N):
            is_known = not np.isnan(index[i])
            last = index[i] if is_known else last_N[i]
            is_gone = delisted[i] | (last == 0.0)
            last_N[i] = value[i] = last
            known[i] = is_known
            gone[i] = is_gone
            tradable[i] = traded[i] & is_known & (not is_gone)
    waits_N = np.zeros(N, dtype=np.bool_)
    for t in range(T - 2, -1, -1):
        value, after, gone = value_TN[t], value_TN[t + 1], gone_TN[t]
        for i in range(N):
            both = delisted_TN[t, i] & delisted_TN[t + 1, i]
            waits_N[i] = both & (waits_N[i] | (value[i] != after[i]))
            gone[i] &= not waits_N[i]
