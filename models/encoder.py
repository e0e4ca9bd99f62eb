"""Day encoder: a transformer over the days of one firm's window.

Legend: M windows (present firms of every date of a batch), W window length, C channels, D model
width, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from models import positions as pos
from models.attention import Block, causal_keep
from models.batch import Batch, Cut
from models.spec import require_choice, require_dropout, require_heads

Pooling = Literal["last", "mean"]
Positions = Literal["none", "sinusoidal", "learned", "rotary"]


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Day encoder.

    Attributes
    ----------
    width, heads, layers
        D, H and the number of blocks.
    positions
        ``none``, ``sinusoidal``, ``learned`` or ``rotary``.
    causal
        Whether a day sees only the days up to itself.
    pooling
        ``last``: the decision day's state; ``mean``: the mean over days.
    dropout
        Probability, while training.
    """

    width: int = 32
    heads: int = 4
    layers: int = 2
    positions: Positions = "learned"
    causal: bool = False
    pooling: Pooling = "last"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        require_choice("positions", self.positions, pos.POSITIONS)
        require_choice("pooling", self.pooling, ("last", "mean"))
        require_heads(self.width, self.heads, rotary=self.positions == "rotary")
        require_dropout(self.dropout)
        if self.layers < 1:
            raise ValueError(f"layers is {self.layers}: the day encoder needs at least 1.")


class DayEncoder(nn.Module):
    """Windows [M, W, C] -> embeddings [M, D].

    ``h = x W_in + position``; L pre-norm blocks; layer norm; pooled.  With ``pooling="last"`` the
    last block computes the last query alone.
    """

    position_WD: Tensor
    rotary_W2d: Tensor | None

    def __init__(self, config: EncoderConfig, n_channels: int, window: int) -> None:
        super().__init__()
        self.config = config
        self.input = nn.Linear(n_channels, config.width)
        if config.positions == "learned":
            self.position_WD = nn.Parameter(0.02 * torch.randn(window, config.width))
        elif config.positions == "sinusoidal":
            self.register_buffer("position_WD", pos.sinusoidal(window, config.width), persistent=False)
        table = pos.rotary(window, config.width // config.heads) if config.positions == "rotary" else None
        self.register_buffer("rotary_W2d", table, persistent=False)
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, config.dropout) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x_MWC: Tensor, days_keep_MW: Tensor | None = None) -> Tensor:
        """Embed windows; a day that is not kept (False) leaves no trace in the embedding."""
        h_MWD, keep = self._start(x_MWC, days_keep_MW)
        *first, last = (cast("Block", block) for block in self.blocks)
        for block in first:
            h_MWD = block(h_MWD, keep=keep, rotary_W2d=self.rotary_W2d)
        if self.config.pooling == "last":
            only = None if keep is None else keep[..., -1:, :]
            return self.norm(last(h_MWD, keep=only, rotary_W2d=self.rotary_W2d, queries=1)[:, 0])  # type: ignore[no-any-return]
        h_MWD = self.norm(last(h_MWD, keep=keep, rotary_W2d=self.rotary_W2d))
        return _mean_days(h_MWD, days_keep_MW)

    def weights(self, x_MWC: Tensor, days_keep_MW: Tensor | None = None) -> Tensor:
        """Weights [M, W] of the days in the last block, averaged over heads (and pooled queries)."""
        h_MWD, keep = self._start(x_MWC, days_keep_MW)
        for block in self.blocks:
            h_MWD, weights_MHWW = cast("Block", block).explicit(h_MWD, keep=keep, rotary_W2d=self.rotary_W2d)
        weights_MWW = weights_MHWW.mean(dim=1)
        if self.config.pooling == "last":
            return weights_MWW[:, -1]
        return _mean_days(weights_MWW, days_keep_MW)

    def _start(self, x_MWC: Tensor, days_keep_MW: Tensor | None) -> tuple[Tensor, Tensor | None]:
        h_MWD = self.input(x_MWC)
        keep = None
        if days_keep_MW is not None:
            h_MWD = h_MWD * days_keep_MW[:, :, None]  # a removed day asks with its position alone
            keep = days_keep_MW[:, None, None, :]
        if self.config.positions in ("learned", "sinusoidal"):
            h_MWD = h_MWD + self.position_WD
        if self.config.causal:
            causal = causal_keep(x_MWC.shape[1], x_MWC.device)
            keep = causal if keep is None else keep & causal
        elif keep is not None:
            keep = keep.expand(-1, -1, x_MWC.shape[1], -1)
        return h_MWD, keep


def _mean_days(h_MWD: Tensor, days_keep_MW: Tensor | None) -> Tensor:
    if days_keep_MW is None:
        return h_MWD.mean(dim=1)
    kept_MW1 = days_keep_MW[:, :, None].to(h_MWD.dtype)
    return (h_MWD * kept_MW1).sum(dim=1) / kept_MW1.sum(dim=1).clamp(min=1.0)


def encode_present(encoder: DayEncoder, batch: Batch, cut: Cut | None) -> Tensor:
    """Embeddings [B, N, D] of the firms in the universe; the others are 0 and cost nothing."""
    h_MD = encoder(batch.x_BNWC[batch.m_BN], _days_keep(batch, cut))
    return scatter_present(h_MD, batch.m_BN)


def day_weights(encoder: DayEncoder, batch: Batch, cut: Cut | None) -> Tensor:
    """Day weights [B, N, W] of the firms in the universe; the others are 0."""
    return scatter_present(encoder.weights(batch.x_BNWC[batch.m_BN], _days_keep(batch, cut)), batch.m_BN)


def scatter_present(h_MD: Tensor, m_BN: Tensor) -> Tensor:
    """Put the rows of the present firms back to their places in [B, N, D], zeros elsewhere."""
    h_BND = h_MD.new_zeros(*m_BN.shape, h_MD.shape[-1])
    return h_BND.masked_scatter(m_BN[:, :, None], h_MD)


def recent_days(batch: Batch, days: int, cut: Cut | None) -> Tensor:
    """The last ``days`` sessions of every window, flattened to [B, N, days * C]; cut days are 0."""
    x_BNKC = batch.x_BNWC[:, :, -days:]
    if cut is not None and cut.days_keep_BW is not None:
        x_BNKC = x_BNKC * cut.days_keep_BW[:, None, -days:, None]
    return x_BNKC.flatten(2)


def _days_keep(batch: Batch, cut: Cut | None) -> Tensor | None:
    if cut is None or cut.days_keep_BW is None:
        return None
    return cut.days_keep_BW[:, None, :].expand(*batch.m_BN.shape, -1)[batch.m_BN]
