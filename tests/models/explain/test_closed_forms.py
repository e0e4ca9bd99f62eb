"""Closed forms and gradients; every engine gives the analytic values of ridge."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from attribution_data import enumerated, small_market, small_modules
from small_panels import options_of

from models.batch import Batch, PanelTensors
from models.explain.faithful.forecasts import path_contributions
from models.explain.groups import GroupGameConfig, explain_groups
from models.explain.players import PlayerConfig, players_of, unwrap
from models.explain.removal import Removal, training_cells
from models.fitted import Fitted
from models.fitting.config import FitConfig
from models.fitting.fit import BaselineFitted, fit
from models.forecaster import Forecaster

FAMILIES = {"momentum": (0, 2), "value": (1,), "size": (3,)}
SINGLE = {"a": (0,), "b": (1,), "c": (2,), "d": (3,)}
TRAIN, SESSIONS = np.arange(20, 60), np.array([62, 70])


@pytest.fixture
def market() -> PanelTensors:
    return small_market()


@pytest.fixture
def modules() -> dict[str, Forecaster]:
    return small_modules()


@pytest.fixture(scope="module")
def data() -> PanelTensors:
    """Eighty sessions of 15 firms whose target depends on their characteristics."""
    rng = np.random.default_rng(1)
    z_TNF = rng.normal(size=(80, 15, 4))
    target_TN = z_TNF @ [0.5, -0.3, 0.2, 0.1] + np.maximum(z_TNF[..., 0] * z_TNF[..., 1], 0.0)
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(80, 15, 2)),
        characteristics_TNF=z_TNF,
        mask_TN=np.ones((80, 15), dtype=bool),
        group_TN=np.tile(np.arange(15) % 3, (80, 1)),
        target_TN=target_TN,
        window=4,
    )


def fitted(data: PanelTensors, name: str) -> Fitted:
    options = {} if name == "ridge" else {"rounds": 20, "min_data_in_leaf": 20, "num_leaves": 6}
    return fit(
        name, options_of(name, options), data, TRAIN, np.arange(60, 80), fit_config=FitConfig(), seed=0
    )


@pytest.fixture(scope="module")
def ridge(data: PanelTensors) -> Fitted:
    return fitted(data, "ridge")


def coefficients(ridge: Fitted) -> np.ndarray:
    assert isinstance(ridge, BaselineFitted)
    return np.asarray(ridge.tensors()["coefficient_F"])


@pytest.mark.parametrize("removal", ["date", "train"])
@pytest.mark.parametrize("engine", ["permutation", "linear"])
def test_every_engine_gives_the_analytic_values_of_ridge(
    data: PanelTensors, ridge: Fitted, engine: str, removal: Removal
) -> None:
    """``sum over the columns of w_c (z_c - mean background_c)``, within the stated error."""
    config = GroupGameConfig(permutations=60, engine=engine, removal=removal)
    found = explain_groups(ridge, data, SESSIONS, FAMILIES, config, train=TRAIN)
    z_EF = data.characteristics_TNF[SESSIONS].double().numpy()
    if removal == "date":
        mean_EF = (z_EF.sum(axis=1, keepdims=True) - z_EF) / 14  # of the other firms
    else:
        mean_EF = training_cells(data, TRAIN).z_SF.astype(float).mean(axis=0)
    part_EF = (coefficients(ridge) * (z_EF - mean_EF)).reshape(-1, 4)
    exact_EP = np.stack([part_EF[:, list(columns)].sum(axis=1) for columns in FAMILIES.values()], axis=1)
    distance_EP = np.abs(found.values_EP - exact_EP)
    assert np.abs(exact_EP).max() > 0.2
    if engine == "linear":
        np.testing.assert_allclose(distance_EP, 0.0, atol=1e-6)
        assert not found.error_EP.any()
    else:
        assert (distance_EP <= 4.5 * found.error_EP + 1e-6).all()
        assert (distance_EP <= 2.0 * found.error_EP + 1e-6).mean() > 0.9
        assert found.error_EP.mean() < 0.1
    assert found.additivity_error < 1e-5
    assert found.explanation().error_std.shape == found.explanation().values.shape


@pytest.mark.parametrize("name", ["lightgbm", "double_ensemble"])
def test_trees_equal_enumeration_over_all_backgrounds(data: PanelTensors, name: str) -> None:
    """Players of one column: the mean over all other firms as background, by enumeration."""
    model, batch = fitted(data, name), data.batch(torch.tensor([62]))
    config = GroupGameConfig(engine="tree")
    found = explain_groups(model, data, SESSIONS[:1], SINGLE, config)
    assert found.additivity_error < 1e-5
    assert np.abs(found.values_EP).max() > 0.05
    z_NF, firm = batch.z_BNF[0].numpy(), 4

    def play(keep_MP: np.ndarray, other: int) -> np.ndarray:
        z_MNF = np.where(keep_MP, z_NF[firm], z_NF[other])[:, None]
        one = [model.forecast_date(replace(batch, z_BNF=torch.tensor(z_NF)[None]))[0] for z_NF in z_MNF]
        return np.array(one, dtype=float)

    values = [enumerated(partial(play, other=other), 4) for other in range(15) if other != firm]
    np.testing.assert_allclose(found.values_EP[firm], np.mean(values, axis=0), atol=1e-5)
    train = explain_groups(model, data, SESSIONS[:1], FAMILIES, replace(config, removal="train"), train=TRAIN)
    assert train.additivity_error < 1e-5


def test_engines_refuse_models_and_players_that_they_cannot_explain(
    data: PanelTensors, ridge: Fitted, market: PanelTensors, modules: dict[str, Forecaster]
) -> None:
    def explain(model: Fitted | Forecaster, panel: PanelTensors, config: GroupGameConfig) -> None:
        explain_groups(model, panel, np.array([15]), FAMILIES, config, train=np.arange(8, 12))

    with pytest.raises(ValueError, match="explains lightgbm and double_ensemble only"):
        explain(ridge, data, GroupGameConfig(engine="tree"))
    with pytest.raises(ValueError, match="there is a player of kind days"):
        explain(modules["temporal_peer"], market, GroupGameConfig(engine="linear"))
    with pytest.raises(ValueError, match="does not draw given what is kept"):
        explain(ridge, data, GroupGameConfig(engine="linear", removal="conditional"))
    with pytest.raises(ValueError, match="give its sessions"):
        explain_groups(ridge, data, SESSIONS, FAMILIES, GroupGameConfig(engine="linear", removal="train"))


# --- gradients ---------------------------------------------------------------------------------------


def quadratic(batch: Batch) -> torch.Tensor:
    """``y_i = z_i0 z_i1 + x_i0^2 + sum over all firms j of z_j2^2``, x the last day of the first channel."""
    z, x = batch.z_BNF, batch.x_BNWC[:, :, -1, 0]
    return z[..., 0] * z[..., 1] + x**2 + (z[..., 2] ** 2).sum(dim=1, keepdim=True)


def test_integrated_gradients_of_a_quadratic_are_known(market: PanelTensors) -> None:
    end = market.batch(torch.tensor([15]))
    start = replace(end, x_BNWC=end.x_BNWC.flip(1), z_BNF=end.z_BNF.flip(1))
    z, z0 = end.z_BNF[0].double(), start.z_BNF[0].double()
    change, middle, firm = z - z0, (z + z0) / 2, 0
    x_NWC, z_NF = path_contributions(quadratic, start, end, firm, 4)
    expected_NF = torch.zeros_like(z_NF)
    expected_NF[:, 2] = z[:, 2] ** 2 - z0[:, 2] ** 2
    expected_NF[firm, 0] = change[firm, 0] * middle[firm, 1]
    expected_NF[firm, 1] = change[firm, 1] * middle[firm, 0]
    np.testing.assert_allclose(z_NF, expected_NF, atol=1e-5)
    last, first = (float(one.x_BNWC[0, firm, -1, 0]) for one in (end, start))
    assert float(x_NWC[firm, -1, 0]) == pytest.approx(last**2 - first**2, abs=1e-5)
    assert int((x_NWC.abs() > 1e-6).sum()) == 1
    total = quadratic(end)[0, firm] - quadratic(start)[0, firm]
    assert float(x_NWC.sum() + z_NF.sum()) == pytest.approx(float(total), abs=1e-4)


def test_days_that_ridge_reads_are_players_with_their_linear_values(data: PanelTensors) -> None:
    options = options_of("ridge", {"lags": 3})
    model = fit("ridge", options, data, TRAIN, np.arange(60, 80), fit_config=FitConfig(), seed=0)
    found = explain_groups(
        model,
        data,
        SESSIONS,
        FAMILIES,
        GroupGameConfig(permutations=10, players=PlayerConfig(day_starts=(1, 2))),
    )
    assert [player.name for player in found.players[:2]] == ["day 1", "days 2-4"]
    weight_KC = coefficients(model)[4:].reshape(3, 2)
    x_EKC = (
        torch.stack([data.channels_TNC[t - 2 : t + 1].transpose(0, 1) for t in SESSIONS])
        .flatten(0, 1)
        .numpy()
    )
    exact_EK = (x_EKC * weight_KC).sum(axis=2)  # an absent day is 0
    np.testing.assert_allclose(found.values_EP[:, 0], exact_EK[:, 2], atol=1e-6)
    np.testing.assert_allclose(found.values_EP[:, 1], exact_EK[:, :2].sum(axis=1), atol=1e-6)
    assert np.abs(found.values_EP[:, 0]).max() > 1e-3
    of_member = players_of(unwrap(model), data.batch(torch.tensor(SESSIONS[:1])), found.players)
    assert of_member.tolist() == list(range(5)), "an ensemble asks it for days as well"
    with pytest.raises(ValueError, match="a player of kind days; use the permutation engine"):
        explain_groups(model, data, SESSIONS, FAMILIES, GroupGameConfig(engine="linear"))
