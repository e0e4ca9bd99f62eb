"""``--as-of`` from the command line to the run's record."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.config.load import load_config
from pipelines.dataset.tables import input_versions
from pipelines.errors import ConfigError, DataError
from pipelines.evaluate_file import MeasureOptions, measure_file
from pipelines.lake.lake import Lake
from pipelines.lake.versions import Commit, lake_states
from pipelines.progress import Progress
from pipelines.run.fetch import ingest_config
from pipelines.run.open import prepare_run
from pipelines.run.record import open_run
from pipelines.stages import train_config


@pytest.fixture
def twice(tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config whose lake has two versions of prices; the second doubles every close."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny))
    ingest_config(load_config(Path("tiny.yaml")), echo=lambda _: None)
    lake = Lake("lake")
    prices = ("open", "high", "low", "close")
    lake.upsert("prices", lake.read("prices").with_columns(pl.col(*prices) * 2))
    return Path("tiny.yaml")


def test_a_run_as_of_a_version_records_it_and_equals_the_earlier_run(
    twice: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(twice)
    now, then = input_versions(Lake("lake")), input_versions(Lake("lake"), "1")
    assert (now["prices"], then["prices"]) == (2, 1)
    assert {t: v for t, v in now.items() if t != "prices"} == {t: v for t, v in then.items() if t != "prices"}
    result = CliRunner().invoke(app, ["train", str(twice), "--as-of", "1"], catch_exceptions=False)
    assert result.exit_code == 0
    run = open_run(result.stdout.strip().splitlines()[-1], Path("runs"))
    assert run.versions == then
    assert train_config(config) != run.run_id, "the newest data make another run"
    assert train_config(config, as_of="1") == run.run_id, "the same data continue the same run"
    notes = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert any(n.get("message", "").startswith("as of 1: prices version 1, ") for n in notes)

    _, dataset, _ = prepare_run(config, Progress(), as_of="1")
    _, doubled, _ = prepare_run(config, Progress())
    ratio = doubled.panel.raw_close_TN[-1] / dataset.panel.raw_close_TN[-1]
    assert set(ratio[np.isfinite(ratio)]) == {2.0}


@pytest.mark.slow(3)
def test_run_and_tune_as_of_a_version_ingest_nothing(twice: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = CliRunner().invoke(app, ["run", str(twice), "--as-of", "1"], catch_exceptions=False)
    assert result.exit_code == 0
    report = Path(result.stdout.strip().splitlines()[-1])
    assert report.is_file()
    then = input_versions(Lake("lake"), "1")
    assert open_run(report.parent.name, Path("runs")).versions == then
    assert Lake("lake").version("prices") == 2, "nothing was ingested"
    capsys.readouterr()
    command = ["tune", str(twice), "--model", "lightgbm", "--trials", "1", "--as-of", "1"]
    searched = CliRunner().invoke(
        app, [*command, "--set", "models={lightgbm: {rounds: 2, evaluate_every: 1}}"], catch_exceptions=False
    )
    assert searched.exit_code == 0
    assert any("as of 1: prices version 1" in line for line in searched.stderr.splitlines())


def test_a_state_ends_before_the_delivery_of_the_next_prices() -> None:
    stamp = dt.datetime(2024, 2, 1, tzinfo=dt.UTC)

    def history(*commits: tuple[float, str | None], moved: int = 0) -> list[Commit]:
        made = [(0.0, None), *commits]
        return [
            Commit(version, stamp + dt.timedelta(seconds=at), version not in (0, moved), delivery)
            for version, (at, delivery) in enumerate(made)
        ]

    histories = {
        "prices": history((1, "a"), (101, "b"), (200, None), (301, "c"), moved=3),  # the third only compacts
        "flags": history((0.5, "a"), (100.5, "b"), (102, None), (300.5, "c")),  # 102: of the coverage after b
        "fundamentals": history((2, "a"), (150, "x"), (303, "c")),  # 150: a supplement between two ingests
        "quarantine": history((300.6, None)),  # by a lake's older writer, which named no delivery
    }
    assert lake_states(histories) == [
        {"prices": 1, "flags": 1, "fundamentals": 1},
        {"prices": 2, "flags": 3, "fundamentals": 2, "quarantine": 1},
        {"prices": 4, "flags": 4, "fundamentals": 3, "quarantine": 1},
    ]


def measured_at(config: Path, as_of: str | None) -> dict[str, Any]:
    message: list[str] = []
    options = MeasureOptions(as_of=as_of, as_json=True, force=True)
    measure_file("signal.csv", config, options, message.append)
    found: dict[str, Any] = json.loads(message[0])
    return found


@pytest.mark.slow(2)
def test_a_signal_file_is_evaluated_on_an_earlier_lake(twice: Path) -> None:
    rows = Lake("lake").read("prices", version=1).select("date", "ticker", signal=pl.col("close"))
    rows.write_csv("signal.csv")
    first, second, newest = (measured_at(twice, as_of) for as_of in ("1", "2", None))
    assert second["id"] == newest["id"]
    assert second["results"] == newest["results"]
    assert first["results"] != second["results"], "twice the price, half the dividend yield"
    with pytest.raises(DataError, match=r"the prices of the lake .* have no version 9; they have 1 to 2"):
        measured_at(twice, "9")
    with pytest.raises(DataError, match="held no prices at 1999-12-31 23:59:59 UTC"):
        measured_at(twice, "1999-12-31")
    with pytest.raises(ConfigError, match="--as-of 'last week' is neither a version"):
        measured_at(twice, "last week")
    answer = CliRunner().invoke(app, ["backtest", "tiny-1", "--as-of", "1"])
    assert isinstance(answer.exception, ConfigError)
    assert "--as-of applies only to a FILE with --config; a run is read at" in str(answer.exception)


def test_help_explains_a_missing_time_and_zone() -> None:
    for verb in ("train", "tune", "run", "backtest"):
        shown = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "100"}).stdout
        text = " ".join(shown.replace("│", " ").split())
        assert "A time without a zone is UTC, and a date alone is the end of that day, UTC" in text
