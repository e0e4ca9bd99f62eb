"""The top-k drop book: hold k firms and replace only the worst of them.

Shape suffixes: N firms, D decisions, M firms with a signal, P places in the order of the signals.
"""

from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from backtest.books.book import Book, BookInputs, BookTargets, LimitUse, last_decision, spread_over_sessions
from backtest.forecasts.daily import as_signal
from features.arrays import FloatArray, IntArray

_ROUNDING = 1e-9  # of a unit


class TopKDrop(Book):
    """A long-only book of ``k`` firms that replaces only the worst of them.

    Each firm has weight ``1/k``. With ``held`` the firms that are held and have a signal:

    1. The candidates are the ``n_drop + k - len(held)`` firms with the highest signals that are not held.
    2. Of the held firms and the candidates together, the k with the highest signals are held from now on. So
       at most ``n_drop`` firms are sold, and none of them for a firm with a lower signal.

    A held firm without a signal is sold in any case, and does not count towards ``n_drop``. The first
    decision holds the k highest signals; a date needs at least k signals. Where firms are tied, fractions of
    a position are held: those that are bought at the edge share equally, and a held firm is not sold for one
    that equals it.

    Notes
    -----
    ``TopkDropoutStrategy`` of qlib with its default methods (sell the bottom, buy the top). Two differences:
    qlib lets the weights of firms that it keeps drift and splits the proceeds of its sales among its
    purchases, and here each decision resets every position to ``1/k``, which adds the turnover of the drift.
    If there are fewer than ``n_drop`` candidates, qlib sells more firms than it buys, and here k firms stay.

    Examples
    --------
    >>> from backtest.books.schedules import every_session
    >>> signal_TN = np.array([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    >>> TopKDrop(k=2, n_drop=1).targets(BookInputs(signal_TN, every_session(2))).target_TN
    array([[0.5, 0.5, 0. , 0. ],
           [0. , 0.5, 0. , 0.5]])
    """

    continues: ClassVar[bool] = True
    long_only: ClassVar[bool] = True
    kind: Literal["top_k_drop"] = "top_k_drop"
    """Selects this kind of book."""
    k: int = Field(default=50, ge=1)
    """Number of positions."""
    n_drop: int = Field(default=5, ge=1)
    """Largest number of positions that a rebalancing replaces, at most ``k``."""

    @model_validator(mode="after")
    def _check_drop(self) -> Self:
        if self.n_drop > self.k:
            raise ValueError(f"n_drop is {self.n_drop}; it must be from 1 to k ({self.k}).")
        return self

    def targets(self, inputs: BookInputs) -> BookTargets:
        """Decide the target weights; see `backtest.books.book.Book.targets`."""
        signal_TN = as_signal("signal", inputs.signal_TN)
        decides_T = inputs.schedule.decisions((~np.isnan(signal_TN)).sum(axis=1), self.k)
        held_DN = np.zeros((int(decides_T.sum()), signal_TN.shape[1]))
        before_N = self._units(inputs.last_N, signal_TN.shape[1])
        for held_N, signal_N in zip(held_DN, signal_TN[decides_T], strict=True):
            may = np.flatnonzero(~np.isnan(signal_N))
            before_M, (_, group_M) = before_N[may], np.unique(-signal_N[may], return_inverse=True)
            new_M = _taken(group_M, 1.0 - before_M, self.n_drop + self.k - before_M.sum())
            # among equals, positions come before candidates
            place_2M = np.stack([2 * group_M, 2 * group_M + 1])
            kept_2M = _taken(place_2M.ravel(), np.concatenate([before_M, new_M]), self.k).reshape(2, -1)
            held_N[may] = np.minimum(kept_2M.sum(axis=0), 1.0)
            before_N = held_N
        return BookTargets(spread_over_sessions(held_DN / self.k, decides_T))

    def limit_uses(self, inputs: BookInputs, target_TN: FloatArray) -> tuple[LimitUse, ...]:
        """Measure the last decision; see `backtest.books.book.Book.limit_uses`.

        A firm without a signal is sold in any case and does not count. The first decision has no limit.
        """
        last_N = last_decision(inputs, target_TN)
        if last_N is None:
            return ()
        sold_N = np.maximum(last_N - target_TN[-1], 0.0)
        sold = self.k * float(sold_N[~np.isnan(inputs.signal_TN[-1])].sum())
        return (LimitUse("n_drop", sold, self.n_drop, "firms"),)

    def _units(self, last_N: FloatArray | None, firms: int) -> FloatArray:
        """Return the units that a decision left, from 0 to 1; rounding must not make a fraction of a unit."""
        if last_N is None:
            return np.zeros(firms)
        units_N = np.clip(self.k * last_N, 0.0, 1.0)
        whole_N = np.rint(units_N)
        return np.where(np.abs(units_N - whole_N) < _ROUNDING, whole_N, units_N)


def _taken(place_M: IntArray, offer_M: FloatArray, units: float) -> FloatArray:
    """Take units from the first place to the last; the offers of a place are taken in proportion."""
    offer_P = np.bincount(place_M, weights=offer_M)
    left_P = units - np.concatenate([[0.0], np.cumsum(offer_P)[:-1]])
    share_P = np.divide(left_P, offer_P, out=np.zeros_like(offer_P), where=offer_P > 0)
    return np.clip(share_P, 0.0, 1.0)[place_M] * offer_M
