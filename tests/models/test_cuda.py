"""Models on a GPU: the CPU's forecasts, a training step, and fused attention kernels. Skipped without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_panels import options_of
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.attention.core import attention
from models.batch import PanelTensors
from models.fitting.config import FitConfig
from models.fitting.fit import fit, fit_stacked
from models.fitting.loop import SingleSeed
from models.fitting.optimizer import make_optimizer
from models.fitting.stacked import CompiledSeed
from models.forecaster import Forecaster
from models.peers.layer import attention_to_others
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


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", NEURAL)
def test_a_step_trains_without_waiting_for_the_gpu(name: str, precision: str) -> None:
    data = panel("cuda")
    config = FitConfig(batch_dates=4, precision=precision)  # type: ignore[arg-type]  # one of its choices
    engine = SingleSeed(built(name, data).train(), data, config, 0, TRAIN)
    optimizer, _ = make_optimizer(engine.groups(), config, 10)
    before = [p.detach().clone() for p in engine.modules[0].parameters()]
    dates_KB = torch.tensor([[12, 30, 17, 25]])
    engine.step(dates_KB, optimizer)
    if name != "cross_peer":  # it reads the size of its reference universe
        torch.cuda.set_sync_debug_mode("error")
    try:
        loss, norm = engine.step(dates_KB, optimizer)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(loss).all()
    assert torch.isfinite(norm).all()
    after = list(engine.modules[0].parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ["temporal_transformer", "temporal_peer"])
def test_a_compiled_step_equals_one_that_is_not(name: str, precision: str) -> None:
    data, dates_KB = panel("cuda"), torch.tensor([[12, 30, 17, 25]])
    config = FitConfig(batch_dates=4, precision=precision)  # type: ignore[arg-type]  # one of its choices
    found = []
    for engine_class in (SingleSeed, CompiledSeed):
        engine = engine_class(built(name, data).eval(), data, config, 0, TRAIN)
        optimizer, _ = make_optimizer(engine.groups(), config, 10)
        found.append(torch.cat([one for _ in range(2) for one in engine.step(dates_KB, optimizer)]))
    torch.testing.assert_close(*found, rtol=1e-3 if precision == "float32" else 5e-2, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [4, 8, 16])
def test_days_and_peers_use_a_fused_kernel(width: int, dtype: torch.dtype) -> None:
    """The context refuses the path that keeps the weights of all pairs."""
    q, k, v = (
        torch.randn(64, 4, 20, width, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)
    )
    firms, keys = 500, 501
    shapes = ((firms, width + 13), (keys, width + 13), (keys, width))
    peers = [torch.randn(2, 4, n, d, device="cuda", dtype=dtype, requires_grad=True) for n, d in shapes]
    with sdpa_kernel(FUSED):
        attention(q, k, v, dropout=0.1).sum().backward()
        attention(q, k, v, keep=torch.rand(64, 1, 20, 20, device="cuda") < 0.9).sum().backward()
        attention_to_others(*peers, scale=0.1).sum().backward()
    assert all(x.grad is not None for x in (q, k, v, *peers))


@pytest.mark.parametrize("name", ["temporal_transformer", "temporal_peer"])
def test_stacked_seeds_end_where_each_ends_alone(name: str) -> None:
    data = panel("cuda")
    config = FitConfig(epochs=1, batch_dates=8, precision="float32")
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
    config, found = FitConfig(batch_dates=4), []
    for in_host_memory in (False, True):
        data = panel("cuda", in_host_memory=in_host_memory)
        assert data.history_NSC.is_cuda is not in_host_memory
        engine = SingleSeed(built(name, data).eval(), data, config, 0, TRAIN)
        optimizer, _ = make_optimizer(engine.groups(), config, 10)
        engine.step(torch.tensor([[12, 30, 17, 25]]), optimizer)
        torch.cuda.set_sync_debug_mode("error")
        try:
            steps = [engine.step(torch.arange(first, first + 4)[None], optimizer) for first in range(10, 34)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found.append(torch.stack([loss for loss, _ in steps]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
