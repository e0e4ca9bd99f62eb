"""The input tables of a lake: their versions and rows, cut at a session, with renamed firms."""

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from features.panel.panel import PRICE_COLUMNS
from pipelines.config.schema import Config
from pipelines.errors import DataError
from pipelines.lake.gaps import DATE_RULES, with_events_of_gaps
from pipelines.lake.lake import Lake
from pipelines.lake.renames import follow_renames, last_names
from pipelines.lake.schemas import READ_TABLES, forget_later, rows_known

_OF_MARKET = ("prices", "securities", "fundamentals", "membership", "renames", "gaps", "flags")


def open_lake(config: Config, notify: Callable[[str], None] | None = None) -> Lake:
    """Return the lake of a config; ``notify`` gets a message when another writer commits first."""
    return Lake(config.lake, config.lake_options, notify)


def read_tables(
    lake: Lake,
    versions: Mapping[str, int],
    through: dt.date | None = None,
    **of_prices: Any,  # noqa: ANN401 (several types)
) -> dict[str, pl.DataFrame]:
    """Read input tables at these versions, cut at a session unless it is None, with the newest tickers."""
    tables = {}
    for table, version in versions.items():
        known = None if through is None else rows_known(table, through)
        rows = lake.read(table, version, filters=known, **(of_prices if table == "prices" else {}))
        tables[table] = rows if through is None else forget_later(table, rows, through)
    if through is not None and "prices" in tables and tables["prices"].is_empty():
        raise DataError(f"The lake {lake.root} has no prices up to {through}; choose a later date.")
    held = {table: rows for table, rows in tables.items() if rows.height or table == "prices"}
    named = follow_renames(held)
    if "prices" in named and "gaps" in named:
        named["prices"] = with_events_of_gaps(named["prices"], named["gaps"])
        named["gaps"] = named["gaps"].filter(~pl.col("rule").is_in(DATE_RULES))
    return named


def input_versions(lake: Lake, as_of: str | None = None) -> dict[str, int]:
    """Return the versions of the tables that a run reads: the newest, or those of an earlier state.

    Versions before an unfinished ingest are the newest (`Lake.versions_to_read`).
    """
    all_versions = lake.versions_to_read() if as_of is None else lake.versions_as_of(as_of)
    versions = {name: version for name, version in all_versions.items() if name in READ_TABLES}
    if "prices" not in versions:
        raise DataError(f"The lake {lake.root} holds no prices yet; run 'peerglass ingest CONFIG' first.")
    return versions


def describe_as_of(as_of: str, versions: Mapping[str, int]) -> str:
    """Name the version of each table that ``--as-of`` selects."""
    listed = ", ".join(f"{table} version {version}" for table, version in versions.items())
    return f"as of {as_of}: {listed}"


def read_market_tables(
    lake: Lake, versions: Mapping[str, int], through: dt.date | None = None
) -> dict[str, pl.DataFrame]:
    """Read what `build_market` uses, cut at a session; prices come in the order of storage, unsorted."""
    of_market = {table: versions[table] for table in _OF_MARKET if table in versions}
    return read_tables(lake, of_market, through, columns=list(PRICE_COLUMNS), ordered=False)


def newest_tickers(lake: Lake, versions: Mapping[str, int], through: dt.date | None = None) -> dict[str, str]:
    """Return the newest ticker of the last firm that had a former one, as known at a session."""
    if "renames" not in versions:
        return {}
    known = None if through is None else rows_known("renames", through)
    renames = lake.read("renames", versions["renames"], filters=known)
    return dict(last_names(renames).select("ticker", "newest").iter_rows())
