"""The peer ladder on the simulated market: each model's rank IC as a share of the truth's rank IC.

Four markets use the same random draws and differ in the planted parts: the characteristic part, the temporal
part, the peer part, or all three at their default shares. The truth's daily IC is the same in all markets.
The models, folds and seeds are those of ``configs/ladder.yaml``; each test segment is forecast once.

    .venv/bin/python benchmarks/ladder.py                       # everything: about an hour on two cores
    .venv/bin/python benchmarks/ladder.py --market peer --no-test --set source.market.firms=60

Finished fits are stored in a file and not repeated, so an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from backtest.forecasts.metrics import forecast_metrics
from features.panel.panel import to_panel
from models.fitting.fit import fit, refit
from pipelines.config.load import digest, load_config, model_settings
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, build_dataset
from pipelines.dataset.folds import fit_inputs, plan_folds
from pipelines.lake.contracts import check
from pipelines.run.fetch import make_source
from pipelines.sources.simulated.config import MarketConfig
from pipelines.sources.simulated.source import SimulatedSource
from pipelines.train.task import collect_arrays, to_tensors

PARTS = ("characteristic", "temporal", "peer")
MARKETS: dict[str, tuple[str, ...]] = {**{part: (part,) for part in PARTS}, "all": PARTS}
"""Market -> the parts of mu that are planted."""


@dataclass(frozen=True, slots=True)
class Job:
    """One model on one fold of one market with one seed."""

    market: str
    model: str
    fold: int
    seed: int
    segments: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """A market's dataset and truth."""

    config: Config
    dataset: Dataset
    truth_TN: npt.NDArray[np.float64]


_worlds: dict[str, World] = {}  # filled before the workers are forked, so that they share it


def market_config(config: Config, market: str) -> Config:
    """Return the config of a market, with only its parts planted."""
    own = dict(config.source.model_dump()["market"])
    defaults = MarketConfig()
    for part in PARTS:
        name = f"{part}_share"
        own[name] = own.get(name, getattr(defaults, name)) if part in MARKETS[market] else 0.0
    source = config.source.model_copy(update={"market": MarketConfig.model_validate(own)})
    return config.model_copy(update={"source": source})


def build_world(config: Config) -> World:
    """Simulate a market and build its dataset, without a lake."""
    now = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    source = make_source(config)
    if not isinstance(source, SimulatedSource):
        raise TypeError(f"the source is {source.name}; the ladder needs the simulated market")
    tables = dict(source.fetch().tables)
    stamp = pl.lit(now).dt.cast_time_unit("us").alias("ingested_at")
    tables["prices"] = tables["prices"].with_columns(pl.lit("simulated").alias("source"), stamp)
    tables = {name: check(name, frame).valid for name, frame in tables.items()}
    dataset = build_dataset(tables, config)
    return World(config, dataset, to_panel(tables["truth_mu"], "mu", dataset.panel))


def run_job(job: Job) -> dict[str, Any]:
    """Fit a model and measure its forecasts and the truth on the same cells."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    world = _worlds[job.market]
    config, dataset = world.config, world.dataset
    fold = plan_folds(dataset, config)[job.fold]
    data = to_tensors(collect_arrays(dataset, config.features.window), fit_inputs(dataset, fold), "cpu")
    one = model_settings(config, job.model)
    fit_config = one.fit
    fitted = fit(
        one.registered,
        one.options,
        data,
        fold.train,
        fold.valid,
        fit_config=fit_config,
        seed=job.seed,
    )
    by_segment = {"valid": fitted}
    if "test" in job.segments:
        by_segment["test"] = (
            refit(fitted, data, fold.train, fold.valid, fit_config=fit_config, seed=job.seed)
            if fit_config.refit
            else fitted
        )
    row: dict[str, Any] = {"market": job.market, "model": job.model, "fold": job.fold, "seed": job.seed}
    label_TN = dataset.labels[config.label.delay]
    for segment in job.segments:
        dates = getattr(fold, segment)
        forecast_BN = by_segment[segment].forecast(data, dates)
        known_BN = np.isfinite(forecast_BN) & np.isfinite(label_TN[dates])
        truth_BN = np.where(known_BN, world.truth_TN[dates], np.nan)
        row[f"{segment}_rank_ic"] = _rank_ic(forecast_BN, label_TN[dates])
        row[f"{segment}_truth"] = forecast_metrics(truth_BN, label_TN[dates]).rank_ic
    row["seconds"] = time.perf_counter() - started
    return row


def _rank_ic(forecast_BN: npt.NDArray[np.float32], label_BN: npt.NDArray[np.float64]) -> float:
    """Mean daily rank IC; 0 for forecasts that are constant on every date."""
    value = forecast_metrics(forecast_BN, label_BN).rank_ic
    return value if np.isfinite(value) else 0.0


def execute(jobs: list[Job], workers: int) -> Iterator[dict[str, Any]]:
    """Run jobs in this process, or in forked workers that share the markets."""
    if workers == 1:
        yield from map(run_job, jobs)
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap_unordered(run_job, jobs)


def table(rows: pl.DataFrame, segment: str, models: list[str]) -> str:
    """Rank IC as a share of the truth's, folds pooled: mean and range over seeds."""
    shares = rows.group_by("market", "model", "seed").agg(
        (pl.col(f"{segment}_rank_ic").mean() / pl.col(f"{segment}_truth").mean()).alias("share")
    )
    markets = [market for market in MARKETS if market in set(rows["market"])]
    lines = [f"| model | {' | '.join(markets)} |", f"|---|{'---|' * len(markets)}"]
    for model in models:
        cells = []
        for market in markets:
            own = shares.filter((pl.col("market") == market) & (pl.col("model") == model))["share"].to_numpy()
            cells.append(f"{own.mean():.2f} ({own.min():.2f} to {own.max():.2f})" if len(own) else "")
        lines.append(f"| {model} | {' | '.join(cells)} |")
    truths = rows.group_by("market").agg(pl.col(f"{segment}_truth").mean())
    truth = dict(truths.iter_rows())
    lines.append(f"| truth's rank IC | {' | '.join(f'{truth[market]:.4f}' for market in markets)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the missing fits, then print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/ladder.yaml"))
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=c")
    parser.add_argument("--market", action="append", choices=tuple(MARKETS), help="default: all four")
    parser.add_argument("--model", action="append", help="default: the models of the config")
    parser.add_argument("--out", type=Path, default=Path("data/ladder.jsonl"))
    parser.add_argument("--no-test", action="store_true", help="do not use the test, for choosing settings")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    config = load_config(options.config, options.overrides)
    models = options.model or list(config.models)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known = (
        [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    )
    segments = ("valid",) if options.no_test else ("valid", "test")
    rows = []
    for market in options.market or list(MARKETS):
        own = market_config(config, market)
        shared = own.model_dump(mode="json", include={"source", "universe", "features", "label", "folds"})
        key = {model: digest([shared, str(model_settings(own, model)), segments]) for model in models}
        done = [row for row in known if row["market"] == market and row["key"] == key.get(row["model"])]
        finished = {(row["model"], row["fold"], row["seed"]) for row in done}
        rows += done
        _worlds[market] = build_world(own)
        folds = [fold.index for fold in plan_folds(_worlds[market].dataset, own)]
        jobs = [
            Job(market, model, fold, seed, segments)
            for seed in own.seeds
            for fold in folds
            for model in models
            if (model, fold, seed) not in finished
        ]
        with options.out.open("a", encoding="utf-8") as out:
            for row in execute(jobs, options.workers):
                row["key"] = key[row["model"]]
                out.write(json.dumps(row) + "\n")
                out.flush()
                rows.append(row)
                share = row["valid_rank_ic"] / row["valid_truth"]
                name = f"{row['market']} {row['model']} fold {row['fold']} seed {row['seed']}"
                print(f"{name}: validation share {share:+.2f}, {row['seconds']:.0f} s", flush=True)
        del _worlds[market]
    frame = pl.DataFrame(rows)
    for segment in segments:
        print(f"\nShare of the truth's rank IC on {segment} dates: mean and range over seeds\n")
        print(table(frame, segment, models))


if __name__ == "__main__":
    main()
