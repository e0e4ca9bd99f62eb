"""``peerglass audit``: checks for look-ahead and for results that are too good to be true."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli import RUNS_FOLDER, AsOfOption, OutputOption, SetOption, TargetArgument, WaitOption


def audit(
    target: TargetArgument,
    *,
    overrides: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with the evidence.")] = False,
    as_of: AsOfOption = None,
    vintage: Annotated[
        str | None,
        typer.Option(
            "--vintage",
            metavar="OLDER",
            help=(
                "Compare with an earlier delivery: a folder with earlier copies of the source's files, a "
                "config that reads them, or an earlier state of the lake (as for --as-of)."
            ),
        ),
    ] = None,
    output: OutputOption = RUNS_FOLDER,
    wait: WaitOption = False,
) -> None:
    """Check for look-ahead and for results that are too good to be true. Exit code 4 if a check fails.

    A config is checked on the data in its lake. A run is checked on its recorded data versions, and its
    checkpoints and stored forecasts are checked as well.
    """
    from pipelines.stages import audit_target

    audit_target(target, overrides or [], output, as_of, vintage=vintage, as_json=as_json, wait=wait)
