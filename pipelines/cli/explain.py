"""``peerglass explain``: attribute forecasts of a run."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipelines.cli.options import RUNS_FOLDER, OutputOption, RunArgument, WaitOption
from pipelines.errors import ConfigError

_DAY = ["%Y-%m-%d"]


def explain(
    run: RunArgument,
    *,
    date: Annotated[
        dt.datetime | None,
        typer.Option(formats=_DAY, metavar="DATE", help="Explain the forecasts of this test date only."),
    ] = None,
    ticker: Annotated[
        str | None, typer.Option(help="Firm to explain. Default: the cross-section of the date.")
    ] = None,
    to: Annotated[
        dt.datetime | None,
        typer.Option(
            formats=_DAY,
            metavar="DATE",
            help="Explain the firm's forecasts of all test dates from --date to this date.",
        ),
    ] = None,
    versus: Annotated[
        dt.datetime | None,
        typer.Option(
            formats=_DAY,
            metavar="DATE",
            help="Explain the difference between the firm's forecasts of --date and of this date.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of the run. Default: the only one.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="`permutation`, `kernel` or `exact` (at most 12 players); `linear` for ridge and `tree` for "
            "lightgbm; `integrated_gradients` or `expected_gradients`. Default: `permutation`."
        ),
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Draw until the standard error of every value is at most this share of the standard "
            "deviation of the date's forecasts, for example 0.05.",
        ),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of draws per seed, by default 16. With --precision, the largest number, by default "
            "1,000.",
        ),
    ] = None,
    peers: Annotated[
        Literal["all", "sectors", "firms"] | None,
        typer.Option(
            metavar="KIND",
            help="Peers as one player (`all`), by `sectors`, or as single `firms` on dates with at most 100 "
            "firms and by sectors otherwise. Default: `firms` for a single forecast or a difference, else "
            "`sectors`.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the values to a .csv, .parquet or .json file."),
    ] = None,
    output: OutputOption = RUNS_FOLDER,
    wait: WaitOption = False,
) -> None:
    """Attribute test forecasts of a run to days, feature families and peers (Shapley values).

    Without `--date`, a sample of test forecasts of the neural models is explained. The section explain of the
    config sets the models, the number of dates and firms, and the number of permutations. The results are
    stored with the run, and `peerglass report` shows them.

    With `--date`, the forecasts of one date are explained, and the values are printed with their errors: for
    one firm with `--ticker`, and otherwise for all firms of the date. Forecasts are those of the fold that
    tests the date, as the mean over seeds. Draws are kept with the run, so asking again for a higher
    precision continues them.

    Example: `peerglass explain latest --date 2024-03-01 --ticker AAPL --versus 2024-02-01 --precision 0.05`
    """
    if date is None:
        given = {
            "--ticker": ticker,
            "--to": to,
            "--versus": versus,
            "--model": model,
            "--engine": engine,
            "--precision": precision,
            "--draws": draws,
            "--peers": peers,
            "--out": out,
        }
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name} explains the forecasts of one date; give it with --date.")
        from pipelines.stages import explain_run

        print(explain_run(run, output, wait=wait))
        return
    from pipelines.explain.forecasts.command import explain_forecasts
    from pipelines.explain.forecasts.question import Question

    question = Question(
        date=date.date(),
        ticker=ticker,
        to=None if to is None else to.date(),
        versus=None if versus is None else versus.date(),
        model=model,
        engine=engine or "permutation",
        precision=precision,
        draws=draws,
        peers=peers,
        out=out,
    )
    print(explain_forecasts(run, output, question))
