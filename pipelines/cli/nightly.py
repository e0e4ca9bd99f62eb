"""``peerglass nightly``: signals and the book for the next session."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

from pipelines.cli import ConfigArgument, SetOption, WaitOption, day_option


def nightly(
    config: ConfigArgument,
    *,
    date: Annotated[
        dt.datetime | None,
        day_option(
            "Session to decide at. The source delivers nothing after it. Default: the newest session, "
            "or the next one of a simulated market that grows."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and write nothing.")
    ] = False,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Go on although settings that decide the orders (universe, features, label, model, seeds, "
            "book, costs) have changed since the last night. The change is recorded with the night.",
        ),
    ] = False,
    overrides: SetOption = None,
    wait: WaitOption = False,
) -> None:
    """Make the signals and the book for the next session, from stored models. Safe to run from cron.

    In this order: ingest what is new, check the data, train a version if one is due, score champion and
    challenger, decide the book and its trades, update the figures that are watched, then write the page, the
    tracking record and the alerts. The results are in the lake's tables `signals`, `books` and `nights`, and
    in the folder `nights` of the config's output.

    A night that is done is not repeated: the same command then ends at once. Sessions that were missed are
    played first, in order, each on the data that were known at its close. After an interruption at any
    moment, the same command completes the night. The first night of a config plays the newest session alone.

    Exit code 2: the config has changed since the last night, and `--accept-changes` was not given.
    Exit code 3: the source is gone or late, a check of the data failed, the tables of the nights disagree, or
    another process plays the night.
    Exit code 6: the night is done, but the tracking store could not be reached.
    """
    from pipelines.config.load import load_config
    from pipelines.nightly.records import already_done

    day = None if date is None else date.date()
    quick = not (dry_run or accept_changes)
    done = already_done(load_config(config, overrides or [], models=False), day) if quick else None
    if done is not None:
        print(done)
        return
    from pipelines.nightly.night import play_nights

    play_nights(
        load_config(config, overrides or []),
        day,
        echo=typer.echo,
        dry_run=dry_run,
        accept_changes=accept_changes,
        wait=wait,
    )
