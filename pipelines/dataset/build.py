"""The dataset of a config: arrays of universe, features and labels, as a pure function of lake tables.

A stored model reads the features of a market's last session alone (`session_features`), which equal those of
a whole dataset to the bit and take a fraction of the time and memory.

Shape suffixes: W sessions of the window, T sessions, N firms, C channels, F characteristics.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from features.arrays import BoolArray, Float32Array, FloatArray, IntArray
from features.library.factors import residualise_factors, statistical_factors
from features.library.sets import channels_of, characteristics_of, default_channels, default_characteristics
from features.library.standardise import transform_characteristics
from features.panel.derived import row_mean, take_sessions
from features.panel.holding import target
from features.panel.panel import Panel
from pipelines.config.schema import Config
from pipelines.config.sections import LabelConfig
from pipelines.dataset.characteristics import (
    INPUT_PREFIX,
    Allocate,
    input_notes,
    make_characteristics,
    raw_characteristics,
    user_inputs,
)
from pipelines.dataset.feature_store import FeatureStore
from pipelines.dataset.market import Market, build_market
from pipelines.errors import ConfigError, DataError

_RESIDUAL = "Models are trained on the residual of {} statistical factor{}, and evaluated on the full label."
_WHOLE = " {:,} of {:,} dates keep the whole label: too few sessions before them, or too few firms."


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Dataset(Market):
    """A market with the features and targets of models, as dense arrays over (session, firm).

    Row ``t`` of ``channels_TNC`` and ``characteristics_TNF`` holds what was known at the close of session
    ``t``. ``labels`` and ``target_TN`` look ahead by definition. Only fitting (on training and validation
    sessions) and evaluation read them.
    """

    channels_TNC: Float32Array  # unscaled (levels for relative ones), each fold scales them; NaN: unknown
    characteristics_TNF: Float32Array  # as `features.library.standardise`; no NaN, perhaps a mapped file
    target_TN: Float32Array  # the label of the trained delay, transformed within the date
    channel_names: tuple[str, ...]
    characteristic_names: tuple[str, ...]  # names of the last axes
    window: int = 1  # W, sessions of a window, for whose days a fold scales relative channels
    path_TNK: Float32Array | None = None  # targets of the shorter horizons, ascending


def build_dataset(tables: Mapping[str, pl.DataFrame], config: Config) -> Dataset:
    """Build the dataset of a config from lake tables."""
    return add_features(build_market(tables, config), tables, config)


def add_features(
    market: Market, tables: Mapping[str, pl.DataFrame], config: Config, store: FeatureStore | None = None
) -> Dataset:
    """Add the features and targets of a config to its market."""
    panel, universe_TN, labels = market.panel, market.universe_TN, market.labels
    chosen, expressions = config.features, config.features.expressions
    named = chosen.characteristics
    try:
        every_channel, of_set = channels_of(expressions), default_channels(chosen.set, config.plugins)
        channels, channel_notes = every_channel.available(
            panel, of_set if chosen.channels is None else chosen.channels
        )
        characteristics, characteristic_notes = characteristics_of(expressions).available(
            panel,
            default_characteristics(chosen.set, expressions, config.plugins) if named is None else named,
        )
    except ValueError as error:
        raise ConfigError(f"features: {error}") from None
    require_groups(panel, config)
    inputs = user_inputs(tables, config)
    if not channels or not (characteristics or inputs):
        raise DataError(
            "No channel or no characteristic can be computed from the columns of these prices: "
            + " ".join((*channel_notes, *characteristic_notes))
        )
    names = (*characteristics, *(f"{INPUT_PREFIX}{name}" for name in inputs))
    rule = config.features.transform

    def make(allocate: Allocate) -> Float32Array:
        return make_characteristics(panel, names, universe_TN, tables, config=config, allocate=allocate)

    def make_channels(allocate: Allocate) -> Float32Array:
        out_TNC = allocate((*universe_TN.shape, len(channels)))
        out_TNC[:] = every_channel.compute(panel, channels)
        return out_TNC

    if store is None:
        characteristics_TNF = make(lambda shape: np.empty(shape, dtype=np.float32))
        channels_TNC = every_channel.compute(panel, channels)
    else:
        size, settings = (
            universe_TN.shape,
            (names, repr(rule), tuple(channels), chosen.hold_inputs, expressions),
        )
        key = store.key(panel, universe_TN, inputs, settings)
        characteristics_TNF = store.get(f"{key}-characteristics", (*size, len(rule.names(names))), make)
        channels_TNC = store.get(f"{key}-channels", (*size, len(channels)), make_channels)
    factors = config.label.residualise_factors
    spans = {config.label.horizon: labels[config.label.delay], **market.shorter_labels}
    (target_TN, whole_T), *shorter = (
        make_target(label_TN, universe_TN, panel, config.label, horizon)
        for horizon, label_TN in spans.items()
    )
    on_target: tuple[str, ...] = ()
    if factors:  # models are trained on the residual; some dates with a target keep the whole label
        known_T = np.isfinite(target_TN).any(axis=1)
        kept, known = int((known_T & whole_T).sum()), int(known_T.sum())
        note = _RESIDUAL.format(factors, "" if factors == 1 else "s")
        on_target = (note + (_WHOLE.format(kept, known) if kept else ""),)
    return Dataset(
        panel=panel,
        universe_TN=universe_TN,
        channels_TNC=channels_TNC,
        characteristics_TNF=characteristics_TNF,
        labels=labels,
        target_TN=target_TN,
        shorter_labels=market.shorter_labels,
        path_TNK=np.stack([path_TN for path_TN, _ in shorter], axis=2) if shorter else None,
        channel_names=tuple(channels),
        characteristic_names=rule.names(names),
        window=chosen.window,
        notes=(
            *market.notes,
            *channel_notes,
            *characteristic_notes,
            *_unused_expressions(config),
            *input_notes(inputs, panel, universe_TN, config.features.hold_inputs),
            *on_target,
        ),
    )


def _unused_expressions(config: Config) -> tuple[str, ...]:
    chosen = config.features
    unused = set(chosen.expressions).difference(chosen.characteristics or (), chosen.channels or ())
    if chosen.characteristics is None or not unused:
        return ()
    return (
        f"Formulas that no model reads: {', '.join(sorted(unused))}; name them in features.characteristics, "
        "which lists what is used.",
    )


def require_groups(panel: Panel, config: Config) -> None:
    """Raise ConfigError if the transform of characteristics needs groups and no firm has one."""
    transform = config.features.transform
    if not panel.groups_S and "group" in (transform.neutralise, transform.missing.removesuffix("_median")):
        raise ConfigError(
            f"features.transform needs groups, but no firm has a {config.features.group_by!r}; add a "
            "securities table with it, or use neutralise: none and missing: median."
        )


def make_target(
    label_TN: FloatArray, universe_TN: BoolArray, panel: Panel, label: LabelConfig, horizon: int
) -> tuple[Float32Array, BoolArray]:
    """Compute the target of fitting: the label, residualised, transformed within the date, and clipped.

    ``horizon`` is that of ``label_TN``: the label's own or a shorter one.

    With ``label.residualise_factors`` a firm without loadings gets its deviation from the date's mean,
    because the others lose that mean as well; dates before the first factors, or with too few firms, keep
    the label. The second array says which dates keep it, bool of shape (T,).
    """
    whole_T: BoolArray = np.ones(len(label_TN), dtype=np.bool_)
    if label.residualise_factors:
        estimates = statistical_factors(panel, label.residualise_factors)
        residual_TN = residualise_factors(label_TN, universe_TN, estimates, horizon)
        whole_T = np.all(np.isnan(residual_TN), axis=1)
        mean_T1 = row_mean(np.where(universe_TN, label_TN, np.nan))
        other_TN = np.where(whole_T[:, None], label_TN, label_TN - mean_T1)
        label_TN = np.where(np.isnan(residual_TN), other_TN, residual_TN)
    target_TN = target(label_TN, universe_TN, label.transform)
    if label.clip is not None:
        target_TN = np.clip(target_TN, -label.clip, label.clip)
    return target_TN, whole_T


@dataclass(frozen=True, slots=True)
class FeatureNames:
    """Names of a model's inputs, in their order."""

    channels: tuple[str, ...]
    characteristics: tuple[str, ...]  # and the user's inputs, then the indicators of missing values


@dataclass(frozen=True, slots=True, eq=False)
class SessionFeatures:
    """Features known at the close of one session, the last of the window."""

    names: FeatureNames
    tickers_N: tuple[str, ...]
    channels_WNC: Float32Array  # unscaled channels of the window's sessions; NaN where unknown
    characteristics_NF: Float32Array  # transformed within the session's universe; no NaN
    universe_WN: BoolArray  # universe on the window's sessions
    group_WN: IntArray  # group codes on the window's sessions; -1 for unknown
    groups_S: tuple[str, ...]  # names of the groups by code


def session_features(
    market: Market, tables: Mapping[str, pl.DataFrame], config: Config, names: FeatureNames
) -> SessionFeatures:
    """Compute named features of a market's last session."""
    require_groups(market.panel, config)
    raw_names, transform = names.characteristics, config.features.transform
    if transform.add_indicator:
        raw_names = raw_names[: len(raw_names) // 2]
    computed = [name for name in raw_names if not name.startswith(INPUT_PREFIX)]
    expressions = config.features.expressions
    channels, characteristics = channels_of(expressions), characteristics_of(expressions)
    for registry, needed in ((channels, names.channels), (characteristics, computed)):
        try:
            messages = registry.available(market.panel, needed)[1]
        except ValueError as error:
            raise DataError(f"The model was trained on other features: {error}") from None
        if messages:
            raise DataError(f"The model cannot be used on these data. {messages[0]}")
    window, T = config.features.window, market.panel.n_sessions
    depends_on = [window - 1 + channels[name].window for name in names.channels]
    depends_on += [characteristics[name].window for name in computed]
    own = tuple(name.removeprefix(INPUT_PREFIX) for name in raw_names if name.startswith(INPUT_PREFIX))
    if own:  # a value that is held may be dated on a day before its session
        depends_on.append(config.features.hold_inputs + 2)
    panel = take_sessions(market.panel, max(T - max(depends_on, default=window), 0))
    features = config.features.model_copy(update={"inputs": own})
    with_inputs = config.model_copy(update={"features": features})
    raw_1NF = raw_characteristics(panel, raw_names, tables, with_inputs)[-1:]
    last = slice(T - 1, T)
    universe_1N, group_1N = market.universe_TN[last], market.panel.group_TN[last]
    recent = slice(max(T - window, 0), T)
    return SessionFeatures(
        names=names,
        tickers_N=market.panel.tickers_N,
        channels_WNC=np.ascontiguousarray(channels.compute(panel, names.channels)[-window:]),
        characteristics_NF=transform_characteristics(raw_1NF, universe_1N, group_1N, transform)[0],
        universe_WN=market.universe_TN[recent],
        group_WN=market.panel.group_TN[recent],
        groups_S=market.panel.groups_S,
    )
