"""Pretraining and fine-tuning against training from scratch, with 100%, 30% and 10% of the labels.

Each model is fitted from random weights, and after pretraining with masked days or with the next day. It uses
the labels of all, 30% or 10% of the training dates; the dates are the same for all three. With fewer labels
there are more epochs, so that all fits make the same number of steps. The epoch with the best validation rank
IC forecasts the test once. The market is that of `configs/ladder.yaml`, by default smaller.

    .venv/bin/python benchmarks/pretraining.py                  # minutes on two cores
    .venv/bin/python benchmarks/pretraining.py --set source.market.firms=120 --set folds.train=1800

Finished fits are stored in a file and not repeated, so an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl
import torch
from ladder import World, build_world

from backtest.forecasts.metrics import forecast_metrics
from models.fitting.config import FitConfig, PretrainConfig
from models.fitting.fit import fit
from pipelines.config.load import digest, load_config, model_settings
from pipelines.config.schema import Config
from pipelines.dataset.folds import fit_inputs, plan_folds
from pipelines.train.task import collect_arrays, to_tensors

Start = Literal["scratch", "masked_days", "next_day"]
MODELS = ("temporal_transformer", "temporal_peer")
STARTS: tuple[Start, ...] = ("scratch", "masked_days", "next_day")
SHARES = (1.0, 0.3, 0.1)
SMALL = (
    "source.market={firms: 60, sessions: 1100}",
    "folds={train: 600, valid: 150, test: 150, max_folds: 1}",
    "seeds=[0, 1, 2]",
)
"""Settings with which the default ends in minutes; --set overrides them."""
_world: list[World] = []  # filled before the workers are forked, so that they share it


@dataclass(frozen=True, slots=True)
class Job:
    """One fit."""

    model: str
    start: Start
    share: float
    fold: int
    seed: int


def fitting(config: Config, job: Job, pretraining: PretrainConfig) -> FitConfig:
    """Training options of a job: the same number of steps for every share, and its pretraining."""
    own = model_settings(config, job.model).fit
    epochs = math.ceil(own.epochs / job.share)
    before = None if job.start == "scratch" else pretraining.model_copy(update={"objective": job.start})
    return own.model_copy(
        update={"epochs": epochs, "patience": epochs, "label_share": job.share, "pretrain": before}
    )


def run_job(args: tuple[Job, PretrainConfig]) -> dict[str, Any]:
    """Fit a model and measure its validation and test forecasts."""
    job, pretraining = args
    torch.set_num_threads(1)
    started = time.perf_counter()
    (world,) = _world
    config, dataset = world.config, world.dataset
    fold = plan_folds(dataset, config)[job.fold]
    data = to_tensors(collect_arrays(dataset, config.features.window), fit_inputs(dataset, fold), "cpu")
    how = fitting(config, job, pretraining)
    one, label_TN = model_settings(config, job.model), dataset.labels[config.label.delay]
    fitted = fit(one.registered, one.options, data, fold.train, fold.valid, fit_config=how, seed=job.seed)
    row: dict[str, Any] = dataclasses.asdict(job)
    row["epochs"] = max(range(len(fitted.history)), key=lambda e: fitted.history[e].valid_rank_ic) + 1
    row["pretrain_loss"] = next(
        (record["train_loss"] for record in reversed(fitted.state().config.get("pretraining", []))), None
    )
    for segment in ("valid", "test"):
        dates = getattr(fold, segment)
        row[segment] = forecast_metrics(fitted.forecast(data, dates), label_TN[dates]).rank_ic
        row[f"{segment}_truth"] = forecast_metrics(world.truth_TN[dates], label_TN[dates]).rank_ic
    row["seconds"] = time.perf_counter() - started
    return row


def execute(jobs: list[tuple[Job, PretrainConfig]], workers: int) -> Iterator[dict[str, Any]]:
    """Run jobs in this process, or in forked workers that share the market."""
    if workers == 1:
        yield from map(run_job, jobs)
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap_unordered(run_job, jobs)


def table(rows: pl.DataFrame) -> str:
    """Rank IC on validation and test by share of the labels: mean and range over folds and seeds."""
    heads = [f"{share:.0%} {segment}" for share in SHARES for segment in ("validation", "test")]
    lines = [f"| model | pretraining | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    for model in MODELS:
        for start in STARTS:
            own = rows.filter((pl.col("model") == model) & (pl.col("start") == start))
            if own.is_empty():
                continue
            cells = [
                _spread(own.filter(pl.col("share") == share)[segment].to_list(), "")
                for share in SHARES
                for segment in ("valid", "test")
            ]
            lines.append(f"| {model} | {start} | {' | '.join(cells)} |")
    truth = [
        f"{rows[f'{segment}_truth'].to_numpy().mean():.4f}" for _ in SHARES for segment in ("valid", "test")
    ]
    return "\n".join([*lines, f"| (truth) | | {' | '.join(truth)} |"])


def gains(rows: pl.DataFrame) -> str:
    """Test rank IC minus that of training from scratch on the same labels: mean and range."""
    key = ["model", "share", "fold", "seed"]
    scratch = rows.filter(pl.col("start") == "scratch").select(*key, pl.col("test").alias("base"))
    both = rows.filter(pl.col("start") != "scratch").join(scratch, on=key)
    lines = [
        f"| model | pretraining | {' | '.join(f'{share:.0%}' for share in SHARES)} |",
        f"|---|---|{'---|' * len(SHARES)}",
    ]
    for (model, start), own in (
        both.sort("start", *key)
        .sort("model", maintain_order=True)
        .group_by("model", "start", maintain_order=True)
    ):
        cells = [
            _spread((part["test"] - part["base"]).to_list(), "+")
            for part in (own.filter(pl.col("share") == share) for share in SHARES)
        ]
        lines.append(f"| {model} | {start} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: list[float], sign: str) -> str:
    if not values:
        return ""
    mean = sum(values) / len(values)
    return f"{mean:{sign}.4f} ({min(values):{sign}.4f} to {max(values):{sign}.4f})"


def main() -> None:
    """Run the missing fits, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/ladder.yaml"))
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=c")
    parser.add_argument("--model", action="append", choices=MODELS, help="default: both")
    parser.add_argument("--epochs", type=int, default=8, help="epochs of the pretraining")
    parser.add_argument("--windows", type=int, default=8192, help="windows per epoch of the pretraining")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate of the pretraining")
    parser.add_argument("--layer-decay", type=float, default=1.0, help="layer decay of the fine-tuning")
    parser.add_argument("--out", type=Path, default=Path("data/pretraining.jsonl"))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    decay = f"fit.layer_decay={options.layer_decay}"
    config = load_config(options.config, [*SMALL, decay, *options.overrides])
    pretraining = PretrainConfig(epochs=options.epochs, windows_per_epoch=options.windows, lr=options.lr)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known = (
        [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    )
    shared = config.model_dump(mode="json", include={"source", "universe", "features", "label", "folds"})
    models = options.model or MODELS
    key = {model: digest([shared, str(model_settings(config, model)), str(pretraining)]) for model in models}
    rows = [row for row in known if row["key"] == key.get(row["model"])]
    finished = {tuple(row[field.name] for field in dataclasses.fields(Job)) for row in rows}
    _world.append(build_world(config))
    jobs = [
        Job(model, start, share, fold.index, seed)
        for seed in config.seeds
        for fold in plan_folds(_world[0].dataset, config)
        for share in SHARES
        for model in models
        for start in STARTS
    ]
    left = [(job, pretraining) for job in jobs if dataclasses.astuple(job) not in finished]
    with options.out.open("a", encoding="utf-8") as out:
        for row in execute(left, options.workers):
            row["key"] = key[row["model"]]
            out.write(json.dumps(row) + "\n")
            out.flush()
            rows.append(row)
            name = f"{row['model']} {row['start']} {row['share']:.0%} fold {row['fold']} seed {row['seed']}"
            print(f"{name}: validation rank IC {row['valid']:+.4f}, {row['seconds']:.0f} s", flush=True)
    requested = {dataclasses.astuple(job) for job in jobs}
    frame = pl.DataFrame([r for r in rows if tuple(r[f.name] for f in dataclasses.fields(Job)) in requested])
    print("\nRank IC: mean and range over folds and seeds\n")
    print(table(frame))
    print("\nTest rank IC minus that of training from scratch on the same labels\n")
    print(gains(frame))


if __name__ == "__main__":
    main()
