"""The memory estimate: by hand, fewer workers when memory is short, and a refusal with a cure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from features.library.characteristics import CHARACTERISTICS
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.memory import Machine, estimate_need, fit_workers, task_need, this_machine
from pipelines.errors import DataError
from pipelines.train.work import train_group, work_on_arrays

if TYPE_CHECKING:
    from pipelines.train.task import Arrays

GIB = 2**30


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
    assert need.main == 0.5 * GIB + cells * (85 + 8 + 2 * 4)
    assert need.worker == 0.5 * GIB + cells * 12  # ridge reads no windows
    assert need.peak(1) == need.build  # more than main with one task
    assert need.peak(4) == max(need.build, need.main + 4 * need.worker)
    assert need.peak(9) == need.main + 9 * need.worker
    trees = estimate_need(config(models={"trees": {"model": "lightgbm"}}), cells)
    assert trees.worker == need.worker + cells * (13 + 1) + 2.6 * 8 * 200_000
    network = estimate_need(config(models={"ridge": {}, "zero": {}}), cells)
    assert network.worker == need.worker + cells * 2 * 4


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
    assert need.worker == task_need(["lightgbm"], sessions * firms, 2, 1) > task_need(["ridge"], 1, 2, 1)
    assert task_need(["lightgbm", "ridge"], 10**7, 2, 1) == task_need(["lightgbm"], 10**7, 2, 1)


def test_the_estimate_covers_the_measured_peaks() -> None:
    # GiB at 8,000 firms x 6,300 sessions: making the panel, and the main process with its channels
    every = {"window": 16, "characteristics": list(CHARACTERISTICS)[:93]}
    models: dict[str, Any] = {"ridge": {}, "lightgbm": {}, "temporal_transformer": {}}
    label = {"horizon": 1, "delay": 1, "transform": "rank"}
    need = estimate_need(config(features=every, models=models, label=label), 8_000 * 6_300)
    assert 9.03 < need.build / GIB < 1.2 * 9.03
    assert 5.88 < need.main / GIB < 1.2 * 5.88
    assert need.peak(1) < 13 * GIB


def test_workers_are_lowered_to_the_available_memory() -> None:
    cells = 10**7
    need = estimate_need(config(), cells)
    plenty = Machine(64 * GIB, need.peak(4))
    assert fit_workers(config(), cells, plenty) == (4, None)
    workers, note = fit_workers(config(), cells, Machine(64 * GIB, need.peak(4) - 1))
    assert workers == 3
    assert note is not None
    assert note.startswith("4 workers would need about ")
    assert fit_workers(config(), cells, Machine(64 * GIB, 0.0))[0] == 1


def test_a_machine_that_is_too_small_is_refused_with_need_and_cure() -> None:
    with pytest.raises(DataError, match=r"needs about 10\.3 GiB .* has 8\.0; ingest fewer firms") as caught:
        fit_workers(config(), 5 * 10**7 + 10**6, Machine(8 * GIB, 8 * GIB))
    assert caught.value.exit_code == 3


def test_this_machine_has_memory() -> None:
    machine = this_machine()
    assert 0.1 * GIB < machine.available <= machine.total
