"""The firms whose price of a session is in quarantine."""

from __future__ import annotations

import datetime as dt
import json

import polars as pl

from pipelines.lake.lake import Lake


def quarantined_tickers(lake: Lake, session: dt.date) -> frozenset[str]:
    """Return the tickers whose price row of a session is in quarantine and not resolved."""
    if not lake.exists("quarantine"):
        return frozenset()
    held = lake.read("quarantine").filter((pl.col("table") == "prices") & pl.col("resolved_at").is_null())
    rows = map(json.loads, held["row"].to_list())
    return frozenset(str(row.get("ticker")) for row in rows if str(row.get("date"))[:10] == str(session))
