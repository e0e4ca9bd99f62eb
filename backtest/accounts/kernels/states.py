"""Compiled loop that packs what a holder's market says about a cell. Shape suffixes: T sessions, N firms."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from backtest.accounts.flags import GONE, KNOWN, TRADABLE
from features.arithmetic.kernels import compiled
from features.arrays import BoolArray, FloatArray


@compiled
def pack(
    value_TN: FloatArray,
    known_TN: BoolArray,
    tradable_TN: BoolArray,
    gone_TN: BoolArray,
    state_TN: npt.NDArray[np.uint8],
) -> bool:
    """Write the states, and 0 for values that are NaN; returns whether all values are finite and >= 0."""
    valid = True
    for t in range(len(value_TN)):
        value, known, tradable, gone = value_TN[t], known_TN[t], tradable_TN[t], gone_TN[t]
        state = state_TN[t]
        for i in range(len(value)):
            state[i] = KNOWN * known[i] + TRADABLE * tradable[i] + GONE * gone[i]
            value[i] = 0.0 if np.isnan(value[i]) else value[i]
            valid &= (value[i] >= 0.0) & (value[i] < np.inf)
    return valid
