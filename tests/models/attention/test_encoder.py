"""The day encoder with every kernel, position encoding and pooling: ablated days, weights, gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from models.attention.encoder import DayEncoder, EncoderConfig
from models.attention.positions import POSITIONS
from models.attention.probe import Site, probing
from models.forecaster import day_weights

M, W, C, D = 6, 12, 3, 8
POOLINGS = ("last", "cls", "mean", "attention")


def is_valid(kernel: str, position: str, pooling: str) -> bool:
    return not (
        (kernel == "linear" and position in ("rotary", "relative", "alibi"))
        or (kernel == "local" and pooling == "cls")
    )


COMBINATIONS = [
    c for c in itertools.product(("softmax", "local", "linear"), POSITIONS, POOLINGS) if is_valid(*c)
]


def encoder_of(kernel: Any, position: Any, pooling: Any, **options: Any) -> DayEncoder:  # noqa: ANN401 (literals)
    torch.manual_seed(0)
    config = EncoderConfig(
        **{"width": D, "heads": 2, "layers": 2, "radius": 4, "dropout": 0.0, **options},
        kernel=kernel,
        positions=position,
        pooling=pooling,
    )
    encoder = DayEncoder(config, C, W).double().eval()
    with torch.no_grad():
        for parameter in encoder.parameters():  # parameters that are initialised to zero must matter as well
            parameter.add_(0.3 * torch.randn_like(parameter))
    return encoder


def weights_of(encoder: DayEncoder, x: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """Weights of the days in the embedding, read by a probe."""
    seen: dict[str, list[torch.Tensor]] = {}

    def read(site: Site, weights: torch.Tensor, _: torch.Tensor | None) -> torch.Tensor:
        seen.setdefault(site.over, []).append(weights)
        return weights

    with probing(encoder, read):
        encoder(x, keep)
    return day_weights(seen, W)


@pytest.mark.parametrize(("kernel", "position", "pooling"), COMBINATIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_an_ablated_day_does_not_affect_the_embedding(
    kernel: str, position: str, pooling: str, causal: bool
) -> None:
    encoder = encoder_of(kernel, position, pooling, causal=causal)
    x = torch.randn(M, W, C, dtype=torch.float64)
    keep = torch.rand(M, W, generator=torch.Generator().manual_seed(1)) < 0.7
    keep[0] = False  # all days of the first window are ablated
    keep[1] = True
    noisy = torch.where(keep[:, :, None], x, 50.0 * torch.randn_like(x))
    embedded = encoder(x, keep)
    assert embedded.shape == (M, D)
    assert embedded.isfinite().all()
    torch.testing.assert_close(encoder(noisy, keep), embedded, rtol=0, atol=1e-12)
    torch.testing.assert_close(encoder(x, torch.ones_like(keep)), encoder(x), rtol=0, atol=1e-12)
    assert not torch.allclose(encoder(noisy)[2:], embedded[2:])
    weights = weights_of(encoder, x, keep)
    assert weights.shape == (M, W)
    assert (weights[~keep] == 0).all()
    full = weights_of(encoder, x, None).sum(dim=1)
    if pooling == "cls":  # part of the weight is on the [CLS] token
        assert ((full > 0.2) & (full < 1.0)).all()
    else:
        torch.testing.assert_close(full, torch.ones(M, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_gradients_reach_every_parameter(pooling: str, norm: str) -> None:
    encoder = encoder_of("softmax", "relative", pooling, norm=norm, activation="relu").train()
    encoder(torch.randn(M, W, C, dtype=torch.float64)).square().sum().backward()
    without_gradient = [
        name
        for name, parameter in encoder.named_parameters()
        if parameter.grad is None or parameter.grad.abs().max() == 0
    ]
    # a single query's softmax does not depend on the keys' bias
    expected = ["blocks.1.attention.key.bias"] if pooling in ("last", "cls") else []
    assert without_gradient == expected


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ValueError, match="acts on logits, and the linear kernel has none"):
        EncoderConfig(kernel="linear", positions="alibi")
    with pytest.raises(ValueError, match="the token would see the last days alone"):
        EncoderConfig(kernel="local", pooling="cls")
    with pytest.raises(ValueError, match="'last', 'cls', 'mean' or 'attention'"):
        EncoderConfig(pooling="max")  # type: ignore[arg-type]  # wrong on purpose
