"""The real yfinance client against a loopback server: how Yahoo's numbers are stored in the lake.

This file is long because each form in which Yahoo answers has a test of what the lake then holds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from places import ROOT
from polars.testing import assert_frame_equal
from yahoo_server import Day, Firm, YahooServer, adjusted_closes, business_days, make_firm

from features.panel.asof import statements_as_of
from features.panel.panel import forward_factor
from pipelines.dataset.tables import input_versions, read_tables
from pipelines.errors import ConfigError, DataError
from pipelines.ingest.ingest import IngestSummary, ingest
from pipelines.lake.lake import Lake
from pipelines.sources import yahoo_answers
from pipelines.sources.base import read_tickers
from pipelines.sources.settings import YFinanceSourceConfig
from pipelines.sources.yahoo import YFinanceSource

DAYS = business_days(date(2024, 1, 2), 120)  # to 2024-06-17; the clocks change on 2024-03-10
AFTER = datetime(2024, 6, 18, 3, tzinfo=UTC)  # the evening after the last session in New York
STATEMENTS = {
    "TotalRevenue": 5e9,
    "NetIncome": 1e9,
    "DilutedEPS": 1.5,
    "TotalAssets": 2e10,
    "OrdinarySharesNumber": 7e8,
    "OperatingCashFlow": 2e9,
    "CapitalExpenditure": -4e8,
}

Serve = Callable[..., YahooServer]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start a server that replaces Yahoo in this test."""
    with ExitStack() as open_servers:

        def start(*firms: Firm, now: datetime = AFTER) -> YahooServer:
            server = open_servers.enter_context(YahooServer(list(firms), now).running())
            monkeypatch.setattr(yahoo_answers, "ADDRESS", server.address)
            return server

        yield start


def take(server: YahooServer, lake: Lake, tickers: Sequence[str], **settings: Any) -> IngestSummary:  # noqa: ANN401 (settings)
    """Ingest the server's prices once, without statements unless requested."""
    given = {"kind": "yfinance", "start": date(2024, 1, 1), "statements": False, "retries": 1, **settings}
    wanted = YFinanceSourceConfig(tickers=tuple(tickers), **given)
    return ingest(YFinanceSource(wanted, wait=lambda _: None, clock=lambda: server.now), lake)


def flat(symbol: str, closes: Sequence[float | None], **settings: Any) -> Firm:  # noqa: ANN401 (Firm's)
    """A firm with the given closes on the first weekdays of 2024."""
    days = {
        day: Day(close, close, close, close, None if close is None else 1200)
        for day, close in zip(DAYS, closes, strict=False)
    }
    return Firm(symbol, days, **settings)


def prices(lake: Lake, ticker: str) -> pl.DataFrame:
    return lake.read("prices", filters=pl.col("ticker") == ticker).sort("date")


def states(summary: IngestSummary) -> dict[str, str]:
    return {status.ticker: status.state for status in summary.statuses}


def busy_firm(i: int) -> Firm:
    """A firm with splits and reverse splits, and dividends before, after and on the same day."""
    splits = {DAYS[40 + i % 9]: [(2, 1), (3, 2), (1, 4), (7, 1)][i % 4], DAYS[90]: (3, 1)} if i % 5 else {}
    dividends = {DAYS[k + i % 7]: round(0.35 + 0.11 * (i % 6), 2) for k in (10, 45, 80)} if i % 3 else {}
    if splits and dividends:
        dividends[DAYS[90]] = 0.27
    firm = make_firm(f"T{i:02d}", DAYS, seed=i, splits=splits, dividends=dividends)
    ends = (date(2023, 9, 30), date(2023, 12, 31), date(2024, 3, 31))
    firm.statements = {name: dict.fromkeys(ends, value * (1 + i)) for name, value in STATEMENTS.items()}
    return firm


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, IngestSummary, YahooServer]:
    """Fifty firms, ingested once in batches of twenty."""
    lake = Lake(tmp_path_factory.mktemp("fifty"))
    patch = pytest.MonkeyPatch()
    with YahooServer([busy_firm(i) for i in range(50)], AFTER).running() as server:
        patch.setattr(yahoo_answers, "ADDRESS", server.address)
        summary = take(server, lake, sorted(server.firms), batch_size=20, statements=True)
        patch.undo()
    return lake, summary, server


@pytest.mark.slow(3)
def test_fifty_tickers_arrive_as_they_were_quoted(fifty: tuple[Lake, IngestSummary, YahooServer]) -> None:
    lake, summary, server = fifty
    assert summary.batches == 3
    assert states(summary) == dict.fromkeys(server.firms, "ok")
    stored = lake.read("prices")
    assert stored.height == 50 * len(DAYS)
    assert summary.tables["prices"].quarantined == {}
    for symbol, firm in server.firms.items():
        mine = stored.filter(pl.col("ticker") == symbol).sort("date")
        assert mine["date"].to_list() == DAYS
        for column in ("open", "high", "low", "close", "volume"):
            quoted = [getattr(firm.days[day], column) for day in DAYS]
            assert mine[column].to_list() == quoted, (symbol, column)
        assert mine["split_ratio"].to_list() == [
            pytest.approx(np.divide(*firm.splits.get(day, (1, 1))), rel=1e-12) for day in DAYS
        ]
        assert mine["dividend"].to_list() == [firm.dividends.get(day, 0.0) for day in DAYS]
    assert server.crumbs > 0


def test_adjusted_closes_agree_with_yahoos_own(fifty: tuple[Lake, IngestSummary, YahooServer]) -> None:
    """Equal to 1e-6 by Yahoo's rule; `forward_factor` differs from it only on ex-dates, as computed here.

    Yahoo multiplies prices before a dividend by 1 - D / C_before, so its return on the ex-date is
        C / (C_before - D).
    Ours reinvests at the close of the ex-date:
        (C + D) / C_before.
    The ratio of the two is
        (1 + D / C) (1 - D / C_before).
    """
    lake, _, server = fifty
    checked, furthest = 0, 0.0
    for symbol, firm in server.firms.items():
        mine = prices(lake, symbol)
        close, split, cash = (mine[c].to_numpy() for c in ("close", "split_ratio", "dividend"))
        theirs = np.array(list(dict(sorted(adjusted_closes(firm, DAYS, DAYS[-1]).items())).values()))

        before = close[:-1] / split[1:]  # in shares after the day's split
        yahoo = np.cumprod(np.append(1.0, close[1:] / (before - cash[1:])))
        np.testing.assert_allclose(yahoo / yahoo[-1] * theirs[-1], theirs, rtol=1e-6)

        ours = close * forward_factor(close[:, None], split[:, None], cash[:, None])[:, 0]
        rule = (1.0 + cash[1:] / close[1:]) * (1.0 - cash[1:] / before)
        returns, expected = ours[1:] / ours[:-1], theirs[1:] / theirs[:-1]
        np.testing.assert_allclose(returns / rule, expected, rtol=1e-6)
        plain = cash[1:] == 0
        np.testing.assert_allclose(returns[plain], expected[plain], rtol=1e-6)
        if not firm.dividends:  # then the whole series, up to a constant factor
            np.testing.assert_allclose(ours / ours[-1] * theirs[-1], theirs, rtol=1e-6)
        furthest = max(furthest, float(np.abs(returns / expected - 1.0).max()))
        checked += int((~plain).sum())
    assert checked > 90
    assert 1e-6 < furthest < 3e-3  # the two rules differ, but only slightly


def test_classifications_and_statements(fifty: tuple[Lake, IngestSummary, YahooServer]) -> None:
    lake, summary, _ = fifty
    securities = lake.read("securities")
    assert securities.height == 50
    assert securities.filter(pl.col("ticker") == "T07").row(0, named=True) == {
        "ticker": "T07",
        "valid_from": date(1900, 1, 1),
        "name": "T07 Inc.",
        "sector": "Test",
        "industry": "Tests",
        "listed_on": None,
        "delisted_on": None,
        "delisting_return": None,
        "delisting_reason": None,
        "currency": "USD",
        "exchange": "Test Exchange",
        "valid_to": None,
    }
    one = lake.read("fundamentals").filter((pl.col("ticker") == "T01") & (pl.col("item") != "revenue"))
    assert one.height == 3 * (len(STATEMENTS) - 1)
    assert one["assumed"].all()
    assert (one["known_at"] - one["period_end"]).unique().to_list() == [timedelta(days=90)]
    last = one.filter(pl.col("period_end") == date(2024, 3, 31))
    got = {row["item"]: (row["value"], row["unit"], row["months"]) for row in last.iter_rows(named=True)}
    assert got == {
        "net_income": (2e9, "USD", 3),
        "eps": (9.0, "USD", 3),  # the 3-for-1 split in May is undone
        "operating_cash_flow": (4e9, "USD", 3),
        "capital_expenditure": (8e8, "USD", 3),
        "total_assets": (4e10, "USD", None),
        "shares_outstanding": (pytest.approx(1.4e9 / 3), "shares", None),
    }
    hazards = " ".join(summary.hazards)
    for word in ("Survivorship", "Sector and industry are Yahoo's", "assumed to be known 90 days"):
        assert word in hazards


def test_a_split_and_a_dividend_on_one_day(serve: Serve, tmp_path: Path) -> None:
    firm = flat("AAA", [100.0, 102.0, 25.2, 25.4], splits={DAYS[2]: (4, 1)}, dividends={DAYS[2]: 0.5})
    lake = Lake(tmp_path)
    take(serve(firm), lake, ["AAA"])
    rows = prices(lake, "AAA").select("close", "volume", "split_ratio", "dividend").rows()
    assert rows == [
        (100.0, 1200.0, 1.0, 0.0),
        (102.0, 1200.0, 1.0, 0.0),
        (25.2, 1200.0, 4.0, 0.5),
        (25.4, 1200.0, 1.0, 0.0),
    ]
    close, split, cash = (
        prices(lake, "AAA")[c].to_numpy()[:, None] for c in ("close", "split_ratio", "dividend")
    )
    wealth = (close * forward_factor(close, split, cash))[:, 0]
    # one share of 102 became four of 25.2 with 4 x 0.5 in cash, reinvested at 25.2
    assert wealth[2] / wealth[1] == pytest.approx((4 * 25.2 + 4 * 0.5) / 102)


@pytest.mark.parametrize(
    ("code", "main", "scale"),
    [
        ("GBp", "GBP", 100),
        ("GBX", "GBP", 100),
        ("ZAc", "ZAR", 100),
        ("ILA", "ILS", 100),
        ("KWF", "KWD", 1000),
    ],
)
def test_prices_in_a_minor_unit_are_stored_in_the_main_unit(
    serve: Serve, tmp_path: Path, code: str, main: str, scale: int
) -> None:
    # London and Johannesburg pay in either unit; a dividend without a unit has that of the prices
    plain = flat("AAA.L", [450.5, 452.0, 449.0], currency=code, dividends={DAYS[1]: 8.5})
    mixed = flat("BBB.L", [450.5, 452.0, 449.0], currency=code, dividends={DAYS[1]: 8.5 / scale})
    foreign = flat("CCC.L", [450.5, 452.0, 449.0], currency=code, dividends={DAYS[1]: 8.5})
    mixed.dividend_currency, foreign.dividend_currency = main, "JPY"
    lake = Lake(tmp_path)
    summary = take(serve(plain, mixed, foreign), lake, ["AAA.L", "BBB.L", "CCC.L"])
    for ticker, paid in (("AAA.L", 8.5 / scale), ("BBB.L", 8.5 / scale), ("CCC.L", 0.0)):
        rows = prices(lake, ticker)
        assert rows["close"].to_list() == pytest.approx([450.5 / scale, 452 / scale, 449 / scale], rel=1e-7)
        assert rows["dividend"].to_list() == pytest.approx([0.0, paid, 0.0], rel=1e-4)
    assert set(lake.read("securities")["currency"]) == {main}
    assert any(f"8.5 JPY on {DAYS[1]} left out: prices are in {main}" in note for note in summary.notes)


@pytest.mark.parametrize(
    ("zone", "opens"),
    [
        ("America/New_York", (9, 30)),  # daylight saving time from 2024-03-10
        ("Europe/London", (8, 0)),  # from 2024-03-31
        ("Asia/Tokyo", (9, 0)),  # the same date in UTC
        ("Pacific/Auckland", (10, 0)),  # the previous date in UTC; daylight saving time ends on 2024-04-07
        ("Australia/Sydney", (0, 0)),
        ("America/Sao_Paulo", (0, 0)),
    ],
)
def test_a_session_has_the_exchanges_date(
    serve: Serve, tmp_path: Path, zone: str, opens: tuple[int, int]
) -> None:
    paid = {DAYS[46]: 0.4, DAYS[49]: 0.5, DAYS[67]: 0.6}  # 2024-03-06 and -11, before and after; 2024-04-04
    firm = make_firm("AAA", DAYS, seed=1, zone=zone, opens=opens, dividends=paid, splits={DAYS[49]: (2, 1)})
    lake = Lake(tmp_path)
    take(serve(firm, now=AFTER + timedelta(days=3)), lake, ["AAA"])
    rows = prices(lake, "AAA")
    assert rows["date"].to_list() == DAYS
    assert rows["close"].to_list() == [firm.days[d].close for d in DAYS]
    assert set(rows.filter(pl.col("dividend") > 0)["date"]) == set(paid)
    assert rows.filter(pl.col("split_ratio") != 1)["date"].to_list() == [DAYS[49]]


def test_an_early_midnight_means_the_following_day(serve: Serve, tmp_path: Path) -> None:
    firm = flat("AAA", [50.0, 51.0, 52.0], zone="America/Sao_Paulo", dividends={DAYS[1]: 0.5})
    shifted = Firm(**{**vars(firm), "days": {d - timedelta(days=1): q for d, q in firm.days.items()}})
    shifted.opens, shifted.dividends = (23, 0), {DAYS[1] - timedelta(days=1): 0.5}
    lake = Lake(tmp_path)
    take(serve(shifted), lake, ["AAA"])
    assert prices(lake, "AAA").select("date", "dividend").rows() == list(
        zip(DAYS, [0.0, 0.5, 0.0], strict=False)
    )


def test_symbols_with_dots_and_dashes(serve: Serve, tmp_path: Path) -> None:
    at_yahoo = {
        "BRK.B": "BRK-B",
        "BF-B": "BF-B",
        "VOD.L": "VOD.L",
        "7203.T": "7203.T",
        "RCI.B.TO": "RCI-B.TO",
        "^GSPC": "^GSPC",
        "EURUSD=X": "EURUSD=X",
    }
    server = serve(*(flat(symbol, [10.0, 11.0]) for symbol in at_yahoo.values()))
    lake = Lake(tmp_path)
    summary = take(server, lake, list(at_yahoo))
    assert states(summary) == dict.fromkeys(at_yahoo, "ok")
    assert set(lake.read("prices")["ticker"]) == set(at_yahoo)
    assert {request.symbol for request in server.requests} == set(at_yahoo.values())


def test_new_tickers_come_from_the_users_file(serve: Serve, tmp_path: Path) -> None:
    server, file = serve(flat("META", [10.0] * 5)), tmp_path / "renames.csv"
    file.write_text("ticker,from_date,new_ticker\nFB,2022-06-09,META\n")
    lake = Lake(tmp_path / "lake")
    take(server, lake, ["META"], renames=str(file))
    assert lake.read("renames").rows() == [("FB", date(2022, 6, 9), "META")]


def test_prices_of_another_firm_do_not_continue_those_of_one_with_its_ticker(
    serve: Serve, tmp_path: Path
) -> None:
    lake, file = Lake(tmp_path / "lake"), tmp_path / "renames.csv"
    take(serve(flat("AAA", [10.0, 11.0])), lake, ["AAA"])
    ours = prices(lake, "AAA")
    taken_over = serve(Firm("AAA", {day: Day(50, 50, 50, 50, 9) for day in DAYS[60:63]}))
    (status,) = take(taken_over, lake, ["AAA"]).statuses
    assert status.state == "failed"
    row = f"AAA,{DAYS[60]},AAA.1"
    assert f"after the last one in the lake, {DAYS[1]}, so it is another firm's" in status.detail
    assert f"source.renames, such as {row}" in status.detail
    assert prices(lake, "AAA").equals(ours)
    file.write_text(f"ticker,from_date,new_ticker\n{row}\n")
    for state in ("ok", "unchanged"):
        assert states(take(taken_over, lake, ["AAA"], renames=str(file))) == {"AAA": state}
    rows = read_tables(lake, input_versions(lake))["prices"]
    assert rows.sort("date").select("ticker", "close").rows() == [
        *(("AAA.1", close) for close in (10.0, 11.0)),
        *[("AAA", 50.0)] * 3,
    ]


def test_invalid_tickers_are_refused(tmp_path: Path) -> None:
    for tickers, words in (
        (("BRK.B", "BRK-B"), "BRK.B and BRK-B, which have the same symbol at Yahoo, BRK-B"),
        (("US0378331005",), "an ISIN"),
        (("../x",), "not a ticker"),
        ((), "is empty"),
    ):
        with pytest.raises(ConfigError, match=words):
            YFinanceSource(YFinanceSourceConfig(kind="yfinance", tickers=tickers))
    start, end = date(2024, 2, 1), date(2024, 1, 1)
    with pytest.raises(ConfigError, match="is after source"):
        YFinanceSource(YFinanceSourceConfig(kind="yfinance", tickers=("A",), start=start, end=end))
    listed = tmp_path / "mine.csv"
    listed.write_text("name,ticker\nNational,NA\nTrue,TRUE \n,\nAgain,NA\n")
    assert read_tickers(str(listed)) == ("NA", "TRUE")
    listed.write_text("symbol\nA\n")
    with pytest.raises(DataError, match="no column 'ticker', but symbol"):
        read_tickers(str(listed))
    with pytest.raises(DataError, match="no file"):
        read_tickers(str(tmp_path / "absent.csv"))


def test_the_example_universe_can_be_read() -> None:
    folder = ROOT / "data" / "universes"
    assert "BRK.B" in read_tickers(str(folder / "us_large.csv"))


def test_a_session_is_stored_only_after_its_close(serve: Serve, tmp_path: Path) -> None:
    firm = flat("AAA", [100.0, 101.0, 51.0, 52.0], splits={DAYS[2]: (2, 1)}, dividends={DAYS[2]: 0.3})
    lake = Lake(tmp_path)
    server = serve(firm, now=datetime(2024, 1, 4, 20, 59, tzinfo=UTC))  # 15:59 in New York on DAYS[2]
    take(server, lake, ["AAA"])
    # today's split has already changed Yahoo's prices, but is not stored yet
    assert prices(lake, "AAA").select("close", "split_ratio").rows() == [(100.0, 1.0), (101.0, 1.0)]
    server.now = datetime(2024, 1, 4, 21, 20, tzinfo=UTC)  # over, but Yahoo's quotes are delayed
    assert states(take(server, lake, ["AAA"])) == {"AAA": "unchanged"}
    server.now = datetime(2024, 1, 4, 21, 31, tzinfo=UTC)
    assert states(take(server, lake, ["AAA"])) == {"AAA": "ok"}
    assert prices(lake, "AAA").select("close", "split_ratio", "dividend").rows()[2:] == [(51.0, 2.0, 0.3)]


def test_the_second_fetch_requests_only_recent_sessions(serve: Serve, tmp_path: Path) -> None:
    firm = make_firm("AAA", DAYS, seed=4, dividends={DAYS[3]: 0.4})
    lake, cut = Lake(tmp_path), 100
    server = serve(firm, now=datetime(*DAYS[cut].timetuple()[:3], 12, tzinfo=UTC))
    take(server, lake, ["AAA"])
    first = prices(lake, "AAA")
    assert first["date"].to_list() == DAYS[:cut]
    server.now = AFTER
    summary = take(server, lake, ["AAA"])
    counts = summary.tables["prices"]
    assert (counts.added, counts.updated) == (len(DAYS) - cut, 0)
    start_dates = [date.fromtimestamp(int(r.query["period1"]) + 43200) for r in server.charts("AAA")]
    assert start_dates == [date(2024, 1, 1), DAYS[cut - 1] - timedelta(days=10)]
    rows = prices(lake, "AAA")
    assert rows["date"].to_list() == DAYS
    assert_frame_equal(rows.head(cut), first)  # including the time stamp
    version = lake.version("prices")
    assert states(take(server, lake, ["AAA"])) == {"AAA": "unchanged"}
    assert lake.version("prices") == version


@pytest.mark.parametrize("ratio", [(4, 1), (3, 1), (3, 2), (1, 8), (7, 3)])
def test_a_split_between_two_fetches_changes_nothing_stored(
    serve: Serve, tmp_path: Path, ratio: tuple[int, int]
) -> None:
    firm = make_firm("AAA", DAYS, seed=5, splits={DAYS[104]: ratio}, dividends={DAYS[60]: 0.4, DAYS[98]: 0.6})
    lake, cut = Lake(tmp_path), 100
    server = serve(firm, now=datetime(*DAYS[cut].timetuple()[:3], 12, tzinfo=UTC))
    take(server, lake, ["AAA"])
    first = prices(lake, "AAA")
    server.now = AFTER
    counts = take(server, lake, ["AAA"]).tables["prices"]
    assert (counts.added, counts.updated, counts.unchanged) == (len(DAYS) - cut, 0, 6)
    rows = prices(lake, "AAA")
    assert_frame_equal(rows.head(cut), first)  # to the bit, including the time stamp
    assert rows["close"].to_list() == [firm.days[d].close for d in DAYS]
    assert rows.filter(pl.col("split_ratio") != 1)["date"].to_list() == [DAYS[104]]


def test_prices_before_an_end_are_as_quoted(serve: Serve, tmp_path: Path) -> None:
    """A split after the end has changed Yahoo's earlier prices nevertheless."""
    firm = make_firm("AAA", DAYS, seed=6, splits={DAYS[80]: (5, 1)})
    lake = Lake(tmp_path)
    take(serve(firm), lake, ["AAA"], end=DAYS[59])
    rows = prices(lake, "AAA")
    assert rows["close"].to_list() == [firm.days[d].close for d in DAYS[:60]]
    assert set(rows["split_ratio"]) == {1.0}


def test_empty_rows_and_events_on_days_without_a_row(serve: Serve, tmp_path: Path) -> None:
    gone = date(2024, 1, 6)  # a Saturday, without a row
    firm = flat("AAA", [60.0, None, 20.0, 20.2, 20.0, 20.4], dividends={gone: 0.2, DAYS[1]: 0.3})
    firm.splits = {DAYS[1]: (3, 1)}
    firm.days[DAYS[3]] = Day(None, None, 0.0, 20.2, None)
    lake = Lake(tmp_path)
    summary = take(serve(firm), lake, ["AAA"])
    rows = prices(lake, "AAA")
    assert rows["date"].to_list() == [DAYS[0], *DAYS[2:6]]
    assert rows["close"].to_list() == [60.0, 20.0, 20.2, 20.0, 20.4]
    # never before their ex-dates; yfinance itself moves Saturday's events to Friday
    assert rows["split_ratio"].to_list() == [1.0, 3.0, 1.0, 1.0, 1.0]
    assert rows["dividend"].to_list() == pytest.approx([0.0, 0.3, 0.0, 0.2, 0.0])
    assert rows.filter(pl.col("date") == DAYS[3]).select("open", "high", "low").row(0) == (None, None, None)
    assert any("AAA: sessions without a close, left out: 1" in note for note in summary.notes)


def test_an_event_moved_to_a_stored_row_stays_there(serve: Serve, tmp_path: Path) -> None:
    """A split on a day without a close is on the next row; later answers may begin between the two."""
    quiet = 8  # a Friday
    firm = make_firm("AAA", DAYS[:30], seed=8, splits={DAYS[quiet]: (2, 1)}, dividends={DAYS[quiet]: 0.4})
    firm.days[DAYS[quiet]] = Day(None, None, None, None, None)
    lake = Lake(tmp_path)
    server = serve(firm)
    for cut in (quiet + 2, quiet + 8, quiet + 9, quiet + 10):
        server.now = datetime(*DAYS[cut].timetuple()[:3], 12, tzinfo=UTC)
        take(server, lake, ["AAA"])
    rows = prices(lake, "AAA").filter((pl.col("split_ratio") != 1) | (pl.col("dividend") > 0))
    assert rows.select("date", "split_ratio", "dividend").rows() == [(DAYS[quiet + 1], 2.0, 0.4)]


def test_a_split_that_yahoo_has_not_applied_yet_is_postponed(serve: Serve, tmp_path: Path) -> None:
    closes = [100.0 + i % 3 for i in range(8)] + [25.2, 25.4]
    firm = flat("AAA", closes, splits={DAYS[8]: (4, 1)}, splits_applied_late=True)
    lake = Lake(tmp_path)
    server = serve(firm, now=datetime(*DAYS[8].timetuple()[:3], 3, tzinfo=UTC))
    take(server, lake, ["AAA"])
    before = prices(lake, "AAA")
    server.now = AFTER
    summary = take(server, lake, ["AAA"])
    assert states(summary) == {"AAA": "failed"}
    assert "a split on 2024-01-12 is announced" in summary.statuses[0].detail
    assert_frame_equal(prices(lake, "AAA"), before)
    firm.splits_applied_late = False
    take(server, lake, ["AAA"])
    assert prices(lake, "AAA")["close"].to_list() == closes


def test_a_history_that_no_longer_matches_is_requested_again(serve: Serve, tmp_path: Path) -> None:
    firm = make_firm("AAA", DAYS, seed=7)
    lake = Lake(tmp_path)
    server = serve(firm, now=datetime(*DAYS[100].timetuple()[:3], 12, tzinfo=UTC))
    take(server, lake, ["AAA"], start=DAYS[50])
    server.now = AFTER
    summary = take(server, lake, ["AAA"], start=date(2024, 1, 1))  # from an earlier date than before
    assert "there are prices before" in summary.statuses[0].detail
    assert prices(lake, "AAA")["date"].to_list() == DAYS
    for day in DAYS:  # Yahoo divides all prices by five without listing a split
        quote = firm.days[day]
        assert None not in (quote.open, quote.high, quote.low, quote.close)
        fifth = {name: round(getattr(quote, name) / 5, 4) for name in ("open", "high", "low", "close")}
        firm.days[day] = Day(**fifth, volume=10)
    summary = take(server, lake, ["AAA"])
    assert "which no split explains" in summary.statuses[0].detail
    assert prices(lake, "AAA")["close"].to_list() == [firm.days[day].close for day in DAYS]


def test_adjusted_closes_that_contradict_events_are_noted(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Contradictory(dict[date, float]):
        """Dividends that enter the adjusted closes but are listed with a tenth of their amount."""

        def items(self) -> Any:  # noqa: ANN401 (a view)
            return {day: cash / 10 for day, cash in super().items()}.items()

    firm = flat("AAA", [50.0 + i % 2 for i in range(30)], dividends={DAYS[20]: 2.0})
    server = serve(firm)
    listed = server._events

    def contradictory(f: Firm, *rest: Any) -> Any:  # noqa: ANN401 (passed on)
        return listed(dataclasses.replace(f, dividends=Contradictory(f.dividends)), *rest)

    monkeypatch.setattr(server, "_events", contradictory)
    summary = take(server, Lake(tmp_path), ["AAA"])
    remark = "sessions on which Yahoo's adjusted closes contradict its own splits and dividends"
    assert any(f"AAA: {remark}: 1, the first on {DAYS[20]}" in note for note in summary.notes)
    assert math.isclose(prices(Lake(tmp_path), "AAA")["dividend"].sum(), 0.2)


def test_share_counts_that_yahoo_restated_are_stored_as_of_the_period_end(
    serve: Serve, tmp_path: Path
) -> None:
    """100 shares at 40 dollars until a 4-for-1 split: 4,000 of market equity on every day."""
    ex_date = DAYS[60]  # after the reported period, and after its known_at
    closes = [40.0 if day < ex_date else 10.0 for day in DAYS]
    firm = flat("AAA", closes, splits={ex_date: (4, 1)})
    ends = (date(2023, 9, 30), date(2023, 12, 31))
    lake = Lake(tmp_path)

    def equity() -> list[float]:
        rows = prices(lake, "AAA")
        dates_T = rows["date"].to_numpy().astype("datetime64[D]")
        known = statements_as_of(
            lake.read("fundamentals"), dates_T, ("AAA",), rows["split_ratio"].to_numpy()[:, None]
        )
        shares_T = known["shares_outstanding"][:, 0]
        return list(shares_T[~np.isnan(shares_T)] * rows["close"].to_numpy()[~np.isnan(shares_T)])

    def counts() -> list[tuple[object, ...]]:
        rows = lake.read("fundamentals").filter(pl.col("item") == "shares_outstanding")
        return rows.select("period_end", "value", "stated_on").rows()

    firm.statements = {"OrdinarySharesNumber": dict.fromkeys(ends, 100.0)}
    before = datetime(*DAYS[58].timetuple()[:3], 12, tzinfo=UTC)
    server = serve(firm, now=before)
    take(server, lake, ["AAA"], statements=True)
    assert counts() == [(end, 100.0, end) for end in ends]
    assert equity() == [4000.0] * len(equity())
    # Yahoo restates everything; a new request gives nothing new
    firm.statements = {"OrdinarySharesNumber": dict.fromkeys(ends, 400.0)}
    server.now = AFTER
    take(server, lake, ["AAA"], statements=True)
    assert counts() == [(end, 100.0, end) for end in ends]
    assert len(equity()) > 60
    assert equity() == [4000.0] * len(equity())
    # a first request after the split gives the same values, even if prices begin after the period
    for start in (date(2023, 7, 1), DAYS[0]):
        lake = Lake(tmp_path / str(start))
        take(server, lake, ["AAA"], statements=True, start=start)
        assert counts() == [(end, 100.0, end) for end in ends]
        assert equity() == [4000.0] * len(equity())


def test_a_count_that_yahoo_has_not_restated_yet_is_unchanged(serve: Serve, tmp_path: Path) -> None:
    firm = flat("AAA", [40.0] * 60 + [10.0] * 20, splits={DAYS[60]: (4, 1)})
    firm.statements = {"OrdinarySharesNumber": {date(2023, 12, 31): 100.0}}
    lake = Lake(tmp_path)
    server = serve(firm, now=datetime(*DAYS[58].timetuple()[:3], 12, tzinfo=UTC))
    take(server, lake, ["AAA"], statements=True)
    server.now = AFTER
    take(server, lake, ["AAA"], statements=True)
    assert lake.read("fundamentals").select("item", "value").rows() == [("shares_outstanding", 100.0)]


def test_earnings_per_share_that_a_split_rounds_are_no_restatement(serve: Serve, tmp_path: Path) -> None:
    firm = flat("AAA", [40.0] * 60 + [10.0] * 20, splits={DAYS[60]: (4, 1)})
    lake, end = Lake(tmp_path), date(2023, 12, 31)
    server = serve(firm, now=datetime(*DAYS[58].timetuple()[:3], 12, tzinfo=UTC))
    for now, eps, expected in (
        (server.now, 2.18, [2.18]),
        (AFTER, 0.55, [2.18]),  # a quarter of it, to the cent
        (AFTER, 0.6, [2.18, pytest.approx(2.4)]),
    ):
        server.now, firm.statements = now, {"DilutedEPS": {end: eps}}
        take(server, lake, ["AAA"], statements=True)
        assert lake.read("fundamentals")["value"].to_list() == expected
