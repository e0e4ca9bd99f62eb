"""Tests of a run's models at the first delay that can be traded: intervals, and comparisons with baselines.

A model beats a baseline by a test and not by a point estimate. Models forecast the same dates and trade the
same sessions, so their daily differences are tested.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.accounts.performance import sharpe
from backtest.inference.bootstrap import (
    BootstrapInterval,
    bootstrap_block,
    bootstrap_counts,
    mean_block,
    mean_interval,
    sharpe_difference,
    sharpe_interval,
)
from backtest.inference.means import LEVEL, MeanTest, diebold_mariano, mean_test, paired_test
from backtest.inference.multiple import confidence_set, superior_books
from backtest.inference.overfitting import deflated_sharpe, probabilistic_sharpe
from backtest.splits.folds import Fold
from features.arrays import FloatArray, IntArray
from features.panel.periods import SESSIONS_PER_YEAR
from models.spec import BENCHMARKS
from pipelines.columns import of_book, table
from pipelines.config.load import registry_name
from pipelines.config.schema import Config
from pipelines.dataset.folds import n_paths
from pipelines.dataset.market import Market
from pipelines.results.evaluate import Evaluation, comparable, evaluate, label_overlap
from pipelines.run.evaluations import tradable_delay

MIN_DEFLATED_SHARPE: Final = 0.95  # deflated Sharpe ratio that a confirmed model has at least

ANSWERS: Final = ("no", "unclear", "yes")


def beats(ic: MeanTest, sharpe: BootstrapInterval, level: float = LEVEL) -> str:
    """Say whether a model beats another one, from the tests of two differences (model less the other).

    ``yes`` if the interval of the IC difference lies above zero and the Sharpe ratio is higher; ``no`` if the
    interval of either difference lies below zero; ``unclear`` otherwise, also if a test is undefined.
    """
    if (ic.p_value < level and ic.mean < 0) or sharpe.upper < 0:
        return "no"
    if ic.p_value < level and ic.mean > 0 and sharpe.estimate > 0:
        return "yes"
    return "unclear"


def estimates(ic_T: FloatArray, return_T: FloatArray, *, overlap: int, year: float) -> dict[str, Any]:
    """Mean IC and net Sharpe ratio with their intervals, by columns of result tables."""
    ic = mean_test(ic_T, overlap=overlap, level=LEVEL)
    counts_RT = samples(_known(return_T))
    sharpe = sharpe_interval(return_T, counts_RT=counts_RT, level=LEVEL, periods_per_year=year)
    of_ic = {"dates": ic.n, "ic": ic.mean, "ic_lower": ic.lower, "ic_upper": ic.upper, "ic_p": ic.p_value}
    of_sharpe = {"sharpe_net": sharpe.estimate, "sharpe_lower": sharpe.lower, "sharpe_upper": sharpe.upper}
    return {"level": LEVEL, **of_ic, "sessions": sharpe.n, **of_sharpe}


def differences(
    one: tuple[FloatArray, FloatArray], other: tuple[FloatArray, FloatArray], *, overlap: int, year: float
) -> dict[str, Any]:
    """Tests of daily ICs (Newey-West, Diebold-Mariano) and net Sharpe ratios of one less another."""
    (ic_T, return_T), (other_ic_T, other_return_T) = one, other
    test = paired_test(ic_T, other_ic_T, overlap=overlap, level=LEVEL)
    dm = diebold_mariano(1.0 - other_ic_T, 1.0 - ic_T, horizon=overlap)
    counts_RT = samples(_known(return_T - other_return_T))
    sharpe = sharpe_difference(
        return_T, other_return_T, counts_RT=counts_RT, level=LEVEL, periods_per_year=year
    )
    return {
        "level": LEVEL,
        "dates": test.n,
        "lags": test.lags,
        "ic_difference": test.mean,
        "ic_lower": test.lower,
        "ic_upper": test.upper,
        "ic_t": test.t,
        "ic_p": test.p_value,
        "dm_t": dm.t,
        "dm_p": dm.p_value,
        "sessions": sharpe.n,
        "sharpe_difference": sharpe.estimate,
        "sharpe_lower": sharpe.lower,
        "sharpe_upper": sharpe.upper,
        "sharpe_p": sharpe.p_value,
        "beats": beats(test, sharpe),
    }


def comparison_table(series: TradableSeries) -> pl.DataFrame | None:
    """Compare every model with every variant of each baseline; None without a baseline and another model."""
    book = series.books[0]
    daily = {model: (series.ic(model), series.returns(model, book)) for model in series.models}
    rows = [
        {"model": model, "baseline": kind, "rival": rival, "delay": series.delay, "book": book}
        | differences(daily[model], daily[rival], overlap=series.overlap, year=series.per_year)
        for model, rival, kind in _pairs(series)
    ]
    return table("comparisons").frame(rows) if rows else None


def _pairs(series: TradableSeries) -> Iterator[tuple[str, str, str]]:
    """Yield every model with every baseline, and variant of one, of another kind; and that kind."""
    kinds = {model: registry_name(series.config, model) for model in series.models}
    for model in series.models:
        for rival in series.models:
            if kinds[rival] in BENCHMARKS and kinds[model] != kinds[rival]:
                yield model, rival, kinds[rival]


def yearly_table(series: TradableSeries) -> pl.DataFrame | None:
    """Compare every model with every variant of each baseline by calendar year; None within one year."""
    book, years = series.books[0], sorted(set(series.year_T.tolist()))
    if len(years) < 2:
        return None
    spans = {"all": np.ones(len(series.year_T), dtype=bool)}
    spans |= {str(one): series.year_T == one for one in years}
    rows: list[dict[str, object]] = []
    for model, rival, _ in _pairs(series):
        ic_T, rival_ic_T, return_T = series.ic(model), series.ic(rival), series.returns(model, book)
        return_years_T = series.return_years(book)
        for name, own_T in spans.items():
            test = paired_test(ic_T[own_T], rival_ic_T[own_T], overlap=series.overlap)
            held_T = return_T if name == "all" else return_T[return_years_T == int(name)]
            held_T = held_T[~np.isnan(held_T)]
            found = {"model": model, "rival": rival, "year": name, "delay": series.delay}
            figures = {"dates": test.n, "ic": _mean(ic_T[own_T]), "ic_difference": test.mean, "ic_t": test.t}
            sharpe_net = sharpe(held_T, series.per_year) if len(held_T) > 1 else math.nan
            of_book = {"book": book, "sessions": len(held_T), "sharpe_net": sharpe_net}
            rows.append({**found, **figures, **of_book})
    return table("yearly").frame(rows) if rows else None


def significance_table(series: TradableSeries, trials: int) -> pl.DataFrame:
    """Compute intervals of IC and net Sharpe ratio of every model and book, and what trials leave of them."""
    rows = []
    for model in series.models:
        ic_T = series.ic(model)
        counts_RT = samples(_known(ic_T), mean_block(_known(ic_T), series.overlap))
        resampled = mean_interval(ic_T, overlap=series.overlap, counts_RT=counts_RT, level=LEVEL)
        for book in series.books:
            return_T = series.returns(model, book)
            found = estimates(ic_T, return_T, overlap=series.overlap, year=series.per_year)
            rows.append(
                {
                    **{"model": model, "book": book, "delay": series.delay, **found},
                    "ic_bootstrap_lower": resampled.lower,
                    "ic_bootstrap_upper": resampled.upper,
                    "probabilistic_sharpe": probabilistic_sharpe(return_T),
                    "deflated_sharpe": deflated_sharpe(return_T, max(trials, 1)),
                    "trials": trials,
                }
            )
    return table("significance").of(rows)


def deciding_rows(comparisons: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield one row per model and baseline: that of the variant which is the hardest to beat."""
    rank = pl.col("beats").replace_strict({answer: n for n, answer in enumerate(ANSWERS)})
    ranked = comparisons.sort(rank, "ic_difference", maintain_order=True, nulls_last=True)
    deciding = ranked.unique(["model", "baseline"], keep="first", maintain_order=True)
    found = {(row["model"], row["baseline"]): row for row in deciding.iter_rows(named=True)}
    for model in comparisons["model"].unique(maintain_order=True):
        yield from (found[model, one] for one in BENCHMARKS if (model, one) in found)


class TradableSeries:
    """Daily ICs and returns of all models at the first delay that can be traded, on common dates."""

    def __init__(
        self,
        result: Evaluation,
        config: Config,
        dates_T: npt.NDArray[np.datetime64],
        per_year: float = SESSIONS_PER_YEAR,
    ) -> None:
        self.config, self.per_year, self.books = config, per_year, list(config.backtest.books)
        self.delay = tradable_delay(config.label.delays)
        own = pl.col("delay") == self.delay
        ics = result["ic_series"].filter(own)
        self.models: list[str] = ics["model"].unique(maintain_order=True).to_list()
        self._ics = ics.pivot(on="model", index="date", values="ic").sort("date")
        self._returns = {
            str(book): part.pivot(on="model", index="date", values="excess_net").sort("date")
            for (book,), part in result["equity"].filter(own).partition_by(["book"], as_dict=True).items()
        }
        rows_T = np.searchsorted(dates_T.astype("datetime64[D]"), self._ics["date"].to_numpy())
        self.year_T: IntArray = self._ics["date"].dt.year().to_numpy()  # of every date of `ic`
        self.overlap = max(label_overlap(rows_T, config.label.horizon), 1)

    def return_years(self, book: str) -> IntArray:
        """Calendar year of every session of `returns`."""
        years: IntArray = self._returns[book]["date"].dt.year().to_numpy()
        return years

    def ic(self, model: str) -> FloatArray:
        """Daily IC; NaN where it is undefined."""
        return _floats(self._ics[model])

    def returns(self, model: str, book: str) -> FloatArray:
        """Net excess return per session; NaN on sessions without positions."""
        return _floats(self._returns[book][model])


@lru_cache(maxsize=8)
def samples(n: int, block: float | None = None) -> FloatArray | None:
    """Bootstrap samples of n sessions, which all models and books share; None for fewer than 2 sessions."""
    return bootstrap_counts(n, block=bootstrap_block(n) if block is None else block) if n > 1 else None


def _known(x_T: FloatArray) -> int:
    return int((~np.isnan(x_T)).sum())


def _mean(x_T: FloatArray) -> float:
    return float(np.nanmean(x_T)) if _known(x_T) else math.nan


def _floats(series: pl.Series) -> FloatArray:
    values: FloatArray = series.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return values


MIN_SESSIONS: Final = 60  # fewer common sessions than about a quarter give no table


def multiple_test_table(series: TradableSeries) -> pl.DataFrame | None:
    """Test all models at once against zero and the best baseline; None for one, or for few sessions."""
    trained = series.config.models
    kinds = [registry_name(series.config, one) if one in trained else "" for one in series.models]
    baselines = [v for v, kind in enumerate(kinds) if kind in BENCHMARKS]
    ours = [v for v in range(len(kinds)) if v not in baselines]
    rows: list[dict[str, Any]] = []
    for book in series.books:
        return_TV = np.column_stack([series.returns(model, book) for model in series.models])
        return_TV = return_TV[~np.isnan(return_TV).any(axis=1)]
        if len(series.models) < 2 or len(return_TV) < MIN_SESSIONS:
            continue
        against_zero, p_V = superior_books(return_TV, level=LEVEL), confidence_set(return_TV)
        nothing = dict.fromkeys(("baseline", "baseline_spa_p", "in_baseline_stepm"))
        against = [dict[str, Any](nothing) for _ in kinds]
        varying = [v for v in baselines if return_TV[:, v].std() > 0]
        if varying and ours:
            best = max(varying, key=lambda v: float(return_TV[:, v].mean() / return_TV[:, v].std()))
            tested = superior_books(return_TV[:, ours] - return_TV[:, [best]], level=LEVEL)
            shared = {"baseline": series.models[best], "baseline_spa_p": tested.p_value}
            for v, superior in zip(ours, tested.superior_V.tolist(), strict=True):
                against[v] = {**shared, "in_baseline_stepm": superior}
        rows += (
            {
                "model": model,
                "book": book,
                "delay": series.delay,
                "sessions": len(return_TV),
                "spa_p": against_zero.p_value,
                "in_stepm": bool(against_zero.superior_V[v]),
                "mcs_p": p_V[v],
                "in_mcs": None if np.isnan(p_V[v]) else bool(p_V[v] >= LEVEL),
                **against[v],
                "level": LEVEL,
            }
            for v, model in enumerate(series.models)
        )
    return table("multiple_tests").frame(rows) if rows else None


def path_table(
    forecasts: pl.DataFrame, folds: Sequence[Fold], dataset: Market, config: Config
) -> pl.DataFrame | None:
    """Measure every model on every path of tests; None for folds with a single path."""
    paths = n_paths(dataset, folds)
    if paths < 2:
        return None
    delay, book = tradable_delay(config.label.delays), next(iter(config.backtest.books))
    one_delay = replace(dataset, labels={delay: dataset.labels[delay]})
    books = {book: config.backtest.books[book]}
    one_book = config.model_copy(update={"backtest": config.backtest.model_copy(update={"books": books})})
    sessions = np.unique(np.concatenate([fold.test for fold in folds]))
    parts = []
    for path in range(paths):
        forecast, dates_T = comparable(forecasts, dataset, config, folds, path)
        result = evaluate(forecast, one_delay, one_book, sessions=sessions, against=False)
        found: dict[str, Any] = {"path": path + 1, "book": pl.lit(book), "dates": int(dates_T.sum())}
        figures = {
            "ic": "ensemble_ic",
            "rank_ic": "ensemble_rank_ic",
            "sharpe_net": of_book(book, "sharpe_net"),
        }
        parts.append(result["ladder"].select("model", "delay", **found, **figures))
    return table("paths").frame(pl.concat(parts).sort("model", "path", maintain_order=True))
