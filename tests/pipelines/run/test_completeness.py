"""Incomplete runs: models are compared on common dates, and missing tasks are named everywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from command import Answer, Call, command
from stored import measured

from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.run.checkpoints import save_checkpoint
from pipelines.run.completeness import (
    common_dates,
    comparable_folds,
    describe_missing,
    missing_tasks,
    restrict_to_dates,
)
from pipelines.run.record import open_run, read_scores
from pipelines.train import walkforward

SENTENCE = "mlp: seed 1 of fold 1"


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capfd)


@pytest.fixture
def interrupted(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, peerglass: Call
) -> Answer:
    """Train two models on two folds with two seeds, and stop before the last task is committed."""
    monkeypatch.chdir(tmp_path)
    settings = {**tiny, "models": {"ridge": {}, "mlp": {"width": 8}}, "seeds": [0, 1]}
    Path("tiny.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    assert peerglass("ingest", "tiny.yaml").code == 0

    def stop(folder: Path, *arguments: Any) -> None:  # noqa: ANN401 (passed on)
        if (folder.parent.name, folder.name) == ("mlp", "fold-1-seed-1"):
            raise KeyboardInterrupt
        save_checkpoint(folder, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(walkforward, "save_checkpoint", stop)
        answer = peerglass("train", "tiny.yaml")
    assert answer.code == 130
    return answer


def ics(frame: pl.DataFrame) -> dict[Any, float]:
    """Pearson correlation of forecast and label by date, with plain numpy."""
    known = frame.drop_nulls()
    return {
        date: float(np.corrcoef(part["forecast"].to_numpy(), part["label"].to_numpy())[0, 1])
        for (date,), part in known.partition_by("date", as_dict=True).items()
    }


@pytest.mark.slow(5)
def test_an_incomplete_run_is_reported_as_such_until_it_is_completed(
    interrupted: Answer, peerglass: Call
) -> None:
    assert f"Missing: {SENTENCE}" in interrupted.err, "the training's own summary"
    answer = peerglass("backtest", "tiny", "--output", "runs")
    assert answer.code == 0, answer.err
    assert f"The run is incomplete. Missing: {SENTENCE}" in answer.out
    (folder,) = Path("runs").glob("tiny-*")
    run = open_run(str(folder))
    ladder = {row["model"]: row for row in measured(run, "ladder").iter_rows(named=True)}

    forecasts = Lake("lake").read("forecasts")
    first_fold = set(forecasts.filter(pl.col("fold") == 0)["date"])
    assert set(measured(run, "ic_series")["date"]) == first_fold
    ridge = ics(forecasts.filter((pl.col("model") == "ridge") & (pl.col("seed") == 0)))
    everywhere, on_both = np.mean(list(ridge.values())), np.mean([ridge[date] for date in first_fold])
    assert ladder["ridge"]["ic"] == pytest.approx(on_both, abs=1e-9)
    assert abs(on_both - everywhere) > 1e-4, "the other dates would have given another number"
    scores = read_scores(run).filter((pl.col("model") == "ridge") & (pl.col("fold") == 0))
    assert ladder["ridge"]["valid_rank_ic"] == pytest.approx(scores["valid_rank_ic"].mean())
    assert ladder["mlp"]["missing"] == "seed 1 of fold 1"
    assert ladder["ridge"]["missing"] is None

    assert peerglass("report", "tiny", "--output", "runs").code == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    verdict = re.search(r'<div class="verdict.*?</div>', page, re.DOTALL)
    assert verdict is not None
    assert "the run is incomplete" in verdict[0]
    evidence = page[page.index('<section id="evidence">') : page.index('<section id="audit">')]
    assert f"Missing: {SENTENCE}" in evidence
    assert "<td>seed 1 of fold 1</td>" in page, "on the ladder"

    assert peerglass("train", "tiny.yaml").code == 0
    report = peerglass("report", "tiny", "--output", "runs")
    assert report.code == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "the run is incomplete" not in page
    assert SENTENCE not in page
    assert set(measured(run, "ic_series")["date"]) == set(forecasts["date"])
    complete = {row["model"]: row for row in measured(run, "ladder").iter_rows(named=True)}
    assert complete["ridge"]["ic"] == pytest.approx(everywhere, abs=1e-9)
    assert complete["mlp"]["missing"] is None


def test_a_model_without_forecasts_is_on_the_ladder_without_numbers(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, peerglass: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    models = {"ridge": {}, "self_peer": {"width": 8, "heads": 2, "layers": 1, "fit": {"lr": 1e30}}}
    folds = {**tiny["folds"], "max_folds": 1}
    Path("tiny.yaml").write_text(yaml.safe_dump({**tiny, "models": models, "folds": folds}))
    assert peerglass("ingest", "tiny.yaml").code == 0
    failed = peerglass("train", "tiny.yaml")
    assert failed.code == 5
    assert "Missing: self_peer: every fold" in failed.err
    answer = peerglass("report", "tiny", "--output", "runs")
    assert answer.code == 0, answer.err
    (page,) = Path("runs").glob("*/report.html")
    assert "Missing: self_peer: every fold" in page.read_text(encoding="utf-8")
    ladder = measured(open_run(str(page.parent)), "ladder")
    (row,) = ladder.filter(pl.col("model") == "self_peer").iter_rows(named=True)
    assert (row["missing"], row["seeds"], row["ic"]) == ("every fold", 0, None)


def test_missing_tasks_and_their_description() -> None:
    keys = [(m, f, s) for m in ("ridge", "mlp") for f in (0, 1, 2) for s in (0, 1, 2)]
    removed = {("ridge", 1, s) for s in (0, 1, 2)} | {("mlp", 0, 2), ("mlp", 2, 0), ("mlp", 2, 1)}
    forecasts = pl.DataFrame(
        [key for key in keys if key not in removed], schema=["model", "fold", "seed"], orient="row"
    )
    missing = missing_tasks(("ridge", "mlp"), (0, 1, 2), (0, 1, 2), forecasts)
    assert set(missing) == removed
    description = describe_missing(missing, (0, 1, 2), (0, 1, 2))
    assert description == "ridge: fold 1; mlp: seed 2 of fold 0, seeds 0 and 1 of fold 2"
    assert comparable_folds((0, 1, 2), missing, forecasts) == ()
    assert comparable_folds((0, 1, 2), missing[:3], forecasts) == (0, 2)
    assert missing_tasks(("ridge",), (0,), (0,), forecasts) == ()
    assert describe_missing((), (0, 1), (0,)) is None
    absent = missing_tasks(("ridge", "none"), (0, 2), (0, 1, 2), forecasts)
    assert describe_missing(absent, (0, 2), (0, 1, 2)) == "none: every fold"
    assert comparable_folds((0, 2), absent, forecasts) == (0, 2), "a model without forecasts is ignored"


def test_dates_that_all_models_forecast() -> None:
    nan = np.nan
    one = np.array([[1.0, nan], [nan, nan], [1.0, 2.0], [3.0, nan]])
    two = np.array([[nan, nan], [1.0, nan], [nan, 2.0], [3.0, 4.0]])
    assert common_dates({"a": {0: one}, "b": {0: two}}).tolist() == [False, False, True, True]
    assert common_dates({"a": {0: one, 1: two}}).tolist() == [False, False, True, True]
    with pytest.raises(DataError, match=r"No date is forecast by all models \(a, b\)"):
        common_dates({"a": {0: one[:1]}, "b": {0: two[:1]}})


def test_forecasts_of_other_dates_are_removed_and_arrays_without_any_are_not_copied() -> None:
    full_TN, part_TN = np.ones((3, 2)), np.array([[1.0, 2.0], [np.nan, 3.0], [np.nan, np.nan]])
    dates_T = common_dates({"a": {0: full_TN}, "b": {0: part_TN}})
    found = restrict_to_dates({"a": {0: full_TN}, "b": {0: part_TN}}, dates_T)
    np.testing.assert_array_equal(found["a"][0], [[1.0, 1.0], [1.0, 1.0], [np.nan, np.nan]])
    assert full_TN[2, 0] == 1.0
    assert found["b"][0] is part_TN
