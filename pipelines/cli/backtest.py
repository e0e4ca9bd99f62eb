"""``peerglass backtest``: evaluate a run again, or measure the signals of a file of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli import RUNS_FOLDER, AsOfOption, OutputOption, SetOption, WaitOption
from pipelines.errors import ConfigError
from pipelines.evaluate_file import MeasureOptions, file_of, is_signal_file, measure_file


def backtest(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="A run, a file (CSV, Excel or Parquet) with a date, a ticker and columns of signals, or "
            "the name of measured signals, as in `peerglass runs list`.",
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG",
            help="Required for a FILE: the config whose lake, universe, label, books, costs and output "
            "folder are used. Its models and features are not.",
        ),
    ] = None,
    *,
    signal: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Column of the FILE to measure. Can be repeated. Default: all numbers."
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="GRID",
            help="Measure every combination of settings of a book, its costs and its delay, such as "
            "'quantiles=5,10; delay=1,2; half_spread_bps=0,5'. Each is a trial.",
        ),
    ] = None,
    book: Annotated[str | None, typer.Option(help="Book of --sweep. Default: the first one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Exit with 0 although a signal fails the look-ahead guard.")
    ] = False,
    overrides: SetOption = None,
    output: OutputOption = RUNS_FOLDER,
    as_of: AsOfOption = None,
    wait: WaitOption = False,
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
    if config is not None or is_signal_file(target):
        if sweep is None:
            measure_file(target, config, options, typer.echo)
            return
        from pipelines.sweeps import sweep_file

        sweep_file(target, config, options, typer.echo)
        return
    if as_of is not None or signal or force:
        given = "--as-of" if as_of is not None else "--signal" if signal else "--force"
        raise ConfigError(
            f"{given} applies only to a FILE with --config; a run is read at its recorded data versions."
        )
    if sweep is not None:
        from pipelines.sweeps import sweep_run

        sweep_run(target, options, output, typer.echo)
        return
    from pipelines.stages import backtest_run

    backtest_run(target, overrides or [], output, echo=typer.echo, as_json=as_json, wait=wait)
