"""Dates in a user's files are days. Stamps whose day is another one than the exchange's are refused.

A midnight of Tokyo that is written in UTC is 15:00 of the day before. Read as it stands, every price would be
known a day early. The order of day and month is decided for all dates together, never row by row.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Final

import polars as pl

from pipelines.errors import DataError

_STAMP: Final = (
    r"^(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(:\d{2})?(?:[.,]\d+)? ?(Z|z|UTC|[+-]\d{2}:?\d{2})?)?$"
)
_MOST: Final = 0.9
"""Share of the stamps that one time of day, or two an hour apart, must have to be the rule of the file."""
_SOME: Final = 0.05
"""Least share of a second time of day, an hour from the first: daylight saving lasts for months."""
_HOUR, _MIDNIGHT, _DAY = timedelta(hours=1), timedelta(0), timedelta(days=1)
_ZONES: Final = (
    "Asia/Shanghai", "Asia/Hong_Kong", "Asia/Singapore", "Asia/Tokyo", "Asia/Seoul", "Asia/Kolkata",
    "America/New_York", "America/Chicago", "Europe/London", "Europe/Berlin", "Europe/Helsinki",
    "Europe/Istanbul", "Europe/Moscow", "Australia/Sydney", "Australia/Brisbane", "Pacific/Auckland",
    "America/Sao_Paulo", "America/Mexico_City", "Africa/Johannesburg", "Asia/Jerusalem", "Asia/Riyadh",
    "Asia/Dubai", "Asia/Karachi", "Asia/Dhaka", "Asia/Jakarta",
)  # fmt: skip  # zones of exchanges; one a line would fill a page
_NAMED_ZONES: Final = 3
COUNTED: Final = ("excel", "epoch")
"""Date formats that are numbers: days as Excel counts them, and seconds since 1970 or fractions of them."""
_EXCEL_EPOCH: Final = date(1899, 12, 30)
_FIRST_EPOCH: Final = 1e8
_FIRST_SERIAL, _LAST_SERIAL = 3_000, 109_575  # 1908 and 2200; smaller numbers are years, such as 2020


def refuse_times_of_day(stamps: pl.Series) -> None:
    """Refuse stamps that share a time of day other than midnight, or two an hour apart.

    Midnights of a stamp's own zone are days. Midnight and 23:00 are the midnights of a zone with daylight
    saving, half of them a day early. Times of day that vary are no midnights of any zone and are read.

    Parameters
    ----------
    stamps
        Datetimes with or without a zone, or ISO text; null, other text and other types are ignored.

    Raises
    ------
    DataError
        If at least nine tenths of the distinct stamps share such a time. The message names the zones whose
        midnights they are.
    """
    if not isinstance(stamps.dtype, pl.Datetime | pl.String):
        return
    distinct = stamps.drop_nulls().unique().sort()
    local, utc = _clocks(distinct)
    total = len(distinct)
    known = local.is_not_null()
    distinct, local, utc = distinct.filter(known), local.filter(known), utc.filter(known)
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
    zones = [zone for zone in _ZONES if _midnights(utc, zone) >= _MOST]
    day = local[at].date()
    if not zones:
        raise DataError(
            f"the dates are written as {distinct[at]} and share this time of day, which is "
            f"not midnight in a usual time zone; write the dates of the exchange alone, such as {day}"
        )
    named = " or ".join(zones[:_NAMED_ZONES])
    theirs = utc.dt.replace_time_zone("UTC").dt.convert_time_zone(zones[0])[at].date()
    shifted = f"read as {day}, the row would be used on another day; " if theirs != day else ""
    raise DataError(
        f"the dates are written as {distinct[at]}, which is midnight of {theirs} in {named}: {shifted}"
        f"write the dates of the exchange alone, such as {theirs}"
    )


def refuse_mixed_orders(texts: pl.Series, unread: pl.Series, date_format: str) -> None:
    """Refuse a format of dates if the other order of day and month reads what it cannot read.

    Parameters
    ----------
    texts
        All dates that are not ISO.
    unread
        Those that the format does not read.
    date_format
        strptime format.

    Raises
    ------
    DataError
        If a date is read in the other order only. Dates that both orders read would be stored wrongly.
    """
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
    raise DataError(
        f"the dates have two orders of day and month ({date_format} does not read {only_other[0]}, and "
        f"{other} does not read {_unread(read, other) or texts[0]}): write all dates as 2020-01-31"
    )


def _unread(texts: pl.Series, date_format: str) -> str | None:
    unread = texts.filter(texts.str.to_date(date_format, strict=False).is_null())
    return None if unread.is_empty() else str(unread[0])


def _clocks(stamps: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return the local time of stamps and their time in UTC, both without a zone; null where unreadable.

    A stamp without a zone is taken to be in UTC.
    """
    dtype = stamps.dtype
    if isinstance(dtype, pl.Datetime):
        utc = stamps if dtype.time_zone is None else stamps.dt.convert_time_zone("UTC")
        return _seconds(stamps), _seconds(utc)
    day, clock, seconds, zone = (pl.col("").str.extract(_STAMP, k) for k in range(1, 5))
    text = pl.concat_str(day, pl.lit(" "), clock.fill_null("00:00"), seconds.fill_null(":00"))
    local = text.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)
    offset = zone.str.replace(":", "", literal=True)
    minutes = offset.str.slice(1, 2).cast(pl.Int64, strict=False) * 60 + offset.str.slice(3, 2).cast(
        pl.Int64, strict=False
    )
    east = pl.when(offset.str.starts_with("-")).then(-minutes).otherwise(minutes).fill_null(0)
    read = stamps.alias("").to_frame().select(local=local, utc=local - pl.duration(minutes=east))
    return read["local"], read["utc"]


def _midnights(utc: pl.Series, zone: str) -> float:
    """Share of times that are midnight in a zone."""
    there = utc.dt.replace_time_zone("UTC").dt.convert_time_zone(zone).dt.replace_time_zone(None)
    return float((there == there.dt.truncate("1d")).mean() or 0.0)  # type: ignore[arg-type]  # a share


def _seconds(stamps: pl.Series) -> pl.Series:
    return stamps.dt.replace_time_zone(None).cast(pl.Datetime("us")).dt.truncate("1s")


def counted_as_iso(value: pl.Expr, kind: str) -> pl.Expr:
    """Write numbers of days (``excel``) or of seconds and their fractions (``epoch``) as ISO dates and times.

    Other values are unchanged. An epoch is a time in UTC after 1973; its unit follows from its size.
    """
    number = value.cast(pl.Float64, strict=False)
    if kind == "excel":
        since = pl.duration(seconds=(number * 86_400).round().cast(pl.Int64, strict=False))
        moment = pl.lit(_EXCEL_EPOCH).cast(pl.Datetime("us")) + since
        iso = pl.when(number.is_between(_FIRST_SERIAL, _LAST_SERIAL)).then(
            moment.dt.to_string("%Y-%m-%dT%H:%M:%S")
        )
    else:
        size = number.abs()
        unit = (
            pl.when(size < 1e11)
            .then(1e3)
            .when(size < 1e14)
            .then(1.0)
            .when(size < 1e17)
            .then(1e-3)
            .otherwise(1e-6)
        )
        moment = (number * unit).round().cast(pl.Int64).cast(pl.Datetime("ms"))
        iso = pl.when(size >= _FIRST_EPOCH).then(moment.dt.to_string("%Y-%m-%dT%H:%M:%SZ"))
    return pl.coalesce(iso, value)
