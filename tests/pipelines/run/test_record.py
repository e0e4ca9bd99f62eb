"""Finding a recorded run by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded import recorded

from pipelines.config.load import check_config
from pipelines.errors import ConfigError
from pipelines.run.record import RecordedRun, list_records, open_run

OUTPUT = Path("runs")


@pytest.fixture
def runs(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RecordedRun]:
    """Three runs, of which the second was started last."""
    monkeypatch.chdir(tmp_path)
    found = []
    for version, day in ((1, "2026-01-01"), (2, "2026-03-01"), (3, "2026-02-01")):
        run = recorded(check_config({**tiny, "name": f"run{version}"}, origin="tiny"), {"prices": version})
        path = run.folder / "run.json"
        record = json.loads(path.read_text()) | {"started_at": f"{day}T12:00:00+00:00"}
        path.write_text(json.dumps(record))
        found.append(run)
    return found


def test_latest_is_the_run_that_was_started_last(runs: list[RecordedRun]) -> None:
    assert open_run("latest", OUTPUT).run_id == runs[1].run_id
    assert [record["run_id"] for _, record in list_records(OUTPUT)] == [
        runs[1].run_id,
        runs[2].run_id,
        runs[0].run_id,
    ]


def test_a_damaged_record_is_not_the_latest(runs: list[RecordedRun]) -> None:
    (runs[1].folder / "run.json").write_text("{")
    assert open_run("latest", OUTPUT).run_id == runs[2].run_id


def test_a_run_is_found_by_its_id_a_prefix_and_its_folder(runs: list[RecordedRun]) -> None:
    for name in (runs[0].run_id, "run1", str(runs[0].folder), str(runs[0].folder.absolute())):
        assert open_run(name, OUTPUT).run_id == runs[0].run_id


def test_a_name_that_is_not_found_says_where_it_was_looked_for(
    runs: list[RecordedRun], tmp_path: Path
) -> None:
    place = str(tmp_path / "runs")
    with pytest.raises(ConfigError, match=r"More than one run begins with 'run' under .*choose among: run1-"):
        open_run("run", OUTPUT)
    with pytest.raises(ConfigError, match=rf"No run begins with 'other' under {place}; .*--output FOLDER"):
        open_run("other", OUTPUT)
    with pytest.raises(ConfigError, match=rf"neither a run id nor a run's folder; .* under {place}\."):
        open_run("no/such", OUTPUT)
    with pytest.raises(
        ConfigError, match=r"; measure signals by 'peerglass backtest mine.csv --config CONFIG'"
    ):
        open_run("mine.csv", OUTPUT)
    with pytest.raises(ConfigError, match=rf"There is no run under {tmp_path}/none .*--output FOLDER"):
        open_run("latest", Path("none"))
    assert len(runs) == 3


def test_a_new_default_does_not_change_the_settings_of_a_recorded_run(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = {"lightgbm": {"rounds": 10, "fit": {"label_share": 0.5}}, "ridge": {}}
    run = recorded(check_config({**tiny, "models": models}, origin="tiny"), {"prices": 1})
    path = run.folder / "run.json"
    record = json.loads(path.read_text())
    record["identity"]["settings"]["models"]["lightgbm"] |= {"lambda_l2": 77.0, "num_threads": 5, "gone": 1}
    record["identity"]["settings"]["models"]["lightgbm"]["fit"]["valid_dates"] = 9
    path.write_text(json.dumps(record))
    assert open_run(run.run_id, OUTPUT).config.models == {
        "lightgbm": {"rounds": 10, "lambda_l2": 77.0, "fit": {"label_share": 0.5, "valid_dates": 9}},
        "ridge": {},
    }


def test_a_run_with_an_engine_that_has_gone_is_still_read(runs: list[RecordedRun]) -> None:
    path = runs[0].folder / "config.yaml"
    text = path.read_text()
    path.write_text(text.replace("  engine: permutation\n", "  engine: integrated_gradients\n"))
    assert path.read_text() != text
    assert open_run(runs[0].run_id, OUTPUT).config.explain == runs[0].config.explain
