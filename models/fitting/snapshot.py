"""Snapshots of an unfinished training: enough to resume it with the same bits on a CPU.

A snapshot holds the weights, the best weights so far, the running mean, the moments of the optimizer, the
schedule, and the state of every random generator (order of dates, draw of firms, dropout), as plain arrays
and JSON values, never as a pickle.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from models.fitted import EpochRecord
from models.fitting.optimizer import AdamW

Stage = Literal["pretrain", "fit"]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a training: tensors on the CPU by name, and everything else as one JSON text."""

    tensors: Mapping[str, Tensor]
    numbers: str

    @property
    def stage(self) -> Stage:
        """Whether a model was being fitted or its day encoder pretrained."""
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
            raise UnusableSnapshot(f"it has no {name}") from error


class UnusableSnapshot(ValueError):  # noqa: N818  (what it is)
    """A snapshot that a training cannot resume from."""


class SnapshotStore(Protocol):
    """Stores the newest snapshot of one training."""

    def load(self) -> Snapshot | None:
        """Return the newest snapshot, or None if there is none."""
        ...

    def save(self, snapshot: Snapshot) -> None:
        """Replace the snapshot, atomically."""
        ...


@dataclass(eq=False)
class SeedState:
    """What changes for one seed while it is trained."""

    seed: int  # the seed
    module: nn.Module  # trained in place
    generator: torch.Generator  # draws dates and firms; dropout draws from torch's global generator
    # weights, epoch and validation score of the best epoch so far
    best: Mapping[str, Tensor]
    best_epoch: int = -1
    best_score: float = -math.inf
    history: list[EpochRecord] = field(default_factory=list)  # one record per finished epoch

    def add(self, record: EpochRecord, stop_on: Literal["rank_ic", "ic"] | None) -> None:
        """Append a record; keep the weights if its score is the best so far, or if there is no score."""
        self.history.append(record)
        score = record.valid_ic if stop_on == "ic" else record.valid_rank_ic
        if stop_on is None or score > self.best_score:
            self.best_epoch, self.best_score = record.epoch, score
            self.best = {name: value.clone() for name, value in self.module.state_dict().items()}


@dataclass(eq=False)
class TrainingState:
    """Everything that changes while one seed is trained."""

    seed_state: SeedState  # the part that a stack of seeds has once per seed
    optimizer: AdamW  # with its schedule and the running mean
    stage: Stage  # whether a model is fitted or its day encoder pretrained
    pretraining: tuple[EpochRecord, ...] = ()  # records of the pretraining that came before a fit

    def snapshot(self) -> Snapshot:
        """Copy the state, with that of torch's global generator."""
        seed, moments = self.seed_state, self.optimizer.state_dict()
        random = {"generator": seed.generator.get_state(), "torch": torch.get_rng_state()}
        device = next(seed.module.parameters()).device
        if device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(device)
        parts: dict[str, Mapping[Any, Tensor]] = {
            "module": seed.module.state_dict(),
            "best": seed.best,
            "mean": dict(enumerate(self.optimizer.mean.means)),
            "random": random,
            **{f"optimizer.{index}": part for index, part in moments["state"].items()},
        }
        numbers = {
            "stage": self.stage,
            "pretraining": [asdict(record) for record in self.pretraining],
            "history": [asdict(record) for record in seed.history],
            "best_epoch": seed.best_epoch,
            "best_score": seed.best_score,
            "taken": int(self.optimizer.taken),
            "param_groups": moments["param_groups"],
        }
        tensors = {
            f"{part}/{name}": value.detach().cpu().clone().contiguous()
            for part, named in parts.items()
            for name, value in named.items()
        }
        return Snapshot(tensors, json.dumps(numbers))

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot; UnusableSnapshot if it belongs to another model or fit."""
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in snapshot.tensors.items():
            part, _, name = key.partition("/")
            parts.setdefault(part, {})[name] = value
        seed, optimizer, moments = self.seed_state, self.optimizer, "optimizer."
        device = next(seed.module.parameters()).device
        try:
            numbers = json.loads(snapshot.numbers)
            seed.module.load_state_dict(parts["module"])
            state = {int(p.removeprefix(moments)): own for p, own in parts.items() if p.startswith(moments)}
            optimizer.load_state_dict({"state": state, "param_groups": numbers["param_groups"]})
            optimizer.taken.fill_(numbers["taken"])
            for index, mean in enumerate(optimizer.mean.means):
                mean.copy_(parts["mean"][str(index)])
            seed.history[:] = [EpochRecord(**record) for record in numbers["history"]]
            seed.best = {name: value.to(device) for name, value in parts["best"].items()}
            seed.best_epoch, seed.best_score = numbers["best_epoch"], numbers["best_score"]
            seed.generator.set_state(parts["random"]["generator"])
            torch.set_rng_state(parts["random"]["torch"])
            if "cuda" in parts["random"]:
                torch.cuda.set_rng_state(parts["random"]["cuda"], device)
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise UnusableSnapshot(f"it belongs to another model or fit: {error}") from error
