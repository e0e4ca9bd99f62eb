"""The memory estimate: by hand, fewer workers when memory is short, and a refusal with a cure."""

from __future__ import annotations

from typing import Any

import pytest

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
    assert need.main == 0.5 * GIB + cells * 160
    assert need.worker == 0.5 * GIB + cells * (2 * 4 + 12)
    assert need.peak(1) == need.main + cells * 20
    assert need.peak(3) == need.main + 3 * need.worker
    trees = estimate_need(config(models={"trees": {"model": "lightgbm"}}), cells)
    assert trees.worker == need.worker + cells * 2 * 1


def test_workers_are_lowered_to_the_available_memory() -> None:
    cells = 10**7
    need = estimate_need(config(), cells)
    plenty = Machine(64 * GIB, need.peak(4))
    assert fit_workers(config(), cells, plenty) == (4, None)
    workers, note = fit_workers(config(), cells, Machine(64 * GIB, need.peak(4) - 1))
    assert workers == 3
    assert note is not None
    assert note.startswith("4 workers would need about 4.7 GiB of memory, and 4.7 are available; 3 are used")
    assert fit_workers(config(), cells, Machine(64 * GIB, 0.0))[0] == 1


def test_a_machine_that_is_too_small_is_refused_with_need_and_cure() -> None:
    with pytest.raises(DataError, match=r"needs about 9\.0 GiB .* has 8\.0; ingest fewer firms") as caught:
        fit_workers(config(), 5 * 10**7 + 10**6, Machine(8 * GIB, 8 * GIB))
    assert caught.value.exit_code == 3


def test_this_machine_has_memory() -> None:
    machine = this_machine()
    assert 0.1 * GIB < machine.available <= machine.total
