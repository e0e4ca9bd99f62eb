"""The books by kind. A new book is one file in this folder and one line here."""

from __future__ import annotations

from backtest.books.book import Book
from backtest.books.optimised import Optimised
from backtest.books.quantile_long_short import QuantileLongShort
from backtest.books.rank_weighted import RankWeighted
from backtest.books.top_k_drop import TopKDrop
from backtest.books.top_k_long_only import TopKLongOnly

BOOKS: dict[str, type[Book]] = {
    QuantileLongShort.kind: QuantileLongShort,
    TopKLongOnly.kind: TopKLongOnly,
    TopKDrop.kind: TopKDrop,
    RankWeighted.kind: RankWeighted,
    Optimised.kind: Optimised,
}
"""Kind -> class of the rule."""
