"""The copy of a run's folder: what is fetched, what is stored, in which order, and what is not."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError
from pipelines.run.identity import Identity
from pipelines.run.record import RecordedRun
from pipelines.run.stored import StoredRun
from pipelines.train.trials import (
    read_returns,
    read_trials,
    record,
    record_returns,
    share_trials,
    signal_trials,
)


def config_of(tiny: dict[str, Any], output: Path, **store: object) -> Config:
    return check_config({**tiny, "output": str(output), "output_store": store}, origin="tiny")


def run_in(config: Config) -> RecordedRun:
    return RecordedRun("tiny-1", config, Identity.nothing(), Path(config.output) / "tiny-1")


def write(run: RecordedRun, *names: str, content: str = "content") -> None:
    """Write files, each a second after the one before."""
    for second, name in enumerate(names):
        path = run.write_text(name, f"{content} of {name}")
        os.utime(path, (1e9 + second, 1e9 + second))


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def runs(tiny: dict[str, Any], tmp_path: Path) -> tuple[RecordedRun, RecordedRun]:
    """The same run on two machines."""
    url = f"file://{tmp_path}/copy"
    return run_in(config_of(tiny, tmp_path / "one", url=url)), run_in(
        config_of(tiny, tmp_path / "two", url=url)
    )


def test_two_machines_exchange_the_files_of_a_run(
    runs: tuple[RecordedRun, RecordedRun], tmp_path: Path
) -> None:
    one, two = runs
    write(one, "run.json", "tables/a.parquet", "scores/x.json")
    write(one, ".lock", "snapshots/x.safetensors", "tables/.b.7.partial", "tables/c.7.partial")
    StoredRun(one).store()
    copied = {name: f"content of {name}" for name in ("run.json", "tables/a.parquet", "scores/x.json")}
    assert contents(tmp_path / "copy" / "tiny-1") == copied
    with StoredRun(two).kept():
        assert {k: v for k, v in contents(two.folder).items() if k != ".stored.json"} == copied
        write(two, "run.json", content="newer")
    unchanged = tmp_path / "copy" / "tiny-1" / "tables" / "a.parquet"
    before = unchanged.stat().st_mtime_ns
    write(one, "report.html")
    with StoredRun(one).kept():
        assert (one.folder / "run.json").read_text() == "newer of run.json"
    assert unchanged.stat().st_mtime_ns == before, "a file that has not changed is not stored again"
    StoredRun(two).fetch()
    assert (two.folder / "report.html").read_text() == "content of report.html"


def test_an_interrupted_copy_is_an_earlier_state_of_the_folder(
    runs: tuple[RecordedRun, RecordedRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs[0]
    write(run, "z", "y", "x")
    stored = StoredRun(run)

    class Broken:
        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (of the store)
            return getattr(store, name)

        def open_output_stream(self, name: str, _: None) -> object:
            if name == "x":
                raise OSError("the network is down")
            return store.open_output_stream(name, None)

    store = stored._handler._handler
    monkeypatch.setattr(stored._handler, "_handler", Broken())
    with pytest.raises(DataError, match=r"cannot be written \(the network is down\): check output_store"):
        stored.store()
    assert sorted(contents(tmp_path / "copy" / "tiny-1")) == ["y", "z"]
    StoredRun(run).store()
    assert sorted(contents(tmp_path / "copy" / "tiny-1")) == ["x", "y", "z"]


def test_without_a_url_nothing_is_copied(tiny: dict[str, Any], tmp_path: Path) -> None:
    run = run_in(config_of(tiny, tmp_path))
    write(run, "a")
    with StoredRun(run).kept():
        pass
    assert sorted(contents(tmp_path)) == ["tiny-1/a"]


def test_both_ledgers_hold_all_trials(tiny: dict[str, Any], tmp_path: Path) -> None:
    config = config_of(tiny, tmp_path / "one", url=f"file://{tmp_path}/copy")
    daily = pl.DataFrame({"date": [dt.date(2020, 1, 2)], "excess_net": [0.01]})
    for machine in ("one", "two", "one"):
        (trial,) = signal_trials({machine: machine}, config).values()
        record(tmp_path / machine, f"run-{machine}", [trial])
        record_returns(tmp_path / machine, {(*trial.key, "costs"): daily})
        share_trials(tmp_path / machine, config.output_store)
    first = read_trials(tmp_path / "one")
    assert first["model"].to_list() == ["one", "two"]
    assert read_trials(tmp_path / "two").equals(first)
    assert read_returns(tmp_path / "two", first).height == 2


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ({"url": "copies"}, "output_store.url is 'copies', not a URL"),
        ({"options": {"aws_region": "x"}}, "output_store.options is for the URL of an object store"),
        (
            {"url": "s3://bucket/runs", "options": {"aws_secret_access_key": "x"}},
            "output_store.options.aws_secret_access_key is a credential",
        ),
        ({"url": "s3://me:pass@bucket/runs"}, "output_store.url contains a user name"),
    ],
)
def test_wrong_settings_are_refused(
    tiny: dict[str, Any], tmp_path: Path, store: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of(tiny, tmp_path, **store)
