"""The folds of a config: sessions for training, validation and test, purged and embargoed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.splits.calendar import calendar_folds
from backtest.splits.combinatorial import combinatorial_folds, path_folds
from backtest.splits.folds import Fold, dated_fold, live_fold, make_folds
from features.arrays import IntArray
from features.library.scaling import ChannelScaler, fit_channel_scaler
from features.library.sets import bases_of
from features.panel.universe import decision_sessions
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.market import Market
from pipelines.errors import DataError


def plan_folds(dataset: Market, config: Config) -> list[Fold]:
    """Split the sessions into folds, purged for the longest delay, of sessions with forecasts only."""
    folds = _split_sessions(dataset, config)
    if config.label.forecast_frequency == "daily":
        return folds
    decides_T = decision_sessions(dataset.panel.dates_T, config.label.forecast_frequency)
    kept = []
    for fold in folds:
        segments = {name: getattr(fold, name) for name in ("train", "valid", "test")}
        decided = {name: sessions[decides_T[sessions]] for name, sessions in segments.items()}
        for name, sessions in decided.items():
            if not len(sessions) and len(segments[name]):
                raise DataError(
                    f"folds: the {name} segment of fold {fold.index} ({len(segments[name])} sessions) has no "
                    f"{config.label.forecast_frequency} forecast; lengthen it."
                )
        kept.append(replace(fold, **decided))
    return kept


def _split_sessions(dataset: Market, config: Config) -> list[Fold]:
    """Make the folds of the config's scheme, with every session of each segment."""
    plan, first = config.folds, dataset.first_session
    dates_T, delay, horizon = dataset.panel.dates_T, config.label.max_delay, config.label.horizon
    try:
        if plan.scheme == "live":
            return [live_fold(dates_T, plan, delay, horizon, first)]
        if plan.scheme == "dated":
            return [dated_fold(dates_T, plan, delay, horizon, first)]
        if plan.scheme == "calendar":
            return calendar_folds(dates_T, plan, delay, horizon, first)
        if plan.scheme == "combinatorial":
            return combinatorial_folds(len(dates_T), plan, delay, horizon, first)
        return make_folds(len(dates_T), plan, delay, horizon, first)
    except ValueError as error:
        raise DataError(f"folds: {error}") from None


def path_of_tests(dataset: Market, folds: Sequence[Fold], path: int = 0) -> pl.DataFrame:
    """List the sessions of one path of tests, and the fold whose forecasts it uses on each (date, fold)."""
    fold_T = path_folds(folds, dataset.panel.n_sessions)[path]
    dates_T = dataset.panel.dates_T
    return pl.DataFrame({"date": dates_T[fold_T >= 0], "fold": fold_T[fold_T >= 0]})


def n_paths(dataset: Market, folds: Sequence[Fold]) -> int:
    """Count the paths of tests: 1 for walk-forward folds."""
    return len(path_folds(folds, dataset.panel.n_sessions))


def describe_tested(dataset: Market, config: Config, folds: Sequence[Fold]) -> str:
    """Say which of the usable decision dates are tested and which are not, and why."""
    dates_T = dataset.panel.dates_T
    decides_T = decision_sessions(dates_T, config.label.forecast_frequency)
    usable = np.flatnonzero(decides_T[dataset.first_session :]) + dataset.first_session
    tested = np.unique(np.concatenate([fold.test for fold in folds]))
    known_to = len(dates_T) - config.label.max_delay - config.label.horizon  # first date without a label
    left = np.setdiff1d(usable, tested)
    last = min(int(tested[-1]), known_to - 1)
    parts = (
        (left < tested[0], "before the first test, for training and validation"),
        ((left > tested[0]) & (left < tested[-1]), "between tests"),
        ((left > last) & (left < known_to), "after the last test, although their labels are known"),
        (left >= max(known_to, last + 1), "at the end, whose labels are not known yet"),
    )

    def span(sessions: IntArray) -> str:
        first, end = (str(dates_T[t].astype("datetime64[D]")) for t in sessions[[0, -1]])
        return first if first == end else f"{first} to {end}"

    untested = [f"{part.sum():,} {why} ({span(left[part])})" for part, why in parts if part.any()]
    return (
        f"Tests cover {len(tested):,} of {len(usable):,} usable dates, {span(tested)}. "
        f"Not tested: {'; '.join(untested) or 'none'}."
    )


def fold_table(dataset: Market, folds: Iterable[Fold]) -> pl.DataFrame:
    """Make a table of folds: dates, numbers of sessions and uninterrupted ``spans`` of their segments."""
    names = ("train", "valid", "test")
    dates_T = dataset.panel.dates_T
    rows = []
    for fold in folds:
        row: dict[str, Any] = {"fold": fold.index, "name": fold.name or None}
        segments = [getattr(fold, name) for name in names]
        sessions = np.concatenate(segments)
        order = np.argsort(sessions, kind="stable")
        kind = np.repeat(np.arange(len(names)), [len(segment) for segment in segments])[order]
        stretches = np.split(np.arange(len(kind)), np.flatnonzero(np.diff(kind)) + 1)
        for n, (name, segment) in enumerate(zip(names, segments, strict=True)):
            own = [sessions[order][at[[0, -1]]] for at in stretches if kind[at[0]] == n]
            row |= {
                f"{name}_from": dates_T[segment[0]].item() if len(segment) else None,
                f"{name}_to": dates_T[segment[-1]].item() if len(segment) else None,
                f"n_{name}": len(segment),
                f"{name}_spans": [dates_T[ends].tolist() for ends in own],
            }
        rows.append(row)
    dated = {f"{name}_{end}": pl.Date for name in names for end in ("from", "to")}
    spans = {f"{name}_spans": pl.List(pl.List(pl.Date)) for name in names}
    return pl.DataFrame(rows, schema_overrides={"name": pl.String, **dated, **spans})


@dataclass(frozen=True, slots=True, eq=False)
class FoldInputs:
    """Properties of a model's inputs that are fitted on a fold's training sessions; stored with the model."""

    scaler: ChannelScaler
    groups: tuple[str, ...]
    """Names (newer data may number them differently) of the groups with a firm in the universe on training
    sessions. A model has one embedding for each: with later groups, its size would depend on the future."""

    def known_groups(self, group_TN: npt.NDArray[np.integer], groups_S: Sequence[str]) -> IntArray:
        """Map a panel's group codes to positions in ``groups``; -1 for any other group."""
        position = {name: index for index, name in enumerate(self.groups)}
        of_code = np.array([*(position.get(name, -1) for name in groups_S), -1], dtype=np.int16)
        positions_TN: IntArray = of_code[group_TN]  # code -1 takes the last entry
        return positions_TN


def fit_inputs(dataset: Dataset, fold: Fold) -> FoldInputs:
    """Fit the channel scaler and list the groups, on the fold's training sessions only."""
    panel, universe_TN, sessions = dataset.panel, dataset.universe_TN, fold.train
    codes = np.unique(panel.group_TN[sessions][universe_TN[sessions]])
    groups = tuple(panel.groups_S[code] for code in codes[codes >= 0])
    bases = bases_of(dataset.channel_names)
    scaler = fit_channel_scaler(dataset.channels_TNC, universe_TN, sessions, bases, dataset.window)
    return FoldInputs(scaler, groups)
