"""The input tables of a lake: their versions and rows, cut at a session, with renamed firms."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, Final

import polars as pl

from features.panel.panel import PRICE_COLUMNS
from pipelines.config.schema import Config
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import INPUT_TABLES, keys

_OF_MARKET = ("prices", "securities", "fundamentals", "membership", "renames", "gaps", "flags")


def open_lake(config: Config, notify: Callable[[str], None] | None = None) -> Lake:
    """Return the lake of a config; ``notify`` gets a message when another writer commits first."""
    return Lake(config.lake, config.lake_options, notify)


def read_tables(
    lake: Lake, versions: Mapping[str, int], through: dt.date | None = None
) -> dict[str, pl.DataFrame]:
    """Read input tables at these versions, cut at a session (`cut_tables`) unless it is None.

    Tables without rows, because they were withdrawn or nothing in them was known yet, are left out. Firms
    that were renamed by then have their newest ticker (`follow_renames`).
    """
    return _read(lake, versions, through, {})


def _read(
    lake: Lake, versions: Mapping[str, int], through: dt.date | None, of_prices: Mapping[str, Any]
) -> dict[str, pl.DataFrame]:
    """Read tables; ``of_prices`` are arguments of `Lake.read` for the prices alone."""
    tables = {}
    for table, version in versions.items():
        known = None if through is None else rows_known(table, through)
        how = of_prices if table == "prices" else {}
        rows = lake.read(table, version=version, filters=known, **how)
        tables[table] = rows if through is None else forget_later(table, rows, through)
    if through is not None and "prices" in tables and tables["prices"].is_empty():
        raise DataError(f"The lake {lake.root} has no prices up to {through}; choose a later date.")
    return follow_renames({table: rows for table, rows in tables.items() if rows.height or table == "prices"})


def input_versions(lake: Lake, as_of: str | None = None) -> dict[str, int]:
    """Return the versions of the tables that a run reads: the newest, or those of an earlier state."""
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

    They are cut at a session (`cut_tables`) unless ``through`` is None.

    The prices come in the order in which they are stored, because sorting millions of rows takes longer than
    reading them and the market does not depend on their order.
    """
    of_market = {table: versions[table] for table in _OF_MARKET if table in versions}
    return _read(lake, of_market, through, {"columns": list(PRICE_COLUMNS), "ordered": False})


_DATED_BY: Final[Mapping[str, str]] = {
    "prices": "date",
    "inputs": "date",
    "gaps": "date",
    "fundamentals": "known_at",
    "membership": "from_date",
    "renames": "from_date",
    "securities": "valid_from",
    "flags": "known_on",
    "truth_mu": "date",
    "truth_days": "date",
    "truth_edges": "valid_from",
}
"""Table -> column with the day on which a row becomes known."""

_ENDS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "membership": {"to_date": ("to_date",)},
    "securities": {
        "valid_to": ("valid_to",),
        "delisted_on": ("delisted_on", "delisting_return", "delisting_reason"),
    },
    "truth_edges": {"valid_to": ("valid_to",)},
}
"""Table -> column with a day -> columns that are unknown before that day."""


def rows_known(table: str, through: dt.date) -> pl.Expr:
    """Condition that selects the rows of a source's table that are known at the close of a session.

    That is ``date <= through`` for prices and inputs, ``known_at <= through`` for statements,
    ``from_date <= through`` for membership and ``valid_from <= through`` for securities. A row without a day
    is always known.
    """
    column = pl.col(_DATED_BY[table])
    return column.is_null() | (column <= through)


def forget_later(table: str, frame: pl.DataFrame, through: dt.date) -> pl.DataFrame:
    """Set to null what the rows of a table say about days after ``through``.

    The end of a membership or of a validity, and a delisting with its return and reason, are known from their
    own day on (`features.panel.delistings`).
    """
    later = [
        pl.when(pl.col(day) > through).then(None).otherwise(pl.col(column)).alias(column)
        for day, columns in _ENDS.get(table, {}).items()
        for column in columns
        if column in frame.columns
    ]
    return frame.with_columns(later)


def cut_tables(tables: Mapping[str, pl.DataFrame], through: dt.date) -> dict[str, pl.DataFrame]:
    """Cut tables of a source at the close of a session; tables without a known row are left out."""
    cut = {
        table: forget_later(table, frame.filter(rows_known(table, through)), through)
        for table, frame in tables.items()
    }
    return {table: frame for table, frame in cut.items() if frame.height}


_RENAMED_BY: Final[Mapping[str, str]] = {
    "prices": "date",
    "inputs": "date",
    "gaps": "date",
    "flags": "date",
    "fundamentals": "known_at",
    "membership": "from_date",
    "securities": "valid_from",
}


def follow_renames(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Give the rows of renamed firms their newest ticker, and leave the table ``renames`` out.

    A row of ``ticker`` that is dated before ``from_date`` becomes one of ``new_ticker``, so that returns,
    histories and positions go on. A later row keeps its ticker: it belongs to another firm that took the
    ticker over. Where the source has the row under both names, the one under the new name counts.
    """
    tables = dict(tables)
    renames = tables.pop("renames", None)
    if renames is None:
        return tables
    return {
        table: renamed(rows, renames, keys(table), _RENAMED_BY[table]) if table in _RENAMED_BY else rows
        for table, rows in tables.items()
    }


def renamed(rows: pl.DataFrame, renames: pl.DataFrame, key: list[str], dated_by: str) -> pl.DataFrame:
    """Give rows with a ticker the newest one of their firm; see `follow_renames`."""
    names = _names(renames)
    candidates = rows.filter(pl.col("ticker").is_in(names["ticker"].implode())).sort(dated_by)
    next_name = names.rename({"from_date": "until"})
    found = candidates.join_asof(
        next_name,
        left_on=dated_by,
        right_on="until",
        by="ticker",
        strategy="forward",
        allow_exact_matches=False,
        check_sortedness=False,  # both are sorted by their dates
    ).filter(pl.col("newest").is_not_null())
    if found.is_empty():
        return rows
    stay = rows.join(found, on=key, how="anti", maintain_order="left")
    moved = found.with_columns(pl.col("newest").alias("ticker")).select(rows.columns)
    moved = moved.unique(key, keep="last", maintain_order=True).join(stay, on=key, how="anti")
    return pl.concat([stay, moved]).sort(key)


def newest_ticker(ticker: str, day: dt.date, renames: pl.DataFrame) -> str:
    """Return the newest ticker of a firm that was called ``ticker`` on a day.

    >>> days = [dt.date(2022, 6, 9), dt.date(2024, 1, 2)]
    >>> names = {"ticker": ["FB", "META"], "from_date": days, "new_ticker": ["META", "M"]}
    >>> newest_ticker("FB", dt.date(2022, 6, 8), pl.DataFrame(names))
    'M'
    """
    if not (renames["ticker"] == ticker).any():
        return ticker
    later = _names(renames.filter(pl.col("from_date") > day)).filter(pl.col("ticker") == ticker)
    return ticker if later.is_empty() else str(later["newest"][0])


def _names(renames: pl.DataFrame) -> pl.DataFrame:
    """Return ticker, from_date and ``newest``: the last name of the firm that had the ticker until then."""
    in_order = renames.sort("from_date", "ticker").select("ticker", "from_date", "new_ticker")
    newest: dict[str, str] = {}  # of the firm that has the ticker after the renames that were seen
    names = []
    for ticker, day, new in reversed(in_order.rows()):
        names.append((ticker, day, newest.get(new, new)))
        newest[ticker] = names[-1][2]
    schema = {"ticker": pl.String, "from_date": pl.Date, "newest": pl.String}
    return pl.DataFrame(names[::-1], schema=schema, orient="row")
