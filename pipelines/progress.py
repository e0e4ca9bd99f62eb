"""Progress of a command on stderr: bars on a terminal, JSON lines in a log."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipelines.secrets import redact

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


class Progress:
    """Reports the stages of a command, counts their steps and measures their ``seconds``.

    A stage is a progress bar on a terminal (a spinner if the number of steps is unknown), and lines of JSON
    elsewhere.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._bars: Bars | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._started = 0.0

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[None]:
        """Run a ``with`` block as a stage of ``total`` steps, which :meth:`step` reports."""
        self._stage, self._started = name, time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
            )
            from rich.progress import Progress as RichProgress

            steps = () if total is None else (BarColumn(), MofNCompleteColumn())
            self._bars = RichProgress(
                SpinnerColumn(finished_text="[green]✓"),
                TextColumn("{task.description}"),
                *steps,
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._bars.start()
            self._task = self._bars.add_task(name, total=total)
        else:
            self._log("start", total=total)
        complete = False
        try:
            yield
            complete = True
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - self._started
            if self._bars is not None and self._task is not None:
                if complete:  # the stage alone, without its last step
                    self._bars.update(self._task, description=name)
                if complete and total is None:
                    self._bars.update(self._task, total=1, completed=1)
                self._bars.stop()
                self._bars = self._task = None
            else:
                self._log("end", seconds=round(time.monotonic() - self._started, 2))

    def step(self, message: str) -> None:
        """Report one finished step of the current stage."""
        message = redact(message)
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, advance=1, description=f"{self._stage}: {message}")
        else:
            self._log("step", message=message, seconds=round(time.monotonic() - self._started, 2))

    def note(self, message: str) -> None:
        """Report a message that is not a step."""
        message = redact(message)
        if self._bars is not None:
            self._bars.console.print(message, highlight=False, markup=False)
        else:
            self._log("note", message=message)

    def _log(self, event: str, **fields: object) -> None:
        print(json.dumps({"event": event, "stage": self._stage, **fields}), file=sys.stderr, flush=True)


class Silent(Progress):
    """Reports nothing, for use as a library."""

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[None]:
        """Run a ``with`` block."""
        yield

    def step(self, message: str) -> None:
        """Ignore a step."""

    def note(self, message: str) -> None:
        """Ignore a message."""
