"""Effect of the look-ahead in the published Nasdaq inputs, measured with ridge on three sets of inputs.

1. The published inputs of Feng et al. (2019), which divide every price by the firm's maximum over the whole
   sample.
2. The same inputs made causal: every input is also divided by the running maximum known at t, which cancels
   the full-sample maximum.
3. The library's characteristics, from the same firms' raw prices.

Everything else is equal: training 2013-2015, validation 2016, test 2017, the next session's return, ridge on
ranks within the date.

    python benchmarks/published_inputs.py --data ../shared/data
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
from pathlib import Path

import numpy as np
import polars as pl

from backtest.forecasts.metrics import forecast_metrics
from features.panel.panel import to_panel
from pipelines.audit.subject import temporary_run
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, build_dataset
from pipelines.dataset.folds import plan_folds
from pipelines.lake.contracts import check
from pipelines.run.fetch import make_source
from pipelines.train import task as tasks
from pipelines.train import walkforward
from pipelines.train.task import collect_arrays

CONFIGS = Path(__file__).parents[1] / "configs"
HISTORY = dt.date(2011, 6, 1)  # before the first training session, for the characteristics' warm-up
FILES = {
    "PEERGLASS_RSR": "nasdaq_rsr_2013.parquet",
    "PEERGLASS_NASDAQ_PRICES": "nasdaq_prices.parquet",
    "PEERGLASS_NASDAQ_SECURITIES": "nasdaq_industry.csv",
}


def tables_of(config: Config) -> dict[str, pl.DataFrame]:
    """Return the tables that the lake would have for a config's source."""
    source = make_source(config)
    tables = dict(source.fetch().tables)  # type: ignore[union-attr]  # files are fetched at once
    stamps = {"source": pl.lit("files"), "ingested_at": pl.lit(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))}
    tables["prices"] = tables["prices"].with_columns(**stamps)
    return {name: check(name, frame).valid for name, frame in tables.items()}


def make_causal(tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Divide every input by the highest close up to its own date."""
    highest = (
        tables["prices"]
        .sort("ticker", "date")
        .select("date", "ticker", highest=pl.col("close").cum_max().over("ticker"))
    )
    inputs = tables["inputs"].join(highest, on=["date", "ticker"])
    value = (pl.col("value") / pl.col("highest")).alias("value")
    return {**tables, "inputs": inputs.with_columns(value).drop("highest")}


def measure(name: str, tables: dict[str, pl.DataFrame], config: Config) -> None:
    """Fit ridge on training, choose its penalty on validation, and print the test results."""
    dataset = build_dataset(tables, config)
    (fold,) = plan_folds(dataset, config)
    with temporary_run(config.model_copy(update={"models": {"ridge": {}}})) as run:
        (task,) = list(walkforward.plan_tasks(run, dataset, [fold]))
        outcome = tasks.run_task(task, collect_arrays(dataset, config.features.window))
    print_row(
        name, outcome.test_BN, dataset, fold.test, f"{outcome.valid_ic:>10.4f}{outcome.valid_rank_ic:>10.4f}"
    )


def print_row(name: str, forecast_BN: np.ndarray, dataset: Dataset, test: np.ndarray, valid: str) -> None:
    """Print one row."""
    label_BN = np.where(dataset.universe_TN[test], dataset.labels[0][test], np.nan)
    metrics = forecast_metrics(forecast_BN, label_BN)
    print(
        f"{name:<58}{valid:>20}{metrics.ic:>9.4f}{metrics.ic_t:>7.1f}{metrics.rank_ic:>9.4f}{metrics.icir:>7.2f}"
        f"{metrics.n_dates:>7}"
    )


def measure_level(name: str, tables: dict[str, pl.DataFrame], config: Config) -> None:
    """Use minus the scaled close as the forecast: only the distance of a share below its maximum."""
    dataset = build_dataset(tables, config)
    (fold,) = plan_folds(dataset, config)
    at = dataset.characteristic_names.index("input_close_norm")
    level_BN = np.where(dataset.universe_TN, -dataset.characteristics_TNF[:, :, at], np.nan)[fold.test]
    print_row(f"  (minus {name}, ranked, not fitted)", level_BN, dataset, fold.test, "")
    rows = tables["inputs"].filter(pl.col("name") == "close_norm")
    raw_BN = np.where(dataset.universe_TN, -to_panel(rows, "value", dataset.panel), np.nan)[fold.test]
    print_row(f"  (minus {name}, raw, not fitted)", raw_BN, dataset, fold.test, "")


def main() -> None:
    """Print the table, or report missing files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=CONFIGS.parents[1] / "shared" / "data")
    data = parser.parse_args().data
    if missing := [file for file in FILES.values() if not (data / file).is_file()]:
        sys.exit(f"{data} has no {', '.join(missing)}: set the folder with --data")
    os.environ.update({name: str(data / file) for name, file in FILES.items()})
    published = load_config(CONFIGS / "rsr_published.yaml")
    nasdaq = load_config(CONFIGS / "nasdaq.yaml")
    source = nasdaq.source.model_copy(update={"start": HISTORY})
    ours = published.model_copy(
        update={"source": source, "universe": nasdaq.universe, "features": nasdaq.features}
    )
    heads = {"valid IC": 10, "rank IC": 10, "test IC": 9, "t": 7, "test rIC": 9, "ICIR": 7, "dates": 7}
    print(f"{'ridge on':<58}" + "".join(f"{head:>{width}}" for head, width in heads.items()))
    tables = tables_of(published)
    measure("the published inputs", tables, published)
    measure_level("the published close", tables, published)
    causal = make_causal(tables)
    measure("the same, divided by the running maximum", causal, published)
    measure_level("that close", causal, published)
    measure("the library's characteristics of the raw prices", tables_of(ours), ours)


if __name__ == "__main__":
    main()
