"""What is explained: the model, the dates and the firm, checked against the run before anything is computed.

Legend: T sessions, N firms.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from backtest.splits.combinatorial import path_folds
from backtest.splits.fold import Fold
from pipelines.dataset.build import Dataset
from pipelines.errors import ConfigError, DataError
from pipelines.run.record import Run

SUFFIXES: Final = (".csv", ".parquet", ".json")
"""Formats of ``out``."""


@dataclass(frozen=True, slots=True)
class Question:
    """Options of ``peerglass explain RUN --date D``.

    Attributes
    ----------
    date
        Date of the forecasts.
    ticker
        Firm to explain; None for all firms of the date.
    to
        Last date of the firm's forecasts to explain, from ``date`` on; None for one date only.
    versus
        Another date of the firm, whose values are subtracted; None for none.
    model
        Model of the run; None if it has only one.
    engine
        One of `models.explain.date_values.ENGINES`.
    precision
        Largest standard error of a value, as a share of the standard deviation of the date's forecasts over
        firms; None draws a fixed number of times.
    draws
        Number of draws of a sampling engine, per seed. With a precision, the largest number. None: 16, or
        1,000 with a precision.
    peers
        How peers are divided into players (`models.explain.players.PlayerConfig`); None for single firms if
        one forecast or a difference is explained, and for sectors otherwise.
    out
        File to write the values to; None for none.
    """

    date: dt.date
    ticker: str | None = None
    to: dt.date | None = None
    versus: dt.date | None = None
    model: str | None = None
    engine: str = "permutation"
    precision: float | None = None
    draws: int | None = None
    peers: Literal["all", "sectors", "firms"] | None = None
    out: Path | None = None

    def check(self) -> None:
        """Check the options that can be checked without the run.

        Raises
        ------
        ConfigError
            If they contradict each other or are out of range.
        """
        from models.explain.date_values import ENGINES

        if self.engine not in ENGINES:
            raise ConfigError(f"--engine is {self.engine!r}; choose one of {', '.join(ENGINES)}.")
        if self.precision is not None and not (self.precision > 0 and math.isfinite(self.precision)):
            raise ConfigError(f"--precision is {self.precision}; it must be a positive number, such as 0.05.")
        if self.draws is not None and self.draws < 2:
            raise ConfigError(f"--draws is {self.draws}; an error estimate needs at least 2.")
        if self.versus is not None and self.ticker is None:
            raise ConfigError("--versus compares two forecasts of one firm; name it with --ticker.")
        if self.to is not None and self.ticker is None:
            raise ConfigError("--to explains the forecasts of one firm over time; name it with --ticker.")
        if self.to is not None and self.versus is not None:
            raise ConfigError("--to explains a span of dates and --versus compares two dates; leave one out.")
        if self.to is not None and self.to < self.date:
            raise ConfigError(f"--to is {self.to}, before --date, {self.date}; give a later date.")
        if self.versus == self.date:
            raise ConfigError(f"--versus is {self.versus}, the same as --date; give another date.")
        if self.out is not None and self.out.suffix.lower() not in SUFFIXES:
            raise ConfigError(
                f"{self.out} cannot be written: its suffix must be one of {', '.join(SUFFIXES)}."
            )


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A tested date: its session, the fold that tests it, and the explained firms.

    Attributes
    ----------
    date
        The date.
    session
        Its position in the panel.
    fold
        The fold whose test contains it.
    ticker
        Firm to explain; None for all.
    """

    date: dt.date
    session: int
    fold: Fold
    ticker: str | None


def choose_model(run: Run, asked: str | None) -> str:
    """Return the model to explain.

    Raises
    ------
    ConfigError
        If the run has no such model, or several and none was named.
    """
    models = list(run.config.models)
    if asked is None and len(models) > 1:
        raise ConfigError(f"Run {run.run_id} has the models {', '.join(models)}; choose one with --model.")
    if asked is not None and asked not in models:
        raise ConfigError(f"Run {run.run_id} has no model {asked!r}, only {', '.join(models)}.")
    return asked or models[0]


def find_place(dataset: Dataset, folds: Sequence[Fold], date: dt.date, ticker: str | None) -> Place:
    """Find the fold that tests a date, and check that there is a forecast to explain.

    Of combinatorial folds, which test a date several times, the first one is taken, as in the first path.

    Raises
    ------
    ConfigError
        If the date is no session or is not tested, the ticker is unknown, or the firm has no forecast.
    DataError
        If fewer than two firms are in the universe.
    """
    panel = dataset.panel
    days_T = panel.dates_T.astype("datetime64[D]")
    fold_T = path_folds(folds, panel.n_sessions)[0]
    tested = np.flatnonzero(fold_T >= 0)
    span = f"the tests of the run are from {days_T[tested[0]]} to {days_T[tested[-1]]}"
    found = np.flatnonzero(days_T == np.datetime64(date))
    if not len(found):
        raise ConfigError(f"{date} is not a session of the run's data, so it has no forecast; {span}.")
    session = int(found[0])
    if fold_T[session] < 0:
        raise ConfigError(
            f"{date} has no out-of-sample forecast, because no fold tests it; choose another date: {span}."
        )
    firms_N = dataset.universe_TN[session]
    if ticker is not None:
        if ticker not in panel.tickers_N:
            raise ConfigError(f"The run's data have no firm {ticker!r}; check the ticker.")
        if not firms_N[list(panel.tickers_N).index(ticker)]:
            raise ConfigError(
                f"{ticker} has no forecast on {date}, because it is not in the universe; choose another date."
            )
    if firms_N.sum() < 2:
        raise DataError(
            f"Fewer than two firms are in the universe on {date}, and absent characteristics are replaced by "
            "those of another firm; choose another date."
        )
    fold = next(fold for fold in folds if fold.index == fold_T[session])
    return Place(date, session, fold, ticker)


def find_places(
    dataset: Dataset, folds: Sequence[Fold], first: dt.date, last: dt.date, ticker: str
) -> list[Place]:
    """Find the tested dates of a span on which a firm has a forecast, as :func:`find_place` does.

    Raises
    ------
    ConfigError
        If there is no such date, or the ticker is unknown.
    """
    panel = dataset.panel
    if ticker not in panel.tickers_N:
        raise ConfigError(f"The run's data have no firm {ticker!r}; check the ticker.")
    days_T = panel.dates_T.astype("datetime64[D]")
    tested_T = path_folds(folds, panel.n_sessions)[0] >= 0
    tested = np.flatnonzero(tested_T)
    inside_T = dataset.universe_TN[:, list(panel.tickers_N).index(ticker)] & (
        dataset.universe_TN.sum(axis=1) >= 2
    )
    span_T = (days_T >= np.datetime64(first)) & (days_T <= np.datetime64(last))
    found = np.flatnonzero(tested_T & inside_T & span_T)
    if not len(found):
        raise ConfigError(
            f"{ticker} has no out-of-sample forecast from {first} to {last}; choose other dates: the tests "
            f"of the run are from {days_T[tested[0]]} to {days_T[tested[-1]]}."
        )
    return [find_place(dataset, folds, days_T[session].item(), ticker) for session in found]
