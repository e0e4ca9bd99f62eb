"""New tickers of firms: one firm keeps its history under its newest ticker."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final

import polars as pl

from pipelines.lake.schemas import keys

_DATED_BY: Final[Mapping[str, str]] = {
    "prices": "date",
    "inputs": "date",
    "gaps": "date",
    "fundamentals": "known_at",
    "membership": "from_date",
    "securities": "valid_from",
}


def follow_renames(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Give the rows of renamed firms their newest ticker, and leave the table ``renames`` out.

    A row of ``ticker`` that is dated before ``from_date`` becomes one of ``new_ticker``, so that returns,
    histories and positions go on. A later row keeps its ticker: it belongs to another firm that took the
    ticker over. Where the source has the row under both names, the one under the new name counts.

    Parameters
    ----------
    tables
        Lake table -> rows. Renames that are not known yet must have been left out (`pipelines.dataset.cut`).

    Returns
    -------
    dict
        Lake table -> rows, sorted by key if a row was renamed.
    """
    tables = dict(tables)
    renames = tables.pop("renames", None)
    if renames is None:
        return tables
    for ticker, day, new in _in_order(renames):
        for table, dated_by in _DATED_BY.items():
            if table in tables:
                tables[table] = _renamed(tables[table], keys(table), dated_by, (ticker, day, new))
    return tables


def newest_ticker(ticker: str, day: dt.date, renames: pl.DataFrame) -> str:
    """Return the newest ticker of a firm that was called ``ticker`` on a day.

    >>> days = [dt.date(2022, 6, 9), dt.date(2024, 1, 2)]
    >>> names = {"ticker": ["FB", "META"], "from_date": days, "new_ticker": ["META", "M"]}
    >>> newest_ticker("FB", dt.date(2022, 6, 8), pl.DataFrame(names))
    'M'
    """
    for old, since, new in _in_order(renames):
        if ticker == old and day < since:
            ticker = new
    return ticker


def _in_order(renames: pl.DataFrame) -> list[tuple[str, dt.date, str]]:
    return renames.sort("from_date", "ticker").select("ticker", "from_date", "new_ticker").rows()


def _renamed(
    rows: pl.DataFrame, key: list[str], dated_by: str, rename: tuple[str, dt.date, str]
) -> pl.DataFrame:
    ticker, day, new = rename
    moves = (pl.col("ticker") == ticker) & (pl.col(dated_by) < day)
    moved = rows.filter(moves)
    if moved.is_empty():
        return rows
    stay = rows.filter(~moves)
    moved = moved.with_columns(pl.lit(new).alias("ticker")).join(stay, on=key, how="anti")
    return pl.concat([stay, moved]).sort(key)
