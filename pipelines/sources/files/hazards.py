"""Hazards that the prices themselves reveal, such as a list of firms that was compiled with hindsight."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Final

import polars as pl

from pipelines.sources.files.prices import day

_MIN_YEARS: Final = 2.0
_MIN_FIRMS: Final = 10
_MIN_INDEX_FIRMS: Final = 50
_STILL_TRADING: Final = timedelta(days=30)
_FEW_LEAVE_PER_YEAR: Final = 0.005
"""Share of firms; about 5% to 10% of US listed firms leave their exchange each year, by merger or failure."""
_LATE_START: Final = timedelta(days=365)


def detected_hazards(tables: Mapping[str, pl.DataFrame], known_hazards: tuple[str, ...]) -> list[str]:
    """Detect survivorship, missing membership dates, and an incomplete last session.

    Parameters
    ----------
    tables
        The tables that the source delivers, including ``prices``.
    known_hazards
        Hazards that the user has already stated.
    """
    prices = tables["prices"]
    dated = prices.select(day(prices), "ticker").drop_nulls()
    hazards: list[str] = []
    spans = dated.group_by("ticker").agg(
        pl.col("date").min().alias("first"), pl.col("date").max().alias("last")
    )
    first, last = dated["date"].min(), dated["date"].max()
    if not isinstance(first, date) or not isinstance(last, date):
        return hazards
    years = (last - first).days / 365.25
    leavers = spans.filter(pl.col("last") < last - _STILL_TRADING).height
    few_leave = (
        years >= _MIN_YEARS
        and spans.height >= _MIN_FIRMS
        and leavers < _FEW_LEAVE_PER_YEAR * years * spans.height
        and not _records_delistings(tables.get("securities"))
    )
    if few_leave and not any("surviv" in hazard.lower() for hazard in known_hazards):
        hazards.append(
            f"Survivorship is likely: {leavers or 'none'} of {spans.height:,} firms stop trading in "
            f"{years:.1f} years, so the list was probably compiled with hindsight."
        )
    if few_leave and spans.height >= _MIN_INDEX_FIRMS and "membership" not in tables:
        late_starters = spans.filter(pl.col("first") > first + _LATE_START).height
        hazards.append(
            f"No membership was given for what looks like an index: each of {spans.height:,} firms is used "
            f"from its first price, even before it joined; {late_starters:,} of them start more than a year "
            "after the first session."
        )
    sessions = dated.group_by("date").len().sort("date").tail(2)["len"].to_list()
    if len(sessions) == 2 and sessions[1] < 0.8 * sessions[0]:
        hazards.append(
            f"The last session, {last}, has {sessions[1]:,} firms and the one before has {sessions[0]:,}: "
            "it may be incomplete."
        )
    return hazards


def _records_delistings(securities: pl.DataFrame | None) -> bool:
    if securities is None or "delisted_on" not in securities.columns:
        return False
    return securities["delisted_on"].drop_nulls().len() > 0
