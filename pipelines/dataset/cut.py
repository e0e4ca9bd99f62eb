"""Cut a lake's tables at a session: the rows, and the values in them, that were known at its close.

A lake that has grown since a session holds later prices and later knowledge about earlier rows, such as the
date of a delisting. Features and forecasts of a session do not use either. Cut tables make this true of
everything that is computed from them, including the list of firms and the names of groups.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final

import polars as pl

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
    """Cut tables of a source at the close of a session; tables without a known row are left out.

    Parameters
    ----------
    tables
        Table -> rows, as `pipelines.dataset.tables.read_tables` gives them.
    through
        The session.

    Returns
    -------
    dict
        Table -> known rows, in the order of the tables given.
    """
    cut = {
        table: forget_later(table, frame.filter(rows_known(table, through)), through)
        for table, frame in tables.items()
    }
    return {table: frame for table, frame in cut.items() if frame.height}
