"""Orderings within a date that books and metrics share: the firms a book buys are those a metric counts.

Shape suffixes: T dates, N firms.
"""

from __future__ import annotations

import numpy as np

from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray


def as_signal(name: str, x_TN: AnyFloatArray) -> FloatArray:
    """Check a (date, firm) array and give it as float64; NaN means not known.

    Raises
    ------
    ValueError
        If it is not two-dimensional or holds an infinite value.
    """
    if x_TN.ndim != 2:
        msg = f"The {name} has shape {x_TN.shape}: give one row a date and one column a firm."
        raise ValueError(msg)
    out_TN = x_TN.astype(np.float64)
    if np.isinf(out_TN).any():
        t, n = (int(i) for i in np.argwhere(np.isinf(out_TN))[0])
        msg = f"The {name} is infinite at date {t}, firm {n}: use NaN for what is not known."
        raise ValueError(msg)
    return out_TN


def descending_order(x_TN: FloatArray) -> IntArray:
    """Give each date's firms from highest to lowest value; ties by column, NaN last. Shape (T, N)."""
    order: IntArray = np.argsort(-x_TN, axis=1, kind="stable")
    return order


def descending_position(x_TN: FloatArray) -> IntArray:
    """Give each firm's place in `descending_order`, 0 for the highest. Shape (T, N)."""
    place_TN = np.empty(x_TN.shape, dtype=np.int64)
    np.put_along_axis(place_TN, descending_order(x_TN), np.arange(x_TN.shape[1])[None, :], axis=1)
    return place_TN


def is_constant(x_TN: FloatArray) -> BoolArray:
    """Tell which dates order nothing: all known values are equal, or none is known. Shape (T,)."""
    known_TN = ~np.isnan(x_TN)
    high_T = np.max(x_TN, axis=1, initial=-np.inf, where=known_TN)
    low_T = np.min(x_TN, axis=1, initial=np.inf, where=known_TN)
    constant_T: BoolArray = high_T <= low_T
    return constant_T


def average_ranks(x_TN: FloatArray) -> FloatArray:
    """Rank each date's known values from 1 up, ties sharing their mean rank; NaN stays NaN. Shape (T, N)."""
    from scipy.stats import rankdata

    known_TN = ~np.isnan(x_TN)
    rank_TN = rankdata(np.where(known_TN, x_TN, np.inf), axis=1)  # the unknown rank behind all known ones
    return np.where(known_TN, rank_TN, np.nan)
