"""A rate in basis points: one number for all firms, or one per firm and session.

Shape suffixes: N firms; R rows: T sessions, or 1 for a rate that is constant over time.
"""

from __future__ import annotations

import math

import numpy as np

from features.arrays import FloatArray

Rate = float | FloatArray
"""A number, or an array of shape (T, N) or (1, N)."""


def require_rate(name: str, rate: Rate, *, may_be_unknown: bool = False) -> None:
    """Raise ValueError unless a rate, or every cell of it, is finite and at least 0.

    With ``may_be_unknown``, cells may be NaN.
    """
    if isinstance(rate, np.ndarray):
        if rate.ndim != 2:
            msg = (
                f"{name} has shape {rate.shape}; it must be a number, or have a row per session, or one row."
            )
            raise ValueError(msg)
        wrong_RN = ~(np.isfinite(rate) & (rate >= 0))
        if may_be_unknown:
            wrong_RN &= ~np.isnan(rate)
        if wrong_RN.any():
            msg = (
                f"{name} is {rate[wrong_RN][0]} in {int(wrong_RN.sum()):,} cell(s); every cell must be a "
                "finite number of basis points, at least 0."
            )
            raise ValueError(msg)
    elif not math.isfinite(rate) or rate < 0:
        msg = f"{name} is {rate}; it must be a finite number of basis points, at least 0."
        raise ValueError(msg)
