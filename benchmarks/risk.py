"""The risk model by characteristics on a market with planted factors: time, factors found, risk realised.

    python benchmarks/risk.py [--firms N] [--sessions T]

Six styles with volatilities of 0.2% to 0.5% a session, eleven groups of 0.4%, a market of 1%, firms of 2%.
The targets are correlations of the styles' returns with the truth of at least 0.95, and a bias statistic
(standard deviation of return over predicted volatility) of each of 200 random books between 0.9 and 1.1.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backtest.analysis.styles import StyleScores
from backtest.risk import regression_weights, risk_model

STYLES, GROUPS, BOOKS, WARM_UP = 6, 11, 200, 500


def main() -> None:
    """Print one line for each figure; exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--firms", type=int, default=1000)
    parser.add_argument("--sessions", type=int, default=2500)
    arguments = parser.parse_args()
    N, T, rng = arguments.firms, arguments.sessions, np.random.default_rng(0)

    score_KTN = np.empty((STYLES, T, N), np.float32)
    score_KTN[:, 0] = rng.normal(size=(STYLES, N))
    for t in range(1, T):
        score_KTN[:, t] = 0.995 * score_KTN[:, t - 1] + np.sqrt(1 - 0.995**2) * rng.normal(size=(STYLES, N))
    group_TN = np.tile(rng.integers(0, GROUPS, N), (T, 1))
    market_T, of_group_TG = 0.01 * rng.normal(size=T), 0.004 * rng.normal(size=(T, GROUPS))
    style_TK = rng.normal(size=(T, STYLES)) * np.linspace(0.002, 0.005, STYLES)
    deviation_N = 0.02 * np.exp(0.3 * rng.normal(size=N))
    earned_TN = np.full((T, N), np.nan)
    for t in range(1, T):
        common_N = market_T[t] + of_group_TG[t, group_TN[t - 1]] + style_TK[t] @ score_KTN[:, t - 1]
        earned_TN[t] = common_N + deviation_N * rng.normal(size=N)
    universe_TN = np.ones((T, N), dtype=np.bool_)
    scores = StyleScores(
        tuple(f"style {k}" for k in range(STYLES)), score_KTN, np.ones((STYLES, T), np.bool_), universe_TN, ()
    )
    weight_TN = regression_weights(np.tile(deviation_N, (T, 1)), universe_TN)

    started = time.process_time()
    model = risk_model(scores, group_TN, tuple(map(str, range(GROUPS))), earned_TN, weight_TN)
    print(f"model of {N:,} firms and {T:,} sessions: {time.process_time() - started:.1f} s of processor time")
    started = time.process_time()
    for t in range(WARM_UP, T - 1):
        model.factor_covariance(t)
    each = (time.process_time() - started) / (T - 1 - WARM_UP)
    print(f"covariance of {len(model.names)} factors: {1000 * each:.1f} ms a session")

    found_K = [float(np.corrcoef(model.return_TJ[1:, 1 + k], style_TK[1:, k])[0, 1]) for k in range(STYLES)]
    print(f"correlation of the styles with the truth: {', '.join(f'{x:.3f}' for x in found_K)}")

    weight_BN, firms = np.zeros((BOOKS, N)), np.arange(N)
    for b in range(BOOKS):
        held = rng.choice(N, size=int(rng.integers(N // 50, N // 5)), replace=False)
        weight_BN[b, held] = rng.normal(size=len(held)) if b % 2 else rng.random(len(held))
    surprise = []
    for t in range(WARM_UP, T - 1):
        loading_NJ, specific_N = model.loadings(t, firms), model.specific(t, firms)
        exposure_BJ = np.zeros((BOOKS, 1)) if loading_NJ is None else weight_BN @ loading_NJ
        variance_B = (exposure_BJ**2).sum(axis=1) + weight_BN**2 @ specific_N
        surprise.append(weight_BN @ earned_TN[t + 1] / np.sqrt(variance_B))
    bias_B = np.std(surprise, axis=0)
    spread = f"{bias_B.min():.3f} to {bias_B.max():.3f}, median {np.median(bias_B):.3f}"
    print(f"bias statistic of {BOOKS} books over {len(surprise):,} sessions: {spread}")
    sys.exit(int(min(found_K) < 0.95 or bias_B.min() < 0.9 or bias_B.max() > 1.1))


if __name__ == "__main__":
    main()
