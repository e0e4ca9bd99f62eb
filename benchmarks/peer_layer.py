"""Time and memory of training a peer layer over the number of firms, with a matrix over pairs and without.

`pairs`: a mask over pairs of firms, and values narrower than queries and keys, for which PyTorch has no fused
kernel. It keeps the weights of all pairs for the backward pass. `mask`: the same mask with values padded to
the width of the keys, which a fused kernel computes. `columns`: two causal halves without a mask, and a
column of queries and keys for every group. `others`: as the models do it (`models.peers.others`), which with
many groups adds their biases to the logits of some pairs at a time. Every cell is measured in a process of
its own, in turn. Memory is the growth of the process's peak over a forward and a backward pass. The exponent
is the slope of log(memory) on log(firms). All variants must agree on the output and on the norm of the
gradient.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a GPU machine may have only the repository

VARIANTS = ("pairs", "mask", "columns", "others")
FIRMS = (500, 1000, 2000, 4000)
RECENT, WIDTH, HEADS, TOKENS, IDENTITY = 21, 32, 4, 16, 44


def peak_mib() -> float:
    """Peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(variant: str, firms: int, groups: int, runs: int) -> dict[str, float]:
    """Train one layer of temporal_peer's default sizes on one date; return seconds, MiB and check sums."""
    import torch
    import torch.nn.functional as F  # noqa: N812  (torch's own name for it)

    from models.peers import layer as module
    from models.peers import others
    from models.peers.layer import Firms, PeerKeys, PeerLayer, PeerSizes

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = PeerSizes(WIDTH, HEADS, IDENTITY, RECENT, groups, 0.0, TOKENS, size=0, leader_slope=4.0)
    layer = PeerLayer(sizes)
    parameters = list(layer.parameters())
    for parameter in parameters:
        parameter.data += 0.05 * torch.randn_like(parameter)
    given = Firms(
        torch.randn(1, firms, TOKENS),
        torch.randn(1, firms, IDENTITY),
        torch.randn(1, firms, RECENT),
        torch.randint(0, groups, (1, firms)),
    )
    keep = torch.ones(1, firms, dtype=torch.bool)
    if variant == "pairs":

        def unpadded(q: Any, k: Any, v: Any, *, keep: Any, scale: float) -> Any:  # noqa: ANN401 (tensors)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=scale)

        vars(module)["attention"] = unpadded
    if variant == "columns":
        vars(others)["MANY_GROUPS"] = math.inf
    own = None if variant in ("columns", "others") else torch.eye(firms, dtype=torch.bool)[None]

    def step(n: int) -> tuple[float, float]:
        layer.zero_grad(set_to_none=True)
        some = given.select(torch.arange(n)[None])
        keys = PeerKeys(keep[:, :n], None if own is None else own[:, :n, :n])
        tokens, messages = layer(some, some, keys)
        total = (tokens**2).mean() + messages.mean()
        total.backward()
        return float(total), math.sqrt(
            sum(float(p.grad.square().sum()) for p in parameters if p.grad is not None)
        )

    step(50)  # loads what the first step loads
    before = peak_mib()
    loss, norm = step(firms)
    memory = peak_mib() - before
    seconds = []
    for _ in range(runs):
        started = time.process_time()
        step(firms)
        seconds.append(time.process_time() - started)
    return {"seconds": statistics.median(seconds), "mib": memory, "loss": loss, "norm": norm}


def main() -> None:
    """Measure all cells in turn and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firms", nargs="+", type=int, default=list(FIRMS))
    parser.add_argument("--groups", type=int, default=12)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cell", nargs=2, metavar=("VARIANT", "FIRMS"), help="measure one cell; prints JSON")
    args = parser.parse_args()
    if args.cell:
        print(json.dumps(measure(args.cell[0], int(args.cell[1]), args.groups, args.runs)))
        return
    cells: dict[tuple[str, int], dict[str, float]] = {}
    for firms in args.firms:
        for variant in VARIANTS:
            given = ["--groups", str(args.groups), "--runs", str(args.runs)]
            command = [sys.executable, __file__, *given, "--cell", variant, str(firms)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            cells[variant, firms] = json.loads(done.stdout)
        for name in ("loss", "norm"):
            values = [cells[variant, firms][name] for variant in VARIANTS]
            if not math.isclose(min(values), max(values), rel_tol=1e-4):
                sys.exit(f"The variants disagree at {firms} firms: {name} is {values}.")
    print("| firms | " + " | ".join(f"{v}, ms | {v}, MiB" for v in VARIANTS) + " |")
    print("|---|" + "---|---|" * len(VARIANTS))
    for firms in args.firms:
        row = [cells[variant, firms] for variant in VARIANTS]
        print(f"| {firms} | " + " | ".join(f"{1e3 * c['seconds']:.0f} | {c['mib']:.0f}" for c in row) + " |")
    for variant in VARIANTS:
        slopes = [
            np.polyfit(np.log(args.firms), np.log([cells[variant, n][what] for n in args.firms]), 1)[0]
            for what in ("seconds", "mib")
        ]
        print(f"{variant}: time grows with firms to the power {slopes[0]:.2f}, memory {slopes[1]:.2f}")


if __name__ == "__main__":
    main()
