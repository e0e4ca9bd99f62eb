"""Shapley values of the rank IC against brute force over all coalitions, and against closed forms."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations
from math import factorial

import numpy as np
import pytest
import torch
from attribution_data import small_market, small_modules
from scipy.stats import spearmanr

from models.batch import Batch, PanelTensors
from models.explain.groups import MIN_FIRMS, REPLACEMENTS, GroupGameConfig, explain_skill
from models.explain.players import PlayerConfig
from models.explain.removal import draw_donors

COEFFICIENT_F = np.array([1.5, -0.7, 0.0, 0.3])
FAMILIES = {"one": (0,), "two": (1,), "unused": (2,), "four": (3,)}
SESSIONS = np.array([12, 14, 15])
ONCE = GroupGameConfig(permutations=1)


def linear(batch: Batch) -> np.ndarray:
    """An additive model of the characteristics, as ridge is."""
    return np.asarray(batch.z_BNF[0].double().numpy() @ COEFFICIENT_F)


def brute_force(data: PanelTensors, session: int) -> np.ndarray:
    """Shapley values by their definition: weights of all subsets, and forecasts averaged over donors."""
    batch = data.batch(torch.tensor([session]))
    z_NF, y_N = batch.z_BNF[0].double().numpy(), batch.y_BN[0].double().numpy()
    known = np.isfinite(y_N)
    seed = int(np.random.default_rng((0, session)).integers(2**32))  # donors are drawn for each date
    donors = [draw_donors(len(z_NF), np.random.default_rng((seed, 1, k))) for k in range(REPLACEMENTS)]

    def value(kept: tuple[int, ...]) -> float:
        forecasts = []
        for donor_N in donors:
            mixed_NF = z_NF[donor_N].copy()
            mixed_NF[:, list(kept)] = z_NF[:, list(kept)]
            forecasts.append(mixed_NF @ COEFFICIENT_F)
        mean_N = np.mean(forecasts, axis=0)[known]
        return float(spearmanr(mean_N, y_N[known]).statistic)

    count = z_NF.shape[1]
    phi = np.zeros(count)
    for player in range(count):
        others = [other for other in range(count) if other != player]
        for subset in chain.from_iterable(combinations(others, size) for size in range(count)):
            weight = factorial(len(subset)) * factorial(count - len(subset) - 1) / factorial(count)
            phi[player] += weight * (value((*subset, player)) - value(subset))
    return phi


def test_values_of_an_additive_model_equal_brute_force() -> None:
    data = small_market()
    config = GroupGameConfig(permutations=3000)
    found = explain_skill(linear, data, SESSIONS, FAMILIES, config)
    np.testing.assert_array_equal(found.sessions_D, SESSIONS)
    for values_P, session in zip(found.values_DP, SESSIONS, strict=True):
        np.testing.assert_allclose(values_P, brute_force(data, int(session)), atol=0.01)
    np.testing.assert_allclose(found.values_DP[:, 2], 0.0, atol=1e-9, err_msg="an unused family has no skill")
    assert np.abs(found.values_DP).max() > 0.01


def test_few_permutations_estimate_the_values_and_add_up() -> None:
    data, module = small_market(), small_modules()["temporal_peer"]
    players = PlayerConfig(day_starts=(1, 4))
    families = {"first": (0, 2), "second": (1, 3)}
    exact, sampled = (
        explain_skill(module, data, SESSIONS, families, GroupGameConfig(draws, players=players))
        for draws in (400, 40)
    )
    assert [player.name for player in exact.players] == ["days 1-3", "days 4-8", "first", "second", "peers"]
    np.testing.assert_allclose(sampled.values_DP, exact.values_DP, atol=0.12)
    for found in (exact, sampled):
        np.testing.assert_allclose(found.base_D + found.values_DP.sum(axis=1), found.skill_D, atol=1e-9)
    assert np.abs(exact.values_DP).max() > 0.05


def test_forecasts_of_the_complete_model_are_scored() -> None:
    data = small_market()
    found = explain_skill(linear, data, SESSIONS, FAMILIES, ONCE)
    for skill, session in zip(found.skill_D, SESSIONS, strict=True):
        batch = data.batch(torch.tensor([int(session)]))
        y_N = batch.y_BN[0].double().numpy()
        known = np.isfinite(y_N)
        assert skill == pytest.approx(spearmanr(linear(batch)[known], y_N[known]).statistic)


def test_dates_without_targets_are_left_out() -> None:
    target_TN = small_market().target_TN.clone()
    target_TN[int(SESSIONS[0]), MIN_FIRMS - 1 :] = torch.nan
    data = replace(small_market(), target_TN=target_TN)
    found = explain_skill(linear, data, SESSIONS, FAMILIES, ONCE)
    np.testing.assert_array_equal(found.sessions_D, SESSIONS[1:])
    with pytest.raises(ValueError, match="sessions is empty"):
        explain_skill(linear, data, SESSIONS[:0], FAMILIES, ONCE)
