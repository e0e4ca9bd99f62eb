"""Losses and the rank IC against numpy and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.fitting.losses import LOSSES


def table(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    forecast, target = (2 * torch.randn(4, 9, generator=generator, dtype=torch.float64) for _ in range(2))
    known = torch.rand(4, 9, generator=generator) < 0.7
    known[3] = False
    return forecast, torch.where(known, target, torch.nan), known


def by_hand(name: str, y: np.ndarray, target: np.ndarray) -> float:
    if name == "pairwise":
        pairs = [np.log1p(np.exp(y[j] - y[i])) for i, j in np.argwhere(target[:, None] > target)]
        return float(np.mean(pairs))
    if name == "mse":
        return float(np.mean((y - target) ** 2))
    if name == "huber":
        return float(np.mean([e * e / 2 if abs(e) <= 1 else abs(e) - 0.5 for e in y - target]))
    return 1.0 - float(np.corrcoef(y, target)[0, 1])


@pytest.mark.parametrize("name", list(LOSSES))
def test_loss_is_the_mean_over_dates_of_the_loss_over_known_cells(name: str) -> None:
    forecast, target, known = table()
    want = np.mean(
        [by_hand(name, forecast[b][known[b]].numpy(), target[b][known[b]].numpy()) for b in range(3)]
    )
    assert float(LOSSES[name](forecast, target, known)) == pytest.approx(float(want), abs=1e-7)


@pytest.mark.parametrize("name", list(LOSSES))
def test_unknown_targets_send_no_gradient_and_no_nan(name: str) -> None:
    forecast, target, known = table()
    forecast.requires_grad_()
    LOSSES[name](forecast, target, known).backward()
    assert forecast.grad is not None
    assert forecast.grad.isfinite().all()
    assert (forecast.grad[~known] == 0).all()
    assert (forecast.grad[known] != 0).all()


def test_ic_of_constant_forecasts_is_one_with_a_finite_gradient() -> None:
    _, target, known = table()
    forecast = torch.zeros(4, 9, dtype=torch.float64, requires_grad=True)
    loss = LOSSES["ic"](forecast, target, known)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(1.0)
    assert forecast.grad is not None
    assert forecast.grad.isfinite().all()
