"""Probes of attention weights, in every model that attends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.attention.probe import Site, permuted, probing, uniform
from models.batch import PanelTensors
from models.forecaster import Forecaster
from models.registry import MODELS

SMALL = {"width": 8, "heads": 2}
OPTIONS: dict[str, dict[str, Any]] = {
    "temporal_transformer": {"encoder": {**SMALL, "layers": 2, "pooling": "attention"}},
    "seq2seq": {"encoder": {**SMALL, "layers": 1, "kernel": "linear"}},
    "cross_peer": {**SMALL, "reference": {"count": 4}},
    "kernel_regression": {},
    "master": {"width": 8, "day_heads": 2},
    "self_peer": {**SMALL, "market_tokens": 1},
    "portfolio_transformer": SMALL,
    "temporal_peer": {
        "encoder": {**SMALL, "kernel": "local", "radius": 3, "pooling": "mean"},
        "peer_heads": 2,
    },
}


def build(name: str) -> tuple[Forecaster, PanelTensors]:
    rng = np.random.default_rng(0)
    sizes = (12, 7)
    data = PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(*sizes, 2)),
        characteristics_TNF=rng.normal(size=(*sizes, 3)),
        mask_TN=np.ones(sizes, dtype=bool),
        group_TN=np.tile(np.arange(7) % 2, (12, 1)),
        target_TN=rng.normal(size=sizes),
        window=6,
        characteristic_names=("log_market_equity", "book_to_market", "momentum_252_21"),
    )
    entry = MODELS[name]
    module = entry.build(entry.config(**OPTIONS[name]), data.shape)
    assert isinstance(module, Forecaster)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.6 * torch.randn(parameter.shape, generator=generator))
    return module.eval(), data


@pytest.mark.parametrize("name", OPTIONS)
def test_a_probe_sees_the_weights_in_use_and_replaces_them(name: str) -> None:
    module, data = build(name)
    batch = data.batch(torch.tensor([10]))
    seen: list[tuple[Site, Tensor]] = []

    def look(site: Site, weights: Tensor, keep: Tensor | None) -> Tensor:
        seen.append((site, weights))
        assert keep is None or (weights * ~keep).abs().max() == 0.0, "masked keys have no weight"
        return weights

    with torch.inference_mode():
        plain = module(batch)
        with probing(module, look):
            same = module(batch)
        torch.testing.assert_close(same, plain, rtol=1e-4, atol=1e-5)
        assert seen
        for site, weights in seen:
            if site.over != "steps":
                torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
        for probe in (uniform, permuted(torch.Generator().manual_seed(0))):
            with probing(module, probe):
                assert (module(batch) - plain).abs().max() > 1e-4
        torch.testing.assert_close(module(batch), plain, rtol=0, atol=0)  # the probes are gone


def test_uniform_and_permuted_weights_keep_the_total_the_mask_and_the_null_key() -> None:
    weights = torch.tensor([[[[0.5, 0.1, 0.0, 0.2, 0.2], [0.0, 0.0, 0.0, 0.0, 1.0]]]])
    keep = torch.tensor([[[[True, True, False, True, True], [False, False, False, False, True]]]])
    site = Site("layer", "peers", null_key=True)
    even = uniform(site, weights, keep)
    torch.testing.assert_close(even[0, 0, 0], torch.tensor([0.8 / 3, 0.8 / 3, 0.0, 0.8 / 3, 0.2]))
    torch.testing.assert_close(even[0, 0, 1], weights[0, 0, 1])
    generator = torch.Generator().manual_seed(0)
    orders = set()
    for _ in range(40):
        mixed = permuted(generator)(site, weights, keep)
        assert mixed[0, 0, 0, 2] == 0.0
        assert mixed[0, 0, 0, 4] == weights[0, 0, 0, 4]
        torch.testing.assert_close(mixed[0, 0, 1], weights[0, 0, 1])
        orders.add(tuple(mixed[0, 0, 0, [0, 1, 3]].tolist()))
    assert len(orders) == 6
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(weights[0, 0, 0, [0, 1, 3]].tolist()))}
    steps = Site("decoder", "steps", null_key=False)
    assert uniform(steps, weights, None) is weights
