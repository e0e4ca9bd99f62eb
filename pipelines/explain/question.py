"""What is explained: the model, the dates and the firm, checked against the run before anything is computed.

Legend: T sessions, N firms.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from backtest.splits.combinatorial import path_folds
from backtest.splits.folds import Fold
from features.arrays import IntArray
from pipelines.dataset.build import Dataset
from pipelines.errors import ConfigError, DataError
from pipelines.run.record import RecordedRun

if TYPE_CHECKING:
    from models.explain.removal import Removal

SUFFIXES: Final = (".csv", ".parquet", ".json")  # formats of ``out``


@dataclass(frozen=True, slots=True)
class Question:
    """Options of ``peerglass explain RUN --date D``."""

    date: dt.date | None  # date of the forecasts; None for the newest date with out-of-sample forecasts
    ticker: str | None = None  # firm to explain; None for all firms of the date
    top: int | None = None  # explain this many firms at both ends of the ranking; None for all
    # last date of the forecasts to explain, from ``date`` on; None for one date only. Without a ticker, a
    # sample of dates and firms is explained
    to: dt.date | None = None
    dates: int = 20  # largest number of sampled dates
    versus: dt.date | None = None  # another date of the firm, whose values are subtracted; None for none
    model: str | None = None  # model of the run; None if it has only one
    engine: str = "permutation"  # one of `models.explain.groups.ENGINES`
    # what replaces absent characteristics: one of `models.explain.removal.REMOVALS`
    removal: Removal = "date"
    # largest standard error of a value, as a share of the standard deviation of the date's forecasts over
    # firms; None draws a fixed number of times
    precision: float | None = None
    # number of draws of a sampling engine, per seed. With a precision, the largest number. None: 16, or 1,000
    # with a precision
    draws: int | None = None
    # how peers are divided into players (`models.explain.players.PlayerConfig`); None for single firms if one
    # forecast or a difference is explained, and for sectors otherwise
    peers: Literal["all", "sectors", "firms"] | None = None
    out: Path | None = None  # file to write the values to; None for none

    def check(self) -> None:
        """Check the options that can be checked without the run; ConfigError if one is wrong."""
        from models.explain.groups import ENGINES
        from models.explain.removal import REMOVALS

        precision, to, date, versus = self.precision, self.to, self.date, self.versus
        one_firm, top, out = self.ticker is not None, self.top, self.out
        engines, removals, suffixes = (", ".join(known) for known in (ENGINES, REMOVALS, SUFFIXES))
        rules = (
            (self.engine in ENGINES, f"--engine is {self.engine!r}; choose one of {engines}."),
            (self.removal in REMOVALS, f"--removal is {self.removal!r}; choose one of {removals}."),
            (
                precision is None or (precision > 0 and math.isfinite(precision)),
                f"--precision is {precision}; it must be a positive number, such as 0.05.",
            ),
            (
                self.draws is None or self.draws >= 2,
                f"--draws is {self.draws}; an error estimate needs at least 2.",
            ),
            (not versus or one_firm, "--versus compares two forecasts of one firm; name it with --ticker."),
            (top is None or top >= 1, f"--top is {top}; it must be at least 1."),
            (not (top and one_firm), "--top explains both ends of a date's ranking; leave --ticker out."),
            (not (top and to), "--top explains both ends of a date's ranking; leave --to out."),
            (self.dates >= 2, f"--dates is {self.dates}; a standard error over dates needs at least 2."),
            (not to or date is not None, "--to needs the first date of the span; give it with --date."),
            (
                not (to and versus),
                "--to explains a span of dates and --versus compares two dates; leave one out.",
            ),
            (not (to and date) or to >= date, f"--to is {to}, before --date, {date}; give a later date."),
            (not versus or versus != date, f"--versus is {versus}, the same as --date; give another date."),
            (
                out is None or out.suffix.lower() in SUFFIXES,
                f"{out} cannot be written: its suffix must be one of {suffixes}.",
            ),
        )
        for holds, message in rules:
            if not holds:
                raise ConfigError(message)


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A tested date: its session, the fold that tests it, and the explained firms."""

    date: dt.date  # the date
    session: int  # its position in the panel
    fold: Fold  # the fold whose test contains it
    ticker: str | None  # firm to explain; None for all


def choose_model(run: RecordedRun, asked: str | None) -> str:
    """The model to explain; ConfigError if the run has no such model, or several and none was named."""
    models = list(run.config.models)
    if asked is None and len(models) > 1:
        raise ConfigError(f"Run {run.run_id} has the models {', '.join(models)}; choose one with --model.")
    if asked is not None and asked not in models:
        raise ConfigError(f"Run {run.run_id} has no model {asked!r}, only {', '.join(models)}.")
    return asked or models[0]


def find_place(dataset: Dataset, folds: Sequence[Fold], date: dt.date, ticker: str | None) -> Place:
    """Find the fold that tests a date (the first of combinatorial ones), or say why there is none."""
    days_T, fold_T, span = _tested(dataset, folds)
    found = np.flatnonzero(days_T == np.datetime64(date))
    if not len(found):
        raise ConfigError(f"{date} is not a session of the run's data, so it has no forecast; {span}.")
    session = int(found[0])
    if fold_T[session] < 0:
        raise ConfigError(
            f"{date} has no out-of-sample forecast, because no fold tests it; choose another date: {span}."
        )
    if ticker is not None and not dataset.universe_TN[session, _column(dataset, ticker)]:
        raise ConfigError(
            f"{ticker} has no forecast on {date}, because it is not in the universe; choose another date."
        )
    if dataset.universe_TN[session].sum() < 2:
        raise DataError(
            f"Fewer than two firms are in the universe on {date}, and absent characteristics are replaced by "
            "those of another firm; choose another date."
        )
    fold = next(fold for fold in folds if fold.index == fold_T[session])
    return Place(date, session, fold, ticker)


def newest_date(dataset: Dataset, folds: Sequence[Fold]) -> dt.date:
    """Newest tested date with at least two firms in the universe; DataError if there is none."""
    days_T, fold_T, _ = _tested(dataset, folds)
    found = np.flatnonzero((fold_T >= 0) & (dataset.universe_TN.sum(axis=1) >= 2))
    if not len(found):
        raise DataError(
            "No tested date has two firms in the universe; loosen the universe rule, or add firms."
        )
    newest: dt.date = days_T[found[-1]].item()
    return newest


def find_places(
    dataset: Dataset, folds: Sequence[Fold], first: dt.date, last: dt.date, ticker: str | None
) -> list[Place]:
    """Find the tested dates of a span with a forecast of a firm, or of any firm; ConfigError without one."""
    days_T, fold_T, span = _tested(dataset, folds)
    inside_T = (fold_T >= 0) & (dataset.universe_TN.sum(axis=1) >= 2)
    if ticker is not None:
        inside_T &= dataset.universe_TN[:, _column(dataset, ticker)]
    inside_T &= (days_T >= np.datetime64(first)) & (days_T <= np.datetime64(last))
    if not inside_T.any():
        raise ConfigError(
            f"{ticker or 'No firm'} has {'no' if ticker else 'an'} out-of-sample forecast from {first} to "
            f"{last}; choose other dates: {span}."
        )
    return [find_place(dataset, folds, day.item(), ticker) for day in days_T[inside_T]]


def _tested(dataset: Dataset, folds: Sequence[Fold]) -> tuple[npt.NDArray[np.datetime64], IntArray, str]:
    """Dates of the sessions, the fold that tests each (-1: none), and the span of the tests in words."""
    days_T = dataset.panel.dates_T
    fold_T = path_folds(folds, dataset.panel.n_sessions)[0]
    tested = days_T[fold_T >= 0]
    return days_T, fold_T, f"the tests of the run are from {tested[0]} to {tested[-1]}"


def _column(dataset: Dataset, ticker: str) -> int:
    if ticker not in dataset.panel.tickers_N:
        raise ConfigError(f"The run's data have no firm {ticker!r}; check the ticker.")
    return list(dataset.panel.tickers_N).index(ticker)
