"""A training step does not wait for its device, and all of it can be recorded: nothing is read back from it.

The panel and the model are on the mock device of `capture_rules`, which names what a GPU would wait for.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from capture_rules import ON_DEVICE, Rules, allow_adamw
from small_panels import options_of, panel
from torch import Tensor

from features.library.scaling import ChannelScaler, RelativeScale
from models.batch import PanelTensors
from models.fitting.config import FitConfig, PretrainConfig
from models.fitting.graphs import Replayed
from models.fitting.loop import SingleSeed, train_seeds
from models.fitting.optimizer import AdamW
from models.fitting.pretraining import DayPredictor, _Steps
from models.fitting.stacked import StackedSeeds, can_stack
from models.forecaster import Forecaster
from models.panel_memory import RelativeWindows, Upload
from models.quantiles import QuantileHead
from models.registry import MODELS

T, N, C, F, W, S = 40, 14, 2, 4, 5, 3
TRAIN, VALID = np.arange(5, 30), np.arange(32, 39)
STACKABLE = [
    name for name, entry in MODELS.items() if entry.kind == "neural" and can_stack(name, FitConfig())
]


def on_device(*, in_host_memory: bool = False, scaler: ChannelScaler | None = None) -> PanelTensors:
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
        return_TN=target,
        in_host_memory=in_host_memory,
        scaler=scaler,
    )
    if in_host_memory:
        object.__setattr__(data, "upload", Upload(ON_DEVICE))
    if data.relative is not None:
        places = {
            field.name: getattr(data.relative, field.name) for field in dataclasses.fields(data.relative)
        }
        there: dict[str, Any] = {
            name: x.to(ON_DEVICE) if isinstance(x, Tensor) else x for name, x in places.items()
        }
        object.__setattr__(data, "relative", RelativeWindows(**there))
    for field in dataclasses.fields(data):
        value = getattr(data, field.name)
        if isinstance(value, Tensor) and field.name not in on_host:
            object.__setattr__(data, field.name, value.to(ON_DEVICE))
    return data


def built(name: str, data: PanelTensors, config: FitConfig) -> Forecaster:
    """The default model in training, on the mock device."""
    entry = MODELS[name]
    module = entry.build(entry.config(), data.shape)
    assert isinstance(module, Forecaster)
    if config.loss == "quantile":
        module.quantile_head = QuantileHead(config.quantiles, F)
    return module.to(ON_DEVICE).train()


class Recorded(Rules):
    """Rules of work that is recorded on a GPU, and the number of calls that do it before it is replayed."""

    def __init__(self) -> None:
        super().__init__(recorded=True)
        self.calls: float = math.inf


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """What the rules say of all work that is recorded on a GPU. A replay calls nothing, as there."""
    rules = Recorded()

    class Watched(Replayed):
        def __call__(self, work: Callable[[], None]) -> None:
            if rules.calls > 0:
                rules.calls -= 1
                with rules:
                    work()

    allow_adamw(monkeypatch)
    monkeypatch.setattr("models.fitting.stacked.Replayed", Watched)
    monkeypatch.setattr("models.fitting.pretraining.Replayed", Watched)
    return rules


MORE: list[dict[str, Any]] = [
    {"firms_per_date": 4, "average": 0.9, "layer_decay": 0.5},
    {"loss": "quantile"},
    {"loss": "pairwise"},
    {"loss": "sharpe"},
    {"loss": "net_utility"},
]


def engine_of(name: str, seeds: int, config: FitConfig) -> StackedSeeds:
    data = on_device()
    modules = [built(name, data, config) for _ in range(seeds)]
    return StackedSeeds(modules, data, config, range(seeds), TRAIN)


@pytest.mark.slow(20)
@pytest.mark.parametrize(
    ("name", "seeds", "options"),
    [
        *((name, seeds, {}) for name in STACKABLE for seeds in (1, 2)),
        *((name, 1, options) for name in ("mlp", "temporal_peer") for options in MORE),
    ],
    ids=str,
)
def test_a_step_can_be_recorded_and_needs_nothing_of_the_host_when_it_is_replayed(
    name: str, seeds: int, options: dict[str, Any], recorded: Recorded
) -> None:
    config = FitConfig(batch_dates=2, **options)
    engine = engine_of(name, seeds, config)
    optimizer, of_host = AdamW(engine.groups(), config, 10), []
    recorded.calls = 3  # the step twice in an epoch of the same shape, and once in another one
    for dates in (2, 2, 4, 4):
        before = recorded.operations
        with Rules() as rules:
            measured_2KS = engine.epoch(torch.arange(6, 6 + dates).expand(seeds, -1), optimizer)
        of_host.append(rules.operations - (recorded.operations - before))
        assert measured_2KS.shape == (2, seeds, dates // 2)
        assert measured_2KS.device == ON_DEVICE
    assert recorded.operations > 100
    assert recorded.names == []
    if not engine.draws:
        assert of_host[1] == of_host[3] <= 6, "an epoch starts with a few copies, a step has none"


@pytest.mark.parametrize("name", ["temporal_transformer", "temporal_peer"])
def test_a_step_in_parts_can_be_recorded(name: str, recorded: Recorded) -> None:
    config = FitConfig(batch_dates=5)
    engine = engine_of(name, 2, config)
    engine.dates_at_once = 2
    with Rules():
        engine.epoch(torch.arange(6, 13).expand(2, -1), AdamW(engine.groups(), config, 10))
    assert recorded.operations > 100
    assert recorded.names == []


@pytest.mark.parametrize("name", ["temporal_transformer", "temporal_peer"])
def test_a_panel_in_the_memory_of_the_host_is_copied_before_what_is_recorded(
    name: str, recorded: Recorded
) -> None:
    data, config = on_device(in_host_memory=True), FitConfig(batch_dates=4)
    engine = StackedSeeds([built(name, data, config)], data, config, (0,), TRAIN)
    with Rules() as rules:
        engine.epoch(torch.arange(6, 14)[None], AdamW(engine.groups(), config, 10))
    assert recorded.operations > 100
    assert recorded.names == []
    copies = [each for each in rules.names if each == "copy to the device"]
    assert len(copies) >= 4, "windows and characteristics of two steps"


def test_windows_relative_to_their_last_session_are_gathered_in_what_is_recorded(recorded: Recorded) -> None:
    scale = RelativeScale(np.array([0, 0]), np.ones((W, C)), np.ones((W, C)))
    data = on_device(scaler=ChannelScaler(np.zeros(C), np.ones(C), relative=scale))
    config = FitConfig(batch_dates=4)
    engine = StackedSeeds([built("gru", data, config)], data, config, (0,), TRAIN)
    with Rules():
        engine.epoch(torch.arange(6, 14)[None], AdamW(engine.groups(), config, 10))
    assert data.relative is not None
    assert recorded.operations > 100
    assert recorded.names == []


@pytest.mark.slow(3)
@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("name", ["mlp", "seq2seq", "temporal_peer"])
def test_validation_is_recorded_and_reads_its_scores_once(name: str, seeds: int, recorded: Recorded) -> None:
    config = FitConfig(batch_dates=3)
    engine = engine_of(name, seeds, config)
    for module in engine.modules:
        module.eval()
    with Rules() as rules:
        engine.validate(VALID)
        del rules.names[:]
        found = engine.validate(VALID)
    assert recorded.operations > 30
    assert recorded.names == []
    assert rules.names.count("copy to the host") == 1
    assert found.rank_ic_KV.shape == found.ic_KV.shape == (seeds, len(VALID))


@pytest.mark.parametrize("objective", ["masked_days", "next_day"])
def test_a_step_of_pretraining_can_be_recorded(objective: Any, recorded: Recorded) -> None:  # noqa: ANN401
    data, config = on_device(), FitConfig()
    module = built("temporal_transformer", data, config)
    how = PretrainConfig(objective=objective)
    predictor = DayPredictor(module.encoder, how, C, W).to(ON_DEVICE)  # type: ignore[arg-type]
    windows = torch.arange(20, device=ON_DEVICE)
    with Rules():
        steps = _Steps(
            predictor, data, windows, windows % N, config, 8, AdamW(_groups(predictor), config, 10)
        )
        steps.epoch(torch.arange(20), torch.Generator())
    assert recorded.names == []
    assert recorded.operations > 100


def _groups(module: torch.nn.Module) -> Any:  # noqa: ANN401 (groups of parameters)
    return [{"params": list(module.parameters()), "lr": 0.1, "weight_decay": 0.0}]


def test_an_engine_is_freed_as_soon_as_it_is_let_go() -> None:
    """A recorded step holds gigabytes of a GPU, and no search for cycles comes before the next one."""
    config = FitConfig(batch_dates=4)
    data = panel()
    module = MODELS["mlp"].build(options_of("mlp"), data.shape)
    engine = StackedSeeds([module], data, config, (0,), TRAIN)
    engine.epoch(torch.arange(6, 14)[None], AdamW(engine.groups(), config, 10))
    engine.validate(VALID)
    gone = weakref.ref(engine)
    del engine
    assert gone() is None


def test_work_is_done_once_a_call_whether_computed_recorded_or_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a stand-in for CUDA: recording does nothing yet, so that a replay must follow it."""
    done: list[str] = []

    class Stream:
        def wait_stream(self, other: Stream) -> None:
            done.append("waits")

    class Graph:
        def replay(self) -> None:
            done.append("replayed")

    def recording(*_: object, **__: object) -> nullcontext[None]:
        done.append("recorded:")
        return nullcontext()

    monkeypatch.setattr("models.fitting.graphs.stream_of", lambda _: Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", recording)
    replayed = Replayed(torch.device("cuda"))
    for _ in range(6):
        replayed(lambda: done.append("work"))
    warm = ["waits", "work", "waits"] * 3
    assert done == [*warm, "recorded:", "work", "replayed", "replayed", "replayed"]


def test_cross_peer_reads_the_size_of_its_reference_universe_once_a_step() -> None:
    data, config = on_device(), FitConfig(batch_dates=4)
    engine = SingleSeed(built("cross_peer", data, config), data, config, 0, TRAIN)
    optimizer = torch.optim.SGD([p for group in engine.groups() for p in group["params"]], lr=0.1)
    with Rules() as rules:
        loss, norm = engine.step(torch.tensor([[7, 12, 9, 20]]), optimizer)
    assert rules.names == ["_local_scalar_dense"]
    assert loss.device == norm.device == ON_DEVICE


def test_an_operation_on_host_and_device_is_named() -> None:
    on_host, there = torch.ones(3), torch.ones(3, device=ON_DEVICE)
    with Rules() as rules:
        there[torch.tensor([0, 2])]
        on_host.to(ON_DEVICE)
        on_host.to(ON_DEVICE, non_blocking=True)
        there.copy_(on_host)
        there * on_host.sum()
    assert rules.names == ["index of host and device", "copy to the device", "copy to the device"]


def test_an_epoch_reads_its_losses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, where all values exist: the loop calls ``tolist`` once, after the last step."""
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

        def epoch(self, dates_KD: Tensor, optimizer: AdamW) -> Tensor:
            found = []
            for dates_KB in dates_KD.split(4, dim=1):
                self.taken += 1
                optimizer.step()
                found.append(torch.stack((torch.tensor([1.0, 2.0]) * dates_KB.shape[1], torch.ones(2))))
            return torch.stack(found, dim=-1)

    engine: Any = Steps()
    histories = train_seeds(engine, np.arange(10), None, FitConfig(epochs=2, batch_dates=4))
    assert engine.taken == 6
    assert calls == [(2, 2, 3)] * 2  # loss and norm, two seeds, three steps
    # the mean over dates: steps of 4, 4 and 2 dates
    assert [h[0].train_loss for h in histories] == pytest.approx([(16 + 16 + 4) / 10, (32 + 32 + 8) / 10])
