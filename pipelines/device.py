"""The device that models are trained on."""

from __future__ import annotations


def resolve_device(setting: str) -> str:
    """Resolve ``auto`` to ``cuda`` if there is a CUDA device and to ``cpu`` if not."""
    if setting != "auto":
        return setting
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
