"""``peerglass explain RUN --date D``: explain forecasts of a run, and say how it was done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from models.explain.design import evenly_spaced
from models.explain.players import absent_days, unwrap
from models.explain.removal import REMOVALS
from models.explain.skill import SkillConfig, explain_skill
from pipelines.device import one_thread
from pipelines.errors import ConfigError
from pipelines.explain.forecasts import Explained, FoldModels, explain_date
from pipelines.explain.games import families_of
from pipelines.explain.question import (
    Question,
    find_place,
    find_places,
    newest_date,
)
from pipelines.explain.tables import describe_skill, period_table, skill_table
from pipelines.explain.text import (
    decimals_for,
    describe_difference,
    describe_ends,
    describe_forecast,
    describe_history,
    describe_period,
    describe_section,
    difference_table,
    value_table,
)
from pipelines.explain.unit import unit_of_run
from pipelines.files import write_table
from pipelines.progress import Progress
from pipelines.run.record import Run


def explain_forecasts(name: str, output: Path, question: Question) -> str:
    """Explain one forecast, the difference between two, a firm over time, a date, its ends, or a period.

    Only out-of-sample forecasts are explained: those of the fold that tests the date, as the mean over its
    seeds.

    Parameters
    ----------
    name
        Id of the run, a unique prefix of it, ``latest``, or its folder.
    output
        Folder that holds the runs.
    question
        What is explained, and how.

    Returns
    -------
    str
        The tables.

    Raises
    ------
    ConfigError
        If an option does not suit the run, the date or the firm has no forecast, or the precision is not
        reached.
    DataError
        If a checkpoint is missing, or was trained on other features than the run's data have.
    """
    question.check()
    progress = Progress()
    models = FoldModels.open(name, output, question.model, progress)
    run, model, dataset, folds = models.run, models.model, models.dataset, models.folds
    date = newest_date(dataset, folds) if question.date is None else question.date
    if question.to is not None:
        places = find_places(dataset, folds, date, question.to, question.ticker)
        if question.ticker is None:
            places = [places[k] for k in evenly_spaced(np.arange(len(places)), question.dates)]
    else:
        dates = [date] if question.versus is None else [date, question.versus]
        places = [find_place(dataset, folds, one, question.ticker) for one in dates]
    with progress.stage("explain", total=len(places) * len(run.config.seeds)):
        found = [explain_date(models, place, question, progress) for place in places]
    tables = [value_table(explained, model) for explained in found]
    decimals = decimals_for(found[0].spread)
    if question.versus is not None:
        frame = difference_table(tables[0], tables[1])
        body = describe_difference(frame, decimals)
    else:
        frame = pl.concat(tables)
        body = _describe(frame, question, decimals)
    lines = [*_head(run, model, question, found), body]
    if question.out is not None:
        lines += ["", f"The values are in {write_table(question.out, frame).resolve()}."]
    return "\n".join(lines)


def _describe(frame: pl.DataFrame, question: Question, decimals: int) -> str:
    if question.to is not None and question.ticker is None:
        return describe_period(period_table(frame.rename({"date": "session"})), decimals)
    if question.to is not None:
        return describe_history(frame, decimals)
    if question.top is not None:
        return describe_ends(frame, decimals)
    return (describe_section if question.ticker is None else describe_forecast)(frame, decimals)


def _head(run: Run, model: str, question: Question, found: list[Explained]) -> list[str]:
    seeds = len(run.config.seeds)
    who = question.ticker or f"{len({one for each in found for one in each.tickers})} firms"
    if question.to is None:
        when = "at the close of " + " minus ".join(f"{one.date} (fold {one.fold})" for one in found)
    else:
        when = f"on {len(found)} dates from {found[0].date} to {found[-1].date}"
    drawn = f", {max(one.draws or 0 for one in found)} draws per seed" if found[0].draws else ""
    lines = [
        f"{run.run_id}, {model}: {who} {when}, out of sample, mean of {seeds} "
        f"seed{'' if seeds == 1 else 's'}",
        f"unit: {unit_of_run(run, model).sentence}; standard deviation over the firms of "
        f"{found[0].date}: {found[0].spread:.3g}",
        f"engine {question.engine}{drawn}; error: Monte Carlo standard error",
        f"absent characteristics get {REMOVALS[question.removal]}; absent days are {found[0].absent_days}; "
        "absent peers are masked",
    ]
    gap = max(float(np.abs(one.base_E + one.values_PE.sum(axis=0) - one.forecast_E).max()) for one in found)
    if gap > 1e-3 * found[0].spread:
        lines.append(f"With this engine, base value and values differ from the forecast by up to {gap:.2g}.")
    if question.versus is not None and len({one.fold for one in found}) > 1:
        lines.append(
            "The dates are tested by different folds, so the difference is also one between two models."
        )
    return lines


def explain_skill_of_run(name: str, output: Path, question: Question) -> str:
    """Divide the rank IC of a model among its players, on test dates in even steps.

    Seeds take turns on the dates, so every date counts once.

    Parameters
    ----------
    name
        Id of the run, a unique prefix of it, ``latest``, or its folder.
    output
        Folder that holds the runs.
    question
        Model, number of dates, removal and file; the date and the firm are not used.

    Returns
    -------
    str
        The table.

    Raises
    ------
    ConfigError
        If an option does not suit the run, or fewer than two dates have known labels.
    DataError
        If a checkpoint is missing, or was trained on other features than the run's data have.
    """
    question.check()
    progress = Progress()
    models = FoldModels.open(name, output, question.model, progress)
    run, model, dataset, folds = models.run, models.model, models.dataset, models.folds
    days_T = dataset.panel.dates_T.astype("datetime64[D]")
    places = find_places(dataset, folds, days_T[0].item(), days_T[-1].item(), None)
    places = [places[k] for k in evenly_spaced(np.arange(len(places)), question.dates)]
    families, parts = families_of(dataset.characteristic_names), []
    config = SkillConfig(removal=question.removal, seed=run.config.explain.seed)
    with progress.stage("explain", total=len(places)), one_thread():
        for at, place in enumerate(places):
            fold = models.of_fold(place.fold.index)
            seed, fitted = fold.seeds[at % len(fold.seeds)]
            try:
                part = explain_skill(
                    fitted, fold.data, np.array([place.session]), families, config, train=place.fold.train
                )
            except ValueError as error:  # the removal does not suit the players
                raise ConfigError(f"--removal {question.removal}: {error}") from None
            parts.append(part)
            progress.step(f"{place.date} seed {seed}")
    table = skill_table(model, parts)
    if table.is_empty() or table["dates"][0] < 2:
        raise ConfigError(
            f"Fewer than two test dates of {run.run_id} have known labels, so {model} has no measured skill; "
            "ask for more --dates."
        )
    lines = [
        f"{run.run_id}, {model}: rank IC on {table['dates'][0]} test dates, divided among the players",
        "error: standard error over dates, which contains the Monte Carlo error",
        f"absent characteristics get {REMOVALS[question.removal]}; absent days are "
        f"{absent_days(unwrap(fitted))}; absent peers are masked",
        "",
        describe_skill(table),
    ]
    if question.out is not None:
        lines += ["", f"The values are in {write_table(question.out, table).resolve()}."]
    return "\n".join(lines)
