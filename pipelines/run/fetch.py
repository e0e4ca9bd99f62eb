"""Fetching a config's source into its lake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipelines.config.load import build_settings
from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.ingest.ingest import ingest
from pipelines.ingest.summary import IngestStoppedError, describe_ingest
from pipelines.progress import Progress
from pipelines.run.locks import Locks
from pipelines.run.open import open_lake
from pipelines.secrets import masked
from pipelines.sources.base import LiveSource, Source
from pipelines.sources.settings import FilesSourceConfig


def make_source(config: Config) -> Source | LiveSource:
    """Build the source that a config names."""
    wanted = config.source
    if wanted.kind == "simulated":
        from pipelines.sources.simulated.source import MarketConfig, SimulatedSource

        return SimulatedSource(build_settings(MarketConfig, wanted.market, "source.market"), seed=wanted.seed)
    if wanted.kind == "sample":
        from pipelines.sources.sample import SampleSource

        return SampleSource()
    if wanted.kind == "files":
        return _files_source(wanted)
    if wanted.kind == "yfinance":
        from pipelines.sources.yfinance.source import YFinanceSource

        return YFinanceSource(wanted)
    from pipelines.sources.sec.source import SecSource

    return SecSource(wanted.tickers, wanted.identity, wanted.start)


def _files_source(wanted: FilesSourceConfig) -> Source:
    from pipelines.sources.files.source import FilesSource
    from pipelines.sources.files.statements import StatementFiles

    statements = None
    if wanted.fundamentals:
        statements = StatementFiles(
            Path(wanted.fundamentals),
            items=wanted.items,
            reporting_lag_days=wanted.reporting_lag_days,
            months=wanted.statement_months,
            zero_means_missing=wanted.zero_means_missing,
            share_counts_as_of=wanted.share_counts_as_of,
        )
    elif wanted.items or wanted.zero_means_missing or wanted.statement_months:
        raise ConfigError(
            "source.items, zero_means_missing and statement_months describe source.fundamentals: "
            "name its file as well."
        )
    return FilesSource(
        prices=Path(wanted.prices),
        securities=Path(wanted.securities) if wanted.securities else None,
        layout=wanted.layout,
        statements=statements,
        membership=Path(wanted.membership) if wanted.membership else None,
        inputs=Path(wanted.inputs) if wanted.inputs else None,
        columns=wanted.columns,
        units=wanted.units,
        date_format=wanted.date_format,
        start=wanted.start,
        end=wanted.end,
        hazards=tuple(masked(hazard) for hazard in wanted.hazards),
    )


def ingest_config(
    config: Config,
    echo: Callable[[str], None] = print,
    progress: Progress | None = None,
    *,
    replace: bool = False,
    wait: bool = False,
) -> None:
    """Fetch a config's source into its lake and say what became of every row, also if the source stops.

    With ``replace``, a delivery may withdraw or change most of what the lake holds. With ``wait``, an ingest
    that another process makes into the lake is waited for, and is an error otherwise.
    """
    progress = progress or Progress()
    lake = open_lake(config, progress.note)
    lake.version("prices")  # raises before anything is written if what is there is not a Delta table
    with Locks(wait=wait, notify=progress.note) as locks, progress.stage("ingest"):
        locks.lock_lake(lake.root)
        try:
            summary = ingest(make_source(config), lake, progress, config.quality, replace=replace)
        except IngestStoppedError as stopped:
            echo(describe_ingest(stopped.summary))
            raise
    echo(describe_ingest(summary))
