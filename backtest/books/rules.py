"""Books: target weights at t from a signal at t.

A row of target weights is one decision, as fractions of NAV. A row of NaN means no decision: the book keeps
its positions. These rules apply to every book:

- A NaN signal means that the firm is not in the universe: its weight is 0.
- Ties share equally. Firms that are tied at the edge of a selection split the weight that is left for them,
  which is the expectation over a random order of the tied firms. The order of the columns has no effect.
- On a date with fewer signals than the book needs, no decision is made. If no date has enough signals, a
  ValueError is raised.
- If all signals of a date are equal, a long-short book holds nothing and a long-only book holds all firms
  equally, because every firm is as likely to be bought as to be sold.
- With ``rebalance_every = m``, decisions are made on every m-th session, counted from the first session with
  enough signals. If such a session has too few signals, the book holds until m sessions later.

Apart from that count, row t depends only on the signal at t. Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from backtest.forecasts.ranking import RankSelector, as_signal
from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class BookRule:
    """A registered book.

    Attributes
    ----------
    name : str
        Key in `BOOKS`.
    size : str
        Name and meaning of its size argument.
    default : int
        Default of the size argument.
    formula : str
        Target weights as a one-line formula.
    long_only : bool
        Whether it is fully invested; its benchmark is then the equal-weighted universe.
    build : callable
        ``build(signal_TN, size, rebalance_every) -> target_TN``.
    """

    name: str
    size: str
    default: int
    formula: str
    long_only: bool
    build: Callable[[AnyFloatArray, int, int], FloatArray]


def quantile_long_short(signal_TN: AnyFloatArray, q: int = 5, rebalance_every: int = 1) -> FloatArray:
    """Buy the top quantile and short the bottom one, equally weighted: +1 long, -1 short (gross 2, net 0).

    With n signals at t and ``m = floor(n / q)``, the m highest get weight ``+1/m`` and the m lowest ``-1/m``.
    With a gross exposure of 2, a session's gross return is the difference of the two quantiles' mean returns,
    as in the high-minus-low portfolios of the literature. Ties at the edge of a side share the weight that is
    left. The gross exposure is below 2 only if one group of tied firms extends into both sides, because its
    long and short weights cancel.

    Parameters
    ----------
    signal_TN : ndarray of shape (T, N)
        Known at the close of t; NaN = not in the universe.
    q : int
        Number of quantiles, at least 2; a date needs at least q signals.
    rebalance_every : int
        Sessions between decisions, at least 1.

    Returns
    -------
    ndarray of shape (T, N)
        Target weights as fractions of NAV, known at the close of t; NaN rows = no decision.

    Raises
    ------
    ValueError
        If q or rebalance_every is out of range, a signal is infinite, or no date has q signals.
    """
    signal_TN = as_signal("signal", signal_TN)
    if q < 2:
        msg = f"q is {q}; a long-short book needs at least 2 quantiles."
        raise ValueError(msg)
    selector = RankSelector(signal_TN)
    side_T = selector.count_T // q
    weight_TN = selector.long_short(side_T)
    return _apply_schedule(weight_TN, selector.count_T, q, rebalance_every)


def top_k_long_only(signal_TN: AnyFloatArray, k: int = 50, rebalance_every: int = 1) -> FloatArray:
    """Hold the k highest signals at weight ``1/k`` each (gross 1, net 1); ties at the edge share equally.

    Parameters
    ----------
    signal_TN : ndarray of shape (T, N)
        Known at the close of t; NaN = not in the universe.
    k : int
        Number of firms held, at least 1; a date needs at least k signals (with exactly k, all are held).
    rebalance_every : int
        Sessions between decisions, at least 1.

    Returns
    -------
    ndarray of shape (T, N)
        Target weights as fractions of NAV, known at the close of t; NaN rows = no decision.

    Raises
    ------
    ValueError
        If k or rebalance_every is out of range, a signal is infinite, or no date has k signals.
    """
    signal_TN = as_signal("signal", signal_TN)
    if k < 1:
        msg = f"k is {k}; a book must hold at least 1 firm."
        raise ValueError(msg)
    selector = RankSelector(signal_TN)
    weight_TN = selector.highest(np.minimum(selector.count_T, k))
    weight_TN /= k
    return _apply_schedule(weight_TN, selector.count_T, k, rebalance_every)


def equal_weighted(universe_TN: BoolArray, like_TN: FloatArray) -> FloatArray:
    """Hold every firm of the universe at equal weight: the benchmark of long-only books.

    Parameters
    ----------
    universe_TN : ndarray of bool, shape (T, N)
        Firms that may be held, known at the close of t.
    like_TN : ndarray of shape (T, N)
        Target weights of the book to compare with. Rows of NaN are copied, so that the benchmark trades on
        the same dates.

    Returns
    -------
    ndarray of shape (T, N)
        Target weights ``1/n``, known at the close of t; NaN rows = no decision.
    """
    count_T1 = universe_TN.sum(axis=1, keepdims=True)
    weight_TN: FloatArray = universe_TN / np.maximum(count_T1, 1)
    weight_TN[np.isnan(like_TN).any(axis=1)] = np.nan
    return weight_TN


def _apply_schedule(weight_TN: FloatArray, count_T: IntArray, needed: int, every: int) -> FloatArray:
    """Set rows without a decision to NaN: dates with too few signals, and sessions between rebalances."""
    if every < 1:
        msg = f"rebalance_every is {every}; it must be at least 1 session."
        raise ValueError(msg)
    possible_T: BoolArray = count_T >= needed
    if not possible_T.any():
        most = int(count_T.max(initial=0))
        msg = f"The book needs {needed} signals per date, but no date has more than {most}: lower its size."
        raise ValueError(msg)
    turn_T = (np.arange(len(count_T)) - int(np.argmax(possible_T))) % every == 0
    weight_TN[~(possible_T & turn_T)] = np.nan
    return weight_TN


BOOKS: dict[str, BookRule] = {
    rule.name: rule
    for rule in (
        BookRule(
            name="quantile_long_short",
            size="q, quantiles",
            default=5,
            formula="+1/m for the m = floor(n/q) highest signals, -1/m for the m lowest; ties share",
            long_only=False,
            build=quantile_long_short,
        ),
        BookRule(
            name="top_k_long_only",
            size="k, firms held",
            default=50,
            formula="1/k for the k highest signals; ties share",
            long_only=True,
            build=top_k_long_only,
        ),
    )
}
