"""Position encodings of the days in a window: none, sinusoidal, learned, rotary, relative, alibi.

Legend: W window length, D model width, d width of one head, H heads, R = 2W - 1 distances.  Position
W - 1 is the decision day.
"""

import torch
from torch import Tensor

POSITIONS = ("none", "sinusoidal", "learned", "rotary", "relative", "alibi")


def _angles(length: int, width: int) -> Tensor:
    # angle[p, i] = p * 10000^(-2 i / width), in float64, so that it is the same on all devices
    frequency = torch.pow(10_000.0, -torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length, dtype=torch.float64)[:, None] * frequency


def sinusoidal(length: int, width: int) -> Tensor:
    """Fixed position encodings [W, D]: ``sin(p w_i)`` in even and ``cos(p w_i)`` in odd columns.

    With ``w_i = 10000^(-2i/D)``.  Vaswani et al. (2017), section 3.5.
    """
    angle = _angles(length, width)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :width].float()


def rotary(length: int, head_width: int) -> Tensor:
    """Cosines and sines [W, 2, d/2] of the rotary angles; ``head_width`` must be even.

    Su et al. (2021), "RoFormer", equation 15.
    """
    angle = _angles(length, head_width)
    return torch.stack((angle.cos(), angle.sin()), dim=1).float()


def rotate(x_BHWd: Tensor, rotary_W2d: Tensor) -> Tensor:
    """Rotate each pair (x_2i, x_2i+1) by the angle of its position; products then depend only on distance."""
    cos_Wd, sin_Wd = rotary_W2d.to(x_BHWd.dtype).unbind(1)
    even, odd = x_BHWd[..., 0::2], x_BHWd[..., 1::2]
    return torch.stack((even * cos_Wd - odd * sin_Wd, even * sin_Wd + odd * cos_Wd), dim=-1).flatten(-2)


def alibi(length: int, heads: int) -> Tensor:
    """Biases [H, R] for the distances -(W-1) to W-1: ``-m_h |distance|``, ``m_h = 2^(-8 h / H)``, h from 1.

    Press, Smith and Lewis (2022), "Train short, test long". Their attention is causal; here a bidirectional
    encoder uses the same slope on both sides. For a number of heads that is not a power of two they
    interleave slopes; here all slopes follow the formula.
    """
    slope_H = torch.pow(2.0, -8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    distance_R = torch.arange(1 - length, length, dtype=torch.float64).abs()
    return (-slope_H[:, None] * distance_R).float()


def bias_of_distance(bias_HR: Tensor, queries: int, keys: int) -> Tensor:
    """Expand biases by distance to [H, Q, K]; the queries are the last Q of the K positions.

    ``out[h, i, j] = bias[h, (i + K - Q) - j + W - 1]``.  Shaw, Uszkoreit and Vaswani (2018) and Raffel et al.
    (2020) learn one bias per distance.
    """
    at_Q = torch.arange(keys - queries, keys, device=bias_HR.device)
    at_K = torch.arange(keys, device=bias_HR.device)
    return bias_HR[:, at_Q[:, None] - at_K + (bias_HR.shape[1] - 1) // 2]
