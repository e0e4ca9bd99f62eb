"""Compiled sums of products of two series at a lead: by firm and part of the sample, and by date.

In the arrays, 0 marks an unknown value; a pair counts where both values are known. Importing this module
imports numba, so it is imported inside functions.

Shape suffixes: T sessions, N firms, P parts of the sample.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.kernels import compiled
from features.arrays import Float32Array, FloatArray


@compiled
def sums_by_firm(x_TN: Float32Array, y_TN: Float32Array, lead: int, sums_PN5: FloatArray) -> None:
    """Add up, for each part of the sample and firm: pairs, x y, x^2, y^2, and x^4.

    ``x`` is of session t and ``y`` of session ``t + lead`` in the same part. ``sums_PN5`` holds zeros.
    """
    T, N = x_TN.shape
    parts = sums_PN5.shape[0]
    for p in range(parts):
        sums = sums_PN5[p]
        for t in range(T * p // parts, T * (p + 1) // parts - lead):
            for n in range(N):
                x, y = np.float64(x_TN[t, n]), np.float64(y_TN[t + lead, n])
                if x != 0.0 and y != 0.0:
                    square = x * x
                    sums[n, 0] += 1.0
                    sums[n, 1] += x * y
                    sums[n, 2] += square
                    sums[n, 3] += y * y
                    sums[n, 4] += square * square


@compiled
def sums_by_date(x_TN: Float32Array, y_TN: Float32Array, lead: int, sums_T6: FloatArray) -> None:
    """Add up, for each session t: pairs, x, y, x y, x^2 and y^2, with ``y`` of session ``t + lead``."""
    T, N = x_TN.shape
    for t in range(T - lead):
        count = sum_x = sum_y = sum_xy = sum_xx = sum_yy = 0.0
        for n in range(N):
            x, y = np.float64(x_TN[t, n]), np.float64(y_TN[t + lead, n])
            if x != 0.0 and y != 0.0:
                count += 1.0
                sum_x += x
                sum_y += y
                sum_xy += x * y
                sum_xx += x * x
                sum_yy += y * y
        row = sums_T6[t]
        row[0], row[1], row[2] = count, sum_x, sum_y
        row[3], row[4], row[5] = sum_xy, sum_xx, sum_yy
