"""Day encoder: a transformer over the days of a firm's window.

Legend: M windows (present firms of every date of a batch), W window length, C channels, D model
width, H heads, R = 2W - 1 distances, U masks of days.
"""

import math
from dataclasses import replace
from typing import ClassVar, Literal, Self, cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from pydantic import model_validator
from torch import Tensor, nn

from models.attention import positions as pos
from models.attention.block import AttentionMask, Block, BlockConfig
from models.attention.layers import FewInputs
from models.attention.probe import Probed
from models.batch import Ablation, Batch, days_kept, present_cells, scatter_present, select_dates
from models.panel_memory import variants_at_once
from models.spec import Count, Share

_FIRM_DAYS = 30_000  # embedded at a time for an explainer, chosen to fit into a CPU cache


class EncoderConfig(BlockConfig):
    """Options of a day encoder: those of its blocks, whose positions are days, and its own."""

    width: Count = 64
    dropout: Share = 0.2
    layers: Count = 1
    """Number of blocks."""
    causal: bool = False
    """Whether a day attends only to itself and earlier days."""
    pooling: Literal["last", "cls", "mean", "attention"] = "last"
    """How the states of the days become one embedding: the state of the decision day, that of a learned token
    after the window, the mean over days, or a mean weighted by the softmax of a learned query."""
    positions: Literal["none", "sinusoidal", "learned", "rotary", "relative", "alibi"] = "learned"
    """``relative`` is a learned and ``alibi`` a fixed bias per distance. The last three act on logits, which
    the linear kernel does not have."""

    @model_validator(mode="after")
    def _check_encoder(self) -> Self:
        if self.positions == "rotary" and self.width % (2 * self.heads):
            raise ValueError(
                f"width is {self.width} with heads {self.heads}; with rotary positions the width must be a "
                f"multiple of {2 * self.heads}."
            )
        if self.kernel == "linear" and self.positions in ("rotary", "relative", "alibi"):
            raise ValueError(
                f"positions is {self.positions!r}, which acts on logits, and the linear kernel has none: "
                "use none, sinusoidal or learned."
            )
        if self.kernel == "local" and self.pooling == "cls":
            raise ValueError(
                "pooling is 'cls' and the kernel local: the token would see the last days alone; "
                "use last, mean or attention."
            )
        return self


class DayEncoder(Probed):
    """Maps windows [M, W, C] to embeddings [M, D].

    ``h = x W_in + position``, then L blocks, layer norm and pooling. With ``pooling="last"`` or ``"cls"``,
    the last block computes only the last query.
    """

    undecayed: ClassVar[tuple[str, ...]] = ("bias_HR",)
    over = "pooling"

    position_WD: Tensor
    rotary_W2d: Tensor | None
    bias_HR: Tensor | None

    def __init__(self, config: EncoderConfig, n_channels: int, window: int) -> None:
        super().__init__()
        self.config = config
        length = window + (config.pooling == "cls")
        self.input = FewInputs(n_channels, config.width)
        self._create_positions(length)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()
        if config.pooling == "cls":
            self.cls_D = nn.Parameter(0.02 * torch.randn(config.width))
        elif config.pooling == "attention":
            self.pool_D = nn.Parameter(torch.zeros(config.width))  # equal weights at first

    def forward(self, x_MWC: Tensor, days_keep_MW: Tensor | None = None) -> Tensor:
        """Embed windows; the embedding does not depend on days with ``days_keep_MW`` False."""
        h_MWD, mask = self._prepare(x_MWC, days_keep_MW)
        *first, last = self._layers()
        for block in first:
            h_MWD = block(h_MWD, mask)
        if self.config.pooling in ("last", "cls"):
            return self.norm(last(h_MWD, mask, queries=1)[:, 0])  # type: ignore[no-any-return]
        h_MWD = self.norm(last(h_MWD, mask))
        return (self._pooling_weights(h_MWD, days_keep_MW)[:, None] @ h_MWD)[:, 0]  # type: ignore[no-any-return]

    def states(self, x_MWC: Tensor, days_keep_MW: Tensor | None = None) -> Tensor:
        """States [M, W, D] of all days after the blocks and the norm, as memory of a decoder."""
        h_MWD, mask = self._prepare(x_MWC, days_keep_MW)
        for block in self.blocks:
            h_MWD = block(h_MWD, mask)
        return self.norm(h_MWD)  # type: ignore[no-any-return]

    def masked(self, x_MWC: Tensor, days_keep_UW: Tensor) -> Tensor | None:
        """Compute :meth:`forward` of the same windows for U masks of the days, [U, M, D].

        In the first block, the keys and values of a kept day do not depend on the other days, so they are
        computed once for all masks. None if that is not all there is to compute: with several blocks, with
        pooling over all days, with the linear kernel, or under a probe.
        """
        config, block = self.config, self._layers()[0]
        if len(self.blocks) > 1 or config.pooling not in ("last", "cls") or config.kernel == "linear":
            return None
        if block.attention.probe is not None:
            return None
        keep_UK = F.pad(days_keep_UW, (0, 1), value=True) if config.pooling == "cls" else days_keep_UW
        h_UMD = self.input.weight.new_empty(len(keep_UK), len(x_MWC), config.width)
        for kept in (True, False):  # whether the querying day, the last, is kept; [CLS] always is
            rows_U = keep_UK[:, -1] == kept
            if rows_U.any():
                query_W = torch.ones_like(days_keep_UW[0])
                query_W[-1] = kept or config.pooling == "cls"
                h_MWD, mask = self._prepare(x_MWC, query_W.expand(len(x_MWC), -1))
                h_UMD[rows_U] = block.masked(h_MWD, keep_UK[rows_U], replace(mask, keys_BK=None))
        return self.norm(h_UMD)  # type: ignore[no-any-return]

    def days(self, h_MWD: Tensor, causal: bool) -> Tensor:
        """States [M, W, D] of all days from their projected inputs ``x W_in`` [M, W, D], for pretraining."""
        days = h_MWD.shape[1]
        h_MWD, mask = self._add_positions(h_MWD, None)
        for block in self.blocks:
            h_MWD = block(h_MWD, replace(mask, causal=causal))
        return self.norm(h_MWD)[:, :days]  # type: ignore[no-any-return]

    def depths(self) -> dict[str, int]:
        """Depth of each parameter: 0 after the blocks, 1 in the last block, L in the first, L + 1 before."""
        layers, depths = self.config.layers, {}
        for name, _ in self.named_parameters():
            part, _, rest = name.partition(".")
            if part == "blocks":
                depths[name] = layers - int(rest.partition(".")[0])
            else:  # input, positions and [CLS] come before all blocks
                depths[name] = 0 if part in ("norm", "pool_D") else layers + 1
        return depths

    def _layers(self) -> list[Block]:
        return cast("list[Block]", list(self.blocks))

    def _prepare(self, x_MWC: Tensor, days_keep_MW: Tensor | None) -> tuple[Tensor, AttentionMask]:
        h_MWD = self.input(x_MWC)
        if days_keep_MW is not None:
            h_MWD = h_MWD * days_keep_MW[:, :, None]  # an ablated day's query is its position
        return self._add_positions(h_MWD, days_keep_MW)

    def _add_positions(self, h_MWD: Tensor, days_keep_MW: Tensor | None) -> tuple[Tensor, AttentionMask]:
        """Append the [CLS] token and add the position encodings."""
        if self.config.pooling == "cls":
            h_MWD = torch.cat((h_MWD, self.cls_D.expand(len(h_MWD), 1, -1)), dim=1)
            days_keep_MW = None if days_keep_MW is None else F.pad(days_keep_MW, (0, 1), value=True)
        if self.config.positions in ("learned", "sinusoidal"):
            h_MWD = h_MWD + self.position_WD
        return h_MWD, AttentionMask(days_keep_MW, self.config.causal, self.rotary_W2d, self.bias_HR)

    def _create_positions(self, length: int) -> None:
        """Create the parameters or constants of the position encoding."""
        config = self.config
        if config.positions == "learned":
            self.position_WD = nn.Parameter(0.02 * torch.randn(length, config.width))
        elif config.positions == "sinusoidal":
            self.register_buffer("position_WD", pos.sinusoidal(length, config.width), persistent=False)
        table = pos.rotary(length, config.width // config.heads) if config.positions == "rotary" else None
        self.register_buffer("rotary_W2d", table, persistent=False)
        if config.positions == "relative":
            self.bias_HR = nn.Parameter(torch.zeros(config.heads, 2 * length - 1))
        else:
            bias_HR = pos.alibi(length, config.heads) if config.positions == "alibi" else None
            self.register_buffer("bias_HR", bias_HR, persistent=False)

    def _pooling_weights(self, h_MWD: Tensor, days_keep_MW: Tensor | None) -> Tensor:
        """Pooling weights [M, W] of the days; 0 for ablated days."""
        logits_MW, keep_M11W, none_left_M1 = torch.zeros_like(h_MWD[..., 0]), None, None
        if self.config.pooling == "attention":
            logits_MW = h_MWD @ self.pool_D / math.sqrt(h_MWD.shape[-1])
        if days_keep_MW is not None:
            keep_M11W, none_left_M1 = days_keep_MW[:, None, None], ~days_keep_MW.any(dim=1, keepdim=True)
            logits_MW = logits_MW.masked_fill(~(days_keep_MW | none_left_M1), -math.inf)
        weights_MW = logits_MW.softmax(dim=1)
        if none_left_M1 is not None:
            weights_MW = weights_MW.masked_fill(none_left_M1, 0.0)
        return self.weigh(weights_MW[:, None, None], keep_M11W)[:, 0, 0]


def day_encoder(module: nn.Module) -> DayEncoder | None:
    """The day encoder of a model; None if it has none."""
    return next((part for part in module.modules() if isinstance(part, DayEncoder)), None)


def encode_present(encoder: DayEncoder, batch: Batch, ablation: Ablation | None) -> Tensor:
    """Embeddings [B, N, D] of the firms in the universe; other firms are 0 and are not computed."""
    shared = None if ablation is None else ablation.windows
    if ablation is None or shared is None:
        return scatter_present(encoder(present_cells(batch.x_BNWC, batch), days_kept(batch, ablation)), batch)
    days_keep_BW, parts = ablation.days_keep_BW, []
    if days_keep_BW is not None and batch.x_BNWC.stride(0) == 0:  # all dates are views of one
        one = select_dates(batch, shared.first_U[:1])
        h_UMD = encoder.masked(present_cells(one.x_BNWC, one), days_keep_BW[shared.first_U])
        if h_UMD is not None:
            every = replace(one, m_BN=one.m_BN.expand(len(h_UMD), -1))
            return scatter_present(h_UMD.flatten(0, 1), every)[shared.index_B]
    firm_days = batch.x_BNWC[0, :, :, 0].numel()
    own, window = encoder.config, batch.x_BNWC.shape[2]
    # on a GPU, of a day: its state, queries, keys, values and feed-forward network, and weights of all days
    each = 8 * (10 * own.width + 3 * own.heads * window) * firm_days
    step = variants_at_once(batch.x_BNWC.device, _FIRM_DAYS // firm_days, each)
    for first_U in shared.first_U.split(step):
        days = Ablation(None if days_keep_BW is None else days_keep_BW[first_U])
        parts.append(encode_present(encoder, select_dates(batch, first_U), days))
    return torch.cat(parts)[shared.index_B]
