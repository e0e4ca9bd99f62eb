"""Which sessions a model is trained and validated on, and the scale of their targets.

Legend: D dates, T sessions, N firms.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from features.arrays import IntArray
from models.batch import PanelTensors
from models.fitted import NoTrainingSignal


def with_targets(data: PanelTensors, dates: IntArray, part: str, fewest: int) -> IntArray:
    """Keep the dates on which at least ``fewest`` firms of the universe have a known target.

    Parameters
    ----------
    data
        The panel.
    dates
        int [D] session indices.
    part
        "training" or "validation", for the error sentence.
    fewest
        Minimum number of firms.

    Raises
    ------
    ValueError
        When a date is outside the panel.
    NoTrainingSignal
        When no date is left.
    """
    dates = np.asarray(dates, dtype=np.int64)
    sessions = data.mask_TN.shape[0]
    if dates.size and (int(dates.min()) < 0 or int(dates.max()) >= sessions):
        raise ValueError(
            f"The {part} dates run from {dates.min()} to {dates.max()} but the panel has {sessions} sessions."
        )
    at = torch.tensor(dates, device=data.device)
    known_D = (data.mask_TN[at] & data.target_TN[at].isfinite()).sum(dim=1) >= fewest
    kept: IntArray = dates[known_D.cpu().numpy()]
    if not kept.size:
        firms = "a firm" if fewest == 1 else f"{fewest} firms"
        raise NoTrainingSignal(
            f"None of the {dates.size} {part} dates has {firms} in the universe with a known target: "
            "move the fold, or loosen the universe rule."
        )
    return kept


def share_of(dates: IntArray, share: float, seed: int) -> IntArray:
    """Draw a share of the dates with a seed, at least one; a smaller share is a subset of a larger one."""
    if share == 1.0:
        return dates
    order = np.random.default_rng(seed).permutation(len(dates))
    return np.sort(dates[order[: max(1, round(share * len(dates)))]])


def evenly_spaced(dates: IntArray, most: int | None) -> IntArray:
    """Keep at most ``most`` dates, evenly spaced; None keeps all."""
    if most is None or most >= len(dates):
        return dates
    return dates[np.linspace(0, len(dates) - 1, most).round().astype(np.int64)]


def target_scale_of(data: PanelTensors, train: IntArray) -> Tensor:
    """Standard deviation of the known training targets; NoTrainingSignal if they are all the same."""
    scale = _known_targets(data, train).double().std(correction=0)
    if not float(scale) > 0:
        raise NoTrainingSignal("The training targets are all the same; there is nothing to learn from them.")
    return scale.float()


def _known_targets(data: PanelTensors, dates: IntArray) -> Tensor:
    at = torch.as_tensor(dates, device=data.device)
    target_DN, mask_DN = data.target_TN[at], data.mask_TN[at]
    return target_DN[mask_DN & target_DN.isfinite()]
