"""Nights for tests of the monitoring: a run's test forecasts play the part of stored signals."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import schema
from pipelines.nightly.data import NightData, night_data
from pipelines.nightly.result import ModelVersion
from pipelines.progress import Progress
from pipelines.results.evaluate_run import evaluate_run
from pipelines.run.fetch import ingest_config
from pipelines.run.open import prepare_run
from pipelines.train.walkforward import train

MOMENT = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def backtested(folder: Path, settings: Mapping[str, Any]) -> tuple[Config, ModelVersion]:
    """Ingest, train and measure a config in a folder; return it and the version of its first model."""
    config = check_config(
        {**settings, "lake": str(folder / "lake"), "output": str(folder / "runs")}, origin="tiny"
    )
    ingest_config(config)
    quiet = Progress()
    run, dataset, lake = prepare_run(config, quiet)
    train(run, dataset, lake, quiet)
    evaluate_run(run, dataset, lake, quiet)
    return config, ModelVersion(run.run_id, next(iter(config.models)))


def forecast_sessions(config: Config, version: ModelVersion) -> list[dt.date]:
    """Sessions that a run forecast, ascending."""
    rows = open_lake(config).read("forecasts", filters=pl.col("run_id") == version.run_id, columns=["date"])
    return rows["date"].unique().sort().to_list()


def store_signals(
    lake: Lake,
    config: Config,
    version: ModelVersion,
    sessions: Sequence[dt.date],
    *,
    change: Callable[[pl.Expr], pl.Expr] = lambda signal: signal,
    named: ModelVersion | None = None,
) -> None:
    """Store a run's forecasts of some sessions as the first revision of signals, changed by a function."""
    rows = lake.read(
        "forecasts",
        filters=(pl.col("run_id") == version.run_id)
        & (pl.col("model") == version.model)
        & pl.col("date").is_in(list(sessions)),
    )
    frame = rows.select(
        pl.lit(config.name).alias("config"),
        pl.col("date").alias("session"),
        "ticker",
        pl.lit(str(named or version)).alias("version"),
        pl.lit(1, dtype=pl.Int64).alias("revision"),
        change(pl.col("forecast")).alias("signal"),
        pl.lit(None, dtype=pl.Float64).alias("rank"),
        pl.lit(0.1).alias("seed_dispersion"),
        pl.lit(value=True).alias("in_universe"),
        pl.lit("{}").alias("data_versions"),
        pl.lit(MOMENT).cast(pl.Datetime("us", "UTC")).alias("created_at"),
    )
    lake.upsert("signals", frame)


def store_nights(
    lake: Lake,
    config: Config,
    champions: Mapping[dt.date, ModelVersion],
    *,
    challenger: ModelVersion | None = None,
    versions: Mapping[str, int] | None = None,
) -> None:
    """Store a row per night with its champion."""
    rows = [
        {
            "config": config.name,
            "session": session,
            "state": "done",
            "version": str(version),
            "challenger": None if challenger is None else str(challenger),
            "data_versions": json.dumps(dict(versions or {})),
            "rows": 0,
            "trades": 0,
            "warnings": "[]",
            "error": None,
            "seconds": 1.0,
            "peak_memory_bytes": 0,
            "created_at": MOMENT,
        }
        for session, version in champions.items()
    ]
    columns = schema("nights").columns()
    lake.upsert("nights", pl.DataFrame(rows, schema={name: c.dtype for name, c in columns.items()}))


def night_of(config: Config, session: dt.date) -> NightData:
    """Read the data of a night."""
    quiet = Progress()
    return night_data(config, open_lake(config), session, quiet)
