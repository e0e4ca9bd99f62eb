"""Positions of the days in a window: none, sinusoidal, learned, rotary.

Legend: W window length, D model width, d width of one head.  Position W-1 is the decision day.
"""

from __future__ import annotations

import torch
from torch import Tensor

POSITIONS = ("none", "sinusoidal", "learned", "rotary")


def _angles(length: int, width: int) -> Tensor:
    # angle[p, i] = p * 10000^(-2 i / width), in float64 so that it does not depend on the device
    frequency = torch.pow(10_000.0, -torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length, dtype=torch.float64)[:, None] * frequency


def sinusoidal(length: int, width: int) -> Tensor:
    """Fixed positions [W, D]: ``sin(p w_i)`` at even and ``cos(p w_i)`` at odd columns.

    With ``w_i = 10000^(-2i/D)``.  Vaswani et al. (2017), section 3.5.
    """
    angle = _angles(length, width)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :width].float()


def rotary(length: int, head_width: int) -> Tensor:
    """Cosines and sines [W, 2, d/2] of the rotary angles; ``head_width`` is even.

    Su et al. (2021), "RoFormer", equation 15.
    """
    angle = _angles(length, head_width)
    return torch.stack((angle.cos(), angle.sin()), dim=1).float()


def rotate(x_BHWd: Tensor, rotary_W2d: Tensor) -> Tensor:
    """Turn each pair (x_2i, x_2i+1) by its position's angle, so products depend on distance alone."""
    cos_Wd, sin_Wd = rotary_W2d.to(x_BHWd.dtype).unbind(1)
    even, odd = x_BHWd[..., 0::2], x_BHWd[..., 1::2]
    return torch.stack((even * cos_Wd - odd * sin_Wd, even * sin_Wd + odd * cos_Wd), dim=-1).flatten(-2)
