"""Property tests of ingest: nothing crashes, and every row is stored, quarantined or collapsed."""

from __future__ import annotations

import math
import re
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from pipelines.errors import ConfigError, DataError
from pipelines.ingest.ingest import ingest
from pipelines.ingest.quarantine import open_rejections
from pipelines.ingest.rules import PRICE_RULES
from pipelines.ingest.settings import QualityConfig
from pipelines.lake.contracts import check
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import keys
from pipelines.sources.base import SourceTables

AWKWARD = (0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 1e308, 5e-324, 1e-300, 100.0, 1e18)
TICKERS = (
    "A",
    "BRK.B",
    "7203.T",
    "^GSPC",
    "",
    " ",
    "É",
    "日本",
    "A\u202eB",
    "😀",
    "../x",
    "<b>",
    "A" * 33,
    "a\x00b",
)
# a change to daylight saving time, a holiday, a half day, a leap day, and extreme dates
DAYS = (
    date(2023, 3, 10),
    date(2023, 3, 13),
    date(2023, 7, 3),
    date(2023, 7, 4),
    date(2023, 11, 24),
    date(2023, 11, 25),
    date(2024, 2, 29),
    date.min,
    date.max,
)
NUMBERS = ("open", "high", "low", "close", "volume", "split_ratio", "dividend")

plain, near = st.sampled_from(["A", "B"]), st.dates(date(2023, 6, 26), date(2023, 7, 7))
usual = st.sampled_from([10.0, 10.1, 20.0, 1000.0])
tickers = st.one_of(plain, plain, plain, st.sampled_from(TICKERS), st.text(max_size=3), st.none())
days = st.one_of(near, near, near, st.sampled_from(DAYS), st.dates(), st.none())
numbers = st.one_of(
    usual, usual, usual, st.none(), st.sampled_from(AWKWARD), st.floats(), st.floats(9.0, 11.0)
)
rows = st.fixed_dictionaries(
    {"date": days, "ticker": tickers, "close": numbers},
    optional={
        "volume": numbers,
        **dict.fromkeys(("open", "high", "low", "split_ratio", "dividend"), numbers),
    },
)
SCHEMA = {"date": pl.Date, "ticker": pl.String, **dict.fromkeys(NUMBERS, pl.Float64)}


def frame_of(given_rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(
        [{**dict.fromkeys(SCHEMA), "split_ratio": 1.0, "dividend": 0.0, **row} for row in given_rows],
        schema=SCHEMA,
    )


DOUBTFUL = frame_of(
    [
        {"date": date(2023, 6, 26) + timedelta(days=i), "ticker": "A", "close": close, "volume": 1.0}
        for i, close in enumerate([10.0, 10.1, 90.0, 10.0, 10.0, 5.0, 5.1, 510.0, 505.0])
    ]
)
"""Breaks of every kind but a stale run, July 4 and two week-ends included."""


@st.composite
def deliveries(draw: st.DrawFn, max_size: int) -> pl.DataFrame:
    """Rows of one or many firms, some of them delivered twice, in any order; possibly one or none."""
    drawn = draw(st.lists(rows, max_size=max_size))
    again = draw(st.lists(st.sampled_from(drawn), max_size=4)) if drawn else []
    return frame_of(draw(st.permutations(drawn + again)))


class Given:
    def __init__(self, prices: pl.DataFrame) -> None:
        self.prices = prices
        self.name = "given"

    def fetch(self) -> SourceTables:
        return SourceTables({"prices": self.prices})


def stamped(frame: pl.DataFrame) -> pl.DataFrame:
    now = pl.lit(datetime(2024, 1, 1, tzinfo=UTC)).dt.cast_time_unit("us")
    return frame.with_columns(source=pl.lit("given"), ingested_at=now)


def sound(row: dict[str, Any]) -> bool:
    """Check the contract of a price row with a unique key, in plain Python."""
    ticker, day, close = row["ticker"], row["date"], row["close"]
    if ticker is None or not re.fullmatch(r"[A-Za-z0-9^=][A-Za-z0-9.^=_-]{0,31}", ticker) or ".." in ticker:
        return False
    if day is None or not date(1800, 1, 1) <= day <= date(2200, 1, 1) or close is None:
        return False
    known = {c: row[c] for c in ("open", "high", "low") if row[c] is not None and not math.isnan(row[c])}
    if not all(math.isfinite(price) and price > 0 for price in (close, *known.values())):
        return False
    if known.get("high", math.inf) < known.get("low", 0.0):
        return False
    for price in (close, known.get("open", close)):
        if price > known.get("high", math.inf) * 1.005 or price < known.get("low", 0.0) * 0.995:
            return False
    volume, split, dividend = row["volume"], row["split_ratio"], row["dividend"]
    counted = volume is None or math.isnan(volume) or (math.isfinite(volume) and volume >= 0)
    split, dividend = 1.0 if split is None else split, 0.0 if dividend is None else dividend
    acted = math.isfinite(split) and split > 0 and math.isfinite(dividend) and dividend >= 0
    return counted and acted


def meaning(row: dict[str, Any]) -> tuple[object, ...]:
    """Reduce a row to its values, so that equivalent rows are equal."""
    values = {**row, "split_ratio": 1.0 if row["split_ratio"] is None else row["split_ratio"]}
    values["dividend"] = 0.0 if row["dividend"] is None else row["dividend"]
    nan = {c: None if c in ("open", "high", "low", "volume") else "nan" for c in NUMBERS}
    return tuple(nan[c] if isinstance(v, float) and math.isnan(v) else v for c, v in sorted(values.items()))


def decides(row: dict[str, Any]) -> tuple[object, ...]:
    """Reduce a row to what a holder earns, if that is a number; else to all its values."""
    values = dict(zip(sorted(row), meaning(row), strict=True))
    earned = tuple(values[c] for c in ("close", "split_ratio", "dividend"))
    finite = all(isinstance(v, float) and math.isfinite(v) for v in earned)
    return (row["date"], row["ticker"], *earned) if finite else meaning(row)


@pytest.mark.slow(4)
@settings(max_examples=200)
@given(deliveries(max_size=12))
@example(frame_of([]))
@example(frame_of([{"date": DAYS[3], "ticker": "日本", "close": math.inf}]))
def test_the_contract_accounts_for_every_row_and_keeps_exactly_the_valid_ones(frame: pl.DataFrame) -> None:
    checked = check("prices", stamped(frame))
    assert frame.height == checked.valid.height + checked.rejected.height + checked.collapsed
    assert sum(checked.by_rule().values()) == checked.rejected.height
    distinct = {meaning(row): row for row in frame.iter_rows(named=True)}
    by_key: dict[tuple[object, object], set[tuple[object, ...]]] = {}
    for row in distinct.values():
        by_key.setdefault((row["date"], row["ticker"]), set()).add(decides(row))
    once = {key for key, decided in by_key.items() if len(decided) == 1}  # the last one is kept
    distinct = {
        (row["date"], row["ticker"]) if (row["date"], row["ticker"]) in once else values: row
        for values, row in distinct.items()
    }
    assert checked.collapsed == frame.height - len(distinct)
    with_key = Counter((row["date"], row["ticker"]) for row in distinct.values())
    expected = {
        key for row in distinct.values() if sound(row) and with_key[key := (row["date"], row["ticker"])] == 1
    }
    kept = checked.valid.select("date", "ticker").rows()
    assert len(kept) == len(set(kept))
    assert set(kept) == expected


@settings(max_examples=60)
@given(deliveries(max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_delivery_changes_nothing(frame: pl.DataFrame, random: Any) -> None:  # noqa: ANN401
    given_rows = list(frame.iter_rows(named=True))
    assume(len({meaning(row) for row in given_rows}) == len({decides(row) for row in given_rows}))
    order = list(range(frame.height))
    random.shuffle(order)
    first, second = check("prices", stamped(frame)), check("prices", stamped(frame[order]))
    key = keys("prices")
    assert first.valid.sort(key).equals(second.valid.sort(key))
    assert Counter(first.rejected["row_hash"]) == Counter(second.rejected["row_hash"])
    assert first.collapsed == second.collapsed


@pytest.mark.slow(2)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(deliveries(max_size=10), min_size=1, max_size=3),
    actions=st.tuples(*[st.sampled_from(["reject", "flag", "off"])] * len(PRICE_RULES)).map(list),
    calendar=st.sampled_from([None, "XNYS"]),
)
@example(parts=[DOUBTFUL, DOUBTFUL[3:], DOUBTFUL], actions=["reject"] * len(PRICE_RULES), calendar="XNYS")
def test_ingest_stores_or_quarantines_every_row(
    parts: list[pl.DataFrame],
    actions: list[str],
    calendar: str | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    quality = QualityConfig.model_validate(
        dict(zip(PRICE_RULES, actions, strict=True)) | {"calendar": calendar}
    )
    for frame in parts:
        before = lake.versions()
        checked = check("prices", stamped(frame))
        valid = set(checked.valid.select("date", "ticker").iter_rows())
        try:
            summary = ingest(Given(frame), lake, quality=quality)
        except DataError:  # there is no price row to store
            assert lake.versions() == before
            assert not valid
            continue
        except ConfigError:  # it has none of the stored firms
            assert lake.versions() == before
            assert not {ticker for _, ticker in valid} & set(lake.read("prices")["ticker"])
            continue
        counts = summary.tables["prices"]
        quarantined = sum(counts.quarantined.values())
        assert counts.received == frame.height
        assert (
            counts.received
            == counts.added + counts.updated + counts.unchanged + quarantined + counts.collapsed
        )
        stored = set(lake.rows("prices").select("date", "ticker").iter_rows())
        listed = open_rejections(lake)
        hashes = set() if listed is None else set(listed["row_hash"])
        assert set(checked.rejected["row_hash"]) <= hashes
        by_quality = listed.filter(pl.col("rule").is_in(PRICE_RULES))["row"].to_list()
        assert len(hashes) == len(set(checked.rejected["row_hash"])) + len(by_quality)
        missing = valid - stored
        assert stored <= valid
        assert all(
            any(f'"{day}"' in row and f'"{ticker}"' in row for row in by_quality) for day, ticker in missing
        )


def test_a_delivery_of_which_every_price_is_rejected_fills_the_quarantine_of_a_new_lake(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    row = {"date": date(2023, 6, 26), "ticker": "A", "close": 10.0, "dividend": 10.1}  # more than the price
    rejecting = QualityConfig.model_validate(dict.fromkeys(PRICE_RULES, "reject"))
    counts = ingest(Given(frame_of([row])), lake, quality=rejecting).tables["prices"]
    assert counts.received == sum(counts.quarantined.values()) == 1
    assert lake.rows("prices").is_empty()
    assert open_rejections(lake).height == 1


@pytest.mark.parametrize(
    "first", [date(2023, 3, 6), date(2023, 10, 30), date(2023, 11, 20), date(2023, 6, 28)]
)
def test_weeks_with_daylight_saving_half_days_and_holidays_are_stored_whole(
    tmp_path: Path, first: date
) -> None:
    dates = [first + timedelta(days=i) for i in range(14) if (first + timedelta(days=i)).weekday() < 5]
    frame = pl.DataFrame(
        {"date": dates, "ticker": ["A"] * len(dates), "close": [10.0 + i for i in range(len(dates))]}
    ).with_columns(volume=pl.lit(5.0))
    times = frame.with_columns(
        pl.col("date")
        .cast(pl.Datetime("us"))
        .dt.replace_time_zone("America/New_York")
        .dt.replace_time_zone(None)
    )
    summary = ingest(Given(times), Lake(tmp_path), quality=QualityConfig(calendar="XNYS")).tables["prices"]
    holidays = [d for d in dates if d in (date(2023, 11, 23), date(2023, 7, 4))]
    assert summary.quarantined == ({"closed_session": len(holidays)} if holidays else {})
    assert Lake(tmp_path).read("prices")["date"].to_list() == [d for d in dates if d not in holidays]
