"""The CUSUM against hand-computed cases, sums of likelihood ratios and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from backtest.monitoring import SkillReference, detector_limit, lower_cusum, typical_delay

UNIT = SkillReference(mean=0.0, std=1.0, n=1000)


def test_a_hand_computed_case() -> None:
    """For k = 0.5, exp(S) - 1 is R = (1 + R) exp(z - 0.5), with z = (0.04 - x) / 0.1."""
    x_T = np.array([0.09, 0.04, np.nan, -0.16, -0.16])
    found = lower_cusum(x_T, SkillReference(0.04, 0.1, 100), slack=0.5, limit=3.0)
    first = math.exp(-1.0)
    second = (1 + first) * math.exp(-0.5)
    third = (1 + second) * math.exp(1.5)
    expected = [math.log1p(one) for one in (first, second, second, third)]
    np.testing.assert_allclose(found.sum_T, [*expected, 3.0], rtol=1e-12)
    assert found.alarm_T.tolist() == [False, False, False, False, True]


def test_the_sum_is_that_of_the_likelihood_ratios_of_every_first_session() -> None:
    x_T, slack = np.random.default_rng(3).normal(-0.1, 1.0, 40), 0.3
    found = lower_cusum(x_T, UNIT, slack=slack, limit=1e3)
    for t in (0, 7, 39):
        ratio_T = norm.pdf(x_T[: t + 1], -2 * slack) / norm.pdf(x_T[: t + 1])
        total = sum(ratio_T[first:].prod() for first in range(t + 1))
        assert math.expm1(2 * slack * found.sum_T[t]) == pytest.approx(total, rel=1e-9)


def test_an_alarm_stands_until_the_sum_is_at_half_of_the_limit() -> None:
    """Between the limit and its half the alarm still stands."""
    found = lower_cusum(np.array([-9.0, 0.5, 0.5, 0.5, -1.0]), UNIT, slack=0.5, limit=4.0)
    assert found.sum_T[0] == 4.0
    assert (found.sum_T[:3] > 2.0).all()
    assert found.sum_T[3] < 2.0 < found.sum_T[4]
    assert found.alarm_T.tolist() == [True, True, True, False, False]


def test_a_new_model_ends_an_alarm_but_not_a_climb() -> None:
    """Only a standing alarm is ended by a replacement."""
    x_T = np.array([-1.5, -1.5, -4.0, -1.0])
    replaced_T = np.array([False, True, False, True])
    climb = lower_cusum(x_T, UNIT, slack=0.5, limit=3.0, replaced_T=replaced_T)
    alone = lower_cusum(x_T, UNIT, slack=0.5, limit=3.0)
    np.testing.assert_array_equal(climb.sum_T[:3], alone.sum_T[:3])
    assert climb.sum_T[3] == pytest.approx(math.log1p(math.exp(0.5)))
    assert climb.alarm_T.tolist() == [False, False, True, False]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60), st.floats(0.05, 1.0), st.floats(0.5, 8.0))
def test_later_values_change_nothing_before(values: list[float], slack: float, limit: float) -> None:
    """Every prefix has the same sums, which stay within 0 and the limit."""
    x_T = np.array(values)
    whole = lower_cusum(x_T, UNIT, slack=slack, limit=limit)
    part = lower_cusum(x_T[: len(x_T) // 2], UNIT, slack=slack, limit=limit)
    np.testing.assert_array_equal(whole.sum_T[: len(part.sum_T)], part.sum_T)
    assert (whole.sum_T >= 0).all()
    assert (whole.sum_T <= limit).all()
    assert (whole.alarm_T | (whole.sum_T < limit)).all()


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60), st.floats(0.01, 2.0))
def test_a_lower_series_never_has_a_lower_sum(values: list[float], fall: float) -> None:
    """A series that is lower everywhere accumulates at least as much."""
    x_T = np.array(values)
    high = lower_cusum(x_T, UNIT, slack=0.25, limit=5.0)
    low = lower_cusum(x_T - fall, UNIT, slack=0.25, limit=5.0)
    assert (low.sum_T >= high.sum_T).all()


@pytest.mark.parametrize("slack", [0.15, 0.35])
def test_a_limit_keeps_its_probability_and_finds_a_loss_in_the_typical_time(slack: float) -> None:
    """2,000 seasons of 250 sessions without a loss, of which 5% may raise an alarm, and as many with one."""
    rng, limit = np.random.default_rng(4), detector_limit(slack, 0.05, sessions=250)
    false, delays = 0, []
    for _ in range(2000):
        false += bool(lower_cusum(rng.normal(size=250), UNIT, slack=slack, limit=limit).alarm_T.any())
    for _ in range(200):
        lost = lower_cusum(rng.normal(-2 * slack, 1.0, 800), UNIT, slack=slack, limit=limit).alarm_T
        delays.append(int(lost.argmax()) + 1)
        assert lost.any()
    assert 0.01 * 2000 < false <= 0.05 * 2000
    assert np.mean(delays) == pytest.approx(typical_delay(slack, limit), rel=0.15)


def test_the_typical_delay_is_that_of_a_series_without_noise() -> None:
    limit = detector_limit(0.3, 0.05, sessions=250)
    found = lower_cusum(np.full(100, -0.6), UNIT, slack=0.3, limit=limit)
    assert int(found.alarm_T.argmax()) + 1 == math.ceil(typical_delay(0.3, limit))
