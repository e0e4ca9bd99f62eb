"""Shapley values of a stored model's forecasts, as objects of the library shap."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from models.explain.groups import GroupGameConfig, explain_groups
from peerglass.frames import cells
from peerglass.runs import Run
from peerglass.scoring import Model
from pipelines.errors import ConfigError
from pipelines.explain.fitted import families_of
from pipelines.explain.shown import unit_of_run

if TYPE_CHECKING:
    import shap

    from models.explain.removal import Removal


@dataclass(frozen=True, eq=False)
class Attribution:
    """Shapley values of some forecasts.

    Attributes
    ----------
    explanation
        Values [E, P]: one row per forecast, one column per player (a block of days, a feature family, or all
        peers), in the unit of the forecast. shap's plots take it.
    forecasts
        date, ticker, forecast and base_value of each row. Values and base value add up to the forecast.
    additivity_error
        Largest absolute difference between a forecast and its base value plus values.
    monte_carlo_error
        Mean standard error of the values, from the permutations.
    model
        Name of the model.
    unit
        ``return`` (a fraction), ``standard deviations`` if the model forecasts normal scores of ranks, or
        ``none`` if its forecasts have no unit.

    Examples
    --------
    >>> import peerglass
    >>> found = peerglass.explain(peerglass.load_model("latest", "ridge"), permutations=2)
    >>> len(found.explanation.values) == found.forecasts.height
    True
    """

    explanation: shap.Explanation
    forecasts: pl.DataFrame
    additivity_error: float
    monte_carlo_error: float
    model: str
    unit: str


def explain(
    model: Model,
    first: dt.date | None = None,
    last: dt.date | None = None,
    *,
    tickers: Sequence[str] | None = None,
    permutations: int = 8,
    seed: int = 0,
) -> Attribution:
    """Attribute forecasts of a model to days, feature families and peers.

    Parameters
    ----------
    model
        From :func:`peerglass.load_model`.
    first, last
        First and last session, both inclusive; both None: the last session of the test. The time grows with
        the number of sessions.
    tickers
        Firms whose forecasts are explained. None: every firm of the universe.
    permutations
        Number of antithetic permutations per session. The Monte Carlo error falls with its square root.
    seed
        Seed of the random draws.

    Raises
    ------
    ConfigError
        If the model may have seen a session, or a ticker is not in the universe on any of the sessions.

    Notes
    -----
    The values answer what moved a forecast, not what causes returns. The guide's page on attribution says how
    players are removed. `peerglass explain RUN` attributes a sample of a whole run and stores tables, which
    :meth:`peerglass.Run.table` reads.

    Examples
    --------
    >>> import peerglass
    >>> model = peerglass.load_model("latest", "ridge")
    >>> peerglass.explain(model, permutations=2).forecasts.columns
    ['date', 'ticker', 'forecast', 'base_value']
    """
    newest = first is None and last is None
    sessions = model.scored[-1:] if newest else model.sessions(first, last)
    dataset, _ = model.run.data
    sessions = sessions[dataset.universe_TN[sessions].sum(axis=1) >= 2]
    if not len(sessions):
        raise ConfigError("No session between the dates has two firms in the universe; choose other dates.")
    config, families = GroupGameConfig(permutations=permutations, seed=seed), dataset.characteristic_names
    part = explain_groups(model.fitted, model.tensors, sessions, families_of(families), config)
    of_forecasts = {"forecast": part.forecast_E, "base_value": part.base_E}
    rows = cells(dataset.panel, part.sessions_E, part.firms_E, **of_forecasts)
    explanation, unit = part.explanation(), unit_of_run(model.run.trained, model.name).short
    if tickers is not None:
        if absent := sorted(set(tickers) - set(rows["ticker"])):
            raise ConfigError(f"{absent[0]} is not in the universe on any of the sessions; name other firms.")
        keep_E = rows["ticker"].is_in(list(tickers)).to_numpy()
        rows, explanation = rows.filter(keep_E), explanation[keep_E]
    errors = (part.additivity_error, part.monte_carlo_error)
    return Attribution(explanation, rows, *errors, model.name, unit)


def explain_net(
    run: Run, model: str | None = None, *, draws: int | None = None, removal: Removal = "date"
) -> pl.DataFrame:
    """Divide the net return of a run's first book among a model's inputs, or an ensemble's members.

    Parameters
    ----------
    run
        From :func:`peerglass.open_run`.
    model
        Model of the run. None: its only one.
    draws
        Number of antithetic permutations, at least 2. None: all coalitions of up to 8 players, else 8 draws.
    removal
        What absent characteristics get (`models.explain.removal.REMOVALS`).

    Returns
    -------
    polars.DataFrame
        A row per player, and the rows ``base`` and ``total``: values and base add up to the total. ``ic``,
        ``gross``, ``cost``, ``turnover`` and ``net`` are means per session, as fractions, each with its
        standard error; ``by`` is ``input`` or ``member``.

    Raises
    ------
    ConfigError
        If the run has no such model, or several and none is named.

    Notes
    -----
    `peerglass explain RUN --net` stores the same table with the run, for its report. The values are of the
    test: inputs that are chosen by them have seen it.

    Examples
    --------
    >>> import peerglass
    >>> found = peerglass.explain_net(peerglass.open_run("latest"), "ridge", draws=2)
    >>> found["kind"][-2:].to_list()
    ['base', 'total']
    """
    from pipelines.explain.forecasts import RunModel
    from pipelines.explain.net import net_of_model
    from pipelines.explain.question import Question

    question = Question(None, model=model, draws=draws, removal=removal)
    return net_of_model(RunModel(run.id, run.folder.parent, question))
