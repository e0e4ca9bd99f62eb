"""The memory estimate: by hand, against measured peaks, and a refusal with a cure."""

from __future__ import annotations

import datetime as dt
import tracemalloc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
import pytest

from features.library.characteristics import CHARACTERISTICS
from features.library.sets import characteristics_of
from features.panel.panel import Panel, build_panel
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.memory import comparisons_in, estimate_need, require_memory, task_need
from pipelines.errors import DataError
from pipelines.machine import Machine
from pipelines.train.work import train_group, work_on_arrays

if TYPE_CHECKING:
    from pipelines.train.task import Arrays

GIB = 2**30


def every(characteristics: int) -> dict[str, Any]:
    return {"window": 16, "characteristics": list(CHARACTERISTICS)[:characteristics]}


def config(**settings: Any) -> Config:  # noqa: ANN401
    return check_config(
        {
            "name": "memory",
            "source": {"kind": "sample"},
            "lake": "lake",
            "features": {
                "window": 5,
                "channels": ["return", "intraday_range"],
                "characteristics": ["return_1"],
            },
            "label": {"horizon": 1, "delay": 0, "transform": "rank"},
            "folds": {"scheme": "expanding", "train": 40, "valid": 10, "test": 10, "embargo": 0},
            "models": {"ridge": {}},
            "execution": {"workers": 4},
            **settings,
        },
        origin="test",
    )


def test_the_estimate_by_hand() -> None:
    cells = 10**7
    need = estimate_need(config(), cells)
    assert need.build == 0.5 * GIB + cells * 206
    assert need.main == 0.5 * GIB + cells * (85 + 8)
    assert need.task == 0.5 * GIB + cells * 12  # ridge reads no windows
    assert need.least == need.build  # more than main with one task
    trees = estimate_need(config(models={"trees": {"model": "lightgbm"}}), cells)
    assert trees.task == need.task + cells * (32 + 1) + 2.6 * 8 * 200_000
    network = estimate_need(config(models={"ridge": {}, "zero": {}}), cells)
    assert network.task == need.task + cells * (20 + 2 * 4)
    assert network.least == need.build
    slow = estimate_need(config(models={"trees": {"model": "lightgbm"}}, features=every(150)), cells)
    assert slow.least == slow.main + slow.task - 0.5 * GIB > slow.build, "the main process computes the task"


def test_characteristics_that_are_not_named_are_those_that_prices_allow() -> None:
    models: dict[str, Any] = {"lightgbm": {}}
    features = {"set": "peerglass", "window": 5, "channels": ["return"]}
    from_prices = [name for name in CHARACTERISTICS if not CHARACTERISTICS[name].needs_statements]
    named = config(models=models, features={**features, "characteristics": from_prices})
    grouped = sum("group" in CHARACTERISTICS[name].needs for name in from_prices)
    assert grouped
    difference = (
        estimate_need(named, 10**6).task - estimate_need(config(models=models, features=features), 10**6).task
    )
    assert difference == grouped * (10**6 + 2.6 * 8 * 200_000)


def panel_of(close_TN: np.ndarray) -> Panel:
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=t) for t in range(len(close_TN))]
    firms = close_TN.shape[1]
    cells = [(day, f"F{n}", close_TN[t, n]) for t, day in enumerate(days) for n in range(firms)]
    prices = pl.DataFrame(cells, schema=("date", "ticker", "close"), orient="row")
    unknown = {name: pl.lit(None, dtype=pl.Float64) for name in ("open", "high", "low")}
    known = {"volume": pl.lit(1.0), "split_ratio": pl.lit(1.0), "dividend": pl.lit(0.0)}
    return build_panel(prices.with_columns(**unknown, **known))


def test_formulas_that_compare_firms_need_what_they_keep() -> None:
    """The arrays of the whole market that stay after such formulas are computed, as measured."""
    formulas = {
        "one": "rank(close / delay(close, 5))",
        "two": "rank(close / delay(close, 5)) * rank(volume)",
        "three": "std(rank(volume), 10)",
        "none": "mean(returns, 5)",
    }
    assert comparisons_in(formulas.values()) == 2
    cells = 10**6
    plain, with_formulas = (
        estimate_need(config(features={"window": 5, "channels": ["return"], **more}), cells)
        for more in (
            {"characteristics": ["return_1"]},
            {"characteristics": ["return_1", *formulas], "expressions": formulas},
        )
    )
    assert with_formulas.build - plain.build == cells * (2 * 8 + 10)
    assert with_formulas.main == plain.main, "they are dropped with the other series of the panel"
    rng = np.random.default_rng(0)
    close_TN = np.exp(rng.normal(0.0, 0.01, (400, 500)).cumsum(axis=0))
    panel, registry = panel_of(close_TN), characteristics_of(formulas)
    registry.compute(panel_of(close_TN[:30]), list(formulas))  # compiles loops
    tracemalloc.start()
    try:
        registry.compute(panel, ["one", "two"])
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept >= 2 * 8 * close_TN.size


def test_a_task_for_ray_needs_what_a_worker_is_estimated_to_need() -> None:
    sessions, firms = 100, 1000
    nothing = np.broadcast_to(np.float32(0), (sessions, firms))
    arrays = cast(
        "Arrays",
        SimpleNamespace(
            universe_TN=nothing, channels_TNC=nothing[..., None], characteristics_TNF=nothing[..., None]
        ),
    )
    for model in ("ridge", "lightgbm", "temporal_peer"):
        expected = task_need([model], sessions * firms, 1, 1)
        assert work_on_arrays(train_group, arrays, "cpu", [model]).memory == int(expected)
    need = estimate_need(config(models={"trees": {"model": "lightgbm"}}), sessions * firms)
    assert need.task == task_need(["lightgbm"], sessions * firms, 2, 1) > task_need(["ridge"], 1, 2, 1)
    assert task_need(["lightgbm", "ridge"], 10**7, 2, 1) == task_need(["lightgbm"], 10**7, 2, 1)


def test_the_estimate_covers_the_measured_peaks() -> None:
    # GiB at 8,000 firms x 6,300 sessions: making the panel, the main process, and the workers of two models
    label, cells = {"horizon": 1, "delay": 1, "transform": "rank"}, 8_000 * 6_300
    models: dict[str, Any] = {"ridge": {}, "lightgbm": {}, "temporal_transformer": {}}
    need = estimate_need(config(features=every(93), models=models, label=label), cells)
    assert 9.03 < need.build / GIB < 1.2 * 9.03
    assert 4.5 < need.main / GIB < 1.2 * 4.5
    assert 6.94 < need.task / GIB < 1.1 * 6.94
    network = estimate_need(config(features=every(93), models={"temporal_peer": {}}, label=label), cells)
    assert 3.58 < network.task / GIB < 1.1 * 3.58


def test_a_machine_that_is_too_small_is_refused_with_need_and_cure() -> None:
    with pytest.raises(DataError, match=r"needs about 10\.3 GiB .* has 8\.0; ingest fewer firms") as caught:
        require_memory(config(), 5 * 10**7 + 10**6, Machine(8 * GIB, 8 * GIB))
    assert caught.value.exit_code == 3
    require_memory(config(), 5 * 10**7 + 10**6, Machine(11 * GIB, 0.0))
