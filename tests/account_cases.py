"""Random books with every kind of cost, price of execution and cap, for the tests of the accounts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backtest.accounts.accounting import run_book
from backtest.accounts.execution import Execution, ParticipationCap
from backtest.accounts.result import BookResult
from backtest.costs import (
    CostModel,
    SquareRootImpact,
    volatility_per_root_volume,
)

NAN = np.nan
CAPITAL = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A market with halts, gaps and delistings, and targets that are decided now and then."""

    index_TN: np.ndarray
    traded_TN: np.ndarray
    delisted_TN: np.ndarray
    target_TN: np.ndarray
    fill_TN: np.ndarray
    volume_TN: np.ndarray
    volatility_TN: np.ndarray
    rng: np.random.Generator

    def costs(self, *, per_firm: bool, capital: float = CAPITAL, coefficient: float = 1.0) -> CostModel:
        """All five kinds of cost; half-spread and borrow fee flat, or different for each firm."""
        T, N = self.index_TN.shape
        rng = np.random.default_rng(1)
        return CostModel(
            rng.uniform(0, 30, (T, N)) if per_firm else 8.0,
            2.0,
            rng.uniform(0, 2000, (1, N)) if per_firm else 500.0,
            700.0,
            SquareRootImpact(
                coefficient, capital, volatility_per_root_volume(self.volatility_TN, self.volume_TN)
            ),
        )

    def execution(self, *, early: bool, capped: bool, capital: float = CAPITAL) -> Execution:
        """Execution before the close or at it, with or without a cap of 5% of the dollar volume."""
        return Execution(
            self.fill_TN if early else None,
            ParticipationCap(0.05, capital, self.volume_TN) if capped else None,
        )

    def run(
        self, costs: CostModel, delay: int, execution: Execution, *, keep_ledger: bool = True
    ) -> BookResult:
        """Account for the targets."""
        return run_book(
            self.target_TN,
            self.index_TN,
            self.traded_TN,
            costs,
            delay,
            delisted_TN=self.delisted_TN,
            execution=execution,
            keep_ledger=keep_ledger,
        )


def random_case(seed: int, T: int = 50, N: int = 9) -> Case:
    """Draw a case; a tenth of the prices of execution and of the dollar volumes is unknown."""
    rng = np.random.default_rng(seed)
    index_TN = np.exp(np.cumsum(rng.normal(0, 0.02, (T, N)), axis=0)) * rng.uniform(1, 500, N)
    traded_TN, delisted_TN = rng.random((T, N)) > 0.1, np.zeros((T, N), dtype=bool)
    for n in range(N):
        listed = int(rng.integers(0, T // 3)) if rng.random() < 0.3 else 0
        traded_TN[listed, n] = True
        for t in range(listed + 1, T):  # halts keep the last close
            if not traded_TN[t, n]:
                index_TN[t, n] = index_TN[t - 1, n]
        index_TN[:listed, n], traded_TN[:listed, n] = NAN, False
        if rng.random() < 0.3:  # delisted: pays -100% to +20%, then cash
            end = int(rng.integers(listed, T))
            delisted_TN[end + 1 :, n], traded_TN[end + 1 :, n] = True, False
            index_TN[end + 1 :, n] = index_TN[end, n] * (1 + rng.choice([-1.0, -0.55, 0.2]))
        if rng.random() < 0.2:  # a data gap
            gap = int(rng.integers(listed, T))
            index_TN[gap : gap + 3, n] = NAN
    weight_TN = rng.normal(size=(T, N)) * (rng.random((T, N)) < 0.7)
    weight_TN *= 1.6 / np.maximum(np.abs(weight_TN).sum(axis=1, keepdims=True), 1)
    weight_TN[rng.random(T) < 0.1] *= 0.0
    weight_TN[rng.random(T) < 0.5] = NAN
    if seed % 3 == 0:
        weight_TN = np.abs(weight_TN)  # with interest on what exceeds the capital
    fill_TN = np.exp(rng.normal(0, 0.01, (T, N)))
    volume_TN = np.exp(rng.normal(np.log(4e6), 0.8, (T, N)))
    fill_TN[rng.random((T, N)) < 0.1] = NAN
    volume_TN[rng.random((T, N)) < 0.1] = NAN
    volatility_TN = rng.uniform(0.01, 0.04, (T, N))
    return Case(index_TN, traded_TN, delisted_TN, weight_TN, fill_TN, volume_TN, volatility_TN, rng)
