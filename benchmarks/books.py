"""Time of deciding target weights: books by rank on a whole panel, and the optimised book per decision.

    python benchmarks/books.py [--firms N] [--sessions T]

Books by rank decide every session on a panel of random signals; the figures are medians of three runs. The
optimised book decides 20 times, on random walks with five common factors, with limits on position, leverage,
volatility, turnover, sectors and beta. All figures are seconds of processor time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backtest.books.book import Book, BookInputs, PastReturns
from backtest.books.rules.optimised import Optimised, WeightLimits
from backtest.books.rules.quantile_long_short import QuantileLongShort
from backtest.books.rules.rank_weighted import RankWeighted
from backtest.books.rules.top_k_drop import TopKDrop
from backtest.books.rules.top_k_long_only import TopKLongOnly
from backtest.books.schedules import every_session

BEFORE = 252
BY_RANK: dict[str, Book] = {
    "quantile_long_short": QuantileLongShort(quantiles=10),
    "top_k_long_only": TopKLongOnly(k=50),
    "top_k_drop": TopKDrop(k=50, n_drop=5),
    "rank_weighted": RankWeighted(),
    "rank_weighted, neutral": RankWeighted(neutral=("sector", "beta")),
    "quantile_long_short, inverse volatility": QuantileLongShort(quantiles=10, inverse_volatility=True),
    "quantile_long_short, overlapping 5": QuantileLongShort(quantiles=10, overlap=True),
    "quantile_long_short, target volatility": QuantileLongShort(quantiles=10, target_volatility=0.1),
}
OPTIMISED = Optimised(limits=WeightLimits(max_turnover=0.3, max_sector_net=0.05, max_beta=0.05))


def inputs(firms: int, sessions: int, every: int = 1) -> BookInputs:
    """Random signals, sectors and betas, and returns with five common factors."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(BEFORE + sessions, 5)) @ rng.normal(size=(5, firms)) / np.sqrt(5)
    return BookInputs(
        rng.normal(size=(sessions, firms)),
        every_session(sessions, every),
        group_TN=np.broadcast_to(rng.integers(0, 11, firms), (sessions, firms)),
        beta_TN=rng.normal(1.0, 0.3, (sessions, firms)),
        volatility_TN=rng.uniform(0.01, 0.03, (sessions, firms)),
        past=PastReturns(0.02 * (0.5 * common + rng.normal(size=common.shape)), BEFORE),
        horizon=5,
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firms", type=int, default=3000)
    parser.add_argument("--sessions", type=int, default=2520)
    chosen = parser.parse_args()
    print(f"{chosen.firms:,} firms x {chosen.sessions:,} sessions, seconds of processor time")
    panel, few = inputs(chosen.firms, chosen.sessions), inputs(100, 30)
    for name, book in BY_RANK.items():
        book.targets(few)  # compiles
        seconds = []
        for _ in range(3):
            start = time.process_time()
            book.targets(panel)
            seconds.append(time.process_time() - start)
        print(f"  {name:<42}{statistics.median(seconds):8.2f}")
    del panel
    print("optimised, seconds per decision")
    OPTIMISED.targets(inputs(50, 1))  # imports skfolio
    for firms in (100, 500, 1000):
        data = inputs(firms, 100, every=5)
        start = time.process_time()
        targets = OPTIMISED.targets(data)
        seconds_each = (time.process_time() - start) / 20
        print(f"  {firms:>5} firms{seconds_each:8.3f}  {len(targets.notes)} dates without a decision")


if __name__ == "__main__":
    main()
