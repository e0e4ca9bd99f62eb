"""``peerglass ingest``: the data of a source into the lake."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli import ConfigArgument, SetOption, WaitOption


def ingest(
    config: ConfigArgument,
    *,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Accept a delivery that withdraws or changes most of the rows in the lake."
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
