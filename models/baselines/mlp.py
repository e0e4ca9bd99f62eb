"""mlp: a feed-forward network on a firm's own characteristics and recent days.

Legend: B dates, N firms, F characteristics, D model width.
"""

from itertools import pairwise
from typing import ClassVar

from torch import Tensor, nn

from features.options import Options
from models.attention.layers import Dropout, Linear
from models.batch import Ablation, Batch
from models.forecaster import Forecaster, zero_linear
from models.spec import DROPOUT_SPACE, FIT_SPACE, Choice, Count, Range, Shape, Share, Space, Whole


class MLPConfig(Options):
    """Options of mlp."""

    width: Count = 64
    """D, width of the hidden layers."""
    layers: Count = 2
    """Number of hidden layers."""
    recent_days: Whole = 5
    """Number of recent sessions of the window as inputs; 0 for characteristics only."""
    dropout: Share = 0.1
    """Probability, in training."""


class MLP(Forecaster):
    """``y = w . x + v . h^L``, ``h^(l+1) = GELU(W_l h^l + b_l)``, ``h^0 = x = [z, r]``; v and w start at 0.

    ``z`` are the characteristics and ``r`` the recent days, flattened. Gu, Kelly and Xiu (2020), "Empirical
    asset pricing via machine learning", with a linear skip connection for the linear part of the relation.
    """

    space: ClassVar[Space] = {
        **FIT_SPACE,
        "dropout": DROPOUT_SPACE,
        "width": Choice((32, 64, 128)),
        "layers": Range(1, 3, integer=True),
    }

    def __init__(self, config: MLPConfig, shape: Shape) -> None:
        super().__init__()
        width = shape.n_characteristics + self.read_recent(config.recent_days, shape)
        widths = [width] + [config.width] * config.layers
        self.body = nn.Sequential()
        for before, after in pairwise(widths):
            self.body.extend((Linear(before, after), nn.GELU(), Dropout(config.dropout)))
        self.head = zero_linear(config.width, 1)
        self.skip = zero_linear(width, 1)

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Apply the network to each firm separately."""
        return self.scaled((self.skip(h_BND) + self.head(self.body(h_BND)))[..., 0], batch)
