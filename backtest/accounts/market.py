"""The market that books trade in: values of units, and who can be traded.

It is prepared once and shared by all books on the same panel. Shape suffixes: T sessions, N firms.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from features.arrays import BoolArray, FloatArray, frozen, require_shape
from features.panel.holding import holder_market

KNOWN, TRADABLE, GONE = 1, 2, 4
"""Flags of a firm in a session. `KNOWN`: the total-return index is known at t. `TRADABLE`: a unit can be
bought or sold in session t. `GONE`: holders have been paid out by the close of t."""


@dataclass(frozen=True, slots=True, eq=False)
class BookMarket:
    """What a book needs to know about every firm and session; build it with `prepare_market`.

    Examples
    --------
    >>> market = prepare_market(np.array([[1.0], [1.1]]), np.array([[True], [False]]))
    >>> (market.state_TN & TRADABLE) > 0
    array([[ True],
           [False]])
    """

    value_TN: FloatArray
    """Last known total-return index; 0 before the first known value."""
    state_TN: npt.NDArray[np.uint8]
    """Sum of `KNOWN`, `TRADABLE` and `GONE`. See `features.panel.holding`."""

    @property
    def n_sessions(self) -> int:
        """Number of sessions T."""
        return len(self.value_TN)

    @property
    def n_firms(self) -> int:
        """Number of firms N."""
        return len(self.value_TN[0])


def prepare_market(
    total_return_index_TN: FloatArray, traded_TN: BoolArray, delisted_TN: BoolArray | None = None
) -> BookMarket:
    """Check the inputs, and compute what all books on them share.

    The arguments are those of `backtest.accounts.accounting.run_book`. Row t depends only on rows up to t.
    ValueError if shapes differ, there is no session, or the index is negative or infinite.

    Examples
    --------
    >>> market = prepare_market(np.array([[1.0], [1.1]]), np.ones((2, 1), dtype=bool))
    >>> market.n_sessions, market.n_firms
    (2, 1)
    """
    if total_return_index_TN.ndim != 2 or not len(total_return_index_TN):
        raise ValueError(
            f"The total-return index has shape {total_return_index_TN.shape}: it needs at least one "
            "row (session) and one column per firm."
        )
    shape = total_return_index_TN.shape
    require_shape("traded", traded_TN, shape)
    if delisted_TN is None:
        delisted_TN = np.zeros(shape, dtype=np.bool_)
    require_shape("delisted", delisted_TN, shape)
    holder = holder_market(total_return_index_TN, traded_TN, delisted_TN)
    value_TN = holder.value_TN
    value_TN[np.isnan(value_TN)] = 0.0  # before the first price: there is no position
    if value_TN.min(initial=0.0) < 0.0 or value_TN.max(initial=0.0) == np.inf:
        msg = "The total-return index has a negative or infinite value; use NaN where it is unknown."
        raise ValueError(msg)
    state_TN = KNOWN * holder.known_TN.astype(np.uint8)
    state_TN += TRADABLE * holder.tradable_TN.astype(np.uint8)
    state_TN += GONE * holder.delisted_TN.astype(np.uint8)
    return BookMarket(frozen(value_TN), frozen(state_TN))
