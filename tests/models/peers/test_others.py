"""Attention of every firm to all others: equal to attention with a mask, without an N x N tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.attention.core import attention_weights
from models.batch import Batch, PanelTensors
from models.forecaster import Forecaster
from models.peers import others
from models.peers.layer import PeerKeys, PeerLayer, peer_keys
from models.peers.others import GroupBiases, attention_to_others, attention_with_groups
from models.registry import MODELS

B, H, D, E = 3, 3, 4, 5


def inputs(firms: int, common: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the firms; keys and values of the firms, the null key (value 0), and other common keys."""
    generator = torch.Generator().manual_seed(firms + common)
    q, k, v = (
        torch.randn(B, H, n, d, generator=generator, dtype=dtype)
        for n, d in ((firms, D), (firms + common, D), (firms + common, E))
    )
    v[:, :, firms] = 0.0
    return q.requires_grad_(), (3.0 * k).requires_grad_(), v.requires_grad_()


def masked(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The reference: softmax of all logits with a mask over pairs."""
    firms, keys = q.shape[2], k.shape[2]
    keep = torch.ones(firms, keys, dtype=torch.bool)
    keep[:, :firms].fill_diagonal_(0)
    return attention_weights(q, k, keep=keep, scale=scale) @ v


@pytest.mark.parametrize(
    ("few", "pairs"), [(0, 0), (others.FEW_FIRMS, others.CACHED_PAIRS), (others.FEW_FIRMS, 1)]
)
@pytest.mark.parametrize("common", [1, 2, 4])
@pytest.mark.parametrize("firms", [1, 2, 7, 65])
def test_it_equals_attention_with_a_mask_forward_and_backward(
    firms: int, common: int, few: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "FEW_FIRMS", few)
    monkeypatch.setattr(others, "CACHED_PAIRS", pairs)
    ours, reference = inputs(firms, common, torch.float64), inputs(firms, common, torch.float64)
    got, want = attention_to_others(*ours, scale=0.7), masked(*reference, 0.7)
    assert got.shape == (B, H, firms, E)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    weight = torch.linspace(-1.0, 2.0, got.numel(), dtype=torch.float64).view_as(got)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    null = torch.zeros(firms + common, 1, dtype=torch.bool)
    null[firms] = True  # the value of the null key is a constant
    for name, mine, theirs in zip("qkv", ours, reference, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        there = theirs.grad.masked_fill(null, 0.0) if name == "v" else theirs.grad
        here = mine.grad.masked_fill(null, 0.0) if name == "v" else mine.grad
        torch.testing.assert_close(here, there, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("null_bias", [-40.0, 0.0, 40.0])
def test_float32_keeps_its_precision_whatever_the_weight_of_the_null_key(null_bias: float) -> None:
    q, k, v = (x.detach() for x in inputs(300, 1, torch.float64))
    q[..., 0], k[:, :, 300] = 1.0, torch.tensor([null_bias, 0.0, 0.0, 0.0])
    got = attention_to_others(q.float(), k.float(), v.float(), scale=1.0)
    want = masked(q, k, v, 1.0)
    assert (got - want).abs().max() < 2e-6 * want.abs().max().clamp(min=1e-3)


@pytest.mark.parametrize("gap", [60.0, 90.0, 450.0, 5000.0])
@pytest.mark.parametrize("common", [1, 3])
def test_a_null_key_far_below_the_others_is_safe(gap: float, common: int) -> None:
    firms = 300
    reference = inputs(firms, common, torch.float64)
    bias = torch.zeros(firms + common)
    bias[: firms // 2] = gap * torch.rand(firms // 2, generator=torch.Generator().manual_seed(0))
    bias[3] = gap  # the leader itself attends to the others
    with torch.no_grad():
        reference[0][..., 0], reference[1][..., 0] = 1.0, bias
        reference[1][1] *= 0.1  # the date in between has no such gap
    ours = [x.detach().float().requires_grad_() for x in reference]
    got, want = attention_to_others(*ours, scale=1.0), masked(*reference, 1.0)
    rounding = 1e-6 * max(gap, 30.0)  # of logits in float32
    torch.testing.assert_close(got.double(), want, rtol=rounding, atol=rounding)
    for x in (got.square().sum(), want.square().sum()):
        x.backward()
    for mine, theirs in zip(ours, reference, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        there = theirs.grad.clone()
        mine.grad[:, :, firms:] = there[:, :, firms:] = 0.0
        size = float(there.abs().max())
        torch.testing.assert_close(mine.grad.double(), there, rtol=rounding, atol=5 * rounding * size)


@pytest.mark.parametrize("pairs", [1, 40, 10_000])
@pytest.mark.parametrize("common", [1, 3])
@pytest.mark.parametrize("firms", [1, 2, 23])
def test_biases_of_groups_equal_logits_with_biases_forward_and_backward(
    firms: int, common: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "CACHED_PAIRS", pairs)
    generator = torch.Generator().manual_seed(firms)
    code_BN = torch.randint(0, 5, (B, firms), generator=generator)  # no firm is of group 5
    bias = torch.randn(H, 6, 6, generator=generator, dtype=torch.float64)
    bias[:, 0], bias[:, :, 0] = 0.0, 0.0
    ours, reference = (
        (*inputs(firms, common, torch.float64), bias.clone().requires_grad_()) for _ in range(2)
    )
    got = attention_with_groups(*ours[:3], GroupBiases(ours[3], code_BN, code_BN), scale=0.7)
    q, k, v, bias_HSS = reference
    logits = 0.7 * q @ k.transpose(-2, -1)
    for b in range(B):
        for i in range(firms):
            logits[b, :, i, i] = -torch.inf
            for j in range(firms):
                logits[b, :, i, j] += others.LOGIT_GAIN * bias_HSS[:, code_BN[b, i], code_BN[b, j]]
    want = logits.softmax(dim=-1) @ v
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    weight = torch.linspace(-1.0, 2.0, got.numel(), dtype=torch.float64).view_as(got)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    for name, mine, theirs in zip("qkvb", ours, reference, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        known = (slice(None), slice(1, None), slice(1, None)) if name == "b" else ...  # the others are 0
        torch.testing.assert_close(mine.grad[known], theirs.grad[known], rtol=1e-8, atol=1e-10)


def test_biases_are_added_to_pairs_on_cpus_for_many_firms_and_groups() -> None:
    def added(firms: int, groups: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> bool:
        q = torch.zeros(1, H, firms, D, dtype=dtype, device=device)
        return others.adds_to_pairs(q, torch.zeros(H, groups, groups))

    firms, groups = others.FEW_FIRMS + 1, others.MANY_GROUPS + 1
    assert added(firms, groups)
    assert not added(firms - 1, groups)
    assert not added(firms, groups - 1)
    assert not added(firms, groups, torch.bfloat16)
    assert not added(firms, groups, device="meta")


def batch_of(firms: int, groups: int = 4) -> tuple[Batch, PanelTensors]:
    """Two dates with all firms but one in the universe."""
    rng = np.random.default_rng(0)
    shape = (12, firms)
    mask = np.ones(shape, dtype=bool)
    mask[:, 3] = False
    mask[0, 3] = True  # listed on another date of the batch
    data = PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(*shape, 2)),
        characteristics_TNF=rng.normal(size=(*shape, 3)),
        mask_TN=mask,
        group_TN=rng.integers(0, groups, shape),
        target_TN=rng.normal(size=shape),
        window=4,
        n_groups=groups,
        characteristic_names=("log_market_equity", "a", "b"),
    )
    return data.batch(torch.tensor([0, 10])), data


def default_model(name: str, data: PanelTensors, **options: Any) -> Forecaster:  # noqa: ANN401 (a config's)
    torch.manual_seed(0)
    entry = MODELS[name]
    module = entry.build(entry.config(**options), data.shape)
    assert isinstance(module, Forecaster)
    for parameter in module.parameters():  # so that messages matter
        with torch.no_grad():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return module


def largest_saved(module: Forecaster, batch: Batch) -> int:
    """Numbers of the largest tensor that a forward pass in training keeps for the backward pass, per date."""
    sizes: list[int] = []

    def pack(saved: Tensor) -> Tensor:
        sizes.append(saved.untyped_storage().nbytes() // saved.element_size())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        module.train()(batch).sum().backward()
    assert len(sizes) > 20
    return max(sizes) // len(batch.m_BN)


@pytest.mark.slow(3)
@pytest.mark.parametrize("groups", [4, others.MANY_GROUPS + 1])
@pytest.mark.parametrize("options", [{}, {"market_tokens": 2}], ids=str)
@pytest.mark.parametrize("name", ["self_peer", "temporal_peer"])
def test_no_matrix_over_pairs_of_firms_is_kept_for_the_backward_pass(
    name: str, options: dict[str, Any], groups: int
) -> None:
    firms = 1500
    batch, data = batch_of(firms, groups)
    module = default_model(name, data, **options)
    assert largest_saved(module, batch) < firms * 300
    layer = next(part for part in module.modules() if isinstance(part, PeerLayer))
    own = torch.eye(firms, dtype=torch.bool)[None]
    forward = layer.forward
    layer.forward = lambda targets, sources, keys, *rest: forward(  # type: ignore[method-assign]
        targets, sources, PeerKeys(keys.keep_BM, own), *rest
    )
    assert largest_saved(module, batch) >= firms * firms  # the test sees a matrix where there is one


@pytest.mark.parametrize("many", [0, 4])  # 4 groups: biases in the logits of pairs, or columns
@pytest.mark.parametrize("options", [{}, {"market_tokens": 2}], ids=str)
@pytest.mark.parametrize("name", ["self_peer", "temporal_peer"])
def test_the_path_without_a_matrix_equals_the_one_with_a_mask(
    name: str, options: dict[str, Any], many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "FEW_FIRMS", 0)
    monkeypatch.setattr(others, "MANY_GROUPS", many)
    batch, data = batch_of(40)
    module = default_model(name, data, **options).eval()
    layer = next(part for part in module.modules() if isinstance(part, PeerLayer))
    assert not peer_keys(batch, None).keep_BM.all()
    plain = module(batch)
    own = torch.eye(40, dtype=torch.bool)[None]
    forward = layer.forward
    layer.forward = lambda targets, sources, keys, *rest: forward(  # type: ignore[method-assign]
        targets, sources, PeerKeys(keys.keep_BM, own), *rest
    )
    torch.testing.assert_close(module(batch), plain, rtol=1e-5, atol=1e-6)
