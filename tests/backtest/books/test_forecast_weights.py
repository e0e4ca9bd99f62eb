"""The book of a network's own weights against a loop."""

from __future__ import annotations

import numpy as np
import pytest
from book_weights import weights
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from backtest.books.rules.forecast_weights import ForecastWeights

LEVELS = st.sampled_from([np.nan, -2.0, -0.1, 0.0, 0.1, 0.3, 3.0])


@settings(max_examples=100)
@given(
    signal_TN=hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(2, 10)), elements=LEVELS),
    gross=st.sampled_from([0.5, 2.0]),
)
def test_weights_are_deviations_from_the_mean(signal_TN: np.ndarray, gross: float) -> None:
    known_TN = ~np.isnan(signal_TN)
    if not (known_TN.sum(axis=1) >= 2).any():
        return
    both_TN = weights(ForecastWeights(gross=gross), signal_TN)
    long_TN = weights(ForecastWeights(gross=gross, side="long"), signal_TN)
    for t, signal_N in enumerate(signal_TN):
        firms = np.flatnonzero(known_TN[t])
        if len(firms) < 2:
            assert np.isnan(both_TN[t]).all()
            continue
        away = signal_N[firms] - np.mean(signal_N[firms])
        if np.ptp(signal_N[firms]) == 0:
            assert not both_TN[t].any()
            np.testing.assert_allclose(long_TN[t, firms], 0.5 * gross / len(firms))
            continue
        np.testing.assert_allclose(both_TN[t, firms], gross * away / np.abs(away).sum(), atol=1e-12)
        above = np.maximum(away, 0.0)
        np.testing.assert_allclose(long_TN[t, firms], 0.5 * gross * above / above.sum(), atol=1e-12)


def test_a_constant_and_a_multiple_change_nothing() -> None:
    signal_TN = np.random.default_rng(0).normal(size=(6, 8))
    want = weights(ForecastWeights(), signal_TN)
    np.testing.assert_allclose(weights(ForecastWeights(), 3.0 + 0.2 * signal_TN), want, atol=1e-12)


def test_a_long_book_is_not_neutral() -> None:
    with pytest.raises(ValueError, match="a long-only book cannot be neutral"):
        ForecastWeights(side="long", neutral=("beta",))
