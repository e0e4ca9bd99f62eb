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
    names = _names(renames)
    return {
        table: _renamed(rows, keys(table), _DATED_BY[table], names) if table in _DATED_BY else rows
        for table, rows in tables.items()
    }


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


def _renamed(rows: pl.DataFrame, key: list[str], dated_by: str, names: pl.DataFrame) -> pl.DataFrame:
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
