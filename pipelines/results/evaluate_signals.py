"""Placing the rows of a signal file on the panel, and counting the rows that are left out, by reason.

Shape suffixes: R rows of the file, T sessions, N firms.
"""

import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.inference.means import newey_west_lags, newey_west_t
from backtest.look_ahead import full_sample, hindsight, leads, prices, returns, splits
from backtest.look_ahead.coverage import choice_of_rows, needs_next_price, only_survivors
from backtest.look_ahead.delivery import Delivery
from backtest.look_ahead.finding import VERDICTS, Finding, Result
from features.arithmetic.parallel import in_background
from features.arrays import BoolArray, FloatArray, IntArray
from features.information_coefficient import ic_by_date, mean_known
from features.panel.holding import forward_returns
from features.panel.panel import Panel
from pipelines.columns import TABLES
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, build_market
from pipelines.dataset.tables import (
    describe_as_of,
    input_versions,
    newest_tickers,
    open_lake,
    read_market_tables,
)
from pipelines.errors import DataError
from pipelines.lake.options import canonical_location
from pipelines.progress import Progress
from pipelines.results.evaluate import label_overlap
from pipelines.results.evaluate_run import evaluate_trials, evaluation_record
from pipelines.results.recount import recount
from pipelines.results.signal_file import (
    KNOWN_FROM,
    MeasuredSignals,
    SignalRecord,
    SignalTable,
    early_rows,
    signals_id,
)
from pipelines.run.evaluations import StoredEvaluation, store_evaluation
from pipelines.run.identity import installed
from pipelines.run.locks import Locks
from pipelines.run.record import git_commit
from pipelines.secrets import masked
from pipelines.train.trials import Trial, signal_trials

USED: Final = "used"
_SIGNAL: Final = "signal"
_LINKED: Final = "The signal is linked to later returns, as a signal should be."
QUESTIONS: Final[Mapping[str, Callable[[Delivery], Result]]] = {  # of the audit's inputs, with its limits
    "leads": leads.check,
    "horizons": partial(hindsight.horizons, prices=False),
    "fit on the whole sample": full_sample.fits,
    "splits": partial(splits.check, prices=False),
}
_EARLY: Final = "before the knowledge cutoff"
REASONS: Final = (  # a row that is left out counts under the first that applies
    "missing value",
    "outside the prices' dates",
    "not a session",
    "unknown ticker",
    "quarantined",
    "unpriced",
    "no universe on that date",
    "not in the universe",
    _EARLY,
)


@dataclass(frozen=True, slots=True, eq=False)
class PlacedSignals:
    """Signals on the universe, how the rows were used, and dates between the prices' that are no sessions.

    Forecasts before their knowledge cutoff are in no array of ``signals``, which all figures are made from.
    """

    signals: Mapping[str, FloatArray]
    rows: pl.DataFrame
    off_sessions: tuple[str, ...]
    early: Mapping[str, FloatArray] = field(default_factory=dict)  # before their cutoff; none without one
    days_TN: FloatArray | None = None  # days from the cutoff of a row to its date; NaN without a row

    def used(self, signal: str) -> int:
        """Number of rows of a signal that are measured."""
        own = (pl.col("signal") == signal) & (pl.col("reason") == USED)
        return int(self.rows.filter(own)["rows"].sum())

    def sessions(self, market: Market) -> IntArray:
        """Sessions with a universe, from the first to the last date of any signal."""
        known_T = np.logical_or.reduce([np.isfinite(x_TN).any(axis=1) for x_TN in self.signals.values()])
        signal_T, universe_T = np.flatnonzero(known_T), np.flatnonzero(market.universe_TN.any(axis=1))
        within_T = (universe_T >= signal_T[0]) & (universe_T <= signal_T[-1])
        covered_T: IntArray = universe_T[within_T]
        return covered_T

    @property
    def constant(self) -> tuple[str, ...]:
        """Signals with values that differ between the firms of no date: they rank no firm above another."""
        return tuple(
            signal
            for signal, value_TN in self.signals.items()
            if not (np.fmax.reduce(value_TN, axis=1) > np.fmin.reduce(value_TN, axis=1)).any()
        )


def place_signals(table: SignalTable, market: Market, quarantine: pl.DataFrame | None) -> PlacedSignals:
    """Place signals on the panel and count the rows that are left out."""
    panel, frame = market.panel, table.rows
    dates_T = panel.dates_T
    day_R = frame["date"].to_numpy().astype("datetime64[D]")
    t_R = np.minimum(np.searchsorted(dates_T, day_R), len(dates_T) - 1)
    tickers = pl.Enum(list(panel.tickers_N))
    n_R = frame["ticker"].cast(tickers, strict=False).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    outside_R = (day_R < dates_T[0]) | (day_R > dates_T[-1])
    off_R = dates_T[t_R] != day_R
    unknown_R = n_R < 0
    priced_R = panel.traded_TN[t_R, n_R]
    decides_T: BoolArray = np.asarray(market.universe_TN.any(axis=1))
    tests: dict[str, BoolArray] = {
        "outside the prices' dates": outside_R,
        "not a session": off_R,
        "unknown ticker": unknown_R,
        "quarantined": ~priced_R & _quarantined(frame, ~priced_R & ~off_R & ~unknown_R, quarantine),
        "unpriced": ~priced_R,
        "no universe on that date": ~decides_T[t_R],
        "not in the universe": ~market.universe_TN[t_R, n_R],
        _EARLY: early_rows(table.path, frame).to_numpy(),
    }
    days_R = None
    if KNOWN_FROM in frame.columns:
        days_R = (day_R - frame[KNOWN_FROM].to_numpy().astype("datetime64[D]")).astype(np.float64)
    # 0: used; 1 is a missing value, which depends on the signal
    reason_R = np.select([tests[name] for name in REASONS[1:]], list(range(2, len(REASONS) + 1)))

    def on_panel(value_R: FloatArray, kept_R: BoolArray) -> FloatArray:
        value_TN = np.full(market.universe_TN.shape, np.nan)
        value_TN[t_R[kept_R], n_R[kept_R]] = value_R[kept_R]
        return value_TN

    early_R = reason_R == len(REASONS)  # the last reason: these rows would count otherwise
    days_TN = None if days_R is None else on_panel(days_R, early_R | (reason_R == 0))
    signals: dict[str, FloatArray] = {}
    early: dict[str, FloatArray] = {}
    rows: list[dict[str, Any]] = []
    for signal in table.signals:
        value_R = frame[signal].to_numpy()
        own_R = np.where(np.isnan(value_R), 1, reason_R)
        signals[signal] = on_panel(value_R, own_R == 0)
        if days_R is not None:
            early[signal] = on_panel(value_R, own_R == len(REASONS))
        counts = np.bincount(own_R, minlength=len(REASONS) + 1)
        rows += (
            {"signal": signal, "reason": name, "rows": int(count)}
            for name, count in zip((USED, *REASONS), counts, strict=True)
        )
    off_sessions = tuple(map(str, np.unique(day_R[off_R & ~outside_R])))
    return PlacedSignals(signals, TABLES["rows"].frame(rows), off_sessions, early, days_TN)


def leave_out_constant(table: SignalTable, placed: PlacedSignals) -> tuple[SignalTable, PlacedSignals]:
    """Leave out the signals that are constant on every date, with a note in the table."""
    constant = placed.constant
    if not constant:
        return table, placed
    named = ", ".join(constant)
    if len(constant) == len(table.signals):
        raise DataError(
            f"{table.path}: {named} has the same value for all firms of a date, on every date, so it ranks "
            "no firm above another; give a column whose values differ between firms."
        )
    note = f"Not measured: {named} (the same value for all firms, on every date)."
    kept = {signal: value_TN for signal, value_TN in placed.signals.items() if signal not in constant}
    rows = placed.rows.filter(~pl.col("signal").is_in(constant))
    return (
        replace(table, rows=table.rows.drop(constant), notes=(*table.notes, note)),
        replace(placed, signals=kept, rows=rows),
    )


def _quarantined(frame: pl.DataFrame, asked_R: BoolArray, quarantine: pl.DataFrame | None) -> BoolArray:
    """Whether the price row of each asked date and ticker lies in quarantine."""
    found_R: npt.NDArray[np.bool_] = np.zeros(frame.height, dtype=np.bool_)
    if quarantine is None or not asked_R.any():
        return found_R
    held = quarantine.filter((pl.col("table") == "prices") & pl.col("resolved_at").is_null())
    rows = map(json.loads, held["row"].to_list())
    keys = {(str(row.get("date"))[:10], str(row.get("ticker"))) for row in rows}
    asked = frame.filter(asked_R).select(pl.col("date").cast(pl.String), "ticker")
    found_R[asked_R] = [row in keys for row in asked.iter_rows()]
    return found_R


def guard_table(table: SignalTable, placed: PlacedSignals, market: Market, horizon: int) -> pl.DataFrame:
    """Make all checks of every signal; the worst findings of each signal come first.

    What precedes a knowledge cutoff is only looked at for that cutoff, and for statistics of the whole file.
    """
    guard, counted = Guard(market, horizon), table.rows.filter(~early_rows(table.path, table.rows))
    rows: list[dict[str, Any]] = []
    for signal, signal_TN in placed.signals.items():
        every = table.rows.select("date", "ticker", value=signal).drop_nulls()
        values = counted.select("date", "ticker", value=signal).drop_nulls()
        whole = full_sample.whole_sample_scale("the signal", every)
        said = {"pass": "None is exact for most firms.", "skipped": f"Not examined: {whole.sentence}."}.get(
            whole.verdict, whole.sentence
        )
        findings = [
            _off_sessions(table, signal, placed),
            replace(whole, check="statistics of the whole sample", sentence=said),
            *guard.check(signal_TN, values),
            *_skill_ends(placed, signal, market, horizon),
        ]
        findings.sort(key=lambda one: VERDICTS.index(one.verdict))
        rows += ({"signal": signal, **asdict(one)} for one in findings)
    return TABLES["guard"].of(rows)


def _skill_ends(placed: PlacedSignals, signal: str, market: Market, horizon: int) -> Iterator[Finding]:
    """Compare the ICs of a signal near its knowledge cutoffs; nothing without one."""
    if placed.days_TN is None:
        return
    near_TN = np.where(np.abs(placed.days_TN) <= returns.CUTOFF_DAYS, _label(market, horizon), np.nan)
    before_T, after_T = (ic_by_date(x_TN[signal], near_TN) for x_TN in (placed.early, placed.signals))
    rows_T = np.flatnonzero(np.isfinite(before_T) | np.isfinite(after_T))
    yield returns.skill_ends(before_T, after_T, overlap=label_overlap(rows_T, horizon))


def cutoff_table(table: SignalTable, placed: PlacedSignals, market: Market, horizon: int) -> pl.DataFrame:
    """Skill before the knowledge cutoffs, which counts in no figure, and after them."""
    rows: list[dict[str, Any]] = []
    label_TN, cutoffs = _label(market, horizon), table.rows[KNOWN_FROM]
    known_from = " to ".join(dict.fromkeys((str(cutoffs.min()), str(cutoffs.max()))))
    for signal in placed.signals:
        for part, x_TN in (("before, not counted", placed.early[signal]), ("after", placed.signals[signal])):
            ic_T, rows_T = ic_by_date(x_TN, label_TN), np.flatnonzero(np.isfinite(x_TN).any(axis=1))
            dates = int(np.isfinite(ic_T).sum())
            lags = max(label_overlap(rows_T, horizon) - 1, newey_west_lags(dates))
            found = {"dates": dates, "ic": mean_known(ic_T), "ic_t": newey_west_t(ic_T, lags)}
            rows.append({"signal": signal, "known_from": known_from, "part": part, **found})
    return TABLES["cutoffs"].of(rows)


def _label(market: Market, horizon: int) -> FloatArray:
    """Labels of the universe at the first delay of the market; of a market without labels, at delay 1."""
    label_TN = next(iter(market.labels.values()), None)
    if label_TN is None:
        label_TN = forward_returns(market.panel, 1, horizon)
    return np.where(market.universe_TN, label_TN, np.nan)


def failed(guard: pl.DataFrame) -> dict[str, list[str]]:
    """Signal -> the checks that it failed; signals that failed none are left out."""
    bad: dict[str, list[str]] = {}
    for signal, check in guard.filter(pl.col("verdict") == "fail").select("signal", "check").iter_rows():
        bad.setdefault(signal, []).append(check)
    return bad


class Guard:
    """The market that signals are checked against, prepared once for all of them."""

    def __init__(self, market: Market, horizon: int) -> None:
        self.market, self.horizon = market, horizon
        self.return_TN = returns.session_returns(market.panel.total_return_index_TN, market.panel.traded_TN)
        self.returns = returns.standardise(self.return_TN)
        self.past = prices.PastPrices(market.panel.total_return_index_TN)
        index_TN, close_TN = market.panel.total_return_index_TN, market.panel.raw_close_TN
        last_N = len(close_TN) - 1 - np.argmax(market.panel.traded_TN[::-1], axis=0)
        firms_N = np.arange(close_TN.shape[1])
        factor_N = close_TN[last_N, firms_N] / index_TN[last_N, firms_N]
        restated = {  # as a vendor does: adjusted from the newest price back for all splits and dividends
            "the close restated for later splits and dividends": np.where(
                market.panel.traded_TN, index_TN * factor_N, np.nan
            )
        }
        splits = _rows(market.panel, np.where(market.panel.traded_TN, 1.0, np.nan))
        self.tables = {"prices": splits.rename({"value": "split_ratio"})}
        self.values = prices.KnownValues(prices.prices_of(market.panel), restated=restated)

    def check(self, signal_TN: FloatArray, values: pl.DataFrame | None = None) -> Iterator[Finding]:
        """Ask all questions of a signal that its values and the market answer.

        ``values`` are its rows (date, ticker, value), of all firms; by default those of the universe.
        """
        panel, universe_TN = self.market.panel, self.market.universe_TN
        yield needs_next_price(signal_TN, universe_TN, panel.traded_TN)
        rows_D = returns.sample_dates(signal_TN)
        if not len(rows_D):
            yield Finding("IC with later returns", "skipped", "No date of the file has 10 firms.")
            return
        found = returns.make_profiles(signal_TN, self.returns)
        yield returns.too_high(found, panel.dates_T, self.horizon)
        yield returns.sudden_end(found)
        yield returns.later_sizes(found)
        yield returns.early_firms(found, panel.tickers_N)
        yield prices.beyond_past(signal_TN, self.past, self.returns, self.horizon)
        yield prices.equal_to_later_return(signal_TN, panel.total_return_index_TN, rows_D)
        yield prices.equal_to_later_value(signal_TN, self.values)
        yield prices.static_signal(signal_TN, self.return_TN)
        yield only_survivors(signal_TN, universe_TN, panel.traded_TN, rows_D)
        yield choice_of_rows(np.isfinite(signal_TN), universe_TN, self.return_TN, self.horizon)
        rows = _rows(panel, signal_TN) if values is None else values
        delivery = Delivery(
            *(panel, universe_TN, {**self.tables, "inputs": rows.with_columns(name=pl.lit(_SIGNAL))}),
            *((_SIGNAL,), np.arange(panel.n_firms), self.horizon),
        )
        for check, question in QUESTIONS.items():
            said = question(delivery)
            words = said.sentence.replace(f"Input {_SIGNAL}", "The signal")
            words = words.replace(f"input {_SIGNAL}", "the signal")
            # an input that is linked to later returns is remarkable; of a signal, ICs are judged above
            rare = said.verdict == "warn" and check in ("leads", "horizons")
            yield Finding(check, "pass" if rare else said.verdict, _LINKED if rare else words)


def _rows(panel: Panel, value_TN: FloatArray) -> pl.DataFrame:
    """Rows of the known values: date, ticker, value."""
    t, n = np.nonzero(np.isfinite(value_TN))
    columns = {"date": panel.dates_T[t].astype("datetime64[D]"), "ticker": np.array(panel.tickers_N)[n]}
    return pl.DataFrame({**columns, "value": value_TN[t, n]}).with_columns(pl.col("date").cast(pl.Date))


def _off_sessions(table: SignalTable, signal: str, placed: PlacedSignals) -> Finding:
    name = "dated on sessions"
    own = (pl.col("signal") == signal) & (pl.col("reason") == "not a session")
    rows = int(placed.rows.filter(own)["rows"].sum())
    if not rows:
        return Finding(name, "pass", "All dates between the first and the last price are sessions.")
    share = rows / max(table.rows.height, 1)
    named = ", ".join(placed.off_sessions[:3])
    return Finding(
        name,
        "warn",
        f"{share:.1%} of the rows are dated on days without a session, for example {named}. If the "
        "dates come from time stamps in another time zone, the others may be a day early.",
        share,
    )


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSignals:
    """Signals of a file on a market, before they are evaluated; the guard runs beside the backtest.

    ``cutoffs`` is None without a knowledge cutoff.
    """

    measured: MeasuredSignals
    config: Config
    market: Market
    placed: PlacedSignals
    guarding: Future[pl.DataFrame]
    cutoffs: pl.DataFrame | None
    trials: Mapping[str, Trial]

    @property
    def guard(self) -> pl.DataFrame:
        """Table of the look-ahead guard (`pipelines.results.evaluate_signals.guard_table`)."""
        return self.guarding.result()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MeasuredMarket:
    """The market that signals are measured on, and what is recorded of its data."""

    market: Market
    place: str  # where the data are, for messages and records
    tables: Mapping[str, tuple[int, int]]  # version and rows of each
    ids: Mapping[str, object]  # what identifies their content
    hazards: tuple[str, ...] = ()
    quarantine: pl.DataFrame | None = None


def lake_market(config: Config, progress: Progress, as_of: str | None = None) -> MeasuredMarket:
    """Read the market of a config from its lake."""
    lake = open_lake(config, progress.note)
    with progress.stage("prices"):
        versions = input_versions(lake, as_of)
        if as_of is not None:
            progress.note(describe_as_of(as_of, versions))
        tables = read_market_tables(lake, versions)
        hazards: list[str] = []
        if lake.exists("sources"):
            for source in lake.read("sources").iter_rows(named=True):
                hazards += json.loads(source["hazards"])
        read = {name: versions[name] for name in tables}
        return MeasuredMarket(
            market=build_market(tables, config, newest_tickers(lake, versions)),
            place=masked(canonical_location(lake.root)),
            tables={name: (version, tables[name].height) for name, version in read.items()},
            ids=lake.with_table_ids(read),
            hazards=tuple(hazards),
            quarantine=lake.read("quarantine") if lake.exists("quarantine") else None,
        )


def prepare_signals(
    table: SignalTable, config: Config, market_of: Callable[[Config], MeasuredMarket], locks: Locks
) -> PreparedSignals:
    """Place signals, known at the close of their date, on a market, and start their guard.

    ``market_of`` makes the market of the config, whose labels have a delay that can be traded.
    """
    config, added = with_tradable_delay(config)
    on = market_of(config)
    table = table.since(config.known_from)
    placed = place_signals(table, on.market, on.quarantine)
    _require_rows(table, placed, on.place)
    table, placed = leave_out_constant(table, placed)
    measured = _measured(table, config, on, notes=(*table.notes, *added, *on.market.notes))
    locks.lock_run(measured.folder)
    measured.save()
    horizon = config.label.horizon
    guarding = in_background(lambda: guard_table(table, placed, on.market, horizon))
    contents = measured.record.signals
    return PreparedSignals(
        measured=measured,
        config=config.model_copy(update={"models": {}}),  # so that no signal is taken for a model
        market=on.market,
        placed=placed,
        guarding=guarding,
        cutoffs=cutoff_table(table, placed, on.market, horizon) if placed.early else None,
        trials=signal_trials({name: contents[name] for name in placed.signals}, config),
    )


def measure_signals(prepared: PreparedSignals, progress: Progress) -> StoredEvaluation:
    """Evaluate signals side by side and store the evaluation; every book is recorded as a trial first."""
    measured, market, own, placed = prepared.measured, prepared.market, prepared.config, prepared.placed
    with progress.stage("backtest"):
        sessions = placed.sessions(market)
        tables, trials = evaluate_trials(
            {name: {0: signal_TN} for name, signal_TN in placed.signals.items()},
            market,
            own,
            run_id=measured.run_id,
            output=measured.folder.parent,
            tried=prepared.trials,
            sessions=sessions,
        )
        made = evaluation_record(own, market.panel, sessions, trials, git_commit())
        beside = {"rows": placed.rows, "guard": prepared.guard, "cutoffs": prepared.cutoffs}
        return recount(measured, store_evaluation(measured, made, {**tables, **beside}))


def with_tradable_delay(config: Config) -> tuple[Config, tuple[str, ...]]:
    """Return the config with a delay that can be traded first, and a note if it was added."""
    delays = config.label.delays
    tradable = min((delay for delay in delays if delay >= 1), default=1)
    others = tuple(delay for delay in delays if delay != tradable)
    label = config.label.model_copy(
        update={"delay": tradable, "extra_delays": others, "shorter_horizons": ()}
    )
    note = () if tradable in delays else ("Delay 1 was added, because delay 0 cannot be traded.",)
    return config.model_copy(update={"label": label}), note


def _require_rows(table: SignalTable, placed: PlacedSignals, place: str) -> None:
    for signal in table.signals:
        if placed.used(signal) == 0:
            own = placed.rows.filter((pl.col("signal") == signal) & (pl.col("rows") > 0))
            reasons = ", ".join(f"{count:,} {reason}" for _, reason, count in own.iter_rows())
            raise DataError(
                f"{table.path}: none of the {table.rows.height:,} rows of {signal} is a firm of the universe "
                f"on a session of {place} ({reasons or 'the file is empty'}); check the dates, the "
                "tickers and the section universe of the config."
            )


def _measured(
    table: SignalTable, config: Config, on: MeasuredMarket, *, notes: tuple[str, ...]
) -> MeasuredSignals:
    """The folder and the record of signals."""
    contents = {signal: table.content(signal) for signal in table.signals}
    run_id = signals_id(table.path, contents, config, on.ids)
    universe_TN = on.market.universe_TN
    made = SignalRecord(
        run_id=run_id,
        file=str(table.path),
        signals=contents,
        rows=table.rows.height,
        notes=notes,
        lake=on.place,
        tables=dict(on.tables),
        hazards=(*on.hazards, *on.market.panel.hazards),
        firms=float(universe_TN.sum(axis=1)[universe_TN.any(axis=1)].mean()),
        commit=git_commit(),
        libraries={name: installed(name) for name in ("numba", "numpy", "polars", "scipy")},
        made_at=dt.datetime.now(dt.UTC),
    )
    return MeasuredSignals(run_id, config, Path(config.output) / run_id, made)
