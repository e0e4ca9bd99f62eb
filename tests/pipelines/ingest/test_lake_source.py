"""A lake belongs to one source and one market, and keeps every hazard of its data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

import pipelines.ingest.ingest
from pipelines.cli.main import main
from pipelines.config.load import check_config
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.run.fetch import ingest_config

Peerglass = Callable[..., int]
MARKET = {"firms": 16, "sessions": 60, "bad_ticks": 2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def peerglass(folder: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Peerglass:
    """Ingest a source into the folder's lake with the command; returns its exit code."""

    def run(source: dict[str, Any], *arguments: str) -> int:
        (folder / "c.yaml").write_text(yaml.safe_dump({**tiny, "source": source}))
        monkeypatch.setattr("sys.argv", ["peerglass", "ingest", "c.yaml", *arguments])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return run


def prices(seed: int, firms: int = 6, sessions: int = 40) -> pl.DataFrame:
    """Return random walks of firms F0, F1, ...; another seed gives another market with the same names."""
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.015, (sessions, firms)), axis=0))
    days = pl.date_range(
        pl.date(2024, 1, 1), pl.date(2024, 1, 1) + pl.duration(days=sessions - 1), eager=True
    )
    wide = pl.DataFrame({"date": days, **{f"F{i}": close[:, i] for i in range(firms)}})
    return wide.unpivot(index="date", variable_name="ticker", value_name="close").sort("date", "ticker")


def refused(capsys: pytest.CaptureFixture[str], what: str) -> None:
    error = capsys.readouterr().err.splitlines()[-1]
    assert what in error
    assert "name another folder in 'lake', or delete that one" in error.replace("Name", "name")


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    "other",
    [
        {"seed": 4, "market": MARKET},
        {"seed": 3, "market": {**MARKET, "firms": 18}},
        {"seed": 3, "market": {**MARKET, "truth_ic": 0.1}},
        {"seed": 3, "market": {**MARKET, "start": "2015-01-02"}},
    ],
)
def test_another_simulated_market_is_refused_before_anything_is_written(
    peerglass: Peerglass, other: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert peerglass({"kind": "simulated", "seed": 3, "market": MARKET}) == 0
    before = {path: path.stat().st_mtime_ns for path in Path("lake").rglob("*")}
    assert peerglass({"kind": "simulated", **other}) == 2
    refused(capsys, "holds the simulated market with ")
    assert {path: path.stat().st_mtime_ns for path in Path("lake").rglob("*")} == before
    assert peerglass({"kind": "simulated", **other}, "--replace") == 2


@pytest.mark.slow(2)
def test_a_simulated_market_may_grow_and_shrink(peerglass: Peerglass, folder: Path) -> None:
    for sessions in (60, 61, 59):
        market = {**MARKET, "sessions": sessions}
        assert peerglass({"kind": "simulated", "seed": 3, "market": market}) == 0
        assert peerglass({"kind": "simulated", "seed": 3, "market": market}, "--set", "lake=fresh") == 0
        stored, fresh = (
            Lake(name).read("prices").drop("ingested_at") for name in (folder / "lake", folder / "fresh")
        )
        assert stored.height > 0
        assert stored.equals(fresh)


def test_another_kind_of_source_is_refused(peerglass: Peerglass, capsys: pytest.CaptureFixture[str]) -> None:
    prices(1).write_parquet("p.parquet")
    assert peerglass({"kind": "files", "prices": "p.parquet"}) == 0
    versions = Lake("lake").versions()
    for other in ({"kind": "sample"}, {"kind": "simulated", "seed": 3, "market": MARKET}):
        assert peerglass(other) == 2
        refused(capsys, f"belongs to source files, but this config's is {other['kind']}")
    live = {"kind": "yfinance", "tickers": ["A"]}
    assert peerglass(live) == 2, "before the network is asked"
    refused(capsys, "belongs to source files")
    assert Lake("lake").versions() == versions


def test_a_corrected_longer_and_renamed_file_is_the_same_market(peerglass: Peerglass) -> None:
    prices(1).write_parquet("prices_2024.parquet")
    assert peerglass({"kind": "files", "prices": "prices_2024.parquet"}) == 0
    longer = prices(1, sessions=45).head(45 * 6 - 1)
    longer.with_columns(pl.col("close") * 0.01).write_parquet("prices_2025.parquet")
    assert peerglass({"kind": "files", "prices": "prices_2025.parquet"}) == 0, "in another unit"
    assert Lake("lake").read("prices").height == longer.height


def test_files_of_other_firms_are_another_market(
    peerglass: Peerglass, capsys: pytest.CaptureFixture[str]
) -> None:
    prices(1).write_parquet("p.parquet")
    assert peerglass({"kind": "files", "prices": "p.parquet"}) == 0
    prices(1).with_columns(ticker="X" + pl.col("ticker")).write_parquet("p.parquet")
    assert peerglass({"kind": "files", "prices": "p.parquet"}) == 2
    refused(capsys, "holds prices of other firms, such as F0")
    assert set(Lake("lake").read("prices")["ticker"]) == {f"F{i}" for i in range(6)}


def test_files_with_other_returns_under_the_same_tickers_are_another_market(
    peerglass: Peerglass, capsys: pytest.CaptureFixture[str]
) -> None:
    prices(1).write_parquet("p.parquet")
    assert peerglass({"kind": "files", "prices": "p.parquet"}) == 0
    stored = Lake("lake").read("prices")
    prices(2).write_parquet("q.parquet")
    assert peerglass({"kind": "files", "prices": "q.parquet"}) == 2
    refused(capsys, "agree with those delivered for the same tickers and dates")
    assert Lake("lake").read("prices").equals(stored)
    assert peerglass({"kind": "files", "prices": "q.parquet"}, "--replace") == 0
    assert Lake("lake").read("prices")["close"].to_list() == prices(2)["close"].to_list()


def test_a_deleted_lake_accepts_any_source(peerglass: Peerglass, folder: Path) -> None:
    import shutil

    assert peerglass({"kind": "simulated", "seed": 3, "market": MARKET}) == 0
    shutil.rmtree(folder / "lake")
    prices(1).write_parquet("p.parquet")
    assert peerglass({"kind": "files", "prices": "p.parquet"}) == 0


def hazards() -> list[str]:
    rows = Lake("lake").read("sources")["hazards"].to_list()
    return [hazard for row in rows for hazard in json.loads(row)]


def test_an_ingest_without_hazards_keeps_the_stored_ones(peerglass: Peerglass) -> None:
    prices(1).write_parquet("p.parquet")
    source = {"kind": "files", "prices": "p.parquet"}
    assert peerglass({**source, "hazards": ["Survivorship: members of today only."]}) == 0
    assert peerglass(source) == 0
    assert hazards() == ["Survivorship: members of today only."]
    assert peerglass({**source, "hazards": ["Closes are bids."]}) == 0
    assert hazards() == ["Survivorship: members of today only.", "Closes are bids."]


def test_a_hazard_with_new_numbers_replaces_the_old_one(peerglass: Peerglass) -> None:
    prices(1).write_parquet("p.parquet")
    for hazard in ("12 of 1,026 firms leave in 3.5 years.", "14 of 1,027 firms leave in 3.6 years."):
        assert peerglass({"kind": "files", "prices": "p.parquet", "hazards": [hazard]}) == 0
    assert hazards() == ["14 of 1,027 firms leave in 3.6 years."]


def test_a_killed_ingest_has_recorded_its_hazards(
    folder: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed at the first commit of a source's table, or at any later one."""
    prices(1).write_parquet(folder / "p.parquet")
    source = {"kind": "files", "prices": str(folder / "p.parquet"), "hazards": ["Closes are bids."]}
    upserted: list[str] = []
    upsert = Lake.upsert

    def killed(self: Lake, table: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        upserted.append(table)
        if table == "quarantine":
            raise KeyboardInterrupt
        return upsert(self, table, *arguments, **named)

    monkeypatch.setattr(Lake, "upsert", killed)
    with pytest.raises(KeyboardInterrupt):
        ingest_config(check_config({**tiny, "source": source}, origin="c"), lambda _: None)
    assert upserted[-1] == "quarantine"
    assert not Lake("lake").exists("prices")
    assert hazards() == ["Closes are bids."]


def test_an_ingest_that_stored_nothing_does_not_claim_the_lake(
    folder: Path, peerglass: Peerglass, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **named: object) -> None:
        raise DataError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(pipelines.ingest.ingest, "quarantine_changes", fails)
        assert peerglass({"kind": "simulated", "seed": 3, "market": MARKET}) == 3
    assert Lake("lake").exists("sources")
    assert not Lake("lake").exists("prices")
    assert peerglass({"kind": "simulated", "seed": 4, "market": MARKET}) == 0
    assert peerglass({"kind": "simulated", "seed": 3, "market": MARKET}) == 2
