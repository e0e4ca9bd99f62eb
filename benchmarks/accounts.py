"""A daily quantile book with costs, and a sweep of 1,000 variants: Peerglass and vectorbt, side by side.

3,000 firms and 2,520 sessions, one decision per session, half-spread and commission; 1% of the cells do not
trade. Each engine runs in its own process, and the engines alternate. Peerglass starts from the signal: it
ranks, builds the weights, prepares the market, and computes both NAVs. vectorbt's `Portfolio.from_orders`
gets the weights, and its time covers the simulation and the portfolio's value. It sells before it buys
(``call_seq="auto"``), which a rebalanced book without spare cash needs; the time without this is shown too.
Both compile their loops beforehand on a small market. Memory is the peak of the process, input included.

The targets: a book at least 10 times faster than vectorbt, 1,000 variants for at most 100 times one book, and
at most 2 GiB for each. Without vectorbt (``pip install '.[dev]'``) the comparison is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from worker import Worker

from features.arrays import BoolArray, FloatArray

FASTER, ONE_HUNDRED, GIB = 10.0, 100.0, 2.0**30
HALF_SPREAD_BPS, COMMISSION_BPS, QUANTILES = 5.0, 0.5, 5


def market(n_sessions: int, n_firms: int) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Index, signal and traded cells, the same in every process."""
    rng = np.random.default_rng(1)
    index_TN = np.exp(np.cumsum(rng.normal(0, 0.02, (n_sessions, n_firms)), axis=0))
    signal_TN = rng.normal(size=(n_sessions, n_firms))
    return index_TN, signal_TN, rng.random((n_sessions, n_firms)) > 0.01


def weights(signal_TN: FloatArray, quantiles: int = QUANTILES) -> FloatArray:
    """Target weights of the long-short book, gross 1: vectorbt does not lend money."""
    from backtest.books.book import BookInputs
    from backtest.books.rules.quantile_long_short import QuantileLongShort
    from backtest.books.schedules import Schedule

    inputs = BookInputs(signal_TN, Schedule(np.ones(len(signal_TN), dtype=np.bool_)))
    target_TN = QuantileLongShort(quantiles=quantiles).targets(inputs).target_TN
    target_TN *= 0.5
    return target_TN


def ours(n_sessions: int, n_firms: int) -> Callable[[], float]:
    """One book, from the signal to its last NAV."""
    from backtest.accounts.accounting import run_book
    from backtest.costs import CostModel

    index_TN, signal_TN, traded_TN = market(n_sessions, n_firms)
    costs = CostModel(HALF_SPREAD_BPS, COMMISSION_BPS)

    def run() -> float:
        book = run_book(weights(signal_TN), index_TN, traded_TN, costs, 1)
        if book.identity_gap > 1e-12:
            raise RuntimeError(f"The two NAVs differ by {book.identity_gap:.0e}.")
        return float(book.nav_net_T[-1])

    return run


def vectorbt(n_sessions: int, n_firms: int, call_seq: str = "auto") -> Callable[[], float]:
    """The same book in vectorbt, from its weights to its last NAV; by default it sells before it buys."""
    import vectorbt as vbt

    index_TN, signal_TN, traded_TN = market(n_sessions, n_firms)
    size_TN = np.full(index_TN.shape, np.nan)
    size_TN[1:] = weights(signal_TN)[:-1]
    size_TN[~traded_TN] = np.nan

    def run() -> float:
        portfolio = vbt.Portfolio.from_orders(
            index_TN,
            size=size_TN,
            size_type="targetpercent",
            direction="both",
            fees=COMMISSION_BPS * 1e-4,
            slippage=HALF_SPREAD_BPS * 1e-4,
            init_cash=1.0,
            cash_sharing=True,
            group_by=True,
            call_seq=call_seq,
            freq="1D",
        )
        return float(np.asarray(portfolio.value()).reshape(-1)[-1])

    return run


def vectorbt_unsorted(n_sessions: int, n_firms: int) -> Callable[[], float]:
    """The same with orders in the order of the columns: right only while the book has cash to spare."""
    return vectorbt(n_sessions, n_firms, "default")


def sweep(n_sessions: int, n_firms: int, n_variants: int = 1000) -> Callable[[], float]:
    """Variants of 5 books, 4 delays and 50 half-spreads, from the signal to the returns of each."""
    from backtest.accounts.accounting import run_books
    from backtest.accounts.market import prepare_market
    from backtest.accounts.variants import SparseTargets, Variant
    from backtest.costs import CostModel

    index_TN, signal_TN, traded_TN = market(n_sessions, n_firms)

    def run() -> float:
        prepared, total = prepare_market(index_TN, traded_TN), 0.0
        for quantiles in (5, 8, 10, 15, 20):
            decisions = SparseTargets.from_targets(weights(signal_TN, quantiles))
            variants = [
                Variant(decisions, CostModel(0.2 * step, COMMISSION_BPS), delay)
                for delay in range(4)
                for step in range(n_variants // 20)
            ]
            total += sum(float(book.return_net_T.sum()) for book in run_books(variants, prepared))
        return total

    return run


ENGINES: dict[str, Callable[[int, int], Callable[[], float]]] = {
    "ours": ours,
    "vectorbt": vectorbt,
    "vectorbt_unsorted": vectorbt_unsorted,
    "sweep": sweep,
}


def work(engine: str, sessions: int, firms: int) -> None:
    """Run as a worker: compile on a small market, then run once per input line."""
    started = time.perf_counter()
    ENGINES[engine](60, 50)()
    first = time.perf_counter() - started
    run = ENGINES[engine](sessions, firms)
    print(json.dumps({"first": first}), flush=True)
    for _ in sys.stdin:
        started, worked = time.perf_counter(), time.process_time()
        value = run()
        answer = {
            "seconds": time.perf_counter() - started,
            "processor": time.process_time() - worked,
            "peak": peak(),
            "value": value,
        }
        print(json.dumps(answer), flush=True)


def peak() -> float:
    """Peak resident bytes of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM: this benchmark needs Linux.")


def main() -> None:
    """Run the comparison, print a table, and exit with 1 if a target was missed."""
    parser = argparse.ArgumentParser(description="Books and sweeps: Peerglass and vectorbt.")
    parser.add_argument("--sessions", type=int, default=2520)
    parser.add_argument("--firms", type=int, default=3000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.sessions, args.firms)
        return
    peers = importlib.util.find_spec("vectorbt") is not None
    engines = [name for name in ENGINES if peers or not name.startswith("vectorbt")]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    size = ["--sessions", str(args.sessions), "--firms", str(args.firms)]
    workers = {name: Worker([sys.executable, __file__, "--worker", name, *size]) for name in engines}
    for _ in range(args.runs):
        for name, worker in workers.items():
            results[name].append(worker.ask("run"))
    for worker in workers.values():
        worker.stop()
    median: dict[str, dict[str, Any]] = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in results.items()
    }
    print(f"{args.firms:,} firms x {args.sessions:,} sessions, medians of {args.runs}")
    print(f"{'':<20}{'seconds':>10}{'processor':>11}{'peak GiB':>10}{'first run':>11}")
    for name, row in median.items():
        first = workers[name].start["first"]
        print(
            f"{name:<20}{row['seconds']:>10.2f}{row['processor']:>11.2f}"
            f"{row['peak'] / GIB:>10.2f}{first:>11.1f}"
        )
    ratio = median["sweep"]["processor"] / median["ours"]["processor"]
    print(f"1,000 variants cost {ratio:.0f} times one book (target: at most {ONE_HUNDRED:.0f})")
    largest = max(median["ours"]["peak"], median["sweep"]["peak"])
    met = ratio <= ONE_HUNDRED and largest < 2 * GIB
    if "vectorbt" in median:
        faster = median["vectorbt"]["processor"] / median["ours"]["processor"]
        gap = abs(median["vectorbt"]["value"] / median["ours"]["value"] - 1)
        print(f"vectorbt takes {faster:.0f} times one book (target: at least {FASTER:.0f})")
        print(f"last NAVs differ by {gap:.0e}, because vectorbt charges fees on the slipped price")
        met = met and faster >= FASTER
    else:
        print("vectorbt is not installed: pip install '.[dev]' to compare with it")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
