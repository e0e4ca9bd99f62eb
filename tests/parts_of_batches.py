"""Parts of a batch: some of its firms, or all of them without the information of some peers."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from models.batch import Ablation, Batch


def take_firms(batch: Batch, firms: Tensor) -> Batch:
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(Batch)}
    by_firm: dict[str, Any] = {
        name: x[:, firms] for name, x in fields.items() if isinstance(x, Tensor) and name != "firms_N"
    }
    return dataclasses.replace(batch, **by_firm, firms_N=batch.firms_N[..., firms])


def without_peers(batch: Batch, *firms: int) -> Ablation:
    keep_BN = torch.ones_like(batch.m_BN)
    keep_BN[:, list(firms)] = False
    return Ablation(peers_keep_BN=keep_BN)
