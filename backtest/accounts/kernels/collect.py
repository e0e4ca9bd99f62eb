"""Compiled loops that collect the weights of decisions from a dense array.

Shape suffixes: T sessions, N firms, K weights of all decisions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from features.arithmetic.kernels import compiled
from features.arrays import FloatArray


@compiled
def count_weights(target_TN: FloatArray, count_T: npt.NDArray[np.int64]) -> None:
    """Count the weights that are not zero: -1 for a row of NaN, -2 if it is infinite or only partly NaN."""
    N = target_TN.shape[1]
    for t in range(len(count_T)):
        count, unknown, infinite = 0, 0, 0
        for i in range(N):
            weight = target_TN[t, i]
            unknown += np.isnan(weight)
            infinite += np.isinf(weight)
            count += weight != 0.0
        count_T[t] = count
        if unknown or infinite:
            count_T[t] = -1 if unknown == N else -2


@compiled
def write_weights(
    target_TN: FloatArray,
    start_T1: npt.NDArray[np.int64],
    firm_K: npt.NDArray[np.int32],
    weight_K: FloatArray,
) -> None:
    """Write the firms and weights of every session that has any.

    Every cell is written to the next free place, which is taken only if the weight is not zero: a branch that
    depends on the data would cost more. So the outputs need K + 1 elements; the last one is of no use.
    """
    for t in range(len(start_T1) - 1):
        k = start_T1[t]
        if k == start_T1[t + 1]:
            continue
        for i in range(target_TN.shape[1]):
            weight = target_TN[t, i]
            firm_K[k], weight_K[k] = i, weight
            k += weight != 0.0
