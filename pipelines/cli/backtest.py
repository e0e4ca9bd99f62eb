"""``peerglass backtest``: evaluate a run again, or evaluate a signal file of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import RUNS_FOLDER, AsOfOption, OutputOption, SetOption, WaitOption


def backtest(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="A run, or a CSV or Parquet file with the columns date, ticker and signal.",
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG",
            help="Required for a FILE: the config whose lake, universe, label, books and costs are used.",
        ),
    ] = None,
    *,
    overrides: SetOption = None,
    output: OutputOption = RUNS_FOLDER,
    as_of: AsOfOption = None,
    wait: WaitOption = False,
) -> None:
    """Measure a run's forecasts, or your own signal, before and after costs.

    A run is evaluated on its recorded data. With `--set`, only settings of the section backtest can change
    (costs, books, execution delay). The result is stored as an additional evaluation of the run, and
    `peerglass report` shows the newest one.

    A signal file is evaluated on the lake of `--config`. A signal dated t must have been known at the close
    of t.

    Examples
    --------
    - `peerglass backtest my-run-1a2b --set backtest.costs.half_spread_bps=10`
    - `peerglass backtest signal.csv --config my.yaml`
    """
    from pipelines.stages import backtest_target

    backtest_target(target, config, overrides or [], output, echo=typer.echo, as_of=as_of, wait=wait)
