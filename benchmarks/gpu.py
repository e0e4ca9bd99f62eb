"""Training throughput on a GPU, compared with the limits of the card. Needs only torch, numpy and pydantic.

One command measures and writes one Markdown table: the day encoder, the peer layer at 500 to 8,000 firms, and
a training step of every neural model with default options, in float32 and in bf16, eager, with the panel in
the host's memory, compiled, and for K seeds at once. First it checks the fused against the explicit attention
paths, and measures the card's ceilings (matrix products and memory copies).

A sample is a firm-day: one firm on one date, with its window. The work of a pass is counted:
`FlopCounterMode` adds up the matrix products, and the bytes are those of all operations' inputs and outputs.
A share of a ceiling is the work per second divided by the measured ceiling. Both halves of peer attention
count as a full attention, so its share of the matrix products is at most twice too high. On CPUs,
`FlopCounterMode` does not count fused attention. Compilation fuses operations; its share of the memory
ceiling uses the bytes of the eager pass.

    python benchmarks/gpu.py --output table.md                 on a GPU
    python benchmarks/gpu.py --device cpu --small              the same table on a CPU, with smaller sizes
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a GPU machine may have only the repository

from features.arrays import IntArray
from models.attention.block import AttentionMask, BlockConfig, MultiHeadAttention
from models.attention.encoder import DayEncoder, EncoderConfig
from models.batch import PanelTensors
from models.fitting.config import FitConfig, matrix_precision
from models.fitting.graphs import WARM_UP
from models.fitting.loop import Engine, SingleSeed
from models.fitting.optimizer import AdamW
from models.fitting.stacked import StackedSeeds
from models.forecaster import Forecaster
from models.peers.layer import Firms, PeerKeys, PeerLayer, PeerSizes
from models.registry import MODELS

GROUPS = 12
PRECISIONS = ("float32", "bf16")
Step = Callable[[], object]


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
    peer_firms: tuple[int, ...] = (500, 1000, 2000, 4000, 8000)
    seeds: tuple[int, ...] = (1, 4, 8, 16)


SMALL = Sizes(
    sessions=80,
    firms=200,
    batch_dates=4,
    steps=3,
    matmul=1024,
    copy_mib=64,
    peer_firms=(500, 1000),
    seeds=(1, 4),
)
TINY = Sizes(
    sessions=40,
    firms=12,
    window=5,
    batch_dates=2,
    steps=1,
    matmul=64,
    copy_mib=1,
    peer_firms=(20, 40),
    seeds=(1, 2),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what was measured, and its rates per second."""

    what: str
    variant: str
    precision: str
    samples: float
    flops: float
    bytes: float
    mib: float


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


def panel(device: str, sizes: Sizes, *, in_host_memory: bool = False) -> PanelTensors:
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
        characteristic_names=("log_market_equity", *(f"c{k}" for k in range(1, sizes.characteristics))),
        device=device,
        in_host_memory=in_host_memory,
    )


def measured(  # noqa: PLR0917  (what is measured, and how)
    what: str,
    variant: str,
    precision: str,
    samples: float,
    step: Step,
    counted: Step,
    device: str,
    sizes: Sizes,
) -> Row:
    """Time a step; its work is counted in ``counted``, which computes the same in plain operations."""
    counted()
    with FlopCounterMode(display=False) as counter, Traffic() as traffic:
        counted()
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    took = seconds_of(step, device, sizes.steps)
    mib = torch.cuda.max_memory_allocated() / 2**20 if device != "cpu" else math.nan
    return Row(
        what, variant, precision, samples / took, counter.get_total_flops() / took, traffic.bytes / took, mib
    )


def day_encoder_rows(device: str, sizes: Sizes) -> Iterator[Row]:
    """Forward and backward pass of the default day encoder over the windows of one batch."""
    windows = sizes.batch_dates * sizes.firms
    encoder = DayEncoder(EncoderConfig(), sizes.channels, sizes.window).to(device).train()
    x_MWC = torch.randn(windows, sizes.window, sizes.channels, device=device)
    for precision in PRECISIONS:
        config = FitConfig(precision=precision)  # type: ignore[arg-type]  # one of its choices

        def step(config: FitConfig = config) -> None:
            with matrix_precision(config, x_MWC.device):
                h_MD = encoder(x_MWC)
            h_MD.float().square().mean().backward()

        yield measured("day encoder", "eager", precision, windows, step, step, device, sizes)


def peer_layer_rows(device: str, sizes: Sizes) -> Iterator[Row]:
    """Forward and backward pass of temporal_peer's default peer layer on one date."""
    identity, recent, tokens = sizes.characteristics + 4, 3 * sizes.channels, 16
    layer = PeerLayer(PeerSizes(32, 4, identity, recent, GROUPS, 0.3, tokens)).to(device).train()
    for firms in sizes.peer_firms:
        token_1ND, identity_1NE, recent_1NR = (
            torch.randn(1, firms, width, device=device) for width in (tokens, identity, recent)
        )
        group_1N = torch.randint(0, GROUPS, (1, firms), device=device)
        given = Firms(token_1ND, identity_1NE, recent_1NR, group_1N)
        keys = PeerKeys(torch.ones(1, firms, dtype=torch.bool, device=device))
        for precision in PRECISIONS:
            config = FitConfig(precision=precision)  # type: ignore[arg-type]  # one of its choices

            def step(config: FitConfig = config, given: Firms = given, keys: PeerKeys = keys) -> None:
                with matrix_precision(config, keys.keep_BM.device):
                    h_BND, message_BN1 = layer(given, given, keys)
                (h_BND.float().square().mean() + message_BN1.float().mean()).backward()

            yield measured(
                f"peer layer, {firms:,} firms", "eager", precision, firms, step, step, device, sizes
            )


def built(model: str, data: PanelTensors, seed: int) -> Forecaster:
    """Build the default model with a seed, on the data's device."""
    torch.manual_seed(seed)
    entry = MODELS[model]
    module = entry.build(entry.config(), data.shape)
    if not isinstance(module, Forecaster):
        sys.exit(f"{model} is not a neural network: choose a neural model")
    return module.to(data.device).train()


def training_dates(data: PanelTensors, config: FitConfig, seeds: int) -> Callable[[], Tensor]:
    """Return a function that draws dates [K, B] of a step."""
    rng = np.random.default_rng(1)
    train = np.arange(data.window, len(data.listed_TN))
    return lambda: torch.as_tensor(
        np.stack([rng.permutation(train)[: config.batch_dates] for _ in range(seeds)])
    )


def single_step(model: str, data: PanelTensors, config: FitConfig) -> Step:
    """Return a training step of one seed as it is on a CPU, in plain operations."""
    engine = SingleSeed(built(model, data, 0), data, config, 0, train_of(data))
    return step_of(engine, data, config)


def fixed_step(
    model: str, data: PanelTensors, config: FitConfig, seeds: int = 1, *, compiled: bool = False
) -> Step:
    """Return a training step of fixed shapes of K seeds, recorded on CUDA devices."""
    modules = [built(model, data, seed) for seed in range(seeds)]
    engine = StackedSeeds(modules, data, config, range(seeds), train_of(data), compiled=compiled)
    return step_of(engine, data, config)


def step_of(engine: Engine, data: PanelTensors, config: FitConfig) -> Step:
    """Return one step of an engine, after those that are made before a step is recorded."""
    optimizer, dates = AdamW(engine.groups(), config, 1000), training_dates(data, config, len(engine.seeds))

    def step() -> None:
        engine.epoch(dates(), optimizer)

    for _ in range(WARM_UP + 1 if data.device.type == "cuda" else 0):
        step()
    return step


def train_of(data: PanelTensors) -> IntArray:
    """All sessions with a whole window."""
    return np.arange(data.window, len(data.listed_TN))


def model_rows(
    model: str, data: PanelTensors, on_host: PanelTensors, sizes: Sizes, *, compile_too: bool
) -> Iterator[Row]:
    """Training steps of one default model; the rate of K seeds counts the samples of all of them."""
    device = data.device.type
    cells = sizes.batch_dates * float(data.listed_TN.sum(dim=1).float().mean())
    stackable = getattr(MODELS[model].build, "stackable", False)
    for precision in PRECISIONS:
        config = FitConfig(batch_dates=sizes.batch_dates, precision=precision)  # type: ignore[arg-type]
        eager = single_step(model, data, config)
        yield measured(model, "eager", precision, cells, eager, eager, device, sizes)
        uploaded = fixed_step(model, on_host, config) if stackable else single_step(model, on_host, config)
        yield measured(model, "panel on the host", precision, cells, uploaded, eager, device, sizes)
        if stackable and compile_too:
            compiled = fixed_step(model, data, config, compiled=True)
            yield measured(model, "compiled", precision, cells, compiled, eager, device, sizes)
        for seeds in sizes.seeds if stackable else ():
            stacked = fixed_step(model, data, config, seeds)
            row = measured(model, f"K = {seeds}", precision, seeds * cells, stacked, eager, device, sizes)
            yield replace(row, flops=seeds * row.flops, bytes=seeds * row.bytes)


def main() -> None:
    """Check attention, measure the ceilings and all rows, and write the table."""
    neural = [
        name
        for name, entry in MODELS.items()
        if isinstance(entry.build, type) and issubclass(entry.build, Forecaster)
    ]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, only to test the script")
    parser.add_argument("--models", nargs="+", choices=neural, default=neural)
    parser.add_argument(
        "--no-compile", action="store_true", help="without compiled steps, which take minutes"
    )
    parser.add_argument("--output", type=Path, help="file of the table; by default it is only printed")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("this machine has no GPU: use --device cpu --small, or --tiny to test the script")
    sizes = TINY if args.tiny else SMALL if args.small else Sizes()
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"torch {torch.__version__} on {name}, {torch.get_num_threads()} threads; {sizes}")
    check_attention(args.device, sizes)
    flops, copied = ceilings(args.device, sizes)

    def write(line: str) -> None:
        print(line, flush=True)
        if args.output is not None:  # row by row, because a run may be stopped
            with args.output.open("a") as table:
                table.write(f"{line}\n")

    if args.output is not None:
        args.output.write_text("")
    write("| what | variant | precision | samples/s | GFLOP/s | of products, % | of copies, % | peak MiB |")
    write("|---|---|---|---|---|---|---|---|")

    def rows() -> Iterator[Row]:
        yield from day_encoder_rows(args.device, sizes)
        yield from peer_layer_rows(args.device, sizes)
        data, on_host = (panel(args.device, sizes, in_host_memory=where) for where in (False, True))
        for model in args.models:
            yield from model_rows(model, data, on_host, sizes, compile_too=not (args.tiny or args.no_compile))

    for row in rows():
        ceiling = flops["bfloat16" if row.precision == "bf16" else "float32"]
        shares = f"{100 * row.flops / ceiling:.3g} | {100 * row.bytes / copied:.3g}"
        rates = f"{row.samples:,.0f} | {row.flops / 1e9:.3g} | {shares} | {row.mib:.0f}"
        write(f"| {row.what} | {row.variant} | {row.precision} | {rates} |")


if __name__ == "__main__":
    main()
