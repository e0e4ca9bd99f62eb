"""Which limit holds back the weight or the trade of a firm.

Shape suffix: N firms.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from features.arrays import FloatArray, IntArray
from pipelines.config.books import BookConfig, OptimisedBookConfig
from pipelines.nightly.book.orders import OrderEstimates

_TOLERANCE = 1e-6
"""Distance from a limit, in weight, below which it binds; the solver's own tolerance is about 1e-8."""


def bounds(
    book: BookConfig, weight_N: FloatArray, estimates: OrderEstimates, group_N: IntArray
) -> npt.NDArray[np.object_]:
    """Name the limit that binds each firm; None where there is none.

    Parameters
    ----------
    book
        Settings of the book.
    weight_N
        Target weights.
    estimates
        Expected costs and obstacles of the orders.
    group_N
        Code of the sector of each firm; -1 is unknown.

    Returns
    -------
    ndarray of object, shape (N,)
        The first of: why the firm cannot be traded, ``participation cap`` (the order takes several sessions),
        ``position limit``, ``sector limit`` (the firm's sector is at its limit on the firm's side).
    """
    bound_N = np.full(len(weight_N), None, dtype=object)
    if isinstance(book, OptimisedBookConfig):
        for sign, group in _full_sectors(book, weight_N, group_N):
            bound_N[(group_N == group) & (np.sign(weight_N) == sign)] = "sector limit"
        bound_N[np.abs(weight_N) >= book.limits.max_position - _TOLERANCE] = "position limit"
    bound_N[estimates.sessions_N > 1] = "participation cap"
    stuck_N = ~estimates.tradable_N
    bound_N[stuck_N] = estimates.obstacle_N[stuck_N]
    return bound_N


def _full_sectors(
    book: OptimisedBookConfig, weight_N: FloatArray, group_N: IntArray
) -> Iterator[tuple[float, int]]:
    """Side and code of the sectors whose net weight is at the limit; none if the limit is zero."""
    limit = book.limits.max_sector_net
    if not limit:
        return
    for group in np.unique(group_N[(weight_N != 0) & (group_N >= 0)]):
        net = float(weight_N[group_N == group].sum())
        if abs(net) >= limit - _TOLERANCE:
            yield float(np.sign(net)), int(group)
