"""Daily ICs and returns of made-up models, as the part of an evaluation that tests between models read."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from pipelines.config.schema import Config
from pipelines.results.evaluate import Evaluation

MODELS: dict[str, Any] = {"zero": {}, "ridge": {}, "lightgbm": {}, "tcn": {}}
N = 300
DATES_T = np.datetime64("2020-01-01") + np.arange(N)


def config(*, delays: tuple[int, ...] = (0, 1), horizon: int = 1, models: Any = MODELS) -> Config:  # noqa: ANN401
    return Config.model_validate(
        {
            "name": "test",
            "source": {"kind": "simulated"},
            "label": {"delay": delays[0], "extra_delays": delays[1:], "horizon": horizon},
            "lake": "lake",
            "folds": {"scheme": "expanding", "train": 10, "valid": 10, "test": 10, "embargo": 0},
            "models": models,
            "backtest": {
                "books": {
                    "long_short": {"kind": "quantile_long_short", "quantiles": 5},
                    "long_only": {"kind": "top_k_long_only", "k": 20},
                }
            },
        }
    )


def evaluation(
    ics: dict[tuple[str, int], np.ndarray], returns: dict[tuple[str, str, int], np.ndarray]
) -> Evaluation:
    """Build an evaluation from daily ICs and daily net returns; nothing else of it is read."""
    ic = [
        pl.DataFrame({"date": DATES_T, "ic": ic_T}).with_columns(model=pl.lit(model), delay=pl.lit(delay))
        for (model, delay), ic_T in ics.items()
    ]
    equity = [
        pl.DataFrame({"date": DATES_T, "excess_net": return_T}).with_columns(
            pl.col("excess_net").fill_nan(None), model=pl.lit(model), book=pl.lit(book), delay=pl.lit(delay)
        )
        for (model, book, delay), return_T in returns.items()
    ]
    return {"ic_series": pl.concat(ic), "equity": pl.concat(equity)}


def simulated(
    seed: int, skill: dict[str, float], *, delays: tuple[int, ...] = (0, 1), pay: float = 0.05
) -> Evaluation:
    """Models with a given mean IC; half of an IC's variance is common to all, and books earn their IC."""
    rng = np.random.default_rng(seed)
    ics, returns = {}, {}
    for delay in delays:
        shared_T = 0.07 * rng.normal(size=N)
        for model, mean in skill.items():
            ic_T = mean + shared_T + 0.07 * rng.normal(size=N)
            ics[model, delay] = ic_T
            for book in ("long_short", "long_only"):
                returns[model, book, delay] = pay * ic_T + 0.003 * rng.normal(size=N)
    return evaluation(ics, returns)
