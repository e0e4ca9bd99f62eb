"""tcn: causal dilated convolutions over the days of a firm's own window.

Legend: B dates, N firms, M windows of present firms, W window length, C channels, F characteristics,
D model width.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from pydantic import Field
from torch import Tensor, nn

from features.options import Options
from models.attention.layers import Dropout, Linear
from models.batch import Ablation, Batch, days_kept, present_cells, scatter_present
from models.forecaster import Forecaster, zero_linear
from models.spec import DROPOUT_SPACE, FIT_SPACE, Choice, Count, Range, Shape, Share, Space


class TCNConfig(Options):
    """Options of tcn."""

    width: Count = 32
    """D, number of channels of every block."""
    kernel: int = Field(default=3, ge=2)
    """Kernel size of a convolution, in days before dilation."""
    dropout: Share = 0.1
    """Probability, in training."""


class TCNBlock(nn.Module):
    """Maps days [M, C, W] to [M, D, W]: ``ReLU(R x + conv(conv(x)))``.

    Each conv is a causal convolution followed by ReLU and dropout. A causal convolution of dilation d is the
    sum over k of ``W_k x_(t - k d)``, with zeros (the channels' mean) before the window. R is the identity,
    or a matrix if the widths differ.
    """

    def __init__(self, inputs: int, config: TCNConfig, dilation: int) -> None:
        super().__init__()
        self.padding = (config.kernel - 1) * dilation
        self.first = nn.Conv1d(inputs, config.width, config.kernel, dilation=dilation)
        self.second = nn.Conv1d(config.width, config.width, config.kernel, dilation=dilation)
        self.residual = nn.Identity() if inputs == config.width else nn.Conv1d(inputs, config.width, 1)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_MCW: Tensor) -> Tensor:
        """Transform every day, using that day and earlier days."""
        h_MDW = self.dropout(F.relu(self.first(F.pad(x_MCW, (self.padding, 0)))))
        h_MDW = self.dropout(F.relu(self.second(F.pad(h_MDW, (self.padding, 0)))))
        return F.relu(self.residual(x_MCW) + h_MDW)


class TCN(Forecaster):
    """``y = w . z + v . GELU(W [h_W, z])`` with h_W the output on the last day; v and w start at 0.

    Block l has dilation 2^l. The number of blocks L is the smallest for which the last day sees the whole
    window: ``1 + 2 (kernel - 1) (2^L - 1) >= W``. An ablated day is replaced by zeros, the channels' mean.
    Bai, Kolter and Koltun (2018), "An empirical evaluation of generic convolutional and recurrent networks
    for sequence modeling", without their weight normalisation.
    """

    space: ClassVar[Space] = {
        **FIT_SPACE,
        "dropout": DROPOUT_SPACE,
        "width": Choice((16, 32, 64)),
        "kernel": Range(2, 5, integer=True),
    }

    def __init__(self, config: TCNConfig, shape: Shape) -> None:
        super().__init__()
        self.uses_days = True
        self.zeroed_days = shape.window
        reach = 2 * (config.kernel - 1)
        blocks = max(1, math.ceil(math.log2((shape.window - 1) / reach + 1)))
        inputs = [shape.n_channels] + [config.width] * (blocks - 1)
        self.blocks = nn.Sequential(*(TCNBlock(size, config, 2**depth) for depth, size in enumerate(inputs)))
        self.dropout = Dropout(config.dropout)
        self.joint = Linear(config.width + shape.n_characteristics, config.width)
        self.head = zero_linear(config.width, 1)
        self.skip = zero_linear(shape.n_characteristics, 1)

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Output of the blocks on the last day."""
        x_MWC, keep_MW = present_cells(batch.x_BNWC, batch), days_kept(batch, ablation)
        if keep_MW is not None:
            x_MWC = x_MWC * keep_MW[..., None]
        return scatter_present(self.blocks(x_MWC.transpose(1, 2))[..., -1], batch)

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Add the characteristics; forecasts do not depend on other firms."""
        hidden_BND = self.dropout(F.gelu(self.joint(torch.cat((h_BND, batch.z_BNF), dim=-1))))
        return self.scaled((self.skip(batch.z_BNF) + self.head(hidden_BND))[..., 0], batch)
