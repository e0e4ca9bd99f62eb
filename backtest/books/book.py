"""The interface of a book: a rule that turns the signal at t into target weights at t.

These conventions apply to every book:

- A NaN signal means that the firm is not in the universe: its weight is 0.
- Ties share equally. Firms that are tied at the edge of a selection split the weight that is left for them,
  which is the expectation over a random order of the tied firms. The order of the columns has no effect.
- On a date with fewer signals than the book needs, no decision is made. If no date has enough signals, a
  ValueError is raised.
- If all signals of a date are equal, a long-short book holds nothing and a long-only book holds all firms
  equally, because every firm is as likely to be bought as to be sold.
- Apart from the count of its schedule, row t depends only on rows up to t of the inputs. A book whose
  decision depends on the one before begins with ``last_N`` of the inputs.

Row t of every array holds what was known at the close of session t. Shape suffixes: T sessions, N firms.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from backtest.books.schedules import Schedule, Turn
from backtest.forecasts.daily import as_signal
from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray
from features.options import Options
from features.panel.periods import SESSIONS_PER_YEAR

if TYPE_CHECKING:
    from backtest.risk import CharacteristicRisk

State = Literal["free", "binds", "exceeded"]
Unit = Literal["of NAV", "a year", "beta", "scores", "firms"]

TOLERANCE = 1e-6
"""Distance from a limit below which it binds: the solver of the optimised book is accurate to about 1e-8."""


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit of a book, and what the weights of one decision amount to.

    Examples
    --------
    >>> LimitUse("max_leverage", value=2.0, limit=2.0).state
    'binds'
    """

    name: str
    """The setting, such as ``max_turnover``; ``neutral sector``, ``neutral beta`` and ``neutral styles`` for
    neutrality."""
    value: float
    """What the weights amount to; at least 0 except for a net exposure. Of several sectors or firms, the
    largest."""
    limit: float
    """Largest value that is allowed. Neutrality allows 0."""
    unit: Unit = "of NAV"
    """``of NAV`` and ``a year`` (a volatility) are fractions, ``beta``, ``scores`` and ``firms`` are
    numbers."""
    least: bool = False
    """Whether the limit is the smallest value that is allowed instead."""

    @property
    def excess(self) -> float:
        """By how much the value is beyond the limit; below 0 it is within."""
        return self.limit - self.value if self.least else self.value - self.limit

    @property
    def state(self) -> State:
        """``binds`` if the value is at the limit up to `TOLERANCE`, ``free`` within it, else ``exceeded``."""
        if abs(self.excess) <= TOLERANCE:
            return "binds"
        return "free" if self.excess < 0 else "exceeded"


Need = Literal["groups", "beta", "volatility", "returns", "risk"]
"""An input beyond the signal that a book may ask for; it is computed only for books that do."""


@dataclass(frozen=True, slots=True, eq=False)
class PastReturns:
    """Returns of each session up to t, with sessions before the first row of the signal.

    Examples
    --------
    >>> PastReturns(np.zeros((30, 2)), before=20).window(t=0, length=5).shape
    (5, 2)
    """

    return_SN: FloatArray
    """Return of the session as a fraction, ``before`` rows earlier than the signal; NaN where unknown."""
    before: int
    """Number of rows before the first row of the signal."""
    periods_per_year: float = SESSIONS_PER_YEAR
    """Sessions in a year, which annual volatilities use."""
    delivered_SN: FloatArray | None = None
    not_known_SN: BoolArray | None = None
    """`delivered_SN`, `not_known_SN`: returns with wrong prices, which count on sessions on which a firm's
    last price is not yet known to be wrong (`features.panel.cleaned`)."""

    def window(self, t: int, length: int) -> FloatArray:
        """Return the last ``length`` sessions up to and including row t of the signal; fewer at the start."""
        end = self.before + t + 1
        rows = slice(max(end - length, 0), end)
        if self.delivered_SN is None or self.not_known_SN is None:
            return self.return_SN[rows]
        return np.where(self.not_known_SN[end - 1], self.delivered_SN[rows], self.return_SN[rows])


@dataclass(frozen=True, slots=True, eq=False)
class BookInputs:
    """The signal, the schedule, and what a book declares in `Book.needs`.

    Examples
    --------
    >>> from backtest.books.schedules import every_session
    >>> BookInputs(np.array([[0.2, 0.1]]), every_session(1)).horizon
    1
    """

    signal_TN: AnyFloatArray
    """Signal at the close of t; higher is better. NaN: the firm is not in the universe."""
    schedule: Schedule
    """Sessions on which the book may decide."""
    group_TN: IntArray | None = None
    """Code of the sector or industry as of t; -1 is unknown. Need ``groups``."""
    beta_TN: FloatArray | None = None
    """Trailing beta to the market; NaN is unknown. Need ``beta``."""
    volatility_TN: FloatArray | None = None
    """Trailing standard deviation of the returns of a session; NaN is unknown. Need ``volatility``."""
    past: PastReturns | None = None
    """Returns of past sessions. Need ``returns``."""
    risk: "CharacteristicRisk | None" = None
    """Risk model by characteristics; its row t is that of the signal. Need ``risk``."""
    last_N: FloatArray | None = None
    """Target weights of the decision before the first row, for books whose decision depends on the one
    before. None: there is none."""
    horizon: int = 1
    """Sessions that a signal forecasts, for which overlapping decisions are held."""


@dataclass(frozen=True, slots=True)
class BookNote:
    """Something unusual about one decision."""

    session: int  # row of the decision
    text: str  # what happened and why, in one sentence


@dataclass(frozen=True, slots=True, eq=False)
class BookTargets:
    """The decisions of a book.

    Examples
    --------
    >>> BookTargets(np.array([[0.5, 0.5]])).notes
    ()
    """

    target_TN: FloatArray
    """Target weights as fractions of NAV, decided at the close of t. A row of NaN means no decision: the book
    keeps its positions."""
    notes: tuple[BookNote, ...] = ()
    """Decisions that could not be made as configured, in the order of their sessions."""


class Book(Options):
    """A rule with its settings: a kind of book is a subclass in a file of `backtest.books.rules`.

    Examples
    --------
    >>> from backtest.books.rules.top_k_long_only import TopKLongOnly
    >>> book = TopKLongOnly(k=10, rebalance_every=5)
    >>> book.long_only, sorted(book.needs)
    (True, [])
    """

    kind: str = ""
    """Selects the kind of book."""
    rebalance_every: int = Field(default=1, ge=1)
    """Dates with signals from one rebalancing to the next: 5 is a week of daily signals. Sessions without
    signals do not count. With ``rebalance_on``: 2 is every second of its sessions."""
    rebalance_on: Turn | None = None
    """Sessions on which the book may rebalance: the first one from a weekday on, or the first or last of a
    period. If such a session has no signals, the next one that has them takes its place. Null: all."""

    @property
    def long_only(self) -> bool:
        """Whether the book holds no short positions. Its benchmark is then the equally weighted universe."""
        return False

    @property
    def continues(self) -> bool:
        """Whether a decision depends on the one before it, ``last_N`` of the inputs."""
        return False

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs beyond the signal that the book reads with its settings."""
        return frozenset()

    @property
    def needs_sectors(self) -> bool:
        """Whether the book needs the sectors or industries of firms."""
        return "groups" in self.needs

    @abstractmethod
    def targets(self, inputs: BookInputs) -> BookTargets:
        """Decide the target weights.

        ``inputs`` has the signal, the schedule, and every input in ``needs``. ValueError if a signal is
        infinite, or no date on which the book may decide has enough signals.
        """

    def limit_uses(self, inputs: BookInputs, target_TN: FloatArray) -> tuple[LimitUse, ...]:
        """Measure the last decision by the limits of the book.

        ``target_TN`` are its target weights, and their last row is a decision. One for each limit that the
        decision had; empty for a book without limits.
        """
        del inputs, target_TN
        return ()


def eligible(book: Book, inputs: BookInputs) -> FloatArray:
    """Return the signal as float64, NaN where the firm lacks an exposure that the book needs."""
    signal_TN = as_signal("signal", inputs.signal_TN).copy()
    if "groups" in book.needs:
        assert inputs.group_TN is not None
        signal_TN[inputs.group_TN < 0] = np.nan
    if "beta" in book.needs:
        assert inputs.beta_TN is not None
        signal_TN[np.isnan(inputs.beta_TN)] = np.nan
    if "volatility" in book.needs:
        assert inputs.volatility_TN is not None
        signal_TN[~(inputs.volatility_TN > 0)] = np.nan
    return signal_TN


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


def in_proportion(size_TN: FloatArray | BoolArray, like_TN: FloatArray) -> FloatArray:
    """Hold firms in proportion to sizes of at least 0: equal weights for a universe as 0 and 1.

    Target weights are ``size / sum(size)``, known at the close of t. Rows of NaN (no decision) are copied
    from the target weights of the book to compare with, so that the benchmark trades on the same dates.

    Examples
    --------
    >>> in_proportion(np.array([[True, True, False]]), np.zeros((1, 3)))
    array([[0.5, 0.5, 0. ]])
    """
    total_T1 = size_TN.sum(axis=1, keepdims=True)
    weight_TN: FloatArray = size_TN / np.where(total_T1 > 0, total_T1, 1)
    weight_TN[np.isnan(like_TN).any(axis=1)] = np.nan
    return weight_TN
