"""Work of fixed shapes that a GPU records once and then replays.

A step of a small model is some 500 kernels of a few microseconds each, which a host cannot start as fast as a
GPU computes them. As a CUDA graph they are started by one call.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

WARM_UP = 3
"""Calls that are computed as they come, before one is recorded: kernels are chosen and memory is set up."""


class Replayed:
    """Does the same work in every call: recorded on CUDA devices, and computed as it is written on others.

    The first `WARM_UP` calls compute the work as it is written, on a stream of their own. The next call
    records it there, and from then on a call is one replay. So every call does the work once, and nothing
    needs to be undone after the warm-up. The work itself is not kept, so that what it holds can be freed.

    The work reads and writes tensors that stay where they are. It may not read values back, nor copy from the
    host, nor may a shape in it depend on values (`tests/capture_rules.py`). Random numbers come from the
    device's default generator, which every recording registers: it moves on with each replay, as it does with
    each call before. The memory of a recording is its own and is used again by each replay.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.calls = device, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = stream_of(device) if device.type == "cuda" else None

    def __call__(self, work: Callable[[], None]) -> None:
        """Do the work once; on a CUDA device without waiting for it."""
        self.calls += 1
        if self._stream is None:
            work()
        elif self._graph is not None:
            self._graph.replay()
        elif self.calls <= WARM_UP:
            computing = torch.cuda.current_stream(self.device)
            self._stream.wait_stream(computing)
            try:
                with torch.cuda.stream(self._stream):
                    work()
            finally:
                computing.wait_stream(self._stream)
        else:
            # a recording that fails leaves its stream as the current one: it is this one again afterwards
            with torch.cuda.stream(torch.cuda.current_stream(self.device)):
                graph = torch.cuda.CUDAGraph()
                # other threads may use the device meanwhile
                with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                    work()
            self._graph = graph
            graph.replay()


@cache
def stream_of(device: torch.device, number: int = 0) -> torch.cuda.Stream:
    """A stream of a device: memory and workspaces that one user has left serve the next.

    Recordings are made on number 0; work that a recording does at the same time is on the others.
    """
    return torch.cuda.Stream(device)


def send(given: Tensor, place: Tensor) -> None:
    """Copy a tensor to where a recording reads it, also from the host, without waiting for the device."""
    pinned = given.pin_memory() if place.is_cuda and not given.is_cuda else given
    place.copy_(pinned, non_blocking=True)
