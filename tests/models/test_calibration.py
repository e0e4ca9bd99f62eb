"""Forecasts of losses without a scale are in the unit of the target, everywhere and without the test."""

from __future__ import annotations

import json

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from small_panels import NEURAL, QUICK, SMALL, TEST, TRAIN, VALID, arrays, fitted, options_of, panel
from torch import Tensor

from backtest.forecasts.metrics import r2_oos
from models.batch import Ablation
from models.calibration import Line, calibrate, carry_over
from models.explain.groups import explain_groups
from models.explain.peers import PeerGame
from models.fitted import FittedState
from models.fitting.config import LossName
from models.fitting.fit import NeuralFitted, fit, fit_stacked, refit, restore

LONGER = QUICK.model_copy(update={"epochs": 4, "patience": 4, "dates_per_epoch": 40, "lr": 0.01})
FAMILIES = {"one": (0,), "two": (1,), "three": (2,)}


def trained(name: str = "temporal_peer", loss: LossName = "ic") -> NeuralFitted:
    model = fitted(name, config=LONGER.model_copy(update={"loss": loss}))
    assert isinstance(model, NeuralFitted)
    return model


def raw(model: NeuralFitted, dates: np.ndarray) -> np.ndarray:
    """Outputs of the network without its calibration."""
    model = restore(model.state())  # type: ignore[assignment]
    model.module.calibration = None
    return model.forecast(panel(), dates)


def test_a_line_is_least_squares_with_errors_clustered_by_date() -> None:
    rng = np.random.default_rng(0)
    output_DN = rng.normal(size=(12, 9)) + 0.5 * rng.normal(size=(12, 1))
    target_DN = 0.02 + 0.3 * output_DN + rng.normal(size=(12, 9)) + rng.normal(size=(12, 1))
    output_DN[rng.random((12, 9)) < 0.2] = np.nan
    target_DN[rng.random((12, 9)) < 0.2] = np.nan
    target_DN[3] = np.nan
    (line,) = calibrate(output_DN[..., None], target_DN[..., None])
    date, _ = known = np.nonzero(np.isfinite(output_DN) & np.isfinite(target_DN))
    weight = 1.0 / np.bincount(date)[date]
    reference = sm.WLS(target_DN[known], sm.add_constant(output_DN[known]), weight).fit(
        cov_type="cluster", cov_kwds={"groups": date, "use_correction": False}
    )
    assert line.slope == line.measured == pytest.approx(reference.params[1], rel=1e-10)
    assert line.intercept == pytest.approx(reference.params[0], rel=1e-10)
    assert line.error == pytest.approx(reference.bse[1] * np.sqrt(11 / 10), rel=1e-10)


def test_a_slope_that_validation_cannot_tell_from_0_keeps_the_order_and_is_said_to_be_uncertain() -> None:
    rng = np.random.default_rng(1)
    output_DN = rng.normal(size=(30, 20))
    for strength, uncertain in ((1.0, False), (0.0, True), (-1.0, True)):
        target_DN = strength * output_DN + rng.normal(size=(30, 20))
        (line,) = calibrate(output_DN[..., None], target_DN[..., None])
        assert line.measured == pytest.approx(strength, abs=0.15)
        assert line.uncertain == uncertain
        assert line.slope == pytest.approx(max(line.measured, line.error))
        assert line.slope > 0.0
        mean = line.intercept + line.slope * output_DN.mean()
        assert mean == pytest.approx(target_DN.mean()), "the mean is right in any case"
    with pytest.raises(ValueError, match=r"the slope -0\.1; both must be finite, and the slope positive"):
        Line(0.0, -0.1, -0.1, 0.2)


def test_outputs_that_are_all_the_same_become_the_mean_target() -> None:
    target_DNK = np.random.default_rng(2).normal(0.3, 1.0, (6, 5, 1))
    same = calibrate(np.full((6, 5, 1), 0.7), target_DNK)
    (line,) = same
    assert line.intercept + line.slope * 0.7 == pytest.approx(target_DNK.mean())
    assert line.uncertain
    (again,) = carry_over(same, np.full((6, 5, 1), 0.3), np.full((6, 5, 1), -2.0))
    assert again.intercept + again.slope * -2.0 == pytest.approx(0.3)


@pytest.mark.parametrize("loss", ["ic", "pairwise"])
def test_forecasts_are_the_expected_target_of_validation_and_keep_their_order(loss: LossName) -> None:
    data, model = panel(), trained(loss=loss)
    target_VN = data.target_TN.numpy()[VALID]
    (line,) = calibrate(model.forecast(data, VALID)[..., None], target_VN[..., None])
    assert line.measured == pytest.approx(1.0, abs=1e-4)
    assert line.intercept == pytest.approx(0.0, abs=1e-6)
    forecast_DN, output_DN = model.forecast(data, TEST), raw(model, TEST)
    np.testing.assert_array_equal(np.isnan(forecast_DN), np.isnan(output_DN))
    for forecast_N, output_N in zip(forecast_DN, output_DN, strict=True):
        np.testing.assert_array_equal(np.argsort(forecast_N), np.argsort(output_N))
    target_DN = data.target_TN.numpy()[TEST].astype(np.float64)
    assert r2_oos(forecast_DN, target_DN) > 0.2, "half of the variance can be forecast"
    assert r2_oos(forecast_DN, target_DN) > r2_oos(output_DN, target_DN)


@pytest.mark.parametrize("loss", ["mse", "huber", "quantile"])
def test_losses_with_a_scale_are_left_alone(loss: LossName) -> None:
    model = fitted("mlp", config=QUICK.model_copy(update={"loss": loss}))
    assert isinstance(model, NeuralFitted)
    assert model.module.calibration is None
    assert "calibration" not in model.state().config


@pytest.mark.parametrize("name", NEURAL)
def test_every_way_to_a_forecast_uses_the_same_line(name: str) -> None:
    """The forecast, that of some firms, and that of coalitions, from which all explanations are made."""
    data, model = panel(), fitted(name, config=QUICK.model_copy(update={"loss": "ic"}))
    assert isinstance(model, NeuralFitted)
    assert model.module.calibration is not None
    session = int(TEST[3])
    batch = data.batch(torch.tensor([session]))
    forecast_N = model.forecast(data, np.array([session]))[0, batch.firms_N.numpy()]
    output_N = raw(model, np.array([session]))[0, batch.firms_N.numpy()]
    line = model.module.calibration[-1]
    np.testing.assert_allclose(forecast_N, line.intercept + line.slope * output_N, rtol=1e-5, atol=1e-9)
    atol = 1e-3 * float(np.abs(forecast_N).max())

    def same(y: Tensor | np.ndarray, want: np.ndarray) -> None:
        np.testing.assert_allclose(np.asarray(y), want, rtol=1e-4, atol=atol)

    with torch.no_grad():
        same(model.module(batch)[0], forecast_N)
        same(model.module.horizons(batch)[0, :, -1], forecast_N)
        same(model.module.forecast_targets(batch, Ablation(), torch.tensor([1, 4]))[0], forecast_N[[1, 4]])
    found = explain_groups(model, data, np.array([session]), FAMILIES)
    same(found.base_E + found.values_EP.sum(axis=1), forecast_N)
    if model.module.uses_peers:
        game = PeerGame.of(model.module, batch)
        same(game.forecasts(np.ones((1, game.n_firms), dtype=bool))[0], forecast_N)
        steps = game.steps(np.arange(game.n_firms), np.arange(3), np.arange(game.n_firms))
        same(
            game.forecasts(np.zeros((1, game.n_firms), dtype=bool))[0, :3] + steps.sum(axis=1), forecast_N[:3]
        )


def test_a_stored_model_gives_the_same_forecasts_and_names_a_damaged_line() -> None:
    data, model = panel(), trained()
    state = model.state()
    stored = FittedState(json.loads(json.dumps(state.config)), state.tensors)
    np.testing.assert_array_equal(restore(stored).forecast(data, TEST), model.forecast(data, TEST))
    (line,) = stored.config["calibration"]
    for damage in ({**line, "slope": 0.0}, {**line, "slope": float("nan")}, {"slope": 1.0}):
        damaged = FittedState({**stored.config, "calibration": [damage]}, state.tensors)
        with pytest.raises(ValueError, match=r"A calibration has|configuration is damaged"):
            restore(damaged)


def test_each_seed_of_a_stack_is_calibrated() -> None:
    data = panel()
    config = QUICK.model_copy(update={"loss": "ic"})
    stack = fit_stacked(
        "mlp", options_of("mlp", SMALL["mlp"]), data, TRAIN, VALID, fit_config=config, seeds=[0, 1]
    )
    target_VN = data.target_TN.numpy()[VALID]
    for model in stack:
        assert model.module.calibration is not None
        (line,) = calibrate(model.forecast(data, VALID)[..., None], target_VN[..., None])
        (own,) = model.module.calibration
        assert line.measured * own.slope == pytest.approx(own.measured, rel=1e-4)


def test_a_refit_keeps_the_size_that_was_measured_before_it_saw_validation() -> None:
    data, config = panel(), LONGER.model_copy(update={"loss": "ic", "refit": True})
    chosen = fit("mlp", options_of("mlp", SMALL["mlp"]), data, TRAIN, VALID, fit_config=config, seed=0)
    again = refit(chosen, data, TRAIN, VALID, fit_config=config, seed=0)
    before, after = (model.forecast(data, VALID).astype(np.float64) for model in (chosen, again))
    assert not np.array_equal(before, after)
    for moment in (np.nanmean, np.nanstd):
        sizes = [np.mean([moment(row) for row in model]) for model in (before, after)]
        assert sizes[1] == pytest.approx(sizes[0], rel=0.1, abs=1e-3)
    assert isinstance(again, NeuralFitted)
    assert isinstance(chosen, NeuralFitted)
    assert again.module.calibration is not None
    assert chosen.module.calibration is not None
    assert again.module.calibration[0].slope != chosen.module.calibration[0].slope


def test_the_test_segment_does_not_calibrate() -> None:
    given = arrays()
    given["target_TN"][60:62] = 9.0
    given["target_TN"][74:] = -9.0
    config = QUICK.model_copy(update={"loss": "pairwise"})
    changed = fitted("mlp", panel(given), config=config)
    model = fitted("mlp", config=config)
    assert model.module.calibration == changed.module.calibration  # type: ignore[attr-defined]


def test_every_horizon_has_its_own_line() -> None:
    given = arrays()
    given["path_TNK"] = 5.0 * given["target_TN"][..., None] + 0.3
    data = panel(given)
    config = LONGER.model_copy(update={"loss": "ic"})
    model = fit(
        "seq2seq", options_of("seq2seq", SMALL["seq2seq"]), data, TRAIN, VALID, fit_config=config, seed=0
    )
    assert isinstance(model, NeuralFitted)
    path_DNK = model.horizons(data, VALID)
    assert path_DNK.shape[2] == 2
    target_DNK = np.concatenate([given["path_TNK"], given["target_TN"][..., None]], axis=2)[VALID]
    for k in range(2):
        part = [one[..., k : k + 1] for one in (path_DNK, target_DNK)]
        (line,) = calibrate(*part)
        assert line.measured == pytest.approx(1.0, abs=1e-3)
        assert line.intercept == pytest.approx(0.0, abs=1e-3)
    np.testing.assert_array_equal(path_DNK[..., -1], model.forecast(data, VALID))
