"""Many books on one market in one pass: the accounts of a sweep.

**How it is fast.** The market is prepared once. Targets are sparse (`Decisions`), and variants that share
them share one object. Variants with the same targets, delay and arrays of costs are lanes of one call of the
compiled kernel (`backtest.accounts.kernels.positions`): up to `LANES` of them read each price once and are
updated side by side. Calls run in threads. The numbers of a variant do not depend on the others: they equal,
to the bit, those of the variant alone.

**How to sweep.** Build the targets of one book at a time and run all its delays, costs and capitals in one
call; then drop the targets. A target holds twelve bytes per position and decision (36 MB for two fifths of
3,000 firms on 2,520 sessions). Costs that are given per firm (an estimated half-spread, an impact rate)
should be the same array in all variants, because only such variants run side by side.

**Its limit.** A variant costs a multiply-add and a trade per held firm and session, with units in the
processor's cache, so time grows with ``variants x sessions x positions`` and not with the number of firms.
`benchmarks/accounts.py` measures it.

Shape suffixes: V variants, T sessions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backtest.accounts.lanes import Variant, empty_books, kernel_inputs, lanes_with_cash
from backtest.accounts.market import BookMarket
from backtest.costs.model import COST_KINDS
from features.arithmetic.parallel import n_threads
from features.arrays import FloatArray

LANES = 16
"""Variants per call of the kernel: their units of 3,000 firms take 375 KiB, which a core's cache holds."""


@dataclass(frozen=True, slots=True, eq=False)
class BookBatch:
    """Accounts of many variants: row v of each array is that of variant v; definitions as in `BookResult`.

    Attributes
    ----------
    return_net_VT, return_gross_VT : ndarray of shape (V, T)
        Returns after and before costs.
    turnover_VT, unfilled_VT : ndarray of shape (V, T)
        One-way turnover, and orders that were not traded.
    leverage_VT, cash_VT : ndarray of shape (V, T)
        Gross value of positions and cash over NAV, after trades.
    costs_VT : Mapping
        Kind of cost (`backtest.costs.model.COST_KINDS`) -> costs over the previous NAV, shape (V, T).
    first_trade_V : ndarray of int64, shape (V,)
        First session with a trade; T if there was none.
    ruined_V : ndarray of int64, shape (V,)
        Session of ruin; T for a book that survived.
    """

    return_net_VT: FloatArray
    return_gross_VT: FloatArray
    turnover_VT: FloatArray
    unfilled_VT: FloatArray
    leverage_VT: FloatArray
    cash_VT: FloatArray
    costs_VT: Mapping[str, FloatArray]
    first_trade_V: npt.NDArray[np.int64]
    ruined_V: npt.NDArray[np.int64]


def run_books(variants: Sequence[Variant], market: BookMarket) -> BookBatch:
    """Account for many variants on one market; see the module's docstring for how to use it in a sweep.

    Parameters
    ----------
    variants : sequence of Variant
        Targets, costs, delay and execution of each book, in any order.
    market : BookMarket
        `backtest.accounts.market.prepare_market` of the panel, once for all variants.

    Returns
    -------
    BookBatch
        In the order of the variants: 88 bytes per variant and session.

    Raises
    ------
    ValueError
        If there is no variant, or one does not fit the market.
    """
    if not variants:
        msg = "There is no variant: pass at least one."
        raise ValueError(msg)
    groups: dict[tuple[int, ...], list[int]] = {}
    for at, variant in enumerate(variants):
        variant.require(market)
        groups.setdefault(variant.key, []).append(at)
    calls = [at_V[i : i + LANES] for at_V in groups.values() for i in range(0, len(at_V), LANES)]

    V, T = len(variants), market.n_sessions
    net_VT, gross_VT, turnover_VT = np.empty((V, T)), np.empty((V, T)), np.empty((V, T))
    unfilled_VT, leverage_VT, cash_VT = np.empty((V, T)), np.empty((V, T)), np.empty((V, T))
    costs_VT = {kind: np.empty((V, T)) for kind in COST_KINDS}
    first_V, ruined_V = np.full(V, T, dtype=np.int64), np.empty(V, dtype=np.int64)

    def run(at_V: list[int]) -> None:
        from backtest.accounts.kernels.positions import run_lanes

        chosen = [variants[at] for at in at_V]
        books = empty_books(T, len(at_V))
        inputs = kernel_inputs(chosen, market)
        run_lanes(*inputs, lanes_with_cash(*inputs), books, False)
        start_TV = np.vstack([np.ones(len(at_V)), books.nav_TV[:-1]])
        paid = (books.spread_TV, books.commission_TV, books.impact_TV, books.borrow_TV, books.financing_TV)
        for kind, amount_TV in zip(COST_KINDS, paid, strict=True):
            costs_VT[kind][at_V] = _over(amount_TV, start_TV)
        before_close = 0.0 if chosen[0].execution.price_over_close_TN is None else sum(paid[:3])
        profit_TV = books.before_TV + books.borrow_TV + books.financing_TV + before_close - start_TV
        gross_VT[at_V] = _over(profit_TV, start_TV)
        net_VT[at_V] = _over(books.nav_TV - start_TV, start_TV)
        turnover_VT[at_V] = _over(0.5 * books.traded_TV, books.base_TV)
        unfilled_VT[at_V] = _over(0.5 * books.unfilled_TV, books.base_TV)
        leverage_VT[at_V] = _over(books.gross_TV, books.nav_TV)
        cash_VT[at_V] = _over(books.cash_TV, books.nav_TV)
        traded_TV = books.traded_TV > 0
        first_V[at_V] = np.where(traded_TV.any(axis=0), traded_TV.argmax(axis=0), T)
        ruined_V[at_V] = books.ruined_V

    with ThreadPoolExecutor(min(n_threads(), len(calls))) as pool:
        for _ in pool.map(run, calls):
            pass
    return BookBatch(
        return_net_VT=net_VT,
        return_gross_VT=gross_VT,
        turnover_VT=turnover_VT,
        unfilled_VT=unfilled_VT,
        leverage_VT=leverage_VT,
        cash_VT=cash_VT,
        costs_VT=costs_VT,
        first_trade_V=first_V,
        ruined_V=ruined_V,
    )


def _over(amount_TV: FloatArray, base_TV: FloatArray) -> FloatArray:
    """Quotient with the variants first; 0 where the base is not above zero."""
    return np.divide(amount_TV, base_TV, out=np.zeros_like(amount_TV), where=base_TV > 0).T
