"""A compiled training step equals the step that is not compiled, up to rounding.

The backend ``aot_eager`` captures and differentiates the same graph as the default one, and needs neither a
GPU nor a C++ compiler. ``tests/models/test_cuda.py`` runs the default one.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from models.batch import PanelTensors
from models.fitting import stacked as dense
from models.fitting.config import FitConfig
from models.fitting.loop import SingleSeed
from models.fitting.optimizer import make_optimizer
from models.fitting.stacked import CompiledSeed
from models.forecaster import Forecaster
from models.registry import MODELS

T, N, C, F, W, S = 40, 12, 3, 4, 6, 3
TRAIN = np.arange(W, T)


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "_BACKEND", "aot_eager")
    torch.compiler.reset()


@pytest.fixture(scope="module")
def data() -> PanelTensors:
    rng = np.random.default_rng(0)
    characteristics, target = rng.normal(size=(T, N, F)), rng.normal(size=(T, N))
    mask = rng.random((T, N)) < 0.8
    target[rng.random((T, N)) < 0.1] = np.nan
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(T, N, C)),
        characteristics_TNF=characteristics,
        mask_TN=mask,
        group_TN=rng.integers(0, S, (T, N)),
        target_TN=target,
        window=W,
        n_groups=S,
        characteristic_names=("return_21", "log_market_equity", "a", "b"),
    )


def steps(
    engine_class: type[SingleSeed], name: str, data: PanelTensors, config: FitConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and gradient norms of four steps, the last with two dates; and the weights after them."""
    torch.manual_seed(0)
    entry = MODELS[name]
    module = entry.build(entry.config(), data.shape)
    assert isinstance(module, Forecaster)
    for one in module.modules():
        if isinstance(one, nn.Dropout):
            one.p = 0.0
    for parameter in module.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    engine = engine_class(module, data, config, 0, TRAIN)
    optimizer, schedule = make_optimizer(engine.groups(), config, 20)
    module.eval()  # dropout of attention weights is off as well
    found: list[torch.Tensor] = []
    for first, count in ((6, 4), (10, 4), (20, 4), (30, 2)):
        found += engine.step(torch.arange(first, first + count)[None], optimizer)
        schedule.step()
    return torch.cat(found), torch.cat([one.detach().flatten() for one in module.parameters()])


def assert_same(name: str, data: PanelTensors, config: FitConfig) -> None:
    """AdamW divides tiny gradients by their own size, so single weights may differ by more than rounding."""
    (found, weights), (expected, others) = (
        steps(engine, name, data, config) for engine in (CompiledSeed, SingleSeed)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert float((weights - others).abs().mean()) < 1e-6


@pytest.mark.slow(4)
@pytest.mark.parametrize("name", ["temporal_transformer", "temporal_peer"])
def test_compiled_steps_make_the_same_losses_gradients_and_weights(name: str, data: PanelTensors) -> None:
    assert_same(name, data, FitConfig(batch_dates=4, precision="float32"))


def test_drawn_firms_are_the_same(data: PanelTensors) -> None:
    assert_same("mlp", data, FitConfig(batch_dates=4, firms_per_date=5, loss="ic"))


def test_bf16_stays_near_float32(data: PanelTensors) -> None:
    config = FitConfig(batch_dates=4, precision="float32")
    exact, _ = steps(CompiledSeed, "mlp", data, config)
    rounded, _ = steps(CompiledSeed, "mlp", data, config.model_copy(update={"precision": "bf16"}))
    losses = slice(0, 8, 2)
    torch.testing.assert_close(rounded[losses], exact[losses], rtol=0.02, atol=0.0)
    assert not torch.equal(rounded[losses], exact[losses])


def test_every_step_has_the_shapes_of_the_first(data: PanelTensors) -> None:
    torch._dynamo.utils.counters.clear()
    steps(CompiledSeed, "mlp", data, FitConfig(batch_dates=4))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
