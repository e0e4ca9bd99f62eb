"""One line about every run of an output folder, from its small files; no lake and no config is opened."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from pipelines.errors import DataError
from pipelines.results.comparisons import tradable_delay
from pipelines.run.evaluations import StoredEvaluation, list_evaluations
from pipelines.run.identity import Identity
from pipelines.run.locks import holder_of
from pipelines.run.provenance import FILE as PROVENANCE

State = Literal["running", "complete", "incomplete", "not trained", "unreadable", "signals"]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run's folder, whose evaluations are read without opening the run."""

    run_id: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Measured:
    """The newest evaluation of a run, for the model that leads on validation.

    Attributes
    ----------
    evaluation
        Id of the evaluation.
    model
        Model with the highest validation rank IC, as in a report's verdict; the first one if there is none.
    delay
        First delay that can be traded, in sessions; the longest one if none can.
    ic
        Mean daily IC on the test.
    book
        First book of the evaluation.
    sharpe_net
        Annual net Sharpe ratio of that book.
    first, last
        First and last date that all models forecast.
    """

    evaluation: str
    model: str
    delay: int
    ic: float | None
    book: str
    sharpe_net: float | None
    first: dt.date
    last: dt.date


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What is known of a run without opening it.

    Attributes
    ----------
    run_id, folder
        Name of the run's folder, and its path.
    started
        When a command last started the run; None if it is unreadable.
    state
        ``running`` while a process holds its lock; ``unreadable`` if it is damaged or of an older version;
        ``signals`` for a measured signal file (`pipelines.inventory.signals`), which trains nothing.
    done, planned
        Training tasks (model, fold, seed): finished, and in total.
    holder
        The process that holds the lock; None if there is none.
    models
        Models of the config.
    evaluations
        Number of evaluations.
    measured
        Figures of the newest evaluation; None without one.
    size
        Bytes of all files in the folder.
    """

    run_id: str
    folder: Path
    started: dt.datetime | None
    state: State
    done: int
    planned: int
    holder: str | None
    models: tuple[str, ...]
    evaluations: int
    measured: Measured | None
    size: int


def summarise_runs(output: Path) -> list[RunSummary]:
    """Summarise the runs of an output folder, the one that was started last first.

    Raises
    ------
    DataError
        If an evaluation is damaged.
    """
    return newest_first(summarise_run(path.parent) for path in output.glob("*/run.json"))


def newest_first(runs: Iterable[RunSummary]) -> list[RunSummary]:
    """Sort by the time of the start, the newest first; what is unreadable comes last."""
    oldest = dt.datetime.min.replace(tzinfo=dt.UTC)
    return sorted(runs, key=lambda run: (run.started or oldest, run.run_id), reverse=True)


def summarise_run(folder: Path) -> RunSummary:
    """Summarise the run in a folder. Raises the errors of `summarise_runs`."""
    holder, size = holder_of(folder), size_of(folder)
    try:
        record: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        settings = Identity.from_record(record["identity"]).settings
        started = dt.datetime.fromisoformat(record["started_at"])
        models = tuple(settings["models"])
        evaluations = list_evaluations(RunFolder(folder.name, folder))
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return RunSummary(folder.name, folder, None, "unreadable", 0, 0, holder, (), 0, None, size)
    done, planned = _tasks(folder)
    state: State = "complete" if planned and done >= planned else "incomplete"
    if holder is not None:
        state = "running"
    elif not planned:
        state = "not trained"
    measured = newest_figures(evaluations[0]) if evaluations else None
    return RunSummary(
        folder.name, folder, started, state, done, planned, holder, models, len(evaluations), measured, size
    )


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder. Links are not followed."""
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_size
    return sum(one.lstat().st_size for one in path.rglob("*") if not one.is_dir())


def describe_runs(runs: Iterable[RunSummary]) -> str:
    """Describe runs for a terminal, one line each."""
    rows = [
        (
            "run",
            "started (UTC)",
            "state",
            "MB",
            "tested",
            "leader or first signal",
            "delay",
            "IC",
            "Sharpe net",
        )
    ]
    for run in runs:
        started = "" if run.started is None else f"{run.started.astimezone(dt.UTC):%Y-%m-%d %H:%M}"
        state = (
            f"{run.state} {run.done}/{run.planned}" if run.state in ("incomplete", "running") else run.state
        )
        one = run.measured
        figures = ("", "", "", "", "")
        if one is not None:
            tested = f"{one.first} to {one.last}"
            figures = (tested, one.model, str(one.delay), _number(one.ic, 4), _number(one.sharpe_net, 2))
        rows.append((run.run_id, started, state, f"{run.size / 1e6:,.1f}", *figures))
    if len(rows) == 1:
        return "no runs"
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def runs_json(runs: Iterable[RunSummary]) -> str:
    """Write summaries as JSON, with the fields of `RunSummary`."""
    return json.dumps([asdict(run) for run in runs], indent=1, default=str)


def _tasks(folder: Path) -> tuple[int, int]:
    """Tasks that are finished and planned, by the newest training of the run's provenance."""
    done = planned = 0
    path = folder / PROVENANCE
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            event = json.loads(line)
        except ValueError:  # the incomplete last line of a process that was killed
            continue
        if event["event"] == "training started":
            done, planned = int(event["done"]), int(event["planned"])
        elif event["event"] == "task done":
            done += 1
    return done, planned


def newest_figures(evaluation: StoredEvaluation) -> Measured:
    """Return the figures of an evaluation for the model that leads on validation, or the first signal."""
    record, ladder = evaluation.record, evaluation.table("ladder")
    delay = tradable_delay(record.delays)
    at_delay = ladder.filter(pl.col("delay") == delay)
    ranked = at_delay.filter(pl.col("valid_rank_ic").cast(pl.Float64).is_finite()).sort(
        "valid_rank_ic", descending=True
    )
    leader = (ranked if ranked.height else at_delay).row(0, named=True)
    book = next(iter(record.backtest.books))
    return Measured(
        evaluation=record.evaluation,
        model=str(leader["model"]),
        delay=delay,
        ic=leader["ic"],
        book=book,
        sharpe_net=leader[f"{book}.sharpe_net"],
        first=record.first,
        last=record.last,
    )


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:+.{digits}f}"
