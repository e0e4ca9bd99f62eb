"""The forecasters by name. To add one, write its file and add a line to ``MODELS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from models.baselines.lightgbm import LightGBM, LightGBMConfig
from models.baselines.lstm import LSTM, LSTMConfig
from models.baselines.mlp import MLP, MLPConfig
from models.baselines.ridge import Ridge, RidgeConfig
from models.baselines.rules import Momentum, MomentumConfig, Reversal, ReversalConfig, Zero, ZeroConfig
from models.baselines.tcn import TCN, TCNConfig
from models.forecaster import Baseline, Forecaster
from models.forecasters.cross_peer import CrossPeer, CrossPeerConfig
from models.forecasters.kernel_regression import KernelRegression, KernelRegressionConfig
from models.forecasters.sector_mean import SectorMean, SectorMeanConfig
from models.forecasters.self_peer import SelfPeer, SelfPeerConfig
from models.forecasters.seq2seq import Seq2Seq, Seq2SeqConfig
from models.forecasters.temporal_peer import TemporalPeer, TemporalPeerConfig
from models.forecasters.temporal_transformer import TemporalTransformer, TemporalTransformerConfig
from models.spec import Shape, Space, Value


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """How to build a forecaster.

    Attributes
    ----------
    kind
        ``neural``: trained by the training loop; ``baseline``: has a fit method of its own.
    config
        Dataclass of the options.
    build
        ``(config, shape) -> Forecaster | Baseline``.
    """

    kind: Literal["neural", "baseline"]
    config: type[Any]
    build: Callable[[Any, Shape], Forecaster | Baseline]

    @property
    def space(self) -> Space:
        """Settings that are searched; empty if the model has no search space."""
        return getattr(self.build, "space", {})

    @property
    def learns(self) -> bool:
        """Whether the model has parameters; a fixed rule has none."""
        return bool(getattr(self.build, "learns", True))

    @property
    def reads_windows(self) -> bool:
        """Whether the model reads windows of channels."""
        return bool(getattr(self.build, "reads_windows", True))

    @property
    def has_unit(self) -> bool:
        """Whether the forecasts are in the target's unit."""
        return bool(getattr(self.build, "has_unit", True))

    @property
    def stackable(self) -> bool:
        """Whether several seeds can be trained together."""
        return bool(getattr(self.build, "stackable", False))

    @property
    def quick(self) -> Mapping[str, Value]:
        """Options with which the model is fitted in a moment."""
        return getattr(self.build, "quick", {})

    def extra_memory(self, cells: int, characteristics: int) -> float:
        """Bytes that a fit needs beside the panel (`Baseline.extra_memory`)."""
        measure = getattr(self.build, "extra_memory", None)
        return 0.0 if measure is None else float(measure(cells, characteristics))

    @property
    def has_day_encoder(self) -> bool:
        """Whether the model has a day encoder, which can be pretrained."""
        return hasattr(self.config, "encoder")


MODELS: dict[str, ModelEntry] = {
    "zero": ModelEntry("baseline", ZeroConfig, Zero),
    "reversal": ModelEntry("baseline", ReversalConfig, Reversal),
    "momentum": ModelEntry("baseline", MomentumConfig, Momentum),
    "ridge": ModelEntry("baseline", RidgeConfig, Ridge),
    "lightgbm": ModelEntry("baseline", LightGBMConfig, LightGBM),
    "mlp": ModelEntry("neural", MLPConfig, MLP),
    "lstm": ModelEntry("neural", LSTMConfig, LSTM),
    "tcn": ModelEntry("neural", TCNConfig, TCN),
    "temporal_transformer": ModelEntry("neural", TemporalTransformerConfig, TemporalTransformer),
    "seq2seq": ModelEntry("neural", Seq2SeqConfig, Seq2Seq),
    "sector_mean": ModelEntry("neural", SectorMeanConfig, SectorMean),
    "kernel_regression": ModelEntry("neural", KernelRegressionConfig, KernelRegression),
    "cross_peer": ModelEntry("neural", CrossPeerConfig, CrossPeer),
    "self_peer": ModelEntry("neural", SelfPeerConfig, SelfPeer),
    "temporal_peer": ModelEntry("neural", TemporalPeerConfig, TemporalPeer),
}


def model_entry(name: str) -> ModelEntry:
    """Look up a forecaster; the error of an unknown name lists the known ones."""
    if name not in MODELS:
        raise ValueError(f"There is no model {name!r}; choose one of {', '.join(MODELS)}.")
    return MODELS[name]
