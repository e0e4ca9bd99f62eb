"""Interpret the cells of a user's files: column names, dates, numbers and units.

Text files are read as text, so that a ticker named NA stays a ticker. A column with an unreadable value stays
text, so that the contract rejects the rows in question and not the whole file.

Dates are days. A midnight of Tokyo that is written in UTC is 15:00 of the day before; read as it stands,
every price would be known a day early, so such stamps are refused. The order of day and month is decided for
all dates together, never row by row.
"""

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import polars as pl
import polars.selectors as cs

from pipelines.errors import DataError
from pipelines.format import abbreviate
from pipelines.sources.base import plain_tickers
from pipelines.sources.files import opening
from pipelines.sources.files.layouts import Names, match_names
from pipelines.sources.settings import FilesSourceConfig

_NOT_AVAILABLE: Final = ("", "na", "n/a", "#n/a", "nan", "null", "none", "-")
_ISO: Final = r"^(\d{4}-\d{2}-\d{2})(?:[T ]\d{2}:.*)?$"
_TIMED: Final = r"^\d{4}-\d{2}-\d{2}[T ]"
_COMPACT: Final = r"^(\d{8})(?:\.0*)?$"  # 20200131, or 20200131.0 of a program that keeps numbers
_STAMP: Final = (
    r"^(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(:\d{2})?(?:[.,]\d+)? ?(Z|z|UTC|[+-]\d{2}:?\d{2})?)?$"
)
_MOST: Final = 0.9  # share of stamps at one time of day, or two an hour apart, that makes it the file's rule
_SOME: Final = 0.05  # least share of a second time, an hour from the first: daylight saving lasts for months
_HOUR, _MIDNIGHT, _DAY = timedelta(hours=1), timedelta(0), timedelta(days=1)
_ZONES: Final = (
    "Asia/Shanghai", "Asia/Hong_Kong", "Asia/Singapore", "Asia/Tokyo", "Asia/Seoul", "Asia/Kolkata",
    "America/New_York", "America/Chicago", "Europe/London", "Europe/Berlin", "Europe/Helsinki",
    "Europe/Istanbul", "Europe/Moscow", "Australia/Sydney", "Australia/Brisbane", "Pacific/Auckland",
    "America/Sao_Paulo", "America/Mexico_City", "Africa/Johannesburg", "Asia/Jerusalem", "Asia/Riyadh",
    "Asia/Dubai", "Asia/Karachi", "Asia/Dhaka", "Asia/Jakarta",
)  # fmt: skip  # zones of exchanges; one a line would fill a page
_NAMED_ZONES: Final = 3
COUNTED: Final = ("excel", "epoch")  # Excel's days, and seconds since 1970 or fractions of them
_EXCEL_EPOCH: Final = date(1899, 12, 30)
_FIRST_EPOCH: Final = 1e8
_FIRST_SERIAL, _LAST_SERIAL = 3_000, 109_575  # 1908 and 2200; smaller numbers are years, such as 2020


_AS_USUAL: Final = FilesSourceConfig(kind="files", prices="")


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """The files of one table, how the config says to read them, and what was noticed in them."""

    files: Sequence[Path]
    names: Names = field(default_factory=dict)
    table: str = ""
    config: FilesSourceConfig = _AS_USUAL
    notes: list[str] = field(default_factory=list)
    hazards: list[str] = field(default_factory=list)

    @property
    def own(self) -> Mapping[str, str]:
        """Peerglass column -> the column that the config maps for this table alone, which it must have."""
        given, prefix = self.config.columns.items(), f"{self.table}."
        return {name.removeprefix(prefix): theirs for name, theirs in given if name.startswith(prefix)}

    @property
    def columns(self) -> Mapping[str, str]:
        """Peerglass column -> the column that the config maps, for all tables or for this one."""
        shared = {name: theirs for name, theirs in self.config.columns.items() if "." not in name}
        return {**shared, **self.own}

    def open(self, file: Path) -> tuple[pl.LazyFrame, list[str]]:
        """Open a file, and return the names of its columns as well."""
        config = self.config
        rows = opening.scan(file, opening.TextFormat(config.separator, config.decimal, config.encoding))
        return rows, opening.columns_of(rows, file)

    @property
    def label(self) -> str:
        """A name for the files in messages."""
        first, count = self.files[0].name, len(self.files)
        return first if count == 1 else f"{first} to {self.files[-1].name} ({count} files)"

    def note(self, sentence: str, count: int = 1) -> None:
        """Note a sentence, which may begin with ``#`` for the count; nothing if the count is 0."""
        if count:
            self.notes.append(re.sub(r"^#(?= )", f"{count:,}", sentence))

    def match(self, available: Sequence[str]) -> dict[str, str]:
        """Peerglass column -> the file's column, of those that are mapped or have a usual name."""
        mapped = {ours: theirs for ours, theirs in self.columns.items() if theirs in available}
        return {**match_names(self.names, available), **mapped}

    def read(self, required: Sequence[str], optional: Sequence[str]) -> pl.DataFrame:
        """Read the known columns of every file."""
        parts: list[pl.DataFrame] = []
        for file in self.files:
            rows, available = self.open(file)
            names: dict[str, str] = {}
            for ours in (*required, *optional):
                if ours in required or ours in self.columns:
                    names[ours] = self.column_name(ours, available, file)
                elif (theirs := self._name_of(ours, available)) is not None:
                    names[ours] = theirs
            part = opening.collect(rows, file, names)
            if parts:
                _refuse_different_columns(self.files[0], parts[0], file, part)
            parts.append(part)
        return concat_parts(parts)

    def column_name(self, ours: str, available: Sequence[str], file: Path) -> str:
        """Return the file's name of a required column: the mapped name, a usual one, or Peerglass's own."""
        theirs = self._name_of(ours, available)
        if theirs is not None:
            return theirs
        wanted, in_lower = self.columns.get(ours, ours), {name.lower(): name for name in reversed(available)}
        near = difflib.get_close_matches(wanted.lower(), list(in_lower), n=1)
        meant = f" (did you mean {in_lower[near[0]]!r}?)" if near else ""
        wide = " (or set source.layout to wide, if its columns are tickers)"
        raise DataError(
            f"{file} has no column {wanted!r} for {ours}{meant}; its columns are {abbreviate(available)}: "
            f"map it in source.columns, as {ours}: <name in the file>{wide if ours == 'ticker' else ''}"
        )

    def _name_of(self, ours: str, available: Sequence[str]) -> str | None:
        """Return the file's name of a column; None without it. A first column without a name holds dates.

        Beside prices, a name that the config maps for all tables need not be in this table's file.
        """
        usual, mapped = match_names(self.names, available), self.columns.get(ours)
        free = self.table != "prices" and ours not in self.own
        names = [usual.get(ours, None if ours in self.names else ours) if mapped is None else mapped]
        names += [usual.get(ours, ours)] if free else []
        if ours == "date" and (mapped is None or free) and opening.is_unnamed(available[0]):
            names.append(available[0])
        return next((name for name in names if name in available), None)

    def numbers(self, frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        """Convert columns to float64 (`read_number`) and multiply them by their units."""
        for column in columns:
            frame = read_number(frame, column)
            if column in self.config.units:
                frame = scale(frame, column, pl.lit(float(self.config.units[column])))
        return frame

    def dates(self, frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        """Convert those of the columns that the frame has to dates (`read_dates`)."""
        return read_dates(frame, [c for c in columns if c in frame.columns], self.config.date_format)


def read_dates(frame: pl.DataFrame, columns: Sequence[str], date_format: str | None) -> pl.DataFrame:
    """Convert columns to dates: ISO (2020-01-31, 20200131), a strptime format or one of `COUNTED`.

    Without a day (``%Y-%m``): the month's last. DataError for a common time of day, or two orders of day and
    month.
    """
    for column in columns:
        dtype = frame.schema[column]
        if dtype == pl.Date or isinstance(dtype, pl.Datetime):
            refuse_times_of_day(frame[column])
            # the day of a date's own time zone; a cast would give the day in UTC
            frame = frame.with_columns(pl.col(column).dt.date())
            continue
        read = frame.select(as_words(column))
        if date_format in COUNTED:
            read = read.select(counted_as_iso(pl.col(column), date_format).alias(column))
        refuse_times_of_day(read[column])
        value = pl.col(column)
        parsed = iso_dates(value)
        if date_format is not None and date_format not in COUNTED:
            read = _given_format(read, column, parsed, date_format)
        dates = read.select(parsed.alias(column)).to_series()
        if dates.null_count() == read[column].null_count():
            frame = frame.with_columns(dates)
        else:
            kept = pl.coalesce(parsed.dt.to_string("%Y-%m-%d"), value).alias(column)
            frame = frame.with_columns(read.select(kept).to_series())
    return frame


def read_known_dates(frame: pl.DataFrame, column: str, date_format: str | None) -> pl.DataFrame:
    """Convert a column to the dates by whose close something was known (`read_dates`).

    A time of day is the next date, because it may be after the close.
    """
    if frame.schema[column] == pl.Date:
        return read_dates(frame, [column], date_format)
    read = frame.select(column)
    if not isinstance(frame.schema[column], pl.Datetime):
        read = frame.select(as_words(column))
        if date_format in COUNTED:
            read = read.select(counted_as_iso(pl.col(column), date_format).alias(column))
    moments = _clocks(read[column])["local"]
    if date_format is not None and date_format not in COUNTED and read.schema[column] == pl.String:
        moments = moments.fill_null(read_moments(read[column], date_format).cast(pl.Datetime("us")))
    frame = read_dates(frame, [column], date_format)
    next_day = day(frame, column).dt.offset_by("1d").cast(frame.schema[column])
    late = moments != moments.dt.truncate("1d")
    if read.schema[column] == pl.String:  # a time that is not understood, such as 05:30 PM
        late = late.fill_null(read[column].str.contains(_TIMED))
    return frame.with_columns(pl.when(pl.lit(late)).then(next_day).otherwise(pl.col(column)).alias(column))


def iso_dates(text: pl.Expr) -> pl.Expr:
    """Read 2020-01-31, perhaps with a time of day, and 20200131; null where a text is neither."""
    dashed, compact = text.str.extract(_ISO), text.str.extract(_COMPACT)
    return pl.coalesce(
        dashed.str.to_date("%Y-%m-%d", strict=False), compact.str.to_date("%Y%m%d", strict=False)
    )


def _given_format(read: pl.DataFrame, column: str, parsed: pl.Expr, form: str) -> pl.DataFrame:
    """Write the dates of the given format as ISO, where ``parsed`` does not read them already."""
    others = read.filter(parsed.is_null())[column].drop_nulls().unique().sort()
    moments = read_moments(others, form)
    refuse_times_of_day(moments)
    _refuse_mixed_orders(others, others.filter(moments.is_null()), form)
    written = pl.DataFrame({column: others, "iso": moments.dt.to_string("%Y-%m-%d")}).drop_nulls()
    iso = pl.col(column).replace(written[column], written["iso"])
    return read.with_columns(pl.when(parsed.is_null()).then(iso).otherwise(pl.col(column)).alias(column))


def day(frame: pl.DataFrame, column: str = "date") -> pl.Expr:
    """Return a column from `read_dates` as dates, null where one is unreadable."""
    value = pl.col(column)
    return value.str.to_date("%Y-%m-%d", strict=False) if frame.schema[column] == pl.String else value


def within_dates(frame: pl.DataFrame, given: GivenFiles) -> pl.DataFrame:
    """Keep the rows within the config's dates; the contract rejects those with an unreadable date."""
    start, end = given.config.start, given.config.end
    name = str(given.files[0]) if len(given.files) == 1 else given.label
    if frame.is_empty():
        raise DataError(f"{name} has a header but no rows: use a file with values")
    inside = day(frame).is_between(start or date.min, end or date.max)
    kept = frame.filter(inside.fill_null(value=True))
    if kept.is_empty():
        first, last = frame.select(day(frame).min().alias("first"), day(frame).max().alias("last")).row(0)
        raise DataError(
            f"{name} has no rows from {start or 'its start'} to {end or 'its end'}; it has "
            f"{first} to {last}: extend the dates"
        )
    return kept


def _refuse_different_columns(first: Path, first_part: pl.DataFrame, file: Path, part: pl.DataFrame) -> None:
    for one, has, other, lacks in ((first, first_part, file, part), (file, part, first, first_part)):
        if absent := [name for name in has.columns if name not in lacks.columns]:
            raise DataError(
                f"{other} has no {', '.join(absent)}, which {one.name} has: the files of one pattern must "
                "have the same columns"
            )
    for name in first_part.columns:
        kinds = _kind(first, first_part.schema[name]), _kind(file, part.schema[name])
        if None not in kinds and kinds[0] != kinds[1]:
            raise DataError(
                f"{file} stores {name} as {part.schema[name]}, but {first.name} as "
                f"{first_part.schema[name]}: the files of one pattern must have columns of the same type"
            )


def _kind(file: Path, dtype: pl.DataType) -> str | None:
    """Return whether a type is number, date or text; None for files that are all text, and for all-null."""
    if dtype == pl.Null or not file.name.lower().endswith((".parquet", ".pq")):
        return None
    return "number" if dtype.is_numeric() else "date" if dtype.is_temporal() else "text"


def concat_parts(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate parts; absent columns are null, and columns of different types become numbers or text."""
    kinds = {field for part in parts for field in part.schema.items()}
    count = Counter(name for name, _ in kinds)
    times = [name for name, kind in kinds if count[name] > 1 and kind.is_temporal()]
    texts = [part.with_columns(cs.by_name(times, require_all=False).cast(pl.String)) for part in parts]
    return pl.concat(texts, how="diagonal_relaxed")


def as_text(column: str) -> pl.Expr:
    """Return a column as text without surrounding spaces."""
    return pl.col(column).cast(pl.String).str.strip_chars()


def ticker_text(column: str = "ticker") -> pl.Expr:
    """Return a column of tickers in the form in which they are stored (`plain_tickers`)."""
    return plain_tickers(as_text(column)).alias(column)


def as_words(column: str) -> pl.Expr:
    """Return a column as text, with null in place of the usual words for "not available"."""
    text = as_text(column)
    return pl.when(~text.str.to_lowercase().is_in(_NOT_AVAILABLE)).then(text).alias(column)


def read_number(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Convert a column to float64; text if a value is no number, so that the contract rejects its row."""
    if frame.schema[column].is_numeric():
        return frame.with_columns(pl.col(column).cast(pl.Float64).fill_nan(None))
    words = frame.select(as_words(column)).to_series()
    numbers = read_numbers(words)
    if numbers.null_count() != words.null_count():
        # the contract, which rejects the others, reads plain numbers alone
        plain = words.cast(pl.Float64, strict=False).is_not_null() | numbers.is_null()
        return frame.with_columns(words.zip_with(plain, numbers.cast(pl.String)))
    return frame.with_columns(numbers.fill_nan(None))


def read_numbers(words: pl.Series) -> pl.Series:
    """Convert text to float64; null where it is no number."""
    numbers = words.cast(pl.Float64, strict=False)
    if numbers.null_count() != words.null_count():
        cleaned = _without_marks(words.filter(numbers.is_null()))
        numbers = numbers.scatter(numbers.is_null().arg_true(), cleaned)
    return numbers


_AMOUNT: Final = r"^(-?)(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?$"
_FACTORS: Final = dict(zip("KMBT%万만亿억", (1e3, 1e6, 1e9, 1e12, 1e-2, 1e4, 1e4, 1e8, 1e8), strict=True))


def _without_marks(words: pl.Series) -> pl.Series:
    """Read numbers such as ``$1,234.50``, ``(1.5)`` for -1.5, ``1.2M`` and ``1.5%``."""
    text = pl.col("text").str.replace_all(r"[\s'\u2019]|US\$|USD|EUR|GBP|[$€£¥￥₩₹]", "")
    frame = pl.DataFrame({"text": words}).select(
        text.str.to_uppercase()
        .str.replace(r"^\((.*)\)$", "-${1}")
        .str.replace(r"^\+", "")
        .str.replace("\u2212", "-")
    )
    suffix = pl.col("text").str.extract(r"\d([KMBT%万만亿억])$")
    digits = pl.col("text").str.strip_suffix(suffix.fill_null(""))
    number = pl.when(digits.str.contains(_AMOUNT)).then(digits.str.replace_all(",", "", literal=True))
    factor = suffix.replace_strict(_FACTORS, default=1.0, return_dtype=pl.Float64)
    return frame.select(number.cast(pl.Float64, strict=False) * factor).to_series()


def scale(frame: pl.DataFrame, column: str, factor: pl.Expr) -> pl.DataFrame:
    """Multiply a column that `read_number` has read; values that are not numbers are unchanged."""
    if frame.schema[column] != pl.String:
        return frame.with_columns(pl.col(column) * factor + 0.0)  # no negative zero
    scaled = (pl.col(column).cast(pl.Float64, strict=False) * factor).cast(pl.String)
    return frame.with_columns(pl.coalesce(scaled, pl.col(column)).alias(column))


def read_moments(texts: pl.Series, form: str) -> pl.Series:
    """Read datetimes in a strptime format, null where it does not fit; without a day, ends of months."""
    if "%d" in form or "%j" in form:
        return texts.str.to_datetime(form, strict=False)
    return (texts + " 1").str.to_datetime(f"{form} %d", strict=False).dt.month_end()


def refuse_times_of_day(stamps: pl.Series) -> None:
    """Refuse stamps of which nine tenths share a time of day other than midnight, or two an hour apart.

    These are midnights of another zone (half of them with daylight saving); times that vary are read.
    """
    if not isinstance(stamps.dtype, pl.Datetime | pl.String):
        return
    distinct = stamps.drop_nulls().unique().sort()
    total = len(distinct)
    clocks = _clocks(distinct).drop_nulls("local")
    written, local, utc = clocks.get_columns()
    times = local - local.dt.truncate("1d")
    if times.is_empty() or (times == _MIDNIGHT).all():
        return
    shares: dict[timedelta, float] = {time: count / total for time, count in times.value_counts().iter_rows()}
    usual = max(shares, key=lambda time: shares[time])
    twins = ((usual + _HOUR) % _DAY, (usual - _HOUR) % _DAY)
    twin = max(twins, key=lambda time: shares.get(time, 0.0))
    of_twin = shares.get(twin, 0.0)
    early = {usual, twin} == {_MIDNIGHT, _DAY - _HOUR} and of_twin >= _SOME
    if shares[usual] + of_twin < _MOST or (usual == _MIDNIGHT and not early):
        return
    at = int((times != _MIDNIGHT).arg_max() or 0)
    zones = zones_of_midnights(utc)
    day = local[at].date()
    if not zones:
        raise DataError(
            f"the dates are written as {written[at]} and share this time of day, which is "
            f"not midnight in a usual time zone; write the dates of the exchange alone, such as {day}"
        )
    named = " or ".join(zones[:_NAMED_ZONES])
    theirs = utc.dt.replace_time_zone("UTC").dt.convert_time_zone(zones[0])[at].date()
    shifted = f"read as {day}, the row would be used on another day; " if theirs != day else ""
    raise DataError(
        f"the dates are written as {written[at]}, which is midnight of {theirs} in {named}: {shifted}"
        f"write the dates of the exchange alone, such as {theirs}"
    )


def _refuse_mixed_orders(texts: pl.Series, unread: pl.Series, date_format: str) -> None:
    """Refuse a format if the other order of day and month reads what it cannot read."""
    if "%d" not in date_format or "%m" not in date_format:
        return
    other = date_format.replace("%d", "%\0").replace("%m", "%d").replace("%\0", "%m")
    only_other = unread.filter(unread.str.to_date(other, strict=False).is_not_null())
    if only_other.is_empty():
        return
    if texts.str.to_date(other, strict=False).null_count() == 0:
        raise DataError(
            f"the date {only_other[0]} is not written as {date_format}, and {other} reads every date: "
            "correct date_format"
        )
    read = texts.filter(texts.str.to_date(date_format, strict=False).is_not_null())
    refused = read.filter(read.str.to_date(other, strict=False).is_null())
    raise DataError(
        f"the dates have two orders of day and month ({date_format} does not read {only_other[0]}, and "
        f"{other} does not read {texts[0] if refused.is_empty() else refused[0]}): write all dates as "
        "2020-01-31"
    )


def _clocks(stamps: pl.Series) -> pl.DataFrame:
    """Return stamps, their ``local`` time and that in ``utc``; a stamp without a zone is in UTC."""
    frame = stamps.alias("").to_frame()
    if isinstance(stamps.dtype, pl.Datetime):
        moment = pl.col("")
        in_utc = moment if stamps.dtype.time_zone is None else moment.dt.convert_time_zone("UTC")
        clocks = (one.dt.replace_time_zone(None).cast(pl.Datetime("us")) for one in (moment, in_utc))
        local, utc = (one.dt.truncate("1s") for one in clocks)
        return frame.with_columns(local=local, utc=utc)
    day, clock, seconds, zone = (pl.col("").str.extract(_STAMP, k) for k in range(1, 5))
    text = pl.concat_str(day, pl.lit(" "), clock.fill_null("00:00"), seconds.fill_null(":00"))
    local = text.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)
    offset = zone.str.replace(":", "", literal=True)
    hours, rest = (offset.str.slice(place, 2).cast(pl.Int64, strict=False) for place in (1, 3))
    minutes = 60 * hours + rest
    east = pl.when(offset.str.starts_with("-")).then(-minutes).otherwise(minutes).fill_null(0)
    return frame.with_columns(local=local, utc=local - pl.duration(minutes=east))


def zones_of_midnights(utc: pl.Series) -> list[str]:
    """Zones of exchanges in which nine tenths of times in UTC, without a zone, are midnight."""
    moments = utc.drop_nulls().dt.replace_time_zone("UTC")
    there = {zone: moments.dt.convert_time_zone(zone).dt.replace_time_zone(None) for zone in _ZONES}
    most = _MOST * max(len(moments), 1)
    return [zone for zone, at in there.items() if (at == at.dt.truncate("1d")).sum() >= most]


def counted_as_iso(value: pl.Expr, kind: str) -> pl.Expr:
    """Write Excel's days, or an epoch's seconds and fractions, as ISO dates and times (UTC)."""
    number = value.cast(pl.Float64, strict=False)
    if kind == "excel":
        since = pl.duration(seconds=(number * 86_400).round().cast(pl.Int64, strict=False))
        moment = pl.lit(_EXCEL_EPOCH).cast(pl.Datetime("us")) + since
        known, form = number.is_between(_FIRST_SERIAL, _LAST_SERIAL), "%Y-%m-%dT%H:%M:%S"
    else:
        size, unit = number.abs(), pl.lit(1e3)
        for limit, factor in ((1e11, 1.0), (1e14, 1e-3), (1e17, 1e-6)):
            unit = pl.when(size < limit).then(unit).otherwise(factor)
        moment = (number * unit).round().cast(pl.Int64).cast(pl.Datetime("ms"))
        known, form = size >= _FIRST_EPOCH, "%Y-%m-%dT%H:%M:%SZ"
    return pl.coalesce(pl.when(known).then(moment.dt.to_string(form)), value)
