"""Verbs of the stages of a run, from the data to the report, and of its evaluation."""

import datetime as dt
import sys
from pathlib import Path
from typing import Any, Final, Literal

import typer

from pipelines.cli import RUNS_FOLDER, answer, load
from pipelines.errors import ConfigError
from pipelines.evaluate_file import MeasureOptions, file_of, is_signal_file, measure_file
from pipelines.terminal import say


def run(
    config: Path,
    overrides: list[str] | None = None,
    as_of: str | None = None,
    skip: Literal["explain"] | None = None,
    wait: bool = False,
) -> None:
    """Run every stage: ingest, audit, train, backtest, explain, report. Print the path of the report.

    After an interruption, the same command continues the run. Finished tasks and an explanation with the same
    settings and code are kept. With `--as-of` the ingest is skipped and an earlier state of the lake is used.

    Example: `peerglass run configs/sample.yaml --set fit.epochs=5`
    """
    from pipelines.stages import run_config

    loaded = load(config, overrides)
    print(run_config(loaded, echo=say, as_of=as_of, explained=skip is None, wait=wait))


def ingest(
    config: Path, *, replace: bool = False, overrides: list[str] | None = None, wait: bool = False
) -> None:
    """Load the data of a config's source into its lake, and print how many rows were added or changed.

    The summary counts rows that were added, updated, withdrawn, quarantined and flagged.

    Files, the sample and the simulated market deliver their whole history every time. Rows that are missing
    from a new delivery are withdrawn from the lake, and earlier versions of the lake keep them. A delivery
    that would withdraw more than half of a table is refused with exit code 3. A different source or market is
    refused with exit code 2. A live source (yfinance, sec) never withdraws rows.
    """
    from pipelines.run.fetch import ingest_config

    ingest_config(load(config, overrides), say, replace=replace, wait=wait)


def audit(
    target: str,
    *,
    overrides: list[str] | None = None,
    as_json: bool = False,
    as_of: str | None = None,
    vintage: str | None = None,
    output: Path = RUNS_FOLDER,
    wait: bool = False,
) -> None:
    """Check for look-ahead and for results that are too good to be true. Exit code 4 if a check fails.

    A config is checked on the data in its lake. A run is checked on its recorded data versions, and its
    checkpoints and stored forecasts are checked as well.
    """
    from pipelines.audit.command import audit_target

    audit_target(target, overrides or [], output, as_of, vintage=vintage, as_json=as_json, wait=wait)


def register(
    config: Path,
    *,
    overrides: list[str] | None = None,
    as_json: bool = False,
    as_of: str | None = None,
    wait: bool = False,
) -> None:
    """Seal a config and its test sessions before the test is opened. Exit code 4 if it was opened before.

    The entry has the hash of everything that forecasts and returns depend on: settings, books and costs,
    code, plugins, the data versions of the lake, and the test sessions of every fold. It is chained to the
    entries before, in the folder `registered` of the config's output. Nothing is trained and no test session
    is forecast; the lake needs its data, so ingest first.

    The test has been opened if the same run has forecast it, or if a trial on the same market was measured on
    any of its sessions. Then the entry is sealed as well, and marked as late. What is registered already
    keeps its entry.

    Next, `peerglass train CONFIG` makes the run whose id is printed, and `peerglass report RUN` measures it.
    The report, `peerglass runs show` and the JSON of `peerglass backtest` say whether a run was registered
    before its test was opened. If settings, code or data were changed since, they list what differs.
    `peerglass record verify CONFIG` finds entries that were changed, removed or dated back.

    Example: `peerglass register configs/sample.yaml`
    """
    from pipelines.commands.register import describe_registered, register_config

    entry = register_config(load(config, overrides), as_of, wait=wait)
    answer(entry, describe_registered, as_json=as_json)
    if entry["late"]:
        raise typer.Exit(4)


def train(
    target: str,
    overrides: list[str] | None = None,
    as_of: str | None = None,
    output: Path = RUNS_FOLDER,
    wait: bool = False,
) -> None:
    """Train the models of a config walk-forward, store their test forecasts, and print the run id.

    Each combination of model, fold and seed is trained once, and its forecasts go to the lake. After an
    interruption, the same command trains only the missing ones. For a RUN, such as a model version of the
    nights, the missing ones are trained on exactly the data that the run recorded.

    Some settings change how models are trained:

    - `fit.pretrain`: pretrain the day encoder to reconstruct masked days or to predict the next day.
    - `init_from`: start from the day encoder of an earlier run.
    - `fit.layer_decay`: in fine-tuning, lower the learning rate layer by layer.
    - `fit.label_share`: use only a share of the labels.
    - `fit.refit`: refit the selected model to training and validation sessions before it forecasts the test.
    """
    from pipelines.stages import train_config, train_run

    if Path(target).is_file() or Path(target).suffix.lower() in (".yaml", ".yml"):
        print(train_config(load(Path(target), overrides), as_of, wait=wait))
        return
    if overrides or as_of is not None:
        raise ConfigError("--set and --as-of need a CONFIG: a RUN has fixed settings and data versions.")
    print(train_run(target, output, wait=wait))


def tune(
    configs: list[Path],
    model: str,
    trials: int = 20,
    *,
    overrides: list[str] | None = None,
    as_of: str | None = None,
    wait: bool = False,
) -> None:
    """Search a model's settings on the validation sessions.

    With several folds, those of later folds are test sessions of earlier ones, and the answer says how many.
    Every trial is logged in the tracking store and counted in the trial ledger. After an interruption, the
    same command continues the search. To use the result, copy the printed settings into the config and run
    `peerglass train`, which forecasts the test once.

    With several configs, the same settings are tried on all of them. A trial is worth the smallest share that
    it reaches of the best score of each config, so that the printed settings lose little anywhere.
    """
    from pipelines.train.tune import tune as search

    say(search([load(config, overrides) for config in configs], model, trials, as_of, wait=wait))


def multiverse(
    config: Path,
    designs: int = 100,
    *,
    minutes: float | None = None,
    test: bool = False,
    overrides: list[str] | None = None,
    as_of: str | None = None,
    wait: bool = False,
) -> None:
    """Measure how far the design choices that papers vary move the net Sharpe ratio and the IC.

    A design takes one value of every choice in the config's section multiverse, or of what papers vary:
    target, horizon, delay, window, missing values, universe, training length, retraining, loss, seed, model,
    book and weighting. Without a choice of `model` or `book`, designs have the first model that learns, and
    the first book. Designs are drawn evenly; use a hundred or more. Those that differ in their books alone
    share fits.

    The answer has the spread over designs, or non-standard error, beside the usual standard error; the share
    of each choice, and of pairs, in the variance over designs; and the best and the median design with
    deflated Sharpe ratios. All figures are of the sessions that all designs have. Tables and a page with
    specification curves are in the folder of runs, under `multiverses`.

    Results are of validation sessions unless `--test` is given. Every design is counted in the trial ledger.
    After an interruption, the same command continues, and a larger number of designs adds to the smaller one.

    Example: `peerglass multiverse configs/sample.yaml --designs 200 --minutes 30`
    """
    from pipelines.multiverse import multiverse as measure

    say(measure(load(config, overrides), designs, minutes, as_of, test=test, wait=wait))


def backtest(
    target: str,
    config: Path | None = None,
    *,
    signal: list[str] | None = None,
    sweep: str | None = None,
    book: str | None = None,
    as_json: bool = False,
    force: bool = False,
    overrides: list[str] | None = None,
    output: Path = RUNS_FOLDER,
    as_of: str | None = None,
    wait: bool = False,
) -> None:
    """Measure a run's forecasts, or your own signals, before and after costs.

    A run is evaluated on its recorded data. With `--set`, only settings of the section backtest can change
    (costs, books, execution delay). The result is stored as an additional evaluation of the run, and
    `peerglass report` shows the newest one.

    A file of signals is measured on the lake of `--config`, all columns side by side, at a delay of at least
    one session. A signal dated t must have been known at the close of t; higher means better. Factor frames
    of alphalens work as they are. Every signal counts as a trial, and measuring it again does not. The
    tear sheet, the tables and the settings are kept in a folder of their own. `peerglass report ID` shows
    them again, and `peerglass backtest ID` measures the same file again, for example with `--set`.

    Forecasts of a language or foundation model need its knowledge cutoff, as a column `known_from` or by
    `--set known_from=DATE`: earlier ones count in no figure.

    The look-ahead guard checks whether a signal knows prices after its date. If it does, the signal is not
    believable and the exit code is 4.

    Examples
    --------
    - `peerglass backtest my-run-1a2b --set backtest.costs.half_spread_bps=10`
    - `peerglass backtest signals.parquet --config my.yaml`
    - `peerglass backtest signals.csv --config my.yaml --signal momentum --json`
    - `peerglass backtest my-run-1a2b --sweep 'quantiles=5,10; delay=1,2,5'`
    """
    if book is not None and sweep is None:
        raise ConfigError("--book names the book of a sweep; add --sweep GRID.")
    if config is None and not is_signal_file(target):
        target, config = file_of(target, output) or (target, None)
    of_file = config is not None or is_signal_file(target)
    options = MeasureOptions(
        overrides=tuple(overrides or ()),
        signals=tuple(signal or ()),
        as_of=as_of,
        wait=wait,
        as_json=as_json,
        force=force,
        sweep=sweep or "",
        book=book,
    )
    echo = print if as_json else say
    if of_file and sweep is None:
        measure_file(target, config, options, echo)
    elif of_file:
        from pipelines.sweeps import sweep_file

        sweep_file(target, config, options, echo)
    elif as_of is not None or signal or force:
        given = "--as-of" if as_of is not None else "--signal" if signal else "--force"
        raise ConfigError(
            f"{given} applies only to a FILE with --config; a run is read at its recorded data versions."
        )
    elif sweep is not None:
        from pipelines.sweeps import sweep_run

        sweep_run(target, options, output, echo)
    else:
        from pipelines.stages import backtest_run

        backtest_run(target, overrides or [], output, echo=echo, as_json=as_json, wait=wait)


def compare(
    runs: list[str],
    *,
    delay: int | None = None,
    book: str | None = None,
    config: Path | None = None,
    as_json: bool = False,
    output: Path = RUNS_FOLDER,
) -> None:
    """Put models of different runs side by side, with paired tests of the difference to the first one.

    Every figure is measured on the dates that all of them have, from each run's newest evaluation. The answer
    to "beats" is yes, no or unclear, by the tests that a report uses. What differs is listed: data versions,
    settings, code, costs and books. ICs are compared only if the labels are the same.

    Model versions are compared on the sessions that all of them forecast at night without having seen their
    labels, by the signals that the nights used.

    Examples
    --------
    - `peerglass compare champion challenger --config configs/nightly_demo.yaml`
    - `peerglass compare my-run-1a2b my-run-3c4d`
    - `peerglass compare my-run-1a2b:ridge my-run-1a2b:self_peer --delay 1`
    """
    from pipelines.commands.versions import config_of_option, is_version, open_versions
    from pipelines.results.run_comparison import compare as compare_candidates
    from pipelines.results.run_comparison import comparison_json, describe_candidates, open_candidate

    of_nights = [name for name in runs if is_version(name)]
    if of_nights and len(of_nights) < len(runs):
        raise ConfigError(
            f"{of_nights[0]} is a model version, which is measured on its nights, and the others are runs, "
            "which are measured on their tests; compare versions with versions."
        )
    if of_nights:
        settings = config_of_option(config, [])
        folder = output if settings is None else Path(settings.output)
        candidates = open_versions(runs, settings, folder, delay, book)
    else:
        candidates = [open_candidate(name, output, delay, book) for name in runs]
    comparison = compare_candidates(candidates)
    if as_json:
        print(comparison_json(comparison))
    else:
        say(describe_candidates(comparison))


def replicate(name: str | None = None, *, overrides: list[str] | None = None, wait: bool = False) -> None:
    """Take a published result down its ladder: as published, after the audit, causal, tradable, net of costs.

    Without NAME, the replications are listed, with the data that each needs. Every step is a run: it is
    audited, counted in the trial ledger and, after an interruption, continued by the same command. A step
    whose inputs look ahead is trained in spite of its audit, because that is what is shown. The table is
    printed, and stored in the folder of the last run.

    **This opens the test.** The published figures are of test years, so the steps forecast the same ones. To
    try the command first, end data and folds before the test with `--set`, in a folder of its own: lakes and
    runs are in the current folder, and the lakes then end there as well.

    Example: `peerglass replicate stock_mixer`
    """
    from pipelines.commands.replicate import list_replications
    from pipelines.commands.replicate import replicate as take_down

    say(list_replications() if name is None else take_down(name, overrides or [], wait=wait))


def explain(
    run: str,
    *,
    date: str | None = None,
    ticker: str | None = None,
    top: int | None = None,
    to: dt.datetime | None = None,
    versus: dt.datetime | None = None,
    skill: bool = False,
    net: bool = False,
    dates: int | None = None,
    model: str | None = None,
    engine: str | None = None,
    removal: str | None = None,
    precision: float | None = None,
    draws: int | None = None,
    peers: Literal["all", "sectors", "firms"] | None = None,
    out: Path | None = None,
    output: Path = RUNS_FOLDER,
    wait: bool = False,
) -> None:
    """Attribute test forecasts of a run to days, feature families and peers (Shapley values).

    Without `--date`, a sample of test forecasts of the neural models is explained. The section explain of the
    config sets the models, the number of dates and firms, and the number of permutations. The results are
    stored with the run, and `peerglass report` shows them.

    With `--date`, the forecasts of one date are explained, and the values are printed with their errors: for
    one firm with `--ticker`, for both ends of the ranking with `--top`, and otherwise for all firms of the
    date. Forecasts are those of the fold that tests the date, as the mean over seeds. Draws are kept with the
    run, so asking again for a higher precision continues them.

    With `--skill`, the rank IC on test dates is divided among the players instead of a forecast. With
    `--net`, the net return of the book is, beside its IC, costs and turnover; the table is stored with the
    run, and `peerglass report` shows it.

    Example: `peerglass explain latest --date 2024-03-01 --ticker AAPL --versus 2024-02-01 --precision 0.05`
    """
    options: dict[str, Any] = {
        **{"ticker": ticker, "top": top, "to": to and to.date(), "versus": versus and versus.date()},
        **{"model": model, "engine": engine},
        **{"removal": removal, "precision": precision, "draws": draws, "peers": peers, "dates": dates},
        "out": out,
    }
    given = [f"--{name}" for name, value in options.items() if value is not None]
    whole = "--net" if net else "--skill" if skill else None
    allowed = {"--model", "--removal", "--out", "--draws" if net else "--dates"}
    of_forecasts = [*["--date"] * (date is not None), *["--skill"] * (net and skill)]
    of_forecasts += sorted({*given} - allowed)
    if whole and of_forecasts:
        raise ConfigError(f"{whole} divides a figure of the whole test; leave {of_forecasts[0]} out.")
    if dates is not None and not skill and (to is None or ticker is not None):
        raise ConfigError(
            "--dates samples a span or the skill; give it with --to, without --ticker, or --skill."
        )
    if date is None and not whole:
        if given:
            raise ConfigError(f"{given[0]} explains the forecasts of one date; give it with --date.")
        from pipelines.stages import explain_run

        say(explain_run(run, output, wait=wait))
        return
    from pipelines.explain.question import Question

    try:
        day = None if date in (None, "latest") else dt.date.fromisoformat(str(date))
    except ValueError:
        raise ConfigError(f"--date is {date!r}; it must be a date such as 2024-03-01, or latest.") from None
    given_options = {name: value for name, value in options.items() if value is not None}
    question = Question(date=day, **{"dates": 60 if skill else 20, **given_options})  # checked with the run
    if net:
        from pipelines.stages import explain_net

        say(explain_net(run, output, question, wait=wait))
        return
    from pipelines.explain.forecasts import explain_forecasts, explain_skill_of_run

    say((explain_skill_of_run if skill else explain_forecasts)(run, output, question))


def revisions(
    run: str,
    *,
    since: str | None = None,
    model: str | None = None,
    inputs: bool = False,
    top: int = 12,
    as_json: bool = False,
    output: Path = RUNS_FOLDER,
    wait: bool = False,
) -> None:
    """Measure a run again on every later version of its data, and say which corrections move its figures.

    The band is the lowest and the highest net Sharpe ratio and IC over the data versions from the run's own,
    or from `--since`, to the newest. Only sessions count that the first and the last version have, so new
    sessions are no correction. The run must have been measured; no trial is counted.

    The difference between the first and the last version is divided among corrections, by table and firm:
    Shapley values, which add up to it. Up to six are exact; of more, two orders and their reverses are drawn.

    Stored forecasts are held: what was traded stays, and what it earned is measured again. With `--inputs`
    only the fitted models are held, and forecast again from the inputs of each version. Statements are then
    compared as well: as filed (first values alone), as published (restatements from their day on), and as
    restated (last values at the first day, which nobody knew then).

    Example: `peerglass revisions latest --since 2026-01-31`
    """
    from pipelines.commands.revisions import RevisionOptions, describe_revisions, measure_revisions

    options = RevisionOptions(since, model, inputs, top)
    found = measure_revisions(run, output, options, wait=wait)
    answer(found, describe_revisions, as_json=as_json)


def explore(
    run: str,
    *,
    model: str | None = None,
    out: Path | None = None,
    show: bool = False,
    output: Path = RUNS_FOLDER,
    wait: bool = False,
) -> None:
    """Write the peer network of a run as one self-contained HTML page and print its path.

    The page is made from the tables of `peerglass explain`, which `peerglass run` includes. Choose a date and
    a firm to see which peers moved its forecast and which forecasts it moved, with error bars, t-statistics
    and the edges that survive the control of false discoveries; what changed since an earlier date; and
    Shapley values beside attention. Sectors and t-statistics filter it. The verdict on attention is at the
    top.

    The page needs no server and requests nothing, so it can be mailed. Add `#TICKER/DATE` to its address to
    open a firm on a date.

    A run without a peer network ends with exit code 3, and a model without one with exit code 2.

    Examples
    --------
    - `peerglass explore latest --open`
    - `peerglass explore my-run-1a2b --model temporal_peer --out network.html`
    """
    from pipelines.stages import explore_run

    path = explore_run(run, output, model, out, wait=wait)
    print(path)
    if show:
        import webbrowser

        if not webbrowser.open(path.as_uri()):
            say("There is no browser here; open the file above in one.", sys.stderr)


def report(run: str, evaluation: str | None = None, output: Path = RUNS_FOLDER, wait: bool = False) -> None:
    """Write the report of a run as one self-contained HTML file and print its path.

    The run is evaluated first if it has no evaluation yet. Attributions and the audit are included if they
    were made.
    """
    from pipelines.stages import report_run

    print(report_run(run, output, evaluation, wait=wait))


VERBS: Final = (
    *(run, ingest, audit, register, train, tune, multiverse),
    *(backtest, revisions, compare, replicate, explain, explore, report),
)
