"""The SEC source: the real client against a loopback server with EDGAR's submissions and company facts."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sec_server import Edgar, Filing, Firm, serve

from features.panel.asof import statements_as_of
from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError
from pipelines.ingest.ingest import IngestStoppedError, IngestSummary, ingest
from pipelines.lake.lake import Lake
from pipelines.run.fetch import make_source
from pipelines.sources.base import LiveSource
from pipelines.sources.sec import SecSource

IDENTITY = "Jane Doe jane@example.com"
APPLE, COKE, MICROSOFT = 320193, 21344, 789019
START = dt.date(2010, 1, 1)


@pytest.fixture
def edgar(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edgar]:
    """Redirect edgartools to the loopback server; it sends requests to no other."""
    monkeypatch.setenv("EDGAR_LOCAL_DATA_DIR", str(tmp_path_factory.mktemp("edgar")))
    monkeypatch.setenv("EDGAR_IDENTITY", "set again by the source")
    pytest.importorskip("edgar", reason="the extra sec is not installed")
    import edgar.config
    import edgar.httpclient
    import edgar.urls
    import stamina

    with serve() as server:
        for module in (edgar.config, edgar.urls):
            for name in ("SEC_BASE_URL", "SEC_DATA_URL"):
                monkeypatch.setattr(module, name, server.url)
        with stamina.set_testing(True, attempts=2):  # no waiting between attempts
            yield server
        edgar.httpclient.close_clients()  # type: ignore[no-untyped-call]  # the package is partly annotated


def annual(day: str, value: float, *, tag: str = "Revenues") -> tuple[str, str, str | None, str, float]:
    return tag, "USD", f"{day[:4]}-01-01", day, value


def instant(day: str, value: float, *, tag: str = "Assets") -> tuple[str, str, str | None, str, float]:
    return tag, "USD", None, day, value


def number(cik: int, serial: int) -> str:
    return f"{cik:010d}-19-{serial:06d}"


def firm(cik: int, *, older: int = 0) -> Firm:
    """An annual report, its amendment, and the next year's report, which restates a value again."""
    end, next_end = "2018-12-31", "2019-12-31"
    cover = ("dei:EntityCommonStockSharesOutstanding", "shares", None, "2019-02-10", 10.0)
    filings = [
        Filing(
            number(cik, 1),
            "10-K",
            "2019-02-20",
            "2019-02-20T16:31:00.000Z",
            (annual(end, 100), instant(end, 500), cover),
        ),
        Filing(number(cik, 2), "8-K", "2019-03-01", "2019-03-01T08:00:00.000Z"),
        Filing(
            number(cik, 3),
            "10-K/A",
            "2019-04-15",
            "2019-04-12T18:00:00.000Z",
            (annual(end, 95), instant(end, 480)),
        ),
        Filing(
            number(cik, 4),
            "10-K",
            "2020-02-21",
            "2020-02-21T09:30:00.000Z",
            (annual(next_end, 130), annual(end, 90), instant(next_end, 600), instant(end, 480)),
        ),
    ]
    return Firm(cik, filings, older)


def take(lake: Path, *tickers: str) -> IngestSummary:
    return ingest(SecSource(tickers, IDENTITY, START), Lake(lake))


def stored(lake: Path) -> pl.DataFrame:
    return Lake(lake).read("fundamentals").sort("ticker", "item", "period_end", "known_at")


def states(summary: IngestSummary) -> dict[str, str]:
    return {status.ticker: status.state for status in summary.statuses}


def test_every_version_is_kept_with_its_filing_and_known_at(tmp_path: Path, edgar: Edgar) -> None:
    edgar.add(firm(APPLE, older=2))
    summary = take(tmp_path, "AAPL")
    day = dt.date
    first, amended, last = number(APPLE, 1), number(APPLE, 3) + "/A", number(APPLE, 4)
    columns = ("item", "period_end", "known_at", "value", "unit", "filing_id", "months", "assumed")
    assert stored(tmp_path).select(columns).rows() == [
        # the cover page's count is stated as of its own date; accepted after the close: known the next day
        ("revenue", day(2018, 12, 31), day(2019, 2, 21), 100.0, "USD", first, 12, False),
        # accepted on a Friday evening, filed on Monday
        ("revenue", day(2018, 12, 31), day(2019, 4, 15), 95.0, "USD", amended, 12, False),
        ("revenue", day(2018, 12, 31), day(2020, 2, 21), 90.0, "USD", last, 12, False),
        ("revenue", day(2019, 12, 31), day(2020, 2, 21), 130.0, "USD", last, 12, False),
        ("shares_outstanding", day(2019, 2, 10), day(2019, 2, 21), 10.0, "shares", first, None, False),
        ("total_assets", day(2018, 12, 31), day(2019, 2, 21), 500.0, "USD", first, None, False),
        ("total_assets", day(2018, 12, 31), day(2019, 4, 15), 480.0, "USD", amended, None, False),
        ("total_assets", day(2018, 12, 31), day(2020, 2, 21), 480.0, "USD", last, None, False),
        ("total_assets", day(2019, 12, 31), day(2020, 2, 21), 600.0, "USD", last, None, False),
    ]
    assert states(summary) == {"AAPL": "ok"}
    assert edgar.agents == {IDENTITY}
    assert f"/submissions/CIK{APPLE:010d}-submissions-001.json" in edgar.requested


def test_a_restatement_is_visible_from_its_own_date(tmp_path: Path, edgar: Edgar) -> None:
    edgar.add(firm(APPLE))
    take(tmp_path, "AAPL")
    days = ["2019-02-20", "2019-02-21", "2019-04-12", "2019-04-15", "2020-02-20", "2020-02-21"]
    dates_T = np.array(days, dtype="datetime64[D]")
    known = statements_as_of(Lake(tmp_path).read("fundamentals"), dates_T, ("AAPL",), np.ones((6, 1)))
    np.testing.assert_array_equal(known["revenue"][:, 0], [np.nan, 100, 100, 95, 95, 130])
    np.testing.assert_array_equal(known["revenue@1y"][:, 0], [np.nan] * 5 + [90])
    np.testing.assert_array_equal(known["total_assets"][:, 0], [np.nan, 500, 500, 480, 480, 600])


def test_an_unchanged_firm_costs_one_request_and_a_new_filing_a_second(tmp_path: Path, edgar: Edgar) -> None:
    apple = firm(APPLE)
    report = apple.filings.pop()
    edgar.add(apple)
    take(tmp_path, "AAPL")
    before = stored(tmp_path)
    edgar.requested.clear()
    assert states(take(tmp_path, "AAPL")) == {"AAPL": "unchanged"}
    assert edgar.requested == [f"/submissions/CIK{APPLE:010d}.json"]
    assert stored(tmp_path).equals(before)
    apple.filings.append(report)
    summary = take(tmp_path, "AAPL")
    assert states(summary) == {"AAPL": "ok"}
    assert (summary.tables["fundamentals"].added, summary.tables["fundamentals"].unchanged) == (4, 5)


def test_a_filing_without_usable_facts_is_read_once(tmp_path: Path, edgar: Edgar) -> None:
    apple, coke = firm(APPLE), firm(COKE)
    unused = (instant("2019-12-31", 1, tag="AnotherTag"),)
    amended = Filing(number(APPLE, 5), "10-K/A", "2020-03-02", "2020-03-02T09:30:00.000Z", unused)
    apple.filings.append(amended)
    coke.filings[:] = [replace(one, facts=unused) for one in coke.filings]
    edgar.add(apple, coke)
    assert states(take(tmp_path, "AAPL", "KO")) == {"AAPL": "ok", "KO": "empty"}
    edgar.requested.clear()
    assert states(take(tmp_path, "AAPL", "KO")) == {"AAPL": "unchanged", "KO": "unchanged"}
    assert not any("companyfacts" in path for path in edgar.requested)
    filed = dt.datetime.now(dt.UTC).date().isoformat()
    recent = replace(amended, accession=number(APPLE, 6), filed=filed, accepted=f"{filed}T00:01:00.000Z")
    apple.filings.append(recent)
    assert states(take(tmp_path, "AAPL")) == {"AAPL": "ok"}
    assert states(take(tmp_path, "AAPL")) == {"AAPL": "ok"}, "its facts may follow the list of filings"


def test_statements_join_the_prices_of_another_source(
    tmp_path: Path, edgar: Edgar, tiny_config: Config
) -> None:
    edgar.add(firm(APPLE))
    settings = {"kind": "sec", "tickers": ["AAPL"], "identity": IDENTITY, "start": "2020-01-01"}
    source = make_source(tiny_config.model_validate({**tiny_config.model_dump(), "source": settings}))
    assert isinstance(source, LiveSource)
    summary = ingest(source, Lake(tmp_path))
    assert set(summary.tables) == {"fundamentals"}
    assert stored(tmp_path)["known_at"].unique().to_list() == [dt.date(2020, 2, 21)]
    assert any("Tickers are matched to SEC filers as of today" in hazard for hazard in summary.hazards)


def test_throttling_stops_requests_and_repeating_the_command_continues(tmp_path: Path, edgar: Edgar) -> None:
    edgar.add(firm(APPLE), firm(COKE), firm(MICROSOFT))
    edgar.spoil = lambda path: (429, b"slow down") if f"{COKE:010d}" in path else None
    with pytest.raises(
        IngestStoppedError, match=r"the SEC refused 2 of 3 tickers \(too many requests\)"
    ) as stopped:
        take(tmp_path, "AAPL", "KO", "MSFT")
    assert stopped.value.exit_code == 3
    assert states(stopped.value.summary) == {"AAPL": "ok", "KO": "throttled", "MSFT": "throttled"}
    assert not any(f"{MICROSOFT:010d}" in path for path in edgar.requested)
    assert stored(tmp_path)["ticker"].unique().to_list() == ["AAPL"]
    edgar.spoil = lambda path: None
    assert states(take(tmp_path, "AAPL", "KO", "MSFT")) == {"AAPL": "unchanged", "KO": "ok", "MSFT": "ok"}
    assert stored(tmp_path).group_by("ticker").len().sort("ticker").rows() == [
        ("AAPL", 9),
        ("KO", 9),
        ("MSFT", 9),
    ]


def test_a_temporary_error_is_retried_at_the_end(tmp_path: Path, edgar: Edgar) -> None:
    edgar.add(firm(APPLE), firm(COKE))
    spoilt: list[str] = []

    def once(path: str) -> tuple[int, bytes] | None:
        if "companyfacts" in path and f"{APPLE:010d}" in path and not spoilt:
            spoilt.append(path)
            return 503, b"busy"
        return None

    edgar.spoil = once
    assert states(take(tmp_path, "AAPL", "KO")) == {"AAPL": "ok", "KO": "ok"}
    assert len(spoilt) == 1


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        ((200, b'{"cik": 320193, "facts": {"us-gaap": {"Ass'), "unreadable answer: JSONDecodeError"),
        ((200, b"<html>maintenance</html>"), "unreadable answer: JSONDecodeError"),
        ((200, b'{"cik": 320193, "facts": 7}'), "reports are listed, but their facts are missing"),
        ((404, b"none"), "reports are listed, but their facts are missing"),
        ((500, b"error"), "HTTP 500"),
    ],
)
def test_an_unusable_answer_fails_and_deletes_nothing(
    tmp_path: Path, edgar: Edgar, answer: tuple[int, bytes], detail: str
) -> None:
    edgar.add(firm(APPLE), firm(COKE))
    take(tmp_path, "KO")
    edgar.spoil = lambda path: answer if "companyfacts" in path and f"{APPLE:010d}" in path else None
    with pytest.raises(IngestStoppedError, match="refused 1 of 2 tickers") as stopped:
        take(tmp_path, "AAPL", "KO")
    assert [(s.ticker, s.state, s.detail) for s in stopped.value.summary.statuses] == [
        ("AAPL", "failed", detail),
        ("KO", "unchanged", ""),
    ]
    assert stored(tmp_path)["ticker"].unique().to_list() == ["KO"]


def test_an_unreachable_server_fails(tmp_path: Path, edgar: Edgar, monkeypatch: pytest.MonkeyPatch) -> None:
    import edgar as client

    monkeypatch.setattr(client.urls, "SEC_DATA_URL", "http://127.0.0.1:9")
    with pytest.raises(IngestStoppedError, match="no answer: ConnectError"):
        take(tmp_path, "AAPL")


def test_tickers_without_data_are_empty_and_no_error(tmp_path: Path, edgar: Edgar) -> None:
    edgar.add(Firm(COKE, [Filing(number(COKE, 1), "10-K", "2001-03-01", "2001-03-01T10:00:00.000Z")]))
    edgar.add(
        Firm(MICROSOFT, [Filing(number(MICROSOFT, 1), "8-K", "2019-03-01", "2019-03-01T10:00:00.000Z")])
    )
    summary = take(tmp_path, "AAPL", "KO", "MSFT", "ZZQQ9")
    assert [(s.ticker, s.state, s.detail) for s in summary.statuses] == [
        ("AAPL", "empty", "no annual or quarterly report"),
        ("KO", "empty", "no report in XBRL since 2010-01-01"),
        ("MSFT", "empty", "no annual or quarterly report"),
        ("ZZQQ9", "empty", "no filer with that ticker"),
    ]
    assert summary.tables == {}


def test_a_rejected_identity_is_named(tmp_path: Path, edgar: Edgar) -> None:
    edgar.spoil = lambda path: (403, b"<html>Undeclared Automated Tool</html>")
    with pytest.raises(DataError, match=r"the SEC rejects requests by 'Jane Doe jane@example.com'"):
        take(tmp_path, "AAPL")


def test_an_email_address_a_ticker_and_edgartools_are_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ConfigError, match=r"source\.identity is 'Jane'; the SEC requires a name and an e-mail"
    ):
        SecSource(("AAPL",), "Jane", START)
    with pytest.raises(ConfigError, match=r"source\.tickers is empty"):
        SecSource((), IDENTITY, START)
    monkeypatch.setitem(sys.modules, "edgar", None)
    with pytest.raises(ConfigError, match=r"pip install 'edgartools>=5\.62'") as refused:
        take(tmp_path, "AAPL")
    assert refused.value.exit_code == 2
    assert Lake(tmp_path).versions() == {}
