"""Compute the tables of a backtest from forecasts: metrics, books, costs, and the ceiling if known."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import polars as pl

from backtest.accounts.performance import book_metrics, excess_return
from backtest.books.ranked import centred_rank, row_sums
from backtest.forecasts.daily import SortedPanel
from backtest.forecasts.metrics import forecast_metrics
from backtest.inference.means import overlap_of
from backtest.splits.folds import Fold
from features.arrays import BoolArray, FloatArray, IntArray
from features.panel.panel import Panel, to_panel
from pipelines.columns import BOOK_FIGURES, of_book, table
from pipelines.config.schema import Config
from pipelines.dataset.backtest_files import require_rates, risk_free_rates
from pipelines.dataset.folds import path_of_tests
from pipelines.dataset.market import Market
from pipelines.results.books import Benchmarks, MeasuredBook, book_orders
from pipelines.run.completeness import common_dates, forecast_by_all, restrict_to_dates

NO_SCORES: Final = pl.DataFrame(  # validation scores of what was not trained
    schema={"model": pl.String, "valid_ic": pl.Float64, "valid_rank_ic": pl.Float64}
)
_OF_SEEDS: Final = ("ic", "icir", "rank_ic", "rank_icir", "precision_at_10", "literature_sr", "r2_oos")
_OF_ENSEMBLE: Final = ("ic_t", "coverage_dates", "coverage_firms", "tied")
_OF_EQUITY: Final = ("nav_gross", "nav_net", "turnover", "unfilled", "leverage", "net_exposure")
_ACTIVE: Final = ("information_ratio", "tracking_error")

_FAR = 1e6  # times larger than usual: then a forecast's date is searched for differences lost to it


Evaluation = dict[str, pl.DataFrame]  # the tables of a backtest by name


def forecasts_to_arrays(frame: pl.DataFrame, panel: Panel) -> dict[str, dict[int, FloatArray]]:
    """Convert a run's forecasts to arrays: model -> seed -> shape (T, N), NaN where there is no forecast."""
    arrays: dict[str, dict[int, FloatArray]] = {}
    for (model, seed), part in frame.partition_by(
        ["model", "seed"], as_dict=True, maintain_order=True
    ).items():
        arrays.setdefault(str(model), {})[int(seed)] = to_panel(part, "forecast", panel)
    return arrays


def comparable(
    forecasts: pl.DataFrame, dataset: Market, config: Config, plan: Sequence[Fold], path: int = 0
) -> tuple[dict[str, dict[int, FloatArray]], BoolArray]:
    """Forecasts of a path of tests by model and seed on dates that all models forecast, and these dates."""
    of_path = forecasts.join(path_of_tests(dataset, plan, path), on=["date", "fold"], how="semi")
    arrays = forecasts_to_arrays(of_path, dataset.panel)
    ordered = {model: arrays[model] for model in config.models if model in arrays}
    dates_T = common_dates(ordered)
    return restrict_to_dates(ordered, dates_T), dates_T


def ensemble(seeds: Mapping[int, FloatArray]) -> FloatArray:
    """Mean over seeds of the forecasts standardised within each date; a constant cross-section gives 0."""
    rows_T = forecast_by_all(seeds.values())
    total: FloatArray | None = None
    for forecast_TN in seeds.values():
        score_RN = standardised(forecast_TN[rows_T])
        total = score_RN if total is None else total + score_RN
    assert total is not None
    mean_TN = np.full((len(rows_T), total.shape[1]), np.nan)
    mean_TN[rows_T] = total / len(seeds)
    return mean_TN


def seed_dispersion(seeds: Mapping[int, FloatArray]) -> FloatArray:
    """Standard deviation over seeds of the forecasts standardised within each date, shape (T, N).

    ``sqrt(sum_k (s_k - mean s)^2 / (K - 1))`` of the scores ``s_k``, in cross-sectional standard deviations
    of one date's forecasts. NaN for a single seed, and where a seed has no forecast.
    """
    rows_T = forecast_by_all(seeds.values())
    std_TN = np.full(next(iter(seeds.values())).shape, np.nan)
    if len(seeds) > 1:
        scores_KRN = np.stack([standardised(forecast_TN[rows_T]) for forecast_TN in seeds.values()])
        std_TN[rows_T] = scores_KRN.std(axis=0, ddof=1)
    return std_TN


def standardised(forecast_TN: FloatArray) -> FloatArray:
    """Standardise forecasts within each date: ``(x - mean) / std``. NaN stays; a constant date gives 0.

    The order of the firms is kept, because books trade it. Where a forecast is so far from the others that
    rounding would make them equal, the ranks of the date are standardised instead.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        score_TN = _standardised(forecast_TN)
        size_TN = np.abs(forecast_TN)
        typical_T = np.exp(np.nansum(np.log(size_TN), axis=1) / (~np.isnan(size_TN)).sum(axis=1))
        far_T = np.fmax.reduce(size_TN, axis=1, initial=0.0) > _FAR * typical_T
    for t in np.flatnonzero(far_T):
        value_N = forecast_TN[t, np.isfinite(forecast_TN[t])]
        if len(np.unique(score_TN[t, np.isfinite(score_TN[t])])) < len(np.unique(value_N)):
            rank_1N = np.where(np.isfinite(forecast_TN[t]), centred_rank(forecast_TN[t][None]), np.nan)
            score_TN[t] = _standardised(rank_1N)[0]
    return score_TN


def _standardised(forecast_TN: FloatArray) -> FloatArray:
    known_TN = np.isfinite(forecast_TN)
    count_T1 = np.maximum(known_TN.sum(axis=1, keepdims=True), 1)
    centred_TN = forecast_TN - row_sums(np.where(np.isnan(forecast_TN), 0.0, forecast_TN)) / count_T1
    std_T1 = np.sqrt(row_sums(np.where(np.isnan(centred_TN), 0.0, centred_TN**2)) / count_T1)
    score_TN: FloatArray = np.divide(centred_TN, std_T1, out=np.zeros_like(centred_TN), where=std_T1 > 0)
    score_TN[~known_TN] = np.nan
    return score_TN


def evaluate(
    forecasts: Mapping[str, Mapping[int, FloatArray]],
    dataset: Market,
    config: Config,
    scores: pl.DataFrame = NO_SCORES,
    *,
    truth_TN: FloatArray | None = None,
    sessions: IntArray,
    on_book: Callable[[MeasuredBook], None] | None = None,
    against: bool = True,
) -> Evaluation:
    """Evaluate forecasts (model -> seed -> (T, N)) at every label delay; ``on_book`` gets every book.

    Without ``against`` books are not measured against benchmarks, and no index or ticker is read.
    """
    ladder, ic_series, quantiles, equity, costs = [], [], [], [], []
    notes: list[dict[str, object]] = []
    benchmarks = Benchmarks(dataset, config.backtest.benchmarks if against else {})
    dates_T = dataset.panel.dates_T
    year = dataset.panel.periods_per_year
    rate_T = risk_free_rates(config.backtest.risk_free, dates_T, year)
    means = scores.group_by("model").agg(pl.col("valid_ic", "valid_rank_ic").mean())
    valid = {row["model"]: row for row in means.iter_rows(named=True)}
    for delay, all_labels_TN in dataset.labels.items():
        label = SortedPanel("label", np.where(dataset.universe_TN, all_labels_TN, np.nan)[sessions])
        for model, seeds in forecasts.items():
            combined_TN = ensemble(seeds)
            rows_T = np.flatnonzero(np.isfinite(combined_TN).any(axis=1))
            overlap = label_overlap(rows_T, config.label.horizon)
            measure = partial(forecast_metrics, label=label, horizon=overlap, periods_per_year=year)
            single = [measure(seed_TN[sessions]) for seed_TN in seeds.values()]
            joint = measure(combined_TN[sessions])
            truth = None
            if truth_TN is not None:
                same_cells_TN = np.where(np.isfinite(combined_TN), truth_TN, np.nan)
                truth = measure(same_cells_TN[sessions])
            row: dict[str, object] = {
                **{"model": model, "delay": delay, "seeds": len(seeds)},
                **{name: valid.get(model, {}).get(name) for name in ("valid_rank_ic", "valid_ic")},
                **{name: float(np.mean([getattr(one, name) for one in single])) for name in _OF_SEEDS},
                "ensemble_ic": joint.ic,
                "ensemble_rank_ic": joint.rank_ic,
                **{name: getattr(joint, name) for name in _OF_ENSEMBLE},
                "seed_dispersion": float(np.nanmean(seed_dispersion(seeds))) if len(seeds) > 1 else None,
                "truth_ic": truth.ic if truth else None,
                "truth_rank_ic": truth.rank_ic if truth else None,
            }
            for orders in book_orders(combined_TN, rows_T, dataset, config, delay):
                book, held = orders.name, orders.held
                result = orders.run(dataset.panel, keep_ledger=on_book is not None)
                require_rates(config.backtest.risk_free, rate_T[held], dates_T[held])
                metrics = book_metrics(result, rate_T[held])
                excess_T = excess_return(result, rate_T[held])
                if on_book is not None:
                    on_book(MeasuredBook(model, delay, orders, result, metrics, excess_T, rate_T[held]))
                keys = {"model": model, "book": book, "delay": delay}
                active = benchmarks.measure(keys, orders, result, metrics)
                for figure in BOOK_FIGURES:
                    found = active if figure in _ACTIVE else metrics
                    row[of_book(book, figure)] = getattr(found, figure, None)
                daily = {name: getattr(result, f"{name}_T") for name in _OF_EQUITY}
                own = pl.DataFrame({"date": dates_T[held], "excess_net": excess_T, **daily})
                equity.append(own.with_columns(pl.lit(value).alias(key) for key, value in keys.items()))
                per_year = year * metrics.turnover
                costs.append({**keys, **metrics.costs_bps_per_year, "turnover_per_year": per_year})
                if delay == next(iter(dataset.labels)):  # decisions are the same at every delay
                    notes += (
                        {**keys, "date": dates_T[held][note.session].item(), "note": note.text}
                        for note in orders.notes
                    )
            ladder.append(row)
            forecast_T = np.isin(sessions, rows_T)
            series = {"date": dates_T[sessions], "ic": joint.ic_T, "rank_ic": joint.rank_ic_T}
            ic_series.append(
                pl.DataFrame({name: values[forecast_T] for name, values in series.items()}).with_columns(
                    pl.lit(model).alias("model"), pl.lit(delay).alias("delay")
                )
            )
            quantiles += [
                {"model": model, "delay": delay, "quantile": index + 1, "mean_return_bps": 1e4 * value}
                for index, value in enumerate(joint.quantile_returns)
            ]
    of_books = [of_book(book, figure) for book in config.backtest.books for figure in BOOK_FIGURES]
    return {
        "ladder": table("ladder").frame(ladder, *of_books),
        "ic_series": table("ic_series").frame(pl.concat(ic_series)),
        "quantiles": table("quantiles").frame(quantiles),
        "equity": table("equity").frame(pl.concat(equity)),
        "costs": table("costs").frame(costs),
        **({"book_notes": table("book_notes").of(notes)} if notes else {}),
        **benchmarks.tables(),
    }


def label_overlap(rows_T: IntArray, horizon: int) -> int:
    """Number of consecutive forecasts whose labels overlap: the horizon over the median step, rounded up."""
    return overlap_of(horizon, _median_step(rows_T))


def forecast_steps(ic_series: pl.DataFrame, equity: pl.DataFrame) -> dict[str, float]:
    """Median number of sessions from one forecast of a model to the next; ``equity`` has every session."""
    sessions = pl.concat([ic_series["date"], equity["date"]]).unique().sort()
    return {
        str(model): _median_step(np.asarray(sessions.search_sorted(rows["date"].unique().sort())))
        for (model,), rows in ic_series.group_by(["model"], maintain_order=True)
    }


def _median_step(rows_T: IntArray) -> float:
    return float(np.median(np.diff(rows_T))) if len(rows_T) > 1 else 1.0
