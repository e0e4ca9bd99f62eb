"""Fits: what they saw, and that forecasts up to t do not depend on data after t.

``fit_scope`` fits small folds with noise outside their sessions. ``retrained`` trains one task of each model
of a run again, where its training ran, with noise for the test. ``forecasts`` refits the models of a config
on a small fold around t, on the true data and with noise after t; a run forecasts by its checkpoints on both,
and must also repeat the stored forecasts.

Shape suffixes: T sessions, N firms, D dates.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.look_ahead.finding import Result, answer, skipped
from backtest.look_ahead.noise import replace_future
from backtest.splits.folds import Fold, FoldPlan
from features.arrays import BoolArray, Float32Array, IntArray
from features.library.sets import bases_of
from features.panel.panel import to_panel
from models.fitting.fit import NeuralFitted, restore
from pipelines.audit import refit
from pipelines.audit.subject import AFTER, Subject, small_fit_config
from pipelines.config.load import members_of, model_settings
from pipelines.config.schema import Config
from pipelines.dataset import build as datasets
from pipelines.dataset import folds as dataset_folds
from pipelines.dataset.build import Dataset
from pipelines.device import resolve_device
from pipelines.errors import DataError
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.provenance import TaskDone, read_provenance
from pipelines.run.record import RecordedRun
from pipelines.train import task as tasks
from pipelines.train import walkforward
from pipelines.train.task import Arrays, Outcome, Task, collect_arrays, stacks_of

FloatT = TypeVar("FloatT", np.float32, np.float64)
MINUTES: Final = 15.0  # of recorded training that is repeated; longer models are named instead
_TRAIN, _CHOOSE = "its training sessions", "its training and validation sessions"


def fit_scope(subject: Subject) -> Result:
    """Replace all data outside a fold's training sessions and require identical fitted objects, to the bit.

    Scaler and groups, also stored ones, must not change when all other sessions are replaced; weights and
    early stopping when all but training and validation are; training losses when validation is as well.
    """
    folds, models = subject.folds[-subject.budget.folds :], refit.models_to_fit(subject)
    rows: list[dict[str, Any]] = [
        {"fold": fold.index, "what": one.what, "scope": _TRAIN}
        for fold in folds
        for one in _inputs_of_fold(subject, fold)
    ]
    try:
        weights = list(_weights_of_fold(subject, folds[-1], models))
    except ValueError as error:
        return skipped(f"Models could not be fitted on a small fold: {error}")
    rows += [{"fold": folds[-1].index, "what": one.what, "scope": scope} for one, scope in weights]
    if rows:
        one = rows[0]
        named = f"{one['what'][0].upper()}{one['what'][1:]} of fold {one['fold']}"
        return answer("fail", f"{named} depend on sessions outside {one['scope']}.", rows)
    stored = " and the stored ones" if subject.run is not None else ""
    return answer(
        "pass",
        f"Channel scaler and groups{stored} of {len(folds)} fold(s) are bitwise identical when all other "
        f"sessions are replaced, and so are weights and early stopping ({', '.join(models) or 'none'}).",
    )


def _inputs_of_fold(subject: Subject, fold: Fold) -> Iterator[refit.Difference]:
    true = refit.fit_inputs(subject.config, subject.dataset, fold)
    # relative channels are scaled by the windows of the training sessions
    days = subject.dataset.window if (bases_of(subject.dataset.channel_names) >= 0).any() else 1
    train_T, windows_T = (
        np.isin(np.arange(subject.dataset.panel.n_sessions), some)
        for some in (fold.train, _sessions_of_windows(fold.train, days))
    )
    # scaler and groups do not read characteristics, and copies of all would take memory
    without = replace(subject.dataset, characteristics_TNF=subject.dataset.characteristics_TNF[:, :, :1])
    replaced = replace_outside(without, train_T, windows_T, subject.seed)
    yield from refit.inputs_differ(true, refit.fit_inputs(subject.config, replaced, fold))
    if subject.run is None:
        return
    for model, seed in product(subject.config.models, subject.config.seeds):
        stored = load_checkpoint(subject.run.checkpoint(model, fold.index, seed))[1]
        for one in refit.inputs_differ(true, stored):
            yield refit.Difference(f"{one.what} stored in {model}, seed {seed}")


def _weights_of_fold(
    subject: Subject, fold: Fold, models: tuple[str, ...]
) -> Iterator[tuple[refit.Difference, str]]:
    if not models:
        return
    budget, config = subject.budget, subject.config
    train, valid, test = fold.train[-budget.train :], fold.valid[-budget.valid :], fold.test[:2]
    small = replace(fold, train=train, valid=valid, test=test)
    columns = refit.sample_columns(
        subject.dataset, np.concatenate([train, valid]), budget.firms, subject.seed
    )
    dataset = refit.few_firms(subject.dataset, columns)
    variants = (
        dataset,
        _noise_outside(dataset, (train, valid), config, models, subject.seed + 1),
        _noise_outside(dataset, (train,), config, models, subject.seed + 2),
    )
    reduced = small_fit_config(config, models, budget.epochs)
    every = (refit.fits(reduced, variant, small) for variant in variants)
    for (task, left), (_, right), (_, other) in zip(*every, strict=True):
        yield from ((one, _CHOOSE) for one in refit.weights_differ(left, right, task.model))
        # validation may only end training: the losses of the epochs in both fits are compared
        losses = [np.array([record.train_loss for record in fit.history]) for fit in (left, other)]
        common = min(len(loss) for loss in losses)
        path = refit.difference(losses[0][:common], losses[1][:common], f"{task.model}'s training losses")
        yield from ((one, _TRAIN) for one in path)


def _noise_outside(
    dataset: Dataset, segments: tuple[IntArray, ...], config: Config, models: Iterable[str], seed: int
) -> Dataset:
    """Noise outside the sessions that a training on some segments reads; the first one is the training."""
    window, fits = config.features.window, [model_settings(config, name).fit for name in models]
    # pretraining reads windows between decisions, that of a refit also those between the segments
    again = any(fit.refit and fit.pretrain is not None for fit in fits)
    read = np.concatenate(segments if again else segments[:1])
    span = np.arange(read.min(), read.max() + 1)
    ends = np.concatenate([span, *segments[1:]])
    kept_T, windows_T = (
        np.isin(np.arange(dataset.panel.n_sessions), some)
        for some in (np.concatenate(segments), _sessions_of_windows(ends, window))
    )
    return replace_outside(dataset, kept_T, windows_T, seed)


def _sessions_of_windows(ends: IntArray, window: int) -> IntArray:
    sessions: IntArray = np.maximum(ends[:, None] - np.arange(window), 0).ravel()
    return sessions


def replace_outside(dataset: Dataset, kept_T: BoolArray, windows_T: BoolArray, seed: int) -> Dataset:
    """Replace a dataset's arrays by noise, except on the kept sessions; channels have their own."""
    rng = np.random.default_rng(seed)
    replaced_T, panel = ~kept_T, dataset.panel
    shape = (int(replaced_T.sum()), panel.n_firms)

    def noisy(array: npt.NDArray[FloatT], replaced: BoolArray, scale: float) -> npt.NDArray[FloatT]:
        out = array.copy()
        drawn = rng.standard_normal((int(replaced.sum()), *array.shape[1:]), dtype=np.float32)
        out[replaced] = scale * drawn
        return out

    universe_TN, group_TN = dataset.universe_TN.copy(), panel.group_TN.copy()
    universe_TN[replaced_T] = rng.random(shape) < 0.7
    group_TN[replaced_T] = rng.integers(-1, len(panel.groups_S) + 1, shape)
    return replace(
        dataset,
        panel=replace(panel, group_TN=group_TN, groups_S=(*panel.groups_S, "a new group")),
        universe_TN=universe_TN,
        channels_TNC=noisy(dataset.channels_TNC, ~windows_T, 5.0),
        characteristics_TNF=noisy(dataset.characteristics_TNF, replaced_T, 2.0),
        target_TN=noisy(dataset.target_TN, replaced_T, 2.0),
        path_TNK=None if dataset.path_TNK is None else noisy(dataset.path_TNK, replaced_T, 2.0),
        labels={delay: noisy(label_TN, replaced_T, 0.1) for delay, label_TN in dataset.labels.items()},
    )


def retrained(subject: Subject) -> Result:
    """Train one task of each model again with noise for the test, and compare with the stored weights.

    The first fold is trained, because it has the fewest sessions, with the first seed (all seeds of a stack).
    The comparison is to the bit. Weights of another device differ by rounding, so they are not compared.
    """
    run, config = subject.run, subject.config
    if run is None:
        return skipped("A config has no stored weights; audit a run.")
    if resolve_device(config.device) != "cpu":
        return skipped("Training on a GPU does not repeat to the bit.")
    fold = subject.folds[0]
    chosen = _within_budget(run, fold)
    if not chosen:
        return skipped(f"Training takes more than {MINUTES:.0f} minutes for every model.")
    window = config.features.window
    noisy = _noise_outside(subject.dataset, (fold.train, fold.valid), config, chosen, subject.seed + 3)
    planned = [task for task in walkforward.plan_tasks(run, noisy, [fold]) if task.model in chosen]
    stacked = {task.key for stack in stacks_of(planned, (), config.stack_seeds) for task in stack}
    kept = [task for task in planned if task.seed == config.seeds[0] or task.key in stacked]
    rows = [
        {"model": task.model, "fold": fold.index, "seed": task.seed, "what": what}
        for task, outcome in refit.train_again(kept, collect_arrays(noisy, window), config)
        if (what := _differs_from_stored(run, task, outcome)) is not None
    ]
    if rows:
        one = rows[0]
        sentence = (
            f"The stored weights of {one['model']}, fold {one['fold']}, seed {one['seed']} depend on "
            f"sessions outside its training and validation: trained again with noise there, {one['what']} "
            "differ. The test was used in training, or the checkpoint is not of these settings."
        )
        return answer("fail", sentence, rows)
    others = [name for name in config.models if not members_of(config, name)]
    left_out = ", ".join(model for model in others if model not in chosen)
    also = f"; not trained again, because it takes too long: {left_out}" if left_out else ""
    same = f"fold {fold.index}, trained again with noise for its test, has the stored weights to the bit"
    return answer("pass", f"{', '.join(chosen)}: {same}{also}.")


def _within_budget(run: RecordedRun, fold: Fold) -> list[str]:
    """Models whose recorded training times fit into the budget; an ensemble is not trained itself."""
    names = [name for name in run.config.models if not members_of(run.config, name)]
    seconds: dict[str, float] = dict.fromkeys(names, 0.0)
    for event in read_provenance(run):
        if isinstance(event, TaskDone) and event.fold == fold.index and event.model in seconds:
            seconds[event.model] = max(seconds[event.model], event.seconds or 0.0)
    shortest = sorted(seconds, key=seconds.__getitem__)
    spent = np.cumsum([seconds[model] for model in shortest])
    chosen = {model for model, total in zip(shortest, spent, strict=True) if total <= 60.0 * MINUTES}
    return [model for model in seconds if model in chosen]


def _differs_from_stored(run: RecordedRun, task: Task, outcome: Outcome) -> str | None:
    """Name the first part of the stored model that differs; None if all are equal."""
    fitted, _ = load_checkpoint(run.checkpoint(task.model, task.fold.index, task.seed))
    stored: dict[str, Any] = dict(fitted.state().tensors)
    again = dict(outcome.state.tensors)
    if set(stored) != set(again):
        return "its tensors"
    for name in sorted(again):
        if refit.difference(np.asarray(again[name]), np.asarray(stored[name]), name):
            return f"the values of {name}"
    ours, theirs = (
        np.array([list(line.values()) for line in state.config.get("calibration", ())], dtype=np.float64)
        for state in (outcome.state, fitted.state())
    )
    return "its calibration" if refit.difference(ours, theirs, "the calibration") else None


_DATES = 4  # test sessions of a run that are forecast again, for each t
_STORED_TOLERANCE = 1e-3  # relative to the deviation of stored forecasts; GPUs do not repeat to the bit


def forecasts(subject: Subject) -> Result:
    """Require the same fitted models and the same forecasts up to t when the future is replaced."""
    if subject.run is None:
        return _check_refits(subject)
    assert subject.forecasts is not None
    return _check_checkpoints(subject, subject.run, subject.forecasts)


def _check_refits(subject: Subject) -> Result:
    models = refit.models_to_fit(subject)
    if not models:
        return skipped("The config has no model that needs fitting.")
    label, budget, spacing = subject.config.label, subject.budget, subject.spacing
    plan = FoldPlan(
        scheme="rolling",
        # in sessions; at a low forecast frequency a few decisions are enough
        train=max(budget.train, 8 * spacing),
        valid=max(budget.valid, 3 * spacing),
        test=max(4, 2 * spacing),
        embargo=subject.config.folds.embargo,
        anchor="start",
    )
    gap = label.max_delay + label.horizon + plan.embargo
    need = plan.train + plan.valid + 2 * plan.test + 3 * gap
    config = subject.config.model_copy(update={"folds": plan})
    decisions = subject.decisions
    usable = decisions[
        (decisions >= decisions[0] + need) & (decisions < subject.dataset.panel.n_sessions - need // 2)
    ]
    if not len(usable):
        return skipped(f"There are too few sessions for a small fold, which needs {need}.")
    rng = np.random.default_rng((subject.seed, 2))
    times = sorted(rng.choice(usable, min(budget.refits, len(usable)), replace=False).astype(int).tolist())
    try:
        found = {t: _refitted(subject, config, models, t, need) for t in times}
    except (ValueError, DataError) as error:
        return skipped(f"Models could not be fitted on a small fold: {error}")
    if all(diffs is None for diffs in found.values()):
        return skipped(f"No small fold of {need} sessions has a test around the sessions that were drawn.")
    rows = [{"after": subject.day(t), "what": one.what} for t, diffs in found.items() for one in diffs or ()]
    if rows:
        what = str(rows[0]["what"])
        named, when = f"{what[0].upper()}{what[1:]}", f"when all data after {rows[0]['after']} were replaced"
        return answer("fail", f"{named} changed {when}: they depend on later data.", rows)
    days = ", ".join(str(subject.day(t)) for t in times)
    same = f"weights and forecasts are bitwise identical when refitted with noise after {days}"
    return answer("pass", f"{', '.join(models)}: {same}.")


def _refitted(
    subject: Subject, config: Config, models: tuple[str, ...], t: int, need: int
) -> list[refit.Difference] | None:
    """Differences of fits and forecasts with noise after t; None if no fold tests t."""
    cut = subject.window(t - need - subject.lookback, t + max(AFTER, need // 2))
    tables = subject.sample_firms(cut, subject.budget.firms)
    true = datasets.build_dataset(tables, config)
    noisy = datasets.build_dataset(replace_future(tables, subject.day(t), seed=subject.seed + t), config)
    at = int(np.searchsorted(true.panel.dates_T, subject.dataset.panel.dates_T[t]))
    fold, twin_fold = _fold_with(at, true, config), _fold_with(at, noisy, config)
    if fold is None or twin_fold is None:
        return None
    for segment in ("train", "valid", "test"):
        moved = refit.difference(getattr(fold, segment), getattr(twin_fold, segment), f"the {segment} dates")
        if moved:
            return moved
    # in this process: the check fit_scope fits where a training does
    small = small_fit_config(config, models, subject.budget.epochs).model_copy(
        update={"execution": config.execution.model_copy(update={"engine": "serial"})}
    )
    diffs = []
    pairs = zip(refit.fits(small, true, fold), refit.fits(small, noisy, twin_fold), strict=True)
    arrays, columns = collect_arrays(true, config.features.window), refit.common_firms(true, noisy)
    for (task, left), (twin, right) in pairs:
        diffs += _reads_targets(task, left, arrays)
        diffs += refit.inputs_differ(task.inputs, twin.inputs)
        diffs += refit.weights_differ(left, right, task.model)
        seen, what = fold.test <= at, f"{task.model}'s forecasts"
        diffs += _forecasts_differ(left.test_BN[seen], right.test_BN[seen], columns, what)
        if left.path_BNK is not None and right.path_BNK is not None:
            shorter = f"{what} of shorter horizons"
            diffs += _forecasts_differ(left.path_BNK[seen], right.path_BNK[seen], columns, shorter)
    return diffs


def _reads_targets(task: Task, outcome: Outcome, arrays: Arrays) -> list[refit.Difference]:
    """Forecast the test again with other targets on all dates: a model must not read them to forecast."""
    rng = np.random.default_rng(task.seed)
    path_TNK = arrays.path_TNK
    if path_TNK is not None:
        path_TNK = rng.standard_normal(path_TNK.shape, dtype=np.float32)
    target_TN = rng.standard_normal(arrays.target_TN.shape, dtype=np.float32)
    changed, fitted = replace(arrays, target_TN=target_TN, path_TNK=path_TNK), restore(outcome.state)
    own, others = (
        fitted.forecast(tasks.to_tensors(one, task.inputs, "cpu"), task.fold.test)
        for one in (arrays, changed)
    )
    return refit.difference(own, others, f"{task.model}'s forecasts, which read targets (of their own date),")


def _fold_with(at: int, dataset: Dataset, config: Config) -> Fold | None:
    folds = dataset_folds.plan_folds(dataset, config)
    return next((fold for fold in folds if fold.test[0] <= at <= fold.test[-1]), None)


def _forecasts_differ(
    left_BN: Float32Array, right_BN: Float32Array, columns: tuple[list[int], list[int]], what: str
) -> list[refit.Difference]:
    """Compare forecasts of the firms that two datasets share."""
    own, theirs = (np.ascontiguousarray(x[:, n]) for x, n in zip((left_BN, right_BN), columns, strict=True))
    return refit.difference(own, theirs, what)


def _check_checkpoints(subject: Subject, run: RecordedRun, stored: pl.DataFrame) -> Result:
    rng = np.random.default_rng((subject.seed, 3))
    folds = subject.folds[-subject.budget.refits :]
    rows: list[dict[str, Any]] = []
    for fold in folds:
        # a live fold has no test; its checkpoints must be causal on the validation sessions as well
        scored = fold.test if len(fold.test) else fold.valid
        t = int(rng.choice(scored[: max(len(scored) - 2, 1)]))
        days = pl.Series(subject.dataset.panel.dates_T[fold.test]).implode()
        outside = stored.filter((pl.col("fold") == fold.index) & ~pl.col("date").is_in(days))
        what = "forecasts are stored for dates outside the fold's test segment"
        rows += (
            {"model": model, "fold": fold.index, "seed": seed, "after": None, "what": what}
            for model, seed in outside.select("model", "seed").unique().sort("model", "seed").iter_rows()
        )
        rows += _fold_differs(subject, run, stored, fold, t, scored[scored <= t][-_DATES:])
    tested = any(len(fold.test) for fold in folds)
    repeat = "repeat the stored forecasts, and " if tested else "of a live fold: "
    if rows:
        one = rows[0]
        which = f"{one['model']}, fold {one['fold']}, seed {one['seed']}"
        return answer("fail", f"{which}: {one['what']}.", rows)
    checked = len(folds) * len(run.config.models) * len(run.config.seeds)
    same = "their forecasts are bitwise identical with noise after t"
    return answer("pass", f"{checked} checkpoints {repeat}{same}.")


def _fold_differs(  # noqa: PLR0917 (a fold of a run)
    subject: Subject, run: RecordedRun, stored: pl.DataFrame, fold: Fold, t: int, dates: IntArray
) -> Iterator[dict[str, Any]]:
    """Yield what changes of a fold's forecasts with noise after t, and what differs from those stored."""
    tables = replace_future(subject.tables, subject.day(t), seed=subject.seed + t)
    noisy, window = datasets.build_dataset(tables, run.config), run.config.features.window
    columns = refit.common_firms(subject.dataset, noisy)
    pair = [collect_arrays(dataset, window) for dataset in (subject.dataset, noisy)]
    for model in run.config.models:
        for seed in run.config.seeds:
            fitted, inputs = load_checkpoint(run.checkpoint(model, fold.index, seed))
            several = fitted if isinstance(fitted, NeuralFitted) and fitted.module.n_horizons > 1 else None
            tensors = (tasks.to_tensors(arrays, inputs, "cpu") for arrays in pair)
            forecast_DNK, noisy_DNK = (  # the label's horizon comes last
                several.horizons(data, dates) if several else fitted.forecast(data, dates)[..., None]
                for data in tensors
            )
            key = {"model": model, "fold": fold.index, "seed": seed, "after": subject.day(t)}
            if _forecasts_differ(forecast_DNK, noisy_DNK, columns, ""):
                yield {**key, "what": "the forecasts change with later data"}
            horizons = run.config.label.horizons[-forecast_DNK.shape[2] :]
            for k, horizon in enumerate(horizons if len(fold.test) else ()):
                own = stored.filter(
                    pl.all_horizontal(pl.col(name) == key[name] for name in ("model", "fold", "seed")),
                    pl.col("horizon") == horizon,
                )
                stored_DN = to_panel(own, "forecast", subject.dataset.panel)[dates]
                off = _STORED_TOLERANCE * max(float(np.nanstd(stored_DN)), 1e-30) + 1e-7
                if not np.allclose(forecast_DNK[..., k], stored_DN, rtol=0.0, atol=off, equal_nan=True):
                    which = f" of horizon {horizon}" if len(horizons) > 1 else ""
                    yield {**key, "what": f"the stored forecasts{which} differ from those of the checkpoint"}
