"""The tables of a lake that a dataset is built from: which versions, and their rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping

import polars as pl

from features.panel.panel import PRICE_COLUMNS
from pipelines.config.schema import Config
from pipelines.dataset.cut import cut_tables, forget_later, rows_known
from pipelines.dataset.renames import follow_renames
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import INPUT_TABLES

_OF_MARKET = ("prices", "securities", "fundamentals", "membership", "renames", "gaps", "flags")


def open_lake(config: Config, notify: Callable[[str], None] | None = None) -> Lake:
    """Return the lake of a config; ``notify`` gets a message when another writer commits first."""
    return Lake(config.lake, config.lake_options, notify)


def read_tables(
    lake: Lake, versions: Mapping[str, int], through: dt.date | None = None
) -> dict[str, pl.DataFrame]:
    """Read input tables at these versions, cut at a session (`pipelines.dataset.cut`) unless it is None.

    Tables without rows, because they were withdrawn or nothing in them was known yet, are left out. Firms
    that were renamed by then have their newest ticker (`pipelines.dataset.renames`).

    Raises
    ------
    DataError
        If there are no prices up to the session.
    """
    known = {table: None if through is None else rows_known(table, through) for table in versions}
    tables = {
        table: lake.read(table, version=version, filters=known[table]) for table, version in versions.items()
    }
    if through is not None:
        tables = {table: forget_later(table, frame, through) for table, frame in tables.items()}
        if "prices" in tables:
            _require_prices(tables["prices"], lake, through)
    return follow_renames({table: frame for table, frame in tables.items() if frame.height})


def input_versions(lake: Lake, as_of: str | None = None) -> dict[str, int]:
    """Return the versions of the tables that a run reads: the newest, or those of an earlier state.

    Parameters
    ----------
    lake
        Lake with the tables.
    as_of
        Value of ``--as-of`` (`Lake.versions_as_of`); None for the newest versions.

    Returns
    -------
    dict
        Input table -> version.

    Raises
    ------
    DataError
        If nothing has been ingested, or nothing up to that time.
    ConfigError
        If ``as_of`` is neither a version nor a date or time.
    """
    all_versions = lake.versions() if as_of is None else lake.versions_as_of(as_of)
    versions = {
        table: version for table, version in all_versions.items() if table in (*INPUT_TABLES, "flags")
    }
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
    """Read the rows and columns that `pipelines.dataset.market.build_market` uses, at these versions.

    They are cut at a session (`pipelines.dataset.cut`) unless ``through`` is None.

    The prices come in the order in which they are stored, because sorting millions of rows takes longer than
    reading them and the market does not depend on their order.

    Raises
    ------
    DataError
        If there are no prices up to the session.
    """
    tables = {
        table: lake.read(table, version=versions[table]) for table in _OF_MARKET[1:] if table in versions
    }
    known = None if through is None else rows_known("prices", through)
    prices = lake.read(
        "prices", version=versions["prices"], columns=list(PRICE_COLUMNS), filters=known, ordered=False
    )
    if through is not None:
        _require_prices(prices, lake, through)
        tables = cut_tables(tables, through)
    return follow_renames({"prices": prices, **{name: rows for name, rows in tables.items() if rows.height}})


def _require_prices(prices: pl.DataFrame, lake: Lake, through: dt.date) -> None:
    if prices.is_empty():
        raise DataError(f"The lake {lake.root} has no prices up to {through}; choose a later date.")
