"""Tests of all models of a run at once, and how far a selection among backtests can be believed.

The tests of `pipelines.results.comparisons` look at one model at a time. These look at all of them together:
the best of many models is better than it should be.
"""

from __future__ import annotations

import json
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.inference.means import LEVEL
from backtest.inference.multiple import confidence_set, superior_books
from backtest.inference.overfitting import probability_of_overfitting
from features.arrays import FloatArray
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError
from pipelines.results.comparisons import BASELINES, TradableSeries, tradable_delay
from pipelines.results.evaluate import Evaluation
from pipelines.run.evaluations import newest_evaluation
from pipelines.run.record import Run, open_run
from pipelines.train.trials import read_trials

MIN_SESSIONS: Final = 60
"""Fewer common sessions than about a quarter give no table."""

OF_THE_EVALUATION: Final = "results of this evaluation"
OF_THE_LEDGER: Final = "stored results of the ledger"


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


def overfitting_table(
    result: Evaluation, config: Config, dates_T: npt.NDArray[np.datetime64], run: Run | None = None
) -> pl.DataFrame | None:
    """Compute the probability that the best backtest in one half of the sessions is below the median later.

    Parameters
    ----------
    result, config, dates_T
        As in `multiple_test_table`.
    run
        The run; its output folder has the ledger and the other runs. None: only the results themselves.

    Returns
    -------
    polars.DataFrame or None
        One row per set of candidates: candidates (the models or signals of this evaluation; and, if there are
        more, all stored results of the ledger's runs on the same market), variants (their number), book (the
        main one), delay (sessions, of this evaluation), blocks, pbo and loss_probability
        (`backtest.inference.overfitting.probability_of_overfitting`), sessions. Only daily net returns that
        are known on every session of this evaluation count, and books without variation do not; runs_left_out
        is the number of the ledger's runs on this market that have no such returns. None if there are fewer
        than two candidates or too few sessions.
    """
    series = TradableSeries(result, config, dates_T)
    book = next(iter(config.backtest.books))
    own = result.equity.filter((pl.col("delay") == series.delay) & (pl.col("book") == book))
    wide = own.pivot(on="model", index="date", values="excess_net").sort("date").drop_nulls()
    everything = wide
    others = {} if run is None else _stored_returns(run, book)
    used = set()
    for (run_id, _), returns in others.items():
        part = returns.filter(pl.col("date").is_in(wide["date"].implode()))
        if part.height == wide.height and part["excess_net"].null_count() == 0:
            used.add(run_id)
            column = part.select("date", pl.col("excess_net").alias(f"other {everything.width}"))
            everything = everything.join(column, on="date", how="left")
    rows = []
    for candidates, frame in ((OF_THE_EVALUATION, wide), (OF_THE_LEDGER, everything)):
        return_TV = frame.drop("date").cast(pl.Float64).to_numpy()
        return_TV = return_TV[:, (return_TV != return_TV[:1]).any(axis=0)]
        if return_TV.shape[1] < 2 or len(return_TV) < MIN_SESSIONS:
            continue
        if candidates == OF_THE_LEDGER and frame.width == wide.width:
            continue
        blocks = 16 if len(return_TV) >= 16 * 15 else 8
        found = probability_of_overfitting(return_TV, blocks=blocks)
        rows.append(
            {
                "candidates": candidates,
                "variants": return_TV.shape[1],
                "book": book,
                "delay": series.delay,
                "blocks": blocks,
                "pbo": found.probability,
                "loss_probability": found.loss_probability,
                "sessions": len(return_TV),
                "runs_left_out": len(set(_runs_on_the_market(run)) - used) if run is not None else 0,
            }
        )
    return pl.DataFrame(rows) if rows else None


def _best_baseline(return_TV: FloatArray, baselines: list[int]) -> int | None:
    """Return the column of the baseline with the highest Sharpe ratio; None if no baseline varies."""
    varying = [v for v in baselines if return_TV[:, v].std() > 0]
    if not varying:
        return None
    return max(varying, key=lambda v: float(return_TV[:, v].mean() / return_TV[:, v].std()))


def _runs_on_the_market(run: Run) -> list[str]:
    """List the other runs of the ledger on the market of a run, sorted."""
    trials = read_trials(run.folder.parent).with_columns(
        market=pl.col("config").map_elements(_market_of, return_dtype=pl.String)
    )
    markets = trials.explode("runs").filter(pl.col("runs") == run.run_id)["market"].unique()
    same = trials.filter(pl.col("market").is_in(markets.implode())).explode("runs")["runs"]
    return sorted(set(same) - {run.run_id})


def _stored_returns(run: Run, book: str) -> dict[tuple[str, str], pl.DataFrame]:
    """Daily net returns of the other runs of the ledger on the same market, at their first tradable delay.

    A run without an evaluation that has the book, or that cannot be read (any more), has none.

    Returns
    -------
    dict
        Run id and model -> date, excess_net, sorted by date, from the newest evaluation of the run.
    """
    found: dict[tuple[str, str], pl.DataFrame] = {}
    for run_id in _runs_on_the_market(run):
        try:
            evaluation = newest_evaluation(open_run(run_id, run.folder.parent))
        except (ConfigError, DataError):
            continue  # deleted, or of an older version: the table says how many runs are left out
        if evaluation is None:
            continue
        equity = evaluation.table("equity").filter(pl.col("book") == book)
        if equity.is_empty():
            continue
        delay = tradable_delay(evaluation.record.delays)
        for (model,), part in equity.filter(pl.col("delay") == delay).group_by("model", maintain_order=True):
            found[run_id, str(model)] = part.select("date", pl.col("excess_net").cast(pl.Float64)).sort(
                "date"
            )
    return found


def _market_of(config: str) -> str:
    return json.dumps(json.loads(config).get("market"), sort_keys=True)
