"""``peerglass runs``: the list agrees with the runs' tables, and a prune removes what may go and no more."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from command import Call, command
from counted import trial_count

from pipelines.commands.runs import RunSummary, apply_prune, plan_prune, summarise_runs
from pipelines.config.load import load_config
from pipelines.lake.lake import Lake
from pipelines.run.evaluations import list_evaluations
from pipelines.run.fetch import ingest_config
from pipelines.run.locks import Locks
from pipelines.run.record import open_run
from pipelines.stages import backtest_run, train_config
from pipelines.train.trials import read_trials

pytestmark = pytest.mark.usefixtures("untracked")

OUTPUT = Path("runs")
NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Path:
    """A folder with two trained runs; the first one has two evaluations."""
    folder = tmp_path_factory.mktemp("made")
    settings = {
        **tiny_settings,
        "models": {"zero": {}, "ridge": {}},
        "folds": {**tiny_settings["folds"], "max_folds": 1},
        "label": {
            "horizon": 1,
            "delay": 0,
            "extra_delays": [1],
            "transform": "rank",
            "residualise_factors": 0,
        },
    }
    (folder / "a.yaml").write_text(yaml.safe_dump({**settings, "name": "first"}, sort_keys=False))
    (folder / "b.yaml").write_text(yaml.safe_dump({**settings, "name": "second", "models": {"ridge": {}}}))
    config = load_config(folder / "a.yaml")
    ingest_config(config, echo=lambda _: None)
    run = str(folder / "runs" / train_config(config))
    for cost in ("5", "50"):
        change = [f"backtest.costs.half_spread_bps={cost}"]
        backtest_run(run, change, folder / "runs", echo=lambda _: None)
    train_config(load_config(folder / "b.yaml"))
    return folder


@pytest.fixture
def first(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the first run, in a copy of the runs that a test may change."""
    shutil.copytree(made / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return next(OUTPUT.glob("first-*"))


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capsys)


def files() -> set[Path]:
    return {path for path in OUTPUT.rglob("*") if path.is_file() and path.parent.name != ".locks"}


@pytest.mark.slow(2)
def test_the_list_agrees_with_the_runs_own_tables(first: Path) -> None:
    second, one = summarise_runs(OUTPUT)
    assert (second.run_id.partition("-")[0], one.run_id) == ("second", first.name)
    assert (one.state, one.done, one.planned, one.models) == ("complete", 2, 2, ("zero", "ridge"))
    assert second.measured is None
    assert one.evaluations == 2
    newest = list_evaluations(one)[0]
    ladder = newest.table("ladder").filter(pl.col("model") == "ridge", pl.col("delay") == 1)
    assert one.measured is not None
    assert one.measured.evaluation == newest.record.evaluation
    assert (one.measured.model, one.measured.delay) == ("ridge", 1), "the zero forecast has no rank IC"
    assert one.measured.ic == ladder["ic"].item()
    assert one.measured.sharpe_net == ladder["long_short.sharpe_net"].item()
    assert one.size == sum(path.stat().st_size for path in first.rglob("*") if path.is_file())


def test_list_and_show_print_tables_and_json(first: Path, peerglass: Call) -> None:
    listed = peerglass("runs", "list", "--output", "runs")
    assert listed.code == 0
    head, *rows = listed.out.splitlines()
    assert head.split()[:3] == ["run", "started", "(UTC)"]
    assert [row.split()[0] for row in rows] == [run.run_id for run in summarise_runs(OUTPUT)]
    assert "complete" in rows[1]
    parsed = json.loads(peerglass("runs", "list", "--output", "runs", "--json").out)
    assert [row["state"] for row in parsed] == ["complete", "complete"]
    shown = peerglass("runs", "show", first.name, "--output", "runs")
    assert shown.code == 0, shown.err
    assert f"run {first.name}" in shown.out
    assert "4 of this run; 4 count with others" in shown.out
    details = json.loads(peerglass("runs", "show", "first", "--output", "runs", "--json").out)
    run = open_run("first", OUTPUT)
    assert run.identity is not None
    assert details["tables"] == dict(run.versions)
    assert details["identity"]["lake"] == run.identity.lake
    assert len(details["evaluations"]) == 2
    assert [fold["fold"] for fold in details["folds"]] == [0]
    assert details["trials"] == {"of_this_run": 4, "in_ledger": 4}
    assert sum(details["files"].values()) == details["summary"]["size"]
    assert peerglass("runs", "list", "--output", "none").out == "no runs\n"


def test_a_run_that_is_written_to_is_running_and_a_damaged_one_is_listed(
    first: Path, peerglass: Call
) -> None:
    with Locks(wait=False, notify=print) as locks:
        locks.lock_run(first)
        running = next(run for run in summarise_runs(OUTPUT) if run.run_id == first.name)
        assert running.state == "running"
        assert "process" in str(running.holder)
        planned = plan_prune(OUTPUT, ["first"], None, NOW)
        assert planned.removals == ()
        assert first.name in planned.kept[0]
    (first / "run.json").write_text("{")
    damaged = summarise_runs(OUTPUT)[-1]
    assert (damaged.run_id, damaged.state) == (first.name, "unreadable")
    assert "unreadable" in peerglass("runs", "list", "--output", "runs").out


def test_a_file_that_is_gone_before_it_is_counted_ends_no_list(
    first: Path, peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partial file of another process is renamed at any moment."""
    partial, original = first / "x.partial", Path.lstat
    before = summarise_runs(OUTPUT)[-1].size
    partial.write_text("half")

    def lstat(self: Path) -> os.stat_result:
        if self.name == partial.name:
            self.unlink(missing_ok=True)
        return original(self)

    monkeypatch.setattr(Path, "lstat", lstat)
    assert peerglass("runs", "list", "--output", "runs").code == 0
    partial.write_text("half")
    assert summarise_runs(OUTPUT)[-1].size == before


def test_a_damaged_table_ends_the_list_with_a_sentence(first: Path, peerglass: Call) -> None:
    ladder = list_evaluations(summarise_runs(OUTPUT)[-1])[0].folder / "ladder.parquet"
    ladder.write_bytes(ladder.read_bytes()[:20])
    answer = peerglass("runs", "list", "--output", "runs")
    assert answer.code == 3
    assert answer.err.startswith(f"peerglass: The table {ladder} is damaged (")
    assert answer.err.endswith(f"and run 'peerglass backtest {first.name}' again.\n")


def test_an_interrupted_training_is_incomplete(first: Path) -> None:
    path = first / "provenance.jsonl"
    kept = [line for line in path.read_text().splitlines() if '"model":"zero"' not in line]
    path.write_text("\n".join(kept) + '\n{"event": "task d')
    one = summarise_runs(OUTPUT)[-1]
    assert (one.run_id, one.state, one.done, one.planned) == (first.name, "incomplete", 1, 2)


def test_a_prune_without_yes_removes_nothing(first: Path, peerglass: Call) -> None:
    (first / "tables" / "x.1.partial").write_text("half")
    before = files()
    answer = peerglass("runs", "prune", "first", "--older-than", "1", "--output", "runs")
    assert answer.code == 0
    assert f"would remove {first}" in answer.out
    assert "nothing was removed: add --yes" in answer.out
    assert files() == before


def test_leftovers_go_and_everything_else_stays(first: Path, peerglass: Call) -> None:
    leftovers = [
        first / "tables" / "ladder.77.partial",
        first / ".config.yaml.77.partial",
        first / "checkpoints" / "ridge" / ".fold-0-seed-0.77.partial" / "model.json",
        first / "snapshots" / "ridge-fold-0-seed-0.safetensors",
        first / "snapshots" / "ridge-fold-0-seed-0-refit.safetensors",
    ]
    needed = [first / "snapshots" / "ridge-fold-9-seed-0.safetensors"]  # of a training that goes on
    before = files()
    for path in [*leftovers, *needed]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    answer = peerglass("runs", "prune", "--yes", "--output", "runs")
    assert answer.code == 0, answer.err
    assert files() == before | set(needed)
    assert "5 removal(s)" in answer.out
    assert peerglass("runs", "prune", "--yes", "--output", "runs").out == "nothing to remove\n"


def test_only_an_evaluation_with_the_same_settings_is_replaced(first: Path) -> None:
    assert plan_prune(OUTPUT, [], None, NOW).removals == (), "two evaluations with other costs"
    newest, other = list_evaluations(open_run("first", OUTPUT))
    old = newest.folder.with_name("0123456789")
    shutil.copytree(newest.folder, old)
    record = json.loads((old / "evaluation.json").read_text())
    record |= {"evaluation": old.name, "made_at": "2026-01-01T00:00:00Z", "code": "other"}
    for other_file in ({"borrow_fees": "0a"}, {"indices": {"index": "0a"}}, {"factors": {"ff": ["0a"]}}):
        (old / "evaluation.json").write_text(json.dumps(record | other_file))
        assert plan_prune(OUTPUT, [], None, NOW).removals == (), other_file
    (old / "evaluation.json").write_text(json.dumps(record))
    done = apply_prune(plan_prune(OUTPUT, [], None, NOW), notify=print)
    assert [one.path for one in done.removals] == [old]
    assert newest.record.evaluation in done.removals[0].reason
    assert [one.folder for one in list_evaluations(open_run("first", OUTPUT))] == [
        newest.folder,
        other.folder,
    ]


def test_a_removed_run_stays_in_the_trial_ledger(first: Path, peerglass: Call) -> None:
    trials = read_trials(OUTPUT)
    assert trial_count(OUTPUT) == 4
    answer = peerglass("runs", "prune", "first", "--yes", "--output", "runs")
    assert answer.code == 0, answer.err
    assert not first.exists()
    assert f"--forget {first.name}" in answer.out
    assert [run.run_id.partition("-")[0] for run in summarise_runs(OUTPUT)] == ["second"]
    assert read_trials(OUTPUT).equals(trials)
    assert list(OUTPUT.glob(".*.pruned")) == []


def test_age_is_counted_from_the_last_start(first: Path) -> None:
    record = json.loads((first / "run.json").read_text())
    started = NOW - dt.timedelta(days=90)
    (first / "run.json").write_text(json.dumps(record | {"started_at": started.isoformat()}))
    second = next(OUTPUT.glob("second-*"))
    record = json.loads((second / "run.json").read_text())
    younger = NOW - dt.timedelta(days=89, hours=23)
    (second / "run.json").write_text(json.dumps(record | {"started_at": younger.isoformat()}))
    assert [one.path for one in plan_prune(OUTPUT, [], 90, NOW).removals] == [first]
    assert plan_prune(OUTPUT, [], 91, NOW).removals == ()


def test_the_newest_runs_of_each_config_are_kept_by_number(first: Path) -> None:
    """Three runs of ``first``, started 10, 20 and 30 days ago; the run of ``second`` is another config's."""
    for number, days in enumerate((10, 20, 30)):
        folder = first if number == 0 else first.with_name(f"first-{number:010d}")
        if number:
            shutil.copytree(first, folder)
        record = json.loads((folder / "run.json").read_text())
        started = (NOW - dt.timedelta(days=days)).isoformat()
        (folder / "run.json").write_text(json.dumps(record | {"started_at": started}))
    oldest, middle = first.with_name("first-0000000002"), first.with_name("first-0000000001")

    def going(older_than: int | None, keep: int | None) -> set[Path]:
        planned = plan_prune(OUTPUT, [], older_than, NOW, keep=keep)
        named = "days ago" if keep is None else "runs of first are newer"
        assert all(named in one.reason for one in planned.removals)
        return {one.path for one in planned.removals}

    assert going(None, 3) == set()
    assert going(None, 2) == {oldest}
    assert going(None, 1) == {oldest, middle}
    assert going(25, 1) == {oldest}, "both must apply"
    assert going(5, 2) == {oldest}
    assert {oldest, middle} < going(15, None) | {first}


def test_a_dry_run_removes_nothing_with_yes_either(first: Path, peerglass: Call) -> None:
    before = files()
    answer = peerglass("runs", "prune", "first", "--yes", "--dry-run", "--output", "runs")
    assert (answer.code, files()) == (0, before)
    assert f"would remove {first}" in answer.out


def test_a_run_that_another_one_starts_from_stays(first: Path) -> None:
    second = next(OUTPUT.glob("second-*"))
    record = json.loads((second / "run.json").read_text())
    record["identity"]["settings"]["models"]["ridge"]["init_from"] = first.name
    (second / "run.json").write_text(json.dumps(record))
    planned = plan_prune(OUTPUT, ["first"], None, NOW)
    assert planned.removals == ()
    assert second.name in planned.kept[0]
    assert {one.path for one in plan_prune(OUTPUT, ["first", "second"], None, NOW).removals} == {
        first,
        second,
    }


def test_a_run_that_is_locked_in_the_meantime_stays(first: Path) -> None:
    planned = plan_prune(OUTPUT, ["first"], None, NOW)
    with Locks(wait=False, notify=print) as locks:
        locks.lock_run(first)
        done = apply_prune(planned, notify=print)
    assert done.removals == ()
    assert "is being written by" in done.kept[0]
    assert (first / "run.json").is_file()


def test_a_link_and_an_interrupted_removal(first: Path) -> None:
    elsewhere = Path("elsewhere")
    first.rename(elsewhere)
    first.symlink_to(elsewhere.absolute())
    assert "is a link" in plan_prune(OUTPUT, ["first"], None, NOW).kept[0]
    leftover = OUTPUT / ".third-0123456789.pruned"
    (leftover / "tables").mkdir(parents=True)
    done = apply_prune(plan_prune(OUTPUT, [], None, NOW), notify=print)
    assert [one.path for one in done.removals] == [leftover]
    assert not leftover.exists()
    assert (elsewhere / "run.json").is_file()


def test_a_name_that_is_not_there_removes_nothing(first: Path, peerglass: Call) -> None:
    answer = peerglass("runs", "prune", "first", "third", "--yes", "--output", "runs")
    assert answer.code == 2
    assert "No run begins with 'third'" in answer.err
    assert first.is_dir()


@pytest.fixture
def signals(made: Path, first: Path, peerglass: Call) -> str:
    """Id of a measured signal file beside the runs."""
    del first
    shutil.copytree(made / "lake", "lake")
    shutil.copy(made / "a.yaml", "a.yaml")
    prices = Lake("lake").read("prices").select("date", "ticker", alpha=pl.col("volume").cast(pl.Float64))
    prices.write_parquet("alpha.parquet")
    assert peerglass("backtest", "alpha.parquet", "--config", "a.yaml", "--force").code == 0
    return next(OUTPUT.glob("alpha-*")).name


def test_measured_signals_are_listed_and_shown(signals: str, peerglass: Call) -> None:
    listed = json.loads(peerglass("runs", "list", "--json", "--output", "runs").out)
    assert listed[0]["run_id"] == signals  # measured last
    assert [run["state"] for run in listed] == ["signals", "complete", "complete"]
    one, ladder = listed[0], measured_ladder(OUTPUT / signals)
    assert one["models"] == ["alpha"]
    assert one["evaluations"] == 1
    at_delay = ladder.filter(pl.col("delay") == one["measured"]["delay"]).row(0, named=True)
    assert one["measured"]["delay"] == 1
    assert one["measured"]["ic"] == at_delay["ic"]
    assert "signals" in peerglass("runs", "list", "--output", "runs").out

    shown = json.loads(peerglass("runs", "show", signals, "--json", "--output", "runs").out)
    assert shown["record"]["file"].endswith("alpha.parquet")
    assert shown["trials"]["of_this_file"] == 2
    assert shown["trials"]["in_ledger"] == trial_count(OUTPUT)
    assert len(shown["evaluations"]) == 1
    text = peerglass("runs", "show", "alpha", "--output", "runs").out
    assert text.startswith(f"signals {signals}\n")
    assert shown["evaluations"][0]["evaluation"] in text

    (OUTPUT / signals / "signals.json").write_text("{")
    assert (
        json.loads(peerglass("runs", "list", "--json", "--output", "runs").out)[-1]["state"] == "unreadable"
    )


def test_a_prune_knows_measured_signals_and_the_feature_store(signals: str, peerglass: Call) -> None:
    folder, store = OUTPUT / signals, OUTPUT.parent / "features"
    (folder / "left.partial").write_text("x")
    for name, days in (("old", 100), ("new", 1)):
        entry = store / name
        entry.mkdir(parents=True)
        for file in ("entry.json", "values.f32"):
            (entry / file).write_text("x")
            used = dt.datetime.now(dt.UTC).timestamp() - 86_400 * days
            os.utime(entry / file, (used, used))
    answer = peerglass("runs", "prune", "--older-than", "90", "--yes", "--output", "runs")
    assert answer.code == 0, answer.err
    assert not (folder / "left.partial").exists()
    assert [path.name for path in sorted(store.iterdir()) if path.is_dir()] == ["new"]
    assert "features used last 100 days ago" in answer.out
    assert folder.is_dir()

    answer = peerglass("runs", "prune", "alpha", "--yes", "--output", "runs")
    assert answer.code == 0, answer.err
    assert not folder.exists()
    assert len(list(OUTPUT.glob("*/run.json"))) == 2, "runs stay"


def measured_ladder(folder: Path) -> pl.DataFrame:
    return list_evaluations(RunSummary(folder.name, folder))[0].table("ladder")
