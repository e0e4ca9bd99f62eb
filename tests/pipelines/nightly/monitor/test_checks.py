"""The checks of a night's data: each defect is found, named with its number, and nothing else is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from nights import night_of, store_nights

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.tables import input_versions, open_lake
from pipelines.lake.lake import Lake
from pipelines.nightly.monitor.checks import check_data, price_corrections
from pipelines.nightly.result import ModelVersion, NightFinding

VERSION = ModelVersion("run", "zero")
STAMP = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
FIRMS = [f"F{n:02d}" for n in range(40)]


def sessions(count: int = 60) -> list[dt.date]:
    """Weekdays of 2019 that are sessions in New York."""
    closed = {dt.date(2019, 1, 1), dt.date(2019, 1, 21), dt.date(2019, 2, 18)}
    days = [dt.date(2019, 1, 1) + dt.timedelta(days=k) for k in range(2 * count)]
    return [day for day in days if day.weekday() < 5 and day not in closed][:count]


def rows(days: list[dt.date], firms: list[str] = FIRMS) -> pl.DataFrame:
    """Prices that differ by firm and session."""
    frame = pl.DataFrame({"date": days}).join(pl.DataFrame({"ticker": firms}), how="cross")
    close = (
        20.0
        + (pl.col("date").dt.ordinal_day() * 7 % 11) / 10.0
        + pl.col("ticker").str.tail(2).cast(pl.Float64)
    )
    return frame.with_columns(close=close).with_columns(
        open=pl.col("close"),
        high=pl.col("close") * 1.01,
        low=pl.col("close") * 0.99,
        volume=1000.0 + pl.col("date").dt.ordinal_day().cast(pl.Float64),
        split_ratio=pl.lit(1.0),
        dividend=pl.lit(0.0),
        source=pl.lit("files"),
        ingested_at=pl.lit(STAMP).cast(pl.Datetime("us", "UTC")),
    )


@pytest.fixture
def market(tmp_path: Any, tiny_settings: Mapping[str, Any]) -> tuple[Config, Lake]:  # noqa: ANN401 (a path)
    """A lake of 40 firms up to the session before the last, with a night on it."""
    settings = {**tiny_settings, "lake": str(tmp_path / "lake"), "output": str(tmp_path / "runs")}
    config = check_config(settings | {"quality": {"calendar": "XNYS"}}, origin="tiny")
    lake = open_lake(config)
    lake.upsert("prices", rows(sessions()[:-1]))
    store_nights(lake, config, {sessions()[-2]: VERSION}, versions=input_versions(lake))
    return config, lake


def checked(config: Config) -> dict[str, NightFinding]:
    """Findings of the last session by check."""
    return {f.check: f for f in check_data(config, night_of(config, sessions()[-1]), sessions()[-2])}


def test_clean_data_have_no_warning(market: tuple[Config, Lake]) -> None:
    """All checks are made, and all are fine."""
    config, lake = market
    lake.upsert("prices", rows(sessions()[-1:]))
    found = checked(config)
    assert set(found) == {"calendar", "coverage", "stale_prices", "corrections", "vintages"}
    assert {finding.level for finding in found.values()} == {"ok"}
    assert found["coverage"].value == 1.0


def test_a_delivery_with_few_firms_fails_the_night(market: tuple[Config, Lake]) -> None:
    """Thirty of forty firms are fewer than nine tenths."""
    config, lake = market
    lake.upsert("prices", rows(sessions()[-1:], FIRMS[:30]))
    finding = checked(config)["coverage"]
    assert finding.level == "fail"
    assert finding.value == pytest.approx(0.75)
    assert "F30, F31, F32, F33, F34 and 5 more" in finding.sentence


def test_firms_with_a_new_ticker_are_not_missing(market: tuple[Config, Lake]) -> None:
    """The vendor gives the whole history of eight firms new tickers; the user has recorded them."""
    config, lake = market
    named = {ticker: f"NEW{ticker[1:]}" for ticker in FIRMS[:8]}
    delivered = rows(sessions()).with_columns(pl.col("ticker").replace(named))
    lake.upsert("prices", delivered, scope=pl.lit(value=True))
    assert [checked(config)[check].level for check in ("coverage", "withdrawn")] == ["fail", "fail"]
    days = [sessions()[-1]] * len(named)
    renames = {"ticker": [*named], "from_date": days, "new_ticker": [*named.values()]}
    lake.upsert("renames", pl.DataFrame(renames))
    found = checked(config)
    assert found["coverage"].value == 1.0
    assert found["corrections"].level == "warn", "a rewritten history is still said"


def test_a_copied_session_is_stale(market: tuple[Config, Lake]) -> None:
    """Six of forty firms repeat their bar: 15%, above 5%."""
    config, lake = market
    same = rows(sessions()[-2:-1], FIRMS[:6]).with_columns(date=pl.lit(sessions()[-1]))
    lake.upsert("prices", pl.concat([same, rows(sessions()[-1:], FIRMS[6:])]))
    finding = checked(config)["stale_prices"]
    assert finding.level == "warn"
    assert finding.value == pytest.approx(0.15)
    assert "F00, F01" in finding.sentence


def test_a_session_of_the_exchange_that_is_missing_is_named(
    tmp_path: Any,  # noqa: ANN401 (a path)
    tiny_settings: Mapping[str, Any],
) -> None:
    """The data skip a day on which New York was open; holidays are not asked for."""
    settings = {**tiny_settings, "lake": str(tmp_path / "lake"), "quality": {"calendar": "XNYS"}}
    config = check_config(settings, origin="tiny")
    days = sessions()
    open_lake(config).upsert("prices", rows([day for day in days if day != days[-3]]))
    found = {f.check: f for f in check_data(config, night_of(config, days[-1]), None)}
    assert found["calendar"].level == "warn"
    assert found["calendar"].value == 1.0
    assert str(days[-3]) in found["calendar"].sentence


def test_corrections_are_counted_and_named(market: tuple[Config, Lake]) -> None:
    """One row is corrected, one is new and one is gone; the night's own session does not count."""
    config, lake = market
    days = sessions()
    then = lake.version("prices")
    assert then is not None
    corrected = rows([days[10]], ["F03"]).with_columns(volume=pl.lit(5.0))
    late = rows([days[20]], ["NEW99"])
    lake.upsert("prices", pl.concat([corrected, late, rows(days[-1:])]))
    gone = (pl.col("date") == days[30]) & (pl.col("ticker") == "F07")
    lake.upsert("prices", rows(days[:1], FIRMS[:1]), scope=gone)
    now = lake.version("prices")
    assert now is not None
    found = price_corrections(lake, then, now, days[-2])
    assert found is not None
    assert found.rows() == [
        (days[10], "F03", "corrected"),
        (days[20], "NEW99", "added"),
        (days[30], "F07", "withdrawn"),
    ]
    finding = checked(config)["corrections"]
    assert finding.level == "ok"  # three rows of a year are few
    assert finding.value == pytest.approx(3 / (40 * 60), rel=0.01)
    assert "1 corrected, 1 added, 1 withdrawn" in finding.sentence
    assert str(days[10]) in finding.sentence


def test_another_history_is_a_warning(market: tuple[Config, Lake]) -> None:
    """A vendor that adjusts a firm's whole history changes more than a hundredth of the rows."""
    config, lake = market
    days = sessions()
    adjusted = rows(days[:-1], ["F05"]).with_columns(pl.col("open", "high", "low", "close") / 2)
    lake.upsert("prices", pl.concat([adjusted, rows(days[-1:])]))
    finding = checked(config)["corrections"]
    assert finding.level == "warn"
    assert finding.value is not None
    assert finding.value > 0.01
    assert "F05" in finding.sentence


def test_new_flags_and_rejected_rows_are_reported(market: tuple[Config, Lake]) -> None:
    """Only flags that became known since the last night, and rows rejected after it was recorded."""
    config, lake = market
    days = sessions()
    lake.upsert("prices", rows(days[-1:]))
    flags = pl.DataFrame(
        {
            "table": "prices",
            "ticker": ["F01", "F02"],
            "date": [days[5], days[-1]],
            "rule": "stale_run",
            "row_hash": ["a", "b"],
            "evidence": "",
            "known_on": [days[5], days[-1]],
            "cleared": False,
            "flagged_at": STAMP,
        }
    ).with_columns(pl.col("flagged_at").cast(pl.Datetime("us", "UTC")))
    lake.upsert("flags", flags)
    later = STAMP + dt.timedelta(hours=1)
    quarantine = pl.DataFrame(
        {
            "table": "prices",
            "row_hash": ["x", "y"],
            "row": "{}",
            "rule": "close_is_positive",
            "first_seen": [STAMP, later],
            "resolved_at": None,
        },
        schema_overrides={
            "first_seen": pl.Datetime("us", "UTC"),
            "resolved_at": pl.Datetime("us", "UTC"),
        },
    )
    lake.upsert("quarantine", quarantine)
    found = checked(config)
    assert found["quality_flags"].level == "warn"
    assert found["quality_flags"].value == 1.0
    assert "F02" in found["quality_flags"].sentence
    assert found["quarantine"].value == 1.0
    assert "close_is_positive" in found["quarantine"].sentence


def test_rewritten_inputs_are_named(market: tuple[Config, Lake]) -> None:
    """Every value of an input changes when its scale includes a new session; prices only grow."""
    config, lake = market
    days = sessions()

    def inputs(until: list[dt.date], scale: float) -> pl.DataFrame:
        frame = rows(until).select("date", "ticker", value=pl.col("close") / scale)
        return frame.select(pl.lit("signal").alias("name"), "date", "ticker", "value")

    lake.upsert("inputs", inputs(days[:-1], 50.0))
    store_nights(lake, config, {days[-2]: VERSION}, versions=input_versions(lake))
    lake.upsert("prices", rows(days[-1:]))
    lake.upsert("inputs", inputs(days, 60.0))
    finding = checked(config)["vintages"]
    assert finding.level == "warn"
    assert "inputs signal differs" in finding.sentence
    assert str(days[0]) in finding.sentence


def test_tickers_of_a_file_that_are_not_in_the_data_are_named(
    market: tuple[Config, Lake], tmp_path: Path
) -> None:
    config, lake = market
    lake.upsert("prices", rows(sessions()[-1:]))
    fees = tmp_path / "fees.csv"
    fees.write_text("ticker,bps_per_year\nF01,30\nTYPO,900\n")
    costs = config.backtest.costs.model_copy(update={"borrow_file": str(fees)})
    backtest = config.backtest.model_copy(update={"costs": costs})
    config = config.model_copy(update={"backtest": backtest})
    said = "1 ticker is in backtest.costs.borrow_file, but not in the data: TYPO."
    assert checked(config)["firm_files"].sentence == said
    assert said in night_of(config, sessions()[-1]).market.notes
