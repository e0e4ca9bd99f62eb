"""Where a training stands after an epoch: enough to go on as if it had never stopped, to the bit on a CPU.

Weights, the best weights so far, the running mean, the optimizer's moments, the schedule, and the state of
every random generator (order of dates, draw of firms, dropout). Plain arrays and JSON values, never a pickle.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from models.fitted import EpochRecord

Stage = Literal["pretrain", "fit"]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A training's state: tensors on the CPU by name, and everything else as one JSON text."""

    tensors: Mapping[str, Tensor]
    numbers: str

    @property
    def stage(self) -> Stage:
        """What was being done."""
        stage: Stage = self._number("stage")
        return stage

    @property
    def pretraining(self) -> tuple[EpochRecord, ...]:
        """The epochs of the pretraining that came before a fit."""
        return tuple(EpochRecord(**record) for record in self._number("pretraining"))

    def _number(self, name: str) -> Any:  # noqa: ANN401 (JSON holds anything)
        try:
            return json.loads(self.numbers)[name]
        except (ValueError, KeyError, TypeError) as error:
            raise UnusableSnapshot(f"it does not say its {name}") from error


class UnusableSnapshot(ValueError):  # noqa: N818  (what it is)
    """A snapshot that a training cannot go on from."""


class SnapshotStore(Protocol):
    """Keeps the newest snapshot of one training."""

    def load(self) -> Snapshot | None:
        """Give the newest snapshot, None if there is none."""
        ...

    def save(self, snapshot: Snapshot) -> None:
        """Replace it; whole or not at all."""
        ...


class RunningMean:
    """Exponential mean of a module's parameters over the steps.

    ``m <- m + (1 - d) (w - m)`` with ``d = min(decay, (1 + n) / (10 + n))`` at step n, so that the
    first weights are soon forgotten.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module, self.decay, self.steps = module, decay, 0
        self.means = [p.detach().clone() for p in module.parameters()] if decay > 0.0 else []

    def update(self) -> None:
        """Take the parameters of one step in."""
        if not self.means:
            return
        keep = min(self.decay, (1.0 + self.steps) / (10.0 + self.steps))
        self.steps += 1
        torch._foreach_lerp_(self.means, [p.detach() for p in self.module.parameters()], 1.0 - keep)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the module hold the means while the block runs."""
        if not self.means:
            yield
            return
        parameters = list(self.module.parameters())
        live = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for parameter, value in zip(parameters, self.means, strict=True):
                parameter.copy_(value)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(parameters, live, strict=True):
                    parameter.copy_(value)


@dataclass(eq=False)
class TrainingState:
    """What changes while a model is trained.

    Attributes
    ----------
    module, optimizer, schedule, mean
        Trained in place.
    generator
        Draws dates and firms; dropout draws from torch's own, which is part of a snapshot as well.
    history
        An entry for every finished epoch.
    best, best_epoch, best_score
        Weights, epoch and validation score of the best epoch so far.
    stage
        Whether a model is fitted or its day encoder pretrained.
    pretraining
        The epochs of the pretraining that came before a fit.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    mean: RunningMean
    generator: torch.Generator
    best: Mapping[str, Tensor]
    best_epoch: int = -1
    best_score: float = -math.inf
    history: list[EpochRecord] = field(default_factory=list)
    stage: Stage = "fit"
    pretraining: tuple[EpochRecord, ...] = ()

    def snapshot(self) -> Snapshot:
        """Copy the state."""
        moments = self.optimizer.state_dict()
        parts: dict[str, Mapping[Any, Tensor]] = {
            "module": self.module.state_dict(),
            "best": self.best,
            "mean": dict(enumerate(self.mean.means)),
            "random": self._random(),
            **{f"optimizer.{index}": part for index, part in moments["state"].items()},
        }
        numbers = {
            "stage": self.stage,
            "pretraining": [asdict(record) for record in self.pretraining],
            "history": [asdict(record) for record in self.history],
            "best_epoch": self.best_epoch,
            "best_score": self.best_score,
            "mean_steps": self.mean.steps,
            "param_groups": moments["param_groups"],
            "schedule": self.schedule.state_dict(),
        }
        tensors = {
            f"{part}/{name}": value.detach().cpu().clone().contiguous()
            for part, named in parts.items()
            for name, value in named.items()
        }
        return Snapshot(tensors, json.dumps(numbers))

    def restore(self, snapshot: Snapshot) -> None:
        """Take a snapshot's state; UnusableSnapshot if it belongs to another model or fitting."""
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in snapshot.tensors.items():
            part, _, name = key.partition("/")
            parts.setdefault(part, {})[name] = value
        try:
            numbers = json.loads(snapshot.numbers)
            self.module.load_state_dict(parts["module"])
            moments = {
                int(part.removeprefix("optimizer.")): named
                for part, named in parts.items()
                if part.startswith("optimizer.")
            }
            self.optimizer.load_state_dict({"state": moments, "param_groups": numbers["param_groups"]})
            self.schedule.load_state_dict(numbers["schedule"])
            self.mean.steps = numbers["mean_steps"]
            for index, mean in enumerate(self.mean.means):
                mean.copy_(parts["mean"][str(index)])
            self.history[:] = [EpochRecord(**record) for record in numbers["history"]]
            device = next(self.module.parameters()).device
            self.best = {name: value.to(device) for name, value in parts["best"].items()}
            self.best_epoch, self.best_score = numbers["best_epoch"], numbers["best_score"]
            self._restore_random(parts["random"])
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise UnusableSnapshot(f"it belongs to another model or fitting: {error}") from error

    def _random(self) -> dict[str, Tensor]:
        states = {"generator": self.generator.get_state(), "torch": torch.get_rng_state()}
        device = next(self.module.parameters()).device
        if device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(device)
        return states

    def _restore_random(self, states: Mapping[str, Tensor]) -> None:
        self.generator.set_state(states["generator"])
        torch.set_rng_state(states["torch"])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], next(self.module.parameters()).device)
