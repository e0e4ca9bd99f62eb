"""``peerglass run``: every stage, from the data to the report."""

from __future__ import annotations

import typer

from pipelines.cli import AsOfOption, ConfigArgument, SetOption, WaitOption


def run(
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
