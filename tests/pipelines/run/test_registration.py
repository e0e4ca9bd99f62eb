"""Registrations: what is sealed before a test is opened, what runs say of it, and what forgers can do."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import polars as pl
import pytest
import yaml
from command import Call, command

from pipelines.commands.register import register_config
from pipelines.config.load import load_config
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake
from pipelines.nightly.record import verify
from pipelines.run import verify_record
from pipelines.run.chain import append_entry
from pipelines.run.fetch import ingest_config
from pipelines.run.identity import Identity
from pipelines.run.record import RecordedRun, open_run
from pipelines.run.registration import Registration, registration_of
from pipelines.stages import backtest_run, train_config

WIDER = ["features.window=6"]


def changed(folder: Path, *overrides: str) -> Any:  # noqa: ANN401 (a config)
    return load_config(folder / "tiny.yaml", list(overrides))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Path:
    """A folder with a config of one ridge, and a lake."""
    folder = tmp_path_factory.mktemp("filled")
    settings = {**tiny_settings, "models": {"ridge": {}}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
    ingest_config(load_config(folder / "tiny.yaml"), echo=lambda _: None)
    return folder


@pytest.fixture
def here(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, in which nothing was tried."""
    shutil.copytree(filled, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capsys)


def opened(name: str) -> RecordedRun:
    return open_run(name, Path("runs"))


def measured(name: str, *overrides: str) -> None:
    backtest_run(name, list(overrides), Path("runs"), echo=lambda _: None)


@pytest.mark.slow(9)
def test_a_run_that_was_registered_before_says_so_everywhere(here: Path, peerglass: Call) -> None:
    answer = peerglass("register", "tiny.yaml", "--json")
    assert answer.code == 0, answer.err
    entry = json.loads(answer.out)
    run_id = entry["run"]
    assert {path.name for path in Path("runs").iterdir() if path.is_dir()} == {"registered"}
    assert not Lake(here / "lake").exists("forecasts"), "registering forecasts nothing"

    assert peerglass("train", "tiny.yaml").out.strip() == run_id
    forecasts = Lake(here / "lake").read("forecasts")
    sealed = json.loads((Path(entry["folder"]) / entry["session"] / "settings.json").read_text())
    dates = forecasts.select("fold", pl.col("date").dt.to_string("iso")).unique().sort("fold", "date")
    assert {str(fold): part["date"].to_list() for (fold,), part in dates.group_by("fold")} == sealed["test"]
    assert (entry["first"], entry["last"]) == (str(forecasts["date"].min()), str(forecasts["date"].max()))
    assert entry["sessions"] == forecasts["date"].n_unique()

    shown = peerglass("backtest", run_id, "--json", "--output", "runs")
    again = peerglass("register", "tiny.yaml", "--json")
    assert (again.code, json.loads(again.out)) == (0, entry), "it is registered already"
    at = entry["sealed_at"]
    sentence = f"Registered on {at[:10]} {at[11:16]} UTC, before the test was opened."
    assert json.loads(shown.out)["registered"] == {
        "state": "before",
        "sentence": sentence,
        "registered_at": at,
        "hash": entry["hash"],
    }
    assert peerglass("report", run_id, "--output", "runs").code == 0
    page = Path("runs", run_id, "report.html").read_text("utf-8")
    assert page.count(sentence) == 2, "in the sections Trials and Provenance"
    assert sentence in peerglass("runs", "show", run_id, "--output", "runs").out
    (trial,) = json.loads(peerglass("trials", "list", "--output", "runs", "--json").out)[1:2]
    tried = peerglass("trials", "show", trial["trial"], "--output", "runs").out
    assert f"registered on {at[:10]}, before the test was opened" in tried
    client = mlflow.MlflowClient(f"sqlite:///{here}/mlflow.db")  # mlflow keeps stores by their URI
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    parents = client.search_runs([experiment.experiment_id], "tags.leader = 'ridge'")
    assert [one.data.tags["registered"] for one in parents] == ["before"]


@pytest.mark.slow(6)
@pytest.mark.usefixtures("untracked")
def test_a_test_that_was_opened_before_makes_an_entry_late(here: Path, peerglass: Call) -> None:
    run_id = train_config(changed(here))
    late = peerglass("register", "tiny.yaml")
    assert late.code == 4
    assert "LATE: the test was opened before; the run had forecast it\n" in late.out
    assert registration_of(opened(run_id)).state == "after"

    first = register_config(changed(here, *WIDER))
    assert first["late"] == "", "a run that was trained and not measured has shown nothing of others"
    measured(run_id)
    other = peerglass("register", "tiny.yaml", "--set", "features.window=7")
    assert other.code == 4
    assert "the test was opened before; 2 trials were measured on its sessions\n" in other.out  # two books
    wider = train_config(changed(here, *WIDER))
    assert wider == first["run"]
    assert registration_of(opened(wider)).state == "before"
    seven = train_config(changed(here, "features.window=7"))
    found = registration_of(opened(seven))
    assert found.state == "after"
    assert found.sentence.endswith("after the test was opened: 2 trials were measured on its sessions.")

    earlier = ["folds.anchor=start", "folds.test=20", "folds.max_folds=1", "folds.train=60"]
    assert register_config(changed(here, *earlier))["late"] == ""
    other_market = changed(here, "source.seed=4", "lake=other")
    ingest_config(other_market, echo=lambda _: None)
    assert register_config(other_market)["late"] == "", "trials on other markets open no test of this one"


@pytest.mark.slow(4)
@pytest.mark.usefixtures("untracked")
@pytest.mark.parametrize("delay", [0, 1])
def test_a_test_that_begins_where_another_ended_is_not_late(here: Path, delay: int) -> None:
    one = ["folds.anchor=start", "folds.test=40", "folds.max_folds=1", f"label.delay={delay}"]
    measured(train_config(changed(here, *one, "folds.train=60")))
    late = {
        train: register_config(changed(here, *one, f"folds.train={train}"))["late"] for train in (99, 100)
    }
    assert late == {99: "2 trials were measured on its sessions", 100: ""}


@pytest.mark.slow(4)
@pytest.mark.usefixtures("untracked")
def test_what_differs_from_the_registration_is_listed(here: Path) -> None:
    entry = register_config(changed(here))
    wider = train_config(changed(here, *WIDER))
    found = registration_of(opened(wider))
    day = f"{entry['sealed_at'][:10]} {entry['sealed_at'][11:16]} UTC"
    assert (found.state, found.sentence) == (
        "changed",
        f"Not registered as it is: {entry['run']}, registered on {day}, "
        "differs in: features.window (5 -> 6).",
    )
    run = opened(train_config(changed(here)))
    assert registration_of(run).state == "before"
    costs = run.config.backtest.costs.model_copy(update={"half_spread_bps": 0.0})
    cheap = run.config.backtest.model_copy(update={"costs": costs})
    free = replace(run, config=run.config.model_copy(update={"backtest": cheap}))
    assert registration_of(free).sentence.endswith("differs in: backtest.costs.half_spread_bps (5.0 -> 0.0).")
    unnamed = run.config.model_copy(update={"name": "another"})
    assert registration_of(replace(run, config=unnamed)).sentence == "Not registered."

    sealed = json.loads((Path(entry["folder"]) / entry["session"] / "settings.json").read_text())
    del sealed["identity"]["device"]  # as by a version that knew no devices
    text, session = json.dumps(sealed), "2100-01-01"
    Path(entry["folder"], session).mkdir()
    Path(entry["folder"], session, "settings.json").write_text(text)
    files = {"settings.json": hashlib.sha256(text.encode()).hexdigest()}
    content = {"run": "tiny-older", "opened": entry["opened"], "files": files}
    append_entry(Path(entry["folder"]), session, dt.datetime(2100, 1, 1, tzinfo=dt.UTC), content)
    assert registration_of(opened(wider)).sentence.endswith("differs in: what identifies a run.")


@pytest.mark.slow(2)
@pytest.mark.usefixtures("untracked")
def test_an_entry_that_was_made_after_the_training_is_late_whatever_it_says(here: Path) -> None:
    run_id = train_config(changed(here))
    shutil.rmtree("lake/forecasts")  # so that nothing seems to have been forecast
    assert register_config(changed(here))["late"] == ""
    found = registration_of(opened(run_id))
    assert found.state == "after"
    assert found.sentence.endswith("after the test was opened: the run was trained.")


def test_a_config_without_a_test_or_without_data_cannot_be_registered(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"folds\.scheme is live"):
        register_config(
            changed(here, "folds={scheme: live, through: 2016-06-01, train: 100, valid: 20, embargo: 1}")
        )
    with pytest.raises(DataError, match="holds no prices yet; run 'peerglass ingest CONFIG' first"):
        register_config(changed(here, "lake=empty"))


@pytest.fixture(scope="module")
def three(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three registrations of different configs."""
    folder = tmp_path_factory.mktemp("three")
    shutil.copytree(filled, folder, dirs_exist_ok=True)
    for window in (5, 6, 7):
        register_config(changed(folder, f"features.window={window}"))
    return folder


def entries_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]


def rewritten(folder: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the entries, each with a hash of its own that is right."""
    entries = entries_of(folder)
    change(entries)
    for entry in entries:
        entry["hash"] = verify_record.entry_hash(entry)
    lines = (json.dumps(one, sort_keys=True, separators=(",", ":")) for one in entries)
    (folder / "record.jsonl").write_text("".join(f"{line}\n" for line in lines))


def edited(folder: Path) -> None:
    path = min(folder.glob("*/settings.json"))
    path.write_text(path.read_text().replace('"window": 5', '"window": 9'))


OLD = "2020-01-01T00:00:00.000000+00:00"
OPENED = {"trained": True, "trials": 0}
FORGERIES: Mapping[str, tuple[Callable[[Path], object], int]] = {
    "the registered settings": (edited, 0),
    "a claim of the first entry": (lambda f: rewritten(f, lambda e: e[0].update(opened=OPENED)), 0),
    "a claim of the last entry": (lambda f: rewritten(f, lambda e: e[2].update(opened=OPENED)), 2),
    "the date of an entry": (lambda f: rewritten(f, lambda e: e[1].update(sealed_at=OLD)), 1),
    "the date of the last entry": (lambda f: rewritten(f, lambda e: e[2].update(sealed_at=OLD)), 2),
    "an entry": (lambda f: rewritten(f, lambda e: e.pop(1)), 1),
    "the last entry": (lambda f: rewritten(f, lambda e: e.pop()), 2),
    "the folder of an entry": (lambda f: shutil.rmtree(f / entries_of(f)[1]["session"]), 1),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forgery_is_found_and_named(three: Path, tmp_path: Path, what: str) -> None:
    shutil.copytree(three / "runs", tmp_path / "runs")
    folder = tmp_path / "runs" / "registered"
    session = entries_of(folder)[FORGERIES[what][1]]["session"]
    config = changed(three).model_copy(update={"output": str(tmp_path / "runs")})
    lake = Lake(three / "lake")
    whole = verify(config, lake)
    assert (whole["entries"], whole["registrations"]["entries"], whole["problems"]) == (0, 3, [])
    FORGERIES[what][0](folder)
    asked = [sys.executable, "-I", verify_record.__file__, str(folder)]
    script = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (script.returncode, script.stderr) == (4, "")
    assert session in script.stdout, script.stdout
    assert verify(config, lake)["problems"] == script.stdout.splitlines()


def test_a_forged_registration_proves_nothing(three: Path, tmp_path: Path, peerglass: Call) -> None:
    shutil.copytree(three, tmp_path / "here")
    folder = tmp_path / "here" / "runs" / "registered"
    config = str(tmp_path / "here" / "tiny.yaml")
    whole = peerglass("record", "verify", config)
    assert whole.code == 0
    assert whole.out.startswith("record of tiny: 3 registrations: whole\n")
    assert f"newest hash     {entries_of(folder)[2]['hash']}" in whole.out
    edited(folder)
    broken = peerglass("record", "verify", config)
    assert broken.code == 4
    first = entries_of(folder)[0]
    sentence = f"settings.json of {first['session']} was changed after it was sealed."
    assert sentence in broken.out
    assert says_nothing_else(folder, first["run"], config, sentence)
    refused = peerglass("register", config)
    assert refused.code == 3
    assert f"do not verify ({sentence}); restore the folder from a backup" in refused.err
    (folder / "record.jsonl").write_text("{")
    assert says_nothing_else(folder, first["run"], config, f"{folder / 'record.jsonl'} cannot be read.")


def says_nothing_else(folder: Path, run_id: str, config: str, broken: str) -> bool:
    """Whether a run of a forged registration says what is wrong with it."""
    run = RecordedRun(run_id, load_config(Path(config)), Identity.nothing(), folder.parent / run_id)
    found = registration_of(run)
    return found == Registration("unproved", f"Not proved, because the registrations do not verify: {broken}")


def test_registrations_are_committed_to_the_repository_of_the_record(three: Path, tmp_path: Path) -> None:
    shutil.copytree(three, tmp_path / "here")
    clone = tmp_path / "clone"
    own = ("-c", "init.defaultBranch=main", "-C", str(tmp_path))
    subprocess.run(["git", *own, "init", "--quiet", str(clone)], check=True)
    for name, value in (("user.name", "q"), ("user.email", "q@example.org")):
        subprocess.run(["git", "-C", str(clone), "config", name, value], check=True)
    before = dt.datetime.now(dt.UTC)
    register_config(changed(tmp_path / "here", "features.window=8", f"nightly.record={clone}"))
    shown = subprocess.run(
        ["git", "-C", str(clone), "show", "HEAD:tiny.registered.jsonl"],
        capture_output=True,
        text=True,
        check=True,
    )
    kept = [json.loads(line) for line in shown.stdout.splitlines()]
    assert kept == entries_of(tmp_path / "here" / "runs" / "registered")
    assert len(kept) == 4
    assert kept[3]["sealed_at"] > before.isoformat()
