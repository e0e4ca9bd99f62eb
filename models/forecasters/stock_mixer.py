"""stock_mixer: perceptrons that mix a firm's channels, its days, and the firms of the market.

Legend: B dates, N firms, P windows of present firms, K recent days, L patches of them, C channels, F
characteristics, D numbers of a token, M market states, E numbers of a state.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from pydantic import Field
from torch import Tensor, nn

from features.options import Options
from models.attention.layers import Dropout, Linear, linear
from models.batch import Ablation, Batch, days_kept, present_cells, scatter_present
from models.forecaster import Forecaster, zero_linear
from models.peers.layer import GroupEmbedding, peer_keys
from models.spec import DROPOUT_SPACE, FIT_SPACE, Choice, Count, IncompatibleConfig, Shape, Share, Space


class StockMixerConfig(Options):
    """Options of stock_mixer."""

    days: Count = 16
    """K, number of recent sessions that are mixed; all of a shorter window."""
    scales: tuple[Count, ...] = Field(default=(1, 2, 4), min_length=1)
    """Lengths of the patches of days; those longer than the days are left out."""
    market: Count = 20
    """M, number of market states between the firms."""
    width: Count = 16
    """E, size of a market state."""
    group_width: Count = 4
    """Width of the group embedding."""
    dropout: Share = 0.1
    """Probability, in training."""


class Mixer(nn.Module):
    """Indicator and time mixing of patches [P, L, C], both with residuals.

    ``x + W_2 act(W_1 LN(x))`` over channels, then ``x + U_2 act(U_1 LN(x))`` over patches, where U_1 and U_2
    are lower triangular: a patch mixes with itself and with earlier ones. LN normalises a whole window.

    >>> Mixer(patches=4, channels=2, dropout=0.0)(torch.randn(10, 4, 2)).shape
    torch.Size([10, 4, 2])
    """

    def __init__(self, patches: int, channels: int, dropout: float) -> None:
        super().__init__()
        self.channel_norm, self.time_norm = (nn.LayerNorm((patches, channels)) for _ in range(2))
        self.channel_in, self.channel_out = Linear(channels, channels), Linear(channels, channels)
        self.time_in, self.time_out = Linear(patches, patches), Linear(patches, patches)
        self.dropout = Dropout(dropout)

    def forward(self, x_PLC: Tensor) -> Tensor:
        """Mix channels, then patches."""
        hidden_PLC = F.hardswish(self.channel_in(self.channel_norm(x_PLC)))
        x_PLC = x_PLC + self.dropout(self.channel_out(hidden_PLC))
        h_PCL = F.hardswish(_causal(self.time_in, self.time_norm(x_PLC).transpose(1, 2)))
        return x_PLC + self.dropout(_causal(self.time_out, h_PCL)).transpose(1, 2)  # type: ignore[no-any-return]


class StockMixer(Forecaster):
    """``y = w . z + v . h + u . messages``, from ``h = [mix(x), mix(patches of 2 days), ...] + W z``.

    Each scale averages the days of a patch, mixes channels and patches (`Mixer`), and makes one number of the
    channels of each patch. The messages come through M market states, which all firms share:
    ``state_m = sum_j p_jm V h_j / (1 + sum_j p_jm)`` over the other firms j, and ``message_i = sum_m q_im
    act(state_m)``, with ``p_j = softmax(W_p [z_j, group_j])`` and ``q_i = softmax(W_q [z_i, group_i])``. The
    cost grows linearly with the number of firms.

    Fan and Shen (2024), "StockMixer: A simple yet strong MLP-based architecture for stock price forecasting",
    AAAI. Different from the paper: its stock mixing is a perceptron N -> m -> N with a row of weights for
    each firm of a fixed list, normalised over the list. Here firms come and go, so the weights of a firm are
    memberships that follow from its characteristics and group, a state does not contain the firm that reads
    it, and the 1 in the denominator keeps a state that few firms belong to small. Characteristics are added,
    which the paper does not have, and the loss is that of the config instead of a squared error with a
    pairwise loss.
    """

    uses_peers: ClassVar[bool] = True
    space: ClassVar[Space] = {
        **FIT_SPACE,
        "dropout": DROPOUT_SPACE,
        "market": Choice((5, 20, 40)),
        "width": Choice((8, 16, 32)),
        "days": Choice((8, 16, 32)),
    }

    def __init__(self, config: StockMixerConfig, shape: Shape) -> None:
        super().__init__()
        self.days = min(config.days, shape.window)
        self.read_recent(self.days, shape)
        self.scales = [scale for scale in config.scales if scale <= self.days]
        if not self.scales:
            raise IncompatibleConfig(
                f"stock_mixer reads {self.days} days but its shortest scale is {min(config.scales)}; "
                "add the scale 1, or lengthen days or the window."
            )
        patches = [-(-self.days // scale) for scale in self.scales]
        tokens, identity = sum(patches), shape.n_characteristics + config.group_width
        self.mixers = nn.ModuleList(Mixer(each, shape.n_channels, config.dropout) for each in patches)
        self.indicator = nn.ModuleList(Linear(shape.n_channels, 1) for _ in patches)
        self.token = Linear(shape.n_characteristics, tokens)
        self.group = GroupEmbedding(shape.n_groups, config.group_width)
        self.gives, self.takes = Linear(identity, config.market), Linear(identity, config.market)
        self.value = Linear(tokens, config.width)
        self.dropout = Dropout(config.dropout)
        self.readout = zero_linear(config.width, 1)
        self.head = zero_linear(tokens, 1)
        self.skip = zero_linear(shape.n_characteristics, 1)

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Tokens from a firm's own channels and characteristics."""
        x_PKC, keep_PW = present_cells(batch.x_BNWC, batch)[:, -self.days :], days_kept(batch, ablation)
        if keep_PW is not None:
            x_PKC = x_PKC * keep_PW[:, -self.days :, None]
        parts = []
        for scale, mixer, indicator in zip(self.scales, self.mixers, self.indicator, strict=True):
            older = -self.days % scale  # zeros before the first day fill its patch
            patches_PLC = F.pad(x_PKC, (0, 0, older, 0)).unflatten(1, (-1, scale)).mean(dim=2)
            parts.append(indicator(mixer(patches_PLC))[..., 0])
        return scatter_present(torch.cat(parts, dim=1), batch) + self.token(batch.z_BNF)  # type: ignore[no-any-return]

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Add what the market states say of the other firms."""
        given_BNM, taken_BNM = self._memberships(batch, ablation)
        value_BNE = self.value(h_BND)
        own_BNME = given_BNM[..., None] * value_BNE[:, :, None]
        others_BNME = own_BNME.sum(dim=1, keepdim=True) - own_BNME
        state_BNME = others_BNME / (1.0 + self._of_others(given_BNM))[..., None]
        message_BNE = (taken_BNM[:, :, None] @ F.hardswish(state_BNME))[:, :, 0]
        y_BN1 = self.skip(batch.z_BNF) + self.head(self.dropout(F.hardswish(h_BND)))
        return self.scaled((y_BN1 + self.readout(self.dropout(message_BNE)))[..., 0], batch)

    def peer_weights(self, batch: Batch, ablation: Ablation | None) -> Tensor:
        """Weight of firm j in the states that firm i reads: ``sum_m q_im p_jm / (1 + sum_j p_jm)``."""
        given_BNM, taken_BNM = self._memberships(batch, ablation)
        read_BNM = taken_BNM / (1.0 + self._of_others(given_BNM))
        return (read_BNM @ given_BNM.transpose(1, 2))[:, None]

    def _memberships(self, batch: Batch, ablation: Ablation | None) -> tuple[Tensor, Tensor]:
        """How much a firm gives to each state, 0 for a firm that is no peer, and takes from it."""
        identity_BNE = torch.cat((batch.z_BNF, self.group(batch.s_BN)), dim=-1)
        given_BNM = self.gives(identity_BNE).softmax(dim=-1)
        kept_BN1 = peer_keys(batch, ablation).keep_BM[..., None]
        return given_BNM.masked_fill(~kept_BN1, 0.0), self.takes(identity_BNE).softmax(dim=-1)

    @staticmethod
    def _of_others(given_BNM: Tensor) -> Tensor:
        return (given_BNM.sum(dim=1, keepdim=True) - given_BNM).clamp(min=0.0)


def _causal(layer: Linear, x_PCL: Tensor) -> Tensor:
    """Apply a linear layer over the patches, from each patch to itself and later ones."""
    return linear(x_PCL, layer.weight.tril(), layer.bias)
