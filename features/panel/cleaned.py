"""Series of the past without wrong rows, for statistics that decisions and costs use.

A wrong price is known to be one when the next price of the firm shows it, so `as_known` leaves it in until
then. Features read the prices as delivered. Shape suffixes: T sessions, N firms, n firms with wrong rows.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from features.arrays import BoolArray, Element, FloatArray, IntArray, frozen
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


def in_currency_of(panel: Panel, row: int) -> Panel:
    """Return the panel with closes as quoted in the currency that each firm has in a row."""
    wrong = panel.wrong
    if not wrong.currency_K.any():
        return panel

    def compute() -> Panel:
        unit_TN = quoted_unit(panel, wrong.currency_K)
        close_TN = frozen(panel.raw_close_TN * unit_TN / unit_TN[min(row, len(unit_TN) - 1)])
        done = replace(wrong, currency_K=np.zeros_like(wrong.currency_K))
        return replace(panel, raw_close_TN=close_TN, wrong=done)

    return cached(panel, (in_currency_of, row), compute)


def quoted_unit(panel: Panel, changed_K: BoolArray) -> FloatArray:
    """Factor of the close as quoted, after splits, that keeps each firm's first unit: shape (T, N).

    In the wrong rows ``changed_K``, which are in another unit, the close is that of the row before.
    """
    wrong, unit_TN = panel.wrong, np.ones(panel.close_TN.shape)
    close_TN = panel.raw_close_TN * panel.statements.splits_TN
    close_TN[wrong.session_K[wrong.price_K], wrong.firm_K[wrong.price_K]] = np.nan
    for t, n in zip(wrong.session_K[changed_K], wrong.firm_K[changed_K], strict=True):
        before = close_TN[:t, n][~np.isnan(close_TN[:t, n])]
        if len(before):
            unit_TN[t:, n] *= before[-1] / close_TN[t, n]
    return unit_TN
