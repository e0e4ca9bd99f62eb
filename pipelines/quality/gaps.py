"""Prices that are known to be missing: the table ``gaps``.

A session on which a firm has neither a price nor a row in ``gaps`` is a halt, and a holder keeps the last
price. A row that was rejected, or a session of the exchange without any row, is no halt: the firm may have
traded at a price that is not known, so a label across it is unknown. Without these rows a session whose every
row is rejected would vanish, and a return over two sessions would pass for one.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from pipelines.lake.source_tables import Gaps
from pipelines.quality.calendars import sessions_between
from pipelines.quality.rules import DATE_RULES, ticker_calendars, with_dates
from pipelines.quality.settings import QualityConfig

_KEY: Final = ["date", "ticker"]
_DAILY: Final = 0.5
"""Daily data have prices on at least this share of a calendar's sessions, weekly data on fewer."""
_MIN_FIRMS: Final = 5
"""Sessions that fewer firms of one exchange among several lack are halts of these firms."""
_NAMED: Final = 5


def rejected_gaps(
    kept: pl.DataFrame, rejected: pl.DataFrame, securities: pl.DataFrame | None, config: QualityConfig
) -> pl.DataFrame:
    """Return the gaps that rejected price rows leave.

    A row whose date is no session (`pipelines.quality.rules.DATE_RULES`) leaves none, and neither does a row
    whose key has a valid price, or whose firm has none at all.

    Parameters
    ----------
    kept
        Valid price rows of the delivery.
    rejected
        Its rejected price rows, with the columns of `pipelines.lake.contracts.Checked.rejected`.
    securities
        Rows of ``securities`` with the firms' exchanges; None if unknown.
    config
        The calendar.
    """
    lost = rejected.filter(~pl.col("rule").is_in(DATE_RULES)).select(
        pl.col("row").str.json_path_match("$.date").str.to_date("%Y-%m-%d", strict=False).alias("date"),
        pl.col("row").str.json_path_match("$.ticker").alias("ticker"),
        "rule",
    )
    lost = lost.drop_nulls().unique(_KEY, keep="first", maintain_order=True)
    lost = lost.join(kept, on=_KEY, how="anti").join(kept, on="ticker", how="semi")
    if lost.is_empty():
        return Gaps.create_empty()
    source = pl.lit(kept["source"][0]).alias("source")
    rows = pl.concat([kept.select(*_KEY, "source"), lost.select(*_KEY, source)])
    dated = with_dates(rows, securities, config.calendar, config.calendar_overrides)
    session = pl.col("session").fill_null(~pl.col("sparse"))
    return lost.join(dated.filter(session), on=_KEY, how="semi").select(Gaps.column_names())


def missing_sessions(
    rows: pl.DataFrame, securities: pl.DataFrame | None, config: QualityConfig
) -> pl.DataFrame:
    """Return the gaps of sessions on which no firm of an exchange has a row.

    Parameters
    ----------
    rows
        Prices of whole dates: date, ticker, source.
    securities
        Rows of ``securities`` with the firms' exchanges; None if unknown.
    config
        The calendar.

    Returns
    -------
    DataFrame
        Columns of ``gaps``, a row per missing session and firm of the exchange that has prices before and
        after it. None where the data are not daily, and none where less than five firms of one exchange among
        several have such prices: these firms may be halted.
    """
    firms = ticker_calendars(rows, securities, config.calendar).drop_nulls()
    parts: list[pl.DataFrame] = [Gaps.create_empty()]
    for (name,), of_calendar in firms.group_by("calendar", maintain_order=True):
        held = rows.join(of_calendar, on="ticker", how="semi")
        spans = held.group_by("ticker").agg(first=pl.col("date").min(), last=pl.col("date").max())
        first, last = spans["first"].min(), spans["last"].max()
        expected = sessions_between(str(name), first, last, config.calendar_overrides)  # type: ignore[arg-type]  # dates
        missing = expected.filter(~expected.is_in(held["date"].unique().implode()))
        if len(missing) > (1 - _DAILY) * len(expected):
            continue
        within = missing.alias("date").to_frame().join(spans, how="cross")
        within = within.filter(pl.col("date").is_between("first", "last", closed="none"))
        if len(of_calendar) < rows["ticker"].n_unique():
            within = within.filter(pl.len().over("date") >= _MIN_FIRMS)
        rule = pl.lit("missing_session").alias("rule")
        parts.append(within.select(*_KEY, rule).sort(_KEY))
    return pl.concat(parts)


def describe_gaps(gaps: pl.DataFrame, rows: pl.DataFrame) -> list[str]:
    """Say in up to two sentences how many sessions are incomplete, and which have no price at all.

    Parameters
    ----------
    gaps
        Rows of ``gaps``.
    rows
        All prices of their dates: date, ticker.
    """
    gaps = gaps.join(rows, on=_KEY, how="anti")
    held = gaps.join(rows, on="date", how="semi")
    lost = gaps.join(rows, on="date", how="anti").group_by("date").agg("rule").sort("date")
    sentences = []
    if held.height:
        sentences.append(
            f"{_sessions(held['date'].n_unique())} incomplete: {held.height:,} prices of "
            f"{held['ticker'].n_unique():,} firms are unknown, first on {held['date'].min()!s}. Labels "
            "across them are unknown."
        )
    if lost.height:
        days = ", ".join(str(day) for day in lost["date"].head(_NAMED))
        more = f" and {lost.height - _NAMED:,} more" if lost.height > _NAMED else ""
        calendar = lost.filter(pl.col("rule").list.contains("missing_session")).height
        why = f" ({calendar:,} missing by the calendar)" if calendar else ""
        sentences.append(
            f"{_sessions(lost.height)} without any price{why}: {days}{more}. Labels across them are unknown."
        )
    return sentences


def _sessions(count: int) -> str:
    return f"{count:,} session is" if count == 1 else f"{count:,} sessions are"
