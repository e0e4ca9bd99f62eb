"""Measuring signals: from the rows of a file to a stored evaluation with the tables of a run."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arithmetic.parallel import in_background
from features.arrays import BoolArray, FloatArray
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, build_market
from pipelines.dataset.tables import describe_as_of, input_versions, open_lake, read_market_tables
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.options import canonical_location
from pipelines.progress import Progress
from pipelines.results.analysis.analysis import BookAnalysis
from pipelines.results.evaluate import evaluate
from pipelines.results.measured import evaluation_record, measured_tables
from pipelines.results.robustness.recount import keep_returns, recount
from pipelines.results.signals.guard import guard_table
from pipelines.results.signals.placing import PlacedSignals, leave_out_constant, place_signals
from pipelines.results.signals.reading import SignalTable
from pipelines.results.signals.record import MeasuredSignals, SignalRecord, library_versions, signals_id
from pipelines.run.evaluations import StoredEvaluation, store_evaluation
from pipelines.run.locks import Locks
from pipelines.run.record import git_commit
from pipelines.secrets import masked
from pipelines.train.trials import Scope, Trial, count_trials, record, signal_trials

_NO_SCORES = pl.DataFrame(schema={"model": pl.String, "valid_ic": pl.Float64, "valid_rank_ic": pl.Float64})


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSignals:
    """Signals of a file on a market, before they are measured.

    Attributes
    ----------
    measured
        Their folder, which is locked and holds their record.
    config
        The config, with a delay that can be traded first, and without models.
    market
        Prices, universe and labels.
    placed
        The signals on the panel.
    guarding
        The look-ahead guard, which runs beside the backtest.
    trials
        Signal -> its trial without a book.
    """

    measured: MeasuredSignals
    config: Config
    market: Market
    placed: PlacedSignals
    guarding: Future[pl.DataFrame]
    trials: Mapping[str, Trial]

    @property
    def guard(self) -> pl.DataFrame:
        """Table of the look-ahead guard (`pipelines.results.signals.guard.guard_table`)."""
        return self.guarding.result()


def prepare_signals(
    table: SignalTable, config: Config, progress: Progress, locks: Locks, as_of: str | None = None
) -> PreparedSignals:
    """Place the signals of a file on the market, and guard them against look-ahead.

    A signal dated ``t`` is held to be known at the close of ``t``. The same signals on the same data have the
    same folder.

    Parameters
    ----------
    table
        The signals (`pipelines.results.signals.reading.read_signals`).
    config
        Lake, universe, label, books, costs and output folder. Its models and features are not used.
    progress
        Reports progress.
    locks
        The folder of the signals is locked.
    as_of
        Earlier state of the lake to read; None for the newest.

    Raises
    ------
    DataError
        If the lake holds no prices, no row is in the universe, or every signal is constant.
    """
    config, added = with_tradable_delay(config)
    lake = open_lake(config, progress.note)
    with progress.stage("prices"):
        versions = input_versions(lake, as_of)
        if as_of is not None:
            progress.note(describe_as_of(as_of, versions))
        tables = read_market_tables(lake, versions)
        market = build_market(tables, config)
        placed = place_signals(table, market, lake.read("quarantine") if lake.exists("quarantine") else None)
    _require_rows(table, placed, lake)
    table, placed = leave_out_constant(table, placed)
    data = _Data(lake, {name: (versions[name], frame.height) for name, frame in tables.items()})
    measured = _measured(table, config, market, data, (*table.notes, *added, *market.notes))
    locks.lock_run(measured.folder)
    measured.save()
    guarding = in_background(lambda: guard_table(table, placed, market, config.label.horizon))
    contents = measured.record.signals
    return PreparedSignals(
        measured=measured,
        config=config.model_copy(update={"models": {}}),  # so that no signal is taken for a model
        market=market,
        placed=placed,
        guarding=guarding,
        trials=signal_trials({name: contents[name] for name in placed.signals}, config),
    )


def measure_signals(prepared: PreparedSignals, progress: Progress) -> StoredEvaluation:
    """Measure signals side by side and store the evaluation.

    Every book of every signal is recorded as a trial before it is measured.

    Returns
    -------
    StoredEvaluation
        The tables of `pipelines.results.measured.measured_tables`, and ``rows`` (signal, reason, rows) and
        ``guard`` (`pipelines.results.signals.guard.guard_table`).

    Raises
    ------
    ConfigError
        If a book needs more firms than there are.
    DataError
        If the risk-free rates do not cover the books.
    """
    measured, market, placed, own = prepared.measured, prepared.market, prepared.placed, prepared.config
    with progress.stage("backtest"):
        output = measured.folder.parent
        books = own.backtest.books
        record(
            output,
            measured.run_id,
            (one for trial in prepared.trials.values() for one in trial.traded(books)),
        )
        trials = count_trials(output, Scope.of(own)).trials
        tables = signal_tables(placed, market, own, trials)
        keep_returns(output, tables["equity"], prepared.trials, own)
        sessions = _sessions_to_cover(placed.signals, market.universe_TN)
        stored = store_evaluation(
            measured,
            evaluation_record(own, market.panel, sessions, trials, git_commit()),
            {**tables, "guard": prepared.guard},
        )
        return recount(measured, stored)


def signal_tables(
    placed: PlacedSignals, market: Market, config: Config, trials: int
) -> dict[str, pl.DataFrame]:
    """Compute the tables of an evaluation of signals, and ``rows``: how the rows of the file were used.

    Parameters
    ----------
    placed
        The signals on the panel.
    market
        Prices, universe and labels.
    config
        Label, books and costs, without models, so that no signal is taken for a model.
    trials
        Number of trials that count, these signals included.
    """
    forecasts = {name: {0: signal_TN} for name, signal_TN in placed.signals.items()}
    sessions = _sessions_to_cover(placed.signals, market.universe_TN)
    analysis = BookAnalysis(market, config)
    result = evaluate(
        forecasts, market, config, _NO_SCORES, truth_TN=None, sessions=sessions, on_book=analysis.add
    )
    tables = {**measured_tables(result, forecasts, market, config, trials), **analysis.tables()}
    return {**{name: frame for name, frame in tables.items() if frame is not None}, "rows": placed.rows}


def with_tradable_delay(config: Config) -> tuple[Config, tuple[str, ...]]:
    """Return the config with a delay that can be traded first, and a note if that delay was added.

    Nothing is trained, so measuring at one more delay costs nothing.
    """
    delays = config.label.delays
    tradable = min((delay for delay in delays if delay >= 1), default=1)
    others = tuple(delay for delay in delays if delay != tradable)
    label = config.label.model_copy(
        update={"delay": tradable, "extra_delays": others, "shorter_horizons": ()}
    )
    note = () if tradable in delays else ("Delay 1 was added, because delay 0 cannot be traded.",)
    return config.model_copy(update={"label": label}), note


def _require_rows(table: SignalTable, placed: PlacedSignals, lake: Lake) -> None:
    for signal in table.signals:
        if placed.used(signal) == 0:
            own = placed.rows.filter((pl.col("signal") == signal) & (pl.col("rows") > 0))
            reasons = ", ".join(f"{count:,} {reason}" for _, reason, count in own.iter_rows())
            raise DataError(
                f"{table.path}: none of the {table.rows.height:,} rows of {signal} is a firm of the universe "
                f"on a session of {lake.root} ({reasons or 'the file is empty'}); check the dates, the "
                "tickers and the section universe of the config."
            )


@dataclass(frozen=True, slots=True)
class _Data:
    """The lake, and the version and number of rows of each table that is read."""

    lake: Lake
    tables: Mapping[str, tuple[int, int]]


def _measured(
    table: SignalTable, config: Config, market: Market, data: _Data, notes: tuple[str, ...]
) -> MeasuredSignals:
    contents = {signal: table.content(signal) for signal in table.signals}
    versions = {name: version for name, (version, _) in data.tables.items()}
    run_id = signals_id(table.path, contents, config, data.lake.with_table_ids(versions))
    hazards: list[str] = []
    if data.lake.exists("sources"):
        for source in data.lake.read("sources").iter_rows(named=True):
            hazards += json.loads(source["hazards"])
    made = SignalRecord(
        run_id=run_id,
        file=str(table.path),
        signals=contents,
        rows=table.rows.height,
        notes=notes,
        lake=masked(canonical_location(data.lake.root)),
        tables=dict(data.tables),
        hazards=(*hazards, *market.panel.hazards),
        firms=float(market.universe_TN.sum(axis=1)[market.universe_TN.any(axis=1)].mean()),
        commit=git_commit(),
        libraries=library_versions(),
        made_at=dt.datetime.now(dt.UTC),
    )
    return MeasuredSignals(run_id, config, Path(config.output) / run_id, made)


def _sessions_to_cover(signals: Mapping[str, FloatArray], universe_TN: BoolArray) -> npt.NDArray[np.intp]:
    """Sessions with a universe, from the first to the last date of any signal."""
    known_T = np.logical_or.reduce([np.isfinite(signal_TN).any(axis=1) for signal_TN in signals.values()])
    signal_T, universe_T = np.flatnonzero(known_T), np.flatnonzero(universe_TN.any(axis=1))
    covered_T: npt.NDArray[np.intp] = universe_T[(universe_T >= signal_T[0]) & (universe_T <= signal_T[-1])]
    return covered_T
