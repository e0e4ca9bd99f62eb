"""The forecasters by name. To add one, write its file and add a line to ``MODELS``."""

from dataclasses import dataclass
from typing import Any, Literal

from models.baselines.double_ensemble import DoubleEnsemble, DoubleEnsembleConfig
from models.baselines.lightgbm import LightGBM, LightGBMConfig
from models.baselines.mlp import MLP, MLPConfig
from models.baselines.recurrent import ALSTM, GRU, LSTM, GRUConfig, LSTMConfig
from models.baselines.ridge import Ridge, RidgeConfig
from models.baselines.rules import Momentum, MomentumConfig, Reversal, ReversalConfig, Zero, ZeroConfig
from models.baselines.tabm import TabM, TabMConfig
from models.baselines.tcn import TCN, TCNConfig
from models.ensemble import Ensemble, EnsembleConfig
from models.forecasters.cross_peer import CrossPeer, CrossPeerConfig
from models.forecasters.kernel_regression import KernelRegression, KernelRegressionConfig
from models.forecasters.master import Master, MasterConfig
from models.forecasters.portfolio_transformer import (
    LinearPortfolioTransformer,
    LinearPortfolioTransformerConfig,
    PortfolioTransformer,
    PortfolioTransformerConfig,
)
from models.forecasters.sector_mean import SectorMean, SectorMeanConfig
from models.forecasters.self_peer import SelfPeer, SelfPeerConfig
from models.forecasters.seq2seq import Seq2Seq, Seq2SeqConfig
from models.forecasters.stock_mixer import StockMixer, StockMixerConfig
from models.forecasters.temporal_peer import TemporalPeer, TemporalPeerConfig
from models.forecasters.temporal_transformer import TemporalTransformer, TemporalTransformerConfig


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """How to build a forecaster."""

    # ``neural``: trained by the training loop; ``baseline``: has a fit method of its own; ``ensemble``:
    # combines the forecasts of other entries of a config
    kind: Literal["neural", "baseline", "ensemble"]
    config: type[Any]  # class of the options
    # the `Forecaster` or `Baseline`, built from its options and a shape; an ensemble is not built. The class
    # says the rest (`models.forecaster.Registered`).
    build: type[Any]

    @property
    def has_day_encoder(self) -> bool:
        """Whether the model has a day encoder, which can be pretrained."""
        return "encoder" in self.config.model_fields


MODELS: dict[str, ModelEntry] = {
    "zero": ModelEntry("baseline", ZeroConfig, Zero),
    "reversal": ModelEntry("baseline", ReversalConfig, Reversal),
    "momentum": ModelEntry("baseline", MomentumConfig, Momentum),
    "ridge": ModelEntry("baseline", RidgeConfig, Ridge),
    "lightgbm": ModelEntry("baseline", LightGBMConfig, LightGBM),
    "double_ensemble": ModelEntry("baseline", DoubleEnsembleConfig, DoubleEnsemble),
    "mlp": ModelEntry("neural", MLPConfig, MLP),
    "lstm": ModelEntry("neural", LSTMConfig, LSTM),
    "gru": ModelEntry("neural", GRUConfig, GRU),
    "alstm": ModelEntry("neural", GRUConfig, ALSTM),
    "tcn": ModelEntry("neural", TCNConfig, TCN),
    "tabm": ModelEntry("neural", TabMConfig, TabM),
    "temporal_transformer": ModelEntry("neural", TemporalTransformerConfig, TemporalTransformer),
    "seq2seq": ModelEntry("neural", Seq2SeqConfig, Seq2Seq),
    "sector_mean": ModelEntry("neural", SectorMeanConfig, SectorMean),
    "kernel_regression": ModelEntry("neural", KernelRegressionConfig, KernelRegression),
    "cross_peer": ModelEntry("neural", CrossPeerConfig, CrossPeer),
    "self_peer": ModelEntry("neural", SelfPeerConfig, SelfPeer),
    "temporal_peer": ModelEntry("neural", TemporalPeerConfig, TemporalPeer),
    "stock_mixer": ModelEntry("neural", StockMixerConfig, StockMixer),
    "master": ModelEntry("neural", MasterConfig, Master),
    "linear_portfolio_transformer": ModelEntry(
        "neural", LinearPortfolioTransformerConfig, LinearPortfolioTransformer
    ),
    "portfolio_transformer": ModelEntry("neural", PortfolioTransformerConfig, PortfolioTransformer),
    "ensemble": ModelEntry("ensemble", EnsembleConfig, Ensemble),
}


def model_entry(name: str) -> ModelEntry:
    """Look up a forecaster; the error of an unknown name lists the known ones."""
    if name not in MODELS:
        raise ValueError(f"There is no model {name!r}; choose one of {', '.join(MODELS)}.")
    return MODELS[name]
