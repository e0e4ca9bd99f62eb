"""What the tables of a source contained at the close of a session: the part of their rows known by then."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final

import polars as pl

_KNOWN_FROM: Final[Mapping[str, str]] = {
    "prices": "date",
    "securities": "valid_from",
    "fundamentals": "known_at",
    "membership": "from_date",
    "renames": "from_date",
    "inputs": "date",
    "truth_mu": "date",
    "truth_edges": "valid_from",
    "truth_days": "date",
}
"""Table -> date from which a row is known."""

_LEARNT_LATER: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "securities": {
        "valid_to": ("valid_to",),
        "delisted_on": ("delisted_on", "delisting_return", "delisting_reason"),
    },
    "membership": {"to_date": ("to_date",)},
    "truth_edges": {"valid_to": ("valid_to",)},
}
"""Table -> date in a row -> columns that are unknown before that date."""


def known_by(table: str, frame: pl.DataFrame, session: dt.date) -> pl.DataFrame:
    """Return what a table contained at the close of a session.

    Rows whose date is later are left out: prices, inputs and truth by ``date``, statements by ``known_at``,
    firms by ``valid_from``, index members by ``from_date``. An end that is later (``valid_to``, ``to_date``,
    ``delisted_on`` with its return and reason) is null. A delisting is known on the last listed session.
    Cutting twice is the same as cutting once at the earlier session.

    Parameters
    ----------
    table
        Name of a source table (`pipelines.lake.schemas.SOURCE_TABLES`).
    frame
        Its rows; optional columns may be missing.
    session
        The session.

    Raises
    ------
    KeyError
        If sources have no table of this name.
    """
    frame = frame.filter(pl.col(_KNOWN_FROM[table]) <= session)
    return frame.with_columns(
        pl.when(pl.col(day) <= session).then(pl.col(column)).alias(column)
        for day, columns in _LEARNT_LATER.get(table, {}).items()
        if day in frame.columns
        for column in columns
        if column in frame.columns
    )
