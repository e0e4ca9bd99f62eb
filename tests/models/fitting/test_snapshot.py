"""A training that goes on from a snapshot ends with the same weights, to the bit, as one undisturbed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from memory_snapshots import KilledError, Memory
from small_panels import NEURAL, SMALL, options_of

from models.batch import PanelTensors
from models.fitted import EpochRecord, Fitted
from models.fitting.config import FitConfig
from models.fitting.fit import fit
from models.fitting.snapshot import Snapshot, UnusableSnapshot


@pytest.fixture(scope="module")
def data() -> PanelTensors:
    rng = np.random.default_rng(0)
    T, N = 80, 10
    z = rng.normal(size=(T, N, 4))
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(T, N, 3)),
        characteristics_TNF=z,
        mask_TN=rng.random((T, N)) < 0.9,
        group_TN=rng.integers(-1, 3, (T, N)),
        target_TN=0.3 * z[:, :, 0] + rng.normal(size=(T, N)),
        window=6,
        n_groups=3,
        characteristic_names=("return_1", "size", "log_dollar_volume_21", "beta_252"),
    )


def trained(
    name: str,
    data: PanelTensors,
    snapshots: Memory | None,
    seen: list[EpochRecord] | None = None,
    **options: Any,  # noqa: ANN401 (settings)
) -> Fitted:
    fitting = FitConfig(**{"epochs": 4, "batch_dates": 7, "average": 0.9, "firms_per_date": 6, **options})
    return fit(
        name,
        options_of(name, SMALL[name]),
        data,
        np.arange(8, 50),
        np.arange(52, 70),
        fit_config=fitting,
        seed=3,
        on_epoch=None if seen is None else seen.append,
        snapshots=snapshots,
    )


def bits(fitted: Fitted) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in fitted.tensors().items()}


@pytest.mark.slow(2)
@pytest.mark.parametrize(("name", "epoch"), [(name, (1, 3)[at % 2]) for at, name in enumerate(NEURAL)])
def test_resumed_weights_equal_undisturbed_ones_to_the_bit(name: str, epoch: int, data: PanelTensors) -> None:
    whole = trained(name, data, None)
    dying = Memory(dies_after=epoch)
    with pytest.raises(KilledError):
        trained(name, data, dying)
    torch.manual_seed(999)  # another process would not have this one's generator
    seen: list[EpochRecord] = []
    going_on = Memory(dying.kept)
    resumed = trained(name, data, going_on, seen)
    assert going_on.saves == 4 - epoch, "what was done is not done again"
    assert bits(resumed) == bits(whole)
    history = [(record.epoch, record.train_loss, record.valid_ic, record.lr) for record in whole.history]
    assert [(record.epoch, record.train_loss, record.valid_ic, record.lr) for record in seen] == history


def test_a_training_that_had_ended_is_only_read(data: PanelTensors) -> None:
    memory = Memory()
    whole = trained("temporal_transformer", data, memory, patience=1, epochs=30)
    stopped_after = memory.saves
    assert stopped_after < 30, "early stopping must have stopped it"
    again = Memory(memory.kept)
    assert bits(trained("temporal_transformer", data, again, patience=1, epochs=30)) == bits(whole)
    assert again.saves == 0


def test_a_snapshot_of_another_model_is_refused(data: PanelTensors) -> None:
    memory = Memory()
    trained("temporal_transformer", data, memory)
    with pytest.raises(UnusableSnapshot, match="another model or fit"):
        trained("self_peer", data, Memory(memory.kept))
    assert memory.kept is not None
    ablation = Snapshot(
        {k: v for k, v in memory.kept.tensors.items() if not k.startswith("random")}, memory.kept.numbers
    )
    with pytest.raises(UnusableSnapshot):
        trained("temporal_transformer", data, Memory(ablation))
