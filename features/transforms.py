"""Cross-sectional transforms: each date by itself, over the firms of a mask, causal to the bit.

Every function takes ``x`` of shape (T, N) or (T, N, F) and a mask of shape (T, N), uses only the firms of the
mask with a finite x on that date, and answers with the same shape in float32, NaN elsewhere. No date's values
depend on which other dates are in the array.

Shape suffixes: T sessions, N firms, F characteristics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from features.arrays import (
    AnyFloatArray,
    BoolArray,
    Float32Array,
    FloatArray,
    IntArray,
    frozen,
    require_shape,
)
from features.parallel import for_each

_CELLS = 2**16  # at a time: working arrays stay in the processor's cache


def rank_normal(x_TN: AnyFloatArray, mask_TN: BoolArray) -> Float32Array:
    r"""Rank within the date and map to a standard normal: ``Phi^-1((rank - 1/2) / n)``.

    Ties share their average rank; n is the date's number of firms with a value; a lone firm gets 0.

    Parameters
    ----------
    x_TN : ndarray of shape (T, N) or (T, N, F)
        Values; NaN and infinities are unknown.
    mask_TN : ndarray of bool, shape (T, N)
        The firms that count.

    Returns
    -------
    ndarray of float32, the shape of x
        Normal scores; NaN outside the mask and where x is unknown.

    Raises
    ------
    ValueError
        If the mask's shape is not the first two axes of x.
    """
    return _by_date(x_TN, mask_TN, lambda x_RN, _: _rank_normal_rows(x_RN))


def zscore(x_TN: AnyFloatArray, mask_TN: BoolArray) -> Float32Array:
    """Subtract the date's mean and divide by its population deviation; 0 where all are equal.

    Arguments, result and errors as in `rank_normal`.
    """
    return _by_date(x_TN, mask_TN, lambda x_RN, _: _zscore_rows(x_RN))


def winsorise(x_TN: AnyFloatArray, mask_TN: BoolArray, tail: float = 0.01) -> Float32Array:
    """Pull the values beyond the date's quantiles ``tail`` and ``1 - tail`` back to these.

    Quantiles interpolate linearly between order statistics. Arguments, result and errors as in `rank_normal`.

    Parameters
    ----------
    x_TN, mask_TN
        As in `rank_normal`.
    tail : float
        Share on each side, in [0, 0.5).

    Returns
    -------
    ndarray of float32, the shape of x
        Clipped values in x's unit.

    Raises
    ------
    ValueError
        If ``tail`` is out of range or the shapes differ.
    """
    if not 0 <= tail < 0.5:
        msg = f"Winsorising {tail} of each tail is impossible: give a share in [0, 0.5)."
        raise ValueError(msg)
    return _by_date(x_TN, mask_TN, lambda x_RN, _: _winsorise_rows(x_RN, tail))


def neutralise(x_TN: AnyFloatArray, group_TN: IntArray, mask_TN: BoolArray) -> Float32Array:
    """Subtract the mean of the firm's group on the date (sector-neutral).

    Parameters
    ----------
    x_TN : ndarray of shape (T, N) or (T, N, F)
        Values.
    group_TN : ndarray of int, shape (T, N)
        Group codes; firms of unknown group (-1) are taken as one group.
    mask_TN : ndarray of bool, shape (T, N)
        The firms that count.

    Returns
    -------
    ndarray of float32, the shape of x
        Deviations from the group's mean; a lone firm of its group gets 0.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    require_shape("the groups", group_TN, mask_TN.shape)
    from features.kernels_by_date import subtract_group_means

    n_groups = int(group_TN.max(initial=-1)) + 2

    def subtract(x_RN: FloatArray, rows: slice) -> FloatArray:
        out_RN = np.empty_like(x_RN)
        subtract_group_means(x_RN, group_TN[rows].astype(np.int64) + 1, n_groups, out_RN)
        return out_RN

    return _by_date(x_TN, mask_TN, subtract)


def _by_date(
    x_TN: AnyFloatArray,
    mask_TN: BoolArray,
    transform: Callable[[FloatArray, slice], FloatArray],
) -> Float32Array:
    """Apply a transform of [R, N] arrays (NaN unknown) and their sessions, block by block.

    In memory the result lies as x does.
    """
    from features.kernels_by_date import keep_known

    require_shape("the mask", mask_TN, x_TN.shape[:2])
    out_TN = np.empty_like(x_TN, dtype=np.float32)
    x_TNF, out_TNF = x_TN.reshape(*mask_TN.shape, -1), out_TN.reshape(*mask_TN.shape, -1)

    def one(rows: slice) -> None:
        for f in range(x_TNF.shape[2]):
            known_RN = np.empty(mask_TN[rows].shape)
            keep_known(frozen(x_TNF[rows, :, f]), frozen(mask_TN[rows]), known_RN)
            out_TNF[rows, :, f] = transform(known_RN, rows)

    block = max(1, _CELLS // max(x_TN.shape[1], 1))
    for_each(one, [slice(start, start + block) for start in range(0, len(x_TN), block)])
    return out_TN


def _rank_normal_rows(x_RN: FloatArray) -> FloatArray:
    from features.kernels_by_date import COLUMN_BITS, pack_float32, rank_in_order

    packed_RN = np.empty(x_RN.shape, dtype=np.uint64)
    if x_RN.shape[1] < 2**COLUMN_BITS and pack_float32(x_RN.view(np.uint64), packed_RN):
        packed_RN.sort(axis=1)
        order_RN = (packed_RN & np.uint64(2**COLUMN_BITS - 1)).view(np.int64)
    else:
        order_RN = np.argsort(x_RN, axis=1)  # NaN last
    place_RN = np.empty(x_RN.shape, dtype=np.int64)
    count_R, tied_R = np.empty(len(x_RN), dtype=np.int64), np.empty(len(x_RN), dtype=np.bool_)
    rank_in_order(x_RN, order_RN, place_RN, count_R, tied_R)
    out_RN = np.empty_like(x_RN)
    for r, (count, tied) in enumerate(zip(count_R.tolist(), tied_R.tolist(), strict=True)):
        np.take(_normal_scores(count, tied), place_RN[r], out=out_RN[r])
    return out_RN


@lru_cache(maxsize=256)  # the number of firms with a value changes little from date to date
def _normal_scores(count: int, tied: bool) -> FloatArray:
    """Give the score of each place among so many, by twice the place from 0 on; NaN last, for -1.

    The odd ones, between two places, are for ties alone.
    """
    score = np.full(max(2 * count - 1, 0) + 1, np.nan)
    step = 1 if tied else 2
    twice = np.arange(0, 2 * count - 1, step)
    score[:-1:step] = ndtri((0.5 * twice + 0.5) / max(count, 1))
    return score


def _zscore_rows(x_RN: FloatArray) -> FloatArray:
    known_RN = ~np.isnan(x_RN)
    n_R1 = np.maximum(known_RN.sum(axis=1, keepdims=True), 1)
    centred_RN = x_RN - np.where(known_RN, x_RN, 0.0).sum(axis=1, keepdims=True) / n_R1
    square_RN = np.where(known_RN, centred_RN * centred_RN, 0.0)
    std_R1 = np.sqrt(square_RN.sum(axis=1, keepdims=True) / n_R1)
    size_R1 = np.where(known_RN, np.abs(x_RN), 0.0).max(axis=1, keepdims=True, initial=0.0)
    flat_R1 = std_R1 <= 1e-14 * size_R1  # all equal up to rounding
    return np.where(known_RN, np.where(flat_R1, 0.0, centred_RN / np.where(flat_R1, 1.0, std_R1)), np.nan)


def _winsorise_rows(x_RN: FloatArray, tail: float) -> FloatArray:
    sorted_RN = np.sort(x_RN, axis=1)  # NaN last
    n_R1 = (~np.isnan(x_RN)).sum(axis=1, keepdims=True)
    top_R1 = np.maximum(n_R1 - 1, 0)

    def quantile(share: float) -> FloatArray:
        at_R1: FloatArray = share * top_R1
        low_R1 = np.floor(at_R1).astype(np.int64)
        below_R1 = np.take_along_axis(sorted_RN, low_R1, axis=1)
        above_R1 = np.take_along_axis(sorted_RN, np.minimum(low_R1 + 1, top_R1), axis=1)
        cut_R1: FloatArray = below_R1 + (at_R1 - low_R1) * (above_R1 - below_R1)
        return cut_R1

    return np.minimum(np.maximum(x_RN, quantile(tail)), quantile(1.0 - tail))
