"""The features of a market's last session: all that a stored model reads to forecast it.

They equal those of a whole dataset (`pipelines.dataset.build.build_dataset`) to the bit. Only the sessions
that they can depend on are computed, and no label or target, so this takes a fraction of the time and memory.

Shape suffixes: W sessions of the window, N firms, C channels, F characteristics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from features.arrays import BoolArray, Float32Array, IntArray
from features.library.channels import CHANNELS, available_channels, compute_channels
from features.library.characteristics import CHARACTERISTICS, available_characteristics
from features.panel.derived import take_sessions
from pipelines.config.schema import Config
from pipelines.dataset.build import require_groups
from pipelines.dataset.characteristics import INPUT_PREFIX, raw_characteristics, within_dates
from pipelines.dataset.market import Market
from pipelines.errors import DataError


@dataclass(frozen=True, slots=True)
class FeatureNames:
    """Names of a model's inputs, in their order."""

    channels: tuple[str, ...]
    characteristics: tuple[str, ...]
    """Characteristics and the user's inputs, then the indicators of missing values if there are any."""


@dataclass(frozen=True, slots=True, eq=False)
class SessionFeatures:
    """Features known at the close of one session, the last of the window."""

    names: FeatureNames
    tickers_N: tuple[str, ...]
    channels_WNC: Float32Array
    """Unscaled channels of the window's sessions; NaN where unknown."""
    raw_NF: Float32Array
    """Characteristics at the session before any transform, without indicators; NaN where unknown."""
    characteristics_NF: Float32Array
    """Characteristics at the session, transformed within its universe; no NaN."""
    universe_WN: BoolArray
    """Universe on the window's sessions."""
    group_WN: IntArray
    """Group codes on the window's sessions; -1 for unknown."""
    groups_S: tuple[str, ...]
    """Names of the groups by code."""


def session_features(
    market: Market, tables: Mapping[str, pl.DataFrame], config: Config, names: FeatureNames
) -> SessionFeatures:
    """Compute named features of a market's last session."""
    require_groups(market.panel, config)
    raw_names = names.characteristics
    if config.features.transform.add_indicator:
        raw_names = raw_names[: len(raw_names) // 2]
    computed = [name for name in raw_names if not name.startswith(INPUT_PREFIX)]
    for available, needed in ((available_channels, names.channels), (available_characteristics, computed)):
        try:
            messages = available(market.panel, needed)[1]
        except ValueError as error:
            raise DataError(f"The model was trained on other features: {error}") from None
        if messages:
            raise DataError(f"The model cannot be used on these data. {messages[0]}")
    window, T = config.features.window, market.panel.n_sessions
    depends_on = [window - 1 + CHANNELS[name].window for name in names.channels]
    depends_on += [CHARACTERISTICS[name].window for name in computed]
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
        channels_WNC=np.ascontiguousarray(compute_channels(panel, names.channels)[-window:]),
        raw_NF=np.ascontiguousarray(raw_1NF[0]),
        characteristics_NF=within_dates(raw_1NF, universe_1N, group_1N, config)[0],
        universe_WN=market.universe_TN[recent],
        group_WN=market.panel.group_TN[recent],
        groups_S=market.panel.groups_S,
    )
