"""Why two revisions of a session's signals differ: the rows of the lake that were corrected in between."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from pipelines.dataset.cut import forget_later, rows_known
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import STAMPS, keys, schema

_DAY: Final = {
    "prices": "date",
    "inputs": "date",
    "fundamentals": "known_at",
    "membership": "from_date",
    "renames": "from_date",
    "securities": "valid_from",
}
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """Differences between two revisions of the signals of one session and model version.

    Attributes
    ----------
    earlier, later
        The revisions.
    firms
        ticker, before, after: firms whose signal, rank or place in the universe differs; a null signal is
        that of a firm outside the universe or without a price. Sorted by ticker.
    corrections
        table, ticker, day, change (``added``, ``withdrawn`` or ``corrected``): rows known at the session that
        differ between the data of the two revisions. Sorted by table, ticker and day.
    """

    earlier: int
    later: int
    firms: pl.DataFrame
    corrections: pl.DataFrame

    def describe(self) -> str:
        """Say in one or two sentences how many firms differ and which corrections there were."""
        if self.firms.is_empty():
            head = f"Revision {self.later} equals revision {self.earlier} for every firm."
        else:
            count = self.firms.height
            head = f"Revision {self.later} differs from revision {self.earlier} for {count:,} firm"
            head += "." if count == 1 else "s."
        if self.corrections.is_empty():
            return f"{head} No row known at the session was corrected."
        shown = [
            f"{table} of {ticker} {_VERBS[change]} {_days(days)}"
            for table, ticker, change, days in self.corrections.group_by(
                "table", "ticker", "change", maintain_order=True
            )
            .agg("day")
            .head(_SHOWN)
            .iter_rows()
        ]
        more = self.corrections.select("table", "ticker", "change").unique().height - len(shown)
        rest = f"; and {more:,} more" if more > 0 else ""
        return f"{head} Since then: {'; '.join(shown)}{rest}."


_VERBS: Final = {
    "corrected": "were corrected on",
    "added": "were added for",
    "withdrawn": "were withdrawn for",
}


def _days(days: list[object]) -> str:
    more = f" and {len(days) - 1} more days" if len(days) > 1 else ""
    return f"{days[0]}{more}"


def explain_differences(lake: Lake, earlier: pl.DataFrame, later: pl.DataFrame) -> Differences:
    """Compare two revisions of the signals of one session and version, and the data that they were made on.

    Signals compare firms with each other, so a correction of one firm can change the signals of others.
    Without a correction that was known at the session, two revisions are equal.

    Parameters
    ----------
    lake
        Lake with the data.
    earlier, later
        Rows of the table ``signals``, one revision each.

    Raises
    ------
    ValueError
        If the revisions are not of the same session and version.
    DataError
        If a vacuum has removed the data of the earlier revision.
    """
    identity = ["config", "session", "version"]
    if not earlier.select(identity).unique().equals(later.select(identity).unique()):
        raise ValueError("two revisions of one session and version are compared; these are of different ones")
    values = ["signal", "rank", "in_universe"]
    both = earlier.select("ticker", *values).join(
        later.select("ticker", *values), on="ticker", how="full", coalesce=True, suffix="_after"
    )
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_after")) for name in values)
    firms = both.filter(~same).select("ticker", before="signal", after="signal_after").sort("ticker")
    versions = [json.loads(frame["data_versions"][0]) for frame in (earlier, later)]
    session = earlier["session"][0]
    corrections = _corrections(lake, versions[0], versions[1], session)
    return Differences(int(earlier["revision"][0]), int(later["revision"][0]), firms, corrections)


def _corrections(
    lake: Lake, before: Mapping[str, int], after: Mapping[str, int], session: dt.date
) -> pl.DataFrame:
    parts = [
        _changed_rows(lake, table, before.get(table), after.get(table), session)
        for table in _DAY
        if before.get(table) != after.get(table)
    ]
    names = {"table": pl.String, "ticker": pl.String, "day": pl.Date, "change": pl.String}
    empty = pl.DataFrame(schema=names)
    return pl.concat([empty, *parts]).unique().sort("table", "ticker", "day", "change")


def _changed_rows(
    lake: Lake, table: str, before: int | None, after: int | None, session: dt.date
) -> pl.DataFrame:
    """Rows of a table, known at a session, that are not the same at two versions; None is no table yet."""
    key = keys(table)
    values = [name for name in schema(table).column_names() if name not in key and name not in STAMPS]

    def known(version: int | None) -> pl.DataFrame:
        if version is None:
            return schema(table).create_empty()
        rows = lake.read(table, version=version, filters=rows_known(table, session), ordered=False)
        return forget_later(table, rows, session)

    left, right = (
        known(version).select(*key, *values).with_columns(pl.lit(value=True).alias(":there"))
        for version in (before, after)
    )
    both = left.join(right, on=key, how="full", coalesce=True, suffix=":after", nulls_equal=True)
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}:after")) for name in values)
    change = (
        pl.when(pl.col(":there").is_null())
        .then(pl.lit("added"))
        .when(pl.col(":there:after").is_null())
        .then(pl.lit("withdrawn"))
        .when(~same)
        .then(pl.lit("corrected"))
    )
    return (
        both.with_columns(change=change)
        .filter(pl.col("change").is_not_null())
        .select(pl.lit(table).alias("table"), "ticker", pl.col(_DAY[table]).alias("day"), "change")
    )
