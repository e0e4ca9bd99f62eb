"""A model and its loss as one function of tensors whose shapes do not change from step to step.

`vmap` (`models.fitting.stacked`) and `torch.compile` (:class:`CompiledSeed`) need such a function. Every date
has as many places for firms as the largest date needs; empty places are outside the universe.

Legend: B dates in a batch, P places for firms, N firms, W window length, C channels, F characteristics.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from features.arrays import IntArray
from models.batch import Batch, PanelTensors
from models.fitting.config import FitConfig
from models.fitting.loop import SingleSeed, most_firms
from models.fitting.losses import label_loss
from models.fitting.precision import matrix_precision
from models.forecaster import Forecaster
from models.places import firms_in_places

_BACKEND = "inductor"


class Cells(NamedTuple):
    """A dense batch as tensors, with the panel column of each place and a mask of the targets that count."""

    x_BPWC: Tensor
    z_BPF: Tensor
    m_BP: Tensor
    s_BP: Tensor
    y_BP: Tensor
    firms_BP: Tensor
    key_BP: Tensor
    known_BP: Tensor


class DateLoss(nn.Module):
    """A forecaster with its loss as one function of tensors."""

    def __init__(self, module: Forecaster, config: FitConfig) -> None:
        super().__init__()
        self.module = module
        self.config = config

    def forward(self, cells: Cells, *, in_float32: bool = False) -> tuple[Tensor, Tensor]:
        """Forecasts [B, P] in the target's unit, and their loss in standard deviations of the target.

        Matrix products have the precision of the config, or float32 as those of a fitted model.
        """
        x, z, m, s, y, firms, key, known = cells
        batch = Batch(x, z, m, s, y, firms, key_BN=key, dense=True)
        module = self.module
        with nullcontext() if in_float32 else matrix_precision(self.config, x.device):
            y_BP = module(batch)
        return y_BP, label_loss(module, self.config.loss, y_BP, batch, known)


def take(data: PanelTensors, dates: Tensor, chosen: Tensor, places: int) -> Cells:
    """Gather the chosen firms of some dates into the same number of places on each date.

    Parameters
    ----------
    dates
        int64 [..., B] sessions of the panel, on the host.
    chosen
        bool [..., B, N], on the host; at most ``places`` per date.
    places
        P; places that a date does not fill are outside the universe.
    """
    firms, there = firms_in_places(chosen, places)
    on_host = (dates[..., None].expand_as(firms), firms)
    dates, firms, there = (x.to(data.device, non_blocking=True) for x in (dates, firms, there))
    at = (dates[..., None], firms)
    x, z = data.gather_inputs(dates[..., None].expand_as(firms), firms, on_host)
    y = data.target_TN[at]
    return Cells(
        x_BPWC=x,
        z_BPF=z,
        m_BP=there,
        s_BP=data.group_TN[at].long(),
        y_BP=y,
        firms_BP=firms,
        key_BP=data.key_N[firms],
        known_BP=there & y.isfinite(),
    )


class CompiledSeed(SingleSeed):
    """The :class:`models.fitting.loop.Engine` of one seed whose training steps are compiled.

    Every step has the same shapes, so that it is compiled once: each date has as many places as the largest
    training date has firms (or as many as are drawn), and a short last batch is filled up with a date that
    does not count. A step therefore equals that of `SingleSeed` up to rounding; dropout masks are drawn by
    the compiled kernels and differ. Validation is not compiled.

    Parameters
    ----------
    module, data, config, seed, train
        As for `SingleSeed`; the model must be stackable (`models.fitting.stacked.can_stack`).
    """

    def __init__(
        self, module: Forecaster, data: PanelTensors, config: FitConfig, seed: int, train: IntArray
    ) -> None:
        super().__init__(module, data, config, seed, train)
        most, drawn = most_firms(data, train), None if module.uses_peers else config.firms_per_date
        self.places = most if drawn is None else min(most, drawn)
        self._loss = torch.compile(DateLoss(module, config), backend=_BACKEND, dynamic=False)

    def step(self, dates_KB: Tensor, optimizer: torch.optim.Optimizer) -> tuple[Tensor, Tensor]:
        """Make one step of the optimizer; return its loss and its gradient norm before clipping, [1] each."""
        (dates_B,) = dates_KB
        optimizer.zero_grad(set_to_none=True)
        chosen_BN = self._chosen(dates_B)
        if chosen_BN is None:
            chosen_BN = self.data.listed_TN[dates_B]
        missing = self.config.batch_dates - len(dates_B)
        repeated_B = torch.cat((dates_B, dates_B[:1].expand(missing)))
        cells = take(
            self.data, repeated_B, torch.cat((chosen_BN, chosen_BN[:1].expand(missing, -1))), self.places
        )
        if missing:
            cells = cells._replace(known_BP=cells.known_BP.index_fill(0, self._filled(missing, cells), False))
        _, loss = cast("tuple[Tensor, Tensor]", self._loss(cells))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.modules[0].parameters(), self.config.clip)
        optimizer.step()
        return loss.detach()[None], norm[None]

    def _filled(self, missing: int, cells: Cells) -> Tensor:
        first = self.config.batch_dates - missing
        return torch.arange(first, self.config.batch_dates, device=cells.known_BP.device)
