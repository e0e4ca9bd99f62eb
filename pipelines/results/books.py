"""The configured books: target weights, the costs and the execution of their trades, and their accounts.

Everything that a trade of session s uses is known at the close of s-1: estimates, volumes and volatilities
are lagged by one session here. Sessions after the last one of the data use what is known at its close.

Shape suffixes: T sessions, N firms; S: T + 1 sessions, the last of which is the session after the data.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.accounts.accounting import account_book
from backtest.accounts.execution import NEEDED, Execution, ParticipationCap, at_price_limit, price_over_close
from backtest.accounts.market import BookMarket, prepare_market
from backtest.accounts.performance import ActiveMetrics, BookMetrics, active_metrics, counted_sessions
from backtest.accounts.result import BookResult
from backtest.books.book import BookNote, in_proportion
from backtest.books.decisions import book_targets
from backtest.costs import CostModel, Rate, SquareRootImpact, corwin_schultz, roll, volatility_per_root_volume
from backtest.look_ahead.returns import session_returns
from features.arithmetic.rolling import carry, rolling_mean, rolling_std
from features.arrays import BoolArray, FloatArray
from features.panel.asof import SHARE_COUNT
from features.panel.cleaned import as_known, in_currency_of, quoted_unit
from features.panel.derived import cached, column
from features.panel.holding import earned_index, tradable
from features.panel.panel import Panel
from pipelines.columns import table
from pipelines.config.schema import Config
from pipelines.config.sections import (
    BacktestConfig,
    BenchmarkConfig,
    CostsConfig,
    ExecutionConfig,
    SpreadEstimator,
)
from pipelines.dataset.backtest_files import benchmark_closes, read_firm_file, require_closes
from pipelines.dataset.market import Market
from pipelines.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, eq=False)
class BookOrders:
    """Target weights of a book through the last holding period; a NaN row of ``target_TN`` is no decision."""

    name: str
    long_only: bool
    target_TN: FloatArray
    held: slice
    delay: int
    costs: CostModel
    execution: Execution
    signal_dates: int
    notes: tuple[BookNote, ...] = ()

    @property
    def decisions(self) -> int:
        """Number of dates on which the book decided."""
        return int(np.count_nonzero(~np.isnan(self.target_TN[:, 0])))

    def run(
        self,
        panel: Panel,
        *,
        target_TN: FloatArray | None = None,
        market: BookMarket | None = None,
        keep_ledger: bool = False,
    ) -> BookResult:
        """Run the accounts, with other weights or another market on the same sessions if they are given."""
        return account_book(
            self.target_TN if target_TN is None else target_TN,
            book_market(panel, self.held) if market is None else market,
            self.costs,
            self.delay,
            execution=self.execution,
            keep_ledger=keep_ledger,
        )


class Benchmarks:
    """What the books of a config are measured against; files are read once, and accounts of weights kept."""

    def __init__(self, market: Market, settings: Mapping[str, BenchmarkConfig]) -> None:
        self._settings, self._market = settings, market
        self._closes = benchmark_closes(settings, market.panel)
        self._accounts: dict[tuple[Any, ...], FloatArray] = {}
        self._rows: list[dict[str, Any]] = []
        self._series: list[pl.DataFrame] = []

    def measure(
        self, keys: Mapping[str, Any], orders: BookOrders, result: BookResult, metrics: BookMetrics
    ) -> ActiveMetrics | None:
        """Measure a book against every benchmark; return what a long-only book is to the first one."""
        dates, every = self._market.panel.dates_T[orders.held], []
        for name, benchmark in self._settings.items():
            return_T = self._returns(name, benchmark, orders, counted_sessions(result))
            every.append(active_metrics(result, return_T))
            own = {**keys, "benchmark": name}
            self._rows.append({**asdict(metrics), **asdict(every[-1]), **own, "returns": benchmark.basis})
            nav = pl.DataFrame({"date": dates, "nav_benchmark": np.cumprod(1.0 + return_T)})
            self._series.append(nav.with_columns(pl.lit(value).alias(key) for key, value in own.items()))
        return every[0] if every and orders.long_only else None

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of all books that were measured; none without benchmarks."""
        if not self._rows:
            return {}
        series = table("benchmark_series").frame(pl.concat(self._series))
        return {"benchmarks": table("benchmarks").of(self._rows), "benchmark_series": series}

    def _returns(
        self, name: str, benchmark: BenchmarkConfig, orders: BookOrders, counted: slice
    ) -> FloatArray:
        """Return of a benchmark on the sessions of a book, shape (T,), from close to close.

        A ticker or an index is bought at the close of the book's first trade: until then it returns 0.
        """
        if benchmark.weights is not None:
            return self._of_weights(name, benchmark, orders)
        close_T, first, start = self._closes[name], counted.start, orders.held.start
        require_closes(name, close_T, self._market.panel, slice(start + first, start + counted.stop))
        held_T = close_T[orders.held]
        return_T = np.zeros(len(held_T))
        return_T[first + 1 :] = held_T[first + 1 :] / held_T[first:-1] - 1.0
        return return_T

    def _of_weights(self, name: str, benchmark: BenchmarkConfig, orders: BookOrders) -> FloatArray:
        """Account for a portfolio of the universe that decides and trades as the book does, without costs."""
        held, target_TN = orders.held, orders.target_TN
        key = (name, orders.delay, held.start, held.stop, np.isnan(target_TN[:, 0]).tobytes())
        if key not in self._accounts:
            size_TN: FloatArray | BoolArray = self._market.universe_TN[held]
            if benchmark.weights == "cap_weighted":
                size_TN = np.where(size_TN, np.nan_to_num(self._market_equity(name)[held]), 0.0)
            self._accounts[key] = account_book(
                in_proportion(size_TN, target_TN),
                book_market(self._market.panel, held),
                CostModel(),
                orders.delay,
                execution=Execution(orders.execution.price_over_close_TN),
            ).return_gross_T
        return self._accounts[key]

    def _market_equity(self, name: str) -> FloatArray:
        if f"statements:{SHARE_COUNT}" not in self._market.panel.fields:
            raise DataError(
                f"The benchmark {name} is cap_weighted, but the data have no share counts (the item "
                f"{SHARE_COUNT} of fundamentals); ingest them, or use equal_weighted or a file."
            )
        from features.library.characteristics.amounts import market_equity

        panel = self._market.panel
        return market_equity(panel) * quoted_unit(panel, ~panel.wrong.price_K)


def book_market(panel: Panel, held: slice, total_return_index_TN: FloatArray | None = None) -> BookMarket:
    """Prepare the market of a range of sessions, once for the panel's own total-return index."""
    traded_TN, delisted_TN = tradable(panel)[held], panel.delisted_TN[held]
    if total_return_index_TN is not None:
        return prepare_market(earned_index(panel, total_return_index_TN)[held], traded_TN, delisted_TN)
    index_TN = cached(panel, earned_index, lambda: earned_index(panel))[held]
    key = (book_market, held.start, held.stop)
    return cached(panel, key, lambda: prepare_market(index_TN, traded_TN, delisted_TN))


def book_orders(
    signal_TN: FloatArray, rows_T: npt.NDArray[np.intp], dataset: Market, config: Config, delay: int
) -> Iterator[BookOrders]:
    """Build the target weights of every configured book from forecasts on the sessions ``rows_T``."""
    settings, panel = config.backtest, dataset.panel
    delay = settings.delay if settings.delay is not None else delay
    held = slice(int(rows_T[0]), min(int(rows_T[-1]) + delay + config.label.horizon + 1, panel.n_sessions))
    costs, execution = book_costs(settings, panel, held), book_execution(settings, panel, held, delay)
    for name, book in settings.books.items():
        try:
            targets = book_targets(book, signal_TN, panel, held, config.label.horizon)
        except ValueError as error:
            raise ConfigError(f"backtest.books.{name}: {error}") from None
        terms = (held, delay, costs, execution, len(rows_T))
        yield BookOrders(name, book.long_only, targets.target_TN, *terms, targets.notes)


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredBook:
    """One book of one model at one delay of the label; ``excess_T`` is its net return over the rate."""

    model: str
    delay: int
    orders: BookOrders
    result: BookResult
    metrics: BookMetrics
    excess_T: FloatArray
    rate_T: FloatArray


SPREAD_WINDOWS: dict[SpreadEstimator, int] = {"corwin_schultz": 21, "roll": 63}


def book_costs(settings: BacktestConfig, panel: Panel, held: slice) -> CostModel:
    """Build the cost terms of the sessions ``held``, which may end after the last session of the panel.

    The capital is in the currency of the first one (`features.panel.cleaned.in_currency_of`).
    """
    costs, capital, half_spread, impact = (
        settings.costs,
        settings.capital,
        settings.costs.half_spread_bps,
        None,
    )
    if capital is not None and costs.impact_coefficient:
        quoted = in_currency_of(panel, held.start or 0)
        rate_TN = rows_of(_impact_rates(quoted, settings.execution.window), panel, held)
        impact = SquareRootImpact(costs.impact_coefficient, capital, rate_TN)
    spread: Rate
    if isinstance(half_spread, float):
        spread = half_spread
    else:
        window = costs.spread_window or SPREAD_WINDOWS[half_spread]
        spread_SN = cached(panel, (half_spread, window), lambda: _estimated(half_spread, window, panel))
        spread = rows_of(spread_SN, panel, held)
    return CostModel(
        half_spread_bps=spread,
        commission_bps=costs.commission_bps,
        commission_minimum=costs.commission_min / (capital or 1.0),
        borrow_bps_per_year=_borrow_fees(costs, panel),
        financing_bps_per_year=costs.financing_bps_per_year,
        impact=impact,
        periods_per_year=panel.periods_per_year,
    )


def book_execution(settings: BacktestConfig, panel: Panel, held: slice, delay: int) -> Execution:
    """Build price of execution and participation cap of ``held``; after the data, the price is the close.

    The capital is in the currency of the first session (`features.panel.cleaned.in_currency_of`).
    """
    execution = settings.execution
    if execution.price != "close" and delay < 1:
        raise ConfigError(
            f"backtest.execution.price is {execution.price}, but the delay is 0: a decision at a close can "
            "be traded in the next session at the earliest. Set backtest.delay to 1 or more."
        )
    bars = {"open": panel.open_TN, "high": panel.high_TN, "low": panel.low_TN}
    missing = [name for name in NEEDED[execution.price] if bars[name] is None]
    if missing:
        raise DataError(
            f"backtest.execution.price is {execution.price}, but the data have no "
            f"{' and no '.join(missing)}: use close, or ingest prices with these columns."
        )

    def fill() -> FloatArray:
        prices = {f"{name}_TN": bars[name] for name in NEEDED[execution.price]}
        fill_TN = price_over_close(execution.price, panel.close_TN, **prices)
        assert fill_TN is not None, "orders are not filled at the close"
        return np.concatenate([fill_TN, np.ones_like(fill_TN[:1])])

    fill_SN, cap, lot_TN = None, None, None
    quoted = in_currency_of(panel, held.start or 0)
    if execution.price != "close":
        fill_SN = cached(panel, ("price over close", execution.price), fill)
    if settings.capital is not None and execution.participation_cap is not None:
        volume_TN = rows_of(dollar_volumes(quoted, execution.window), panel, held)
        cap = ParticipationCap(execution.participation_cap, settings.capital, volume_TN)
    if settings.capital is not None and execution.lot is not None:
        with np.errstate(divide="ignore", invalid="ignore"):  # the last known unit counts after the data
            unit_TN = carry(quoted.raw_close_TN / earned_index(panel))
        lot_TN = rows_of(execution.lot / settings.capital * unit_TN, panel, held)
    return Execution(
        None if fill_SN is None else rows_of(fill_SN, panel, held),
        cap,
        None if execution.unfilled is None else execution.unfilled == "carry",
        _price_limits(execution, panel, fill_SN, held),
        lot_TN,
    )


def _price_limits(
    execution: ExecutionConfig, panel: Panel, fill_SN: FloatArray | None, held: slice
) -> FloatArray | None:
    """Where the price of execution is at a limit, by the last close in today's shares, less the dividend."""
    if execution.price_limit is None and execution.price_limit_file is None:
        return None
    limit_TN = np.full(panel.close_TN.shape, execution.price_limit or np.nan)
    if execution.price_limit_file is not None:
        rows = read_firm_file(execution.price_limit_file, "backtest.execution.price_limit_file", panel)
        column = {ticker: n for n, ticker in enumerate(panel.tickers_N)}
        in_order = rows.drop_nulls("firm").sort("from_date", nulls_last=False, maintain_order=True)
        for ticker, since, limit in in_order.select("firm", "from_date", "value").iter_rows():
            days_T = panel.dates_T
            first = 0 if since is None else int(np.searchsorted(days_T, np.datetime64(since)))
            limit_TN[first:, column[ticker]] = limit
    raw_TN, wrong = as_known(panel, lambda known: known.raw_close_TN, hindsight=True), panel.wrong
    splits_TN, reference_TN = panel.statements.splits_TN, np.full_like(raw_TN, np.nan)
    unsplit_TN = raw_TN * splits_TN
    reinvested_TN = panel.close_TN / unsplit_TN  # what dividends have added to the adjusted close
    dividend_TN = raw_TN[1:] * (reinvested_TN[1:] / carry(reinvested_TN)[:-1] - 1.0)
    reference_TN[1:] = carry(unsplit_TN)[:-1] / splits_TN[1:] - dividend_TN
    reference_TN[reference_TN <= 0.0] = np.nan  # a dividend above the price
    reference_TN[wrong.session_K, wrong.firm_K] = np.nan
    price_TN = raw_TN if fill_SN is None else raw_TN * fill_SN[:-1]
    bar_TN = at_price_limit(price_TN, reference_TN, limit_TN)
    return rows_of(np.concatenate([bar_TN, np.zeros_like(bar_TN[:1])]), panel, held)


def rows_of(x_SN: FloatArray, panel: Panel, held: slice) -> FloatArray:
    """Return the rows of the sessions ``held``; sessions after the last row of ``x_SN`` repeat it."""
    start = held.start or 0
    stop = panel.n_sessions if held.stop is None else held.stop
    if stop <= len(x_SN):
        return x_SN[start:stop]
    return x_SN[np.minimum(np.arange(start, stop), len(x_SN) - 1)]


def _known_before(x_TN: FloatArray) -> FloatArray:
    """Lag a series by one session, shape (T + 1, N): row s is what is known before session s."""
    return np.concatenate([np.full_like(x_TN[:1], np.nan), x_TN])


def _estimated(estimator: SpreadEstimator, window: int, panel: Panel) -> FloatArray:
    if estimator != "roll" and (panel.high_TN is None or panel.low_TN is None):
        raise DataError(
            "backtest.costs.half_spread_bps is corwin_schultz, but the data have no high or no low: use roll "
            "or a number."
        )

    def spread(panel: Panel) -> FloatArray:
        if estimator == "roll":
            return roll(panel.close_TN, window)
        return corwin_schultz(column(panel, "high"), column(panel, "low"), panel.close_TN, window)

    spread_TN = as_known(panel, spread)
    unknown_TN = np.isnan(spread_TN)
    some_T, median_T1 = ~unknown_TN.all(axis=1), np.full((len(spread_TN), 1), np.nan)
    median_T1[some_T, 0] = np.nanmedian(spread_TN[some_T], axis=1)
    return _known_before(1e4 * np.where(unknown_TN, median_T1, spread_TN))


def dollar_volumes(panel: Panel, window: int) -> FloatArray:
    """Mean dollar volume of the window before s, at least half known, shape (T + 1, N)."""
    if panel.volume_TN is None:
        raise DataError(
            "backtest.capital is set, but the data have no volume, which market impact and the participation "
            "cap are measured against: set backtest.capital to null, or ingest volumes."
        )

    def mean(panel: Panel) -> FloatArray:
        return rolling_mean(panel.raw_close_TN * column(panel, "volume"), window, (window + 1) // 2)

    return cached(panel, ("dollar volume before", window), lambda: _known_before(as_known(panel, mean)))


def _impact_rates(panel: Panel, window: int) -> FloatArray:
    """Volatility over the root of dollar volume, both of the sessions before s, shape (T + 1, N)."""
    volume_SN = dollar_volumes(panel, window)

    def volatility(panel: Panel) -> FloatArray:
        return_TN = session_returns(panel.total_return_index_TN)
        return_TN[~panel.traded_TN] = np.nan
        return rolling_std(return_TN, window, (window + 1) // 2)

    def rates() -> FloatArray:
        return volatility_per_root_volume(_known_before(as_known(panel, volatility)), volume_SN)

    return cached(panel, ("impact rate", window), rates)


def _borrow_fees(costs: CostsConfig, panel: Panel) -> Rate:
    """Borrow fee in basis points per year; shape (1, N) if a file gives fees of single firms."""
    if costs.borrow_file is None:
        return costs.borrow_bps_per_year
    fees = read_firm_file(costs.borrow_file, "backtest.costs.borrow_file", panel)
    if fees["ticker"].is_duplicated().any():
        twice = fees.filter(fees["ticker"].is_duplicated())["ticker"][0]
        raise DataError(f"{costs.borrow_file} has several fees for {twice}; keep one row per ticker.")
    by_ticker = dict(fees.select("firm", "value").iter_rows())
    return np.array([[by_ticker.get(ticker, costs.borrow_bps_per_year) for ticker in panel.tickers_N]])
