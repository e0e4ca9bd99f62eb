"""``peerglass explain RUN --skill``: which group of inputs carries a model's rank IC."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.explain.design import evenly_spaced
from models.explain.players import absent_days, unwrap
from models.explain.removal import REMOVALS
from models.explain.skill import SkillConfig, explain_skill
from pipelines.device import one_thread
from pipelines.errors import ConfigError
from pipelines.explain.forecasts.question import Question, find_places
from pipelines.explain.forecasts.tables import write_values
from pipelines.explain.forecasts.values import FoldModels
from pipelines.explain.games import families_of
from pipelines.explain.skill import describe_skill, skill_table
from pipelines.progress import Progress


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
        lines += ["", f"The values are in {write_values(table, question.out).resolve()}."]
    return "\n".join(lines)
