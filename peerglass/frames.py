"""Frames of a caller: read in any form that quants keep them in, and answered in the same kind.

A frame is of polars or pandas, in one of two forms:

- **long**: columns ``date``, ``ticker`` and one or more of numbers; a pandas index of dates and tickers is
  the same, and so is a pandas frame whose columns have two levels, the second one of tickers;
- **wide**: a column ``date`` (or a pandas index of dates), and one column of numbers per firm.

A value dated t was known at the close of t; a date with a time zone is the day in that zone. Null and NaN
mean that there is none. A further column ``known_from`` of dates is the knowledge cutoff of the model that
made a row: earlier rows do not count. What is returned is of the kind that was given: polars for polars; for
pandas, dates and tickers are in the index if they were.
"""

from __future__ import annotations

import datetime as dt
import html
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import polars as pl

from features.arrays import IntArray
from features.panel.panel import PRICE_COLUMNS, Panel, build_panel
from pipelines.errors import DataError
from pipelines.results.signal_file import KNOWN_FROM, SignalTable, early_rows
from pipelines.sources.files.layouts import PRICE_NAMES, match_names
from pipelines.sources.files.reading import zones_of_midnights
from pipelines.sources.files.recognise import shows_splits

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import TypeIs

    Frame: TypeAlias = pl.DataFrame | pd.DataFrame | pd.Series[float]
    Table: TypeAlias = Any  # a frame of polars or pandas, as that of the caller

_KEY = ("date", "ticker")
SIGNAL = "signal"
"""Name of a signal in a wide frame, or in a series without a name."""
_UTC = ("UTC", "Etc/UTC", "GMT", "+00:00")
_SUBJECTS = {"prices": "The close", "label": "The label"}


def is_frame(given: object) -> TypeIs[Frame]:
    """Whether something is a frame of polars or pandas."""
    return isinstance(given, pl.DataFrame) or all(hasattr(given, name) for name in ("index", "ndim"))


def answer(rows: pl.DataFrame, like: Frame, *, index: bool = False) -> Table:
    """Turn rows into the kind of a frame; with ``index``, as its index are date and ticker if it has one."""
    if isinstance(like, pl.DataFrame):
        return rows
    table = rows.to_pandas()
    if index and "date" not in getattr(like, "columns", ()):
        table = table.set_index([name for name in _KEY if name in rows.columns])
    return table


def read_frame(frame: Frame, what: str) -> pl.DataFrame:
    """Read the rows of a frame that count: date, ticker, value; sorted, each key once, no unknown value.

    ``what`` it holds is for messages. DataError as in `read_signals`, or if no row counts.

    Examples
    --------
    >>> import datetime as dt
    >>> wide = pl.DataFrame({"date": [dt.date(2024, 1, 2)], "A": [1.0], "B": [None]})
    >>> read_frame(wide, "signal").rows()
    [(datetime.date(2024, 1, 2), 'A', 1.0)]
    """
    every = read_signals(frame, what)
    rows = every.filter(~early_rows(f"The {what}", every)).drop(KNOWN_FROM, strict=False)
    names = rows.columns[len(_KEY) :]
    if len(names) != 1:
        raise DataError(
            f"The {what} has the columns {', '.join(names)}; give one of them, beside date and ticker."
        )
    return rows.rename({names[0]: "value"}).drop_nulls()


def read_signals(frame: Frame, what: str = "frame") -> pl.DataFrame:
    """Read a frame of either form with any number of signals: date, ticker, a column per signal, cutoffs.

    Values are float64, null where there is none, and rows are sorted. ``what`` it holds is for messages.

    Raises
    ------
    DataError
        If the frame has neither form, a column is missing or of the wrong type, a row has no date, ticker or
        cutoff, a firm appears twice on a date, a value is infinite, or dates are midnights of another zone in
        UTC.

    Examples
    --------
    >>> import pandas as pd
    >>> keys = pd.MultiIndex.from_tuples([(pd.Timestamp("2024-01-02"), "A")], names=["date", "asset"])
    >>> read_signals(pd.DataFrame({"size": [1.0], "value": [2.0]}, index=keys)).columns
    ['date', 'ticker', 'size', 'value']
    """
    rows = _polars(frame, what)
    cutoffs = [KNOWN_FROM] if KNOWN_FROM in rows.columns else []
    if "ticker" not in rows.columns and not rows["date"].is_duplicated().any():
        rows = rows.unpivot(index=["date", *cutoffs], variable_name="ticker", value_name=SIGNAL)
        rows = rows.drop_nulls(SIGNAL) if rows.schema[SIGNAL].is_numeric() else rows
    if "ticker" not in rows.columns:
        raise DataError(
            f"The {what} has no column 'ticker'; it needs date, ticker and one column per signal, and has "
            f"{', '.join(rows.columns)}."
        )
    names = [name for name in rows.columns if name not in (*_KEY, *cutoffs)]
    wrong = [name for name in names if not rows.schema[name].is_numeric()]
    if wrong or not names:
        problem = (
            f"a column {wrong[0]!r} of type {rows.schema[wrong[0]]}" if wrong else "no column of a signal"
        )
        raise DataError(f"The {what} has {problem}; signals are columns of numbers.")
    for name in cutoffs:
        if not rows.schema[name].is_temporal():
            raise DataError(f"The column {name} is of type {rows.schema[name]}; convert it to dates first.")
        if empty := rows[name].null_count():
            cure = "give each the cutoff of the model that made it."
            raise DataError(f"The column {name} has no date in {empty:,} rows; {cure}")
    signals = rows.select(
        pl.col("date").dt.date(),  # of its own time zone; a cast would give the day in UTC
        pl.col("ticker").cast(pl.String),
        pl.col(names).cast(pl.Float64).fill_nan(None),
        *(_known_date(name) for name in cutoffs),
    )
    _refuse_twice(signals)
    for name in names:
        _refuse_infinite(signals, name, _SUBJECTS.get(what, f"The signal {name!r}"))
    return signals.sort(_KEY)


def _known_date(name: str) -> pl.Expr:
    """Return the dates of a column; a time of day is the next date, because it may be after the close."""
    moment = pl.col(name)
    day = moment.dt.date()
    return pl.when(moment != moment.dt.truncate("1d")).then(day.dt.offset_by("1d")).otherwise(day).alias(name)


def signal_table(frame: Frame, what: str = "frame") -> SignalTable:
    """Read a frame as a signal file is read."""
    return SignalTable(Path("frame"), read_signals(frame, what), ())


def cells(panel: Panel, session_E: IntArray, firm_E: IntArray, **columns: object) -> pl.DataFrame:
    """Columns of some cells of a panel, after their date and ticker."""
    dates_E = panel.dates_T[session_E].astype("datetime64[D]")
    named = {"date": dates_E, "ticker": np.asarray(panel.tickers_N)[firm_E], **columns}
    return pl.DataFrame(named, schema_overrides={"date": pl.Date, "ticker": pl.String})


def _refuse_twice(rows: pl.DataFrame) -> None:
    """Refuse two rows of a firm on a date."""
    twice = rows.filter(rows.select(_KEY).is_duplicated())
    if twice.height:
        day, ticker = twice.select(_KEY).row(0)
        raise DataError(f"{ticker} appears more than once on {day}; keep one row per firm and date.")


def _refuse_infinite(rows: pl.DataFrame, column: str, subject: str) -> None:
    """Refuse infinite numbers of a column; the message begins with the subject."""
    wrong = rows.filter(pl.col(column).is_infinite())
    if wrong.height:
        day, ticker = wrong.select(_KEY).row(0)
        raise DataError(
            f"{subject} has an infinite value in {wrong.height:,} of {rows.height:,} rows, first of {ticker} "
            f"on {day}; use finite numbers, or null for none."
        )


def _polars(frame: Frame, what: str) -> pl.DataFrame:
    """Turn a frame into one of polars, with a pandas index as columns date and ticker."""
    if not is_frame(frame):
        raise DataError(f"The {what} is a {type(frame).__name__}; pass a frame of polars or pandas.")
    rows = frame if isinstance(frame, pl.DataFrame) else _from_pandas(frame, what)
    if rows.schema.get("date") != pl.Date and not isinstance(rows.schema.get("date"), pl.Datetime):
        raise DataError(
            f"The {what} has no dates: give a column date, or a pandas index of dates, and convert texts by "
            "str.to_date."
        )
    for name in _KEY:
        if name in rows.columns and (empty := rows[name].null_count()):
            raise DataError(
                f"The {name} is missing in {empty:,} of {rows.height:,} rows of the {what}; fill it in, or "
                "drop these rows."
            )
    _refuse_midnights_in_utc(rows["date"], what)
    return rows


def _refuse_midnights_in_utc(stamps: pl.Series, what: str) -> None:
    """Refuse midnights of an exchange that are written in UTC, where it is still the day before."""
    if getattr(stamps.dtype, "time_zone", None) not in _UTC:
        return
    stamps = stamps.unique().sort()
    utc = stamps.dt.replace_time_zone(None)
    if (stamps.dt.convert_time_zone("America/New_York").dt.time() == dt.time(16)).all():
        return  # closes of New York, which in a part of the year are midnights in Dubai or Moscow
    for zone in zones_of_midnights(utc):
        there = utc.dt.replace_time_zone("UTC").dt.convert_time_zone(zone).dt.replace_time_zone(None)
        early = (there == there.dt.truncate("1d")) & (there.dt.date() != utc.dt.date())
        if early.any():
            raise DataError(
                f"The dates of the {what} are in UTC, and {utc.filter(early)[0]} is midnight of "
                f"{there.filter(early)[0].date()} in {zone}: it would be read a day early; convert them to "
                "the time zone of the exchange, with dt.convert_time_zone in polars or tz_convert in pandas."
            )


def _from_pandas(frame: pd.DataFrame | pd.Series[float], what: str) -> pl.DataFrame:
    import pandas as pd

    if isinstance(frame, pd.Series):
        if frame.index.nlevels == 1:
            raise DataError(
                f"The {what} is a series of one number a date, but a signal has one for each firm and date: "
                "give it an index of dates and tickers."
            )
        table = frame.to_frame(SIGNAL if frame.name is None else str(frame.name))
    else:
        table = frame
    if table.columns.nlevels == len(_KEY):
        table = cast("pd.DataFrame", table.rename_axis("date").stack(level=-1)).rename_axis(list(_KEY))
    if "date" not in table.columns:
        levels = table.index.nlevels
        if levels > len(_KEY):
            raise DataError(f"The index of the {what} has {levels} levels; it needs dates and tickers.")
        if set(table.index.names) != set(_KEY):  # these are in either order
            dated = [
                pd.api.types.is_datetime64_any_dtype(table.index.get_level_values(k)) for k in range(levels)
            ]
            table = table.rename_axis(list(_KEY[::-1] if dated == [False, True] else _KEY[:levels]))
        table = table.reset_index()
    if not table.columns.is_unique:
        twice = table.columns[table.columns.duplicated()][0]
        raise DataError(f"The {what} has two columns {twice!r}; keep one.")
    return pl.from_pandas(table)


def price_rows(prices: Frame) -> pl.DataFrame:
    """Read a frame of closes, or of the lake's columns of prices, as rows of the table ``prices``.

    A date on which no firm has a close is no session, in either form. A split ratio of 0 is no split.

    Raises
    ------
    DataError
        If the frame has neither form, a row has no date or ticker, a firm appears twice on a date, dates are
        midnights of another zone in UTC, a close is infinite or not above 0, or there is none.

    Examples
    --------
    >>> import datetime as dt
    >>> wide = pl.DataFrame({"date": [dt.date(2024, 1, 2)], "A": [10.0]})
    >>> price_rows(wide).select("date", "ticker", "close", "volume").rows()
    [(datetime.date(2024, 1, 2), 'A', 10.0, None)]
    """
    rows = _polars(prices, "prices")
    lower = {name: name.lower() for name in rows.columns if name.lower() in PRICE_COLUMNS}
    if "ticker" in rows.columns and "close" in lower.values():
        rows = rows.rename(lower).with_columns(pl.col("date").dt.date(), pl.col("ticker").cast(pl.String))
        rows = _with_events(rows)
    else:
        rows = read_frame(prices, "prices").rename({"value": "close"})
    for name in ("close", "split_ratio", "dividend"):
        kind = rows.schema.get(name, pl.Null())
        if not kind.is_numeric() and kind != pl.Null:
            raise DataError(f"The column {name} of the prices is of type {kind}; it needs numbers.")
    absent = [pl.lit(None, pl.Float64).alias(name) for name in PRICE_COLUMNS if name not in rows.columns]
    rows = rows.with_columns(absent).select(PRICE_COLUMNS)
    rows = rows.with_columns(_known("close"), _known("split_ratio").replace(0.0, 1.0))
    _refuse_twice(rows)
    _refuse_infinite(rows, "close", _SUBJECTS["prices"])
    rows = _on_sessions(rows)
    wrong = rows.filter(pl.col("close") <= 0)
    if wrong.height:
        day, ticker, close = wrong.select("date", "ticker", "close").row(0)
        raise DataError(f"The price of {ticker} on {day} is {close:g}; give one above 0, or null for none.")
    return rows


def _with_events(rows: pl.DataFrame) -> pl.DataFrame:
    """Read splits and dividends under other usual names if closes fall at the splits, otherwise warn of them.

    Yahoo's closes, beside which yfinance gives both, are adjusted already.
    """
    names = {ours: PRICE_NAMES[ours] for ours in ("split_ratio", "dividend") if ours not in rows.columns}
    found = {
        ours: theirs
        for ours, theirs in match_names(names, rows.columns).items()
        if rows.schema[theirs].is_numeric()
        and not rows.select(
            _known(theirs).drop_nulls().is_in([0.0, float(ours == "split_ratio")]).all()
        ).item()
    }
    if not found:
        return rows
    renamed = rows.rename({theirs: ours for ours, theirs in found.items()})
    if "split_ratio" in found and rows.schema["close"].is_numeric():
        traded = renamed.with_columns(_known("close"), _known("split_ratio")).drop_nulls("close")
        if shows_splits(traded.sort("ticker", "date")):
            return renamed
    columns, verb = ("columns", "are") if len(found) > 1 else ("column", "is")
    warnings.warn(
        f"The {columns} {' and '.join(found.values())} of the prices {verb} not used, as closes count as "
        f"adjusted; if they are as quoted, rename to {' and '.join(found)}.",
        stacklevel=2,
    )
    return rows


def _known(column: str) -> pl.Expr:
    """A column as float64, null where there is no number."""
    return pl.col(column).cast(pl.Float64).fill_nan(None)


def _on_sessions(rows: pl.DataFrame) -> pl.DataFrame:
    """Drop rows without a close; their splits and dividends stay, or move to the next date with a close.

    A dividend is per share after its own split, so one that moves is divided by the splits that follow it.
    """
    traded = pl.col("close").is_not_null()
    ratio, paid = _known("split_ratio").fill_null(1.0), _known("dividend").fill_null(0.0)
    sessions = rows.filter(traded).select("date").unique().sort("date")
    if sessions.is_empty():
        raise DataError("The prices have no close at all: give one above 0 for each firm and session.")
    kept = rows.filter(traded | (ratio != 1.0) | (paid != 0.0))
    away = kept.join(sessions, on="date", how="anti").sort("date")
    if away.is_empty():
        return kept
    away = away.join_asof(sessions.with_columns(session="date"), on="date", strategy="forward")
    away = away.drop_nulls("session")
    kept = kept.join(sessions, on="date", how="semi").with_columns(session="date")
    merged = (
        pl.concat([away, kept.join(away, on=["session", "ticker"], how="semi")])
        .group_by("session", "ticker", maintain_order=True)
        .agg(
            pl.exclude("date", "ticker", "session", "split_ratio", "dividend").last(),
            split_ratio=ratio.product(),
            dividend=(paid * ratio.cum_prod()).sum() / ratio.product(),
        )
    )
    others = kept.join(away, on=["session", "ticker"], how="anti").drop("session")
    merged = merged.rename({"session": "date"}).select(others.columns)
    return pl.concat([others, merged], how="vertical_relaxed")


def price_panel(prices: Frame) -> Panel:
    """Build the panel of a frame of prices (`price_rows`)."""
    try:
        return build_panel(price_rows(prices))
    except ValueError as error:
        raise DataError(str(error)) from None


def page_table(title: str, heading: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Small HTML table for a notebook, of at most five rows; names from data are shortened and escaped."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{_short(cell, 24)}</{tag}>" for cell in cells) + "</tr>"

    every = list(rows)
    more = f"<p>{len(every) - _ROWS} more rows</p>" if len(every) > _ROWS else ""
    body = "".join(line(cells, "td") for cells in every[:_ROWS])
    below = f"<p>{_short(note, 240)}</p>" if note else ""
    return f"<b>{_short(title, 80)}</b><table>{line(heading, 'th')}{body}</table>{more}{below}"


_ROWS = 5


def _short(text: str, most: int) -> str:
    """Shorten and escape a text."""
    return html.escape(text if len(text) <= most else f"{text[: most - 3]}...")
