"""What a holder of a panel's firms can trade, and what a unit is worth: for labels and books alike.

Two things differ from the panel's own prices, which features read as they were known:

- **Suspended firms.** A price without volume is the last price, repeated by the source. Nothing is traded
  at it. It applies to firms that had a volume before, on sessions on which some firm has one, because other
  zeros are volumes that the source does not have.
- **Wrong rows.** A row that a quality rule found to be wrong earns nothing, neither on its session nor when
  the price returns. What is known of it may be later than its session, so only outcomes use it.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import numpy as np

from features.arrays import BoolArray, FloatArray, frozen
from features.panel.derived import cached
from features.panel.holder_returns import HolderMarket, holder_market
from features.panel.panel import Panel


def holders(panel: Panel) -> HolderMarket:
    """Return the `features.panel.holder_returns.holder_market` of a panel, which is computed once."""
    return cached(
        panel,
        "holder_market",
        lambda: holder_market(earned_index(panel), tradable(panel), panel.delisted_TN),
    )


def tradable(panel: Panel) -> BoolArray:
    """Return whether a firm has a price that can be traded at: bool, shape (T, N).

    Known at the close of t, except for a price that a later one shows to be wrong.
    """

    def compute() -> BoolArray:
        traded_TN, wrong = panel.traded_TN, panel.wrong
        if panel.volume_TN is not None:
            some_TN = panel.volume_TN > 0
            before_TN = np.logical_or.accumulate(some_TN, axis=0)
            traded_TN &= ~((panel.volume_TN == 0) & before_TN & some_TN.any(axis=1, keepdims=True))
        traded_TN[wrong.session_K[wrong.price_K], wrong.firm_K[wrong.price_K]] = False
        return frozen(traded_TN)

    return cached(panel, tradable, compute)


def earned_index(panel: Panel, index_TN: FloatArray | None = None) -> FloatArray:
    """Return the total-return index of a holder who earns nothing on wrong rows, shape (T, N).

    At a wrong price the index keeps its last value until the next price. Into a row in another unit, and into
    a wrong price that no other follows, it keeps its last value, and all later values are scaled to it, so
    that a delisting still pays its return.

    Parameters
    ----------
    panel : Panel
        Prices, and its `Panel.wrong` rows.
    index_TN : ndarray of shape (T, N), optional
        Index to use instead of `Panel.total_return_index_TN`.
    """
    index_TN, wrong = panel.total_return_index_TN if index_TN is None else index_TN, panel.wrong
    if not len(wrong.session_K):
        return index_TN
    traded_TN, out_TN = panel.traded_TN, index_TN.copy()
    for t, n, price in zip(wrong.session_K, wrong.firm_K, wrong.price_K, strict=True):
        known = np.flatnonzero(~np.isnan(out_TN[:t, n]))
        if not len(known):
            continue
        before = out_TN[known[-1], n]
        later = np.flatnonzero(traded_TN[t + 1 :, n])
        if price and len(later):
            out_TN[t : t + 1 + later[0], n] = before
        elif out_TN[t, n] > 0:
            out_TN[t:, n] *= before / out_TN[t, n]
    return frozen(out_TN)
