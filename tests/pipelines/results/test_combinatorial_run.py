"""Combinatorial folds from a config to the report: every path is measured, and none is mixed with another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from command import Call, command

from pipelines.audit.registry import CHECKS
from pipelines.lake.lake import Lake
from pipelines.run.evaluations import newest_evaluation
from pipelines.run.record import open_run

FOLDS = {"scheme": "combinatorial", "groups": 4, "test_groups": 2, "embargo": 1}


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capfd)


@pytest.mark.slow(4)
def test_a_combinatorial_run_shows_the_distribution_over_paths(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, peerglass: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {**tiny, "folds": FOLDS, "models": {"ridge": {}, "reversal": {}}, "seeds": [0]}
    settings["audit"] = {"skip": [name for name in CHECKS if name != "label_spans"]}
    Path("tiny.yaml").write_text(yaml.safe_dump({**settings, "explain": {**tiny["explain"], "models": []}}))
    done = peerglass("run", "tiny.yaml")
    assert done.code == 0, done.err
    (name,) = (entry.name for entry in os.scandir("runs") if entry.name.startswith("tiny-"))
    run = open_run(name, Path("runs"))

    forecasts = Lake("lake").read("forecasts").filter(pl.col("run_id") == name)
    assert forecasts["fold"].n_unique() == 6
    times = forecasts.group_by("model", "date", "ticker").len()["len"]
    assert times.unique().to_list() == [3], "each date is forecast by the three folds that test it"

    evaluation = newest_evaluation(run)
    assert evaluation is not None
    paths = evaluation.table("paths")
    assert paths.select("model", "path").rows() == [(m, p) for m in ("reversal", "ridge") for p in (1, 2, 3)]
    for (model,), part in forecasts.group_by("model"):
        own = paths.filter(pl.col("model") == model).sort("path")
        for path, ic in own.select("path", "ic").iter_rows():
            # the p-th fold that tests a date, with the correlation of each date by hand
            of_path = part.filter(pl.col("fold") == pl.col("fold").unique().sort().get(path - 1).over("date"))
            daily = [
                np.corrcoef(*date.select("forecast", "label").to_numpy().T)[0, 1]
                for (_,), date in of_path.drop_nulls("label").group_by("date")
                if date["forecast"].n_unique() > 1
            ]
            assert ic == pytest.approx(np.mean(daily), abs=1e-9)
    # reversal is not fitted, so its paths are equal; ridge depends on what it was trained on
    reversal, ridge = (paths.filter(pl.col("model") == m)["ic"] for m in ("reversal", "ridge"))
    assert reversal.n_unique() == 1
    assert ridge.n_unique() == 3
    ladder = evaluation.table("ladder").filter(pl.col("model") == "ridge")
    assert ladder["ensemble_ic"].item() == pytest.approx(ridge[0], abs=1e-12), "tables show the first path"
    assert ladder["coverage_dates"].item() == 1

    assert "3 paths of combinatorial folds" in done.out
    assert "none of these results could have been earned" in done.out
    assert "Tests cover" in done.out
    page = (run.folder / "report.html").read_text()
    assert "trained on sessions before and after their tests" in page
    assert "Tests cover" in page
    assert "3 paths through the history" in page

    audited = peerglass("audit", name, "--output", "runs")
    assert audited.code == 0, audited.out
    spans = pl.read_parquet(run.folder / "tables" / "audit.parquet").filter(pl.col("check") == "label_spans")
    assert spans["verdict"].to_list() == ["pass"]


def test_walk_forward_runs_have_no_paths(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, peerglass: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    calendar = {"scheme": "calendar", "period": "quarter", "window": "expanding", "train": 2, "valid": 1}
    settings = {**tiny, "folds": {**calendar, "embargo": 1}, "models": {"ridge": {}}}
    settings["audit"] = {"enabled": False}
    Path("tiny.yaml").write_text(yaml.safe_dump({**settings, "explain": {**tiny["explain"], "models": []}}))
    done = peerglass("run", "tiny.yaml")
    assert done.code == 0, done.err
    (name,) = (entry.name for entry in os.scandir("runs") if entry.name.startswith("tiny-"))
    run = open_run(name, Path("runs"))
    evaluation = newest_evaluation(run)
    assert evaluation is not None
    assert evaluation.read_table("paths") is None
    folds = run.read_table("folds")
    assert folds is not None
    assert all(quarter[4] == "Q" for quarter in folds["name"])
    prices = Lake("lake").read("prices")["date"].unique().sort()
    assert folds["test_to"][-1] == prices[-2], "the label of the newest session but one is known"
