"""The real yfinance client against a server that refuses, breaks off or hangs, and the lake afterwards."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from polars.testing import assert_frame_equal
from yahoo_server import FaultKind, YahooServer, business_days, make_firm

from pipelines.cli import main as cli
from pipelines.errors import DataError
from pipelines.ingest.ingest import IngestStoppedError, IngestSummary, ingest
from pipelines.lake.lake import Lake
from pipelines.sources import yahoo_answers
from pipelines.sources.settings import YFinanceSourceConfig
from pipelines.sources.yahoo import WORKERS, YFinanceSource

DAYS = business_days(date(2024, 1, 2), 30)
AFTER = datetime(2024, 2, 13, 3, tzinfo=UTC)
TICKERS = [f"T{i:02d}" for i in range(24)]


@pytest.fixture
def yahoo(monkeypatch: pytest.MonkeyPatch) -> Iterator[YahooServer]:
    """A server with two dozen firms that replaces Yahoo in this test."""
    firms = [make_firm(ticker, DAYS, seed) for seed, ticker in enumerate(TICKERS)]
    for firm in firms:
        ends = (date(2023, 9, 30), date(2023, 12, 31))
        firm.statements = {
            name: dict.fromkeys(ends, 1e9) for name in ("NetIncome", "TotalAssets", "OperatingCashFlow")
        }
    with YahooServer(firms, AFTER).running() as server:
        monkeypatch.setattr(yahoo_answers, "ADDRESS", server.address)
        yield server


class Waits(list[float]):
    """Counts the waiting times instead of waiting."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def take(
    server: YahooServer,
    lake: Lake,
    tickers: list[str],
    waits: Waits | None = None,
    **settings: Any,  # noqa: ANN401 (settings)
) -> IngestSummary:
    given = {"kind": "yfinance", "start": date(2024, 1, 1), "retries": 2, "batch_size": 8, **settings}
    expected = YFinanceSourceConfig(tickers=tuple(tickers), **given)
    return ingest(
        YFinanceSource(expected, wait=Waits() if waits is None else waits, clock=lambda: server.now), lake
    )


def states(summary: IngestSummary) -> dict[str, str]:
    return {status.ticker: status.state for status in summary.statuses}


def nobody_is_delisted(lake: Lake) -> bool:
    if not lake.exists("securities"):
        return True
    return lake.read("securities")["delisted_on"].null_count() == lake.read("securities").height


def complete(lake: Lake, tickers: list[str]) -> None:
    prices = lake.read("prices")
    assert set(prices["ticker"]) == set(tickers)
    assert prices.height == len(tickers) * len(DAYS)
    assert prices.select("date", "ticker").is_unique().all()


@pytest.mark.slow(4)
@pytest.mark.parametrize("kind", ["throttle", "error", "truncate", "html"])
@pytest.mark.parametrize("root", ["chart", "quoteSummary", "timeseries"])
def test_temporary_throttling_is_retried(
    yahoo: YahooServer, tmp_path: Path, kind: FaultKind, root: str
) -> None:
    yahoo.add_fault(kind, "T00", root=root, times=3)
    waits, lake = Waits(), Lake(tmp_path)
    summary = take(yahoo, lake, ["T00", "T01"], waits, retries=3)
    assert states(summary) == {"T00": "ok", "T01": "ok"}
    complete(lake, ["T00", "T01"])
    assert lake.read("fundamentals").height == 12
    assert len(waits) == 3
    for attempt, wait in enumerate(waits):  # doubled each time, with a jitter of half
        assert 0.5 * 2**attempt <= wait <= 1.5 * 2**attempt
    assert len({wait / 2**i for i, wait in enumerate(waits)}) == 3


def test_permanent_throttling_stops_and_records_no_delisting(yahoo: YahooServer, tmp_path: Path) -> None:
    lake, waits = Lake(tmp_path), Waits()
    take(yahoo, lake, TICKERS[:8])
    before = lake.read("prices"), lake.read("securities")
    yahoo.add_fault("throttle")
    with pytest.raises(IngestStoppedError, match="Yahoo refused 24 of 24 tickers") as stopped:
        take(yahoo, lake, TICKERS, waits)
    assert "HTTP 429" in str(stopped.value)
    assert "repeat the command" in str(stopped.value)
    assert states(stopped.value.summary) == dict.fromkeys(TICKERS, "throttled")
    assert len(waits) <= WORKERS * 2  # each worker uses up its retries; then no more requests are sent
    assert len([r for r in yahoo.requests if r.root == "chart"]) < 8 * 3 + 4 * WORKERS
    assert_frame_equal(lake.read("prices"), before[0])
    assert_frame_equal(lake.read("securities"), before[1])
    assert nobody_is_delisted(lake)
    yahoo.clear_faults()
    assert set(states(take(yahoo, lake, TICKERS)).values()) == {"ok", "unchanged"}
    complete(lake, TICKERS)


def test_data_before_throttling_is_kept_and_requested_last(yahoo: YahooServer, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    yahoo.add_fault("throttle", "T10")
    with pytest.raises(IngestStoppedError) as stopped:
        take(yahoo, lake, TICKERS)
    got = states(stopped.value.summary)
    assert [got[ticker] for ticker in TICKERS[:8]] == ["ok"] * 8  # the first batch
    assert got["T10"] == "throttled"
    assert {got[ticker] for ticker in TICKERS[16:]} == {"throttled"}  # the last batch
    stored = set(
        lake.read("prices")["ticker"]
    )  # of the second batch, the prices that arrived before the refusal
    assert {ticker for ticker, state in got.items() if state == "ok"} <= stored
    complete(lake, sorted(stored))
    yahoo.clear_faults()
    yahoo.requests.clear()
    take(yahoo, lake, TICKERS)
    complete(lake, TICKERS)
    requested = list(dict.fromkeys(request.symbol for request in yahoo.requests))
    remaining = set(TICKERS) - stored
    batches = math.ceil(len(remaining) / 8)  # of eight; each ends before the next starts
    assert remaining <= set(requested[: 8 * batches])
    # all of these are started before the first of the others; up to one per worker may be late
    assert stored.isdisjoint(requested[: len(remaining) - WORKERS + 1])
    assert {len(yahoo.charts(ticker)) for ticker in TICKERS} == {1}
    assert yahoo.cookies <= 2 * WORKERS  # one per ingest, or one per worker if they start simultaneously


def test_prices_are_kept_if_later_requests_are_throttled(yahoo: YahooServer, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    yahoo.add_fault("throttle", "T00", root="timeseries")
    with pytest.raises(DataError, match="only prices were received: HTTP 429"):
        take(yahoo, lake, ["T00"])
    complete(lake, ["T00"])
    assert not lake.exists("fundamentals")
    yahoo.clear_faults()
    assert states(take(yahoo, lake, ["T00"])) == {"T00": "unchanged"}
    assert lake.read("fundamentals").height == 6
    assert lake.read("securities").height == 1


@pytest.mark.slow(3)
@pytest.mark.parametrize("kind", ["empty", "nulls"])
def test_an_empty_answer_for_a_listed_ticker_deletes_nothing(
    yahoo: YahooServer, tmp_path: Path, kind: FaultKind
) -> None:
    lake = Lake(tmp_path)
    take(yahoo, lake, ["T00", "T01"])
    before, versions = lake.read("prices"), lake.versions()
    yahoo.add_fault(kind, "T00", root="chart")
    summary = take(yahoo, lake, ["T00", "T01"])
    assert states(summary) == {"T00": "empty", "T01": "unchanged"}
    assert_frame_equal(lake.read("prices"), before)
    changed = {"sources"}  # the source's notes on this delivery are recorded
    assert {**lake.versions(), **dict.fromkeys(changed)} == {**versions, **dict.fromkeys(changed)}
    assert nobody_is_delisted(lake)
    fresh = Lake(tmp_path / "fresh")
    assert states(take(yahoo, fresh, ["T00", "T01"])) == {"T00": "empty", "T01": "ok"}
    complete(fresh, ["T01"])


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("truncate", "broken JSON of"),
        ("html", "HTML of 45 characters instead of JSON"),
        ("error", "HTTP 503"),
        ("deny", "HTTP 401, even with a new cookie and crumb"),
        ("hang", "no answer within 0.3 s"),
    ],
)
def test_the_status_of_an_unanswered_ticker_names_the_cause(
    yahoo: YahooServer, tmp_path: Path, kind: FaultKind, cause: str
) -> None:
    yahoo.add_fault(kind, "T05", root="chart")
    timeout = 0.3 if kind == "hang" else 10.0
    with pytest.raises(IngestStoppedError, match="Yahoo refused 1 of 1 tickers") as stopped:
        take(yahoo, Lake(tmp_path), ["T05"], retries=1, timeout_seconds=timeout)
    (status,) = stopped.value.summary.statuses
    assert status.state == "failed"
    assert cause in status.detail


@pytest.mark.slow(3)
def test_one_unanswered_ticker_is_no_error_and_the_others_arrive(yahoo: YahooServer, tmp_path: Path) -> None:
    """One of 24 is below the limit, and does not hold up the others."""
    lake = Lake(tmp_path)
    yahoo.add_fault("hang", "T05", root="chart")
    began = time.monotonic()
    summary = take(yahoo, lake, TICKERS, retries=1, timeout_seconds=0.3, statements=False)
    assert time.monotonic() - began < 20
    assert states(summary) == {ticker: "failed" if ticker == "T05" else "ok" for ticker in TICKERS}
    complete(lake, [ticker for ticker in TICKERS if ticker != "T05"])
    yahoo.clear_faults()
    take(yahoo, lake, TICKERS, statements=False)
    complete(lake, TICKERS)


@pytest.mark.parametrize("kind", ["truncate", "html", "error", "hang"])
def test_a_source_without_any_answer_counts_as_refusing(
    yahoo: YahooServer, tmp_path: Path, kind: FaultKind
) -> None:
    yahoo.add_fault(kind)
    timeout = 0.3 if kind == "hang" else 10.0
    with pytest.raises(IngestStoppedError, match="Yahoo refused 24 of 24 tickers"):
        take(yahoo, Lake(tmp_path), TICKERS, retries=0, timeout_seconds=timeout)
    assert len(yahoo.requests) < 12  # after a few in a row, no more requests are sent
    assert not Lake(tmp_path).exists("prices")


def test_an_unreachable_server_counts_as_refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        yahoo_answers, "ADDRESS", "http://127.0.0.1:9/{host}"
    )  # the discard port: no server listens
    away = YahooServer([], AFTER)
    with pytest.raises(DataError, match=r"the connection failed \(ConnectionError\)"):
        take(away, Lake(tmp_path), TICKERS[:2], retries=0)


def test_an_unknown_symbol_is_a_status(yahoo: YahooServer, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    take(yahoo, lake, ["T00", "T01"])
    before = lake.read("prices")
    del yahoo.firms[
        "T00"
    ]  # Yahoo says "may be delisted", but only that it does not know the symbol is certain
    yahoo.requests.clear()
    summary = take(yahoo, lake, ["T00", "T01"])
    assert states(summary) == {"T00": "failed", "T01": "unchanged"}
    assert summary.statuses[0].detail.startswith("Yahoo does not know it")
    assert len([r for r in yahoo.requests if r.symbol == "T00"]) == 1  # an answered request is not repeated
    assert_frame_equal(lake.read("prices"), before)
    assert nobody_is_delisted(lake)


def test_expired_crumbs_and_cookies_are_renewed(yahoo: YahooServer, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "one")
    yahoo.add_fault("deny", "T00", root="quoteSummary", times=1)  # the crumb has expired
    assert states(take(yahoo, lake, ["T00"])) == {"T00": "ok"}
    assert yahoo.crumbs > 1
    assert lake.read("securities")["sector"].to_list() == ["Test"]
    yahoo.clear_faults()
    yahoo.add_fault("throttle", root="crumb")  # then prices arrive, but requests that need a crumb fail
    lake = Lake(tmp_path / "two")
    with pytest.raises(DataError, match="HTTP 401"):
        take(yahoo, lake, ["T00"])
    complete(lake, ["T00"])


@pytest.mark.parametrize(("hour", "known"), [(12, date(2024, 5, 1)), (20, date(2024, 5, 2))])
def test_a_restated_item_is_known_at_the_next_close(
    yahoo: YahooServer, tmp_path: Path, hour: int, known: date
) -> None:
    lake, firm = Lake(tmp_path), yahoo.firms["T00"]
    old, new = date(2023, 9, 30), date(2023, 12, 31)
    take(yahoo, lake, ["T00"])
    first = lake.read("fundamentals")
    assert set(first["known_at"]) == {old + timedelta(days=90), new + timedelta(days=90)}
    firm.statements["NetIncome"][old] = 7e8  # restated
    firm.statements["TotalRevenue"] = {old: 3e9}  # was missing at first
    third = date(2024, 3, 31)
    for values in firm.statements.values():
        values[third] = 2e9
    yahoo.now = datetime(2024, 5, 1, hour, tzinfo=UTC)  # New York closes at 20:00
    take(yahoo, lake, ["T00"])
    rows = lake.read("fundamentals")
    assert_frame_equal(rows.join(first, on=["period_end", "known_at", "item"], how="semi"), first)
    late = rows.join(first, on=["period_end", "known_at", "item"], how="anti")
    assert sorted(late.select("period_end", "item", "known_at", "value").rows()) == [
        (old, "net_income", known, 7e8),
        (old, "revenue", known, 3e9),
        (third, "net_income", third + timedelta(days=90), 2e9),
        (third, "operating_cash_flow", third + timedelta(days=90), 2e9),
        (third, "revenue", third + timedelta(days=90), 2e9),
        (third, "total_assets", third + timedelta(days=90), 2e9),
    ]
    yahoo.requests.clear()
    take(yahoo, lake, ["T00"])  # all three statements of the quarter are stored; nothing is due until July
    assert "timeseries" not in {request.root for request in yahoo.requests}
    assert lake.read("fundamentals").height == rows.height


def test_flows_of_half_yearly_reports_cover_six_months(yahoo: YahooServer, tmp_path: Path) -> None:
    ends = (date(2022, 12, 31), date(2023, 6, 30), date(2023, 12, 31))
    yahoo.firms["T00"].statements = {"NetIncome": dict.fromkeys(ends, 1e9)}
    take(yahoo, Lake(tmp_path), ["T00"])
    assert Lake(tmp_path).read("fundamentals")["months"].to_list() == [6, 6, 6]


def test_a_new_sector_is_valid_from_the_request_date(yahoo: YahooServer, tmp_path: Path) -> None:
    lake, firm = Lake(tmp_path), yahoo.firms["T00"]
    yahoo.now = datetime(2024, 1, 20, tzinfo=UTC)
    take(yahoo, lake, ["T00"])
    firm.profile = {"longName": "T00 Inc.", "sector": "Other"}  # without an industry, the stored one is kept
    yahoo.now = AFTER  # another month, so that the classification is requested again
    take(yahoo, lake, ["T00"])
    rows = lake.read("securities").select("valid_from", "valid_to", "sector", "industry").rows()
    assert rows == [
        (date(1900, 1, 1), AFTER.date(), "Test", "Tests"),
        (AFTER.date(), None, "Other", "Tests"),
    ]


@pytest.mark.slow(2)
def test_the_command_exits_with_3_and_can_be_completed(
    yahoo: YahooServer,
    tmp_path: Path,
    tiny: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def peerglass(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["peerglass", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    monkeypatch.chdir(tmp_path)
    few = TICKERS[:10]
    (tmp_path / "list.csv").write_text("ticker\n" + "\n".join(few))
    source = {"kind": "yfinance", "tickers": "list.csv", "start": "2024-01-01", "batch_size": 5, "retries": 0}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**tiny, "source": source}))
    yahoo.add_fault("throttle", "T06")
    code, out, err = peerglass("ingest", "mine.yaml")
    assert code == 3
    (output,) = [line for line in err.splitlines() if line.startswith("peerglass: ")]
    assert "Yahoo refused" in output
    assert "repeat the command" in output
    assert "Traceback" not in err
    assert "throttled: T" in out
    lake = Lake(tmp_path / "lake")
    assert set(few[:5]) <= set(lake.read("prices")["ticker"]) < set(few)
    assert nobody_is_delisted(lake)
    yahoo.clear_faults()
    code, out, err = peerglass("ingest", "mine.yaml")
    assert code == 0, err
    assert "10 requested" in out
    complete(lake, few)
    assert lake.read("prices")["source"].unique().to_list() == ["yfinance"]
    code, out, _ = peerglass("ingest", "mine.yaml")
    assert code == 0
    assert "10 unchanged" in out
    assert "hazard: Survivorship" in out
    complete(lake, few)
    assert lake.read("fundamentals").filter(pl.col("assumed")).height == 10 * 6
