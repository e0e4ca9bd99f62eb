"""Time and peak memory of an audit, check by check: 1,026 firms, 13 years, 93 characteristics.

python benchmarks/audit_speed.py --data ../shared/data             # the full audit
python benchmarks/audit_speed.py --data ../shared/data --quick     # the audit within peerglass run
python benchmarks/audit_speed.py --data ../shared/data --inputs 10 # with characteristics delivered as inputs
"""

from __future__ import annotations

import argparse
import datetime as dt
import resource
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from audit_bases import SETTINGS, make_base, stamped

from pipelines.audit.registry import CHECKS
from pipelines.audit.subject import Subject, budget
from pipelines.config.load import check_config
from pipelines.dataset.build import build_dataset
from pipelines.dataset.characteristics import raw_characteristics
from pipelines.lake.contracts import check

ROOT = Path(__file__).parents[1]
SINCE, UNTIL = dt.date(2005, 1, 1), dt.date(2017, 12, 8)
MODELS: Mapping[str, Mapping[str, Any]] = {"ridge": {}, "lightgbm": {}, "mlp": {}, "temporal_peer": {}}


def main() -> None:
    """Print seconds and verdict of each check, and the totals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--inputs", type=int, default=0, help="characteristics to deliver as inputs as well")
    parser.add_argument("--firms", type=int, default=1026)
    parser.add_argument("--only", default="", help="part of the names of the checks to run")
    given = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    np.seterr(all="ignore")
    tables = _tables(given.data, given.firms)
    settings = {
        **SETTINGS,
        "features": {"window": 20},
        "label": {"horizon": 5, "delay": 1, "transform": "rank"},
        "folds": {"scheme": "rolling", "train": 1000, "valid": 250, "test": 250, "embargo": 5},
        "models": MODELS,
    }
    config = check_config(settings, origin="bench")
    started = time.perf_counter()
    dataset = build_dataset(tables, config)
    names = dataset.characteristic_names[: given.inputs]
    if names:
        raw_TNF = raw_characteristics(dataset.panel, names, tables, config)
        base = make_base("nasdaq", tables, 0)
        parts = [
            base.rows(f"own_{name}", raw_TNF[:, :, f].astype(np.float64)) for f, name in enumerate(names)
        ]
        tables = {**tables, "inputs": pl.concat(parts)}
        dataset = build_dataset(tables, config)
    print(
        f"dataset: {dataset.panel.n_firms} firms, {dataset.panel.n_sessions} sessions, "
        f"{len(dataset.characteristic_names)} characteristics, {time.perf_counter() - started:.1f} s, "
        f"{_peak():.1f} GiB",
        flush=True,
    )
    subject = Subject(config=config, tables=tables, dataset=dataset, budget=budget(config, quick=given.quick))
    started, used = time.perf_counter(), _cpu()
    for name, run in CHECKS.items():
        if given.only not in name:
            continue
        at, cpu = time.perf_counter(), _cpu()
        result = run(subject)
        print(
            f"{name:<16}{time.perf_counter() - at:7.1f} s {_cpu() - cpu:7.1f} s CPU "
            f"{_peak():5.1f} GiB  {result.verdict:<8}{result.sentence[:110]}",
            flush=True,
        )
    print(f"total {time.perf_counter() - started:.1f} s, {_cpu() - used:.1f} s CPU, peak {_peak():.1f} GiB")


def _tables(folder: Path, firms: int) -> dict[str, pl.DataFrame]:
    prices = pl.read_parquet(folder / "nasdaq_prices.parquet").filter(pl.col("date").is_between(SINCE, UNTIL))
    kept = prices["ticker"].unique().sort().head(firms)
    prices = prices.filter(pl.col("ticker").is_in(kept.implode()) & (pl.col("close") > 0))
    bars = pl.col("open", "high", "low", "close", "volume").cast(pl.Float64)
    industries = pl.read_csv(folder / "nasdaq_industry.csv").with_columns(
        sector=pl.col("industry"), valid_from=pl.lit(SINCE)
    )
    securities = industries.filter(pl.col("ticker").is_in(kept.implode()))
    return {
        "prices": check("prices", stamped(prices.with_columns(bars))).valid,
        "securities": check("securities", securities).valid,
    }


def _cpu() -> float:
    """CPU seconds of this process and of the processes that it waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
