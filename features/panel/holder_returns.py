"""What the holder of a firm earns through halts, gaps and endings: one convention for labels and books.

A book decides at t, buys at the close of ``t + delay``, holds, and is valued at a later close.

- **Buying.** A firm can be bought at a close only if it trades there, its wealth is known and above zero,
  and it has not ended. An order that cannot be filled is dropped: its money stays in cash and earns 0.
- **Holding.** A unit is worth the firm's wealth, in halts its last value. Where wealth is NaN (a gap in the
  data) it keeps the last known value; when the wealth is known again, the unit earns the whole move.
- **Ending.** On the first session after the purchase on which the firm has ended (or is worth nothing), the
  unit is paid out at that session's wealth, which includes the delisting return. From then on it is cash. A
  firm that trades again later is not owned any more.
- **Valuing.** A unit that cannot be sold at the close at which it is valued counts at its value there.
  Where that is only a last known value, because wealth is NaN, the result is not known.

`backtest.accounting` multiplies positions by `held_return` of one session; `features.panel.labels` reads
`bought_return` over the label's span, which is `held_return` over that span where the firm could be bought.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.arithmetic.rolling import carry
from features.arrays import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class HolderMarket:
    """Firms as a holder sees them; row t depends on rows <= t of the inputs alone.

    Attributes
    ----------
    value_TN : ndarray of shape (T, N)
        Last known wealth of a unit; NaN before the first.
    known_TN : ndarray of bool, shape (T, N)
        Whether the wealth of t itself is known.
    tradable_TN : ndarray of bool, shape (T, N)
        Whether a unit can be bought or sold at the close of t.
    delisted_TN : ndarray of bool, shape (T, N)
        Whether holders have been paid out by the close of t.
    """

    value_TN: FloatArray
    known_TN: BoolArray
    tradable_TN: BoolArray
    delisted_TN: BoolArray


def holder_market(
    total_return_index_TN: FloatArray, traded_TN: BoolArray, delisted_TN: BoolArray
) -> HolderMarket:
    """Decide what a unit is worth, who can trade it and who has been paid out.

    Parameters
    ----------
    total_return_index_TN : ndarray of shape (T, N)
        Total-return index, at least 0 (`features.panel.panel.Panel.total_return_index_TN`); NaN = not known.
    traded_TN : ndarray of bool, shape (T, N)
        Whether the firm trades at t.
    delisted_TN : ndarray of bool, shape (T, N)
        Whether an ending has paid holders out by the close of t (`features.panel.panel.Panel.delisted_TN`).

    Returns
    -------
    HolderMarket
        The same sessions and firms. A firm that is worth nothing counts as ended.
    """
    value_TN = carry(total_return_index_TN)
    known_TN = ~np.isnan(total_return_index_TN)
    gone_TN = delisted_TN | (value_TN == 0.0)
    return HolderMarket(value_TN, known_TN, traded_TN & known_TN & ~gone_TN, gone_TN)


def held_return(market: HolderMarket, horizon: int) -> FloatArray:
    """Compute what is earned in ``horizon`` sessions on a unit that is owned after the trades of s.

    ``value[x] / value[s] - 1``, where x is the first session after s on which the firm has ended, but
    ``s + horizon`` at the latest.

    Parameters
    ----------
    market : HolderMarket
        Values and endings.
    horizon : int
        Sessions held, at least 1.

    Returns
    -------
    ndarray of shape (max(T - horizon, 0), N)
        Row s is known at the close of ``s + horizon``; 0 where a unit is worth nothing at s, NaN before the
        first known wealth.
    """
    return _held(market, horizon)[0]


def bought_return(market: HolderMarket, horizon: int) -> FloatArray:
    """Compute what an order at the close of s has earned ``horizon`` sessions later, before costs.

    `held_return` where the firm can be bought at s, 0 where it cannot.

    Parameters
    ----------
    market : HolderMarket
        Values, endings and who can be traded.
    horizon : int
        Sessions held, at least 1.

    Returns
    -------
    ndarray of shape (max(T - horizon, 0), N)
        Row s is known at the close of ``s + horizon``. NaN before the first known wealth, and where a unit
        is still held at ``s + horizon`` and its wealth is not known there.
    """
    earned_TN, paid_TN = _held(market, horizon)
    bought_TN = market.tradable_TN[: len(paid_TN)]
    earned_TN = np.where(bought_TN, earned_TN, 0.0)
    unvalued_TN = bought_TN & ~paid_TN & ~market.known_TN[horizon:]
    earned_TN[unvalued_TN | np.isnan(market.value_TN[: len(paid_TN)])] = np.nan
    return earned_TN


def _held(market: HolderMarket, horizon: int) -> tuple[FloatArray, BoolArray]:
    """Give the held return and whether the unit has been paid out by then."""
    T = len(market.value_TN)
    exit_TN = market.value_TN[horizon:].copy()
    paid_TN = np.zeros(exit_TN.shape, dtype=np.bool_)
    firms = np.flatnonzero(market.delisted_TN.any(axis=0))
    if horizon < T and len(firms):
        session_T1 = np.arange(T)[:, None]
        delisted_TN = np.where(market.delisted_TN[:, firms], session_T1, T)
        next_TN = np.minimum.accumulate(delisted_TN[::-1], axis=0)[::-1]  # first ended session from t on
        after_TN, last_T1 = next_TN[1 : T - horizon + 1], session_T1[horizon:]
        paid_TN[:, firms] = after_TN <= last_T1
        at_TN = np.minimum(after_TN, last_T1)
        exit_TN[:, firms] = np.take_along_axis(market.value_TN[:, firms], at_TN, axis=0)
    start_TN = market.value_TN[: len(exit_TN)]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(start_TN == 0.0, 0.0, exit_TN / start_TN - 1.0), paid_TN
