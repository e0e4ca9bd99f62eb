"""Recognise a price file: its format, layout, columns and dates, so that a config can be written for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.sources.files.paths import resolve
from pipelines.sources.files.prices import OPTIONAL, REQUIRED
from pipelines.sources.files.reading import (
    UNNAMED,
    ReadOptions,
    abbreviate,
    as_text,
    collect,
    columns_of,
    null_if_not_available,
    read_number,
    scan,
)
from pipelines.sources.files.text import COMMAS, TextFormat, is_text, recognise_text

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "date": ("date", "datetime", "day", "timestamp", "time", "tradedate", "pricedate", "datadate", "caldt",
             "asof", "asofdate", "businessdate", "datum"),
    "ticker": ("ticker", "symbol", "tic", "asset", "sid", "permno", "permid", "isin", "cusip", "sedol", "ric",
               "figi", "gvkey", "instrument", "security", "securityid", "code", "stock", "firm", "id"),
    "close": ("close", "closeprice", "closingprice", "last", "lastprice", "pxlast", "prc", "price", "settle",
              "prccd", "kurs", "schluss", "schlusskurs", "adjclose", "adjustedclose", "adjcloseprice"),
    "open": ("open", "openprice", "openprc", "pxopen", "prcod", "eroffnung"),
    "high": ("high", "highprice", "askhi", "pxhigh", "prchd", "hoch"),
    "low": ("low", "lowprice", "bidlo", "pxlow", "prcld", "tief"),
    "volume": ("volume", "vol", "pxvolume", "cshtrd", "sharevolume", "volumen"),
    "split_ratio": ("splitratio", "stocksplits", "split", "splitfactor"),
    "dividend": ("dividend", "dividends", "divamt", "cashdividend", "divcash"),
}  # fmt: skip  # one line a column reads better than one name a line
_FORMATS: Final = ("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%d-%b-%Y",
                   "%d %b %Y", "%b %d, %Y", "%Y.%m.%d", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y")  # fmt: skip
_ISO: Final = r"^(\d{4}-\d{2}-\d{2}([T ]\d{2}:.*)?|\d{8})$"


@dataclass(frozen=True, slots=True)
class PriceFile:
    """How a price file is written.

    Attributes
    ----------
    text
        Separator, decimal mark and encoding; None for Parquet.
    layout
        ``long``: one row per date and ticker. ``wide``: one column of closes per ticker.
    columns
        Peerglass column -> name in the file, where they differ.
    unused
        Other columns of a long file, which prices do not use.
    date_format
        strptime format of the dates; None if they are ISO.
    """

    text: TextFormat | None
    layout: Literal["long", "wide"]
    columns: Mapping[str, str]
    unused: tuple[str, ...]
    date_format: str | None


def recognise_prices(path: Path, date_format: str | None = None) -> PriceFile:
    """Recognise a price file from the names of its columns and from its values.

    Names are compared without case, spaces and punctuation, with the names that vendors use. A file without
    a ticker column whose other columns are numbers is wide.

    Parameters
    ----------
    path
        CSV or Parquet file, or a pattern; the first file of a pattern is looked at.
    date_format
        strptime format of the dates. None recognises it; an ambiguous one is refused.

    Raises
    ------
    ConfigError
        If the file is neither CSV nor Parquet, or it is a file of signals.
    DataError
        If the file cannot be read, has no dates or no prices, or its dates can be read in two ways.
    """
    file = resolve(path)[0]
    text = recognise_text(file) if is_text(file) else None
    rows = scan(file, text or COMMAS)
    available = columns_of(rows, file)
    found = _match_names(available)
    if "date" not in found:
        if available[0] not in UNNAMED:
            raise DataError(
                f"{file} has no column that looks like a date; its columns are {abbreviate(available)}: "
                "rename the column with the dates to date"
            )
        found["date"] = available[0]
    if "ticker" not in found:
        layout: Literal["long", "wide"] = "wide"
        _require_numbers(rows, [name for name in available if name != found["date"]], file)
        found = {"date": found["date"]}
    else:
        layout = "long"
        if "close" not in found:
            raise ConfigError(
                f"{file} has dates and tickers but no prices; its columns are {abbreviate(available)}. If "
                "they are signals, measure them with: peerglass backtest FILE --config CONFIG, where CONFIG "
                "names a price file. If one is a price, rename it to close"
            )
    if date_format is None:
        date_format = _recognise_dates(collect(rows.select(found["date"]).unique(), file), file)
    else:
        _check_format(collect(rows.select(found["date"]).unique(), file), date_format, file)
    columns = {ours: theirs for ours, theirs in found.items() if ours != theirs and theirs not in UNNAMED}
    unused = tuple(name for name in available if name not in found.values()) if layout == "long" else ()
    return PriceFile(text, layout, columns, unused, date_format)


def _match_names(available: Sequence[str]) -> dict[str, str]:
    """Peerglass column -> the file's column, by the first of its usual names that the file has."""
    plain: dict[str, str] = {}
    for name in available:
        plain.setdefault(re.sub(r"[^a-z0-9]", "", name.lower().replace("ö", "o")), name)
    found: dict[str, str] = {}
    for ours in (*REQUIRED, *OPTIONAL):
        match = next((plain[name] for name in _NAMES[ours] if name in plain), None)
        if match is not None and match not in found.values():
            found[ours] = match
    return found


def _require_numbers(rows: pl.LazyFrame, names: Sequence[str], file: Path) -> None:
    """Refuse a file without tickers whose other columns are not numbers."""
    if not names:
        raise DataError(f"{file} has no column besides its dates: use a file with prices")
    head = collect(rows.select(names).head(1000), file)
    words = [name for name in names if not read_number(head, name).schema[name].is_numeric()]
    if words:
        raise DataError(
            f"{file} has no column that looks like a ticker, and the column {words[0]!r} is not a price; its "
            f"columns are {abbreviate(list(names))}: rename the column with the tickers to ticker"
        )


def _recognise_dates(days: pl.DataFrame, file: Path) -> str | None:
    """Return the format that reads every date and gives fewest weekends; None for ISO dates."""
    column = days.columns[0]
    if days.schema[column].is_temporal():
        return None
    texts = days.select(as_text(column)).select(null_if_not_available(column)).to_series().drop_nulls()
    if texts.is_empty():
        raise DataError(f"{file} has no date in the column {column!r}: use a file with values")
    if texts.str.contains(_ISO).all():
        return None
    weekends = {}
    for form in _FORMATS:
        read = texts.str.to_date(form, strict=False)
        if not read.null_count() and read.dt.year().min() >= 1800:  # type: ignore[operator]  # years are numbers
            weekends[form] = int((read.dt.weekday() > 5).sum())
    best = [form for form, count in weekends.items() if count == min(weekends.values())]
    if len(best) == 1:
        return best[0]
    if best:
        raise DataError(
            f"the dates of {file}, such as {texts[0]}, can be read as {' and as '.join(best)}: give one with "
            "--date-format"
        )
    raise DataError(
        f"the dates of {file}, such as {texts[0]}, have no usual format: write them as 2020-01-31, or give "
        "their format with --date-format (for example %d.%m.%Y)"
    )


def _check_format(days: pl.DataFrame, date_format: str, file: Path) -> None:
    column = days.columns[0]
    read = ReadOptions(date_format=date_format).dates(days, [column])
    if read.schema[column] != pl.Date:
        raise DataError(
            f"--date-format {date_format} does not read all dates of {file}, such as "
            f"{days.select(as_text(column)).to_series()[0]}: correct it"
        )
