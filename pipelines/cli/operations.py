"""Verbs of nights and of what they leave: account, record, signals, runs, promote, demote, trials, track."""

import datetime as dt
from pathlib import Path
from typing import Final

import typer

from pipelines.cli import RUNS_FOLDER, answer, group, lake_of, load
from pipelines.terminal import say


def nightly(
    config: Path,
    *,
    date: dt.datetime | None = None,
    dry_run: bool = False,
    accept_changes: bool = False,
    overrides: list[str] | None = None,
    wait: bool = False,
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
    from pipelines.nightly.records import already_done

    day = None if date is None else date.date()
    if not (dry_run or accept_changes):
        done = already_done(load(config, overrides, models=False), day)
        if done is not None:
            say(done)
            return
    from pipelines.nightly.night import play_nights

    settings = load(config, overrides)
    play_nights(settings, day, echo=say, dry_run=dry_run, accept_changes=accept_changes, wait=wait)


account = group("account")


@account.command(name="show")
def show_account(config: Path, overrides: list[str] | None = None, as_json: bool = False) -> None:
    """Show what the account of the nights earned, what it holds, and where it differs from the backtest.

    NAV net and gross of costs, the P&L of the last session and of its month, the last sessions, the
    positions, and by name the shortfall: the P&L of the backtest of the same decisions minus that of the
    account. `--json` has all sessions and names.

    Example: `peerglass account show configs/nightly_demo.yaml`
    """
    from pipelines.commands.account import collect_account, describe_account

    with lake_of(config, overrides) as (settings, lake, _):
        answer(collect_account(settings, lake), describe_account, as_json=as_json)


@account.command(name="reconcile")
def reconcile_account(
    config: Path, file: Path, overrides: list[str] | None = None, as_json: bool = False
) -> None:
    """Compare a file of positions with the account, and list each difference. Exit code 3 if there is one.

    The file is a CSV with the columns session, ticker and shares; of several sessions, the newest counts.
    A firm that only one side has is a difference.

    Example: `peerglass account reconcile configs/nightly_demo.yaml broker.csv`
    """
    from pipelines.commands.account import describe_reconciliation, reconcile_account

    with lake_of(config, overrides) as (settings, lake, _):
        found = reconcile_account(settings, lake, file)
    answer(found, describe_reconciliation, as_json=as_json)
    if found["differences"]:
        raise typer.Exit(3)


record = group("record")


@record.command()
def verify(config: Path, overrides: list[str] | None = None, as_json: bool = False) -> None:
    """Verify what nights and registrations have sealed. Exit code 4 if anything differs from it.

    Every night seals its signals, orders and settings: their hashes are chained to the night before. A value,
    row, night or setting that was changed, removed or moved is named, in the files of the nights and in the
    lake. So are registrations (`peerglass register`). The last line is a command that verifies the files
    without Peerglass.

    Example: `peerglass record verify configs/nightly_demo.yaml`
    """
    from pipelines.nightly.record import describe
    from pipelines.nightly.record import verify as verify_record

    with lake_of(config, overrides) as (settings, lake, _):
        found = verify_record(settings, lake)
    answer(found, describe, as_json=as_json)
    if found["problems"]:
        raise typer.Exit(4)


@record.command()
def show(config: Path, overrides: list[str] | None = None, as_json: bool = False) -> None:
    """Show what the nights that were sealed in time have earned, with intervals that hold on every night.

    An ordinary interval excludes zero sooner or later for someone who looks every night. These are confidence
    sequences: at 95%, none of them misses the truth on any night.

    Example: `peerglass record show configs/nightly_demo.yaml`
    """
    from pipelines.nightly.record import describe_evidence, evidence

    with lake_of(config, overrides) as (settings, lake, _):
        answer(evidence(settings, lake), describe_evidence, as_json=as_json)


def signals(
    target: str,
    *,
    date: dt.datetime | None = None,
    model: str | None = None,
    version: str | None = None,
    explain: int | None = None,
    out: Path | None = None,
    overrides: list[str] | None = None,
    output: Path = RUNS_FOLDER,
) -> None:
    """Score the firms of a session with a stored model, and print the ends of the ranking.

    A CONFIG uses its champion or, without one, its newest live training. A RUN uses its own models; of a
    walk-forward run, those of the newest fold. Data are cut at the session: nothing that became known later
    is used.

    The signals are kept in the lake's table `signals`. A second scoring of a session on the same data writes
    nothing; on other data, or for another universe, it is a new revision, and the corrections that explain
    the differences are printed.

    Example: `peerglass signals configs/mine.yaml --out signals.csv`
    """
    from pipelines.commands.signals import SignalsOptions, make_signals

    options = SignalsOptions(date and date.date(), model, version, out, output, explain)
    make_signals(target, overrides or [], options, say)


runs = group("runs")


@runs.command(name="list")
def list_runs(output: Path = RUNS_FOLDER, as_json: bool = False) -> None:
    """List the runs of a folder and its measured signal files, the one that was started last first.

    IC and net Sharpe ratio are those of the newest evaluation, for the model that leads on validation, at the
    first delay that can be traded. The state of a signal file is `signals`, and its figures are those of its
    first signal. `MB` is the size of the folder; forecasts of runs are in the lake.
    """
    from dataclasses import asdict

    from pipelines.commands.runs import describe_runs, summarise_runs

    found = summarise_runs(output)
    answer([asdict(run) for run in found], lambda _: describe_runs(found), as_json=as_json)


@runs.command(name="show")
def show_run(run: str, output: Path = RUNS_FOLDER, as_json: bool = False) -> None:
    """Show the identity, data versions, folds, evaluations, trials and files of a run or a signal file."""
    from pipelines.commands.runs import collect_details, describe_details
    from pipelines.results.signal_file import find_signals
    from pipelines.run.record import open_run

    details = collect_details(find_signals(run, output) or open_run(run, output, models=False))
    answer(details, describe_details, as_json=as_json)


@runs.command()
def prune(
    runs: list[str] | None = None,
    *,
    older_than: int | None = None,
    keep: int | None = None,
    yes: bool = False,
    dry_run: bool = False,
    output: Path = RUNS_FOLDER,
    as_json: bool = False,
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
    from dataclasses import asdict

    from pipelines.commands.runs import apply_prune, describe_pruning, plan_prune

    pruning = plan_prune(output, runs or [], older_than, dt.datetime.now(dt.UTC), keep=keep)
    remove = yes and not dry_run
    if remove:
        pruning = apply_prune(pruning, notify=say)
    answer(
        {"done": remove, **asdict(pruning)}, lambda _: describe_pruning(pruning, done=remove), as_json=as_json
    )


def promote(
    version: str,
    *,
    config: Path | None = None,
    force: bool = False,
    why: str | None = None,
    overrides: list[str] | None = None,
    output: Path = RUNS_FOLDER,
) -> None:
    """Make a model version the champion, whose signals are traded from the next night on.

    The guard refuses, with exit code 4, a version that failed its audit, that has none or one that examined
    nothing, that is incomplete, that has too few shadow sessions with a known label, or that is worse than
    the champion by more than the margin (`nightly.promotion`). Shadow sessions are those that both versions
    forecast at night, before the label was known. The lake's table `promotions` records who promoted what,
    when, why and on which numbers.

    Examples
    --------
    - `peerglass promote challenger --config configs/nightly_demo.yaml`
    - `peerglass promote demo-1a2b3c --force --why "the old champion uses a feature that is gone"`
    """
    from pipelines.commands import versions as promotions

    settings = promotions.config_of_option(config, overrides or [])
    folder = output if settings is None else Path(settings.output)
    promotions.promote(version, settings, folder, say, force=force, why=why)


def demote(config: Path, *, why: str, overrides: list[str] | None = None) -> None:
    """Make the champion before the current one champion again. No guard: going back is always possible.

    The version that was demoted keeps no alias. Demoting again goes back one champion further.

    Example: `peerglass demote configs/nightly_demo.yaml --why "its turnover doubled"`
    """
    from pipelines.commands import versions as promotions

    promotions.demote(load(config, overrides), why, say)


trials = group("trials")


@trials.command(name="list")
def list_trials(run: str | None = None, *, output: Path = RUNS_FOLDER, as_json: bool = False) -> None:
    """List the trials of a folder, oldest first, and say of each whether it counts, and why.

    A trial is a forecast (a model's settings or a signal's values) with one book. Costs and delays are
    assumptions and make no trial. Trials on other markets do not count, and if the config names a
    `hypothesis`, only the trials of that hypothesis count.

    Examples
    --------
    - `peerglass trials list`
    - `peerglass trials list --run my-run-1a2b`
    """
    from pipelines.commands.trials import describe_trials, trial_rows

    answer(trial_rows(output, run), describe_trials, as_json=as_json)


@trials.command(name="show")
def show_trial(trial: str, output: Path = RUNS_FOLDER, as_json: bool = False) -> None:
    """Show one trial: forecast, book, market, hypotheses, runs, results by assumptions, and all settings."""
    from pipelines.commands.trials import describe_trial, trial_details

    answer(trial_details(output, trial), describe_trial, as_json=as_json)


track = group("track")


@track.callback()
def _group() -> None:
    """Keep `sync` a command of its own; a group with one command would lose its name."""


@track.command()
def sync(config: Path, overrides: list[str] | None = None) -> None:
    """Send what the tracking store does not have: nights that wait, model versions and their aliases.

    A night whose tracking server is gone ends with exit code 6 and leaves its record under
    `<output>/nights/<config>/spool`. The next night sends it, and so does this command. Nothing is sent
    twice. Exit code 6 if the server is still gone.
    """
    from pipelines.nightly import spool

    with lake_of(config, overrides, models=True) as (settings, lake, progress):
        say(spool.describe_synced(spool.sync(settings, lake, progress), settings))


VERBS: Final = (nightly, account, record, signals, runs, promote, demote, trials, track)
