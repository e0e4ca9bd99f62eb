"""Series of the past without wrong rows, for statistics that decisions and costs use.

A wrong price is known to be one when the next price of the firm shows it, so `as_known` leaves it in until
then. Features read the prices as delivered. Shape suffixes: T sessions, N firms, n firms with wrong rows.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from features.arrays import BoolArray, Element, IntArray, frozen
from features.panel.derived import cached, changed_arrays
from features.panel.holding import earned_index
from features.panel.panel import NO_ROWS, Panel


def as_known(
    panel: Panel, compute: Callable[[Panel], npt.NDArray[Element]], *, hindsight: bool = False
) -> npt.NDArray[Element]:
    """Compute a causal series of each firm by itself, without the wrong rows that are known at the close.

    A wrong price counts as no trade, and after a row in another unit, prices other than those as quoted stay
    in the unit before. With ``hindsight`` wrong prices are left out before they are known as well. What
    ``compute`` uses are prices, volume and the total return index.
    """
    delivered_TN = compute(panel)
    if not len(panel.wrong.session_K):
        return delivered_TN
    firms_n, part = cached(panel, as_known, lambda: _without_wrong_rows(panel))
    out_TN, clean_Tn = delivered_TN.copy(), compute(part)
    if not hindsight:
        clean_Tn = np.where(not_yet_known(panel)[:, firms_n], delivered_TN[:, firms_n], clean_Tn)
    out_TN[:, firms_n] = clean_Tn
    return out_TN


def _without_wrong_rows(panel: Panel) -> tuple[IntArray, Panel]:
    """Return the firms with wrong rows, and their part of the panel without these rows."""
    wrong, index_TN = panel.wrong, earned_index(panel)
    firms_n = np.unique(wrong.firm_K)
    changed = changed_arrays(panel, lambda _, array_TN: array_TN[:, firms_n])
    with np.errstate(invalid="ignore"):  # 0 / 0, worth nothing
        scale_Tn = index_TN[:, firms_n] / changed["total_return_index_TN"]
    scale_Tn[wrong.session_K[wrong.price_K], np.searchsorted(firms_n, wrong.firm_K[wrong.price_K])] = np.nan
    for name in ("close_TN", "open_TN", "high_TN", "low_TN"):
        if name in changed:
            changed[name] = changed[name] * scale_Tn
    changed["raw_close_TN"] = np.where(np.isnan(changed["close_TN"]), np.nan, changed["raw_close_TN"])
    changed["total_return_index_TN"] = index_TN[:, firms_n]
    changed = {name: frozen(np.ascontiguousarray(array)) for name, array in changed.items()}
    tickers = tuple(panel.tickers_N[n] for n in firms_n)
    return firms_n, replace(panel, **changed, tickers_N=tickers, wrong=NO_ROWS)


def not_yet_known(panel: Panel) -> BoolArray:
    """Return whether the last price of a firm is wrong, but no later one has shown it: shape (T, N)."""

    def compute() -> BoolArray:
        wrong, out_TN = panel.wrong, np.zeros(panel.close_TN.shape, dtype=np.bool_)
        for t, n in zip(wrong.session_K[wrong.price_K], wrong.firm_K[wrong.price_K], strict=True):
            later = np.flatnonzero(panel.traded_TN[t + 1 :, n])
            out_TN[t : t + 1 + later[0] if len(later) else None, n] = True
        return frozen(out_TN)

    return cached(panel, not_yet_known, compute)
