"""Estimated half-spreads against plain loops, and on a market whose spread is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from backtest.costs import corwin_schultz, roll
from features.arrays import FloatArray

Bars = tuple[FloatArray, FloatArray, FloatArray]


def market_with_spread(
    half_spread: float, n_sessions: int, n_firms: int, *, volatility: float = 0.02, overnight: float = 0.0
) -> Bars:
    """High, low and close of firms whose trades are at the bid or the ask around a random walk."""
    rng = np.random.default_rng(4)
    steps = 390
    step_TSN = rng.normal(0.0, volatility / math.sqrt(steps), (n_sessions, steps, n_firms))
    step_TSN[:, 0] += rng.normal(0.0, overnight, (n_sessions, n_firms)) if overnight else 0.0
    value_TSN = 50.0 * np.exp(np.cumsum(step_TSN.reshape(-1, n_firms), axis=0)).reshape(step_TSN.shape)
    price_TSN = value_TSN * (1.0 + half_spread * rng.choice([-1.0, 1.0], step_TSN.shape))
    return price_TSN.max(axis=1), price_TSN.min(axis=1), price_TSN[:, -1]


def with_gaps(bars: Bars) -> Bars:
    rng = np.random.default_rng(5)
    unknown_TN = rng.random(bars[0].shape) < 0.15
    high_TN, low_TN, close_TN = (np.where(unknown_TN, np.nan, price_TN) for price_TN in bars)
    return high_TN, low_TN, close_TN


def day_pair(bars: Bars, s: int, firm: int) -> float:
    """The spread of sessions s-1 and s after Corwin and Schultz, equations 14, 18 and their section II.C."""
    if s == 0:
        return math.nan
    (high_0, high), (low_0, low), (close_0, _) = (price_TN[s - 1 : s + 1, firm] for price_TN in bars)
    if math.isnan(high_0 + high):
        return math.nan
    if close_0 > high:
        high, low = close_0, low * close_0 / high
    elif close_0 < low:
        high, low = high * close_0 / low, close_0
    beta = math.log(high_0 / low_0) ** 2 + math.log(high / low) ** 2
    gamma = math.log(max(high_0, high) / min(low_0, low)) ** 2
    k = 3.0 - 2.0 * math.sqrt(2.0)
    alpha = (math.sqrt(2.0 * beta) - math.sqrt(beta)) / k - math.sqrt(gamma / k)
    return max(2.0 * (math.exp(alpha) - 1.0) / (1.0 + math.exp(alpha)), 0.0)


def test_corwin_schultz_equals_a_loop() -> None:
    bars, window = with_gaps(market_with_spread(0.004, 60, 4, overnight=0.02)), 10
    half_TN = corwin_schultz(*bars, window)
    expected_TN = np.full(half_TN.shape, np.nan)
    for t, firm in np.ndindex(half_TN.shape):
        pairs = [day_pair(bars, s, firm) for s in range(max(t - window + 1, 0), t + 1)]
        known = [pair for pair in pairs if not math.isnan(pair)]
        if len(known) >= 5:
            expected_TN[t, firm] = 0.5 * sum(known) / len(known)
    assert np.isfinite(expected_TN).mean() > 0.5
    np.testing.assert_allclose(half_TN, expected_TN, rtol=1e-9, atol=1e-12)


def test_roll_equals_a_loop() -> None:
    close_TN, window = with_gaps(market_with_spread(0.01, 80, 4))[2], 15
    half_TN = roll(close_TN, window)
    expected_TN = np.full(half_TN.shape, np.nan)
    return_TN = np.full(half_TN.shape, np.nan)
    return_TN[1:] = close_TN[1:] / close_TN[:-1] - 1.0
    for t, firm in np.ndindex(half_TN.shape):
        rows = range(max(t - window + 1, 1), t + 1)
        pairs = np.array([(return_TN[s, firm], return_TN[s - 1, firm]) for s in rows]).reshape(-1, 2)
        pairs = pairs[~np.isnan(pairs).any(axis=1)]
        if len(pairs) >= 8:
            covariance = float(np.cov(pairs.T, bias=True)[0, 1])
            expected_TN[t, firm] = math.sqrt(max(-covariance, 0.0))
    assert np.isfinite(expected_TN).mean() > 0.5
    assert (expected_TN == 0).any()
    np.testing.assert_allclose(half_TN, expected_TN, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("half_spread", [0.005, 0.01, 0.02])
def test_a_known_spread_is_found(half_spread: float) -> None:
    high_TN, low_TN, close_TN = market_with_spread(half_spread, 400, 40, volatility=0.01)
    assert corwin_schultz(high_TN, low_TN, close_TN, 60)[-1].mean() == pytest.approx(half_spread, rel=0.15)
    assert roll(close_TN, 390)[-1].mean() == pytest.approx(half_spread, rel=0.1)


def test_the_size_of_a_gap_overnight_does_not_matter() -> None:
    high_TN, low_TN, close_TN = market_with_spread(0.01, 2, 40, volatility=0.01)
    estimates = []
    for gap in (1.06, 1.10):
        moved_T1 = np.array([[1.0], [gap]])
        assert (low_TN[1] * gap > close_TN[0]).all()  # every low lies above the close of the day before
        estimates.append(corwin_schultz(high_TN * moved_T1, low_TN * moved_T1, close_TN * moved_T1, 1)[1])
    assert (estimates[0] > 0).any()
    np.testing.assert_allclose(estimates[0], estimates[1], rtol=1e-9)


def test_a_market_without_a_spread_has_the_bias_that_the_guide_gives() -> None:
    high_TN, low_TN, close_TN = market_with_spread(0.0, 400, 40, volatility=0.01)
    assert corwin_schultz(high_TN, low_TN, close_TN, 60)[-1].mean() == pytest.approx(0.002, abs=0.0005)


def test_an_estimate_does_not_look_ahead() -> None:
    bars = with_gaps(market_with_spread(0.01, 80, 5))
    late_T1 = np.where(np.arange(80) < 50, 1.0, 3.0)[:, None]
    changed = (bars[0] * late_T1, bars[1] * late_T1, bars[2] * late_T1)
    pairs = (
        (corwin_schultz(*bars, 21), corwin_schultz(*changed, 21)),
        (roll(bars[2], 30), roll(changed[2], 30)),
    )
    for before_TN, after_TN in pairs:
        np.testing.assert_array_equal(before_TN[:50], after_TN[:50])
        assert np.isfinite(before_TN[:50]).any()
        assert not np.array_equal(before_TN[50:], after_TN[50:], equal_nan=True)


def test_bad_prices_are_refused() -> None:
    good_TN = np.full((5, 2), 10.0)
    bad_TN = good_TN.copy()
    bad_TN[3, 1] = 0.0
    with pytest.raises(ValueError, match=r"close of session 3 and firm 1 is 0\.0"):
        roll(bad_TN, 3)
    with pytest.raises(ValueError, match="low of session 3"):
        corwin_schultz(good_TN, bad_TN, good_TN, 3)
    with pytest.raises(ValueError, match="shape of low"):
        corwin_schultz(good_TN, good_TN[:4], good_TN, 3)
    with pytest.raises(ValueError, match="rolling window is 0"):
        roll(good_TN, 0)
