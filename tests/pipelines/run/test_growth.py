"""A source that is read up to a session delivers what was known then; so a lake grows night by night."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from yahoo_server import YahooServer, business_days, make_firm

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import SOURCE_TABLES, STAMPS, keys
from pipelines.run.fetch import ingest_config, make_source
from pipelines.sources import yahoo_answers
from pipelines.sources.base import SourceThrough
from pipelines.sources.simulated.source import SimulatedSource

pytestmark = pytest.mark.usefixtures("untracked")

MARKET = {
    "sessions": 130,
    "firms": 40,
    "delistings_per_year": 1.5,
    "restated_share": 0.5,
    "bad_ticks": 6,
    "idiosyncratic_volatility": 0.05,  # so that prices move far enough to be split
}
ENDS = {
    "securities": ("delisted_on", "delisting_return", "delisting_reason"),
    "truth_edges": ("valid_to",),
}
TABLES = ("prices", "securities", "fundamentals", "truth_mu", "truth_edges", "truth_days")


def market(tiny: dict[str, Any], folder: Path) -> Config:
    source = {"kind": "simulated", "seed": 3, "market": MARKET}
    return check_config({**tiny, "source": source, "lake": str(folder / "lake")}, origin="grows")


def delivered(config: Config, through: dt.date) -> dict[str, pl.DataFrame]:
    source = make_source(config, through=through)
    assert isinstance(source, SourceThrough)
    return dict(source.fetch().tables)


def sessions(config: Config) -> list[dt.date]:
    source = make_source(config)
    assert isinstance(source, SimulatedSource)
    return list(source.fetch().tables["prices"]["date"].unique().sort())


def rows_of(lake: Lake) -> dict[str, pl.DataFrame]:
    return {t: lake.read(t).drop(STAMPS, strict=False) for t in SOURCE_TABLES if lake.exists(t)}


def test_every_delivery_is_a_prefix_of_the_next_to_the_bit(tiny: dict[str, Any], tmp_path: Path) -> None:
    config = market(tiny, tmp_path)
    days = sessions(config)
    earlier = delivered(config, days[-31])
    assert set(earlier) == set(TABLES)
    grew: dict[str, int] = dict.fromkeys(TABLES, 0)
    ended: dict[str, int] = dict.fromkeys(ENDS, 0)
    for day in days[-30:]:
        later = delivered(config, day)
        for table, frame in earlier.items():
            ends = ENDS.get(table, ())
            known = later[table].join(frame.select(keys(table)), on=keys(table), how="semi")
            assert_frame_equal(
                known.drop(ends), frame.drop(ends), check_exact=True, check_row_order=table != "prices"
            )
            grew[table] += later[table].height - frame.height
            for end in ends[:1]:
                both = frame.join(known, on=keys(table), suffix="_later")
                new = both.filter(pl.col(end).is_null() & pl.col(f"{end}_later").is_not_null())
                assert new[f"{end}_later"].to_list() == [day] * new.height
                assert both.filter(
                    pl.col(end).is_not_null() & pl.col(end).ne_missing(pl.col(f"{end}_later"))
                ).is_empty()
                ended[table] += new.height
        earlier = later
    assert all(count > 0 for count in grew.values()), grew
    assert all(count > 0 for count in ended.values()), ended


def test_nothing_of_a_delivery_is_later_than_its_session(tiny: dict[str, Any], tmp_path: Path) -> None:
    config = market(tiny, tmp_path)
    whole = make_source(config)
    assert isinstance(whole, SimulatedSource)
    tables, days = whole.fetch().tables, sessions(config)
    splits = tables["prices"].filter(pl.col("split_ratio") != 1.0)["date"]
    failures = tables["securities"]["delisted_on"].drop_nulls()
    restated = tables["fundamentals"].filter(pl.len().over("ticker", "period_end", "item") > 1)["known_at"]
    for happened in (splits, failures, restated, tables["truth_edges"]["valid_to"].drop_nulls()):
        assert happened.is_between(days[1], days[-1]).any()
    for day in days[20::9]:
        for table, frame in delivered(config, day).items():
            latest = frame.select(pl.col(pl.Date).max()).transpose().to_series().drop_nulls()
            assert latest.max() is not None, table
            assert max(latest) <= day, table
            if table == "securities":
                assert frame.filter(pl.col("delisted_on").is_null()).select(
                    pl.col("delisting_return", "delisting_reason").is_null().all()
                ).row(0) == (True, True)


@pytest.mark.slow(4)
def test_a_lake_that_grew_night_by_night_holds_what_one_delivery_would_have_stored(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    config = market(tiny, tmp_path / "nightly")
    days = sessions(config)
    for day in days[-8:]:
        ingest_config(config, lambda _: None, through=day)
    at_once = market(tiny, tmp_path / "at_once")
    ingest_config(at_once, lambda _: None, through=days[-1])
    grown, expected = rows_of(open_lake(config)), rows_of(open_lake(at_once))
    assert set(grown) == set(TABLES)
    for table, frame in expected.items():
        assert_frame_equal(grown[table], frame, check_exact=True)
    assert open_lake(config).version("prices") == 8


def test_an_earlier_night_withdraws_nothing(
    tiny: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = market(tiny, tmp_path)
    days = sessions(config)
    ingest_config(config, lambda _: None, through=days[-4])
    lake = open_lake(config)
    before, versions = rows_of(lake), lake.versions()
    said: list[str] = []
    ingest_config(config, said.append, through=days[-20])
    assert said[0].count(" 0 withdrawn") == len(TABLES)
    assert said[0].count(" withdrawn") == len(TABLES)
    assert f"already holds prices up to {days[-4]}" in capsys.readouterr().err
    for table, frame in rows_of(lake).items():
        assert_frame_equal(frame, before[table], check_exact=True)
    assert lake.versions() == versions
    ingest_config(config, lambda _: None, through=days[-3])
    assert rows_of(lake)["prices"]["date"].max() == days[-3]


def test_a_session_before_the_first_one_ends_with_a_sentence(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="delivered no price rows"):
        ingest_config(market(tiny, tmp_path), lambda _: None, through=dt.date(2001, 1, 1))


def test_files_are_read_up_to_a_session(tiny: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text(
        "date,ticker,close\n2024-01-02,A,10\n2024-01-03,A,11\n2024-01-04,A,12\n2024-01-03,B,5\n2024-01-05,B,6\n"
    )
    (tmp_path / "firms.csv").write_text(
        "ticker,valid_from,valid_to,sector,delisted_on,delisting_return\n"
        "A,2000-01-01,2024-01-04,Old,,\nA,2024-01-04,,New,2024-01-04,-0.3\nB,2000-01-01,,Other,,\n"
    )
    (tmp_path / "members.csv").write_text(
        "universe,ticker,from_date,to_date\nu,A,2020-01-01,2024-01-04\nu,B,2024-01-05,\n"
    )
    source = {
        "kind": "files",
        "prices": str(tmp_path / "prices.csv"),
        "securities": str(tmp_path / "firms.csv"),
        "membership": str(tmp_path / "members.csv"),
    }
    config = check_config({**tiny, "source": source, "lake": str(tmp_path / "lake")}, origin="files")
    third, fourth = dt.date(2024, 1, 3), dt.date(2024, 1, 4)
    early, later = delivered(config, third), delivered(config, fourth)
    assert early["prices"].select("date", "ticker").rows() == [
        (dt.date(2024, 1, 2), "A"),
        (third, "A"),
        (third, "B"),
    ]
    firms = early["securities"].select("ticker", "sector", "valid_to", "delisted_on", "delisting_return")
    assert firms.rows() == [("A", "Old", None, None, None), ("B", "Other", None, None, None)]
    assert early["membership"].select("ticker", "to_date").rows() == [("A", None)]
    firms = later["securities"].select("ticker", "sector", "valid_to", "delisted_on", "delisting_return")
    assert firms.rows() == [
        ("A", "Old", fourth, None, None),
        ("A", "New", None, fourth, -0.3),
        ("B", "Other", None, None, None),
    ]
    assert later["membership"].select("ticker", "to_date").rows() == [("A", fourth)]


def test_prices_of_yahoo_end_at_the_session_and_the_next_night_adds_the_next_session(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = business_days(dt.date(2024, 1, 2), 60)
    server = YahooServer(
        [make_firm("AAA", days, seed=1), make_firm("BBB", days, seed=2)], dt.datetime.now(dt.UTC)
    )
    with server.running():
        monkeypatch.setattr(yahoo_answers, "ADDRESS", server.address)
        for end, through, newest in (
            (None, days[40], days[40]),
            (None, days[41], days[41]),
            (None, days[10], days[41]),  # an earlier night: nothing is withdrawn
            (days[45], days[50], days[45]),
        ):
            source = {"kind": "yfinance", "tickers": ["AAA", "BBB"], "statements": False, "end": end}
            config = check_config({**tiny, "source": source, "lake": str(tmp_path / "lake")}, origin="yahoo")
            ingest_config(config, lambda _: None, through=through)
            by_ticker = (
                open_lake(config).read("prices").group_by("ticker").agg(pl.col("date").max(), pl.len())
            )
            n_sessions = days.index(newest) + 1
            assert by_ticker.sort("ticker").rows() == [
                ("AAA", newest, n_sessions),
                ("BBB", newest, n_sessions),
            ]
