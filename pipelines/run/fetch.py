"""Ingest the data of a config's source into its lake."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import polars as pl

from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.ingest.ingest import IngestStoppedError, check_tables, describe_ingest, ingest
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.run.locks import Locks
from pipelines.sources.base import LiveSource, Source, SourceThrough
from pipelines.sources.settings import YFinanceSourceConfig


def make_source(config: Config, *, through: dt.date | None = None) -> Source | LiveSource:
    """Build the source of a config."""
    settings = config.source
    if settings.kind == "yfinance":
        from pipelines.sources.yahoo import YFinanceSource

        return YFinanceSource(_ending(settings, through))
    if settings.kind == "sec":
        from pipelines.sources.sec_filings import SecSource

        return SecSource(settings.tickers, settings.identity, settings.start)
    source = _whole_source(config)
    return source if through is None else SourceThrough(source, through)


def _whole_source(config: Config) -> Source:
    """Build a source that always delivers its whole scope."""
    settings = config.source
    if settings.kind == "simulated":
        from pipelines.sources.simulated.source import SimulatedSource

        return SimulatedSource(settings.market, seed=settings.seed)
    if settings.kind == "files":
        from pipelines.sources.files.source import FilesSource

        return FilesSource(settings)
    from pipelines.sources.sample import SampleSource

    return SampleSource()


def check_source(config: Config) -> None:
    """Read the files of a config's source as an ingest would, and store nothing; ask no other source."""
    if config.source.kind == "files":
        source = _whole_source(config)
        check_tables(source.name, source.fetch().tables, dt.datetime.now(dt.UTC), {})


def _ending(settings: YFinanceSourceConfig, through: dt.date | None) -> YFinanceSourceConfig:
    """Return the settings with prices that end no later than a session."""
    if through is None or (settings.end is not None and settings.end <= through):
        return settings
    return settings.model_copy(update={"end": through})


def ingest_config(
    config: Config,
    echo: Callable[[str], None] = print,
    progress: Progress | None = None,
    *,
    through: dt.date | None = None,
    replace: bool = False,
    wait: bool = False,
) -> None:
    """Ingest the data of a config's source into its lake and print a summary of all rows.

    The summary is also printed if the source stops before its end. If the lake holds prices of sessions after
    ``through``, the source is read up to the last of them instead, because a source that delivers its whole
    scope withdraws what it no longer delivers. Repeating an earlier night therefore withdraws nothing.
    """
    progress = progress or Progress()
    lake = open_lake(config, progress.note)
    lake.version("prices")  # raises before any write if the folder is not a Delta table
    with Locks(wait=wait, notify=progress.note) as locks, progress.stage("ingest"):
        locks.lock_lake(lake.root)
        if through is not None and (newest := _newest_price(lake)) is not None and newest > through:
            progress.note(f"the lake already holds prices up to {newest}: the source is read up to there")
            through = newest
        source = make_source(config, through=through)
        try:
            summary = ingest(source, lake, progress, config.quality, replace=replace)
        except IngestStoppedError as stopped:
            echo(describe_ingest(stopped.summary))
            raise
    echo(describe_ingest(summary))


def _newest_price(lake: Lake) -> dt.date | None:
    """Return the last date with a price in the lake; None if it holds none."""
    if not lake.exists("prices"):
        return None
    newest = lake.read("prices", columns=["date"], ordered=False).select(pl.col("date").max()).item()
    return newest if isinstance(newest, dt.date) else None
