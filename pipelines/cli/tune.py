"""``peerglass tune``: search a model's settings on the validation sessions."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli import AsOfOption, ConfigArgument, SetOption, WaitOption


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
