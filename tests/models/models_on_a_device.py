"""Models trained on a mock of a GPU: each tensor is where it belongs, and results are those of the CPU.

Dropout is off, because its masks are drawn in another way on a CPU, and all dates of a step go through the
model at once, as on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from memory_snapshots import KilledError, Memory
from mock_device import NAME, MockDevice
from small_panels import NAMES, NEURAL, SMALL, TEST, TRAIN, VALID, S, W, arrays, options_of

from features.arrays import Float32Array
from models.attention.core import attention
from models.batch import Batch, PanelTensors
from models.fitted import Fitted
from models.fitting.config import FitConfig, PretrainConfig
from models.fitting.fit import fit, fit_stacked, refit, restore
from models.fitting.stacked import StackedSeeds, Walk, can_stack

QUICK: dict[str, Any] = {"epochs": 2, "batch_dates": 16, "dates_per_epoch": 16}  # the mock is slow


@pytest.fixture(autouse=True)
def _on_the_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("models.fitting.loop.CPU_CELLS", 10**9)
    with MockDevice():
        yield


@functools.cache
def panel(device: str, **options: Any) -> PanelTensors:  # noqa: ANN401 (options of the constructor)
    given = arrays()
    path_TNK = given["target_TN"][..., None]
    return PanelTensors.from_arrays(
        **given, window=W, n_groups=S, characteristic_names=NAMES, path_TNK=path_TNK, device=device, **options
    )


def without_dropout(name: str) -> dict[str, Any]:
    given = dict(SMALL[name])
    if "encoder" in given:
        given["encoder"] = {**given["encoder"], "dropout": 0.0}
    elif "dropout" in type(options_of(name)).model_fields:
        given["dropout"] = 0.0
    return given | ({"peer_dropout": 0.0} if name == "temporal_peer" else {})


@functools.cache
def fitted(name: str, data: PanelTensors, **options: Any) -> Fitted:  # noqa: ANN401 (settings of the training)
    """Fit a model once for all tests; a forecast does not change it."""
    config = FitConfig(**QUICK | options)
    return fit(name, options_of(name, without_dropout(name)), data, TRAIN, VALID, fit_config=config, seed=0)


def same(ours: Float32Array, of_cpu: Float32Array) -> None:
    spread = float(np.nanstd(of_cpu))
    np.testing.assert_allclose(ours, of_cpu, rtol=0, atol=1e-4 * spread)


@pytest.mark.parametrize("name", SMALL)
def test_forecasts_are_those_of_the_cpu(name: str) -> None:
    on_cpu, there = panel("cpu"), panel(NAME)
    here, ours = fitted(name, on_cpu), fitted(name, there)
    same(ours.forecast(there, TEST), here.forecast(on_cpu, TEST))
    stored = restore(ours.state())
    same(stored.forecast(on_cpu, TEST), here.forecast(on_cpu, TEST))
    same(stored.to(NAME).forecast(there, TEST), here.forecast(on_cpu, TEST))


@pytest.mark.parametrize("name", NEURAL)
def test_a_restored_model_stays_on_the_cpu_until_it_is_moved(name: str) -> None:
    there = panel(NAME)
    stored = restore(fitted(name, there).state())
    with pytest.raises(RuntimeError, match="of the mock device and of the host"):
        stored.forecast(there, TEST)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"loss": "quantile"}),
        ("temporal_peer", {"average": 0.9, "firms_per_date": 7}),
        ("temporal_transformer", {"pretrain": PretrainConfig(epochs=1)}),
        ("temporal_transformer", {"pretrain": PretrainConfig(epochs=1, objective="next_day")}),
        ("temporal_peer", {"layer_decay": 0.5, "label_share": 0.5}),
        ("temporal_peer", {"dates_per_epoch": 21}),  # the last step is filled up
        ("mlp", {"dates_per_epoch": 21, "firms_per_date": 5}),
    ],
)
def test_other_ways_to_train(name: str, options: dict[str, Any]) -> None:
    on_cpu, there = panel("cpu"), panel(NAME)
    here, ours = fitted(name, on_cpu, **options), fitted(name, there, **options)
    same(ours.forecast(there, TEST), here.forecast(on_cpu, TEST))


@pytest.mark.parametrize("name", ["temporal_transformer", "temporal_peer"])
def test_a_panel_in_the_memory_of_the_host(name: str) -> None:
    on_cpu, there = panel("cpu"), panel(NAME, in_host_memory=True)
    assert there.history_NSC.device.type == "cpu"
    same(fitted(name, there).forecast(there, TEST), fitted(name, on_cpu).forecast(on_cpu, TEST))


@pytest.mark.parametrize("name", ["mlp", "temporal_transformer", "self_peer", "temporal_peer", "master"])
def test_stacked_seeds(name: str) -> None:
    """A single seed is a stack as well there, so that `test_forecasts_are_those_of_the_cpu` stacks all."""
    assert can_stack(name, FitConfig())

    def stack(data: PanelTensors) -> list[Any]:
        given, config = without_dropout(name), FitConfig(**QUICK)
        return fit_stacked(name, options_of(name, given), data, TRAIN, VALID, fit_config=config, seeds=(0, 1))

    on_cpu, there = panel("cpu"), panel(NAME)
    for here, ours in zip(stack(on_cpu), stack(there), strict=True):
        same(ours.forecast(there, TEST), here.forecast(on_cpu, TEST))


@pytest.mark.parametrize("name", ["temporal_peer"])
def test_a_training_goes_on_from_its_snapshot_and_is_fitted_again(name: str) -> None:
    config, given = FitConfig(**QUICK), without_dropout(name)

    def trained(data: PanelTensors, kept: Memory) -> Fitted:
        return fit(
            name, options_of(name, given), data, TRAIN, VALID, fit_config=config, seed=0, snapshots=kept
        )

    found = []
    for data in (panel("cpu"), panel(NAME)):
        dying = Memory(dies_after=1)
        with pytest.raises(KilledError):
            trained(data, dying)
        resumed = trained(data, Memory(dying.kept))
        same(resumed.forecast(data, TEST), fitted(name, data).forecast(data, TEST))
        later = refit(resumed, data, TRAIN, VALID, fit_config=config, seed=0)
        found.append(later.forecast(data, TEST))
    same(*found)


@pytest.mark.parametrize("explicit", [0, 32])
@pytest.mark.parametrize("extra", ["none", "keep", "bias", "both", "causal"])
def test_attention_by_either_path_and_in_chunks_is_that_of_the_cpu(
    explicit: int, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.attention.core.EXPLICIT_KEYS", explicit)
    monkeypatch.setattr("models.attention.core.MOST_SEQUENCES", 7)
    torch.manual_seed(0)
    B, H, W, d = 16, 2, 6, 4
    q, k, v = (torch.randn(B, H, W, d) for _ in range(3))
    keep = torch.rand(B, 1, W, W) < 0.7
    keep[3, :, 2] = False  # a query without keys
    given: dict[str, Any] = {"causal": extra == "causal"}
    given |= {"keep": keep} if extra in ("keep", "both") else {}
    given |= {"bias": torch.randn(H, W, W)} if extra in ("bias", "both") else {}
    there = {name: one.to(NAME) for name, one in given.items() if isinstance(one, torch.Tensor)}
    found = attention(*(x.to(NAME) for x in (q, k, v)), **(given | there))
    torch.testing.assert_close(found.cpu(), attention(q, k, v, **given), rtol=1e-5, atol=1e-6)


def test_numpy_cannot_read_the_device_and_operations_on_both_places_are_refused() -> None:
    there = torch.ones(3, device=NAME)
    with pytest.raises(RuntimeError, match="numpy"):
        there.numpy()
    with pytest.raises(RuntimeError, match="add has tensors of the mock device and of the host"):
        there + torch.ones(3)
    assert (there + 1).cpu().numpy().tolist() == [2.0, 2.0, 2.0]


def test_a_device_that_is_full_trains_in_parts_from_the_first_step_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory runs out in the second step, so the first one is undone."""
    name, there, at_once, notes = "temporal_peer", panel(NAME), list[int](), list[str]()
    config, learn = FitConfig(epochs=2, batch_dates=8, dates_per_epoch=16), StackedSeeds._learn

    def full(engine: StackedSeeds, *given: Any) -> None:  # noqa: ANN401 (passed on)
        at_once.append(engine.dates_at_once)
        if at_once in ([8, 8], [8, 8, 4, 4]):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        learn(engine, *given)

    options = options_of(name, without_dropout(name))
    whole = fit(name, options, there, TRAIN, VALID, fit_config=config, seed=0)
    monkeypatch.setattr(StackedSeeds, "_learn", full)
    ours = fit(name, options, there, TRAIN, VALID, fit_config=config, seed=0, note=notes.append)
    assert at_once == [8, 8, 4, 4, 2, 2, 2, 2]
    assert [note.partition(" go ")[0].rpartition("so ")[2] for note in notes] == ["4 dates", "2 dates"]
    same(ours.forecast(there, TEST), whole.forecast(there, TEST))


def test_forecasts_that_do_not_fit_are_made_for_fewer_dates_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    there, at_once, batch = panel(NAME), list[int](), PanelTensors.batch
    ours = fitted("mlp", there)
    whole = ours.forecast(there, TEST)

    def full(data: PanelTensors, dates_B: torch.Tensor) -> Batch:
        at_once.append(len(dates_B))
        if len(dates_B) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return batch(data, dates_B)

    monkeypatch.setattr(PanelTensors, "batch", full)
    same(ours.forecast(there, TEST), whole)
    assert at_once[0] == len(TEST)
    assert min(at_once) <= 3


def test_validation_that_does_not_fit_beside_training_looks_at_fewer_dates_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, at_once, look = panel(NAME), list[int](), StackedSeeds._look
    whole = fitted("mlp", there)

    def full(engine: StackedSeeds, walk: Walk, *given: Any) -> None:  # noqa: ANN401 (passed on)
        at_once.append(walk.batch)
        if walk.batch > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        look(engine, walk, *given)

    monkeypatch.setattr(StackedSeeds, "_look", full)
    options = options_of("mlp", without_dropout("mlp"))
    ours = fit("mlp", options, there, TRAIN, VALID, fit_config=FitConfig(**QUICK), seed=0)
    assert at_once[:3] == [16, 8, 4]
    assert set(at_once[3:]) == {4}
    for mine, theirs in zip(ours.history, whole.history, strict=True):
        assert mine.valid_ic == pytest.approx(theirs.valid_ic, abs=1e-6)
        assert mine.train_loss == theirs.train_loss
