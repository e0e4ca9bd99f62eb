"""Versions that the tests of the registry share; each test starts without signals, aliases and nights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from live_versions import Versions, train_versions


@pytest.fixture(scope="session")
def trained_versions(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Versions:
    folder = tmp_path_factory.mktemp("versions")
    settings = {
        **tiny_settings,
        "name": "tiny",
        "models": {"ridge": {}},
        "audit": {"enabled": False},
        "lake": str(folder / "lake"),
        "output": str(folder / "runs"),
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db", "artifacts": str(folder / "artifacts")},
    }
    return train_versions(folder, settings)


@pytest.fixture
def versions(trained_versions: Versions) -> Versions:
    trained_versions.forget()
    return trained_versions
