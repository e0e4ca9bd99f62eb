"""Replacements of absent inputs: who donates, and conditional draws against a known normal distribution."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import factorial

import numpy as np
import pytest
import torch
from attribution_data import random_weights, small_market
from small_panels import SMALL, panel

from models.batch import Ablation, PanelTensors
from models.explain.groups import GroupGameConfig, explain_groups
from models.explain.players import absent_days
from models.explain.removal import ConditionalDraws, donors, replacement, training_cells
from models.forecaster import Forecaster
from models.registry import MODELS

WEIGHT_F = np.array([1.0, -0.5, 2.0])
COVARIANCE_FF = np.array([[1.0, 0.8, 0.0], [0.8, 1.0, 0.3], [0.0, 0.3, 1.0]])


@pytest.fixture
def market() -> PanelTensors:
    return small_market()


@pytest.fixture(scope="module")
def correlated() -> PanelTensors:
    """Jointly normal characteristics: 100 sessions of 50 firms for training, and one to explain."""
    rng = np.random.default_rng(0)
    z_TNF = rng.multivariate_normal(np.zeros(3), COVARIANCE_FF, size=(101, 50))
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(101, 50, 2)),
        characteristics_TNF=z_TNF,
        mask_TN=np.ones((101, 50), dtype=bool),
        group_TN=np.zeros((101, 50), dtype=int),
        target_TN=rng.normal(size=(101, 50)),
        window=4,
    )


def conditional_values(z_NF: np.ndarray) -> np.ndarray:
    """Shapley values of ``z . w`` with ``v(S) = E[z . w | z_S]`` of the normal distribution, [N, F]."""

    def mean(kept: tuple[int, ...]) -> np.ndarray:
        absent = [f for f in range(3) if f not in kept]
        full_NF = np.zeros_like(z_NF)
        if kept:
            k = list(kept)
            full_NF[:, k] = z_NF[:, k]
            slope = np.linalg.solve(COVARIANCE_FF[np.ix_(k, k)], COVARIANCE_FF[np.ix_(k, absent)])
            full_NF[:, absent] = z_NF[:, k] @ slope
        return np.asarray(full_NF @ WEIGHT_F)

    values_NF = np.zeros_like(z_NF)
    for f in range(3):
        others = [g for g in range(3) if g != f]
        for size in range(3):
            for chosen in combinations(others, size):
                weight = factorial(size) * factorial(2 - size) / 6
                values_NF[:, f] += weight * (mean(tuple(sorted((*chosen, f)))) - mean(chosen))
    return values_NF


def test_conditional_values_of_a_linear_model_are_those_of_the_normal_distribution(
    correlated: PanelTensors,
) -> None:
    found = explain_groups(
        lambda batch: batch.z_BNF[0].numpy() @ WEIGHT_F,
        correlated,
        np.array([100]),
        {"a": (0,), "b": (1,), "c": (2,)},
        GroupGameConfig(permutations=1000, removal="conditional"),
        train=np.arange(100),
    )
    exact_NF = conditional_values(correlated.characteristics_TNF[100].numpy().astype(float))
    gap_NF = found.values_EP - exact_NF
    # 4,096 training cells estimate the correlations, besides the error of the draws
    assert np.abs(gap_NF).max() < 5 * found.error_EP.max() + 0.05
    assert np.sqrt(np.mean(gap_NF**2)) < 0.08
    marginal_NF = found.forecast_E[:, None] * 0 + correlated.characteristics_TNF[100].numpy() * WEIGHT_F
    assert np.sqrt(np.mean((exact_NF - marginal_NF) ** 2)) > 0.3  # the question matters


def test_conditional_draws_keep_the_distribution_and_discrete_values(correlated: PanelTensors) -> None:
    z_TNF = correlated.characteristics_TNF.clone()
    z_TNF[:, :, 2] = (z_TNF[:, :, 0] > 0.5).float()  # an indicator
    data = PanelTensors.from_arrays(
        channels_TNC=np.zeros((101, 50, 1)),
        characteristics_TNF=z_TNF.numpy(),
        mask_TN=np.ones((101, 50), dtype=bool),
        group_TN=np.zeros((101, 50), dtype=int),
        target_TN=np.zeros((101, 50)),
        window=4,
    )
    batch = data.batch(torch.tensor([100]))
    drawn = ConditionalDraws(training_cells(data, np.arange(100)), batch, seed=0)
    none, first = np.zeros(3, dtype=bool), np.array([True, False, False])
    all_DNF = np.stack([drawn.characteristics(none, d) for d in range(100)]).reshape(-1, 3)
    assert set(np.unique(all_DNF[:, 2])) == {0.0, 1.0}
    assert all_DNF[:, 2].mean() == pytest.approx(float(z_TNF[:100, :, 2].mean()), abs=0.03)
    correlation_FF = np.atleast_2d(np.corrcoef(all_DNF[:, :2].T))
    assert correlation_FF[0, 1] == pytest.approx(0.8, abs=0.03)
    given = np.stack([drawn.characteristics(first, d) for d in range(100)])
    kept_N = batch.z_BNF[0, :, 0].numpy()
    np.testing.assert_allclose(given[:, :, 1].mean(axis=0), 0.8 * kept_N, atol=0.3)
    assert given[:, kept_N > 1.0, 2].mean() > 0.5 > given[:, kept_N < 0.0, 2].mean()
    np.testing.assert_array_equal(drawn.characteristics(first, 3), drawn.characteristics(first, 3))


def test_donors_are_other_firms_of_the_date_or_cells_of_the_training_sessions(market: PanelTensors) -> None:
    batch, none = market.batch(torch.tensor([15])), np.zeros(4, dtype=bool)
    same = donors("date", batch, None, 1)
    z_NF, x_NWC = same.characteristics(none, 3), same.windows(3)
    donor_N = np.array([int(np.abs(batch.z_BNF[0].numpy() - z_F).sum(axis=1).argmin()) for z_F in z_NF])
    assert sorted(donor_N) == list(range(7))
    assert (donor_N != np.arange(7)).all()
    np.testing.assert_array_equal(x_NWC, batch.x_BNWC[0, donor_N])
    assert not np.array_equal(z_NF, same.characteristics(none, 4))
    cells = training_cells(market, np.arange(8, 12), most=20)
    assert len(cells.z_SF) == 20
    assert set(cells.session_S) <= set(range(8, 12))
    assert 2 not in cells.firm_S  # never in the universe
    train = donors("train", batch, cells, 1)
    z_F, x_WC = train.characteristics(none, 0)[4], train.windows(0)[4]
    cell = int(np.flatnonzero((cells.z_SF == z_F).all(axis=1))[0])
    session, firm = int(cells.session_S[cell]), int(cells.firm_S[cell])
    np.testing.assert_array_equal(z_F, market.characteristics_TNF[session, firm])
    np.testing.assert_array_equal(x_WC, market.windows(torch.tensor([session]), torch.tensor([firm]))[0])


def test_draws_from_the_training_fold_need_its_sessions(market: PanelTensors) -> None:
    batch = market.batch(torch.tensor([15]))
    with pytest.raises(ValueError, match="give its sessions"):
        replacement("train", batch, None, 0)
    with pytest.raises(ValueError, match="choose one of date, train, conditional"):
        replacement("zero", batch, None, 0)  # type: ignore[arg-type]  # wrong on purpose
    empty = replace(market, mask_TN=torch.zeros_like(market.mask_TN))
    with pytest.raises(ValueError, match="universe on any of the training sessions"):
        training_cells(empty, np.arange(3))


def test_days_that_are_set_to_0_are_called_that() -> None:
    """A mask leaves the values of an absent day without any effect; a zero is a value like others."""
    names = (
        "mlp",
        "lstm",
        "gru",
        "alstm",
        "tcn",
        "temporal_transformer",
        "temporal_peer",
        "self_peer",
        "sector_mean",
    )
    data = panel()
    batch = data.batch(torch.tensor([20]))
    keep_BW = torch.ones((1, data.window), dtype=torch.bool)
    keep_BW[:, -1] = False
    said = {}
    for name in names:
        entry = MODELS[name]
        module = entry.build(entry.config(**SMALL[name]), data.shape)
        assert isinstance(module, Forecaster)
        random_weights(module)
        zeroed = replace(batch, x_BNWC=batch.x_BNWC.clone())
        zeroed.x_BNWC[:, :, -1] = 0.0
        with torch.no_grad():
            absent_N, zeroed_N = module(batch, Ablation(days_keep_BW=keep_BW))[0], module(zeroed)[0]
        said[name] = absent_days(module)
        if said[name].startswith("set to 0"):
            torch.testing.assert_close(absent_N, zeroed_N)
        elif module.uses_days or name == "temporal_transformer":
            assert not torch.allclose(absent_N, zeroed_N, rtol=1e-3)
    assert {said[name] for name in ("lstm", "gru", "alstm")} == {"masked"}
    assert said["temporal_transformer"] == "masked"
    assert said["mlp"] == said["tcn"] == said["sector_mean"] == "set to 0, the centre of each channel"
    assert (
        said["temporal_peer"] == "masked, and in the messages to peers set to 0, the centre of each channel"
    )
