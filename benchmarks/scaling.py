"""How loss and rank IC of attention models improve with parameters, training sessions and compute.

A long simulated market is split once: 8,000 sessions for training, then validation, then test. No firm leads
another in the market of temporal_transformer, which cannot see peers. A cell is a model, a size and a number
of training sessions D (the last D before validation). Sizes and settings follow one rule that was fixed
before any result: learning rate ``0.004 sqrt(32 / width)``, at least 500 steps of four dates and at least
four passes, and the epoch of the best validation rank IC. Cells that need more floating-point operations than
``--cap`` are left out, whatever their result would be. Each test segment is forecast once per fit.

The excess loss is the test loss minus that of the truth's own forecast. Power laws with bootstrap intervals
are fitted to it (`scaling_laws`). For every D, the size of least validation loss gives the size that a larger
or smaller data set needs. With ``--nasdaq``, the same sizes are trained on the Nasdaq firms and compared on
validation only.

    .venv/bin/python benchmarks/scaling.py --plot scaling.png      # about an hour and a quarter on two cores
    .venv/bin/peerglass ingest configs/nasdaq.yaml                 # needs the Nasdaq prices
    .venv/bin/python benchmarks/scaling.py --nasdaq
    .venv/bin/python benchmarks/scaling.py --table --plot scaling.png   # only what is stored

Finished fits are stored in a file and not repeated, so an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import torch
from ladder import build_world
from scaling_report import nasdaq_table, plot, predicted, report
from torch.utils.flop_counter import FlopCounterMode

from backtest.forecasts.metrics import forecast_metrics
from backtest.splits.folds import Fold
from features.arrays import FloatArray, IntArray
from features.options import Options
from models.batch import PanelTensors
from models.fitting.config import FitConfig
from models.fitting.fit import NeuralFitted, fit
from pipelines.config.load import digest, load_config, model_settings
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import fit_inputs, plan_folds
from pipelines.progress import Progress
from pipelines.run.open import prepare_run
from pipelines.train.task import collect_arrays, to_tensors

SIZES: dict[int, dict[str, int]] = {
    8: {"layers": 1, "heads": 4},
    16: {"layers": 1, "heads": 4},
    32: {"layers": 1, "heads": 4},
    48: {"layers": 2, "heads": 4},
    80: {"layers": 3, "heads": 4},
    128: {"layers": 5, "heads": 4},
}
"""Width of the day encoder -> its other sizes: about 1e3 to 1e6 parameters. The peer layer of temporal_peer
has the width of the encoder."""
SESSIONS = (250, 500, 1000, 2000, 4000, 8000)
MARKETS = {"temporal_transformer": ["source.market.peer_share=0.0"], "temporal_peer": []}
"""Model -> settings of its market."""
SEEDS = (0, 1)
STEPS, PASSES = 500, 4
BLOCK = 25
NASDAQ_FIRMS = 200


@dataclass(frozen=True, slots=True)
class Cell:
    """One fit: a model of a width, trained on some sessions with a seed."""

    model: str
    width: int
    sessions: int
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """What all fits share: the data and the one split."""

    config: Config
    dataset: Dataset
    data: PanelTensors
    fold: Fold
    truth_TN: FloatArray | None  # forecast of the truth, in units of the target


_studies: dict[str, Study] = {}  # by model; filled before the workers are forked, so that they share it


def options_of(config: Config, cell: Cell) -> tuple[Options, FitConfig]:
    """Settings of a cell's model and of its training, by the rule of the study."""
    one = model_settings(config, cell.model)
    own = one.options.model_dump()
    own["encoder"] = {**own.get("encoder", {}), "width": cell.width, **SIZES[cell.width]}
    if cell.model == "temporal_peer":
        own["peer_width"] = cell.width
    options, how = type(one.options)(**own), one.fit
    dates = min(how.dates_per_epoch or cell.sessions, cell.sessions)
    epochs = max(PASSES, math.ceil(STEPS * how.batch_dates / dates))
    lr = 0.004 * math.sqrt(32 / cell.width)
    changed = {"epochs": epochs, "patience": max(2, epochs // 4), "lr": lr}
    return options, how.model_copy(update=changed)


def flops_per_date(fitted: NeuralFitted, data: PanelTensors, dates: IntArray) -> float:
    """Floating-point operations of a forward and backward pass over one date."""
    counter = FlopCounterMode(display=False)
    with counter:
        fitted.module(data.batch(torch.as_tensor(dates))).sum().backward()
    fitted.module.zero_grad()
    return float(counter.get_total_flops()) / len(dates)


def run_cell(cell: Cell) -> dict[str, Any]:
    """Fit a cell; measure it on validation, and on the test if there is a truth."""
    torch.set_num_threads(1)
    study = _studies[cell.model]
    data, fold = study.data, study.fold
    settings, how = options_of(study.config, cell)
    train = fold.train[-cell.sessions :]
    started = time.process_time()
    fitted = cast(
        "NeuralFitted",
        fit(cell.model, settings, data, train, fold.valid, fit_config=how, seed=cell.seed),
    )
    seconds = time.process_time() - started
    each = flops_per_date(fitted, data, train[-how.batch_dates :].copy())
    share = (
        1.0 if cell.model == "temporal_peer" else min(1.0, (how.firms_per_date or math.inf) / _firms(study))
    )
    passes = len(fitted.history) * min(how.dates_per_epoch or len(train), len(train))
    row = {
        **asdict(cell),
        "parameters": sum(one.numel() for one in fitted.module.parameters()),
        "flops": each * share * passes,
        "epochs": len(fitted.history),
        "best_epoch": int(np.argmax([one.valid_rank_ic for one in fitted.history])),
        "seconds": seconds,
    }
    for segment in ("valid",) if study.truth_TN is None else ("valid", "test"):
        row |= measured(study, fitted, segment)
    return row


def _firms(study: Study) -> float:
    return float(study.dataset.universe_TN[study.fold.train].sum(axis=1).mean())


def measured(study: Study, fitted: NeuralFitted, segment: str) -> dict[str, Any]:
    """Rank IC, and loss by block of sessions, of the fit and of the truth on the same cells."""
    dates: IntArray = getattr(study.fold, segment)
    forecast_BN = fitted.forecast(study.data, dates)
    label_BN = study.dataset.labels[study.config.label.delay][dates]
    row: dict[str, Any] = {
        f"{segment}_rank_ic": forecast_metrics(forecast_BN, label_BN).rank_ic,
        f"{segment}_ic": forecast_metrics(forecast_BN, label_BN).ic,
    }
    target_BN = study.dataset.target_TN[dates].astype(np.float64)
    variance = float(np.nanvar(study.dataset.target_TN[study.fold.train].astype(np.float64)))
    losses = {"loss": forecast_BN.astype(np.float64)}
    if study.truth_TN is not None:
        truth_BN = study.truth_TN[dates]
        losses["truth"] = truth_BN
        known_BN = np.isfinite(truth_BN) & np.isfinite(forecast_BN)
        row[f"{segment}_truth_rank_ic"] = forecast_metrics(
            np.where(known_BN, truth_BN, np.nan), label_BN
        ).rank_ic
    known_BN = np.isfinite(target_BN) & np.logical_and.reduce([np.isfinite(one) for one in losses.values()])
    for name, value_BN in losses.items():
        squared_BN = np.where(known_BN, value_BN - target_BN, np.nan) ** 2 / variance
        blocks = np.array_split(squared_BN, max(1, len(dates) // BLOCK))
        row[f"{segment}_{name}"] = [round(float(np.nanmean(block)), 7) for block in blocks]
    return row


def truth_forecast(truth_TN: FloatArray, target_TN: FloatArray, train: IntArray) -> FloatArray:
    """The truth in units of the target: a multiple of ``mu`` and of its rank within the date.

    The two factors are fitted by least squares on the training sessions.
    """
    rank_TN = pl.DataFrame(truth_TN.T).select(
        (pl.all().fill_nan(None).rank() - 0.5) / pl.all().fill_nan(None).count() - 0.5
    )
    inputs = [truth_TN, rank_TN.to_numpy().T.astype(np.float64)]
    known_TN = np.isfinite(target_TN) & np.isfinite(truth_TN)
    rows_TN = np.zeros_like(known_TN)
    rows_TN[train] = known_TN[train]
    design = np.column_stack([one_TN[rows_TN] for one_TN in inputs])
    factors = np.linalg.lstsq(design, target_TN[rows_TN], rcond=None)[0]
    found: FloatArray = sum(factor * one_TN for factor, one_TN in zip(factors, inputs, strict=True))
    return found


def open_study(options: argparse.Namespace, model: str) -> Study:
    """Simulate the market of a model, or read the Nasdaq firms, and split it once."""
    if options.nasdaq:
        overrides = [f"models.temporal_transformer.fit.firms_per_date={NASDAQ_FIRMS}"]
        config = load_config(Path("configs/nasdaq.yaml"), [*overrides, *options.overrides])
        dataset, truth_TN = prepare_run(config, Progress(), record=False)[1], None
    else:
        config = load_config(Path("configs/scaling.yaml"), [*MARKETS[model], *options.overrides])
        world = build_world(config)
        dataset, truth_TN = world.dataset, world.truth_TN
    fold = plan_folds(dataset, config)[0]
    if truth_TN is not None:
        truth_TN = truth_forecast(truth_TN, dataset.target_TN.astype(np.float64), fold.train)
    data = to_tensors(collect_arrays(dataset, config.features.window), fit_inputs(dataset, fold), "cpu")
    return Study(config, dataset, data, fold, truth_TN)


def planned(options: argparse.Namespace) -> list[Cell]:
    """The cells within the cap, cheapest first within each seed."""
    cells: list[tuple[int, float, Cell]] = []
    sessions = (2000,) if options.nasdaq else SESSIONS
    for model, study in _studies.items():
        for seed, width, length in itertools.product(options.seed or SEEDS, SIZES, sessions):
            cell = Cell(model, width, length, seed)
            cost = expected_flops(study, cell)
            if cost <= options.cap:
                cells.append((seed, cost, cell))
    return [cell for _, _, cell in sorted(cells, key=lambda one: one[:2])]


def expected_flops(study: Study, cell: Cell) -> float:
    """Six operations per weight of a block, day and window, if training does not stop early."""
    own, how = options_of(study.config, cell)
    firms = _firms(study)
    if cell.model != "temporal_peer":
        firms = min(firms, how.firms_per_date or firms)
    weights = 12.0 * own.model_dump()["encoder"]["layers"] * cell.width**2
    passes = how.epochs * min(how.dates_per_epoch or cell.sessions, cell.sessions)
    return float(6.0 * weights * study.config.features.window * firms * passes)


def execute(cells: list[Cell], workers: int) -> Iterator[dict[str, Any]]:
    """Run the cells in this process, or in forked workers that share the data."""
    if workers == 1:
        yield from map(run_cell, cells)
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap_unordered(run_cell, cells)


def key_of(cell: Cell) -> str:
    """Digest of all settings that a cell's result depends on."""
    config = _studies[cell.model].config
    shared = config.model_dump(mode="json", include={"source", "universe", "features", "label", "folds"})
    return digest([shared, *map(str, options_of(config, cell)), asdict(cell)])


def stored(path: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Read the stored rows whose keys are asked for."""
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if row["key"] in keys]


def main() -> None:
    """Run the missing fits, then print the tables and the laws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=c")
    parser.add_argument("--model", action="append", choices=tuple(MARKETS), help="default: both")
    parser.add_argument("--seed", action="append", type=int, help="default: 0 and 1")
    parser.add_argument("--cap", type=float, default=5e12, help="largest number of operations of a fit")
    parser.add_argument("--nasdaq", action="store_true", help="train the sizes on the Nasdaq firms")
    parser.add_argument("--signal", type=float, help="predict the best size of as many sessions")
    parser.add_argument("--table", action="store_true", help="only print what is stored")
    parser.add_argument("--plot", type=Path, help="write the plot here")
    parser.add_argument("--out", type=Path, default=Path("data/scaling.jsonl"))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    for model in options.model or MARKETS:
        same = next(iter(_studies.values()), None) if options.nasdaq else None
        _studies[model] = same or open_study(options, model)
    keys = {cell: key_of(cell) for cell in planned(options)}
    rows = stored(options.out, list(keys.values()))
    finished = {row["key"] for row in rows}
    missing = [] if options.table else [cell for cell, key in keys.items() if key not in finished]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for row in execute(missing, options.workers):
        row["key"] = keys[Cell(row["model"], row["width"], row["sessions"], row["seed"])]
        rows.append(row)
        with options.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
        size = f"{row['model']} {row['parameters']:,} parameters, {row['sessions']} sessions"
        cost = f"{row['seconds']:.0f} s, {row['flops']:.2g} FLOPs"
        print(
            f"{size}, seed {row['seed']}: validation rank IC {row['valid_rank_ic']:.4f}, {cost}", flush=True
        )
    frame = pl.DataFrame(rows, infer_schema_length=None)
    if options.nasdaq:
        print(nasdaq_table(frame))
        return
    for model in options.model or MARKETS:
        print(report(frame, model), "\n")
        if options.signal:
            print(predicted(frame, model, options.signal), "\n")
    if options.plot:
        plot(frame, options.plot)


if __name__ == "__main__":
    main()
