"""What workers do before they get tasks, and when they are started for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from places import ROOT

from pipelines import stages as ready
from pipelines.config.schema import Config
from pipelines.config.sections import EngineConfig
from pipelines.execution import pool
from pipelines.machine import Machine


def config(**execution: Any) -> Config:  # noqa: ANN401 (settings of the section)
    return Config.model_construct(execution=EngineConfig(**execution), device="cpu")


SIGNATURES = """
import numpy as np
from random_markets import panel_of, random_tables
from backtest.accounts.accounting import run_book
from backtest.accounts import positions
from backtest.books.rules.quantile_long_short import QuantileLongShort
from backtest.costs import CostModel
from backtest.forecasts import kernels as date_kernels
from backtest.forecasts import kernels as order_kernels
from backtest.forecasts.daily import SortedPanel, persistence
from backtest.forecasts.metrics import forecast_metrics
from features.arithmetic import kernels
from features.library.characteristics import CHARACTERISTICS
from pipelines import stages as ready

OTHER = ("add_by_group", "carry", "keep_traded", "store_float32")  # the dataset needs them too early

def signatures():
    modules = (kernels, positions, date_kernels, order_kernels)
    return {
        (module.__name__, name): len(loop.signatures)
        for module in modules
        for name, loop in vars(module).items()
        if hasattr(loop, "signatures") and name not in OTHER
    }

ready.compile_loops()
compiled = signatures()
rng = np.random.default_rng(0)
panel = panel_of(random_tables(0))
for name in ("volatility_21", "skewness_63", "maximum_return_21", "beta_63", "amihud_21"):
    CHARACTERISTICS[name].compute(panel)
index_TN = np.cumprod(1.0 + rng.normal(0.0, 0.02, (30, 12)), axis=0, dtype=np.float64)
target_TN = QuantileLongShort(quantiles=3).select(rng.normal(size=(30, 12)))
run_book(target_TN, index_TN, rng.random((30, 12)) > 0.1, CostModel(), 1, keep_ledger=True)
forecast_metrics(*rng.normal(size=(2, 30, 12)).astype(np.float32))
persistence(SortedPanel("forecast", rng.normal(size=(30, 12))), (1, 5))
missed = [name for name, count in signatures().items() if count != compiled.get(name)]
assert not missed, missed
assert ready._accounts_are_compiled()
"""


def test_the_loops_that_are_compiled_ahead_are_those_of_the_stages() -> None:
    # a new process, in which no other test has compiled anything
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", SIGNATURES],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


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
        assert not pool._early.workers, "the loops of the accounts are compiled already"
        make_ready(config(**execution), {"cpu": tasks}, "")
        assert len(pool._early.workers) == expected
    assert not pool._early.workers


def test_a_machine_without_compiled_loops_compiles_them_in_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []

    @contextmanager
    def note(function: str) -> Iterator[None]:
        called.append(function)
        yield

    monkeypatch.setattr(ready, "in_own_process", note)
    monkeypatch.setattr(ready, "_accounts_are_compiled", lambda: False)
    with ready.workers_made_ready(config(workers=1)), ready.workers_made_ready(config(engine="serial")):
        assert called == []
    with ready.workers_made_ready(config(workers=2)):
        assert called == [ready.COMPILE_LOOPS]
    monkeypatch.setattr(ready, "_accounts_are_compiled", lambda: True)
    with ready.workers_made_ready(config(workers=2)):
        assert called == [ready.COMPILE_LOOPS]


def test_no_more_workers_are_started_than_the_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "this_machine", lambda: Machine(2**60, 1.2 * 2**30))
    with ready.workers_made_ready(config(workers=4)) as make_ready:
        make_ready(config(workers=4), {"cpu": 4}, "")
        assert len(pool._early.workers) == 2
