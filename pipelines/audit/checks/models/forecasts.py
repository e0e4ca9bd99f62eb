"""Future perturbation of forecasts: forecasts up to t must not depend on data after t.

For a config, models are refitted on a small fold around t, once on the true data and once with noise after t.
For a run, the stored checkpoints forecast again on both, and must also repeat the stored forecasts.

Shape suffixes: T sessions, N firms, D dates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.splits.folds import Fold
from features.arrays import IntArray
from models.batch import PanelTensors
from models.fitted import Fitted
from models.fitting.fit import NeuralFitted, restore
from pipelines.audit.compare import Difference, difference
from pipelines.audit.noise import replace_future
from pipelines.audit.refit import fits, inputs_differ, models_to_fit, weights_differ
from pipelines.audit.result import Result
from pipelines.audit.subject import AFTER, Subject, small_fit_config
from pipelines.config.folds import WalkForwardConfig
from pipelines.config.schema import Config
from pipelines.dataset import build as datasets
from pipelines.dataset import folds as dataset_folds
from pipelines.dataset.build import Dataset
from pipelines.dataset.market import to_panel
from pipelines.errors import DataError
from pipelines.train import task as tasks
from pipelines.train.task import Arrays, Outcome, Task, collect_arrays

NAME = "forecasts"
_DATES = 4  # test sessions of a run that are forecast again, for each t
_STORED_TOLERANCE = 1e-3  # relative to the deviation of stored forecasts; GPUs do not repeat to the bit


def check(subject: Subject) -> Result:
    """Require the same fitted models and the same forecasts up to t when the future is replaced."""
    return _check_checkpoints(subject) if subject.run is not None else _check_refits(subject)


def _check_refits(subject: Subject) -> Result:
    models = models_to_fit(subject)
    if not models:
        return Result(NAME, "skipped", "The config has no model that needs fitting.")
    config = subject.config.model_copy(update={"folds": _plan(subject)})
    need = _sessions(subject)
    usable = subject.decisions[
        (subject.decisions >= subject.decisions[0] + need)
        & (subject.decisions < subject.dataset.panel.n_sessions - need // 2)
    ]
    if not len(usable):
        return Result(NAME, "skipped", f"There are too few sessions for a small fold, which needs {need}.")
    rng = np.random.default_rng((subject.seed, 2))
    diffs: list[tuple[int, Difference]] = []
    times = sorted(
        rng.choice(usable, min(subject.budget.refits, len(usable)), replace=False).astype(int).tolist()
    )
    try:
        for t in times:
            diffs += [(t, one) for one in _refitted(subject, config, models, t)]
    except (ValueError, DataError) as error:
        return Result(NAME, "skipped", f"Models could not be fitted on a small fold: {error}")
    days = ", ".join(str(subject.day(t)) for t in times)
    if not diffs:
        return Result(
            NAME,
            "pass",
            f"{', '.join(models)}: weights and forecasts are bitwise identical when refitted with noise "
            f"after {days}.",
        )
    t, first = diffs[0]
    return Result(
        NAME,
        "fail",
        f"{first.what[0].upper()}{first.what[1:]} changed when all data after {subject.day(t)} were "
        "replaced: they depend on later data.",
        pl.DataFrame([{"after": subject.day(at), "what": one.what} for at, one in diffs]),
    )


def _plan(subject: Subject) -> WalkForwardConfig:
    spacing, budget = subject.spacing, subject.budget
    return WalkForwardConfig(
        scheme="rolling",
        train=max(
            budget.train, 8 * spacing
        ),  # in sessions; at a low forecast frequency a few decisions are enough
        valid=max(budget.valid, 3 * spacing),
        test=max(4, 2 * spacing),
        embargo=subject.config.folds.embargo,
        anchor="start",
    )


def _sessions(subject: Subject) -> int:
    """Sessions of a small fold, gaps included."""
    plan, label = _plan(subject), subject.config.label
    gap = label.max_delay + label.horizon + plan.embargo
    return plan.train + plan.valid + 2 * plan.test + 3 * gap


def _refitted(subject: Subject, config: Config, models: tuple[str, ...], t: int) -> list[Difference]:
    need = _sessions(subject)
    cut = subject.window(t - need - subject.lookback, t + max(AFTER, need // 2))
    tables = subject.sample_firms(cut, subject.budget.firms)
    true = datasets.build_dataset(tables, config)
    noisy = datasets.build_dataset(replace_future(tables, subject.day(t), seed=subject.seed + t), config)
    at = int(np.searchsorted(true.panel.dates_T, subject.dataset.panel.dates_T[t]))
    left_fold, right_fold = _fold_with(at, true, config), _fold_with(at, noisy, config)
    if left_fold is None or right_fold is None:
        return []
    diffs = [
        one
        for segment in ("train", "valid", "test")
        if (
            one := difference(
                getattr(left_fold, segment), getattr(right_fold, segment), f"the {segment} dates"
            )
        )
    ]
    if diffs:
        return diffs
    # in this process: the check fit_scope fits where a training does
    small = small_fit_config(config, models, subject.budget.epochs).model_copy(
        update={"execution": config.execution.model_copy(update={"engine": "serial"})}
    )
    pairs = zip(*fits(small, (true,), left_fold), *fits(small, (noisy,), right_fold), strict=True)
    arrays = collect_arrays(true, config.features.window)
    for (task, left), (twin, right) in pairs:
        diffs += _reads_targets(task, left, arrays)
        diffs += inputs_differ(task.inputs, twin.inputs)
        diffs += weights_differ(left, right, task.model)
        diffs += _forecasts_differ(left, right, left_fold, at, true, noisy, task.model)
    return diffs


def _reads_targets(task: Task, outcome: Outcome, arrays: Arrays) -> list[Difference]:
    """Forecast the test again with other targets on all dates: a model must not read them to forecast."""
    rng = np.random.default_rng(task.seed)

    def other(target: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return rng.standard_normal(target.shape, dtype=np.float32)

    path_TNK = None if arrays.path_TNK is None else other(arrays.path_TNK)
    changed = replace(arrays, target_TN=other(arrays.target_TN), path_TNK=path_TNK)
    fitted = restore(outcome.state)
    own, others = (
        fitted.forecast(tasks.to_tensors(one, task.inputs, "cpu"), task.fold.test)
        for one in (arrays, changed)
    )
    read = difference(own, others, f"{task.model}'s forecasts, which read targets (of their own date),")
    return [] if read is None else [read]


def _fold_with(at: int, dataset: Dataset, config: Config) -> Fold | None:
    folds = dataset_folds.plan_folds(dataset, config)
    return next((fold for fold in folds if fold.test[0] <= at <= fold.test[-1]), None)


def _forecasts_differ(  # noqa: PLR0917 (two fits of one fold)
    left: Outcome, right: Outcome, fold: Fold, at: int, true: Dataset, noisy: Dataset, model: str
) -> list[Difference]:
    seen = fold.test <= at
    theirs = [
        noisy.panel.tickers_N.index(ticker)
        for ticker in true.panel.tickers_N
        if ticker in noisy.panel.tickers_N
    ]
    own = [n for n, ticker in enumerate(true.panel.tickers_N) if ticker in noisy.panel.tickers_N]
    diffs = [
        difference(
            np.ascontiguousarray(left.test_BN[seen][:, own]),
            np.ascontiguousarray(right.test_BN[seen][:, theirs]),
            f"{model}'s forecasts",
        )
    ]
    if left.path_BNK is not None and right.path_BNK is not None:
        diffs.append(
            difference(
                np.ascontiguousarray(left.path_BNK[seen][:, own]),
                np.ascontiguousarray(right.path_BNK[seen][:, theirs]),
                f"{model}'s forecasts of shorter horizons",
            )
        )
    return [one for one in diffs if one is not None]


def _check_checkpoints(subject: Subject) -> Result:
    from pipelines.run.checkpoints import load_checkpoint

    run, stored = subject.run, subject.forecasts
    assert run is not None
    assert stored is not None
    rng = np.random.default_rng((subject.seed, 3))
    folds = subject.folds[-subject.budget.refits :]
    arrays = collect_arrays(subject.dataset, run.config.features.window)
    rows: list[dict[str, Any]] = []
    checked = 0
    for fold in folds:
        # a live fold has no test; its checkpoints must be causal on the validation sessions as well
        scored = fold.test if len(fold.test) else fold.valid
        t = int(rng.choice(scored[: max(len(scored) - 2, 1)]))
        noisy = datasets.build_dataset(
            replace_future(subject.tables, subject.day(t), seed=subject.seed + t), run.config
        )
        noisy_arrays = collect_arrays(noisy, run.config.features.window)
        columns = [
            noisy.panel.tickers_N.index(name)
            for name in subject.dataset.panel.tickers_N
            if name in noisy.panel.tickers_N
        ]
        own = [n for n, name in enumerate(subject.dataset.panel.tickers_N) if name in noisy.panel.tickers_N]
        dates = scored[scored <= t][-_DATES:]
        rows += _dates_outside(stored, fold, subject)
        for model in run.config.models:
            for seed in run.config.seeds:
                fitted, inputs = load_checkpoint(run.checkpoint(model, fold.index, seed))
                forecast_DNK = _every_horizon(fitted, tasks.to_tensors(arrays, inputs, "cpu"), dates)
                noisy_DNK = _every_horizon(fitted, tasks.to_tensors(noisy_arrays, inputs, "cpu"), dates)
                checked += 1
                key = {"model": model, "fold": fold.index, "seed": seed, "after": subject.day(t)}
                one = difference(
                    np.ascontiguousarray(forecast_DNK[:, own]),
                    np.ascontiguousarray(noisy_DNK[:, columns]),
                    "",
                )
                if one is not None:
                    rows.append({**key, "what": "the forecasts change with later data"})
                horizons = run.config.label.horizons[-forecast_DNK.shape[2] :]
                for k, horizon in enumerate(horizons if len(fold.test) else ()):
                    if not _repeats(forecast_DNK[..., k], _stored(stored, key, horizon, dates, subject)):
                        rows.append({**key, "what": _not_repeated(horizon, horizons)})
    if not rows:
        tested = any(len(fold.test) for fold in folds)
        repeat = "repeat the stored forecasts, and " if tested else "of a live fold: "
        return Result(
            NAME,
            "pass",
            f"{checked} checkpoints {repeat}their forecasts are bitwise identical with noise after t.",
        )
    first = rows[0]
    return Result(
        NAME,
        "fail",
        f"{first['model']}, fold {first['fold']}, seed {first['seed']}: {first['what']}.",
        pl.DataFrame(rows, infer_schema_length=None),
    )


def _dates_outside(stored: pl.DataFrame, fold: Fold, subject: Subject) -> list[dict[str, Any]]:
    """Find stored forecasts of a fold on dates outside its test segment."""
    days = subject.dataset.panel.dates_T[fold.test].astype("datetime64[D]")
    outside = stored.filter((pl.col("fold") == fold.index) & ~pl.col("date").is_in(pl.Series(days).implode()))
    return [
        {
            "model": model,
            "fold": fold.index,
            "seed": seed,
            "after": None,
            "what": "forecasts are stored for dates outside the fold's test segment",
        }
        for model, seed in outside.select("model", "seed").unique().sort("model", "seed").iter_rows()
    ]


def _every_horizon(fitted: Fitted, data: PanelTensors, dates: IntArray) -> npt.NDArray[np.float32]:
    """Forecasts [D, N, K] of all horizons of a model; the label's horizon comes last."""
    if isinstance(fitted, NeuralFitted) and fitted.module.n_horizons > 1:
        return fitted.horizons(data, dates)
    return fitted.forecast(data, dates)[..., None]


def _not_repeated(horizon: int, horizons: tuple[int, ...]) -> str:
    which = f" of horizon {horizon}" if len(horizons) > 1 else ""
    return f"the stored forecasts{which} differ from those of the checkpoint"


def _stored(
    stored: pl.DataFrame,
    key: dict[str, Any],
    horizon: int,
    dates: npt.NDArray[np.integer],
    subject: Subject,
) -> npt.NDArray[np.float64]:
    task = pl.all_horizontal(pl.col(name) == key[name] for name in ("model", "fold", "seed"))
    own = stored.filter(task & (pl.col("horizon") == horizon))
    forecast_DN: npt.NDArray[np.float64] = to_panel(own, "forecast", subject.dataset.panel)[dates]
    return forecast_DN


def _repeats(forecast_DN: npt.NDArray[np.float32], stored_DN: npt.NDArray[np.float64]) -> bool:
    same_cells = bool((np.isfinite(forecast_DN) == np.isfinite(stored_DN)).all())
    off = np.nan_to_num(np.abs(forecast_DN - stored_DN))
    return same_cells and bool(
        (off <= _STORED_TOLERANCE * max(float(np.nanstd(stored_DN)), 1e-30) + 1e-7).all()
    )
