"""Rollout and gradients against products and finite differences; traits of heads by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor
from weighted_toys import FIRMS, WeightedDays, WeightedPeers, panel

from models.attention.encoder import EncoderConfig
from models.attention.probe import Site, probing
from models.explain.attention import (
    AttentionRecord,
    DateAttention,
    day_map,
    day_profile,
    gradient_of_days,
    head_traits,
    importance,
    record_attention,
    record_gradients,
    regimes_of,
    rollout_of_days,
    rollout_of_peers,
)
from models.forecaster import Forecaster
from models.forecasters.temporal_transformer import TemporalTransformer, TemporalTransformerConfig

BATCH = panel().batch(torch.tensor([20]))


def transformer(layers: int) -> Forecaster:
    config = TemporalTransformerConfig(encoder=EncoderConfig(width=8, heads=2, layers=layers))
    module = TemporalTransformer(config, panel().shape)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def residual(weights_QK: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * weights_QK + 0.5 * np.eye(weights_QK.shape[1])[-len(weights_QK) :])


def test_rollout_is_the_product_of_the_layers() -> None:
    record = record_attention(transformer(3), BATCH)
    a, b, c = (layer[4].double().mean(dim=0).numpy() for layer in record.days)
    assert [len(layer) for layer in (a, b, c)] == [8, 8, 1]  # only the newest day is pooled
    expected = (residual(c) @ residual(b) @ residual(a))[-1]
    np.testing.assert_allclose(rollout_of_days(record)[4], expected / expected.sum(), rtol=1e-6)


def test_gradients_equal_finite_differences() -> None:
    module, target = transformer(1), 3
    products = record_gradients(module, BATCH, target).days[0][target]
    (weights,) = (layer[target] for layer in record_attention(module, BATCH).days)
    step = 1e-2
    for head, day in ((0, 2), (1, 7)):

        def nudge(site: Site, w: Tensor, keep: Tensor | None, head: int = head, day: int = day) -> Tensor:
            change = torch.zeros_like(w)
            change[target, head, 0, day] = step
            return w + change

        with torch.inference_mode():
            plain = module(BATCH)[0, target]
            with probing(module, nudge):
                slope = (module(BATCH)[0, target] - plain) / step
        expected = float(weights[head, 0, day] * slope)
        assert float(products[head, 0, day]) == pytest.approx(expected, rel=0.1, abs=1e-4)
    record = record_gradients(module, BATCH, target)
    np.testing.assert_allclose(
        gradient_of_days(record, target), products.mean(dim=0)[0].abs().double().numpy(), rtol=1e-6
    )


def test_gradients_of_a_weighted_sum_are_its_terms() -> None:
    weights_W = np.linspace(1.0, 3.0, 8)
    found = importance("days", WeightedDays(weights_W).eval(), BATCH, np.array([0, 5]))
    assert set(found) == {"attention", "rollout", "gradient"}
    np.testing.assert_allclose(found["attention"][1], weights_W / weights_W.sum(), rtol=1e-5)
    terms = np.abs(weights_W / weights_W.sum() * BATCH.x_BNWC[0, 5, :, 0].numpy())
    np.testing.assert_allclose(found["gradient"][1], terms, rtol=1e-4)


def test_peers_by_attention_rollout_and_gradient() -> None:
    weights_NN = np.exp(np.random.default_rng(0).normal(size=(FIRMS, FIRMS)))
    module = WeightedPeers(weights_NN).eval()
    found = importance("peers", module, BATCH, np.array([2]))
    np.fill_diagonal(weights_NN, 0.0)
    shares_N = (weights_NN / weights_NN.sum(axis=1, keepdims=True))[2]
    np.testing.assert_allclose(found["attention"][0], shares_N, rtol=1e-5)
    np.testing.assert_allclose(found["rollout"][0], 0.5 * shares_N, rtol=1e-5)
    shocks_N = BATCH.x_BNWC[0, :, -1, 0].numpy()
    np.testing.assert_allclose(found["gradient"][0], np.abs(shares_N * shocks_N), rtol=1e-4)
    two = AttentionRecord((), None, (), (torch.rand(1, 3, 3), torch.rand(1, 3, 3)), one_way=False, window=8)
    a, b = (layer[0].double().numpy() for layer in two.peers)
    expected = residual(b / b.sum(axis=1, keepdims=True)) @ residual(a / a.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(rollout_of_peers(two), expected, rtol=1e-6)


def test_traits_of_heads_by_hand() -> None:
    own = torch.tensor(
        [[0.0, 0.8, 0.0, 0.0], [0.8, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.8], [0.0, 0.0, 0.8, 0.0]]
    )
    even = 0.2 * (1.0 - torch.eye(4))
    days = torch.zeros(4, 1, 1, 5)
    days[..., -1] = 1.0
    record = AttentionRecord((days,), None, (), (torch.stack([own, even]),), one_way=False, window=5)
    own_keys = dataclasses.replace(record, peers=(record.peers[0] + 0.2 * torch.eye(4),))
    firms = np.array([1, 1, 2, 2]), np.array([0.3, -1.0, 0.2, 2.0])
    date, with_own_keys = DateAttention(7, record, *firms), DateAttention(7, own_keys, *firms)
    same = (head_traits([one]) for one in (with_own_keys, date))
    assert len({str(rows) for rows in same}) == 1, "a firm is no peer of its own"
    traits = {(one["over"], one["head"], one["trait"]): one for one in head_traits([date])}
    assert traits["peers", 1, "own_group"]["value"] == pytest.approx(1.0)
    assert traits["peers", 2, "own_group"]["value"] == pytest.approx(1 / 3)
    assert 0.1 < traits["peers", 1, "own_group"]["null"] < 0.6
    assert traits["peers", 2, "own_group"]["null"] == pytest.approx(1 / 3)
    assert traits["peers", 1, "no_peer"]["value"] == pytest.approx(0.2)
    assert traits["peers", 1, "effective_firms"]["value"] == pytest.approx(1.0)
    assert traits["peers", 2, "effective_firms"]["value"] == pytest.approx(3.0)
    # each firm looks at its partner: size ranks of the partners are 0, 2/3, 1 and 1/3
    assert traits["peers", 1, "large_firms"]["value"] == pytest.approx(0.5)
    assert traits["days", 1, "recent_days"]["value"] == pytest.approx(1.0)
    assert traits["days", 1, "recent_days"]["null"] == pytest.approx(3 / 5)
    assert traits["days", 1, "effective_days"]["value"] == pytest.approx(1.0)


@pytest.mark.parametrize("extra", [0, 1])
def test_days_of_a_map_are_counted_from_the_newest_that_a_model_reads(extra: int) -> None:
    """Of a window of 8 days, the newest 3 are keys, or all of them and a [CLS] token."""
    days = 8 if extra else 3
    layer = torch.arange(1.0, days + extra + 1).expand(2, 1, 1, -1)
    record = AttentionRecord((layer,), None, (), (), one_way=False, window=8)
    found = {one["key"]: one["weight"] for one in day_map([record])}
    assert found == {days - day: day + 1.0 for day in range(days)}


def test_weights_of_past_days_by_their_regime() -> None:
    volatility_T = np.array([np.nan, 1.0, 1.0, 3.0, 9.0, 9.0])
    np.testing.assert_array_equal(regimes_of(volatility_T), [-1, 0, 0, 1, 2, 2])
    weights_EW = np.array([[0.3, 0.7], [0.1, 0.9]])  # oldest day first
    found = {
        (one["day"], one["regime"]): one["weight"]
        for one in day_profile(weights_EW, np.array([3, 5]), np.array([1.0, 1.0, 0.5, 3.0, 9.0, 9.0]))
    }
    assert found[1, "all"] == pytest.approx(0.8)
    assert found[1, "normal"] == pytest.approx(0.7)
    assert found[1, "turbulent"] == pytest.approx(0.9)
    assert found[2, "calm"] == pytest.approx(0.3)  # the day before session 3 was calm
    assert found[2, "turbulent"] == pytest.approx(0.1)
    assert (2, "normal") not in found
