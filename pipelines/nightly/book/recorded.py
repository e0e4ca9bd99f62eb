"""What the finished nights have recorded of the book: their accounts, and the orders that still matter."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

import polars as pl

from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import schema
from pipelines.nightly.table import finished_before


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The book as the nights before tonight left it.

    Attributes
    ----------
    accounts
        Rows of the table ``accounts`` of the finished nights, the newest last.
    holdings
        Rows of the table ``holdings`` of the last night.
    books
        Rows of the table ``books`` of the last decision that was made, and of every decision whose order may
        still be traded.
    renames
        Rows of the table ``renames`` that are known tonight.
    """

    accounts: pl.DataFrame
    holdings: pl.DataFrame
    books: pl.DataFrame
    renames: pl.DataFrame

    @classmethod
    def nothing(cls) -> Recorded:
        """Before the first night."""
        tables = ("accounts", "holdings", "books", "renames")
        return cls(*(schema(table).create_empty() for table in tables))

    @property
    def last(self) -> dt.date | None:
        """Session of the last night; None before the first one."""
        return None if self.accounts.is_empty() else self.accounts["session"][-1]

    @property
    def made(self) -> pl.DataFrame:
        """Accounts of the nights that made a decision, the newest last."""
        return self.accounts.filter(pl.col("decision") == "made")

    def of(self, session: dt.date) -> pl.DataFrame:
        """Orders of one night."""
        return self.books.filter(pl.col("session") == session)


def read_recorded(
    lake: Lake, config_name: str, nights: pl.DataFrame, session: dt.date, renames: pl.DataFrame
) -> Recorded:
    """Read what the finished nights before a session have recorded.

    Parameters
    ----------
    lake
        The lake.
    config_name
        Name of the config.
    nights
        Rows of the table ``nights`` of the config, newest first.
    session
        Tonight.
    renames
        Rows of the table ``renames`` that are known tonight.

    Raises
    ------
    DataError
        If a night is finished, but its account or a row of its book is not there: what is held is then not
        known.
    """
    finished = finished_before(nights, session)["session"]
    if finished.is_empty():
        return replace(Recorded.nothing(), renames=renames)
    last = finished.max()
    accounts = _of_config(lake, "accounts", config_name, finished).sort("session")
    if accounts.is_empty() or accounts["session"][-1] != last:
        raise _incomplete(lake, "accounts", last)
    waiting = accounts.tail(int(accounts["delay"].max()))  # type: ignore[arg-type]  # a number
    made = accounts.filter(pl.col("decision") == "made").tail(1)
    needed = pl.concat([waiting, made]).unique("session")
    found = {
        "books": ("orders", _of_config(lake, "books", config_name, needed["session"]), needed),
        "holdings": ("positions", _of_config(lake, "holdings", config_name, finished.head(1)), accounts[-1:]),
    }
    for table, (count, rows, nights_of) in found.items():
        stored = dict(rows.group_by("session").len().iter_rows())
        for night, expected in nights_of.select("session", count).sort("session").iter_rows():
            if stored.get(night, 0) != expected:
                raise _incomplete(lake, table, night)
    return Recorded(accounts, found["holdings"][1], found["books"][1], renames)


def _of_config(lake: Lake, table: str, config_name: str, sessions: pl.Series) -> pl.DataFrame:
    if not lake.exists(table):
        return schema(table).create_empty()
    of_nights = pl.col("session").is_in(sessions.implode())
    return lake.read(table, filters=(pl.col("config") == config_name) & of_nights)


def _incomplete(lake: Lake, table: str, session: object) -> DataError:
    return DataError(
        f"The table nights of the lake {lake.root} has the night of {session}, but the table {table} does "
        "not hold it, so what is held is not known: restore all tables of the lake from one backup, or start "
        "again from cash under another name."
    )
