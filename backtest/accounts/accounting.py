"""A book's accounts: NAV from target weights, computed in two ways, and on request a ledger of positions.

At each close t, in this order:

1. Positions earn the session's return, `features.panel.holder_returns.held_return`. Shorts pay the borrow
   fee, and borrowed money pays interest, on the values that they had after the trades of ``t-1``.
2. A position whose firm has ``delisted_TN`` has earned the delisting return by then. It turns into cash
   without costs, and does not count as turnover.
3. If the decision of ``t - delay`` exists, every firm that can be traded is moved to its target weight
   times the NAV of this moment (after 1 and 2, before trading costs). Without a decision positions drift.
4. Half-spread, commission and impact on the traded notional are paid from cash. Cash may be negative; it
   earns nothing.

`features.panel.holder_returns` defines which firms can be traded at t, what a position earns in halts, gaps
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

Shape suffixes: T sessions, N firms, V books.
"""

from __future__ import annotations

import numpy as np

from backtest.accounts.decisions import Decisions
from backtest.accounts.execution import AT_CLOSE, Execution
from backtest.accounts.lanes import Variant, empty_books, kernel_inputs, lanes_with_cash
from backtest.accounts.ledger import ledger_frame
from backtest.accounts.market import BookMarket, prepare_market
from backtest.accounts.result import BookResult
from backtest.costs.model import CostModel
from features.arrays import BoolArray, FloatArray


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
    `backtest.accounts.batch.run_books` accounts for many variants on the same market.

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
    """Compute the accounts of one book on a prepared market, which many books can share; see `run_book`."""
    from backtest.accounts.kernels.compounding import compound
    from backtest.accounts.kernels.positions import run_lanes

    if target_TN.ndim != 2:
        msg = f"The target has shape {target_TN.shape}: it needs a row per session and a column per firm."
        raise ValueError(msg)
    variant = Variant(Decisions.from_targets(target_TN), costs, delay, execution)
    variant.require(market)
    inputs = kernel_inputs([variant], market)
    books = empty_books(market.n_sessions, 1)
    lanes = lanes_with_cash(*inputs)
    rows_LC = run_lanes(*inputs, lanes, books, keep_ledger)
    ruined = int(books.ruined_V[0])
    return_net_T, return_gross_T = compound(*inputs, ruined)

    nav_T = books.nav_TV[:, 0]
    start_T = np.concatenate([[1.0], nav_T[:-1]])
    base_T = books.base_TV[:, 0]

    def over(amount_TV: FloatArray, base_T: FloatArray) -> FloatArray:
        amount_T = amount_TV[:, 0]
        return np.divide(amount_T, base_T, out=np.zeros_like(amount_T), where=base_T > 0)

    nav_net_T: FloatArray = np.cumprod(1.0 + return_net_T, dtype=np.float64)
    nav_gross_T: FloatArray = np.cumprod(np.maximum(1.0 + return_gross_T, 0.0), dtype=np.float64)
    trades = np.flatnonzero(books.traded_TV[:, 0])
    return BookResult(
        nav_net_T=nav_net_T,
        nav_ledger_T=nav_T.copy(),
        nav_gross_T=nav_gross_T,
        return_net_T=return_net_T,
        return_gross_T=return_gross_T,
        half_spread_T=over(books.spread_TV, start_T),
        commission_T=over(books.commission_TV, start_T),
        impact_T=over(books.impact_TV, start_T),
        borrow_T=over(books.borrow_TV, start_T),
        financing_T=over(books.financing_TV, start_T),
        turnover_T=over(0.5 * books.traded_TV, base_T),
        unfilled_T=over(0.5 * books.unfilled_TV, base_T),
        unpriced_T=over(books.unpriced_TV, nav_T),
        leverage_T=over(books.gross_TV, nav_T),
        cash_T=over(books.cash_TV, nav_T),
        kept_ledger=ledger_frame(rows_LC) if keep_ledger else None,
        first_trade=int(trades[0]) if len(trades) else None,
        ruined_at=ruined if ruined < market.n_sessions else None,
        shortfall=float(books.shortfall_V[0]),
        periods_per_year=costs.periods_per_year,
    )
