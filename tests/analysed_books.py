"""A book on a random market with halts and delistings, its ledger, and scores: for tests of analyses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backtest.accounts.accounting import run_book
from backtest.accounts.result import BookResult
from backtest.analysis.ledger import LedgerRows, ledger_rows
from backtest.analysis.styles import FactorReturns, StyleScores, factor_returns
from backtest.costs import CostModel
from features.arrays import FloatArray, IntArray

T, N = 120, 24
SECTORS = ("Energy", "Health", "Tech")
TICKERS = tuple(f"F{firm:02d}" for firm in range(N))


@dataclass(frozen=True)
class AnalysedBook:
    """A book and everything that its analysis needs."""

    result: BookResult
    rows: LedgerRows
    index_TN: FloatArray
    group_TN: IntArray
    scores: StyleScores
    factors: FactorReturns


def analysed_book(seed: int = 0, leverage: float = 1.5) -> AnalysedBook:
    """A long-short book that trades every third session at random, with halts, delistings and costs."""
    rng = np.random.default_rng(seed)
    index_TN = np.cumprod(1.0 + rng.normal(0.0003, 0.02, (T, N)), axis=0, dtype=np.float64)
    traded_TN = rng.random((T, N)) > 0.05
    delisted_TN = np.zeros((T, N), dtype=bool)
    for firm, day in ((3, 50), (17, 80)):
        delisted_TN[day:, firm] = True
        traded_TN[day:, firm] = False
        index_TN[day:, firm] = 0.6 * index_TN[day - 1, firm]
    target_TN = np.full((T, N), np.nan)
    for t in range(10, T, 3):
        weight_N = rng.normal(size=N) * (rng.random(N) < 0.6)
        target_TN[t] = weight_N / np.abs(weight_N).sum() * leverage
    costs = CostModel(
        half_spread_bps=10, commission_bps=2, borrow_bps_per_year=300, financing_bps_per_year=500
    )
    result = run_book(target_TN, index_TN, traded_TN, costs, 1, delisted_TN=delisted_TN, keep_ledger=True)
    group_TN = np.tile(rng.integers(-1, len(SECTORS), N), (T, 1)).astype(np.int16)
    group_TN[60:, 5] = (group_TN[60:, 5] + 2) % len(SECTORS)
    score_KTN = rng.normal(size=(2, T, N)).astype(np.float32)
    scores = StyleScores(("momentum", "reversal_1"), score_KTN, np.ones((2, T), bool), traded_TN, ())
    earned_TN = np.full((T, N), np.nan)
    earned_TN[1:] = index_TN[1:] / index_TN[:-1] - 1.0
    rows = ledger_rows(result.ledger)
    return AnalysedBook(result, rows, index_TN, group_TN, scores, factor_returns(scores, earned_TN))
