"""From lake tables to the arrays that models and books read: a pure function of tables and config."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.splits import Fold, FoldPlan, dated_fold, make_folds
from features.library.channels import available_channels, compute_channels
from features.library.characteristics import available_characteristics, compute_characteristics
from features.library.factors import residualise_factors, statistical_factors
from features.library.scaling import ChannelScaler, fit_channel_scaler
from features.library.standardise import TransformRule, transform_characteristics
from features.panel.delistings import DelistingRule
from features.panel.derived import row_mean
from features.panel.labels import forward_returns, target
from features.panel.panel import Panel, build_panel
from features.panel.universe import UniverseRule, decision_sessions, universe, universe_messages
from pipelines.config.schema import Config, LabelConfig
from pipelines.errors import ConfigError, DataError

INPUT_PREFIX = "input_"
"""What the names of a user's own inputs begin with among the characteristics."""

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Everything known about a market, as dense arrays over (session, firm).

    Row ``t`` of ``universe_TN``, ``channels_TNC`` and ``characteristics_TNF`` holds what was known at the
    close of session ``t``. ``labels`` and ``target_TN`` look ahead by definition and are read by fitting
    (training and validation sessions) and by evaluation alone.

    Attributes
    ----------
    channels_TNC : raw window channels; NaN where not known. Scaled a fold at a time.
    characteristics_TNF : transformed within the date's universe (`features.library.standardise`); no NaN.
    labels : by execution delay, simple total return of the label span; NaN where not known yet.
    target_TN : what models are fitted to: the label at the trained delay, transformed within the date.
    notes : what had to be left out, and why.
    shorter : by horizon below the label's, the return at the trained delay; NaN where not known yet.
    path_TNK : the same transformed as the target, ascending by horizon; None where the config names none.
    """

    panel: Panel
    universe_TN: BoolArray
    channels_TNC: Float32Array
    characteristics_TNF: Float32Array
    labels: Mapping[int, FloatArray]
    target_TN: Float32Array
    channel_names: tuple[str, ...]
    characteristic_names: tuple[str, ...]
    notes: tuple[str, ...]
    shorter: Mapping[int, FloatArray] = field(default_factory=dict)
    path_TNK: Float32Array | None = None

    @property
    def first_session(self) -> int:
        """First session with a universe: folds start here."""
        return int(np.argmax(self.universe_TN.any(axis=1)))


def build_dataset(tables: Mapping[str, pl.DataFrame], config: Config) -> Dataset:
    """Build the dataset of a config from lake tables.

    Raises
    ------
    ConfigError
        If a named channel or characteristic does not exist, or groups are asked for and there are none.
    DataError
        If no firm is ever in the universe, or no channel or characteristic can be computed.
    """
    panel = build_panel(
        tables["prices"],
        tables.get("securities"),
        tables.get("fundamentals"),
        group_by=config.features.group_by,
        delisting_rule=DelistingRule(unknown_return=config.label.unknown_delisting_return),
    )
    rule = UniverseRule(**config.universe.model_dump(exclude={"membership"}))
    universe_TN = universe(panel, rule, _membership(tables, config))
    universe_TN &= decision_sessions(panel.dates_T, config.label.forecast_frequency)[:, None]
    if not universe_TN.any():
        raise DataError(
            f"The universe is empty on all {panel.n_sessions} sessions: no firm of {panel.n_firms} passes "
            f"{config.universe.model_dump(exclude_none=True)}; loosen universe.min_price, "
            "universe.min_dollar_volume or universe.min_history."
        )
    try:
        channels, channel_notes = available_channels(panel, config.features.channels)
        characteristics, characteristic_notes = available_characteristics(
            panel, config.features.characteristics
        )
    except ValueError as error:
        raise ConfigError(f"features: {error}") from None
    wanted = config.features.transform
    if not panel.groups_S and "group" in (wanted.neutralise, wanted.missing.removesuffix("_median")):
        raise ConfigError(
            f"features.transform asks for groups, and no firm has {config.features.group_by!r}: give a "
            "securities table with it, or choose neutralise: none and missing: median"
        )
    inputs = _inputs(tables, config)
    if not channels or not (characteristics or inputs):
        raise DataError(
            "No channel or no characteristic can be computed from the columns of these prices: "
            + " ".join((*channel_notes, *characteristic_notes))
        )
    steps = TransformRule(**config.features.transform.model_dump())
    names = (*characteristics, *(f"{INPUT_PREFIX}{name}" for name in inputs))
    raw_TNF = raw_characteristics(panel, names, tables, config)
    transformed_TNF = within_dates(raw_TNF, universe_TN, panel.group_TN, config)
    del raw_TNF
    labels = {delay: forward_returns(panel, delay, config.label.horizon) for delay in config.label.delays}
    shorter = {
        horizon: forward_returns(panel, config.label.delay, horizon)
        for horizon in config.label.shorter_horizons
    }
    path = [make_target(label_TN, universe_TN, panel, config.label) for label_TN in shorter.values()]
    return Dataset(
        panel=panel,
        universe_TN=universe_TN,
        channels_TNC=compute_channels(panel, channels),
        characteristics_TNF=np.ascontiguousarray(transformed_TNF),  # a date's rows together, as models read
        labels=labels,
        target_TN=make_target(labels[config.label.delay], universe_TN, panel, config.label),
        shorter=shorter,
        path_TNK=np.stack(path, axis=2) if path else None,
        channel_names=tuple(channels),
        characteristic_names=steps.names(names),
        notes=(
            *universe_messages(panel, rule),
            *channel_notes,
            *characteristic_notes,
            *_target_notes(config.label),
        ),
    )


def _membership(tables: Mapping[str, pl.DataFrame], config: Config) -> pl.DataFrame | None:
    """Rows of the universe that the config names; None if it names none."""
    name = config.universe.membership
    if name is None:
        return None
    table = tables.get("membership")
    rows = None if table is None else table.filter(pl.col("universe") == name)
    if rows is None or rows.is_empty():
        there = "none" if table is None else ", ".join(table["universe"].unique().sort().to_list())
        raise DataError(
            f"universe.membership is {name!r} and the lake's membership table has {there}: ingest a source "
            "that gives it, or take the setting out."
        )
    return rows


def _inputs(tables: Mapping[str, pl.DataFrame], config: Config) -> dict[str, pl.DataFrame]:
    """The user's own numbers by name: those that the config lists, or all that the lake has."""
    table = tables.get("inputs")
    parts = (
        {}
        if table is None
        else {str(name): part for (name,), part in sorted(table.partition_by("name", as_dict=True).items())}
    )
    wanted = parts if config.features.inputs is None else config.features.inputs
    missing = [name for name in wanted if name not in parts]
    if missing:
        raise DataError(
            f"features.inputs names {missing[0]!r} and the lake's inputs are {', '.join(parts) or 'none'}: "
            "ingest it, or take the name out."
        )
    return {name: parts[name] for name in wanted}


def raw_characteristics(
    panel: Panel, names: Sequence[str], tables: Mapping[str, pl.DataFrame], config: Config
) -> Float32Array:
    """Give characteristics and the user's inputs as float32 [T, N, F], before they are transformed.

    ``names`` are those of a dataset without indicators: characteristics, then inputs with `INPUT_PREFIX`. NaN
    is unknown.
    """
    computed = [name for name in names if not name.startswith(INPUT_PREFIX)]
    raw_TNF = compute_characteristics(panel, computed)
    inputs = _inputs(tables, config)
    if not inputs:
        return raw_TNF
    own = [to_panel(frame, "value", panel).astype(np.float32) for frame in inputs.values()]
    return np.concatenate([raw_TNF, np.stack(own, axis=2)], axis=2)


def within_dates(
    raw_TNF: Float32Array, universe_TN: BoolArray, group_TN: npt.NDArray[np.integer], config: Config
) -> Float32Array:
    """Transform characteristics within each date as a config says (`transform_characteristics`)."""
    rule = TransformRule(**config.features.transform.model_dump())
    return transform_characteristics(raw_TNF, universe_TN, group_TN, rule)


def make_target(
    label_TN: FloatArray, universe_TN: BoolArray, panel: Panel, label: LabelConfig
) -> Float32Array:
    """What models are fitted to: the label less what a config calls noise, transformed within the date.

    What common factors did to the firms says nothing of a forecast for each, and tails say little of the
    rest. A firm without loadings keeps what it has beyond the date's mean, since the others lose theirs; a
    date before the first factors stays as it is.
    """
    if label.residualise_factors:
        estimates = statistical_factors(panel, label.residualise_factors)
        beyond_TN = residualise_factors(label_TN, universe_TN, estimates)
        with_factors_T1 = np.isfinite(beyond_TN).any(axis=1, keepdims=True)
        mean_T1 = row_mean(np.where(universe_TN, label_TN, np.nan))
        other_TN = np.where(with_factors_T1, label_TN - mean_T1, label_TN)
        label_TN = np.where(np.isnan(beyond_TN), other_TN, beyond_TN)
    target_TN = target(label_TN, universe_TN, label.transform)
    return target_TN if label.clip is None else np.clip(target_TN, -label.clip, label.clip)


def _target_notes(label: LabelConfig) -> tuple[str, ...]:
    """What a reader must know of what models were fitted to, where it is not the label."""
    if not label.residualise_factors:
        return ()
    factors = f"{label.residualise_factors} statistical factor{'' if label.residualise_factors == 1 else 's'}"
    return (f"Models are fitted to what is left of the label beyond {factors}, and measured on all of it.",)


def plan_folds(dataset: Dataset, config: Config) -> list[Fold]:
    """Split the sessions into folds; the purge covers the longest delay whose labels are looked at.

    Lengths count sessions; of each segment, the sessions on which the config decides are kept.

    Raises
    ------
    DataError
        If there are fewer sessions than a fold needs, or a segment without a decision.
    """
    folds = _cut(dataset, config)
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
                    f"{config.label.forecast_frequency} decision; lengthen it."
                )
        kept.append(replace(fold, **decided))
    return kept


def _cut(dataset: Dataset, config: Config) -> list[Fold]:
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
    """One row a fold: first and last session and number of sessions of each segment."""
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


@dataclass(frozen=True, slots=True, eq=False)
class FoldInputs:
    """What a fold's training sessions fix about its models' inputs; stored with each of them.

    Attributes
    ----------
    scaler
        Scale of the channels.
    groups_G
        Codes of the groups that had a firm in the universe by then, ascending. A model has one place for each
        of them: one for every group that is ever seen would make its size, and so the draw of its first
        weights, depend on groups that are yet to come.
    """

    scaler: ChannelScaler
    groups_G: IntArray

    def known_groups(self, group_TN: npt.NDArray[np.integer]) -> IntArray:
        """Replace the panel's codes by places among ``groups_G``; -1 for any other group."""
        place_TN = np.searchsorted(self.groups_G, group_TN)
        found_TN = np.isin(group_TN, self.groups_G)
        places: IntArray = np.where(found_TN, place_TN, -1)
        return places


def fit_inputs(dataset: Dataset, fold: Fold) -> FoldInputs:
    """Fit what a fold's inputs need on its training sessions alone."""
    groups_G = np.unique(dataset.panel.group_TN[fold.train][dataset.universe_TN[fold.train]])
    return FoldInputs(
        scaler=fit_channel_scaler(dataset.channels_TNC, dataset.universe_TN, fold.train),
        groups_G=groups_G[groups_G >= 0].astype(np.int64),
    )


def to_panel(frame: pl.DataFrame, value: str, panel: Panel) -> FloatArray:
    """Spread a long frame (date, ticker, value) over the panel: [T, N], NaN where there is no row.

    Rows of dates or tickers that the panel does not have are left out.
    """
    sessions = pl.DataFrame({"date": panel.dates_T.astype("datetime64[D]")}).with_row_index("t")
    firms = pl.DataFrame({"ticker": panel.tickers_N}).with_row_index("n")
    placed = frame.select("date", "ticker", value).join(sessions, on="date").join(firms, on="ticker")
    value_TN = np.full((panel.n_sessions, panel.n_firms), np.nan)
    value_TN[placed["t"].to_numpy(), placed["n"].to_numpy()] = placed[value].to_numpy()
    return value_TN


def _date(dataset: Dataset, session: int) -> dt.date:
    return cast("dt.date", dataset.panel.dates_T[session].astype("datetime64[D]").item())
