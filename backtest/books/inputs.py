"""What a book decides from, and what it decides.

Row t of every array holds what was known at the close of session t. Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from backtest.books.schedules import Schedule
from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray
from features.panel.periods import SESSIONS_PER_YEAR

Need = Literal["groups", "beta", "volatility", "returns"]
"""An input beyond the signal that a book may ask for; it is computed only for books that do."""


@dataclass(frozen=True, slots=True, eq=False)
class PastReturns:
    """Returns of each session up to t, with sessions before the first row of the signal.

    Attributes
    ----------
    return_SN : ndarray of shape (before + T, N)
        Return of the session as a fraction; NaN where unknown.
    before : int
        Number of rows before the first row of the signal.
    periods_per_year : float
        Sessions in a year, which annual volatilities use.
    """

    return_SN: FloatArray
    before: int
    periods_per_year: float = SESSIONS_PER_YEAR

    def window(self, t: int, length: int) -> FloatArray:
        """Return the last ``length`` sessions up to and including row t of the signal; fewer at the start."""
        end = self.before + t + 1
        return self.return_SN[max(end - length, 0) : end]


@dataclass(frozen=True, slots=True, eq=False)
class BookInputs:
    """The signal, the schedule, and what a book declares in `Book.needs`.

    Attributes
    ----------
    signal_TN : ndarray of shape (T, N)
        Signal at the close of t; higher is better. NaN: the firm is not in the universe.
    schedule : Schedule
        Sessions on which the book may decide.
    group_TN : ndarray of int, shape (T, N), or None
        Code of the sector or industry as of t; -1 is unknown. Need ``groups``.
    beta_TN : ndarray of shape (T, N) or None
        Trailing beta to the market; NaN is unknown. Need ``beta``.
    volatility_TN : ndarray of shape (T, N) or None
        Trailing standard deviation of the returns of a session; NaN is unknown. Need ``volatility``.
    past : PastReturns or None
        Returns of past sessions. Need ``returns``.
    last_N : ndarray of shape (N,) or None
        Target weights of the decision before the first row, for books whose decision depends on the one
        before. None: there is none.
    """

    signal_TN: AnyFloatArray
    schedule: Schedule
    group_TN: IntArray | None = None
    beta_TN: FloatArray | None = None
    volatility_TN: FloatArray | None = None
    past: PastReturns | None = None
    last_N: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class BookNote:
    """Something unusual about one decision.

    Attributes
    ----------
    session : int
        Row of the decision.
    text : str
        What happened and why, in one sentence.
    """

    session: int
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class BookTargets:
    """The decisions of a book.

    Attributes
    ----------
    target_TN : ndarray of shape (T, N)
        Target weights as fractions of NAV, decided at the close of t. A row of NaN means no decision: the
        book keeps its positions.
    notes : tuple of BookNote
        Decisions that could not be made as configured, in the order of their sessions.
    """

    target_TN: FloatArray
    notes: tuple[BookNote, ...] = ()


def last_decision(inputs: BookInputs, target_TN: FloatArray) -> FloatArray | None:
    """Return the decision before the last row: the newest row of targets, else ``inputs.last_N``."""
    earlier_TN = target_TN[:-1]
    earlier_TN = earlier_TN[~np.isnan(earlier_TN).any(axis=1)]
    return earlier_TN[-1] if len(earlier_TN) else inputs.last_N


def spread_over_sessions(weight_DN: FloatArray, decides_T: BoolArray) -> FloatArray:
    """Place the rows of D decisions on their sessions, shape (T, N); the other rows are NaN."""
    if decides_T.all():
        return weight_DN
    target_TN = np.full((len(decides_T), weight_DN.shape[1]), np.nan)
    target_TN[decides_T] = weight_DN
    return target_TN
