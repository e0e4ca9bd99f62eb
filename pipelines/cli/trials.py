"""``peerglass trials``: what was tried, what counts against a result, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli import RUNS_FOLDER, JsonOption, OutputOption

app = typer.Typer(
    name="trials", help="List what was tried in a folder, and show one trial.", no_args_is_help=True
)


@app.command(name="list")
def list_(
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Run or measured file: say which trials count against it."),
    ] = None,
    *,
    output: OutputOption = RUNS_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """List the trials of a folder, oldest first, and say of each whether it counts, and why.

    A trial is a forecast (a model's settings or a signal's values) with one book. Costs and delays are
    assumptions and make no trial. Trials on other markets do not count, and if the config names a
    `hypothesis`, only the trials of that hypothesis count.

    Examples
    --------
    - `peerglass trials list`
    - `peerglass trials list --run my-run-1a2b`
    """
    from pipelines.commands.runs import to_json
    from pipelines.commands.trials import describe_trials, trial_rows

    rows = trial_rows(output, run)
    print(to_json(rows) if as_json else describe_trials(rows))


@app.command()
def show(
    trial: Annotated[str, typer.Argument(metavar="TRIAL", help="Id of the trial, or a unique prefix of it.")],
    output: OutputOption = RUNS_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Show one trial: forecast, book, market, hypotheses, runs, results by assumptions, and all settings."""
    from pipelines.commands.runs import to_json
    from pipelines.commands.trials import describe_trial, trial_details

    details = trial_details(output, trial)
    print(to_json(details) if as_json else describe_trial(details))
