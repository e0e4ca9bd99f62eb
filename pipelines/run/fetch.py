"""Ingest the data of a config's source into its lake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipelines.config.load import build_settings
from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.errors import ConfigError
from pipelines.ingest.ingest import ingest
from pipelines.ingest.summary import IngestStoppedError, describe_ingest
from pipelines.progress import Progress
from pipelines.run.locks import Locks
from pipelines.secrets import masked
from pipelines.sources.base import LiveSource, Source
from pipelines.sources.settings import FilesSourceConfig


def make_source(config: Config) -> Source | LiveSource:
    """Build the source of a config."""
    settings = config.source
    if settings.kind == "simulated":
        from pipelines.sources.simulated.source import MarketConfig, SimulatedSource

        market = build_settings(MarketConfig, settings.market, "source.market")
        return SimulatedSource(market, seed=settings.seed)
    if settings.kind == "sample":
        from pipelines.sources.sample import SampleSource

        return SampleSource()
    if settings.kind == "files":
        return _files_source(settings)
    if settings.kind == "yfinance":
        from pipelines.sources.yfinance.source import YFinanceSource

        return YFinanceSource(settings)
    from pipelines.sources.sec.source import SecSource

    return SecSource(settings.tickers, settings.identity, settings.start)


def _files_source(settings: FilesSourceConfig) -> Source:
    from pipelines.sources.files.source import FilesSource
    from pipelines.sources.files.statements import StatementFiles
    from pipelines.sources.files.text import TextFormat

    statements = None
    if settings.fundamentals:
        statements = StatementFiles(
            Path(settings.fundamentals),
            items=settings.items,
            reporting_lag_days=settings.reporting_lag_days,
            months=settings.statement_months,
            zero_means_missing=settings.zero_means_missing,
            share_counts_as_of=settings.share_counts_as_of,
        )
    elif settings.items or settings.zero_means_missing or settings.statement_months:
        raise ConfigError(
            "source.items, zero_means_missing and statement_months describe source.fundamentals: "
            "name its file as well."
        )
    return FilesSource(
        prices=Path(settings.prices),
        securities=Path(settings.securities) if settings.securities else None,
        layout=settings.layout,
        statements=statements,
        membership=Path(settings.membership) if settings.membership else None,
        inputs=Path(settings.inputs) if settings.inputs else None,
        columns=settings.columns,
        units=settings.units,
        date_format=settings.date_format,
        text=TextFormat(settings.separator, settings.decimal, settings.encoding),
        start=settings.start,
        end=settings.end,
        hazards=tuple(masked(hazard) for hazard in settings.hazards),
    )


def ingest_config(
    config: Config,
    echo: Callable[[str], None] = print,
    progress: Progress | None = None,
    *,
    replace: bool = False,
    wait: bool = False,
) -> None:
    """Ingest the data of a config's source into its lake and print a summary of all rows.

    The summary is also printed if the source stops before its end.

    Parameters
    ----------
    config
        Names the source and the lake.
    echo
        Prints the summary.
    progress
        Reports progress; None makes a new one.
    replace
        Whether the delivery may withdraw or change most of the rows in the lake.
    wait
        Whether to wait for another process that writes to the lake, instead of raising `DataError`.
    """
    progress = progress or Progress()
    lake = open_lake(config, progress.note)
    lake.version("prices")  # raises before any write if the folder is not a Delta table
    with Locks(wait=wait, notify=progress.note) as locks, progress.stage("ingest"):
        locks.lock_lake(lake.root)
        try:
            summary = ingest(make_source(config), lake, progress, config.quality, replace=replace)
        except IngestStoppedError as stopped:
            echo(describe_ingest(stopped.summary))
            raise
    echo(describe_ingest(summary))
