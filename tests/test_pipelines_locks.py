"""One writer at a time, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from pipelines.config_load import load_config
from pipelines.errors import DataError
from pipelines.lake import Lake
from pipelines.locks import Locks
from pipelines.run import ingest_config
from pipelines.runs import open_run
from pipelines.walkforward import read_scores

HOLD = """
import sys, time
from pathlib import Path
from pipelines.locks import Locks
with Locks(wait=False, say=print) as locks:
    getattr(locks, sys.argv[1])(Path(sys.argv[2]) if sys.argv[1] == "hold_run" else sys.argv[2])
    print("held", flush=True)
    time.sleep(60)
"""


def holder(method: str, place: Path) -> subprocess.Popen[str]:
    """Another process that holds a lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, method, str(place)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("method", ["hold_run", "hold_ingest"])
def test_a_second_process_names_the_holder_and_a_dead_ones_lock_is_taken_over(
    tmp_path: Path, method: str
) -> None:
    place = tmp_path / "tiny-1"

    def take() -> None:
        with Locks(wait=False, say=print) as locks:
            getattr(locks, method)(place if method == "hold_run" else str(place))

    process = holder(method, place)
    try:
        with pytest.raises(DataError, match=rf"being written by process {process.pid} on .*, since 20"):
            take()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert [path for path in place.iterdir() if path.name.endswith(".holder")], "the dead one's note is there"
    take()
    process = holder(method, place)
    try:
        (note,) = [path for path in place.iterdir() if path.name.endswith(".holder")]
        stale = json.loads(note.read_text()) | {"pid": 2**22 + 1}
        note.write_text(json.dumps(stale))
        with pytest.raises(DataError, match="being written by another process;"):
            take()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("wait", [False, True])
def test_two_trainings_of_one_config_end_with_one_complete_run(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    models = {"ridge": {}, "temporal_peer": {"width": 8, "heads": 2}}
    Path("tiny.yaml").write_text(yaml.safe_dump({**tiny, "models": models, "fit": {"epochs": 12}}))
    ingest_config(load_config(Path("tiny.yaml")), say=lambda _: None)
    command = [sys.executable, "-c", "from pipelines.cli import main; main()", "train", "tiny.yaml"]
    started = [
        subprocess.Popen(
            [*command, *(["--wait"] if wait else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=200) for process in started]
    codes = sorted(process.returncode for process in started)
    assert codes == ([0, 0] if wait else [0, 3]), said
    if not wait:
        (refused,) = [err for process, (_, err) in zip(started, said, strict=True) if process.returncode]
        (other,) = [process.pid for process in started if not process.returncode]
        assert f"is being written by process {other} on" in refused.splitlines()[-1]
        assert "add --wait" in refused.splitlines()[-1]
    (run_id,) = {out.strip() for out, _ in said if out}
    assert Lake("lake").version("forecasts") == 4, "each of four tasks was committed once"
    keys = Lake("lake").read("forecasts").select("model", "fold", "seed").unique()
    assert keys.height == 4
    assert read_scores(open_run(run_id, Path("runs"))).select(pl.len()).item() == 4
