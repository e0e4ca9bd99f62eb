"""The pipeline reproduces the golden figures, and the comparison notices differences."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent / "golden"


@pytest.fixture(scope="module")
def golden() -> ModuleType:
    """The script that writes and compares the figures."""
    spec = importlib.util.spec_from_file_location("golden_make", HERE / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow(26)
def test_the_quick_figures_are_the_golden_ones(golden: ModuleType, tmp_path: Path) -> None:
    expected = json.loads((HERE / "quick.json").read_text())
    assert {row.split()[0] for row in expected} == set(golden.QUICK["models"])
    actual = golden.measure(golden.settings_of("quick"), tmp_path)
    wrong = list(golden.differences(expected, actual))
    assert not wrong, "\n".join(["If the change is intended, run make golden:", *wrong])


@pytest.mark.parametrize(
    ("row", "name", "moved"),
    [
        ("ridge at delay 0", "rank_ic", 2e-4),
        ("ridge at delay 0", "long_short.sharpe_net", 0.03),
        ("temporal_transformer at delay 0", "ic", 0.02),
        ("ridge at delay 0", "long_short.turnover", 0.05),
    ],
)
@pytest.mark.parametrize("kind", sorted(path.stem for path in HERE.glob("*.json")))
def test_a_figure_that_moved_by_more_than_rounding_is_named(
    golden: ModuleType, kind: str, row: str, name: str, moved: float
) -> None:
    expected = json.loads((HERE / f"{kind}.json").read_text())
    assert list(golden.differences(expected, expected)) == []
    changed = {key: dict(values) for key, values in expected.items()}
    changed[row][name] += moved
    assert [line.partition(":")[0] for line in golden.differences(expected, changed)] == [f"{row}, {name}"]
    del changed[row][name]
    assert [line.partition(":")[0] for line in golden.differences(expected, changed)] == [f"{row}, {name}"]


def test_a_check_without_golden_figures_ends_at_once_with_the_command_that_makes_them(
    golden: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quick.json").write_text("{}")
    monkeypatch.setattr(golden, "HERE", tmp_path)
    monkeypatch.setattr(golden, "measure", lambda *_: pytest.fail("the demo takes minutes"))
    monkeypatch.setattr(sys, "argv", ["make.py", "--check"])
    with pytest.raises(SystemExit) as exit_info:
        golden.main()
    sentence = f"There is nothing to compare with: {tmp_path} lacks demo.json; run make golden."
    assert exit_info.value.code == sentence, "exit code 1, and this sentence on stderr"
