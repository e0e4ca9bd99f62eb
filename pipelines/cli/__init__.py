"""The command line: a module a verb, and here the arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

RUNS_FOLDER: Final = Path("data/runs")
"""Default of ``--output``: the folder that runs are written to unless a config names another."""

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="YAML config file; configs/ holds examples.")
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Run id, a unique prefix of it, `latest` for the run started last, or the path of its folder.",
    ),
]
TargetArgument = Annotated[
    str, typer.Argument(metavar="CONFIG|RUN", help="A YAML config file, or a run id or folder.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one setting of the config, for example label.horizon=5. Can be repeated. Unlike a "
        "path in the config, a path given here is relative to the current folder.",
    ),
]
OutputOption = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder that holds the runs (the config's 'output').")
]
AsOfOption = Annotated[
    str | None,
    typer.Option(
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


def day_option(help_text: str) -> Any:  # noqa: ANN401 (typer's own)
    """Option of a date, such as ``--date 2024-03-01``."""
    return typer.Option(formats=["%Y-%m-%d"], metavar="DATE", help=help_text)


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="If another process is writing to the same run or lake, wait for it instead of ending with exit "
        "code 3.",
    ),
]
