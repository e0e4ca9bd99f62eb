"""A small panel, and models with random weights on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import factorial
from typing import Any

import numpy as np
import torch

from models.attention.encoder import EncoderConfig
from models.batch import PanelTensors
from models.forecaster import Forecaster
from models.forecasters.self_peer import SelfPeer, SelfPeerConfig
from models.forecasters.temporal_peer import TemporalPeer, TemporalPeerConfig
from models.forecasters.temporal_transformer import TemporalTransformer, TemporalTransformerConfig


@cache
def small_market() -> PanelTensors:
    """Eight firms, one of them never in the universe, in three groups; 18 sessions; windows of 8 days."""
    rng, shape = np.random.default_rng(0), (18, 8)
    mask_TN = np.ones(shape, dtype=bool)
    mask_TN[:, 2] = False
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(*shape, 3)),
        characteristics_TNF=rng.normal(size=(*shape, 4)),
        mask_TN=mask_TN,
        group_TN=np.tile(np.arange(8) % 3, (18, 1)),
        target_TN=rng.normal(size=shape),
        window=8,
    )


def random_weights(module: Forecaster) -> Forecaster:
    """Fill all parameters with noise, as some start at zero."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


@cache
def small_modules() -> dict[str, Forecaster]:
    """Models with days, with peers, with both, and with market tokens."""
    market = small_market()
    encoder = EncoderConfig(width=8, heads=2)
    built = {
        "temporal_peer": TemporalPeer(TemporalPeerConfig(encoder=encoder, peer_heads=2), market.shape),
        "market_tokens": TemporalPeer(
            TemporalPeerConfig(encoder=encoder, peer_heads=2, market_tokens=2), market.shape
        ),
        "self_peer": SelfPeer(SelfPeerConfig(width=8, heads=2, layers=2, market_tokens=1), market.shape),
        "transformer": TemporalTransformer(TemporalTransformerConfig(encoder=encoder), market.shape),
    }
    return {name: random_weights(module) for name, module in built.items()}


def enumerated(play: Callable[[np.ndarray], np.ndarray], n_players: int) -> np.ndarray:
    """Shapley's formula over all coalitions, [P, O]."""
    keep = (np.arange(2**n_players)[:, None] >> np.arange(n_players)) & 1 == 1
    value = dict(zip(map(tuple, keep.tolist()), play(keep), strict=True))
    phi = []
    for p in range(n_players):
        total: Any = 0.0
        for without, out in value.items():
            if not without[p]:
                size, joined = sum(without), (*without[:p], True, *without[p + 1 :])
                weight = factorial(size) * factorial(n_players - size - 1) / factorial(n_players)
                total = total + weight * (value[joined] - out)
        phi.append(total)
    return np.array(phi)
