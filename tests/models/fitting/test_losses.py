"""Losses and the rank IC against numpy and scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_panels import NAMES, SMALL, N, S, T, W, arrays
from torch import Tensor

from models.batch import PanelTensors
from models.fitting.config import FitConfig, LossName
from models.fitting.loop import SingleSeed
from models.fitting.losses import LOSSES
from models.forecaster import Forecaster
from models.registry import MODELS


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
    if name == "sharpe":
        return float((1.0 - (y - y.mean()) @ target / np.sqrt(len(y))) ** 2)
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


@pytest.mark.parametrize(("name", "loss"), [("mlp", "pairwise"), ("mlp", "mse"), ("seq2seq", "mse")])
def test_a_step_in_parts_weighs_dates_by_what_is_known_in_them(name: str, loss: LossName) -> None:
    given: dict[str, Any] = arrays()
    given["target_TN"][[11, 12, 13], 2:] = np.nan  # few pairs
    given["target_TN"][12] = given["target_TN"][12, :1]  # none
    path_TN1 = 0.5 * given["target_TN"][:, :, None]
    path_TN1[[10, 11, 14]] = np.nan  # the shorter horizon is unknown
    if name == "seq2seq":
        given["path_TNK"] = path_TN1
    data = PanelTensors.from_arrays(**given, window=W, n_groups=S, characteristic_names=NAMES)
    assert data.target_TN.shape == (T, N)
    norms = []
    for at_once in (8, 1, 3):
        torch.manual_seed(0)
        config = MODELS[name].config(**SMALL[name])
        module = MODELS[name].build(config, data.shape)
        assert isinstance(module, Forecaster)
        module.eval()
        engine = SingleSeed(module, data, FitConfig(loss=loss, clip=1e9), 0, np.arange(8, 16))
        engine.dates_at_once = at_once
        optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
        step: tuple[Tensor, Tensor] = engine.step(torch.arange(8, 16)[None], optimizer)
        norms.append([float(step[0][0]), float(step[1][0])])
    np.testing.assert_allclose(norms[1:], [norms[0]] * 2, rtol=2e-5)
