"""Books to account for, with targets that are stored sparsely, and the arguments of the compiled loops.

A book holds a few of the firms of a panel, and many variants of a sweep trade the same targets. Twelve bytes
per weight that is not zero are less than eight per cell of the panel. Variants that share targets, delay and
arrays of costs run side by side.

Shape suffixes: T sessions, N firms, V books, R rows, K weights of all decisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from backtest.accounts.execution import AT_CLOSE, Execution
from backtest.accounts.market import BookMarket
from backtest.costs import CostModel, Rate
from features.arrays import BoolArray, FloatArray, frozen, require_shape

if TYPE_CHECKING:
    from backtest.accounts.positions import Books, Lanes, Plan, Rates, Tape

_BPS = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class SparseTargets:
    """Target weights of a book; build them with `from_targets`.

    Examples
    --------
    >>> SparseTargets.from_targets(np.array([[0.5, 0.0, 0.5], [np.nan, np.nan, np.nan]])).firm_K
    array([0, 2], dtype=int32)
    """

    n_firms: int
    """Number of firms of the panel."""
    decided_T: BoolArray
    """Whether there is a decision at the close of t."""
    start_T1: npt.NDArray[np.int64]
    """The weights of session t are those from ``start[t]`` up to ``start[t + 1]``."""
    firm_K: npt.NDArray[np.int32]
    """Firms with a target that is not zero, ascending within a session."""
    weight_K: FloatArray
    """Their weights, fractions of NAV."""

    @classmethod
    def from_targets(cls, target_TN: FloatArray) -> SparseTargets:
        """Collect the weights of a dense array.

        Parameters
        ----------
        target_TN : ndarray of shape (T, N)
            Fractions of NAV decided at the close of t; a row of NaN means no decision.

        Raises
        ------
        ValueError
            If a row is infinite or only partly NaN.
        """
        target_TN = np.asarray(target_TN, dtype=np.float64)
        unknown_TN = np.isnan(target_TN)
        decided_T: BoolArray = ~np.asarray(unknown_TN.any(axis=1))
        wrong_T = np.isinf(target_TN).any(axis=1) | ~(decided_T | unknown_TN.all(axis=1))
        if wrong_T.any():
            raise ValueError(
                f"The target of session {int(np.argmax(wrong_T))} is infinite or partly NaN; use weight 0 "
                "for a firm that is not held, and a whole row of NaN for no decision."
            )
        held_TN = (target_TN != 0.0) & decided_T[:, None]
        start_T1 = np.concatenate([[0], np.cumsum(np.count_nonzero(held_TN, axis=1))])
        firm_K = np.nonzero(held_TN)[1].astype(np.int32)
        arrays = (frozen(start_T1), frozen(firm_K), frozen(target_TN[held_TN]))
        return cls(target_TN.shape[1], frozen(decided_T), *arrays)


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """A book to account for: targets, costs, delay and execution.

    Examples
    --------
    >>> targets = SparseTargets.from_targets(np.array([[1.0]]))
    >>> Variant(targets, CostModel(half_spread_bps=5.0), delay=0).delay
    0
    """

    decisions: SparseTargets
    """Target weights; variants with the same targets should share one object."""
    costs: CostModel
    """Terms of the costs. Variants should share the arrays of terms that are given per firm."""
    delay: int
    """Sessions between decision and trade: at least 0, and at least 1 unless orders are executed at the
    close."""
    execution: Execution = AT_CLOSE
    """Price of execution and participation cap."""

    def require(self, market: BookMarket) -> None:
        """Raise ValueError unless the variant fits the market."""
        if self.delay < 0:
            raise ValueError(
                f"delay is {self.delay}; it must be at least 0, since a decision cannot be traded before it "
                "is made."
            )
        shape = market.value_TN.shape
        decided = (len(self.decisions.decided_T), self.decisions.n_firms)
        if decided != shape:
            msg = f"The shape of the target is {decided}; it must be {shape}: build both from the same panel."
            raise ValueError(msg)
        fill_TN, cap, impact = self.execution.price_over_close_TN, self.execution.cap, self.costs.impact
        if fill_TN is not None:
            require_shape("the price of execution", fill_TN, shape)
            if self.delay < 1:
                raise ValueError(
                    "delay is 0, but orders are executed before the close: a decision at the close of t can "
                    "be traded in session t+1 at the earliest. Set the delay to 1 or more, or execute at the "
                    "close."
                )
        if cap is not None:
            require_shape("the dollar volume", cap.dollar_volume_TN, shape)
        own = {"the price limits": self.execution.bar_TN, "the lots": self.execution.lot_TN}
        for name, array in own.items():
            if array is not None:
                require_shape(name, array, shape)
        if impact is not None:
            require_shape("the impact rate", impact.volatility_per_root_volume_TN, shape)
        for name in ("half_spread_bps", "borrow_bps_per_year"):
            rate = getattr(self.costs, name)
            if isinstance(rate, np.ndarray) and len(rate) != 1:
                require_shape(name, rate, shape)
            elif isinstance(rate, np.ndarray):
                require_shape(name, rate, (1, shape[1]))

    @property
    def arrays(self) -> tuple[FloatArray | None, ...]:
        """Arrays of books side by side: spread, borrow, impact, volume, price limits, lots, price."""
        spread, borrow = self.costs.half_spread_bps, self.costs.borrow_bps_per_year
        impact, cap = self.costs.impact, self.execution.cap
        return (
            spread if isinstance(spread, np.ndarray) else None,
            borrow if isinstance(borrow, np.ndarray) else None,
            None if impact is None else impact.volatility_per_root_volume_TN,
            None if cap is None else cap.dollar_volume_TN,
            self.execution.bar_TN,
            self.execution.lot_TN,
            self.execution.price_over_close_TN,
        )

    @property
    def key(self) -> tuple[int, ...]:
        """Variants with the same key can run side by side."""
        return (id(self.decisions), self.delay, self.execution.carries, *(id(array) for array in self.arrays))


def kernel_inputs(variants: Sequence[Variant], market: BookMarket) -> tuple[Plan, Tape, Rates]:
    """Build the arguments of the kernel, `run_lanes`, for variants with the same key."""
    from backtest.accounts.positions import Plan, Rates, Tape

    first = variants[0]
    spread_RN, borrow_RN, impact_RN, volume_RN, bar_RN, lot_RN, fill_RN = (
        _cells(x_TN) for x_TN in first.arrays
    )
    tape = Tape(
        value_TN=frozen(market.value_TN),
        state_TN=frozen(market.state_TN),
        fill_RN=fill_RN,
        spread_RN=spread_RN,
        borrow_RN=borrow_RN,
        impact_RN=impact_RN,
        volume_RN=volume_RN,
        bar_RN=bar_RN,
        lot_RN=lot_RN,
    )
    costs = [variant.costs for variant in variants]
    impacts = [one.impact for one in costs]
    caps = [variant.execution.cap for variant in variants]
    rates = Rates(
        spread_V=_lanes(_scale(one.half_spread_bps) * _BPS for one in costs),
        commission_V=_lanes(one.commission_bps * _BPS for one in costs),
        impact_V=_lanes(one.coefficient * math.sqrt(one.capital) if one else 0.0 for one in impacts),
        borrow_V=_lanes(_scale(one.borrow_bps_per_year) * (_BPS / one.periods_per_year) for one in costs),
        financing_V=_lanes(one.financing_bps_per_year * (_BPS / one.periods_per_year) for one in costs),
        limit_V=_lanes(one.fraction / one.capital if one else 1.0 for one in caps),
        minimum_V=_lanes(one.commission_minimum for one in costs),
    )
    decisions = first.decisions
    weights = (decisions.decided_T, decisions.start_T1, decisions.firm_K, decisions.weight_K)
    uncut_T = frozen(np.zeros(len(decisions.decided_T)))
    return Plan(*weights, delay=first.delay, carry=first.execution.carries, cut_T=uncut_T), tape, rates


def lanes_with_cash(plan: Plan, tape: Tape, rates: Rates) -> Lanes:
    """Allocate the state of lanes that hold cash only."""
    from backtest.accounts.positions import Lanes

    n_lanes, n_firms = len(rates.spread_V), tape.value_TN.shape[1]
    parts = plan.carry or len(tape.volume_RN) or len(tape.bar_RN) or len(tape.lot_RN)
    n_open = n_firms if parts else 0
    return Lanes(
        units_NV=np.zeros((n_firms, n_lanes)),
        left_NV=np.zeros((n_open, n_lanes)),
        nav_V=np.ones(n_lanes),
        cash_V=np.ones(n_lanes),
        long_V=np.zeros(n_lanes),
        short_V=np.zeros(n_lanes),
        bought_V=np.zeros(n_lanes),
        spread_V=np.zeros(n_lanes),
        impact_V=np.zeros(n_lanes),
        trade_V=np.zeros(n_lanes),
        weight_N=np.zeros(n_firms),
        listed_N=np.zeros(n_firms, dtype=np.bool_),
        last_N=np.zeros(n_firms),
        trade_N=np.zeros(n_firms),
        paid_out_N=np.zeros(n_firms),
        interest_per_long_V=np.zeros(n_lanes),
        goal_1=np.zeros(1),
        scale_V=np.ones(n_lanes),
        buys_V=np.zeros(n_lanes),
        blocked_V=np.zeros(n_lanes),
        fee_V=np.zeros(n_lanes),
    )


def empty_books(n_sessions: int, n_lanes: int) -> Books:
    """Allocate the accounts that the kernel fills."""
    from backtest.accounts.positions import Books

    def series() -> FloatArray:
        return np.zeros((n_sessions, n_lanes))

    return Books(
        nav_TV=series(),
        before_TV=series(),
        base_TV=series(),
        traded_TV=series(),
        unfilled_TV=series(),
        spread_TV=series(),
        commission_TV=series(),
        impact_TV=series(),
        borrow_TV=series(),
        financing_TV=series(),
        gross_TV=series(),
        unpriced_TV=series(),
        cash_TV=series(),
        ruined_V=np.zeros(n_lanes, dtype=np.int64),
        shortfall_V=np.zeros(n_lanes),
    )


def _lanes(values: Iterable[float]) -> FloatArray:
    return np.fromiter(values, dtype=np.float64)


def _scale(rate: Rate) -> float:
    """Return the rate of a lane: the number itself, or 1 if the rate is given per firm."""
    return 1.0 if isinstance(rate, np.ndarray) else rate


def _cells(x_TN: FloatArray | None) -> FloatArray:
    """Return an array as the kernel takes it: contiguous and read-only, without rows if it is absent."""
    return frozen(np.zeros((0, 0)) if x_TN is None else np.ascontiguousarray(x_TN, dtype=np.float64))
