"""Forecasts, signals and prices in plain frames: features, metrics, a book that trades, and a check.

No config and no lake is needed (`peerglass.frames` says what a frame may look like).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
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
from features.arrays import FloatArray
from features.library.channels import CHANNELS
from features.library.sets import characteristics_of, default_characteristics
from features.panel.holding import forward_returns
from features.panel.periods import periods_per_year
from peerglass.frames import answer, cells, page_table, price_panel, read_frame, signal_table
from pipelines.config.sections import BacktestConfig
from pipelines.dataset.market import Market
from pipelines.errors import ConfigError, DataError
from pipelines.format import COUNT, IC, PERCENT, RATIO, Kind, abbreviate
from pipelines.results.books import book_costs, book_execution, book_market
from pipelines.results.evaluate import label_overlap
from pipelines.results.evaluate_signals import PlacedSignals, guard_table, place_signals
from pipelines.results.signal_file import SignalTable

if TYPE_CHECKING:
    from peerglass.frames import Frame, Table

SETS = ("peerglass158", "peerglass", "alpha158")
"""Sets of features that `features` knows, as ``features.set`` of a config."""


def features(prices: Frame, wanted: str | Iterable[str] | Mapping[str, str] = "peerglass158") -> Table:
    """Compute features of prices, known at the close of each date, neither ranked nor scaled.

    Parameters
    ----------
    prices
        Closes, adjusted for splits and dividends. A long frame may have the further columns of the lake's
        table ``prices`` (open, high, low, volume, split_ratio, dividend); then closes are as quoted.
    wanted
        What to compute: the name of a set (``peerglass``, ``alpha158``, or ``peerglass158`` for both), of a
        feature of the library, or an expression such as ``mean(close, 5) / close``; several of them; or a
        mapping of names to expressions.

    Returns
    -------
    polars or pandas frame
        date, ticker and one column of float32 per feature: one row for each firm and session with a price,
        sorted by ticker and date. An expression without a name is a column of its text. Null (in pandas NaN)
        where a feature is not known. Of a set, what needs columns that the prices do not have is left out,
        with a warning.

    Raises
    ------
    ConfigError
        If a name is not known, an expression is wrong, or a named feature needs a column that is missing.
    DataError
        If the frame has neither form.

    Examples
    --------
    >>> import datetime as dt, polars as pl, peerglass
    >>> days = [dt.date(2024, 1, 2), dt.date(2024, 1, 3)]
    >>> prices = pl.DataFrame({"date": days, "A": [10.0, 11.0], "B": [10.0, 9.0]})
    >>> found = peerglass.features(prices, {"rise": "close / delay(close, 1) - 1"})
    >>> found.filter(pl.col("rise") > 0).select("date", "ticker").rows()
    [(datetime.date(2024, 1, 3), 'A')]
    """
    panel = price_panel(prices)
    named = dict(wanted) if isinstance(wanted, Mapping) else {}
    listed = [wanted] if isinstance(wanted, str) else list(wanted)
    names, of_sets, columns = list[str](), list[str](), dict[str, str]()
    known = {**characteristics_of(), **CHANNELS}
    for one in listed:
        if one in named or one in known:
            names.append(one)
        elif one in SETS:
            of_sets += default_characteristics(one, {})
        elif one.isidentifier():
            raise ConfigError(
                f"There is no feature or set {one!r}; the sets are {', '.join(SETS)}, 'peerglass features' "
                "lists the features, and an expression is a formula such as 'mean(close, 5) / close'."
            )
        else:
            columns[f"expression{len(columns)}"] = one
            names.append(f"expression{len(columns) - 1}")
    try:
        registry = characteristics_of({**named, **columns})
        for name in names:
            if name not in registry:
                registry[name] = CHANNELS[name]
        usable, _ = registry.available(panel, dict.fromkeys(of_sets))
        if left := sorted(set(of_sets) - set(usable)):
            warnings.warn(
                f"{len(left)} of {len(set(of_sets))} features need columns that the prices do not have: "
                f"{abbreviate(left, 5)}.",
                stacklevel=2,
            )
        chosen = list(dict.fromkeys([*usable, *names]))
        value_TNK = registry.compute(panel, chosen)
    except ValueError as error:
        raise ConfigError(str(error).removesuffix(".") + ".") from None
    n, t = np.nonzero(panel.traded_TN.T)
    values = {columns.get(name, name): value_TNK[t, n, k] for k, name in enumerate(chosen)}
    rows = cells(panel, t, n, **values).with_columns(pl.col(pl.Float32).fill_nan(None))
    return answer(rows, prices, index=True)


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
    daily: Table
    weights: Table
    result: BookResult

    def _repr_html_(self) -> str:
        found = self.metrics
        shown = {
            "return net, % a year": PERCENT.text(found.annual_return_net),
            "volatility, %": PERCENT.text(found.annual_volatility_net),
            "Sharpe net": RATIO.text(found.sharpe_net),
            "drawdown, %": PERCENT.text(found.max_drawdown_net),
            "turnover, %": PERCENT.text(found.turnover),
        }
        return page_table("A book of a frame, after costs", list(shown), [list(shown.values())])


@dataclass(frozen=True, slots=True, eq=False)
class FrameMetrics(ForecastMetrics):
    """The metrics of the forecasts of a frame. Made by `forecast_metrics`."""

    def _repr_html_(self) -> str:
        titles = ("dates", "IC", "t", "rank IC", "t", "ICIR")
        kinds = (COUNT, IC, RATIO, IC, RATIO, RATIO)
        values = (self.n_dates, self.ic, self.ic_t, self.rank_ic, self.rank_ic_t, self.icir)
        cell = [kind.text(value) for kind, value in zip(kinds, values, strict=True)]
        quantiles = ", ".join(Kind(1, 1e4).text(value) for value in self.quantile_returns)
        note = f"Mean return of each fifth of the forecasts, the lowest first, bps: {quantiles}."
        return page_table("Forecasts of a frame, before costs", titles, [cell], note)


def forecast_metrics(
    forecast: Frame,
    prices: Frame | None = None,
    *,
    label: Frame | None = None,
    delay: int = 1,
    horizon: int = 1,
) -> FrameMetrics:
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
        Sessions between decision and trade, and sessions held; with ``label``, weekdays.

    Returns
    -------
    FrameMetrics
        The attributes of `backtest.forecasts.metrics.ForecastMetrics`, as in the evaluation of a run.

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
        forecast_TN, label_TN = (_grid(one, dates, tickers) for one in (x, y))
        dates_T = dates.to_numpy().astype("datetime64[D]")
        session_T, per_year = np.busday_count("1970-01-01", dates_T), periods_per_year(dates_T)
    else:
        assert prices is not None
        market, placed = _place(forecast, prices, "forecast")
        panel, forecast_TN = market.panel, placed.signals["forecast"]
        label_TN = np.where(market.universe_TN, forward_returns(panel, delay, horizon), np.nan)
        session_T, per_year = np.arange(panel.n_sessions), panel.periods_per_year
    rows_T = np.flatnonzero(np.isfinite(forecast_TN).any(axis=1))
    span = slice(rows_T[0], rows_T[-1] + 1) if len(rows_T) else slice(0)
    within_TN = np.full_like(label_TN, np.nan)  # dates before the first forecast and after the last lack none
    within_TN[span] = label_TN[span]
    overlap = label_overlap(np.unique(session_T[rows_T]), horizon)
    try:
        found = metrics.forecast_metrics(forecast_TN, within_TN, horizon=overlap, periods_per_year=per_year)
    except ValueError as error:
        raise DataError(str(error)) from None
    return FrameMetrics(*(getattr(found, one.name) for one in fields(found)))


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
    of_days, of_firms = (answer(rows, signal, index=True) for rows in (daily, weights))
    return FrameBook(book_metrics(result), of_days, of_firms, result)


def audit_signal(signal: Frame, prices: Frame, *, horizon: int = 1) -> Table:
    """Check signals for values that were not known on their dates, as `peerglass backtest FILE` does.

    Parameters
    ----------
    signal
        One signal, or several as the columns of a long frame. With a column ``known_from``, the skill on both
        sides of the knowledge cutoff is compared.
    prices
        Closes, adjusted for splits and dividends, or a long frame as for `run_book`.
    horizon
        Sessions that the signal forecasts.

    Returns
    -------
    polars or pandas frame
        signal, check, verdict, sentence, value: one row per check, the worst of each signal first.

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
    table = signal_table(signal, "signal")
    market, placed = _placed(table, prices, "signal")
    return answer(guard_table(table, placed, market, horizon), signal)


def _place(signal: Frame, prices: Frame, name: str) -> tuple[Market, PlacedSignals]:
    """Place one signal on the panel of the prices."""
    rows = read_frame(signal, name).rename({"value": name})
    return _placed(SignalTable(Path("frame"), rows, ()), prices, name)


def _placed(table: SignalTable, prices: Frame, name: str) -> tuple[Market, PlacedSignals]:
    """Place signals on the panel of the prices; every firm with a price is in the universe."""
    panel = price_panel(prices)
    market = Market(panel=panel, universe_TN=panel.traded_TN, labels={}, notes=())
    placed = place_signals(table, market, None)
    if not all(map(placed.used, table.signals)):
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
