"""Explanations of small markets are computed by the processor, if it has several workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pipelines.config.sections import EngineConfig
from pipelines.explain.games import FEW_FIRMS, SEVERAL_WORKERS, explained_on


@pytest.mark.parametrize(
    ("firms", "engine", "workers", "device"),
    [
        (FEW_FIRMS - 1, "pool", SEVERAL_WORKERS, "cpu"),
        (FEW_FIRMS - 1, "serial", SEVERAL_WORKERS, "cuda"),
        (FEW_FIRMS - 1, "ray", SEVERAL_WORKERS, "cuda"),  # gpus_per_task, or the device is cpu
        (FEW_FIRMS - 1, "pool", SEVERAL_WORKERS - 1, "cuda"),
        (FEW_FIRMS, "pool", SEVERAL_WORKERS, "cuda"),
    ],
)
def test_few_firms_are_explained_by_the_processor(firms: int, engine: str, workers: int, device: str) -> None:
    universe_TN = np.zeros((3, FEW_FIRMS + 5), dtype=bool)
    universe_TN[1, :firms] = True
    execution = {"engine": engine, "workers": workers}
    config = SimpleNamespace(device="cuda", execution=EngineConfig.model_validate(execution))
    dataset = SimpleNamespace(universe_TN=universe_TN)
    assert explained_on(cast("Any", config), cast("Any", dataset)) == device
