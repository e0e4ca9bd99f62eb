"""What workers do before they get tasks, and when they are started for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from backtest.accounts.accounting import run_book
from backtest.accounts.kernels.positions import run_lanes
from backtest.costs.model import CostModel
from pipelines.config.execution import ExecutionConfig
from pipelines.config.schema import Config
from pipelines.execution import pool, ready


def config(**execution: Any) -> Config:  # noqa: ANN401 (settings of the section)
    return Config.model_construct(execution=ExecutionConfig(**execution), device="cpu")


def test_the_loops_that_are_compiled_ahead_are_those_of_a_real_book() -> None:
    ready.compile_accounts()
    loops = cast("Any", run_lanes)
    compiled = len(loops.signatures)
    rng = np.random.default_rng(0)
    index_TN = np.cumprod(1.0 + rng.normal(0.0, 0.02, (30, 5)), axis=0, dtype=np.float64)
    run_book(np.full((30, 5), 0.2), index_TN, rng.random((30, 5)) > 0.1, CostModel(), 1, keep_ledger=True)
    assert len(loops.signatures) == compiled > 0
    assert ready._accounts_are_compiled()


@pytest.mark.parametrize(
    ("execution", "tasks", "expected"),
    [
        ({"workers": 2}, 5, 2),
        ({"workers": 4}, 3, 3),
        ({"workers": 2}, 1, 0),
        ({"workers": 1}, 5, 0),
        ({"engine": "serial"}, 5, 0),
        ({"engine": "ray"}, 5, 0),
    ],
)
def test_workers_are_started_for_the_tasks_that_a_pool_will_compute(
    execution: dict[str, Any], tasks: int, expected: int
) -> None:
    with ready.workers_made_ready(config(**execution)) as make_ready:
        assert not pool._early, "the loops of the accounts are compiled already"
        make_ready(config(**execution), tasks, "")
        assert len(pool._early) == expected
    assert not pool._early


def test_a_machine_without_compiled_loops_compiles_them_in_a_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ready, "_accounts_are_compiled", lambda: False)
    with ready.workers_made_ready(config()):
        assert len(pool._early) == 1
    with ready.workers_made_ready(config(workers=1)):
        assert not pool._early
