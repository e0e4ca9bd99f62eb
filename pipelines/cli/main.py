"""The ``peerglass`` command. Commands only parse arguments and print; heavy imports happen inside them."""

from __future__ import annotations

import atexit
import functools
import gc
import sys
import traceback
from collections.abc import Callable
from typing import Annotated

import typer

from pipelines.cli.backtest import backtest
from pipelines.cli.compare import compare
from pipelines.cli.demo import demo
from pipelines.cli.doctor import doctor
from pipelines.cli.explain import explain
from pipelines.cli.explore import explore
from pipelines.cli.features import list_features
from pipelines.cli.init import init
from pipelines.cli.lake import lake_app
from pipelines.cli.nightly import nightly
from pipelines.cli.notebook import notebook
from pipelines.cli.options import (
    RUNS_FOLDER,
    AsOfOption,
    ConfigArgument,
    OutputOption,
    RunArgument,
    SetOption,
    WaitOption,
)
from pipelines.cli.promote import demote, promote
from pipelines.cli.quarantine import quarantine_app
from pipelines.cli.runs import runs_app
from pipelines.cli.signals import signals
from pipelines.cli.track import track_app
from pipelines.cli.trials import trials_app
from pipelines.errors import PeerglassError, full_disk
from pipelines.secrets import redact

_START, _PIPELINE, _DATA = "Getting started", "Pipeline", "Features and data"  # panels of the help page

app = typer.Typer(
    name="peerglass",
    help=(
        "Forecast stock returns with attention over days and over peer firms, backtest the forecasts "
        "walk-forward with costs, and explain them with Shapley values.\n\n"
        "First run: `peerglass doctor`, then `peerglass demo`. For your own prices, `peerglass init "
        "prices.csv` writes a config; read it, then start `peerglass run prices.yaml`. "
        "Every command has its own `--help`.\n\n"
        "Exit codes: 0 success; 1 bug; 2 wrong config or usage; 3 data missing, stale or locked; 4 audit "
        "failed or promotion refused; 5 training produced no model (diverged, constant labels or out of "
        "memory); 6 tracking server unreachable."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _State:
    """What :func:`main` needs from the parsed command line."""

    debug = False


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"peerglass {version('peerglass')}")
        raise typer.Exit


@app.callback()
def _common(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and end."),
    ] = False,
) -> None:
    _State.debug = debug


app.command(rich_help_panel=_START)(doctor)
app.command(rich_help_panel=_START)(demo)
app.command(rich_help_panel=_START)(init)
app.command(rich_help_panel=_START)(notebook)


@app.command(rich_help_panel=_START)
def validate(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Check a config and the files that its source names, and print it with every default filled in.

    Files are read as an ingest would read them: missing ones, missing columns and files that were mostly
    misread end with exit code 3. The lake is neither read nor written.
    """
    from pipelines.config.load import load_config, to_yaml
    from pipelines.run.fetch import check_source

    checked = load_config(config, overrides or [])
    check_source(checked)
    print(to_yaml(checked), end="")


@app.command(name="run", rich_help_panel=_PIPELINE)
def run_(
    config: ConfigArgument, overrides: SetOption = None, as_of: AsOfOption = None, wait: WaitOption = False
) -> None:
    """Run every stage: ingest, audit, train, backtest, explain, report. Print the path of the report.

    After an interruption, the same command continues the run. Finished tasks and an explanation with the same
    settings and code are kept. With `--as-of` the ingest is skipped and an earlier state of the lake is used.

    Example: `peerglass run configs/sample.yaml --set fit.epochs=5`
    """
    from pipelines.config.load import load_config
    from pipelines.stages import run_config

    print(run_config(load_config(config, overrides or []), echo=typer.echo, as_of=as_of, wait=wait))


@app.command(rich_help_panel=_PIPELINE)
def ingest(
    config: ConfigArgument,
    *,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Accept a delivery that withdraws or changes most of the rows in the lake.",
        ),
    ] = False,
    overrides: SetOption = None,
    wait: WaitOption = False,
) -> None:
    """Load the data of a config's source into its lake, and print how many rows were added or changed.

    The summary counts rows that were added, updated, withdrawn, quarantined and flagged.

    Files, the sample and the simulated market deliver their whole history every time. Rows that are missing
    from a new delivery are withdrawn from the lake, and earlier versions of the lake keep them. A delivery
    that would withdraw more than half of a table is refused with exit code 3. A different source or market is
    refused with exit code 2. A live source (yfinance, sec) never withdraws rows.
    """
    from pipelines.config.load import load_config
    from pipelines.stages import ingest_config

    ingest_config(load_config(config, overrides or []), typer.echo, replace=replace, wait=wait)


@app.command(rich_help_panel=_PIPELINE)
def audit(
    target: Annotated[
        str, typer.Argument(metavar="CONFIG|RUN", help="A YAML config file, or a run id or folder.")
    ],
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


@app.command(rich_help_panel=_PIPELINE)
def train(
    target: Annotated[
        str, typer.Argument(metavar="CONFIG|RUN", help="A YAML config file, or a run id or folder.")
    ],
    overrides: SetOption = None,
    as_of: AsOfOption = None,
    output: OutputOption = RUNS_FOLDER,
    wait: WaitOption = False,
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
    from pathlib import Path

    from pipelines.config.load import load_config
    from pipelines.errors import ConfigError
    from pipelines.stages import train_config, train_run

    if Path(target).is_file() or Path(target).suffix.lower() in (".yaml", ".yml"):
        print(train_config(load_config(Path(target), overrides or []), as_of, wait=wait))
        return
    if overrides or as_of is not None:
        raise ConfigError("--set and --as-of need a CONFIG: a RUN has fixed settings and data versions.")
    print(train_run(target, output, wait=wait))


@app.command(rich_help_panel=_PIPELINE)
def tune(
    config: ConfigArgument,
    model: Annotated[str, typer.Option(help="Model of the config whose settings are searched.")],
    trials: Annotated[
        int, typer.Option(min=1, help="Total number of trials, including trials of earlier searches.")
    ] = 20,
    *,
    overrides: SetOption = None,
    as_of: AsOfOption = None,
    wait: WaitOption = False,
) -> None:
    """Search a model's settings on the validation sessions. No test session is forecast.

    Every trial is logged in the tracking store and counted in the trial ledger. After an interruption, the
    same command continues the search. To use the result, copy the printed settings into the config and run
    `peerglass train`, which forecasts the test once.
    """
    from pipelines.config.load import load_config
    from pipelines.train.tune import tune as search

    print(search(load_config(config, overrides or []), model, trials, as_of, wait=wait))


app.command(rich_help_panel=_PIPELINE)(backtest)
app.command(rich_help_panel=_PIPELINE)(compare)
app.command(rich_help_panel=_PIPELINE)(explain)
app.command(rich_help_panel=_PIPELINE)(explore)


@app.command(rich_help_panel=_PIPELINE)
def report(
    run: RunArgument,
    evaluation: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Id of the evaluation to show, or a unique prefix of it. Default: the newest."
        ),
    ] = None,
    output: OutputOption = RUNS_FOLDER,
    wait: WaitOption = False,
) -> None:
    """Write the report of a run as one self-contained HTML file and print its path.

    The run is evaluated first if it has no evaluation yet. Attributions and the audit are included if they
    were made.
    """
    from pipelines.stages import report_run

    print(report_run(run, output, evaluation, wait=wait))


app.command(rich_help_panel=_PIPELINE)(nightly)
app.command(rich_help_panel=_PIPELINE)(signals)
app.add_typer(runs_app, rich_help_panel=_PIPELINE)
app.command(rich_help_panel=_PIPELINE)(promote)
app.command(rich_help_panel=_PIPELINE)(demote)
app.add_typer(trials_app, rich_help_panel=_PIPELINE)
app.add_typer(track_app, rich_help_panel=_PIPELINE)
app.command(name="features", rich_help_panel=_DATA)(list_features)
app.add_typer(lake_app, rich_help_panel=_DATA)
app.add_typer(quarantine_app, rich_help_panel=_DATA)


def main() -> None:
    """Entry point. Errors become one sentence on stderr and a documented exit code."""
    # At its end the interpreter would search all libraries for garbage, which takes more than a second.
    atexit.register(gc.freeze)
    try:
        _command()()
    except PeerglassError as error:
        _print_traceback()
        shown = full_disk(error) or error
        print(f"peerglass: {shown}", file=sys.stderr)
        sys.exit(shown.exit_code)
    except KeyboardInterrupt:
        print("peerglass: interrupted; run the same command again to continue.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        _print_traceback()
        if (full := full_disk(error)) is not None:
            print(f"peerglass: {full}", file=sys.stderr)
            sys.exit(full.exit_code)
        print(
            f"peerglass: this is a bug ({type(error).__name__}: {redact(str(error))}); run 'peerglass "
            "--debug ...' for the traceback and report it.",
            file=sys.stderr,
        )
        sys.exit(1)


@functools.cache
def _command() -> Callable[[], object]:
    """Build the command line once per process."""
    return typer.main.get_command(app)


def _print_traceback() -> None:
    """With ``--debug``, print the traceback of the current error with its secrets masked."""
    if _State.debug:
        print(redact(traceback.format_exc()), file=sys.stderr)
