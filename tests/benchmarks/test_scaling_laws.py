"""The laws of ``benchmarks/scaling.py`` are found again in numbers that follow them."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from scaling_laws import best_of_each, fit_law, frontier, interval, power, resampled

GRID = np.array(list(itertools.product((1e3, 4e3, 1.5e4, 6e4, 2.5e5), (250, 500, 1000, 2000, 4000, 8000))))
N_C, D_C = GRID[:, 0], GRID[:, 1]


def test_the_exponents_of_a_planted_law_are_found() -> None:
    planted_C = 2e-4 + 0.4 * N_C**-0.6 + 0.9 * D_C**-0.8
    law = fit_law(N_C, D_C, planted_C)
    assert law.floor == pytest.approx(2e-4, rel=1e-3)
    assert law.exponent_n == pytest.approx(0.6, abs=1e-3)
    assert law.exponent_d == pytest.approx(0.8, abs=1e-3)
    assert law.error < 1e-5
    np.testing.assert_allclose(law.excess(N_C, D_C), planted_C, rtol=1e-4)
    assert law.best_size_exponent() == pytest.approx(0.8 / 1.4, abs=1e-3)


def test_the_intervals_of_a_noisy_law_contain_its_exponents_and_shrink_with_more_blocks() -> None:
    rng = np.random.default_rng(3)
    planted_C = 0.4 * N_C**-0.6 + 0.9 * D_C**-0.8

    def width(blocks: int) -> tuple[float, float, float]:
        noise_CSK = 1.5 * rng.standard_normal((len(N_C), 2, blocks))
        excess_CSK = planted_C[:, None, None] * (1.0 + noise_CSK)
        found = [fit_law(N_C, D_C, one_C) for one_C in resampled(excess_CSK, 25)]
        low, high = interval([one.exponent_d for one in found])
        return low, high, high - low

    low, high, wide = width(60)
    assert low < 0.8 < high
    assert width(600)[2] < wide


def test_cells_without_excess_are_left_out_and_six_are_needed() -> None:
    planted_C = 0.4 * N_C**-0.6 + 0.9 * D_C**-0.8
    planted_C[::7] = -1.0
    assert fit_law(N_C, D_C, planted_C).exponent_n == pytest.approx(0.6, abs=1e-3)
    with pytest.raises(ValueError, match="4 cells have a positive excess loss"):
        fit_law(N_C[:4], D_C[:4], np.ones(4))


def test_the_best_size_of_each_number_of_sessions_is_the_bottom_of_its_valley() -> None:
    bottom_C = 3.0 * D_C**1.1
    excess_C = 0.01 * np.exp(0.2 * np.log(N_C / bottom_C) ** 2)
    best = best_of_each(D_C, N_C, excess_C)
    for d, (size, inside) in best.items():
        if inside:
            assert size == pytest.approx(3.0 * d**1.1, rel=1e-6)
    assert best[500.0][1]
    assert not best_of_each(D_C, N_C, N_C**-0.5)[500.0][1], "the largest size is the best: no valley"
    assert power(list(best), [3.0 * d**1.1 for d in best]) == pytest.approx((1.1, np.log(3.0)))


def test_the_frontier_holds_the_cells_that_no_cheaper_cell_undercuts() -> None:
    flops_C = np.array([1.0, 2.0, 2.0, 3.0, 4.0, 5.0])
    excess_C = np.array([0.9, 0.7, 0.6, 0.8, -0.1, 0.5])
    assert frontier(flops_C, excess_C) == [0, 2, 5]


def test_a_draw_uses_the_same_blocks_for_all_cells_and_skips_missing_seeds() -> None:
    rng = np.random.default_rng(0)
    block_K = rng.standard_normal(20)
    excess_CSK = np.array([1.0, 5.0, 9.0])[:, None, None] + np.tile(block_K, (3, 2, 1))
    excess_CSK[1, 1] = np.nan
    for drawn_C in resampled(excess_CSK, 5):
        np.testing.assert_allclose(np.diff(drawn_C), 4.0)
