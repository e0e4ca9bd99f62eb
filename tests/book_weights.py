"""Target weights of books from a signal alone, for tests."""

from __future__ import annotations

from backtest.books.book import Book, BookInputs
from backtest.books.rules.quantile_long_short import QuantileLongShort
from backtest.books.rules.top_k_long_only import TopKLongOnly
from backtest.books.schedules import every_session
from features.arrays import AnyFloatArray, FloatArray


def weights(book: Book, signal_TN: AnyFloatArray, rebalance_every: int = 1) -> FloatArray:
    """Target weights of a book that needs nothing but the signal."""
    assert not book.needs
    return book.targets(BookInputs(signal_TN, every_session(len(signal_TN), rebalance_every))).target_TN


def quantile_long_short(signal_TN: AnyFloatArray, q: int = 5, rebalance_every: int = 1) -> FloatArray:
    """Target weights of the quantile long-short book."""
    return weights(QuantileLongShort(quantiles=q), signal_TN, rebalance_every)


def top_k_long_only(signal_TN: AnyFloatArray, k: int = 50, rebalance_every: int = 1) -> FloatArray:
    """Target weights of the top-k book."""
    return weights(TopKLongOnly(k=k), signal_TN, rebalance_every)
