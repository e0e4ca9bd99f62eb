"""``peerglass promote`` and ``peerglass demote``: which model version is the champion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli import RUNS_FOLDER, ConfigArgument, OutputOption, SetOption


def promote(
    version: Annotated[
        str,
        typer.Argument(
            metavar="RUN|VERSION",
            help="A run that was trained for use, RUN/MODEL, `challenger`, or the number of a version in "
            "MLflow's registry. The last two need --config.",
        ),
    ],
    *,
    config: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG", help="Config whose champion it becomes. Default: that of the run."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Promote although the guard refuses; needs --why.")
    ] = False,
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="Reason, which is recorded.")] = None,
    overrides: SetOption = None,
    output: OutputOption = RUNS_FOLDER,
) -> None:
    """Make a model version the champion, whose signals are traded from the next night on.

    The guard refuses, with exit code 4, a version that failed its audit or has none, that is incomplete, that
    has too few shadow sessions with a known label, or that is worse than the champion by more than the margin
    (`nightly.promotion`). Shadow sessions are those that both versions forecast at night, before the label
    was known. The lake's table `promotions` records who promoted what, when, why and on which numbers.

    Examples
    --------
    - `peerglass promote challenger --config configs/nightly_demo.yaml`
    - `peerglass promote demo-1a2b3c --force --why "the old champion uses a feature that is gone"`
    """
    from pipelines.commands.promote import config_of_option
    from pipelines.commands.promote import promote as promote_version

    settings = config_of_option(config, overrides or [])
    folder = output if settings is None else Path(settings.output)
    promote_version(version, settings, folder, typer.echo, force=force, why=why)


def demote(
    config: ConfigArgument,
    *,
    why: Annotated[str, typer.Option(metavar="TEXT", help="Reason, which is recorded.")],
    overrides: SetOption = None,
) -> None:
    """Make the champion before the current one champion again. No guard: going back is always possible.

    The version that was demoted keeps no alias. Demoting again goes back one champion further.

    Example: `peerglass demote configs/nightly_demo.yaml --why "its turnover doubled"`
    """
    from pipelines.commands.promote import demote as demote_champion
    from pipelines.config.load import load_config

    demote_champion(load_config(config, overrides or []), why, typer.echo)
