"""What a holder of the panel's firms can trade and earns: one convention for labels and books.

A book decides at t, buys at the close of ``t + delay``, holds, and is valued at a later close. The value of a
unit is the firm's total return index ("the index" below).

- **Buying.** A firm can be bought at a close only if it trades, its index is known and above zero, and it is
  not delisted. An order that cannot be filled is dropped: its money stays in cash and earns 0.
- **Holding.** During a halt the index keeps its last value. Where the index is NaN (a gap in the data), the
  unit keeps its last known value; when the index is known again, the unit earns the whole move.
- **Delisting.** On the first session after the purchase on which the firm is delisted (or worth nothing), the
  unit is paid out at that session's index, which includes the delisting return. From then on it is cash. If
  the firm trades again later, the holder no longer owns it. If a delisting is presumed after a long silence
  and its return is recorded later, the holder waits for the record and is paid out then.
- **Valuation.** A unit that cannot be sold at the valuation close counts at its value on that close. If the
  index is NaN on that close, the return is unknown.
- **Known gaps.** The label of an order on a session whose price is known to be missing from the data, or of a
  unit that is held over one and not paid out, is unknown.
- **Suspended firms.** A price without volume is the last price, repeated by the source. Nothing is traded
  at it. It applies to firms that had a volume before, on sessions on which some firm has one, because other
  zeros are volumes that the source does not have.
- **Wrong rows.** A row that a quality rule found to be wrong earns nothing, neither on its session nor when
  the price returns. What is known of it may be later than its session, so only outcomes use it.

Features read the panel's own prices, as they were known. `backtest.accounts.accounting` multiplies positions
by `held_return` of one session; labels read `bought_return` over their span, which equals `held_return` where
the firm could be bought.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from features.arithmetic.transforms import rank_normal, zscore
from features.arrays import BoolArray, Float32Array, FloatArray, frozen, require_shape
from features.panel.derived import cached, row_mean
from features.panel.panel import Panel


def holders(panel: Panel) -> HolderMarket:
    """Return the `features.panel.holding.holder_market` of a panel, which is computed once."""
    return cached(
        panel, "holder_market", lambda: holder_market(earned_index(panel), tradable(panel), panel.delisted_TN)
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
    """Return the total-return index of a holder who earns nothing on wrong rows (`Panel.wrong`).

    At a wrong price the index keeps its last value until the next price. Into a row in another unit, and into
    a wrong price that no other follows, it keeps its last value, and all later values are scaled to it, so
    that a delisting still pays its return. Another index than `Panel.total_return_index_TN` can be given.
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


@dataclass(frozen=True, slots=True, eq=False)
class HolderMarket:
    """Value and tradability of each firm for a holder.

    Row t depends only on rows <= t of the inputs, except that `delisted_TN` is False while a later row of the
    same delisting changes what it pays. Values do not depend on that.

    Examples
    --------
    >>> index, traded = np.array([[1.0], [1.1]]), np.ones((2, 1), dtype=bool)
    >>> holder_market(index, traded, ~traded).on(slice(1, None)).value_TN
    array([[1.1]])
    """

    value_TN: FloatArray
    """Last known total return index; NaN before the first known value."""
    known_TN: BoolArray
    """Whether the index is known at t itself."""
    tradable_TN: BoolArray
    """Whether a unit can be bought or sold at the close of t."""
    delisted_TN: BoolArray
    """Whether holders have been paid out by the close of t."""

    def on(self, sessions: slice) -> HolderMarket:
        """Return views of some sessions."""
        return HolderMarket(*(getattr(self, one.name)[sessions] for one in fields(self)))


def holder_market(
    total_return_index_TN: FloatArray, traded_TN: BoolArray, delisted_TN: BoolArray
) -> HolderMarket:
    """Compute the value of a unit, whether it can be traded and whether holders have been paid out.

    The arguments are fields of `features.panel.panel.Panel`. A firm that is worth nothing counts as delisted.

    Examples
    --------
    >>> index, traded = np.array([[1.0], [1.1], [1.1]]), np.array([[True], [True], [False]])
    >>> market = holder_market(index, traded, np.zeros((3, 1), dtype=bool))
    >>> market.tradable_TN.ravel()
    array([ True,  True, False])
    """
    from features.panel.kernels import hold

    shape = total_return_index_TN.shape
    value_TN, known_TN = np.empty(shape), np.empty(shape, dtype=np.bool_)
    tradable_TN, gone_TN = np.empty_like(known_TN), np.empty_like(known_TN)
    hold(
        frozen(np.ascontiguousarray(total_return_index_TN)),
        frozen(np.ascontiguousarray(traded_TN)),
        frozen(np.ascontiguousarray(delisted_TN)),
        *(value_TN, known_TN, tradable_TN, gone_TN),
    )
    return HolderMarket(value_TN, known_TN, tradable_TN, gone_TN)


def held_return(market: HolderMarket, horizon: int) -> FloatArray:
    """Compute the return over ``horizon`` sessions of a unit that is held after the trades of session s.

    ``value[x] / value[s] - 1``, where x is the first session after s on which the firm is delisted, and
    ``s + horizon`` at the latest.

    Shape (max(T - horizon, 0), N), and ``horizon`` is at least 1. Row s is known at the close of
    ``s + horizon``. 0 where the unit is worth nothing at s; NaN before the first known index.

    Examples
    --------
    >>> index, traded = np.array([[1.0], [1.1], [1.32]]), np.ones((3, 1), dtype=bool)
    >>> held_return(holder_market(index, traded, ~traded), 2).round(6)
    array([[0.32]])
    """
    return _held(market, horizon)[0]


def bought_return(market: HolderMarket, horizon: int, gap_TN: BoolArray | None = None) -> FloatArray:
    """Compute the return, before costs, of an order placed at the close of s after ``horizon`` sessions.

    `held_return` where the firm can be bought at s, 0 where it cannot.

    Shape and arguments as in `held_return`; ``gap_TN`` are known gaps (`features.panel.panel.Panel.gap_TN`),
    none by default. NaN before the first known index, where the unit is still held at ``s + horizon`` while
    the index is unknown, and across a known gap.

    Examples
    --------
    >>> index, traded = np.array([[1.0], [1.1], [1.32]]), np.array([[True], [False], [True]])
    >>> bought_return(holder_market(index, traded, np.zeros((3, 1), dtype=bool)), 1).ravel().round(6)
    array([0.1, 0. ])
    """
    earned_TN, paid_TN = _held(market, horizon)
    bought_TN = market.tradable_TN[: len(paid_TN)]
    earned_TN = np.where(bought_TN, earned_TN, 0.0)
    unvalued_TN = bought_TN & ~paid_TN & ~market.known_TN[horizon:]
    earned_TN[unvalued_TN | np.isnan(market.value_TN[: len(paid_TN)])] = np.nan
    if gap_TN is not None and len(paid_TN):
        firms = np.flatnonzero(gap_TN.any(axis=0))
        gap_TN = gap_TN[:, firms]
        count_TN = np.cumsum(gap_TN, axis=0, dtype=np.int32)
        crossed_TN = (count_TN[horizon:] > count_TN[:-horizon]) & bought_TN[:, firms] & ~paid_TN[:, firms]
        unknown_TN = crossed_TN | gap_TN[:-horizon]
        earned_TN[:, firms] = np.where(unknown_TN, np.nan, earned_TN[:, firms])
    return earned_TN


def _held(market: HolderMarket, horizon: int) -> tuple[FloatArray, BoolArray]:
    """Return the held return, and whether the unit has been paid out by the end of the horizon."""
    T = len(market.value_TN)
    exit_TN = market.value_TN[horizon:].copy()
    paid_TN = np.zeros(exit_TN.shape, dtype=np.bool_)
    firms = np.flatnonzero(market.delisted_TN.any(axis=0))
    if horizon < T and len(firms):
        session_T1 = np.arange(T)[:, None]
        delisted_TN = np.where(market.delisted_TN[:, firms], session_T1, T)
        next_TN = np.minimum.accumulate(delisted_TN[::-1], axis=0)[::-1]  # first delisted session from t on
        after_TN, last_T1 = next_TN[1 : T - horizon + 1], session_T1[horizon:]
        paid_TN[:, firms] = after_TN <= last_T1
        at_TN = np.minimum(after_TN, last_T1)
        exit_TN[:, firms] = np.take_along_axis(market.value_TN[:, firms], at_TN, axis=0)
    start_TN = market.value_TN[: len(exit_TN)]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(start_TN == 0.0, 0.0, exit_TN / start_TN - 1.0), paid_TN


TargetKind = Literal["raw", "demean", "zscore", "rank"]


def forward_returns(panel: Panel, delay: int, horizon: int, first: int = 0) -> FloatArray:
    """Compute the forward return of each firm, before costs, for a book that decides at t.

    Rows begin with session ``first``. The book buys the firm at the close of ``t+delay`` and holds it for
    ``horizon`` sessions. If the firm can be bought and stays listed, the label is ``index[t+delay+horizon] /
    index[t+delay] - 1`` with `Panel.total_return_index_TN` as the index; else `features.panel.holding` says
    what it earns. A label depends on nothing dated after ``t+delay+horizon``, except that a spike is known to
    be wrong when the price has returned. It is NaN before the first price, where the span ends after the
    panel, across a known gap (`Panel.gap_TN`), and where the firm is still held at the end of the span but
    the data lack its price there (`features.panel.delistings`). ValueError if the delay is negative or the
    horizon below 1.
    """
    if delay < 0 or horizon < 1:
        msg = f"The label has delay {delay} and horizon {horizon}; they must be at least 0 and at least 1."
        raise ValueError(msg)
    earned_TN = bought_return(holders(panel).on(slice(first, None)), horizon, panel.gap_TN[first:])[delay:]
    out_TN = np.full((panel.n_sessions - first, panel.n_firms), np.nan)
    out_TN[: len(earned_TN)] = earned_TN
    return out_TN


def target(label_TN: FloatArray, universe_TN: BoolArray, kind: TargetKind) -> Float32Array:
    """Transform labels within each date, over the firms of the universe with a known label.

    They stay unchanged (``raw``), or have the date's mean subtracted (``demean``), are divided by the date's
    standard deviation as well (`features.arithmetic.transforms.zscore`), or are ranked to a normal
    (`rank_normal` there). NaN outside the universe and where the label is unknown. ValueError if the shapes
    differ or the kind is unknown.

    Examples
    --------
    >>> target(np.array([[0.01, 0.03]]), np.ones((1, 2), dtype=bool), "demean").round(3)
    array([[-0.01,  0.01]], dtype=float32)
    """
    require_shape("the universe", universe_TN, label_TN.shape)
    inside_TN = np.where(universe_TN, label_TN, np.nan)
    if kind == "raw":
        return inside_TN.astype(np.float32)
    if kind == "demean":
        return (inside_TN - row_mean(inside_TN)).astype(np.float32)
    if kind == "zscore":
        return zscore(inside_TN, universe_TN)
    if kind == "rank":
        return rank_normal(inside_TN, universe_TN)
    raise ValueError(f"Unknown target {kind!r}: choose raw, demean, zscore or rank.")
