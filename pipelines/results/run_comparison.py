"""What ``peerglass compare`` compares: one model of a run, or one measured signal, with its series."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from backtest.inference.means import LEVEL
from backtest.inference.overfitting import deflated_sharpe
from features.arrays import FloatArray
from pipelines.columns import table
from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError
from pipelines.format import IC, RATIO, describe_difference, interval, number
from pipelines.results.comparisons import differences, estimates
from pipelines.results.evaluate import label_overlap
from pipelines.results.recount import Tried, read_tried
from pipelines.results.signal_file import MeasuredSignals, find_signals
from pipelines.run.evaluations import (
    EvaluationRecord,
    StoredEvaluation,
    assumptions_id,
    leader,
    newest_evaluation,
    tradable_delay,
)
from pipelines.run.identity import setting_changes
from pipelines.run.record import RecordedRun, open_run
from pipelines.terminal import text_table
from pipelines.train.trials import Scope


@dataclass(frozen=True, slots=True, eq=False)
class ComparedModel:
    """One model of a run, signal of a file, or model version; ``daily`` has date, ic and excess_net."""

    name: str
    run: RecordedRun | MeasuredSignals
    record: EvaluationRecord
    model: str
    book: str
    delay: int
    tried: Tried
    daily: pl.DataFrame

    @property
    def horizon(self) -> int:
        """Sessions that a label spans."""
        return self.run.config.label.horizon

    @property
    def overlap(self) -> int:
        """Number of consecutive labels that overlap."""
        forecast_T = self.daily["ic"].is_not_null().to_numpy()
        return max(label_overlap(np.flatnonzero(forecast_T), self.horizon), 1)


def open_candidate(
    name: str, output: Path, delay: int | None = None, book: str | None = None
) -> ComparedModel:
    """Open ``RUN:MODEL``, or the model of ``RUN`` with the highest rank IC on validation."""
    run_name, _, model = name.partition(":") if not Path(name).is_dir() else (name, "", "")
    run = find_signals(run_name, output) or open_run(run_name, output, models=False)
    evaluation = newest_evaluation(run)
    if evaluation is None:
        raise DataError(f"Run {run.run_id} has no evaluation; make one with: peerglass backtest {run.run_id}")
    return candidate(run, evaluation, model or None, delay, book)


def candidate(
    run: RecordedRun | MeasuredSignals,
    evaluation: StoredEvaluation,
    model: str | None = None,
    delay: int | None = None,
    book: str | None = None,
) -> ComparedModel:
    """Take a model or signal of an evaluation: by default that with the highest rank IC on validation."""
    ladder = evaluation.table("ladder")
    model = str(leader(ladder)["model"]) if model is None else model
    where = f"The evaluation {evaluation.record.evaluation} of {run.run_id}"
    _require_known(where, "model", model, ladder["model"].unique(maintain_order=True).to_list())
    books = list(evaluation.record.backtest.books)
    delay, book = choose_delay_and_book(where, delay, evaluation.record.delays, book, books)
    return ComparedModel(
        name=f"{run.run_id}:{model}",
        run=run,
        record=evaluation.record,
        model=model,
        book=book,
        delay=delay,
        tried=tried_by_now(evaluation.record, run.config, delay, run.folder.parent),
        daily=daily_series(
            evaluation.table("ic_series"), evaluation.table("equity"), model=model, delay=delay, book=book
        ),
    )


def tried_by_now(record: EvaluationRecord, config: Config, delay: int, output: Path) -> Tried:
    """Read from the ledger of an output folder which trials count against an evaluation by now."""
    return read_tried(output, Scope.of(config), assumptions_id(record.backtest, delay))


def choose_delay_and_book(
    where: str, delay: int | None, delays: Sequence[int], book: str | None, books: Sequence[str]
) -> tuple[int, str]:
    """Return the delay and the book that were asked for, or the first tradable delay and first book."""
    delay = tradable_delay(delays) if delay is None else delay
    book = books[0] if book is None else book
    _require_known(where, "delay", delay, delays)
    _require_known(where, "book", book, books)
    return delay, book


def _require_known(where: str, what: str, given: object, known: Sequence[object]) -> None:
    """Raise ConfigError if an evaluation, described by ``where``, does not have what was asked for."""
    if given not in known:
        raise ConfigError(f"{where} has no {what} {given!r}; it has {', '.join(map(str, known))}.")


def daily_series(
    ic_series: pl.DataFrame, equity: pl.DataFrame, *, model: str, delay: int, book: str
) -> pl.DataFrame:
    """Join the daily ICs and net returns of one model and book: the column ``daily`` of a candidate."""
    own = (pl.col("model") == model) & (pl.col("delay") == delay)
    ics = ic_series.filter(own).select("date", "ic")
    returns = equity.filter(own, pl.col("book") == book).select("date", "excess_net")
    return returns.join(ics, on="date", how="full", coalesce=True).sort("date").fill_nan(None)


_MIN_DATES = 20


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Models side by side, with the trials by now, and phrases that say how each differs from the first."""

    figures: pl.DataFrame
    tests: pl.DataFrame
    differences: Mapping[str, tuple[str, ...]]
    level: float


def compare(candidates: Sequence[ComparedModel]) -> Comparison:
    """Compare candidates with the first one, on the dates that all of them have."""
    names = [one.name for one in candidates]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigError(
            f"compare needs at least two different models, but was given {', '.join(names) or 'none'}; name "
            "models of one run as RUN:MODEL."
        )
    ics, returns = _on_common_dates(candidates, "ic"), _on_common_dates(candidates, "excess_net")
    daily = {name: (ics[name], returns[name]) for name in names}
    return Comparison(
        figures=table("compared_figures").of(_figures(one, *daily[one.name]) for one in candidates),
        tests=table("compared_tests").of(_test(one, candidates[0], daily) for one in candidates[1:]),
        differences={one.name: _differences(one, candidates[0]) for one in candidates[1:]},
        level=LEVEL,
    )


def _on_common_dates(candidates: Sequence[ComparedModel], column: str) -> dict[str, FloatArray]:
    """A column of every candidate, on the dates on which all have a value."""
    series = [
        one.daily.drop_nulls(column).select("date", pl.col(column).alias(one.name)) for one in candidates
    ]
    common = reduce(lambda joined, own: joined.join(own, on="date"), series).sort("date")
    if common.height < _MIN_DATES:
        spans = (
            f"{one.name} has {one.daily['date'].min()!s} to {one.daily['date'].max()!s}" for one in candidates
        )
        raise DataError(
            f"The models have {common.height} dates in common, and a test needs at least {_MIN_DATES}: "
            f"{'; '.join(spans)}."
        )
    return {one.name: common[one.name].to_numpy() for one in candidates}


def _figures(one: ComparedModel, ic_T: FloatArray, return_T: FloatArray) -> dict[str, Any]:
    trials, effective = max(one.tried.counted.trials, 1), max(one.tried.effective, 1.0)
    return {
        **{"name": one.name, "book": one.book, "delay": one.delay},
        **estimates(ic_T, return_T, overlap=one.overlap, year=one.record.periods_per_year),
        "deflated_sharpe": deflated_sharpe(return_T, trials),
        "trials": trials,
        "deflated_effective": deflated_sharpe(return_T, effective),
        "effective_trials": effective,
    }


def _test(
    one: ComparedModel, first: ComparedModel, daily: Mapping[str, tuple[FloatArray, FloatArray]]
) -> dict[str, Any]:
    """Test the difference of a candidate and the first one; ICs of different labels are not compared."""
    (ic_T, return_T), (first_ic_T, first_return_T) = daily[one.name], daily[first.name]
    if (one.horizon, one.delay) != (first.horizon, first.delay):
        ic_T = first_ic_T = np.full_like(ic_T, np.nan)
    found = differences(
        (ic_T, return_T),
        (first_ic_T, first_return_T),
        overlap=max(one.overlap, first.overlap),
        year=one.record.periods_per_year,
    )
    return {"name": one.name, "reference": first.name, **found}


def _differences(one: ComparedModel, first: ComparedModel) -> tuple[str, ...]:
    """Say what differs from the first candidate, except the model that was named."""
    phrases: list[str] = []
    if one.run.run_id != first.run.run_id:
        if isinstance(one.run, RecordedRun) and isinstance(first.run, RecordedRun):
            phrases += one.run.identity.differences(first.run.identity)
        else:  # of measured signals, the data, the universe and the label
            phrases += setting_changes(_measured_on(first.run), _measured_on(one.run))
    settings, others = (side.record.backtest.model_dump(mode="json") for side in (one, first))
    after, before = settings.pop("books").get(one.book), others.pop("books").get(first.book)
    if after != before:
        phrases.append(f"book ({_short(before)} -> {_short(after)})")
    for key, value in settings.items():
        if value != others[key]:
            phrases.append(f"backtest.{key} ({_short(others[key])} -> {_short(value)})")
    if one.record.code != first.record.code:
        phrases.append("the code that measures")
    return tuple(phrases)


def _measured_on(run: RecordedRun | MeasuredSignals) -> dict[str, Any]:
    settings = run.config.model_dump(mode="json", include={"universe", "label"})
    if isinstance(run, MeasuredSignals):
        return settings | {"prices version": run.record.tables["prices"][0], "lake": run.record.lake}
    return settings | {"prices version": run.versions["prices"], "lake": run.identity.lake}


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items() if inner is not None)
    return str(value)


_LEGEND = (
    "All figures are of the dates that all models have. Sharpe ratios are annualised and net of costs.",
    "deflated: probability of skill, given the trials in the ledger by now; 0.95 or more is strong evidence.",
    "effective: the same with the number of independent trials that they amount to by their correlation.",
    "beats: yes if the interval of the IC difference is above 0 and the net Sharpe ratio is higher;",
    "no if the interval of the IC or of the Sharpe difference is below 0; unclear otherwise.",
)


def describe_candidates(comparison: Comparison) -> str:
    """Format figures, tests against the first model, and what differs."""
    rows = list(comparison.figures.iter_rows(named=True))
    cells = [
        (
            row["name"],
            row["book"],
            interval(row["ic"], row["ic_lower"], row["ic_upper"], IC),
            interval(row["sharpe_net"], row["sharpe_lower"], row["sharpe_upper"]),
            *(f"{row['delay']}", number(row["deflated_sharpe"], 2, unknown="?"), f"{row['trials']:,}"),
            number(row["deflated_effective"], 2, unknown="?"),
        )
        for row in rows
    ]
    heading = ("model", "book", "IC", "net Sharpe", "delay", "deflated", "trials", "effective")
    lines = [
        f"{rows[0]['sessions']:,} sessions; intervals at {1 - comparison.level:.0%}",
        *text_table(cells, heading, left=4),
        f"against {rows[0]['name']}",
    ]
    tests = []
    for row in comparison.tests.iter_rows(named=True):
        ic, sharpe = describe_difference(row, "ic", IC), describe_difference(row, "sharpe", RATIO)
        ics = f"IC {ic}" if row["dates"] else "IC not compared, because the labels differ"
        tests.append((row["name"], f"beats: {row['beats']}; {ics}; net Sharpe {sharpe}"))
        tests.append(
            ("", f"differs in: {'; '.join(comparison.differences[row['name']]) or 'the model alone'}")
        )
    return "\n".join((*lines, *text_table(tests, left=2), *_LEGEND))


def comparison_json(comparison: Comparison) -> str:
    """The comparison as one JSON document: ``level``, ``figures``, ``tests`` and ``differences``."""
    tables = {name: getattr(comparison, name).to_dicts() for name in ("figures", "tests")}
    document = {"level": comparison.level, **tables, "differences": comparison.differences}
    return json.dumps(document, indent=1, allow_nan=False)
