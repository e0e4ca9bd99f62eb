"""What ``peerglass compare`` compares: one model of a run, or one measured signal, with its series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError
from pipelines.results.comparisons import tradable_delay
from pipelines.results.evaluate import label_overlap
from pipelines.results.robustness.recount import Tried, read_tried
from pipelines.results.signals.record import MeasuredSignals, find_signals
from pipelines.run.evaluations import EvaluationRecord, assumptions_id, newest_evaluation
from pipelines.run.record import Run, open_run
from pipelines.train.trials import Scope


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One model of a run, or one signal of a measured file, as an evaluation measured it.

    Attributes
    ----------
    name
        Name in tables: ``RUN:MODEL``, or ``RUN/MODEL`` for the nights of a model version.
    run
        The run, or the measured signals.
    record
        Settings and code of the evaluation.
    model
        Entry of the config's ``models``, or name of the signal.
    book, delay
        Book and delay that are compared.
    tried
        The trials that count against it by now.
    daily
        date, ic, and excess_net (net return over the risk-free rate) of the book; null where unknown.
    """

    name: str
    run: Run | MeasuredSignals
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


def open_candidate(name: str, output: Path, delay: int | None = None, book: str | None = None) -> Candidate:
    """Open one side of a comparison.

    Parameters
    ----------
    name
        ``RUN`` or ``RUN:MODEL``; a name that ``peerglass runs list`` shows. Without a model, the one with the
        highest rank IC on validation is taken, as in a report's verdict; the test has no part in this choice.
        Of measured signals, the first one is taken.
    output
        Folder that holds the runs.
    delay
        Delay at which labels start and books trade; None for the first one that can be traded.
    book
        Name of the book; None for the first one.

    Raises
    ------
    ConfigError
        If there is no such run, model, delay or book.
    DataError
        If the run has no evaluation.
    """
    run_name, _, model = name.partition(":") if not Path(name).is_dir() else (name, "", "")
    run = find_signals(run_name, output) or open_run(run_name, output)
    evaluation = newest_evaluation(run)
    if evaluation is None:
        raise DataError(f"Run {run.run_id} has no evaluation; make one with: peerglass backtest {run.run_id}")
    ladder = evaluation.table("ladder")
    model = model or _chosen(ladder)
    where = f"The evaluation {evaluation.record.evaluation} of {run.run_id}"
    _require_known(where, "model", model, ladder["model"].unique(maintain_order=True).to_list())
    books = list(evaluation.record.backtest.books)
    delay, book = choose_delay_and_book(where, delay, evaluation.record.delays, book, books)
    return Candidate(
        name=f"{run.run_id}:{model}",
        run=run,
        record=evaluation.record,
        model=model,
        book=book,
        delay=delay,
        tried=tried_by_now(evaluation.record, run.config, delay, output),
        daily=daily_series(
            evaluation.table("ic_series"), evaluation.table("equity"), model=model, delay=delay, book=book
        ),
    )


def _chosen(ladder: pl.DataFrame) -> str:
    """The model with the highest validation rank IC; the first one if none has been validated."""
    ranked = ladder.drop_nulls("valid_rank_ic").sort("valid_rank_ic", descending=True)
    return str((ranked if ranked.height else ladder)["model"][0])


def tried_by_now(record: EvaluationRecord, config: Config, delay: int, output: Path) -> Tried:
    """Read from the ledger of an output folder which trials count against an evaluation by now."""
    return read_tried(output, Scope.of(config), assumptions_id(record.backtest, delay))


def choose_delay_and_book(
    where: str, delay: int | None, delays: Sequence[int], book: str | None, books: Sequence[str]
) -> tuple[int, str]:
    """Return the delay and the book to compare: those asked for, or the first tradable delay and first book.

    Parameters
    ----------
    where
        What has the delays and books, to begin an error with.
    delay, book
        What was asked for; None for the default.
    delays, books
        What there is.

    Raises
    ------
    ConfigError
        If there is no such delay or book.
    """
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
