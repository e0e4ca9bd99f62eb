"""Prices from a user's files: long (one row per bar), wide (columns per ticker), or one file per ticker.

Where a vendor gives factors, adjusted closes or returns instead of splits and dividends, these follow from
ratios of two neighbouring sessions. What the vendor changed later, because of a later split, is in both and
cancels, so nothing looks ahead.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.format import abbreviate
from pipelines.lake.schemas import within_range
from pipelines.sources.base import plain_tickers
from pipelines.sources.files.layouts import BAR, LAYOUTS, VENDOR, Layout, fields_of
from pipelines.sources.files.opening import collect, is_unnamed
from pipelines.sources.files.reading import GivenFiles, as_text, concat_parts, read_number, within_dates

REQUIRED: Final = ("date", "ticker", "close")
_STORED: Final = (*BAR, "volume", "split_ratio", "dividend")
OPTIONAL: Final = (*_STORED, *VENDOR)
DELISTINGS: Final = ("delisting_return", "delisting_reason")  # in the row of the day on which it ends
_DECORATION: Final = re.compile(  # what vendors write around the ticker in the name of a file
    r"^(?:(?:time_series_)?(?:daily|weekly|monthly)_(?:adjusted_)?)"
    r"|[ _-](?:historical[ _]data|historische daten|stock[ _]price[ _]history|daily|1d|prices?|history)$",
    re.IGNORECASE,
)


def read_prices(given: GivenFiles) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Read rows of (date, ticker, close, ...) within the config's dates, and ticker, date and `DELISTINGS`.

    An open, high or low of 0, and an open outside the day's range around the close, mean "not known", a split
    ratio of 0 "no split"; all are counted in the notes.
    """
    vendor = given.config.vendor
    layout = LAYOUTS[vendor] if vendor is not None else Layout()
    filled = [file for file in given.files if file.stat().st_size] or given.files
    given.note(f"# of {len(given.files):,} files are empty.", len(given.files) - len(filled))
    given = replace(given, files=filled)
    match given.config.layout:
        case "wide":
            frame = _read_wide(given)
        case "file_per_ticker":
            parts = [
                replace(given, files=[file])
                .read(("date", "close"), OPTIONAL)
                .with_columns(ticker=pl.lit(ticker_of(file)))
                for file in given.files
            ]
            given.note(f"# of {len(parts):,} files have no row.", sum(part.is_empty() for part in parts))
            frame = concat_parts(parts)
        case "long":
            frame = _read_long(given, (*OPTIONAL, *DELISTINGS) if vendor == "crsp" else OPTIONAL, layout)
    frame = _with_plain_tickers(given.dates(frame, ["date"]), given)
    numbers = [c for c in ("close", *OPTIONAL, "delisting_return") if c in frame.columns]
    frame = _without_codes(given.numbers(frame, numbers), layout, given)
    ended = [c for c in DELISTINGS if c in frame.columns]
    delistings = None
    if ended:
        known = pl.any_horizontal(pl.col(ended).is_not_null())
        delistings = frame.select("ticker", "date", *ended).filter(known)
        frame = frame.drop(ended).filter(pl.col("close").is_not_null())
    if layout.note:
        given.note(f"{given.label} is read as {layout.title}. {layout.note}")
    frame = with_splits_and_dividends(_events_at_closes(frame, given))
    if absent := [c for c in _STORED if c not in frame.columns]:
        unadjusted = "; without split ratios or dividends, prices are used as they are"
        cured = not {"split_ratio", "dividend"} & {*absent}
        given.note(f"{given.label} has no {', '.join(absent)}{'' if cured else unadjusted}.")
    frame = _clear_invalid_bars(within_dates(frame, given), given)
    return frame.sort("date", "ticker", maintain_order=True), delistings


def _read_long(given: GivenFiles, optional: tuple[str, ...], layout: Layout) -> pl.DataFrame:
    """Read a row per bar; of a firm with several issues, those after the first are named TICKER.ISSUE."""
    if layout.issue is None:
        return given.read(REQUIRED, optional)
    given = replace(given, names={**given.names, "issue": (layout.issue,)})
    frame = given.read(REQUIRED, (*optional, "issue"))
    if "issue" not in frame.columns:
        return frame
    first = (pl.col("issue") == pl.col("issue").min().over("ticker")).fill_null(value=True)
    whole = pl.concat_str(as_text("ticker"), as_text("issue"), separator=".")
    ticker = pl.when(first).then(as_text("ticker")).otherwise(whole)
    return frame.with_columns(ticker=ticker).drop("issue")


def _read_wide(given: GivenFiles) -> pl.DataFrame:
    """Read files with a date column and columns per ticker; an empty close gives no row."""
    parts: list[pl.DataFrame] = []
    empty = 0
    for file in given.files:
        rows, available = given.open(file)
        day = given.column_name("date", available, file)
        by_ticker = fields_of(available)
        names = [name for name in available if name != day and not is_unnamed(name)]
        if not names:
            raise DataError(f"{file} has no column besides {day}: a wide file needs one column per ticker")
        if not by_ticker and "close" in given.columns:
            raise ConfigError(
                f"columns maps close, but each other column of {file} is a ticker, as layout: wide says; "
                "remove the entry"
            )
        if not by_ticker and ("ticker" in available or "close" in available):
            raise DataError(f"{file} has the columns {abbreviate(available)}: set source.layout to long")
        frame = collect(rows, file)
        if by_ticker:
            long = _firms_below_each_other(frame, day, by_ticker, given, file)
        else:
            long = unpivot(frame, names, [day], "ticker", "close").rename({day: "date"})
        long = read_number(long.with_columns(as_text("ticker")), "close")
        empty += long["close"].null_count()
        parts.append(long.drop_nulls("close"))
    given.note(f"# cells of {given.label} hold no close and give no row.", empty)
    return concat_parts(parts)


def unpivot(frame: pl.DataFrame, columns: list[str], index: list[str], name: str, value: str) -> pl.DataFrame:
    """Write columns below each other, as numbers if all of them are numeric, and as text if not."""
    numeric = all(frame.schema[column].is_numeric() for column in columns)
    frame = frame.with_columns(pl.col(columns).cast(pl.Float64 if numeric else pl.String))
    return frame.unpivot(columns, index=index, variable_name=name, value_name=value)


def _firms_below_each_other(
    frame: pl.DataFrame, day: str, by_ticker: Mapping[str, Mapping[str, str]], given: GivenFiles, file: Path
) -> pl.DataFrame:
    """Turn the columns (field, ticker) of a wide file into rows."""
    parts = []
    for ticker, fields in by_ticker.items():
        found = given.match(list(fields))
        names = {ours: fields[theirs] for ours, theirs in found.items() if ours in ("close", *OPTIONAL)}
        if "close" not in names:
            raise DataError(
                f"{file} has no closes of {ticker}; its columns are {abbreviate(list(fields))}: map one in "
                "source.columns, as close: <name in the file>"
            )
        values = (pl.col(theirs).alias(ours) for ours, theirs in names.items())
        parts.append(frame.select(pl.col(day).alias("date"), pl.lit(ticker).alias("ticker"), *values))
    whole = concat_parts(parts)
    return whole.select(one.name for one in whole if one.name in REQUIRED or one.null_count() < len(one))


def ticker_of(file: Path) -> str:
    """Return the ticker that a file's name gives.

    >>> ticker_of(Path("BRK.B.csv")), ticker_of(Path("daily_adjusted_IBM.csv"))
    ('BRK.B', 'IBM')
    """
    stem = re.sub(r"\.gz$", "", file.name, flags=re.IGNORECASE).rpartition(".")[0]
    return _DECORATION.sub("", stem)


def _with_plain_tickers(frame: pl.DataFrame, given: GivenFiles) -> pl.DataFrame:
    """Write tickers as they are stored; note one that changes, and refuse two that become the same."""
    tickers = frame.select(as_text("ticker")).unique().drop_nulls().sort("ticker")
    names = tickers.with_columns(plain_tickers(pl.col("ticker")).alias("plain"))
    twins = names.filter(pl.col("plain").is_duplicated()).sort("plain", "ticker")
    if twins.height:
        raise DataError(
            f"{given.label} has the tickers {twins['ticker'][0]!r} and {twins['ticker'][1]!r}, which "
            f"would both be stored as {twins['plain'][0]}: rename one"
        )
    if (changed := names.filter(pl.col("ticker") != pl.col("plain"))).height:
        example = f"{changed['ticker'][0]!r} is {changed['plain'][0]}"
        what = f"# tickers of {given.label} are written with letters, digits and . - _ ^ = alone: {example}."
        given.note(what, changed.height)
    return frame.with_columns(plain_tickers(as_text("ticker")).alias("ticker"))


def _without_codes(frame: pl.DataFrame, layout: Layout, given: GivenFiles) -> pl.DataFrame:
    """Read the values by which a vendor says "not known" or "not traded"."""
    for column, codes in layout.unknown.items():
        if column not in frame.columns:
            continue
        number = _number(column)
        unknown = number.is_in(codes).fill_null(value=False)
        if frame.schema[column] == pl.String and "return" in column:
            unknown = unknown | number.is_null()  # letters are codes of missing returns
        coded = _count(frame, unknown & pl.col(column).is_not_null())
        given.note(f"# values of {column} are codes for not known.", coded)
        value = number if "return" in column else pl.col(column)
        frame = frame.with_columns(pl.when(~unknown).then(value).alias(column))
    if layout.midpoints:
        midpoint = (_number("close") < 0).fill_null(value=False)
        given.note(
            "# closes are negative, which marks the midpoint of bid and ask on a day without a "
            "trade: they are read without the sign, with a volume of 0.",
            _count(frame, midpoint),
        )
        on_midpoints = {c: pl.lit(0.0 if c == "volume" else None) for c in (*BAR, "volume")}
        on_midpoints["close"] = _number("close").abs()
        frame = frame.with_columns(
            _replaced(c, midpoint, new) for c, new in on_midpoints.items() if c in frame.columns
        )
    if "split_ratio" in frame.columns:
        zero = (_number("split_ratio") == 0).fill_null(value=False)
        given.note("# rows have split_ratio = 0, which is read as no split.", _count(frame, zero))
        frame = frame.with_columns(_replaced("split_ratio", zero, pl.lit(1.0)))
    return frame


def _clear_invalid_bars(frame: pl.DataFrame, given: GivenFiles) -> pl.DataFrame:
    """Set opens, highs and lows that mean "not known" to null."""
    bars = [c for c in BAR if c in frame.columns]
    for column in bars:
        zero = (_number(column) == 0).fill_null(value=False)
        given.note(f"# rows have {column} = 0, which is treated as not known.", _count(frame, zero))
        frame = frame.with_columns(_replaced(column, zero, pl.lit(None)))
    if {*bars} == {*BAR}:
        sound = (pl.col("high") >= pl.col("low")) & within_range("close") & (pl.col("open") > 0)
        numbers = frame.select(_number(c) for c in (*BAR, "close"))
        stray = pl.lit(numbers.select((sound & ~within_range("open")).fill_null(value=False)).to_series())
        what = "rows have an open outside [low, high] but a close inside it: the open is treated as not known"
        given.note(f"# {what}.", _count(frame, stray))
        frame = frame.with_columns(_replaced("open", stray, pl.lit(None)))
    return frame


def _number(column: str) -> pl.Expr:
    """Return a column as numbers: one with an unreadable value is text, and its other rows are numbers."""
    return pl.col(column).cast(pl.Float64, strict=False)


def _replaced(column: str, where: pl.Expr, value: pl.Expr) -> pl.Expr:
    """Return a column, of numbers or text, with another value in some rows."""
    return pl.when(where).then(value).otherwise(pl.col(column)).alias(column)


def _count(frame: pl.DataFrame, condition: pl.Expr) -> int:
    return int(frame.select(condition.sum()).item())


def _events_at_closes(prices: pl.DataFrame, given: GivenFiles) -> pl.DataFrame:
    """Move splits and dividends of rows without a close, which are not stored, to the firm's next close.

    A dividend is then per share after the splits in between.
    """
    split, paid = (
        pl.when(_number(name) > 0).then(_number(name)).fill_null(none)
        if name in prices.columns
        else pl.lit(none)
        for name, none in (("split_ratio", 1.0), ("dividend", 0.0))
    )
    rows = prices.with_columns(
        (_number("close") > 0).fill_null(value=False).alias(":known"),
        split.alias(":split"),
        paid.alias(":paid"),
    )
    known, split, paid = pl.col(":known"), pl.col(":split"), pl.col(":paid")
    moved = ~known & ((split != 1.0) | (paid != 0.0))
    count = _count(rows, moved)
    given.note("# splits or dividends of days without a close are those of the next one.", count)
    if not count:
        return prices
    rows = rows.sort("ticker", "date", maintain_order=True)
    rows = rows.with_columns((known.cum_sum() - known.cast(pl.UInt32)).over("ticker").alias(":until"))
    until = ("ticker", ":until")  # a close and the rows without one before it
    receives = known & moved.any().over(until)
    whole, so_far = split.product().over(until), split.cum_prod().over(until)
    events = {"split_ratio": whole, "dividend": (paid * so_far / whole).sum().over(until)}
    return rows.with_columns(
        _replaced(name, receives & (_number(name).is_not_null() | pl.col(name).is_null()), event)
        for name, event in events.items()
        if name in prices.columns
    ).select(prices.columns)


_LEAST_SPLIT: Final = math.log(1.2)  # least factor between closes that is no dividend, if no splits are given
_PRECISION: Final = 1e-6  # relative error of prices in single precision, and of their ratio
_DIGITS: Final = 8


def with_splits_and_dividends(prices: pl.DataFrame) -> pl.DataFrame:
    """Replace a vendor's columns by ``split_ratio`` and ``dividend``, where the file does not have these.

    ``split_ratio``: previous over own ``price_factor``; without it, a growth of 1.2 times the close's, or
    more, is a split. Growth is that of ``adjusted_close``, or ``1 + total_return``. ``dividend = close *
    (growth * previous close / (close * split ratio) - 1)``, or with ``price_return``, ``(total return - price
    return) * previous close / split ratio``, unless rounding explains it.
    """
    given = [name for name in VENDOR if name in prices.columns]
    if not given:
        return prices
    number = pl.col("close", *given).cast(pl.Float64, strict=False)
    rows = prices.sort("ticker", "date").with_columns(number.name.prefix("now_"))
    # what happened while there was no close is found at the next one; repeated rows have one row before them
    usable = pl.all_horizontal(
        pl.col(f"now_{c}") > 0 for c in ("close", "adjusted_close") if c in rows.columns
    )
    known = pl.when(usable).then(pl.col("^now_.*$")).forward_fill().shift()
    key = ("ticker", "date")
    repeated = pl.all_horizontal(pl.col(c) == pl.col(c).shift() for c in key).fill_null(value=False)
    was = pl.when(~repeated).then(known.over("ticker")).forward_fill().over("ticker")
    rows = rows.with_columns(was.name.replace("^now_", "was_"))
    close, before = pl.col("now_close"), pl.col("was_close")
    if "split_ratio" not in rows.columns and "price_factor" in given:
        ratio = pl.col("was_price_factor") / pl.col("now_price_factor")
        rows = rows.with_columns(split_ratio=_or_one(ratio.round_sig_figs(_DIGITS)))
    if "dividend" not in rows.columns and {"total_return", "price_return"} <= {*given}:
        split = pl.col("split_ratio") if "split_ratio" in rows.columns else pl.lit(1.0)
        paid = pl.col("now_total_return") - pl.col("now_price_return")
        is_paid = paid > 2.5 * _unit(rows, "total_return")
        rows = rows.with_columns(_or_zero(is_paid, paid * before / split))
    elif "dividend" not in rows.columns and ("adjusted_close" in given or "total_return" in given):
        unit = _unit(rows, "close")
        rounding = unit / close + unit / before + _PRECISION
        if "adjusted_close" in given:
            adjusted, earlier = pl.col("now_adjusted_close"), pl.col("was_adjusted_close")
            growth, unit = adjusted / earlier, _unit(rows, "adjusted_close")
            rounding += unit / adjusted + unit / earlier
        else:
            growth = 1.0 + pl.col("now_total_return")
            rounding += 2.0 * _unit(rows, "total_return")
        beyond = growth * before / close
        if "split_ratio" not in rows.columns:
            is_split = beyond.log().abs() >= _LEAST_SPLIT
            rows = rows.with_columns(split_ratio=_or_one(pl.when(is_split).then(beyond)))
        paid = beyond / pl.col("split_ratio") - 1.0
        rows = rows.with_columns(_or_zero((paid > rounding) & paid.is_finite(), paid * close))
    return rows.select(pl.exclude(*given, "^now_.*$", "^was_.*$"))


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
