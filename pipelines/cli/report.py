"""``peerglass report``: the report of a run as one HTML page."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli import RUNS_FOLDER, OutputOption, RunArgument, WaitOption


def report(
    run: RunArgument,
    evaluation: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Id of the evaluation to show, or a unique prefix of it. Default: the newest."
        ),
    ] = None,
    output: OutputOption = RUNS_FOLDER,
    wait: WaitOption = False,
) -> None:
    """Write the report of a run as one self-contained HTML file and print its path.

    The run is evaluated first if it has no evaluation yet. Attributions and the audit are included if they
    were made.
    """
    from pipelines.stages import report_run

    print(report_run(run, output, evaluation, wait=wait))
