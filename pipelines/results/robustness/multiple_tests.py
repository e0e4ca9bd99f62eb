"""Tests of all models of a run at once.

The tests of `pipelines.results.comparisons` look at one model at a time. These look at all of them together:
the best of many models is better than it should be.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.inference.means import LEVEL
from backtest.inference.multiple import confidence_set, superior_books
from features.arrays import FloatArray
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.results.comparisons import BASELINES, TradableSeries
from pipelines.results.evaluate import Evaluation

MIN_SESSIONS: Final = 60
"""Fewer common sessions than about a quarter give no table."""


def multiple_test_table(
    result: Evaluation, config: Config, dates_T: npt.NDArray[np.datetime64]
) -> pl.DataFrame | None:
    """Test the net returns of all models or signals together, at the first delay that can be traded.

    Parameters
    ----------
    result
        Daily net returns of the books of the seed ensembles.
    config
        Models, books and label.
    dates_T
        Sessions of the panel.

    Returns
    -------
    polars.DataFrame or None
        One row per model and book, on the sessions on which all models have a return: model; book; delay;
        sessions; spa_p (p-value of the null hypothesis that no model earns more than the risk-free rate, the
        same for all models of a book); in_stepm (whether StepM counts this model as better than that);
        mcs_p and in_mcs (`backtest.inference.multiple.confidence_set`; in the set if mcs_p is at least
        level); baseline (the baseline with the highest net Sharpe ratio), baseline_spa_p and
        in_baseline_stepm (the same tests against this baseline, for models that are no baseline); level.
        Null: unknown. None for a single model, or with too few sessions.
    """
    series = TradableSeries(result, config, dates_T)
    kinds = {model: registry_name(config, model) for model in series.models if model in config.models}
    frames = []
    for book in config.backtest.books:
        return_TV = np.column_stack([series.returns(model, book) for model in series.models])
        return_TV = return_TV[~np.isnan(return_TV).any(axis=1)]
        if len(series.models) < 2 or len(return_TV) < MIN_SESSIONS:
            continue
        against_zero, p_V = superior_books(return_TV, level=LEVEL), confidence_set(return_TV)
        frame = pl.DataFrame(
            {
                "model": series.models,
                "book": [book] * len(series.models),
                "delay": [series.delay] * len(series.models),
                "sessions": [len(return_TV)] * len(series.models),
                "spa_p": [against_zero.p_value] * len(series.models),
                "in_stepm": against_zero.superior_V,
                "mcs_p": p_V,
                "in_mcs": [None if np.isnan(p) else bool(p >= LEVEL) for p in p_V],
            },
            schema_overrides={"in_mcs": pl.Boolean},
        )
        ours = [v for v, model in enumerate(series.models) if kinds.get(model) not in BASELINES]
        best = _best_baseline(return_TV, [v for v in range(len(series.models)) if v not in ours])
        baseline: dict[str, list[object]] = {
            name: [None] * len(series.models) for name in ("baseline", "baseline_spa_p", "in_baseline_stepm")
        }
        if best is not None and ours:
            tested = superior_books(return_TV[:, ours] - return_TV[:, [best]], level=LEVEL)
            for v, superior in zip(ours, tested.superior_V.tolist(), strict=True):
                baseline["baseline"][v] = series.models[best]
                baseline["baseline_spa_p"][v] = tested.p_value
                baseline["in_baseline_stepm"][v] = superior
        schema = {"baseline": pl.String, "baseline_spa_p": pl.Float64, "in_baseline_stepm": pl.Boolean}
        frames.append(
            frame.hstack(pl.DataFrame(baseline, schema=schema)).with_columns(pl.lit(LEVEL).alias("level"))
        )
    if not frames:
        return None
    return pl.concat(frames).with_columns(pl.col(pl.Float64).fill_nan(None))


def _best_baseline(return_TV: FloatArray, baselines: list[int]) -> int | None:
    """Return the column of the baseline with the highest Sharpe ratio; None if no baseline varies."""
    varying = [v for v in baselines if return_TV[:, v].std() > 0]
    if not varying:
        return None
    return max(varying, key=lambda v: float(return_TV[:, v].mean() / return_TV[:, v].std()))
