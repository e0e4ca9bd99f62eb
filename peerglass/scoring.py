"""Stored models: load one from a run, score sessions with it, and explain its forecasts.

Shapley values are objects of the library shap.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from backtest.splits.folds import Fold
from features.arrays import IntArray
from models.batch import PanelTensors
from models.explain.groups import GroupGameConfig, explain_groups
from models.fitted import Fitted
from peerglass.frames import cells
from peerglass.runs import Run, open_run
from pipelines.dataset.folds import FoldInputs, plan_folds
from pipelines.device import one_thread
from pipelines.errors import ConfigError
from pipelines.explain.fitted import families_of
from pipelines.explain.shown import unit_of_run
from pipelines.run.checkpoints import load_checkpoint
from pipelines.train.task import collect_arrays, to_tensors

if TYPE_CHECKING:
    import shap

    from models.explain.removal import Removal


@dataclass(frozen=True, eq=False)
class Model:
    """One fitted model of a run, on a fold and with a seed. Made by :func:`load_model`.

    Attributes
    ----------
    run
        The run.
    name
        Name of the model in the run's config.
    fold
        Its fold; ``fold.test`` holds the positions of the test sessions.
    seed
        Seed of its initialisation.
    fitted
        The fitted forecaster.
    inputs
        Scales of the channels and known groups, fitted on the fold's training sessions.

    Examples
    --------
    >>> import peerglass
    >>> peerglass.load_model("latest", "ridge").score().columns
    ['date', 'ticker', 'forecast']
    """

    run: Run
    name: str
    fold: Fold
    seed: int
    fitted: Fitted
    inputs: FoldInputs

    def __repr__(self) -> str:
        return f"<peerglass model {self.name} of {self.run.id}, fold {self.fold.index}, seed {self.seed}>"

    def score(self, first: dt.date | None = None, last: dt.date | None = None) -> pl.DataFrame:
        """Forecast sessions with the stored model, on the data that the run recorded.

        Parameters
        ----------
        first, last
            First and last session, both inclusive. Both None: the dates of the fold's test. One None: the
            first or the last of them. Later sessions of the run's data can be scored, too. A live fold has no
            test; the sessions after its validation are used instead.

        Returns
        -------
        polars.DataFrame
            date, ticker, forecast; one row per firm of the universe, sorted by date and ticker. A forecast
            dated t uses what was known at the close of t. On the sessions of the test it equals the stored
            forecast of the run, to the bit if the run was trained on a CPU.

        Raises
        ------
        ConfigError
            If there is no session between the dates, or if the model may have seen one of them: sessions
            before the test, and in combinatorial folds those between two stretches of the test.
        """
        sessions = self.sessions(first, last)
        with one_thread():
            forecast_DN = self.fitted.forecast(self.tensors, sessions)
        rows_E, firms_E = np.nonzero(np.isfinite(forecast_DN))
        forecast_E = forecast_DN[rows_E, firms_E]
        found = cells(self.run.data[0].panel, sessions[rows_E], firms_E, forecast=forecast_E)
        return found.sort("date", "ticker")

    def sessions(self, first: dt.date | None = None, last: dt.date | None = None) -> IntArray:
        """Return the positions of the sessions between two dates; see :meth:`score`."""
        test = self.scored
        if first is None and last is None:
            return test
        days_T = self.run.data[0].panel.dates_T.astype("datetime64[D]")
        start = days_T[test[0]] if first is None else np.datetime64(first)
        end = days_T[test[-1]] if last is None else np.datetime64(last)
        found: IntArray = np.flatnonzero((days_T >= start) & (days_T <= end))
        if not len(found):
            raise ConfigError(
                f"There is no session between {start} and {end}; the run's data end on {days_T[-1]}."
            )
        seen = max(self.fold.train[-1], self.fold.valid[-1])
        unseen = np.isin(found, test) | ((found > seen) & (found >= test[0]))
        if not unseen.all():
            raise ConfigError(
                f"{days_T[found[~unseen][0]]} is not in the test of fold {self.fold.index}, which starts on "
                f"{days_T[test[0]]}: the model may have seen it in training or validation; score other "
                "sessions."
            )
        return found

    @property
    def scored(self) -> IntArray:
        """Positions of the sessions of the fold's test, or of those after the validation of a live fold."""
        if len(self.fold.test):
            return self.fold.test
        return np.arange(self.fold.valid[-1] + 1, self.run.data[0].panel.n_sessions)

    @functools.cached_property
    def tensors(self) -> PanelTensors:
        """Inputs of the model: the run's panel with the scales of the fold."""
        dataset, _ = self.run.data
        return to_tensors(collect_arrays(dataset, self.run.config.features.window), self.inputs, "cpu")


def load_model(run: Run | str, model: str, fold: int | None = None, seed: int | None = None) -> Model:
    """Load a fitted model of a run from its checkpoint.

    Parameters
    ----------
    run
        A run, or its name as in :func:`peerglass.open_run`.
    model
        Name of the model in the run's config.
    fold
        Index of the fold, from 0. None: the last one, whose training is the newest.
    seed
        Seed. None: the first one of the config.

    Raises
    ------
    ConfigError
        If the run has no such model, fold or seed.
    DataError
        If the checkpoint is missing or corrupted, or the lake no longer holds the data of the run.

    Examples
    --------
    >>> import peerglass
    >>> peerglass.load_model("latest", "ridge", fold=0, seed=7)
    <peerglass model ridge of tiny-..., fold 0, seed 7>
    """
    opened = run if isinstance(run, Run) else open_run(run)
    if model not in opened.models:
        raise ConfigError(f"The run {opened.id} has no model {model!r}, only {', '.join(opened.models)}.")
    seeds = opened.config.seeds
    chosen = seeds[0] if seed is None else seed
    if chosen not in seeds:
        raise ConfigError(f"The run {opened.id} has no seed {seed}, only {', '.join(map(str, seeds))}.")
    folds = plan_folds(opened.data[0], opened.config)
    index = folds[-1].index if fold is None else fold
    found = next((one for one in folds if one.index == index), None)
    if found is None:
        raise ConfigError(f"The run {opened.id} has no fold {fold}, only 0 to {folds[-1].index}.")
    fitted, inputs = load_checkpoint(opened.trained.checkpoint(model, index, chosen))
    return Model(opened, model, found, chosen, fitted, inputs)


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
