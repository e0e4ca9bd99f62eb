"""The attention core against torch's own modules, with copied weights, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.attention import Block, MultiHeadAttention, attention, attention_weights, causal_keep
from models.positions import rotary, rotate, sinusoidal

B, W, D, H = 3, 7, 16, 4
PRECISIONS = [(torch.float32, 1e-6), (torch.float64, 1e-12)]


def qkv(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, H, n, D // H, generator=generator, dtype=dtype) for n in (5, W, W))
    return q, k, v


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        theirs.in_proj_bias.normal_()
        theirs.out_proj.bias.normal_()
        for layer, weight, bias in zip(
            (ours.query, ours.key, ours.value),
            theirs.in_proj_weight.chunk(3),
            theirs.in_proj_bias.chunk(3),
            strict=True,
        ):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        ours.output.load_state_dict(theirs.out_proj.state_dict())


def copy_block(ours: Block, theirs: nn.TransformerEncoderLayer) -> None:
    copy_attention(ours.attention, theirs.self_attn)
    for mine, other in (
        (ours.attention_norm, theirs.norm1),
        (ours.forward_norm, theirs.norm2),
        (ours.forward_in, theirs.linear1),
        (ours.forward_out, theirs.linear2),
    ):
        with torch.no_grad():
            other.bias.normal_()
        mine.load_state_dict(other.state_dict())


def masks() -> dict[str, Tensor | None]:
    padding = torch.ones(B, W, dtype=torch.bool)
    padding[0, 4:] = False
    padding[2, 1] = False
    return {"none": None, "padding": padding, "causal": causal_keep(W, torch.device("cpu"))}


def their_masks(name: str, keep: Tensor | None) -> dict[str, Tensor | None]:
    if keep is None:
        return {}
    return {"key_padding_mask": ~keep} if name == "padding" else {"attn_mask": ~keep}


def ours_of(name: str, keep: Tensor | None) -> Tensor | None:
    return keep[:, None, None, :] if name == "padding" and keep is not None else keep


@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("path", ["fused", "explicit"])
def test_equals_multihead_attention(path: str, dtype: torch.dtype, tolerance: float, mask: str) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=dtype)
    ours = MultiHeadAttention(D, H).to(dtype)
    copy_attention(ours, theirs)
    x = torch.randn(B, W, D, dtype=dtype)
    ours_x, theirs_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    keep = masks()[mask]
    want, want_weights = theirs(
        theirs_x, theirs_x, theirs_x, average_attn_weights=False, **their_masks(mask, keep)
    )
    if path == "fused":
        got = ours(ours_x, ours_x, keep=ours_of(mask, keep))
    else:
        got, weights = ours.explicit(ours_x, ours_x, keep=ours_of(mask, keep))
        torch.testing.assert_close(weights, want_weights, rtol=0, atol=tolerance)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    direction = torch.randn_like(want)
    (want * direction).mean().backward()
    (got * direction).mean().backward()
    pairs = [
        (ours_x.grad, theirs_x.grad),
        (
            torch.cat([layer.weight.grad for layer in (ours.query, ours.key, ours.value)]),
            theirs.in_proj_weight.grad,
        ),
        (ours.output.weight.grad, theirs.out_proj.weight.grad),
        (ours.query.bias.grad, theirs.in_proj_bias.grad[:D]),
    ]
    for mine, other in pairs:
        assert other.abs().max() > 100 * tolerance
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_block_equals_transformer_encoder_layer(dtype: torch.dtype, tolerance: float, mask: str) -> None:
    torch.manual_seed(1)
    theirs = nn.TransformerEncoderLayer(
        D, H, 4 * D, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, dtype=dtype
    )
    ours = Block(D, H).to(dtype)
    copy_block(ours, theirs)
    x = torch.randn(B, W, D, dtype=dtype)
    ours_x, theirs_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    keep = masks()[mask]
    arguments = (
        {"src_key_padding_mask": ~keep}
        if mask == "padding" and keep is not None
        else ({} if keep is None else {"src_mask": ~keep})
    )
    want, got = theirs(theirs_x, **arguments), ours(ours_x, keep=ours_of(mask, keep))
    torch.testing.assert_close(got, want, rtol=tolerance, atol=2 * tolerance)
    torch.testing.assert_close(
        ours.explicit(x, keep=ours_of(mask, keep))[0], want.detach(), rtol=tolerance, atol=2 * tolerance
    )
    direction = torch.randn_like(want)
    (want * direction).mean().backward()
    (got * direction).mean().backward()
    assert theirs_x.grad.abs().max() > 100 * tolerance
    torch.testing.assert_close(ours_x.grad, theirs_x.grad, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        ours.forward_in.weight.grad, theirs.linear1.weight.grad, rtol=tolerance, atol=tolerance
    )


def test_core_equals_a_float64_loop_with_mask_and_bias() -> None:
    q, k, v = qkv()
    keep = torch.rand(B, 1, 5, W, generator=torch.Generator().manual_seed(2)) < 0.7
    bias = torch.randn(H, 5, W, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    got = attention(q, k, v, keep=keep, bias=bias)
    weights = attention_weights(q, k, keep=keep, bias=bias)
    torch.testing.assert_close(weights @ v, got, rtol=0, atol=1e-12)
    for b, h, i in np.ndindex(B, H, 5):
        terms = {
            j: math.exp(float(q[b, h, i] @ k[b, h, j]) / math.sqrt(D // H) + float(bias[h, i, j]))
            for j in range(W)
            if keep[b, 0, i, j]
        }
        want = sum(term * v[b, h, j] for j, term in terms.items()) / sum(terms.values())
        torch.testing.assert_close(got[b, h, i], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_query_without_keys_answers_zero_with_finite_gradients(with_bias: bool) -> None:
    q, k, v = (x.float().requires_grad_() for x in qkv())
    bias = torch.randn(H, 5, W, requires_grad=True) if with_bias else None
    keep = torch.ones(B, 1, 5, W, dtype=torch.bool)
    keep[1] = False
    keep[0, 0, 2] = False
    out = attention(q, k, v, keep=keep, bias=bias)
    weights = attention_weights(q, k, keep=keep, bias=bias)
    assert (out[1] == 0).all()
    assert (out[0, :, 2] == 0).all()
    assert (weights[1] == 0).all()
    assert (out[2] != 0).all()
    (out.sum() + weights.square().sum()).backward()
    for leaf in (q, k, v) if bias is None else (q, k, v, bias):
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
    assert (k.grad[1] == 0).all()


@pytest.mark.parametrize("rotated", [False, True])
def test_last_query_alone_equals_the_last_of_all(rotated: bool) -> None:
    torch.manual_seed(4)
    block = Block(D, H).double()
    x = torch.randn(B, W, D, dtype=torch.float64)
    table = rotary(W, D // H) if rotated else None
    want = block(x, rotary_W2d=table)[:, -1:]
    torch.testing.assert_close(block(x, rotary_W2d=table, queries=1), want, rtol=0, atol=1e-12)


def test_dropout_drops_in_training_alone() -> None:
    torch.manual_seed(5)
    block = Block(D, H, dropout=0.5)
    x = torch.randn(B, W, D)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


def test_rotary_products_depend_on_distance_alone_and_keep_lengths() -> None:
    table = rotary(W, 8).double()
    x = torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    y = torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    at_x, at_y = rotate(x.expand(1, 1, W, 8), table)[0, 0], rotate(y.expand(1, 1, W, 8), table)[0, 0]
    products = at_x @ at_y.T
    for distance in range(-W + 1, W):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-6)
    assert (products[0, 0] - products[0, 1]).abs() > 1e-3
    torch.testing.assert_close(at_x.norm(dim=1), x.norm().expand(W), rtol=0, atol=1e-6)


def test_rotary_turns_by_the_papers_angles() -> None:
    table = rotary(3, 4)
    got = rotate(torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(1, 1, 3, 4), table)[0, 0, 2]
    want = torch.tensor([math.cos(2.0), math.sin(2.0), math.cos(0.02), math.sin(0.02)])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-7)


@pytest.mark.parametrize("function", [math.sin, math.cos])
def test_sinusoidal_follows_the_papers_formula(function: Callable[[float], float]) -> None:
    table = sinusoidal(6, 8)
    column = 4 + (function is math.cos)
    want = [function(p / 10_000 ** (4 / 8)) for p in range(6)]
    np.testing.assert_allclose(table[:, column].numpy(), want, rtol=0, atol=1e-7)
