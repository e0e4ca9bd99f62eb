"""Where a panel lies, how parts of it reach the device that computes, and how much the device has room for.

Legend: S sessions including the padding before the first, N firms, T sessions, W window length, C channels,
X any leading axes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from features.arrays import Float32Array
from features.library.scaling import ChannelScaler

DEVICE_SHARE = 0.5
"""Largest share of a device's free memory that a panel takes. The rest is for weights and activations."""

VARIANTS_SHARE = 0.5
"""Largest share of a device's free memory that the variants of an explainer take at once."""

_BLOCK = 2**22  # values that are scaled or checked at a time


class Upload:
    """Copies from host memory to a device, made while the device computes.

    On a CUDA device a copy leaves from pinned memory on a stream of its own, and the work that is queued
    afterwards waits for it on the device. The host waits only to stay at most one batch ahead: while a batch
    is computed, the next one is gathered and copied, and the memory of the one before is free again. On other
    devices it is a plain copy.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        on_cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if on_cuda else None
        self._earlier = torch.cuda.Event() if on_cuda else None

    def __call__(self, *host: Tensor) -> tuple[Tensor, ...]:
        """Copy the tensors of one batch; those that are on the device already are returned."""
        if self._stream is None or self._earlier is None:
            return tuple(one.to(self.device) for one in host)
        computing = torch.cuda.current_stream(self.device)
        self._earlier.synchronize()  # all but the newest batch is computed
        self._earlier.record(computing)
        with torch.cuda.stream(self._stream):
            copies = tuple(
                one if one.is_cuda else one.pin_memory().to(self.device, non_blocking=True) for one in host
            )
        computing.wait_stream(self._stream)
        for one in copies:
            one.record_stream(computing)
        return copies


def exceeds_device(device: torch.device | str, size: int) -> bool:
    """Whether ``size`` bytes are more than `DEVICE_SHARE` of a CUDA device's free memory."""
    free = free_bytes(device)
    return free is not None and size > DEVICE_SHARE * free


def free_bytes(device: torch.device | str) -> float | None:
    """Memory that this process can still take on a CUDA device, in bytes; None for other devices.

    What PyTorch holds without using it counts as free.
    """
    if torch.device(device).type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


_NO_MEMORY = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error came about because a device's memory ran out.

    Libraries that PyTorch calls report it in words. While a CUDA graph is recorded, it is the context of the
    error of the recording.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, torch.OutOfMemoryError) or any(words in str(cause) for words in _NO_MEMORY):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def variants_at_once(device: torch.device | str, on_cpu: int, each: float) -> int:
    """Number of variants of an input, such as coalitions of players, that go through a model at once.

    A GPU is filled: as many of ``each`` so many bytes as fit `VARIANTS_SHARE` of its free memory, at least 1.
    ``on_cpu`` is the number on a CPU, chosen such that they fit its cache.
    """
    free = free_bytes(device)
    return max(1, on_cpu if free is None else int(VARIANTS_SHARE * free // each))


def in_parts(count: int, at_once: int, compute: Callable[[slice], None]) -> int:
    """Compute a number of variants in parts; where memory runs out, in parts of half the size.

    ``compute`` computes the variants of a slice, at first ``at_once`` (:func:`variants_at_once`). Returns how
    many fitted at once; RuntimeError if a single variant does not fit (:func:`is_out_of_memory`).
    """
    first = 0
    while first < count:
        try:
            compute(slice(first, min(first + at_once, count)))
        except RuntimeError as error:
            if at_once == 1 or not is_out_of_memory(error):
                raise
            at_once = -(-min(at_once, count - first) // 2)
        else:
            first += at_once
    return at_once


@dataclass(frozen=True, slots=True, eq=False)
class RelativeWindows:
    """Divides channels of gathered windows by their last session and scales them, in fixed shapes.

    ``clip((x[w] / base[W - 1] - mean[w]) / std[w])``; 0 where either value is unknown, which in a panel is 0.
    """

    on_C: Tensor  # bool, the channels that are relative; others are unchanged
    base_C: Tensor  # int64, the channel that divides
    mean_WC: Tensor
    std_WC: Tensor
    clip: float

    @classmethod
    def of(cls, scaler: ChannelScaler, device: torch.device) -> RelativeWindows | None:
        """Put the scale of relative channels on the device of the windows; None if there are none."""
        scale = scaler.relative
        if scale is None:
            return None
        base_C = torch.tensor(scale.base_C, dtype=torch.int64, device=device)
        mean_WC, std_WC = (
            torch.tensor(x_WC, dtype=torch.float32, device=device) for x_WC in (scale.mean_WC, scale.std_WC)
        )
        return cls(base_C >= 0, base_C.clamp(min=0), mean_WC, std_WC, scaler.clip)

    def __call__(self, x_XWC: Tensor) -> Tensor:
        """Scale windows."""
        last_X1C = x_XWC[..., -1:, :].index_select(-1, self.base_C)
        scaled_XWC = ((x_XWC / last_X1C - self.mean_WC) / self.std_WC).clamp(-self.clip, self.clip)
        known_XWC = (x_XWC != 0) & (last_X1C != 0)
        return torch.where(self.on_C, scaled_XWC.where(known_XWC, 0.0), x_XWC)


def padded_history(channels_TNC: Float32Array, window: int, scaler: ChannelScaler | None) -> Tensor:
    """Lay the channels out by firm, [N, S, C], with padding before the first session, scaled, without NaN."""
    T, N, C = channels_TNC.shape
    history_NSC = torch.zeros((N, window - 1 + T, C))
    block = max(1, _BLOCK // max(1, N * C))
    for start in range(0, T, block):
        part_RNC = channels_TNC[start : start + block]
        part_RNC = np.nan_to_num(part_RNC, nan=0.0) if scaler is None else scaler.apply(part_RNC)
        at = window - 1 + start
        history_NSC[:, at : at + len(part_RNC)] = torch.from_numpy(part_RNC).transpose(0, 1)
    return history_NSC


def shared_tensor(array: npt.NDArray[Any]) -> Tensor:
    """Return a tensor of the same memory."""
    with warnings.catch_warnings():  # torch warns of read-only memory; nothing writes to it
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


def holds_anywhere(condition: np.ufunc, array: npt.NDArray[np.generic]) -> bool:
    """Whether a condition holds anywhere, checked by blocks of sessions."""
    block = max(1, _BLOCK // max(1, array[:1].size))
    return any(condition(array[start : start + block]).any() for start in range(0, len(array), block))
