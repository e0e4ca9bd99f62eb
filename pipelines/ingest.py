"""Source to lake: every row that a source delivers ends stored, or quarantined under the rule it broke."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import polars as pl

from pipelines.contracts import SOURCE_TABLES, Checked, check
from pipelines.errors import DataError
from pipelines.lake import Lake
from pipelines.sources.base import Source


@dataclass(frozen=True, slots=True)
class TableSummary:
    """What became of one table's rows.

    ``received == added + updated + unchanged + collapsed + sum(quarantined.values())``, always.

    Attributes
    ----------
    received
        Rows that the source delivered.
    added, updated, unchanged
        Rows stored for the first time, stored in place of a different one, and there already.
    collapsed
        Rows left out because an identical one was delivered with them.
    quarantined
        Rule -> rows kept out for breaking it, most frequent first; each row counts under the first it broke.
    version
        The lake table's version afterwards, None if it holds nothing.
    """

    received: int
    added: int
    updated: int
    unchanged: int
    collapsed: int
    quarantined: Mapping[str, int]
    version: int | None


@dataclass(frozen=True, slots=True)
class IngestSummary:
    """What an ingest did, per table, with the source's notes and hazards."""

    source: str
    tables: Mapping[str, TableSummary]
    notes: tuple[str, ...] = field(default=())
    hazards: tuple[str, ...] = field(default=())


def ingest(source: Source, lake: Lake) -> IngestSummary:
    """Fetch a source's tables, hold them to their contracts, and upsert them into the lake.

    Everything is fetched and checked before the lake is touched. Each table is then one atomic commit, the
    quarantine first, so that a row is never gone from both; a kill in between is mended by running it again,
    which repeats nothing.

    Parameters
    ----------
    source
        Where the tables come from.
    lake
        Where they go.

    Raises
    ------
    DataError
        If a table lacks a required column, no price row satisfies the contract, or the lake holds something
        that is not a Delta table. The lake is unchanged.
    ConfigError
        If the source was set up in a way that cannot work. The lake is unchanged.
    """
    fetched = source.fetch()
    unknown = sorted(set(fetched.tables) - set(SOURCE_TABLES))
    if unknown or "prices" not in fetched.tables:
        raise ValueError(
            f"source {source.name!r} delivered {sorted(fetched.tables)}: a source gives prices and may give "
            f"{', '.join(SOURCE_TABLES[1:])}"
        )
    now = datetime.now(UTC)
    checked: dict[str, Checked] = {}
    for table, frame in fetched.tables.items():
        stamped = _stamp(frame, source.name, now) if table == "prices" else frame
        checked[table] = check(table, stamped)
    _refuse_no_prices(source.name, checked["prices"])
    for table in (*checked, "quarantine"):
        lake.version(table)  # raises before anything is written if what is there is not a Delta table

    lake.upsert("quarantine", _quarantine(checked, now))
    summaries: dict[str, TableSummary] = {}
    for table, result in checked.items():
        counts = lake.upsert(table, result.valid)
        summaries[table] = TableSummary(
            received=fetched.tables[table].height,
            added=counts.added,
            updated=counts.updated,
            unchanged=counts.unchanged,
            collapsed=result.collapsed,
            quarantined=result.by_rule(),
            version=counts.version,
        )
    return IngestSummary(source.name, summaries, fetched.notes, fetched.hazards)


def _stamp(frame: pl.DataFrame, source: str, now: datetime) -> pl.DataFrame:
    stamp = pl.lit(now).cast(pl.Datetime("us", "UTC")).alias("ingested_at")
    return frame.with_columns(pl.lit(source).alias("source"), stamp)


def _quarantine(checked: Mapping[str, Checked], now: datetime) -> pl.DataFrame:
    stamp = pl.lit(now).cast(pl.Datetime("us", "UTC")).alias("first_seen")
    return pl.concat([result.rejected for result in checked.values()]).with_columns(stamp)


def _refuse_no_prices(source: str, prices: Checked) -> None:
    if prices.valid.height:
        return
    if not prices.rejected.height:
        raise DataError(f"source {source!r} delivered no price rows: check its dates and its file")
    rules = ", ".join(f"{rule} ({count})" for rule, count in prices.by_rule().items())
    raise DataError(
        f"every price row of source {source!r} breaks the contract: {rules}; check the column mapping and "
        "the units. The lake is unchanged"
    )
