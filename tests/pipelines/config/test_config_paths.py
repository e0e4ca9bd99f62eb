"""Paths in configs are relative to their file or its root, and never to the current folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from command import Call, command
from places import ROOT
from pydantic import BaseModel
from recorded import recorded

from pipelines.config.load import absolute, load_config, override_backtest, to_yaml
from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.run.record import open_named_run, open_run
from pipelines.settings import PathKind
from pipelines.sources.settings import FilesSourceConfig, YFinanceSourceConfig

FILES = {
    "kind": "files",
    "prices": "my/prices-*.csv",
    "securities": "/abs/firms.csv",
    "fundamentals": "~/statements.csv",
    "membership": "${MEMBERS:-../members.csv}",
    "inputs": "$INPUTS_FOLDER/inputs.parquet",
}
BASE: dict[str, Any] = {
    "name": "tiny",
    "source": FILES,
    "lake": "lake",
    "folds": {"scheme": "expanding", "train": 100, "valid": 20, "test": 20, "embargo": 1},
    "models": {"zero": {}, "temporal_transformer": {"init_from": "runs/old-1"}},
    "init_from": "old-1",
    "backtest": {"risk_free": "rates.csv"},
    "tracking": {"uri": "sqlite:///store.db"},
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for configs; the shell is in another one."""
    (tmp_path / "shell").mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "shell")
    monkeypatch.delenv("MEMBERS", raising=False)
    monkeypatch.delenv("INPUTS_FOLDER", raising=False)
    return tmp_path / "project"


def write(path: Path, settings: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(settings))
    return path


def files_of(config: Config) -> FilesSourceConfig:
    assert isinstance(config.source, FilesSourceConfig)
    return config.source


def test_every_kind_of_path_is_relative_to_the_file(project: Path) -> None:
    config = load_config(write(project / "a.yaml", BASE))
    source = files_of(config)
    assert config.root == str(project)
    assert config.lake == f"{project}/lake"
    assert source.prices == f"{project}/my/prices-*.csv", "wildcards stay"
    assert source.securities == "/abs/firms.csv"
    assert source.fundamentals == "~/statements.csv"
    assert source.membership == f"{project.parent}/members.csv"
    assert source.inputs == f"{project}/$INPUTS_FOLDER/inputs.parquet"
    assert config.backtest.risk_free == f"{project}/rates.csv"
    assert config.tracking.uri == f"sqlite:///{project}/store.db"
    assert config.init_from == "old-1", "a name is no path"
    assert config.models["temporal_transformer"]["init_from"] == f"{project}/runs/old-1"
    assert config.output == f"{project}/data/runs", "defaults are relative to the file as well"
    assert config.tracking.artifacts == f"{project}/data/mlartifacts"
    assert load_config(write(project / "b.yaml", {**BASE, "tracking": {}})).tracking.uri == (
        f"sqlite:///{project}/data/mlflow.db"
    )


def test_the_shells_folder_changes_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(project / "a.yaml", BASE)
    monkeypatch.chdir(project)
    by_name = load_config(Path("a.yaml"))
    monkeypatch.chdir("/")
    assert load_config(path) == by_name


def test_root_replaces_the_folder_of_the_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    up = load_config(write(project / "configs" / "a.yaml", {**BASE, "root": ".."}))
    assert (up.root, up.lake, up.output) == (str(project), f"{project}/lake", f"{project}/data/runs")
    there = load_config(write(project / "b.yaml", {**BASE, "root": "/srv/market"}))
    assert (there.root, there.lake) == ("/srv/market", "/srv/market/lake")
    monkeypatch.setenv("MARKET", "/srv/other")
    named = load_config(write(project / "c.yaml", {**BASE, "root": "${MARKET}"}))
    assert named.lake == "/srv/other/lake"
    with pytest.raises(ConfigError, match=r"d\.yaml: root is 5; give a folder"):
        load_config(write(project / "d.yaml", {**BASE, "root": 5}))


def test_an_extended_file_keeps_its_own_root(project: Path) -> None:
    write(project / "shared" / "configs" / "base.yaml", {**BASE, "root": ".."})
    child = {"extends": "../shared/configs/base.yaml", "name": "child", "source": {"prices": "mine.csv"}}
    config = load_config(write(project / "my" / "child.yaml", child))
    source = files_of(config)
    assert config.root == f"{project}/my"
    assert config.lake == f"{project}/shared/lake", "written in the extended file"
    assert source.membership == f"{project}/members.csv", "a default as well"
    assert source.prices == f"{project}/my/mine.csv"
    assert config.output == f"{project}/my/data/runs", "written in neither file"


def test_paths_of_the_command_line_are_relative_to_the_shell(project: Path) -> None:
    path = write(project / "a.yaml", BASE)
    shell = project.parent / "shell"
    config = load_config(path, ["lake=there", "source.prices=../p.csv", "backtest.risk_free=r.csv"])
    assert config.lake == f"{shell}/there"
    assert files_of(config).prices == f"{project.parent}/p.csv"
    assert config.backtest.risk_free == f"{shell}/r.csv"
    moved = load_config(path, ["root=here", "seeds=[3]"])
    assert (moved.root, moved.lake, moved.seeds) == (f"{shell}/here", f"{shell}/here/lake", (3,))
    assert load_config(path, root=shell).lake == f"{shell}/lake"
    assert override_backtest(config, ["backtest.risk_free=s.csv"]).backtest.risk_free == f"{shell}/s.csv"


def test_a_relative_path_in_the_environment_is_relative_to_the_root(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMBERS", "other/members.csv")
    monkeypatch.setenv("INPUTS_FOLDER", "/nas")
    source = files_of(load_config(write(project / "a.yaml", BASE)))
    assert source.membership == f"{project}/other/members.csv"
    assert source.inputs == "$INPUTS_FOLDER/inputs.parquet", "expanded when the files are read"


def test_a_list_of_tickers_is_no_path_and_a_file_of_tickers_is(project: Path) -> None:
    for given, wanted in ((["A", "B"], ("A", "B")), ("firms.csv", f"{project}/firms.csv")):
        source = {"kind": "yfinance", "tickers": given}
        config = load_config(write(project / "a.yaml", {**BASE, "source": source}))
        assert isinstance(config.source, YFinanceSourceConfig)
        assert config.source.tickers == wanted


@pytest.mark.parametrize(
    ("text", "kind", "result"),
    [
        ("a/b", PathKind.PATH, "/x/y/a/b"),
        ("./a", PathKind.PATH, "/x/y/a"),
        ("../../a/../b", PathKind.PATH, "/a/../b"),
        (".", PathKind.PATH, "/x/y"),
        ("..", PathKind.PATH, "/x"),
        ("/a", PathKind.PATH, "/a"),
        ("", PathKind.PATH, ""),
        ("s3://bucket/lake", PathKind.PATH, "s3://bucket/lake"),
        ("${LAKE}", PathKind.PATH, "${LAKE}"),
        ("${LAKE:-a}/b", PathKind.PATH, "${LAKE:-/x/y/a}/b"),
        ("${LAKE:-s3://b/l}", PathKind.PATH, "${LAKE:-s3://b/l}"),
        ("data/${LAKE}", PathKind.PATH, "/x/y/data/${LAKE}"),
        ("demo-12", PathKind.RUN, "demo-12"),
        ("latest", PathKind.RUN, "latest"),
        ("runs/demo-12", PathKind.RUN, "/x/y/runs/demo-12"),
        ("sqlite:///a.db", PathKind.STORE, "sqlite:////x/y/a.db"),
        ("sqlite:////a.db", PathKind.STORE, "sqlite:////a.db"),
        ("sqlite:///:memory:", PathKind.STORE, "sqlite:///:memory:"),
        ("sqlite:///file:../a.db?uri=true&t=//", PathKind.STORE, "sqlite:///file:/x/a.db?uri=true&t=//"),
        ("sqlite:///${STORE}", PathKind.STORE, "sqlite:///${STORE}"),
        ("${URI:-sqlite:///a.db}", PathKind.STORE, "${URI:-sqlite:////x/y/a.db}"),
        ("postgresql://u:${PW}@host/db", PathKind.STORE, "postgresql://u:${PW}@host/db"),
        ("http://127.0.0.1:5000", PathKind.STORE, "http://127.0.0.1:5000"),
        ("mlruns", PathKind.STORE, "/x/y/mlruns"),
        ("databricks", PathKind.STORE, "databricks"),
    ],
)
def test_texts(text: str, kind: PathKind, result: str) -> None:
    assert absolute(text, kind, Path("/x/y")) == result
    assert absolute(result, kind, Path("/z")) == result, "an absolute text stays"


def test_every_setting_that_names_a_path_is_marked() -> None:
    """A description that speaks of a file or a folder belongs to a setting with a mark."""
    words = ("File of", "Folder", "path of a CSV", "or Parquet file")

    def settings(cls: type[BaseModel]) -> list[tuple[str, str, str]]:
        found = []
        for name, field in cls.model_fields.items():
            found.append((name, str(field.description), f"{field.annotation} {field.metadata}"))
        return found

    below = [field.default for field in Config.model_fields.values() if isinstance(field.default, BaseModel)]
    sections: list[type[BaseModel]] = [Config, FilesSourceConfig, YFinanceSourceConfig]
    sections += [type(default) for default in below]
    named = [
        one for section in sections for one in settings(section) if any(word in one[1] for word in words)
    ]
    assert {"lake", "output", "root", "prices", "inputs", "tickers", "risk_free", "artifacts"} <= {
        name for name, _, _ in named
    }
    assert [name for name, _, annotation in named if "PathKind" not in annotation] == []


def test_a_recorded_run_keeps_its_places(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(project / "a.yaml", {**BASE, "output": "runs", "init_from": None})
    config = load_config(path)
    run = recorded(config, {"prices": 1})
    assert run.folder.parent == project / "runs"
    monkeypatch.chdir("/")
    assert open_run(str(run.folder)).config == config
    assert open_run(run.run_id, project / "runs").config == config
    monkeypatch.setenv("MEMBERS", "other.csv")
    assert files_of(open_run(str(run.folder)).config).membership == f"{project}/other.csv"
    assert f"${{MEMBERS:-{project.parent}/members.csv}}" in to_yaml(config)


def test_a_setting_names_a_run_independently_of_the_shell(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(write(project / "a.yaml", {**BASE, "output": "runs"}))
    run = recorded(config, {"prices": 1})
    run.folder.rename(project / "moved")
    monkeypatch.chdir(project)
    assert open_run("moved").run_id == run.run_id, "on the command line, a folder here is a name"
    with pytest.raises(ConfigError, match=r"No run begins with 'moved' under .*/project/runs"):
        open_named_run("moved", config)
    assert open_named_run(f"{project}/moved", config).run_id == run.run_id
    with pytest.raises(ConfigError, match="there is no run in the folder /nowhere/run"):
        open_named_run("/nowhere/run", config)
    with pytest.raises(ConfigError, match="'latest', which changes with every run"):
        open_named_run("latest", config)


def test_the_shipped_configs_share_the_root_of_the_checkout() -> None:
    configs = sorted({*(ROOT / "configs").rglob("*.yaml")} - {*(ROOT / "configs/replications").iterdir()})
    assert len(configs) > 8
    for path in configs:
        config = load_config(path)
        assert config.root == str(ROOT), path.name
        assert config.lake.startswith(f"{ROOT}/data/lake/"), path.name
        assert config.output == f"{ROOT}/data/runs"


def test_a_command_finds_the_config_from_any_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way through a command: files and lake lie next to the config, the shell is elsewhere."""
    peerglass: Call = command(monkeypatch, capsys)
    (project / "prices.csv").write_text("date,ticker,close\n2020-01-02,A,1.0\n2020-01-03,A,1.1\n")
    settings = {**BASE, "source": {"kind": "files", "prices": "prices.csv"}}
    write(project / "a.yaml", settings)
    answer = peerglass("ingest", "../project/a.yaml")
    assert answer.code == 0, answer.err
    assert (project / "lake" / "prices").is_dir()
    assert list(Path.cwd().iterdir()) == []
    (project / "prices.csv").unlink()
    answer = peerglass("ingest", "../project/a.yaml")
    assert answer.code == 3
    assert f"there is no file {project}/prices.csv" in answer.err
    assert "relative to the config's file, or to its root" in answer.err
