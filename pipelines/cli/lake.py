"""``peerglass lake``: what the lake holds, joining its small files, and letting go of old versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import ConfigArgument, SetOption, WaitOption

if TYPE_CHECKING:
    from pipelines.config.schema import Config
    from pipelines.lake.lake import Lake
    from pipelines.lake.readers import Recorded

lake_app = typer.Typer(
    name="lake",
    help=(
        "Look after a lake: versions, files, compaction, vacuum. Every version is kept for good unless "
        "'peerglass lake vacuum' is told otherwise."
    ),
    no_args_is_help=True,
)


@lake_app.command()
def status(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Print each table's version, rows, files and size, and how much of it only old versions use."""
    from pipelines.config.load import load_config
    from pipelines.lake.readers import collect, entries, recorded_in_lake
    from pipelines.lake.upkeep import describe_status, recorded_by_runs
    from pipelines.run.open import open_lake

    checked = load_config(config, overrides or [])
    lake = open_lake(checked)
    in_folders = recorded_by_runs(lake, [Path(checked.output)])
    print(describe_status(lake, collect(entries(recorded_in_lake(lake)) | entries(in_folders))))


@lake_app.command()
def compact(config: ConfigArgument, overrides: SetOption = None, wait: WaitOption = False) -> None:
    """Join the small files that many ingests leave. Every version stays readable; runs go on as before."""
    from pipelines.config.load import load_config
    from pipelines.lake.upkeep import compact, describe_compaction
    from pipelines.progress import Progress
    from pipelines.run.locks import Locks
    from pipelines.run.open import open_lake

    progress = Progress()
    lake = open_lake(load_config(config, overrides or []), progress.note)
    with Locks(wait=wait, notify=progress.note) as locks, progress.stage("compact"):
        locks.lock_existing_lake(lake)
        done = compact(lake)
    print(describe_compaction(done))


@lake_app.command()
def vacuum(
    config: ConfigArgument,
    *,
    keep_days: Annotated[
        int, typer.Option(min=1, help="Keep every version that was the newest at some time in these days.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    runs: Annotated[
        list[Path] | None,
        typer.Option(help="Another folder of runs whose versions are kept; may be given several times."),
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN",
            help="Keep no versions for this run: it can then not be repeated. May be given several times.",
        ),
    ] = None,
    forget_runs: Annotated[
        bool,
        typer.Option(
            "--forget-runs",
            help="Do not keep versions for any run. They can then not be repeated or reported.",
        ),
    ] = False,
    overrides: SetOption = None,
    wait: WaitOption = False,
) -> None:
    """Remove the files that only old versions use, and what killed writers left.

    The versions that a run recorded are kept, whatever their age and wherever the command is started: every
    run is entered into its lake when it starts. Runs in the tracking store, under the config's output folder
    and under every --runs count as well. If the tracking store cannot be reached, nothing is removed. The
    newest version of each table is never touched. A dry run needs no lock.
    """
    from datetime import timedelta

    from pipelines.config.load import load_config
    from pipelines.errors import ConfigError
    from pipelines.lake.upkeep import describe_vacuum, vacuum
    from pipelines.progress import Progress
    from pipelines.run.locks import Locks
    from pipelines.run.open import open_lake

    checked = load_config(config, overrides or [])
    for folder in runs or []:
        if not folder.is_dir():
            raise ConfigError(f"--runs {folder} is not a folder; check the path.")
    progress = Progress()
    lake = open_lake(checked, progress.note)
    with Locks(wait=wait, notify=progress.note) as locks:
        if not dry_run:
            locks.lock_existing_lake(lake)
        recorded = _recorded(checked, lake, runs or [], forget or [])
        with progress.stage("vacuum"):
            plans = vacuum(
                lake,
                keep=timedelta(days=keep_days),
                recorded=recorded,
                protect=not forget_runs,
                dry_run=dry_run,
            )
    print(describe_vacuum(plans, dry_run=dry_run))


def _recorded(config: Config, lake: Lake, folders: list[Path], forget: list[str]) -> Recorded:
    """Collect the versions that runs recorded in the lake, in folders and in the tracking store."""
    from pipelines.errors import ConfigError, TrackingError
    from pipelines.lake.readers import collect, entries, recorded_in_lake
    from pipelines.lake.upkeep import recorded_by_runs
    from pipelines.tracking.versions import recorded_in_store

    try:
        in_store = recorded_in_store(config, lake.root)
    except TrackingError as error:
        raise TrackingError(f"Nothing is removed, for runs in the store may need it: {error}") from None
    in_folders = recorded_by_runs(lake, [Path(config.output), *folders])
    found = entries(recorded_in_lake(lake)) | entries(in_folders) | entries(in_store)
    known = {run for _, _, run in found}
    for name in forget:
        if name not in known:
            raise ConfigError(
                f"--forget {name}: no run of that id has recorded a version of the lake {lake.root}; those "
                f"that have are {', '.join(sorted(known)) or 'none'}."
            )
    return collect(entry for entry in found if entry[2] not in forget)
