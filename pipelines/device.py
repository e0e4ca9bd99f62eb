"""The device that models are trained on, and its threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def resolve_device(setting: str) -> str:
    """Resolve ``auto`` to ``cuda`` if there is a CUDA device and to ``cpu`` if not."""
    if setting != "auto":
        return setting
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread in a ``with`` block, as training does, so that forecasts are equal to the bit."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
