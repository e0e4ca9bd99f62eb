"""Two deliveries of the same data: rewritten history is named, and announced corrections are told apart."""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl
import pytest

from backtest.look_ahead.vintages import compare_vintages
from pipelines.pages.report import shown_evidence

DAYS = pl.date_range(dt.date(2020, 1, 1), dt.date(2020, 6, 28), "1d", eager=True)
FIRMS = [f"F{n:02}" for n in range(20)]
Tables = dict[str, pl.DataFrame]


def cells() -> pl.DataFrame:
    return pl.DataFrame({"date": DAYS}).join(pl.DataFrame({"ticker": FIRMS}), how="cross")


@pytest.fixture
def whole() -> Tables:
    rng = np.random.default_rng(0)
    moves = rng.normal(0.0, 0.02, (len(DAYS), len(FIRMS)))
    close = 50.0 * np.exp(np.cumsum(moves, axis=0)).ravel()
    prices = cells().with_columns(
        *[pl.Series(name, close) for name in ("open", "high", "low", "close")],
        volume=pl.lit(1e5),
        split_ratio=pl.lit(1.0),
        dividend=pl.lit(0.0),
    )
    inputs = prices.select(pl.lit("signal").alias("name"), "date", "ticker", value=pl.col("close").log())
    statements = pl.DataFrame(
        {"ticker": FIRMS, "period_end": [dt.date(2019, 12, 31)] * 20, "known_at": [dt.date(2020, 2, 15)] * 20}
    ).with_columns(item=pl.lit("revenue"), value=pl.lit(7.0))
    return {"prices": prices, "inputs": inputs, "fundamentals": statements}


def until(tables: Tables, day: dt.date) -> Tables:
    known = {"prices": "date", "inputs": "date", "fundamentals": "known_at"}
    return {name: frame.filter(pl.col(known[name]) <= day) for name, frame in tables.items()}


LAST = dt.date(2020, 5, 31)


def test_history_that_only_grew_passes(whole: Tables) -> None:
    result = compare_vintages(until(whole, LAST), whole)
    assert result.verdict == "pass"
    assert str(LAST) in result.sentence


def test_input_scaled_with_what_came_later_is_named(whole: Tables) -> None:
    """A share of the highest price: it changes for the firms that rose after the earlier delivery."""

    def deliver(tables: Tables) -> Tables:
        scaled = pl.col("value") - pl.col("value").max().over("ticker")
        return {**tables, "inputs": tables["inputs"].with_columns(scaled.alias("value"))}

    result = compare_vintages(deliver(until(whole, LAST)), deliver(whole))
    assert result.verdict == "fail"
    assert "inputs signal differs in" in result.sentence
    assert "2020-01-01" in result.sentence
    changed = result.evidence.row(0, named=True)
    risen = (
        whole["prices"]
        .group_by("ticker")
        .agg(before=pl.col("close").filter(pl.col("date") <= LAST).max(), ever=pl.col("close").max())
    )
    assert changed["firms"] == risen.filter(pl.col("ever") > pl.col("before")).height
    assert changed["correlation"] is not None


def test_input_that_arrives_late_is_named(whole: Tables) -> None:
    """The value of a session needs the next one: the earlier delivery ends a session before its prices."""
    older = until(whole, LAST)
    late = older["inputs"].filter((pl.col("date") < LAST) | (pl.col("ticker") > "F04"))
    result = compare_vintages({**older, "inputs": late}, whole)
    assert result.verdict == "fail"
    assert "become known later than their date" in result.sentence
    assert result.evidence.row(0, named=True)["rows"] == 5


def test_overwritten_statement_and_single_corrections(whole: Tables) -> None:
    restated = whole["fundamentals"].with_columns(
        value=pl.when(pl.col("ticker") <= "F05").then(8.0).otherwise("value")
    )
    result = compare_vintages(until(whole, LAST), {**whole, "fundamentals": restated})
    assert result.verdict == "fail"
    assert "fundamentals value differs in 6 rows (30.0%) of 6 firms, such as F00" in result.sentence

    one = (pl.col("ticker") == "F07") & (pl.col("date") == dt.date(2020, 3, 3))
    corrected = whole["prices"].with_columns(close=pl.when(one).then(49.0).otherwise("close"))
    result = compare_vintages(until(whole, LAST), {**whole, "prices": corrected})
    assert shown_evidence(result.evidence)["rows"]["verdict"].to_list() == ["warn"], "as the report shows it"
    assert result.verdict == "warn"
    assert "such as F07 since 2020-03-03" in result.sentence


def test_prices_adjusted_for_a_recorded_split_are_announced(whole: Tables) -> None:
    """F03 splits 2 for 1 after the earlier delivery, and the vendor divides its history."""
    ex_date = dt.date(2020, 6, 10)
    own, before = pl.col("ticker") == "F03", pl.col("date") < ex_date
    halved = [
        pl.when(own).then(pl.col(name) / 2).otherwise(name).alias(name)
        for name in ("open", "high", "low", "close")
    ]
    split = whole["prices"].with_columns(
        *halved,
        volume=pl.when(own & before).then(pl.col("volume") * 2).otherwise("volume"),
        split_ratio=pl.when(own & (pl.col("date") == ex_date)).then(2.0).otherwise("split_ratio"),
    )
    result = compare_vintages(until(whole, LAST), {**whole, "prices": split})
    assert result.verdict == "pass"
    assert "announced" in result.sentence
    unrecorded = split.with_columns(split_ratio=pl.lit(1.0))
    result = compare_vintages(until(whole, LAST), {**whole, "prices": unrecorded})
    assert result.verdict == "fail"
    assert "F03" in result.sentence


def test_history_of_new_firms_is_a_hazard(whole: Tables) -> None:
    older = {name: frame.filter(pl.col("ticker") != "F11") for name, frame in until(whole, LAST).items()}
    result = compare_vintages(older, whole)
    assert result.verdict == "warn"
    assert "F11" in result.sentence
