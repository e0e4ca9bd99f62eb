"""Probabilistic and deflated Sharpe ratios against skfolio, and PBO against its definition and by hand."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.special import ndtri
from scipy.stats import linregress, rankdata
from skfolio.measures import deflated_sharpe_ratio, expected_max_sharpe_ratio, probabilistic_sharpe_ratio

from backtest.inference.overfitting import (
    deflated_sharpe,
    effective_sessions,
    effective_trials,
    expected_best_sharpe,
    probabilistic_sharpe,
    probability_of_overfitting,
    rademacher_bound,
)

NAN = math.nan
YEAR = math.sqrt(252)


def skewed(seed: int, n: int = 500) -> np.ndarray:
    """Skewed returns in an order without positive autocorrelation: low and high ones take turns."""
    rng = np.random.default_rng(seed)
    sorted_T = np.sort(0.01 * (1.2 - rng.gamma(1.0, 1.0, n)))
    turns = [rng.permutation(half_T) for half_T in (sorted_T[: n // 2], sorted_T[n // 2 :])]
    returns_T: np.ndarray = np.stack(turns, axis=1).ravel()
    assert effective_sessions(returns_T) == n
    return returns_T


def autoregressive(seed: int, phi: float, shape: tuple[int, int]) -> np.ndarray:
    """Returns with autocorrelation phi and mean 0, one book a row."""
    noise = np.random.default_rng(seed).normal(0, 0.01, (shape[0], shape[1] + 100))
    returns: np.ndarray = lfilter([1.0], [1.0, -phi], noise, axis=1)[:, 100:]
    return returns


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


def test_the_expected_best_is_skfolios_and_grows_with_fractions_of_trials() -> None:
    for trials in (2.0, 2.5, 40.3):
        assert expected_best_sharpe(trials, 0.7) == pytest.approx(expected_max_sharpe_ratio(trials, 0.7))
    found = [expected_best_sharpe(trials, 1.0) for trials in (1.0, 1.3, 1.9, 2.0, 2.1)]
    assert found == sorted(found)
    assert found[0] == 0


@pytest.mark.parametrize("phi", [0.2, 0.5, 0.8])
def test_autocorrelated_returns_count_as_fewer_sessions(phi: float) -> None:
    found = [effective_sessions(one_T) for one_T in autoregressive(3, phi, (40, 2000))]
    assert np.mean(found) == pytest.approx(2000 * (1 - phi) / (1 + phi), rel=0.08)
    assert effective_sessions(autoregressive(3, -phi, (1, 2000))[0]) == 2000
    assert effective_sessions(np.array([0.1, NAN, 0.1])) == 2


@pytest.mark.parametrize("phi", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("sessions", [60, 250])
def test_5_per_cent_of_books_without_skill_look_skilled_at_any_autocorrelation(
    phi: float, sessions: int
) -> None:
    """It was 9% at 0.2 and 16% at 0.5 when every session counted as independent."""
    books = autoregressive(4, phi, (3000, sessions))
    found = np.array([probabilistic_sharpe(one_T) for one_T in books])
    assert 0.035 <= np.mean(found > 0.95) <= 0.065


def test_the_best_of_autocorrelated_noise_is_rarely_called_skill() -> None:
    found = []
    for seed in range(200):
        books = autoregressive(seed, 0.5, (50, 300))
        best_T = books[(books.mean(axis=1) / books.std(axis=1)).argmax()]
        found.append(deflated_sharpe(best_T, 50))
    assert np.mean(np.array(found) > 0.95) <= 0.05
    assert 0.3 < np.median(found) < 0.6


def test_trials_that_resemble_each_other_count_as_fewer() -> None:
    rng = np.random.default_rng(5)
    independent_TV = rng.normal(0, 0.01, (800, 40))
    copies_TV = np.repeat(independent_TV[:, :10], 10, axis=1)
    assert effective_trials(copies_TV) == pytest.approx(effective_trials(independent_TV[:, :10]), rel=1e-6)
    assert effective_trials(copies_TV) == pytest.approx(10, rel=0.1)
    assert effective_trials(independent_TV) == pytest.approx(40, rel=0.1)
    assert effective_trials(independent_TV[:, [0] * 7] * np.arange(1, 8)) == pytest.approx(1, abs=1e-6)
    assert effective_trials(independent_TV[:, :1]) == 1
    assert effective_trials(np.zeros((50, 3))) == 0
    halves_TV = independent_TV[:, [0, 0]].copy()
    halves_TV[:400, 0], halves_TV[400:, 1] = NAN, NAN  # the same trial on different sessions
    assert effective_trials(halves_TV) == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_the_best_of_effective_trials_is_the_best_of_correlated_ones(rho: float) -> None:
    """Sharpe ratios with one correlation: their best is sqrt(1 - rho) of that of independent ones."""
    rng = np.random.default_rng(6)
    shared_T1, own_TV = rng.normal(size=(2000, 1)), rng.normal(size=(2000, 100))
    number = effective_trials(math.sqrt(rho) * shared_T1 + math.sqrt(1 - rho) * own_TV)
    best = math.sqrt(1 - rho) * expected_best_sharpe(100, 1.0)
    assert expected_best_sharpe(number, 1.0) == pytest.approx(best, rel=0.05)


def test_rademacher_bounds_are_their_definition() -> None:
    rng = np.random.default_rng(7)
    returns_TV = rng.normal(0.0005, 0.01, (300, 4)) * np.array([1, 2, 3, 4])
    found = rademacher_bound(returns_TV, draws=20_000)
    x_TV = returns_TV / returns_TV.std(axis=0, ddof=1)
    signs = np.random.default_rng(8).choice([-1.0, 1.0], size=(20_000, 300))
    complexity = np.mean((signs @ x_TV / 300).max(axis=1))
    assert found.snooping / YEAR == pytest.approx(2 * complexity, rel=0.03)
    estimation = 3 * math.sqrt(2 * math.log(2 / 0.05) / 300) + math.sqrt(2 * math.log(2 * 4 / 0.05) / 300)
    assert found.estimation == pytest.approx(YEAR * estimation)
    np.testing.assert_allclose(
        found.lower_V, x_TV.mean(axis=0) * YEAR - found.snooping - found.estimation, rtol=1e-12
    )
    copies = rademacher_bound(np.repeat(returns_TV[:, :1], 9, axis=1))
    assert copies.snooping == pytest.approx(0, abs=1e-12), "copies of one trial fit no more noise than one"
    assert rademacher_bound(returns_TV, trials=50).estimation > found.estimation
    assert np.isnan(rademacher_bound(np.ones((30, 2))).lower_V).all()
    with pytest.raises(ValueError, match="trials is 3, fewer than the 4"):
        rademacher_bound(returns_TV, trials=3)


def test_rademacher_bounds_hold_for_all_trials_together() -> None:
    rng = np.random.default_rng(9)
    above = [
        (rademacher_bound(rng.normal(0, 0.01, (250, 60)), draws=100).lower_V > 0).any() for _ in range(50)
    ]
    assert not any(above)


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
