"""seq2seq: an encoder over days and an autoregressive decoder over horizons.

Legend: B dates, N firms, M firms present on the dates, W window length, C channels, F characteristics,
D model width, K horizons.
"""

from typing import ClassVar, Self, cast

import torch
from pydantic import model_validator
from torch import Tensor, nn

from features.options import Options
from models.attention.block import AttentionMask, BlockConfig, DecoderBlock
from models.attention.encoder import DayEncoder, EncoderConfig
from models.attention.layers import Linear
from models.batch import Ablation, Batch, days_kept, present_cells, scatter_present
from models.forecaster import Forecaster, zero_linear
from models.spec import DROPOUT_SPACE, FIT_SPACE, Choice, Range, Shape, Space


class Seq2SeqConfig(Options):
    """Options of seq2seq."""

    encoder: EncoderConfig = EncoderConfig()
    """Options of the day encoder. The decoder attends to every day, so ``pooling`` stays ``last``. The
    decoder has the same width, heads, dropout, norm and activation."""
    use_characteristics: bool = True
    """Whether the decoder starts from the characteristics of the date."""

    @model_validator(mode="after")
    def _check_pooling(self) -> Self:
        if self.encoder.pooling != "last":
            raise ValueError(
                f"encoder.pooling is {self.encoder.pooling!r}, but seq2seq attends to every day and pools "
                "none; leave it out."
            )
        return self

    def decoder(self) -> BlockConfig:
        """Options of the decoder blocks."""
        same = {"width", "heads", "dropout", "norm", "activation"}
        return BlockConfig(**self.encoder.model_dump(include=same))


class Seq2Seq(Forecaster):
    """``y_k = w_k . z + w . decode(y_1 .. y_(k-1); encode(window), z)``; w, w_k start at 0.

    The horizons are the shorter ones of the panel and, last, the label's. In training, the inputs of the
    decoder are the true targets of the shorter horizons (teacher forcing; unknown targets are 0, their mean).
    In a forecast, they are the model's own forecasts. Without shorter horizons there is a single step without
    teacher forcing.

    Sutskever et al. (2014), "Sequence to sequence learning with neural networks"; the blocks are those of
    Vaswani et al. (2017).
    """

    space: ClassVar[Space] = {
        **FIT_SPACE,
        "encoder.dropout": DROPOUT_SPACE,
        "encoder.width": Choice((16, 32, 64)),
        "encoder.layers": Range(1, 3, integer=True),
    }

    def __init__(self, config: Seq2SeqConfig, shape: Shape) -> None:
        super().__init__()
        self.config = config
        width = config.encoder.width
        K = self.n_horizons = shape.n_horizons
        extra = shape.n_characteristics if config.use_characteristics else 0
        self.encoder = DayEncoder(config.encoder, shape.n_channels, shape.window)
        self.start = Linear(extra, width) if extra else None
        self.given = Linear(1, width)
        self.step_KD = nn.Parameter(0.02 * torch.randn(K, width))
        self.blocks = nn.ModuleList([DecoderBlock(config.decoder())])
        self.norm = nn.LayerNorm(width) if config.encoder.norm == "pre" else nn.Identity()
        self.head = zero_linear(width, 1)
        self.skip = zero_linear(extra, K) if extra else None

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Forecasts [B, N, K] of all horizons, in standard deviations of the label's training targets."""
        days_keep_MW, z_MF = days_kept(batch, ablation), present_cells(batch.z_BNF, batch)
        memory_MWD = self.encoder.states(present_cells(batch.x_BNWC, batch), days_keep_MW)
        mask = AttentionMask(keys_BK=days_keep_MW)
        if self.training and batch.path_BNK is not None:
            truth_MK = torch.nan_to_num(present_cells(batch.path_BNK, batch) / self.target_scale)
            y_MK = self._decode(memory_MWD, mask, z_MF, truth_MK)
        else:
            y_MK = z_MF.new_zeros(len(z_MF), 0)
            for _ in range(self.n_horizons):  # each horizon from the forecasts of those before
                next_MK = self._decode(memory_MWD, mask, z_MF, y_MK)
                y_MK = torch.cat((y_MK, next_MK[:, -1:]), dim=1)
        return scatter_present(y_MK, batch)

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Return the last horizon, the label's; forecasts do not depend on other firms."""
        return self.scaled(h_BND[..., -1], batch)

    def horizons(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Forecasts [B, N, K] in the target's unit, the label's last; 0 outside the universe."""
        every = self.embed(batch, ablation).unbind(dim=-1)
        y_BNK = torch.stack([self.in_target_unit(y_BN, k) for k, y_BN in enumerate(every)], dim=-1)
        return y_BNK.masked_fill(~batch.m_BN[..., None], 0.0)

    def _decode(self, memory_MWD: Tensor, mask: AttentionMask, z_MF: Tensor, given_MK: Tensor) -> Tensor:
        """Forecasts [M, k + 1] of the first k + 1 horizons, each from the values of earlier horizons."""
        first_MD = z_MF.new_zeros(len(z_MF), self.config.encoder.width)  # the start token
        if self.start is not None:
            first_MD = self.start(z_MF)
        x_MKD = torch.cat((first_MD[:, None], self.given(given_MK[..., None])), dim=1)
        x_MKD = x_MKD + self.step_KD[: x_MKD.shape[1]]
        for block in self.blocks:
            x_MKD = cast("DecoderBlock", block).decode(x_MKD, memory_MWD, mask)
        y_MK = self.head(self.norm(x_MKD))[..., 0]
        if self.skip is not None:
            y_MK = y_MK + self.skip(z_MF)[:, : y_MK.shape[1]]
        return cast("Tensor", y_MK)
