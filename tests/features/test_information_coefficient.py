"""The information coefficient of validation and backtest, against scipy for each date."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_correlations import one_date
from small_panels import options_of

from backtest.forecasts.metrics import forecast_metrics
from backtest.inference.means import newey_west_t
from features.information_coefficient import ic_by_date, is_constant, rank_ic_by_date
from models.batch import PanelTensors
from models.fitting.config import FitConfig
from models.fitting.fit import fit
from pipelines.audit.checks.skill import compare_with_null

NAN = np.nan


def example(seed: int, T: int = 12, N: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Ties, unknown values, and dates with a constant forecast, a constant label or too few firms."""
    rng = np.random.default_rng(seed)
    forecast_TN = np.round(rng.normal(size=(T, N)), 1)
    label_TN = np.round(rng.normal(0, 0.02, (T, N)), 2)
    forecast_TN[rng.random((T, N)) < 0.3] = NAN
    label_TN[rng.random((T, N)) < 0.2] = NAN
    forecast_TN[0] = 0.1
    label_TN[1] = 0.1
    forecast_TN[2, 2:] = NAN
    forecast_TN[3, 0], label_TN[3, 1] = np.inf, -np.inf
    return forecast_TN, label_TN


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), N=st.integers(3, 12))
def test_ics_equal_scipy_on_every_date(seed: int, N: int) -> None:
    forecast_TN, label_TN = example(seed, N=N)
    for ranks, by_date in ((False, ic_by_date), (True, rank_ic_by_date)):
        want_T = [one_date(f, y, ranks=ranks) for f, y in zip(forecast_TN, label_TN, strict=True)]
        np.testing.assert_allclose(by_date(forecast_TN, label_TN), want_T, rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            by_date(forecast_TN.astype(np.float32), label_TN), want_T, rtol=0, atol=1e-6
        )


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000))
def test_unknown_columns_and_other_dates_do_not_change_a_bit(seed: int) -> None:
    forecast_TN, label_TN = example(seed)
    spaced = [np.insert(x_TN, [0, 4, 4, 9], NAN, axis=1) for x_TN in (forecast_TN, label_TN)]
    for by_date in (ic_by_date, rank_ic_by_date):
        every_T = by_date(forecast_TN, label_TN)
        np.testing.assert_array_equal(by_date(*spaced), every_T)
        single = [by_date(forecast_TN[t : t + 1], label_TN[t : t + 1])[0] for t in range(len(every_T))]
        np.testing.assert_array_equal(single, every_T)
    order_N = np.random.default_rng(seed).permutation(9)
    np.testing.assert_array_equal(
        rank_ic_by_date(forecast_TN[:, order_N], label_TN[:, order_N]), rank_ic_by_date(forecast_TN, label_TN)
    )


def test_constant_forecast_has_zero_ic_and_constant_label_nan() -> None:
    up = np.arange(4.0)
    few = np.array([1.0, 2.0, NAN, NAN])
    forecast_TN, label_TN = np.stack([up * 0 + 0.1, up, up, up]), np.stack([up, up * 0 + 0.1, few, -up])
    for by_date in (ic_by_date, rank_ic_by_date):
        np.testing.assert_allclose(by_date(forecast_TN, label_TN), [0.0, NAN, NAN, -1.0], rtol=1e-12)
        assert by_date(forecast_TN, label_TN)[0] == 0
        assert by_date(forecast_TN[:0], label_TN[:0]).shape == (0,)
    with pytest.raises(ValueError, match="shape of the label is"):
        ic_by_date(forecast_TN, label_TN[:, 1:])


def test_audit_ignores_dates_with_constant_forecasts() -> None:
    rng = np.random.default_rng(0)
    label_DN = rng.normal(size=(40, 30))
    forecast_DN = (label_DN + rng.normal(size=(40, 30))).astype(np.float32)
    forecast_DN[20:] = 0.5
    forecast_DN[20:, 3] = NAN
    assert is_constant(forecast_DN).tolist() == [False] * 20 + [True] * 20
    assert compare_with_null(forecast_DN, label_DN) == compare_with_null(forecast_DN[:20], label_DN[:20])
    assert compare_with_null(forecast_DN[20:], label_DN[20:])["dates"] == 0


TRAIN, VALID = np.arange(0, 35), np.arange(37, 57)


def panel_with_constant_dates(seed: int) -> PanelTensors:
    """Five characteristics of 40 firms, with ties; on a third of the dates all firms have equal values."""
    rng = np.random.default_rng(seed)
    z_TNF = np.round(rng.normal(size=(60, 40, 5)), 1)
    target_TN = np.round(0.3 * z_TNF[..., 0] + rng.normal(size=(60, 40)), 1)
    z_TNF[::3] = 0.5
    target_TN[rng.random((60, 40)) < 0.2] = NAN
    target_TN[40] = 0.25
    target_TN[43, 2:] = NAN
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(60, 40, 1)),
        characteristics_TNF=z_TNF,
        mask_TN=rng.random((60, 40)) < 0.9,
        group_TN=np.zeros((60, 40), dtype=int),
        target_TN=target_TN,
        window=2,
        characteristic_names=("return_1", "b", "c", "d", "e"),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("zero", {}),
        ("reversal", {"characteristic": "return_1"}),
        ("ridge", {"alphas": [0.1]}),
        ("lightgbm", {"rounds": 3, "evaluate_every": 3, "min_data_in_leaf": 20}),
        ("mlp", {"width": 8, "recent_days": 1}),
    ],
)
def test_validation_ic_of_a_fit_equals_that_of_a_backtest(
    name: str, options: dict[str, Any], seed: int
) -> None:
    data = panel_with_constant_dates(seed)
    model = fit(
        name, options_of(name, options), data, TRAIN, VALID, fit_config=FitConfig(epochs=1), seed=seed
    )
    target_TN = np.where(data.mask_TN[VALID].numpy(), data.target_TN[VALID].numpy(), NAN)
    measured = forecast_metrics(model.forecast(data, VALID), target_TN)
    assert measured.n_dates == len(VALID) - 2  # dates with constant or too few labels
    assert model.history[-1].valid_rank_ic == pytest.approx(measured.rank_ic, abs=1e-6)
    if not np.isnan(model.history[-1].valid_ic):
        assert model.history[-1].valid_ic == pytest.approx(measured.ic, abs=1e-6)
    assert measured.ic_t == newey_west_t(measured.ic_T, measured.lags) or name == "zero"


def test_coverage_by_hand() -> None:
    label_TN = np.tile(np.arange(4.0), (6, 1))
    label_TN[4] = 1.0  # constant labels have no IC
    label_TN[5, 1:] = NAN  # too few labels
    forecast_TN = np.array(
        [[1.0, 2, 3, 4], [4, 2, NAN, 1], [5, 5, 5, NAN], [NAN] * 4, [1, 2, 3, 4], [1, 2, 3, 4]]
    )
    measured = forecast_metrics(forecast_TN, label_TN)
    assert measured.n_dates == 3
    assert measured.coverage_dates == 3 / 4
    assert measured.coverage_firms == 10 / 12
    np.testing.assert_allclose(measured.rank_ic_T, [1, -1, 0, NAN, NAN, NAN], atol=1e-12)
    assert measured.rank_ic == pytest.approx(0.0, abs=1e-12)
