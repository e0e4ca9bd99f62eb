"""The attention core against torch's own modules, with copied weights, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_weights import copy_attention, gradient

from models.attention.block import AttentionMask, Block, BlockConfig, MultiHeadAttention
from models.attention.core import attention, attention_weights, masked_softmax
from models.attention.positions import alibi, bias_of_distance, rotary, rotate, sinusoidal
from models.attention.probe import probing

B, W, D, H = 3, 7, 16, 4
PRECISIONS = [(torch.float32, 1e-6), (torch.float64, 1e-12)]


def qkv(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, H, n, D // H, generator=generator, dtype=dtype) for n in (5, W, W))
    return q, k, v


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


def masks() -> dict[str, AttentionMask]:
    padding = torch.ones(B, W, dtype=torch.bool)
    padding[0, 4:] = False
    padding[2, 1] = False
    return {
        "none": AttentionMask(),
        "padding": AttentionMask(keys_BK=padding),
        "causal": AttentionMask(causal=True),
        "both": AttentionMask(keys_BK=padding, causal=True),
    }


def their_masks(mask: AttentionMask, attn_mask: str, padding: str) -> dict[str, Tensor]:
    out = {}
    if mask.causal:
        out[attn_mask] = torch.ones(W, W, dtype=torch.bool).triu(1)
    if mask.keys_BK is not None:
        out[padding] = ~mask.keys_BK
    return out


@pytest.mark.parametrize("case", ["none", "padding", "causal", "both"])
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("path", ["fused", "explicit"])
def test_equals_multihead_attention(path: str, dtype: torch.dtype, tolerance: float, case: str) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=dtype)
    ours = MultiHeadAttention(BlockConfig(width=D, heads=H)).to(dtype)
    copy_attention(ours, theirs)
    x = torch.randn(B, W, D, dtype=dtype)
    ours_x, theirs_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    mask = masks()[case]
    expected, expected_weights = theirs(
        theirs_x,
        theirs_x,
        theirs_x,
        average_attn_weights=False,
        **their_masks(mask, "attn_mask", "key_padding_mask"),
    )
    if path == "fused":
        actual = ours(ours_x, ours_x, mask)
    else:
        actual, weights = ours.explicit(ours_x, ours_x, mask)
        torch.testing.assert_close(weights, expected_weights, rtol=0, atol=tolerance)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    direction = torch.randn_like(expected)
    (expected * direction).mean().backward()
    (actual * direction).mean().backward()
    pairs = [
        (gradient(ours_x), gradient(theirs_x)),
        (
            torch.cat([gradient(layer.weight) for layer in (ours.query, ours.key, ours.value)]),
            gradient(theirs.in_proj_weight),
        ),
        (gradient(ours.output.weight), gradient(theirs.out_proj.weight)),
        (gradient(ours.query.bias), gradient(theirs.in_proj_bias)[:D]),
    ]
    size = max(float(other.abs().max()) for _, other in pairs)
    for mine, other in pairs:
        assert other.abs().max() > 1e-3 * size
        torch.testing.assert_close(mine, other, rtol=0, atol=4 * tolerance * size)


@pytest.mark.parametrize("case", ["none", "padding", "causal", "both"])
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("norm", "activation"), [("pre", "gelu"), ("post", "relu"), ("post", "gelu")])
def test_block_equals_transformer_encoder_layer(
    norm: Literal["pre", "post"],
    activation: Literal["gelu", "relu"],
    dtype: torch.dtype,
    tolerance: float,
    case: str,
) -> None:
    torch.manual_seed(1)
    theirs = nn.TransformerEncoderLayer(
        D,
        H,
        4 * D,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=norm == "pre",
        dtype=dtype,
    )
    ours = Block(BlockConfig(width=D, heads=H, norm=norm, activation=activation)).to(dtype)
    copy_block(ours, theirs)
    x = torch.randn(B, W, D, dtype=dtype)
    ours_x, theirs_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    mask = masks()[case]
    expected = theirs(theirs_x, **their_masks(mask, "src_mask", "src_key_padding_mask"))
    actual = ours(ours_x, mask)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=2 * tolerance)
    with probing(ours, lambda _, weights, keep: weights):
        torch.testing.assert_close(ours(x, mask), expected.detach(), rtol=tolerance, atol=2 * tolerance)
    direction = torch.randn_like(expected)
    (expected * direction).mean().backward()
    (actual * direction).mean().backward()
    pairs = [
        (gradient(ours_x), gradient(theirs_x)),
        (gradient(ours.forward_in.weight), gradient(theirs.linear1.weight)),
    ]
    size = max(float(other.abs().max()) for _, other in pairs)
    for mine, other in pairs:
        assert other.abs().max() > 1e-2 * size
        torch.testing.assert_close(mine, other, rtol=0, atol=4 * tolerance * size)


KERNELS_AND_POSITIONS = [
    *[("softmax", position) for position in ("none", "rotary", "relative", "alibi")],
    *[("local", position) for position in ("none", "rotary", "relative", "alibi")],
    ("linear", "none"),
]


def mask_of(position: str, length: int, dtype: torch.dtype, **masks: Any) -> AttentionMask:  # noqa: ANN401 (as given)
    generator = torch.Generator().manual_seed(9)
    biases = {
        "relative": torch.randn(H, 2 * length - 1, generator=generator).to(dtype),
        "alibi": alibi(length, H).to(dtype),
    }
    table = rotary(length, D // H) if position == "rotary" else None
    return AttentionMask(rotary_W2d=table, bias_HR=biases.get(position), **masks)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [1, 5, 64, 67, 150])
@pytest.mark.parametrize(("kernel", "position"), KERNELS_AND_POSITIONS)
def test_fast_path_equals_the_quadratic_form(
    kernel: Any,  # noqa: ANN401 (a literal)
    position: str,
    length: int,
    padded: bool,
    causal: bool,
) -> None:
    torch.manual_seed(2)
    layer = MultiHeadAttention(
        BlockConfig(width=D, heads=H, kernel=kernel, radius=4, temperature=1.0)
    ).double()
    keys = torch.rand(2, length) < 0.8 if padded else None
    if keys is not None and length > 30:
        keys[1, 5:25] = False  # a gap that is wider than the band
    mask = mask_of(position, length, torch.float64, keys_BK=keys, causal=causal)
    x = torch.randn(2, length, D, dtype=torch.float64)
    fast_x, slow_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    fast = layer(fast_x, fast_x, mask)
    slow, weights = layer.explicit(slow_x, slow_x, mask)
    torch.testing.assert_close(fast, slow, rtol=1e-11, atol=1e-12)
    total = weights.sum(dim=-1)
    torch.testing.assert_close(total[total > 0], torch.ones_like(total[total > 0]), rtol=0, atol=1e-12)
    direction = torch.randn_like(x)
    gradients = []
    for out, leaf in ((fast, fast_x), (slow, slow_x)):
        layer.zero_grad()
        (out * direction).sum().backward()
        gradients.append((gradient(leaf), gradient(layer.key.weight).clone()))
    for mine, other in zip(*gradients, strict=True):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-11)
    alone = layer(x[:, -1:], x, mask)  # a single query uses a different code path
    torch.testing.assert_close(alone, fast[:, -1:], rtol=1e-11, atol=1e-12)
    mask = mask_of(position, length, torch.float32, keys_BK=keys, causal=causal)
    in_float32 = layer.float()(x.float(), x.float(), mask)
    torch.testing.assert_close(in_float32.double(), fast.detach(), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_the_linear_kernels_weights_by_hand(causal: bool) -> None:
    torch.manual_seed(3)
    layer = MultiHeadAttention(BlockConfig(width=D, heads=H, kernel="linear")).double()
    x = torch.randn(1, W, D, dtype=torch.float64)
    _, weights = layer.explicit(x, x, AttentionMask(causal=causal))
    q, k = layer.query(x)[0, :, :4], layer.key(x)[0, :, :4]  # the first head

    def phi(row: Tensor) -> list[float]:
        return [value + 1.0 if value > 0 else math.exp(value) for value in row.tolist()]

    for i in range(W):
        terms = [
            sum(a * b for a, b in zip(phi(q[i]), phi(k[j]), strict=True)) if j <= i or not causal else 0.0
            for j in range(W)
        ]
        np.testing.assert_allclose(weights[0, 0, i].detach(), np.array(terms) / sum(terms), rtol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_the_local_kernel_attends_only_to_its_band(causal: bool) -> None:
    layer = MultiHeadAttention(BlockConfig(width=D, heads=H, kernel="local", radius=2))
    _, weights = layer.explicit(torch.randn(1, W, D), torch.randn(1, W, D), AttentionMask(causal=causal))
    for i, j in np.ndindex(W, W):
        inside = abs(i - j) <= 2 and (j <= i or not causal)
        assert (weights[0, :, i, j] > 0).all() == inside


@pytest.mark.parametrize(("kernel", "position"), KERNELS_AND_POSITIONS)
def test_causal_outputs_do_not_depend_on_later_positions_to_the_bit(
    kernel: Any,  # noqa: ANN401 (a literal)
    position: str,
) -> None:
    torch.manual_seed(4)
    length, known = 90, 70
    block = Block(BlockConfig(width=D, heads=H, kernel=kernel, radius=4))
    mask = mask_of(position, length, torch.float32, causal=True)
    x = torch.randn(2, length, D)
    noisy = x.clone()
    noisy[:, known:] = 100.0 * torch.randn(2, length - known, D)
    before, after = block(x, mask), block(noisy, mask)
    assert torch.equal(before[:, :known], after[:, :known])
    assert not torch.equal(before[:, known:], after[:, known:])


@pytest.mark.parametrize("kernel", ["softmax", "local"])
@pytest.mark.parametrize("position", ["rotary", "relative", "alibi"])
def test_relative_positions_are_invariant_to_a_shift(
    position: str,
    kernel: Any,  # noqa: ANN401 (a literal)
) -> None:
    torch.manual_seed(5)
    layer = MultiHeadAttention(BlockConfig(width=D, heads=H, kernel=kernel, radius=3)).double()
    content, shift, length = torch.randn(1, 6, D, dtype=torch.float64), 5, 16
    outputs = []
    for start in (1, 1 + shift):
        x = torch.randn(1, length, D, dtype=torch.float64)
        x[:, start : start + 6] = content
        present = torch.zeros(1, length, dtype=torch.bool)
        present[:, start : start + 6] = True
        mask = mask_of(position, length, torch.float64, keys_BK=present)
        outputs.append(layer(x, x, mask)[:, start : start + 6])
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-6)
    order = torch.tensor([2, 0, 4, 1, 5, 3])
    x[:, 1 + shift : 7 + shift] = content[:, order]
    moved = layer(x, x, mask)[:, 1 + shift : 7 + shift][:, order.argsort()]
    assert (moved - outputs[0]).abs().max() > 1e-3, "without positions, the order would not matter"


def test_alibi_decreases_with_distance_at_the_rate_of_each_head() -> None:
    bias = bias_of_distance(alibi(5, 4), 5, 5)
    expected = [[-(2.0 ** (-2 * (h + 1))) * abs(i - j) for j in range(5) for i in range(5)] for h in range(4)]
    np.testing.assert_allclose(bias.transpose(1, 2).reshape(4, 25).numpy(), expected, rtol=1e-6)
    torch.testing.assert_close(bias_of_distance(alibi(5, 4), 2, 5), bias[:, -2:])


def test_temperature_sharpens_and_flattens() -> None:
    torch.manual_seed(6)
    x = torch.randn(1, W, D)
    layers = [MultiHeadAttention(BlockConfig(width=D, heads=H, temperature=t)) for t in (0.1, 1.0, 10.0)]
    for other in layers[1:]:
        other.load_state_dict(layers[0].state_dict())
    entropy = [
        -(w * w.clamp(min=1e-30).log()).sum(-1).mean().item() for w in (m.explicit(x, x)[1] for m in layers)
    ]
    assert entropy[0] < entropy[1] < entropy[2] <= math.log(W)
    doubled = torch.softmax(layers[1].explicit(x, x)[1].log() * 10.0, dim=-1)
    torch.testing.assert_close(layers[0].explicit(x, x)[1], doubled, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": "quadratic"}, "'softmax', 'local' or 'linear'"),
        ({"radius": 0}, r"radius\n.*greater than or equal to 1"),
        ({"temperature": 0.0}, "greater than 0"),
        ({"kernel": "linear", "temperature": 2.0}, "has no logits"),
        ({"norm": "both"}, "'pre' or 'post'"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BlockConfig(width=D, heads=H, **options)


def test_core_equals_a_float64_loop_with_mask_and_bias() -> None:
    q, k, v = qkv()
    keep = torch.rand(B, 1, 5, W, generator=torch.Generator().manual_seed(2)) < 0.7
    bias = torch.randn(H, 5, W, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    actual = attention(q, k, v, keep=keep, bias=bias)
    weights = attention_weights(q, k, keep=keep, bias=bias)
    torch.testing.assert_close(weights @ v, actual, rtol=0, atol=1e-12)
    for b, h, i in np.ndindex(B, H, 5):
        terms = {
            j: math.exp(float(q[b, h, i] @ k[b, h, j]) / math.sqrt(D // H) + float(bias[h, i, j]))
            for j in range(W)
            if keep[b, 0, i, j]
        }
        expected = sum(term * v[b, h, j] for j, term in terms.items()) / sum(terms.values())
        torch.testing.assert_close(actual[b, h, i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("keys", [1, 15, 16, 17])
def test_short_rows_of_weights_equal_the_softmax_of_the_library(keys: int) -> None:
    logits = torch.randn(B, H, 5, keys, generator=torch.Generator().manual_seed(6)).requires_grad_()
    weight = torch.randn(B, H, 5, keys, generator=torch.Generator().manual_seed(7))
    actual, expected = masked_softmax(logits, None, None), torch.softmax(logits, dim=-1)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)
    (mine,), (theirs,) = (torch.autograd.grad((w * weight).sum(), logits) for w in (actual, expected))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_query_without_keys_outputs_zero_with_finite_gradients(with_bias: bool) -> None:
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
        assert gradient(leaf).isfinite().all()
    assert (gradient(k)[1] == 0).all()


@pytest.mark.parametrize("rotated", [False, True])
def test_computing_only_the_last_query_gives_the_same_output(rotated: bool) -> None:
    torch.manual_seed(4)
    block = Block(BlockConfig(width=D, heads=H)).double()
    x = torch.randn(B, W, D, dtype=torch.float64)
    mask = AttentionMask(rotary_W2d=rotary(W, D // H) if rotated else None)
    expected = block(x, mask)[:, -1:]
    torch.testing.assert_close(block(x, mask, queries=1), expected, rtol=0, atol=1e-12)


def test_dropout_is_active_only_in_training() -> None:
    torch.manual_seed(5)
    block = Block(BlockConfig(width=D, heads=H, dropout=0.5))
    x = torch.randn(B, W, D)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


def test_rotary_products_depend_only_on_distance_and_norms_are_preserved() -> None:
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


def test_rotary_uses_the_angles_of_the_paper() -> None:
    table = rotary(3, 4)
    actual = rotate(torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(1, 1, 3, 4), table)[0, 0, 2]
    expected = torch.tensor([math.cos(2.0), math.sin(2.0), math.cos(0.02), math.sin(0.02)])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("function", [math.sin, math.cos])
def test_sinusoidal_follows_the_formula_of_the_paper(function: Callable[[float], float]) -> None:
    table = sinusoidal(6, 8)
    column = 4 + (function is math.cos)
    expected = [function(p / 10_000 ** (4 / 8)) for p in range(6)]
    np.testing.assert_allclose(table[:, column].numpy(), expected, rtol=0, atol=1e-7)
