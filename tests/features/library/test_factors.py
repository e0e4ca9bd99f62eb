"""Statistical factors: planted factors are found and removed, also with missing firms; invalid input."""

from __future__ import annotations

import datetime as dt

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from sklearn.decomposition import PCA

from features.library.factors import (
    FIRMS_PER_FACTOR,
    WINDOW,
    factor_residual,
    residualise_factors,
    statistical_factors,
)
from features.panel.derived import daily_return, take_firms
from features.panel.panel import Panel, build_panel

T, N = 420, 40
DAYS = [dt.date(2020, 1, 1) + dt.timedelta(days=i) for i in range(T)]


Planted = tuple[Panel, npt.NDArray[np.float64], npt.NDArray[np.float64]]


@pytest.fixture(scope="module")
def planted() -> Planted:
    """Two common factors plus idiosyncratic returns, for firms of very different volatility."""
    rng = np.random.default_rng(3)
    scale_N = np.exp(rng.normal(-4.0, 0.7, N))
    loadings_KN = np.array([rng.uniform(0.5, 1.5, N), rng.normal(0.0, 1.0, N)]) * scale_N
    common_TN = rng.standard_normal((T, 2)) @ loadings_KN
    own_TN = rng.standard_normal((T, N)) * scale_N * 0.5
    close_TN = 50.0 * np.cumprod(1.0 + np.clip(common_TN + own_TN, -0.5, 0.5), axis=0)
    rows = [
        {"date": day, "ticker": f"F{i:02d}", "close": close_TN[t, i]}
        for i in range(N)
        for t, day in enumerate(DAYS)
    ]
    prices = pl.DataFrame(rows).with_columns(
        *(pl.lit(None, dtype=pl.Float64).alias(name) for name in ("open", "high", "low", "volume")),
        split_ratio=pl.lit(1.0),
        dividend=pl.lit(0.0),
    )
    return build_panel(prices), common_TN, own_TN


def test_loadings_are_principal_components_of_the_past_year(planted: Planted) -> None:
    panel = planted[0]
    last = statistical_factors(panel, 2)[-1]
    r_WN = daily_return(panel)[last.start - WINDOW : last.start]
    z_WN = np.clip((r_WN - r_WN.mean(axis=0)) / r_WN.std(axis=0), -4, 4)
    fitted = PCA(2).fit(z_WN).components_
    np.testing.assert_allclose(last.loadings_LK.T @ last.loadings_LK, np.eye(2), atol=1e-12)
    # sklearn centres the clipped scores again, which changes little
    assert np.abs(np.linalg.det(fitted @ last.loadings_LK)) > 0.999


def test_residual_returns_remove_common_factors_only(planted: Planted) -> None:
    panel, common_TN, own_TN = planted
    rows = slice(statistical_factors(panel, 2)[3].start, T)
    left_TN = factor_residual(panel, 2)[rows]
    scale_N = own_TN.std(axis=0)
    assert np.corrcoef((left_TN / scale_N).ravel(), (own_TN[rows] / scale_N).ravel())[0, 1] > 0.9
    assert abs(np.corrcoef((left_TN / scale_N).ravel(), (common_TN[rows] / scale_N).ravel())[0, 1]) < 0.2


@pytest.mark.parametrize("sessions", [1, 5, 21])
def test_label_residuals_with_missing_firms(planted: Planted, sessions: int) -> None:
    """The size of labels grows with the root of their span; few of them are outliers."""
    panel, growth = planted[0], np.sqrt(sessions)
    rng = np.random.default_rng(0)
    inside_TN = rng.random((T, N)) < 0.8
    estimates = statistical_factors(panel, 2)
    one = estimates[-1]
    # a label made of factors, a constant, and a residual orthogonal to both within the date
    label_TN, own_TN = np.full((T, N), np.nan), np.full((T, N), np.nan)
    factor_TK = rng.normal(0, 0.3 * growth, (T, 2))
    label_TN[:, one.firms_L] = 0.001 + one.deviation_L * (factor_TK @ one.loadings_LK.T)
    for t in range(T):
        here_L = inside_TN[t, one.firms_L]
        firms = one.firms_L[here_L]
        design = np.column_stack((1.0 / one.deviation_L, one.loadings_LK))[here_L]
        drawn = rng.normal(0, 0.8 * growth, len(firms))
        own = drawn - design @ np.linalg.lstsq(design, drawn, rcond=None)[0]
        own_TN[t, firms] = own * one.deviation_L[here_L]
        label_TN[t, firms] += own_TN[t, firms]
    left_TN = residualise_factors(label_TN, inside_TN, (one,), sessions)
    assert np.isnan(left_TN[: one.start]).all()
    assert (np.isfinite(left_TN[one.start :]) == inside_TN[one.start :]).all()
    np.testing.assert_allclose(left_TN[one.start :], own_TN[one.start :], rtol=0, atol=1e-12)


def test_factors_on_a_tile_are_those_of_all_firms(planted: Planted) -> None:
    panel = planted[0]
    tile = take_firms(panel, slice(10, 15))
    assert np.isfinite(factor_residual(tile, 2)).any()
    np.testing.assert_array_equal(factor_residual(tile, 2), factor_residual(panel, 2)[:, 10:15])


def test_factor_count_is_limited_by_firms_and_history(planted: Planted) -> None:
    panel = planted[0]
    many = statistical_factors(panel, 99)
    assert all(one.loadings_LK.shape[1] == N // FIRMS_PER_FACTOR for one in many)
    assert many[0].start >= WINDOW // 2
    assert statistical_factors(take_firms(panel, slice(0, FIRMS_PER_FACTOR - 1)), 1) == ()
    with pytest.raises(ValueError, match="is 0; it must be at least 1"):
        statistical_factors(panel, 0)


def test_dates_with_too_few_firms_are_nan(planted: Planted) -> None:
    panel = planted[0]
    estimates = statistical_factors(panel, 2)
    inside_TN = np.zeros((T, N), dtype=bool)
    inside_TN[:, :5] = True  # an intercept and two factors need six firms
    assert np.isnan(residualise_factors(daily_return(panel), inside_TN, estimates)).all()
    inside_TN[:, 5] = True
    assert np.isfinite(
        residualise_factors(daily_return(panel), inside_TN, estimates)[estimates[0].start :]
    ).any()
