"""The command line: verbs that parse options, call one function and print, and here what they share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Option

if TYPE_CHECKING:
    from pipelines.config.schema import Config
    from pipelines.lake.lake import Lake
    from pipelines.progress import Progress

RUNS_FOLDER: Final = Path("data/runs")
"""Default of ``--output``: the folder that runs are written to unless a config names another."""

ConfigArgument = Annotated[
    Path, Argument(metavar="CONFIG", help="YAML config file; configs/ holds examples.")
]
RunArgument = Annotated[
    str,
    Argument(
        metavar="RUN",
        help="Run id, a unique prefix of it, `latest` for the run started last, or the path of its folder.",
    ),
]
TargetArgument = Annotated[
    str, Argument(metavar="CONFIG|RUN", help="A YAML config file, or a run id or folder.")
]
SetOption = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one setting of the config, for example label.horizon=5. Can be repeated. Unlike a "
        "path in the config, a path given here is relative to the current folder.",
    ),
]
OutputOption = Annotated[
    Path, Option(metavar="FOLDER", help="Folder that holds the runs (the config's 'output').")
]
AsOfOption = Annotated[
    str | None,
    Option(
        "--as-of",
        metavar="VERSION|TIME",
        help=(
            "Read an earlier state of the lake. A whole number is a version of the prices table: every table "
            "is read as it was while that version was the newest. Anything else is an ISO date or time, such "
            "as 2024-01-31 or 2024-01-31T18:00:00+01:00: every table is read at the newest version committed "
            "at or before it. A time without a zone is UTC, and a date alone is the end of that day, UTC."
        ),
    ),
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON.")]
WaitOption = Annotated[
    bool,
    Option(
        "--wait",
        help="If another process is writing to the same run or lake, wait for it instead of ending with exit "
        "code 3.",
    ),
]


def day_option(help_text: str) -> Any:  # noqa: ANN401 (typer's own)
    """Option of a date, such as ``--date 2024-03-01``."""
    return Option(formats=["%Y-%m-%d"], metavar="DATE", help=help_text)


def load(config: Path, overrides: list[str] | None, **how: Any) -> Config:  # noqa: ANN401 (of `load_config`)
    """Load a config with the settings of ``--set``."""
    from pipelines.config.load import load_config

    return load_config(config, overrides or [], **how)


@contextmanager
def lake_of(config: Config, *, wait: bool, lock: bool = True) -> Iterator[tuple[Lake, Progress]]:
    """Open the lake of a config, and lock it if it exists, for a command that maintains it."""
    from pipelines.dataset.tables import open_lake
    from pipelines.progress import Progress
    from pipelines.run.locks import Locks

    progress = Progress()
    lake = open_lake(config, progress.note)
    with Locks(wait=wait, notify=progress.note) as locks:
        if lock:
            locks.lock_existing_lake(lake)
        yield lake, progress


def answer(content: object, describe: Callable[[Any], str], *, as_json: bool) -> None:
    """Print what a command found, as JSON or described for a terminal."""
    print(json.dumps(content, indent=1, default=str) if as_json else describe(content))
