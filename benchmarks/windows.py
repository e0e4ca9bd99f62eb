"""Gathering windows from the panel, compared with a memory copy in the same run.

Random 60-day windows are gathered as models do it (`models.batch.PanelTensors`): all firms of one random
date, and the same number of random (firm, date) pairs. The bytes of the windows are counted once as read and
once as written. The copy is of an array that is larger than the caches, also counted as read and written.
Each is timed on one thread as well, because a training task has one thread.

The target: at least a quarter of the copy's bytes per second.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from models.batch import PanelTensors

TARGET = 0.25
COPIED = 2**30  # bytes


def panel(firms: int, sessions: int, channels: int, window: int) -> PanelTensors:
    """Make a panel of random channels, with all firms in the universe."""
    rng = np.random.default_rng(0)
    return PanelTensors.from_arrays(
        channels_TNC=rng.standard_normal((sessions, firms, channels), dtype=np.float32),
        characteristics_TNF=np.zeros((sessions, firms, 1), dtype=np.float32),
        mask_TN=np.ones((sessions, firms), dtype=np.bool_),
        group_TN=np.zeros((sessions, firms), dtype=np.int64),
        target_TN=np.zeros((sessions, firms), dtype=np.float32),
        window=window,
    )


def rate(work: Callable[[], int]) -> float:
    """Gigabytes per second of work that returns the number of bytes it moved."""
    started = time.perf_counter()
    moved = work()
    return moved / (time.perf_counter() - started) / 1e9


def main() -> None:
    """Time copies and gathers in turn; print medians, ratios and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firms", type=int, default=3000)
    parser.add_argument("--sessions", type=int, default=2520)
    parser.add_argument("--channels", type=int, default=7)
    parser.add_argument("--window", type=int, default=60)
    parser.add_argument("--runs", type=int, default=30, help="number of rounds, after two warm-up rounds")
    args = parser.parse_args()
    data = panel(args.firms, args.sessions, args.channels, args.window)
    source, target = torch.ones(COPIED // 4), torch.empty(COPIED // 4)
    random = torch.Generator().manual_seed(1)
    all_firms = torch.arange(args.firms)

    def sessions(count: int) -> torch.Tensor:
        return torch.randint(0, args.sessions, (count,), generator=random)

    def one_date() -> int:
        x_NWC = data.windows(sessions(1), all_firms)
        return 2 * x_NWC.numel() * x_NWC.element_size()

    def pairs() -> int:
        firms = torch.randint(0, args.firms, (args.firms,), generator=random)
        x_PWC = data.windows(sessions(args.firms), firms)
        return 2 * x_PWC.numel() * x_PWC.element_size()

    def batch() -> int:
        x_BNWC = data.batch(sessions(1)).x_BNWC
        return 2 * x_BNWC.numel() * x_BNWC.element_size()

    def copy() -> int:
        target.copy_(source)
        return 2 * COPIED

    works = {
        "memory copy": copy,
        "windows of one date": one_date,
        "windows of (firm, date) pairs": pairs,
        "batch of one date": batch,
    }
    size = data.history_NSC.numel() * 4 / 2**20
    print(
        f"{args.window}-day windows of {args.channels} channels, {args.firms:,} firms x "
        f"{args.sessions:,} sessions ({size:.0f} MiB), {args.firms:,} windows per gather"
    )
    for threads in sorted({1, torch.get_num_threads()}):
        torch.set_num_threads(threads)
        rounds = [{name: rate(work) for name, work in works.items()} for _ in range(args.runs + 2)][2:]
        print(f"{threads} thread(s), GB/s read and written")
        for name in works:
            rates = [done[name] for done in rounds]
            line = f"  {name:<30}{statistics.median(rates):7.1f} ({min(rates):.1f} to {max(rates):.1f})"
            if name != "memory copy":
                ratio = statistics.median(done[name] / done["memory copy"] for done in rounds)
                best = max(rates) / max(done["memory copy"] for done in rounds)
                verdict = "met" if ratio >= TARGET else "NOT MET"
                line += f"  {ratio:.2f} of the copy (best {best:.2f}); the target is {TARGET}: {verdict}"
            print(line)


if __name__ == "__main__":
    main()
