"""portfolio_transformer and its linear form: attention among all firms whose output is a portfolio weight.

Legend: B dates, N firms, F inputs of a firm (characteristics and recent days), D model width, H heads,
L blocks.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from features.options import Options
from models.attention.block import AttentionMask, Block, BlockConfig
from models.attention.layers import Linear
from models.batch import Ablation, Batch
from models.forecaster import Forecaster, zero_linear
from models.peers.layer import peer_keys
from models.spec import (
    DROPOUT_SPACE,
    FIT_SPACE,
    Choice,
    Count,
    Heads,
    Range,
    Shape,
    Share,
    Space,
    Value,
    Whole,
)


class LinearPortfolioTransformerConfig(Options):
    """Options of linear_portfolio_transformer."""

    heads: Heads = 1
    """H, number of attention matrices."""
    recent_days: Whole = 0
    """Number of recent sessions of the window as inputs of a firm; 0 for characteristics only."""


class PortfolioTransformerConfig(Options):
    """Options of portfolio_transformer."""

    width: Count = 64
    """D, width of the tokens; a multiple of ``heads``."""
    heads: Heads = 4
    """H, number of attention heads."""
    layers: Count = 2
    """L, number of blocks."""
    dropout: Share = 0.1
    """Probability, in training."""
    recent_days: Whole = 0
    """Number of recent sessions of the window as inputs of a firm; 0 for characteristics only."""


class _Portfolio(Forecaster):
    """What both have in common: inputs without positions, every firm a key, and the loss of a portfolio."""

    uses_peers: ClassVar[bool] = True
    fit_defaults: ClassVar[Mapping[str, Value]] = {"loss": "sharpe"}


class LinearPortfolioTransformer(_Portfolio):
    """``y = X l_0 + sum_h (X W_h X') (X l_h) / n`` over the n firms X of a date: attention without softmax.

    ``(X W_h X') / n`` are the weights of linear attention and ``X l_h`` the values. As a portfolio, ``X' r``
    are factors and ``l_0 + sum_h W_h (X' X / n) l_h`` their weights: linear in the second moments of the
    characteristics of the date, so attention is the timing of factors by what the cross-section looks like.
    The sums over firms are computed once for all, in O(N F) per date. All ``l`` start at 0.

    Kelly, Kuznetsov, Malamud and Xu (2025), "Artificial intelligence asset pricing models", the linear
    portfolio transformer. There, ``W`` and ``l`` are estimated as one coefficient per product of
    characteristics with a ridge penalty in closed form; here they are H products, trained in steps with
    weight decay, beside a part without attention (``l_0``).
    """

    space: ClassVar[Space] = {**FIT_SPACE, "heads": Choice((1, 2, 4, 8))}

    def __init__(self, config: LinearPortfolioTransformerConfig, shape: Shape) -> None:
        super().__init__()
        width = shape.n_characteristics + self.read_recent(config.recent_days, shape)
        self.weight_HFF = nn.Parameter(torch.randn(config.heads, width, width))
        self.value_HF = nn.Parameter(torch.zeros(config.heads, width))
        self.own = zero_linear(width, 1)

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Add the messages of all firms; a firm whose key is ablated is still its own key."""
        kept_BN = peer_keys(batch, ablation).keep_BM.to(h_BND.dtype)
        value_BNH = h_BND @ self.value_HF.t()
        sum_BFH = (h_BND * kept_BN[..., None]).transpose(1, 2) @ value_BNH
        weight_HFF = self._weights()
        message_BN = torch.einsum("bnf,bf->bn", h_BND, torch.einsum("hfg,bgh->bf", weight_HFF, sum_BFH))
        count_BN = kept_BN.sum(dim=1, keepdim=True)
        if ablation is not None and ablation.peers_keep_BN is not None:
            own_BNH = torch.einsum("bnf,hfg,bng->bnh", h_BND, weight_HFF, h_BND)
            message_BN = message_BN + (1.0 - kept_BN) * (own_BNH * value_BNH).sum(dim=-1)
            count_BN = count_BN + (1.0 - kept_BN)
        return self.scaled(self.own(h_BND)[..., 0] + message_BN / count_BN.clamp(min=1.0), batch)

    def peer_weights(self, batch: Batch, ablation: Ablation | None) -> Tensor:
        """Shares of the absolute weights ``|x_i' W_h x_j|``, which may be negative; that of i is left out."""
        h_BNF, kept_BN = self.embed(batch, ablation), peer_keys(batch, ablation).keep_BM
        size_BHNN = torch.einsum("bnf,hfg,bmg->bhnm", h_BNF, self._weights(), h_BNF).abs()
        own_NN = torch.eye(h_BNF.shape[1], dtype=torch.bool, device=h_BNF.device)
        size_BHNN = size_BHNN.masked_fill(~(kept_BN[:, None, None] | own_NN), 0.0)
        return size_BHNN / size_BHNN.sum(dim=-1, keepdim=True).clamp(min=1e-30)

    def _weights(self) -> Tensor:
        """``W``, stored F times as large: one learning rate then suits it and the vectors."""
        return self.weight_HFF / self.weight_HFF.shape[-1]


class PortfolioTransformer(_Portfolio):
    """``h^0 = W x``; L blocks ``h += MHA(LN(h))``, ``h += MLP(LN(h))``; ``y = l' LN(h^L) + l_0' x``.

    ``MHA`` is softmax attention of a firm to all firms of the date, itself included, without positions and
    groups. A firm that is absent or ablated is no key; an ablated firm is still its own.

    Kelly, Kuznetsov, Malamud and Xu (2025), "Artificial intelligence asset pricing models": the weights of
    the stochastic discount factor's portfolio are ``h^L l``, trained by maximum Sharpe ratio regression. What
    differs: inputs are mapped to tokens of any width, and a linear map of the inputs stands beside them,
    where the paper's tokens are the characteristics themselves; blocks normalise their inputs; attention
    drops weights in training; queries and keys have matrices of their own in each of the heads, which share
    the width; the ridge penalty is weight decay.
    """

    space: ClassVar[Space] = {
        **FIT_SPACE,
        "dropout": DROPOUT_SPACE,
        "width": Choice((32, 64, 128)),
        "layers": Range(1, 3, integer=True),
    }

    def __init__(self, config: PortfolioTransformerConfig, shape: Shape) -> None:
        super().__init__()
        inputs = shape.n_characteristics + self.read_recent(config.recent_days, shape)
        block = BlockConfig(width=config.width, heads=config.heads, dropout=config.dropout)
        self.token = Linear(inputs, config.width)
        blocks = [Block(block) for _ in range(config.layers)]
        for one in blocks:
            one.attention.over = "peers"
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(config.width)
        self.head = zero_linear(config.width, 1)
        self.skip = zero_linear(inputs, 1)

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Map the inputs of each firm to its token."""
        return self.token(super().embed(batch, ablation))  # type: ignore[no-any-return]

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Apply the blocks."""
        y_BN1 = self.skip(super().embed(batch, ablation))
        ablated = ablation is not None and ablation.peers_keep_BN is not None
        mask = AttentionMask(keys_BK=peer_keys(batch, ablation).keep_BM, own=ablated)
        for block in self.blocks:
            h_BND = block(h_BND, mask)
        return self.scaled((y_BN1 + self.head(self.norm(h_BND)))[..., 0], batch)
