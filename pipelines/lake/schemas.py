"""The tables of a lake: their schemas and keys, who writes them, and when a row of a source becomes known."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Mapping
from typing import Final

import dataframely as dy
import polars as pl

from pipelines.lake import pipeline_tables, source_tables

SCHEMAS: Final[Mapping[str, type[dy.Schema]]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): one
    for module in (source_tables, pipeline_tables)
    for name, one in vars(module).items()
    if isinstance(one, type) and issubclass(one, dy.Schema) and one is not pipeline_tables.EnsembleForecasts
}
"""Table -> contract: every schema of the two modules, named after its class. Runs keep ensembles as files."""

SOURCE_TABLES: Final = (
    *("prices", "securities", "fundamentals", "membership", "renames", "inputs"),
    *("truth_mu", "truth_edges", "truth_days"),
)
"""The tables a source may give; the others are written by the pipeline."""

INPUT_TABLES: Final = (*SOURCE_TABLES, "gaps")
"""The tables that a run reads and records: the source's, and what ingest makes of them."""

STAMPS: Final = frozenset({"ingested_at", "first_seen", "flagged_at", "released_at", "created_at"})
"""Columns that hold the time of writing. A row that differs in them only is an unchanged row."""

SUPPLEMENTS: Final = frozenset({"sec"})
"""Live sources without prices: they add statements to the lake of another source."""

KNOWN_FROM: Final[Mapping[str, str]] = {
    **dict.fromkeys(("prices", "inputs", "gaps", "truth_mu", "truth_days"), "date"),
    **dict.fromkeys(("securities", "truth_edges"), "valid_from"),
    **dict.fromkeys(("membership", "renames"), "from_date"),
    "fundamentals": "known_at",
    "flags": "known_on",
}
"""Table -> column with the day from which a row is known."""

_LEARNT_LATER: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "membership": {"to_date": ("to_date",)},
    "securities": {
        "valid_to": ("valid_to",),
        "delisted_on": ("delisted_on", "delisting_return", "delisting_reason"),
    },
    "truth_edges": {"valid_to": ("valid_to",)},
}
"""Table -> column with a day -> columns that are unknown before that day."""


def rows_known(table: str, through: dt.date) -> pl.Expr:
    """Select the rows of a table that are known at the close of a session (`KNOWN_FROM`).

    A row without a day is always known.
    """
    column = pl.col(KNOWN_FROM[table])
    return column.is_null() | (column <= through)


def forget_later(table: str, frame: pl.DataFrame, through: dt.date) -> pl.DataFrame:
    """Set to null what the rows of a table say about days after ``through``.

    The end of a membership or of a validity, and a delisting with its return and reason, are known from their
    own day on (`features.panel.delistings`). Cutting twice is the same as cutting once at the earlier
    session.
    """
    return frame.with_columns(
        pl.when(_day(frame, day) > through).then(None).otherwise(pl.col(column)).alias(column)
        for day, columns in _LEARNT_LATER.get(table, {}).items()
        for column in columns
        if {day, column} <= {*frame.columns}
    )


def cut(table: str, frame: pl.DataFrame, through: dt.date) -> pl.DataFrame:
    """Cut a table of a source at the close of a session: only known rows, and nothing about later days.

    An unreadable day is text; its row is kept, so that its contract rejects it.
    """
    day = _day(frame, KNOWN_FROM[table])
    return forget_later(table, frame.filter(day.is_null() | (day <= through)), through)


def _day(frame: pl.DataFrame, column: str) -> pl.Expr:
    day = pl.col(column)
    return day.str.to_date("%Y-%m-%d", strict=False) if frame.schema[column] == pl.String else day


def keys(table: str) -> list[str]:
    """Return the key columns of a lake table."""
    return list(_keys(table))


def empty(table: str) -> pl.DataFrame:
    """Return a lake table without rows."""
    return _empty(table).clear()


@functools.cache
def _keys(table: str) -> tuple[str, ...]:
    return tuple(schema(table).primary_key())


@functools.cache
def _empty(table: str) -> pl.DataFrame:
    return pl.DataFrame(schema(table).create_empty())


def schema(table: str) -> type[dy.Schema]:
    """Return the contract of a lake table; ValueError if the lake has no table of that name."""
    if table not in SCHEMAS:
        raise ValueError(f"the lake has no table {table!r}; its tables are {', '.join(SCHEMAS)}")
    return SCHEMAS[table]
