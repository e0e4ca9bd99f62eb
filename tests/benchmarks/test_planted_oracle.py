"""The linear reference of ``benchmarks/planted.py`` finds leaders that are certain, and no others."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from planted_oracle import PAIR, POOLED, linear_days, linear_recovery

from pipelines.sources.simulated.config import INDUSTRIES

SESSIONS, FIRMS = 800, 12
TRAIN = np.arange(10, 700)
LEADER = 3
FOLLOWS_N = (np.arange(FIRMS) < 6) & (np.arange(FIRMS) != LEADER)


@pytest.fixture(scope="module")
def market() -> Any:  # noqa: ANN401 (what the estimators read of a dataset)
    """Two industries; firm 3 leads its own by one session, and all firms reverse what they did two ago."""
    rng = np.random.default_rng(0)
    return_TN = 0.02 * rng.standard_normal((SESSIONS, FIRMS))
    for t in range(2, SESSIONS):
        return_TN[t] += np.where(FOLLOWS_N, 0.3 * return_TN[t - 1, LEADER], 0.0) - 0.3 * return_TN[t - 2]
    names = list(INDUSTRIES)
    industry_N = np.where(np.arange(FIRMS) < 6, names.index("Chemicals"), names.index("Metals"))
    group_TN = np.tile(industry_N, (SESSIONS, 1))
    panel = SimpleNamespace(n_firms=FIRMS, groups_S=tuple(names), group_TN=group_TN)
    universe_TN = np.ones((SESSIONS, FIRMS), dtype=np.bool_)
    return SimpleNamespace(labels={0: return_TN}, panel=panel, universe_TN=universe_TN)


def test_a_leader_of_an_industry_is_found_from_its_pairs_and_from_all_followers(market: Any) -> None:  # noqa: ANN401
    planted_NN = np.zeros((FIRMS, FIRMS), dtype=np.bool_)
    planted_NN[FOLLOWS_N, LEADER] = True
    none_NN = np.zeros_like(planted_NN)
    found = linear_recovery(
        market, {"industry": planted_NN, "hidden": none_NN}, TRAIN, np.arange(710, 714), delay=0
    )
    by_method = {one.method: one for one in found if one.kind == "all"}
    assert by_method[PAIR].auc > 0.95
    assert by_method[POOLED].auc == 1.0
    assert by_method[PAIR].n_edges == 5


def test_the_slopes_of_a_firms_own_days_are_those_of_the_market(market: Any) -> None:  # noqa: ANN401
    slopes_W = linear_days(market, TRAIN, delay=0, window=5)
    assert slopes_W.argmax() == 1
    assert slopes_W[1] == pytest.approx(0.3, abs=0.03)
    assert slopes_W[[0, 2, 3, 4]].max() < 0.06
