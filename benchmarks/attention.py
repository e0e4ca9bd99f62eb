"""Cost of attention: time and memory of a block, forward and backward, by kernel and sequence length.

There are two regimes: windows (many short sequences of 32 to 2,048 days, with a fixed number of tokens) and
firms (one sequence of 100 to 4,000 firms per date). Every point is measured in its own process on one thread,
so that its peak memory can be read. The kernels alternate within a repetition. The fitted exponent is the
slope of log median time (or memory) per sequence against log length, over the longer half of the lengths: 1
is linear, 2 quadratic.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

DAYS = (32, 64, 128, 256, 512, 1024, 2048)
FIRMS = (100, 250, 500, 1000, 2000, 4000)
TOKENS = 8192  # days per step in the regime of windows
WIDTH, HEADS, RADIUS = 32, 4, 8


def measure(kernel: str, sequences: int, length: int) -> dict[str, float]:
    """Measure seconds and MiB of a block on ``[sequences, length, 32]``, forward and backward."""
    import resource
    import time

    import torch

    from models.attention.block import Block, BlockConfig

    torch.set_num_threads(1)
    torch.manual_seed(0)
    block = Block(BlockConfig(width=WIDTH, heads=HEADS, kernel=kernel, radius=RADIUS))  # type: ignore[arg-type]  # a str
    small = torch.randn(1, 16, WIDTH, requires_grad=True)
    block(small).sum().backward()  # the first call loads code, which is not part of the kernel's cost
    x = torch.randn(sequences, length, WIDTH, requires_grad=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < 0.3 and len(seconds) < 50):
        started = time.perf_counter()
        block(x).sum().backward()
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": statistics.median(seconds[1:]), "mib": (peak - before) / 1024}


def point(kernel: str, sequences: int, length: int) -> dict[str, float]:
    """Measure one point in its own process."""
    command = [sys.executable, __file__, "--point", kernel, str(sequences), str(length)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def exponent(lengths: list[int], costs: list[float]) -> float:
    """Slope of log cost against log length, by least squares over the longer half."""
    half = [(math.log(n), math.log(c)) for n, c in zip(lengths, costs, strict=True) if c > 0]
    half = half[len(half) // 2 :]
    if len(half) < 2:
        return math.nan
    mean_n, mean_c = (statistics.fmean(column) for column in zip(*half, strict=True))
    spread = sum((n - mean_n) ** 2 for n, _ in half)
    return sum((n - mean_n) * (c - mean_c) for n, c in half) / spread


def regime(name: str, lengths: tuple[int, ...], kernels: tuple[str, ...], runs: int) -> list[dict[str, Any]]:
    """Measure every kernel at every length, and print the table and the exponents."""
    rows: list[dict[str, Any]] = []
    print(f"\n{name}: a block of width {WIDTH}, {HEADS} heads, forward and backward, one thread")
    print(f"  {'length':>7}{'sequences':>11}" + "".join(f"{k + ' ms':>14}{k + ' MiB':>14}" for k in kernels))
    for length in lengths:
        sequences = max(1, TOKENS // length) if name == "windows" else 1
        taken: dict[str, list[dict[str, float]]] = {kernel: [] for kernel in kernels}
        for _ in range(runs):
            for kernel in kernels:
                taken[kernel].append(point(kernel, sequences, length))
        cells = ""
        for kernel in kernels:
            seconds = statistics.median(one["seconds"] for one in taken[kernel]) / sequences
            mib = statistics.median(one["mib"] for one in taken[kernel]) / sequences
            rows.append({"regime": name, "kernel": kernel, "length": length, "ms": 1e3 * seconds, "mib": mib})
            cells += f"{1e3 * seconds:>14.3f}{mib:>14.3f}"
        print(f"  {length:>7}{sequences:>11}{cells}", flush=True)
    for kernel in kernels:
        own = [row for row in rows if row["kernel"] == kernel]
        fits = [exponent([row["length"] for row in own], [row[key] for row in own]) for key in ("ms", "mib")]
        print(f"  {kernel:<8} time grows as length^{fits[0]:.2f}, memory as length^{fits[1]:.2f}")
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Write a self-contained page that plots time and memory against length on log-log axes."""
    from plotly.subplots import make_subplots

    titles = [f"{name}: {what} a sequence" for name in ("windows", "firms") for what in ("ms", "MiB")]
    figure = make_subplots(rows=2, cols=2, subplot_titles=titles, vertical_spacing=0.14)
    colours = {"softmax": "#1f5fa8", "local": "#d9822b", "linear": "#2a8f5b"}
    for r, name in enumerate(("windows", "firms"), start=1):
        for c, key in enumerate(("ms", "mib"), start=1):
            for kernel, colour in colours.items():
                own = [row for row in rows if row["kernel"] == kernel and row["regime"] == name]
                figure.add_scatter(
                    x=[row["length"] for row in own],
                    y=[row[key] for row in own],
                    name=kernel,
                    line_color=colour,
                    showlegend=(r, c) == (1, 1),
                    row=r,
                    col=c,
                )
            figure.update_xaxes(type="log", title="days" if name == "windows" else "firms", row=r, col=c)
            figure.update_yaxes(type="log", row=r, col=c)
    figure.update_layout(width=1000, height=760, template="plotly_white")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)
    print(f"\nplot: {path}")


def main() -> None:
    """Measure, print and plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--longest", type=int, default=4096, help="maximum sequence length")
    parser.add_argument("--plot", type=Path, default=Path("data/benchmarks/attention.html"))
    parser.add_argument("--point", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.point:
        kernel, sequences, length = args.point
        print(json.dumps(measure(kernel, int(sequences), int(length))))
        return
    days = tuple(n for n in DAYS if n <= args.longest)
    firms = tuple(n for n in FIRMS if n <= args.longest)
    rows = regime("windows", days, ("softmax", "local", "linear"), args.runs)
    rows += regime("firms", firms, ("softmax", "linear"), args.runs)
    plot(rows, args.plot)


if __name__ == "__main__":
    main()
