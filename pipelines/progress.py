"""Progress of a command on stderr: bars on a terminal, JSON lines in a log, or what `choose_log` says."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from pipelines.secrets import redact
from pipelines.terminal import say

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


class _Chosen:
    log: Literal["text", "json", "none"] | None = None  # None: text on a terminal, and JSON elsewhere


def choose_log(log: Literal["text", "json", "none"] | None) -> None:
    """Set how this process reports progress; None is the default: text on a terminal, and JSON elsewhere."""
    _Chosen.log = log


class Progress:
    """Reports stages and their steps with seconds: as bars, as lines of text or of JSON, or not at all."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self.seconds: dict[str, float] = {}
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}  # bar of each place; that of the whole stage has no name
        self._done: dict[str, int] = {}
        self._totals: Mapping[str, int] = {}
        self._stage = ""
        self._started = 0.0

    @contextmanager
    def stage(
        self, name: str, total: int | None = None, places: Mapping[str, int] | None = None
    ) -> Iterator[None]:
        """Run a ``with`` block as a stage of ``total`` steps; several ``places`` have a bar each."""
        self._stage, self._started = name, time.monotonic()
        self._totals = places if places is not None and len(places) > 1 else {}
        self._done = dict.fromkeys(self._totals, 0)
        if self._log() == "text" and sys.stderr.isatty():
            from rich import progress as bars
            from rich.console import Console

            steps = () if total is None else (bars.BarColumn(), bars.MofNCompleteColumn())
            self._bars = bars.Progress(
                bars.SpinnerColumn(finished_text="[green]✓"),
                bars.TextColumn("{task.description}"),
                *steps,
                bars.TimeElapsedColumn(),
                console=Console(stderr=True),
                redirect_stdout=sys.stdout.isatty(),  # results go to the file that the user named
            )
            self._bars.start()
            totals: Mapping[str, int | None] = self._totals or {"": total}
            for place, count in totals.items():
                self._tasks[place] = self._bars.add_task(_named(name, place), total=count)
        else:
            self._tell("", "start", total=total, **({"places": dict(self._totals)} if self._totals else {}))
        complete = False
        try:
            yield
            complete = True
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - self._started
            if self._bars is not None:
                for place, task in self._tasks.items():
                    if complete:  # the stage alone, without its last step
                        self._bars.update(task, description=_named(name, place))
                    if complete and total is None:
                        self._bars.update(task, total=1, completed=1)
                self._bars.stop()
                self._bars, self._tasks = None, {}
            else:
                seconds = round(time.monotonic() - self._started, 2)
                self._tell(
                    f"{name}: {'done' if complete else 'stopped'} after {seconds:.0f} s",
                    "end",
                    seconds=seconds,
                )

    def step(self, message: str, place: str = "") -> None:
        """Report one finished step of the current stage, and where it was computed."""
        message, place = redact(message), place if place in self._totals else ""
        if self._bars is not None:
            named = f"{_named(self._stage, place)}: {message}"
            self._bars.update(self._tasks[place], advance=1, description=named)
            return
        fields: dict[str, object] = {}
        if place:
            self._done[place] += 1
            fields = {"place": place, "done": self._done[place], "of": self._totals[place]}
        seconds = round(time.monotonic() - self._started, 2)
        said = f"{_named(self._stage, place)}: {message}"
        self._tell(said, "step", message=message, **fields, seconds=seconds)

    def note(self, message: str) -> None:
        """Report a message that is not a step."""
        message = redact(message)
        if self._bars is not None:
            self._bars.console.print(message, highlight=False, markup=False)
        else:
            self._tell(message, "note", message=message)

    def _tell(self, text: str, event: str, **fields: object) -> None:
        """Write a line: the text, nothing if it is empty, or the event as JSON."""
        log = self._log()
        if log == "json":
            text = json.dumps({"event": event, "stage": self._stage, **fields})
            print(text, file=sys.stderr, flush=True)
        elif text and log == "text":
            say(text, sys.stderr)

    def _log(self) -> Literal["text", "json", "none"]:
        return "none" if self._quiet else _Chosen.log or ("text" if sys.stderr.isatty() else "json")


def _named(stage: str, place: str) -> str:
    return f"{stage} ({place})" if place else stage
