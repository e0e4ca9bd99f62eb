"""What the configured books want over a test, and the accounts that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backtest.accounting import run_book
from backtest.books import BOOKS, equal_weighted
from backtest.costs import CostModel
from backtest.result import BookResult
from features.panel.panel import Panel
from pipelines.config.schema import BookConfig, Config
from pipelines.dataset.build import Dataset
from pipelines.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
Benchmarks = dict[tuple[int, int, int, bytes], BookResult]
_FREE = CostModel(half_spread_bps=0.0, commission_bps=0.0, borrow_bps_per_year=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class BookOrders:
    """The weights of one book, from the first forecast to the session after the last one is traded.

    Attributes
    ----------
    name
        Key in ``backtest.books``.
    long_only
        Whether the book holds no shorts.
    target_TN
        Weights decided on the sessions of ``held``; a row of NaN is no decision.
    held
        Sessions of the panel.
    delay
        Sessions between decision and trade.
    costs
        Rates.
    """

    name: str
    long_only: bool
    target_TN: FloatArray
    held: slice
    delay: int
    costs: CostModel

    def run(
        self,
        panel: Panel,
        *,
        target_TN: FloatArray | None = None,
        total_return_index_TN: FloatArray | None = None,
        keep_ledger: bool = False,
    ) -> BookResult:
        """Compute the accounts, with other weights (of ``held``) or another index (of the panel) if given."""
        return self._account(
            panel,
            self.target_TN if target_TN is None else target_TN,
            panel.total_return_index_TN if total_return_index_TN is None else total_return_index_TN,
            self.costs,
            keep_ledger=keep_ledger,
        )

    def benchmark(self, dataset: Dataset, known: Benchmarks) -> BookResult | None:
        """Hold the universe in equal weights, decided and traded when this long-only book is, free of costs.

        Models that decide on the same sessions share it in ``known``. None for a book with shorts.
        """
        if not self.long_only:
            return None
        key = (self.delay, self.held.start, self.held.stop, np.isnan(self.target_TN[:, 0]).tobytes())
        if key not in known:
            target_TN = equal_weighted(dataset.universe_TN[self.held], self.target_TN)
            known[key] = self._account(dataset.panel, target_TN, dataset.panel.total_return_index_TN, _FREE)
        return known[key]

    def _account(
        self,
        panel: Panel,
        target_TN: FloatArray,
        total_return_index_TN: FloatArray,
        costs: CostModel,
        *,
        keep_ledger: bool = False,
    ) -> BookResult:
        held = self.held
        traded_TN, delisted_TN = panel.traded_TN[held], panel.delisted_TN[held]
        return run_book(
            target_TN,
            total_return_index_TN[held],
            traded_TN,
            costs,
            delay=self.delay,
            delisted_TN=delisted_TN,
            keep_ledger=keep_ledger,
        )


def book_orders(
    signal_TN: FloatArray, rows_T: npt.NDArray[np.intp], dataset: Dataset, config: Config, delay: int
) -> Iterator[BookOrders]:
    """Build the target weights of every configured book from the forecasts on the sessions ``rows_T``.

    Raises
    ------
    ConfigError
        If a book needs more firms than there are.
    """
    settings = config.backtest
    execution = settings.delay if settings.delay is not None else delay
    last = min(int(rows_T[-1]) + execution + config.label.horizon + 1, dataset.panel.n_sessions)
    held, costs = slice(int(rows_T[0]), last), CostModel(**settings.costs.model_dump())
    for name, book in settings.books.items():
        try:
            target_TN = _target(book, signal_TN[held])
        except ValueError as error:
            raise ConfigError(f"backtest.books.{name}: {error}") from None
        yield BookOrders(name, BOOKS[book.kind].long_only, target_TN, held, execution, costs)


def _target(book: BookConfig, signal_TN: FloatArray) -> FloatArray:
    size = book.quantiles if book.kind == "quantile_long_short" else book.k
    return BOOKS[book.kind].build(signal_TN, size, book.rebalance_every)
