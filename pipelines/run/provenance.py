"""Provenance of a run: ``provenance.jsonl`` in its folder has one JSON line per event, written as it happens.

The file is only appended to. A run that was resumed under another commit has two training sessions. A report
written a month later shows the libraries that trained the run, not those installed now. A finished task
belongs to the training session that was started last before it.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from pipelines.errors import DataError
from pipelines.run.evaluations import Evaluated
from pipelines.run.identity import LIBRARIES, code_digest, installed
from pipelines.run.record import RecordedRun, git_commit

FILE: Final = "provenance.jsonl"
TRACKED_LIBRARIES: Final = (*LIBRARIES, "deltalake", "mlflow", "polars", "scikit-learn", "shap")
"""Libraries that produce a run's forecasts, results and records."""


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Environment(_Record):
    """Versions of the code and of the libraries at the time of an event.

    Attributes
    ----------
    commit
        Git commit of the checkout; ends in ``-dirty`` with uncommitted changes; ``unknown`` outside git.
    code
        `pipelines.run.identity.code_digest`: digest of the code that computes forecasts.
    python
        Version of Python.
    libraries
        Library -> installed version, for the libraries in `TRACKED_LIBRARIES`.
    """

    commit: str
    code: str
    python: str
    libraries: dict[str, str]


class _Event(_Record):
    at: dt.datetime = Field(default_factory=_now)


class TrainingStarted(_Event):
    """A training session started. Resuming an interrupted run starts another session.

    Attributes
    ----------
    device
        Device that trains the models.
    versions
        Lake table -> version that is read.
    hazards, notes
        Warnings of the source, the quality rules, the panel and the label at this time.
    trials
        Number of trials in the ledger, including those of this run.
    done, planned
        Number of tasks finished before this session, and of all tasks of the run.
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
    """A model was trained on a fold with a seed and its forecasts were committed.

    Attributes
    ----------
    model, fold, seed
        The task.
    seconds
        Time that it took, without what an interruption had done before. None in runs that did not record it.
    """

    event: Literal["task done"] = "task done"
    model: str
    fold: int
    seed: int
    seconds: float | None = None


class TrainingEnded(_Event):
    """A training session finished all its tasks."""

    event: Literal["training ended"] = "training ended"
    seconds: float


class AuditMade(_Event):
    """An audit was made; ``counts`` holds the number of checks by verdict."""

    event: Literal["audit"] = "audit"
    environment: Environment
    depth: str
    verdict: str
    counts: dict[str, int]
    seconds: float


class EvaluationMade(_Event):
    """Forecasts were evaluated; the record of the evaluation holds its settings."""

    event: Literal["evaluation"] = "evaluation"
    environment: Environment
    evaluation: str
    trials: int
    seconds: float


class ExplanationMade(_Event):
    """Forecasts were attributed.

    Attributes
    ----------
    environment, device
        Versions of code and libraries, and the device that computed the forecasts of the coalitions.
    settings
        The section ``explain`` of the config.
    seconds
        Time that it took.
    explainer
        Digest of the code that explains, which ``environment.code`` does not contain. Empty in events
        recorded before the digest was.
    tables
        Names of the run's tables that were written.
    summary
        The lines that the stage printed.
    """

    event: Literal["explanation"] = "explanation"
    environment: Environment
    device: str
    settings: dict[str, Any]
    seconds: float
    explainer: str = ""
    tables: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()


Event = TrainingStarted | TaskDone | TrainingEnded | AuditMade | EvaluationMade | ExplanationMade
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


def environment() -> Environment:
    """Return the versions of the code and of the libraries in this process."""
    return Environment(
        commit=git_commit(),
        code=code_digest(),
        python=platform.python_version(),
        libraries={name: installed(name) for name in TRACKED_LIBRARIES},
    )


def record(run: RecordedRun, event: Event) -> None:
    """Append an event to a run's provenance and flush it to disk.

    Each line is a single write, so a killed process leaves at most one incomplete last line, which readers
    ignore.
    """
    path = run.folder / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        is_incomplete = file.tell() > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
        file.write((("\n" if is_incomplete else "") + event.model_dump_json() + "\n").encode())
        os.fsync(file.fileno())


def read_provenance(run: Evaluated) -> tuple[Event, ...]:
    """Read a run's events, oldest first; empty if nothing has been recorded.

    Raises
    ------
    DataError
        If the file is damaged. An incomplete line of a killed process is ignored.
    """
    path = run.folder / FILE
    if not path.is_file():
        return ()
    events: list[Event] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.endswith("}"):
            continue
        try:
            events.append(_EVENT.validate_json(line))
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                f"{path}, line {number}, is not a valid event ({reason}); delete that line."
            ) from None
    return tuple(events)


def sessions(events: Iterable[Event]) -> list[tuple[TrainingStarted, int]]:
    """List the training sessions of a run, oldest first, each with the number of tasks that it finished."""
    counted: list[tuple[TrainingStarted, int]] = []
    for event in events:
        if isinstance(event, TrainingStarted):
            counted.append((event, 0))
        elif isinstance(event, TaskDone) and counted:
            counted[-1] = (counted[-1][0], counted[-1][1] + 1)
    return counted
