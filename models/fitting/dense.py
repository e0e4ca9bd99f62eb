"""A model and its loss as one function of tensors whose shapes do not change from step to step.

`vmap` (`models.fitting.stacked`) and `torch.compile` need such a function. Every date has as many places for
firms as the largest date needs; empty places are outside the universe.

Legend: B dates in a batch, P places for firms, N firms, W window length, C channels, F characteristics.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.batch import Batch, PanelTensors
from models.fitting.config import FitConfig
from models.fitting.losses import label_loss
from models.fitting.precision import matrix_precision
from models.forecaster import Forecaster


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

    def forward(self, cells: Cells) -> tuple[Tensor, Tensor]:
        """Forecasts [B, P] in the target's unit, and their loss in standard deviations of the target."""
        x, z, m, s, y, firms, key, known = cells
        batch = Batch(x, z, m, s, y, firms, key_BN=key, dense=True)
        module = self.module
        with matrix_precision(self.config, x.device):
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
    firms = chosen.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., :places]
    dates, firms, there = (
        x.to(data.device, non_blocking=True) for x in (dates, firms, chosen.gather(-1, firms))
    )
    at = (dates[..., None], firms)
    y = data.target_TN[at]
    return Cells(
        x_BPWC=data.gather_windows(dates[..., None].expand_as(firms), firms),
        z_BPF=data.characteristics_TNF[at],
        m_BP=there,
        s_BP=data.group_TN[at].long(),
        y_BP=y,
        firms_BP=firms,
        key_BP=data.key_N[firms],
        known_BP=there & y.isfinite(),
    )
