"""Fine-tuned against from scratch on the simulated market, at 100%, 30% and 10% of the labels.

Each model is fitted from its first weights and after a pretraining by masked days or next day, with the
labels of all, three tenths and a tenth of the training dates (whole dates, the same for all three). The fewer
labels, the more epochs, so that every fit makes the same number of steps; the epoch with the best validation
rank IC is kept, and forecasts the test once. The market is that of `configs/ladder.yaml`, by default smaller.

    .venv/bin/python benchmarks/pretraining.py                  # minutes on two cores
    .venv/bin/python benchmarks/pretraining.py --set source.market.firms=120 --set folds.train=1800

Finished fits are kept in a file and not repeated, so an interrupted run goes on where it was.
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

from backtest.metrics import forecast_metrics
from models.fitting.fit import FitConfig, fit
from models.fitting.objectives import PretrainConfig
from pipelines.config.load import build_settings, digest, load_config, settings_of
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import fit_inputs, plan_folds
from pipelines.train.plan import collect_arrays
from pipelines.train.task import to_tensors

Beginning = Literal["scratch", "masked_days", "next_day"]
MODELS = ("temporal_transformer", "temporal_peer")
BEGINNINGS: tuple[Beginning, ...] = ("scratch", "masked_days", "next_day")
SHARES = (1.0, 0.3, 0.1)
SMALL = (
    "source.market={firms: 60, sessions: 1100}",
    "folds={train: 600, valid: 150, test: 150, max_folds: 1}",
    "seeds=[0, 1, 2]",
)
"""What makes the default end in minutes; --set goes over it."""
_world: list[World] = []  # built before the workers are forked, which then share it


@dataclass(frozen=True, slots=True)
class Job:
    """One fit."""

    model: str
    beginning: Beginning
    share: float
    fold: int
    seed: int


def fitting(config: Config, job: Job, pretraining: PretrainConfig) -> FitConfig:
    """The loop's options of a job: as many steps whatever the share, the pretraining that it begins with."""
    own = build_settings(FitConfig, settings_of(config, job.model)[1], f"models.{job.model}.fit")
    epochs = math.ceil(own.epochs / job.share)
    before = None if job.beginning == "scratch" else dataclasses.replace(pretraining, objective=job.beginning)
    return dataclasses.replace(own, epochs=epochs, patience=epochs, label_share=job.share, pretrain=before)


def run_job(asked: tuple[Job, PretrainConfig]) -> dict[str, Any]:
    """Fit a model and measure its validation and test forecasts."""
    job, pretraining = asked
    torch.set_num_threads(1)
    started = time.perf_counter()
    (world,) = _world
    config, dataset = world.config, world.dataset
    fold = plan_folds(dataset, config)[job.fold]
    data = to_tensors(collect_arrays(dataset, config.features.window), fit_inputs(dataset, fold), "cpu")
    how = fitting(config, job, pretraining)
    own, label_TN = settings_of(config, job.model)[0], dataset.labels[config.label.delay]
    name = registry_name(config, job.model)
    fitted = fit(name, own, data, data.shape, fold.train, fold.valid, fit_config=how, seed=job.seed)
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
    """Run jobs in this process, or in forked ones that share the market."""
    if workers == 1:
        yield from map(run_job, jobs)
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap_unordered(run_job, jobs)


def table(rows: pl.DataFrame) -> str:
    """Rank IC on validation and test by share of the labels: mean over folds and seeds, and their range."""
    heads = [f"{share:.0%} {segment}" for share in SHARES for segment in ("validation", "test")]
    lines = [f"| model | begun | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    for model in MODELS:
        for beginning in BEGINNINGS:
            own = rows.filter((pl.col("model") == model) & (pl.col("beginning") == beginning))
            if own.is_empty():
                continue
            cells = [
                _spread(own.filter(pl.col("share") == share)[segment].to_list(), "")
                for share in SHARES
                for segment in ("valid", "test")
            ]
            lines.append(f"| {model} | {beginning} | {' | '.join(cells)} |")
    truth = [
        f"{rows[f'{segment}_truth'].to_numpy().mean():.4f}" for _ in SHARES for segment in ("valid", "test")
    ]
    return "\n".join([*lines, f"| (the truth itself) | | {' | '.join(truth)} |"])


def gains(rows: pl.DataFrame) -> str:
    """Test rank IC less that from scratch with the same model, fold, seed and labels: mean and range."""
    key = ["model", "share", "fold", "seed"]
    scratch = rows.filter(pl.col("beginning") == "scratch").select(*key, pl.col("test").alias("base"))
    both = rows.filter(pl.col("beginning") != "scratch").join(scratch, on=key)
    lines = [
        f"| model | begun | {' | '.join(f'{share:.0%}' for share in SHARES)} |",
        f"|---|---|{'---|' * len(SHARES)}",
    ]
    for (model, beginning), own in (
        both.sort("beginning", *key)
        .sort("model", maintain_order=True)
        .group_by("model", "beginning", maintain_order=True)
    ):
        cells = [
            _spread((part["test"] - part["base"]).to_list(), "+")
            for part in (own.filter(pl.col("share") == share) for share in SHARES)
        ]
        lines.append(f"| {model} | {beginning} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: list[float], sign: str) -> str:
    if not values:
        return ""
    mean = sum(values) / len(values)
    return f"{mean:{sign}.4f} ({min(values):{sign}.4f} to {max(values):{sign}.4f})"


def main() -> None:
    """Fit what is not there yet, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/ladder.yaml"))
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=c")
    parser.add_argument("--model", action="append", choices=MODELS, help="both by default")
    parser.add_argument("--epochs", type=int, default=8, help="of the pretraining")
    parser.add_argument("--windows", type=int, default=8192, help="an epoch of the pretraining")
    parser.add_argument("--lr", type=float, default=2e-3, help="of the pretraining")
    parser.add_argument("--layer-decay", type=float, default=1.0, help="of the fine-tuning")
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
    key = {
        model: digest([shared, settings_of(config, model), dataclasses.asdict(pretraining)])
        for model in models
    }
    rows = [row for row in known if row["key"] == key.get(row["model"])]
    held = {tuple(row[field.name] for field in dataclasses.fields(Job)) for row in rows}
    _world.append(build_world(config))
    jobs = [
        Job(model, beginning, share, fold.index, seed)
        for seed in config.seeds
        for fold in plan_folds(_world[0].dataset, config)
        for share in SHARES
        for model in models
        for beginning in BEGINNINGS
    ]
    left = [(job, pretraining) for job in jobs if dataclasses.astuple(job) not in held]
    with options.out.open("a", encoding="utf-8") as out:
        for row in execute(left, options.workers):
            row["key"] = key[row["model"]]
            out.write(json.dumps(row) + "\n")
            out.flush()
            rows.append(row)
            name = (
                f"{row['model']} {row['beginning']} {row['share']:.0%} fold {row['fold']} seed {row['seed']}"
            )
            print(f"{name}: validation rank IC {row['valid']:+.4f}, {row['seconds']:.0f} s", flush=True)
    wanted = {dataclasses.astuple(job) for job in jobs}
    frame = pl.DataFrame([r for r in rows if tuple(r[f.name] for f in dataclasses.fields(Job)) in wanted])
    print("\nRank IC; mean over folds and seeds, and their range\n")
    print(table(frame))
    print("\nTest rank IC less that from scratch on the same labels\n")
    print(gains(frame))


if __name__ == "__main__":
    main()
