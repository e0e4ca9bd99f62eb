"""Contracts: each rule rejects its rows under its own name, and every row is accounted for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import DataError
from pipelines.lake.contracts import check, require
from pipelines.lake.schemas import SCHEMAS, keys

NOW = datetime(2024, 1, 2, tzinfo=UTC)
GOOD = {
    "date": date(2020, 1, 2),
    "ticker": "AAA",
    "open": 10.0,
    "high": 11.0,
    "low": 9.0,
    "close": 10.5,
    "volume": 100.0,
    "split_ratio": 1.0,
    "dividend": 0.0,
    "source": "test",
    "ingested_at": NOW,
}


def prices(*rows: Mapping[str, object]) -> pl.DataFrame:
    return pl.DataFrame(
        [{**GOOD, **row} for row in rows], schema_overrides={"ingested_at": pl.Datetime("us", "UTC")}
    )


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"close": -1.0}, "close_is_positive"),
        ({"close": 0.0}, "close_is_positive"),
        ({"close": math.nan}, "close_is_positive"),
        ({"close": math.inf}, "close_is_positive"),
        ({"close": None}, "close_missing"),
        ({"date": None}, "date_missing"),
        ({"ticker": None}, "ticker_missing"),
        ({"open": -3.0}, "open_is_positive"),
        ({"high": 8.0}, "high_not_below_low"),
        ({"close": 11.2}, "close_within_range"),
        ({"close": 8.5}, "close_within_range"),
        ({"open": 12.0}, "open_within_range"),
        ({"high": -1.0, "low": -2.0}, "high_is_positive"),
        ({"low": 0.0}, "low_is_positive"),
        ({"volume": math.inf}, "volume_is_finite_and_not_negative"),
        ({"volume": -1.0}, "volume_is_finite_and_not_negative"),
        ({"split_ratio": 0.0}, "split_ratio_is_positive"),
        ({"dividend": -0.1}, "dividend_is_finite_and_not_negative"),
        ({"ticker": "../../x"}, "ticker_is_plain"),
        ({"ticker": "<script>"}, "ticker_is_plain"),
        ({"ticker": ""}, "ticker_is_plain"),
        ({"ticker": ".."}, "ticker_is_plain"),
        ({"ticker": "A..B"}, "ticker_is_plain"),
        ({"ticker": "A\n"}, "ticker_is_plain"),
        ({"ticker": "C:\\x"}, "ticker_is_plain"),
    ],
)
def test_a_bad_price_row_is_rejected_by_name_and_the_good_one_kept(
    change: dict[str, object], rule: str
) -> None:
    checked = check("prices", prices({}, {"date": date(2020, 1, 3), **change}))
    assert checked.by_rule() == {rule: 1}
    assert checked.valid["date"].to_list() == [date(2020, 1, 2)]
    assert checked.collapsed == 0


@pytest.mark.parametrize("ticker", ["BRK.B", "BF-B", "^GSPC", "7203.T", "EURUSD=X", "NA", "a1"])
def test_tickers_of_real_markets_are_valid(ticker: str) -> None:
    assert check("prices", prices({"ticker": ticker})).valid["ticker"].to_list() == [ticker]


def test_null_bars_and_rounding_outside_the_range_are_allowed() -> None:
    unknown = {"open": None, "high": math.nan, "low": None, "volume": None}
    checked = check("prices", prices(unknown, {"date": date(2020, 1, 3), "close": 11.0 * 1.004}))
    assert checked.rejected.is_empty()
    assert checked.valid.sort("date")["high"].to_list() == [None, 11.0]


def test_identical_rows_collapse_and_conflicting_ones_are_all_rejected() -> None:
    later = {"ingested_at": datetime(2024, 5, 5, tzinfo=UTC)}
    checked = check(
        "prices",
        prices({}, {}, later, {"ticker": "BBB"}, {"ticker": "BBB", "close": 10.0}, {"ticker": "CCC"}),
    )
    assert checked.valid["ticker"].sort().to_list() == ["AAA", "CCC"]
    assert checked.by_rule() == {"duplicate_key": 2}
    assert checked.collapsed == 2


def test_a_rejected_row_is_readable_json_with_the_value_that_broke_it() -> None:
    checked = check("prices", prices({"volume": math.inf}))
    row = json.loads(checked.rejected["row"].item())
    assert (row["volume"], row["close"], row["date"]) == ("inf", "10.5", "2020-01-02")
    assert "ingested_at" not in row
    again = check("prices", prices({"volume": math.inf, "ingested_at": datetime(2025, 1, 1, tzinfo=UTC)}))
    assert again.rejected["row_hash"].item() == checked.rejected["row_hash"].item()


def test_text_that_is_not_a_number_is_rejected_and_kept() -> None:
    frame = prices({}, {"ticker": "BBB"}).with_columns(
        close=pl.Series(["10.5", "ten"]), split_ratio=pl.Series([None, "1.0"])
    )
    checked = check("prices", frame)
    assert checked.valid.select("ticker", "close", "split_ratio").rows() == [("AAA", 10.5, 1.0)]
    assert checked.by_rule() == {"close_unreadable": 1}
    assert json.loads(checked.rejected["row"].item())["close"] == "ten"


def test_absent_optional_columns_are_filled_and_an_absent_required_one_is_named() -> None:
    frame = prices({}).drop("open", "volume", "split_ratio", "dividend")
    assert check("prices", frame).valid.select("open", "volume", "split_ratio", "dividend").row(0) == (
        None,
        None,
        1.0,
        0.0,
    )
    with pytest.raises(DataError, match="table prices lacks the column\\(s\\) close"):
        check("prices", frame.drop("close"))


def test_an_empty_batch_has_the_form_of_a_full_one() -> None:
    full, empty = check("prices", prices({}, {"close": -1.0})), check("prices", prices({}).clear())
    assert empty.valid.schema == full.valid.schema
    assert empty.rejected.schema == full.rejected.schema
    assert (empty.valid.height, empty.rejected.height, empty.collapsed) == (0, 0, 0)
    with pytest.raises(DataError, match="table prices lacks the column\\(s\\) close"):
        check("prices", prices({}).clear().drop("close"))


def test_require_raises_on_a_violation_and_otherwise_returns_the_contracts_columns() -> None:
    assert (
        require("prices", prices({}).with_columns(extra=pl.lit(1))).columns
        == SCHEMAS["prices"].column_names()
    )
    with pytest.raises(ValueError, match=r"prices break its contract: close_is_positive \(1\)"):
        require("prices", prices({"close": -1.0}))
    with pytest.raises(ValueError, match="no table 'price'"):
        require("price", prices({}))


@pytest.mark.parametrize(
    ("table", "row", "rule"),
    [
        (
            "securities",
            {"ticker": "A", "valid_from": date(2020, 1, 2), "valid_to": date(2020, 1, 2)},
            "valid_to_after_valid_from",
        ),
        (
            "securities",
            {"ticker": "A", "valid_from": date(2020, 1, 2), "delisting_return": -1.5},
            "delisting_return_at_least_minus_one",
        ),
        (
            "securities",
            {"ticker": "A", "valid_from": date(2020, 1, 2), "delisting_reason": "bankrupt"},
            "delisting_reason_is_merger_performance_or_unknown",
        ),
        (
            "fundamentals",
            {
                "ticker": "A",
                "period_end": date(2020, 3, 31),
                "known_at": date(2020, 3, 1),
                "item": "book",
                "value": 1.0,
            },
            "known_after_period_end",
        ),
        (
            "membership",
            {"universe": "u", "ticker": "A", "from_date": date(2020, 1, 2), "to_date": date(2019, 1, 1)},
            "to_date_after_from_date",
        ),
        (
            "forecasts",
            {
                "run_id": "../r",
                "model": "m",
                "fold": 0,
                "seed": 1,
                "date": date(2020, 1, 2),
                "ticker": "A",
                "forecast": 0.1,
            },
            "run_id_is_plain",
        ),
        (
            "truth_edges",
            {
                "leader": "A",
                "follower": "B",
                "lag": 1,
                "hop": 1,
                "weight": math.nan,
                "explained": True,
                "valid_from": date(2020, 1, 2),
            },
            "weight_is_finite",
        ),
        (
            "truth_edges",
            {
                "leader": "A",
                "follower": "B",
                "lag": -1,
                "hop": 1,
                "weight": 0.1,
                "explained": True,
                "valid_from": date(2020, 1, 2),
            },
            "lag_below_minimum",
        ),
        (
            "truth_days",
            {
                "date": date(2020, 1, 2),
                "ticker": "A",
                "turbulent": True,
                "shock": 0.0,
                **{f"day_{k}": math.inf for k in range(5)},
            },
            "parts_are_finite",
        ),
        (
            "truth_mu",
            {
                "date": date(2020, 1, 2),
                "ticker": "A",
                "mu": math.inf,
                "temporal": 0.0,
                "peer": 0.0,
                "characteristic": 0.0,
            },
            "parts_are_finite",
        ),
    ],
)
def test_the_other_tables_reject_by_name(table: str, row: dict[str, object], rule: str) -> None:
    checked = check(table, pl.DataFrame([row]))
    assert checked.by_rule() == {rule: 1}
    assert checked.valid.is_empty()


def test_every_table_has_a_key_among_its_columns() -> None:
    assert keys("prices") == ["date", "ticker"]
    assert keys("forecasts") == ["run_id", "model", "fold", "seed", "date", "ticker"]
    for table, contract in SCHEMAS.items():
        assert keys(table)
        assert set(keys(table)) <= set(contract.column_names())


row = st.fixed_dictionaries(
    {
        "ticker": st.sampled_from(["A", "B", "<b>"]),
        "close": st.sampled_from([10.0, 10.5, -1.0, math.inf]),
        "volume": st.sampled_from([None, 5.0, math.nan, -2.0]),
    }
)


@settings(max_examples=60)
@given(st.lists(row, min_size=1, max_size=12))
def test_every_row_is_valid_rejected_or_collapsed(rows: list[dict[str, object]]) -> None:
    checked = check("prices", prices(*rows))
    assert checked.valid.height + checked.rejected.height + checked.collapsed == len(rows)
    assert not checked.valid.select(pl.struct("date", "ticker").is_duplicated().any()).item()
    assert checked.rejected["row_hash"].is_unique().all()
