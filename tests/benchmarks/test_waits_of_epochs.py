"""The listing of what an epoch reads back, and the share of an epoch in which kernels run."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import waits


def event(name: str, start: float, end: float, *, on: str = "CUDA", annotation: bool = False) -> Any:  # noqa: ANN401
    """A made-up event; torch's own have no public constructor."""
    span, device = SimpleNamespace(start=start, end=end), SimpleNamespace(name=on)
    return SimpleNamespace(name=name, time_range=span, device_type=device, is_user_annotation=annotation)


def test_only_kernels_count_and_those_at_the_same_time_count_once() -> None:
    events = [
        event("gemm", 0.0, 10.0),
        event("softmax", 5.0, 12.0),  # on a second stream
        event("gelu", 6.0, 8.0),  # within both
        event("gemm", 20.0, 25.0),
        event("Memcpy HtoD (Pinned -> Device)", 30.0, 50.0),
        event("Memset (Device)", 50.0, 60.0),
        event("Optimizer.step#AdamW.step", 0.0, 100.0, annotation=True),
        event("aten::mm", 0.0, 100.0, on="CPU"),
    ]
    spans = waits.kernel_spans(events)
    assert spans == [(0.0, 10.0), (5.0, 12.0), (6.0, 8.0), (20.0, 25.0)]
    assert waits.covered(reversed(spans)) == 17.0
    assert waits.covered([]) == 0.0


def test_the_listing_names_what_is_read_and_where() -> None:
    torch.manual_seed(0)
    found = list(waits.rows("cross_peer", waits.panel("cpu", sessions=160, firms=8)))
    assert any(line.startswith("| _local_scalar_dense | models/batch.py") for line in found)
    (line,) = [line for line in found if "**values of the device**" in line]
    assert "_targets_and_references" in line
    assert not any("kernels run" in line for line in found)  # only a GPU has kernels
