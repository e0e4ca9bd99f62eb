"""Compiled loops over tiles of a panel: what numpy cannot say, or says with too many passes over memory.

Every array is C-contiguous. A kernel holds no lock of the interpreter and starts no thread of its own:
`features.tiles` runs it on several tiles at once, so that a result depends on no number of threads. There is
no reassociation of sums (``fastmath`` is off): a result is a fixed sequence of operations.

Importing this module imports numba, so importers do it inside functions. Machine code is kept beside this
file in ``__pycache__``, or in the user's cache folder where that is read-only.

Shape suffixes: T sessions, N firms (of a tile), S groups, K features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np

from features.arrays import FloatArray, IntArray

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop) -> Loop:
    """Compile a loop on its first call; division by zero gives what IEEE 754 says."""
    return cast("Loop", numba.njit(nogil=True, cache=True, error_model="numpy")(loop))


@compiled
def add_by_group(x_TN: FloatArray, group_TN: IntArray, total_TS: FloatArray, count_TS: IntArray) -> None:
    """Add known values to their session's and group's total, firm after firm; group -1 is nobody's."""
    for t in range(x_TN.shape[0]):
        for i in range(x_TN.shape[1]):
            x, group = x_TN[t, i], group_TN[t, i]
            if group >= 0 and not np.isnan(x):
                total_TS[t, group] += x
                count_TS[t, group] += 1
