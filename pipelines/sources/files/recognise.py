"""Recognise a price file: its format, layout, columns and dates, so that a config can be written for it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.format import abbreviate
from pipelines.sources.files import layouts, opening, reading
from pipelines.sources.files.prices import ticker_of
from pipelines.sources.settings import Arrangement, FilesSourceConfig

_FORMATS: Final = ("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%d-%b-%Y",
                   "%d %b %Y", "%b %d, %Y", "%Y.%m.%d", "%d%b%Y", "%B %d, %Y", "%d-%b-%y", "%Y年%m月%d日",
                   "%m/%d/%y", "%d/%m/%y", "%d.%m.%y", "%Y-%m", "%Y%m", "%m/%Y")  # fmt: skip
_CURE: Final = "write them as 2020-01-31, or give one with --date-format, such as %d.%m.%Y"
_YEARS: Final = (1900, 2100)
_UNREAD: Final = 0.1  # largest share of dates without the format of the others
_COLUMNS_OF_A_SERIES: Final = 2  # dates and closes
_CLEAR_SPLIT: Final = 0.18  # a factor of 1.2, as a logarithm
_MOST: Final = 0.5
_NUMBER: Final = r"^\d+(\.\d*)?$"


def recognise_prices(path: Path, date_format: str | None = None) -> tuple[FilesSourceConfig, tuple[str, ...]]:
    """Return the settings of a source that reads a price file, and the columns that are not used as prices.

    Of several files the first is looked at. Without tickers, one whose other columns are numbers is wide. A
    file of signals is a ConfigError; DataError if it cannot be read, has no dates or prices, or is ambiguous.
    """
    files = opening.resolve(path)
    file = next((one for one in files if opening.has_rows(one)), files[0])
    text = opening.recognise_text(file) if opening.is_text(file) else opening.COMMAS
    rows = opening.scan(file, text)
    available = opening.columns_of(rows, file)
    listed = abbreviate(available)
    by_ticker = layouts.fields_of(available)
    fields = list(next(iter(by_ticker.values()))) if by_ticker else available
    vendor = layouts.recognise_layout(fields)
    special = layouts.LAYOUTS[vendor].columns if vendor else {}
    found = layouts.match_names({**layouts.PRICE_NAMES, **special}, fields)
    layout: Arrangement = "wide"
    if by_ticker:
        dates = [name for name in available if layouts.plain(name) in layouts.PRICE_NAMES["date"]]
        found = {"date": next(iter(dates), available[0])}
    else:
        found = _without_tickers(found, rows, available, file)
        layout = _arrangement(found, available, file)
    if "date" not in found:
        if not opening.is_unnamed(available[0]):
            raise DataError(
                f"{file} has no column that looks like a date; its columns are {listed}: "
                "rename the column with the dates to date"
            )
        found["date"] = available[0]
    if layout == "file_per_ticker":
        all_days = opening.collect(rows.select(found["date"]), file).to_series().drop_nulls()
        if all_days.n_unique() <= len(all_days) / 2:
            raise DataError(
                f"{file} has {len(all_days):,} rows of {all_days.n_unique():,} dates and no column that "
                f"looks like a ticker; its columns are {listed}: rename the column with the tickers to ticker"
            )
        if len(files) == 1:
            raise DataError(
                f"{file} has the prices of one firm ({listed}) and no column of tickers, but a "
                "cross-section needs several firms: put the files of all tickers into one folder, each named "
                f"after its ticker (this one would be {ticker_of(file)}), and run: peerglass init FOLDER"
            )
    if layout == "wide" and not by_ticker:
        prices = [name for name in available if name != found["date"] and not opening.is_unnamed(name)]
        _require_numbers(rows, prices, file)
        found = {"date": found["date"]}
    recorded = layouts.match_names(layouts.PRICE_NAMES, available)
    both = {"split_ratio", "dividend"} <= {*recorded}
    with_actions = vendor == "yahoo_history" or (vendor == "yahoo" and both)
    if with_actions and layout != "wide" and _shows_splits(rows, recorded, file):
        vendor, found = None, recorded
    days = opening.collect(rows.select(found["date"]).unique(), file)
    if date_format is None:
        date_format = recognise_dates(days, file)
    else:
        _check_format(days, date_format, file)
    columns = {
        ours: theirs
        for ours, theirs in found.items()
        if ours != theirs and (not opening.is_unnamed(theirs) or ours in recorded)
    }
    source = FilesSourceConfig(
        kind="files",
        prices=str(path),
        layout=layout,
        vendor=vendor,
        columns={} if vendor else columns,
        date_format=date_format,
        **asdict(text),
    )
    unused = (name for name in available if name not in found.values())
    return source, () if layout == "wide" else tuple(unused)


def _arrangement(found: Mapping[str, str], available: Sequence[str], file: Path) -> Arrangement:
    """Tell whether rows, columns or files are the firms; refuse a file of signals."""
    if "ticker" in found:
        if "close" not in found:
            raise ConfigError(
                f"{file} has dates and tickers but no prices; its columns are "
                f"{abbreviate(available)}. If they are signals, measure them with: peerglass "
                "backtest FILE --config CONFIG, where CONFIG names a price file. If one is a price, rename "
                "it to close"
            )
        return "long"
    bars = [ours for ours in ("open", "high", "low", "volume") if ours in found]
    of_one_firm = "close" in found and (bars or len(available) <= _COLUMNS_OF_A_SERIES)
    return "file_per_ticker" if of_one_firm else "wide"


def _without_tickers(
    found: Mapping[str, str], rows: pl.LazyFrame, available: Sequence[str], file: Path
) -> dict[str, str]:
    """Drop what is a ticker or a date by name alone: a wide file has unique dates, which may be unnamed."""
    kept = dict(found)
    if "close" in kept or "date" not in kept:
        return kept
    if "ticker" in kept:
        head = opening.collect(rows.select(kept["date"], kept["ticker"]).head(1000), file)
        if head[kept["date"]].n_unique() == head.height > 1 and _is_numeric(head, kept["ticker"]):
            del kept["ticker"]
    if opening.is_unnamed(available[0]) and "ticker" not in kept:
        head = opening.collect(rows.select(available[0], kept["date"]).head(1000), file)
        if _is_numeric(head, kept["date"]) and not _is_numeric(head, available[0]):
            kept["date"] = available[0]
    return kept


def _is_numeric(frame: pl.DataFrame, column: str) -> bool:
    return reading.read_number(frame, column).schema[column].is_numeric()


def _shows_splits(rows: pl.LazyFrame, found: Mapping[str, str], file: Path) -> bool:
    """Whether the closes fall at recorded splits, so that they are not adjusted for them."""
    names = {ours: found[ours] for ours in ("ticker", "date", "close", "split_ratio") if ours in found}
    frame = opening.collect(rows, file, names)
    for column in ("close", "split_ratio"):
        frame = reading.read_number(frame, column).with_columns(pl.col(column).cast(pl.Float64, strict=False))
    return shows_splits(frame)


def shows_splits(rows: pl.DataFrame) -> bool:
    """Whether closes fall at the splits of their rows; those of a firm are in the order of their dates."""
    change = pl.col("close") / pl.col("close").shift()
    if "ticker" in rows.columns:
        change = change.over("ticker")
    split = pl.col("split_ratio").log()
    splits = rows.with_columns(change=change.log()).filter(
        (pl.col("split_ratio") > 0) & (split.abs() >= _CLEAR_SPLIT) & pl.col("change").is_finite()
    )
    raw = (pl.col("change") + split).abs() < pl.col("change").abs()
    return splits.height > 0 and bool(splits.select(raw.mean() > _MOST).item())


def _require_numbers(rows: pl.LazyFrame, names: Sequence[str], file: Path) -> None:
    """Refuse a file without tickers whose other columns are not numbers."""
    if not names:
        raise DataError(f"{file} has no column besides its dates: use a file with prices")
    head = opening.collect(rows.select(names).head(1000), file)
    words = [name for name in names if not _is_numeric(head, name)]
    if words:
        raise DataError(
            f"{file} has no column that looks like a ticker, and the column {words[0]!r} is not a price; its "
            f"columns are {abbreviate(list(names))}: rename the column with the tickers to ticker"
        )


def recognise_dates(days: pl.DataFrame, file: Path, cure: str = _CURE) -> str | None:
    """Return the format of most dates and fewest weekends (None: ISO); DataError if two are as likely."""
    column = days.columns[0]
    if days.schema[column].is_temporal():
        return None
    texts = days.select(reading.as_words(column)).to_series().drop_nulls().sort()
    if texts.is_empty():
        raise DataError(f"{file} has no date in the column {column!r}: use a file with values")
    unread: dict[str | None, pl.Series] = {}
    weekends: dict[str | None, int] = {}
    for form in (None, *_FORMATS, *reading.COUNTED):
        days_read = _read_as(texts, form)
        plausible = days_read.dt.year().is_between(*_YEARS).fill_null(value=False)
        unread[form] = texts.filter(~plausible)
        weekends[form] = int((days_read.filter(plausible).dt.weekday() > 5).sum())
        if form is None and unread[None].is_empty():
            return None

    def order_in(form: str | None) -> str:  # formats that differ in signs alone read the same dates
        return re.sub(r"[^A-Za-z]", "", (form or "").replace("%B", "%b"))

    fewest = min(len(rest) for rest in unread.values())
    read_by = [form for form, rest in unread.items() if len(rest) == fewest]
    if fewest > _UNREAD * len(texts):
        raise DataError(
            f"{fewest:,} of the {len(texts):,} dates of {file}, such as {unread[read_by[0]][0]!r}, have no "
            f"usual format: {cure}"
        )
    best = [form for form in read_by if weekends[form] == min(weekends[one] for one in read_by)]
    if len({order_in(form) for form in best}) > 1:
        raise DataError(
            f"the dates of {file}, such as {texts[0]}, can be read as {' and as '.join(map(str, best))}: "
            f"{cure}"
        )
    return best[0]


def _read_as(texts: pl.Series, form: str | None) -> pl.Series:
    """Read dates in one format (None is ISO); null where it does not fit."""
    if form is not None and form not in reading.COUNTED:
        return reading.read_moments(texts, form).dt.date()
    text = pl.col("")
    day = reading.iso_dates(text)
    if form is not None:
        counted = pl.when(text.str.contains(_NUMBER)).then(reading.counted_as_iso(text, form))
        day = counted.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
    return texts.alias("").to_frame().select(day).to_series()


def _check_format(days: pl.DataFrame, date_format: str, file: Path) -> None:
    column = days.columns[0]
    read = reading.read_dates(days, [column], date_format)
    unread = read.filter(reading.day(read, column).is_null())[column].drop_nulls()
    if len(unread) > _UNREAD * days.height:
        raise DataError(
            f"--date-format {date_format} does not read {len(unread):,} of the {days.height:,} dates of "
            f"{file}, such as {unread[0]!r}: correct it"
        )
