"""The second process that compiles loops: when it starts, and that it ends with the command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipelines.compile_ahead import compiling_ahead, small_settings
from pipelines.config.load import check_config, load_config
from pipelines.config.schema import Config

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that are started; they sleep instead of compiling. There are two cores and no cache."""
    processes: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(_: list[str], **options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
        processes.append(popen(["sleep", "60"], **options))
        return processes[-1]

    monkeypatch.setattr("pipelines.compile_ahead.subprocess.Popen", start)
    monkeypatch.setattr("pipelines.compile_ahead.is_compiled", lambda: False)
    monkeypatch.setattr("pipelines.compile_ahead.n_cores", lambda: 2)
    return processes


def config_with(**execution: Any) -> Config:  # noqa: ANN401
    config = load_config(DEMO)
    return config.model_copy(update={"execution": config.execution.model_copy(update=execution)})


def test_the_process_ends_with_the_command(started: list[subprocess.Popen[bytes]]) -> None:
    with compiling_ahead(config_with(workers=2)):
        assert started[0].poll() is None
    assert started[0].poll() is not None


def test_nothing_is_started_where_it_would_not_help(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for alone in ({"workers": 1}, {"engine": "serial"}):
        with compiling_ahead(config_with(**alone)):
            pass
    monkeypatch.setattr("pipelines.compile_ahead.is_compiled", lambda: True)
    with compiling_ahead(config_with(workers=2)):
        pass
    assert not started


def test_its_run_has_the_features_and_books_of_the_config() -> None:
    demo = load_config(DEMO)
    small = check_config(small_settings(demo), origin="compile.yaml")
    assert small.features == demo.features
    assert small.backtest.books == demo.backtest.books
    assert small.execution.engine == "serial"
