"""Arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="YAML file; see configs/ for examples.")
]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Run id, its beginning if that is unique, or its folder.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override one setting; may be given several times."),
]
OutputOption = Annotated[Path, typer.Option(help="Folder that holds the runs.")]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="VERSION|TIME",
        help=(
            "Read the lake as it was. A whole number is a version of the prices table: the lake as it stood "
            "while that version was the newest. Otherwise an ISO date or time (2024-01-31, "
            "2024-01-31T18:00:00+01:00): each table's newest version committed at or before it; without a "
            "zone it is UTC, and a date alone is the end of that day, UTC."
        ),
    ),
]
WaitOption = Annotated[
    bool,
    typer.Option("--wait", help="Wait for another process that writes here, instead of ending with code 3."),
]
