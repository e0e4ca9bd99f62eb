"""How often signals without skill pass the tests, on the simulated market and through the real books.

    python benchmarks/market_calibration.py
    python benchmarks/market_calibration.py --signals 100 --pairs 60 --searches 20

A signal without skill is noise that knows nothing of the market: half of the signals are new noise every
session, half keep 0.95 of it. They are measured as a user's signals are, with labels at delay 1 and a
quintile book without costs, because costs alone would reject noise. Printed are

- the share of the noise signals whose IC or Sharpe ratio differs from zero at 5%;
- the share of pairs of equal skill (the truth plus independent noise) of which one "beats" the other;
- the share of searches among 200 noise signals whose best one has a deflated Sharpe ratio above 0.95;
- what the tests say of the market's true conditional mean, after 200 trials and among 20 noise signals.

docs/experiments/2026-11-22-calibration-of-the-tests.md has the results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.signal import lfilter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backtest.accounts.performance import excess_return
from backtest.inference.multiple import superior_books
from backtest.inference.overfitting import deflated_sharpe
from features.panel.panel import to_panel
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, build_market
from pipelines.results.books import book_orders
from pipelines.results.comparisons import TradableSeries, comparison_table, significance_table
from pipelines.results.evaluate import Evaluation, evaluate
from pipelines.sources.simulated.config import MarketConfig
from pipelines.sources.simulated.source import SimulatedSource

Floats = npt.NDArray[np.float64]
BATCH, TRIALS, PERSISTENCE = 20, 200, 0.95
NO_SCORES = pl.DataFrame(schema={"model": pl.String, "valid_ic": pl.Float64, "valid_rank_ic": pl.Float64})


@dataclass(frozen=True, slots=True)
class World:
    """A simulated market with its truth.

    Attributes
    ----------
    config
        Label, book and costs.
    market
        Prices, universe and labels.
    truth_TN
        The true conditional mean of the label, in standard deviations of the date.
    """

    config: Config
    market: Market
    truth_TN: Floats

    @property
    def sessions(self) -> npt.NDArray[np.datetime64]:
        """Sessions of the panel."""
        return self.market.panel.dates_T

    def noise(self, rng: np.random.Generator, persistence: float) -> Floats:
        """Draw a signal without skill: an AR(1) process per firm with unit variance."""
        shocks_TN = rng.normal(size=self.truth_TN.shape) * np.sqrt(1.0 - persistence**2)
        shocks_TN[0] /= np.sqrt(1.0 - persistence**2)
        values_TN: Floats = lfilter([1.0], [1.0, -persistence], shocks_TN, axis=0)
        return np.where(self.market.universe_TN, values_TN, np.nan)

    def measure(self, signals: dict[str, Floats]) -> Evaluation:
        """Measure signals as ``peerglass backtest`` does."""
        sessions = np.flatnonzero(self.market.universe_TN.any(axis=1))
        forecasts = {name: {0: signal_TN} for name, signal_TN in signals.items()}
        return evaluate(forecasts, self.market, self.config, NO_SCORES, truth_TN=None, sessions=sessions)

    def returns(self, signal_TN: Floats) -> Floats:
        """Daily excess returns of the book of a signal."""
        rows_T = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
        (orders,) = book_orders(signal_TN, rows_T, self.market, self.config, 1)
        returns_T: Floats = excess_return(
            orders.run(self.market.panel), np.zeros(orders.held.stop - orders.held.start)
        )
        return returns_T


def make_world(seed: int = 7, firms: int = 80, sessions: int = 600) -> World:
    """Simulate a market whose true mean can be traded at delay 1."""
    market: dict[str, Any] = {"firms": firms, "sessions": sessions, "delay": 1, "bad_ticks": 0}
    free = {"half_spread_bps": 0.0, "commission_bps": 0.0, "borrow_bps_per_year": 0.0}
    config = Config.model_validate(
        {
            "name": "calibration",
            "source": {"kind": "simulated", "seed": seed, "market": market},
            "lake": "unused",
            "universe": {"min_price": 1.0, "min_history": 60},
            "label": {"horizon": 1, "delay": 1},
            "folds": {"scheme": "expanding", "train": 10, "valid": 10, "test": 10, "embargo": 0},
            "models": {"ridge": {}, "tcn": {}},
            "backtest": {
                "books": {"long_short": {"kind": "quantile_long_short", "quantiles": 5}},
                "costs": free,
            },
        }
    )
    tables = SimulatedSource(MarketConfig(**market), seed).fetch().tables
    built = build_market(tables, config)
    mu_TN = np.where(built.universe_TN, to_panel(tables["truth_mu"], "mu", built.panel), np.nan)
    live_T = built.universe_TN.any(axis=1)
    mu_TN[live_T] /= np.nanstd(mu_TN[live_T], axis=1, keepdims=True)
    return World(config, built, mu_TN)


def rejected_noise(world: World, signals: int, seed: int = 1) -> dict[str, float]:
    """Share of the noise signals that differ from zero at 5%, by test."""
    rng = np.random.default_rng(seed)
    tables = []
    for start in range(0, signals, BATCH):
        names = range(start, min(start + BATCH, signals))
        noise = {f"noise {k}": world.noise(rng, PERSISTENCE if k % 2 else 0.0) for k in names}
        tables.append(
            significance_table(TradableSeries(world.measure(noise), world.config, world.sessions), 1)
        )
    table = pl.concat(tables)

    def outside(name: str) -> float:
        zero_is_out = (pl.col(f"{name}_lower") > 0) | (pl.col(f"{name}_upper") < 0)
        return float(table.select(zero_is_out.mean()).item())

    return {
        "IC, Newey-West": float((table["ic_p"] < 0.05).to_numpy().mean()),
        "IC, bootstrap": outside("ic_bootstrap"),
        "Sharpe ratio, bootstrap": outside("sharpe"),
        "probabilistic Sharpe above 0.95": float((table["probabilistic_sharpe"] > 0.95).to_numpy().mean()),
    }


def equal_pairs(world: World, pairs: int, seed: int = 2) -> Iterator[str]:
    """Yield whether one of two signals of equal skill beats the other: yes, no or unclear."""
    rng = np.random.default_rng(seed)
    for _ in range(pairs):
        shared_TN = world.truth_TN + world.noise(rng, 0.5)
        signals = {name: shared_TN + world.noise(rng, 0.5) for name in ("ridge", "tcn")}
        table = comparison_table(TradableSeries(world.measure(signals), world.config, world.sessions))
        if table is None:
            sys.exit("Both models are compared with ridge; the config of this benchmark must name it.")
        yield table.filter(pl.col("model") == "tcn")["beats"].item()


def best_of_noise(world: World, searches: int, trials: int = TRIALS, seed: int = 3) -> list[float]:
    """Deflated Sharpe ratios of the best of many noise signals, one per search."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(searches):
        books = [world.returns(world.noise(rng, PERSISTENCE if k % 2 else 0.0)) for k in range(trials)]
        best = max(books, key=lambda returns_T: float(np.nanmean(returns_T) / np.nanstd(returns_T)))
        found.append(deflated_sharpe(best, trials))
    return found


def truth_among_noise(world: World, rivals: int = 20, seed: int = 4) -> dict[str, float]:
    """Results of the true conditional mean, with the ledger at 200 trials and among noise signals."""
    rng = np.random.default_rng(seed)
    signals = {"truth": world.truth_TN} | {f"noise {k}": world.noise(rng, 0.0) for k in range(rivals)}
    result = world.measure(signals)
    table = significance_table(TradableSeries(result, world.config, world.sessions), TRIALS)
    row = table.row(0, named=True)
    series = TradableSeries(result, world.config, world.sessions)
    returns_TV = np.column_stack([series.returns(name, "long_short") for name in signals])
    together = superior_books(returns_TV[~np.isnan(returns_TV).any(axis=1)])
    return {
        "IC": row["ic"],
        "IC p": row["ic_p"],
        "Sharpe": row["sharpe_net"],
        "deflated Sharpe": row["deflated_sharpe"],
        "SPA p": together.p_value,
        "in StepM": float(together.superior_V[0]),
        "noise in StepM": float(together.superior_V[1:].sum()),
    }


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description="Calibration of the tests on the simulated market.")
    parser.add_argument("--signals", type=int, default=500)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--searches", type=int, default=200)
    arguments = parser.parse_args()
    world = make_world()
    print(f"{arguments.signals} noise signals on {len(world.sessions)} sessions, rejected at 5%:")
    for test, share in rejected_noise(world, arguments.signals).items():
        print(f"  {test}: {share:.1%}", flush=True)
    answers = list(equal_pairs(world, arguments.pairs))
    shares = ", ".join(f"{one} {answers.count(one) / len(answers):.1%}" for one in ("yes", "unclear", "no"))
    print(f"{arguments.pairs} pairs of equal skill, beats: {shares}", flush=True)
    deflated = np.array(best_of_noise(world, arguments.searches))
    print(
        f"best of {TRIALS} noise signals, {arguments.searches} searches: deflated Sharpe above 0.95 in "
        f"{(deflated > 0.95).mean():.1%}, median {np.median(deflated):.2f}",
        flush=True,
    )
    for name, value in truth_among_noise(world).items():
        print(f"truth, {name}: {value:.4g}")


if __name__ == "__main__":
    main()
