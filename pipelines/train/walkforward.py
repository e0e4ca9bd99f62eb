"""Walk-forward training: each combination of model, fold and seed is a task that is done exactly once.

A task's checkpoint is written first, then its forecasts are committed to the lake in one transaction, then
its scores are written, which marks it as done. What a task is: `pipelines.train.task`.

A member of an ensemble leaves its validation and test forecasts in the run's folder. The validation forecasts
are those of the fit that validation has scored: with ``fit.refit`` the stored model has seen these sessions.
Once all members of a fold are done, the weights are chosen from the validation forecasts of all seeds, and
every seed of the ensemble combines the forecasts of its seed (`models.ensemble`). Its checkpoint contains its
members, so that a night, an explanation or MLflow needs no other file. Nothing is trained or forecast again.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain, groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.forecasts.metrics import forecast_metrics
from backtest.splits.folds import Fold
from models.calibration import Line
from models.ensemble import EnsembleConfig, EnsembleFitted, combine
from models.fitted import EpochRecord
from models.fitting.plan import why_eager
from models.registry import model_entry
from pipelines.config.load import members_of, model_settings, registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import fit_inputs, fold_table, plan_folds
from pipelines.device import resolve_device
from pipelines.errors import ConfigError
from pipelines.files import damaged, remove_partial, replacing, write_text
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.run.checkpoints import FileSnapshotStore, checkpoint_exists, load_checkpoint, save_checkpoint
from pipelines.run.completeness import committed_tasks, describe_missing
from pipelines.run.provenance import TaskDone, TrainingEnded, TrainingStarted, environment, record
from pipelines.run.record import CURVES, QUANTILE_SCORES, SCORES, RecordedRun, TaskKey
from pipelines.run.stored import StoredRun
from pipelines.run.warm_start import load_warm_start, warm_start_checkpoint, write_folds
from pipelines.train.task import Outcome, Task, collect_arrays, task_device
from pipelines.train.trials import Scope, count_trials, record_trials, share_trials
from pipelines.train.work import Group, News, group_item, groups_of, run_groups


def train(run: RecordedRun, dataset: Dataset, lake: Lake, progress: Progress) -> None:
    """Run all tasks of a run that are not done, and commit each as soon as it finishes."""
    folds = plan_folds(dataset, run.config)
    remove_partial(run.folder / "checkpoints")
    done = done_tasks(run, lake)
    record_trials(run.folder.parent, run.run_id, run.config, run.identity.settings)
    share_trials(run.folder.parent, run.config.output_store)
    copy = StoredRun(run)
    write_folds(run, dataset, folds)
    run.write_table("folds", fold_table(dataset, folds))
    planned = list(plan_tasks(run, dataset, folds))
    left = {task.key: task for task in planned if task.key not in done}
    tasks = list(left.values())
    if tasks:
        hazards, notes = collect_hazards(run, dataset, lake)
        started = TrainingStarted(
            environment=environment(),
            device=resolve_device(run.config.device),
            versions=dict(run.versions),
            hazards=tuple(hazards),
            notes=tuple(notes),
            trials=count_trials(run.folder.parent, Scope.of(run.config)).trials,
            done=len(planned) - len(tasks),
            planned=len(planned),
        )
        record(run, started)
    began = time.monotonic()
    places = Counter(task.device.partition(":")[0] for task in tasks)
    with progress.stage("train", total=len(tasks), places=places):
        eager = {why_eager(task.registered, task.device) for task in tasks} - {""}
        for note in (*constant_channels(tasks, dataset), *sorted(eager)):
            progress.note(note)
        if done:
            progress.note(f"{len(done)} of {len(planned)} tasks were already done and are skipped.")
        try:
            trained = compute(run, dataset, groups_of(planned, done, run.config.stack_seeds), progress)
            for task, outcome in chain(trained, combine_members(run, dataset, tasks)):
                if task.key not in left:  # a repeated stack computes all its seeds
                    continue
                commit(run, lake, dataset, task, outcome)
                copy.store()
                del left[task.key]
                said = f"{task.model} fold {task.fold.index} seed {task.seed}: {_describe(outcome)}"
                progress.step(said, task.device.partition(":")[0])
        finally:
            missing = describe_missing(left, [fold.index for fold in folds], run.config.seeds)
            if missing is not None:
                progress.note(
                    f"The run is incomplete. Missing: {missing}. Repeat the command to train the rest."
                )
    if tasks:
        record(run, TrainingEnded(seconds=round(time.monotonic() - began, 1)))
    copy.store()


def compute(
    run: RecordedRun, dataset: Dataset, groups: Sequence[Group], progress: Progress
) -> Iterator[tuple[Task, Outcome]]:
    """Train groups on the config's engine and yield each task once; the first error comes at the end."""
    failures: list[Exception] = []
    for group, ended in run_groups(
        groups,
        collect_arrays(dataset, run.config.features.window),
        run.config.execution,
        group_item,
        News(groups, progress),
        device=resolve_device(run.config.device),
        note=progress.note,
    ):
        first, seeds = group[0], [str(task.seed) for task in group]
        name = f"{first.model}-fold-{first.fold.index}-seed-{'-'.join(seeds)}.log"
        log = run.write_text(f"logs/{name}", ended.log)
        if ended.error is None:
            yield from zip(group, ended.result, strict=True)
        elif isinstance(ended.error, ConfigError):
            raise ended.error
        else:
            failures.append(ended.error)
            what = f"{first.model} fold {first.fold.index} seed {', '.join(seeds)}"
            progress.note(f"{what} failed; its log is {log}.")
    if failures:
        raise failures[0]


def plan_tasks(run: RecordedRun, dataset: Dataset, folds: Sequence[Fold]) -> Iterator[Task]:
    """Yield all tasks of a run by fold, seed and model; baselines run on the processor."""
    device, members = resolve_device(run.config.device), all_members(run.config)
    inputs = {fold.index: fit_inputs(dataset, fold) for fold in folds}
    for fold in folds:
        for seed in run.config.seeds:
            for model in run.config.models:
                settings = model_settings(run.config, model)
                yield Task(
                    model=model,
                    registered=settings.registered,
                    options=settings.options,
                    fit=settings.fit,
                    fold=fold,
                    seed=seed,
                    inputs=inputs[fold.index],
                    device=task_device(settings.registered, device),
                    snapshot=run.task_file("snapshots", (model, fold.index, seed), ".safetensors"),
                    start=load_warm_start(warm_start_checkpoint(run.config, dataset, fold, model, seed)),
                    is_member=model in members,
                )


def all_members(config: Config) -> set[str]:
    """Entries of a config that an ensemble combines."""
    return {member for model in config.models for member in members_of(config, model)}


def constant_channels(tasks: Sequence[Task], dataset: Dataset) -> list[str]:
    """Describe the channels that are constant on a fold's training sessions; its models ignore them."""
    constant = {
        (name, task.fold.index)
        for task in tasks
        for name, std in zip(dataset.channel_names, task.inputs.scaler.std_C, strict=True)
        if np.isinf(std)
    }
    return [
        f"Channel {name} is constant on the training sessions of fold {fold}, so its models ignore it."
        for name, fold in sorted(constant)
    ]


def tasks_left(run: RecordedRun, dataset: Dataset, lake: Lake) -> Counter[str]:
    """Number of tasks that :func:`train` would compute, by device, without those of ensembles."""
    device, each = resolve_device(run.config.device), len(plan_folds(dataset, run.config))
    done = Counter(model for model, _, _ in done_tasks(run, lake))
    left = Counter[str]()
    for model in run.config.models:
        registered = registry_name(run.config, model)
        if model_entry(registered).kind != "ensemble":
            left[task_device(registered, device)] += each * len(run.config.seeds) - done[model]
    return left


def done_tasks(run: RecordedRun, lake: Lake) -> set[TaskKey]:
    """Return the tasks whose forecasts are committed (but of live folds) and whose other files exist."""
    keys = [(model, 0, seed) for model in run.config.models for seed in run.config.seeds]
    if run.config.folds.scheme != "live":
        keys = list(committed_tasks(run.run_id, lake).iter_rows())
    members = all_members(run.config)
    return {
        key
        for key in keys
        if checkpoint_exists(run.checkpoint(*key))
        and run.task_file(SCORES, key).is_file()
        and (key[0] not in members or kept_file(run, key).is_file())
    }


def commit(run: RecordedRun, lake: Lake, dataset: Dataset, task: Task, outcome: Outcome) -> None:
    """Store the outcome of a task. The score file is written last and marks the task as done."""
    model, fold, seed = task.key
    save_checkpoint(run.checkpoint(*task.key), outcome.state, task.inputs)
    if len(task.fold.test):
        _commit_forecasts(run, lake, dataset, task, outcome)
    curve = "".join(json.dumps(asdict(epoch)) + "\n" for epoch in outcome.history)
    write_text(run.task_file(CURVES, task.key, ".jsonl"), curve)
    scores = {"valid_rank_ic": outcome.valid_rank_ic, "valid_ic": outcome.valid_ic}
    if outcome.state.config.get("pretraining"):
        scores["pretrain_loss"] = outcome.state.config["pretraining"][-1]["train_loss"]
    if line := _label_line(outcome):
        scores |= {"calibration_slope": line.measured, "calibration_error": line.error}
    if task.is_member:
        with replacing(kept_file(run, task.key)) as partial, partial.open("wb") as file:
            assert outcome.valid_BN is not None, "the task of a member has validation forecasts"
            np.savez(file, valid_BN=outcome.valid_BN, test_BN=outcome.test_BN)
    if outcome.quantile_scores is not None:
        write_text(run.task_file(QUANTILE_SCORES, task.key), json.dumps(outcome.quantile_scores))
    # the event comes before the score file, so that every task that counts as done has its event
    seconds = None if outcome.seconds is None else round(outcome.seconds, 3)
    record(run, TaskDone(model=model, fold=fold, seed=seed, seconds=seconds))
    write_text(run.task_file(SCORES, task.key), json.dumps(scores))
    snapshots = FileSnapshotStore(task.snapshot)
    snapshots.delete()
    snapshots.of_refit().delete()


def _label_line(outcome: Outcome) -> Line | None:
    """Calibration of the label's forecasts; None for a loss with a scale."""
    stored = outcome.state.config.get("calibration")
    return None if stored is None else Line(**stored[-1])


def _describe(outcome: Outcome) -> str:
    """Validation score, weights of an ensemble, and how well the size of a loss without a scale is known."""
    said = f"validation rank IC {outcome.valid_rank_ic:+.4f}"
    weights: dict[str, float] = outcome.state.config.get("weights", {})
    if weights:
        said += f"; weights {', '.join(f'{name} {w:.2f}' for name, w in weights.items())}"
    if line := _label_line(outcome):
        said += f"; slope of the target on the outputs {line.measured:.3g} (standard error {line.error:.2g})"
        said += ", so their size is uncertain" if line.uncertain else ""
    return said


def _commit_forecasts(run: RecordedRun, lake: Lake, dataset: Dataset, task: Task, outcome: Outcome) -> None:
    """Store the test forecasts of a task in the lake, those of shorter horizons first."""
    if outcome.path_BNK is not None:
        steps = zip(dataset.shorter_labels.items(), np.moveaxis(outcome.path_BNK, 2, 0), strict=True)
        parts = [
            _rows(run, dataset, task, path_BN, label_TN).with_columns(
                pl.lit(horizon, dtype=pl.Int64).alias("horizon")
            )
            for (horizon, label_TN), path_BN in steps
        ]
        lake.upsert("forecast_paths", pl.concat(parts))
    label_TN = dataset.labels[run.config.label.delay]
    lake.upsert("forecasts", _rows(run, dataset, task, outcome.test_BN, label_TN))


def _rows(
    run: RecordedRun,
    dataset: Dataset,
    task: Task,
    forecast_BN: npt.NDArray[np.float32],
    label_TN: npt.NDArray[np.float64],
) -> pl.DataFrame:
    """Convert a task's test forecasts to rows of the lake's table, one per date and firm."""
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


def collect_hazards(run: RecordedRun, dataset: Dataset, lake: Lake) -> tuple[list[str], list[str]]:
    """Collect the hazards and notes of now, which are recorded when a run is trained."""
    hazards: list[str] = []
    notes: list[str] = []
    for row in lake.rows("sources", ["hazards", "notes"]).iter_rows(named=True):
        hazards += json.loads(row["hazards"])
        notes += json.loads(row["notes"])
    flags = lake.rows("flags", ["rule"], ~pl.col("cleared"))
    if flags.height:
        by_rule = flags.group_by("rule").len().sort("len", "rule", descending=[True, False])
        counts = ", ".join(f"{rule} ({count:,})" for rule, count in by_rule.iter_rows())
        hazards.append(
            f"The quality rules have set {flags.height:,} flag(s) on rows that are kept: {counts}; "
            "'peerglass quarantine list CONFIG' shows them."
        )
    hazards += dataset.panel.hazards
    if run.config.label.delay == 0:
        longer = "; see the table of a longer delay" if run.config.label.extra_delays else ""
        hazards.append(
            "Delay 0: the label starts at the same close that the forecast is made from, and no order can be "
            f"executed at that close. Read the result as a forecast, not as a strategy{longer}."
        )
    if run.config.folds.scheme == "combinatorial":
        hazards.append(
            "Combinatorial folds: models are trained on sessions before and after their tests, so no result "
            "could have been earned. The tables show the first of several paths; read how much the paths "
            "differ."
        )
    notes += dataset.notes
    refitted = [model for model in run.config.models if model_settings(run.config, model).fit.refit]
    if refitted:
        models = "All models" if len(refitted) == len(run.config.models) else ", ".join(refitted)
        notes.append(
            f"{models}: refitted to training and validation sessions before forecasting the test; "
            "validation scores are those of the fit to training sessions alone."
        )
    return hazards, notes


def kept_file(run: RecordedRun, key: TaskKey) -> Path:
    """File with the validation and test forecasts of a member's task."""
    return run.task_file("members", key, ".npz")


def combine_members(
    run: RecordedRun, dataset: Dataset, tasks: Sequence[Task]
) -> Iterator[tuple[Task, Outcome]]:
    """Yield the outcomes of the tasks of ensembles; all tasks of their members are done."""
    own = [task for task in tasks if model_entry(task.registered).kind == "ensemble"]
    own.sort(key=lambda task: (task.fold.index, task.model))
    for _, group in groupby(own, key=lambda task: (task.fold.index, task.model)):
        yield from _combine_fold(run, dataset, list(group))


def _combine_fold(
    run: RecordedRun, dataset: Dataset, tasks: Sequence[Task]
) -> Iterator[tuple[Task, Outcome]]:
    """Combine a fold, whose weights are those of all seeds; yield the seeds that have a task."""
    started, fold, config = time.monotonic(), tasks[0].fold, tasks[0].options
    assert isinstance(config, EnsembleConfig)
    valid_KSDN, test_KSDN = (
        [
            [_kept(run, (member, fold.index, seed), part) for seed in run.config.seeds]
            for member in config.members
        ]
        for part in ("valid_BN", "test_BN")
    )
    arrays = collect_arrays(dataset, run.config.features.window)
    target_DN = np.where(arrays.universe_TN, arrays.target_TN, np.float32(np.nan))[fold.valid]
    found = dict(zip(run.config.seeds, combine(config, valid_KSDN, test_KSDN, target_DN), strict=True))
    for task in tasks:
        combination, valid_BN, test_BN = found[task.seed]
        valid = forecast_metrics(valid_BN, arrays.label_TN[fold.valid])
        folders = {name: run.checkpoint(name, fold.index, task.seed) for name in config.members}
        members = {name: load_checkpoint(folder)[0] for name, folder in folders.items()}
        shape, seconds = members[config.members[0]].shape, time.monotonic() - started
        history = (EpochRecord(0, math.nan, valid.rank_ic, 0.0, seconds, valid.ic),)
        fitted = EnsembleFitted(task.registered, config, shape, history, members, combination)
        yield task, Outcome(test_BN, valid.rank_ic, valid.ic, history, fitted.state(), seconds=seconds)
        started = time.monotonic()


def _kept(run: RecordedRun, key: TaskKey, part: str) -> npt.NDArray[np.float32]:
    file, cure = kept_file(run, key), "delete it and train again, which repeats this task of the member alone"
    with (
        damaged(f"The file {file}", cure),
        file.open("rb") as content,
        np.load(content, allow_pickle=False) as stored,
    ):
        kept: npt.NDArray[np.float32] = stored[part]
        return kept
