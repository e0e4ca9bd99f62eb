"""The ``peerglass`` command. Verbs only parse and print; heavy imports happen inside them."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.lake import lake_app
from pipelines.cli.options import AsOfOption, ConfigArgument, OutputOption, RunArgument, SetOption, WaitOption
from pipelines.cli.quarantine import quarantine_app
from pipelines.errors import PeerglassError
from pipelines.secrets import redact

app = typer.Typer(
    name="peerglass",
    help=(
        "Forecast stock returns with attention over days and over peer firms, backtest the forecasts "
        "walk-forward with costs, and explain them with Shapley values.\n\n"
        "Start with 'peerglass demo'. Then copy configs/sample.yaml, point it at your data, and use "
        "'peerglass run my.yaml'.\n\n"
        "Exit codes: 0 ok, 1 bug, 2 config or usage, 3 data missing, stale or locked, 4 audit failed, "
        "5 training diverged, 6 tracking server unreachable."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_RUNS = Path("data/runs")
app.add_typer(lake_app)
app.add_typer(quarantine_app)


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    _State.debug = debug


def _say(text: str) -> None:
    """Print at once, so that a log shows what a long run has found so far."""
    print(text, flush=True)


class _State:
    """What :func:`main` has to know about the command line that was parsed."""

    debug = False


@app.command()
def demo(overrides: SetOption = None, wait: WaitOption = False) -> None:
    """Run the whole pipeline on the embedded market and print the report's path.

    The market is simulated with planted structure, so the report can say which share of the truth's own
    information coefficient each model reached, and whether SHAP found the planted peer edges.
    """
    from pipelines.cli.demo import demo_config
    from pipelines.stages import run_config

    print(run_config(demo_config(overrides or []), echo=_say, wait=wait))


@app.command()
def validate(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Check a config and print it resolved, with every default filled in."""
    from pipelines.config.load import load_config, to_yaml

    print(to_yaml(load_config(config, overrides or [])), end="")


@app.command()
def ingest(
    config: ConfigArgument,
    *,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Accept a delivery that withdraws or changes most of what the lake holds."
        ),
    ] = False,
    overrides: SetOption = None,
    wait: WaitOption = False,
) -> None:
    """Fetch a config's source into the lake; print rows added, updated, withdrawn, quarantined and flagged.

    Files, the sample and the simulated market deliver everything that they have. Rows that they no longer
    deliver are withdrawn from the lake; earlier versions keep them. A delivery that withdraws more than half
    of a table is refused (exit code 3), and so is another source or another market (exit code 2). A live
    source withdraws nothing.
    """
    from pipelines.config.load import load_config
    from pipelines.stages import ingest_config

    ingest_config(load_config(config, overrides or []), _say, replace=replace, wait=wait)


@app.command()
def train(
    config: ConfigArgument, overrides: SetOption = None, as_of: AsOfOption = None, wait: WaitOption = False
) -> None:
    """Train walk-forward on what the lake holds; forecasts go to the lake. Prints the run id.

    Every model, fold and seed is done once: after an interruption, the same command does what is missing.
    The settings fit.pretrain, init_from, fit.layer_decay and fit.label_share pretrain day encoders on days,
    begin with those of an earlier run, fine-tune layer by layer, and use a part of the labels. With
    fit.refit, what validation chose is fitted anew on training and validation sessions, and forecasts.
    """
    from pipelines.config.load import load_config
    from pipelines.stages import train_config

    print(train_config(load_config(config, overrides or []), as_of, wait=wait))


@app.command()
def backtest(
    target: Annotated[
        str,
        typer.Argument(metavar="RUN|FILE", help="A run, or a CSV or Parquet file with date, ticker, signal."),
    ],
    config: Annotated[
        Path | None,
        typer.Option(help="For a FILE: the config whose lake, universe, label, books and costs are used."),
    ] = None,
    *,
    overrides: SetOption = None,
    output: OutputOption = _RUNS,
    as_of: AsOfOption = None,
    wait: WaitOption = False,
) -> None:
    """Measure a run's forecasts, or your own signal, gross and net of costs.

    On a RUN, --set changes settings of the section backtest (costs, books, execution delay) and adds an
    evaluation beside those that the run has. 'peerglass report' shows the one that was asked for last.
    """
    from pipelines.stages import backtest_target

    backtest_target(target, config, overrides or [], output, echo=_say, as_of=as_of, wait=wait)


@app.command()
def explain(run: RunArgument, output: OutputOption = _RUNS, wait: WaitOption = False) -> None:
    """Attribute a sample of a run's test forecasts to days, feature families and peers."""
    from pipelines.stages import explain_run

    print(explain_run(run, output, wait=wait))


@app.command()
def report(
    run: RunArgument,
    evaluation: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Which of the run's evaluations to show; without it, the one last asked for."
        ),
    ] = None,
    output: OutputOption = _RUNS,
    wait: WaitOption = False,
) -> None:
    """Write a run's report as one self-contained HTML file and print its path."""
    from pipelines.stages import report_run

    print(report_run(run, output, evaluation, wait=wait))


@app.command()
def audit(
    target: Annotated[str, typer.Argument(metavar="CONFIG|RUN", help="A YAML file, or a run.")],
    *,
    overrides: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything, evidence included.")] = False,
    as_of: AsOfOption = None,
    output: OutputOption = _RUNS,
    wait: WaitOption = False,
) -> None:
    """Check a config or a run for look-ahead and for results too good to be true; exit code 4 on failure.

    A config is checked on the data of its lake, a run at its recorded versions, with its checkpoints and its
    stored forecasts as well.
    """
    from pipelines.stages import audit_target

    audit_target(target, overrides or [], output, as_of, as_json=as_json, wait=wait)


@app.command(name="run")
def run_(
    config: ConfigArgument, overrides: SetOption = None, as_of: AsOfOption = None, wait: WaitOption = False
) -> None:
    """Ingest, audit, train, backtest, explain and report; print the report's path.

    With --as-of nothing is ingested: the rest is done on the lake as it was.
    """
    from pipelines.config.load import load_config
    from pipelines.stages import run_config

    print(run_config(load_config(config, overrides or []), echo=_say, as_of=as_of, wait=wait))


@app.command()
def tune(
    config: ConfigArgument,
    model: Annotated[str, typer.Option(help="Which of the config's models to search.")],
    trials: Annotated[int, typer.Option(min=1, help="Trials in all, those already done included.")] = 20,
    *,
    overrides: SetOption = None,
    as_of: AsOfOption = None,
    wait: WaitOption = False,
) -> None:
    """Search a model's settings on validation alone; every trial is tracked and counted in the ledger.

    The same command continues an interrupted search. Copy the settings that it prints into the config, and
    train: only then is the test forecast, once.
    """
    from pipelines.config.load import load_config
    from pipelines.train.tune import tune as search

    print(search(load_config(config, overrides or []), model, trials, as_of, wait=wait))


@app.command(name="features")
def features_(
    family: Annotated[str | None, typer.Option(help="Only this family, for example momentum.")] = None,
    needs: Annotated[str | None, typer.Option(help="Only what needs this, for example statements.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option(help="Print the whole library as docs/features.md.")] = False,
) -> None:
    """List the feature library: formula, window, warm-up, unit, needs and source of every feature."""
    from pipelines.cli import features as catalogue

    if markdown:
        print(catalogue.as_markdown(), end="")
    elif as_json:
        print(catalogue.as_json(catalogue.select(family, needs)))
    else:
        catalogue.print_table(catalogue.select(family, needs))


@app.command()
def doctor() -> None:
    """Say what this machine has, what is missing, and how to fix it."""
    from pipelines.cli.doctor import examine

    findings = examine()
    for finding in findings:
        print(finding)
    if any(finding.is_error for finding in findings):
        raise typer.Exit(3)


def main() -> None:
    """Entry point: errors become one sentence on stderr and a documented exit code."""
    try:
        app()
    except PeerglassError as error:
        _trace()
        print(f"peerglass: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("peerglass: interrupted; the same command continues from here.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        _trace()
        print(
            f"peerglass: this is a bug ({type(error).__name__}: {redact(str(error))}); run 'peerglass "
            "--debug ...' for the traceback and report it.",
            file=sys.stderr,
        )
        sys.exit(1)


def _trace() -> None:
    """With --debug, print the traceback of the error that is being handled, without the secrets in it."""
    if _State.debug:
        print(redact(traceback.format_exc()), file=sys.stderr)
