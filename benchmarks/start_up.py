"""Duration of `peerglass --help` compared with `python -c "import torch"`: whole processes, in turn.

The target: the median ratio is below one fifth. Help must not wait for the import of torch.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

HELP = [str(Path(sys.executable).with_name("peerglass")), "--help"]
TORCH = [sys.executable, "-c", "import torch"]


def seconds(command: list[str]) -> float:
    """Wall-clock time of a process, which must succeed."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    """Time the two commands in turn after a warm-up; print medians and the ratio of the pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="number of pairs, after one warm-up pair")
    runs = parser.parse_args().runs
    pairs = [(seconds(HELP), seconds(TORCH)) for _ in range(runs + 1)][1:]
    ratios = [ours / torch for ours, torch in pairs]
    print(f"peerglass --help   median {statistics.median(ours for ours, _ in pairs):.3f} s over {runs} runs")
    print(f"import torch       median {statistics.median(torch for _, torch in pairs):.3f} s")
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"ratio              median {statistics.median(ratios):.3f}, {spread}")


if __name__ == "__main__":
    main()
