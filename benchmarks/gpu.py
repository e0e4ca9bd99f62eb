"""Training throughput on a GPU, compared with the limits of the card. Needs only torch and numpy.

One run measures: fused against explicit attention in bf16 and float32; the card's ceilings (matrix products
and memory copies); and eager, compiled and K-seed training of the default `temporal_transformer` and
`temporal_peer` on a synthetic panel. A sample is a firm-day: one firm on one date, with its window. The work
of a step is counted: `FlopCounterMode` adds up the matrix products, and the bytes are those of all
operations' inputs and outputs. A share of a ceiling is the step's work per second divided by the measured
ceiling. Compilation fuses operations; its share of the memory ceiling uses the bytes of the eager step.

Run `python benchmarks/gpu.py` on a GPU. `--device cpu --tiny` tests the script on any machine.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a GPU machine may have only the repository

from models.attention.block import AttentionMask, BlockConfig, MultiHeadAttention
from models.batch import PanelTensors
from models.fitting.config import FitConfig
from models.fitting.dense import DateLoss, take
from models.fitting.loop import SingleSeed
from models.fitting.optimizer import make_optimizer, parameter_groups
from models.fitting.stacked import StackedSeeds
from models.forecaster import Forecaster
from models.registry import MODELS

VARIANTS = ("eager", "compiled", "stacked")
GROUPS = 12


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the benchmark."""

    sessions: int = 600
    firms: int = 1000
    channels: int = 7
    characteristics: int = 40
    window: int = 20
    batch_dates: int = 8
    steps: int = 20
    matmul: int = 8192
    copy_mib: int = 1024


TINY = Sizes(sessions=40, firms=12, window=5, batch_dates=2, steps=2, matmul=64, copy_mib=1)


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write; views move none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
        self.bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
            self.bytes += sum({id(t): t.numel() * t.element_size() for t in tensors}.values())
        return out


def wait(device: str) -> None:
    """Wait until the device has finished its queued work."""
    if device != "cpu":
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object], device: str, times: int) -> float:
    """Median wall-clock seconds of a call, after one warm-up call."""
    work()
    taken = []
    for _ in range(times):
        wait(device)
        started = time.perf_counter()
        work()
        wait(device)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def check_attention(device: str, sizes: Sizes) -> None:
    """Compare the fused with the explicit path; exit if they differ by more than rounding."""
    print("fused against explicit attention, largest difference over the largest value")
    torch.manual_seed(0)
    for kernel in ("softmax", "local", "linear"):
        for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 5e-2)):
            config = BlockConfig(width=32, heads=4, kernel=kernel)
            layer = MultiHeadAttention(config).to(device, dtype).eval()
            x = torch.randn(sizes.firms, sizes.window, 32, device=device, dtype=dtype)
            keys = torch.rand(sizes.firms, sizes.window, device=device) < 0.9
            mask = AttentionMask(keys_BK=keys)
            with torch.no_grad():
                fused, explicit = layer(x, x, mask), layer.explicit(x, x, mask)[0]
            error = float((fused - explicit).abs().max() / explicit.abs().max())
            print(f"  {kernel:<8}{str(dtype).removeprefix('torch.'):<10}{error:.1e}")
            if not error < tolerance:
                sys.exit(f"{kernel} attention in {dtype}: the fused and the explicit path differ")


def ceilings(device: str, sizes: Sizes) -> tuple[dict[str, float], float]:
    """Measure FLOP/s of matrix products by type, and bytes per second of a copy (read and written)."""
    n, flops = sizes.matmul, {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        product = partial(torch.matmul, a, b)
        flops[str(dtype).removeprefix("torch.")] = 2 * n**3 / seconds_of(product, device, 10)
    source = torch.empty(sizes.copy_mib * 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * source.numel() / seconds_of(lambda: target.copy_(source), device, 10)
    rates = ", ".join(f"{name} {rate / 1e12:.3g} TFLOP/s" for name, rate in flops.items())
    print(f"ceilings: {rates}; copy {copied / 1e9:.4g} GB/s")
    return flops, copied


def panel(device: str, sizes: Sizes) -> PanelTensors:
    """Make a panel of random numbers; 5% of the firms are missing on each date."""
    rng = np.random.default_rng(0)
    shape = (sizes.sessions, sizes.firms)
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(*shape, sizes.channels)),
        characteristics_TNF=rng.normal(size=(*shape, sizes.characteristics)),
        mask_TN=rng.random(shape) < 0.95,
        group_TN=rng.integers(0, GROUPS, shape),
        target_TN=rng.normal(size=shape),
        window=sizes.window,
        n_groups=GROUPS,
        device=device,
    )


def built(model: str, data: PanelTensors, seed: int) -> Forecaster:
    """Build the default model with a seed, on the data's device."""
    torch.manual_seed(seed)
    entry = MODELS[model]
    module = entry.build(entry.config(), data.shape)
    if not isinstance(module, Forecaster):
        sys.exit(f"{model} is not a neural network: choose a neural model")
    return module.to(data.device).train()


def no_forecast(*_: object) -> Any:  # noqa: ANN401 (of an engine's type)
    """Placeholder for an engine's validation forecasts, which training steps do not need."""
    raise NotImplementedError


def step_of(
    variant: str, model: str, data: PanelTensors, config: FitConfig, seeds: int
) -> tuple[Callable[[], object], int]:
    """Return a training step of one variant, and the number of seeds that it trains."""
    rng = np.random.default_rng(1)
    train = np.arange(data.window, len(data.mask_TN))

    def dates(count: int) -> Tensor:
        return torch.as_tensor(np.stack([rng.permutation(train)[: config.batch_dates] for _ in range(count)]))

    if variant == "stacked":
        modules = [built(model, data, seed) for seed in range(seeds)]
        stack = StackedSeeds(modules, data, config, range(seeds), train)
        optimizer_K, _ = make_optimizer(stack.groups(), config, 1000)
        return lambda: stack.step(dates(seeds), optimizer_K), seeds
    module = built(model, data, 0)
    optimizer, _ = make_optimizer(parameter_groups(module, config), config, 1000)
    if variant == "eager":
        engine = SingleSeed(module, data, config, 0, train, no_forecast)
        return lambda: engine.step(dates(1), optimizer), 1
    loss_of = torch.compile(DateLoss(module, config))
    places = int(data.mask_TN.sum(dim=1).max())

    def compiled() -> float:
        optimizer.zero_grad(set_to_none=True)
        at = dates(1)[0].to(data.device)
        _, loss = loss_of(take(data, at, data.mask_TN[at], places))
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), config.clip)
        optimizer.step()
        return float(loss.detach())

    return compiled, 1


def compare(
    model: str, data: PanelTensors, sizes: Sizes, seeds: int, variants: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Time the variants in turn on one panel; each row has the cost per seed."""
    device = data.device.type
    config = FitConfig(batch_dates=sizes.batch_dates)
    step, _ = step_of("eager", model, data, config, 1)
    step()
    with FlopCounterMode(display=False) as counter, Traffic() as traffic:
        step()
    cells = sizes.batch_dates * float(data.mask_TN.sum(dim=1).float().mean())
    rows = []
    for variant in variants:
        if device != "cpu":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        step, count = step_of(variant, model, data, config, seeds)
        step()
        took = seconds_of(step, device, sizes.steps) / count
        peak = torch.cuda.max_memory_allocated() / 2**20 if device != "cpu" else math.nan
        rows.append(
            {
                "variant": f"{variant} K={count}" if count > 1 else variant,
                "rate": cells / took,
                "peak_mib": peak,
                "flops": counter.get_total_flops() / took,
                "bytes": traffic.bytes / took,
            }
        )
    return rows


def main() -> None:
    """Check attention, measure the ceilings, then compare the variants and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, only to test the script")
    parser.add_argument("--models", nargs="+", default=["temporal_transformer", "temporal_peer"])
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, help="default: all, without compiled if --tiny"
    )
    parser.add_argument("--seeds", type=int, default=8, help="number of stacked seeds K")
    parser.add_argument("--firms", type=int, help=f"firms per date (default {Sizes().firms})")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("this machine has no GPU: use --device cpu --tiny to test the script")
    sizes = TINY if args.tiny else Sizes()
    if args.firms:
        sizes = Sizes(firms=args.firms)
    variants = args.variants or [
        variant for variant in VARIANTS if not (args.tiny and variant == "compiled")
    ]  # compiling takes minutes
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"torch {torch.__version__} on {name}; {sizes}")
    check_attention(args.device, sizes)
    flops, copied = ceilings(args.device, sizes)
    products = flops["bfloat16" if args.device == "cuda" else "float32"]  # the type that training uses
    data = panel(args.device, sizes)
    for model in args.models:
        print(f"\n{model}: training steps of {sizes.batch_dates} dates")
        heads = ("firm-days/s", "peak MiB", "of matmul %", "of copy %")
        print(f"  {'':<14}" + "".join(f"{head:>14}" for head in heads))
        for row in compare(model, data, sizes, args.seeds, tuple(variants)):
            shares = f"{100 * row['flops'] / products:>14.2f}{100 * row['bytes'] / copied:>14.2f}"
            print(f"  {row['variant']:<14}{row['rate']:>14,.0f}{row['peak_mib']:>14.0f}{shares}", flush=True)


if __name__ == "__main__":
    main()
