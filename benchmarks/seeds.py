"""K seeds in parallel against K seeds in sequence, in one run on this machine's CPUs.

In parallel, as in `peerglass train`: one single-threaded process per core. In sequence: one process fits seed
after seed, on one thread and on all threads; the faster of the two counts. The best validation IC of every
seed must agree with its sequential run within 1e-4 (to the bit if both use one thread).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import numpy as np

MODELS = ("temporal_transformer", "self_peer", "temporal_peer")
SESSIONS, FIRMS, CHANNELS, CHARACTERISTICS, WINDOW = 360, 120, 7, 40, 20
TRAIN_END = 260  # validation starts ten sessions later


def panel() -> Any:  # noqa: ANN401 (PanelTensors; torch is imported late)
    """Make a panel with a weak signal, so that validation ICs differ between epochs."""
    from models.batch import PanelTensors

    rng = np.random.default_rng(0)
    channels = rng.normal(size=(SESSIONS, FIRMS, CHANNELS))
    characteristics = rng.normal(size=(SESSIONS, FIRMS, CHARACTERISTICS))
    signal = 0.1 * characteristics[:, :, 0] - 0.1 * channels[:, :, 0]
    return PanelTensors.from_arrays(
        channels_TNC=channels,
        characteristics_TNF=characteristics,
        mask_TN=rng.random((SESSIONS, FIRMS)) < 0.95,
        group_TN=rng.integers(0, 8, (SESSIONS, FIRMS)),
        target_TN=signal + rng.normal(size=(SESSIONS, FIRMS)),
        window=WINDOW,
        n_groups=8,
    )


def solo(model: str, seed: int, epochs: int, threads: int) -> float:
    """Fit one seed and return its best validation IC."""
    import torch

    from models.fitting.config import FitConfig
    from models.fitting.fit import fit
    from models.registry import MODELS

    torch.set_num_threads(threads)
    data = panel()
    fitted = fit(
        model,
        MODELS[model].config(),
        data,
        np.arange(WINDOW, TRAIN_END),
        np.arange(TRAIN_END + 10, SESSIONS - 10),
        fit_config=FitConfig(epochs=epochs, patience=epochs),
        seed=seed,
    )
    return max(record.valid_ic for record in fitted.history)


def together(model: str, seeds: int, epochs: int) -> list[float]:
    """Fit the seeds in a pool of single-threaded processes, one per core."""
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=os.cpu_count() or 1, batch_size=1)
    return list(pool(delayed(solo)(model, seed, epochs, 1) for seed in range(seeds)))


def main() -> None:
    """Time the three variants in turn; print medians, ratios and the largest difference in IC."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[4, 8])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    cores = os.cpu_count() or 1
    together(args.models[0], cores, 1)  # warm-up: the pool's processes import torch
    print(
        f"{cores} cores; {FIRMS} firms, window {WINDOW}, {args.epochs} epochs of {TRAIN_END - WINDOW} dates"
    )
    heads = ("together s", "1 thread s", f"{cores} threads s", "ratio", "dIC")
    print(f"  {'model':<22}{'K':>3}" + "".join(f"{head:>13}" for head in heads))
    for model in args.models:
        for count in args.seeds:
            taken: dict[str, list[float]] = {"together": [], "one": [], "all": []}
            difference = 0.0
            for _ in range(args.runs):
                started = time.perf_counter()
                ours = together(model, count, args.epochs)
                taken["together"].append(time.perf_counter() - started)
                for name, threads in (("one", 1), ("all", cores)):
                    started = time.perf_counter()
                    theirs = [solo(model, seed, args.epochs, threads) for seed in range(count)]
                    taken[name].append(time.perf_counter() - started)
                    difference = max(difference, float(np.abs(np.array(ours) - theirs).max()))
            ratios = [
                mine / min(one, every)
                for mine, one, every in zip(taken["together"], taken["one"], taken["all"], strict=True)
            ]
            cells = [statistics.median(taken[name]) for name in ("together", "one", "all")]
            print(
                f"  {model:<22}{count:>3}{cells[0]:>13.1f}{cells[1]:>13.1f}{cells[2]:>13.1f}"
                f"{statistics.median(ratios):>13.2f}{difference:>13.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
