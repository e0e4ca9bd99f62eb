"""Signals of a user's own: measured like a model's forecasts, and compared with others and with models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import polars as pl

from peerglass.frames import answer, is_frame, page_table, price_rows, signal_table
from peerglass.runs import OUTPUT, Run
from pipelines.config.draft import book_sizes
from pipelines.config.load import check_config, load_config, merge_settings, parse_override
from pipelines.config.schema import Config
from pipelines.dataset.market import build_market
from pipelines.errors import ConfigError
from pipelines.evaluate_file import write_signal_report
from pipelines.format import IC, RATIO, number
from pipelines.progress import Progress
from pipelines.results import evaluate_signals, run_comparison
from pipelines.results.recount import recount
from pipelines.results.sweeps import Grid, Sweep, describe_sweep
from pipelines.run.evaluations import StoredEvaluation
from pipelines.run.locks import Locks
from pipelines.sweeps import sweep_signals

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from peerglass.frames import Frame, Table

    Market: TypeAlias = str | Path | Config | Frame
    Chart: TypeAlias = Literal["net_asset_value", "cumulative_ic", "quantiles", "ic_decay", "skill", "sharpe"]

_HAZARD = (
    "The prices come from a frame, so nothing is known of delistings, corrections and dates of publication."
)
_IN_MEMORY: Mapping[str, Any] = {  # of a config without files; what trains models is never used
    "name": "frame",
    "source": {"kind": "files", "prices": "frame"},
    "universe": {"min_history": 1},
    "folds": {"scheme": "expanding", "train": 1, "valid": 1, "test": 1, "embargo": 0},
    "models": {"zero": {}},
    "output": "data/runs",
}


@dataclass(frozen=True, eq=False)
class Backtest:
    """The measures of one or more signals. Made by :func:`backtest`.

    Attributes
    ----------
    config
        The settings: label, books and costs; of a config also its lake and universe.
    prepared
        The signals on their market, as the pipeline measures them.
    evaluation
        The stored tables.
    like
        The frame of the signals, whose kind the tables have.

    Examples
    --------
    >>> import peerglass
    >>> prices = peerglass.prices("tiny.yaml")
    >>> signal = prices.select("date", "ticker", reversal=-prices["total_return"])
    >>> found = peerglass.backtest(signal, "tiny.yaml", ["output=elsewhere"])
    >>> found.ladder["model"][0]
    'reversal'
    >>> found.report().name
    'report.html'
    """

    config: Config
    prepared: evaluate_signals.PreparedSignals
    evaluation: StoredEvaluation
    like: Frame

    def __repr__(self) -> str:
        return f"<peerglass backtest {self.id}: {', '.join(self.signals)}>"

    def _repr_html_(self) -> str:
        ladder = self.polars["ladder"].filter(delay=self.config.label.delay)
        deflated = dict(self.polars["significance"].select("model", "deflated_sharpe").reverse().iter_rows())
        bad, book = evaluate_signals.failed(self.polars["guard"]), next(iter(self.config.backtest.books))
        cells = [
            (
                row["model"],
                IC.text(row["ic"]),
                RATIO.text(row["ic_t"]),
                RATIO.text(row[f"{book}.sharpe_net"]),
                number(deflated[row["model"]], 2, unknown="?"),
                f"fails {bad[row['model']][0]}" if row["model"] in bad else "no look-ahead found",
            )
            for row in ladder.iter_rows(named=True)
        ]
        heading = ("signal", "IC", "t", f"Sharpe net, {book}", "deflated", "guard")
        said = " ".join([*self.notes, f"{self.trials} trials counted. Files: {self.folder}"])
        return page_table(f"Backtest {self.id}", heading, cells, said)

    @property
    def id(self) -> str:
        """Name under which the results are stored: `peerglass compare` and `runs` know it."""
        return self.prepared.measured.run_id

    @property
    def folder(self) -> Path:
        """Folder of the results."""
        return self.prepared.measured.folder

    @property
    def signals(self) -> tuple[str, ...]:
        """Names of the signals that were measured."""
        return tuple(self.prepared.placed.signals)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not measured, and other remarks, one sentence each."""
        return self.prepared.measured.record.notes

    @cached_property
    def polars(self) -> Mapping[str, pl.DataFrame]:
        """Name -> table, of polars whatever the signals came in."""
        stored = {
            path.stem: pl.read_parquet(path) for path in sorted(self.evaluation.folder.glob("*.parquet"))
        }
        return {**stored, **self.evaluation.recounted}

    @cached_property
    def tables(self) -> Mapping[str, Table]:
        """Name -> table, as in the evaluation of a run; the column ``model`` holds the name of the signal.

        Also ``rows`` (values left out, by reason) and ``guard`` (checks of each signal for look-ahead). They
        are of the kind of the frame of signals.
        """
        return {name: answer(rows, self.like) for name, rows in self.polars.items()}

    @property
    def ladder(self) -> Table:
        """One row per signal and delay: information coefficients, Sharpe ratios and turnover."""
        return self.tables["ladder"]

    @property
    def used(self) -> Mapping[str, int]:
        """Signal -> number of its values that were measured: those of firms in the universe."""
        return {name: self.prepared.placed.used(name) for name in self.signals}

    @property
    def left_out(self) -> Mapping[str, int]:
        """Signal -> number of its other values, which were ignored; the table ``rows`` gives the reasons."""
        known = pl.col("reason") != "missing value"
        every = dict(
            self.polars["rows"].filter(known).group_by("signal").agg(pl.col("rows").sum()).iter_rows()
        )
        return {name: every[name] - number for name, number in self.used.items()}

    @property
    def trials(self) -> int:
        """Number of trials that count against these signals at the time of the call, themselves included."""
        return int(self.polars["trials"]["trials"][0])

    def report(self) -> Path:
        """Write the tear sheet, one HTML file, as `peerglass backtest FILE` does, and return its path."""
        measured = self.prepared.measured
        with _locks() as locks:
            locks.lock_run(measured.folder)
            return write_signal_report(
                measured, recount(measured, self.evaluation), Progress(quiet=True)
            ).resolve()

    def sweep(self, grid: Mapping[str, Any], book: str | None = None) -> SignalSweep:
        """Measure a book of the signals in every combination of settings; each other book is a trial.

        Parameters
        ----------
        grid
            Setting -> values, or a single value. A setting is one of the book (``quantiles``), of the costs
            or the execution (``half_spread_bps``), or ``delay``, as in ``peerglass backtest --sweep``.
        book
            Name of the book. None: the first one.

        Raises
        ------
        ConfigError
            If a setting is not known, or a value is out of range.

        Examples
        --------
        >>> import peerglass
        >>> prices = peerglass.prices("tiny.yaml")
        >>> signal = prices.select("date", "ticker", reversal=-prices["total_return"])
        >>> found = peerglass.backtest(signal, "tiny.yaml", ["output=elsewhere"])
        >>> found.sweep({"half_spread_bps": [0, 20]}).table["half_spread_bps"].to_list()
        [0, 20]
        """
        named = [
            (name, tuple(given) if np.iterable(given) and not isinstance(given, str) else (given,))
            for name, given in grid.items()
        ]
        chosen = Grid.of(named, self.prepared.config.backtest, book)
        with _locks() as locks:
            locks.lock_run(self.folder)
            made = sweep_signals(self.prepared, chosen)
        return SignalSweep(answer(made.table, self.like), made)

    def plot(self, chart: Chart = "net_asset_value", *, book: str | None = None) -> go.Figure:
        """Draw a chart of the signals at the first delay that can be traded.

        Parameters
        ----------
        chart
            Name of the function of `peerglass.charts`.
        book
            Name of the book of ``net_asset_value`` and ``sharpe``. None: the first one.

        Examples
        --------
        >>> import peerglass
        >>> prices = peerglass.prices("tiny.yaml")
        >>> signal = prices.select("date", "ticker", reversal=-prices["total_return"])
        >>> found = peerglass.backtest(signal, "tiny.yaml", ["output=elsewhere"])
        >>> found.plot("quantiles").data[0].name
        'reversal'
        """
        from peerglass import charts

        delay, drawn = self.config.label.delay, getattr(charts, chart)
        if chart == "ic_decay":
            return drawn(self)
        if chart in ("net_asset_value", "sharpe"):
            return drawn(self, next(iter(self.config.backtest.books)) if book is None else book, delay)
        return drawn(self, delay)


@dataclass(frozen=True, eq=False)
class SignalSweep:
    """A book of signals in every combination of settings. Made by :meth:`Backtest.sweep`.

    Attributes
    ----------
    table
        One row per signal and combination: the settings, Sharpe ratios, return, risk, turnover and costs.
    stored
        The sweep as the pipeline keeps it.
    """

    table: Table
    stored: Sweep

    def __repr__(self) -> str:
        return describe_sweep(self.stored)

    def _repr_html_(self) -> str:
        axes = [axis.name for axis in self.stored.grid.axes]
        rows = self.stored.table.sort("sharpe_net", descending=True, nulls_last=True)
        cells = [
            (
                row["signal"],
                *(str(row[name]) for name in axes),
                RATIO.text(row["sharpe_net"]),
                number(row["deflated_sharpe"], 2, unknown="?"),
            )
            for row in rows.iter_rows(named=True)
        ]
        heading = ("signal", *axes, "Sharpe net", "deflated")
        return page_table("Sweep, the best first", heading, cells, " ".join(self.stored.sentences))

    @property
    def page(self) -> Path:
        """HTML page of the sweep."""
        return self.stored.page.resolve()


def backtest(signals: Frame, market: Market, overrides: Iterable[str] = ()) -> Backtest:
    """Measure signals before and after costs, as `peerglass backtest FILE` does.

    Every book of every signal is a trial, and is recorded in the ledger of the output folder before it is
    measured, with its returns afterwards. The tables are stored in a folder of their own beside the runs, so
    that `peerglass compare`, `runs` and `report` know them.

    Parameters
    ----------
    signals
        One signal or more: a long or wide frame of polars or pandas, or a series (`peerglass.frames`). A
        value dated t must have been known at the close of t; the table ``guard`` shows what betrays that it
        was not. Higher means better. Null and NaN mean no signal. Forecasts of a language or foundation model
        need its knowledge cutoff, as a column ``known_from`` or the setting ``known_from``: earlier ones are
        in no figure, and the tables ``cutoffs`` and ``guard`` compare both sides.
    market
        Path of a YAML config, or a loaded one, which gives lake, universe, label, books and costs; or a frame
        of prices, as for `peerglass.run_book`. On prices, every firm is in the universe while it has
        a price, the books fit the number of firms as those of `peerglass.init` do, other settings are the
        defaults of a config, results are stored below ``data/runs``, and the trials of all frames in that
        folder count against each other.
    overrides
        ``key=value`` settings as in ``--set``, such as ``label.horizon=5`` or ``output=elsewhere``; not for a
        config that is loaded already.

    Raises
    ------
    ConfigError
        If a setting is invalid.
    DataError
        If a column is missing or of the wrong type, a firm appears twice on a date, a value is infinite, a
        signal has no value in the universe or after its cutoff, all of them are constant on every date, or
        the lake is empty.

    Examples
    --------
    >>> import peerglass
    >>> prices = peerglass.prices("tiny.yaml")
    >>> signal = prices.select("date", "ticker", reversal=-prices["total_return"])
    >>> found = peerglass.backtest(signal, prices, ["output=elsewhere", "label.horizon=5"])
    >>> found.signals, found.config.label.horizon
    (('reversal',), 5)
    """
    table = signal_table(signals)
    config, market_of = _market_of(market, overrides)
    with _locks() as locks:
        prepared = evaluate_signals.prepare_signals(table, config, market_of, locks)
        evaluation = evaluate_signals.measure_signals(prepared, Progress(quiet=True))
    return Backtest(prepared.measured.config, prepared, evaluation, signals)


def _market_of(
    market: Market, overrides: Iterable[str]
) -> tuple[Config, Callable[[Config], evaluate_signals.MeasuredMarket]]:
    """Settings, and the function that makes their market from a lake or from a frame of prices."""
    if isinstance(market, Config) and list(overrides):
        raise ConfigError("overrides are for a config that is given by its path; this one is loaded already.")
    if isinstance(market, Config) or not is_frame(market):
        given = market if isinstance(market, Config) else load_config(Path(market), overrides, models=False)
        return given, lambda config: evaluate_signals.lake_market(config, Progress(quiet=True))
    rows = price_rows(market).sort("ticker", "date")
    settings: dict[str, Any] = dict(_IN_MEMORY)
    for override in overrides:
        settings = merge_settings(settings, parse_override(override))
    folder = Path(str(settings["output"])).absolute()
    place = str(folder / "frames")  # no such folder: it stands for the prices in the trial ledger
    settings |= {"output": str(folder), "lake": place}
    settings["source"] = {**settings["source"], "prices": place}
    traded = settings.get("backtest", {})
    if isinstance(traded, Mapping) and "books" not in traded:
        size = book_sizes(int(np.median(rows.drop_nulls("close").group_by("date").len()["len"].to_numpy())))
        long_short = {"kind": "quantile_long_short", "quantiles": size["quantiles"]}
        books = {"long_short": long_short, "long_only": {"kind": "top_k_long_only", "k": size["k"]}}
        settings["backtest"] = {**traded, "books": books}
    config = check_config(settings, origin="overrides", models=False)
    content = hashlib.sha256(rows.write_ipc(None).getvalue()).hexdigest()[:16]

    def of_frame(config: Config) -> evaluate_signals.MeasuredMarket:
        return evaluate_signals.MeasuredMarket(
            market=build_market({"prices": rows}, config),
            place="a frame of prices",
            tables={"prices": (0, rows.height)},
            ids={"prices": content},
            hazards=(_HAZARD,),
        )

    return config, of_frame


def _locks() -> Locks:
    return Locks(wait=True, notify=Progress(quiet=True).note)


@dataclass(frozen=True, eq=False)
class SignalComparison:
    """Signals and models side by side, with paired tests against the first one. Made by :func:`compare`.

    Attributes
    ----------
    figures
        One row per signal or model: mean IC and net Sharpe ratio with their intervals, and deflated Sharpe
        ratios, all on the dates that all of them have.
    tests
        One row per signal or model after the first: ``ic_difference`` to the first one, the mean of the daily
        differences, with its Newey-West t-statistic ``ic_t`` and interval; the same of the net Sharpe ratio
        by a paired bootstrap; and ``beats``, the answer: yes, no or unclear.
    differences
        Name -> what differs from the first one: data, settings, costs, books.
    """

    figures: Table
    tests: Table
    differences: Mapping[str, tuple[str, ...]]
    found: run_comparison.Comparison

    def __repr__(self) -> str:
        return run_comparison.describe_candidates(self.found)

    def _repr_html_(self) -> str:
        tests = {row["name"]: row for row in self.found.tests.iter_rows(named=True)}
        cells = []
        for row in self.found.figures.iter_rows(named=True):
            test = tests.get(row["name"])
            against = (
                ("", "", "")
                if test is None
                else (IC.with_sign.text(test["ic_difference"]), RATIO.text(test["ic_t"]), test["beats"])
            )
            cells.append((row["name"], IC.text(row["ic"]), RATIO.text(row["sharpe_net"]), *against))
        first, sessions = self.found.figures.select("name", "sessions").row(0)
        heading = ("", "IC", "Sharpe net", "IC difference", "t", "beats the first")
        return page_table(f"Against {first}, {sessions:,} sessions", heading, cells)


def compare(
    *candidates: Backtest | Run | Frame | str, market: Market | None = None, overrides: Iterable[str] = ()
) -> SignalComparison:
    """Compare signals and models with the first one, as `peerglass compare` does.

    Parameters
    ----------
    *candidates
        Backtests, with all of their signals; runs, with the model that leads on validation; names of runs in
        ``data/runs`` or ``RUN:MODEL``; or frames of signals, which are measured first (:func:`backtest`).
    market, overrides
        What frames are measured on, as for :func:`backtest`.

    Raises
    ------
    ConfigError
        If there are fewer than two signals and models, or a frame is given without a market.
    DataError
        If they have fewer than 20 dates in common.

    Notes
    -----
    ``ic_t`` is the mean of the daily differences of the ICs over its standard error by Newey and West (1987),
    with lags that cover overlapping labels. ICs of different horizons or delays are not compared.

    Examples
    --------
    >>> import peerglass
    >>> prices = peerglass.prices("tiny.yaml")
    >>> short = prices.select("date", "ticker", short=-prices["total_return"])
    >>> small = prices.select("date", "ticker", cheap=-prices["close"])
    >>> found = peerglass.compare(short, small, market="tiny.yaml", overrides=["output=elsewhere"])
    >>> found.tests.select("name", "reference").rows()
    [('cheap', 'short')]
    """
    if market is None and any(map(is_frame, candidates)):
        raise ConfigError("compare was given a frame: pass market=, a config or prices to measure it on.")
    settings = list(overrides)
    measured = [  # all of them first, because every trial counts against all
        backtest(one, market, settings) if market is not None and is_frame(one) else one for one in candidates
    ]
    opened: list[run_comparison.ComparedModel] = []
    for one in measured:
        if isinstance(one, Backtest):
            owner = one.prepared.measured
            opened += (
                replace(run_comparison.candidate(owner, one.evaluation, name), name=name)
                for name in one.signals
            )
        elif isinstance(one, Run):
            opened.append(run_comparison.open_candidate(str(one.folder), one.folder.parent))
        else:
            opened.append(run_comparison.open_candidate(str(one), OUTPUT))
    like = next((one.like for one in measured if isinstance(one, Backtest)), pl.DataFrame())
    names = [one.name for one in opened]
    opened = [
        replace(one, name=f"{one.name} ({place})") if names.count(one.name) > 1 else one
        for place, one in enumerate(opened, start=1)
    ]
    found = run_comparison.compare(opened)
    return SignalComparison(answer(found.figures, like), answer(found.tests, like), found.differences, found)
