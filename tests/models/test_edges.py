"""Edge cases of every model: a single firm, no history, constant labels, missing features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_panels import options_of

from models.batch import PanelTensors
from models.fitted import Diverged, Fitted, NoTrainingSignal
from models.fitting.config import NET_UTILITY, FitConfig, LossName
from models.fitting.fit import fit
from models.fitting.losses import LOSSES, QUANTILE
from models.registry import MODELS
from models.spec import BENCHMARKS

T, N, C, F, W, S = 70, 16, 2, 3, 5, 3
NAMES = ("return_21", "log_market_equity", "noise")
TRAIN, VALID, TEST = np.arange(5, 40), np.arange(42, 54), np.arange(56, 70)
FITTED = [name for name, entry in MODELS.items() if entry.kind != "ensemble"]
NEURAL = [name for name, entry in MODELS.items() if entry.kind == "neural"]


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(T, N, F)).astype(np.float32)
    return {
        "channels_TNC": rng.normal(size=(T, N, C)).astype(np.float32),
        "characteristics_TNF": z,
        "mask_TN": np.ones((T, N), dtype=bool),
        "group_TN": np.tile(rng.integers(-1, S, size=N), (T, 1)),
        "target_TN": 0.01 * (z[:, :, 1] + rng.normal(size=(T, N))),
    }


def fitted(
    name: str, options: dict[str, Any], given: dict[str, Any], loss: LossName = "mse"
) -> tuple[Fitted, PanelTensors]:
    data = PanelTensors.from_arrays(**given, window=W, n_groups=S, characteristic_names=NAMES)
    config = FitConfig(epochs=2, batch_dates=4, valid_dates=4, loss=loss)
    if name == "reversal":
        options = {"characteristic": "return_21"}
    return fit(name, options_of(name, options), data, TRAIN, VALID, fit_config=config, seed=0), data


@pytest.mark.parametrize("name", FITTED)
def test_a_date_with_one_firm_can_be_trained_on_and_forecast(
    name: str, every_model: dict[str, dict[str, Any]]
) -> None:
    given = arrays()
    given["mask_TN"][[8, 20, 60], 1:] = False
    model, data = fitted(name, every_model[name], given)
    forecast = model.forecast(data, TEST)
    assert np.isfinite(forecast[60 - TEST[0], 0])
    assert np.isnan(forecast[60 - TEST[0], 1:]).all()


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        *((name, "mse") for name in NEURAL),
        *((name, loss) for name in ("mlp", "temporal_peer") for loss in (*LOSSES, QUANTILE, NET_UTILITY)),
    ],
)
def test_losses_handle_dates_with_a_single_firm(
    name: str, loss: LossName, every_model: dict[str, dict[str, Any]]
) -> None:
    given = arrays()
    given["mask_TN"][TRAIN, 1:] = False  # no training date has a pair, or a correlation
    model, data = fitted(name, every_model[name], given, loss)
    assert np.isfinite(model.forecast(data, TEST)).all()


@pytest.mark.parametrize("name", FITTED)
def test_a_firm_without_history_is_forecast(name: str, every_model: dict[str, dict[str, Any]]) -> None:
    given = arrays()
    new, pair = TEST[3], [2, 3]
    given["mask_TN"][:new, pair] = False
    given["channels_TNC"][: new + 1, pair] = np.nan  # they have no window
    given["characteristics_TNF"][: new + 1, pair] = np.nan  # and no characteristic
    given["group_TN"][:, pair] = -1
    model, data = fitted(name, every_model[name], given)
    forecast = model.forecast(data, np.array([new]))
    assert np.isfinite(forecast).all()
    # the two firms have the same inputs: unknown values are the mean of characteristics and channels
    assert forecast[0, 2] == pytest.approx(forecast[0, 3], abs=1e-5 * float(np.abs(forecast).max()))
    for values in (given["channels_TNC"], given["characteristics_TNF"]):
        values[np.isnan(values)] = 0.0
    central = PanelTensors.from_arrays(**given, window=W, n_groups=S, characteristic_names=NAMES)
    np.testing.assert_array_equal(forecast, model.forecast(central, np.array([new])))
    # every model except zero gives a different forecast for a firm that is far from the mean
    given["channels_TNC"][: new + 1, 2] = given["characteristics_TNF"][: new + 1, 2] = 2.0
    far = PanelTensors.from_arrays(**given, window=W, n_groups=S, characteristic_names=NAMES)
    assert (model.forecast(far, np.array([new]))[0, 2] != forecast[0, 2]) == (name != "zero")


@pytest.mark.parametrize("name", FITTED)
def test_a_constant_label_is_refused_or_has_no_score(
    name: str, every_model: dict[str, dict[str, Any]]
) -> None:
    given = arrays()
    given["target_TN"][:] = 0.01
    if MODELS[name].build.learns:
        with pytest.raises(NoTrainingSignal, match="all the same; there is nothing to learn"):
            fitted(name, every_model[name], given)
    else:  # a rule has no parameters, and no score here
        model, _ = fitted(name, every_model[name], given)
        assert np.isnan(model.history[0].valid_rank_ic)


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if entry.build.learns])
def test_a_constant_validation_label_is_refused_with_advice(
    name: str, every_model: dict[str, dict[str, Any]]
) -> None:
    given = arrays()
    given["target_TN"][VALID] = 0.01
    with pytest.raises((Diverged, NoTrainingSignal), match=r"look at the(m| validation dates)"):
        fitted(name, every_model[name], given)


@pytest.mark.parametrize("name", FITTED)
def test_a_feature_that_is_never_known_has_no_effect(
    name: str, every_model: dict[str, dict[str, Any]]
) -> None:
    given, constant = arrays(), arrays()
    given["characteristics_TNF"][..., 2] = np.nan
    given["channels_TNC"][..., 1] = np.nan
    constant["characteristics_TNF"][..., 2] = 0.0  # the value that replaces unknown values
    constant["channels_TNC"][..., 1] = 0.0
    model, data = fitted(name, every_model[name], given)
    same, _ = fitted(name, every_model[name], constant)
    forecast = model.forecast(data, TEST)
    assert np.isfinite(forecast).all()
    np.testing.assert_array_equal(forecast, same.forecast(data, TEST))


def test_the_models_that_all_others_are_compared_with_are_registered() -> None:
    assert BENCHMARKS.keys() <= MODELS.keys()
    assert all(BENCHMARKS.values()), "each has a title"
