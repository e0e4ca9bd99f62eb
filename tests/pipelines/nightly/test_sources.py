"""Deliveries of a night: what is new, what is late, and sources that refuse."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from yahoo_server import FaultKind, YahooServer, business_days, make_firm

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.errors import ConfigError, DataError
from pipelines.ingest.ingest import IngestSummary
from pipelines.lake.lake import Lake
from pipelines.nightly import delivery as sources
from pipelines.nightly.delivery import _refuse_rejected_sessions, _Watched, deliver, describe_delivery
from pipelines.nightly.schedule import Clock, expected_session
from pipelines.progress import Progress
from pipelines.sources import yahoo_answers
from pipelines.sources.base import SourceTables
from pipelines.sources.sample import SampleSource

DAYS = business_days(dt.date(2024, 1, 2), 8)
TICKERS = ("AAA", "BBB", "CCC")
EVENING = dt.datetime(2024, 1, 10, 22, tzinfo=dt.UTC)  # after the close of 2024-01-10 in New York


class Time:
    """A clock that a test sets; waiting moves it on and may call back."""

    def __init__(self, now: dt.datetime = EVENING, during: Callable[[int], None] | None = None) -> None:
        self.now, self.waits, self._during = now, list[float](), during

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self._during is not None:
            self._during(len(self.waits))

    @property
    def clock(self) -> Clock:
        """As the pipeline uses it."""
        return Clock(now=lambda: self.now, monotonic=lambda: sum(self.waits), sleep=self.sleep)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_prices(days: int, *, close: float = 10.0, path: str = "prices.csv") -> None:
    rows = [
        f"{day},{ticker},{close + i + 0.1 * (d % 3)},100"
        for d, day in enumerate(DAYS[:days])
        for i, ticker in enumerate(TICKERS)
    ]
    Path(path).write_text("\n".join(["date,ticker,close,volume", *rows]) + "\n")


def files_config(tiny: dict[str, Any], minutes: float = 0.0) -> Config:
    source = {"kind": "files", "prices": "prices.csv"}
    return check_config(
        {**tiny, "source": source, "nightly": {"checks": {"retry_minutes": minutes}}}, origin="test"
    )


def take(config: Config, day: dt.date | None = None, time: Time | None = None) -> IngestSummary | None:
    return deliver(config, open_lake(config), day, Progress(quiet=True), (time or Time()).clock, wait=False)


def dates(config: Config) -> list[dt.date]:
    return sorted(set(Lake(config.lake).read("prices")["date"]))


def test_files_that_have_not_changed_are_not_read_again(tiny: dict[str, Any]) -> None:
    config = files_config(tiny)
    write_prices(3)
    first = take(config)
    assert first is not None
    assert describe_delivery(first) == "prices 9 new"
    version = Lake(config.lake).version("prices")
    assert take(config) is None
    write_prices(4)
    assert describe_delivery(take(config)) == "prices 3 new"
    assert take(config) is None
    assert Lake(config.lake).version("prices") == (version or 0) + 1


def test_a_correction_without_a_new_session_is_ingested(tiny: dict[str, Any]) -> None:
    config = files_config(tiny)
    write_prices(3)
    take(config)
    text = Path("prices.csv").read_text().replace("2024-01-03,AAA,10.1", "2024-01-03,AAA,10.2")
    Path("prices.csv").write_text(text)  # the size is the same
    assert describe_delivery(take(config)) == "prices 1 corrected"


def test_rows_that_another_command_withdrew_are_delivered_again(tiny: dict[str, Any]) -> None:
    config = files_config(tiny)
    write_prices(3)
    take(config)
    stored = Lake(config.lake).read("prices")
    Lake(config.lake).upsert("prices", stored.head(8), scope=pl.lit(value=True))
    assert describe_delivery(take(config)) == "prices 1 new"


def test_a_day_limits_the_delivery_and_never_withdraws_a_later_session(tiny: dict[str, Any]) -> None:
    config = files_config(tiny)
    write_prices(6)
    take(config, DAYS[3])
    assert dates(config) == DAYS[:4]
    take(config, DAYS[5])
    take(config, DAYS[1])
    assert dates(config) == DAYS[:6]


def test_a_late_file_is_asked_for_until_it_is_there(tiny: dict[str, Any]) -> None:
    config = files_config(tiny, minutes=60)
    time = Time(during=lambda waits: write_prices(4) if waits == 3 else None)
    assert describe_delivery(take(config, DAYS[3], time)) == "prices 12 new"
    assert time.waits == [15, 30, 60]


def test_a_session_that_never_comes_ends_with_what_is_missing(tiny: dict[str, Any]) -> None:
    config = files_config(tiny, minutes=60)
    write_prices(3)
    time = Time()
    with pytest.raises(
        DataError, match=r"no session 2024-01-05 yet: its prices end on 2024-01-04 \(asked for 60"
    ):
        take(config, DAYS[3], time)
    assert sum(time.waits) == 3600
    assert time.waits == [15, 30, 60, 120, 240, 480, 600, 600, 600, 600, 255]
    assert dates(config) == DAYS[:3]


def test_the_simulated_market_is_not_asked_twice(tiny: dict[str, Any]) -> None:
    config = check_config(tiny, origin="test")
    time = Time()
    with pytest.raises(DataError, match=r"no session 2200-01-01 yet"):
        take(config, dt.date(2200, 1, 1), time)
    assert time.waits == []


@pytest.fixture
def yahoo(monkeypatch: pytest.MonkeyPatch) -> Iterator[YahooServer]:
    """A server with three firms that replaces Yahoo in this test; its data reach the evening."""
    firms = [make_firm(ticker, DAYS, seed) for seed, ticker in enumerate(TICKERS)]
    with YahooServer(firms, EVENING).running() as server:
        monkeypatch.setattr(yahoo_answers, "ADDRESS", server.address)
        yield server


def yahoo_config(tiny: dict[str, Any], minutes: float = 1.0) -> Config:
    source = {
        "kind": "yfinance",
        "tickers": list(TICKERS),
        "start": dt.date(2024, 1, 1),
        "retries": 0,
        "statements": False,
    }
    nightly = {"checks": {"retry_minutes": minutes}}
    settings = {**tiny, "source": source, "quality": {"calendar": "XNYS"}, "nightly": nightly}
    return check_config(settings, origin="test")


def test_yahoo_is_asked_once_for_each_finished_session(tiny: dict[str, Any], yahoo: YahooServer) -> None:
    config, time = yahoo_config(tiny), Time()
    assert describe_delivery(take(config, time=time)) == "prices 21 new; securities 3 new"
    asked = len(yahoo.requests)
    assert take(config, time=time) is None
    assert len(yahoo.requests) == asked
    time.now = yahoo.now = EVENING + dt.timedelta(days=1)
    assert describe_delivery(take(config, time=time)) == "prices 3 new"


def test_a_clock_set_back_by_two_days_withdraws_nothing(tiny: dict[str, Any], yahoo: YahooServer) -> None:
    config, time = yahoo_config(tiny), Time()
    take(config, time=time)
    stored = Lake(config.lake).read("prices")
    time.now = EVENING - dt.timedelta(days=2)
    take(config, time=time)
    assert Lake(config.lake).read("prices").equals(stored)


@pytest.mark.parametrize("kind", ["throttle", "html"])
def test_yahoo_that_refuses_is_asked_again_and_then_named(
    tiny: dict[str, Any], yahoo: YahooServer, kind: FaultKind
) -> None:
    config = yahoo_config(tiny)
    yahoo.add_fault(kind)
    time = Time()
    with pytest.raises(DataError, match=r"refused 3 of 3 tickers.*missing: AAA, BBB, CCC.*asked for 1 min"):
        take(config, time=time)
    assert time.waits == [15, 30, 15]
    assert not Lake(config.lake).exists("prices")
    yahoo.clear_faults()
    assert describe_delivery(take(config)) == "prices 21 new; securities 3 new"


def test_yahoo_that_recovers_within_the_time_is_no_failure(tiny: dict[str, Any], yahoo: YahooServer) -> None:
    config = yahoo_config(tiny)
    yahoo.add_fault("throttle", "BBB")
    time = Time(during=lambda waits: yahoo.clear_faults() if waits == 2 else None)
    take(config, time=time)
    assert time.waits == [15, 30]
    assert Lake(config.lake).read("prices").height == 21


def test_a_closed_day_is_refused_at_once(tiny: dict[str, Any], yahoo: YahooServer) -> None:
    with pytest.raises(ConfigError, match="2024-01-13 is not a session: XNYS is closed"):
        take(yahoo_config(tiny), dt.date(2024, 1, 13))
    assert yahoo.requests == []


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2024-01-10T21:29", dt.date(2024, 1, 9)),  # the close is at 21:00 UTC, and quotes are delayed
        ("2024-01-10T21:30", dt.date(2024, 1, 10)),
        ("2024-01-15T23:00", dt.date(2024, 1, 12)),  # a holiday on Monday
        ("2024-07-03T17:30", dt.date(2024, 7, 3)),  # an early close
    ],
)
def test_the_expected_session_is_the_newest_finished_one(
    tiny: dict[str, Any], now: str, expected: dt.date
) -> None:
    config = yahoo_config(tiny)
    moment = dt.datetime.fromisoformat(now).replace(tzinfo=dt.UTC)
    assert expected_session(config, open_lake(config), moment) == expected
    assert expected_session(files_config(tiny), Lake("lake"), moment) is None


def test_a_live_source_whose_calendar_has_ended_is_an_error(tiny: dict[str, Any], yahoo: YahooServer) -> None:
    Path("prices.csv").write_text("date,ticker,close\n2026-12-31,AAA,10.0\n")
    take(files_config(tiny))
    settings = yahoo_config(tiny).model_dump(mode="json")
    config = check_config({**settings, "quality": {"calendar": "XSHG"}}, origin="test")
    with pytest.raises(DataError, match=r"XSHG ended on 2026-12-31.*quality\.calendar_overrides\.sessions"):
        take(config, time=Time(dt.datetime(2027, 1, 5, tzinfo=dt.UTC)))
    assert yahoo.requests == []


def test_a_few_rows_are_no_session_of_a_market_that_has_grown(tiny: dict[str, Any]) -> None:
    """The usual number of rows is that of recent dates, as for the rule that rejects them."""
    days, counts = business_days(dt.date(2022, 1, 3), 301), [10] * 200 + [1000] * 100
    config, lake = files_config(tiny), Lake("lake")

    def refuse(newest: int) -> None:
        rows = pl.DataFrame({"date": days, "rows": [*counts, newest]})
        source = _Watched(SampleSource(), days[-2], 0, 0.1, rows)
        _refuse_rejected_sessions(config, lake, source, days[:-1])

    refuse(50)
    with pytest.raises(DataError, match="All 500 rows"):
        refuse(500)


@pytest.mark.parametrize(("weekdays", "late"), [("01234", True), ("4", False)])
def test_weekly_prices_are_not_late_before_the_end_of_their_week(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, weekdays: str, late: bool
) -> None:
    """It is Wednesday; the newest price is that of last Friday, on which a night was played."""
    days = [day for day in business_days(dt.date(2023, 7, 3), 135) if str(day.weekday()) in weekdays]
    days = [day for day in days if day <= dt.date(2024, 1, 5)]
    monkeypatch.setattr(sources, "sessions_of", lambda _: days)
    monkeypatch.setattr(sources, "finished_nights", lambda _: [days[-1]])
    config = files_config({**tiny, "quality": {"calendar": "XNYS"}})
    said = sources.Request(config, Lake("lake"), None, Time().clock).late(days)
    assert (said is not None) == late


def test_a_delivery_with_an_unreadable_date_is_judged_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column with an unreadable date is text; ingest moves the row in question to the quarantine."""
    texts = ["2024-01-02", "2024-13-01", None, "2024-01-03"]
    prices = pl.DataFrame({"date": texts, "ticker": "A", "close": 1.0})
    monkeypatch.setattr(SampleSource, "fetch", lambda _: SourceTables({"prices": prices}))
    source = _Watched(SampleSource(), dt.date(2024, 1, 2), 2, 0.1)
    assert source.fetch().tables["prices"] is prices
    assert source.rows["date"].to_list() == [dt.date(2024, 1, 2), dt.date(2024, 1, 3)]
    with pytest.raises(DataError, match="2024-01-03"):
        _Watched(SampleSource(), dt.date(2024, 1, 4), 0, 0.1).fetch()
