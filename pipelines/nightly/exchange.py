"""The exchange of a market: its calendar, and what the calendar says of the sessions around a night."""

from __future__ import annotations

import datetime as dt
from typing import Final

import polars as pl

from pipelines.config.schema import Config
from pipelines.lake.lake import Lake
from pipelines.quality.calendars import calendar_name, newest_finished_session, next_session

_FINAL_AFTER: Final = dt.timedelta(minutes=30)
"""Time from the close of a session until a live source's prices of it are final: quotes are delayed."""


def exchange_calendar(config: Config, lake: Lake) -> str | None:
    """Return the calendar of the config; by default that of most firms, None if they have none."""
    if config.quality.calendar is not None:
        return config.quality.calendar
    if config.source.kind == "simulated" or not lake.exists("securities"):
        return None
    columns = ["exchange", "currency", "ticker"]
    current = lake.read("securities", columns=columns, filters=pl.col("valid_to").is_null())
    counts = current.group_by("exchange", "currency").len().sort("len", "exchange", descending=True)
    for exchange, currency, _ in counts.iter_rows():
        return calendar_name(exchange, currency)
    return None


def expected_session(config: Config, lake: Lake, now: dt.datetime) -> dt.date | None:
    """Return the newest session that a live source must have by now; None if nothing tells.

    Other sources hold whatever their owner put there, so nothing tells which session they should have.
    """
    if config.source.kind != "yfinance":
        return None
    calendar = exchange_calendar(config, lake)
    finished = None if calendar is None else newest_finished_session(calendar, now - _FINAL_AFTER)
    end = config.source.end
    return finished if finished is None or end is None else min(finished, end)


def following_session(config: Config, lake: Lake, session: dt.date) -> dt.date | None:
    """Return the session after another one; None if the market has no calendar that reaches it."""
    calendar = exchange_calendar(config, lake)
    return None if calendar is None else next_session(calendar, session)
