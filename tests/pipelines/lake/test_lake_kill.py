"""An ingest killed by SIGKILL at random moments: nothing is lost or duplicated, and a repeat completes it.

benchmarks/kill_ingest.py makes the same trial with the whole command and 1.6 million rows; the processes here
load only what an ingest needs.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import polars as pl
import pytest
from places import ROOT
from warm import Process

SCRIPT = ROOT / "benchmarks" / "kill_ingest.py"
INGEST = """
import sys
from pathlib import Path
from pipelines.ingest.ingest import ingest
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.sources.files.source import FilesSource
from pipelines.sources.settings import FilesSourceConfig
progress = Progress()
with progress.stage("ingest"):
    kind = Path(sys.argv[1]).stem
    given = {"prices": f"{kind}.parquet", "membership": f"{kind}-members.parquet"}
    config = FilesSourceConfig(kind="files", hazards=("The prices are made up.",), **given)
    ingest(FilesSource(config), Lake("lake"), progress)
"""


@pytest.mark.slow(4)
def test_an_ingest_survives_kills_at_random_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("kill_ingest", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "kill_ingest", script)
    spec.loader.exec_module(script)
    monkeypatch.setattr(
        script.Trial, "start", lambda trial, kind: Process(INGEST, [f"{kind}.yaml"], trial.folder)
    )
    verdict = script.run_kills(tmp_path, firms=30, sessions=400, kills=8)
    assert verdict.kills == sum(verdict.outcomes.values()) == 8
    assert any(outcome.startswith("before") for outcome in verdict.outcomes), "some kills must come in time"
    withdrawn = script.bars(30, 400).filter((pl.col("date").dt.day() == 7) & (pl.col("ticker") < "F0009"))
    assert withdrawn.height > 100
    assert verdict.rows == 30 * 400 - withdrawn.height
