"""Where compiled training steps are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipelines.device import COMPILED, keep_compiled_steps


def test_compiled_steps_are_kept_in_the_users_cache_unless_another_place_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(COMPILED, "")
    monkeypatch.delenv(COMPILED)
    keep_compiled_steps()
    assert os.environ[COMPILED] == str(tmp_path / ".cache" / "peerglass" / "compiled")
    monkeypatch.setenv(COMPILED, "elsewhere")
    keep_compiled_steps()
    assert os.environ[COMPILED] == "elsewhere"
