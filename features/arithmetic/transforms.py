"""Cross-sectional transforms: each date by itself, over the firms of a mask, causal to the bit.

Every function takes ``x`` of shape (T, N) or (T, N, F) and a mask of shape (T, N). It uses only the firms
inside the mask with a finite x on the date, and returns float32 of the same shape, NaN elsewhere. The result
of a date does not depend on which other dates are in the array.

Shape suffixes: T sessions, N firms, F characteristics.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from features.arithmetic.parallel import for_each
from features.arrays import (
    AnyFloatArray,
    BoolArray,
    Float32Array,
    FloatArray,
    IntArray,
    frozen,
    require_shape,
)

_CELLS = 2**16  # cells per block, so that working arrays stay in the processor's cache


def rank_normal(x_TN: AnyFloatArray, mask_TN: BoolArray) -> Float32Array:
    r"""Rank within the date and map to a standard normal: ``Phi^-1((rank - 1/2) / n)``.

    n is the number of firms with a value on the date. Ties get their average rank; a single firm gets 0.

    Parameters
    ----------
    x_TN : ndarray of shape (T, N) or (T, N, F)
        Values; NaN and infinities are unknown.
    mask_TN : ndarray of bool, shape (T, N)
        Firms to include.

    Returns
    -------
    ndarray of float32, the shape of x
        Normal scores; NaN outside the mask and where x is unknown.

    Raises
    ------
    ValueError
        If the mask's shape differs from the first two axes of x.

    Examples
    --------
    >>> rank_normal(np.array([[1.0, 5.0, 2.0]]), np.ones((1, 3), dtype=bool)).round(2)
    array([[-0.97,  0.97,  0.  ]], dtype=float32)
    """
    return _by_date(x_TN, mask_TN, lambda x_RN, _, out_RN: _rank_normal_rows(x_RN, out_RN))


def zscore(x_TN: AnyFloatArray, mask_TN: BoolArray) -> Float32Array:
    """Subtract the date's mean and divide by its population standard deviation; 0 where all are equal.

    Arguments, result and errors as in `rank_normal`.

    Examples
    --------
    >>> zscore(np.array([[1.0, 2.0, 3.0]]), np.ones((1, 3), dtype=bool)).round(2)
    array([[-1.22,  0.  ,  1.22]], dtype=float32)
    """
    from features.arithmetic.kernels import zscore as standardise

    return _by_date(x_TN, mask_TN, lambda x_RN, _, out_RN: standardise(x_RN, out_RN))


def winsorise(x_TN: AnyFloatArray, mask_TN: BoolArray, tail: float = 0.01) -> Float32Array:
    """Clip the values beyond the date's quantiles ``tail`` and ``1 - tail`` to these quantiles.

    Quantiles interpolate linearly between order statistics. Arguments, result and errors as in `rank_normal`;
    ``tail`` is the share of each tail, in [0, 0.5), else a ValueError.

    Examples
    --------
    >>> winsorise(np.array([[1.0, 2.0, 3.0, 90.0]]), np.ones((1, 4), dtype=bool), tail=0.25)
    array([[ 1.75,  2.  ,  3.  , 24.75]], dtype=float32)
    """
    if not 0 <= tail < 0.5:
        raise ValueError(f"tail is {tail}; it must be a share of each tail in [0, 0.5).")
    from features.arithmetic.kernels import clip_tails

    def clip(x_RN: AnyFloatArray, _: slice, out_RN: Float32Array) -> None:
        clip_tails(x_RN, np.sort(x_RN, axis=1), tail, out_RN)  # NaN last

    return _by_date(x_TN, mask_TN, clip)


def neutralise(x_TN: AnyFloatArray, group_TN: IntArray, mask_TN: BoolArray) -> Float32Array:
    """Subtract the mean of the firm's group on the date (sector-neutral).

    Arguments, result and errors as in `rank_normal`; ``group_TN`` are group codes. The only firm of a group
    gets 0. NaN where the group is unknown (-1), because firms of unknown group do not form a group.

    Examples
    --------
    >>> neutralise(np.array([[1.0, 3.0, 8.0]]), np.array([[0, 0, 1]]), np.ones((1, 3), dtype=bool))
    array([[-1.,  1.,  0.]], dtype=float32)
    """
    require_shape("the groups", group_TN, mask_TN.shape)
    from features.arithmetic.kernels import subtract_group_means

    n_groups = int(group_TN.max(initial=-1)) + 1

    def subtract(x_RN: AnyFloatArray, rows: slice, out_RN: Float32Array) -> None:
        subtract_group_means(x_RN, frozen(group_TN[rows]), n_groups, out_RN)

    return _by_date(x_TN, mask_TN, subtract)


def _by_date(
    x_TN: AnyFloatArray, mask_TN: BoolArray, transform: Callable[[AnyFloatArray, slice, Float32Array], None]
) -> Float32Array:
    """Apply a transform block by block. It takes values [R, N] (NaN unknown), their sessions and an output.

    The result has the memory layout of x.
    """
    require_shape("the mask", mask_TN, x_TN.shape[:2])
    out_TN = np.empty_like(x_TN, dtype=np.float32)
    x_TNF, out_TNF = x_TN.reshape(*mask_TN.shape, -1), out_TN.reshape(*mask_TN.shape, -1)

    def one(rows: slice) -> None:
        for f in range(x_TNF.shape[2]):
            x_RN = x_TNF[rows, :, f]
            known_RN = np.where(mask_TN[rows] & np.isfinite(x_RN), x_RN, np.nan)
            transform(np.ascontiguousarray(known_RN), rows, out_TNF[rows, :, f])

    block = max(1, _CELLS // max(x_TN.shape[1], 1))
    for_each(one, [slice(start, start + block) for start in range(0, len(x_TN), block)])
    return out_TN


def _rank_normal_rows(x_RN: AnyFloatArray, out_RN: Float32Array) -> None:
    from features.arithmetic.kernels import count_places, give_scores, pack_with_column

    if x_RN.dtype == np.float32:
        packed_RN = np.empty(x_RN.shape, dtype=np.uint64)
        pack_with_column(x_RN.view(np.uint32), packed_RN)
        packed_RN.sort(axis=1)
    else:
        packed_RN = _pack_order(x_RN)
    count_R, tied_R = np.empty(len(x_RN), dtype=np.int64), np.empty(len(x_RN), dtype=np.bool_)
    count_places(packed_RN, count_R, tied_R)
    kinds, kind_R = np.unique(2 * count_R + tied_R, return_inverse=True)
    tables = [_normal_scores(kind // 2, kind % 2 == 1) for kind in kinds.tolist()]
    starts = np.cumsum([0, *(len(table) for table in tables)])
    give_scores(packed_RN, count_R, tied_R, np.concatenate(tables), starts[kind_R], out_RN)


def _pack_order(x_RN: AnyFloatArray) -> npt.NDArray[np.uint64]:
    """Compute a sorted equivalent of `pack_with_column` for types that do not fit into the integer."""
    order_RN = np.argsort(x_RN, axis=1)  # NaN last
    sorted_RN = np.take_along_axis(x_RN, order_RN, axis=1)
    rises_RN = np.zeros(x_RN.shape, dtype=np.uint64)
    rises_RN[:, 1:] = sorted_RN[:, 1:] != sorted_RN[:, :-1]
    packed_RN = (np.cumsum(rises_RN, axis=1) << np.uint64(32)) | order_RN.astype(np.uint64)
    packed_RN[np.isnan(sorted_RN)] = ~np.uint64(0)
    return packed_RN


@lru_cache(maxsize=512)  # the number of known values changes little from date to date
def _normal_scores(count: int, tied: bool) -> FloatArray:
    """Return the normal score of each rank (from 0) among ``count``; with ties, of each half rank."""
    from scipy.special import ndtri  # takes a third of a second to import

    n_places = max(2 * count - 1, 0) if tied else count
    half = np.arange(n_places // 2) * (0.5 if tied else 1.0)
    low = ndtri((half + 0.5) / max(count, 1))  # the upper half mirrors it, and the middle is 0
    return frozen(np.concatenate([low, np.zeros(n_places % 2), -low[::-1]]))
