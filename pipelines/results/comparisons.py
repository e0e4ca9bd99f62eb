"""Tests of a run's models at the first delay that can be traded: intervals, and comparisons with baselines.

A model beats a baseline by a test and not by a point estimate. Models forecast the same dates and trade the
same sessions, so their daily differences are tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

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
from features.arrays import FloatArray
from models.registry import benchmarks
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.dataset.folds import n_paths, path_of_tests
from pipelines.dataset.market import Market
from pipelines.results.evaluate import Evaluation, evaluate, forecasts_to_arrays, label_overlap
from pipelines.results.tables import of_book, table
from pipelines.run.completeness import common_dates, restrict_to_dates

BASELINES: Final[Mapping[str, str]] = MappingProxyType(benchmarks())
"""Models that every other model is compared with, and their titles."""

MIN_DEFLATED_SHARPE: Final = 0.95
"""Deflated Sharpe ratio that a confirmed model has at least."""

ANSWERS: Final = ("no", "unclear", "yes")


def tradable_delay(delays: Iterable[int]) -> int:
    """Return the shortest delay of 1 session or more; the first delay if there is none.

    ``delays`` are those of `LabelConfig.delays`: the trained delay comes first.
    """
    every = tuple(delays)
    return min((delay for delay in every if delay >= 1), default=every[0])


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


def comparison_table(
    result: Evaluation, config: Config, dates_T: npt.NDArray[np.datetime64]
) -> pl.DataFrame | None:
    """Compare every model with every variant of each baseline; None without a baseline and another model."""
    series = TradableSeries(result, config, dates_T)
    book = next(iter(config.backtest.books))
    kinds = {model: registry_name(config, model) for model in series.models}
    rows = []
    for model in series.models:
        for rival in series.models:
            baseline = kinds[rival]
            if baseline not in BASELINES or kinds[model] == baseline:
                continue
            ic = {name: series.ic(name) for name in (model, rival)}
            test = paired_test(ic[model], ic[rival], overlap=series.overlap, level=LEVEL)
            dm = diebold_mariano(1.0 - ic[rival], 1.0 - ic[model], horizon=series.overlap)
            one, other = series.returns(model, book), series.returns(rival, book)
            counts = _samples(int((~np.isnan(one - other)).sum()))
            sharpe = sharpe_difference(
                one, other, counts_RT=counts, level=LEVEL, periods_per_year=result.periods_per_year
            )
            rows.append(
                {
                    "model": model,
                    "baseline": baseline,
                    "rival": rival,
                    "delay": series.delay,
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
                    "book": book,
                    "sessions": sharpe.n,
                    "sharpe_difference": sharpe.estimate,
                    "sharpe_lower": sharpe.lower,
                    "sharpe_upper": sharpe.upper,
                    "sharpe_p": sharpe.p_value,
                    "beats": beats(test, sharpe),
                }
            )
    return table("comparisons").frame(rows) if rows else None


def significance_table(
    result: Evaluation, config: Config, dates_T: npt.NDArray[np.datetime64], trials: int
) -> pl.DataFrame:
    """Compute intervals of IC and net Sharpe ratio of every model and book, and what trials leave of them."""
    series = TradableSeries(result, config, dates_T)
    rows = []
    for model in series.models:
        daily_ic = series.ic(model)
        ic = mean_test(daily_ic, overlap=series.overlap, level=LEVEL)
        known = int((~np.isnan(daily_ic)).sum())
        samples = _samples(known, mean_block(known, series.overlap))
        resampled = mean_interval(daily_ic, overlap=series.overlap, counts_RT=samples, level=LEVEL)
        for book in config.backtest.books:
            returns = series.returns(model, book)
            counts = _samples(int((~np.isnan(returns)).sum()))
            sharpe = sharpe_interval(
                returns, counts_RT=counts, level=LEVEL, periods_per_year=result.periods_per_year
            )
            rows.append(
                {
                    "model": model,
                    "book": book,
                    "delay": series.delay,
                    "level": LEVEL,
                    "ic": ic.mean,
                    "ic_lower": ic.lower,
                    "ic_upper": ic.upper,
                    "ic_p": ic.p_value,
                    "ic_bootstrap_lower": resampled.lower,
                    "ic_bootstrap_upper": resampled.upper,
                    "sessions": sharpe.n,
                    "sharpe_net": sharpe.estimate,
                    "sharpe_lower": sharpe.lower,
                    "sharpe_upper": sharpe.upper,
                    "probabilistic_sharpe": probabilistic_sharpe(returns),
                    "deflated_sharpe": deflated_sharpe(returns, max(trials, 1)),
                    "trials": trials,
                }
            )
    return table("significance").frame(rows)


def deciding_rows(comparisons: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield one row per model and baseline: the rival that decides, because it is the hardest to beat.

    A model beats a baseline if it beats all of its variants. The rival with the worst answer decides, and
    among equal answers the one with the smallest IC difference.
    """
    ranked = comparisons.with_columns(
        rank=pl.col("beats").replace_strict({answer: n for n, answer in enumerate(ANSWERS)})
    ).sort("rank", "ic_difference", maintain_order=True, nulls_last=True)
    first = ranked.unique(["model", "baseline"], keep="first", maintain_order=True)
    found = {(row["model"], row["baseline"]): row for row in first.drop("rank").iter_rows(named=True)}
    for model in comparisons["model"].unique(maintain_order=True):
        for baseline in BASELINES:
            if (model, baseline) in found:
                yield found[model, baseline]


class TradableSeries:
    """Daily ICs and returns of all models at the first delay that can be traded, on common dates."""

    def __init__(self, result: Evaluation, config: Config, dates_T: npt.NDArray[np.datetime64]) -> None:
        self.delay = tradable_delay(config.label.delays)
        own = pl.col("delay") == self.delay
        ics = result.ic_series.filter(own)
        self.models: list[str] = ics["model"].unique(maintain_order=True).to_list()
        self._ics = ics.pivot(on="model", index="date", values="ic").sort("date")
        self._returns = {
            str(book): part.pivot(on="model", index="date", values="excess_net").sort("date")
            for (book,), part in result.equity.filter(own).partition_by(["book"], as_dict=True).items()
        }
        rows_T = np.searchsorted(dates_T.astype("datetime64[D]"), self._ics["date"].to_numpy())
        self.overlap = max(label_overlap(rows_T, config.label.horizon), 1)

    def ic(self, model: str) -> FloatArray:
        """Daily IC; NaN where it is undefined."""
        return _floats(self._ics[model])

    def returns(self, model: str, book: str) -> FloatArray:
        """Net excess return per session; NaN on sessions without positions."""
        return _floats(self._returns[book][model])


@lru_cache(maxsize=3)
def _samples(n: int, block: float | None = None) -> FloatArray | None:
    """Bootstrap samples of n sessions, which all models and books share; None for fewer than 2 sessions."""
    return bootstrap_counts(n, block=bootstrap_block(n) if block is None else block) if n > 1 else None


def _floats(series: pl.Series) -> FloatArray:
    values: FloatArray = series.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return values


MIN_SESSIONS: Final = 60
"""Fewer common sessions than about a quarter give no table."""


def multiple_test_table(
    result: Evaluation, config: Config, dates_T: npt.NDArray[np.datetime64]
) -> pl.DataFrame | None:
    """Test the net returns of all models or signals together; None for a single one, or too few sessions.

    All are tested against the risk-free rate, and those that are no baseline against the best baseline.
    """
    series = TradableSeries(result, config, dates_T)
    kinds = {model: registry_name(config, model) for model in series.models if model in config.models}
    rows: list[dict[str, Any]] = []
    for book in config.backtest.books:
        return_TV = np.column_stack([series.returns(model, book) for model in series.models])
        return_TV = return_TV[~np.isnan(return_TV).any(axis=1)]
        if len(series.models) < 2 or len(return_TV) < MIN_SESSIONS:
            continue
        against_zero, p_V = superior_books(return_TV, level=LEVEL), confidence_set(return_TV)
        ours = [v for v, model in enumerate(series.models) if kinds.get(model) not in BASELINES]
        best = _best_baseline(return_TV, [v for v in range(len(series.models)) if v not in ours])
        against: dict[int, dict[str, Any]] = {}
        if best is not None and ours:
            tested = superior_books(return_TV[:, ours] - return_TV[:, [best]], level=LEVEL)
            shared = {"baseline": series.models[best], "baseline_spa_p": tested.p_value}
            for v, superior in zip(ours, tested.superior_V.tolist(), strict=True):
                against[v] = {**shared, "in_baseline_stepm": superior}
        nothing = dict.fromkeys(("baseline", "baseline_spa_p", "in_baseline_stepm"))
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
                **against.get(v, nothing),
                "level": LEVEL,
            }
            for v, model in enumerate(series.models)
        )
    return table("multiple_tests").frame(rows) if rows else None


def _best_baseline(return_TV: FloatArray, baselines: list[int]) -> int | None:
    """Return the column of the baseline with the highest Sharpe ratio; None if no baseline varies."""
    varying = [v for v in baselines if return_TV[:, v].std() > 0]
    if not varying:
        return None
    return max(varying, key=lambda v: float(return_TV[:, v].mean() / return_TV[:, v].std()))


def path_table(
    forecasts: pl.DataFrame, folds: Sequence[Fold], dataset: Market, config: Config
) -> pl.DataFrame | None:
    """Measure every model on every path of tests; None for folds with a single path.

    Each path covers every tested date once, with models trained on different sessions. Paths share training
    data and test dates, so their spread is not a standard error.
    """
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
        of_path = forecasts.join(path_of_tests(dataset, folds, path), on=["date", "fold"], how="semi")
        arrays = forecasts_to_arrays(of_path, dataset.panel)
        ordered = {model: arrays[model] for model in config.models if model in arrays}
        dates_T = common_dates(ordered)
        result = evaluate(
            restrict_to_dates(ordered, dates_T),
            one_delay,
            one_book,
            sessions=sessions,
        )
        parts.append(
            result.ladder.select(
                "model",
                "delay",
                path=pl.lit(path + 1),
                book=pl.lit(book),
                dates=pl.lit(int(dates_T.sum())),
                ic="ensemble_ic",
                rank_ic="ensemble_rank_ic",
                sharpe_net=of_book(book, "sharpe_net"),
            )
        )
    return table("paths").frame(pl.concat(parts).sort("model", "path", maintain_order=True))
