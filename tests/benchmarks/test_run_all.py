"""``make bench`` covers every benchmark, keeps its time limit and lists what it left out."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from run_all import BENCHMARKS, LEFT_OUT, run_all


def test_every_benchmark_is_run_or_left_out_with_a_reason() -> None:
    scripts = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if '__name__ == "__main__"' in path.read_text() and path.stem != "run_all"
    }
    assert set(BENCHMARKS) | set(LEFT_OUT) == scripts
    assert not set(BENCHMARKS) & set(LEFT_OUT)
    assert len(scripts) >= 11


def test_time_limit_is_kept_and_skipped_benchmarks_are_listed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quick.py").write_text("import sys; print('measured', *sys.argv[1:])")
    (tmp_path / "broken.py").write_text("raise SystemExit('missed its bar')")
    (tmp_path / "endless.py").write_text("import time; time.sleep(600)")
    (tmp_path / "late.py").write_text("print('never')")
    names = {"quick": ("--runs", "1"), "broken": (), "endless": (), "late": ()}
    started = time.monotonic()
    code = run_all(tmp_path, names, {"whole": "an hour"}, minutes=0.3)
    assert time.monotonic() - started < 60
    output = capfd.readouterr().out
    assert code == 1
    assert "measured --runs 1" in output
    assert "left out: whole (an hour)" in output
    assert (
        "left out: endless (stopped when the 0.3 minutes were over: python benchmarks/endless.py)" in output
    )
    assert "left out: late (the 0.3 minutes were over: python benchmarks/late.py)" in output
    assert "failed: broken" in output
    assert "never" not in output
    assert run_all(tmp_path, {"quick": ()}, {}, minutes=1) == 0
