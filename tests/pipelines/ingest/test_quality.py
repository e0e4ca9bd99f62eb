"""Quality rules: each detects its defect, in one delivery or night by night, and flags no valid market.

This file is long because every rule has a market with its defect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from places import DATA

from features.panel.panel import build_panel
from pipelines.config.load import check_config
from pipelines.dataset.tables import read_tables
from pipelines.errors import ConfigError
from pipelines.ingest.ingest import IngestSummary, describe_ingest, ingest
from pipelines.ingest.rules import PRICE_RULES, add_neighbours, find_coverage_collapses, find_violations
from pipelines.ingest.settings import QualityConfig
from pipelines.lake.contracts import check
from pipelines.lake.lake import Lake
from pipelines.sources.base import SourceTables, StoredData
from pipelines.sources.simulated.config import MarketConfig
from pipelines.sources.simulated.source import SimulatedSource

NOW = datetime(2024, 1, 2, tzinfo=UTC)
MONDAY = date(2023, 5, 1)
OFF = dict.fromkeys(PRICE_RULES, "off")


class Given:
    name = "given"

    def __init__(self, prices: pl.DataFrame, **tables: pl.DataFrame) -> None:
        self.tables = {"prices": prices, **tables}

    def fetch(self) -> SourceTables:
        return SourceTables(self.tables)


class Batch:
    """A live source with one batch; rows that it does not contain are kept."""

    name = "given"

    def __init__(self, prices: pl.DataFrame) -> None:
        self.prices = prices

    def batches(self, stored: StoredData) -> Iterator[SourceTables]:
        yield SourceTables({"prices": self.prices})


def weekdays(n: int, first: date = MONDAY) -> list[date]:
    days = (first + timedelta(days=i) for i in range(2 * n + 7))
    return [day for day in days if day.weekday() < 5][:n]


def bars(closes: Sequence[float], ticker: str = "A", **columns: Sequence[Any]) -> pl.DataFrame:
    frame = pl.DataFrame({"date": weekdays(len(closes)), "ticker": [ticker] * len(closes), "close": closes})
    return frame.with_columns(pl.Series(name, values) for name, values in columns.items())


def valid(frame: pl.DataFrame) -> pl.DataFrame:
    stamped = frame.with_columns(source=pl.lit("test"), ingested_at=pl.lit(NOW).dt.cast_time_unit("us"))
    checked = check("prices", stamped)
    assert checked.rejected.is_empty()
    return checked.valid


def found(
    frame: pl.DataFrame, securities: pl.DataFrame | None = None, calendar: str | None = None
) -> list[tuple[str, int]]:
    """Rule and weekday number of every violation in one firm's closes."""
    rows = find_violations(add_neighbours(valid(frame), securities, calendar), PRICE_RULES)
    days = frame["date"].to_list()
    return [(rule, days.index(day)) for rule, day in rows.select("rule", "date").iter_rows()]


def securities(*rows: tuple[str, date, str | None, str | None]) -> pl.DataFrame:
    columns = {"ticker": pl.String, "valid_from": pl.Date, "exchange": pl.String, "currency": pl.String}
    return pl.DataFrame(rows, schema=columns, orient="row")


@pytest.mark.parametrize("spike", [15.5, 1000.0, 6.6, 0.1])
def test_a_reverting_spike_is_flagged_and_known_one_session_later(spike: float) -> None:
    frame = bars([10.0, 10.1, spike, 10.2, 10.0])
    rows = find_violations(add_neighbours(valid(frame), None, None), ("spike_that_reverts",))
    days = weekdays(5)
    assert rows.select("date", "known_on").rows() == [(days[2], days[3])]
    assert rows["evidence"].item() == f"close 10.1 -> {spike} -> 10.2"
    assert ("return_without_split", 2) not in found(frame)
    assert ("return_without_split", 3) not in found(frame)


@pytest.mark.parametrize(
    "closes",
    [
        [10.0, 14.9, 10.0],  # too small
        [10.0, 16.0, 12.0],  # only half of it has reverted
        [10.0, 16.0],  # not known yet
        [10.0, 16.0, 25.0],  # continues
    ],
)
def test_small_or_unreverted_jumps_are_not_flagged(closes: list[float]) -> None:
    assert "spike_that_reverts" not in dict(found(bars(closes)))


@pytest.mark.parametrize("closes", [[0.01, 0.02, 0.01], [0.01, 0.03, 0.01], [0.03, 0.01, 0.03], [0.04, 0.02]])
def test_a_penny_share_moves_by_ticks(closes: list[float]) -> None:
    assert found(bars(closes)) == []
    assert ("spike_that_reverts", 1) in found(bars([0.01, 0.1, 0.01]))


def test_a_recorded_split_or_dividend_explains_a_fall() -> None:
    assert found(bars([100.0, 51.0, 50.0], split_ratio=[1.0, 2.0, 1.0])) == []
    assert found(bars([100.0, 51.0, 50.0], dividend=[0.0, 49.0, 0.0])) == []


@pytest.mark.parametrize("ratio", [1.5, 2.0, 3.0, 10.0, 20.0, 1 / 2, 1 / 10])
def test_a_return_without_split_is_found_in_both_directions(ratio: float) -> None:
    closes = [60.0, 60.6, 60.6 / ratio * 1.01, 60.0 / ratio]
    assert found(bars(closes)) == [("return_without_split", 2)]
    opens = [60.0, 60.0, 60.6 / ratio, 60.0 / ratio]
    highs = [max(o, c) for o, c in zip(opens, closes, strict=True)]
    lows = [min(o, c) for o, c in zip(opens, closes, strict=True)]
    assert found(bars(closes, open=opens, high=highs, low=lows)) == [("return_without_split", 2)]


def test_an_intraday_fall_is_no_split() -> None:
    closes, opens = [60.0, 60.6, 30.3, 30.0], [60.0, 60.0, 58.0, 30.0]
    frame = bars(closes, open=opens, high=[61.0, 61.0, 59.0, 31.0], low=[59.0, 59.0, 30.0, 29.0])
    assert found(frame) == []


def test_a_split_recorded_with_another_ratio_than_the_price_shows_is_found() -> None:
    assert found(bars([100.0, 25.0, 25.1], split_ratio=[1.0, 2.0, 1.0])) == [("return_without_split", 1)]


@pytest.mark.parametrize("ratio", [2.0, 1.5, 0.1])
def test_a_recorded_split_that_the_price_does_not_show_is_found(ratio: float) -> None:
    rows = found(bars([100.0, 101.0, 100.0], split_ratio=[1.0, ratio, 1.0]))
    assert rows == [("split_without_return", 1)]


@pytest.mark.parametrize(("ratio", "rise"), [(1.2, 1.1), (1.2, 1.2), (1.3, 1.2), (1.5, 1.3), (2.0, 0.8)])
def test_a_bonus_issue_on_a_day_of_a_large_return_is_no_error(ratio: float, rise: float) -> None:
    assert found(bars([10.0, 10.0 / ratio * rise, 10.0 / ratio], split_ratio=[1.0, ratio, 1.0])) == []


@pytest.mark.parametrize("factor", [100.0, 0.01, 108.0])
def test_a_factor_of_a_hundred_is_a_currency_jump_once(factor: float) -> None:
    assert found(bars([5.0, 5.1, 5.1 * factor, 5.0 * factor])) == [("currency_jump", 2)]


def test_the_return_from_a_bad_tick_in_pence_is_not_flagged() -> None:
    assert found(bars([5.0, 5.1, 510.0, 5.05])) == [("spike_that_reverts", 2), ("currency_jump", 2)]


def test_a_new_recorded_currency_is_flagged_on_its_first_session() -> None:
    days = weekdays(4)
    listings = securities(("A", days[0], None, "GBp"), ("A", days[2], None, "GBP"))
    frame = bars([5.0, 5.1, 5.0, 5.1])
    assert found(frame, listings) == [("currency_jump", 2)]
    rows = find_violations(add_neighbours(valid(frame), listings, None), ("currency_jump",))
    assert rows["evidence"].item() == "currency GBp -> GBP"


def test_the_tenth_repetition_of_a_bar_is_stale_unless_shares_were_traded() -> None:
    closes = [9.0, *[10.0] * 12, 11.0]
    assert found(bars(closes)) == [("stale_run", 11), ("stale_run", 12)]
    assert found(bars(closes, volume=[5.0] * 14)) == [("stale_run", 11), ("stale_run", 12)]
    assert found(bars(closes, volume=[5.0 + i for i in range(14)])) == []
    assert found(bars(closes, high=[c + i / 10 for i, c in enumerate(closes)])) == []


def test_rows_are_not_compared_across_a_long_gap() -> None:
    frame = bars([10.0, 10.0, 100.0, 100.0]).with_columns(
        date=pl.Series([date(2023, 5, 1), date(2023, 5, 2), date(2023, 5, 15), date(2023, 5, 16)])
    )
    assert found(frame) == []


def test_rows_of_different_firms_are_not_neighbours() -> None:
    both = pl.concat([bars([10.0, 10.0]), bars([1000.0, 1000.0], "B"), bars([10.0, 10.0], "C")])
    assert find_violations(add_neighbours(valid(both.sort("date")), None, None), PRICE_RULES).is_empty()


INDEPENDENCE, FRIDAY_AFTER_THANKSGIVING = date(2023, 7, 4), date(2023, 11, 24)


@pytest.mark.parametrize(
    ("listing", "calendar", "closed"),
    [
        (("NMS", "USD"), None, True),
        (("NYSE", None), None, True),
        ((None, "USD"), None, False),  # dollars are no exchange: crypto trades at week-ends
        ((None, None), None, False),
        ((None, "EUR"), None, False),
        (("somewhere", "USD"), None, False),
        (("LSE", "USD"), None, False),  # London was open
        (("LSE", "USD"), "XNYS", True),
        ((None, None), "NASDAQ", True),
    ],
)
def test_a_row_on_a_holiday_is_found_where_the_calendar_is_known(
    listing: tuple[str | None, str | None], calendar: str | None, closed: bool
) -> None:
    frame = bars([10.0], volume=[0.0]).with_columns(date=pl.lit(INDEPENDENCE))
    listings = securities(("A", date(2000, 1, 1), *listing))
    assert found(frame, listings, calendar) == ([("closed_session", 0)] if closed else [])


def test_a_monthly_dividend_may_be_larger_than_the_close_after_it() -> None:
    frame = bars([30.0, 10.0, 12.0], dividend=[0.0, 20.0, 11.0])
    frame = frame.with_columns(date=pl.Series([date(2023, 1, 31), date(2023, 2, 28), date(2023, 3, 31)]))
    assert found(frame) == [("dividend_above_price", 2)]  # 11 of a share worth 10
    frame = frame.with_columns(date=pl.Series(weekdays(3)))
    assert found(frame) == [("dividend_above_price", 2)]  # 11 of a share worth 10


def test_a_dividend_above_the_first_price_is_flagged(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    ingest_whole(lake, bars([10.0, 10.5], dividend=[20.0, 0.0]))
    assert lake.read("flags")["evidence"].to_list() == ["dividend 20.0, close unknown -> 10.0"]


@pytest.mark.parametrize("step", ["1w", "1mo"])
def test_weekly_and_monthly_rows_may_be_dated_on_a_closed_day(step: str) -> None:
    ends = pl.date_range(date(2022, 12, 31), date(2023, 12, 31), step, eager=True)
    frame = bars([10.0 + n % 3 for n in range(len(ends))]).with_columns(date=ends)
    assert found(frame, securities(("A", date(2000, 1, 1), "NYSE", "USD"))) == []
    assert found(frame, None, "XNYS") == []


def test_half_days_are_sessions_and_daylight_saving_moves_none() -> None:
    days = [
        date(2023, 3, 10),
        date(2023, 3, 13),
        date(2023, 11, 3),
        date(2023, 11, 6),
        FRIDAY_AFTER_THANKSGIVING,
        date(2023, 7, 3),
    ]
    frame = bars([10.0] * 6, volume=[100.0] * 6).with_columns(date=pl.Series(days))
    assert found(frame, None, "XNYS") == []
    shifted = frame.with_columns(
        pl.col("date") + timedelta(days=6)
    )  # one of them is a holiday, some are Sundays
    assert len(found(shifted, None, "XNYS")) == sum(d.weekday() > 4 for d in shifted["date"])


def test_an_unknown_calendar_is_refused_when_the_config_is_read(tiny: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"quality\.calendar is 'XXXX'"):
        check_config({**tiny, "quality": {"calendar": "XXXX"}}, origin="c")
    with pytest.raises(ConfigError, match=r"quality\.stale_runs is not a known name; did you mean"):
        check_config({**tiny, "quality": {"stale_runs": "off"}}, origin="c")
    with pytest.raises(ConfigError, match="'flag' or 'off'"):
        check_config({**tiny, "quality": {"coverage_collapse": "reject"}}, origin="c")


def test_a_date_that_lacks_a_quarter_of_its_firms_is_flagged() -> None:
    days = weekdays(30)
    counts = pl.DataFrame({"calendar": ["XNYS"] * 30, "date": days, "firms": [100] * 30}).with_columns(
        firms=pl.when(pl.col("date") == days[20])
        .then(74)
        .when(pl.col("date") == days[25])
        .then(76)
        .otherwise(100)
    )
    rows = find_coverage_collapses(counts)
    assert rows.select("date", "ticker", "evidence").rows() == [
        (days[20], "*XNYS", "74 firms have a price, 100 usually do")
    ]
    small = counts.with_columns(pl.col("firms") // 10)
    assert find_coverage_collapses(small).is_empty()  # fewer than ten are missing
    first = counts.with_columns(firms=pl.when(pl.col("date") == days[3]).then(1).otherwise(100))
    assert find_coverage_collapses(first).is_empty()  # too early to know the usual number


def market(firms: int, sessions: int, first: date = MONDAY) -> pl.DataFrame:
    """Closes of F0, F1, ... on weekdays, all different."""
    days = weekdays(sessions, first)
    rows = [(day, f"F{n}", 10.0 + n + 0.01 * t) for t, day in enumerate(days) for n in range(firms)]
    return pl.DataFrame(rows, schema=["date", "ticker", "close"], orient="row")


def quarantined(lake: Lake) -> list[tuple[str, int]]:
    if not lake.exists("quarantine"):
        return []
    rows = lake.read("quarantine").filter(pl.col("resolved_at").is_null())
    return sorted(rows.group_by("rule").len().iter_rows())


SATURDAY = date(2023, 5, 20)


@pytest.mark.parametrize("day", [SATURDAY, date(2023, 4, 29), date(2023, 6, 10)])
def test_a_date_with_a_row_for_few_firms_is_no_session(tmp_path: Path, day: date) -> None:
    frame = market(20, 28)
    stray = frame.head(1).with_columns(date=pl.lit(day))
    lake = Lake(tmp_path)
    summary = ingest_whole(lake, pl.concat([frame, stray]))
    assert quarantined(lake) == [("sparse_date", 1)]
    assert day not in lake.read("prices")["date"].to_list()
    assert not lake.exists("gaps")
    assert summary.incomplete == ()


@pytest.mark.parametrize("live", [False, True], ids=["one_delivery", "batch_by_batch"])
@pytest.mark.parametrize("rule", ["sparse_date", "closed_session", "close_is_positive"])
def test_a_row_of_no_session_leaves_its_split_to_the_next_price(
    tmp_path: Path, rule: str, live: bool
) -> None:
    frame, lake = market(20, 20), Lake(tmp_path)
    halved = (pl.col("ticker") == "F0") & (pl.col("date") > SATURDAY)
    frame = frame.with_columns(pl.when(halved).then(pl.col("close") / 2).otherwise("close").alias("close"))
    stray = frame.head(1).with_columns(date=pl.lit(SATURDAY), split_ratio=pl.lit(2.0))
    if rule == "close_is_positive":
        stray = stray.with_columns(close=pl.lit(-1.0))
    quality = QualityConfig(calendar="XNYS" if rule == "closed_session" else None)
    delivered = pl.concat([frame, stray], how="diagonal")
    if live:
        ingest_given(lake, delivered.filter(pl.col("date") <= SATURDAY), quality)
        ingest_given(lake, delivered.filter(pl.col("date") > SATURDAY), quality)
    else:
        assert ingest_whole(lake, delivered, quality).incomplete == ()
    assert quarantined(lake) == [(rule, 1)]
    assert stored_flags(lake) == []
    tables = read_tables(lake, lake.versions_to_read())
    split = tables["prices"].filter(pl.col("split_ratio") != 1)
    assert split.select("ticker", "date").rows() == [("F0", date(2023, 5, 22))]
    assert SATURDAY not in build_panel(tables["prices"], gaps=tables["gaps"]).dates_T.tolist()


def test_a_stored_row_of_no_session_is_withdrawn_when_the_calendar_is_named(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    frame = market(4, 20, date(2023, 6, 20))
    frame = frame.filter((pl.col("date") != INDEPENDENCE) | (pl.col("ticker") == "F0"))
    ingest_whole(lake, frame)
    assert INDEPENDENCE in lake.read("prices")["date"].to_list(), "one of four firms is no tenth"
    named = QualityConfig(calendar="XNYS")
    assert ingest_whole(lake, frame, named).tables["prices"].quarantined == {"closed_session": 1}
    assert INDEPENDENCE not in lake.read("prices")["date"].to_list()


@pytest.mark.parametrize(
    "frame",
    [
        # a market that grows, one that shrinks for good, and few firms
        pl.concat([market(1, 12), market(80, 60, date(2023, 5, 17))]),
        pl.concat([market(80, 30), market(2, 60, date(2023, 6, 12))]),
        pl.concat([market(9, 30), market(1, 1, date(2023, 6, 12)), market(9, 30, date(2023, 6, 13))]),
        # illiquid firms, of which any day has a few
        market(200, 60).filter((pl.col("date").dt.ordinal_day() * 7 + pl.col("close").floor()) % 23 == 0),
        # month ends
        market(40, 900)
        .group_by(pl.col("date").dt.truncate("1mo"), "ticker")
        .last()
        .with_columns(pl.col("date").dt.month_end()),
    ],
    ids=["grows", "shrinks", "few firms", "illiquid", "monthly"],
)
def test_markets_that_change_or_are_sparse_keep_all_their_sessions(
    frame: pl.DataFrame, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    ingest_whole(lake, frame.unique(["date", "ticker"], keep="first", maintain_order=True))
    assert quarantined(lake) == []


def test_missing_sessions_of_the_calendar_are_gaps_of_its_firms(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    frame = market(3, 20, date(2023, 6, 5)).filter(pl.col("date") != date(2023, 6, 14))
    ended = (pl.col("ticker") != "F2") | (pl.col("date") < date(2023, 6, 10))
    frame = frame.filter(ended & (pl.col("date") != date(2023, 6, 19)))  # Juneteenth
    ingest_whole(lake, frame)
    assert not lake.exists("gaps"), "without a calendar nothing is known to be missing"
    summary = ingest_whole(lake, frame, QualityConfig(calendar="XNYS"))
    assert lake.read("gaps", columns=["date", "ticker", "rule"]).rows() == [
        (date(2023, 6, 14), "F0", "missing_session"),
        (date(2023, 6, 14), "F1", "missing_session"),
    ]
    assert summary.incomplete == (
        "1 session is without any price (1 missing by the calendar): 2023-06-14. Labels across them are "
        "unknown.",
    )
    weekly = frame.filter(pl.col("date").dt.weekday() == 5)
    ingest(Given(weekly), lake, quality=QualityConfig(calendar="XNYS"), replace=True)
    assert lake.read("gaps").is_empty()


@pytest.mark.parametrize(("abroad", "missing"), [(1, 0), (4, 0), (5, 5)])
def test_a_halt_of_the_few_firms_of_an_exchange_is_no_missing_session(
    abroad: int, missing: int, tmp_path: Path
) -> None:
    lake, frame = Lake(tmp_path), market(12, 20, date(2023, 6, 5))
    listed = [(f"F{n}", date(2023, 6, 5), "XETR" if n < abroad else "XNYS", None) for n in range(12)]
    halted = pl.col("ticker").is_in([f"F{n}" for n in range(abroad)]) & (pl.col("date") == date(2023, 6, 14))
    frame = frame.filter(~halted & (pl.col("date") != date(2023, 6, 19)))  # Juneteenth
    ingest(Given(frame, securities=securities(*listed)), lake)
    gaps = lake.read("gaps") if lake.exists("gaps") else frame.head(0)
    assert gaps.filter(pl.col("date") == date(2023, 6, 14)).height == missing


def test_a_live_source_knows_missing_sessions_after_all_its_batches(tmp_path: Path) -> None:
    lake, quality = Lake(tmp_path), QualityConfig(calendar="XNYS")
    frame = market(2, 8, date(2023, 6, 5)).filter(pl.col("date") != date(2023, 6, 8))
    summary = ingest_given(lake, frame, quality)
    assert lake.read("gaps")["date"].unique().to_list() == [date(2023, 6, 8)]
    assert "2023-06-08" in describe_ingest(summary)


def test_rejected_rows_leave_gaps_unless_their_date_is_no_session(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    frame = market(20, 30)
    days = weekdays(30)
    close = (
        pl.when(pl.col("date") == days[10]).then(-1.0)  # the whole session
        .when((pl.col("date") == days[12]) & (pl.col("ticker") == "F3")).then(0.0)
        .otherwise("close")
    )  # fmt: skip
    broken = frame.with_columns(close=close)
    stray = frame.head(1).with_columns(date=pl.lit(SATURDAY), close=pl.lit(-1.0))
    twice = frame.filter((pl.col("date") == days[14]) & (pl.col("ticker") == "F4"))
    delivered = pl.concat([broken, stray, twice.with_columns(pl.col("close") + 1.0)])
    summary = ingest_whole(lake, delivered)
    gaps = lake.read("gaps")
    assert gaps.group_by("date").len().sort("date").rows() == [(days[10], 20), (days[12], 1), (days[14], 1)]
    assert summary.incomplete == (
        f"2 sessions are incomplete: 2 prices of 2 firms are unknown, first on {days[12]}. Labels across "
        "them are unknown.",
        f"1 session is without any price: {days[10]}. Labels across them are unknown.",
    )
    versions = lake.versions()
    ingest_whole(lake, delivered)
    assert lake.versions() == versions
    assert ingest_whole(lake, frame).incomplete == ()
    assert lake.read("gaps").is_empty()


def stored_flags(lake: Lake) -> list[tuple[str, str, date]]:
    if not lake.exists("flags"):
        return []
    rows = lake.read("flags").filter(~pl.col("cleared"))
    return rows.select("rule", "ticker", "date").sort("rule", "ticker", "date").rows()


def ingest_given(lake: Lake, prices: pl.DataFrame, quality: QualityConfig = QualityConfig()) -> IngestSummary:  # noqa: B008
    return ingest(Batch(prices), lake, quality=quality)


def ingest_whole(lake: Lake, prices: pl.DataFrame, quality: QualityConfig = QualityConfig()) -> IngestSummary:  # noqa: B008
    return ingest(Given(prices), lake, quality=quality)


DEFECTS = [10.0, 10.1, 1000.0, 10.2, 5.1, 5.2, *[5.3] * 14, 5.2, 520.0, 521.0]


def test_flagged_rows_are_stored_and_counted_and_a_repeat_changes_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    summary = ingest_given(lake, bars(DEFECTS))
    prices = summary.tables["prices"]
    assert dict(prices.flagged) == {
        "stale_run": 4,
        "currency_jump": 2,
        "return_without_split": 1,
        "spike_that_reverts": 1,
    }
    assert (prices.added, prices.quarantined) == (len(DEFECTS), {})
    assert "flagged 4 by rule stale_run" in describe_ingest(summary)
    versions = lake.versions()
    again = ingest_given(lake, bars(DEFECTS))
    assert again.tables["prices"].flagged == prices.flagged
    assert lake.versions() == versions


@pytest.mark.slow(7)
@settings(max_examples=5)
@example(cuts=list(range(4, len(DEFECTS), 3)), spare=9.0)
@given(
    cuts=st.lists(st.integers(1, len(DEFECTS) - 1), max_size=3, unique=True).map(sorted),
    spare=st.sampled_from([9.0, 9.5]),
)
def test_flags_do_not_depend_on_how_a_history_is_split_into_deliveries(
    cuts: list[int], spare: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    whole, parts, grown = Lake(folder / "whole"), Lake(folder / "parts"), Lake(folder / "grown")
    frame = pl.concat([bars(DEFECTS), bars([spare] * len(DEFECTS), "B")])
    ingest_whole(whole, frame)
    days = weekdays(len(DEFECTS))
    for start, end in zip([0, *cuts], [*cuts, len(days)], strict=True):
        ingest_given(parts, frame.filter(pl.col("date").is_in(days[start:end])))
        ingest_whole(grown, frame.filter(pl.col("date").is_in(days[:end])))
    assert stored_flags(parts) == stored_flags(grown) == stored_flags(whole) != []


def test_a_stored_spike_is_flagged_one_session_later_and_counted_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    frame = bars([10.0, 10.0, 20.0, 10.0, 10.1])
    first = ingest_given(lake, frame.head(3)).tables["prices"]
    assert first.flagged == {"return_without_split": 1}  # as known then
    second = ingest_given(lake, frame.slice(3, 1)).tables["prices"]
    assert second.flagged == {"spike_that_reverts": 1}
    assert stored_flags(lake) == [("spike_that_reverts", "A", weekdays(3)[2])]
    assert ingest_given(lake, frame.slice(4, 1)).tables["prices"].flagged == {}


def test_a_correction_clears_the_flag(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    frame = bars([100.0, 50.0, 50.5], split_ratio=[1.0, 1.0, 1.0])
    ingest_given(lake, frame)
    assert stored_flags(lake) == [("return_without_split", "A", weekdays(2)[1])]
    ingest_given(lake, frame.slice(1, 1).with_columns(split_ratio=pl.lit(2.0)))
    assert stored_flags(lake) == []
    assert lake.read("flags")["cleared"].to_list() == [True]


def test_a_wrong_correction_is_flagged_against_the_stored_rows_around_it(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    frame = bars([10.0, 10.1, 10.0, 10.1, 10.2])
    ingest_given(lake, frame)
    wrong = frame.slice(2, 1).with_columns(close=pl.lit(1000.0))
    assert ingest_given(lake, wrong).tables["prices"].flagged == {"spike_that_reverts": 1, "currency_jump": 1}
    assert stored_flags(lake)[-1] == ("spike_that_reverts", "A", weekdays(3)[2])


def test_a_rejected_row_is_not_stored_and_its_neighbours_are_checked_without_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    frame = bars([5.0, 5.1, 510.0, 5.05, 5.0])
    reject = QualityConfig(spike_that_reverts="reject")
    prices = ingest_given(lake, frame, reject).tables["prices"]
    assert (prices.received, prices.added, prices.quarantined) == (5, 4, {"spike_that_reverts": 1})
    assert prices.flagged == {}
    assert weekdays(3)[2] not in lake.read("prices")["date"].to_list()
    assert lake.read("quarantine")["rule"].to_list() == ["spike_that_reverts"]


def test_a_stored_row_is_never_removed_with_hindsight(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    frame = bars([5.0, 5.1, 51.0, 5.05])
    reject = QualityConfig(spike_that_reverts="reject", return_without_split="off")
    ingest_given(lake, frame.head(3), reject)
    prices = ingest_given(lake, frame.tail(1), reject).tables["prices"]
    assert (prices.quarantined, prices.flagged) == ({}, {"spike_that_reverts": 1})
    assert lake.read("prices").height == 4


def test_a_redelivered_row_is_not_removed_with_hindsight(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    frame = bars([5.0, 5.1, 51.0, 5.05])
    reject = QualityConfig(spike_that_reverts="reject", return_without_split="off")
    ingest_whole(lake, frame.head(3), reject)
    prices = ingest_whole(lake, frame, reject).tables["prices"]
    assert (prices.quarantined, prices.flagged) == ({}, {"spike_that_reverts": 1})
    assert lake.read("prices")["close"].to_list() == [5.0, 5.1, 51.0, 5.05]
    corrected = frame.with_columns(close=pl.when(pl.col("close") == 51.0).then(52.0).otherwise("close"))
    prices = ingest_whole(lake, corrected, reject).tables["prices"]
    assert (prices.quarantined, prices.withdrawn) == ({"spike_that_reverts": 1}, 1)
    assert lake.read("prices")["close"].to_list() == [5.0, 5.1, 5.05], "the source says 51 no more"


def test_flags_on_withdrawn_rows_are_cleared(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    frame = pl.concat([bars([10.0, 10.1, 10.2, 10.3]), bars([100.0, 50.0, 50.5], "B")])
    ingest_whole(lake, frame)
    assert stored_flags(lake) == [("return_without_split", "B", weekdays(2)[1])]
    assert ingest_whole(lake, frame.filter(pl.col("ticker") == "A")).tables["prices"].withdrawn == 3
    assert stored_flags(lake) == []


def test_rules_that_are_off_flag_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    quality = QualityConfig.model_validate({**OFF, "coverage_collapse": "off"})
    assert ingest_given(lake, bars(DEFECTS), quality).tables["prices"].flagged == {}
    assert not lake.exists("flags")


def test_missing_firms_are_flagged_after_everything_is_stored(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    firms = [f"F{i}" for i in range(40)]
    rows = pl.concat(
        [bars([10.0 + math.sin(i + k) for k in range(20)], name) for i, name in enumerate(firms)]
    )
    last = weekdays(20)[-1]
    half = (pl.col("date") < last) | pl.col("ticker").is_in(firms[:20])
    prices = ingest_given(lake, rows.filter(half)).tables["prices"]
    assert prices.flagged == {"coverage_collapse": 1}
    assert stored_flags(lake) == [("coverage_collapse", "*", last)]
    ingest_given(lake, rows.filter(~half))
    assert stored_flags(lake) == []


def test_the_simulated_market_has_no_flags(tmp_path: Path) -> None:
    source = SimulatedSource(MarketConfig(firms=60, sessions=500), seed=11)
    assert ingest(source, Lake(tmp_path)).tables["prices"].flagged == {}


@pytest.mark.skipif(
    not (DATA / "sp500_prices.parquet").exists(), reason="the shared S&P 500 data is not here"
)
def test_known_defects_of_real_prices_are_found() -> None:
    firms = ["AAPL", "FIS", "L", "LKQ", "M", "MO", "XOM"]
    rows = pl.scan_parquet(DATA / "sp500_prices.parquet").filter(pl.col("ticker").is_in(firms))
    closes = rows.select("date", "ticker", "volume", pl.col("close").cast(pl.Float64)).collect()
    doubted = find_violations(add_neighbours(valid(closes), None, "XNYS"), PRICE_RULES)
    named = set(doubted.select("ticker", "date", "rule").iter_rows())
    assert ("MO", date(2004, 8, 5), "spike_that_reverts") in named  # 47.31 -> 10.81 -> 46.64
    assert ("LKQ", date(2006, 1, 17), "return_without_split") in named  # its 2:1 split
    assert ("L", date(2006, 5, 9), "return_without_split") in named  # its 3:1 split
    assert not {"AAPL", "XOM"} & set(doubted["ticker"])
