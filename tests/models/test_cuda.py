"""Models on a GPU: the CPU's forecasts and losses, recorded steps, and attention. Skipped without one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch
from small_panels import options_of
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.attention.core import attention
from models.batch import PanelTensors
from models.fitting.config import FitConfig, PretrainConfig
from models.fitting.fit import NeuralFitted, fit, fit_stacked
from models.fitting.loop import Engine, SingleSeed
from models.fitting.optimizer import AdamW
from models.fitting.stacked import StackedSeeds
from models.forecaster import Forecaster
from models.peers.others import attention_to_others
from models.registry import MODELS

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU that CUDA can use"),
]
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
NEURAL = [
    name
    for name, entry in MODELS.items()
    if isinstance(entry.build, type) and issubclass(entry.build, Forecaster)
]
FIXED = [name for name in NEURAL if MODELS[name].build.stackable]
T, N, C, F, W, S = 60, 40, 3, 4, 10, 4
TRAIN, VALID = np.arange(10, 40), np.arange(42, 58)


def panel(device: str, *, in_host_memory: bool = False) -> PanelTensors:
    rng = np.random.default_rng(0)
    characteristics, target = rng.normal(size=(T, N, F)), rng.normal(size=(T, N))
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(T, N, C)),
        characteristics_TNF=characteristics,
        mask_TN=rng.random((T, N)) < 0.9,
        group_TN=rng.integers(0, S, (T, N)),
        target_TN=target + 0.5 * characteristics[..., 0],
        window=W,
        n_groups=S,
        characteristic_names=("return_21", "log_market_equity", "a", "b"),
        path_TNK=target[..., None],
        device=device,
        in_host_memory=in_host_memory,
    )


def built(name: str, data: PanelTensors) -> Forecaster:
    torch.manual_seed(0)
    entry = MODELS[name]
    module = entry.build(entry.config(), data.shape)
    assert isinstance(module, Forecaster)
    for parameter in module.parameters():  # so that every part matters
        parameter.data += 0.05 * torch.randn_like(parameter)
    return module.to(data.device)


@pytest.mark.parametrize("name", NEURAL)
def test_forecasts_equal_those_of_the_cpu(name: str) -> None:
    dates = torch.tensor([20, 21, 50])
    on_cpu, on_gpu = panel("cpu"), panel("cuda")
    with torch.inference_mode():
        want = built(name, on_cpu).eval()(on_cpu.batch(dates))
        got = built(name, on_gpu).eval()(on_gpu.batch(dates))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-4)


@contextmanager
def without_waiting() -> Iterator[None]:
    """Refuse operations that wait for the GPU; PyTorch warns that this mode is a prototype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


@dataclass(frozen=True)
class Training:
    """Three epochs of an engine, the later ones without waiting."""

    loss_S: Tensor
    norm_S: Tensor
    moved: bool


def trained(  # noqa: PLR0917  (a training)
    name: str,
    config: FitConfig,
    device: str = "cuda",
    seeds: int = 1,
    compiled: bool = False,
    dropout: bool = True,
    in_host_memory: bool = False,
) -> Training:
    data = panel(device, in_host_memory=in_host_memory)
    modules = [built(name, data).train(dropout) for _ in range(seeds)]
    engine: Engine = SingleSeed(modules[0], data, config, 0, TRAIN)
    if modules[0].stackable and device == "cuda":
        engine = StackedSeeds(modules, data, config, range(seeds), TRAIN, compiled=compiled)
    optimizer, found = AdamW(engine.groups(), config, 15), []
    before = [p.detach().clone() for p in modules[0].parameters()]
    torch.manual_seed(1)
    for first in (12, 10, 14):
        strict = device == "cuda" and modules[0].stackable and first != 12
        with without_waiting() if strict else nullcontext():
            found.append(engine.epoch(torch.arange(first, first + 18).expand(seeds, -1), optimizer))
    loss_S, norm_S = torch.cat(found, dim=-1)[:, -1].cpu()
    pairs = zip(before, modules[0].parameters(), strict=True)
    return Training(loss_S, norm_S, any(not torch.equal(a, b) for a, b in pairs))


PRECISIONS: tuple[Literal["float32", "bf16"], ...] = ("float32", "bf16")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NEURAL)
def test_steps_train_without_waiting_for_the_gpu(name: str, precision: Literal["float32", "bf16"]) -> None:
    found = trained(name, FitConfig(batch_dates=4, precision=precision, average=0.9))
    assert found.loss_S.shape == (15,)
    assert torch.isfinite(found.loss_S).all()
    assert torch.isfinite(found.norm_S).all()
    assert found.moved


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("name", FIXED)
def test_replayed_steps_are_the_steps_that_they_record(
    name: str, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout included: random numbers move on in the same way, and are the same for the same seed."""
    config = FitConfig(batch_dates=4, precision="float32")
    replayed, again = trained(name, config, seeds=seeds), trained(name, config, seeds=seeds)
    monkeypatch.setattr("models.fitting.graphs.WARM_UP", 1000)
    eager = trained(name, config, seeds=seeds)
    torch.testing.assert_close(replayed.loss_S, again.loss_S, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(replayed.loss_S, eager.loss_S, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NEURAL)
def test_losses_agree_with_those_of_the_cpu(name: str, precision: Literal["float32", "bf16"]) -> None:
    here = trained(name, FitConfig(batch_dates=4, precision="float32"), "cpu", dropout=False)
    there = trained(name, FitConfig(batch_dates=4, precision=precision), dropout=False)
    allowed = 1e-4 if precision == "float32" else 1e-2
    torch.testing.assert_close(there.loss_S[:10], here.loss_S[:10], rtol=allowed, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [4, 8, 16])
def test_long_windows_and_peers_use_a_fused_kernel(width: int, dtype: torch.dtype) -> None:
    """The context refuses the path that keeps the weights of all pairs."""
    q, k, v = (
        torch.randn(64, 4, 40, width, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)
    )
    firms, keys = 500, 501
    shapes = ((firms, width + 13), (keys, width + 13), (keys, width))
    peers = [torch.randn(2, 4, n, d, device="cuda", dtype=dtype, requires_grad=True) for n, d in shapes]
    with sdpa_kernel(FUSED):
        attention(q, k, v, dropout=0.1).sum().backward()
        attention(q, k, v, keep=torch.rand(64, 1, 40, 40, device="cuda") < 0.9).sum().backward()
        attention_to_others(*peers, scale=0.1).sum().backward()
    assert all(x.grad is not None for x in (q, k, v, *peers))


@pytest.mark.parametrize("days", [20, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_there_may_be_more_windows_than_a_grid_is_wide(days: int, dtype: torch.dtype) -> None:
    q, k, v = (
        torch.randn(70_000, 2, days, 8, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)
    )
    out = attention(q, k, v, dropout=0.1)
    out.sum().backward()
    assert torch.isfinite(out).all()
    with torch.no_grad():
        ours, last = attention(q, k, v)[-5:], [x[-5:].cpu().float() for x in (q, k, v)]
    allowed = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(ours.cpu().float(), attention(*last), rtol=allowed, atol=allowed)


@pytest.mark.parametrize("objective", ["masked_days", "next_day"])
def test_a_pretrained_model_trains(objective: Literal["masked_days", "next_day"]) -> None:
    data, how = panel("cuda"), PretrainConfig(objective=objective, epochs=2, batch=128)
    config = FitConfig(epochs=2, batch_dates=8, pretrain=how)
    fitted = fit("temporal_peer", options_of("temporal_peer"), data, TRAIN, VALID, fit_config=config, seed=0)
    assert isinstance(fitted, NeuralFitted)
    assert fitted.pretraining[1].train_loss < 1.2
    assert np.isfinite(fitted.forecast(data, VALID)).any()


@pytest.mark.parametrize("name", ["temporal_transformer", "temporal_peer"])
def test_stacked_seeds_end_where_each_ends_alone(name: str) -> None:
    data = panel("cuda")
    config = FitConfig(epochs=2, batch_dates=8, precision="float32")
    encoder = {"width": 8, "heads": 2, "dropout": 0.0}
    options = {"encoder": encoder} | ({"peer_dropout": 0.0} if name == "temporal_peer" else {})
    with sdpa_kernel(FUSED):
        stack = fit_stacked(
            name, options_of(name, options), data, TRAIN, VALID, fit_config=config, seeds=(0, 1)
        )
    for seed, one in enumerate(stack):
        alone = fit(name, options_of(name, options), data, TRAIN, VALID, fit_config=config, seed=seed)
        np.testing.assert_allclose(one.forecast(data, VALID), alone.forecast(data, VALID), atol=2e-3)


@pytest.mark.parametrize("name", ["temporal_transformer", "temporal_peer"])
def test_a_panel_in_host_memory_trains_the_same_without_waiting(name: str) -> None:
    config = FitConfig(batch_dates=4)
    here, there = (trained(name, config, in_host_memory=each, dropout=False) for each in (True, False))
    torch.testing.assert_close(here.loss_S, there.loss_S, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["temporal_transformer", "temporal_peer"])
def test_seeds_at_the_same_time_are_seeds_that_take_turns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = FitConfig(batch_dates=4, precision="float32")
    together = trained(name, config, seeds=3)
    monkeypatch.setattr("models.fitting.stacked.what_fits", lambda *_: (1, 4))
    torch.testing.assert_close(together.loss_S, trained(name, config, seeds=3).loss_S, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["temporal_transformer", "temporal_peer"])
def test_a_compiled_step_equals_one_that_is_not(
    name: str, precision: Literal["float32", "bf16"], seeds: int
) -> None:
    """The last test, because it takes longest where the time is short."""
    config = FitConfig(batch_dates=4, precision=precision)
    found, expected = (
        trained(name, config, seeds=seeds, compiled=each, dropout=False) for each in (True, False)
    )
    allowed = 1e-3 if precision == "float32" else 2e-2
    torch.testing.assert_close(found.loss_S, expected.loss_S, rtol=allowed, atol=1e-5)
