"""Building blocks of the lake's schemas: kinds of columns, patterns of names, and conditions of rules."""

from __future__ import annotations

from datetime import date
from typing import Final

import dataframely as dy
import polars as pl

RANGE_TOLERANCE: Final = 0.005
"""How far a close or an open may lie outside [low, high], relative to the bound: vendors round and adjust the
four prices separately. In the Nasdaq files 78 closes of 3.7 million are outside, 48 by more than this."""

EARLIEST: Final = date(1800, 1, 1)
LATEST: Final = date(2200, 1, 1)
"""First and last plausible date of a price. A date outside was read wrongly."""

TICKER_PATTERN: Final = r"^[A-Za-z0-9^=][A-Za-z0-9.^=_-]{0,31}$"
"""Letters, digits and ``. - _ ^ =``, as in BRK.B, BF-B, ^GSPC, 7203.T and EURUSD=X. A slash, angle bracket,
quote, ampersand or space is refused: a ticker from data must not become a path or HTML."""

INPUT_PATTERN: Final = r"^[a-z][a-z0-9_]{0,40}$"
"""Names of a user's own inputs, which become feature names."""

RUN_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Run ids, which name partition folders."""


def plain_ticker(column: str) -> pl.Expr:
    """True where a ticker matches `TICKER_PATTERN` and has no ``..`` in it."""
    return pl.col(column).str.contains(TICKER_PATTERN) & ~pl.col(column).str.contains("..", literal=True)


def finite(column: str) -> pl.Expr:
    """True where a number is neither NaN nor infinite."""
    return pl.col(column).is_finite()


def positive(column: str) -> pl.Expr:
    """True where a number is finite and above 0."""
    return finite(column) & (pl.col(column) > 0)


def measure(*, nullable: bool = False) -> dy.Float64:
    """Make a float column that admits NaN and infinities: named rules of the schema check its range."""
    return dy.Float64(nullable=nullable, allow_nan=True, allow_inf=True)


def key_date() -> dy.Date:
    """Make a date column of the primary key."""
    return dy.Date(primary_key=True)


def key_text() -> dy.String:
    """Make a text column of the primary key."""
    return dy.String(primary_key=True)


def within_range(column: str) -> pl.Expr:
    """Tell whether a price lies in ``[low (1 - tol), high (1 + tol)]``, tol = `RANGE_TOLERANCE`.

    True where the price or a bound is null, and where high < low, which has a rule of its own.
    """
    above = (pl.col(column) <= pl.col("high") * (1.0 + RANGE_TOLERANCE)).fill_null(value=True)
    below = (pl.col(column) >= pl.col("low") * (1.0 - RANGE_TOLERANCE)).fill_null(value=True)
    return (above & below) | (pl.col("high") < pl.col("low")).fill_null(value=False)


ADDED_LATER: Final = {"added_later": True}
"""``metadata`` of a nullable column that was added to a table after the first lakes were written. In older
tables the column is read as null (`pipelines.lake.storage`). A null in it does not enter a row's hash, so
rows that were quarantined or released earlier keep their hash."""


def named_rule(holds: pl.Expr) -> object:
    """Make a `dataframely.rule` from an expression. Its name is the attribute it is assigned to.

    A row for which the expression is null satisfies the rule.
    """
    return dy.rule()(lambda _: holds)
