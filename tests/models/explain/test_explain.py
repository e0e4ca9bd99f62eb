"""Shapley values against enumeration of all coalitions, and against models with known values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from attribution_data import enumerated
from small_panels import options_of
from torch import Tensor

from models.attention.encoder import EncoderConfig
from models.batch import Ablation, AttentionMaps, Batch, PanelTensors
from models.explain.groups import GroupGameConfig, explain_groups
from models.explain.network import attention_network, edge_auc, sum_dates
from models.explain.peers import PeerGame, PeerGameConfig, explain_peers
from models.explain.players import PlayerConfig, day_blocks, find_players
from models.explain.removal import donors, draw_donors, group_game
from models.explain.shapley import Precision, sample
from models.fitted import Fitted
from models.fitting.config import FitConfig
from models.fitting.fit import fit
from models.forecaster import Forecaster
from models.forecasters.self_peer import SelfPeer, SelfPeerConfig
from models.forecasters.temporal_peer import TemporalPeer, TemporalPeerConfig
from models.forecasters.temporal_transformer import TemporalTransformer, TemporalTransformerConfig

FAMILIES = {"momentum": (0, 2), "value": (1,), "size": (3,)}
SESSION = np.array([15])


def panel(n_firms: int = 7, seed: int = 0, channel_scale: float = 1.0) -> PanelTensors:
    rng = np.random.default_rng(seed)
    shape = (18, n_firms)
    mask_TN = np.ones(shape, dtype=bool)
    mask_TN[:, 2] = False  # a firm that is never in the universe
    return PanelTensors.from_arrays(
        channels_TNC=channel_scale * rng.normal(size=(*shape, 2)),
        characteristics_TNF=rng.normal(size=(*shape, 4)),
        mask_TN=mask_TN,
        group_TN=np.tile(np.arange(n_firms) % 3, (18, 1)),
        target_TN=rng.normal(size=shape),
        window=8,
    )


def with_random_weights(module: Forecaster, scale: float = 0.5) -> Forecaster:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def temporal_peer(
    data: PanelTensors, day_layers: int = 1, pooling: Literal["last", "mean"] = "last"
) -> Forecaster:
    config = TemporalPeerConfig(
        encoder=EncoderConfig(width=8, heads=2, layers=day_layers, pooling=pooling), peer_heads=2
    )
    return with_random_weights(TemporalPeer(config, data.shape))


def self_peer(data: PanelTensors) -> Forecaster:
    return with_random_weights(SelfPeer(SelfPeerConfig(width=8, heads=2, layers=2), data.shape))


def one_layer(data: PanelTensors) -> Forecaster:
    config = SelfPeerConfig(width=8, heads=2, layers=1, recent_days=2)
    return with_random_weights(SelfPeer(config, data.shape))


class Leaders(Forecaster):
    """A model with known values: ``y_i = x_i + sum_j A_ij x_j``, x the last value of the first channel."""

    uses_peers: ClassVar[bool] = True

    def __init__(self, leads_NN: np.ndarray) -> None:
        super().__init__()
        self.leads_NN = torch.tensor(leads_NN, dtype=torch.float32)

    def embed(self, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        return batch.x_BNWC[:, :, -1, :1]

    def mix(self, h_BND: Tensor, batch: Batch, ablation: Ablation | None = None) -> Tensor:
        sent_BN = h_BND[..., 0]
        if ablation is not None and ablation.peers_keep_BN is not None:
            sent_BN = sent_BN * ablation.peers_keep_BN
        leads = self.leads_NN[batch.firms_N][:, batch.firms_N]
        return self.scaled(h_BND[..., 0] + sent_BN @ leads.T, batch)

    def attention(self, batch: Batch, ablation: Ablation | None = None) -> AttentionMaps:
        leads = self.leads_NN[batch.firms_N][:, batch.firms_N].abs()
        return AttentionMaps(peers_BLHNN=leads[None, None, None])


# --- days, families, peers ---------------------------------------------------------------------------


def test_day_blocks_cover_the_window_once() -> None:
    assert day_blocks(8, (1, 2, 3, 6, 11)) == ((1,), (2,), (3, 4, 5), (6, 7, 8))
    assert sorted(sum(day_blocks(60, (1, 2, 3, 6, 11)), ())) == list(range(1, 61))
    with pytest.raises(ValueError, match="must increase from 1"):
        day_blocks(8, (2, 3))


def test_group_values_agree_with_enumeration() -> None:
    data = panel()
    module = temporal_peer(data)
    batch = data.batch(torch.tensor([15]))
    players = find_players(module, batch, FAMILIES, PlayerConfig(day_starts=(1, 3, 6)))
    assert [player.kind for player in players] == ["days"] * 3 + ["family"] * 3 + ["peers"]
    game = group_game(module, batch, players, np.arange(6), donors("date", batch, None, 4))
    draws = [partial(lambda r, keep: game(keep, np.full(len(keep), r)), r) for r in range(60)]
    exact = np.mean([enumerated(play, 7) for play in draws], axis=0)
    explained = sample(game, 7, Precision(draws=60)).values()
    assert np.abs(exact).max() > 0.5
    np.testing.assert_allclose(explained.values_PO, exact, atol=float(5 * explained.error_PO.max()))
    assert explained.error_PO.max() < 0.1 * np.abs(exact).max()
    np.testing.assert_allclose(explained.values_PO.sum(0), exact.sum(0), atol=1e-6)


def test_a_coalition_equals_a_forward_pass_without_the_other_players() -> None:
    data = panel()
    module = temporal_peer(data)
    batch = data.batch(torch.tensor([15]))
    players = find_players(module, batch, FAMILIES, PlayerConfig(day_starts=(1, 3, 6)))
    game = group_game(module, batch, players, np.array([0, 4]), donors("date", batch, None, 4))
    keep = np.array([True, False, True, False, True, True, False])  # days 3-5, momentum and peers are absent
    days_keep = torch.tensor([[True, True, True, False, False, False, True, True]])
    ablation = Ablation(days_keep, torch.zeros(1, 6, dtype=torch.bool))
    expected = []
    for draw in (0, 5):
        donor_N = draw_donors(6, np.random.default_rng((4, 1, draw)))
        z_BNF = batch.z_BNF.clone()
        z_BNF[0][:, [0, 2]] = batch.z_BNF[0, torch.tensor(donor_N)][:, [0, 2]]
        replaced = Batch(batch.x_BNWC, z_BNF, batch.m_BN, batch.s_BN, batch.y_BN, batch.firms_N)
        with torch.no_grad():
            expected.append(module(replaced, ablation)[0].numpy())
    found = game(np.tile(keep, (2, 1)), np.array([0, 5]))
    np.testing.assert_allclose(found, np.array(expected)[:, [0, 4]], rtol=1e-5)
    assert np.abs(found[0] - found[1]).min() > 1e-4  # other donors


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_forecast_without_its_days_does_not_depend_on_them(
    pooling: Literal["last", "mean"], layers: int
) -> None:
    one, other = panel(), panel(channel_scale=3.0)
    a, b = (
        explain_groups(temporal_peer(data, layers, pooling), data, SESSION, FAMILIES) for data in (one, other)
    )
    assert np.isfinite(a.base_E).all()
    np.testing.assert_array_equal(a.base_E, b.base_E)
    assert np.abs(a.forecast_E - b.forecast_E).min() > 1e-3


def test_values_add_up_to_the_forecast() -> None:
    data = panel()
    module = temporal_peer(data)
    sessions = np.array([9, 12, 15])
    explained = explain_groups(module, data, sessions, FAMILIES, GroupGameConfig(permutations=3))
    assert explained.values_EP.shape == (18, 8)
    with torch.no_grad():
        direct = np.concatenate([module(data.batch(torch.tensor([s])))[0].numpy() for s in sessions])
    np.testing.assert_allclose(explained.forecast_E, direct)
    np.testing.assert_allclose(explained.base_E + explained.values_EP.sum(axis=1), direct, atol=1e-5)
    assert explained.additivity_error < 1e-5 * explained.forecast_E.std()
    assert explained.monte_carlo_error > 0.0
    assert explained.firms_E.tolist() == [0, 1, 3, 4, 5, 6] * 3
    assert explained.sessions_E.tolist() == np.repeat(sessions, 6).tolist()
    explanation = explained.explanation()
    assert explanation.feature_names[:5] == ["day 1", "day 2", "days 3-5", "days 6-8", "momentum"]
    np.testing.assert_array_equal(explanation[1].values, explained.values_EP[1])
    np.testing.assert_allclose(
        explained.data_EP[12, [0, 2, 5, 7]],
        [
            float(data.channels_TNC[15, 0, 0]),
            float(data.channels_TNC[11:14, 0, 0].mean()),
            float(data.characteristics_TNF[15, 0, 1]),
            5.0,
        ],
        rtol=1e-6,
    )


def test_family_values_of_a_linear_function_are_differences_from_one_donor() -> None:
    data = panel()
    weight_F = np.array([1.0, -2.0, 0.5, 0.0])
    config = GroupGameConfig(permutations=1)
    explained = explain_groups(
        lambda batch: batch.z_BNF[0].numpy() @ weight_F, data, SESSION, FAMILIES, config
    )
    assert [player.kind for player in explained.players] == ["family"] * 3
    z_NF = data.characteristics_TNF[15, [0, 1, 3, 4, 5, 6]].numpy()
    parts_NP = np.stack(
        [z_NF[:, [0, 2]] @ weight_F[[0, 2]], z_NF[:, 1] * weight_F[1], 0 * z_NF[:, 3]], axis=1
    )
    donor_NP = parts_NP - explained.values_EP  # contribution of the donor's values, per family
    gap = np.abs(donor_NP[:, None, :2] - parts_NP[None, :, :2]).max(axis=2)
    donor_N = gap.argmin(axis=1)
    assert gap.min(axis=1).max() < 1e-6  # the same donor for every family
    assert sorted(donor_N) == list(range(6))  # every firm is a donor once
    assert (donor_N != np.arange(6)).all()
    np.testing.assert_array_equal(explained.values_EP[:, 2], 0.0)  # a family without effect


def test_the_players_depend_on_the_model() -> None:
    data = panel()
    transformer = with_random_weights(
        TemporalTransformer(TemporalTransformerConfig(encoder=EncoderConfig(width=8, heads=2)), data.shape)
    )
    ridge = fit(
        "ridge",
        options_of("ridge"),
        data,
        np.arange(8, 13),
        np.arange(13, 17),
        fit_config=FitConfig(),
        seed=0,
    )
    kinds = {}
    models: dict[str, Fitted | Forecaster] = {
        "transformer": transformer,
        "self_peer": self_peer(data),
        "ridge": ridge,
    }
    for name, model in models.items():
        explained = explain_groups(model, data, SESSION, FAMILIES)
        kinds[name] = {player.kind for player in explained.players}
        assert explained.additivity_error < 1e-5
    assert kinds == {"transformer": {"days", "family"}, "self_peer": {"family", "peers"}, "ridge": {"family"}}
    with pytest.raises(ValueError, match="no peers to explain"):
        explain_peers(ridge, data, SESSION)
    with pytest.raises(ValueError, match="give the families"):
        explain_groups(ridge, data, SESSION, {})


# --- peers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [temporal_peer, self_peer])
def test_peer_values_agree_with_enumeration(build: Callable[[PanelTensors], Forecaster]) -> None:
    data = panel()
    module = build(data)
    batch = data.batch(torch.tensor([15]))

    def play(keep: np.ndarray) -> np.ndarray:
        with torch.no_grad():  # a full forward pass per coalition
            rows = [module(batch, Ablation(peers_keep_BN=torch.tensor(row[None])))[0].numpy() for row in keep]
        return np.array(rows, dtype=np.float64)

    exact_NN = enumerated(play, 6).T
    explained = explain_peers(module, data, SESSION, PeerGameConfig(permutations=100))[0]
    assert np.abs(exact_NN).max() > 0.02
    np.testing.assert_allclose(explained.phi_NN, exact_NN, atol=float(5 * explained.error_NN.max()))
    assert explained.error_NN.max() < 0.1 * np.abs(exact_NN).max()
    np.testing.assert_allclose(
        explained.base_N + explained.phi_NN.sum(axis=1), explained.forecast_N, atol=1e-5
    )
    if build is temporal_peer:  # one layer: no firm is its own peer
        np.testing.assert_allclose(np.diagonal(explained.phi_NN), 0.0, atol=1e-6)


def test_squares_are_unbiased_where_the_square_of_the_mean_is_not() -> None:
    data = panel()
    module = self_peer(data)
    fine = explain_peers(module, data, SESSION, PeerGameConfig(permutations=400))[0]
    coarse = [
        explain_peers(module, data, SESSION, PeerGameConfig(permutations=2, seed=seed))[0]
        for seed in range(60)
    ]
    exact = (fine.phi_NN**2).mean()
    assert np.mean([part.square_NN.mean() for part in coarse]) == pytest.approx(exact, rel=0.05)
    assert np.mean([(part.phi_NN**2).mean() for part in coarse]) > 1.05 * exact
    spread = np.mean([((part.phi_NN - fine.phi_NN) ** 2).mean() for part in coarse])
    assert np.mean([(part.error_NN**2).mean() for part in coarse]) == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize("build", [temporal_peer, one_layer])
def test_nested_sets_of_peers_give_the_forecasts_of_single_passes(
    build: Callable[[PanelTensors], Forecaster],
) -> None:
    data = panel(n_firms=9)
    game = PeerGame.of(build(data), data.batch(torch.tensor([15])))
    assert game.nested
    order = np.random.default_rng(0).permutation(game.n_firms)
    place = np.argsort(order)
    forecasts = game.forecasts(place[None, :] < np.arange(game.n_firms + 1)[:, None])
    steps = game.steps(order, np.array([1, 4]), np.array([0, 3, 7]))
    expected = np.diff(forecasts, axis=0)[place[[0, 3, 7]]][:, [1, 4]].T
    np.testing.assert_allclose(steps, expected, atol=2e-6)
    assert np.abs(steps).max() > 1e-3


def test_peers_of_a_linear_model_are_known() -> None:
    data = panel()
    leads_NN = np.random.default_rng(1).normal(size=(7, 7))
    np.fill_diagonal(leads_NN, 0.0)
    leads_NN[:, 4] = 0.0  # leads no other firm
    explained = explain_peers(Leaders(leads_NN).eval(), data, SESSION, PeerGameConfig(permutations=2))[0]
    assert explained.firms_N.tolist() == [0, 1, 3, 4, 5, 6]
    x_N = data.channels_TNC[15, explained.firms_N, 0].numpy()
    np.testing.assert_allclose(
        explained.phi_NN, leads_NN[np.ix_(explained.firms_N, explained.firms_N)] * x_N, atol=1e-6
    )
    np.testing.assert_array_equal(explained.phi_NN[:, 3], 0.0)
    np.testing.assert_allclose(explained.base_N, x_N, rtol=1e-6)
    assert explained.error_NN.max() < 1e-6


def test_the_network_recovers_the_leaders_and_has_no_edges_of_absent_firms() -> None:
    data = panel(n_firms=12)
    rng = np.random.default_rng(2)
    planted_NN = rng.random((12, 12)) < 0.15
    np.fill_diagonal(planted_NN, False)
    planted_NN[0, 2] = True  # a leader that is never in the universe
    explained = explain_peers(
        Leaders(1.0 * planted_NN).eval(), data, np.arange(8, 17), PeerGameConfig(permutations=2)
    )
    network, by_attention = sum_dates(explained, 12).network(), attention_network(explained, 12)
    for one in (network, by_attention):
        found = edge_auc(one.weight_NN, planted_NN, one.observed)
        assert found.auc == 1.0
        assert found.n_pairs == 11 * 10
    for matrix_NN in (network.weight_NN, by_attention.weight_NN, network.dates_NN):
        assert not matrix_NN[2].any()
        assert not matrix_NN[:, 2].any()
    assert network.dates_NN.max() == 9


@pytest.mark.parametrize("build", [temporal_peer, self_peer])
def test_a_random_sample_of_pairs_keeps_its_firms_and_its_game(
    build: Callable[[PanelTensors], Forecaster],
) -> None:
    data = panel(n_firms=12)
    module = build(data)
    config = PeerGameConfig(max_firms=4, permutations=60)
    first, second = explain_peers(module, data, np.array([9, 15]), config)
    known_NN = np.isfinite(first.phi_NN)
    np.testing.assert_array_equal(known_NN, np.isfinite(second.phi_NN))
    drawn = known_NN.all(axis=1) if build is temporal_peer else known_NN.all(axis=0)
    assert drawn.sum() == 4
    assert known_NN.sum() == 4 * 11
    full = explain_peers(module, data, np.array([9]), PeerGameConfig(permutations=60, seed=1))[0]
    error_NN = np.hypot(first.error_NN, full.error_NN)
    assert (np.abs(first.phi_NN - full.phi_NN)[known_NN] <= 5 * error_NN[known_NN] + 1e-6).all()
    other = explain_peers(module, data, np.array([9]), PeerGameConfig(max_firms=4, seed=3))[0]
    assert not np.array_equal(known_NN, np.isfinite(other.phi_NN))


def test_values_depend_on_the_seed_but_not_on_the_other_sessions() -> None:
    data = panel()
    module = temporal_peer(data)
    config = PeerGameConfig(permutations=2, max_firms=4, seed=4)
    alone = explain_peers(module, data, np.array([15]), config)[0]
    among = explain_peers(module, data, np.array([9, 15]), config)[1]
    np.testing.assert_array_equal(alone.phi_NN, among.phi_NN)
    other = explain_peers(module, data, np.array([15]), PeerGameConfig(permutations=2, seed=5))[0]
    assert not np.array_equal(alone.phi_NN, other.phi_NN)
    group = GroupGameConfig(firms_per_date=2, seed=4)
    first = explain_groups(module, data, np.array([15]), FAMILIES, group)
    again = explain_groups(module, data, np.array([15, 9]), FAMILIES, group)
    assert len(first.base_E) == 2
    np.testing.assert_array_equal(first.values_EP, again.values_EP[:2])
    np.testing.assert_array_equal(first.firms_E, again.firms_E[:2])


def test_invalid_arguments_are_refused() -> None:
    data = panel()
    module = temporal_peer(data)
    with pytest.raises(ValueError, match="exactly one family"):
        explain_groups(module, data, SESSION, {"value": (0, 1), "size": (1, 2, 3)})
    with pytest.raises(ValueError, match="sessions is empty"):
        explain_groups(module, data, np.array([], dtype=int), FAMILIES)
    with pytest.raises(ValueError, match=r"call eval\(\) first"):
        explain_peers(module.train(), data, SESSION)
    with pytest.raises(ValueError, match="both must be at least 2"):
        PeerGameConfig(permutations=1)
    with pytest.raises(ValueError, match="at least 1"):
        GroupGameConfig(permutations=0)
