"""tabm: many networks in one, on piecewise-linear embeddings of the characteristics and on recent days.

Legend: B dates, N firms, X = B N cells, F characteristics, T bins, E numbers of an embedding, M members,
I inputs and O outputs of a layer, D model width.
"""

import math
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from pydantic import Field
from torch import Tensor, nn

from features.options import Options
from models.attention.layers import Dropout, linear
from models.batch import Ablation, Batch
from models.forecaster import Forecaster
from models.spec import DROPOUT_SPACE, FIT_SPACE, Choice, Count, Range, Shape, Share, Space, Whole


class TabMConfig(Options):
    """Options of tabm."""

    networks: Count = 32
    """M, number of networks that share their matrices: the members."""
    width: Count = 64
    """D, width of the hidden layers."""
    layers: Count = 2
    """Number of hidden layers."""
    bins: int = Field(default=16, ge=2, le=256)
    """T, number of bins of the piecewise-linear encoding of a characteristic."""
    embedding: Count = 4
    """E, size of the embedding of a characteristic."""
    recent_days: Whole = 5
    """Number of recent sessions of the window as inputs; 0 for characteristics only."""
    dropout: Share = 0.1
    """Probability, in training."""


class PiecewiseLinear(nn.Module):
    """Embeddings [X, F E] of characteristics [X, F]: a continuous function, linear between the bins' edges.

    The encoding of a value counts the bins below it, and the part of its own bin that lies below:
    ``(z - edge_(t-1)) / (edge_t - edge_(t-1))``, within 0 and 1 except beyond the outer edges. Each
    characteristic has a linear map of its encoding. The inner edges are the quantiles of the normal
    distribution, to which characteristics are ranked, and the outer ones -3 and 3.

    >>> PiecewiseLinear(1, bins=2, size=4).encode(torch.tensor([[-1.5], [1.5]])).tolist()
    [[[0.5, 0.0]], [[1.0, 0.5]]]
    """

    undecayed: ClassVar[tuple[str, ...]] = ("bias_FE",)

    left_T: Tensor
    width_T: Tensor
    low_T: Tensor
    high_T: Tensor

    def __init__(self, n_characteristics: int, bins: int, size: int) -> None:
        super().__init__()
        inner = torch.special.ndtri(torch.linspace(0.0, 1.0, bins + 1)[1:-1])
        edges = torch.cat((torch.tensor([-3.0]), inner, torch.tensor([3.0])))
        low, high = torch.zeros(bins), torch.ones(bins)
        low[0], high[-1] = -math.inf, math.inf
        constants = {"left_T": edges[:-1], "width_T": edges.diff(), "low_T": low, "high_T": high}
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)
        self.weight_FTE = nn.Parameter(torch.randn(n_characteristics, bins, size) / math.sqrt(bins))
        self.bias_FE = nn.Parameter(torch.zeros(n_characteristics, size))

    def encode(self, z_XF: Tensor) -> Tensor:
        """Encodings [X, F, T]."""
        return ((z_XF[..., None] - self.left_T) / self.width_T).clamp(self.low_T, self.high_T)

    def forward(self, z_XF: Tensor) -> Tensor:
        """Map each encoding by the matrix of its characteristic."""
        mapped_FXE = self.encode(z_XF).transpose(0, 1) @ self.weight_FTE
        return (mapped_FXE.transpose(0, 1) + self.bias_FE).flatten(1)


class Members(nn.Module):
    """A layer of M networks, ``s_m * (W (r_m * x)) + b_m``: W is shared, the vectors are a member's own.

    Wen, Tran and Ba (2020), "BatchEnsemble". In the first layer r starts as random signs, so that members
    differ; all other r and s start at 1.
    """

    undecayed: ClassVar[tuple[str, ...]] = ("r_MI", "s_MO", "bias_MO")

    def __init__(self, members: int, inputs: int, outputs: int, *, first: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-1.0, 1.0) / math.sqrt(inputs))
        signs = torch.randint(2, (members, inputs)) * 2.0 - 1.0
        self.r_MI = nn.Parameter(signs if first else torch.ones(members, inputs))
        self.s_MO = nn.Parameter(torch.ones(members, outputs))
        self.bias_MO = nn.Parameter(torch.zeros(members, outputs))

    def forward(self, x_XMI: Tensor) -> Tensor:
        """Map [X, M, I], or [X, 1, I] for the same inputs of all members, to [X, M, O]."""
        return linear(x_XMI * self.r_MI, self.weight) * self.s_MO + self.bias_MO


class TabM(Forecaster):
    """The mean of M networks, ``y_m = v_m . h_m^L``; each layer is `Members`, then ReLU; v_m start at 0.

    The inputs are embeddings of the characteristics (`PiecewiseLinear`), and the recent days, flattened. In
    training, the loss is the mean of the members' losses, not the loss of their mean.

    Gorishniy, Kotelnikov and Babenko (2025), "TabM: Advancing tabular deep learning with parameter-efficient
    ensembling", ICLR; Gorishniy, Rubachev and Babenko (2022), "On embeddings for numerical features in
    tabular deep learning". Different from the papers: the edges of the bins are those of the normal
    distribution, not of a data set; embeddings have no activation; and all members of a step see the same
    cells.
    """

    space: ClassVar[Space] = {
        **FIT_SPACE,
        "dropout": DROPOUT_SPACE,
        "width": Choice((32, 64, 128)),
        "layers": Range(1, 3, integer=True),
        "bins": Choice((8, 16, 32)),
    }

    def __init__(self, config: TabMConfig, shape: Shape) -> None:
        super().__init__()
        recent = self.read_recent(config.recent_days, shape)
        widths = [shape.n_characteristics * config.embedding + recent] + [config.width] * config.layers
        self.embedding = PiecewiseLinear(shape.n_characteristics, config.bins, config.embedding)
        self.layers = nn.ModuleList(
            Members(config.networks, before, after, first=not depth)
            for depth, (before, after) in enumerate(pairwise(widths))
        )
        self.dropout = Dropout(config.dropout)
        self.head_MD = nn.Parameter(torch.zeros(config.networks, config.width))
        self.bias_M = nn.Parameter(torch.zeros(config.networks))

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Average the members' forecasts."""
        return self.scaled(self._members(h_BND, batch).mean(dim=-1), batch)

    def horizons(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Forecasts [B, N, 1]; in training those of each member, [M, B, N, 1]."""
        if not self.training:
            return super().horizons(batch, ablation)
        y_BNM = self._members(self.embed(batch, ablation), batch)
        return torch.stack([self.scaled(y_BN, batch) for y_BN in y_BNM.unbind(dim=-1)])[..., None]

    def _members(self, h_BND: Tensor, batch: Batch) -> Tensor:
        """Outputs [B, N, M] of all members."""
        h_XD, n = h_BND.flatten(0, 1), batch.z_BNF.shape[-1]
        x_XMI = torch.cat((self.embedding(h_XD[:, :n]), h_XD[:, n:]), dim=1)[:, None]
        for layer in self.layers:
            x_XMI = self.dropout(F.relu(layer(x_XMI)))
        y_XM = (x_XMI * self.head_MD).sum(dim=-1) + self.bias_M
        return y_XM.view(*h_BND.shape[:2], -1)
