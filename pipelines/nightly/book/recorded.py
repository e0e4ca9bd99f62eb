"""What the finished nights have recorded of the book: their accounts, and the orders that still matter."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field, replace

import polars as pl

from pipelines.dataset.cut import rows_known
from pipelines.dataset.renames import newest_ticker
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
    followed
        Those that the last night knew already: its tickers are the new ones.
    """

    accounts: pl.DataFrame
    holdings: pl.DataFrame
    books: pl.DataFrame
    renames: pl.DataFrame
    followed: pl.DataFrame = field(default_factory=lambda: schema("renames").create_empty())

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

    def name_tonight(self, ticker: str, since: dt.date) -> str:
        """Return tonight's ticker of a firm that is held since a session and was ``ticker`` last night.

        A rename that the last night knew is no new one: the ticker may be that of a firm which took it over.
        """
        key = ["ticker", "from_date", "new_ticker"]
        new = self.renames.join(self.followed, on=key, how="anti").sort("from_date")
        new = new.filter((pl.col("ticker") == ticker) & (pl.col("from_date") > since))
        if new.is_empty():
            return ticker
        return newest_ticker(new["new_ticker"][0], new["from_date"][0], self.renames)

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
    followed = _followed(lake, nights.filter(pl.col("session") == last))
    return Recorded(accounts, found["holdings"][1], found["books"][1], renames, followed)


def _followed(lake: Lake, night: pl.DataFrame) -> pl.DataFrame:
    """Rows of the table ``renames`` that a night knew; none if that version is gone."""
    version, ids = (
        json.loads(night[name][0] or "{}").get("renames") for name in ("data_versions", "table_ids")
    )
    if version is None or not lake.exists("renames") or ids not in (None, lake.table_id("renames")):
        return schema("renames").create_empty()
    try:
        return lake.read("renames", version=version, filters=rows_known("renames", night["session"][0]))
    except DataError:  # removed by a vacuum
        return schema("renames").create_empty()


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
