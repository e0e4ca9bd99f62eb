"""Processor time of the analysis of one book: a daily quantile book on 1,026 firms and 3,000 sessions.

    python benchmarks/analysis.py [--firms N] [--sessions T]

Prices are random walks with volume, halts and listings. The first run compiles loops and is not counted. The
figures are medians of three runs; the target is 2 seconds without the engine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipelines.config.load import check_config
from pipelines.dataset.market import Market, build_market
from pipelines.results.books import MeasuredBook
from pipelines.results.evaluate import evaluate
from pipelines.results.evaluate_run import BookAnalysis

TARGET = 2.0  # seconds
SETTINGS = {
    "name": "benchmark",
    "source": {"kind": "simulated", "seed": 0},
    "lake": "lake",
    "output": "runs",
    "universe": {"min_price": 0.01, "min_history": 60},
    "label": {"horizon": 1, "delay": 1},
    "folds": {"scheme": "expanding", "train": 120, "valid": 25, "test": 40, "embargo": 1},
    "models": {"zero": {}},
    "backtest": {"books": {"long_short": {"kind": "quantile_long_short"}}},
}


def prices(firms: int, sessions: int) -> pl.DataFrame:
    """Closes, ranges and volumes of random walks; a hundredth of the cells has no trade."""
    rng = np.random.default_rng(0)
    close_TN = 50.0 * np.exp(np.cumsum(rng.normal(0.0, 0.02, (sessions, firms)), axis=0))
    t, n = np.nonzero(rng.random((sessions, firms)) > 0.01)
    day = np.busday_offset("2008-01-01", np.arange(sessions), roll="forward")
    close = close_TN[t, n]
    return pl.DataFrame(
        {
            "date": day[t],
            "ticker": np.array([f"F{firm:04d}" for firm in range(firms)])[n],
            "open": close,
            "high": 1.01 * close,
            "low": 0.99 * close,
            "close": close,
            "volume": rng.lognormal(13.0, 1.0, len(t)),
            "split_ratio": np.ones(len(t)),
            "dividend": np.zeros(len(t)),
        }
    )


def analyse(market: Market, book: MeasuredBook) -> dict[str, float]:
    """Seconds of processor time of each step."""
    config = check_config(SETTINGS, origin="benchmark")
    start = time.process_time()
    analysis = BookAnalysis(market, config)
    analysis.add(book)
    tables = analysis.tables()
    computed = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for name, table in tables.items():
            table.write_parquet(Path(folder, f"{name}.parquet"))
    return {"analysis": computed - start, "writing": time.process_time() - computed}


def main() -> None:
    """Print the medians; exit with 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firms", type=int, default=1026)
    parser.add_argument("--sessions", type=int, default=3000)
    chosen = parser.parse_args()
    config = check_config(SETTINGS, origin="benchmark")
    market = build_market({"prices": prices(chosen.firms, chosen.sessions)}, config)
    signal_TN = np.where(
        market.universe_TN, np.random.default_rng(1).normal(size=market.universe_TN.shape), np.nan
    )
    books: list[MeasuredBook] = []
    no_scores = pl.DataFrame(schema={"model": pl.String, "valid_ic": pl.Float64, "valid_rank_ic": pl.Float64})
    sessions = np.flatnonzero(market.universe_TN.any(axis=1))
    evaluate(
        {"noise": {0: signal_TN}},
        market,
        config,
        no_scores,
        truth_TN=None,
        sessions=sessions,
        on_book=books.append,
    )
    runs = [analyse(market, books[0]) for _ in range(4)][1:]
    medians = {step: float(np.median([run[step] for run in runs])) for step in runs[0]}
    rows = books[0].result.ledger.height
    print(f"{chosen.firms:,} firms x {chosen.sessions:,} sessions, {rows:,} holdings: ", end="")
    print(", ".join(f"{step} {seconds:.2f} s" for step, seconds in medians.items()))
    if sum(medians.values()) > TARGET:
        sys.exit(f"The target is {TARGET:g} s.")


if __name__ == "__main__":
    main()
