"""``peerglass runs``: list the runs of a folder, show one of them, and remove what is no longer needed."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli import RUNS_FOLDER, JsonOption, OutputOption, RunArgument

app = typer.Typer(
    name="runs",
    help="List the runs of a folder, show one of them, and remove what is no longer needed.",
    no_args_is_help=True,
)


@app.command(name="list")
def list_(output: OutputOption = RUNS_FOLDER, as_json: JsonOption = False) -> None:
    """List the runs of a folder and its measured signal files, the one that was started last first.

    IC and net Sharpe ratio are those of the newest evaluation, for the model that leads on validation, at the
    first delay that can be traded. The state of a signal file is `signals`, and its figures are those of its
    first signal. `MB` is the size of the folder; forecasts of runs are in the lake.
    """
    from dataclasses import asdict

    from pipelines.commands.runs import describe_runs, summarise_runs, to_json

    runs = summarise_runs(output)
    print(to_json([asdict(run) for run in runs]) if as_json else describe_runs(runs))


@app.command()
def show(run: RunArgument, output: OutputOption = RUNS_FOLDER, as_json: JsonOption = False) -> None:
    """Show the identity, data versions, folds, evaluations, trials and files of a run or a signal file."""
    from pipelines.commands.runs import collect_details, describe_details, to_json
    from pipelines.results.signal_file import find_signals
    from pipelines.run.record import open_run

    details = collect_details(find_signals(run, output) or open_run(run, output))
    print(to_json(details) if as_json else describe_details(details))


@app.command()
def prune(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs to remove as a whole: ids or unique prefixes."),
    ] = None,
    *,
    older_than: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="DAYS", help="Remove runs as a whole that were last started DAYS days ago or more."
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Remove runs as a whole that are not among the N newest of their config. With --older-than, "
            "both must apply.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove. Without it, only say what would go.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go, also with --yes.")
    ] = False,
    output: OutputOption = RUNS_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Remove what is no longer needed. Without `--yes`, print what would be removed and remove nothing.

    Always: files that interrupted writes have left, snapshots of trainings that have ended, and evaluations
    that a newer one with the same settings has replaced. Whole runs and measured signal files only by name,
    or with `--older-than` and `--keep`. Features that were not used for `--older-than` days go as well, and
    are computed again if they are needed.

    A run that another process writes to is left alone, and so is a run that another one starts from
    (`init_from`), that has been a champion or challenger, or that has scored a night. The trial ledger keeps
    counting the trials of removed runs. Forecasts stay in the lake.

    Example: `peerglass runs prune --older-than 90`, then the same with `--yes`
    """
    import datetime as dt

    from pipelines.commands.prune import apply_prune, describe_pruning, plan_prune, pruning_json

    pruning = plan_prune(output, runs or [], older_than, dt.datetime.now(dt.UTC), keep=keep)
    remove = yes and not dry_run
    if remove:
        pruning = apply_prune(pruning, notify=typer.echo)
    print(pruning_json(pruning, done=remove) if as_json else describe_pruning(pruning, done=remove))
