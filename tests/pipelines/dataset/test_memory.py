"""The memory estimate: by hand, fewer workers when memory is short, and a refusal with a cure."""

from __future__ import annotations

from typing import Any

import pytest

from features.library.characteristics import CHARACTERISTICS
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.memory import Machine, estimate_need, fit_workers, this_machine
from pipelines.errors import DataError

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
