"""lstm, gru and alstm: recurrent networks over the days of a firm's own window.

Legend: B dates, N firms, M windows of present firms, W window length, C channels, F characteristics,
D model width, G = 3 D or 4 D gates.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from features.options import Options
from models.attention.layers import Dropout, FewInputs, Linear
from models.batch import Ablation, Batch, days_kept, present_cells, scatter_present
from models.forecaster import Forecaster, zero_linear
from models.spec import DROPOUT_SPACE, FIT_SPACE, Choice, Count, Range, Shape, Share, Space


class LSTMConfig(Options):
    """Options of lstm."""

    width: Count = 32
    """D, size of the state."""
    layers: Count = 1
    """Number of stacked layers."""
    dropout: Share = 0.1
    """Probability between layers and in the head, in training."""


class GRUConfig(LSTMConfig):
    """Options of gru and alstm; width and layers are those published with qlib."""

    width: Count = 64
    layers: Count = 2


class RecurrentLayer(nn.Module, ABC):
    """Days [M, W, C] -> states [M, W, D], starting from 0. An ablated day leaves the state unchanged.

    The recurrence is written out because torch's own cannot skip an ablated day.
    """

    gates: ClassVar[int]
    """Number of maps of a day and a state."""
    memories: ClassVar[int] = 1
    """Number of tensors that a day hands on; the first is the state."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.day = Linear(inputs, self.gates * width)
        self.state = Linear(width, self.gates * width, bias=False)

    @abstractmethod
    def step(self, day_MG: Tensor, state_MG: Tensor, before: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Memories [M, D] after a day, from the maps of the day and of the state before it."""

    def forward(self, x_MWC: Tensor, days_keep_MW: Tensor | None = None) -> Tensor:
        """States after each day."""
        day_WMG = self.day(x_MWC).transpose(0, 1)  # all days at once
        memory = (x_MWC.new_zeros(len(x_MWC), self.state.in_features),) * self.memories
        states = []
        for t, day_MG in enumerate(day_WMG):
            after = self.step(day_MG, self.state(memory[0]), memory)
            if days_keep_MW is not None:
                keep_M1 = days_keep_MW[:, t, None]
                after = tuple(torch.where(keep_M1, *pair) for pair in zip(after, memory, strict=True))
            memory = after
            states.append(memory[0])
        return torch.stack(states, dim=1)


class LSTMLayer(RecurrentLayer):
    """Long short-term memory.

    ``i, f, g, o = W_x x_t + W_h h_(t-1) + b``,
    ``c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g)`` and ``h_t = sigmoid(o) tanh(c_t)``. The bias of the
    forget gate starts at 1, so that early in training the state is kept.

    With the same weights the result equals that of ``nn.LSTM`` to rounding. Hochreiter and Schmidhuber
    (1997), "Long short-term memory"; Gers, Schmidhuber and Cummins (2000) for the forget gate.
    """

    gates, memories = 4, 2

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(inputs, width)
        with torch.no_grad():
            self.day.bias[width : 2 * width] = 1.0

    def step(self, day_MG: Tensor, state_MG: Tensor, before: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """State and cell."""
        i_MD, f_MD, g_MD, o_MD = (day_MG + state_MG).chunk(4, dim=-1)
        c_MD = torch.sigmoid(f_MD) * before[1] + torch.sigmoid(i_MD) * torch.tanh(g_MD)
        return torch.sigmoid(o_MD) * torch.tanh(c_MD), c_MD


class GRULayer(RecurrentLayer):
    """Gated recurrent unit: ``h_t = (1 - z) n + z h_(t-1)``.

    ``r = sigmoid(W_r x_t + U_r h_(t-1) + b_r)``, z likewise, and ``n = tanh(W_n x_t + b_n + r U_n h_(t-1))``.
    With the same weights the result equals that of ``nn.GRU`` to rounding, which has a second bias inside of
    ``r (U_n h + c)``. Cho et al. (2014), "Learning phrase representations using RNN encoder-decoder".
    """

    gates = 3

    def step(self, day_MG: Tensor, state_MG: Tensor, before: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the state."""
        (dr_MD, dz_MD, dn_MD), (sr_MD, sz_MD, sn_MD) = (x.chunk(3, dim=-1) for x in (day_MG, state_MG))
        n_MD = torch.tanh(dn_MD + torch.sigmoid(dr_MD + sr_MD) * sn_MD)
        return (n_MD + torch.sigmoid(dz_MD + sz_MD) * (before[0] - n_MD),)


class LSTM(Forecaster):
    """``y = w . z + v . GELU(W [h_W, z])`` with h_W the state after the last day; v and w start at 0.

    L layers are stacked: each reads the states of the layer below.
    """

    space: ClassVar[Space] = {
        **FIT_SPACE,
        "dropout": DROPOUT_SPACE,
        "width": Choice((16, 32, 64)),
        "layers": Range(1, 2, integer=True),
    }
    layer: ClassVar[type[RecurrentLayer]] = LSTMLayer
    summaries: ClassVar[int] = 1
    """Number of summaries [M, D] of a window that the head reads."""

    def __init__(self, config: LSTMConfig, shape: Shape) -> None:
        super().__init__()
        self.uses_days = True
        inputs = [shape.n_channels] + [config.width] * (config.layers - 1)
        self.layers = nn.ModuleList(self.layer(size, config.width) for size in inputs)
        self.dropout = Dropout(config.dropout)
        self.joint = Linear(self.summaries * config.width + shape.n_characteristics, config.width)
        self.head = zero_linear(config.width, 1)
        self.skip = zero_linear(shape.n_characteristics, 1)

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Summaries of the windows."""
        h_MWD, keep_MW = present_cells(batch.x_BNWC, batch), days_kept(batch, ablation)
        return scatter_present(self.summarise(h_MWD, keep_MW), batch)

    def summarise(self, h_MWD: Tensor, keep_MW: Tensor | None) -> Tensor:
        """States after the last day."""
        return self.states(h_MWD, keep_MW)[:, -1]

    def states(self, h_MWD: Tensor, keep_MW: Tensor | None) -> Tensor:
        """States [M, W, D] of the last layer after each day."""
        for depth, module in enumerate(self.layers):
            layer = cast("RecurrentLayer", module)
            h_MWD = layer(self.dropout(h_MWD) if depth else h_MWD, keep_MW)
        return h_MWD

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        """Join the characteristics; firms do not see each other."""
        hidden_BND = self.dropout(F.gelu(self.joint(torch.cat((h_BND, batch.z_BNF), dim=-1))))
        return self.scaled((self.skip(batch.z_BNF) + self.head(hidden_BND))[..., 0], batch)


class GRU(LSTM):
    """As `LSTM`, with gated recurrent units: the GRU of qlib's benchmark (Yang et al. 2020).

    That one has a linear map of h_W alone for a head and reads no characteristics; this one has the head of
    the other networks here.
    """

    layer = GRULayer


class ALSTM(GRU):
    """As `GRU`, with attention over the days: the head reads h_W and ``a = sum_t softmax(s)_t h_t``.

    ``s_t = u . tanh(A h_t)`` with A of D / 2 rows, and the layers read ``tanh(P x_t)``. It is the ALSTM of
    qlib's benchmark, which has gated recurrent units as well; the attention of Qin et al. (2017), "A
    dual-stage attention-based recurrent neural network", without their attention over the inputs, as Feng et
    al. (2019), "Enhancing stock movement prediction with adversarial training", use it, without their
    adversarial examples. The head is that of the other networks here.

    >>> ALSTM(GRUConfig(width=8), Shape(n_channels=5, n_characteristics=2, window=60, n_groups=1)).score
    Sequential(
      (0): Linear(in_features=8, out_features=4, bias=True)
      (1): Tanh()
      (2): Linear(in_features=4, out_features=1, bias=False)
    )
    """

    summaries = 2

    def __init__(self, config: GRUConfig, shape: Shape) -> None:
        super().__init__(config, replace(shape, n_channels=config.width))
        half = max(1, config.width // 2)
        self.input = FewInputs(shape.n_channels, config.width)
        self.score = nn.Sequential(Linear(config.width, half), nn.Tanh(), Linear(half, 1, bias=False))

    def summarise(self, h_MWD: Tensor, keep_MW: Tensor | None) -> Tensor:
        """States after the last day, and the mean of all states weighted by attention."""
        h_MWD = self.states(torch.tanh(self.input(h_MWD)), keep_MW)
        score_MW = self.score(h_MWD)[..., 0]
        if keep_MW is not None:
            score_MW = score_MW.masked_fill(~keep_MW, torch.finfo(score_MW.dtype).min)
        weight_MW = score_MW.softmax(dim=1)
        if keep_MW is not None:  # without a day left, all weights are 0
            weight_MW = weight_MW * keep_MW
        return torch.cat((h_MWD[:, -1], (weight_MW[:, None] @ h_MWD)[:, 0]), dim=-1)
