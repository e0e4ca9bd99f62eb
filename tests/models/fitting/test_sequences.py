"""No call of a fused kernel has over 65,535 sequences, with up to 8,000 firms, 32 dates and 8 seeds.

On a device of shapes without values (`capture_rules`), so nothing is computed. Every seed has calls of its
own, which two seeds show as well as eight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from capture_rules import ON_DEVICE, Rules, allow_adamw
from torch import Tensor

from models.attention.core import is_explicit
from models.batch import PanelTensors
from models.fitting.config import FitConfig
from models.fitting.loop import SingleSeed
from models.fitting.optimizer import AdamW
from models.fitting.stacked import StackedSeeds
from models.forecaster import Forecaster
from models.registry import MODELS
from models.spec import Shape

N, T, F, DATES = 8000, 33, 6, 32
TRAINED = 2  # seeds
MOST = 65_535
NEURAL = [name for name, entry in MODELS.items() if entry.kind == "neural"]


def largest_panel(window: int) -> PanelTensors:
    """All firms on all dates."""

    def there(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(size, dtype=dtype, device=ON_DEVICE)

    data = PanelTensors(
        history_NSC=there(N, window - 1 + T, 7),
        characteristics_TNF=there(T, N, F),
        mask_TN=torch.ones((T, N), dtype=torch.bool),
        group_TN=there(T, N, dtype=torch.int16),
        target_TN=torch.zeros((T, N)),
        key_N=there(N, dtype=torch.int64),
        shape=Shape(7, F, window, 12, ("log_market_equity", *"abcde"), 3),
        path_TNK=there(T, N, 2),
    )
    for name in ("mask_TN", "target_TN"):
        object.__setattr__(data, name, getattr(data, name).to(ON_DEVICE))
    return data


@pytest.fixture
def sequences(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequences of each call of a fused kernel; inputs of other than four dimensions have none."""
    allow_adamw(monkeypatch)
    seen: list[int] = []

    def counted(q: Tensor, k: Tensor, v: Tensor, **_: object) -> Tensor:
        seen.extend([len(q)] if q.ndim == 4 else [])
        return q[..., :1] * k.sum() * v.sum(dim=-2, keepdim=True)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    return seen


def one_step(name: str, options: dict[str, Any], window: int) -> None:
    data, config, entry = largest_panel(window), FitConfig(batch_dates=DATES), MODELS[name]
    modules = []
    for _ in range(TRAINED if entry.build.stackable else 1):
        module = entry.build(entry.config(**options), data.shape)
        assert isinstance(module, Forecaster)
        modules.append(module.to(ON_DEVICE).train())
    dates_D, train = torch.arange(DATES), np.arange(T)
    with Rules():
        if entry.build.stackable:
            engine = StackedSeeds(modules, data, config, range(TRAINED), train)
            engine.epoch(dates_D.expand(TRAINED, -1), AdamW(engine.groups(), config, 10))
        else:
            single = SingleSeed(modules[0], data, config, 0, train)
            single.epoch(dates_D[None], AdamW(single.groups(), config, 10))


@pytest.mark.slow(10)
@pytest.mark.parametrize("window", [20, 60])
@pytest.mark.parametrize("name", NEURAL)
def test_no_call_has_more_sequences(name: str, window: int, sequences: list[int]) -> None:
    options = {"encoder": {"layers": 2}} if name in ("temporal_transformer", "seq2seq") else {}
    one_step(name, options, window)
    assert max(sequences, default=0) <= MOST
    stacked, days = MODELS[name].build.stackable, {"temporal_transformer", "seq2seq"}
    if stacked:
        half = len(sequences) // TRAINED
        assert sequences == sequences[:half] * TRAINED, "no call is of two seeds"
    assert is_explicit(window, torch.device(ON_DEVICE)) is (window == 20)
    # the only layer of temporal_peer has a single query, as have the last layer of the others and decoders
    of_days = [each for each in sequences if each > 2 * DATES]
    assert bool(of_days) == (name in days and window == 60)
    assert sum(of_days) % (DATES * N) == 0
    of_firms = [each for each in sequences if each <= 2 * DATES]
    # the reference universe of cross_peer has a made-up size here, of three firms
    with_firms = {"kernel_regression", "self_peer", "temporal_peer", "portfolio_transformer", "master"}
    assert bool(of_firms) == (name in with_firms)


@pytest.mark.slow(4)
@pytest.mark.parametrize("window", [20, 60])
@pytest.mark.parametrize(
    "options",
    [
        {"positions": "relative"},
        {"positions": "alibi", "causal": True},
        {"pooling": "cls"},
        {"kernel": "local"},
    ],
    ids=str,
)
def test_nor_with_masks_and_biases(options: dict[str, Any], window: int, sequences: list[int]) -> None:
    one_step("temporal_transformer", {"encoder": {"layers": 2, **options}}, window)
    assert max(sequences, default=0) <= MOST
    assert bool(sequences) == (window == 60 and "kernel" not in options)
