"""Forecasts and signals in plain frames: their metrics, a book that trades them, and checks for look-ahead.

No config and no lake is needed. A frame is of polars or pandas, in one of two forms:

- **long**: columns ``date``, ``ticker`` and one of numbers; a pandas index of dates and tickers is the same;
- **wide**: a column ``date`` (or a pandas index of dates), and one column of numbers per firm.

A value dated t was known at the close of t. Null and NaN mean that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from backtest.accounts.accounting import account_book
from backtest.accounts.performance import BookMetrics, book_metrics
from backtest.accounts.result import BookResult
from backtest.books.decisions import book_targets
from backtest.forecasts import metrics
from backtest.forecasts.metrics import ForecastMetrics
from features.arrays import FloatArray, IntArray
from features.panel.holding import forward_returns
from features.panel.panel import PRICE_COLUMNS, Panel, build_panel
from features.panel.periods import periods_per_year
from pipelines.config.sections import BacktestConfig
from pipelines.dataset.market import Market
from pipelines.errors import ConfigError, DataError
from pipelines.results.books import book_costs, book_execution, book_market
from pipelines.results.evaluate_signals import PlacedSignals, guard_table, place_signals
from pipelines.results.signal_file import SignalTable

if TYPE_CHECKING:
    import pandas as pd

    Frame = pl.DataFrame | pd.DataFrame | pd.Series[float]

_KEY = ("date", "ticker")


@dataclass(frozen=True, eq=False)
class FrameBook:
    """A book that traded the signals of a frame. Made by `run_book`.

    Attributes
    ----------
    metrics
        Return, risk, drawdown, turnover and costs.
    daily
        date, return_net, return_gross, nav_net, turnover, cost: one row per session, fractions of NAV.
    weights
        date, ticker, weight: the target weights of each decision, without zeros.
    result
        The accounts, with one array per series.
    """

    metrics: BookMetrics
    daily: pl.DataFrame
    weights: pl.DataFrame
    result: BookResult


def forecast_metrics(
    forecast: Frame,
    prices: Frame | None = None,
    *,
    label: Frame | None = None,
    delay: int = 1,
    horizon: int = 1,
) -> ForecastMetrics:
    """Measure forecasts against the returns that followed: IC, rank IC, quantile returns and more.

    Parameters
    ----------
    forecast
        Forecasts or signals; higher is better.
    prices
        Closes, adjusted for splits and dividends. Labels are the returns from the close of ``t + delay`` to
        that of ``t + delay + horizon``.
    label
        Labels to use instead of prices, dated as the forecasts.
    delay, horizon
        Sessions between decision and trade, and sessions held.

    Returns
    -------
    ForecastMetrics
        As in the evaluation of a run.

    Raises
    ------
    DataError
        If a frame has neither form, or forecasts and prices have no date and ticker in common.
    ConfigError
        If not exactly one of prices and label is given, or delay or horizon is too small.

    Examples
    --------
    >>> import polars as pl, peerglass
    >>> forecast = pl.DataFrame({"date": ["2024-01-02"], "A": [0.1], "B": [0.3], "C": [0.2]})
    >>> label = pl.DataFrame({"date": ["2024-01-02"], "A": [0.01], "B": [0.05], "C": [0.02]})
    >>> dates = pl.col("date").str.to_date()
    >>> found = peerglass.forecast_metrics(forecast.with_columns(dates), label=label.with_columns(dates))
    >>> round(found.rank_ic, 6)
    1.0
    """
    if (prices is None) == (label is None):
        raise ConfigError("forecast_metrics needs prices or label: pass exactly one of them.")
    _check_sessions(horizon, delay)
    if label is not None:
        x, y = read_frame(forecast, "forecast"), read_frame(label, "label")
        dates, tickers = y["date"].unique().sort(), y["ticker"].unique().sort()
        arrays = [_grid(one, dates, tickers) for one in (x, y)]
        per_year = periods_per_year(dates.to_numpy().astype("datetime64[D]"))
    else:
        assert prices is not None
        market, placed = _place(forecast, prices, "forecast")
        arrays = [placed.signals["forecast"], forward_returns(market.panel, delay, horizon)]
        per_year = market.panel.periods_per_year
    try:
        return metrics.forecast_metrics(*arrays, horizon=horizon, periods_per_year=per_year)
    except ValueError as error:
        raise DataError(str(error)) from None


def run_book(
    signal: Frame,
    prices: Frame,
    book: str = "quantile_long_short",
    *,
    delay: int = 1,
    horizon: int = 1,
    costs: Mapping[str, Any] | None = None,
    **settings: Any,  # noqa: ANN401 (the settings of the book)
) -> FrameBook:
    """Trade signals by a book, and compute its accounts after costs.

    Parameters
    ----------
    signal
        Signals; higher is better. A firm without a signal is not held.
    prices
        Closes, adjusted for splits and dividends. A long frame may have the further columns of the lake's
        table ``prices`` (open, high, low, volume, split_ratio, dividend); then closes are as quoted.
    book
        Kind of book, as in ``backtest.books`` of a config.
    delay
        Sessions between decision and trade.
    horizon
        Sessions that a signal forecasts; decisions of a book with ``overlap=True`` are held for so long.
    costs
        Settings of ``backtest.costs``, such as ``{"half_spread_bps": 10}``. None: the defaults of a config.
    **settings
        Settings of the book, such as ``quantiles=10`` or ``rebalance_on="month_end"``.

    Raises
    ------
    ConfigError
        If a setting is not known or out of range, or the book needs what a frame does not hold.
    DataError
        If a frame has neither form, or signals and prices have no date and ticker in common.

    Examples
    --------
    >>> import datetime as dt, polars as pl, peerglass
    >>> days = [dt.date(2024, 1, 2), dt.date(2024, 1, 3), dt.date(2024, 1, 4)]
    >>> prices = pl.DataFrame({"date": days, "A": [10.0, 10.0, 11.0], "B": [10.0, 10.0, 9.0]})
    >>> signal = pl.DataFrame({"date": days, "A": [1.0, 1.0, 1.0], "B": [0.0, 0.0, 0.0]})
    >>> found = peerglass.run_book(signal, prices, quantiles=2)
    >>> round(found.metrics.total_return_gross, 2)  # bought and sold short on the second day
    0.2
    """
    _check_sessions(horizon, delay)
    market, placed = _place(signal, prices, "signal")
    panel, signal_TN = market.panel, placed.signals["signal"]
    try:
        books, paid = {"book": {"kind": book, **settings}}, {} if costs is None else costs
        configured = BacktestConfig.model_validate({"books": books, "costs": paid, "delay": delay})
        rule = configured.books["book"]
        if rule.needs_sectors:
            raise ConfigError(f"The book {book} needs sectors, which frames do not hold: run it by a config.")
        held = slice(int(np.flatnonzero(np.isfinite(signal_TN).any(axis=1))[0]), panel.n_sessions)
        targets = book_targets(rule, signal_TN, panel, held, horizon)
    except ValueError as error:
        raise ConfigError(f"The book {book}: {_first_problem(error)}") from None
    result = account_book(
        targets.target_TN,
        book_market(panel, held),
        book_costs(configured, panel, held),
        delay,
        execution=book_execution(configured, panel, held, delay),
    )
    dates = pl.Series("date", panel.dates_T[held].astype("datetime64[D]"), dtype=pl.Date)
    names = ("return_net", "return_gross", "nav_net", "turnover")
    series = {name: getattr(result, f"{name}_T") for name in names}
    daily = pl.DataFrame({"date": dates, **series, "cost": sum(result.costs_T.values())})
    t, n = np.nonzero(np.nan_to_num(targets.target_TN))
    weights = cells(panel, t + held.start, n, weight=targets.target_TN[t, n])
    return FrameBook(book_metrics(result), daily, weights, result)


def audit_signal(signal: Frame, prices: Frame, *, horizon: int = 1) -> pl.DataFrame:
    """Check a signal for what betrays that it was not known on its dates, as `peerglass backtest FILE` does.

    Parameters
    ----------
    signal
        The signal.
    prices
        Closes, adjusted for splits and dividends, or a long frame as for `run_book`.
    horizon
        Sessions that the signal forecasts.

    Returns
    -------
    polars.DataFrame
        signal, check, verdict, sentence, value: one row per check, the worst first.

    Raises
    ------
    DataError
        If a frame has neither form, or signal and prices have no date and ticker in common.
    ConfigError
        If horizon is below 1.

    Examples
    --------
    >>> import datetime as dt, numpy as np, polars as pl, peerglass
    >>> days = pl.Series("date", [dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in range(80)])
    >>> close = np.exp(np.random.default_rng(0).normal(0, 0.02, (80, 12)).cumsum(axis=0))
    >>> prices = pl.DataFrame(close, schema=[f"F{i:02}" for i in range(12)]).insert_column(0, days)
    >>> tomorrow = prices.with_columns(pl.exclude("date").shift(-1) / pl.exclude("date") - 1)
    >>> peerglass.audit_signal(tomorrow, prices)["verdict"][0]
    'fail'
    """
    _check_sessions(horizon)
    market, placed = _place(signal, prices, "signal")
    table = SignalTable(Path("frame"), read_frame(signal, "signal").rename({"value": "signal"}), ())
    return guard_table(table, placed, market, horizon)


def read_frame(frame: Frame, what: str) -> pl.DataFrame:
    """Read a frame of either form: date, ticker, value; sorted, each key once, without unknown values.

    Parameters
    ----------
    frame
        The frame.
    what
        What it holds, for messages.

    Raises
    ------
    DataError
        If it has neither form, a firm appears twice on a date, or a value is infinite.

    Examples
    --------
    >>> import datetime as dt
    >>> wide = pl.DataFrame({"date": [dt.date(2024, 1, 2)], "A": [1.0], "B": [None]})
    >>> read_frame(wide, "signal").rows()
    [(datetime.date(2024, 1, 2), 'A', 1.0)]
    """
    rows = _polars(frame, what)
    if "ticker" not in rows.columns:
        rows = rows.unpivot(index="date", variable_name="ticker")
    elif len(rows.columns) != 3:
        raise DataError(
            f"The {what} has the columns {', '.join(rows.columns)}; a long frame has date, ticker and one "
            "column of numbers."
        )
    return check_signals(rows.rename({rows.columns[-1]: "value"}), what).drop_nulls()


def cells(panel: Panel, session_E: IntArray, firm_E: IntArray, **columns: object) -> pl.DataFrame:
    """Columns of some cells of a panel, after their date and ticker."""
    dates_E = panel.dates_T[session_E].astype("datetime64[D]")
    named = {"date": dates_E, "ticker": np.asarray(panel.tickers_N)[firm_E], **columns}
    return pl.DataFrame(named, schema_overrides={"date": pl.Date, "ticker": pl.String})


def check_signals(frame: pl.DataFrame, what: str = "frame") -> pl.DataFrame:
    """Check a long frame: date, ticker and columns of numbers, as float64 with null where there is none.

    Raises
    ------
    DataError
        If a column is missing or of the wrong type, a firm appears twice on a date, or a value is infinite.

    Examples
    --------
    >>> import datetime as dt
    >>> frame = pl.DataFrame({"date": [dt.date(2024, 1, 2)], "ticker": ["A"], "size": [1]})
    >>> check_signals(frame).rows()
    [(datetime.date(2024, 1, 2), 'A', 1.0)]
    """
    if missing := [name for name in _KEY if name not in frame.columns]:
        raise DataError(
            f"The {what} has no column {missing[0]!r}; it needs date, ticker and one column per signal, and "
            f"has {', '.join(frame.columns)}."
        )
    names = [name for name in frame.columns if name not in _KEY]
    wrong = [name for name in names if not frame.schema[name].is_numeric()]
    if wrong or not names:
        problem = (
            f"a column {wrong[0]!r} of type {frame.schema[wrong[0]]}" if wrong else "no column of a signal"
        )
        raise DataError(f"The {what} has {problem}; signals are columns of numbers.")
    if not frame.schema["date"].is_temporal():
        raise DataError(f"The column date is of type {frame.schema['date']}; convert it to dates first.")
    signals = frame.select(
        pl.col("date").dt.date(),  # of its own time zone; a cast would give the day in UTC
        pl.col("ticker").cast(pl.String),
        pl.col(names).cast(pl.Float64).fill_nan(None),
    )
    twice = signals.filter(signals.select(_KEY).is_duplicated())
    if twice.height:
        day, ticker = twice.select(_KEY).row(0)
        raise DataError(f"{ticker} appears more than once on {day}; keep one row per firm and date.")
    for name in names:
        if signals[name].is_infinite().any():
            raise DataError(
                f"The signal {name!r} has an infinite value; use finite numbers, or null for none."
            )
    return signals.sort(_KEY)


def _polars(frame: Frame, what: str) -> pl.DataFrame:
    """Turn a frame into one of polars, with a pandas index as columns date and ticker."""
    import pandas as pd

    if isinstance(frame, pl.DataFrame):
        rows = frame
    elif not all(hasattr(frame, name) for name in ("index", "ndim")):
        raise DataError(f"The {what} is a {type(frame).__name__}; pass a frame of polars or pandas.")
    else:
        table = frame.to_frame("value") if isinstance(frame, pd.Series) else frame
        if "date" not in table.columns:
            levels = table.index.nlevels
            if levels > len(_KEY):
                raise DataError(f"The index of the {what} has {levels} levels; it needs dates and tickers.")
            if set(table.index.names) != set(_KEY):  # these are in either order
                table = table.rename_axis(list(_KEY[:levels]))
            table = table.reset_index()
        if not table.columns.is_unique:
            twice = table.columns[table.columns.duplicated()][0]
            raise DataError(f"The {what} has two columns {twice!r}; keep one.")
        rows = pl.from_pandas(table)
    if rows.schema.get("date") != pl.Date and not isinstance(rows.schema.get("date"), pl.Datetime):
        raise DataError(
            f"The {what} has no dates: give a column date, or a pandas index of dates, and convert texts by "
            "str.to_date."
        )
    return rows


def _panel(prices: Frame) -> Panel:
    """Build the panel of a frame of closes, or of the lake's columns of prices."""
    rows = _polars(prices, "prices")
    if "close" in rows.columns and "ticker" in rows.columns:
        absent = [pl.lit(None, pl.Float64).alias(name) for name in PRICE_COLUMNS if name not in rows.columns]
        rows = rows.with_columns(pl.col("date").dt.date(), pl.col("ticker").cast(pl.String), *absent)
    else:
        rows = read_frame(prices, "prices").rename({"value": "close"})
        rows = rows.with_columns(pl.lit(None, pl.Float64).alias(n) for n in PRICE_COLUMNS if n not in rows)
    wrong = rows.filter(pl.col("close") <= 0)
    if wrong.height:
        day, ticker, close = wrong.select("date", "ticker", "close").row(0)
        raise DataError(f"The price of {ticker} on {day} is {close:g}; give one above 0, or null for none.")
    try:
        return build_panel(rows.select(PRICE_COLUMNS))
    except ValueError as error:
        raise DataError(str(error)) from None


def _place(signal: Frame, prices: Frame, name: str) -> tuple[Market, PlacedSignals]:
    """Place a signal on the panel of the prices; every firm with a price is in the universe."""
    panel = _panel(prices)
    market = Market(panel=panel, universe_TN=panel.traded_TN, labels={}, notes=())
    table = SignalTable(Path("frame"), read_frame(signal, name).rename({"value": name}), ())
    placed = place_signals(table, market, None)
    if not placed.used(name):
        raise DataError(
            f"The {name} and the prices have no date and ticker in common: the prices have "
            f"{', '.join(panel.tickers_N[:3])} and others, from {panel.dates_T[0]} to {panel.dates_T[-1]}."
        )
    return market, placed


def _grid(rows: pl.DataFrame, dates: pl.Series, tickers: pl.Series) -> FloatArray:
    """Lay values out by date and ticker, NaN where there is none."""
    out_TN = np.full((len(dates), len(tickers)), np.nan)
    kept = rows.filter(pl.col("date").is_in(dates.implode()) & pl.col("ticker").is_in(tickers.implode()))
    out_TN[dates.search_sorted(kept["date"]), tickers.search_sorted(kept["ticker"])] = kept["value"]
    return out_TN


def _check_sessions(horizon: int, delay: int = 0) -> None:
    """Refuse numbers of sessions that no label can have."""
    if horizon < 1 or delay < 0:
        raise ConfigError(f"The delay is {delay} and the horizon {horizon}; at least 0 and 1 are needed.")


def _first_problem(error: ValueError) -> str:
    """The sentence of an error; of several, the first."""
    problems = getattr(error, "errors", None)
    if problems is None:
        return str(error)
    first = problems()[0]
    place = ".".join(str(part) for part in first["loc"][1:] if part != "book")
    known = ", ".join(first.get("ctx", {}).get("known", ()))
    problem = first["msg"] + (f"; choose among {known}" if known else "")
    return f"{place}: {problem}." if place else f"{problem}."
