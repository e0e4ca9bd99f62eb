"""How often the tests of two models reject when there is nothing to find.

    python benchmarks/calibration.py

Pairs of models have equal skill: half of the variance of a daily IC or return is common to both, and the rest
is their own. Labels over h sessions make the daily values moving sums of h independent ones. The table shows
the share of the pairs that differ at the 5% level, which should be 5%. The last rows show how often the best
of many books without skill passes the deflated Sharpe ratio.
docs/experiments/2026-11-22-calibration-of-the-tests.md has the results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backtest.inference.bootstrap import bootstrap_block, bootstrap_counts, sharpe_difference
from backtest.inference.means import diebold_mariano, newey_west_t, paired_test
from backtest.inference.overfitting import deflated_sharpe

Floats = npt.NDArray[np.float64]
PAIRS, SHARPE_PAIRS, SEARCHES, TRIALS = 6000, 1000, 300, 200


def pair(rng: np.random.Generator, dates: int, overlap: int) -> tuple[Floats, Floats]:
    """Daily values of two models of equal skill."""
    draws = rng.normal(size=(3, dates + overlap - 1))
    common, one, other = (np.convolve(x, np.ones(overlap), "valid") for x in draws)
    return common + one, common + other


def share(
    rejects: Callable[[Floats, Floats], bool], dates: int, overlap: int = 1, pairs: int = PAIRS
) -> float:
    """Share of the pairs that a test calls different."""
    rng = np.random.default_rng((dates, overlap))
    return sum(rejects(*pair(rng, dates, overlap)) for _ in range(pairs)) / pairs


def sharpe_share(dates: int) -> float:
    """Share of the pairs whose Sharpe ratios differ, of returns with Student-t tails."""
    rng = np.random.default_rng(dates)
    counts = bootstrap_counts(dates, block=bootstrap_block(dates))
    found = 0
    for _ in range(SHARPE_PAIRS):
        common, one, other = 0.01 * rng.standard_t(5, size=(3, dates))
        found += sharpe_difference(common + one, common + other, counts_RT=counts).p_value < 0.05
    return found / SHARPE_PAIRS


def searches(dates: int) -> float:
    """Share of the searches whose best book has a deflated Sharpe ratio above 0.95."""
    rng = np.random.default_rng(dates)
    found = 0
    for _ in range(SEARCHES):
        returns = 0.01 * rng.normal(size=(TRIALS, dates))
        best = returns[(returns.mean(axis=1) / returns.std(axis=1)).argmax()]
        found += deflated_sharpe(best, TRIALS) > 0.95
    return found / SEARCHES


def main() -> None:
    """Print the shares."""

    def ic(overlap: int) -> Callable[[Floats, Floats], bool]:
        return lambda a, b: paired_test(a, b, overlap=overlap).p_value < 0.05

    def few_lags(a: Floats, b: Floats) -> bool:
        return abs(newey_west_t(a - b)) > 1.96

    def losses(overlap: int) -> Callable[[Floats, Floats], bool]:
        return lambda a, b: diebold_mariano(1 - a, 1 - b, horizon=overlap).p_value < 0.05

    for overlap in (1, 5, 21):
        for dates in (100, 250, 500, 1000):
            print(
                f"labels over {overlap:2} sessions, {dates:4} dates: IC difference "
                f"{share(ic(overlap), dates, overlap):.1%}, with few lags and 1.96 "
                f"{share(few_lags, dates, overlap):.1%}, Diebold-Mariano "
                f"{share(losses(overlap), dates, overlap):.1%}",
                flush=True,
            )
    for dates in (100, 250, 500, 1000):
        print(f"Sharpe difference, {dates:4} dates: {sharpe_share(dates):.1%}", flush=True)
    for dates in (250, 500):
        print(f"best of {TRIALS} books without skill, {dates} dates: {searches(dates):.1%}", flush=True)


if __name__ == "__main__":
    main()
