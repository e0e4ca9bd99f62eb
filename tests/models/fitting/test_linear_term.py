"""The linear term of a network is ridge's solution, and no step of the training changes it."""

from __future__ import annotations

import numpy as np
import pytest
from small_panels import NEURAL, QUICK, SMALL, TEST, TRAIN, VALID, arrays, fitted, options_of, panel

from features.arrays import FloatArray, IntArray
from models.batch import PanelTensors
from models.fitting.fit import Fitted, NeuralFitted, fit, fit_stacked, refit
from models.registry import MODELS

RIDGE, TRAINED = (QUICK.model_copy(update={"linear_term": term}) for term in ("ridge", "trained"))
EVERY = RIDGE.model_copy(update={"valid_dates": None})
WITHOUT = {"sector_mean", "kernel_regression", "tabm", "linear_portfolio_transformer"}
WITH = [name for name in NEURAL if name not in WITHOUT]


def term_of(model: Fitted) -> FloatArray:
    """Weights and bias of the linear term, in the target's unit."""
    assert isinstance(model, NeuralFitted)
    assert model.module.linear_term is not None
    weight, bias = (x.detach().double().numpy().ravel() for x in model.module.linear_term.parameters())
    found: FloatArray = np.append(weight, bias) * float(model.module.target_scale)
    return found


def ridge_of(data: PanelTensors, lags: int, train: IntArray = TRAIN) -> FloatArray:
    """Coefficients and intercept of the model ridge, its penalty chosen on the last fifth of the sessions."""
    train = train[train != 40]  # without a firm
    before, last = np.split(train, [4 * len(train) // 5])
    model = fit("ridge", options_of("ridge", {"lags": lags}), data, before, last, fit_config=EVERY, seed=0)
    model = refit(model, data, before, last, fit_config=EVERY, seed=0)
    found: FloatArray = np.append(model.tensors()["coefficient_F"], model.tensors()["intercept"])
    return found


def lags_of(name: str) -> int:
    """Days of the window that the linear term of a model with default options reads."""
    own_days = {"mlp", "self_peer", "cross_peer", "portfolio_transformer"}
    return int(getattr(options_of(name, SMALL[name]), "recent_days", 0)) if name in own_days else 0


@pytest.mark.parametrize("name", WITH)
def test_it_is_ridge_s_solution_and_stays(name: str) -> None:
    data = panel()
    model = fitted(name, data, config=RIDGE)
    np.testing.assert_allclose(term_of(model), ridge_of(data, lags_of(name)), rtol=1e-5, atol=1e-8)
    trained = term_of(fitted(name, data, config=TRAINED))
    assert np.abs(trained - term_of(model)).max() > 1e-4
    before = ridge_forecast(data, lags_of(name), TEST)
    assert not np.allclose(model.forecast(data, TEST), before, equal_nan=True), "the other weights learn"


def ridge_forecast(data: PanelTensors, lags: int, dates: IntArray) -> FloatArray:
    model = fit("ridge", options_of("ridge", {"lags": lags}), data, TRAIN, VALID, fit_config=RIDGE, seed=0)
    return model.forecast(data, dates).astype(np.float64)


@pytest.mark.parametrize("name", sorted(WITHOUT & set(NEURAL)))
def test_models_without_one_are_trained_as_before(name: str) -> None:
    data = panel()
    ours, theirs = fitted(name, data, config=RIDGE).tensors(), fitted(name, data, config=TRAINED).tensors()
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("loss", ["ic", "sharpe"])
def test_losses_without_a_scale_train_it(loss: str) -> None:
    data = panel()
    ours, theirs = (
        fitted("mlp", data, config=config.model_copy(update={"loss": loss})) for config in (RIDGE, TRAINED)
    )
    np.testing.assert_array_equal(term_of(ours), term_of(theirs))


def test_a_refit_solves_it_on_all_sessions() -> None:
    data = panel()
    chosen = fitted("gru", data, config=RIDGE)
    model = refit(chosen, data, TRAIN, VALID, fit_config=RIDGE, seed=0)
    both = np.union1d(TRAIN, VALID)
    np.testing.assert_allclose(term_of(model), ridge_of(data, 0, both), rtol=1e-5, atol=1e-8)
    assert np.abs(term_of(model) - term_of(chosen)).max() > 1e-6


def test_validation_does_not_decide_it() -> None:
    data, given = panel(), arrays()
    given["target_TN"][VALID] = -given["target_TN"][VALID]
    np.testing.assert_array_equal(
        term_of(fitted("gru", data, config=RIDGE)), term_of(fitted("gru", panel(given), config=RIDGE))
    )


def test_seeds_that_are_trained_together_share_it() -> None:
    data = panel()
    stack = fit_stacked(
        *("mlp", options_of("mlp", SMALL["mlp"]), data, TRAIN, VALID), fit_config=RIDGE, seeds=(0, 1)
    )
    for model in stack:
        np.testing.assert_array_equal(term_of(model), term_of(fitted("mlp", data, config=RIDGE)))


def test_only_settings_that_decide_make_another_fit() -> None:
    assert RIDGE.deciding()["linear_term"] == "ridge"
    ic = RIDGE.model_copy(update={"loss": "ic"})
    assert "linear_term" not in TRAINED.deciding() | ic.deciding()


def test_every_network_is_named_here() -> None:
    assert set(WITH) | WITHOUT == set(NEURAL)
    assert all(MODELS[name].kind == "neural" for name in WITH)
