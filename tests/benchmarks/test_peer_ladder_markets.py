"""The markets of the peer ladder have the parts that their names say, and can be simulated."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from ladder import MARKETS, PARTS, build_world, market_config

from pipelines.config.load import load_config
from pipelines.sources.simulated.config import MarketConfig


@pytest.mark.parametrize("market", list(MARKETS))
def test_a_market_has_its_parts_alone(market: str) -> None:
    own = market_config(load_config(ROOT / "configs/ladder.yaml"), market)
    assert own.source.kind == "simulated"
    for part in PARTS:
        share = getattr(own.source.market, f"{part}_share")
        default = getattr(MarketConfig(), f"{part}_share")
        assert share == (default if part in MARKETS[market] else 0.0)


def test_the_truth_of_a_market_stands_beside_its_panel() -> None:
    small = ["source.market.firms=20", "source.market.sessions=320"]
    world = build_world(market_config(load_config(ROOT / "configs/ladder.yaml", small), "peer"))
    assert world.truth_TN.shape == world.dataset.panel.close_TN.shape
    assert np.nanstd(world.truth_TN[100]) > 0
