"""The pairwise loss at size, and quantiles: against loops, scikit-learn and a heteroscedastic panel."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_pinball_loss
from small_panels import options_of

from models.batch import PanelTensors
from models.fitted import FittedState
from models.fitting.config import FitConfig
from models.fitting.fit import NeuralFitted, fit, restore
from models.fitting.losses import LOSSES, quantile
from models.quantiles import QuantileHead, pinball, require_levels
from models.registry import MODELS

T, N, F, W = 90, 40, 3, 5
TRAIN, VALID, TEST = np.arange(5, 60), np.arange(62, 74), np.arange(76, 90)
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)


def panel(seed: int = 0) -> PanelTensors:
    """Targets linear in the first characteristic, as wide as the second one says."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(T, N, F)).astype(np.float32)
    target = 0.02 * (z[..., 0] + np.exp(0.5 * z[..., 1]) * rng.normal(size=(T, N)))
    target[rng.random((T, N)) < 0.05] = np.nan
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(T, N, 2)),
        characteristics_TNF=z,
        mask_TN=rng.random((T, N)) < 0.9,
        group_TN=np.tile(np.arange(N) % 3, (T, 1)),
        target_TN=target,
        window=W,
        characteristic_names=("signal", "log_market_equity", "noise"),
    )


def fitted(name: str, options: dict[str, Any], data: PanelTensors, **fit_options: Any) -> NeuralFitted:  # noqa: ANN401
    config = FitConfig(**{"epochs": 12, "batch_dates": 4, "lr": 2e-2, "patience": 12, **fit_options})
    model = fit(name, options_of(name, options), data, TRAIN, VALID, fit_config=config, seed=0)
    assert isinstance(model, NeuralFitted)
    return model


def test_the_pairwise_loss_takes_a_thousand_firms_and_leaves_ties_out() -> None:
    generator = torch.Generator().manual_seed(0)
    forecast = torch.randn(1, 1000, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 5, (1, 1000), generator=generator).double()
    loss = LOSSES["pairwise"](forecast, target, torch.ones(1, 1000, dtype=torch.bool))
    y, t = forecast.detach().numpy()[0], target.numpy()[0]
    above = t[:, None] > t[None, :]
    assert float(loss.detach()) == pytest.approx(np.log1p(np.exp(y[None, :] - y[:, None]))[above].mean())
    loss.backward()
    assert forecast.grad is not None
    # d/dy_i: the odds that i loses where it won, less those that it wins where it lost
    odds = 1.0 / (1.0 + np.exp(y[:, None] - y[None, :]))
    want = (-(odds * above).sum(1) + (odds * above).sum(0)) / above.sum()
    np.testing.assert_allclose(forecast.grad.numpy()[0], want, atol=1e-12)
    same = torch.zeros(2, 6, requires_grad=True)
    nothing = LOSSES["pairwise"](same, torch.ones(2, 6), torch.ones(2, 6, dtype=torch.bool))
    nothing.backward()
    assert float(nothing.detach()) == 0.0
    assert same.grad is not None
    assert (same.grad == 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_never_cross_and_the_forecast_is_the_median(seed: int) -> None:
    torch.manual_seed(seed)
    head = QuantileHead(LEVELS, F)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(std=10.0)
    y, z = torch.randn(3, 50), 5 * torch.randn(3, 50, F)
    q = head(y, z)
    assert (q.diff(dim=-1) >= 0).all()
    torch.testing.assert_close(q[..., 2], y)


def test_the_head_starts_as_a_standard_normal_around_the_forecast() -> None:
    head = QuantileHead((0.05, 0.5, 0.6, 0.99), F)
    q = head(torch.full((1, 1), 3.0), torch.randn(1, 1, F))
    want = [3.0 + NormalDist().inv_cdf(level) for level in head.levels]
    assert q[0, 0].tolist() == pytest.approx(want, abs=1e-5)


def test_pinball_equals_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    y, q = rng.normal(size=200), np.sort(rng.normal(size=(200, 5)), axis=1)
    want = np.mean([mean_pinball_loss(y, q[:, k], alpha=level) for k, level in enumerate(LEVELS)])
    cells = pinball(torch.tensor(q)[None], torch.tensor(y)[None], LEVELS)
    assert float(cells.mean()) == pytest.approx(want, rel=1e-12)


def test_the_quantile_loss_is_the_mean_over_dates_and_skips_unknown_targets() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 7, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    known = torch.rand(3, 7, generator=generator) < 0.6
    known[2] = False
    loss = quantile(q, torch.where(known, target, torch.nan), known, LEVELS)
    cells = pinball(q.detach(), target, LEVELS)
    assert float(loss.detach()) == pytest.approx(
        float(torch.stack([cells[b][known[b]].mean() for b in (0, 1)]).mean())
    )
    loss.backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()
    assert (q.grad[~known] == 0).all()


def test_quantiles_cover_what_they_say_and_widen_where_the_target_does() -> None:
    data = panel()
    model = fitted("mlp", {"width": 8, "recent_days": 0}, data, loss="quantile")
    q_DNQ = model.quantiles(data, TEST)
    mask_DN = data.mask_TN.numpy()[TEST]
    np.testing.assert_array_equal(np.isnan(q_DNQ[..., 0]), ~mask_DN)
    np.testing.assert_allclose(q_DNQ[..., 2], model.forecast(data, TEST), rtol=1e-5, atol=1e-8)
    assert (np.diff(q_DNQ[mask_DN], axis=1) > 0).all()
    target_DN = data.target_TN.numpy()[TEST]
    known_DN = mask_DN & np.isfinite(target_DN)
    for k, level in enumerate(LEVELS):
        below = (target_DN < q_DNQ[..., k])[known_DN].mean()
        assert below == pytest.approx(level, abs=0.1)
    width = (q_DNQ[..., 4] - q_DNQ[..., 0])[known_DN]
    scale = np.exp(0.5 * data.characteristics_TNF.numpy()[TEST][..., 1])[known_DN]
    assert np.corrcoef(width, scale)[0, 1] > 0.8
    # the score in the history is that of the kept epoch, and better than what the head began with
    scores = [record.valid_pinball for record in model.history]
    best = int(np.argmax([record.valid_ic for record in model.history]))
    q_V = torch.tensor(model.quantiles(data, VALID) / float(model.module.target_scale))
    y_V = data.target_TN[torch.tensor(VALID)] / model.module.target_scale
    known_V = data.mask_TN[torch.tensor(VALID)] & y_V.isfinite()
    kept = float(quantile(torch.nan_to_num(q_V), y_V, known_V, LEVELS))
    assert kept == pytest.approx(scores[best], rel=1e-4)
    start = QuantileHead(LEVELS, F)(torch.zeros_like(y_V), torch.zeros(*y_V.shape, F))
    assert kept < 0.85 * float(quantile(start, y_V, known_V, LEVELS).detach())


@pytest.mark.slow(3)
@pytest.mark.parametrize(
    ("name", "loss"),
    [
        *((name, "quantile") for name, entry in MODELS.items() if entry.kind == "neural"),
        *((name, "pairwise") for name in ("mlp", "temporal_transformer", "temporal_peer")),
    ],
)
def test_every_neural_model_learns_from_ranks_and_quantiles(
    name: str, loss: str, every_model: dict[str, dict[str, Any]]
) -> None:
    data = panel()
    model = fitted(name, every_model[name], data, loss=loss, epochs=3, valid_dates=4)
    forecast = model.forecast(data, TEST)
    known = np.isfinite(forecast)
    signal = data.characteristics_TNF.numpy()[TEST][..., 0]
    assert np.corrcoef(forecast[known], signal[known])[0, 1] > 0.7
    assert math.isfinite(model.history[0].valid_pinball) == (loss == "quantile")
    back = restore(FittedState(**dataclasses.asdict(model.state())))
    np.testing.assert_array_equal(back.forecast(data, TEST), forecast)
    assert isinstance(back, NeuralFitted)
    if loss == "quantile":
        np.testing.assert_array_equal(back.quantiles(data, TEST), model.quantiles(data, TEST))
    else:
        with pytest.raises(ValueError, match="was not fitted to quantiles: set"):
            model.quantiles(data, TEST)


@pytest.mark.parametrize("levels", [(0.5,), (0.1, 0.9), (0.5, 0.1), (0.0, 0.5), (0.5, 0.5, 0.9), (0.5, 1.0)])
def test_levels_that_cannot_be_say_why(levels: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="median"):
        require_levels(levels)
    with pytest.raises(ValueError, match="median"):
        FitConfig(quantiles=levels)
