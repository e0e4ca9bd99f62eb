"""lstm, gru and alstm: recurrent networks over the days of a firm's own window.

Legend: B dates, N firms, M windows of present firms, W window length, C channels, F characteristics,
D model width, G = 3 D or 4 D gates.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.day = Linear(inputs, self.gates * width)
        self.state = Linear(width, self.gates * width, bias=False)

    @abstractmethod
    def run(self, day_WMG: Tensor, keep_WM: Tensor | None) -> Tensor:
        """States [W, M, D] after each day, from the maps of all days."""

    def forward(self, x_MWC: Tensor, days_keep_MW: Tensor | None = None) -> Tensor:
        """States after each day."""
        day_WMG = self.day(x_MWC.transpose(0, 1).contiguous())  # all days at once; rows of a day are adjacent
        return self.run(day_WMG, None if days_keep_MW is None else days_keep_MW.t()).transpose(0, 1)


class LSTMLayer(RecurrentLayer):
    """Long short-term memory.

    ``i, f, g, o = W_x x_t + W_h h_(t-1) + b``,
    ``c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g)`` and ``h_t = sigmoid(o) tanh(c_t)``. The bias of the
    forget gate starts at 1, so that early in training the state is kept.

    With the same weights the result equals that of ``nn.LSTM`` to rounding. Hochreiter and Schmidhuber
    (1997), "Long short-term memory"; Gers, Schmidhuber and Cummins (2000) for the forget gate.
    """

    gates = 4

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(inputs, width)
        with torch.no_grad():
            self.day.bias[width : 2 * width] = 1.0

    def run(self, day_WMG: Tensor, keep_WM: Tensor | None) -> Tensor:
        """Hand on the state and the cell."""
        h_MD = c_MD = day_WMG.new_zeros(day_WMG.shape[1], self.state.in_features)
        states = []
        for t, day_MG in enumerate(day_WMG):
            i_MD, f_MD, g_MD, o_MD = (day_MG + self.state(h_MD)).chunk(4, dim=-1)
            new_MD = torch.sigmoid(f_MD) * c_MD + torch.sigmoid(i_MD) * torch.tanh(g_MD)
            after = (torch.sigmoid(o_MD) * torch.tanh(new_MD), new_MD)
            if keep_WM is not None:
                keep_M1 = keep_WM[t, :, None]
                after = torch.where(keep_M1, after[0], h_MD), torch.where(keep_M1, after[1], c_MD)
            h_MD, c_MD = after
            states.append(h_MD)
        return torch.stack(states)


class GRULayer(RecurrentLayer):
    """Gated recurrent unit: ``h_t = (1 - z) n + z h_(t-1)``.

    ``r = sigmoid(W_r x_t + U_r h_(t-1) + b_r)``, z likewise, and ``n = tanh(W_n x_t + b_n + r U_n h_(t-1))``.
    With the same weights the result equals that of ``nn.GRU`` to rounding, which has a second bias inside of
    ``r (U_n h + c)``. Cho et al. (2014), "Learning phrase representations using RNN encoder-decoder".
    """

    gates = 3

    def run(self, day_WMG: Tensor, keep_WM: Tensor | None) -> Tensor:
        """Hand on the state; of an ablated day, z is 1."""
        return _GatedUnits.apply(day_WMG, self.state.weight, keep_WM)  # type: ignore[no-any-return, no-untyped-call]


class _GatedUnits(torch.autograd.Function):
    """States [W, M, D] of gated recurrent units; the maps of the days are overwritten.

    The derivative is written out because autograd takes several times as many operations per day, on memory
    that it never uses twice. A training step on a CPU takes two thirds to three quarters of the time.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 (autograd's own type has no fields)
        day_WMG: Tensor,
        weight_GD: Tensor,
        keep_WM: Tensor | None,
    ) -> Tensor:
        days, firms, width = *day_WMG.shape[:2], weight_GD.shape[1]
        n_of_state_WMD = day_WMG.new_empty(days, firms, width)
        states_WMD = day_WMG.new_zeros(days + 1, firms, width)
        skip_WM1 = None if keep_WM is None else ~keep_WM[..., None]
        for t in range(days):
            state_MG = states_WMD[t] @ weight_GD.t()
            rz, n_MD = day_WMG[t].split((2 * width, width), dim=1)
            rz.add_(state_MG[:, : 2 * width]).sigmoid_()
            r_MD, z_MD = rz.chunk(2, dim=1)
            if skip_WM1 is not None:
                z_MD.masked_fill_(skip_WM1[t], 1.0)
            n_MD.addcmul_(r_MD, n_of_state_WMD[t].copy_(state_MG[:, 2 * width :])).tanh_()
            torch.lerp(n_MD, states_WMD[t], z_MD, out=states_WMD[t + 1])
        ctx.save_for_backward(day_WMG, n_of_state_WMD, states_WMD, weight_GD)
        return states_WMD[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_WMD: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        gates_WMG, n_of_state_WMD, states_WMD, weight_GD = ctx.saved_tensors
        width, aten = weight_GD.shape[1], torch.ops.aten
        by_day_WMG, by_weight_GD = torch.empty_like(gates_WMG), torch.zeros_like(weight_GD)
        by_state_MG, by_h_MD = torch.empty_like(gates_WMG[0]), torch.zeros_like(states_WMD[0])
        for t in reversed(range(len(gates_WMG))):
            r_MD, z_MD, n_MD = gates_WMG[t].chunk(3, dim=1)
            by_r_MD, by_z_MD, by_n_MD = by_day_WMG[t].chunk(3, dim=1)
            by_h_MD.add_(grad_WMD[t])
            kept_MD = by_h_MD * z_MD
            aten.tanh_backward(by_h_MD - kept_MD, n_MD, grad_input=by_n_MD)
            aten.sigmoid_backward((states_WMD[t] - n_MD).mul_(by_h_MD), z_MD, grad_input=by_z_MD)
            aten.sigmoid_backward(by_n_MD * n_of_state_WMD[t], r_MD, grad_input=by_r_MD)
            by_state_MG[:, : 2 * width] = by_day_WMG[t, :, : 2 * width]
            by_state_MG[:, 2 * width :] = by_n_MD * r_MD
            torch.addmm(kept_MD, by_state_MG, weight_GD, out=by_h_MD)
            by_weight_GD.addmm_(by_state_MG.t(), states_WMD[t])
        return by_day_WMG, by_weight_GD, None


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
