"""Figures that depend on what was tried, taken when a result is shown: every later trial counts against it.

The deflated Sharpe ratios with the number of trials and with their effective number, the Rademacher bound and
the probability of overfitting are counted again from the ledger. Shape suffixes: T sessions, V trials.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from backtest.inference.overfitting import (
    deflated_sharpe,
    effective_trials,
    probability_of_overfitting,
    rademacher_bound,
)
from features.arrays import BoolArray, DateArray, FloatArray
from features.panel.periods import SESSIONS_PER_YEAR
from pipelines.columns import table
from pipelines.config.schema import Config
from pipelines.results.signal_file import MeasuredSignals
from pipelines.run.evaluations import StoredEvaluation, assumptions_id, tradable_delay
from pipelines.run.record import RecordedRun
from pipelines.train import trials as ledger

MIN_SESSIONS: Final = 60  # fewer common sessions than about a quarter give no probability of overfitting

OF_THE_EVALUATION: Final = "results of this evaluation"
OF_THE_LEDGER: Final = "results of the ledger under the same assumptions"

RECOUNTED: Final = ("significance", "overfitting", "trials")  # tables of an evaluation that `recount` makes

_MANY: Final = 64  # candidates from which the splits of CSCV are coarser, because time grows with both


def trials_of(owner: RecordedRun | MeasuredSignals) -> dict[str, ledger.Trial]:
    """Return the trials of a run's models, or of the signals of a file, without a book, by name."""
    if isinstance(owner, MeasuredSignals):
        return ledger.signal_trials(owner.record.signals, owner.config)
    return ledger.model_trials(owner.config, owner.identity.settings)


def keep_returns(
    output: Path, equity: pl.DataFrame, trials: Mapping[str, ledger.Trial], config: Config
) -> None:
    """Keep the returns of an evaluation's books in the ledger, at the first delay that can be traded."""
    delay = tradable_delay(config.label.delays)
    under = assumptions_id(config.backtest, delay)
    own = _own_returns(equity, trials, config, delay)
    ledger.record_returns(output, {(*key, under): frame for key, frame in own.items()})


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """The returns of all trials that count; under the result's own assumptions where ``same_V``."""

    counted: ledger.TrialCount
    keys_V: list[tuple[str, str]]
    dates_T: DateArray
    return_TV: FloatArray
    same_V: list[bool]

    @property
    def effective(self) -> float:
        """Effective number of trials. Trials without returns, such as those of a search, count in full."""
        without = max(self.counted.trials - len(self.keys_V), 0)
        return max(effective_trials(self.return_TV), 1.0 if self.keys_V else 0.0) + without


def read_tried(output: Path, scope: ledger.Scope, assumptions: str) -> Tried:
    """Read the trials that count against a result, and their returns."""
    counted = ledger.count_trials(output, scope)
    stored = ledger.read_returns(output, counted.rows)
    chosen = (
        stored.with_columns(same=pl.col("assumptions") == assumptions)
        .sort("same", descending=True, maintain_order=True)
        .unique(["forecast", "traded"], keep="first", maintain_order=True)
        .sort("forecast", "traded")
    )
    keys_V = chosen.select("forecast", "traded").rows()
    if not keys_V:
        return Tried(counted, [], np.empty(0, dtype="datetime64[D]"), np.empty((0, 0)), [])
    dates = [day.to_numpy().astype("datetime64[D]") for day in chosen["dates"]]
    dates_T = np.unique(np.concatenate(dates))
    return_TV = np.full((len(dates_T), len(keys_V)), np.nan)
    for v, (own, values) in enumerate(zip(dates, chosen["returns"], strict=True)):
        return_TV[np.searchsorted(dates_T, own), v] = values.to_numpy()
    return Tried(counted, keys_V, dates_T, return_TV, chosen["same"].to_list())


def recount(owner: RecordedRun | MeasuredSignals, evaluation: StoredEvaluation) -> StoredEvaluation:
    """Return an evaluation whose ``significance``, ``overfitting`` and ``trials`` are of this moment."""
    config = evaluation.record.apply_to(owner.config)
    return replace(
        evaluation,
        recounted=recounted_tables(
            evaluation.table("equity"),
            evaluation.table("significance"),
            trials_of(replace(owner, config=config)),
            config,
            owner.folder.parent,
            periods_per_year=evaluation.record.periods_per_year,
        ),
    )


def recounted_tables(
    equity: pl.DataFrame,
    significance: pl.DataFrame,
    trials: Mapping[str, ledger.Trial],
    config: Config,
    output: Path,
    *,
    periods_per_year: float = SESSIONS_PER_YEAR,
) -> dict[str, pl.DataFrame]:
    """Compute the tables of `recount` from the evaluation's own tables and the ledger."""
    delay = tradable_delay(config.label.delays)
    own = _own_returns(equity, trials, config, delay)
    tried = read_tried(output, ledger.Scope.of(config), assumptions_id(config.backtest, delay))
    number, effective = max(tried.counted.trials, len(own), 1), max(tried.effective, 1.0)
    beside = _side_by_side(own, tried)
    bounds, overfitting = {}, None
    if own:
        return_TV = np.column_stack(beside[:2])
        most = max(number, return_TV.shape[1])
        found = rademacher_bound(return_TV, trials=most, periods_per_year=periods_per_year)
        bounds = dict(zip(own, found.lower_V.tolist(), strict=False))
        overfitting = _overfitting(*beside, delay=delay, trials=tried.counted.trials)
    rows = []
    for row in significance.iter_rows(named=True):
        key = _key(trials[row["model"]], config, row["book"])
        excess_T = own[key]["excess_net"].to_numpy() if key in own else np.empty(0)
        counted = {
            "trials": number,
            "deflated_sharpe": deflated_sharpe(excess_T, number),
            "effective_trials": effective,
            "deflated_effective": deflated_sharpe(excess_T, effective),
            "rademacher_lower": bounds.get(key, np.nan),
        }
        rows.append(row | counted)
    summary = {
        "trials": number,
        "effective_trials": effective,
        "on_market": max(tried.counted.on_market.height, number),
        "hypothesis": config.hypothesis,
        "reach": tried.counted.reach,
    }
    return {
        "significance": table("significance").frame(rows),
        "trials": table("trials").frame([summary]),
        **({} if overfitting is None else {"overfitting": overfitting}),
    }


def _side_by_side(
    own: Mapping[tuple[str, str], pl.DataFrame], tried: Tried
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Own returns, those of other trials on the same dates (NaN: none), and which assume the same."""
    others = [v for v, key in enumerate(tried.keys_V) if key not in own]
    days = [frame["date"].to_numpy().astype("datetime64[D]") for frame in own.values()]
    dates_T = np.unique(np.concatenate(days)) if days else tried.dates_T[:0]
    own_TV, other_TV = (np.full((len(dates_T), n), np.nan) for n in (len(own), len(others)))
    for v, (day_T, frame) in enumerate(zip(days, own.values(), strict=True)):
        own_TV[np.searchsorted(dates_T, day_T), v] = frame["excess_net"].to_numpy()
    _, at_T, from_T = np.intersect1d(dates_T, tried.dates_T, return_indices=True)
    other_TV[at_T] = tried.return_TV[from_T][:, others]
    return own_TV, other_TV, np.array([tried.same_V[v] for v in others], dtype=np.bool_)


def _overfitting(
    own_TV: FloatArray, other_TV: FloatArray, same_V: BoolArray, *, delay: int, trials: int
) -> pl.DataFrame | None:
    """PBO of this evaluation's books, and with all trials under the same assumptions on the same sessions."""
    span_T = np.isfinite(own_TV).all(axis=1)
    own_TV, other_TV = own_TV[span_T], other_TV[span_T]
    other_TV = other_TV[:, same_V & np.isfinite(other_TV).all(axis=0)]
    candidates = {OF_THE_EVALUATION: own_TV}
    if other_TV.size:
        candidates[OF_THE_LEDGER] = np.column_stack([own_TV, other_TV])
    rows = []
    for name, return_TV in candidates.items():
        varying_TV = return_TV[:, (return_TV != return_TV[:1]).any(axis=0)]
        if varying_TV.shape[1] < 2 or len(varying_TV) < MIN_SESSIONS:
            continue
        blocks = 8 if len(varying_TV) < 16 * 15 else 16 if varying_TV.shape[1] <= _MANY else 10
        found = probability_of_overfitting(varying_TV, blocks=blocks)
        rows.append(
            {
                "candidates": name,
                "variants": varying_TV.shape[1],
                "delay": delay,
                "blocks": blocks,
                "pbo": found.probability,
                "loss_probability": found.loss_probability,
                "sessions": len(varying_TV),
                "trials_left_out": max(trials - own_TV.shape[1] - other_TV.shape[1], 0),
            }
        )
    return table("overfitting").frame(rows) if rows else None


def _own_returns(
    equity: pl.DataFrame, trials: Mapping[str, ledger.Trial], config: Config, delay: int
) -> dict[tuple[str, str], pl.DataFrame]:
    """`Trial.key` -> date and excess_net of every model and book of an evaluation that has returns."""
    parts = equity.filter(pl.col("delay") == delay).partition_by(["model", "book"], as_dict=True)
    found = {}
    for (model, book), part in parts.items():
        known = part.select("date", pl.col("excess_net").cast(pl.Float64).fill_nan(None)).drop_nulls()
        if known.height:
            found[_key(trials[str(model)], config, str(book))] = known.sort("date")
    return found


def _key(trial: ledger.Trial, config: Config, book: str) -> tuple[str, str]:
    (traded,) = trial.traded({book: config.backtest.books[book]})
    return traded.key
