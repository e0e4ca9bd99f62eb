"""``peerglass lake``: show the contents of a lake, compact its small files, and remove old versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli import ConfigArgument, SetOption, WaitOption

if TYPE_CHECKING:
    from pipelines.config.schema import Config
    from pipelines.lake.lake import Lake
    from pipelines.lake.upkeep import RecordedVersions

app = typer.Typer(
    name="lake",
    help=(
        "Inspect and maintain a lake. Every version of every table is kept until `peerglass lake vacuum` "
        "removes it."
    ),
    no_args_is_help=True,
)


@app.command()
def status(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Print the version, rows, files and size of each table, and how much only old versions use."""
    from pipelines.config.load import load_config
    from pipelines.dataset.tables import open_lake
    from pipelines.lake.upkeep import describe_status, recorded_by_runs, recorded_in_lake

    checked = load_config(config, overrides or [])
    lake = open_lake(checked)
    print(describe_status(lake, recorded_in_lake(lake) | recorded_by_runs(lake, [Path(checked.output)])))


@app.command()
def compact(config: ConfigArgument, overrides: SetOption = None, wait: WaitOption = False) -> None:
    """Join small files of many ingests into larger ones. All versions stay readable, and so do all runs."""
    from pipelines.config.load import load_config
    from pipelines.dataset.tables import open_lake
    from pipelines.lake.upkeep import compact, describe_compaction
    from pipelines.progress import Progress
    from pipelines.run.locks import Locks

    progress = Progress()
    lake = open_lake(load_config(config, overrides or []), progress.note)
    with Locks(wait=wait, notify=progress.note) as locks, progress.stage("compact"):
        locks.lock_existing_lake(lake)
        done = compact(lake)
    print(describe_compaction(done))


@app.command()
def vacuum(
    config: ConfigArgument,
    *,
    keep_days: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="DAYS",
            help="Keep every version that was the newest one at some time in the last DAYS days.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="Additional folder of runs whose versions are kept. Can be repeated."
        ),
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN",
            help="Do not keep the versions of this run, or of this night (CONFIG@SESSION). It cannot be "
            "reproduced afterwards. Can be repeated.",
        ),
    ] = None,
    forget_runs: Annotated[
        bool,
        typer.Option(
            "--forget-runs",
            help="Do not keep the versions of any run. Runs cannot be reproduced or reported afterwards.",
        ),
    ] = False,
    overrides: SetOption = None,
    wait: WaitOption = False,
) -> None:
    """Remove files that only old versions use, and files left by interrupted writes.

    The versions that a run or a night has read are kept at any age: every run is registered in its lake when
    it starts, and every signal of a night names the versions that it was computed from.
    Runs in the tracking store, in the config's output folder and in every `--runs` folder are kept as well.
    Nothing is removed if the tracking store cannot be reached. The newest version of each table is always
    kept.

    Start with a dry run, which takes no lock: `peerglass lake vacuum my.yaml --keep-days 90 --dry-run`
    """
    from datetime import timedelta

    from pipelines.config.load import load_config
    from pipelines.dataset.tables import open_lake
    from pipelines.errors import ConfigError
    from pipelines.lake.upkeep import describe_vacuum, vacuum
    from pipelines.progress import Progress
    from pipelines.run.locks import Locks

    checked = load_config(config, overrides or [])
    for folder in runs or []:
        if not folder.is_dir():
            raise ConfigError(f"--runs: {folder} is not a folder; check the path.")
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


def _recorded(config: Config, lake: Lake, folders: list[Path], forget: list[str]) -> RecordedVersions:
    """Collect the versions that runs and nights need, without those of runs to forget."""
    from pipelines.errors import ConfigError
    from pipelines.tracking.store import versions_in_use

    recorded = versions_in_use(config, lake, folders)
    run_ids = {run for _, _, run in recorded}
    for name in forget:
        if name not in run_ids:
            raise ConfigError(
                f"--forget {name}: no run of that id has recorded a version of the lake {lake.root}; choose "
                f"among {', '.join(sorted(run_ids)) or 'none'}."
            )
    return {entry for entry in recorded if entry[2] not in forget}
