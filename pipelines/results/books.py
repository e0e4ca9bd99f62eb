"""The configured books: target weights over the sessions that are traded, and the accounts of the trades."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backtest.accounts.accounting import account_book
from backtest.accounts.execution import Execution
from backtest.accounts.market import BookMarket, prepare_market
from backtest.accounts.performance import BookMetrics
from backtest.accounts.result import BookResult
from backtest.books.book import BookNote, equal_weighted
from backtest.books.decisions import book_targets
from backtest.costs import CostModel
from features.arrays import FloatArray
from features.panel.derived import cached
from features.panel.holding import earned_index, tradable
from features.panel.panel import Panel
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.errors import ConfigError
from pipelines.results.trading import book_costs, book_execution

Benchmarks = dict[tuple[int, int, int, bytes], BookResult]
_FREE = CostModel()


@dataclass(frozen=True, slots=True, eq=False)
class BookOrders:
    """Target weights of one book, from the first forecast to the end of the last holding period.

    ``target_TN`` is decided at the close of each session of ``held``; a row of NaN means no decision.
    ``notes`` are decisions that could not be made as configured.
    """

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

    def benchmark(self, dataset: Market, cache: Benchmarks) -> BookResult | None:
        """Run the accounting of the equal-weighted universe without costs, on this book's sessions and delay.

        Its orders are filled at the book's price of execution, and without a participation cap.

        None for a book with short positions. Models that decide on the same sessions share the result in
        ``cache``.
        """
        if not self.long_only:
            return None
        key = (self.delay, self.held.start, self.held.stop, np.isnan(self.target_TN[:, 0]).tobytes())
        if key not in cache:
            cache[key] = account_book(
                equal_weighted(dataset.universe_TN[self.held], self.target_TN),
                book_market(dataset.panel, self.held),
                _FREE,
                self.delay,
                execution=Execution(self.execution.price_over_close_TN),
            )
        return cache[key]


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
    """Build the target weights of every configured book from forecasts on the sessions ``rows_T``.

    Orders are traded after the label's ``delay`` unless the config sets an execution delay.
    """
    settings, panel = config.backtest, dataset.panel
    delay = settings.delay if settings.delay is not None else delay
    held = slice(int(rows_T[0]), min(int(rows_T[-1]) + delay + config.label.horizon + 1, panel.n_sessions))
    costs, execution = book_costs(settings, panel, held), book_execution(settings, panel, held, delay)
    for name, book in settings.books.items():
        try:
            targets = book_targets(book, signal_TN, dataset.panel, held, config.label.horizon)
        except ValueError as error:
            raise ConfigError(f"backtest.books.{name}: {error}") from None
        long_only = book.long_only
        decided = (name, long_only, targets.target_TN, held, delay)
        yield BookOrders(*decided, costs, execution, len(rows_T), targets.notes)


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredBook:
    """One book of one model at one delay of the label.

    ``excess_T`` is the net return over the risk-free rate; NaN before the first trade and after ruin.
    """

    model: str
    delay: int
    orders: BookOrders
    result: BookResult
    metrics: BookMetrics
    excess_T: FloatArray
    rate_T: FloatArray
