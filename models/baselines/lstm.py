"""lstm: a recurrent network over the days of a firm's own window.

Legend: B dates, N firms, M windows of present firms, W window length, C channels, F characteristics,
D model width.
"""

from __future__ import annotations

from typing import ClassVar, cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from features.options import Options
from models.attention.layers import Dropout, Linear
from models.batch import Ablation, Batch, days_kept, present_cells, scatter_present
from models.forecaster import Forecaster, zero_linear
from models.spec import Count, Shape, Share


class LSTMConfig(Options):
    """Options of lstm."""

    width: Count = 32
    """D, size of the state."""
    layers: Count = 1
    """Number of stacked layers."""
    dropout: Share = 0.1
    """Probability between layers and in the head, in training."""


class LSTMLayer(nn.Module):
    """Days [M, W, C] -> states [M, W, D].

    ``i, f, g, o = W_x x_t + W_h h_(t-1) + b``,
    ``c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g)`` and ``h_t = sigmoid(o) tanh(c_t)``, starting from 0.
    An ablated day leaves the state unchanged. The bias of the forget gate starts at 1, so that early in
    training the state is kept.

    With the same weights the result equals that of ``nn.LSTM`` to rounding. The recurrence is written out
    because ``nn.LSTM`` cannot skip an ablated day. Hochreiter and Schmidhuber (1997), "Long short-term
    memory"; Gers, Schmidhuber and Cummins (2000) for the forget gate.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.day = Linear(inputs, 4 * width)
        self.state = Linear(width, 4 * width, bias=False)
        with torch.no_grad():
            self.day.bias[width : 2 * width] = 1.0

    def forward(self, x_MWC: Tensor, days_keep_MW: Tensor | None = None) -> Tensor:
        """States after each day."""
        day_WMG = self.day(x_MWC).transpose(0, 1)  # G = 4 D, all days at once
        h_MD = c_MD = x_MWC.new_zeros(len(x_MWC), self.state.in_features)
        states = []
        for t, day_MG in enumerate(day_WMG):
            i_MD, f_MD, g_MD, o_MD = (day_MG + self.state(h_MD)).chunk(4, dim=-1)
            new_MD = torch.sigmoid(f_MD) * c_MD + torch.sigmoid(i_MD) * torch.tanh(g_MD)
            out_MD = torch.sigmoid(o_MD) * torch.tanh(new_MD)
            if days_keep_MW is not None:
                keep_M1 = days_keep_MW[:, t, None]
                new_MD, out_MD = torch.where(keep_M1, new_MD, c_MD), torch.where(keep_M1, out_MD, h_MD)
            c_MD, h_MD = new_MD, out_MD
            states.append(h_MD)
        return torch.stack(states, dim=1)


class LSTM(Forecaster):
    """``y = w . z + v . GELU(W [h_W, z])`` with h_W the state after the last day; v and w start at 0.

    L layers are stacked: each reads the states of the layer below.
    """

    uses_peers: ClassVar[bool] = False
    stackable: ClassVar[bool] = True

    def __init__(self, config: LSTMConfig, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.uses_days = True
        inputs = [shape.n_channels] + [config.width] * (config.layers - 1)
        self.layers = nn.ModuleList(LSTMLayer(size, config.width) for size in inputs)
        self.dropout = Dropout(config.dropout)
        self.joint = Linear(config.width + shape.n_characteristics, config.width)
        self.head = zero_linear(config.width, 1)
        self.skip = zero_linear(shape.n_characteristics, 1)

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """States after the last day."""
        h_MWD, keep_MW = present_cells(batch.x_BNWC, batch), days_kept(batch, ablation)
        for depth, module in enumerate(self.layers):
            layer = cast("LSTMLayer", module)
            h_MWD = layer(self.dropout(h_MWD) if depth else h_MWD, keep_MW)
        return scatter_present(h_MWD[:, -1], batch)

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Join the characteristics; firms do not see each other."""
        hidden_BND = self.dropout(F.gelu(self.joint(torch.cat((h_BND, batch.z_BNF), dim=-1))))
        return self.scaled((self.skip(batch.z_BNF) + self.head(hidden_BND))[..., 0], batch)
