"""A book's accounts: NAV from target weights, computed in two ways, and on request a ledger of positions.

At each close t, in this order:

1. Positions earn the session's return, `features.panel.holding.held_return`. Shorts pay the borrow
   fee, and borrowed money pays interest, on the values that they had after the trades of ``t-1``.
2. A position whose firm has ``delisted_TN`` has earned the delisting return by then. It turns into cash
   without costs, and does not count as turnover.
3. If the decision of ``t - delay`` exists, every firm that can be traded is moved to its target weight
   times the NAV of this moment (after 1 and 2, before trading costs). Without a decision positions drift.
4. Half-spread, commission and impact on the traded notional are paid from cash. Cash may be negative; it
   earns nothing.

`features.panel.holding` defines which firms can be traded at t, what a position earns in halts, gaps
and delistings, and when it is paid out. Labels use the same functions: before costs a book earns the labels
of its delay.

**Execution before the close** (`Execution.price_over_close_TN`). Step 3 comes first. The number of units
that are traded follows from the positions and the NAV of the close of ``t-1``, so an order of session t is
complete before the session begins. The traded units earn from the price of execution to the close, the held
units the whole session. A dividend of the session belongs to those who held at the previous close.

**Positions that cannot be traded stay.** An order that cannot be traded is dropped and not queued; the next
decision tries again. With `Execution.carry` it stays open instead, as under a cap. The other firms still move
to their targets, so the leverage of a book with short positions can exceed its target while a position is
stuck. A long-only book does not spend what blocked sales would have raised: all its purchases are scaled down
by one factor. Moves between the price that sizes orders and that of execution, costs, and sales that the cap
spreads over sessions can still leave it with a little borrowed money.

**Price limits and lots.** `Execution.bar_TN` says which firms cannot be bought, or not sold, in a session.
With `Execution.lot_TN` orders are rounded towards zero to whole lots; a position can be closed whole.

**Participation cap** (`Execution.cap`). At most the cap's share of the trailing dollar volume is traded in a
session. What is not filled, for this or any other reason, stays open: the rest of the order, in units,
continues in later sessions until it is filled, a new decision replaces it, or the firm is delisted.

**Unknown costs.** A firm whose half-spread or impact rate is NaN cannot be traded, nor one whose dollar
volume is NaN where the execution has a cap.

**Unknown prices.** A position whose total-return index is NaN (a gap in the data) keeps its last known value,
is reported in ``unpriced_T``, and earns the whole move when a price returns. Until then its value is unknown:
check ``unpriced_T`` before relying on the last sessions.

**Ruin.** If NAV is zero or less, before or after trading costs, the account is closed at that close.
Positions and NAV are zero from then on, and the net return of that session is -1. ``ruined_at`` is the
session, and ``shortfall`` the amount owed beyond the capital. The capital at the start is 1.

**Many books.** `run_books` accounts for many variants on one market in one pass. Variants with the same
targets, delay and arrays of costs are lanes of one call of the compiled loop
(`backtest.accounts.positions`): up to `LANES` of them read each price once and are updated side by side.
Calls run in threads. The numbers of a variant do not depend on the others: they equal, to the bit, those of
the variant alone. Build the targets of one book at a time and run all its delays, costs and capitals in one
call; then drop the targets, which hold twelve bytes per position and decision. Costs that are given per firm
should be the same array in all variants, because only such variants run side by side. Time grows with
``variants x sessions x positions`` and not with the number of firms; `benchmarks/accounts.py` measures it.

Shape suffixes: T sessions, N firms, V books.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl

from backtest.accounts.execution import AT_CLOSE, Execution
from backtest.accounts.market import TRADABLE, BookMarket, prepare_market
from backtest.accounts.result import BookResult, lane_result, ledger_frame, over
from backtest.accounts.variants import SparseTargets, Variant, kernel_call
from backtest.costs import CostModel
from features.arithmetic.parallel import n_threads
from features.arrays import BoolArray, FloatArray, frozen


def run_book(
    target_TN: FloatArray,
    total_return_index_TN: FloatArray,
    traded_TN: BoolArray,
    costs: CostModel,
    delay: int,
    *,
    delisted_TN: BoolArray | None = None,
    execution: Execution = AT_CLOSE,
    keep_ledger: bool = False,
) -> BookResult:
    """Trade the target weights of session t in session ``t + delay``, and compute the accounts.

    The module's docstring lists the steps of a session in their order. Before costs, a book that decides
    every ``horizon`` sessions and trades at the close earns the labels of that horizon and the same delay.
    `run_books` accounts for many variants on the same market.

    Parameters
    ----------
    target_TN : ndarray of shape (T, N)
        Fractions of NAV decided at the close of t; a row of NaN means no decision.
    total_return_index_TN : ndarray of shape (T, N)
        A holder's total-return index (`features.panel.panel.Panel.total_return_index_TN`), in any unit; NaN
        means unknown.
    traded_TN : ndarray of bool, shape (T, N)
        Whether the firm trades at t; False in halts and after a delisting.
    costs : CostModel
        Terms of the costs.
    delay : int
        Sessions between decision and trade: at least 0, and at least 1 if orders are executed before the
        close.
    delisted_TN : ndarray of bool, shape (T, N), optional
        Whether a delisting has paid holders out by the close of t (`features.panel.panel.Panel.delisted_TN`).
        None: nothing is ever paid out, and a position in a firm that no longer trades stays.
    execution : Execution
        Price of execution and participation cap; by default the whole order is filled at the close.
    keep_ledger : bool
        Whether to record every position (`BookResult.ledger`). Without it nothing is recorded.

    Returns
    -------
    BookResult
        Both NAVs, returns, costs, turnover, and the ledger if it is kept.

    Raises
    ------
    ValueError
        If shapes differ, there is no session, the delay is too short, the total-return index is negative or
        infinite, or a row of targets is infinite or only partly NaN.

    Examples
    --------
    >>> index, traded = np.array([[1.0, 1.0], [1.1, 1.0]]), np.ones((2, 2), dtype=bool)
    >>> result = run_book(np.array([[1.0, 0.0], [np.nan, np.nan]]), index, traded, CostModel(), delay=0)
    >>> result.nav_net_T
    array([1. , 1.1])
    """
    market = prepare_market(total_return_index_TN, traded_TN, delisted_TN)
    return account_book(target_TN, market, costs, delay, execution=execution, keep_ledger=keep_ledger)


def account_book(
    target_TN: FloatArray,
    market: BookMarket,
    costs: CostModel,
    delay: int,
    *,
    execution: Execution = AT_CLOSE,
    keep_ledger: bool = False,
) -> BookResult:
    """Compute the accounts of one book on a prepared market, which many books can share; see `run_book`.

    Examples
    --------
    >>> market = prepare_market(np.array([[1.0], [1.1]]), np.ones((2, 1), dtype=bool))
    >>> account_book(np.array([[0.5], [np.nan]]), market, CostModel(10.0), delay=0).turnover_T
    array([0.25, 0.  ])
    """
    from backtest.accounts.compounding import compound
    from backtest.accounts.positions import run_lanes

    if target_TN.ndim != 2:
        msg = f"The target has shape {target_TN.shape}: it needs a row per session and a column per firm."
        raise ValueError(msg)
    variant = Variant(SparseTargets.from_targets(target_TN), costs, delay, execution)
    variant.require(market)
    inputs, lanes, books = kernel_call([variant], market)
    rows_LC = run_lanes(*inputs, lanes, books, keep_ledger)
    returns = compound(*inputs, int(books.ruined_V[0]))
    return lane_result(
        books, 0, *returns, costs.periods_per_year, ledger_frame(rows_LC) if keep_ledger else None
    )


LANES = 16
"""Variants per call of the kernel: their units of 3,000 firms take 375 KiB, which a core's cache holds."""


def run_books(variants: Sequence[Variant], market: BookMarket) -> list[BookResult]:
    """Account for many variants on one market; see the module's docstring for how to use it in a sweep.

    ``market`` is `backtest.accounts.market.prepare_market` of the panel, once for all variants. The results
    are in the order of the variants, without ledgers: 104 bytes per variant and session. Returns are those of
    the NAV from positions, so the two NAVs are one. ValueError if there is no variant, or one does not fit
    the market.

    Examples
    --------
    >>> market = prepare_market(np.array([[1.0], [1.1]]), np.ones((2, 1), dtype=bool))
    >>> targets = SparseTargets.from_targets(np.array([[1.0], [np.nan]]))
    >>> books = run_books([Variant(targets, CostModel(bps), delay=0) for bps in (0.0, 10.0)], market)
    >>> [book.return_net_T.round(4).tolist() for book in books]
    [[0.0, 0.1], [-0.001, 0.1001]]
    """
    if not variants:
        raise ValueError("There is no variant: pass at least one.")
    groups: dict[tuple[int, ...], list[int]] = {}
    for at, variant in enumerate(variants):
        variant.require(market)
        groups.setdefault(variant.key, []).append(at)
    calls = [at_V[i : i + LANES] for at_V in groups.values() for i in range(0, len(at_V), LANES)]

    def run(at_V: list[int]) -> list[BookResult]:
        from backtest.accounts.positions import run_lanes

        chosen = [variants[at] for at in at_V]
        inputs, lanes, books = kernel_call(chosen, market)
        run_lanes(*inputs, lanes, books, False)
        start_TV = np.vstack([np.ones(len(at_V)), books.nav_TV[:-1]])
        profit_TV = books.before_TV + books.borrow_TV + books.financing_TV - start_TV
        if chosen[0].execution.price_over_close_TN is not None:
            profit_TV += books.half_spread_TV + books.commission_TV + books.impact_TV
        net_TV, gross_TV = over(books.nav_TV - start_TV, start_TV), over(profit_TV, start_TV)
        return [
            lane_result(books, v, net_TV[:, v], gross_TV[:, v], one.costs.periods_per_year)
            for v, one in enumerate(chosen)
        ]

    with ThreadPoolExecutor(min(n_threads(), len(calls))) as pool:
        found = {
            at: book
            for at_V, done in zip(calls, pool.map(run, calls), strict=True)
            for at, book in zip(at_V, done, strict=True)
        }
    return [found[at] for at in range(len(variants))]


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """Positions, open orders and cash at a close, in units of the capital before the first session.

    Examples
    --------
    >>> Account(value_N=np.array([0.6]), open_N=np.array([0.0]), cash=0.4).nav
    1.0
    """

    value_N: FloatArray
    """Value of each position."""
    open_N: FloatArray
    """Value of what is still to be bought of earlier orders; negative for sales
    (`backtest.accounts.execution.Execution.carry`)."""
    cash: float
    """Cash; negative if money is borrowed."""
    goal: float | None = None
    """Sum of the long-only targets that the open orders lead to, 0 for targets with short positions. None: 1,
    or 0 if a position or an order is short."""

    @property
    def nav(self) -> float:
        """Value of the account; 0 once it was ruined."""
        return self.cash + float(self.value_N.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """An account that was continued from the close of row 0 to the close of the last row.

    >>> cash = Account(value_N=np.zeros(1), open_N=np.zeros(1), cash=1.0)
    >>> Course(cash, nav_T=np.ones(1), ledger=ledger_frame(np.empty((0, 10)))).ledger.height
    0
    """

    account: Account  # the account at the close of the last row
    nav_T: FloatArray  # net asset value at each close, shape (T,); row 0 is the start
    ledger: pl.DataFrame  # rows of `backtest.accounts.result.SCHEMA`, from row 1 on


def roll_forward(
    account: Account,
    target_TN: FloatArray,
    market: BookMarket,
    costs: CostModel,
    execution: Execution,
    *,
    cut_T: FloatArray | None = None,
) -> Course:
    """Continue an account from the close of row 0 to the close of the last row.

    The steps of a session are those of `backtest.accounts.accounting`; nothing happens in row 0. A rolled
    account equals the account of one run over all sessions up to rounding.

    ``account`` is at the close of row 0, after its trades. Target weights of row t are traded in row
    ``t + 1``, as fractions of the NAV before the trades; a row of NaN means no decision, and the last row is
    not traded. Costs and execution are of the sessions of the market; open orders are not filled in row 0.
    ``cut_T`` is what the purchases of each row of targets were cut by
    (`backtest.books.decisions.affordable`), nothing by default: a long-only book may borrow what its target
    borrowed before, and is not cut again.

    ValueError if shapes differ, or a position or an open order has no value in row 0.

    Examples
    --------
    >>> market = prepare_market(np.array([[1.0], [1.1]]), np.ones((2, 1), dtype=bool))
    >>> held = Account(value_N=np.array([1.0]), open_N=np.array([0.0]), cash=0.0)
    >>> roll_forward(held, np.full((2, 1), np.nan), market, CostModel(), AT_CLOSE).account.value_N
    array([1.1])
    """
    from backtest.accounts.positions import run_lanes

    price_N = market.value_TN[0]
    lost = np.flatnonzero(((account.value_N != 0) | (account.open_N != 0)) & ~(price_N > 0))
    if len(lost):
        msg = f"Firm {lost[0]} is held or ordered, but it has no price at the start of the account."
        raise ValueError(msg)
    state_TN = market.state_TN.copy()
    state_TN[0] &= ~np.uint8(TRADABLE)  # open orders are not filled again in row 0
    market = BookMarket(market.value_TN, frozen(state_TN))
    variant = Variant(SparseTargets.from_targets(target_TN), costs, 1, execution)
    variant.require(market)
    inputs, lanes, books = kernel_call([variant], market, cut_T)
    held_N = price_N > 0
    np.divide(account.value_N, price_N, out=lanes.units_NV[:, 0], where=held_N)
    lanes.listed_N[:] = account.value_N != 0
    if len(lanes.left_NV):
        np.divide(account.open_N, price_N, out=lanes.left_NV[:, 0], where=held_N)
        lanes.listed_N[:] |= account.open_N != 0
    long_only = (account.value_N + account.open_N).min() >= 0
    lanes.goal_1[0] = float(long_only) if account.goal is None else account.goal
    lanes.cash_V[0], lanes.nav_V[0] = account.cash, account.nav
    lanes.last_N[:] = account.value_N
    ledger = ledger_frame(run_lanes(*inputs, lanes, books, True)).filter(pl.col("session") > 0)
    value_N = market.value_TN[-1]
    open_N = lanes.left_NV[:, 0] * value_N if len(lanes.left_NV) else np.zeros_like(value_N)
    end = Account(lanes.units_NV[:, 0] * value_N, open_N, float(lanes.cash_V[0]), float(lanes.goal_1[0]))
    return Course(end, books.nav_TV[:, 0].copy(), ledger)
