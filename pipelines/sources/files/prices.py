"""Prices from a user's files: long (one row per bar), wide (columns per ticker), or one file per ticker.

Where a vendor gives factors, adjusted closes or returns instead of splits and dividends, these follow from
ratios of two neighbouring sessions. What the vendor changed later, because of a later split, is in both and
cancels, so nothing looks ahead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final, Literal

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.lake.source_tables import within_range
from pipelines.sources.base import plain_tickers
from pipelines.sources.files.layouts import BAR, LAYOUTS, VENDOR, Layout, fields_of
from pipelines.sources.files.opening import UNNAMED, abbreviate, collect, columns_of, file_label, scan
from pipelines.sources.files.reading import ReadOptions, as_text, concat_parts, read_number

Arrangement = Literal["long", "wide", "file_per_ticker"]
REQUIRED: Final = ("date", "ticker", "close")
OPTIONAL: Final = (*BAR, "volume", "split_ratio", "dividend", *VENDOR)
DELISTINGS: Final = ("delisting_return", "delisting_reason")
"""Columns of a price file that describe the end of a listing, in the row of the day on which it ends."""
_STORED: Final = tuple(name for name in OPTIONAL if name not in VENDOR)
_DECORATION: Final = re.compile(
    r"^(?:(?:time_series_)?(?:daily|weekly|monthly)_(?:adjusted_)?)"
    r"|[ _-](?:historical[ _]data|historische daten|stock[ _]price[ _]history|daily|1d|prices?|history)$",
    re.IGNORECASE,
)
"""What vendors write around the ticker in the name of a file."""


def read_prices(
    files: Sequence[Path],
    options: ReadOptions,
    start: date | None,
    end: date | None,
    *,
    arrangement: Arrangement = "long",
    layout: str | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame | None, list[str]]:
    """Read rows of (date, ticker, close, ...), one per session and firm, from ``start`` to ``end``.

    An open, high or low of zero means "not known", and a split ratio of zero "no split". So does an open
    outside the day's range if the close is inside it (vendors leave opens unadjusted for later splits). All
    are counted in the notes.

    ``arrangement`` is ``long`` (a row per date and ticker), ``wide`` (a column of closes per ticker, or
    several under a header of two lines; an empty close gives no row), or ``file_per_ticker`` (a file per
    ticker, named after it). ``layout`` names a vendor's (`pipelines.sources.files.layouts.LAYOUTS`).

    Returns prices by date and ticker; ticker, date and `DELISTINGS` where the file has them; notes.

    Raises DataError if a file is unreadable or lacks a column, two tickers are written alike, or no row is
    within the dates.
    """
    convention = LAYOUTS[layout] if layout is not None else Layout("", ())
    notes: list[str] = []
    given, files = files, [file for file in files if file.stat().st_size] or files
    if len(files) < len(given):
        notes.append(f"{len(given) - len(files):,} of {len(given):,} files are empty.")
    if arrangement == "wide":
        frame = _read_wide(files, options, notes)
    else:
        wanted = (*OPTIONAL, *DELISTINGS) if layout == "crsp" else OPTIONAL
        frame = _read_long(files, options, wanted, convention, notes, named=arrangement == "file_per_ticker")
    frame, about_tickers = _with_plain_tickers(options.dates(frame, ["date"]), files)
    notes += about_tickers
    numbers = [c for c in ("close", *OPTIONAL, "delisting_return") if c in frame.columns]
    frame = options.numbers(frame, numbers)
    frame, about_values = _apply_convention(frame, convention)
    delistings = None
    if ended := [c for c in DELISTINGS if c in frame.columns]:
        delistings = frame.select("ticker", "date", *ended).filter(
            pl.any_horizontal(pl.col(ended).is_not_null())
        )
        frame = frame.drop(ended).filter(pl.col("close").is_not_null())
    if convention.note:
        notes.append(f"{file_label(files)} is read as {convention.title}. {convention.note}")
    frame = with_splits_and_dividends(frame)
    notes += [*about_values, *_note_absent_columns(frame, files)]
    frame = within_dates(frame, files, start, end)
    frame, bar_notes = _clear_invalid_bars(frame)
    return frame.sort("date", "ticker", maintain_order=True), delistings, notes + bar_notes


def _read_long(
    files: Sequence[Path],
    options: ReadOptions,
    optional: Sequence[str],
    convention: Layout,
    notes: list[str],
    *,
    named: bool,
) -> pl.DataFrame:
    if named:
        parts = []
        empty = 0
        for file in files:
            part = options.read_columns([file], ("date", "close"), optional, fall_back=False)
            empty += part.is_empty()
            parts.append(part.with_columns(ticker=pl.lit(ticker_of(file))))
        if empty:
            notes.append(f"{empty:,} of {len(files):,} files have no row.")
        return concat_parts(parts)
    issue = () if convention.issue is None else ("issue",)
    if issue:
        options = options.with_name("issue", convention.issue or "")
    frame = options.read_columns(files, REQUIRED, (*optional, *issue), fall_back=False)
    if "issue" not in frame.columns:
        return frame
    first = pl.col("issue") == pl.col("issue").min().over("ticker")
    whole = pl.concat_str(as_text("ticker"), as_text("issue"), separator=".")
    return frame.with_columns(
        pl.when(first.fill_null(value=True)).then(as_text("ticker")).otherwise(whole).alias("ticker")
    ).drop("issue")


def _read_wide(files: Sequence[Path], options: ReadOptions, notes: list[str]) -> pl.DataFrame:
    """Read files with a date column and columns per ticker; an empty close gives no row."""
    parts: list[pl.DataFrame] = []
    empty = 0
    for file in files:
        rows = scan(file, options.text)
        available = columns_of(rows, file)
        day = options.column_name("date", available, file)
        by_ticker = fields_of(available)
        if by_ticker:
            long = _firms_below_each_other(collect(rows, file), day, by_ticker, options, file)
        else:
            names = [name for name in available if name != day and name not in UNNAMED]
            if not names:
                raise DataError(
                    f"{file} has no column besides {day}: a wide file needs one column per ticker"
                )
            if "close" in options.columns:
                raise ConfigError(
                    f"columns maps close, but each other column of {file} is a ticker, as layout: wide says; "
                    "remove the entry"
                )
            if "ticker" in available or "close" in available:
                raise DataError(f"{file} has the columns {abbreviate(available)}: set source.layout to long")
            frame = collect(rows, file)
            numeric = all(frame.schema[name].is_numeric() for name in names)
            frame = frame.with_columns(pl.col(names).cast(pl.Float64 if numeric else pl.String))
            long = frame.unpivot(names, index=day, variable_name="ticker", value_name="close")
            long = long.rename({day: "date"})
        long = read_number(long.with_columns(as_text("ticker")), "close")
        empty += long["close"].null_count()
        parts.append(long.drop_nulls("close"))
    if empty:
        notes.append(f"{empty:,} cells of {file_label(files)} hold no close and give no row.")
    return concat_parts(parts)


def _firms_below_each_other(
    frame: pl.DataFrame,
    day: str,
    by_ticker: Mapping[str, Mapping[str, str]],
    options: ReadOptions,
    file: Path,
) -> pl.DataFrame:
    """Turn the columns (field, ticker) of a wide file into rows."""
    parts = []
    for ticker, fields in by_ticker.items():
        names = {
            ours: fields[theirs]
            for ours, theirs in options.match(list(fields)).items()
            if ours in ("close", *OPTIONAL)
        }
        if "close" not in names:
            raise DataError(
                f"{file} has no closes of {ticker}; its columns are {abbreviate(list(fields))}: map one in "
                "source.columns, as close: <name in the file>"
            )
        parts.append(
            frame.select(
                pl.col(day).alias("date"),
                pl.lit(ticker).alias("ticker"),
                *(pl.col(theirs).alias(ours) for ours, theirs in names.items()),
            )
        )
    whole = concat_parts(parts)
    return whole.select(one.name for one in whole if one.name in REQUIRED or one.null_count() < len(one))


def ticker_of(file: Path) -> str:
    """Return the ticker that a file's name gives.

    >>> ticker_of(Path("BRK.B.csv")), ticker_of(Path("daily_adjusted_IBM.csv"))
    ('BRK.B', 'IBM')
    """
    stem = re.sub(r"\.gz$", "", file.name, flags=re.IGNORECASE).rpartition(".")[0]
    return _DECORATION.sub("", stem)


def _with_plain_tickers(frame: pl.DataFrame, files: Sequence[Path]) -> tuple[pl.DataFrame, list[str]]:
    """Write tickers as they are stored; note one that changes, and refuse two that become the same."""
    given = frame.select(as_text("ticker")).unique().drop_nulls().sort("ticker")
    names = given.with_columns(plain_tickers(pl.col("ticker")).alias("plain"))
    changed = names.filter(pl.col("ticker") != pl.col("plain"))
    twins = names.filter(pl.col("plain").is_duplicated()).sort("plain", "ticker")
    if twins.height:
        raise DataError(
            f"{file_label(files)} has the tickers {twins['ticker'][0]!r} and {twins['ticker'][1]!r}, which "
            f"would both be stored as {twins['plain'][0]}: rename one"
        )
    frame = frame.with_columns(plain_tickers(as_text("ticker")).alias("ticker"))
    if changed.is_empty():
        return frame, []
    return frame, [
        f"{changed.height:,} tickers of {file_label(files)} are written with letters, digits and . - _ ^ = "
        f"alone: {changed['ticker'][0]!r} is {changed['plain'][0]}."
    ]


def _apply_convention(frame: pl.DataFrame, convention: Layout) -> tuple[pl.DataFrame, list[str]]:
    """Read the values by which a vendor says "not known" or "not traded", and count them in notes."""
    notes: list[str] = []
    for column, codes in convention.unknown.items():
        if column not in frame.columns:
            continue
        number = pl.col(column).cast(pl.Float64, strict=False)
        unknown = number.is_in(codes)
        if frame.schema[column] == pl.String and "return" in column:
            unknown = unknown | number.is_null()  # letters are codes of missing returns
        count = int(frame.select((unknown & pl.col(column).is_not_null()).sum()).item())
        if count:
            notes.append(f"{count:,} values of {column} are codes for not known.")
        frame = frame.with_columns(pl.when(~unknown).then(pl.col(column)).alias(column))
        if "return" in column:
            frame = frame.with_columns(pl.col(column).cast(pl.Float64, strict=False))
    if convention.midpoints and frame.schema["close"].is_numeric():
        midpoint = (pl.col("close") < 0).fill_null(value=False)
        count = int(frame.select(midpoint.sum()).item())
        if count:
            notes.append(
                f"{count:,} closes are negative, which marks the midpoint of bid and ask on a day without a "
                "trade: they are read without the sign, with a volume of 0."
            )
        others = [c for c in BAR if c in frame.columns]
        frame = frame.with_columns(
            pl.col("close").abs(),
            *(pl.when(~midpoint).then(pl.col(c)).alias(c) for c in others),
            *(
                pl.when(midpoint).then(0.0).otherwise(pl.col(c)).alias(c)
                for c in ("volume",)
                if c in frame.columns
            ),
        )
    if "split_ratio" in frame.columns and frame.schema["split_ratio"].is_numeric():
        zeros = int((frame["split_ratio"] == 0).sum())
        if zeros:
            notes.append(f"{zeros:,} rows have split_ratio = 0, which is read as no split.")
        frame = frame.with_columns(pl.col("split_ratio").replace(0.0, 1.0))
    return frame, notes


def day(frame: pl.DataFrame) -> pl.Expr:
    """Return the date column of a frame from `ReadOptions.dates`; null where a date is unreadable."""
    value = pl.col("date")
    return value if frame.schema["date"] == pl.Date else value.str.to_date("%Y-%m-%d", strict=False)


def within_dates(
    frame: pl.DataFrame, files: Sequence[Path], start: date | None, end: date | None
) -> pl.DataFrame:
    """Keep the rows within the dates, and rows with an unreadable date, which the contract rejects."""
    name = str(files[0]) if len(files) == 1 else file_label(files)
    if frame.is_empty():
        raise DataError(f"{name} has a header but no rows: use a file with values")
    read = day(frame)
    kept = frame
    if start is not None:
        kept = kept.filter((read >= start).fill_null(value=True))
    if end is not None:
        kept = kept.filter((read <= end).fill_null(value=True))
    if kept.is_empty():
        first, last = frame.select(read.min().alias("first"), read.max().alias("last")).row(0)
        raise DataError(
            f"{name} has no rows from {start or 'its start'} to {end or 'its end'}; it has "
            f"{first} to {last}: extend the dates"
        )
    return kept


def _note_absent_columns(frame: pl.DataFrame, files: Sequence[Path]) -> list[str]:
    absent = [c for c in _STORED if c not in frame.columns]
    if not absent:
        return []
    note = f"{file_label(files)} has no {', '.join(absent)}"
    if "split_ratio" in absent or "dividend" in absent:
        note += "; without split ratios or dividends, prices are used as they are"
    return [f"{note}."]


def _clear_invalid_bars(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Set opens, highs and lows that mean "not known" to null, and count them in notes."""
    notes: list[str] = []
    bars = [c for c in BAR if c in frame.columns and frame.schema[c].is_numeric()]
    for column in bars:
        zeros = int((frame[column] == 0).sum())
        if zeros:
            notes.append(f"{zeros:,} rows have {column} = 0, which is treated as not known.")
    frame = frame.with_columns(pl.when(pl.col(c) != 0).then(pl.col(c)).alias(c) for c in bars)
    if {*bars} == {*BAR} and frame.schema["close"].is_numeric():
        sound = (pl.col("high") >= pl.col("low")) & within_range("close") & (pl.col("open") > 0)
        stray = (sound & ~within_range("open")).fill_null(value=False)
        strays = int(frame.select(stray.sum()).item())
        if strays:
            notes.append(
                f"{strays:,} rows have an open outside [low, high] but a close inside it: the open is "
                "treated as not known."
            )
            frame = frame.with_columns(pl.when(~stray).then(pl.col("open")).alias("open"))
    return frame, notes


_LEAST_SPLIT: Final = math.log(1.2)
"""Smallest factor, up or down and as a logarithm, between two closes that is read as a split where the file
has no splits. A smaller one is a dividend."""
_PRECISION: Final = 1e-6
"""Relative error of prices in single precision, and of their ratio."""
_DIGITS: Final = 8


def with_splits_and_dividends(prices: pl.DataFrame) -> pl.DataFrame:
    """Replace a vendor's columns by ``split_ratio`` and ``dividend``, where the file does not have these.

    ``split_ratio`` is the previous ``price_factor`` over the session's own. The growth of what a holder has
    is that of ``adjusted_close``, or ``1 + total_return``. What it has beyond the change of the close and the
    split is paid out: ``dividend = close * (growth * previous close / (close * split ratio) - 1)``. With
    ``price_return`` it is ``(total return - price return) * previous close / split ratio``. Differences that
    the rounding of the file explains are no dividends. Without a factor, a growth of 1.2 times that of the
    close, or more, is a split.

    ``prices`` has date, ticker, close, and some of `pipelines.sources.files.layouts.VENDOR`; numbers are
    floats, and text only if a value is unreadable. The rows are returned by ticker and date.
    """
    given = [name for name in VENDOR if name in prices.columns]
    if not given:
        return prices
    unread = [name for name in ("close", *given) if not prices.schema[name].is_numeric()]
    prices = prices.with_columns(pl.col(unread).cast(pl.Float64, strict=False).name.prefix("_"))
    rows = prices.sort("ticker", "date").with_columns(
        pl.col(f"_{name}" if name in unread else name).shift().over("ticker").alias(f"previous_{name}")
        for name in ("close", *given)
    )

    def value(name: str) -> pl.Expr:
        return pl.col(f"_{name}" if name in unread else name)

    close, before = value("close"), pl.col("previous_close")
    if "split_ratio" not in rows.columns and "price_factor" in given:
        ratio = pl.col("previous_price_factor") / value("price_factor")
        rows = rows.with_columns(split_ratio=_or_one(ratio.round_sig_figs(_DIGITS)))
    if "dividend" not in rows.columns and {"total_return", "price_return"} <= {*given}:
        split = pl.col("split_ratio") if "split_ratio" in rows.columns else pl.lit(1.0)
        paid = value("total_return") - value("price_return")
        is_paid = paid > 2.5 * _unit(rows, "total_return")
        rows = rows.with_columns(_or_zero(is_paid, paid * before / split))
    elif "dividend" not in rows.columns and ("adjusted_close" in given or "total_return" in given):
        unit = _unit(rows, "close")
        rounding = unit / close + unit / before + _PRECISION
        if "adjusted_close" in given:
            growth = value("adjusted_close") / pl.col("previous_adjusted_close")
            unit = _unit(rows, "adjusted_close")
            rounding += unit / value("adjusted_close") + unit / pl.col("previous_adjusted_close")
        else:
            growth = 1.0 + value("total_return")
            rounding += 2.0 * _unit(rows, "total_return")
        beyond = growth * before / close
        if "split_ratio" not in rows.columns:
            is_split = beyond.log().abs() >= _LEAST_SPLIT
            rows = rows.with_columns(split_ratio=_or_one(pl.when(is_split).then(beyond)))
        paid = beyond / pl.col("split_ratio") - 1.0
        rows = rows.with_columns(_or_zero((paid > rounding) & paid.is_finite(), paid * close))
    return rows.select(
        pl.exclude(*given, *(f"previous_{c}" for c in ("close", *given)), *(f"_{c}" for c in unread))
    )


def _or_one(ratio: pl.Expr) -> pl.Expr:
    """Return a ratio, or 1 where it is unknown."""
    return pl.when(ratio.is_finite() & (ratio > 0)).then(ratio).otherwise(1.0)


def _or_zero(is_paid: pl.Expr, paid: pl.Expr) -> pl.Expr:
    """Return the dividend: 0 where nothing is paid, or nothing is known."""
    return pl.when(is_paid).then(paid).otherwise(0.0).fill_null(0.0).alias("dividend")


def _unit(rows: pl.DataFrame, column: str) -> float:
    """Return half of the last decimal place in which a column is written."""
    numbers = rows[column].cast(pl.Float64, strict=False).drop_nulls()
    for digits in range(2, _DIGITS):
        scaled = numbers * 10.0**digits
        written = (scaled - scaled.round()).abs() <= 1e-6
        if numbers.is_empty() or float(written.sum()) >= 0.999 * len(numbers):
            return float(0.5 * 10.0**-digits)
    return 0.0
