"""Properties of every neural forecaster: order of firms, absent firms, ablations, attention maps."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest
import torch
from parts_of_batches import take_firms, without_peers
from torch import Tensor

from models.attention.encoder import DayEncoder, EncoderConfig, encode_present
from models.batch import Ablation, PanelTensors
from models.fitting.config import FitConfig
from models.fitting.optimizer import AdamW, parameter_groups
from models.forecaster import Forecaster
from models.forecasters.self_peer import SelfPeer
from models.forecasters.temporal_peer import TemporalPeer
from models.peers.layer import Firms, PeerKeys, PeerLayer, PeerSizes
from models.peers.others import LOGIT_GAIN
from models.registry import MODELS

T, N, C, F, W, S = 20, 12, 3, 4, 6, 3
SMALL_TEMPORAL_PEER: dict[str, Any] = {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2}
NEURAL: list[tuple[str, dict[str, Any]]] = [
    ("temporal_transformer", {"encoder": {"width": 8, "heads": 2}}),
    (
        "temporal_transformer",
        {"encoder": {"width": 8, "heads": 2, "pooling": "mean", "causal": True, "positions": "rotary"}},
    ),
    (
        "temporal_transformer",
        {"encoder": {"width": 8, "heads": 2, "positions": "sinusoidal"}, "use_characteristics": False},
    ),
    ("temporal_transformer", {"encoder": {"width": 8, "heads": 2, "positions": "none", "causal": True}}),
    ("seq2seq", {"encoder": {"width": 8, "heads": 2}}),
    ("seq2seq", {"encoder": {"width": 8, "heads": 2, "norm": "post"}, "use_characteristics": False}),
    ("self_peer", {"width": 8, "heads": 2}),
    ("self_peer", {"width": 8, "heads": 2, "layers": 1, "group_bias": False}),
    ("temporal_peer", SMALL_TEMPORAL_PEER),
    (
        "temporal_peer",
        {
            "encoder": {"width": 8, "heads": 2, "pooling": "mean"},
            "peer_heads": 2,
            "market_tokens": 2,
            "keys_from": "token",
        },
    ),
]
PEERS = [case for case in NEURAL if "peer" in case[0]]


def panel(seed: int = 0) -> PanelTensors:
    rng = np.random.default_rng(seed)
    mask = rng.random((T, N)) < 0.8
    mask[:, 3] = False
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(T, N, C)),
        characteristics_TNF=rng.normal(size=(T, N, F)),
        mask_TN=mask,
        group_TN=rng.integers(-1, S, size=(T, N)),
        target_TN=rng.normal(size=(T, N)),
        window=W,
        n_groups=S,
    )


def build(case: tuple[str, dict[str, Any]], seed: int = 0) -> Forecaster:
    """Build a model in eval mode with random weights, so that zero initialisation hides no path."""
    name, options = case
    entry = MODELS[name]
    torch.manual_seed(seed)
    module = entry.build(entry.config(**options), panel().shape)
    assert isinstance(module, Forecaster)
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            gain = LOGIT_GAIN if key.endswith(("key_bias_HE", "group_bias_HSS", "null_bias_H")) else 1.0
            parameter.add_(0.3 / gain * torch.randn_like(parameter))
    return module.eval()


@pytest.mark.parametrize("case", NEURAL)
def test_forecasts_do_not_depend_on_the_order_of_firms(case: tuple[str, dict[str, Any]]) -> None:
    module, batch = build(case), panel().batch(torch.tensor([8, 11]))
    order = torch.randperm(batch.m_BN.shape[1], generator=torch.Generator().manual_seed(1))
    expected, actual = module(batch)[:, order], module(take_firms(batch, order))
    assert expected.std() > 0.05
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("case", NEURAL)
def test_an_absent_firm_changes_nothing_and_is_forecast_as_zero(case: tuple[str, dict[str, Any]]) -> None:
    module, batch = build(case), panel().batch(torch.tensor([8, 11]))
    absent = ~batch.m_BN
    assert absent.any()
    noisy = dataclasses.replace(
        batch,
        x_BNWC=torch.where(absent[:, :, None, None], 1e3, batch.x_BNWC),
        z_BNF=torch.where(absent[:, :, None], -1e3, batch.z_BNF),
        s_BN=torch.where(absent, 0, batch.s_BN),
    )
    expected = module(batch)
    assert (expected[absent] == 0).all()
    assert (expected[batch.m_BN] != 0).all()
    torch.testing.assert_close(module(noisy), expected, rtol=0, atol=2e-6)
    present = batch.m_BN[0].nonzero().squeeze(1)
    alone = panel().batch(torch.tensor([8]))
    torch.testing.assert_close(module(alone)[0], expected[0, present], rtol=0, atol=2e-6)


@pytest.mark.parametrize("case", NEURAL)
def test_forecasts_depend_on_other_firms_only_in_models_with_peers(
    case: tuple[str, dict[str, Any]],
) -> None:
    module, batch = build(case), panel().batch(torch.tensor([8]))
    expected = module(batch)
    changed = dataclasses.replace(batch, z_BNF=batch.z_BNF.clone(), x_BNWC=batch.x_BNWC.clone())
    changed.z_BNF[0, 2] += 1.0
    changed.x_BNWC[0, 2] += 1.0
    others = torch.arange(expected.shape[1]) != 2
    moved = (module(changed) - expected)[0].abs()
    assert moved[2] > 1e-4
    if module.uses_peers:
        assert (moved[others] > 1e-5).all()
    else:
        assert (moved[others] < 2e-6).all()


@pytest.mark.parametrize("case", PEERS)
def test_ablating_a_peer_equals_removing_it_for_the_other_firms(
    case: tuple[str, dict[str, Any]],
) -> None:
    module, batch = build(case), panel().batch(torch.tensor([8]))
    ablation = without_peers(batch, 2)
    rest = torch.tensor([n for n in range(batch.m_BN.shape[1]) if n != 2])
    torch.testing.assert_close(
        module(batch, ablation)[:, rest], module(take_firms(batch, rest)), rtol=0, atol=2e-6
    )
    assert not torch.allclose(module(batch, ablation)[:, rest], module(batch)[:, rest], atol=1e-5)
    if len([m for m in module.modules() if type(m).__name__ == "PeerLayer"]) == 1:
        # one layer: its own forecast still uses the others
        torch.testing.assert_close(module(batch, ablation)[:, 2], module(batch)[:, 2], rtol=0, atol=2e-6)
    all_firms = Ablation(peers_keep_BN=torch.zeros_like(batch.m_BN))
    alone = torch.cat(
        [module(take_firms(batch, torch.tensor([n]))) for n in range(batch.m_BN.shape[1])], dim=1
    )
    assert alone.isfinite().all()
    torch.testing.assert_close(module(batch, all_firms), alone, rtol=0, atol=2e-6)


@pytest.mark.parametrize("case", NEURAL)
def test_an_ablated_day_does_not_affect_the_forecast(case: tuple[str, dict[str, Any]]) -> None:
    module, batch = build(case), panel().batch(torch.tensor([8, 11]))
    for day in (0, W - 1):
        keep = torch.ones(2, W, dtype=torch.bool)
        keep[:, day] = False
        ablation = Ablation(days_keep_BW=keep)
        changed = dataclasses.replace(batch, x_BNWC=batch.x_BNWC.clone())
        changed.x_BNWC[:, :, day] += 3.0
        torch.testing.assert_close(module(changed, ablation), module(batch, ablation), rtol=0, atol=2e-6)
        if case[0] != "self_peer":
            assert not torch.allclose(module(changed), module(batch), atol=1e-4)
    none = Ablation(days_keep_BW=torch.zeros(2, W, dtype=torch.bool))
    assert module(batch, none).isfinite().all()
    everything = Ablation(torch.ones(2, W, dtype=torch.bool), torch.ones_like(batch.m_BN))
    torch.testing.assert_close(module(batch, everything), module(batch), rtol=0, atol=2e-6)


@pytest.mark.parametrize("case", NEURAL)
def test_forward_is_mix_of_embed(case: tuple[str, dict[str, Any]]) -> None:
    module, batch = build(case), panel().batch(torch.tensor([8, 11]))
    ablation = without_peers(batch, 1)
    assert torch.equal(module.mix(module.embed(batch, ablation), batch, ablation), module(batch, ablation))


@pytest.mark.parametrize("case", NEURAL)
def test_attention_maps_are_weights_over_the_days_and_the_other_firms(
    case: tuple[str, dict[str, Any]],
) -> None:
    module, batch = build(case), panel().batch(torch.tensor([8, 11]))
    maps = module.attention(batch, without_peers(batch, 1))
    if case[0] == "self_peer":
        assert maps.days_BNW is None
    else:
        assert maps.days_BNW is not None
        torch.testing.assert_close(maps.days_BNW.sum(-1), batch.m_BN.float())
    if not module.uses_peers:
        assert maps.peers_BLHNN is None
        return
    assert maps.peers_BLHNN is not None
    n = batch.m_BN.shape[1]
    assert maps.peers_BLHNN.shape[-2:] == (n, n)
    assert (maps.peers_BLHNN.diagonal(dim1=-2, dim2=-1) == 0).all()
    assert (maps.peers_BLHNN[..., 1] == 0).all()
    assert (
        maps.peers_BLHNN.transpose(-1, -2)[~batch.m_BN[:, None, None].expand_as(maps.peers_BLHNN[..., 0])]
        == 0
    ).all()
    total = maps.peers_BLHNN.sum(-1)
    there = batch.m_BN[:, None, None].expand_as(total)
    assert (total[~there] == 0).all()
    assert (total[there] > 0).all()  # some heads put most weight on the null key
    assert (total < 1).all()


@pytest.mark.parametrize("layers", [1, 2])
def test_peer_attention_equals_a_loop_over_firms(layers: int) -> None:
    case = ("self_peer", {"width": 8, "heads": 2, "layers": layers})
    module = build(case).double()
    assert isinstance(module, SelfPeer)
    layers_of = [cast("PeerLayer", child) for child in module.layers]
    with torch.no_grad():
        for layer in layers_of:
            layer.key_bias_HE.normal_(std=0.1)
    batch = panel().batch(torch.tensor([8]))
    batch = dataclasses.replace(batch, z_BNF=batch.z_BNF.double())
    h = module.embed(batch)[0]
    s, messages = batch.s_BN[0], torch.zeros(h.shape[0], 1, dtype=torch.float64)
    for layer in layers_of:
        normed, group_bias_HSS = layer.norm(h), layer.group_bias_HSS
        assert group_bias_HSS is not None
        new, direct = [], []
        for i in range(h.shape[0]):
            heads = []
            for a in range(2):
                part = slice(4 * a, 4 * a + 4)
                q = layer.query(normed[i])[part]
                logits = [
                    q @ layer.key(normed[j])[part] / 2.0
                    + LOGIT_GAIN * layer.key_bias_HE[a] @ normed[j]
                    + LOGIT_GAIN * group_bias_HSS[a, s[i], s[j]] * (s[i] > 0) * (s[j] > 0)
                    for j in range(h.shape[0])
                    if j != i
                ] + [q @ layer.null_key_HD[a] / 2.0 + LOGIT_GAIN * layer.null_bias_H[a]]
                weights = torch.softmax(torch.stack(logits), 0)
                values = [layer.value(normed[j])[part] for j in range(h.shape[0]) if j != i]
                heads.append(sum(w * v for w, v in zip(weights[:-1], values, strict=True)))
            message = torch.cat(heads)
            direct.append(layer.readout(message))
            assert layer.output is not None
            out = h[i] + layer.output(message)
            hidden = torch.nn.functional.gelu(layer.forward_in(layer.forward_norm(out)))
            new.append(out + layer.forward_out(hidden))
        h, messages = torch.stack(new), messages + torch.stack(direct)
    expected = (module.head(module.norm(h)) + module.skip(batch.z_BNF[0]) + messages)[:, 0]
    torch.testing.assert_close(module(batch)[0], expected.float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("grouped", [True, False])
def test_initial_attention_favours_the_large_firms_of_the_own_group(grouped: bool) -> None:
    names = ("momentum_63", "log_market_equity", "range", "beta_63")
    shape = dataclasses.replace(panel().shape, characteristic_names=names)
    batch = panel().batch(torch.tensor([8]))
    if not grouped:
        shape = dataclasses.replace(shape, n_groups=1)
        batch = dataclasses.replace(batch, s_BN=torch.zeros_like(batch.s_BN))
    entry = MODELS["temporal_peer"]
    module = entry.build(entry.config(**SMALL_TEMPORAL_PEER), shape)
    assert isinstance(module, TemporalPeer)
    module.eval()
    with torch.no_grad():
        layer = module.peers
        for linear in (layer.query, layer.key):
            linear.weight.zero_()
            linear.bias.zero_()
        peers_BLHNN = module.attention(batch).peers_BLHNN
    assert peers_BLHNN is not None
    first_NN = peers_BLHNN[0, 0, 0]
    size_N, s_N = batch.z_BNF[0, :, 1].tolist(), batch.s_BN[0].tolist()
    assert len(s_N) > 4
    assert not grouped or 0 in s_N, "a firm of unknown group"

    def key_bias(j: int) -> float:
        if not grouped:
            return 2.0 * float(size_N[j])
        larger = sum(size_N[k] > size_N[j] and s_N[k] == s_N[j] for k in range(len(s_N)))
        return 4.0 / (1 + larger) if s_N[j] else 0.0

    for i in range(len(s_N)):
        others = [j for j in range(len(s_N)) if j != i]
        expected = torch.tensor([key_bias(j) + 4.0 * (s_N[i] == s_N[j] > 0) for j in others] + [0.0])
        torch.testing.assert_close(first_NN[i, others], torch.softmax(expected, 0)[:-1], rtol=0, atol=1e-5)


def test_temporal_peer_is_initialised_to_its_linear_skip_connection() -> None:
    entry = MODELS["temporal_peer"]
    options = {"encoder": {"width": 8, "heads": 2, "dropout": 0.0}, "peer_heads": 2, "peer_dropout": 0.0}
    module = entry.build(entry.config(**options), panel().shape)
    assert isinstance(module, TemporalPeer)
    batch = panel().batch(torch.tensor([8]))
    assert (module(batch) == 0).all()
    assert module.skip is not None
    with torch.no_grad():
        module.skip.weight.normal_()
    expected = batch.z_BNF @ module.skip.weight[0]
    torch.testing.assert_close(module(batch), expected, rtol=0, atol=1e-5)


def test_temporal_peer_adds_messages_of_peers_to_the_forecast_of_temporal_transformer() -> None:
    module, batch = build(("temporal_peer", SMALL_TEMPORAL_PEER)), panel().batch(torch.tensor([8, 11]))
    assert isinstance(module, TemporalPeer)
    own = build(("temporal_transformer", {"encoder": SMALL_TEMPORAL_PEER["encoder"]}))
    own.load_state_dict({key: module.state_dict()[key] for key in own.state_dict()})
    assert not torch.allclose(module(batch), own(batch), atol=1e-3)
    with torch.no_grad():
        module.peers.readout.weight.zero_()
        module.peers.readout.bias.zero_()
    assert torch.equal(module(batch), own(batch))


def test_in_training_a_firm_is_left_out_of_the_peers_of_all_firms_of_a_date() -> None:
    keep_BM = torch.ones(400, 50, dtype=torch.bool)
    keep_BM[:, 3] = False
    torch.manual_seed(0)
    dropped_BM = PeerKeys(keep_BM).dropped(0.5).keep_BM
    assert not dropped_BM[:, 3].any()
    assert abs(dropped_BM[:, 4:].float().mean() - 0.5) < 0.02
    assert torch.equal(PeerKeys(keep_BM).dropped(0.0).keep_BM, keep_BM)

    module, batch = build(("temporal_peer", SMALL_TEMPORAL_PEER)), panel().batch(torch.tensor([8]))
    assert isinstance(module, TemporalPeer)
    seen: list[PeerKeys] = []
    module.peers.register_forward_pre_hook(lambda _, given: seen.append(given[2]))
    for training in (False, True):
        module.train(training)(batch)
    assert torch.equal(seen[0].keep_BM, batch.m_BN)
    assert 0 < seen[1].keep_BM.sum() < batch.m_BN.sum()
    with torch.no_grad():  # no message of a firm that is left out
        firms = module._firms(module.embed(batch), batch, None)
        weights_BHNK = module.peers.explicit(firms, firms, seen[1])[2]
    assert (weights_BHNK[..., :-1].sum(dim=(1, 2))[~seen[1].keep_BM] == 0).all()


@pytest.mark.parametrize("has_size_rank", [True, False])
def test_initial_heads_attend_to_the_own_group_or_mostly_to_the_null_key(has_size_rank: bool) -> None:
    sizes = PeerSizes(
        width=16,
        heads=8,
        identity=3,
        recent=0,
        n_groups=5,
        dropout=0.0,
        tokens=8,
        size=0,
        leader_slope=4.0,
        has_size_rank=has_size_rank,
    )
    torch.manual_seed(0)
    layer = PeerLayer(sizes).eval()
    size_N = torch.linspace(-2.3, 2.3, 100)  # a hundred firms in order of size
    z_BNE = torch.stack((size_N, torch.randn(100), torch.randn(100)), dim=-1)[None]
    with torch.no_grad():  # without the content-based logits
        layer.query.weight.zero_()
        layer.query.bias.zero_()
        group_BN = (1 + torch.arange(100) % 4)[None]
        rank_N = torch.arange(99, -1, -1) // 4  # rank in the group; the last firm is the largest
        firms = Firms(torch.randn(1, 100, 8), z_BNE, None, group_BN, (1.0 / (1.0 + rank_N))[None])
        keys = PeerKeys(torch.ones(1, 100, dtype=torch.bool))
        weights_HNK = layer.explicit(firms, firms, keys)[2][0]
    same_NN = group_BN[0][:, None] == group_BN[0]
    own_HN = (weights_HNK[..., :-1] * same_NN).sum(-1)
    assert (own_HN[:2] > 0.85).all()
    assert (weights_HNK[:2, :, -1] < 0.01).all()
    assert ((weights_HNK[2:, :, -1] > 0.3) & (weights_HNK[2:, :, -1] < 0.85)).all()
    assert (own_HN[2:] < 0.5).all()


def test_weight_decay_does_not_apply_to_logit_biases() -> None:
    entry = MODELS["temporal_peer"]
    options = {
        "encoder": {"width": 8, "heads": 2, "positions": "relative"},
        "peer_heads": 2,
        "market_tokens": 1,
    }
    module = entry.build(entry.config(**options), panel().shape)
    assert isinstance(module, TemporalPeer)
    config = FitConfig(weight_decay=0.5)
    optimizer = AdamW(parameter_groups(module, config), config, 10)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == len(list(module.parameters()))
    for name, parameter in module.named_parameters():
        logits = ("group_bias_HSS", "key_bias_HE", "null_bias_H", "market_bias_GH", "bias_HR")
        exempt = parameter.ndim < 2 or name.endswith(logits)
        assert decay[id(parameter)] == (0.0 if exempt else 0.5), name


EIGHT: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2, "dropout": 0.0, "pooling": "mean"}


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned", "rotary"])
def test_causal_encoder_states_do_not_depend_on_later_days(positions: Any) -> None:  # noqa: ANN401  (a Literal)
    torch.manual_seed(0)
    encoder = DayEncoder(EncoderConfig(**{**EIGHT, "causal": True, "positions": positions}), C, W).eval()
    states: list[Tensor] = []
    encoder.norm.register_forward_hook(lambda _module, _given, out: states.append(out.detach().clone()))
    x = torch.randn(5, W, C)
    later = x.clone()
    later[:, 3:] += 1.0
    encoder(x)
    encoder(later)
    assert torch.equal(states[0][:, :3], states[1][:, :3])
    assert not torch.allclose(states[0][:, 3:], states[1][:, 3:])


def test_positions_encode_the_order_of_days() -> None:
    x = torch.randn(5, W, C, generator=torch.Generator().manual_seed(0))
    for positions, ordered in (("none", False), ("sinusoidal", True), ("learned", True), ("rotary", True)):
        torch.manual_seed(0)
        encoder = DayEncoder(EncoderConfig(**{**EIGHT, "causal": False, "positions": positions}), C, W).eval()
        moved = (encoder(x) - encoder(x.flip(1))).abs().max()
        assert (moved > 1e-4) == ordered


def test_encoding_only_present_firms_equals_encoding_all() -> None:
    torch.manual_seed(0)
    encoder = DayEncoder(EncoderConfig(width=8, heads=2, layers=2), C, W).eval()
    batch = panel().batch(torch.tensor([8, 11]))
    every = encoder(batch.x_BNWC.flatten(0, 1)).unflatten(0, batch.m_BN.shape)
    expected = torch.where(batch.m_BN[:, :, None], every, 0.0)
    torch.testing.assert_close(encode_present(encoder, batch, None), expected, rtol=0, atol=1e-6)
