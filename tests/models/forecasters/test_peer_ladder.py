"""Each model with peers against a loop over firms, and properties of all neural models.

This file is long because every model has a slow reference implementation of its own, on a common panel.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest
import torch
from parts_of_batches import take_firms, without_peers
from small_panels import options_of
from torch import Tensor

from models.batch import Ablation, Batch, PanelTensors
from models.explain.groups import explain_groups
from models.explain.peers import PeerGameConfig, explain_peers
from models.fitting.config import FitConfig
from models.fitting.fit import NeuralFitted, fit
from models.forecaster import Forecaster
from models.forecasters.cross_peer import CrossPeer
from models.forecasters.kernel_regression import KernelRegression
from models.forecasters.sector_mean import SectorMean
from models.peers.layer import Firms, PeerKeys, PeerLayer, PeerSizes, peer_keys
from models.peers.others import LOGIT_GAIN
from models.peers.reference import (
    ReferenceConfig,
    count_larger_firms,
    firm_slot,
    inverse_ranks,
    inverse_size_rank,
)
from models.registry import MODELS
from models.spec import Shape, firm_key

T, N, C, F, W, S = 20, 12, 3, 4, 6, 3
NAMES = ("return_1", "log_market_equity", "value", "momentum_252_21")
TICKERS = tuple(f"FIRM{n}" for n in range(N))
NEURAL = [name for name, entry in MODELS.items() if entry.kind == "neural"]
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NEURAL),
    ("sector_mean", {"recent_days": 0}),
    ("kernel_regression", {"recent_days": 0, "bandwidth": 0.5}),
    ("cross_peer", {"reference": {"by": "size", "count": 3}, "layers": 2}),
    ("cross_peer", {"reference": {"by": "group", "count": 1}, "recent_days": 0}),
    ("cross_peer", {"reference": {"by": "list", "tickers": ["FIRM1", "FIRM6", "FIRM9", "FIRM11"]}}),
    ("self_peer", {"recent_days": 3}),
    ("self_peer", {"market_tokens": 2}),
    ("linear_portfolio_transformer", {"recent_days": 2}),
    ("portfolio_transformer", {"recent_days": 2, "layers": 1}),
    ("temporal_peer", {"market_tokens": 1}),
    ("temporal_peer", {"firm_slots": 64, "leader_ranks": "all"}),
]
WITH_PEERS = [case for case in VARIANTS if MODELS[case[0]].build.uses_peers]


def panel(seed: int = 0, group: int | None = None) -> PanelTensors:
    rng = np.random.default_rng(seed)
    mask_TN = rng.random((T, N)) < 0.8
    mask_TN[:, 3] = False
    group_TN = rng.integers(-1, S, size=(T, N)) if group is None else np.full((T, N), group)
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(T, N, C)),
        characteristics_TNF=rng.normal(size=(T, N, F)),
        mask_TN=mask_TN,
        group_TN=group_TN,
        target_TN=rng.normal(size=(T, N)),
        window=W,
        n_groups=S,
        characteristic_names=NAMES,
        firm_names=TICKERS,
    )


def build(case: tuple[str, dict[str, Any]], seed: int = 0) -> Forecaster:
    """Build a small model in eval mode with random weights, so that zero initialisation hides no path."""
    name, options = case
    entry = MODELS[name]
    known = set(entry.config.model_fields)
    sizes = {"width": 8, "heads": 2, "peer_heads": 2, "encoder": {"width": 8, "heads": 2}}
    sizes |= {"day_heads": 2, "networks": 4}
    small = {key: value for key, value in sizes.items() if key in known}
    torch.manual_seed(seed)
    module = entry.build(entry.config(**small, **options), panel().shape)
    assert isinstance(module, Forecaster)
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            logits = ("key_bias_HE", "group_bias_HSS", "null_bias_H", "market_bias_GH", "log_bandwidth_F")
            gain = LOGIT_GAIN if key.endswith(logits) else 1.0
            parameter.add_(0.3 / gain * torch.randn_like(parameter))
    return module.eval()


# --- properties of every neural model -------------------------------------------------------------------


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_permuting_firms_permutes_forecasts(case: tuple[str, dict[str, Any]]) -> None:
    module, batch = build(case), panel().batch(torch.tensor([8, 11]))
    order = torch.randperm(batch.m_BN.shape[1], generator=torch.Generator().manual_seed(1))
    expected = module(batch)
    assert expected.std() > 0.05
    torch.testing.assert_close(module(take_firms(batch, order)), expected[:, order], rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_a_firm_outside_the_universe_changes_nothing(case: tuple[str, dict[str, Any]]) -> None:
    module, batch = build(case), panel().batch(torch.tensor([8, 11]))
    absent = ~batch.m_BN
    assert absent.any()
    noisy = dataclasses.replace(
        batch,
        x_BNWC=torch.where(absent[:, :, None, None], 1e3, batch.x_BNWC),
        z_BNF=torch.where(absent[:, :, None], 1e3, batch.z_BNF),
        s_BN=torch.where(absent, 1, batch.s_BN),
    )
    expected = module(batch)
    assert (expected[absent] == 0).all()
    torch.testing.assert_close(module(noisy), expected, rtol=0, atol=2e-6)
    present = batch.m_BN[0].nonzero().squeeze(1)
    alone = panel().batch(torch.tensor([8]))  # without firms that are only in the universe of the other date
    torch.testing.assert_close(module(alone)[0], expected[0, present], rtol=0, atol=4e-6)


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_a_firm_without_peers_is_forecast(case: tuple[str, dict[str, Any]]) -> None:
    module, batch = build(case), panel().batch(torch.tensor([8]))
    all_firms = Ablation(peers_keep_BN=torch.zeros_like(batch.m_BN))
    alone = torch.cat(
        [module(take_firms(batch, torch.tensor([n]))) for n in range(batch.m_BN.shape[1])], dim=1
    )
    assert alone.isfinite().all()
    assert alone.std() > 0.05
    torch.testing.assert_close(module(batch, all_firms), alone, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_an_ablated_day_does_not_affect_the_forecast_of_a_model_with_days(
    case: tuple[str, dict[str, Any]],
) -> None:
    module, batch = build(case), panel().batch(torch.tensor([8, 11]))
    changed = dataclasses.replace(batch, x_BNWC=batch.x_BNWC.clone())
    changed.x_BNWC[:, :, -2] += 3.0
    keep_BW = torch.ones(2, W, dtype=torch.bool)
    everything = Ablation(keep_BW, torch.ones_like(batch.m_BN))
    torch.testing.assert_close(module(batch, everything), module(batch), rtol=0, atol=4e-6)
    ablation_BW = keep_BW.clone()
    ablation_BW[:, -2] = False
    torch.testing.assert_close(
        module(changed, Ablation(ablation_BW)), module(batch, Ablation(ablation_BW)), rtol=0, atol=4e-6
    )
    uses_days = module.uses_days or module.attention(batch).days_BNW is not None
    assert uses_days == (not torch.allclose(module(changed), module(batch), atol=1e-4))
    assert module(batch, Ablation(~keep_BW)).isfinite().all()
    assert torch.equal(
        module.mix(module.embed(batch, Ablation(ablation_BW)), batch, Ablation(ablation_BW)),
        module(batch, Ablation(ablation_BW)),
    )


@pytest.mark.parametrize("case", WITH_PEERS, ids=str)
def test_attention_maps_match_the_effect_of_ablating_peers(case: tuple[str, dict[str, Any]]) -> None:
    module, batch = build(case), panel().batch(torch.tensor([8, 11]))
    maps = module.attention(batch, without_peers(batch, 1)).peers_BLHNN
    assert maps is not None
    n = batch.m_BN.shape[1]
    assert maps.shape[-2:] == (n, n)
    assert (maps >= 0).all()
    assert (maps.diagonal(dim1=-2, dim2=-1) == 0).all()
    assert (maps[..., 1] == 0).all()
    assert (maps.movedim(-1, 1)[~batch.m_BN] == 0).all()
    total = maps.sum(-1).movedim(-1, 1)[batch.m_BN]
    assert (total < 1 + 1e-5).all()
    assert (total > 1e-4).float().mean() > 0.5  # some heads put most weight on the null key
    # a firm with weight affects the forecast; with one layer, a firm without weight does not
    single = panel().batch(torch.tensor([8]))
    weights = module.attention(single).peers_BLHNN
    assert weights is not None
    weight_NN, expected_N = weights[0].sum(dim=(0, 1)), module(single)[0]
    one_layer = len([layer for layer in module.modules() if isinstance(layer, PeerLayer)]) < 2
    for j in range(single.firms_N.numel()):
        moved_N = (module(single, without_peers(single, j))[0] - expected_N).abs()
        moved_N[j] = 0.0
        assert (moved_N[weight_NN[:, j] > 1e-3] > 1e-7).all()
        if one_layer:
            assert (moved_N[weight_NN[:, j] == 0] < 4e-6).all()


@pytest.mark.parametrize("case", WITH_PEERS, ids=str)
def test_shapley_values_of_peers_add_up(case: tuple[str, dict[str, Any]]) -> None:
    data, module = panel(), build(case)
    explained = explain_peers(module, data, np.array([15]), PeerGameConfig(permutations=2))[0]
    np.testing.assert_allclose(
        explained.base_N + explained.phi_NN.sum(axis=1), explained.forecast_N, atol=1e-5
    )
    assert np.abs(explained.phi_NN).max() > 1e-4
    groups = explain_groups(module, data, np.array([15]), {"all": range(F)})
    kinds = {"family", "peers"} | ({"days"} if module.uses_days else set())
    kinds |= {"market"} if case[1].get("market_tokens") else set()
    assert {player.kind for player in groups.players} == kinds
    assert groups.additivity_error < 1e-5


# --- sector_mean -------------------------------------------------------------------------------------


def test_sector_mean_is_the_mean_of_the_other_firms_of_the_group() -> None:
    module = build(("sector_mean", {"recent_days": 2})).double()
    assert isinstance(module, SectorMean)
    batch = panel().batch(torch.tensor([8]))
    batch = dataclasses.replace(batch, z_BNF=batch.z_BNF.double(), x_BNWC=batch.x_BNWC.double())
    h = torch.cat((batch.z_BNF, batch.x_BNWC[:, :, -2:].flatten(2)), dim=-1)[0]
    s, expected = batch.s_BN[0].tolist(), []
    for i in range(len(s)):
        peers = [j for j in range(len(s)) if j != i and s[j] == s[i] and s[i] > 0]
        mean = h[peers].mean(dim=0) if peers else torch.zeros_like(h[0])
        expected.append(module.own(h[i])[0] + module.peers[0] @ mean)
    assert 0 in s  # a firm of unknown group, which has no peers
    assert max(s.count(code) for code in (1, 2, 3)) > 1
    torch.testing.assert_close(module(batch)[0], torch.stack(expected).float(), rtol=0, atol=1e-6)


def test_firms_of_unknown_group_have_no_peers() -> None:
    module = build(("sector_mean", {}))
    batch = panel(group=-1).batch(torch.tensor([8]))
    maps = module.attention(batch).peers_BLHNN
    assert maps is not None
    assert not maps.any()
    all_firms = Ablation(peers_keep_BN=torch.zeros_like(batch.m_BN))
    assert torch.equal(module(batch), module(batch, all_firms))


# --- kernel_regression -------------------------------------------------------------------------------


def test_kernel_regression_is_nadaraya_watson_without_the_firm_itself() -> None:
    module = build(("kernel_regression", {"recent_days": 2})).double()
    assert isinstance(module, KernelRegression)
    batch = panel().batch(torch.tensor([8]))
    batch = dataclasses.replace(batch, z_BNF=batch.z_BNF.double(), x_BNWC=batch.x_BNWC.double())
    z = batch.z_BNF[0].numpy()
    h = torch.cat((batch.z_BNF, batch.x_BNWC[:, :, -2:].flatten(2)), dim=-1)[0].numpy()
    b = module.bandwidths().detach().numpy()
    assert np.ptp(b) > 0.1
    own, value = (h @ module.own.weight.detach().numpy().T)[:, 0], h @ module.peers.detach().numpy()[0]
    own += module.own.bias.item()
    weights, expected = np.zeros((len(z), len(z))), []
    for i in range(len(z)):
        for j in range(len(z)):
            weights[i, j] = 0.0 if i == j else np.exp(-0.5 * (((z[i] - z[j]) / b) ** 2).sum())
        expected.append(own[i] + weights[i] @ value / weights[i].sum())
    np.testing.assert_allclose(module(batch)[0].detach().numpy(), expected, atol=1e-6)
    maps = module.attention(batch).peers_BLHNN
    assert maps is not None
    np.testing.assert_allclose(
        maps[0, 0, 0].detach().numpy(), weights / weights.sum(1, keepdims=True), atol=1e-10
    )


def test_kernel_regression_learns_which_characteristic_defines_similarity() -> None:
    rng = np.random.default_rng(0)
    t, n = 140, 24
    z = rng.normal(size=(t, n, 3)).astype(np.float32)
    pairs = np.argsort(rng.random((t, n)), axis=1)  # firms are paired, and a pair shares characteristic 1
    for a, b in zip(pairs[:, ::2].T, pairs[:, 1::2].T, strict=True):
        z[np.arange(t), b, 1] = z[np.arange(t), a, 1]
    x = rng.normal(size=(t, n, 1)).astype(np.float32)
    y = np.zeros((t, n))
    for a, b in zip(pairs[:, ::2].T, pairs[:, 1::2].T, strict=True):
        y[np.arange(t), a], y[np.arange(t), b] = x[np.arange(t), b, 0], x[np.arange(t), a, 0]
    data = PanelTensors.from_arrays(
        channels_TNC=x,
        characteristics_TNF=z,
        mask_TN=np.ones((t, n), dtype=bool),
        group_TN=np.full((t, n), -1),
        target_TN=y + 0.3 * rng.normal(size=(t, n)),
        window=1,
    )
    config = FitConfig(epochs=15, batch_dates=4, lr=2e-2, patience=15, valid_dates=10)
    fitted = fit(
        "kernel_regression",
        options_of("kernel_regression", {"recent_days": 1}),
        data,
        np.arange(90),
        np.arange(90, 110),
        fit_config=config,
        seed=0,
    )
    module = cast("KernelRegression", cast("NeuralFitted", fitted).module)
    width_F = module.bandwidths().detach().numpy()
    assert width_F[1] < 0.5 * min(width_F[0], width_F[2])
    test = np.arange(110, t)
    assert np.corrcoef(fitted.forecast(data, test).ravel(), y[test].ravel())[0, 1] > 0.8


# --- cross_peer --------------------------------------------------------------------------------------


def reference(module: Forecaster, batch: Batch) -> list[list[int]]:
    assert isinstance(module, CrossPeer)
    return [row.nonzero().squeeze(1).tolist() for row in module.reference.choose(batch)]


def test_the_reference_is_chosen_by_size_by_group_or_by_list() -> None:
    batch = panel().batch(torch.tensor([8, 11]))
    size_BN, s_BN, m_BN = batch.z_BNF[..., 1].numpy(), batch.s_BN.numpy(), batch.m_BN.numpy()
    for b in range(2):
        present = [n for n in np.argsort(-size_BN[b]) if m_BN[b, n]]
        by_size = build(("cross_peer", {"reference": {"count": 4}}))
        assert reference(by_size, batch)[b] == sorted(present[:4])
        by_group = build(("cross_peer", {"reference": {"by": "group", "count": 2}}))
        largest = [n for code in (1, 2, 3) for n in [n for n in present if s_BN[b, n] == code][:2]]
        assert reference(by_group, batch)[b] == sorted(largest)
        named = build(("cross_peer", {"reference": {"by": "list", "tickers": ["FIRM6", "FIRM1"]}}))
        expected = [n for n, firm in enumerate(batch.firms_N[b].tolist()) if firm in (1, 6) and m_BN[b, n]]
        assert reference(named, batch)[b] == expected
    other = build(("cross_peer", {"reference": {"count": 4, "characteristic": "value"}}))
    assert reference(other, batch) != reference(by_size, batch)


def test_larger_firms_are_counted_with_ties() -> None:
    rng = np.random.default_rng(0)
    size, group = torch.tensor(rng.integers(0, 4, (5, 30))), torch.tensor(rng.integers(0, 3, (5, 30)))
    expected = [
        [sum(size[b, j] > size[b, i] and group[b, j] == group[b, i] for j in range(30)) for i in range(30)]
        for b in range(5)
    ]
    assert count_larger_firms(size.float(), group).tolist() == expected


def test_the_inverse_size_rank_counts_larger_present_firms_of_the_group() -> None:
    rng = np.random.default_rng(1)
    batch = panel().batch(torch.tensor([8, 9, 10]))
    shape = batch.m_BN.shape
    m_BN = torch.tensor(rng.random(shape) < 0.7)
    s_BN = torch.tensor(rng.integers(0, 3, shape))
    z_BNF = batch.z_BNF.clone()
    z_BNF[..., 1] = torch.tensor(rng.integers(0, 4, shape))  # with ties
    actual_BN = inverse_size_rank(dataclasses.replace(batch, m_BN=m_BN, s_BN=s_BN, z_BNF=z_BNF), 1)
    assert actual_BN is not None
    for b, i in np.ndindex(*shape):
        larger = sum(
            bool(m_BN[b, j] and s_BN[b, j] == s_BN[b, i] and z_BNF[b, j, 1] > z_BNF[b, i, 1])
            for j in range(shape[1])
        )
        expected = 1.0 / (1 + larger) if m_BN[b, i] and s_BN[b, i] > 0 else 0.0
        assert float(actual_BN[b, i]) == pytest.approx(expected)
    assert inverse_size_rank(batch, None) is None


@pytest.mark.parametrize("layers", [1, 2])
def test_only_reference_firms_affect_other_firms(layers: int) -> None:
    module = build(("cross_peer", {"reference": {"count": 3}, "layers": layers}))
    batch = panel().batch(torch.tensor([8]))
    (references,) = reference(module, batch)
    expected = module(batch)[0]
    for j in range(batch.m_BN.shape[1]):
        z_BNF, x_BNWC = batch.z_BNF.clone(), batch.x_BNWC.clone()
        z_BNF[0, j, [0, 2, 3]] += 2.0  # not its size, so the reference firms stay the same
        x_BNWC[0, j] += 1.0
        moved = (module(dataclasses.replace(batch, z_BNF=z_BNF, x_BNWC=x_BNWC))[0] - expected).abs()
        assert moved[j] > 1e-4
        moved[j] = 1.0 if j in references else 0.0
        assert (moved > 1e-5).all() if j in references else (moved < 2e-6).all()
    maps = module.attention(batch).peers_BLHNN
    assert maps is not None
    outside = [n for n in range(batch.m_BN.shape[1]) if n not in references]
    assert (maps[..., outside] == 0).all()
    assert ((maps[..., references] > 0).sum(-1) >= len(references) - 1).all()


def test_a_reference_of_all_firms_equals_self_attention() -> None:
    all_firms: Any = build(("cross_peer", {"reference": {"count": N}}))
    batch = panel().batch(torch.tensor([8, 11]))
    layer = cast("PeerLayer", all_firms.layers[0])
    targets, _, _, _ = all_firms._targets_and_references(all_firms.embed(batch), batch, None)
    h_BND, message_BN1 = layer(targets, targets, peer_keys(batch, None))
    skip_BN1 = all_firms.skip(torch.cat((batch.z_BNF, batch.x_BNWC[:, :, -3:].flatten(2)), dim=-1))
    expected = (skip_BN1 + message_BN1 + all_firms.head(all_firms.norm(h_BND)))[..., 0] * batch.m_BN
    torch.testing.assert_close(all_firms(batch), expected, rtol=1e-5, atol=2e-6)


def test_a_list_does_not_depend_on_column_order_and_unknown_tickers_are_refused() -> None:
    options = {"reference": {"by": "list", "tickers": ["FIRM2", "FIRM5"]}, "width": 8, "heads": 2}
    data = panel()
    train, valid = np.arange(6, 14), np.arange(15, 19)

    def fitted(given: PanelTensors) -> Any:  # noqa: ANN401  (a fitted model)
        return fit(
            "cross_peer",
            options_of("cross_peer", options),
            given,
            train,
            valid,
            fit_config=FitConfig(epochs=1),
            seed=0,
        )

    model = fitted(data)
    order = np.random.default_rng(0).permutation(N)
    moved = PanelTensors.from_arrays(
        channels_TNC=data.channels_TNC[:, order],
        characteristics_TNF=data.characteristics_TNF[:, order],
        mask_TN=data.mask_TN[:, order],
        group_TN=data.group_TN[:, order] - 1,
        target_TN=data.target_TN[:, order],
        window=W,
        n_groups=S,
        characteristic_names=NAMES,
        firm_names=[TICKERS[n] for n in order],
    )
    np.testing.assert_allclose(model.forecast(moved, valid), model.forecast(data, valid)[:, order], atol=1e-6)
    options["reference"] = {"by": "list", "tickers": ["FIRM2", "NOBODY", "NEITHER"]}
    with pytest.raises(ValueError, match=r"needs 'NOBODY' of reference.tickers \(and 1 others\)"):
        fitted(data)
    assert firm_key("FIRM2") == firm_key("FIRM2") != firm_key("FIRM5")


def test_invalid_references_are_refused() -> None:
    entry = MODELS["cross_peer"]
    nameless = dataclasses.replace(panel().shape, characteristic_names=())
    for options, words in (
        ({"reference": {"by": "fame"}}, "'size', 'group' or 'list'"),
        ({"reference": {"by": "list"}}, "list needs tickers"),
        ({"reference": {"tickers": ["A"]}}, "size and group do not allow them"),
        ({"reference": {"count": 0}}, r"reference.count\n.*greater than or equal to 1"),
        ({"reference": {"cuont": 5}}, "cuont is not a known name"),
        ({"reference": {}}, "has neither log_market_equity nor log_dollar_volume_21"),
    ):
        with pytest.raises(ValueError, match=words):
            entry.build(entry.config(**options), nameless)


# --- self_peer and the market tokens -----------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"market_tokens": 2}], ids=str)
def test_explicit_weights_are_row_stochastic_and_not_symmetric(options: dict[str, Any]) -> None:
    module = build(("self_peer", options))
    batch = panel().batch(torch.tensor([8]))
    layer = cast("PeerLayer", cast("Any", module).layers[0])
    h_BND = module.embed(batch)
    firms = Firms(h_BND, layer.norm(h_BND), None, batch.s_BN)
    new_BND, message_BN1, weights_BHNK = layer.explicit(firms, firms, peer_keys(batch, None))
    n = batch.m_BN.shape[1]
    assert weights_BHNK.shape == (1, 2, n, n + 1)  # the null key is the last
    torch.testing.assert_close(weights_BHNK.sum(-1), torch.ones(1, 2, n))
    square = weights_BHNK[..., :n]
    assert (square - square.transpose(-1, -2)).abs().max() > 0.05
    fused_BND, fused_BN1 = layer(firms, firms, peer_keys(batch, None))
    torch.testing.assert_close(fused_BND, new_BND, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fused_BN1, message_BN1, rtol=1e-5, atol=1e-6)


def test_market_tokens_equal_a_loop_over_firms() -> None:
    module = build(("self_peer", {"market_tokens": 2, "layers": 1})).double()
    layer = cast("PeerLayer", cast("Any", module).layers[0])
    batch = panel().batch(torch.tensor([8]))
    batch = dataclasses.replace(batch, z_BNF=batch.z_BNF.double())
    h = module.embed(batch)[0]
    normed, bias_HSS, s = layer.norm(h), layer.group_bias_HSS, batch.s_BN[0]
    assert bias_HSS is not None
    n, expected = len(h), []
    for i in range(n):
        others, heads = [j for j in range(n) if j != i], []
        for a in range(2):
            part = slice(4 * a, 4 * a + 4)
            key = {j: layer.key(normed[j])[part] for j in others}
            value = {j: layer.value(normed[j])[part] for j in others}
            key_bias = {j: LOGIT_GAIN * layer.key_bias_HE[a] @ normed[j] for j in others}
            null_bias = LOGIT_GAIN * layer.null_bias_H[a]

            def softmax(logits: list[Tensor]) -> Tensor:
                return torch.softmax(torch.stack(logits), 0)

            states = []
            for g in range(2):
                t = layer.market_query_GHd[g, a]
                w = softmax(
                    [t @ key[j] / 2.0 + key_bias[j] for j in others]
                    + [t @ layer.null_key_HD[a] / 2.0 + null_bias]
                )
                states.append(sum(w[k] * value[j] for k, j in enumerate(others)))
            q = layer.query(normed[i])[part]
            bias = {j: LOGIT_GAIN * bias_HSS[a, s[i], s[j]] * (s[i] > 0) * (s[j] > 0) for j in others}
            logits = [q @ key[j] / 2.0 + key_bias[j] + bias[j] for j in others]
            logits.append(q @ layer.null_key_HD[a] / 2.0 + null_bias)
            logits += [
                q @ layer.market_key_GHd[g, a] / 2.0 + LOGIT_GAIN * layer.market_bias_GH[g, a]
                for g in range(2)
            ]
            w = softmax(logits)
            values = [value[j] for j in others] + [torch.zeros(4, dtype=torch.float64), *states]
            heads.append(sum(w[k] * v for k, v in enumerate(values)))
        expected.append(layer.readout(torch.cat(cast("list[Tensor]", heads))))
    firms = Firms(h[None], normed[None], None, batch.s_BN)
    _, message_BN1 = layer(firms, firms, peer_keys(batch, None))
    torch.testing.assert_close(message_BN1[0], torch.stack(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["self_peer", "temporal_peer"])
def test_market_tokens_matter_initially_and_do_not_change_other_parameters(name: str) -> None:
    entry, shape = MODELS[name], panel().shape
    torch.manual_seed(0)
    plain = entry.build(entry.config(), shape)
    torch.manual_seed(0)
    tokens = entry.build(entry.config(market_tokens=1), shape)
    assert isinstance(plain, Forecaster)
    assert isinstance(tokens, Forecaster)
    first = dict(plain.named_parameters())
    assert not [key for key in first if "market" in key]
    one_layer = {
        k: v for k, v in tokens.named_parameters() if k.startswith(("group", "token", "layers.0", "peers"))
    }
    for key, value in one_layer.items():
        if "market" not in key:
            assert torch.equal(value, first[key]), key
    batch = panel().batch(torch.tensor([8]))
    before, after = plain.eval().attention(batch), tokens.eval().attention(batch)
    assert before.peers_BLHNN is not None
    assert after.peers_BLHNN is not None
    assert (before.peers_BLHNN - after.peers_BLHNN).abs().max() > 0.01


# --- two hops ----------------------------------------------------------------------------------------


def chain() -> tuple[PanelTensors, np.ndarray, np.ndarray]:
    """Firms have new random names on each date, and each firm knows the name of its leader.

    The target of a firm is the value of its leader plus the value of its leader's leader. Only the leader
    knows the name of the latter, so one layer cannot attend to it.
    """
    rng, t, n, code = np.random.default_rng(0), 400, 12, 4
    z = np.zeros((t, n, 2 * code + 1), dtype=np.float32)
    one_hop, two_hops = np.zeros((t, n)), np.zeros((t, n))
    for day in range(t):
        name = rng.normal(size=(n, code))
        name *= np.sqrt(code) / np.linalg.norm(name, axis=1, keepdims=True)
        order, leader, value = rng.permutation(n), np.empty(n, dtype=int), rng.normal(size=n)
        leader[order] = np.roll(order, 1)
        z[day] = np.concatenate((name, name[leader], value[:, None]), axis=1)
        one_hop[day], two_hops[day] = value[leader], value[leader[leader]]
    data = PanelTensors.from_arrays(
        channels_TNC=np.zeros((t, n, 1)),
        characteristics_TNF=z,
        mask_TN=np.ones((t, n), dtype=bool),
        group_TN=np.full((t, n), -1),
        target_TN=one_hop + two_hops,
        window=1,
    )
    return data, one_hop, two_hops


@pytest.mark.slow(6)
def test_two_layers_carry_a_second_hop_and_one_does_not() -> None:
    data, one_hop, two_hops = chain()
    correlation = {}
    for layers in (1, 2):
        options = {
            "width": 24,
            "heads": 2,
            "layers": layers,
            "dropout": 0.0,
            "group_width": 1,
            "group_bias": False,
        }
        config = FitConfig(epochs=8, batch_dates=4, lr=5e-3, patience=8, valid_dates=5)
        fitted = fit(
            "self_peer",
            options_of("self_peer", options),
            data,
            np.arange(350),
            np.arange(350, 370),
            fit_config=config,
            seed=0,
        )
        test = np.arange(370, 400)
        forecast = fitted.forecast(data, test).ravel()
        correlation[layers] = [
            np.corrcoef(forecast, truth[test].ravel())[0, 1] for truth in (one_hop, two_hops)
        ]
    assert correlation[1][0] > 0.6  # both use the leader
    assert correlation[2][0] > 0.5
    assert abs(correlation[1][1]) < 0.25
    assert correlation[2][1] > 0.45


PEER_MODELS = tuple(name for name, entry in MODELS.items() if getattr(entry.build, "uses_peers", False))


def with_random_parameters(name: str, shape: Shape) -> Forecaster:
    """Build a model with random parameters, so that every possible dependence shows."""
    entry = MODELS[name]
    given: dict[str, Any] = {"reference": ReferenceConfig(count=100)} if name == "cross_peer" else {}
    module = entry.build(entry.config(**given), shape)
    assert isinstance(module, Forecaster)
    module.eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module


@pytest.mark.parametrize("name", PEER_MODELS)
def test_parameters_of_the_unknown_group_are_never_used(name: str) -> None:
    """Parameters of code 0 do not affect forecasts."""
    data = panel()
    batch = data.batch(torch.tensor([8]))
    ungrouped = torch.arange(batch.s_BN.shape[1]) % 2 == 0
    batch = dataclasses.replace(batch, s_BN=torch.where(ungrouped, 0, batch.s_BN.clamp(min=1)))
    module = with_random_parameters(name, data.shape)
    before = module(batch)
    assert before.std() > 1e-3
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            if key.endswith("group.weight"):
                parameter[0] += 5.0
            if key.endswith("group_bias_HSS"):
                parameter[:, 0] += 5.0
                parameter[:, 1:, 0] += 5.0
    torch.testing.assert_close(module(batch), before, rtol=0, atol=0)


def test_in_sector_mean_firms_of_unknown_group_have_no_peers_and_are_no_peers() -> None:
    data = panel()
    batch = data.batch(torch.tensor([8]))
    ungrouped = torch.arange(batch.s_BN.shape[1]) % 2 == 0
    batch = dataclasses.replace(batch, s_BN=torch.where(ungrouped, 0, 1))
    module = with_random_parameters("sector_mean", data.shape)
    before = module(batch)
    first = int(ungrouped.nonzero()[0])
    z_BNF = batch.z_BNF.clone()
    z_BNF[0, first] += 3.0
    after = module(dataclasses.replace(batch, z_BNF=z_BNF))
    assert after[0, first] != before[0, first]
    others = torch.arange(before.shape[1]) != first
    torch.testing.assert_close(after[0, others], before[0, others], rtol=0, atol=0)


def test_initial_attention_has_no_bias_for_firms_of_unknown_group() -> None:
    """Firms with equal characteristics get equal weights, whether their groups are known or not."""
    torch.manual_seed(0)
    sizes = PeerSizes(width=8, heads=2, identity=3, recent=0, n_groups=3, dropout=0.0, tokens=4)
    layer = PeerLayer(sizes).eval()
    z_BNE = torch.randn(1, 1, 3).expand(1, 4, 3)
    firms = Firms(torch.randn(1, 4, 4), z_BNE, None, torch.tensor([[0, 0, 1, 2]]))
    keys = PeerKeys(torch.ones(1, 4, dtype=torch.bool))
    weights_HN = layer.explicit(firms, firms, keys)[2][0, :, 0, 1:4]
    torch.testing.assert_close(weights_HN, weights_HN[:, :1].expand(-1, 3))


# --- leaders that no characteristic reveals ----------------------------------------------------------


def test_a_bias_per_firm_finds_a_leader_that_only_its_name_gives_away() -> None:
    """One firm's return comes back in all others a session later; characteristics are noise."""
    rng = np.random.default_rng(2)
    t, n, leader = 120, 8, 6
    x = rng.normal(size=(t, n, 1)).astype(np.float32)
    y = np.repeat(x[:, leader, 0][:, None], n, axis=1)
    y[:, leader] = 0.0
    data = PanelTensors.from_arrays(
        channels_TNC=x,
        characteristics_TNF=np.repeat(rng.normal(size=(t, n, 1)), 2, axis=2),
        mask_TN=np.ones((t, n), dtype=bool),
        group_TN=np.zeros((t, n), dtype=int),
        target_TN=y + rng.normal(size=(t, n)),
        window=2,
        characteristic_names=("log_market_equity", "value"),
        firm_names=tuple(f"FIRM{j}" for j in range(n)),
    )
    config = FitConfig(epochs=6, batch_dates=4, lr=1e-2, patience=6, valid_dates=5)
    share: dict[int, float] = {}
    for slots in (0, 512):
        # the leader is never left out: it is one of eight firms
        sizes = {"peer_dropout": 0.0, "recent_days": 1, "encoder": {"width": 8, "heads": 2}}
        options = {"firm_slots": slots, **sizes}
        fitted = fit(
            "temporal_peer",
            options_of("temporal_peer", options),
            data,
            np.arange(2, 90),
            np.arange(92, 105),
            fit_config=config,
            seed=0,
        )
        weights = (
            cast("NeuralFitted", fitted).module.attention(data.batch(torch.arange(110, 118))).peers_BLHNN
        )
        assert weights is not None
        to_peers_N = weights.detach().mean(dim=(0, 1, 2)).sum(dim=0)
        share[slots] = float(to_peers_N[leader] / to_peers_N.sum())
    assert share[512] > 0.5
    assert share[0] < 0.3


def test_a_slot_follows_the_name_and_not_the_place() -> None:
    batch = panel().batch(torch.tensor([8, 11]))
    slot_BN = firm_slot(batch, 1000)
    assert slot_BN is not None
    expected = [[firm_key(TICKERS[n]) % 1000 for n in firms] for firms in batch.firms_N.tolist()]
    assert slot_BN.tolist() == expected
    assert expected[0] != expected[1], "a place holds different firms on the two dates"
    assert all(len(set(slots)) == len(slots) for slots in expected)
    assert firm_slot(batch, 0) is None


def test_inverse_ranks_count_firms_of_the_group_above_and_below() -> None:
    batch = panel().batch(torch.tensor([8, 11]))
    found = inverse_ranks(batch).numpy()
    z, s, m = batch.z_BNF.numpy(), batch.s_BN.numpy(), batch.m_BN.numpy()
    expected = np.zeros((*m.shape, 2 * F))
    for b, i in zip(*np.nonzero(m & (s > 0)), strict=True):
        group = np.flatnonzero(m[b] & (s[b] == s[b, i]))
        for f in range(F):
            expected[b, i, f] = 1 / (1 + sum(z[b, j, f] > z[b, i, f] for j in group))
            expected[b, i, F + f] = 1 / (1 + sum(z[b, j, f] < z[b, i, f] for j in group))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (found == 1).sum() > 10
    assert (found == 0).any()
