"""The target weights of a configured book: its rule, and the inputs that the rule needs."""

from __future__ import annotations

from backtest.books.book import Book
from backtest.books.inputs import BookInputs, BookTargets
from backtest.books.registry import BOOKS
from backtest.books.schedules import every_session
from features.arrays import FloatArray
from pipelines.config.books import BookConfig, BookSection


def book_rule(book: BookConfig) -> Book:
    """Build the rule of a configured book."""
    return BOOKS[book.kind](**book.model_dump(exclude={"kind", *BookSection.model_fields}))


def book_targets(book: BookConfig, signal_TN: FloatArray) -> BookTargets:
    """Decide the target weights of a configured book.

    Parameters
    ----------
    book
        Settings of the book.
    signal_TN
        Signal at the close of t; NaN where there is none.

    Returns
    -------
    BookTargets
        Target weights of shape (T, N), known at the close of t, and notes.

    Raises
    ------
    ValueError
        If the book needs more firms than there are.
    """
    schedule = every_session(len(signal_TN), book.rebalance_every)
    return book_rule(book).targets(BookInputs(signal_TN, schedule))
