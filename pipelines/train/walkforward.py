"""Walk-forward training: each combination of model, fold and seed is a task that is done exactly once.

A task's checkpoint is written first, then its forecasts are committed to the lake in one transaction, then
its scores are written, which marks it as done. What a task is: `pipelines.train.task`.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.splits.folds import Fold
from models.calibration import Line, calibration_from
from models.fitting.plan import why_eager
from models.registry import model_entry
from pipelines.config.load import members_of, model_settings, registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import fit_inputs, fold_table, plan_folds
from pipelines.device import resolve_device
from pipelines.errors import ConfigError
from pipelines.files import remove_partial
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.run.checkpoints import FileSnapshotStore, checkpoint_exists, save_checkpoint
from pipelines.run.completeness import committed_tasks, describe_missing
from pipelines.run.provenance import TaskDone, TrainingEnded, TrainingStarted, environment, record
from pipelines.run.record import QUANTILE_SCORES, RecordedRun, score_file
from pipelines.run.stored import StoredRun
from pipelines.run.warm_start import load_warm_start, warm_start_checkpoint, write_folds
from pipelines.train.ensembles import combine_members, keep_forecasts, kept_file
from pipelines.train.task import Key, Outcome, Task, collect_arrays, task_device
from pipelines.train.trials import Scope, count_trials, record_trials, share_trials
from pipelines.train.work import Group, News, group_item, groups_of, run_groups


def train(run: RecordedRun, dataset: Dataset, lake: Lake, progress: Progress) -> None:
    """Run all tasks of a run that are not done, and commit each as soon as it finishes."""
    folds = plan_folds(dataset, run.config)
    remove_partial(run.folder / "checkpoints")
    done = done_tasks(run, lake)
    record_trials(run.folder.parent, run.run_id, run.config, dict(run.identity.settings))
    share_trials(run.folder.parent, run.config.output_store)
    copy = StoredRun(run)
    write_folds(run, dataset, folds)
    run.write_table("folds", fold_table(dataset, folds))
    planned = list(plan_tasks(run, dataset, folds))
    tasks = [task for task in planned if task.key not in done]
    groups = groups_of(planned, done, run.config.stack_seeds)
    if tasks:
        record(run, _started(run, dataset, lake, done=len(planned) - len(tasks), planned=len(planned)))
    left = {task.key for task in tasks}
    started = time.monotonic()
    places = Counter(task.device.partition(":")[0] for task in tasks)
    with progress.stage("train", total=len(tasks), places=places):
        eager = {why_eager(task.registered, task.device) for task in tasks} - {""}
        for note in (*constant_channels(tasks, dataset), *sorted(eager)):
            progress.note(note)
        if done:
            progress.note(f"{len(done)} of {len(planned)} tasks were already done and are skipped.")
        try:
            trained = compute(run, dataset, groups, progress)
            for task, outcome in chain(trained, combine_members(run, dataset, tasks)):
                if task.key in left:  # a repeated stack computes all its seeds
                    commit(run, lake, dataset, task, outcome)
                    copy.store()
                    left.remove(task.key)
                    progress.step(
                        f"{task.model} fold {task.fold.index} seed {task.seed}: "
                        f"validation rank IC {outcome.valid_rank_ic:+.4f}{_shares(outcome)}{_size(outcome)}",
                        task.device.partition(":")[0],
                    )
        finally:
            if left:
                ordered = [task.key for task in tasks if task.key in left]
                missing = describe_missing(ordered, [fold.index for fold in folds], run.config.seeds)
                progress.note(
                    f"The run is incomplete. Missing: {missing}. Repeat the command to train the rest."
                )
    if tasks:
        record(run, TrainingEnded(seconds=round(time.monotonic() - started, 1)))
    copy.store()


def compute(
    run: RecordedRun, dataset: Dataset, groups: Sequence[Group], progress: Progress
) -> Iterator[tuple[Task, Outcome]]:
    """Train groups on the config's engine and yield each task once; the first error comes at the end."""
    if not groups:
        return
    arrays = collect_arrays(dataset, run.config.features.window)
    failures: list[Exception] = []
    news = News(groups, progress)
    device = resolve_device(run.config.device)
    for group, ended in run_groups(
        groups, arrays, run.config.execution, group_item, news, device=device, note=progress.note
    ):
        run.write_text(log_file(group), ended.log)
        if ended.error is None:
            yield from zip(group, ended.result, strict=True)
            continue
        if isinstance(ended.error, ConfigError):
            raise ended.error
        failures.append(ended.error)
        progress.note(f"{_name(group)} failed; its log is {run.folder / log_file(group)}.")
    if failures:
        raise failures[0]


def log_file(group: Group) -> str:
    """Path of the log of a group's attempts, relative to the run's folder."""
    first = group[0]
    seeds = "-".join(str(task.seed) for task in group)
    return f"logs/{first.model}-fold-{first.fold.index}-seed-{seeds}.log"


def _name(group: Group) -> str:
    first = group[0]
    return f"{first.model} fold {first.fold.index} seed {', '.join(str(task.seed) for task in group)}"


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
                    snapshot=run.snapshot(model, fold.index, seed),
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
    kinds = {name: registry_name(run.config, name) for name in run.config.models}
    trained = {name: kind for name, kind in kinds.items() if model_entry(kind).kind != "ensemble"}
    of_model = {name: task_device(kind, device) for name, kind in trained.items()}
    left = Counter(dict.fromkeys(of_model.values(), 0))
    for place in of_model.values():
        left[place] += each * len(run.config.seeds)
    left.subtract(of_model[model] for model, _, _ in done_tasks(run, lake) if model in of_model)
    return left


def done_tasks(run: RecordedRun, lake: Lake) -> set[Key]:
    """Return the tasks whose forecasts are committed (but of live folds) and whose other files exist."""
    keys = [(model, 0, seed) for model in run.config.models for seed in run.config.seeds]
    if run.config.folds.scheme != "live":
        keys = list(committed_tasks(run.run_id, lake).iter_rows())
    members = all_members(run.config)
    stored = {
        key
        for key in keys
        if checkpoint_exists(run.checkpoint(*key)) and (run.folder / score_file(*key)).is_file()
    }
    return {key for key in stored if key[0] not in members or kept_file(run, key).is_file()}


def commit(run: RecordedRun, lake: Lake, dataset: Dataset, task: Task, outcome: Outcome) -> None:
    """Store the outcome of a task. The score file is written last and marks the task as done."""
    save_checkpoint(run.checkpoint(task.model, task.fold.index, task.seed), outcome.state, task.inputs)
    if len(task.fold.test):
        _commit_forecasts(run, lake, dataset, task, outcome)
    curve = "".join(json.dumps(asdict(epoch)) + "\n" for epoch in outcome.history)
    run.write_text(f"curves/{run.curve(*task.key).name}", curve)
    scores = {"valid_rank_ic": outcome.valid_rank_ic, "valid_ic": outcome.valid_ic}
    if outcome.state.config.get("pretraining"):
        scores["pretrain_loss"] = outcome.state.config["pretraining"][-1]["train_loss"]
    if line := _label_line(outcome):
        scores |= {"calibration_slope": line.measured, "calibration_error": line.error}
    if task.is_member:
        keep_forecasts(run, task.key, outcome)
    if outcome.quantile_scores is not None:
        name = f"{task.model}-fold-{task.fold.index}-seed-{task.seed}.json"
        run.write_text(f"{QUANTILE_SCORES}/{name}", json.dumps(outcome.quantile_scores))
    # the event comes before the score file, so that every task that counts as done has its event
    seconds = None if outcome.seconds is None else round(outcome.seconds, 3)
    done = TaskDone(model=task.model, fold=task.fold.index, seed=task.seed, seconds=seconds)
    record(run, done)
    run.write_text(score_file(task.model, task.fold.index, task.seed), json.dumps(scores))
    snapshots = FileSnapshotStore(task.snapshot)
    snapshots.delete()
    snapshots.sibling("refit").delete()


def _label_line(outcome: Outcome) -> Line | None:
    """Calibration of the label's forecasts; None for a loss with a scale."""
    stored = outcome.state.config.get("calibration")
    return None if stored is None else calibration_from(stored).lines[-1]


def _size(outcome: Outcome) -> str:
    """Say how well validation knows the size of the forecasts of a loss without a scale."""
    line = _label_line(outcome)
    if line is None:
        return ""
    doubt = ", so their size is uncertain" if line.uncertain else ""
    return (
        f"; slope of the target on the outputs {line.measured:.3g} (standard error {line.error:.2g}){doubt}"
    )


def _shares(outcome: Outcome) -> str:
    """Say what the weights of an ensemble are."""
    weights: dict[str, float] = outcome.state.config.get("weights", {})
    return f"; weights {', '.join(f'{name} {w:.2f}' for name, w in weights.items())}" if weights else ""


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


def _started(run: RecordedRun, dataset: Dataset, lake: Lake, *, done: int, planned: int) -> TrainingStarted:
    """Describe the training session that is about to start."""
    hazards, notes = collect_hazards(run, dataset, lake)
    return TrainingStarted(
        environment=environment(),
        device=resolve_device(run.config.device),
        versions=dict(run.versions),
        hazards=tuple(hazards),
        notes=tuple(notes),
        trials=count_trials(run.folder.parent, Scope.of(run.config)).trials,
        done=done,
        planned=planned,
    )


def collect_hazards(run: RecordedRun, dataset: Dataset, lake: Lake) -> tuple[list[str], list[str]]:
    """Collect the hazards and notes of now, which are recorded when a run is trained."""
    hazards: list[str] = []
    notes: list[str] = []
    if lake.exists("sources"):
        for row in lake.read("sources").iter_rows(named=True):
            hazards += json.loads(row["hazards"])
            notes += json.loads(row["notes"])
    hazards += [*_flagged(lake), *dataset.panel.hazards]
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
    return hazards, [*notes, *dataset.notes, *_refitted(run.config)]


def _refitted(config: Config) -> list[str]:
    """Name the models that are refitted before they forecast the test (``fit.refit``)."""
    names = [model for model in config.models if model_settings(config, model).fit.refit]
    if not names:
        return []
    models = "All models" if len(names) == len(config.models) else ", ".join(names)
    return [
        f"{models}: refitted to training and validation sessions before forecasting the test; "
        "validation scores are those of the fit to training sessions alone."
    ]


def _flagged(lake: Lake) -> list[str]:
    """Count the flagged rows by quality rule in one sentence; empty if there are none."""
    flags = lake.read("flags", filters=~pl.col("cleared")) if lake.exists("flags") else None
    if flags is None or flags.is_empty():
        return []
    by_rule = flags.group_by("rule").len().sort("len", "rule", descending=[True, False])
    counts = ", ".join(f"{rule} ({count:,})" for rule, count in by_rule.iter_rows())
    return [
        f"The quality rules have set {flags.height:,} flag(s) on rows that are kept: {counts}; "
        "'peerglass quarantine list CONFIG' shows them."
    ]
