"""Plugins of the guide: a run uses them, their source identifies it, and their errors are told as theirs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from places import ROOT
from warm import PEERGLASS, Process

import peerglass
from features.library.characteristics import CHARACTERISTICS
from features.library.sets import characteristics_of, default_characteristics
from pipelines import plugins
from pipelines.config.load import load_config
from pipelines.errors import ConfigError
from pipelines.run.identity import code_digest, plugin_digests

GUIDE = (ROOT / "docs/extending.md").read_text("utf-8").partition("## In a clone")[0]
BLOCKS = re.findall(r"^```py\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path, tiny_settings: Mapping[str, Any]) -> Iterator[Path]:
    """A folder with the guide's plugins in one file, and a config that uses them."""
    (tmp_path / "mine.py").write_text("\n\n".join(BLOCKS))
    settings = {
        **tiny_settings,
        "plugins": ["./mine.py"],
        "features": {**tiny_settings["features"], "characteristics": ["ups_21", "return_21"]},
        "folds": {**tiny_settings["folds"], "max_folds": 1},
        "models": {"linear": {}, "ridge": {}},
        "backtest": {"books": {"positive": {"kind": "positive"}}},
        "execution": {"engine": "pool", "workers": 2},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump({**tiny_settings, "models": {"ridge": {}}}))
    yield tmp_path
    for name in plugins.loaded():
        plugin = plugins._LOADED[name]
        plugins._forget(plugin)
        for module in [key for key in sys.modules if key.partition(".")[0] == plugin.module]:
            del sys.modules[module]


def call(folder: Path, *words: str, code: int = 0) -> str:
    """Run a command in a process of its own, and return what it says."""
    process = Process(PEERGLASS, words, cwd=folder)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    return err.splitlines()[-1] if code else out


@pytest.mark.slow(20)
def test_a_run_uses_the_plugin_and_other_processes_open_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(BLOCKS) == 5, "one of each kind"
    call(project, "run", "tiny.yaml", "--set", "audit.sessions=1")
    (audit,) = (project / "runs").glob("*/audit*.json")
    assert "constant" in {one["check"] for one in json.loads(audit.read_text())["results"]}
    found = json.loads(call(project, "backtest", "latest", "--output", "runs", "--json"))
    assert {row["model"] for row in found["results"]} == {"linear", "ridge"}
    assert all(row["positive.sharpe_net"] is not None for row in found["results"])
    assert "ups_21" in call(project, "features", "--config", "tiny.yaml")
    assert "ups_21" not in call(project, "features")
    monkeypatch.chdir(project)
    run = peerglass.open_run(output=project / "runs")
    assert list(run.data[0].characteristic_names) == ["ups_21", "return_21"]
    scored = peerglass.load_model(run, "linear").score()
    stored = run.forecasts(["linear"]).select("date", "ticker", "forecast").sort("date", "ticker")
    assert scored.height > 100
    assert scored["forecast"].cast(pl.Float32).equals(stored["forecast"].cast(pl.Float32))
    close_TN = run.data[0].panel.close_TN[: int(run.data[0].panel.n_sessions)]
    rises = (close_TN[1:] > close_TN[:-1])[-21:].mean(axis=0)
    known = np.isfinite(close_TN[-22:]).all(axis=0)
    raw_TNF = characteristics_of().compute(run.data[0].panel, ["ups_21"])
    assert known.sum() > 8
    np.testing.assert_allclose(raw_TNF[-1, known, 0], rises[known], atol=1e-6)


@pytest.mark.slow(8)
def test_an_error_of_the_plugin_names_function_file_and_line(project: Path) -> None:
    file = project / "mine.py"
    call(project, "ingest", "tiny.yaml")
    whole = file.read_text()
    file.write_text(whole.replace("    return_TN = daily_return(panel)\n", "    return panel.nothing\n"))
    said = call(project, "train", "tiny.yaml", code=2)
    line = file.read_text().splitlines().index("    return panel.nothing") + 1
    assert said.startswith(f"peerglass: A plugin failed: the function ups of {file}, line {line}, raised ")
    assert said.endswith("AttributeError: 'Panel' object has no attribute 'nothing'.")
    file.write_text(
        whole.replace("        return self.scaled(", "        raise KeyError(self.head, 'lost')\n#")
    )
    said = call(project, "train", "tiny.yaml", code=2)  # in a worker of the pool
    assert f"the function mix of {file}, line" in said
    assert "raised KeyError" in said
    file.write_text(f"{whole}\n1 / 0\n")
    said = call(project, "validate", "tiny.yaml", code=2)
    assert f"{file} cannot be loaded: {file}, line" in said
    assert "ZeroDivisionError: division by zero" in said


def test_the_source_of_a_plugin_identifies_the_run_and_no_other_run(project: Path) -> None:
    before = code_digest()
    first = plugin_digests(load_config(project / "tiny.yaml"))
    assert list(first) == ["mine.py"]
    assert code_digest() == before, "other runs of this process have the same code"
    file = project / "mine.py"
    file.write_text(f"# a comment\n{file.read_text()}")
    assert plugin_digests(load_config(project / "tiny.yaml")) == first
    file.write_text(file.read_text().replace("return_TN > 0), 21, 11)", "return_TN > 0), 21, 12)"))
    again = load_config(project / "tiny.yaml")
    assert plugin_digests(again) != first
    assert characteristics_of()["ups_21"].warmup == 21
    assert plugins.loaded() == list(again.plugins) == [str(file)]


def test_only_a_config_with_the_plugin_uses_it(project: Path) -> None:
    config = load_config(project / "tiny.yaml")
    assert "ups_21" not in CHARACTERISTICS
    assert default_characteristics("peerglass", {}, config.plugins)[-1] == "ups_21"
    plain = load_config(project / "plain.yaml")
    assert default_characteristics("peerglass", {}, plain.plugins) == list(CHARACTERISTICS)
    for setting in (
        "models={linear: {}}",
        "features.characteristics=[ups_21]",
    ):
        with pytest.raises(ConfigError, match=r"(linear|ups_21) is not a known name"):
            load_config(project / "plain.yaml", [setting])
    with pytest.raises(ConfigError, match=r"backtest.books.a: the kind positive is of .*mine.py; name that"):
        load_config(project / "plain.yaml", ["backtest.books={a: {kind: positive}}"])


def test_the_source_of_a_plugin_is_ingested(project: Path) -> None:
    config = load_config(
        project / "tiny.yaml", ["source={kind: walks, firms: 6}", f"lake={project / 'walks'}"]
    )
    assert config.source.model_dump() == {"kind": "walks", "firms": 6}
    peerglass.ingest(project / "tiny.yaml", ["source={kind: walks, firms: 6}", f"lake={project / 'walks'}"])
    assert peerglass.prices(config)["ticker"].unique().sort().to_list() == [f"W{n}" for n in range(6)]
    with pytest.raises(ConfigError, match="firms"):
        load_config(project / "tiny.yaml", ["source={kind: walks, firms: many}"])


def test_an_installed_package_announces_its_plugin(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, info = project / "site" / "quantpack", project / "site" / "quantpack-1.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ups.py").write_text(BLOCKS[0])
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quantpack\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[peerglass.plugins]\nmine = quantpack.ups\n")
    monkeypatch.syspath_prepend(project / "site")
    config = load_config(project / "plain.yaml")
    assert config.plugins == ("quantpack.ups",)
    assert list(plugin_digests(config)) == ["quantpack.ups"]
    first = plugin_digests(config)
    (package / "__init__.py").write_text("WINDOW = 5\n")
    assert plugin_digests(config) != first, "the whole package counts"
    shutil.rmtree(info)
    assert load_config(project / "plain.yaml").plugins == (), "it was removed while the process ran"


def test_a_package_that_failed_is_loaded_whole_once_it_is_corrected(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = project / "site" / "halfpack"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "ups.py").write_text(BLOCKS[0])
    (package / "entry.py").write_text("from halfpack import ups\n1 / 0\n")
    monkeypatch.syspath_prepend(project / "site")
    with pytest.raises(ConfigError, match=r"halfpack\.entry cannot be loaded"):
        plugins.load(["halfpack.entry"])
    (package / "entry.py").write_text("from halfpack import ups\n")
    plugins.load(["halfpack.entry"])
    assert "ups_21" in characteristics_of()


@pytest.mark.parametrize(
    ("given", "source", "message"),
    [
        (["./none.py"], "", "there is no file .*none.py"),
        (["no_such_package.models"], "", "there is no module no_such_package"),
        ("mine.py", "", "plugins is 'mine.py'; give a list"),
        (["./mine.py"], BLOCKS[0].replace("ups_21", "return_21"), "return_21 is registered twice"),
        (["./mine.py"], BLOCKS[0].replace("ups_21", "MA5"), "MA5 is the name of another characteristic"),
        (["./mine.py"], BLOCKS[1].replace('"linear"', '"ridge"'), "'ridge' is there already"),
        (["./mine.py"], BLOCKS[2].replace('"positive"', '"optimised"'), "has the kind 'optimised'"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named(
    project: Path, given: object, source: str, message: str
) -> None:
    import models.registry  # noqa: F401  # as a command that trains does

    if source:
        (project / "mine.py").write_text(source)
    settings = yaml.safe_load((project / "plain.yaml").read_text())
    (project / "plain.yaml").write_text(yaml.safe_dump({**settings, "plugins": given}))
    with pytest.raises(ConfigError, match=message):
        load_config(project / "plain.yaml")
