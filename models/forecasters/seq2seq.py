"""seq2seq: an encoder over days and a decoder over horizons, each forecast made from the shorter ones.

Legend: B dates, N firms, M firms present on the dates, W window length, C channels, F characteristics,
D model width, K horizons.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from models.attention.block import AttentionMask, BlockConfig
from models.attention.decoder import DecoderBlock
from models.attention.encoder import DayEncoder, EncoderConfig
from models.batch import Ablation, AttentionMaps, Batch, days_kept, scatter_present
from models.forecaster import Forecaster, zero_linear
from models.spec import Shape, require_at_least


@dataclass(frozen=True, slots=True)
class Seq2SeqConfig:
    """Options of seq2seq.

    Attributes
    ----------
    encoder
        Options of the day encoder. The decoder attends to every day, so ``pooling`` stays ``last``. The
        decoder has the same width, heads, dropout, norm and activation.
    decoder_layers
        Number of decoder blocks.
    use_characteristics
        Whether the decoder starts from the characteristics of the date.
    """

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    decoder_layers: int = 1
    use_characteristics: bool = True

    def __post_init__(self) -> None:
        require_at_least(1, decoder_layers=self.decoder_layers)
        if self.encoder.pooling != "last":
            raise ValueError(
                f"encoder.pooling is {self.encoder.pooling!r}, but seq2seq attends to every day and pools "
                "none; leave it out."
            )

    def decoder(self) -> BlockConfig:
        """Options of the decoder blocks."""
        return BlockConfig(
            width=self.encoder.width,
            heads=self.encoder.heads,
            dropout=self.encoder.dropout,
            norm=self.encoder.norm,
            activation=self.encoder.activation,
        )


class Seq2Seq(Forecaster):
    """``y_k = w_k . z + w . decode(y_1 .. y_(k-1); encode(window), z)``; w and w_k start at 0.

    The horizons are the label's, last, and the shorter ones of the panel's path. In training the decoder is
    given the true targets of the shorter horizons (teacher forcing, an unknown one as 0, its mean); in a
    forecast it is given its own. Without a path there is one step, and nothing to be forced.

    Sutskever et al. (2014), "Sequence to sequence learning with neural networks"; the blocks are those of
    Vaswani et al. (2017).
    """

    uses_peers: ClassVar[bool] = False

    def __init__(self, config: Seq2SeqConfig, shape: Shape) -> None:
        super().__init__()
        self.config = config
        width, K = config.encoder.width, shape.n_horizons
        extra = shape.n_characteristics if config.use_characteristics else 0
        self.encoder = DayEncoder(config.encoder, shape.n_channels, shape.window)
        self.start = nn.Linear(extra, width) if extra else None
        self.given = nn.Linear(1, width)
        self.step_KD = nn.Parameter(0.02 * torch.randn(K, width))
        self.blocks = nn.ModuleList(DecoderBlock(config.decoder()) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(width) if config.encoder.norm == "pre" else nn.Identity()
        self.head = zero_linear(width, 1)
        self.skip = zero_linear(extra, K) if extra else None

    @property
    def n_horizons(self) -> int:
        """The label's horizon and the shorter ones."""
        return len(self.step_KD)

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Every horizon's forecast [B, N, K] in standard deviations of the label's training targets."""
        memory_MWD, sight, z_MF = self._look(batch, ablation)
        if self.training and batch.path_BNK is not None:
            truth_MK = torch.nan_to_num(batch.path_BNK[batch.m_BN] / self.target_scale)
            y_MK = self._decode(memory_MWD, sight, z_MF, truth_MK)
        else:
            y_MK = self._unroll(memory_MWD, sight, z_MF)
        return scatter_present(y_MK, batch.m_BN)

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Take the last horizon, the label's; firms do not see each other."""
        return self.scaled(h_BND[..., -1], batch)

    def horizons(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Forecasts [B, N, K] in the target's unit, the label's last; 0 outside the universe."""
        y_BNK = self.embed(batch, ablation).float() * self.target_scale
        return y_BNK.masked_fill(~batch.m_BN[..., None], 0.0)

    def attention(self, batch: Batch, ablation: Ablation | None = None) -> AttentionMaps:
        """Weights of the days in the last block, for the label's horizon, averaged over heads."""
        memory_MWD, sight, z_MF = self._look(batch, ablation)
        given_MK = self._unroll(memory_MWD, sight, z_MF)[:, :-1]
        x_MKD = self._tokens(given_MK, z_MF)
        for block in self.blocks:
            x_MKD, weights_MHKW = cast("DecoderBlock", block).explicit_decode(x_MKD, memory_MWD, sight)
        return AttentionMaps(days_BNW=scatter_present(weights_MHKW.mean(dim=1)[:, -1], batch.m_BN))

    def _look(self, batch: Batch, ablation: Ablation | None) -> tuple[Tensor, AttentionMask, Tensor]:
        days_keep_MW = days_kept(batch, ablation)
        memory_MWD = self.encoder.states(batch.x_BNWC[batch.m_BN], days_keep_MW)
        return memory_MWD, AttentionMask(keys_BK=days_keep_MW), batch.z_BNF[batch.m_BN]

    def _tokens(self, given_MK: Tensor, z_MF: Tensor) -> Tensor:
        """The start and a token for each given horizon, [M, k + 1, D]."""
        first_M1D = (
            given_MK.new_zeros(len(given_MK), 1, self.config.encoder.width)
            if self.start is None
            else self.start(z_MF)[:, None]
        )
        x_MKD = torch.cat((first_M1D, self.given(given_MK[..., None])), dim=1)
        return x_MKD + self.step_KD[: x_MKD.shape[1]]

    def _decode(self, memory_MWD: Tensor, sight: AttentionMask, z_MF: Tensor, given_MK: Tensor) -> Tensor:
        """Forecasts [M, k + 1] of the first horizons, each from the given ones before it."""
        x_MKD = self._tokens(given_MK, z_MF)
        for block in self.blocks:
            x_MKD = cast("DecoderBlock", block).decode(x_MKD, memory_MWD, sight)
        y_MK = self.head(self.norm(x_MKD))[..., 0]
        if self.skip is not None:
            y_MK = y_MK + self.skip(z_MF)[:, : y_MK.shape[1]]
        return cast("Tensor", y_MK)

    def _unroll(self, memory_MWD: Tensor, sight: AttentionMask, z_MF: Tensor) -> Tensor:
        """Forecasts [M, K], one horizon after the other."""
        y_MK = memory_MWD.new_zeros(len(memory_MWD), 0)
        for _ in range(len(self.step_KD)):
            y_MK = torch.cat((y_MK, self._decode(memory_MWD, sight, z_MF, y_MK)[:, -1:]), dim=1)
        return y_MK
