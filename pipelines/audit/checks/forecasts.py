"""Future perturbation of forecasts: forecasts up to t must not depend on data after t.

For a config, models are refitted on a small fold around t, once on the true data and once with noise after t.
For a run, the stored checkpoints forecast again on both, and must also repeat the stored forecasts.

Shape suffixes: T sessions, N firms, D dates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from backtest.look_ahead.finding import Result, compared, skipped
from backtest.look_ahead.noise import replace_future
from backtest.splits.folds import Fold, FoldPlan
from features.arrays import Float32Array, FloatArray, IntArray
from features.panel.panel import to_panel
from models.batch import PanelTensors
from models.fitted import Fitted
from models.fitting.fit import NeuralFitted, restore
from pipelines.audit.refit import (
    Difference,
    common_firms,
    difference,
    fits,
    inputs_differ,
    models_to_fit,
    weights_differ,
)
from pipelines.audit.subject import AFTER, Subject, small_fit_config
from pipelines.config.schema import Config
from pipelines.dataset import build as datasets
from pipelines.dataset import folds as dataset_folds
from pipelines.dataset.build import Dataset
from pipelines.errors import DataError
from pipelines.run.record import Run
from pipelines.train import task as tasks
from pipelines.train.task import Arrays, Outcome, Task, collect_arrays

_DATES = 4  # test sessions of a run that are forecast again, for each t
_STORED_TOLERANCE = 1e-3  # relative to the deviation of stored forecasts; GPUs do not repeat to the bit


def check(subject: Subject) -> Result:
    """Require the same fitted models and the same forecasts up to t when the future is replaced."""
    if subject.run is None:
        return _check_refits(subject)
    assert subject.forecasts is not None
    return _check_checkpoints(subject, subject.run, subject.forecasts)


def _check_refits(subject: Subject) -> Result:
    models = models_to_fit(subject)
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
    days = ", ".join(str(subject.day(t)) for t in times)
    return compared(
        [{"after": subject.day(t), "what": one.what} for t, diffs in found.items() for one in diffs or ()],
        lambda one: (
            f"{one['what'][0].upper()}{one['what'][1:]} changed when all data after {one['after']} were "
            "replaced: they depend on later data."
        ),
        f"{', '.join(models)}: weights and forecasts are bitwise identical when refitted with noise after "
        f"{days}.",
    )


def _refitted(
    subject: Subject, config: Config, models: tuple[str, ...], t: int, need: int
) -> list[Difference] | None:
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
        one = difference(getattr(fold, segment), getattr(twin_fold, segment), f"the {segment} dates")
        if one is not None:
            return [one]
    # in this process: the check fit_scope fits where a training does
    small = small_fit_config(config, models, subject.budget.epochs).model_copy(
        update={"execution": config.execution.model_copy(update={"engine": "serial"})}
    )
    diffs = []
    pairs = zip(*fits(small, (true,), fold), *fits(small, (noisy,), twin_fold), strict=True)
    arrays, columns = collect_arrays(true, config.features.window), common_firms(true, noisy)
    for (task, left), (twin, right) in pairs:
        diffs += _reads_targets(task, left, arrays)
        diffs += inputs_differ(task.inputs, twin.inputs)
        diffs += weights_differ(left, right, task.model)
        seen, what = fold.test <= at, f"{task.model}'s forecasts"
        diffs += _forecasts_differ(left.test_BN[seen], right.test_BN[seen], columns, what)
        if left.path_BNK is not None and right.path_BNK is not None:
            shorter = f"{what} of shorter horizons"
            diffs += _forecasts_differ(left.path_BNK[seen], right.path_BNK[seen], columns, shorter)
    return diffs


def _reads_targets(task: Task, outcome: Outcome, arrays: Arrays) -> list[Difference]:
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
    read = difference(own, others, f"{task.model}'s forecasts, which read targets (of their own date),")
    return [] if read is None else [read]


def _fold_with(at: int, dataset: Dataset, config: Config) -> Fold | None:
    folds = dataset_folds.plan_folds(dataset, config)
    return next((fold for fold in folds if fold.test[0] <= at <= fold.test[-1]), None)


def _forecasts_differ(
    left_BN: Float32Array, right_BN: Float32Array, columns: tuple[list[int], list[int]], what: str
) -> list[Difference]:
    """Compare forecasts of the firms that two datasets share."""
    own, theirs = (np.ascontiguousarray(x[:, n]) for x, n in zip((left_BN, right_BN), columns, strict=True))
    one = difference(own, theirs, what)
    return [] if one is None else [one]


def _check_checkpoints(subject: Subject, run: Run, stored: pl.DataFrame) -> Result:
    rng = np.random.default_rng((subject.seed, 3))
    folds = subject.folds[-subject.budget.refits :]
    rows: list[dict[str, Any]] = []
    for fold in folds:
        # a live fold has no test; its checkpoints must be causal on the validation sessions as well
        scored = fold.test if len(fold.test) else fold.valid
        t = int(rng.choice(scored[: max(len(scored) - 2, 1)]))
        rows += _dates_outside(stored, fold, subject)
        rows += _fold_differs(subject, run, stored, fold, t, scored[scored <= t][-_DATES:])
    tested = any(len(fold.test) for fold in folds)
    repeat = "repeat the stored forecasts, and " if tested else "of a live fold: "
    checked = len(folds) * len(run.config.models) * len(run.config.seeds)
    return compared(
        rows,
        lambda one: f"{one['model']}, fold {one['fold']}, seed {one['seed']}: {one['what']}.",
        f"{checked} checkpoints {repeat}their forecasts are bitwise identical with noise after t.",
    )


def _fold_differs(  # noqa: PLR0917 (a fold of a run)
    subject: Subject, run: Run, stored: pl.DataFrame, fold: Fold, t: int, dates: IntArray
) -> Iterator[dict[str, Any]]:
    """Yield what changes of a fold's forecasts with noise after t, and what differs from those stored."""
    from pipelines.run.checkpoints import load_checkpoint

    tables = replace_future(subject.tables, subject.day(t), seed=subject.seed + t)
    noisy, window = datasets.build_dataset(tables, run.config), run.config.features.window
    columns = common_firms(subject.dataset, noisy)
    pair = [collect_arrays(dataset, window) for dataset in (subject.dataset, noisy)]
    for model in run.config.models:
        for seed in run.config.seeds:
            fitted, inputs = load_checkpoint(run.checkpoint(model, fold.index, seed))
            forecast_DNK, noisy_DNK = (
                _every_horizon(fitted, tasks.to_tensors(arrays, inputs, "cpu"), dates) for arrays in pair
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
                if not _repeats(
                    forecast_DNK[..., k], to_panel(own, "forecast", subject.dataset.panel)[dates]
                ):
                    which = f" of horizon {horizon}" if len(horizons) > 1 else ""
                    yield {**key, "what": f"the stored forecasts{which} differ from those of the checkpoint"}


def _dates_outside(stored: pl.DataFrame, fold: Fold, subject: Subject) -> list[dict[str, Any]]:
    """Find stored forecasts of a fold on dates outside its test segment."""
    days = subject.dataset.panel.dates_T[fold.test].astype("datetime64[D]")
    outside = stored.filter((pl.col("fold") == fold.index) & ~pl.col("date").is_in(pl.Series(days).implode()))
    what = "forecasts are stored for dates outside the fold's test segment"
    return [
        {"model": model, "fold": fold.index, "seed": seed, "after": None, "what": what}
        for model, seed in outside.select("model", "seed").unique().sort("model", "seed").iter_rows()
    ]


def _every_horizon(fitted: Fitted, data: PanelTensors, dates: IntArray) -> Float32Array:
    """Forecasts [D, N, K] of all horizons of a model; the label's horizon comes last."""
    if isinstance(fitted, NeuralFitted) and fitted.module.n_horizons > 1:
        return fitted.horizons(data, dates)
    return fitted.forecast(data, dates)[..., None]


def _repeats(forecast_DN: Float32Array, stored_DN: FloatArray) -> bool:
    same_cells = bool((np.isfinite(forecast_DN) == np.isfinite(stored_DN)).all())
    off_DN = np.nan_to_num(np.abs(forecast_DN - stored_DN))
    least = _STORED_TOLERANCE * max(float(np.nanstd(stored_DN)), 1e-30) + 1e-7
    return same_cells and bool((off_DN <= least).all())
