"""The folds of a config: sessions for training, validation and test, purged and embargoed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import polars as pl

from backtest.splits import Fold, FoldPlan, dated_fold, make_folds
from features.panel.universe import decision_sessions
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.errors import DataError


def plan_folds(dataset: Dataset, config: Config) -> list[Fold]:
    """Split the sessions into folds, purged for the longest delay whose labels are used.

    Lengths count sessions. With a forecast frequency other than daily, each segment keeps only the sessions
    on which forecasts are made.

    Raises
    ------
    DataError
        If there are fewer sessions than a fold needs, or a segment has no session with a forecast.
    """
    folds = _split_sessions(dataset, config)
    if config.label.forecast_frequency == "daily":
        return folds
    decides_T = decision_sessions(dataset.panel.dates_T, config.label.forecast_frequency)
    kept = []
    for fold in folds:
        segments = {name: getattr(fold, name) for name in ("train", "valid", "test")}
        decided = {name: sessions[decides_T[sessions]] for name, sessions in segments.items()}
        for name, sessions in decided.items():
            if not len(sessions):
                raise DataError(
                    f"folds: the {name} segment of fold {fold.index} ({len(segments[name])} sessions) has no "
                    f"{config.label.forecast_frequency} forecast; lengthen it."
                )
        kept.append(replace(fold, **decided))
    return kept


def _split_sessions(dataset: Dataset, config: Config) -> list[Fold]:
    """Make the folds of the config's scheme, with every session of each segment."""
    plan, label = config.folds, config.label
    try:
        if plan.scheme == "dated":
            fold = dated_fold(
                dataset.panel.dates_T,
                train_from=max(plan.train_from, _date(dataset, dataset.first_session)),
                valid_from=plan.valid_from,
                test_from=plan.test_from,
                test_to=plan.test_to,
                embargo=plan.embargo,
                delay=label.max_delay,
                horizon=label.horizon,
            )
            return [fold]
        folds = FoldPlan(
            scheme=plan.scheme,
            train=plan.train,
            valid=plan.valid,
            test=plan.test,
            embargo=plan.embargo,
            step=plan.step,
            max_folds=plan.max_folds,
            first=dataset.first_session,
        )
        return make_folds(dataset.panel.n_sessions, folds, delay=label.max_delay, horizon=label.horizon)
    except ValueError as error:
        raise DataError(f"folds: {error}") from None


def fold_table(dataset: Dataset, folds: Iterable[Fold]) -> pl.DataFrame:
    """Make a table with one row per fold: first and last date and number of sessions of each segment."""
    rows = []
    for fold in folds:
        row: dict[str, Any] = {"fold": fold.index}
        for name in ("train", "valid", "test"):
            sessions = getattr(fold, name)
            dates = dataset.panel.dates_T[sessions].astype("datetime64[D]")
            row |= {
                f"{name}_from": dates[0].item(),
                f"{name}_to": dates[-1].item(),
                f"n_{name}": len(sessions),
            }
        rows.append(row)
    return pl.DataFrame(rows)


def _date(dataset: Dataset, session: int) -> dt.date:
    return cast("dt.date", dataset.panel.dates_T[session].astype("datetime64[D]").item())
