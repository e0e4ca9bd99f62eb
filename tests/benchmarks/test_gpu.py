"""The GPU benchmark runs on any machine with tiny sizes, and needs only torch and numpy."""

from __future__ import annotations

import re
import subprocess
import sys

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

BLOCKED = {"pandas", "polars", "scipy", "numba", "sklearn", "lightgbm", "pyarrow", "deltalake", "pydantic",
           "mlflow", "shap", "plotly", "yaml", "joblib", "safetensors", "pipelines",
           "backtest", "dataframely", "skfolio", "statsmodels", "typer", "rich"}
assert not BLOCKED & set(sys.modules)
sys.meta_path.insert(0, Blocked())
sys.argv = ["gpu.py", *sys.argv[1:]]
runpy.run_path("benchmarks/gpu.py", run_name="__main__")
"""


def test_gpu_benchmark_runs_with_only_torch_and_numpy() -> None:
    tiny = ["--device", "cpu", "--tiny", "--seeds", "2"]
    command = [sys.executable, "-c", ALONE, *tiny]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for model in ("temporal_transformer", "temporal_peer"):
        table = done.stdout.split(f"\n{model}: ")[1]
        for way in ("eager", "stacked K=2"):
            cells = re.search(rf"^  {way} +([\d,]+) +nan +([\d.]+) +([\d.]+)$", table, re.MULTILINE)
            assert cells, table
            assert all(float(cell.replace(",", "")) > 0 for cell in cells.groups())
    assert "ceilings: float32" in done.stdout
    assert len(re.findall(r"^  (softmax|local|linear) +(float32|bfloat16)", done.stdout, re.MULTILINE)) == 6
