"""What the prices themselves tell of how a list of firms was drawn up."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Final

import polars as pl

from pipelines.sources.files.prices import day

_SURVIVORS_FROM_YEARS: Final = 2.0
_SURVIVORS_FROM_FIRMS: Final = 10
_INDEX_FROM_FIRMS: Final = 50
_STILL_TRADING: Final = timedelta(days=30)
_FEW_LEAVE_PER_YEAR: Final = 0.005
"""Share of firms; of US listed firms some 5% to 10% leave their exchange in a year, by merger or failure."""
_LATE: Final = timedelta(days=365)


def detected_hazards(tables: Mapping[str, pl.DataFrame], told: tuple[str, ...]) -> list[str]:
    """Find out whether firms ever leave, who says when they joined, and whether the last session is whole.

    Parameters
    ----------
    tables
        What the source delivers; ``prices`` among them.
    told
        Hazards that the user knows of already.
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
        years >= _SURVIVORS_FROM_YEARS
        and spans.height >= _SURVIVORS_FROM_FIRMS
        and leavers < _FEW_LEAVE_PER_YEAR * years * spans.height
        and not _records_delistings(tables.get("securities"))
    )
    if few_leave and not any("surviv" in hazard.lower() for hazard in told):
        hazards.append(
            f"Survivorship is likely: {leavers or 'none'} of {spans.height:,} firms stop trading in "
            f"{years:.1f} years, so the list was probably drawn up with hindsight."
        )
    if few_leave and spans.height >= _INDEX_FROM_FIRMS and "membership" not in tables:
        late = spans.filter(pl.col("first") > first + _LATE).height
        hazards.append(
            f"No membership was given for what looks like an index: each of {spans.height:,} firms counts "
            f"from its first price on, also before it joined; {late:,} of them begin more than a year after "
            "the first session."
        )
    sessions = dated.group_by("date").len().sort("date").tail(2)["len"].to_list()
    if len(sessions) == 2 and sessions[1] < 0.8 * sessions[0]:
        hazards.append(
            f"The last session, {last}, has {sessions[1]:,} firms where the one before has {sessions[0]:,}: "
            "it may be incomplete."
        )
    return hazards


def _records_delistings(securities: pl.DataFrame | None) -> bool:
    if securities is None or "delisted_on" not in securities.columns:
        return False
    return securities["delisted_on"].drop_nulls().len() > 0
