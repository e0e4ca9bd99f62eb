"""Raw features for the measurement of drift: before they are ranked or scaled within a date.

Ranked characteristics have the same distribution on every date, so only their raw values can drift.

Shape suffixes: T sessions, N firms, K features, R sessions that are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from features.arrays import BoolArray, Float32Array
from features.library.channels import CHANNELS
from features.library.characteristics import CHARACTERISTICS
from features.library.registry import Registry
from features.panel.delistings import DelistingRule
from features.panel.panel import Panel, build_panel
from pipelines.config.schema import Config
from pipelines.dataset.characteristics import INPUT_PREFIX, own_values
from pipelines.nightly.data import NightData
from pipelines.run.record import Run

_TOGETHER: Final = 8
"""Features that are computed at once; more share intermediate results but need more memory."""


@dataclass(frozen=True, slots=True)
class RawFeature:
    """A feature that a model was trained on: its name and kind (characteristic, channel or input)."""

    name: str
    kind: str


def features_of(run: Run) -> list[RawFeature]:
    """Return the raw features that a run was trained on; indicators of missing values are left out."""
    assert run.identity is not None, "an opened run has recorded its identity"
    names: Mapping[str, Any] = run.identity.settings["features"]
    found = [
        RawFeature(name, "characteristic") for name in names["characteristics"] if name in CHARACTERISTICS
    ]
    found += [RawFeature(name, "channel") for name in names["channels"]]
    found += [
        RawFeature(name, "input")
        for name in names["characteristics"]
        if name.startswith(INPUT_PREFIX) and name not in CHARACTERISTICS
    ]
    return found


def raw_values(
    panel: Panel, tables: Mapping[str, pl.DataFrame], features: Sequence[RawFeature], hold_inputs: int
) -> Iterator[tuple[RawFeature, Float32Array]]:
    """Compute features of a panel one after the other, as float32 of shape (T, N); NaN means unknown.

    Features whose inputs the panel lacks are unknown everywhere. ``hold_inputs`` is the config's setting
    (`pipelines.dataset.characteristics.own_values`).
    """
    registries: tuple[tuple[str, Registry], ...] = (
        ("characteristic", CHARACTERISTICS),
        ("channel", CHANNELS),
    )
    for kind, registry in registries:
        wanted = [feature for feature in features if feature.kind == kind]
        usable = set(registry.available(panel, [feature.name for feature in wanted])[0])
        for start in range(0, len(wanted), _TOGETHER):
            some = wanted[start : start + _TOGETHER]
            given = [feature.name for feature in some if feature.name in usable]
            values_TNK = registry.compute(panel, given) if given else None
            for feature in some:
                if values_TNK is None or feature.name not in usable:
                    yield feature, np.full((panel.n_sessions, panel.n_firms), np.nan, dtype=np.float32)
                else:
                    yield feature, values_TNK[:, :, given.index(feature.name)]
    inputs = tables.get("inputs")
    for feature in features:
        if feature.kind == "input":
            name = feature.name.removeprefix(INPUT_PREFIX)
            own = None if inputs is None else inputs.filter(pl.col("name") == name)
            yield (
                feature,
                np.full((panel.n_sessions, panel.n_firms), np.nan, dtype=np.float32)
                if own is None
                else own_values(own, panel, hold_inputs).astype(np.float32),
            )


def newest_values(
    config: Config, data: NightData, features: Sequence[RawFeature], sessions: int
) -> Iterator[tuple[RawFeature, Float32Array]]:
    """Compute features on the newest sessions only: of each, its known and unknown values in the universe.

    The panel is built from the sessions that these features look back on, which is much cheaper than all
    sessions. Values agree with those of the whole panel to a relative 1e-9.

    Yields
    ------
    feature : RawFeature
    values : ndarray of float32, shape (M,)
        One per firm in the universe and session.
    """
    dates_T = data.market.panel.dates_T
    hold = config.features.hold_inputs
    look_back = max((_window(feature, hold) for feature in features), default=1)
    first = dates_T[max(len(dates_T) - sessions - look_back, 0)].astype("datetime64[D]").item()
    panel = build_panel(
        data.tables["prices"].filter(pl.col("date") >= first),
        data.tables.get("securities"),
        data.tables.get("fundamentals"),
        gaps=data.tables.get("gaps"),
        group_by=config.features.group_by,
        delisting_rule=DelistingRule(unknown_return=config.label.unknown_delisting_return),
    )
    column = {ticker: n for n, ticker in enumerate(data.market.panel.tickers_N)}
    firms = np.array([column[ticker] for ticker in panel.tickers_N], dtype=np.intp)
    inside_RN: BoolArray = data.market.universe_TN[-sessions:][:, firms]
    for feature, values_TN in raw_values(panel, data.tables, features, hold):
        yield feature, values_TN[-len(inside_RN) :][inside_RN]


def _window(feature: RawFeature, hold_inputs: int) -> int:
    """Sessions that a feature looks back on, the session itself included."""
    if feature.kind == "input":
        return hold_inputs + 2 if hold_inputs else 1
    registry = CHARACTERISTICS if feature.kind == "characteristic" else CHANNELS
    return registry[feature.name].window
