"""The device that models are trained on."""

from __future__ import annotations


def pick_device(wanted: str) -> str:
    """Resolve ``auto`` to the accelerator if there is one."""
    if wanted != "auto":
        return wanted
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
