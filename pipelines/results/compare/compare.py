"""Compare models of different runs on the dates that all of them measured, with paired tests.

Shape suffixes: R samples of the bootstrap, T dates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from backtest.inference.bootstrap import bootstrap_block, bootstrap_counts, sharpe_difference, sharpe_interval
from backtest.inference.means import LEVEL, diebold_mariano, mean_test, paired_test
from backtest.inference.overfitting import deflated_sharpe
from features.arrays import FloatArray
from pipelines.errors import ConfigError, DataError
from pipelines.results.compare.candidates import Candidate
from pipelines.results.comparisons import beats
from pipelines.results.signals.record import MeasuredSignals
from pipelines.run.identity import setting_changes
from pipelines.run.record import Run

_MIN_DATES = 20


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Models side by side.

    Attributes
    ----------
    figures
        One row per candidate: name, book, delay, dates, ic with ic_lower and ic_upper, sessions, sharpe_net
        with sharpe_lower and sharpe_upper (annualised), deflated_sharpe with trials (their number in the
        ledger at the time of the call), and deflated_effective with effective_trials.
    tests
        One row per candidate after the first, which it is compared with: name, reference, dates,
        ic_difference with ic_lower, ic_upper and ic_p, dm_t and dm_p (Diebold-Mariano; a positive dm_t means
        that the candidate loses less), sharpe_difference with sharpe_lower, sharpe_upper and sharpe_p, beats
        (``yes``, ``no`` or ``unclear``). The ICs are null if the two labels differ.
    differences
        Candidate after the first -> phrases that say what differs: data, settings, code, costs and books.
    level
        Level of all tests.
    """

    figures: pl.DataFrame
    tests: pl.DataFrame
    differences: Mapping[str, tuple[str, ...]]
    level: float


@dataclass(frozen=True, slots=True, eq=False)
class _Series:
    """A candidate's daily ICs and net returns, on the dates of each that all candidates have."""

    candidate: Candidate
    ic_T: FloatArray
    return_T: FloatArray


def compare(candidates: Sequence[Candidate]) -> Comparison:
    """Compare candidates with the first one.

    Daily ICs are tested with Newey-West errors (`backtest.inference.means.paired_test`), net Sharpe ratios
    with the stationary bootstrap (`backtest.inference.bootstrap.sharpe_difference`). ICs are measured on the
    dates on which every candidate has one, and returns on those on which every candidate has one, so that no
    candidate profits from an easier period.

    Raises
    ------
    ConfigError
        If there are fewer than two candidates, or two are the same.
    DataError
        If they have fewer than 20 dates in common.
    """
    names = [one.name for one in candidates]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigError(
            f"compare needs at least two different models, but was given {', '.join(names) or 'none'}; name "
            "models of one run as RUN:MODEL."
        )
    ics, returns = _on_common_dates(candidates, "ic"), _on_common_dates(candidates, "excess_net")
    series = [_Series(one, ics[one.name], returns[one.name]) for one in candidates]
    n = len(series[0].return_T)
    counts_RT = bootstrap_counts(n, block=bootstrap_block(n))  # all candidates share the samples
    return Comparison(
        figures=_frame([_figures(one, counts_RT) for one in series]),
        tests=_frame([_test(one, series[0], counts_RT) for one in series[1:]]),
        differences={one.name: _differences(one, candidates[0]) for one in candidates[1:]},
        level=LEVEL,
    )


def _on_common_dates(candidates: Sequence[Candidate], column: str) -> dict[str, FloatArray]:
    """A column of every candidate, on the dates on which all have a value."""
    common = candidates[0].daily.drop_nulls(column).select("date", pl.col(column).alias(candidates[0].name))
    for one in candidates[1:]:
        own = one.daily.drop_nulls(column).select("date", pl.col(column).alias(one.name))
        common = common.join(own, on="date")
    if common.height < _MIN_DATES:
        spans = [
            f"{one.name} has {first} to {last}"
            for one in candidates
            for first, last in one.daily.select(
                pl.col("date").first(), pl.col("date").last().alias("last")
            ).rows()
        ]
        raise DataError(
            f"The models have {common.height} dates in common, and a test needs at least {_MIN_DATES}: "
            f"{'; '.join(spans)}."
        )
    return {one.name: common.sort("date")[one.name].to_numpy() for one in candidates}


def _figures(one: _Series, counts_RT: FloatArray) -> dict[str, Any]:
    candidate, tried = one.candidate, one.candidate.tried
    trials, effective = max(tried.counted.trials, 1), max(tried.effective, 1.0)
    ic = mean_test(one.ic_T, overlap=candidate.overlap, level=LEVEL)
    year = candidate.record.periods_per_year
    sharpe = sharpe_interval(one.return_T, counts_RT=counts_RT, level=LEVEL, periods_per_year=year)
    return {
        "name": candidate.name,
        "book": candidate.book,
        "delay": candidate.delay,
        "dates": ic.n,
        "ic": ic.mean,
        "ic_lower": ic.lower,
        "ic_upper": ic.upper,
        "sessions": sharpe.n,
        "sharpe_net": sharpe.estimate,
        "sharpe_lower": sharpe.lower,
        "sharpe_upper": sharpe.upper,
        "deflated_sharpe": deflated_sharpe(one.return_T, trials),
        "trials": trials,
        "deflated_effective": deflated_sharpe(one.return_T, effective),
        "effective_trials": effective,
    }


def _test(one: _Series, first: _Series, counts_RT: FloatArray) -> dict[str, Any]:
    """Test the difference of a candidate and the first one."""
    own, other = one.candidate, first.candidate
    overlap = max(own.overlap, other.overlap)
    same_label = (own.horizon, own.delay) == (other.horizon, other.delay)
    nothing_T = np.full_like(one.ic_T, np.nan)
    ic_T, other_T = (one.ic_T, first.ic_T) if same_label else (nothing_T, nothing_T)
    ic = paired_test(ic_T, other_T, overlap=overlap, level=LEVEL)
    dm = diebold_mariano(1.0 - other_T, 1.0 - ic_T, horizon=overlap)
    sharpe = sharpe_difference(
        one.return_T,
        first.return_T,
        counts_RT=counts_RT,
        level=LEVEL,
        periods_per_year=own.record.periods_per_year,
    )
    return {
        "name": own.name,
        "reference": other.name,
        "dates": ic.n,
        "ic_difference": ic.mean,
        "ic_lower": ic.lower,
        "ic_upper": ic.upper,
        "ic_p": ic.p_value,
        "dm_t": dm.t,
        "dm_p": dm.p_value,
        "sharpe_difference": sharpe.estimate,
        "sharpe_lower": sharpe.lower,
        "sharpe_upper": sharpe.upper,
        "sharpe_p": sharpe.p_value,
        "beats": beats(ic, sharpe),
    }


def _differences(one: Candidate, first: Candidate) -> tuple[str, ...]:
    """Say what differs from the first candidate, except the model that was named."""
    phrases: list[str] = []
    if one.run.run_id != first.run.run_id:
        phrases += _run_differences(one.run, first.run)
    settings, others = (side.record.backtest.model_dump(mode="json") for side in (one, first))
    for key, value in settings.items():
        if key == "books":
            if value.get(one.book) != others["books"].get(first.book):
                before, after = others["books"].get(first.book), value.get(one.book)
                phrases.append(f"book ({_short(before)} -> {_short(after)})")
        elif value != others[key]:
            phrases.append(f"backtest.{key} ({_short(others[key])} -> {_short(value)})")
    if one.record.code != first.record.code:
        phrases.append("the code that measures")
    return tuple(phrases)


def _run_differences(one: Run | MeasuredSignals, first: Run | MeasuredSignals) -> list[str]:
    """Say what differs between two runs; of measured signals, the data, the universe and the label."""
    if isinstance(one, Run) and isinstance(first, Run):
        assert one.identity is not None, "an opened run has an identity"
        assert first.identity is not None, "an opened run has an identity"
        return one.identity.differences(first.identity)
    return list(setting_changes(_measured_on(first), _measured_on(one)))


def _measured_on(run: Run | MeasuredSignals) -> dict[str, Any]:
    settings = run.config.model_dump(mode="json", include={"universe", "label"})
    if isinstance(run, MeasuredSignals):
        return settings | {"prices version": run.record.tables["prices"][0], "lake": run.record.lake}
    assert run.identity is not None, "an opened run has an identity"
    return settings | {"prices version": run.versions["prices"], "lake": run.identity.lake}


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items() if inner is not None)
    return str(value)


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.col(pl.Float64).fill_nan(None))
