"""Corrections: rows of past sessions that differ between the data of two nights."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
from deltalake import DeltaTable

from pipelines.errors import DataError
from pipelines.lake.commit import compare
from pipelines.lake.lake import Lake

_KEY: Final = ["date", "ticker"]


@dataclass(frozen=True, slots=True, eq=False)
class Corrections:
    """Price rows up to a session that differ between two versions of the table.

    Attributes
    ----------
    changed, added, withdrawn
        Keys (date, ticker) of rows with other values, of rows that only the later version holds, and of rows
        that only the earlier one holds.
    """

    changed: pl.DataFrame
    added: pl.DataFrame
    withdrawn: pl.DataFrame

    @property
    def count(self) -> int:
        """Number of rows that differ."""
        return self.changed.height + self.added.height + self.withdrawn.height

    @property
    def tickers(self) -> list[str]:
        """Firms with such rows, those with most rows first."""
        rows = pl.concat([self.changed, self.added, self.withdrawn])
        counts = rows.group_by("ticker").len().sort(pl.col("len") * -1, "ticker")
        return counts["ticker"].to_list()

    @property
    def earliest(self) -> dt.date | None:
        """Date of the earliest of these rows; None if there are none."""
        first = pl.concat([self.changed, self.added, self.withdrawn])["date"].min()
        return first if isinstance(first, dt.date) else None


def price_corrections(lake: Lake, then: int, now: int, through: dt.date) -> Corrections | None:
    """Compare two versions of the prices on the sessions up to one, stamps left out.

    Only the dates of files that differ between the versions are read: a night's delivery adds files and
    leaves the others.

    Parameters
    ----------
    lake
        The lake.
    then, now
        The earlier and the later version.
    through
        Last session that counts.

    Returns
    -------
    Corrections or None
        None if the earlier version can no longer be read.
    """
    nothing = pl.DataFrame(schema={"date": pl.Date, "ticker": pl.String})
    if then == now:
        return Corrections(nothing, nothing, nothing)
    span = differing_dates(lake, "prices", then, now)
    if span is None:
        return Corrections(nothing, nothing, nothing)
    within = pl.col("date").is_between(span[0], min(span[1], through))
    try:
        before = lake.read("prices", version=then, filters=within)
    except DataError:  # a vacuum removed the version
        return None
    changes = compare(
        "prices", lake.read("prices", version=now, filters=within), before.lazy(), pl.lit(value=True)
    )
    parts = (changes.changed, changes.new, changes.withdrawn)
    return Corrections(*(part.select(_KEY) for part in parts))


def differing_dates(lake: Lake, table: str, then: int, now: int) -> tuple[dt.date, dt.date] | None:
    """First and last date in the files that only one of two versions has; None if they have the same."""
    files = [_dates_by_file(lake.storage.view(table, version)) for version in (then, now)]
    differing = [
        dates for path, dates in (files[0] | files[1]).items() if (path in files[0]) != (path in files[1])
    ]
    if not differing:
        return None
    return min(first for first, _ in differing), max(last for _, last in differing)


def _dates_by_file(opened: DeltaTable | None) -> dict[str, tuple[dt.date, dt.date]]:
    """File -> its first and last date, from the statistics in the table's log."""
    if opened is None:
        return {}
    actions = pl.DataFrame(opened.get_add_actions(flatten=True))
    bounds = [pl.lit(dt.date.min), pl.lit(dt.date.max)]
    for i, name in enumerate(("min.date", "max.date")):
        if name in actions.columns:
            bounds[i] = pl.col(name).cast(pl.Date).fill_null(bounds[i])
    rows: list[tuple[Any, ...]] = actions.select("path", first=bounds[0], last=bounds[1]).rows()
    return {path: (first, last) for path, first, last in rows}
