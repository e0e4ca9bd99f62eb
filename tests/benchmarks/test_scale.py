"""The growth benchmark: its configs are valid, and a run that stopped continues where it was."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import scale

from pipelines.config.load import load_config


def test_the_configs_are_valid(tmp_path: Path) -> None:
    scale.write_config(tmp_path, sessions=400, workers=2)
    assert {path.stem for path in tmp_path.glob("*.yaml")} == {"scale", *scale.MODELS}
    assert set(load_config(tmp_path / "scale.yaml").models) == set(scale.MODELS)
    assert load_config(tmp_path / "ridge.yaml").execution.workers == 2


def test_a_stopped_run_continues_after_its_last_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def measure(command: Sequence[str], _: Path) -> tuple[float, float, float, str]:
        if "train" in command and len(ran) == 3:
            ran.append("failed")
            raise RuntimeError
        ran.append(command[-1])
        return 1.0, 2.0, 3.0, ""

    monkeypatch.setattr(scale, "measure", measure)
    with pytest.raises(RuntimeError):
        scale.run_size(4, 400, ["ridge"], 2, tmp_path, together=True)
    found = scale.run_size(4, 400, ["ridge"], 2, tmp_path, together=True)
    names = ["ingest", "dataset", "dataset, again", "train all", "score a night", "backtest", "report"]
    assert [stage.stage for stage in found] == names
    assert len(ran) == len(names) + 1
    lines = (tmp_path / "stages.jsonl").read_text().splitlines()
    assert [json.loads(line)["stage"] for line in lines] == names
