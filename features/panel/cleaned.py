"""A panel without its wrong rows, for statistics of the past that decisions and costs use.

A wrong price is known to be one when the next price of the firm shows it, so `as_known` leaves it in until
then. Features read the prices as delivered. Shape suffixes: T sessions, N firms.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from features.arrays import BoolArray, FloatArray, frozen
from features.panel.derived import cached
from features.panel.holding import earned_index
from features.panel.panel import NO_ROWS, Panel


def without_wrong_rows(panel: Panel) -> Panel:
    """Leave out wrong prices, as if nothing had traded, and the moves into rows in another unit.

    Prices, except for those as quoted, stay in the unit before; the total return index is the
    `features.panel.holding.earned_index`. A panel without wrong rows is returned itself.
    """
    if not len(panel.wrong.session_K):
        return panel

    def compute() -> Panel:
        wrong, index_TN = panel.wrong, earned_index(panel)
        scale_TN = np.full_like(index_TN, np.nan)
        np.divide(index_TN, panel.total_return_index_TN, out=scale_TN, where=panel.traded_TN)
        scale_TN[wrong.session_K[wrong.price_K], wrong.firm_K[wrong.price_K]] = np.nan
        changed: dict[str, Any] = {}
        for name in ("close_TN", "open_TN", "high_TN", "low_TN"):
            bar_TN: FloatArray | None = getattr(panel, name)
            changed[name] = None if bar_TN is None else frozen(bar_TN * scale_TN)
        return replace(
            panel,
            **changed,
            raw_close_TN=frozen(np.where(np.isnan(scale_TN), np.nan, panel.raw_close_TN)),
            total_return_index_TN=index_TN,
            wrong=NO_ROWS,
        )

    return cached(panel, without_wrong_rows, compute)


def not_yet_known(panel: Panel) -> BoolArray:
    """Return whether the last price of a firm is wrong, but no later one has shown it: shape (T, N)."""

    def compute() -> BoolArray:
        wrong, out_TN = panel.wrong, np.zeros(panel.close_TN.shape, dtype=np.bool_)
        for t, n in zip(wrong.session_K[wrong.price_K], wrong.firm_K[wrong.price_K], strict=True):
            later = np.flatnonzero(panel.traded_TN[t + 1 :, n])
            out_TN[t : t + 1 + later[0] if len(later) else None, n] = True
        return frozen(out_TN)

    return cached(panel, not_yet_known, compute)


def as_known(panel: Panel, compute: Callable[[Panel], FloatArray]) -> FloatArray:
    """Compute a causal series of each firm by itself, without the wrong rows that are known at the close."""
    if not len(panel.wrong.session_K):
        return compute(panel)
    return np.where(not_yet_known(panel), compute(panel), compute(without_wrong_rows(panel)))
