"""Confidence sequences hold on every night, and find skill not much later than a test of fixed length."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from backtest.inference.anytime import BURN_IN, confidence_sequence
from backtest.inference.means import newey_west_error


def test_bounds_are_those_of_the_formula() -> None:
    x_T = np.random.default_rng(1).normal(0.02, 0.1, 300)
    lower_T, upper_T = confidence_sequence(x_T, level=0.1, tightest=100)
    assert np.isnan(lower_T[: BURN_IN - 1]).all()
    squared = (-2 * math.log(0.1) + math.log(1 - 2 * math.log(0.1))) / 100
    for n in (BURN_IN, 100, 300):
        known = x_T[:n]
        correction = 1 - 1 / n + 1 / (3 * n**2)
        root = math.sqrt(n * squared + 1)
        half = math.sqrt(known.var() / correction * 2 * root**2 / (n**2 * squared) * math.log(root / 0.1))
        assert lower_T[n - 1] == pytest.approx(known.mean() - half, rel=1e-12)
        assert upper_T[n - 1] == pytest.approx(known.mean() + half, rel=1e-12)


def test_the_variance_of_overlapping_values_is_that_of_newey_and_west() -> None:
    x_T = np.convolve(np.random.default_rng(2).normal(size=304), np.ones(5), "valid")
    one_T, two_T = (confidence_sequence(x_T, overlap=overlap) for overlap in (1, 5))
    n = 250
    ratio = (two_T[1] - two_T[0])[n - 1] / (one_T[1] - one_T[0])[n - 1]
    share, single = 25 / n, 1 / n
    expected = newey_west_error(x_T[:n], 24) / newey_west_error(x_T[:n], 0)
    expected *= math.sqrt((1 - single + single**2 / 3) / (1 - share + share**2 / 3))
    assert ratio == pytest.approx(expected, rel=1e-9)
    assert np.isnan(two_T[0][: 5 * BURN_IN - 1]).all()
    assert np.isfinite(two_T[0][5 * BURN_IN - 1 :]).all()


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "overlap"])
def test_zero_is_excluded_in_at_most_5_percent_of_seasons_in_which_it_is_true(kind: str) -> None:
    rng, overlap = np.random.default_rng(3), 5 if kind == "overlap" else 1
    missed, seasons = 0, 2000
    for _ in range(seasons):
        x_T = rng.standard_t(4, 504) if kind == "heavy tails" else rng.normal(0.0, 0.1, 504)
        x_T = np.convolve(x_T, np.ones(overlap), "valid")[:500]
        lower_T, upper_T = confidence_sequence(x_T, overlap=overlap)
        missed += bool(((lower_T > 0) | (upper_T < 0)).any())
    assert 0 < missed <= 0.05 * seasons


@pytest.mark.parametrize("sd", [0.08, 0.12])
def test_an_ic_of_3_percent_is_found_nearly_as_soon_as_by_a_test_of_fixed_length(sd: float) -> None:
    """The fixed test has the same level, and the length at which it finds the skill in 80% of seasons."""
    rng, found = np.random.default_rng(4), []
    for _ in range(400):
        lower_T, _ = confidence_sequence(rng.normal(0.03, sd, 1500))
        found.append(int(np.argmax(lower_T > 0)) + 1 if (lower_T > 0).any() else 1500)
    fixed = ((norm.ppf(0.975) + norm.ppf(0.8)) * sd / 0.03) ** 2
    assert np.median(found) <= 1.6 * fixed


def test_unknown_values_keep_the_bounds_before_them() -> None:
    known_T = np.random.default_rng(5).normal(size=60)
    x_T = np.insert(known_T, [0, 50], np.nan)
    for got_T, whole_T in zip(confidence_sequence(x_T), confidence_sequence(known_T), strict=True):
        np.testing.assert_array_equal(got_T, np.concatenate([[np.nan], whole_T[:50], whole_T[49:]]))


def test_a_series_without_values_has_no_bounds() -> None:
    for bound_T in confidence_sequence(np.full(3, np.nan)):
        assert np.isnan(bound_T).all()
        assert bound_T.shape == (3,)


@pytest.mark.parametrize(("options", "said"), [({"overlap": 0}, "overlap"), ({"level": 1.0}, "level")])
def test_wrong_options_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        confidence_sequence(np.zeros(50), **options)  # type: ignore[arg-type]  # wrong on purpose
