"""Renamed firms: one history under the newest ticker that is known at the session."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.config.load import check_config
from pipelines.dataset.tables import (
    input_versions,
    newest_tickers,
    open_lake,
    read_market_tables,
    read_tables,
)
from pipelines.errors import DataError
from pipelines.lake.renames import follow_renames, newest_ticker
from pipelines.progress import Progress
from pipelines.results.evaluate_signals import lake_market
from pipelines.run.fetch import ingest_config

DAYS = [dt.date(2022, 6, day) for day in (6, 7, 8, 9, 10)]


def test_a_chain_of_names_is_followed_from_the_day_of_each() -> None:
    renames = pl.DataFrame(
        {
            "ticker": ["META", "FB"],
            "from_date": [dt.date(2024, 1, 2), dt.date(2022, 6, 9)],
            "new_ticker": ["M", "META"],
        }
    )
    assert newest_ticker("FB", dt.date(2022, 6, 8), renames) == "M"
    assert newest_ticker("FB", dt.date(2022, 6, 9), renames) == "FB", "another firm took the ticker over"
    assert newest_ticker("META", dt.date(2023, 1, 2), renames) == "M"


@pytest.mark.parametrize("handed", [{"A": "B", "B": "C"}, {"B": "A", "C": "B"}, {"A": "B", "B": "A"}])
def test_firms_that_hand_tickers_over_on_one_day_stay_apart(handed: dict[str, str]) -> None:
    """Each firm has a close of its own on all days; it is called by its old ticker up to June 7."""
    firms = {old: 10.0 * (n + 1) for n, old in enumerate(handed)}
    rows = [
        (day, handed[old] if day >= DAYS[2] else old, close) for old, close in firms.items() for day in DAYS
    ]
    renames = pl.DataFrame(
        {"ticker": [*handed], "from_date": [DAYS[2]] * len(handed), "new_ticker": [*handed.values()]}
    )
    prices = pl.DataFrame(rows, schema=["date", "ticker", "close"], orient="row")
    found = follow_renames({"prices": prices, "renames": renames})["prices"]
    assert set(found.rows()) == {(day, handed[old], close) for old, close in firms.items() for day in DAYS}
    assert found.height == len(rows)
    assert {old: newest_ticker(old, DAYS[1], renames) for old in handed} == handed


def test_prices_of_a_firm_whose_ticker_another_one_took_are_not_joined() -> None:
    """As SBC became T in 2005, whose ticker AT&T had until days before."""
    days = [dt.date(2005, 10, 1) + dt.timedelta(days=n) for n in range(60)]
    moves = np.exp(np.cumsum(np.random.default_rng(0).normal(0.0, 0.02, (2, 60)), axis=1))
    rows = [(day, "SBC" if day < days[50] else "T", 24.0 * moves[0, n]) for n, day in enumerate(days)]
    of_another = [(day, "T", 19.0 * moves[1, n]) for n, day in enumerate(days[:45])]
    of_itself = [(day, "T", 12.0 * moves[0, n]) for n, day in enumerate(days[:45])]  # as adjusted by a vendor
    renames = pl.DataFrame({"ticker": ["SBC"], "from_date": [days[50]], "new_ticker": ["T"]})

    def followed(more: list[tuple[dt.date, str, float]]) -> pl.DataFrame:
        prices = pl.DataFrame(rows + more, schema=["date", "ticker", "close"], orient="row")
        return follow_renames({"prices": prices, "renames": renames})["prices"]

    with pytest.raises(
        DataError, match=r"SBC is called T from 2005-11-20 .* ticker of its own .* such as T\.1"
    ):
        followed(of_another)
    assert followed(of_another[:10]).height == 60, "nine returns say too little"
    assert followed(of_itself).filter(pl.col("date") < days[45])["close"].to_list() == [
        c for *_, c in of_itself
    ]
    assert followed([(day, "T.1", close) for day, _, close in of_another]).height == 60 + 45


@pytest.mark.parametrize("vendor", ["new series", "whole history", "both"])
def test_a_renamed_firm_has_one_history(tiny: dict[str, object], tmp_path: Path, vendor: str) -> None:
    """The firm is FB up to June 8 and META from June 9 on; the ticker FB is taken over on June 10."""
    old = {"new series": DAYS[:3], "whole history": [], "both": DAYS[:3]}[vendor]
    new = DAYS if vendor != "new series" else DAYS[3:]
    closes = {**{("FB", day): 100.0 + n for n, day in enumerate(old)}, ("FB", DAYS[4]): 7.0}
    closes |= {("META", day): 100.0 + DAYS.index(day) for day in new}
    lines = [f"{day},{ticker},{close}" for (ticker, day), close in closes.items()]
    (tmp_path / "prices.csv").write_text("\n".join(["date,ticker,close", *lines]) + "\n")
    (tmp_path / "renames.csv").write_text("ticker,from_date,new_ticker\nFB,2022-06-09,META\n")
    source = {
        "kind": "files",
        "prices": str(tmp_path / "prices.csv"),
        "renames": str(tmp_path / "renames.csv"),
    }
    own = {"source": source, "lake": str(tmp_path / "lake"), "universe": {"min_history": 1}}
    config = check_config({**tiny, **own}, origin="renames")
    ingest_config(config, echo=lambda _: None)
    lake = open_lake(config)
    versions = input_versions(lake)
    for read in (read_tables, read_market_tables):
        tables = read(lake, versions)
        assert "renames" not in tables
        stored = {
            (row["ticker"], row["date"]): row["close"] for row in tables["prices"].iter_rows(named=True)
        }
        assert stored == {
            **{("META", day): 100.0 + n for n, day in enumerate(DAYS)},
            ("FB", DAYS[4]): 7.0,
        }
        if vendor != "whole history":
            before = read(lake, versions, through=DAYS[2])["prices"]
            assert "FB" in set(before["ticker"]), "the new name is not known yet"
    assert newest_tickers(lake, versions) == {"FB": "META"}
    assert newest_tickers(lake, versions, through=DAYS[2]) == {}, "the new name is not known yet"
    assert newest_tickers(lake, {"prices": 0}) == {}
    panel = lake_market(config, Progress()).market.panel
    assert panel.newest_tickers == {"FB": "META"}
