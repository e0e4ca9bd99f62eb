"""Dropout on a CPU: its distribution, its gradient, and when it does nothing."""

from __future__ import annotations

import math

import pytest
import torch

from models.attention.layers import Dropout, drop


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.75, 1e-4])
def test_numbers_are_dropped_with_the_probability_and_the_others_are_scaled(probability: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 1003)
    out = drop(x, probability)
    share, n = float((out == 0).double().mean()), out.numel()
    assert abs(share - probability) < 4 * math.sqrt(probability * (1 - probability) / n) + 2**-17
    (scale,) = out[out != 0].unique()
    assert float(scale) == pytest.approx(1 / (1 - probability), rel=2e-4)
    assert abs(float(out.double().mean()) - 1) < 4 * math.sqrt(probability / (1 - probability) / n)


def test_draws_of_neighbouring_numbers_rows_and_calls_are_independent() -> None:
    torch.manual_seed(0)
    one, two = (drop(torch.ones(1000, 1000), 0.5) / 2 - 0.5 for _ in range(2))
    pairs = [(one, two), (one[1:], one[:-1])]
    pairs += [(one[:, lag:], one[:, :-lag]) for lag in (1, 2, 3, 4, 5, 8)]
    for a, b in pairs:
        assert abs(float((a * b).mean()) / 0.25) < 5e-3
    assert float(one.std()) == pytest.approx(0.5, rel=1e-3)


def test_the_gradient_passes_through_the_numbers_that_are_kept() -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 5, 3, requires_grad=True)
    out = drop(x, 0.3)
    out.backward(torch.full_like(x, 2.0))
    assert 0 < int((out == 0).sum()) < out.numel()
    scale = 1 / (1 - round(0.3 * 2**16) / 2**16)
    torch.testing.assert_close(x.grad, torch.where(out == 0, 0.0, 2.0 * scale))
    torch.testing.assert_close(out, torch.where(out == 0, 0.0, x.detach() * scale))


def test_the_seed_decides_the_draws() -> None:
    x = torch.ones(33)
    torch.manual_seed(5)
    first = drop(x, 0.5)
    torch.manual_seed(5)
    assert torch.equal(drop(x, 0.5), first)
    assert not torch.equal(drop(x, 0.5), first)


def test_nothing_is_dropped_in_evaluation_or_with_probability_0() -> None:
    x = torch.ones(4)
    assert Dropout(0.5).eval()(x) is x
    assert drop(x, 0.0) is x
    assert bool((drop(torch.ones(10_000), 0.999999) == 0).sum() > 9_900)
