"""A training step does not wait for its device: nothing is read back from it.

The mock device is ``meta``: its tensors have shapes and no values, as those of a GPU have no values on the
host until it is waited for. The panel and the model are on it; tensors on the host are ordinary. Operations
that wait for the device are named and counted: those that need its values, and copies to it that are not
asynchronous. An operation on tensors of both places, which a GPU refuses or copies for, counts too.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models.batch import PanelTensors
from models.fitting.config import FitConfig
from models.fitting.loop import SingleSeed
from models.fitting.stacked import StackedSeeds, can_stack
from models.forecaster import Forecaster
from models.panel_memory import Upload
from models.registry import MODELS

T, N, C, F, W, S = 40, 14, 2, 4, 5, 3
TRAIN, VALID = np.arange(5, 30), np.arange(32, 39)
NEURAL = [
    name
    for name, entry in MODELS.items()
    if isinstance(entry.build, type) and issubclass(entry.build, Forecaster)
]
ASKED_FOR = {"cross_peer": ["_local_scalar_dense"]}
"""The reference universe of cross_peer has as many places as its largest date, read once per pass."""
UPLOADS = ["copy to the device"] * 2
"""Windows and characteristics of a panel on the host. `Upload` makes asynchronous copies on CUDA alone."""

ON_DEVICE = torch.device("meta")


class Waits(TorchDispatchMode):
    """Names of the operations that wait for the device; those that read its values get made-up ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        name = func.overloadpacket.__name__
        devices = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.device)]
        if not any(one.device == ON_DEVICE for one in given) and ON_DEVICE not in devices:
            return func(*args, **kwargs)
        if name == "_local_scalar_dense":
            self.names.append(name)
            return 3
        masks = [one for one in given[1:] if one.dtype == torch.bool]
        if name in {"nonzero", "masked_select", "unique_consecutive", "_unique2", "equal"} or (
            name in {"index", "index_put", "index_put_", "_index_put_impl_"} and masks
        ):
            self.names.append(name)
        copied = name in {"_to_copy", "to"} and any(device != ON_DEVICE for device in devices)
        if copied or (name == "copy_" and given[0].device != ON_DEVICE):
            self.names.append("copy to the host")
            return torch.zeros_like(given[0], device="cpu")
        on_host = any(one.device != ON_DEVICE and one.ndim for one in given)
        if name in {"_to_copy", "to", "copy_"}:
            named = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
            if on_host and not named.get("non_blocking"):
                self.names.append("copy to the device")
        elif on_host:
            self.names.append(f"{name} of host and device")
        return func(*args, **kwargs)


def on_device(*, in_host_memory: bool = False) -> PanelTensors:
    """A panel whose firms come and go, on the mock device."""
    on_host = {"listed_TN", "known_TN"}
    if in_host_memory:
        on_host |= {"history_NSC", "characteristics_TNF"}
    rng = np.random.default_rng(0)
    target = rng.normal(size=(T, N))
    target[rng.random((T, N)) < 0.1] = np.nan
    data = PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(T, N, C)),
        characteristics_TNF=rng.normal(size=(T, N, F)),
        mask_TN=rng.random((T, N)) < 0.8,
        group_TN=rng.integers(0, S, (T, N)),
        target_TN=target,
        window=W,
        n_groups=S,
        characteristic_names=("return_21", "log_market_equity", "a", "b"),
        path_TNK=np.stack((target, target), axis=-1),
        in_host_memory=in_host_memory,
    )
    if in_host_memory:
        object.__setattr__(data, "upload", Upload(ON_DEVICE))
    for field in dataclasses.fields(data):
        value = getattr(data, field.name)
        if isinstance(value, Tensor) and field.name not in on_host:
            object.__setattr__(data, field.name, value.to(ON_DEVICE))
    return data


def engine_of(name: str, data: PanelTensors, config: FitConfig) -> SingleSeed:
    """The default model in training, on the mock device."""
    entry = MODELS[name]
    module = entry.build(entry.config(), data.shape)
    assert isinstance(module, Forecaster)
    return SingleSeed(module.to(ON_DEVICE).train(), data, config, 0, TRAIN)


@pytest.mark.slow(4)
@pytest.mark.parametrize("in_host_memory", [False, True], ids=["panel-on-device", "panel-on-host"])
@pytest.mark.parametrize("firms", [None, 4])
@pytest.mark.parametrize("name", NEURAL)
def test_a_step_reads_nothing_back(name: str, firms: int | None, in_host_memory: bool) -> None:
    config = FitConfig(batch_dates=4, firms_per_date=firms)
    engine = engine_of(name, on_device(in_host_memory=in_host_memory), config)
    optimizer = torch.optim.SGD([p for group in engine.groups() for p in group["params"]], lr=0.1)
    with Waits() as waits:
        loss, norm = engine.step(torch.tensor([[7, 12, 9, 20]]), optimizer)
    assert waits.names == UPLOADS * in_host_memory + ASKED_FOR.get(name, [])
    assert loss.device == norm.device == ON_DEVICE
    assert loss.shape == norm.shape == (1,)


@pytest.mark.slow(3)
@pytest.mark.parametrize("in_host_memory", [False, True], ids=["panel-on-device", "panel-on-host"])
@pytest.mark.parametrize("firms", [None, 4])
@pytest.mark.parametrize("name", [name for name in NEURAL if can_stack(name, FitConfig())])
def test_a_step_of_stacked_seeds_reads_nothing_back(
    name: str, firms: int | None, in_host_memory: bool
) -> None:
    data, config = on_device(in_host_memory=in_host_memory), FitConfig(batch_dates=4, firms_per_date=firms)
    modules = [engine_of(name, data, config).modules[0] for _ in range(2)]
    engine = StackedSeeds(modules, data, config, (0, 1), TRAIN)
    optimizer = torch.optim.SGD([p for group in engine.groups() for p in group["params"]], lr=0.1)
    with Waits() as waits:
        loss, norm = engine.step(torch.tensor([[7, 12, 9, 20], [8, 11, 6, 21]]), optimizer)
    assert waits.names == UPLOADS * in_host_memory
    assert loss.device == norm.device == ON_DEVICE
    assert loss.shape == norm.shape == (2,)


def test_an_operation_on_host_and_device_is_named() -> None:
    on_host, there = torch.ones(3), torch.ones(3, device=ON_DEVICE)
    with Waits() as waits:
        there[torch.tensor([0, 2])]
        on_host.to(ON_DEVICE)
        on_host.to(ON_DEVICE, non_blocking=True)
        there.copy_(on_host)
        there * on_host.sum()
    assert waits.names == ["index of host and device", "copy to the device", "copy to the device"]


@pytest.mark.parametrize("name", ["temporal_transformer", "temporal_peer", "mlp"])
def test_validation_reads_the_forecasts_once(name: str) -> None:
    engine = engine_of(name, on_device(), FitConfig(batch_dates=3))
    engine.modules[0].eval()
    with Waits() as waits:
        forecast_1VN, _ = engine.validate(VALID)
    assert waits.names == ["copy to the host"]
    assert forecast_1VN.shape == (1, len(VALID), N)


def test_an_epoch_reads_its_losses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, where all values exist: the loop calls ``tolist`` once, after the last step."""
    from models.fitting.loop import train_seeds

    calls: list[tuple[int, ...]] = []
    tolist = Tensor.tolist

    def counted(tensor: Tensor) -> Any:  # noqa: ANN401 (lists of numbers)
        calls.append(tuple(tensor.shape))
        return tolist(tensor)

    monkeypatch.setattr(Tensor, "tolist", counted)

    class Steps:
        """An engine of two seeds without forecasts."""

        def __init__(self) -> None:
            self.data, self.seeds, self.taken = None, (0, 1), 0
            self.modules = [torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]
            self.generators = [torch.Generator().manual_seed(seed) for seed in self.seeds]

        def groups(self) -> list[Any]:
            parameters = [p for module in self.modules for p in module.parameters()]
            return [{"params": parameters, "lr": 0.1, "weight_decay": 0.0}]

        def step(self, dates_KB: Tensor, optimizer: torch.optim.Optimizer) -> tuple[Tensor, Tensor]:
            self.taken += 1
            optimizer.step()
            return torch.tensor([1.0, 2.0]) * dates_KB.shape[1], torch.ones(2)

    engine: Any = Steps()
    histories = train_seeds(engine, np.arange(10), None, FitConfig(epochs=2, batch_dates=4))
    assert engine.taken == 6
    assert calls == [(2, 2, 3)] * 2  # loss and norm, two seeds, three steps
    # the mean over dates: steps of 4, 4 and 2 dates
    assert [h[0].train_loss for h in histories] == pytest.approx([(16 + 16 + 4) / 10, (32 + 32 + 8) / 10])
