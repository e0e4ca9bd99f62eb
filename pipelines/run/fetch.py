"""Ingest the data of a config's source into its lake."""

import datetime as dt
from collections.abc import Callable

from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.ingest.ingest import IngestStoppedError, check_tables, describe_ingest, ingest
from pipelines.progress import Progress
from pipelines.run.locks import Locks
from pipelines.sources.base import LiveSource, Source, SourceThrough
from pipelines.sources.settings import OwnSource


def make_source(config: Config, *, through: dt.date | None = None) -> Source | LiveSource:
    """Build the source of a config."""
    settings = config.source
    if settings.kind == "yfinance":
        from pipelines.sources.yahoo import YFinanceSource

        end = min(filter(None, (through, settings.end)), default=None)
        return YFinanceSource(settings.model_copy(update={"end": end}))
    if settings.kind == "sec":
        from pipelines.sources.sec import SecSource

        return SecSource(settings.tickers, settings.identity, settings.start)
    source = _whole_source(config)
    return source if through is None else SourceThrough(source, through)


def _whole_source(config: Config) -> Source:
    """Build a source that always delivers its whole scope."""
    settings = config.source
    if settings.kind == "simulated":
        from pipelines.sources.simulated.source import SimulatedSource

        return SimulatedSource(settings.market, seed=settings.seed)
    if isinstance(settings, OwnSource):
        return settings.make()
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


def ingest_config(
    config: Config,
    echo: Callable[[str], None] = print,
    progress: Progress | None = None,
    *,
    through: dt.date | None = None,
    replace: bool = False,
    wait: bool = False,
) -> None:
    """Ingest the data of a config's source into its lake; print a summary, also if the source stops early."""
    progress = progress or Progress()
    lake = open_lake(config, progress.note)
    lake.version("prices")  # raises before any write if the folder is not a Delta table
    with Locks(wait=wait, notify=progress.note) as locks, progress.stage("ingest"):
        locks.lock_lake(lake.root)
        if through is not None and lake.exists("prices"):
            newest = max(
                lake.read("prices", columns=["date"], ordered=False)["date"].unique(), default=through
            )
            if newest > through:  # a source withdraws what it no longer delivers
                progress.note(f"the lake already holds prices up to {newest}: the source is read up to there")
                through = newest
        source = make_source(config, through=through)
        try:
            summary = ingest(source, lake, progress, config.quality, replace=replace)
        except IngestStoppedError as stopped:
            echo(describe_ingest(stopped.summary))
            raise
    echo(describe_ingest(summary))
