"""What a run used, recorded when it was used: ``provenance.jsonl`` in its folder, one JSON line an event.

The file is only ever appended to. A run that was resumed under another commit has two training sessions, and
a report that is written a month later shows the libraries that trained it, not those that are installed now.
Tasks belong to the newest training session before them.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from pipelines.errors import DataError
from pipelines.run.identity import LIBRARIES, code_digest
from pipelines.run.record import Run, git_commit

FILE: Final = "provenance.jsonl"
TRACKED_LIBRARIES: Final = (*LIBRARIES, "deltalake", "mlflow", "polars", "scikit-learn", "shap")
"""Libraries that a run's forecasts, results and records are made with."""


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Environment(_Record):
    """The code and the machine behind an event.

    Attributes
    ----------
    commit
        Commit of the checkout, ``-dirty`` with uncommitted changes; ``unknown`` outside a checkout.
    code
        `pipelines.run.identity.code_digest`, of the code that computes forecasts.
    python
        Version of the interpreter.
    libraries
        Library -> installed version, of those that numbers depend on.
    """

    commit: str
    code: str
    python: str
    libraries: dict[str, str]


class _Event(_Record):
    at: dt.datetime = Field(default_factory=_now)


class TrainingStarted(_Event):
    """A training session began, or an interrupted one was continued.

    Attributes
    ----------
    device
        What trains the models.
    versions
        Lake table -> version that is read.
    hazards, notes
        What the source, the quality rules, the panel and the label warned of at this time.
    trials
        Trials in the ledger, those of this run included.
    done, planned
        Tasks that were done before this session, and tasks of the run.
    """

    event: Literal["training started"] = "training started"
    environment: Environment
    device: str
    versions: dict[str, int]
    hazards: tuple[str, ...]
    notes: tuple[str, ...]
    trials: int
    done: int
    planned: int


class TaskDone(_Event):
    """A model was trained on a fold with a seed and its forecasts were committed."""

    event: Literal["task done"] = "task done"
    model: str
    fold: int
    seed: int


class TrainingEnded(_Event):
    """A training session did all its tasks."""

    event: Literal["training ended"] = "training ended"
    seconds: float


class AuditMade(_Event):
    """An audit was made; ``counts`` are the checks by verdict."""

    event: Literal["audit"] = "audit"
    environment: Environment
    depth: str
    verdict: str
    counts: dict[str, int]
    seconds: float


class EvaluationMade(_Event):
    """Forecasts were measured; the evaluation's own record holds its settings."""

    event: Literal["evaluation"] = "evaluation"
    environment: Environment
    evaluation: str
    trials: int
    seconds: float


class ExplanationMade(_Event):
    """Forecasts were attributed with these settings (the section ``explain`` of the config)."""

    event: Literal["explanation"] = "explanation"
    environment: Environment
    device: str
    settings: dict[str, Any]
    seconds: float


Event = TrainingStarted | TaskDone | TrainingEnded | AuditMade | EvaluationMade | ExplanationMade
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


def environment() -> Environment:
    """Describe the code and the libraries of this process."""
    return Environment(
        commit=git_commit(),
        code=code_digest(),
        python=platform.python_version(),
        libraries={name: version(name) for name in TRACKED_LIBRARIES},
    )


def record(run: Run, event: Event) -> None:
    """Append an event to a run's provenance and wait until it is on the disk.

    A line is one write, so that a killed process leaves at most an unfinished last line, which is ignored.
    """
    path = run.folder / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        torn = file.tell() > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
        file.write((("\n" if torn else "") + event.model_dump_json() + "\n").encode())
        os.fsync(file.fileno())


def read_provenance(run: Run) -> tuple[Event, ...]:
    """Read a run's events, oldest first; none if nothing was recorded yet.

    Raises
    ------
    DataError
        If the file is damaged. A line that a killed process left unfinished is no damage.
    """
    path = run.folder / FILE
    if not path.is_file():
        return ()
    found: list[Event] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.endswith("}"):
            continue
        try:
            found.append(_EVENT.validate_json(line))
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                f"{path}, line {number}, is not an event of a run ({reason}); delete that line."
            ) from None
    return tuple(found)


def sessions(events: Iterable[Event]) -> list[tuple[TrainingStarted, int]]:
    """Give the training sessions of a run, oldest first, each with the number of tasks that it did."""
    found: list[tuple[TrainingStarted, int]] = []
    for event in events:
        if isinstance(event, TrainingStarted):
            found.append((event, 0))
        elif isinstance(event, TaskDone) and found:
            found[-1] = (found[-1][0], found[-1][1] + 1)
    return found
