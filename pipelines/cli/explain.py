"""``peerglass explain``: attribute forecasts of a run."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from pipelines.cli import RUNS_FOLDER, OutputOption, RunArgument, WaitOption, day_option
from pipelines.errors import ConfigError

if TYPE_CHECKING:
    from models.explain.removal import Removal

_OPTIONS = (
    *("--ticker", "--top", "--to", "--versus", "--model", "--engine"),
    *("--removal", "--precision", "--draws", "--peers", "--dates", "--out"),
)
_OF_SKILL = {"--model", "--removal", "--dates", "--out"}


def explain(
    run: RunArgument,
    *,
    date: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="Explain the forecasts of this test date only; `latest` is the newest test date.",
        ),
    ] = None,
    ticker: Annotated[
        str | None, typer.Option(help="Firm to explain. Default: the cross-section of the date.")
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(metavar="N", help="Explain the N highest and the N lowest forecasts of the date."),
    ] = None,
    to: Annotated[
        dt.datetime | None,
        day_option(
            "Explain the firm's forecasts of all test dates from --date to this date. Without "
            "--ticker: a sample of dates and firms, in proportion from every group."
        ),
    ] = None,
    versus: Annotated[
        dt.datetime | None,
        day_option("Explain the difference between the firm's forecasts of --date and of this date."),
    ] = None,
    skill: Annotated[
        bool, typer.Option("--skill", help="Divide the model's rank IC on test dates among the players.")
    ] = False,
    dates: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Number of sampled dates: by default 20 with --to, and 60 with --skill."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of the run. Default: the only one.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="`permutation`; `linear` for ridge and `tree` for lightgbm; `integrated_gradients` for "
            "neural models and ridge. Default: `permutation`."
        ),
    ] = None,
    removal: Annotated[
        str | None,
        typer.Option(
            help="What absent characteristics get: values of another firm of the same `date` (default), of "
            "the training fold (`train`), or draws from the training fold given what is kept "
            "(`conditional`). Absent peers are masked; absent days are masked or set to 0 (the output says)."
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
    one firm with `--ticker`, for both ends of the ranking with `--top`, and otherwise for all firms of the
    date. Forecasts are those of the fold that tests the date, as the mean over seeds. Draws are kept with the
    run, so asking again for a higher precision continues them.

    With `--skill`, the rank IC on test dates is divided among the players instead of a forecast.

    Example: `peerglass explain latest --date 2024-03-01 --ticker AAPL --versus 2024-02-01 --precision 0.05`
    """
    values = (ticker, top, to, versus, model, engine, removal, precision, draws, peers, dates, out)
    given = [name for name, value in zip(_OPTIONS, values, strict=True) if value is not None]
    of_forecasts = sorted({*given} - _OF_SKILL)
    if skill and (date is not None or of_forecasts):
        name = "--date" if date is not None else of_forecasts[0]
        raise ConfigError(f"--skill explains no single forecast; leave {name} out.")
    if dates is not None and not skill and (to is None or ticker is not None):
        raise ConfigError(
            "--dates samples a span or the skill; give it with --to, without --ticker, or --skill."
        )
    if date is None and not skill:
        if given:
            raise ConfigError(f"{given[0]} explains the forecasts of one date; give it with --date.")
        from pipelines.stages import explain_run

        print(explain_run(run, output, wait=wait))
        return
    from pipelines.explain.question import Question

    try:
        day = None if date in (None, "latest") else dt.date.fromisoformat(str(date))
    except ValueError:
        raise ConfigError(f"--date is {date!r}; it must be a date such as 2024-03-01, or latest.") from None
    question = Question(
        date=day,  # None for the newest test date
        ticker=ticker,
        top=top,
        to=None if to is None else to.date(),
        dates=(60 if skill else 20) if dates is None else dates,
        versus=None if versus is None else versus.date(),
        model=model,
        engine=engine or "permutation",
        removal=cast("Removal", removal or "date"),  # checked with the question
        precision=precision,
        draws=draws,
        peers=peers,
        out=out,
    )
    from pipelines.explain.forecasts import explain_forecasts, explain_skill_of_run

    print((explain_skill_of_run if skill else explain_forecasts)(run, output, question))
