"""Measured signals are found by names that mean nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.errors import ConfigError, DataError
from pipelines.results import signal_file as record
from pipelines.results.signal_file import find_signals


def test_a_prefix_that_a_run_shares_is_refused_and_latest_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("demo-aaa", "latest-bbb"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "signals.json").write_text("{}")
    assert find_signals("latest", tmp_path) is None
    with pytest.raises(DataError, match="damaged"):
        find_signals("demo", tmp_path)
    monkeypatch.setattr(record, "list_records", lambda output: [(output / "demo-ccc", {})])
    with pytest.raises(ConfigError, match=r"begins with 'demo' under .*: demo-aaa, demo-ccc; give one"):
        find_signals("demo", tmp_path)
