"""The distribution of out-of-sample results over the paths of combinatorial folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from backtest.splits.folds import Fold
from pipelines.config.schema import Config
from pipelines.dataset.folds import n_paths, path_of_tests
from pipelines.dataset.market import Market
from pipelines.results.comparisons import tradable_delay
from pipelines.results.evaluate import evaluate, forecasts_to_arrays
from pipelines.run.completeness import common_dates, restrict_to_dates


def path_table(
    forecasts: pl.DataFrame, folds: Sequence[Fold], dataset: Market, config: Config
) -> pl.DataFrame | None:
    """Measure every model on every path of tests, at the first delay that can be traded.

    Each path covers every tested date once, with forecasts of models that were trained on different groups of
    sessions. The spread over paths shows how much a result depends on that choice. Paths share training data
    and test dates, so it is not a standard error.

    Parameters
    ----------
    forecasts
        Rows of the run in the lake's table ``forecasts``.
    folds
        Folds of the run.
    dataset
        Labels, universe and panel.
    config
        Books, costs and the label.

    Returns
    -------
    polars.DataFrame or None
        model, path (from 1), delay, book (the main one), dates (common to all models), ic and rank_ic (seed
        ensemble), sharpe_net (annualised); None for folds with a single path.
    """
    paths = n_paths(dataset, folds)
    if paths < 2:
        return None
    delay, book = tradable_delay(config.label.delays), next(iter(config.backtest.books))
    one_delay = replace(dataset, labels={delay: dataset.labels[delay]})
    books = {book: config.backtest.books[book]}
    one_book = config.model_copy(update={"backtest": config.backtest.model_copy(update={"books": books})})
    sessions = np.unique(np.concatenate([fold.test for fold in folds]))
    no_scores = pl.DataFrame(schema={"model": pl.String, "valid_ic": pl.Float64, "valid_rank_ic": pl.Float64})
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
            no_scores,
            truth_TN=None,
            sessions=sessions,
        )
        parts.append(
            result.ladder.select(
                "model",
                pl.lit(path + 1, dtype=pl.Int64).alias("path"),
                "delay",
                pl.lit(book).alias("book"),
                pl.lit(int(dates_T.sum()), dtype=pl.Int64).alias("dates"),
                pl.col("ensemble_ic").alias("ic"),
                pl.col("ensemble_rank_ic").alias("rank_ic"),
                pl.col(f"{book}.sharpe_net").alias("sharpe_net"),
            )
        )
    return pl.concat(parts).sort("model", "path", maintain_order=True)
