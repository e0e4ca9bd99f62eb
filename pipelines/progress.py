"""What a command says while it works: bars on a terminal, JSON lines for a log, both on stderr."""

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
    """Stages of a command, each with a count of steps and the seconds that it took.

    On a terminal a stage is a bar; elsewhere every event is one JSON object a line.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._bars: Bars | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._started = 0.0

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[None]:
        """Announce a stage; ``total`` steps are then reported by :meth:`step`."""
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

            self._bars = RichProgress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._bars.start()
            self._task = self._bars.add_task(name, total=total)
        else:
            self._log("start", total=total)
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - self._started
            if self._bars is not None:
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
        """Say something worth knowing without counting it as a step."""
        message = redact(message)
        if self._bars is not None:
            self._bars.console.print(message, highlight=False, markup=False)
        else:
            self._log("note", message=message)

    def _log(self, event: str, **fields: object) -> None:
        print(json.dumps({"event": event, "stage": self._stage, **fields}), file=sys.stderr, flush=True)
