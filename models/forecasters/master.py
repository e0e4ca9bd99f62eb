"""master: a market gate on the inputs, attention over days, then over firms on each day.

Legend: B dates, N firms, K recent days, R days of the market, C channels, F characteristics, D model width,
H heads, d = D / H, S spans of the market, G = 2 S C numbers of the market.
"""

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from features.options import Options
from models.attention.block import Block, BlockConfig
from models.attention.core import attention, attention_weights
from models.attention.layers import Dropout, Linear
from models.attention.positions import sinusoidal
from models.attention.probe import Probed
from models.batch import Ablation, Batch
from models.forecaster import Forecaster, zero_linear
from models.peers.layer import peer_keys
from models.spec import DROPOUT_SPACE, FIT_SPACE, Choice, Count, Heads, Positive, Range, Shape, Share, Space


class MasterConfig(Options):
    """Options of master."""

    width: Count = 32
    """D, width of the states; a multiple of both numbers of heads."""
    days: Count = 8
    """K, number of recent sessions that attend to each other; all of a shorter window."""
    day_heads: Heads = 4
    """Number of heads of the attention over days."""
    firm_heads: Heads = 2
    """Number of heads of the attention over firms."""
    beta: Positive = 5.0
    """Temperature of the gate: the larger, the more equal the inputs."""
    spans: tuple[Count, ...] = Field(default=(5, 20, 60), min_length=1)
    """Sessions over which the market is summarised; longer ones than the window are cut to it."""
    dropout: Share = 0.3
    """Probability, in training."""


class FirmAttention(Probed):
    """Attention over the other firms of each day: ``h + W_O attention(LN(h))``, then a feed-forward network.

    The weights of all days and heads are one array [B, K H, N, N]. A firm without peers gets no message.
    Dropout acts on messages and not on weights: a step then takes less than half of the time on a CPU.

    >>> layer, h_BNKD = FirmAttention(width=8, heads=2, dropout=0.0), torch.ones(1, 3, 5, 8)
    >>> layer.weights(h_BNKD, ~torch.eye(3, dtype=torch.bool)[None, None])[0, 0, 0].tolist()
    [[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]
    """

    over = "peers"

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (Linear(width, width) for _ in range(4))
        self.feed_forward = nn.Sequential(
            Linear(width, width), nn.GELU(), Dropout(dropout), Linear(width, width), Dropout(dropout)
        )
        self.dropout = Dropout(dropout)

    def forward(self, h_BNKD: Tensor, keep_B1NN: Tensor) -> Tensor:
        """Add the messages of the peers that are kept."""
        q, k, v = self._project(h_BNKD)
        if self.probe is None:
            out = attention(q, k, v, keep=keep_B1NN)
        else:
            out = self.weigh(attention_weights(q, k, keep=keep_B1NN), keep_B1NN) @ v
        message_BNKD = out.unflatten(1, (-1, self.heads)).permute(0, 3, 1, 2, 4).flatten(3)
        h_BNKD = h_BNKD + self.dropout(self.output(message_BNKD))
        return h_BNKD + self.feed_forward(self.forward_norm(h_BNKD))  # type: ignore[no-any-return]

    def weights(self, h_BNKD: Tensor, keep_B1NN: Tensor) -> Tensor:
        """Weights [B, K, H, N, N] of the peers on each day."""
        q, k, _ = self._project(h_BNKD)
        weights_BHNN: Tensor = attention_weights(q, k, keep=keep_B1NN)
        return torch.unflatten(weights_BHNN, 1, (-1, self.heads))

    def _project(self, h_BNKD: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values [B, K H, N, d]."""
        x_BNKD = self.norm(h_BNKD)
        return tuple(
            layer(x_BNKD).unflatten(3, (self.heads, -1)).permute(0, 2, 3, 1, 4).flatten(1, 2)
            for layer in (self.query, self.key, self.value)
        )


class Master(Forecaster):
    """``y = w . z + v . LN(e)`` with ``e = sum_t lambda_t h_t`` over the last K days.

    1. The gate: ``(C + F) softmax(W m / beta)`` multiplies each channel and each characteristic, where ``m``
       says in which state the market is.
    2. Within a firm: a transformer block over the K days. The token of the decision day also holds the gated
       characteristics.
    3. Between firms: attention over the other firms of the date, for the states of each of the K days.
    4. Over time: ``lambda = softmax_t(h_t' U h_K)``.

    Li, Liu, Shen, Wang, Chen and Huang (2024), "MASTER: Market-guided stock transformer for stock price
    forecasting", AAAI. Different from the paper: its market vector holds prices and volumes of market
    indices; here it holds, for each channel, mean and standard deviation over the firms of the universe and
    the last 5, 20 and 60 sessions, which are known at the close of the decision session. A firm does not
    attend to itself, because the residual connection already holds its own state. Characteristics are known
    at the decision session only, and are read by a linear skip connection as well. The layers are pre-norm;
    the feed-forward network over days has width 4 D. Dropout acts on messages between firms, not on their
    weights. A firm whose peers are removed by an explainer has itself as its market.
    """

    uses_peers: ClassVar[bool] = True
    space: ClassVar[Space] = {
        **FIT_SPACE,
        "dropout": DROPOUT_SPACE,
        "width": Choice((16, 32, 64)),
        "days": Choice((4, 8, 16)),
        "beta": Range(1.0, 10.0, log=True),
    }

    positions_KD: Tensor

    def __init__(self, config: MasterConfig, shape: Shape) -> None:
        super().__init__()
        self.config, self.n_channels = config, shape.n_channels
        self.days = min(config.days, shape.window)
        self.spans = [min(span, shape.window) for span in config.spans]
        self.read_days = max(self.days, *self.spans)
        self.read_recent(self.read_days, shape)
        self.gate = Linear(2 * len(self.spans) * shape.n_channels, shape.n_channels + shape.n_characteristics)
        self.day, self.now = (
            Linear(shape.n_channels, config.width),
            Linear(shape.n_characteristics, config.width),
        )
        self.register_buffer("positions_KD", sinusoidal(self.days, config.width), persistent=False)
        block = BlockConfig(width=config.width, heads=config.day_heads, dropout=config.dropout)
        self.over_days = Block(block)
        self.over_firms = FirmAttention(config.width, config.firm_heads, config.dropout)
        self.aggregate = Linear(config.width, config.width, bias=False)
        self.norm = nn.LayerNorm(config.width)
        self.head = zero_linear(config.width, 1)
        self.skip = zero_linear(shape.n_characteristics, 1)

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Gate the inputs, then attend over days and over firms."""
        h_BNKD = self._states(h_BND, batch, ablation)
        h_BNKD = self.over_firms(h_BNKD, peer_keys(batch, ablation).mask()[..., :-1])
        mean_BND = (self._day_weights(h_BNKD)[..., None, :] @ h_BNKD)[..., 0, :]
        return self.scaled((self.skip(batch.z_BNF) + self.head(self.norm(mean_BND)))[..., 0], batch)

    def peer_weights(self, batch: Batch, ablation: Ablation | None) -> Tensor:
        """Weights of the peers, averaged over the days by their weights in the forecast."""
        h_BNKD = self._states(self.embed(batch, ablation), batch, ablation)
        keep_B1NN = peer_keys(batch, ablation).mask()[..., :-1]
        days_BNK = self._day_weights(self.over_firms(h_BNKD, keep_B1NN))
        weights_BKHNN = self.over_firms.weights(h_BNKD, keep_B1NN)
        return (weights_BKHNN * days_BNK.transpose(1, 2)[:, :, None, :, None]).sum(dim=1)

    def market(self, x_BNRC: Tensor, batch: Batch, ablation: Ablation | None) -> Tensor:
        """State of the market [B, N, G]: mean and standard deviation over firms and days.

        Only firms of the universe count that an explainer has not removed, and the firm itself.
        """
        moments_BNG = torch.cat(
            [
                power_BNRC[:, :, -span:].mean(dim=2)
                for power_BNRC in (x_BNRC, x_BNRC.square())
                for span in self.spans
            ],
            dim=-1,
        )
        kept_BN1 = peer_keys(batch, ablation).keep_BM[..., None]
        own_BNG = moments_BNG.masked_fill(kept_BN1, 0.0)  # of a firm that is not among the others
        total_B1G = moments_BNG.masked_fill(~kept_BN1, 0.0).sum(dim=1, keepdim=True)
        count_BN1 = kept_BN1.sum(dim=1, keepdim=True) + (~kept_BN1).to(torch.int64)
        mean_BNG, square_BNG = ((total_B1G + own_BNG) / count_BN1).chunk(2, dim=-1)
        deviation_BNG = ((square_BNG - mean_BNG.square()).clamp(min=0.0) + 1e-6).sqrt()
        return torch.cat((mean_BNG, deviation_BNG), dim=-1)

    def _states(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None) -> Tensor:
        """States [B, N, K, D] of a firm's days, before the firms attend to each other."""
        x_BNRC = h_BND[..., batch.z_BNF.shape[-1] :].unflatten(-1, (self.read_days, -1))
        gate_BNX = (self.gate(self.market(x_BNRC, batch, ablation)) / self.config.beta).softmax(dim=-1)
        gate_BNX = gate_BNX.shape[-1] * gate_BNX
        x_BNKC = x_BNRC[:, :, -self.days :] * gate_BNX[:, :, None, : self.n_channels]
        now_BN1D = self.now(batch.z_BNF * gate_BNX[..., self.n_channels :])[:, :, None]
        h_BNKD = self.day(x_BNKC) + self.positions_KD
        h_BNKD = torch.cat((h_BNKD[:, :, :-1], h_BNKD[:, :, -1:] + now_BN1D), dim=2)
        return self.over_days(h_BNKD.flatten(0, 1)).view_as(h_BNKD)  # type: ignore[no-any-return]

    def _day_weights(self, h_BNKD: Tensor) -> Tensor:
        query_BND1 = self.aggregate(h_BNKD[:, :, -1])[..., None]
        logits_BNK: Tensor = (h_BNKD @ query_BND1)[..., 0] / math.sqrt(h_BNKD.shape[-1])
        return logits_BNK.softmax(dim=-1)
