"""What README and the guide tell users to type works: commands run, configs are valid, names exist.

A command runs in a folder that has a tiny market of a user's own. ``RUN``, ``ID`` and the config's path are
replaced by those of that folder. `CHECKED_ONLY` lists what cannot run here, and why.
"""

from __future__ import annotations

import datetime as dt
import functools
import importlib.util
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
import polars as pl
import pytest
import typer
import yaml
from places import ROOT
from pydantic import BaseModel

from models.fitting.config import FitConfig
from models.registry import MODELS
from pipelines import plugins
from pipelines.cli.main import app
from pipelines.cli.main import main as peerglass
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.secrets import REFERENCE
from pipelines.sources.settings import FilesSourceConfig

PAGES = {
    str(page.relative_to(ROOT)): page.read_text("utf-8")
    for page in sorted(
        [
            ROOT / "README.md",
            ROOT / "CONTRIBUTING.md",
            ROOT / "data/README.md",
            *(ROOT / "docs").rglob("*.md"),
        ]
    )
}
GUIDE = {place: text for place, text in PAGES.items() if not place.startswith("docs/experiments/")}
"""Experiments name the settings of their date."""

CHECKED_ONLY: Mapping[str, str] = {
    "make": "takes minutes, or changes the checkout; the target must exist",
    "pip": "installs; the extras and files must exist",
    "uv": "is no dependency of the project; the files and extras must exist",
    "mlflow": "starts a server; the options must exist",
    "python benchmarks/": "takes minutes, or needs a GPU; the script must have the options",
    "peerglass ingest configs/yahoo.yaml": "asks Yahoo Finance; the config must be valid",
    "peerglass run configs/benchmarks/": "needs market data, and takes minutes; the same",
    "peerglass tune configs/benchmarks/": "the same",
    "peerglass multiverse configs/benchmarks/": "the same; `docs/backtesting.md` has one that runs",
    "peerglass replicate": "the same; the options must exist",
    "peerglass nightly": "plays nights for minutes; the config must be valid and the options must exist",
    "peerglass account": "needs nights that were played; the same",
    "peerglass record": "the same",
    "peerglass register": "ends with exit code 4 once another command has opened the test; the same",
    "peerglass promote": "needs shadow sessions of many nights; the same",
    "peerglass demote": "needs a second champion; the same",
    "peerglass signals configs/": "needs a champion; the same",
    "peerglass notebook": "starts a server, or runs a notebook for a minute; the options must exist",
}
"""Beginning of a command -> why it does not run here, and what is checked instead."""


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """First page and command of every distinct line in a console block; a backslash continues a line."""
    places: dict[str, str] = {}
    for place, text in PAGES.items():
        for block in blocks(text, "console"):
            for line in block.replace("\\\n", " ").splitlines():
                command = re.sub(r"\s+# .*", "", line).strip()
                if command and not command.startswith("#"):
                    places.setdefault(strip(command), place)
    return [(place, command) for command, place in places.items()]


def strip(command: str) -> str:
    """Without the environment's folder, and without variables that are set in front."""
    return re.sub(r"^(?:[A-Z][A-Z0-9_]*=(?:\"[^\"]*\"|\S+)\s+)*(?:\.venv/bin/)?", "", command)


COMMANDS = commands()
INLINE = [
    (place, re.sub(r"\s*>.*", "", code))
    for place, text in PAGES.items()
    for code in re.findall(r"`(peerglass [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
]


def ids(pairs: list[tuple[str, str]]) -> list[str]:
    return [f"{place}: {code}" for place, code in pairs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Iterator[Path]:
    """A folder with a user's files, and the config ``my.yaml`` on them."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "my").mkdir()
    rng = np.random.default_rng(1)
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=i) for i in range(450)]
    days = [day for day in days if day.weekday() < 5]
    rows = []
    for firm in range(12):
        close_T = 20 * np.exp(np.cumsum(rng.normal(0, 0.02, len(days))))
        if firm == 0:
            close_T[50] *= 3  # a spike that reverts
        rows += [
            {"date": day, "ticker": f"F{firm:02}", "close": close, "volume": 1000.0 + 10 * firm}
            for day, close in zip(days, close_T.round(4), strict=True)
        ]
    prices = pl.DataFrame(rows)
    prices.write_csv(folder / "my/prices.csv")
    signals = prices.select("date", "ticker", momentum=pl.col("close").log(), value=-pl.col("close").log())
    signals.write_parquet(folder / "signals.parquet")
    settings = {
        **tiny_settings,
        "name": "mine",
        "source": {"kind": "files", "prices": "my/prices.csv"},
        "lake": "data/lake/demo",
        "output": "data/runs",
        "folds": {**tiny_settings["folds"], "max_folds": 1},
        "label": {"horizon": 1, "delay": 1},
        "features": {
            "window": 5,
            "characteristics": ["return_1", "return_5", "volatility_21", "momentum_63"],
        },
        "audit": {"sessions": 1},
        "models": {
            "ridge": {},
            "lightgbm": {"rounds": 5, "evaluate_every": 5, "min_data_in_leaf": 20},
            "temporal_transformer": {"encoder": {"width": 8, "heads": 2, "layers": 1}},
            "temporal_peer": {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2, "peer_width": 8},
        },
    }
    (folder / "my.yaml").write_text(yaml.safe_dump(settings))
    shutil.copytree(ROOT / "configs", folder / "configs")
    for plugin in ("configs/my_features.py", "configs/mypackage/models.py"):
        (folder / plugin).parent.mkdir(exist_ok=True)
        (folder / plugin).write_text('"""A plugin that registers nothing."""\n')
    yield folder
    for name in plugins.loaded():
        plugins._forget(plugins._LOADED[name])


@pytest.fixture(scope="module")
def home(folder: Path) -> Path:
    """The folder with a finished run of its config."""
    assert call(folder, "run", "my.yaml") == 0
    return folder


def call(folder: Path, *arguments: str) -> int:
    """Exit code of ``peerglass`` in this process, with the folder as the current one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["peerglass", *arguments])
        with pytest.raises(SystemExit) as ended:
            peerglass()
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return code or 0


def newest(folder: Path) -> str:
    return max(
        (path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime
    ).name


def substitute(words: list[str], home: Path) -> list[str]:
    """Put in what a reader would: the run, its evaluation, the config, times and firms that the lake has."""
    # a command may have trained another config of the same name, which has no evaluation
    run = next(path.parent.name for path in (home / "data/runs").glob("mine-*/report.html"))
    values = {
        "RUN": run,
        "ID": newest(home / "data/runs" / run / "evaluations"),
        "2024-01-31T18:00:00Z": dt.datetime.now(dt.UTC).isoformat(),
        "2024-03-01": "2021-03-01",  # of the test
        "2024-02-01": "2021-02-01",
        "AAPL": "F03",
    }
    found = []
    for word in words:
        if word.startswith("configs/"):
            assert (ROOT / word).is_file(), f"there is no {word}"
            found.append("my.yaml")
        else:
            name, colon, rest = word.partition(":")  # RUN:MODEL
            found.append(f"{run}:{rest}" if name == "RUN" and colon else values.get(word, word))
    return found


# Python first: a command of the guide clears a flag; after that, the config gives a new, unexplained run.
PYTHON = [(place, block) for place, text in GUIDE.items() for block in blocks(text, "python")]


@pytest.mark.slow(9)
@pytest.mark.parametrize(
    ("place", "block"), PYTHON, ids=[f"{place}-{i}" for i, (place, _) in enumerate(PYTHON)]
)
def test_a_python_block_runs(place: str, block: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    file = home / "block.py"
    file.write_text(block)
    assert runpy.run_path(str(file)), place


def test_there_are_commands_of_every_kind() -> None:
    assert len(COMMANDS) > 25
    assert len(INLINE) > 15
    for beginning in CHECKED_ONLY:
        assert any(command.startswith(beginning) for _, command in COMMANDS), f"{beginning} is not used"


@pytest.mark.slow(36)
@pytest.mark.parametrize(("place", "command"), COMMANDS, ids=ids(COMMANDS))
def test_the_command_runs(place: str, command: str, home: Path) -> None:
    words = shlex.split(command)
    if any(command.startswith(beginning) for beginning in CHECKED_ONLY):
        check(words)
    elif words[0] == "python":
        assert (
            subprocess.run(
                [sys.executable, *words[1:]], cwd=ROOT, capture_output=True, check=False
            ).returncode
            == 0
        )
    else:
        assert words[0] == "peerglass", f"{place} has a command that this test does not know"
        assert call(home, *substitute(words[1:], home)) == 0


def check(words: list[str]) -> None:
    """Look at a command that cannot run here."""
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] in ("pip", "uv"):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = {words[i + 1] for i, word in enumerate(words) if word == "--extra"}
        extras |= set(re.sub(r"^\.\[(.*)\]$|.*", r"\1", words[-1]).split(",")) - {""}
        assert extras <= set(project["optional-dependencies"])
        assert "--constraint" not in words or (ROOT / words[words.index("--constraint") + 1]).is_file()
        assert not words[-1].endswith(".whl") or f"peerglass-{project['version']}-py3" in words[-1]
    elif words[0] == "mlflow":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the import
            from mlflow.cli import cli
        mlflow: click.Group = cli
        command = mlflow.get_command(click.Context(mlflow), words[1])  # ui is another name of server
        assert command is not None
        assert set(options) <= {name for one in command.params for name in one.opts}
    elif words[0] == "python":
        text = (ROOT / words[1]).read_text()
        for module in re.findall(r"^from (\w+) import", text, re.MULTILINE):  # which may parse the options
            beside = (ROOT / words[1]).with_name(f"{module}.py")
            text += beside.read_text() if beside.is_file() else ""
        assert all(f'add_argument("{option}"' in text for option in options)
    else:
        the_command().commands[words[1]].make_context(words[1], words[2:])  # exits if an option is wrong
        configs = [word for word in words if word.startswith("configs/")]
        assert configs or words[1] in ("notebook", "replicate")
        for config in configs:
            load_config(ROOT / config)


def command_options(command: Any, *words: str) -> dict[tuple[str, ...], set[str]]:  # noqa: ANN401 (typer's)
    """Words of a command and of those below it -> their options."""
    if not hasattr(command, "commands"):
        return {words: {name for one in command.params for name in one.opts if name.startswith("--")}}
    found = [command_options(below, *words, name) for name, below in command.commands.items()]
    return {path: options for one in found for path, options in one.items()}


@functools.cache
def the_command() -> Any:  # noqa: ANN401 (typer's)
    """The command line as click sees it."""
    return typer.main.get_command(app)


@pytest.mark.parametrize(("place", "command"), INLINE, ids=ids(INLINE))
def test_a_command_in_a_sentence_has_known_words_and_options(place: str, command: str) -> None:
    words = command.split()[1:]
    if words[0] == "--debug":
        words = words[1:]
    known = command_options(the_command())
    assert len(known) > 15
    if words and words != ["COMMAND"]:
        path = next((path for path in (tuple(words[:2]), tuple(words[:1])) if path in known), None)
        group = any(path[0] == words[0] for path in known)
        assert path is not None or (group and len(words) == 1), f"{place}: there is no command {command!r}"
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert options <= (known[path] if path else set()), f"{place}: {command}"


YAML = [(place, block) for place, text in GUIDE.items() for block in blocks(text, "yaml")]


@pytest.mark.parametrize(("place", "block"), YAML, ids=[f"{place}-{i}" for i, (place, _) in enumerate(YAML)])
def test_a_yaml_block_is_a_config(
    place: str, block: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert yaml.safe_load(block), place
    for name, default in REFERENCE.findall(block):
        if not default:
            monkeypatch.setenv(name, "value")
    extends = re.search(r"^extends:", block, re.MULTILINE) is not None
    monkeypatch.syspath_prepend(folder / "configs")
    file = folder / "configs" / "block.yaml"
    file.write_text(block if extends else f"extends: ../my.yaml\n{block}")
    load_config(file)


SETTINGS = [
    (place, name)
    for place, text in GUIDE.items()
    for name in re.findall(
        r"`([a-z_]+(?:\.[a-z0-9_]+)+)(?::[^`]*|=[^`]*)?`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    )
    if name.partition(".")[0] in Config.model_fields and not name.endswith((".html", ".json", ".yaml"))
]


@pytest.mark.parametrize(("place", "name"), sorted(set(SETTINGS)), ids=ids(sorted(set(SETTINGS))))
def test_a_setting_that_is_named_exists(place: str, name: str) -> None:
    assert is_setting(Config, name.split(".")) or is_module(name), f"{place} names {name}"


def is_setting(annotation: Any, path: list[str]) -> bool:  # noqa: ANN401 (an annotation or a class)
    """Whether a path of keys leads to a setting."""
    if not path:
        return True
    if annotation is Config and path[0] == "fit":
        return is_setting(FitConfig, path[1:])
    if annotation is Config and path[0] == "models":
        model = MODELS.get(path[1])
        return model is not None and (path[2] == "fit" or is_setting(model.config, path[2:]))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        known = {name: field.annotation for name, field in annotation.model_fields.items()}
        return path[0] in known and is_setting(known[path[0]], path[1:])
    return any(is_setting(part, path) for part in get_args(annotation))


def is_module(name: str) -> bool:
    """Whether a dotted name is a module of ours, or a name in one."""
    for candidate in (name, name.rpartition(".")[0]):
        try:
            if candidate and importlib.util.find_spec(candidate) is not None:
                return True
        except ModuleNotFoundError:
            continue
    return False


def test_every_option_of_files_is_on_its_page() -> None:
    page = PAGES["docs/own_data.md"]
    rows = set(re.findall(r"`([a-z_]+)`", "\n".join(re.findall(r"^\| `[^|]+\|", page, re.MULTILINE))))
    assert set(FilesSourceConfig.model_fields) - {"kind"} <= rows


def test_a_wrong_command_option_or_setting_is_noticed(folder: Path) -> None:
    assert call(folder, "train", "my.yaml", "--as-off", "1") == 2
    assert not is_setting(Config, ["label", "horizn"])
    assert not is_setting(Config, ["fit", "pretrain", "objektive"])
    assert is_setting(Config, ["fit", "pretrain", "objective"])
    assert is_setting(Config, ["source", "share_counts_as_of"])
    with pytest.raises(AssertionError, match="no command"):
        test_a_command_in_a_sentence_has_known_words_and_options("here", "peerglass trian my.yaml")
    with pytest.raises(AssertionError):
        test_a_command_in_a_sentence_has_known_words_and_options("here", "peerglass train my.yaml --fast")
