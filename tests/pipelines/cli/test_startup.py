"""What commands import: the help of none, and no command that only looks things up, waits for torch."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer
import yaml
from places import ROOT

from pipelines.cli.main import app
from pipelines.config.load import load_config
from pipelines.run.fetch import ingest_config
from pipelines.stages import backtest_run, train_config

CALL = """
import shlex, sys
from pipelines.cli.main import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["peerglass", *shlex.split(line)]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (line, ended.code)
    heavy = {heavy} & set(sys.modules)
    assert not heavy, (line, heavy)
print("all of them")
"""
LIBRARIES = {
    "torch",
    "mlflow",
    "shap",
    "plotly",
    "sklearn",
    "lightgbm",
    "skfolio",
    "arch",
    "numba",
    "statsmodels",
}
FRAMES = {"polars", "pandas", "numpy", "scipy", "pyarrow", "deltalake", "dataframely", "networkx"}


def commands(command: Any, *words: str) -> list[str]:  # noqa: ANN401 (typer's)
    """Words of every command and group."""
    below = getattr(command, "commands", {})
    return [" ".join(words), *(one for name in below for one in commands(below[name], *words, name))]


def call(lines: list[str], heavy: set[str], folder: Path) -> None:
    """Call commands one after the other in a process of their own; none may have loaded these libraries."""
    done = subprocess.run(
        [sys.executable, "-c", CALL.replace("{heavy}", repr(heavy))],
        input="\n".join(lines),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all of them\n")


def test_the_help_of_every_command_imports_no_library(tmp_path: Path) -> None:
    lines = [f"{words} --help" for words in commands(typer.main.get_command(app))]
    assert len(lines) > 30
    call(lines, LIBRARIES | FRAMES, tmp_path)


def test_commands_that_look_things_up_do_not_wait_for_torch(tmp_path: Path, tiny: dict[str, Any]) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**tiny, "models": {"ridge": {}, "zero": {}}}))
    config = load_config(tmp_path / "tiny.yaml")
    ingest_config(config, print)
    run = train_config(config)
    backtest_run(run, [], tmp_path / tiny["output"], echo=print)
    days = [
        dt.date(2023, 1, 2) + dt.timedelta(weeks=week, days=day) for week in range(60) for day in range(5)
    ]
    rows = [f"{day},{ticker},{10 + i % 7}" for i, day in enumerate(days) for ticker in "ABCDEFGHIJ"]
    (tmp_path / "prices.csv").write_text("\n".join(["date,ticker,close", *rows]))
    of_run = (f"runs show {run}", f"trials list --run {run}", f"compare {run}:ridge {run}:zero")
    looking = [
        *("features", "runs list", "trials list", "runs prune", "replicate", "init prices.csv"),
        *(f"{words} --output {tiny['output']}" for words in of_run),
        *(f"{words} tiny.yaml" for words in ("lake status", "lake compact", "quarantine list")),
    ]
    call(looking, LIBRARIES, tmp_path)
