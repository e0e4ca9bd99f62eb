"""The check of a GPU runs on any machine with tiny sizes, and needs only torch, numpy and scipy."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import ROOT

from models.fitting import graphs
from models.fitting.config import FitConfig
from models.registry import MODELS

sys.path.insert(0, str(ROOT / "benchmarks"))

import stand_ins
from gpu_check import SMALL, Report, Sizes, cells_in_order
from gpu_measure import NEURAL, Cell, can_measure, covered, kernel_spans

BLOCKED = """
import importlib.abc, importlib.machinery, sys

class Blocked(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):  # torch asks whether some of them are there
        return importlib.machinery.ModuleSpec(name, self) if name.partition(".")[0] in NAMES else None

    def create_module(self, spec):
        raise ImportError(f"{spec.name} is not on a GPU box")

    def exec_module(self, module):
        pass

NAMES = {"pydantic", "pydantic_core", "pytest", "pandas", "polars", "numba", "sklearn", "lightgbm", "pyarrow",
         "deltalake", "mlflow", "shap", "plotly", "yaml", "joblib", "safetensors", "pipelines", "backtest",
         "dataframely", "skfolio", "statsmodels", "typer", "rich"}
sys.meta_path.insert(0, Blocked())
"""


def alone(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with nothing but torch, numpy and scipy, in this process and those that it starts."""
    (folder / "sitecustomize.py").write_text(BLOCKED)
    own = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=own,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow(20)
def test_the_check_runs_with_only_torch_numpy_and_scipy(tmp_path: Path) -> None:
    given = [
        "--device",
        "cpu",
        "--minutes",
        "4",
        "--rows",
        "3",
        "--models",
        "temporal_peer",
        "temporal_transformer",
    ]
    done = alone(tmp_path, "benchmarks/gpu_check.py", *given, "--output", str(tmp_path / "found"))
    assert done.returncode == 0, done.stderr
    assert "stand-ins for pydantic, pydantic_core, pytest" in done.stdout
    with (tmp_path / "found" / "table.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert len(rows) == 3, done.stdout + done.stderr
    assert [row["model"] for row in rows[:2]] == ["temporal_peer", "temporal_transformer"]
    assert not any(row["error"] for row in rows)
    assert "Error" not in done.stdout
    assert all(
        float(row[name]) > 0 for row in rows for name in ("milliseconds", "samples", "products", "bytes")
    )
    page = (tmp_path / "found" / "table.md").read_text()
    assert page.count("| temporal_peer |") + page.count("| temporal_transformer |") == len(rows)
    assert "temporal_peer, graph, float32: losses of ten steps" in page
    assert "not measured: temporal_peer, 3,000 firms x 8 dates: ms a step (at most 3)" in page


def test_options_without_pydantic_have_the_same_values(tmp_path: Path) -> None:
    script = (
        "import sys, json; sys.path[:0] = ['benchmarks', '.']; import stand_ins; "
        "from models.registry import MODELS; from models.fitting.config import FitConfig; "
        "found = {name: one.config().model_dump(mode='json') for name, one in MODELS.items()}; "
        "print(json.dumps({**found, 'fit': FitConfig(batch_dates=3).model_dump(mode='json')}))"
    )
    done = alone(tmp_path, "-c", script)
    assert done.returncode == 0, done.stderr
    expected: dict[str, Any] = {name: one.config().model_dump(mode="json") for name, one in MODELS.items()}
    expected["fit"] = FitConfig(batch_dates=3).model_dump(mode="json")
    assert json.loads(done.stdout) == json.loads(json.dumps(expected))


def test_tests_are_called_without_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytest", stand_ins._pytest())
    (tmp_path / "functions.py").write_text(
        "import pytest\n"
        "pytestmark = [pytest.mark.cuda, pytest.mark.skipif(False, reason='none')]\n"
        "@pytest.mark.parametrize('a', [1, 2])\n"
        "@pytest.mark.parametrize(('b', 'c'), [(1, 2), (3, 4)])\n"
        "def test_sums(a, b, c): assert a + b < c + 1\n"
        "@pytest.mark.slow(3)\n"
        "def test_passes(): pass\n"
        "def test_needs(tmp_path): pass\n"
        "def test_patches(monkeypatch):\n"
        "    monkeypatch.setattr('models.fitting.graphs.WARM_UP', -1)\n"
        "    from models.fitting.graphs import WARM_UP\n"
        "    assert WARM_UP == -1\n"
    )
    found = dict(stand_ins.run_functions(tmp_path / "functions.py"))
    assert {name for name, outcome in found.items() if outcome == "passed"} == {
        "test_sums[1-1-2]",
        "test_sums[1-3-4]",
        "test_passes",
        "test_patches",
    }
    assert graphs.WARM_UP > 0
    assert "AssertionError" in found["test_sums[2-1-2]"]
    assert found["test_needs"] == "left out: needs the fixture tmp_path"


def test_the_time_of_kernels_counts_overlaps_once_and_neither_copies_nor_annotations() -> None:
    def event(start: float, end: float, name: str = "gemm", device: str = "CUDA", **more: bool) -> Any:  # noqa: ANN401
        return SimpleNamespace(
            name=name,
            device_type=SimpleNamespace(name=device),
            time_range=SimpleNamespace(start=start, end=end),
            is_user_annotation=more.get("annotation", False),
        )

    kernels = [event(20.0, 24.0), event(0.0, 5.0), event(3.0, 8.0), event(4.0, 5.0)]
    others = [
        event(30.0, 40.0, "Memcpy DtoH"),
        event(40.0, 50.0, "Memset"),
        event(50.0, 60.0, "step", annotation=True),
        event(60.0, 70.0, device="CPU"),
    ]
    spans = kernel_spans([*kernels, *others])
    assert spans == [(20.0, 24.0), (0.0, 5.0), (3.0, 8.0), (4.0, 5.0)]
    assert covered(spans) == 12.0


def test_the_targets_come_first_and_every_row_once() -> None:
    cells = list(cells_in_order(Sizes(), NEURAL))
    assert cells[:4] == [
        Cell(model, 3000, 8, seeds, "graph")
        for seeds in (1, 3)
        for model in ("temporal_peer", "temporal_transformer")
    ]
    assert len(cells) == len(set(cells))
    assert all(can_measure(cell) for cell in cells)
    sizes = {(cell.model, cell.firms, cell.dates, cell.seeds) for cell in cells if cell.how == "graph"}
    assert {
        ("temporal_peer", n, b, k) for n in (1000, 3000, 8000) for b in (8, 32) for k in (1, 3, 8)
    } <= sizes
    assert {cell.model for cell in cells} == set(NEURAL)
    assert list(cells_in_order(SMALL, ("temporal_peer",)))


def test_targets_are_judged_by_the_figures(tmp_path: Path) -> None:
    report = Report(tmp_path)
    rest = {"samples": 1.0, "products": 1.0, "bytes": 1.0, "gib": 1.0, "estimate": 1.0}

    def add(seeds: int, milliseconds: float, kernels: float, how: str = "graph") -> None:
        cell = Cell("temporal_peer", 3000, 8, seeds, how)
        report.add(cell, {**rest, "milliseconds": milliseconds, "kernels": kernels})

    add(1, 4.0, 0.95)
    assert report.targets()[0] == "MISSED: temporal_peer, 3,000 firms x 8 dates: ms a step 4 (at most 3)"
    add(1, 2.5, math.nan, "compiled")
    add(3, 5.0, 0.9)
    report.add(Cell("temporal_peer", 8000, 32, 3, "graph"), "OutOfMemoryError: none left")
    report.agreement = {"temporal_peer, graph, float32": 2e-4, "temporal_peer, graph, bf16": 2e-3}
    report.epochs = {"temporal_peer": 0.95}
    verdicts = [line.partition(":")[0] for line in report.targets()]
    assert verdicts == ["holds"] * 3 + ["not measured"] * 5 + ["MISSED", "holds"]
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 5
