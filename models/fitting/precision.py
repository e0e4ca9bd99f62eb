"""Precision of training: float32, or matrix products in bf16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from models.fitting.config import FitConfig


def matrix_precision(config: FitConfig, device: torch.device) -> AbstractContextManager[object]:
    """Context in which a model is computed with the precision of the config."""
    if not uses_bf16(config, device):
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def uses_bf16(config: FitConfig, device: torch.device) -> bool:
    """Whether matrix products are computed in bf16: by default on CUDA devices only."""
    return config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")
