"""An account in shares that follows given fills: what was bought and sold at which price, for which fee.

`backtest.accounts.accounting` decides what is filled; here the fills are facts. Both value, pay out and
charge alike, except for dividends: given fills hold them in cash, and the backtest reinvests them at the
close of the ex-date. Shape suffixes: T sessions, N firms.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from backtest.accounts.accounting import Account, Course
from backtest.accounts.market import GONE, BookMarket
from backtest.accounts.result import SCHEMA
from backtest.costs import COST_KINDS, CostModel
from features.arrays import BoolArray, FloatArray, require_shape

_BPS = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Fills:
    """Fills by session and firm, shape (T, N); 0 where nothing was traded.

    >>> Fills(bought_TN=np.array([[10.0]]), paid_TN=np.array([[505.0]]), fee_TN=np.array([[1.0]])).fee_TN
    array([[1.]])
    """

    bought_TN: FloatArray  # shares that were bought, in the shares of the session; negative for sales
    paid_TN: FloatArray  # shares times price; negative for sales
    fee_TN: FloatArray  # fees; negative for rebates


@dataclass(frozen=True, slots=True, eq=False)
class SharePrices:
    """What a share is worth and pays, shape (T, N); build it with `share_prices`.

    >>> one = np.ones((1, 1))
    >>> SharePrices(price_TN=20 * one, split_TN=one, dividend_TN=0 * one, gone_TN=one > 1).price_TN
    array([[20.]])
    """

    price_TN: FloatArray  # value of a share at the close; NaN before the first known price
    split_TN: FloatArray  # new shares per old share on the ex-date, 1 otherwise
    dividend_TN: FloatArray  # cash per share on the ex-date, after that day's split; 0 otherwise
    gone_TN: BoolArray  # whether holders have been paid out by the close


def share_prices(
    close_TN: FloatArray, split_TN: FloatArray, dividend_TN: FloatArray, market: BookMarket
) -> SharePrices:
    """Value a share at every close by the convention of the backtest.

    The value is the close as quoted. Without one it is the last value over the splits since, and changes as
    the firm's value in ``market`` does: by a delisting that pays less than the last price. Row t depends on
    rows up to t. ``close_TN`` is NaN where there is no price. ValueError if shapes differ.

    >>> from backtest.accounts.market import prepare_market
    >>> close, one = np.array([[10.0], [np.nan]]), np.ones((2, 1))
    >>> market = prepare_market(np.array([[10.0], [7.0]]), ~np.isnan(close), np.array([[False], [True]]))
    >>> share_prices(close, one, 0 * one, market).price_TN.ravel()
    array([10.,  7.])
    """
    for name, x_TN in (("the close", close_TN), ("the split", split_TN), ("the dividend", dividend_TN)):
        require_shape(name, x_TN, market.value_TN.shape)
    price_TN, value_TN = close_TN.copy(), market.value_TN
    for t in range(1, len(price_TN)):
        lacking_N = np.isnan(price_TN[t])
        before_N = value_TN[t - 1, lacking_N]
        moved_N = np.divide(value_TN[t, lacking_N], before_N, out=np.ones_like(before_N), where=before_N > 0)
        price_TN[t, lacking_N] = price_TN[t - 1, lacking_N] / split_TN[t, lacking_N] * moved_N
    return SharePrices(price_TN, split_TN, dividend_TN, (market.state_TN & GONE) > 0)


def follow_fills(fills: Fills, prices: SharePrices, costs: CostModel, capital: float) -> Course:
    """Account for given fills, from cash of ``capital`` before session 0, all in the currency of the prices.

    In each session, in this order: the borrow fee of short positions and the interest on borrowed money are
    charged on the values of the previous close (`backtest.costs.CostModel`, whose other terms are not used);
    splits change the shares, and dividends are received, or paid on short positions, for what was held at the
    previous close; the fills are booked with their fees; positions are valued, and those in delisted firms
    are paid out. A firm that never had a price is valued at its last fill.

    The course is in units of the capital, and its ledger has the rows of all sessions. A fee counts as
    commission, and a dividend in ``pnl``, so that ``pnl`` is not the change of the position alone.

    >>> one = np.ones((2, 1))
    >>> prices = SharePrices(np.array([[10.0], [11.0]]), one, 0 * one, one > 1)
    >>> fills = Fills(np.array([[5.0], [0.0]]), np.array([[50.0], [0.0]]), np.array([[0.1], [0.0]]))
    >>> follow_fills(fills, prices, CostModel(), capital=100.0).nav_T
    array([0.999, 1.049])
    """
    T, N = fills.bought_TN.shape
    scale = _BPS / costs.periods_per_year
    borrow_TN = np.broadcast_to(scale * np.asarray(costs.borrow_bps_per_year, dtype=np.float64), (T, N))
    interest = scale * costs.financing_bps_per_year
    cash, nav, nav_T, rows = capital, capital, np.empty(T), list[pl.DataFrame]()
    shares_N, value_N, last_N = np.zeros(N), np.zeros(N), np.zeros(N)
    for t in range(T):
        bought_N, paid_N, fee_N = fills.bought_TN[t], fills.paid_TN[t], fills.fee_TN[t]
        long_N = np.maximum(value_N, 0.0)
        borrow_N = borrow_TN[max(t - 1, 0)] * np.maximum(-value_N, 0.0)
        owed, long = max(float(long_N.sum()) - nav, 0.0), float(long_N.sum())
        financing_N = long_N * (interest * owed / long) if owed > 0 else np.zeros(N)
        shares_N = shares_N * prices.split_TN[t]
        dividend_N = shares_N * prices.dividend_TN[t]
        shares_N = shares_N + bought_N
        filled_N = np.divide(paid_N, bought_N, out=last_N / prices.split_TN[t], where=bought_N != 0)
        last_N = np.where(np.isnan(prices.price_TN[t]), filled_N, prices.price_TN[t])
        before_N, worth_N = value_N, shares_N * last_N
        released_N = np.where(prices.gone_TN[t], worth_N, 0.0)
        shares_N, value_N = np.where(prices.gone_TN[t], 0.0, shares_N), worth_N - released_N
        cost_N = fee_N + borrow_N + financing_N
        cash += float((dividend_N + released_N - paid_N - cost_N).sum())
        nav = nav_T[t] = cash + float(value_N.sum())
        moved_N = np.flatnonzero((before_N != 0) | (bought_N != 0) | (fee_N != 0))
        columns = {
            "position": value_N,
            "trade": paid_N,
            "released": released_N,
            "commission": fee_N,
            "borrow": borrow_N,
            "financing": financing_N,
            "cost": cost_N,
            "pnl": value_N - before_N - paid_N + released_N + dividend_N,
        }
        columns |= dict.fromkeys(set(COST_KINDS) - set(columns), np.zeros(N))
        amounts = {name: column_N[moved_N] / capital for name, column_N in columns.items()}
        frame = pl.DataFrame({"session": np.full(len(moved_N), t), "firm": moved_N, **amounts})
        rows.append(frame.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()))
    end = Account(value_N / capital, np.zeros(N), cash / capital)
    return Course(end, nav_T / capital, pl.concat(rows))


def fills_of_positions(
    listed: dict[int, FloatArray], prices: SharePrices, fill_TN: FloatArray, costs: CostModel, capital: float
) -> Fills:
    """Infer the fills that lead from one list of positions to the next, at the price and costs of the rule.

    ``listed`` are the shares of every firm, shape (N,), after the trades of a session. ``fill_TN`` is the
    price of execution; where it is NaN, the value of a share at the close. Trades are charged by the costs'
    own terms (`backtest.costs.CostModel.of_trades`), and ``capital`` is the cash before session 0.

    >>> one = np.ones((2, 1))
    >>> prices = SharePrices(10 * one, np.array([[1.0], [2.0]]), 0 * one, one > 1)
    >>> held = {0: np.array([3.0]), 1: np.array([7.0])}
    >>> fills_of_positions(held, prices, 10 * one, CostModel(), capital=100.0).bought_TN.ravel()
    array([3., 1.])
    """
    bought_TN = np.zeros(prices.price_TN.shape)
    shares_N = bought_TN[0].copy()
    for t in range(len(bought_TN)):
        shares_N = shares_N * prices.split_TN[t]
        if t in listed:
            bought_TN[t], shares_N = listed[t] - shares_N, listed[t]
        shares_N = np.where(prices.gone_TN[t], 0.0, shares_N)
    at_TN = np.where(np.isnan(fill_TN), np.nan_to_num(prices.price_TN), fill_TN)
    paid_TN = bought_TN * at_TN
    fee_TN = [costs.of_trades(np.abs(paid_N) / capital, t) * capital for t, paid_N in enumerate(paid_TN)]
    return Fills(bought_TN, paid_TN, np.array(fee_TN))
