"""The forecasters by name.  To add one: write its file, then add a line to ``MODELS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from models import baselines, lightgbm_baseline
from models.baselines import Baseline
from models.forecaster import Forecaster
from models.self_peer import SelfPeer, SelfPeerConfig
from models.spec import Shape
from models.temporal_peer import TemporalPeer, TemporalPeerConfig
from models.temporal_transformer import TemporalTransformer, TemporalTransformerConfig


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """How to build a forecaster.

    Attributes
    ----------
    kind
        ``neural`` models go through the training loop; a ``baseline`` fits itself.
    config
        The options' dataclass.
    build
        ``(config, shape) -> Forecaster | Baseline``.
    """

    kind: Literal["neural", "baseline"]
    config: type[Any]
    build: Callable[[Any, Shape], Forecaster | Baseline]


MODELS: dict[str, ModelEntry] = {
    "zero": ModelEntry("baseline", baselines.ZeroConfig, baselines.Zero),
    "reversal": ModelEntry("baseline", baselines.ReversalConfig, baselines.Reversal),
    "ridge": ModelEntry("baseline", baselines.RidgeConfig, baselines.Ridge),
    "lightgbm": ModelEntry("baseline", lightgbm_baseline.LightGBMConfig, lightgbm_baseline.LightGBM),
    "temporal_transformer": ModelEntry("neural", TemporalTransformerConfig, TemporalTransformer),
    "self_peer": ModelEntry("neural", SelfPeerConfig, SelfPeer),
    "temporal_peer": ModelEntry("neural", TemporalPeerConfig, TemporalPeer),
}


def model_entry(name: str) -> ModelEntry:
    """Look a forecaster up; ValueError names the known ones."""
    if name not in MODELS:
        raise ValueError(f"There is no model {name!r}: choose one of {', '.join(MODELS)}.")
    return MODELS[name]
