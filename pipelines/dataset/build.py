"""The dataset of a config: arrays of universe, features and labels, as a pure function of lake tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arrays import BoolArray, Float32Array, FloatArray
from features.library.channels import available_channels, compute_channels
from features.library.characteristics import available_characteristics, compute_characteristics
from features.library.factors import residualise_factors, statistical_factors
from features.library.standardise import TransformRule, transform_characteristics
from features.panel.derived import row_mean
from features.panel.labels import forward_returns, target
from features.panel.panel import Panel
from pipelines.config.schema import Config
from pipelines.config.sections import LabelConfig
from pipelines.dataset.market import Market, build_market, to_panel
from pipelines.errors import ConfigError, DataError

INPUT_PREFIX = "input_"
"""Prefix of a user's own inputs among the names of characteristics."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Dataset(Market):
    """A market with the features and targets of models, as dense arrays over (session, firm).

    Row ``t`` of ``channels_TNC`` and ``characteristics_TNF`` holds what was known at the close of session
    ``t``. ``labels`` and ``target_TN`` look ahead by definition. Only fitting (on training and validation
    sessions) and evaluation read them.

    Attributes
    ----------
    channels_TNC : unscaled window channels; NaN where unknown. Each fold scales them.
    characteristics_TNF : transformed within the date's universe (`features.library.standardise`); no NaN.
    target_TN : the target of fitting: the label of the trained delay, transformed within the date.
    channel_names, characteristic_names : names of the last axes.
    shorter_labels : horizon below the label's -> return at the trained delay; NaN where not known yet.
    path_TNK : targets of the shorter horizons, ascending; None if the config names none.
    """

    channels_TNC: Float32Array
    characteristics_TNF: Float32Array
    target_TN: Float32Array
    channel_names: tuple[str, ...]
    characteristic_names: tuple[str, ...]
    shorter_labels: Mapping[int, FloatArray] = field(default_factory=dict)
    path_TNK: Float32Array | None = None


def build_dataset(tables: Mapping[str, pl.DataFrame], config: Config) -> Dataset:
    """Build the dataset of a config from lake tables.

    Raises
    ------
    ConfigError
        If a named channel or characteristic does not exist, or a transform needs groups and there are none.
    DataError
        If no firm is ever in the universe, or no channel or characteristic can be computed.
    """
    return add_features(build_market(tables, config), tables, config)


def add_features(market: Market, tables: Mapping[str, pl.DataFrame], config: Config) -> Dataset:
    """Add the features and targets of a config to its market.

    Parameters
    ----------
    market
        Market of the config, built from the same tables (`pipelines.dataset.market.build_market`).
    tables
        Lake tables; only ``inputs`` is read.
    config
        The configuration.

    Raises
    ------
    ConfigError
        If a named channel or characteristic does not exist, or a transform needs groups and there are none.
    DataError
        If no channel or characteristic can be computed.
    """
    panel, universe_TN, labels = market.panel, market.universe_TN, market.labels
    try:
        channels, channel_notes = available_channels(panel, config.features.channels)
        characteristics, characteristic_notes = available_characteristics(
            panel, config.features.characteristics
        )
    except ValueError as error:
        raise ConfigError(f"features: {error}") from None
    require_groups(panel, config)
    inputs = _inputs(tables, config)
    if not channels or not (characteristics or inputs):
        raise DataError(
            "No channel or no characteristic can be computed from the columns of these prices: "
            + " ".join((*channel_notes, *characteristic_notes))
        )
    names = (*characteristics, *(f"{INPUT_PREFIX}{name}" for name in inputs))
    raw_TNF = raw_characteristics(panel, names, tables, config)
    transformed_TNF = within_dates(raw_TNF, universe_TN, panel.group_TN, config)
    del raw_TNF
    shorter = {
        horizon: forward_returns(panel, config.label.delay, horizon)
        for horizon in config.label.shorter_horizons
    }
    path = [make_target(label_TN, universe_TN, panel, config.label) for label_TN in shorter.values()]
    return Dataset(
        panel=panel,
        universe_TN=universe_TN,
        channels_TNC=compute_channels(panel, channels),
        characteristics_TNF=np.ascontiguousarray(transformed_TNF),  # models read all firms of a date
        labels=labels,
        target_TN=make_target(labels[config.label.delay], universe_TN, panel, config.label),
        shorter_labels=shorter,
        path_TNK=np.stack(path, axis=2) if path else None,
        channel_names=tuple(channels),
        characteristic_names=TransformRule(**config.features.transform.model_dump()).names(names),
        notes=(
            *market.notes,
            *channel_notes,
            *characteristic_notes,
            *_target_notes(config.label),
        ),
    )


def require_groups(panel: Panel, config: Config) -> None:
    """Raise ConfigError if the transform of characteristics needs groups and no firm has one."""
    transform = config.features.transform
    if not panel.groups_S and "group" in (transform.neutralise, transform.missing.removesuffix("_median")):
        raise ConfigError(
            f"features.transform needs groups, but no firm has a {config.features.group_by!r}; add a "
            "securities table with it, or use neutralise: none and missing: median."
        )


def _inputs(tables: Mapping[str, pl.DataFrame], config: Config) -> dict[str, pl.DataFrame]:
    """The user's own inputs by name: those that the config lists, or all in the lake."""
    table = tables.get("inputs")
    parts = (
        {}
        if table is None
        else {str(name): part for (name,), part in sorted(table.partition_by("name", as_dict=True).items())}
    )
    names = parts if config.features.inputs is None else config.features.inputs
    missing = [name for name in names if name not in parts]
    if missing:
        raise DataError(
            f"features.inputs names {missing[0]!r}, but the lake's inputs are {', '.join(parts) or 'none'}; "
            "ingest it, or remove the name."
        )
    return {name: parts[name] for name in names}


def raw_characteristics(
    panel: Panel, names: Sequence[str], tables: Mapping[str, pl.DataFrame], config: Config
) -> Float32Array:
    """Compute characteristics and the user's inputs as float32 [T, N, F], before any transform.

    ``names`` are those of a dataset without indicators: characteristics, then inputs with `INPUT_PREFIX`. NaN
    means unknown.
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
    """Apply the config's transform to characteristics, date by date (`transform_characteristics`)."""
    rule = TransformRule(**config.features.transform.model_dump())
    return transform_characteristics(raw_TNF, universe_TN, group_TN, rule)


def make_target(
    label_TN: FloatArray, universe_TN: BoolArray, panel: Panel, label: LabelConfig
) -> Float32Array:
    """Compute the target of fitting: the label, residualised and clipped as the config sets, by date.

    Returns of common factors carry no information on single firms, and tails carry little. With
    ``label.residualise_factors`` the target is the residual of statistical factors. A firm without loadings
    gets its deviation from the date's mean, because the other firms lose that mean as well. Dates before the
    first factors keep the label. The transform within the date comes next, and ``label.clip`` last.
    """
    if label.residualise_factors:
        estimates = statistical_factors(panel, label.residualise_factors)
        residual_TN = residualise_factors(label_TN, universe_TN, estimates)
        with_factors_T1 = np.isfinite(residual_TN).any(axis=1, keepdims=True)
        mean_T1 = row_mean(np.where(universe_TN, label_TN, np.nan))
        other_TN = np.where(with_factors_T1, label_TN - mean_T1, label_TN)
        label_TN = np.where(np.isnan(residual_TN), other_TN, residual_TN)
    target_TN = target(label_TN, universe_TN, label.transform)
    return target_TN if label.clip is None else np.clip(target_TN, -label.clip, label.clip)


def _target_notes(label: LabelConfig) -> tuple[str, ...]:
    """Notes on a target that is not the label itself."""
    if not label.residualise_factors:
        return ()
    factors = f"{label.residualise_factors} statistical factor{'' if label.residualise_factors == 1 else 's'}"
    return (f"Models are trained on the residual of {factors}, and evaluated on the full label.",)
