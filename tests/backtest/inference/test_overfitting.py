"""Probabilistic and deflated Sharpe ratios against skfolio, and PBO against its definition and by hand."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import linregress, rankdata
from skfolio.measures import deflated_sharpe_ratio, probabilistic_sharpe_ratio

from backtest.inference.overfitting import (
    deflated_sharpe,
    expected_best_sharpe,
    probabilistic_sharpe,
    probability_of_overfitting,
)

NAN = math.nan
YEAR = math.sqrt(252)


def skewed(seed: int, n: int = 500) -> np.ndarray:
    returns_T: np.ndarray = 0.01 * (1.2 - np.random.default_rng(seed).gamma(1.0, 1.0, n))
    return returns_T


@pytest.mark.parametrize("benchmark", [-0.5, 0.0, 1.0, 2.5])
def test_the_probabilistic_sharpe_ratio_is_skfolios(benchmark: float) -> None:
    returns_T = skewed(0)
    expected = probabilistic_sharpe_ratio(returns_T, benchmark_sharpe_ratio=benchmark / YEAR)
    assert 0.01 < expected < 1
    found = probabilistic_sharpe(np.insert(returns_T, 5, NAN), benchmark)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("trials", [1, 2, 10, 200])
def test_the_deflated_sharpe_ratio_is_skfolios(trials: int) -> None:
    returns_T = skewed(1)
    sharpes_V = np.random.default_rng(2).normal(0, 0.04, trials)  # per session
    deviation = float(sharpes_V.std(ddof=1)) * YEAR if trials > 1 else 0.0
    expected = deflated_sharpe_ratio(returns_T, sharpes_V)
    assert 0.01 < expected < 1
    assert deflated_sharpe(returns_T, trials, deviation=deviation) == pytest.approx(expected, rel=1e-9)


def test_more_trials_deflate_more() -> None:
    returns_T = skewed(1)
    found = [deflated_sharpe(returns_T, trials) for trials in (1, 2, 10, 100, 1000)]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 5
    assert found[0] == probabilistic_sharpe(returns_T)


def test_the_best_of_many_trials_is_as_good_as_the_formula_says() -> None:
    best = np.random.default_rng(0).normal(0, 0.7, (4000, 50)).max(axis=1).mean()
    assert expected_best_sharpe(50, 0.7) == pytest.approx(best, rel=0.02)
    assert expected_best_sharpe(1, 0.7) == 0


def test_returns_without_a_sharpe_ratio_have_no_probability() -> None:
    assert math.isnan(probabilistic_sharpe(np.zeros(9)))
    assert math.isnan(probabilistic_sharpe(np.array([0.1, 0.2, NAN])))
    assert math.isnan(deflated_sharpe(np.array([NAN]), 5))
    with pytest.raises(ValueError, match="infinite"):
        probabilistic_sharpe(np.array([0.1, math.inf, 0.2]))
    with pytest.raises(ValueError, match="trials is 0"):
        deflated_sharpe(skewed(0), 0)
    with pytest.raises(ValueError, match="deviation is -1"):
        expected_best_sharpe(3, -1)


def test_the_best_of_200_noise_variants_is_rarely_called_skill() -> None:
    rng = np.random.default_rng(0)
    found, plain = [], []
    for _ in range(200):
        returns_VT = rng.normal(0, 0.01, (200, 400))
        best_T = returns_VT[(returns_VT.mean(axis=1) / returns_VT.std(axis=1)).argmax()]
        found.append(deflated_sharpe(best_T, 200))
        plain.append(probabilistic_sharpe(best_T))
    assert np.mean(np.array(found) > 0.95) <= 0.05
    assert np.mean(np.array(plain) > 0.95) > 0.95, "without the count of trials almost all look like skill"
    assert 0.4 < np.median(found) < 0.6, "the benchmark is what the best is expected to have"


def test_overfitting_by_hand() -> None:
    # Sharpe ratios per session. Block A: 2 and 1; block B: 0 and 1. The best on A is the first, which is last
    # on B; the best on B is the second, which is last on A. Both have rank 1 of 2: w = 1/3, logit = ln(1/2).
    returns_TV = np.array([[0.03, 0.01], [0.01, 0.00], [-0.01, 0.02], [0.01, 0.00]])
    found = probability_of_overfitting(returns_TV, blocks=2)
    assert found.probability == 1.0
    np.testing.assert_allclose(found.logit_M, math.log(0.5), rtol=1e-12)
    returns_TV[2] = [0.03, -0.01]
    assert probability_of_overfitting(returns_TV, blocks=2).probability == 0.0  # the first is best on both


def test_overfitting_is_its_definition() -> None:
    rng = np.random.default_rng(1)
    returns_TV = rng.normal(0.001, 0.01, (62, 7))  # two sessions are left over for 6 blocks
    blocks = np.split(returns_TV[2:], 6)
    logits, ins, outs = [], [], []
    for choice in combinations(range(6), 3):
        inside = np.concatenate([blocks[i] for i in choice])
        outside = np.concatenate([blocks[i] for i in range(6) if i not in choice])
        best = (inside.mean(axis=0) / inside.std(axis=0)).argmax()
        ins.append(inside.mean(axis=0)[best] / inside.std(axis=0)[best])
        outs.append(outside.mean(axis=0)[best] / outside.std(axis=0)[best])
        w = rankdata(outside.mean(axis=0) / outside.std(axis=0))[best] / 8
        logits.append(math.log(w / (1 - w)))
    found = probability_of_overfitting(returns_TV, blocks=6)
    np.testing.assert_allclose(found.logit_M, logits, atol=1e-12)
    assert found.probability == np.mean(np.array(logits) <= 0)
    assert found.loss_probability == np.mean(found.out_of_sample_M < 0)
    np.testing.assert_allclose(found.in_sample_M, ins, atol=1e-12)
    np.testing.assert_allclose(found.out_of_sample_M, outs, atol=1e-12)
    assert 0 < found.probability < 1


def r_normals(seed: int, n: int) -> np.ndarray:
    """R's ``set.seed(seed); rnorm(n)``: Mersenne Twister, scrambled seed, inversion of 53 random bits."""
    word, words = seed, []
    for step in range(675):
        word = (69069 * word + 1) % 2**32
        if step > 50:  # 50 steps of scrambling, and one word that R replaces by the position
            words.append(word)
    twister = np.random.MT19937()
    twister.state = {
        "bit_generator": "MT19937",
        "state": {"key": np.array(words, dtype=np.uint32), "pos": 624},
    }
    uniform = twister.random_raw(2 * n) * 2.3283064365386963e-10
    normals: np.ndarray = ndtri((np.floor(2**27 * uniform[::2]) + uniform[1::2]) / 2**27)
    return normals


def test_overfitting_is_that_of_the_vignette_of_the_r_package_pbo() -> None:
    """Barr, "Using the PBO package": p_bo 1, p_loss 1, adjusted R2 0.97, and "slope" -0.0030456.

    100 random trials are scaled to the same Sharpe ratio, so what is best in one half is worst in the other.
    The package computes lm(in sample ~ out of sample) and calls the intercept the slope. Its Sharpe ratios
    divide by the deviation with n - 1, ours by that with n.
    """
    np.testing.assert_allclose(r_normals(42, 3), [1.37095845, -0.56469817, 0.36312841], atol=1e-8)
    trials_TV = r_normals(765, 240_000).reshape(100, 2400).T
    trials_TV *= 252**-0.5 / trials_TV.std(axis=0, ddof=1)
    trials_TV -= trials_TV.mean(axis=0)
    found = probability_of_overfitting(trials_TV - 0.03 / 252, blocks=8)
    assert len(found.logit_M) == 70
    assert found.probability == 1
    assert found.loss_probability == 1
    halves = math.sqrt(1199 / 1200)
    fit = linregress(found.out_of_sample_M * halves, found.in_sample_M * halves)
    assert fit.intercept == pytest.approx(-0.0030456, abs=5e-8)
    assert 1 - (1 - fit.rvalue**2) * 69 / 68 == pytest.approx(0.97, abs=0.005)


def test_overfitting_of_noise_is_even_and_of_one_good_variant_is_nought() -> None:
    rng = np.random.default_rng(2)
    noise = [probability_of_overfitting(rng.normal(0, 0.01, (240, 20)), blocks=8) for _ in range(60)]
    assert 0.4 < np.mean([one.probability for one in noise]) < 0.6
    returns_TV = rng.normal(0, 0.01, (240, 20))
    returns_TV[:, 4] += 0.005
    assert probability_of_overfitting(returns_TV).probability < 0.01
    returns_TV[:, 4] = 0.0  # a variant that never trades
    assert np.isfinite(probability_of_overfitting(returns_TV).logit_M).all()


@pytest.mark.parametrize(
    ("returns_TV", "blocks", "message"),
    [
        (np.ones(20), 4, "sessions x variants"),
        (np.ones((20, 1)), 4, "2 variants or more"),
        (np.full((20, 2), NAN), 4, "NaN or infinite"),
        (np.ones((20, 2)), 3, "blocks is 3; it must be even"),
        (np.ones((20, 2)), 0, "blocks is 0; it must be even"),
        (np.ones((20, 2)), 16, "20 sessions are too few for 16 blocks; use at least 32"),
    ],
)
def test_what_has_no_probability_of_overfitting_is_refused(
    returns_TV: np.ndarray, blocks: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        probability_of_overfitting(returns_TV, blocks=blocks)
