"""A multiverse on the simulated market against the enumeration of all its designs, and its time.

The market is that of configs/demo.yaml. Eight choices span 384 designs, so the share of every choice in the
variance over designs is known exactly: it is that of the full factorial, by sums of squares that are
orthogonal there. A multiverse of 200 designs has to find every share within 0.05. Its time is compared
with that of its distinct fits, each computed once by the same engine; the target is a ratio of at most 2.5.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from features.arrays import FloatArray
from pipelines import multiverse
from pipelines.config.load import load_config
from pipelines.progress import Progress
from pipelines.run.fetch import ingest_config

ROOT = Path(__file__).resolve().parents[1]
DESIGNS = 200
CHOICES = (
    "multiverse={model: [ridge, lightgbm], label.transform: [rank, demean, zscore], folds.scheme: [expanding,"
    " rolling], label.horizon: [1, 5], features.transform.missing: [zero, median], book: [long_short,"
    " long_only], backtest.costs.half_spread_bps: [2, 10], book.rebalance_every: [1, 5]}"
)
OUTCOMES = {"net Sharpe ratio": "sharpe_net", "IC": "ic"}
TOLERANCE, RATIO = 0.05, 2.5


def exact_shares(designs: pl.DataFrame, choices: list[str], of: str) -> dict[str, float]:
    """Shares of choices and pairs in the variance of a full factorial: sums of squares of cell means."""
    y_D = designs[of].to_numpy() - designs[of].mean()

    def means(*names: str) -> FloatArray:
        return designs.select(pl.col(of).mean().over(names)).to_series().to_numpy() - designs[of].mean()

    own = {name: means(name) for name in choices}
    pairs = {f"{a} x {b}": means(a, b) - own[a] - own[b] for a, b in combinations(choices, 2)}
    return {name: float((part @ part) / (y_D @ y_D)) for name, part in (own | pairs).items()}


def main() -> int:
    """Run both multiverses in an empty folder, and print the shares and the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--designs", type=int, default=DESIGNS)
    arguments = parser.parse_args()
    spent = dict.fromkeys(("_compute", "read_dataset"), 0.0)
    for owner, name in ((multiverse._Study, "_compute"), (multiverse, "read_dataset")):
        original = getattr(owner, name)

        def timed(*given: object, name: str = name, original: object = original, **options: object) -> object:
            begin = time.perf_counter()
            try:
                return original(*given, **options)  # type: ignore[operator]
            finally:
                spent[name] += time.perf_counter() - begin

        setattr(owner, name, timed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        drop = ("zero", "reversal", "temporal_transformer", "self_peer", "temporal_peer")
        options = [f"models.{name}=null" for name in drop] + [CHOICES, "label.extra_delays=[]", "seeds=[0]"]
        config = load_config(ROOT / "configs/demo.yaml", [*options, "tracking.uri=sqlite:///m.db"], root=root)
        ingest_config(config, print, Progress(), wait=True)
        begin = time.perf_counter()
        print(multiverse.multiverse(config, arguments.designs))
        total = time.perf_counter() - begin
        fits = spent["_compute"]
        (sampled,) = root.rglob("multiverses/*/shares.parquet")
        found = pl.read_parquet(sampled)
        every = math.prod(len(values) for values in config.multiverse.values())
        multiverse.multiverse(config, every)
        designs = pl.read_parquet(sampled.with_name("designs.parquet"))
    choices = list(config.multiverse)
    if designs.height != every:
        sys.exit(f"{every - designs.height} designs have no result, so the truth is unknown.")
    print(f"\n{'share of the variance':60} all {every}  {arguments.designs} of them")
    worst = 0.0
    for outcome, of in OUTCOMES.items():
        drawn = dict(found.filter(pl.col("outcome") == outcome).select("effect", "share").iter_rows())
        exact = exact_shares(designs, choices, of)
        for effect, share in sorted(exact.items(), key=lambda item: -item[1]):
            estimate = drawn.get(effect, 0.0)
            worst = max(worst, abs(share - estimate))
            if max(share, estimate) >= 0.01:
                print(f"{outcome + ': ' + effect:60} {share:7.3f} {estimate:7.3f}")
    datasets, ratio = spent["read_dataset"], total / fits
    print(f"largest difference {worst:.3f} (target {TOLERANCE})")
    print(
        f"{total:.0f} s, of which fits {fits:.0f} s and datasets of both {datasets:.0f} s: "
        f"ratio {ratio:.2f} (target {RATIO})"
    )
    return int(worst > TOLERANCE or ratio > RATIO or not np.isfinite(worst))


if __name__ == "__main__":
    sys.exit(main())
