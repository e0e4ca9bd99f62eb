"""Ensembles: the mean of the seeds' standardised forecasts, whatever the returns turn out to be.

An ensemble whose sign or weights follow the test's returns turns noise into skill. The check computes the
mean with a loop of its own, for forecasts that are as good, as bad and as useless as forecasts can be.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import polars as pl

from features.arrays import FloatArray
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject
from pipelines.dataset.folds import path_of_tests
from pipelines.results import evaluate
from pipelines.results import forecast_tables as ensembles
from pipelines.results.evaluate import forecasts_to_arrays

NAME = "ensembles"
TOLERANCE: Final = 1e-9
DATES: Final = 40
_FEWEST: Final = 3


def check(subject: Subject) -> Result:
    """Compare ensembles with the mean over seeds of ``(forecast - mean) / deviation`` of each date.

    Made-up forecasts that agree with the labels, contradict them or have nothing to do with them must all
    give that mean. For a run, its stored ensembles must be the means of its stored forecasts.
    """
    problems: list[str] = []
    for case, seeds in _made_up(subject).items():
        own_TN = mean_of_standardised(seeds)
        signal_TN = evaluate.ensemble(seeds)
        stored_TN = _dense(ensembles.ensemble_table({"m": seeds}, subject.dataset.panel), subject)
        for found_TN in (signal_TN, stored_TN):
            problems += _differs(found_TN, own_TN, subject, f"of forecasts that {case}")
    stored = 0
    for model, signal_TN, own_TN in _stored(subject):
        stored += 1
        problems += _differs(signal_TN, own_TN, subject, f"that is stored for {model}")
    if problems:
        return Result(NAME, "fail", problems[0], pl.DataFrame({"finding": problems}))
    also = f", and so are the stored ones of {stored} model{'s' if stored > 1 else ''}" if stored else ""
    return Result(
        NAME,
        "pass",
        "Ensembles are the means of the seeds' standardised forecasts, for forecasts that agree with the "
        f"labels and for those that contradict them{also}.",
    )


def mean_of_standardised(seeds: Mapping[int, FloatArray]) -> FloatArray:
    """Mean over seeds of forecasts standardised within the date; NaN where a seed has no forecast."""
    total_TN = np.zeros(next(iter(seeds.values())).shape)
    for forecast_TN in seeds.values():
        score_TN = np.full(forecast_TN.shape, np.nan)
        for t in np.flatnonzero(np.isfinite(forecast_TN).any(axis=1)):
            known_N = np.isfinite(forecast_TN[t])
            value_N = forecast_TN[t, known_N]
            spread = value_N.std()
            score_TN[t, known_N] = (value_N - value_N.mean()) / spread if spread > 0 else 0.0
        total_TN += score_TN
    return total_TN / len(seeds)


def _made_up(subject: Subject) -> dict[str, dict[int, FloatArray]]:
    """Forecasts of two seeds on some test dates, by how they are related to the labels."""
    data = subject.dataset
    rng = np.random.default_rng((subject.seed, 13))
    label_TN = np.where(data.universe_TN, data.labels[subject.config.label.delay], np.nan)
    tested = np.unique(np.concatenate([fold.test for fold in subject.folds]))
    usable = tested[(np.isfinite(label_TN[tested]).sum(axis=1) >= _FEWEST)]
    dates = usable[np.linspace(0, len(usable) - 1, min(DATES, len(usable))).astype(int)]
    label_DN = label_TN[dates]
    spread = float(np.nanstd(label_DN)) if len(dates) else 1.0  # a live fold tests no date
    known_DN = np.nan_to_num(label_DN / max(spread, 1e-12))

    def made(strength: float) -> FloatArray:
        value_DN = strength * known_DN + rng.standard_normal(label_DN.shape)
        value_TN = np.full(label_TN.shape, np.nan)
        value_TN[dates] = np.where(data.universe_TN[dates], value_DN, np.nan)
        return value_TN

    return {
        "agree with the labels": {0: made(1.0), 1: made(1.0)},
        "contradict the labels": {0: made(-1.0), 1: made(-1.0)},
        "agree for one seed and contradict for the other": {0: made(0.5), 1: made(-1.0)},
        "contradict the labels, with one seed": {0: made(-1.0)},
    }


def _differs(found_TN: FloatArray, own_TN: FloatArray, subject: Subject, which: str) -> list[str]:
    """One sentence if a signal is not the mean that it should be."""
    same_cells = np.isfinite(found_TN) == np.isfinite(own_TN)
    off_TN = ~same_cells | (
        np.nan_to_num(np.abs(found_TN - own_TN)) > TOLERANCE * (1 + np.nan_to_num(np.abs(own_TN)))
    )
    if not off_TN.any():
        return []
    t, n = (int(i) for i in np.argwhere(off_TN)[0])
    both_TN = np.isfinite(found_TN) & np.isfinite(own_TN)
    turned = np.allclose(found_TN[both_TN], -own_TN[both_TN]) and both_TN.any()
    why = (
        " Its sign is turned: was it chosen by the IC of the test?"
        if turned
        else " Do its weights depend on the returns of the test?"
    )
    return [
        f"The ensemble {which} is not the mean of the seeds' standardised forecasts: it is "
        f"{found_TN[t, n]:+.4f} for {subject.dataset.panel.tickers_N[n]} on {subject.day(t)}, and the mean "
        f"is {own_TN[t, n]:+.4f}.{why}"
    ]


def _dense(table: pl.DataFrame, subject: Subject) -> FloatArray:
    from pipelines.dataset.market import to_panel

    return to_panel(table, "signal", subject.dataset.panel)


def _stored(subject: Subject) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Model, stored ensemble and own mean of a run's stored forecasts, on the dates of the ensemble."""
    run, forecasts = subject.run, subject.forecasts
    table = None if run is None else run.read_table("ensembles")
    if table is None or forecasts is None or forecasts.is_empty():
        return
    path = path_of_tests(subject.dataset, subject.folds)
    own = forecasts.filter(pl.col("horizon") == subject.config.label.horizon).join(
        path, on=["date", "fold"], how="semi"
    )
    arrays = forecasts_to_arrays(own, subject.dataset.panel)
    for (model,), part in table.group_by("model", maintain_order=True):
        if str(model) in arrays:
            found_TN = _dense(part, subject)
            dates_T1 = np.isfinite(found_TN).any(axis=1, keepdims=True)
            yield str(model), found_TN, np.where(dates_T1, mean_of_standardised(arrays[str(model)]), np.nan)
