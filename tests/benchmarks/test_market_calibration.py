"""Noise on the simulated market is rarely called skill, equal signals rarely beat each other, truth is seen.

The shares of full size are those of ``python benchmarks/market_calibration.py``; here are smaller ones, with
fixed seeds and wider limits.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from market_calibration import (
    World,
    best_of_noise,
    equal_pairs,
    make_world,
    rejected_noise,
    truth_among_noise,
)


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(firms=40, sessions=400)


@pytest.mark.slow(3)
def test_tests_at_5_per_cent_reject_about_5_per_cent_of_the_noise(world: World) -> None:
    shares = rejected_noise(world, 200)
    assert len(shares) == 4
    for test, share in shares.items():
        assert 0.01 <= share <= 0.1, test  # two standard errors of 200 draws are 3%


@pytest.mark.slow(5)
def test_equal_signals_rarely_beat_each_other(world: World) -> None:
    answers = list(equal_pairs(world, 100))
    assert answers.count("yes") <= 7
    assert answers.count("unclear") >= 85


@pytest.mark.slow(2)
def test_the_best_of_many_noise_signals_is_rarely_called_skill(world: World) -> None:
    deflated = np.array(best_of_noise(world, searches=10, trials=60))
    assert (deflated > 0.95).sum() <= 1
    assert 0.2 < np.median(deflated) < 0.8


def test_the_truth_is_accepted(world: World) -> None:
    found = truth_among_noise(world)
    assert found["IC"] > 0.04
    assert found["IC p"] < 0.01
    assert found["deflated Sharpe"] > 0.95, "after 200 trials"
    assert found["SPA p"] < 0.01
    assert found["in StepM"] == 1
    assert found["noise in StepM"] == 0
