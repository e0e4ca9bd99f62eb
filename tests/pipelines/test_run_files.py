"""A run on a user's files: prices, securities, statements, membership and inputs, with weekly forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipelines.config.load import check_config
from pipelines.lake.lake import Lake
from pipelines.stages import run_config


@pytest.mark.slow(3)
def test_a_run_on_files_reports_the_assumptions_about_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny: dict[str, Any],
    tiny_tables: Mapping[str, pl.DataFrame],
) -> None:
    monkeypatch.chdir(tmp_path)
    prices = tiny_tables["prices"].drop("source", "ingested_at")
    prices.filter(pl.col("date").dt.year() == pl.col("date").dt.year().min()).write_parquet("p1.parquet")
    prices.filter(pl.col("date").dt.year() != pl.col("date").dt.year().min()).write_csv("p2.csv")
    tiny_tables["securities"].write_parquet("firms.parquet")
    latest = pl.col("known_at") == pl.col("known_at").max().over("ticker", "period_end", "item")
    statements = tiny_tables["fundamentals"].filter(latest)
    statements.pivot(on="item", index=["ticker", "period_end"], values="value").rename(
        {"net_income": "Net Income"}
    ).with_columns(-pl.col("Net Income")).write_parquet("statements.parquet")
    members = prices.group_by("ticker").agg(pl.col("date").min().alias("from_date"))
    members.with_columns(pl.lit(None, dtype=pl.Date).alias("to_date")).write_csv("index.csv")
    prices.select("date", "ticker", (pl.col("close") / pl.col("open") - 1).alias("My Signal")).write_csv(
        "s.csv"
    )
    source = {
        "kind": "files",
        "prices": "p[12].*",
        "securities": "firms.parquet",
        "fundamentals": "statements.parquet",
        "items": {"net_income": "Net Income"},
        "units": {"net_income": -1},
        "membership": "index.csv",
        "inputs": "s.csv",
        "reporting_lag_days": 75,
    }
    universe = {**tiny["universe"], "membership": "index"}
    label = {**tiny["label"], "horizon": 5, "forecast_frequency": "weekly"}
    settings = {**tiny, "source": source, "universe": universe, "label": label, "models": {"ridge": {}}}
    printed: list[str] = []
    report = run_config(check_config(settings, origin="files"), printed.append)
    text = report.read_text()
    assert "Assumed reporting lag: all" in text
    assert "assumed to be known 75 days after" in text
    assert "Membership without leavers" in text
    assert "membership index" in text
    lake = Lake(tiny["lake"])
    assert lake.read("inputs")["name"].unique().to_list() == ["my_signal"]
    assert lake.read("fundamentals")["assumed"].all()
    received = next(line for line in printed[0].splitlines() if line.split()[:1] == ["prices"])
    assert f"{prices.height:,} received" in received


def test_a_run_may_leave_the_explanation_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {
        **tiny,
        "models": {"ridge": {}},
        "folds": {**tiny["folds"], "max_folds": 1},
        "explain": {**tiny.get("explain", {}), "models": ["ridge"], "engine": "linear"},
        "audit": {"enabled": False},
    }
    config = check_config(settings, origin="later")
    printed: list[str] = []
    report = run_config(config, printed.append, explained=False)
    tables = report.parent / "tables"
    assert not [*tables.glob("explain_*")]
    assert any("'peerglass explain" in line for line in printed)
    assert run_config(config, printed.append) == report
    made = {path: path.stat().st_mtime_ns for path in tables.glob("explain_*")}
    assert made
    assert run_config(config, printed.append, explained=False) == report
    assert {path: path.stat().st_mtime_ns for path in tables.glob("explain_*")} == made
