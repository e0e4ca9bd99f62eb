"""Walk-forward training: every (model, fold, seed) is a task that is done once, whatever interrupts it.

A task fits on the fold's training sessions, chooses on its validation sessions, may then fit its choice again
on both, and forecasts its test sessions a single time. Its checkpoint is written first and its forecasts are
then committed to the lake in one transaction: that commit is what makes the task done. A task is a pure
function of its arguments, computed on one thread, so that doing it again after a kill gives the same numbers;
a network leaves a snapshot after every epoch, and goes on from there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from backtest.metrics import forecast_metrics
from backtest.splits import Fold
from models.batch import PanelTensors
from models.fitted import Fitted, IntArray, Unlearnable
from models.fitting.fit import Diverged, EpochRecord, FitConfig, FittedState, NeuralFitted, fit, refit
from models.fitting.loop import OnEpoch
from models.fitting.snapshot import UnusableSnapshot
from models.spec import Misfit
from pipelines.checkpoints import checkpoint_exists, save_checkpoint, sweep_partial
from pipelines.completeness import describe_missing
from pipelines.config_load import build_settings, settings_of
from pipelines.dataset import Dataset, FoldInputs, fit_inputs, fold_table, plan_folds
from pipelines.device import pick_device
from pipelines.errors import ConfigError, DivergedError
from pipelines.hazards import hazards_of
from pipelines.init_from import load_start, starting_checkpoint, write_folds
from pipelines.lake import Lake
from pipelines.progress import Progress
from pipelines.provenance import TaskDone, TrainingEnded, TrainingStarted, environment, record
from pipelines.quantile_scores import Scores, score_quantiles, write_quantile_scores
from pipelines.runs import Run
from pipelines.snapshots import FileKeeper
from pipelines.trials import record_trials, trial_count
from pipelines.variants import registry_name
from pipelines.watch import watch_curves

Key = tuple[str, int, int]
"""Model, fold and seed of a task."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """The part of a dataset that a task reads, before its fold's `FoldInputs`."""

    channels_TNC: npt.NDArray[np.float32]
    characteristics_TNF: npt.NDArray[np.float32]
    universe_TN: npt.NDArray[np.bool_]
    group_TN: npt.NDArray[np.int64]
    target_TN: npt.NDArray[np.float32]
    label_TN: npt.NDArray[np.float64]
    path_TNK: npt.NDArray[np.float32] | None
    characteristic_names: tuple[str, ...]
    tickers: tuple[str, ...]
    window: int


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One model to be fitted on one fold with one seed."""

    model: str  # the entry of the config
    registered: str  # the model that it is
    settings: Mapping[str, Any]
    fit: FitConfig
    fold: Fold
    seed: int
    inputs: FoldInputs
    device: str
    curve: Path
    snapshot: Path | None = None  # where an unfinished training is kept; None: nowhere
    start: Path | None = None  # checkpoint of an earlier run whose day encoder it begins with

    @property
    def key(self) -> Key:
        """What it is done under."""
        return self.model, self.fold.index, self.seed


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a task answers: forecasts of its validation and test sessions, and the fitted state."""

    test_BN: npt.NDArray[np.float32]
    valid_rank_ic: float
    valid_ic: float
    history: tuple[EpochRecord, ...]
    state: FittedState
    path_BNK: npt.NDArray[np.float32] | None = (
        None  # test forecasts of the shorter horizons, if there are some
    )
    quantile_scores: Scores | None = None  # of the test, of a model that was fitted to quantiles


def train(run: Run, dataset: Dataset, lake: Lake, progress: Progress) -> None:
    """Do every task of a run that is not done yet, and commit each as soon as it ends."""
    from pipelines.stacks import run_stacks, stacks_of  # it trains several tasks of this module as one

    folds = plan_folds(dataset, run.config)
    sweep_partial(run.folder / "checkpoints")
    done = _done(run, lake)
    assert run.identity is not None, "what is trained has an identity"
    record_trials(run.folder.parent, run.run_id, run.config, dict(run.identity.settings))
    write_folds(run, dataset, folds)
    run.write_table("folds", fold_table(dataset, folds))
    planned = list(plan_tasks(run, dataset, folds))
    tasks = [task for task in planned if task.key not in done]
    stacks = stacks_of(planned, done, run.config.stack_seeds)
    stacked = {task.key for stack in stacks for task in stack}
    alone = [task for task in tasks if task.key not in stacked]
    if tasks:
        record(run, _started(run, dataset, lake, done=len(planned) - len(tasks), planned=len(planned)))
    left = {task.key for task in tasks}
    started = time.monotonic()
    with progress.stage("train", total=len(tasks)), watch_curves(run.folder / "curves", progress):
        for note in _silent_channels(tasks, dataset):
            progress.note(note)
        if done:
            progress.note(f"{len(done)} of {len(done) + len(tasks)} tasks were already done and are kept.")
        arrays = gather(dataset, run.config.features.window)
        try:
            for task, outcome in chain(
                _execute(alone, arrays, run.config.workers), run_stacks(stacks, arrays, done)
            ):
                _commit(run, lake, dataset, task, outcome)
                left.remove(task.key)
                progress.step(
                    f"{task.model} fold {task.fold.index} seed {task.seed}: "
                    f"validation rank IC {outcome.valid_rank_ic:+.4f}"
                )
        finally:
            if left:
                ordered = [task.key for task in tasks if task.key in left]
                missing = describe_missing(ordered, [fold.index for fold in folds], run.config.seeds)
                progress.note(f"The run is incomplete. Missing: {missing}. The same command trains it.")
    if tasks:
        record(run, TrainingEnded(seconds=round(time.monotonic() - started, 1)))


def _started(run: Run, dataset: Dataset, lake: Lake, *, done: int, planned: int) -> TrainingStarted:
    """Describe the training session that begins."""
    hazards, notes = hazards_of(run, dataset, lake)
    return TrainingStarted(
        environment=environment(),
        device=pick_device(run.config.device),
        versions=dict(run.versions),
        hazards=tuple(hazards),
        notes=tuple(notes),
        trials=trial_count(run.folder.parent),
        done=done,
        planned=planned,
    )


def run_task(task: Task, arrays: Arrays, keeper: FileKeeper | None = None) -> Outcome:
    """Fit, choose on validation, fit again if asked to, forecast the test once, on one thread on a CPU.

    With a keeper, an unfinished training goes on from its snapshot; what comes out is the same to the bit.
    """
    if task.device == "cpu":
        torch.set_num_threads(1)
    data, start = to_tensors(arrays, task.inputs, task.device), load_start(task.start)
    with learning_curve(task.curve) as on_epoch, _going_on(keeper):
        chosen = fit(
            task.registered,
            task.settings,
            data,
            data.shape,
            task.fold.train,
            task.fold.valid,
            fit_config=task.fit,
            seed=task.seed,
            on_epoch=on_epoch,
            keeper=keeper,
            start=start,
        )
    if not task.fit.refit:
        return outcome_of(task, arrays, data, chosen)
    again = None if keeper is None else keeper.beside("refit")
    with _going_on(again):
        fitted = refit(
            chosen,
            data,
            task.fold.train,
            task.fold.valid,
            fit_config=task.fit,
            seed=task.seed,
            keeper=again,
            start=start,
        )
    return outcome_of(task, arrays, data, chosen, fitted)


@contextmanager
def _going_on(keeper: FileKeeper | None) -> Iterator[None]:
    """Say which file holds a snapshot that cannot be continued."""
    try:
        yield
    except UnusableSnapshot as error:
        assert keeper is not None, "a snapshot came from somewhere"
        raise keeper.unusable(error) from None


@contextmanager
def learning_curve(path: Path) -> Iterator[OnEpoch]:
    """Open a learning curve; what is given writes a line an epoch, at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as curve:

        def on_epoch(record: EpochRecord) -> None:
            curve.write(json.dumps(asdict(record)) + "\n")
            curve.flush()

        yield on_epoch


def outcome_of(
    task: Task, arrays: Arrays, data: PanelTensors, chosen: Fitted, refitted: Fitted | None = None
) -> Outcome:
    """Measure a fitted model on its task's validation, and let it forecast its test once.

    Where it was fitted again with validation among its training sessions, the one that was chosen by them is
    measured, and the other forecasts.
    """
    valid = forecast_metrics(chosen.forecast(data, task.fold.valid), arrays.label_TN[task.fold.valid])
    fitted = chosen if refitted is None else refitted
    return Outcome(
        test_BN=fitted.forecast(data, task.fold.test),
        valid_rank_ic=valid.rank_ic,
        valid_ic=valid.ic,
        history=tuple(fitted.history),
        state=fitted.state(),
        path_BNK=_path(fitted, data, task.fold.test),
        quantile_scores=_quantile_scores(task, arrays, data, fitted),
    )


def _quantile_scores(task: Task, arrays: Arrays, data: PanelTensors, fitted: Fitted) -> Scores | None:
    """Score the test's quantiles, of a model that was fitted to some."""
    if not isinstance(fitted, NeuralFitted) or fitted.module.quantile_head is None:
        return None
    levels, fold = fitted.module.quantile_head.levels, task.fold
    quantile_BNQ = fitted.quantiles(data, fold.test)
    target_TN = np.where(arrays.universe_TN, arrays.target_TN, np.float32(np.nan))
    return score_quantiles(quantile_BNQ, target_TN, levels, fold.train, fold.test)


def _path(fitted: Fitted, data: PanelTensors, dates: IntArray) -> npt.NDArray[np.float32] | None:
    """Forecasts of the horizons below the label's, of a model that has some."""
    if not isinstance(fitted, NeuralFitted) or fitted.module.n_horizons == 1:
        return None
    return fitted.horizons(data, dates)[..., :-1]


def gather(dataset: Dataset, window: int) -> Arrays:
    """Collect the arrays that tasks read."""
    delay = next(iter(dataset.labels))
    return Arrays(
        channels_TNC=dataset.channels_TNC,
        characteristics_TNF=dataset.characteristics_TNF,
        universe_TN=dataset.universe_TN,
        group_TN=dataset.panel.group_TN.astype(np.int64),
        target_TN=dataset.target_TN,
        label_TN=np.where(dataset.universe_TN, dataset.labels[delay], np.nan),
        path_TNK=dataset.path_TNK,
        characteristic_names=dataset.characteristic_names,
        tickers=tuple(dataset.panel.tickers_N),
        window=window,
    )


def to_tensors(arrays: Arrays, inputs: FoldInputs, device: str) -> PanelTensors:
    """Put a fold's panel on the device, channels and groups as the fold's training sessions know them."""
    return PanelTensors.from_arrays(
        channels_TNC=inputs.scaler.apply(arrays.channels_TNC),
        characteristics_TNF=np.asarray(arrays.characteristics_TNF),
        mask_TN=np.asarray(arrays.universe_TN),
        group_TN=inputs.known_groups(arrays.group_TN),
        target_TN=np.asarray(arrays.target_TN),
        window=arrays.window,
        n_groups=len(inputs.groups_G),
        characteristic_names=arrays.characteristic_names,
        firm_names=arrays.tickers,
        path_TNK=None if arrays.path_TNK is None else np.asarray(arrays.path_TNK),
        device=device,
    )


def plan_tasks(run: Run, dataset: Dataset, folds: Sequence[Fold]) -> Iterator[Task]:
    """Give every task of a run: fold by fold, seed by seed, model by model; inputs are fitted once a fold."""
    device = pick_device(run.config.device)
    inputs = {fold.index: fit_inputs(dataset, fold) for fold in folds}
    for fold in folds:
        for seed in run.config.seeds:
            for model in run.config.models:
                settings, fit_settings = settings_of(run.config, model)
                yield Task(
                    model=model,
                    registered=registry_name(run.config, model),
                    settings=settings,
                    fit=build_settings(FitConfig, fit_settings, f"models.{model}.fit"),
                    fold=fold,
                    seed=seed,
                    inputs=inputs[fold.index],
                    device=device,
                    curve=run.curve(model, fold.index, seed),
                    snapshot=run.snapshot(model, fold.index, seed),
                    start=starting_checkpoint(run.config, dataset, fold, model, seed),
                )


def _silent_channels(tasks: Sequence[Task], dataset: Dataset) -> list[str]:
    """Name the channels that a fold's training sessions never saw move; its models do not see them either."""
    silent = {
        (name, task.fold.index)
        for task in tasks
        for name, std in zip(dataset.channel_names, task.inputs.scaler.std_C, strict=True)
        if np.isinf(std)
    }
    return [
        f"Channel {name} has no variation on the training sessions of fold {fold}: its models do not see it."
        for name, fold in sorted(silent)
    ]


def _execute(tasks: Sequence[Task], arrays: Arrays, workers: int) -> Iterator[tuple[Task, Outcome]]:
    """Run tasks here, or in a pool of single-threaded processes that share the arrays by memory map."""
    if workers == 1 or len(tasks) < 2 or tasks[0].device != "cpu":
        for index, _ in enumerate(tasks):
            yield tasks[index], _attempt(index, tasks, arrays)[1]
        return
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
    for index, outcome in pool(delayed(_attempt)(index, tasks, arrays) for index in range(len(tasks))):
        yield tasks[index], outcome


def _attempt(index: int, tasks: Sequence[Task], arrays: Arrays) -> tuple[int, Outcome]:
    task = tasks[index]
    keeper = None if task.snapshot is None else FileKeeper(task.snapshot)
    with sentences(task, f"seed {task.seed}"):
        return index, run_task(task, arrays, keeper)


@contextmanager
def sentences(task: Task, seeds: str) -> Iterator[None]:
    """Say in a sentence why a fit has no model: exit code 5, or 2 where the data cannot serve the options."""
    who = f"{task.model}, fold {task.fold.index}, {seeds}"
    try:
        yield
    except Misfit as error:
        raise ConfigError(f"models.{task.model}: {error}") from None
    except Unlearnable as error:
        raise DivergedError(f"{who}: {error} Finished folds are kept.") from None
    except Diverged as error:
        raise DivergedError(
            f"{who}: {error} Lower models.{task.model}.fit.lr (now {task.fit.lr}); finished folds are kept."
        ) from None
    except torch.OutOfMemoryError:
        raise DivergedError(
            f"{who}: the device {task.device} has no memory left at fit.batch_dates {task.fit.batch_dates}. "
            f"{_less_memory(task, seeds)}; finished folds are kept."
        ) from None


def _less_memory(task: Task, seeds: str) -> str:
    if task.fit.batch_dates > 1:
        cure = f"Lower models.{task.model}.fit.batch_dates"
        return cure if seeds.startswith("seed ") else f"{cure}, or set stack_seeds: false"
    return "A single date is too large: take a smaller model or universe, or set device: cpu"


def _commit(run: Run, lake: Lake, dataset: Dataset, task: Task, outcome: Outcome) -> None:
    save_checkpoint(run.checkpoint(task.model, task.fold.index, task.seed), outcome.state, task.inputs)
    if outcome.path_BNK is not None:
        steps = zip(dataset.shorter.items(), np.moveaxis(outcome.path_BNK, 2, 0), strict=True)
        parts = [
            _rows(run, dataset, task, path_BN, label_TN).with_columns(
                pl.lit(horizon, dtype=pl.Int64).alias("horizon")
            )
            for (horizon, label_TN), path_BN in steps
        ]
        lake.upsert("forecast_paths", pl.concat(parts))
    label_TN = dataset.labels[run.config.label.delay]
    lake.upsert("forecasts", _rows(run, dataset, task, outcome.test_BN, label_TN))
    scores = {"valid_rank_ic": outcome.valid_rank_ic, "valid_ic": outcome.valid_ic}
    if outcome.state.config.get("pretraining"):
        scores["pretrain_loss"] = outcome.state.config["pretraining"][-1]["train_loss"]
    if outcome.quantile_scores is not None:
        write_quantile_scores(run, task.key, outcome.quantile_scores)
    # recorded before the score is written: a task counts as done from then on, and has its event
    record(run, TaskDone(model=task.model, fold=task.fold.index, seed=task.seed))
    run.write_text(_score_file(task.model, task.fold.index, task.seed), json.dumps(scores))
    if task.snapshot is not None:
        keeper = FileKeeper(task.snapshot)
        keeper.forget()
        keeper.beside("refit").forget()


def _rows(
    run: Run,
    dataset: Dataset,
    task: Task,
    forecast_BN: npt.NDArray[np.float32],
    label_TN: npt.NDArray[np.float64],
) -> pl.DataFrame:
    """Lay a task's test forecasts out as the lake stores them, a row a date and firm."""
    rows, columns = np.nonzero(np.isfinite(forecast_BN))
    return pl.DataFrame(
        {
            "date": dataset.panel.dates_T[task.fold.test][rows],
            "ticker": np.asarray(dataset.panel.tickers_N)[columns],
            "forecast": forecast_BN[rows, columns].astype(np.float64),
            "label": label_TN[task.fold.test][rows, columns],
        }
    ).select(
        pl.lit(run.run_id).alias("run_id"),
        pl.lit(task.model).alias("model"),
        pl.lit(task.fold.index, dtype=pl.Int64).alias("fold"),
        pl.lit(task.seed, dtype=pl.Int64).alias("seed"),
        pl.col("date").cast(pl.Date),
        "ticker",
        "forecast",
        pl.col("label").fill_nan(None),
    )


def _score_file(model: str, fold: int, seed: int) -> str:
    return f"scores/{model}-fold-{fold}-seed-{seed}.json"


def read_scores(run: Run) -> pl.DataFrame:
    """Scores of the finished tasks: model, fold, seed, valid_ic, valid_rank_ic, pretrain_loss (or null)."""
    rows = []
    for path in sorted((run.folder / "scores").glob("*.json")):
        model, _, rest = path.stem.rpartition("-fold-")
        fold, _, seed = rest.partition("-seed-")
        rows.append({"model": model, "fold": int(fold), "seed": int(seed), **json.loads(path.read_text())})
    return pl.DataFrame(
        rows,
        schema={
            "model": pl.String,
            "fold": pl.Int64,
            "seed": pl.Int64,
            "valid_rank_ic": pl.Float64,
            "valid_ic": pl.Float64,
            "pretrain_loss": pl.Float64,
        },
    )


def read_curves(run: Run) -> pl.DataFrame:
    """Learning curves of the finished tasks: model, fold, seed, epoch, train_loss, valid_rank_ic, ..."""
    rows = []
    for path in sorted((run.folder / "curves").glob("*.jsonl")):
        model, _, rest = path.stem.rpartition("-fold-")
        fold, _, seed = rest.partition("-seed-")
        for line in path.read_text().splitlines():
            rows.append({"model": model, "fold": int(fold), "seed": int(seed), **json.loads(line)})
    return pl.DataFrame(rows)


def _done(run: Run, lake: Lake) -> set[Key]:
    """Tasks whose forecasts are committed and whose checkpoint and scores are still there."""
    if not lake.exists("forecasts"):
        return set()
    keys = lake.read(
        "forecasts", filters=pl.col("run_id") == run.run_id, columns=["model", "fold", "seed"]
    ).unique()
    return {
        (model, fold, seed)
        for model, fold, seed in keys.iter_rows()
        if checkpoint_exists(run.checkpoint(model, fold, seed))
        and (run.folder / _score_file(model, fold, seed)).is_file()
    }
