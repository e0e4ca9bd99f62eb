"""The base classes of forecasters: networks, and baselines with a fit method of their own."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from features.arrays import AnyFloatArray, Float32Array, FloatArray, IntArray
from features.options import Options
from models.attention.encoder import day_encoder
from models.attention.probe import Site, probing
from models.batch import Ablation, AttentionMaps, Batch, PanelTensors, recent_days, scatter_present
from models.calibration import Line
from models.fitted import EpochRecord, NoTrainingSignal, OnEpoch, Tensors
from models.quantiles import QuantileHead
from models.spec import IncompatibleConfig, Shape, Space, Value, Whole


class Registered:
    """What the registry says of a model beside its options; a model sets what differs."""

    stackable: ClassVar[bool] = False
    """Whether all shapes are independent of values for a dense batch, so that several seeds can be trained
    together (`models.fitting.stacked`)."""
    reads_windows: ClassVar[bool] = True
    """Whether it reads windows of channels. If not, a training does not copy the channels."""
    has_unit: ClassVar[bool] = True
    """Whether its forecasts are in the target's unit. A fixed rule that ranks firms has none."""
    learns: ClassVar[bool] = True
    """Whether it has parameters. A fixed rule has none."""
    space: ClassVar[Space] = {}
    """Settings that ``peerglass tune`` searches; empty if the model has no search space."""
    quick: ClassVar[Mapping[str, Value]] = {}
    """Options with which it is fitted in a moment, to examine the code around it."""
    fit_defaults: ClassVar[Mapping[str, Value]] = {}
    """Settings of its training that differ from the defaults of `FitConfig`; a config's ``fit`` goes before
    them."""
    threaded: ClassVar[bool] = False
    """Whether a fit uses several threads if it is given them (`Baseline.threads`)."""

    @classmethod
    def extra_memory(cls, cells: int, characteristics: int) -> float:
        """Bytes that a fit needs beside the panel; cells are sessions times firms."""
        return 0.0


class Forecaster(Registered, nn.Module, ABC):
    """Maps a batch of dates to one forecast per firm, in the target's unit.

    A subclass implements :meth:`embed` (an embedding of each firm's own inputs) and :meth:`mix` (forecasts
    from the embeddings of a firm and its peers). The network's outputs are in units of ``target_scale``, the
    standard deviation of the training targets, so one learning rate suits all labels.
    """

    stackable: ClassVar[bool] = True
    uses_peers: ClassVar[bool] = False
    """Whether a firm's forecast depends on the other firms of the date."""
    uses_days: bool
    """Whether days of the window can be ablated in a model without day attention."""
    n_horizons: int
    """Number K of forecast horizons."""
    zeroed_days: int
    """Number of newest days that enter a linear map or a convolution. Ablated, they are set to 0 instead of
    masked: the centre of each channel, and what an unknown value is in training."""
    quantile_head: QuantileHead | None
    """Quantiles around the forecast, for models trained with the quantile loss. The forecast is the
    median."""
    calibration: tuple[Line, ...] | None
    """Lines from the network's outputs to the target's unit, the label's last, for models trained with a loss
    that has no scale; None during training and for other losses."""
    target_scale: Tensor
    return_scale: Tensor
    """Standard deviation of the training returns, for losses of a portfolio; not stored."""

    def __init__(self) -> None:
        super().__init__()
        self.uses_days = False
        self.zeroed_days = 0
        self.n_horizons = 1
        self.quantile_head = None
        self.calibration = None
        self.register_buffer("target_scale", torch.ones(()))
        self.register_buffer("return_scale", torch.ones(()), persistent=False)

    def read_recent(self, days: int, shape: Shape) -> int:
        """Declare the last ``days`` of a window as linear inputs; return how many numbers they are per firm.

        Raises IncompatibleConfig if the window is shorter.
        """
        self.uses_days, self.zeroed_days = days > 0, days
        return flat_days("recent_days", days, shape)

    def forward(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Forecasts [B, N]; 0 for firms outside the universe."""
        return self.mix(self.embed(batch, ablation), batch, ablation)

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Token of each firm [B, N, D] from its own inputs: characteristics, then recent days."""
        r_BNR = self.recent(batch, ablation)
        return batch.z_BNF if r_BNR is None else torch.cat((batch.z_BNF, r_BNR), dim=-1)

    def recent(self, batch: Batch, ablation: Ablation | None) -> Tensor | None:
        """Recent days [B, N, R] that :meth:`read_recent` has declared; None without any."""
        return recent_days(batch, self.zeroed_days, ablation) if self.zeroed_days else None

    def horizons(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Forecasts [B, N, K] of all horizons, the label's last; 0 outside the universe.

        In training they may be [M, B, N, K]: the loss is then the mean of those of M members.
        """
        return self(batch, ablation)[..., None]  # type: ignore[no-any-return]

    @abstractmethod
    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Forecasts [B, N] from the tokens of :meth:`embed`; 0 outside the universe.

        Explainers that ablate many sets of peers compute the embeddings once.
        """

    def forecast_targets(self, batch: Batch, ablation: Ablation | None, targets_E: Tensor) -> Tensor:
        """Forecasts [B, E] of the firms at some positions; a model may skip what only others need."""
        return self(batch, ablation)[:, targets_E]  # type: ignore[no-any-return]

    def mix_nested(self, h_1ND: Tensor, batch: Batch, order_N: Tensor, targets_n: Tensor) -> Tensor | None:
        """Forecasts [N + 1, n] of some targets of one date with the first 0, 1, ..., N firms as peers.

        ``h`` are tokens of :meth:`embed`, and ``order`` the positions of the N firms as they become peers.
        None if the model has no faster way than N + 1 calls of :meth:`mix`.
        """
        return None

    def attention(self, batch: Batch, ablation: Ablation | None = None) -> AttentionMaps:
        """Attention weights by the explicit path, without dropout; empty for models without attention."""
        seen: dict[str, tuple[Site, Tensor]] = {}

        def keep(site: Site, weights: Tensor, _: Tensor | None) -> Tensor:
            seen[site.name] = site, weights  # of a decoder's horizons, the last call is the label's
            return weights

        with probing(self, keep):
            self(batch, ablation)
        over: dict[str, list[Tensor]] = {}
        for site, weights in seen.values():
            over.setdefault(site.over, []).append(weights[..., :-1] if site.null_key else weights)
        position_BM, own_BHNN = self.peer_positions(batch), self.peer_weights(batch, ablation)
        peers = over.get("peers", []) if own_BHNN is None else [own_BHNN]
        if position_BM is not None:
            peers = [spread_over_firms(weights, position_BM) for weights in peers]
        not_peer_BNN = torch.eye(batch.m_BN.shape[1], dtype=torch.bool, device=batch.m_BN.device)
        not_peer_BNN = not_peer_BNN | ~batch.m_BN[:, :, None]
        peers = [weights.masked_fill(not_peer_BNN[:, None], 0.0) for weights in peers]
        days_BNW = None
        if day_encoder(self) is not None:
            days_BNW = scatter_present(day_weights(over, batch.x_BNWC.shape[2]), batch)
        return AttentionMaps(days_BNW, torch.stack(peers, dim=1) if peers else None)

    def peer_weights(self, batch: Batch, ablation: Ablation | None) -> Tensor | None:
        """Weights [B, H, N, N] of the peers of a model without parts that a probe can read; None for others.

        Those of the firm itself and of firms outside the universe do not matter.
        """
        return None

    def peer_positions(self, batch: Batch) -> Tensor | None:
        """Positions [B, M] of the firms that are the keys of peer attention; None if every firm is."""
        return None

    def require(self, data: PanelTensors) -> None:
        """Raise ValueError if the panel lacks something that the model's options name."""

    def quantiles_around(self, y_BN: Tensor, batch: Batch) -> Tensor:
        """Quantiles [B, N, Q] around forecasts, both in the target's unit."""
        assert self.quantile_head is not None, "only models with a quantile head have quantiles"
        return self.quantile_head(y_BN / self.target_scale, batch.z_BNF) * self.target_scale  # type: ignore[no-any-return]

    def in_target_unit(self, y: Tensor, horizon: int = -1) -> Tensor:
        """Convert outputs of the network for one horizon, by default the label's, to the target's unit."""
        y = y.float() * self.target_scale
        if self.calibration is None:
            return y
        line = self.calibration[horizon]
        return line.intercept + line.slope * y

    def scaled(self, y_BN: Tensor, batch: Batch) -> Tensor:
        """Convert forecasts to the target's unit and set them to 0 outside the universe."""
        return self.in_target_unit(y_BN).masked_fill(~batch.m_BN, 0.0)


def day_weights(over: Mapping[str, Sequence[Tensor]], window: int) -> Tensor:
    """Weights [M, W] of the days in the last layer over days, averaged over heads, by what each is over."""
    if "memory" in over:
        return over["memory"][-1].mean(dim=1)[:, -1]
    days_MQK = over["days"][-1].mean(dim=1)
    if "pooling" in over:
        days_MQK = over["pooling"][-1][:, 0] @ days_MQK
    return days_MQK[:, -1, :window]  # without the [CLS] token


def flat_days(option: str, days: int, shape: Shape) -> int:
    """How many numbers per firm the last ``days`` of a window are.

    Raises IncompatibleConfig, which names the option, if the window is shorter.
    """
    if days > shape.window:
        raise IncompatibleConfig(
            f"{option} is {days} but the window has {shape.window} sessions; "
            f"lower {option} or lengthen the window."
        )
    return days * shape.n_channels


def spread_over_firms(weights_BHNM: Tensor, position_BM: Tensor) -> Tensor:
    """Weights [B, H, N, N] of all N firms as keys, from those of the firms at M positions; 0 for others."""
    every_BHNN = weights_BHNM.new_zeros(*weights_BHNM.shape[:3], weights_BHNM.shape[2])
    return every_BHNN.scatter(-1, position_BM[:, None, None, :].expand_as(weights_BHNM), weights_BHNM)


def zero_linear(inputs: int, outputs: int) -> nn.Linear:
    """Create a linear layer whose weights and bias are initialised to 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Baseline(Registered, ABC):
    """A forecaster with its own fit method."""

    threads: int = 1
    """Number of threads that a fit may use. No result depends on it, to the bit."""

    @abstractmethod
    def fit(
        self, data: PanelTensors, train: IntArray, valid: IntArray, *, seed: int, on_epoch: OnEpoch
    ) -> tuple[EpochRecord, ...]:
        """Fit to the training dates; select by mean rank IC over the validation dates."""

    @abstractmethod
    def refit(
        self, data: PanelTensors, dates: IntArray, history: Sequence[EpochRecord], *, seed: int
    ) -> None:
        """Fit to ``dates`` with the setting that :meth:`fit` selected; ``history`` is its result."""

    @abstractmethod
    def forecast_date(self, batch: Batch) -> Float32Array:
        """Forecasts [N] for a batch of one date that contains only firms in the universe."""

    @abstractmethod
    def tensors(self) -> Tensors:
        """Return the learned parameters as arrays."""

    @abstractmethod
    def load(self, tensors: Tensors) -> None:
        """Load the result of :meth:`tensors`; raise ValueError if it is damaged."""


def require_score(best: float, model: str) -> None:
    """Raise NoTrainingSignal where no candidate has a validation score."""
    if best == -math.inf:
        raise NoTrainingSignal(
            f"{model} has no validation score, because the targets of the validation dates are constant; "
            "look at them, or move the fold."
        )


class LagOptions(Options):
    """Options of a baseline that can read the last days of the window."""

    lags: Whole = 0
    """Number of last sessions of the window whose channels are inputs beside the characteristics."""

    def deciding(self) -> dict[str, Any]:
        """Return the settings as JSON values; without ``lags`` where there are none."""
        settings = super().deciding()
        return {name: value for name, value in settings.items() if name != "lags" or value}


def lags_of(options: object) -> int:
    """Number of last days of a window that a baseline with these options reads; 0 for other models."""
    return options.lags if isinstance(options, LagOptions) else 0


def known_cells(data: PanelTensors, date: int, lags: int = 0) -> tuple[FloatArray, FloatArray]:
    """Inputs [M, F + lags * C] and targets [M] of the firms with a known target at a date, in float64."""
    z_MF, known_N = known_inputs(data, date, lags), data.known_TN[date]
    return z_MF.double().cpu().numpy(), data.target_TN[date][known_N].double().cpu().numpy()


def known_inputs(data: PanelTensors, date: int, lags: int) -> Tensor:
    """Characteristics of the firms with a known target at a date, then the last days of their windows."""
    known_N = data.known_TN[date]
    z_MF = data.characteristics_TNF[date][known_N]
    if not lags:
        return z_MF
    firms_M = known_N.nonzero()[:, 0].to(data.device)
    x_MWC = data.gather_windows(torch.full_like(firms_M, date), firms_M)
    return torch.cat((z_MF, x_MWC[:, -lags:].flatten(1).to(z_MF.device)), dim=1)


def date_inputs(batch: Batch, lags: int) -> FloatArray:
    """Inputs [N, F + lags * C] of a batch of one date, in float64."""
    z_NF = batch.z_BNF[0]
    if lags:
        z_NF = torch.cat((z_NF, recent_days(batch, lags, None)[0]), dim=1)
    return z_NF.cpu().numpy().astype(np.float64)


def pad_by_date(rows: Sequence[AnyFloatArray]) -> FloatArray:
    """Stack rows of different lengths, one per date, into an array [D, M], padded with NaN."""
    out_DM = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for out_M, row in zip(out_DM, rows, strict=True):
        out_M[: len(row)] = row
    return out_DM
