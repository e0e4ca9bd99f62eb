"""The rank-weighted book against scipy's ranks."""

from __future__ import annotations

import numpy as np
import pytest
from book_weights import weights
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import rankdata

from backtest.books.rules.rank_weighted import RankWeighted

NAN = np.nan
LEVELS = st.sampled_from([NAN, -2.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0])


@settings(max_examples=150)
@given(
    signal_TN=hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(2, 12)), elements=LEVELS),
    gross=st.sampled_from([0.5, 1.0, 2.0, 3.0]),
)
def test_weights_are_centred_ranks(signal_TN: np.ndarray, gross: float) -> None:
    enough_T = (~np.isnan(signal_TN)).sum(axis=1) >= 2
    if not enough_T.any():
        with pytest.raises(ValueError, match="needs 2 signals"):
            weights(RankWeighted(gross=gross), signal_TN)
        return
    target_TN = weights(RankWeighted(gross=gross), signal_TN)
    for signal_N, target_N, enough in zip(signal_TN, target_TN, enough_T, strict=True):
        if not enough:
            assert np.isnan(target_N).all()
            continue
        centred_N = np.nan_to_num(
            rankdata(signal_N, nan_policy="omit") - ((~np.isnan(signal_N)).sum() + 1) / 2
        )
        total = np.abs(centred_N).sum()
        np.testing.assert_allclose(target_N, gross * centred_N / total if total else 0.0, rtol=0, atol=1e-15)


def test_by_hand() -> None:
    signal_TN = np.array([[10.0, NAN, 30, 20, 40], [1, 1, 1, 1, 1], [1, 1, 2, NAN, NAN]])
    expected_TN = [[-3 / 4, 0, 1 / 4, -1 / 4, 3 / 4], [0.0] * 5, [-1 / 2, -1 / 2, 1, 0, 0]]
    np.testing.assert_allclose(weights(RankWeighted(), signal_TN), expected_TN, atol=1e-15)


def test_gross_must_be_positive() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        RankWeighted(gross=0)
