"""The forecasters by name.  To add one: write its file, then add a line to ``MODELS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from models import baselines, lightgbm_baseline
from models.baselines import Baseline
from models.cross_peer import CrossPeer, CrossPeerConfig
from models.forecaster import Forecaster
from models.kernel_regression import KernelRegression, KernelRegressionConfig
from models.lstm import LSTM, LSTMConfig
from models.mlp import MLP, MLPConfig
from models.sector_mean import SectorMean, SectorMeanConfig
from models.self_peer import SelfPeer, SelfPeerConfig
from models.seq2seq import Seq2Seq, Seq2SeqConfig
from models.spec import Shape
from models.tcn import TCN, TCNConfig
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

    @property
    def has_day_encoder(self) -> bool:
        """Whether there is a day encoder, which can be pretrained."""
        return hasattr(self.config, "encoder")


MODELS: dict[str, ModelEntry] = {
    "zero": ModelEntry("baseline", baselines.ZeroConfig, baselines.Zero),
    "reversal": ModelEntry("baseline", baselines.ReversalConfig, baselines.Reversal),
    "momentum": ModelEntry("baseline", baselines.MomentumConfig, baselines.Momentum),
    "ridge": ModelEntry("baseline", baselines.RidgeConfig, baselines.Ridge),
    "lightgbm": ModelEntry("baseline", lightgbm_baseline.LightGBMConfig, lightgbm_baseline.LightGBM),
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
    """Look a forecaster up; ValueError names the known ones."""
    if name not in MODELS:
        raise ValueError(f"There is no model {name!r}: choose one of {', '.join(MODELS)}.")
    return MODELS[name]
