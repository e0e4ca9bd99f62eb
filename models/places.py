"""Places for the firms of a date: as many as the date has firms, and not one per firm of the panel.

Legend: B dates, N firms of the panel, P places.
"""

from __future__ import annotations

import torch
from torch import Tensor


def firms_in_places(chosen: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """Give each chosen firm of a date a place.

    Parameters
    ----------
    chosen
        bool [..., B, N]; at most ``places`` firms per date.
    places
        P.

    Returns
    -------
    tuple of Tensor
        int64 [..., B, P], the firms of the places: the chosen ones in ascending order, then others; and bool
        of the same shape, whether the firm is chosen.
    """
    firms = chosen.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., :places]
    return firms, chosen.gather(-1, firms)
