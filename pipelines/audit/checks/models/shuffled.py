"""Shuffled labels: a model fitted on permuted labels must have no skill on permuted test labels.

Labels are permuted among the firms of each date, on all dates including the test. Any remaining test IC
cannot come from the features; it shows, for example, that test dates were used for training.

Shape suffixes: T sessions, N firms, D dates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.splits.folds import Fold
from features.arrays import IntArray
from features.information_coefficient import ic_by_date, is_constant
from pipelines.audit.refit import sample_columns, select_firms
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject, temporary_run
from pipelines.train import task as tasks
from pipelines.train import walkforward
from pipelines.train.task import collect_arrays

NAME = "shuffled_labels"
QUICK_MODELS: Final = {
    "ridge": {},
    "lightgbm": {"rounds": 40, "evaluate_every": 10, "patience": 2, "num_leaves": 15, "min_data_in_leaf": 50},
}
FIRMS: Final = 200
DEVIATIONS: Final = 4.0
"""Half-width of the null interval, in exact standard deviations of the IC under permutation. The probability
of a value outside is 1 in 16,000."""


def check(subject: Subject) -> Result:
    """Fit ridge and a small LightGBM on permuted labels and compare the test IC with its null interval.

    Under permutation, the Pearson IC of a date has mean 0 and variance ``1 / (n - 1)`` exactly, for any
    forecast and labels (Pitman 1937), and dates are independent.
    """
    fold = _with_test(subject.folds[-1])
    if not (len(fold.valid) and len(fold.test)):
        return Result(NAME, "skipped", "A live fold with one validation session leaves none for a test.")
    thin = _thinned(fold, subject.budget.permuted_train)
    columns = sample_columns(subject.dataset, fold.test, FIRMS, subject.seed)
    rows = []
    for permutation in range(subject.budget.permutations):
        rng = np.random.default_rng((subject.seed, 4, permutation))
        permuted_TN = permute_within_dates(subject.dataset.target_TN, rng)
        for model, forecast_DN, label_DN in _fits(subject, thin, permuted_TN, columns):
            rows.append(
                {"model": model, "permutation": permutation, **_compare_with_null(forecast_DN, label_DN)}
            )
    evidence = pl.DataFrame(rows)
    outside = evidence.filter(pl.col("deviations").abs() > DEVIATIONS)
    if not outside.is_empty():
        one = outside.row(0, named=True)
        return Result(
            NAME,
            "fail",
            f"{one['model']} fitted on labels permuted within their dates has a test IC of "
            f"{one['ic']:+.3f}, {abs(one['deviations']):.1f} standard deviations of "
            f"{one['null_deviation']:.4f} from zero: test data leak into the fit.",
            evidence,
        )
    largest = float(evidence["deviations"].abs().max() or 0.0)  # type: ignore[arg-type]
    return Result(
        NAME,
        "pass",
        f"{' and '.join(QUICK_MODELS)} fitted on permuted labels have no skill on the test: the IC is at "
        f"most {largest:.1f} standard deviations from zero, and {DEVIATIONS:.0f} are allowed.",
        evidence,
    )


def _with_test(fold: Fold) -> Fold:
    """The fold itself or, for a live fold, one that tests on the second half of the validation sessions.

    Labels are permuted on each date by itself, so nothing has to be purged between the halves.
    """
    if len(fold.test):
        return fold
    half = len(fold.valid) // 2
    return replace(fold, valid=fold.valid[:half], test=fold.valid[half:])


def permute_within_dates(
    target_TN: npt.NDArray[np.float32], rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Permute the known targets of each date among the firms that have one."""
    out_TN = target_TN.copy()
    for row in out_TN:
        known = np.flatnonzero(np.isfinite(row))
        row[known] = row[rng.permutation(known)]
    return out_TN


def _thinned(fold: Fold, most: int) -> Fold:
    count = min(most, len(fold.train))
    at = np.linspace(0, len(fold.train) - 1, count).round().astype(np.int64)
    return replace(fold, train=fold.train[at])


def _fits(
    subject: Subject, fold: Fold, target_TN: npt.NDArray[np.float32], columns: IntArray
) -> list[tuple[str, npt.NDArray[np.float32], npt.NDArray[np.float64]]]:
    """Fit the quick models on a target; return their test forecasts, with the target itself as the label."""
    whole = collect_arrays(subject.dataset, subject.config.features.window)
    label_TN = np.where(whole.universe_TN, target_TN, np.nan).astype(np.float64)
    # both models read the characteristics of the fold's dates alone, and copying all would take seconds
    every_TNF, dates = (
        whole.characteristics_TNF,
        np.unique(np.concatenate([fold.train, fold.valid, fold.test])),
    )
    characteristics_TNF = np.zeros((len(every_TNF), len(columns), every_TNF.shape[2]), dtype=every_TNF.dtype)
    characteristics_TNF[dates] = every_TNF[dates][:, columns]
    few = replace(whole, target_TN=target_TN, label_TN=label_TN, characteristics_TNF=every_TNF[:, :, :0])
    arrays = replace(select_firms(few, columns), characteristics_TNF=characteristics_TNF)
    settings = {"models": dict(QUICK_MODELS), "fit": {}, "seeds": (subject.seed,), "device": "cpu"}
    with temporary_run(subject.config.model_copy(update=settings)) as run:
        return [
            (task.model, tasks.run_task(task, arrays).test_BN, arrays.label_TN[fold.test])
            for task in walkforward.plan_tasks(run, subject.dataset, [fold])
        ]


def _compare_with_null(
    forecast_DN: npt.NDArray[np.float32], label_DN: npt.NDArray[np.float64]
) -> dict[str, float | int]:
    ic_D = ic_by_date(forecast_DN, label_DN)
    used_D = np.isfinite(ic_D) & ~is_constant(
        forecast_DN
    )  # a constant forecast has IC 0 by definition, not by chance
    count_D = (np.isfinite(forecast_DN) & np.isfinite(label_DN)).sum(axis=1)[used_D]
    dates = int(used_D.sum())
    if not dates:  # a constant forecast has no IC
        return {"dates": 0, "ic": 0.0, "null_deviation": 0.0, "deviations": 0.0}
    ic = float(ic_D[used_D].mean())
    deviation = float(np.sqrt((1.0 / (count_D - 1)).sum()) / dates)
    return {"dates": dates, "ic": ic, "null_deviation": deviation, "deviations": ic / deviation}
