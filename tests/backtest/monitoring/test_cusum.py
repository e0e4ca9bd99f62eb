"""The CUSUM against hand-computed cases, published run lengths and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtest.monitoring.cusum import (
    SkillReference,
    alarm_probability,
    limit_for,
    lower_cusum,
    mean_delay,
)

UNIT = SkillReference(mean=0.0, std=1.0, n=1000)


def test_a_hand_computed_case() -> None:
    """Mean 0.04 and deviation 0.1: z = (0.04 - x) / 0.1, and S = max(0, S + z - 0.5), at most 2."""
    x_T = np.array([0.04, -0.06, np.nan, -0.16, -0.06, 0.24, 0.24])
    found = lower_cusum(x_T, SkillReference(0.04, 0.1, 100), slack=0.5, limit=2.0)
    np.testing.assert_allclose(found.sum_T, [0.0, 0.5, 0.5, 2.0, 2.0, 0.0, 0.0], atol=1e-12)
    assert found.alarm_T.tolist() == [False, False, False, True, True, False, False]


def test_an_alarm_stands_until_the_sum_is_back_at_zero() -> None:
    """Between the limit and 0 the alarm still stands."""
    found = lower_cusum(np.array([-4.0, 0.5, 0.5, 0.5, -1.0]), UNIT, slack=0.5, limit=3.0)
    np.testing.assert_allclose(found.sum_T, [3.0, 2.0, 1.0, 0.0, 0.5])
    assert found.alarm_T.tolist() == [True, True, True, False, False]


def test_a_new_model_ends_an_alarm_but_not_a_climb() -> None:
    """Only a standing alarm is ended by a replacement."""
    x_T = np.array([-1.5, -1.5, -4.0, -1.0])
    climb = lower_cusum(x_T, UNIT, slack=0.5, limit=3.0, replaced_T=np.array([False, True, False, True]))
    np.testing.assert_allclose(climb.sum_T, [1.0, 2.0, 3.0, 0.5])
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


@pytest.mark.parametrize(
    ("slack", "limit", "shift", "published"),
    [(0.5, 4.0, 0.0, 336.0), (0.5, 4.0, 1.0, 8.38), (0.5, 5.0, 0.0, 930.0), (0.5, 5.0, 1.0, 10.4)],
)
def test_mean_delays_are_the_published_ones(
    slack: float, limit: float, shift: float, published: float
) -> None:
    """Montgomery's table 9.3; in control, a one-sided CUSUM runs twice as long as a two-sided one."""
    assert mean_delay(slack, limit, shift=shift) == pytest.approx(published, rel=0.01)


def test_alarm_probabilities_agree_with_simulation() -> None:
    """20,000 simulated years; the error of a share of 0.1 is 0.002."""
    x_ST = np.random.default_rng(0).normal(size=(20_000, 250))
    total_S, hit_S = np.zeros(len(x_ST)), np.zeros(len(x_ST), dtype=bool)
    for x_S in x_ST.T:
        total_S = np.maximum(0.0, total_S - x_S - 0.25)
        hit_S |= total_S >= 8.0
    assert alarm_probability(0.25, 8.0, sessions=250) == pytest.approx(hit_S.mean(), abs=0.01)


def test_the_limit_has_the_probability_that_was_asked_for() -> None:
    """`limit_for` inverts `alarm_probability`; an estimated mean needs a higher limit."""
    known = limit_for(0.25, 0.05, sessions=250)
    assert alarm_probability(0.25, known, sessions=250) == pytest.approx(0.05, abs=1e-3)
    assert limit_for(0.25, 0.05, sessions=250, n=250) > known
    assert limit_for(0.25, 0.05, sessions=250, n=10**7) == pytest.approx(known, abs=0.01)


def test_a_limit_for_an_estimated_mean_keeps_its_probability() -> None:
    """5,000 references of 200 values each, and a year after each: about 5% raise an alarm."""
    rng, n = np.random.default_rng(1), 200
    limit = limit_for(0.3, 0.05, sessions=250, n=n)
    mean_S = rng.normal(scale=1 / math.sqrt(n), size=5000)
    total_S, hit_S = np.zeros(5000), np.zeros(5000, dtype=bool)
    for _ in range(250):
        total_S = np.maximum(0.0, total_S + mean_S - rng.normal(size=5000) - 0.3)
        hit_S |= total_S >= limit
    assert hit_S.mean() == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize(("slack", "limit", "named"), [(0.0, 4.0, "slack"), (0.5, math.inf, "limit")])
def test_settings_out_of_range_are_named(slack: float, limit: float, named: str) -> None:
    """The message names the setting."""
    with pytest.raises(ValueError, match=f"CUSUM's {named}"):
        lower_cusum(np.zeros(3), UNIT, slack=slack, limit=limit)


def test_a_reference_without_variation_is_refused() -> None:
    """A deviation of 0 would make every difference infinite."""
    with pytest.raises(ValueError, match="positive deviation"):
        SkillReference(0.0, 0.0, 10)
