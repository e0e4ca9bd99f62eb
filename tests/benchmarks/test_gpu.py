"""The GPU benchmark runs on any machine with tiny sizes, and needs only torch, numpy and pydantic."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

ALONE = """
import importlib.abc, runpy, sys
import torch._dynamo  # asks for optional libraries of torch's own, which may be there

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in BLOCKED:
            raise ImportError(f"{name} is not on a GPU box")
        return None

BLOCKED = {"pandas", "polars", "scipy", "numba", "sklearn", "lightgbm", "pyarrow", "deltalake",
           "mlflow", "shap", "plotly", "yaml", "joblib", "safetensors", "pipelines",
           "backtest", "dataframely", "skfolio", "statsmodels", "typer", "rich"}
assert not BLOCKED & set(sys.modules)
sys.meta_path.insert(0, Blocked())
sys.argv = ["gpu.py", *sys.argv[1:]]
runpy.run_path("benchmarks/gpu.py", run_name="__main__")
"""


@pytest.mark.slow(4)
def test_gpu_benchmark_runs_with_only_torch_numpy_and_pydantic(tmp_path: Path) -> None:
    models = ["temporal_peer", "cross_peer"]
    tiny = ["--device", "cpu", "--tiny", "--models", *models, "--output", str(tmp_path / "table.md")]
    command = [sys.executable, "-c", ALONE, *tiny]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    _, _, *lines = (tmp_path / "table.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(float(cell.replace(",", "")) > 0 for row in rows for cell in row[3:7])
    measured = {(what, variant) for what, variant, *_ in rows}
    layers = [("day encoder", "eager"), ("peer layer, 20 firms", "eager"), ("peer layer, 40 firms", "eager")]
    eager = ("eager", "panel on the host")
    stacks = [("temporal_peer", "K = 1"), ("temporal_peer", "K = 2")]
    assert measured == {*layers, *((model, how) for model in models for how in eager), *stacks}
    assert {row[2] for row in rows} == {"float32", "bf16"}
    assert "ceilings: float32" in done.stdout
    assert len(re.findall(r"^  (softmax|local|linear) +(float32|bfloat16)", done.stdout, re.MULTILINE)) == 6
