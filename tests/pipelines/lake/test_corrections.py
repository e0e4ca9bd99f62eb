"""Differences of two states of lake tables: what counts as a correction, and states between the two."""

from __future__ import annotations

import datetime as dt

import polars as pl
from polars.testing import assert_frame_equal

from pipelines.lake.corrections import corrections, filed_and_restated, mixed
from pipelines.lake.schemas import empty

DAYS = [dt.date(2024, 1, day) for day in (2, 3, 4)]
STAMP = dt.datetime(2024, 2, 1, tzinfo=dt.UTC)


def prices(close: list[float], tickers: list[str], stamp: dt.datetime = STAMP) -> pl.DataFrame:
    bars = dict.fromkeys(("open", "high", "low", "close"), close)
    rows = {"date": DAYS[: len(close)], "ticker": tickers, **bars, "volume": 1.0, "split_ratio": 1.0}
    return pl.DataFrame(
        rows | {"dividend": 0.0, "source": "files", "ingested_at": stamp}, schema=empty("prices").schema
    )


def flag(ticker: str) -> pl.DataFrame:
    row = {
        "table": "prices",
        "ticker": ticker,
        "date": DAYS[1],
        "rule": "spike_that_reverts",
        "row_hash": "x",
    }
    row |= {"evidence": "", "known_on": DAYS[2], "cleared": False, "flagged_at": STAMP}
    return pl.DataFrame([row], schema=empty("flags").schema)


def test_changed_added_and_withdrawn_rows_by_table_and_firm() -> None:
    before = {"prices": prices([1.0, 2.0, 4.0], ["A", "B", "C"]), "flags": flag("B")}
    later = STAMP + dt.timedelta(days=1)
    after = {"prices": prices([1.0, 3.0], ["A", "B"], later)}  # the time of writing is no change
    gap = {"date": [DAYS[2]], "ticker": ["C"], "rule": ["missing"], "split_ratio": [None], "dividend": [None]}
    after["gaps"] = pl.DataFrame(gap, schema=empty("gaps").schema)

    found = corrections(before, after)
    assert found.filter(pl.col("ticker") == "C")["column"].to_list() == ["withdrawn", "added"]
    found = found.sort("ticker", "column")

    assert found.select("table", "ticker", "day", "column").rows() == [
        ("prices", "B", DAYS[1], "close"),
        ("prices", "B", DAYS[1], "high"),
        ("prices", "B", DAYS[1], "low"),
        ("prices", "B", DAYS[1], "open"),
        ("prices", "B", DAYS[2], "withdrawn"),  # the flag
        ("prices", "C", DAYS[2], "added"),  # the gap
        ("prices", "C", DAYS[2], "withdrawn"),
    ]
    assert found["size"].round(6).to_list() == [0.333333] * 4 + [1.0] * 3
    assert found.row(0, named=True)["before"] == "2.0"
    assert found.filter(pl.col("ticker") == "B")["key"].n_unique() == 2
    assert corrections(after, after).is_empty()


def test_a_state_between_has_the_later_rows_of_the_chosen_firms_alone() -> None:
    before = {"prices": prices([1.0, 2.0], ["A", "B"]), "flags": flag("B")}
    after = {"prices": prices([3.0, 4.0], ["A", "B"])}
    one = mixed(before, after, [("prices", "A")])
    assert dict(one["prices"].select("ticker", "close").rows()) == {"A": 3.0, "B": 2.0}
    assert_frame_equal(one["flags"], before["flags"])
    both = mixed(before, after, [("prices", "A"), ("prices", "B"), ("securities", "A")])
    assert both.keys() == {"prices"}
    assert_frame_equal(both["prices"], after["prices"], check_row_order=False)
    assert_frame_equal(mixed(before, after, [])["prices"], before["prices"])


def test_statements_of_other_spans_are_no_restatements() -> None:
    filed, later = dt.date(2024, 2, 1), dt.date(2025, 2, 1)
    common = {"ticker": "A", "period_end": dt.date(2023, 12, 31), "item": "net_income", "unit": "USD"}
    rows = [
        {**common, "known_at": filed, "months": 12, "value": 40.0, "filing_id": "1"},
        {**common, "known_at": later, "months": 3, "value": 9.0, "filing_id": "2"},
        {**common, "known_at": later, "months": 12, "value": 38.0, "filing_id": "2"},
    ]
    table = pl.DataFrame([{**row, "assumed": False} for row in rows], schema=empty("fundamentals").schema)
    first, last = filed_and_restated(table)
    shown = [frame.sort("months").select("months", "known_at", "value").rows() for frame in (first, last)]
    assert shown == [[(3, later, 9.0), (12, filed, 40.0)], [(3, later, 9.0), (12, filed, 38.0)]]
