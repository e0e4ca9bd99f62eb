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
    from backtest.accounts.positions import LaneAccounts, Lanes, Plan, Rates, Tape

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
        """Collect the weights of a dense array: fractions of NAV decided at the close of t.

        A row of NaN means no decision. ValueError if a row is infinite or only partly NaN.
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
        for name, array in self.arrays.items():
            if array is not None:
                row = name in ("half_spread_bps", "borrow_bps_per_year") and len(array) == 1
                require_shape(name, array, (1, shape[1]) if row else shape)
        if self.execution.price_over_close_TN is not None and self.delay < 1:
            raise ValueError(
                "delay is 0, but orders are executed before the close: a decision at the close of t can be "
                "traded in session t+1 at the earliest. Set the delay to 1 or more, or execute at the close."
            )

    @property
    def arrays(self) -> dict[str, FloatArray | None]:
        """Arrays of books side by side, in the order of the tape: None where there is none."""
        spread, borrow = self.costs.half_spread_bps, self.costs.borrow_bps_per_year
        impact, cap = self.costs.impact, self.execution.cap
        return {
            "the price of execution": self.execution.price_over_close_TN,
            "half_spread_bps": spread if isinstance(spread, np.ndarray) else None,
            "borrow_bps_per_year": borrow if isinstance(borrow, np.ndarray) else None,
            "the impact rate": None if impact is None else impact.volatility_per_root_volume_TN,
            "the dollar volume": None if cap is None else cap.dollar_volume_TN,
            "the price limits": self.execution.bar_TN,
            "the lots": self.execution.lot_TN,
        }

    @property
    def key(self) -> tuple[int, ...]:
        """Variants with the same key can run side by side."""
        return (id(self.decisions), self.delay, self.execution.carries, *map(id, self.arrays.values()))


def kernel_call(
    variants: Sequence[Variant], market: BookMarket, cut_T: FloatArray | None = None
) -> tuple[tuple[Plan, Tape, Rates], Lanes, LaneAccounts]:
    """Build the arguments of `run_lanes` for variants with the same key: its inputs, lanes of cash, accounts.

    ``cut_T`` is what the purchases of each decision were cut by before; None: nothing.
    """
    from backtest.accounts.positions import LaneAccounts, Lanes, Plan, Rates, Tape

    first = variants[0]
    tape = Tape(frozen(market.value_TN), frozen(market.state_TN), *map(_cells, first.arrays.values()))
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
    decisions, (T, N), V = first.decisions, market.value_TN.shape, len(variants)
    weights = (decisions.decided_T, decisions.start_T1, decisions.firm_K, decisions.weight_K)
    cut_T = np.zeros(T) if cut_T is None else cut_T
    plan = Plan(*weights, delay=first.delay, carry=first.execution.carries, cut_T=frozen(cut_T))
    parts = plan.carry or len(tape.volume_RN) or len(tape.bar_RN) or len(tape.lot_RN)
    shapes = {"NV": (N, V), "V": (V,), "N": (N,), "1": (1,)}
    zeros = {name: np.zeros(shapes[name.rpartition("_")[2]]) for name in Lanes._fields}
    ones = {name: np.ones(V) for name in ("nav_V", "cash_V", "scale_V")}
    left_NV, listed_N = np.zeros((N if parts else 0, V)), np.zeros(N, dtype=np.bool_)
    lanes = Lanes(**zeros | ones | {"left_NV": left_NV, "listed_N": listed_N})
    series = {name: np.zeros((T, V)) for name in LaneAccounts._fields if name.endswith("_TV")}
    books = LaneAccounts(**series, ruined_V=np.zeros(V, dtype=np.int64), shortfall_V=np.zeros(V))
    return (plan, tape, rates), lanes, books


def _lanes(values: Iterable[float]) -> FloatArray:
    return np.fromiter(values, dtype=np.float64)


def _scale(rate: Rate) -> float:
    """Return the rate of a lane: the number itself, or 1 if the rate is given per firm."""
    return 1.0 if isinstance(rate, np.ndarray) else rate


def _cells(x_TN: FloatArray | None) -> FloatArray:
    """Return an array as the kernel takes it: contiguous and read-only, without rows if it is absent."""
    return frozen(np.zeros((0, 0)) if x_TN is None else np.ascontiguousarray(x_TN, dtype=np.float64))
