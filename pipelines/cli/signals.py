"""``peerglass signals``: score a session with a stored model."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli import RUNS_FOLDER, OutputOption, SetOption, day_option


def signals(
    target: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|RUN", help="A YAML config file, or a run: id, unique prefix, `latest` or folder."
        ),
    ],
    *,
    date: Annotated[
        dt.datetime | None, day_option("Session to score. Default: the newest one in the lake.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model of the run. Default: the champion's, or the only one.")
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(metavar="RUN/MODEL", help="Model version, for a CONFIG. Default: the champion."),
    ] = None,
    explain: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Explain the N highest and the N lowest signals by days, families and peers."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the signals to a .csv, .parquet or .json file."),
    ] = None,
    overrides: SetOption = None,
    output: OutputOption = RUNS_FOLDER,
) -> None:
    """Score the firms of a session with a stored model, and print the ends of the ranking.

    A CONFIG uses its champion or, without one, its newest live training. A RUN uses its own models; of a
    walk-forward run, those of the newest fold. Data are cut at the session: nothing that became known later
    is used.

    The signals are kept in the lake's table `signals`. A second scoring of a session on the same data writes
    nothing; on other data it is a new revision, and the corrections that explain the differences are
    printed.

    Example: `peerglass signals configs/mine.yaml --out signals.csv`
    """
    from pipelines.commands.signals import SignalsOptions, make_signals

    session = None if date is None else date.date()
    options = SignalsOptions(session, model, version, out, output, explain)
    make_signals(target, overrides or [], options, typer.echo)
