"""Forecasts of coalitions: inputs are removed without look-ahead, and without leaving noise to trade."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from attribution_data import enumerated, small_market, small_modules

from features.arrays import BoolArray, FloatArray
from models.batch import Batch, PanelTensors
from models.explain.groups import ROUNDING, over_sessions, whole_players, without_inputs
from models.explain.removal import REMOVALS, Removal, donors
from models.explain.shapley import every_coalition, exact

SESSIONS, TRAIN = np.array([12, 14, 15]), np.arange(8, 12)
FAMILIES = {"one": (0, 2), "two": (1, 3)}


def product(batch: Batch) -> FloatArray:
    """A model in which the families interact."""
    z_NF = batch.z_BNF[0].double().numpy()
    return np.asarray(z_NF[:, 0] + z_NF[:, 2] * z_NF[:, 1] + 5.0)


def test_values_from_all_coalitions_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(1)
    weight_PO, pair_PO = rng.normal(size=(2, 5, 3))

    def game(keep_MP: BoolArray) -> FloatArray:
        inner_MP = keep_MP.astype(np.float64)
        return np.asarray(inner_MP @ weight_PO + (inner_MP * np.roll(inner_MP, 1, axis=1)) @ pair_PO + 2.0)

    found = exact(game, 5)
    np.testing.assert_allclose(found.values_PO, enumerated(game, 5), atol=1e-12)
    np.testing.assert_allclose(found.base_O, 2.0)
    total_O = game(np.ones((1, 5), dtype=bool))[0]
    np.testing.assert_allclose(found.values_PO.sum(axis=0) + found.base_O, total_O, atol=1e-12)


@pytest.mark.parametrize("removal", list(REMOVALS))
def test_without_inputs_forecasts_are_equal_and_with_all_they_are_the_models(removal: Removal) -> None:
    data = small_market()
    players = whole_players(product, data, 12, FAMILIES)
    keep_MP = every_coalition(2)
    of_date = without_inputs(product, players, keep_MP, np.zeros(4, int), data, TRAIN, removal)
    found_MTN = over_sessions(of_date, product, data, SESSIONS)
    there_N = data.mask_TN[12].numpy()
    assert np.isnan(found_MTN[..., ~there_N]).all()
    np.testing.assert_array_equal(found_MTN[0][:, there_N], 0.0)
    for t, session in enumerate(SESSIONS):
        y_N = product(data.batch(torch.tensor([session])))
        expected_N = (y_N - y_N[0]) / y_N.std()
        np.testing.assert_allclose(found_MTN[3, t, there_N], expected_N, atol=ROUNDING)
    assert np.ptp(found_MTN[1:3][..., there_N], axis=2).min() > 0.1


def test_an_absent_family_has_the_mean_over_the_values_of_the_same_donors_for_all_firms() -> None:
    data, session = small_market(), 12
    players = whole_players(product, data, session, FAMILIES)
    keep_MP = np.array([[True, False]])
    of_date = without_inputs(product, players, keep_MP, np.zeros(1, int), data, TRAIN, seed=5)
    batch = data.batch(torch.tensor([session]))
    z_NF, rows = batch.z_BNF[0].double().numpy(), []
    for draw in range(4):
        order_N = np.random.default_rng((5, 1, draw)).random(8)[batch.firms_N.numpy()]
        donor = int(order_N.argmin())
        rows.append(z_NF[:, 0] + z_NF[:, 2] * z_NF[donor, 1] + 5.0)
    np.testing.assert_allclose(of_date(batch)[0], np.mean(rows, axis=0), atol=1e-6)


@pytest.mark.parametrize("removal", list(REMOVALS))
def test_nothing_after_a_session_changes_its_forecasts(removal: Removal) -> None:
    """Characteristics, channels and targets after the session are others, and so is the universe."""
    data, module = small_market(), small_modules()["temporal_peer"]
    players = whole_players(module, data, 12, FAMILIES)
    assert [player.kind for player in players] == ["days", "family", "family", "peers"]
    keep_MP = every_coalition(4)
    found = []
    for panel in (data, _other_after(data, 14)):
        of_date = without_inputs(module, players, keep_MP, np.zeros(16, int), panel, TRAIN, removal)
        found.append(over_sessions(of_date, module, panel, SESSIONS))
    np.testing.assert_array_equal(found[0][:, :2], found[1][:, :2])
    assert not np.array_equal(found[0][:, 2], found[1][:, 2], equal_nan=True), "the future was changed"


def test_the_donor_stays_the_same_firm_while_it_is_in_the_universe() -> None:
    data = small_market()
    batch = data.batch(torch.tensor([12]))
    firm = {
        int(batch.firms_N[donors("date", batch, None, 3, shared=True)._chosen(draw)[0]]) for draw in range(40)
    }
    assert firm == set(batch.firms_N.tolist()), "every firm is a donor of some draw"
    mask_TN = data.mask_TN.clone()
    mask_TN[14, 0] = False
    other = replace(data, mask_TN=mask_TN).batch(torch.tensor([14]))
    for draw in range(20):
        first, second = (
            one.firms_N[donors("date", one, None, 3, shared=True)._chosen(draw)].unique().tolist()
            for one in (batch, other)
        )
        assert len(first) == len(second) == 1
        assert first in (second, [0]), "another donor only if the firm has left"


def _other_after(data: PanelTensors, session: int) -> PanelTensors:
    rng, changed = np.random.default_rng(9), {}
    for name in ("channels_TNC", "characteristics_TNF", "target_TN"):
        array = getattr(data, name).numpy().copy()
        array[session + 1 :] = rng.normal(size=array[session + 1 :].shape)
        changed[name] = array
    mask_TN = data.mask_TN.numpy().copy()
    mask_TN[session + 1 :, 5] = False
    return PanelTensors.from_arrays(
        **changed, mask_TN=mask_TN, group_TN=data.group_TN.numpy() - 1, window=data.window
    )


def test_forecasts_of_a_constant_model_are_equal() -> None:
    data = small_market()

    def constant(batch: Batch) -> FloatArray:
        return np.full(batch.firms_N.numel(), 0.1)

    players = whole_players(constant, data, 12, FAMILIES)
    of_date = without_inputs(constant, players, every_coalition(2), np.zeros(4, int), data, TRAIN)
    found_MTN = over_sessions(of_date, constant, data, SESSIONS)
    assert np.nanmax(np.abs(found_MTN)) == 0.0
