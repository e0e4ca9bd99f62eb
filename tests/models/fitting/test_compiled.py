"""Steps of fixed shapes equal those of `SingleSeed` up to rounding, compiled or not, in parts or not.

The backend ``aot_eager`` captures and differentiates the same graph as the default one, and needs neither a
GPU nor a C++ compiler. ``tests/models/test_cuda.py`` runs the default one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from models.batch import PanelTensors
from models.fitting import stacked as dense
from models.fitting.config import FitConfig, LossName
from models.fitting.loop import Engine, SingleSeed
from models.fitting.losses import LOSSES, QUANTILE
from models.fitting.optimizer import AdamW
from models.fitting.stacked import StackedSeeds
from models.forecaster import Forecaster
from models.quantiles import QuantileHead
from models.registry import MODELS

T, N, C, F, W, S = 40, 12, 3, 4, 6, 3
TRAIN = np.arange(W, T)
FIXED = [name for name, entry in MODELS.items() if getattr(entry.build, "stackable", False)]


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
        path_TNK=np.stack((0.5 * target, 0.7 * target), axis=-1),
        window=W,
        n_groups=S,
        characteristic_names=("return_21", "log_market_equity", "a", "b"),
    )


def single(module: Forecaster, data: PanelTensors, config: FitConfig) -> Engine:
    return SingleSeed(module, data, config, 0, TRAIN)


def fixed(module: Forecaster, data: PanelTensors, config: FitConfig) -> Engine:
    return StackedSeeds([module], data, config, (0,), TRAIN)


def in_parts(module: Forecaster, data: PanelTensors, config: FitConfig) -> Engine:
    engine = StackedSeeds([module], data, config, (0,), TRAIN)
    engine.dates_at_once = 3
    return engine


def compiled(module: Forecaster, data: PanelTensors, config: FitConfig) -> Engine:
    return StackedSeeds([module], data, config, (0,), TRAIN, compiled=True)


Make = Callable[[Forecaster, PanelTensors, FitConfig], Engine]


def steps(make: Make, name: str, data: PanelTensors, config: FitConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and gradient norms [2, 4] of four steps, the last with two dates; and the weights after them."""
    torch.manual_seed(0)
    entry = MODELS[name]
    module = entry.build(entry.config(), data.shape)
    assert isinstance(module, Forecaster)
    if config.loss == QUANTILE:
        module.quantile_head = QuantileHead(config.quantiles, F)
    for parameter in module.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    engine = make(module, data, config)
    module.eval()  # dropout is off
    dates_D = torch.cat(
        [torch.arange(first, first + count) for first, count in ((6, 4), (10, 4), (20, 4), (30, 2))]
    )
    measured_2KS = engine.epoch(dates_D[None], AdamW(engine.groups(), config, 20))
    assert measured_2KS.shape == (2, 1, 4)
    return measured_2KS[:, 0], torch.cat([one.detach().flatten() for one in module.parameters()])


def assert_same(make: Make, name: str, data: PanelTensors, config: FitConfig) -> None:
    """AdamW divides tiny gradients by their own size, so single weights may differ by more than rounding."""
    (found, weights), (expected, others) = (steps(one, name, data, config) for one in (make, single))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert float((weights - others).abs().mean()) < 5e-6


@pytest.mark.slow(4)
@pytest.mark.parametrize("name", ["temporal_transformer", "temporal_peer"])
def test_compiled_steps_make_the_same_losses_gradients_and_weights(name: str, data: PanelTensors) -> None:
    assert_same(compiled, name, data, FitConfig(batch_dates=4, precision="float32"))


@pytest.mark.slow(4)
def test_explicit_attention_is_compiled_as_well(data: PanelTensors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.attention.core.is_explicit", lambda keys, device: True)
    for precision in ("float32", "bf16"):
        config = FitConfig(batch_dates=4, precision=precision)
        (found, _), (expected, _) = (
            steps(one, "temporal_transformer", data, config) for one in (compiled, fixed)
        )
        torch.testing.assert_close(
            found[0], expected[0], rtol=1e-4 if precision == "float32" else 1e-2, atol=1e-6
        )


@pytest.mark.slow(4)
@pytest.mark.parametrize("name", FIXED)
def test_steps_of_fixed_shapes_make_the_same_losses_gradients_and_weights(
    name: str, data: PanelTensors
) -> None:
    assert_same(fixed, name, data, FitConfig(batch_dates=4))


@pytest.mark.slow(4)
@pytest.mark.parametrize(
    ("name", "loss"),
    [
        *((name, loss) for name in ("mlp", "seq2seq") for loss in (*LOSSES, QUANTILE)),
        ("temporal_peer", "mse"),
    ],
)
def test_steps_in_parts_make_the_same_losses_gradients_and_weights(
    name: str, loss: LossName, data: PanelTensors
) -> None:
    assert_same(in_parts, name, data, FitConfig(batch_dates=4, loss=loss))


@pytest.mark.parametrize("make", [compiled, fixed])
def test_a_block_of_sessions_has_the_same_loss_gradient_and_weights(make: Make, data: PanelTensors) -> None:
    assert_same(make, "mlp", data, FitConfig(batch_dates=4, loss="net_utility"))


@pytest.mark.parametrize("make", [compiled, fixed])
def test_drawn_firms_are_the_same(make: Make, data: PanelTensors) -> None:
    assert_same(make, "mlp", data, FitConfig(batch_dates=4, firms_per_date=5, loss="ic"))


def test_bf16_stays_near_float32(data: PanelTensors) -> None:
    config = FitConfig(batch_dates=4, precision="float32")
    exact, _ = steps(compiled, "mlp", data, config)
    rounded, _ = steps(compiled, "mlp", data, config.model_copy(update={"precision": "bf16"}))
    torch.testing.assert_close(rounded[0], exact[0], rtol=0.02, atol=0.0)
    assert not torch.equal(rounded[0], exact[0])


def test_every_fold_of_a_process_may_have_its_own_shapes(data: PanelTensors) -> None:
    torch._dynamo.utils.counters.clear()
    config = FitConfig(batch_dates=1, firms_per_date=2)
    for firms in range(2, 12):
        own = config.model_copy(update={"firms_per_date": firms})
        module = MODELS["mlp"].build(MODELS["mlp"].config(), data.shape)
        engine = compiled(module, data, own)
        engine.epoch(torch.arange(6, 8)[None], AdamW(engine.groups(), own, 20))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 8


def test_all_full_steps_are_compiled_once(data: PanelTensors) -> None:
    torch._dynamo.utils.counters.clear()
    module = MODELS["mlp"].build(MODELS["mlp"].config(), data.shape)
    engine, config = compiled(module, data, FitConfig(batch_dates=4)), FitConfig(batch_dates=4)
    engine.epoch(torch.arange(6, 18)[None], AdamW(engine.groups(), config, 20))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
