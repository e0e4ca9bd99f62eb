"""Splits and dividends from what vendors give in their place: factors, adjusted closes and returns.

A ratio of two neighbouring factors or adjusted closes contains only what happened between the two sessions.
What a vendor changed later, because of a later split, is in both and cancels, so nothing looks ahead.
"""

from __future__ import annotations

import math
from typing import Final

import polars as pl

from pipelines.sources.files.layouts import VENDOR

_LEAST_SPLIT: Final = math.log(1.2)
"""Smallest factor, up or down and as a logarithm, between two closes that is read as a split where the file
has no splits. A smaller one is a dividend."""
_PRECISION: Final = 1e-6
"""Relative error of prices in single precision, and of their ratio."""
_DIGITS: Final = 8


def with_splits_and_dividends(prices: pl.DataFrame) -> pl.DataFrame:
    """Replace a vendor's columns by ``split_ratio`` and ``dividend``, where the file does not have these.

    ``split_ratio`` is the previous ``price_factor`` over the session's own. The growth of what a holder has
    is that of ``adjusted_close``, or ``1 + total_return``. What it has beyond the change of the close and the
    split is paid out: ``dividend = close * (growth * previous close / (close * split ratio) - 1)``. With
    ``price_return`` it is ``(total return - price return) * previous close / split ratio``. Differences that
    the rounding of the file explains are no dividends. Without a factor, a growth of 1.2 times that of the
    close, or more, is a split.

    Parameters
    ----------
    prices
        date, ticker, close, and some of `pipelines.sources.files.layouts.VENDOR`; numbers are floats, and
        text only if a value is unreadable.

    Returns
    -------
    DataFrame
        The rows without the vendor's columns, by ticker and date.
    """
    given = [name for name in VENDOR if name in prices.columns]
    if not given:
        return prices
    unread = [name for name in ("close", *given) if not prices.schema[name].is_numeric()]
    prices = prices.with_columns(pl.col(unread).cast(pl.Float64, strict=False).name.prefix("_"))
    rows = prices.sort("ticker", "date").with_columns(
        pl.col(f"_{name}" if name in unread else name).shift().over("ticker").alias(f"previous_{name}")
        for name in ("close", *given)
    )

    def value(name: str) -> pl.Expr:
        return pl.col(f"_{name}" if name in unread else name)

    close, before = value("close"), pl.col("previous_close")
    if "split_ratio" not in rows.columns and "price_factor" in given:
        ratio = pl.col("previous_price_factor") / value("price_factor")
        rows = rows.with_columns(split_ratio=_or_one(ratio.round_sig_figs(_DIGITS)))
    if "dividend" not in rows.columns and {"total_return", "price_return"} <= {*given}:
        split = pl.col("split_ratio") if "split_ratio" in rows.columns else pl.lit(1.0)
        paid = value("total_return") - value("price_return")
        is_paid = paid > 2.5 * _unit(rows, "total_return")
        rows = rows.with_columns(_or_zero(is_paid, paid * before / split))
    elif "dividend" not in rows.columns and ("adjusted_close" in given or "total_return" in given):
        unit = _unit(rows, "close")
        rounding = unit / close + unit / before + _PRECISION
        if "adjusted_close" in given:
            growth = value("adjusted_close") / pl.col("previous_adjusted_close")
            unit = _unit(rows, "adjusted_close")
            rounding += unit / value("adjusted_close") + unit / pl.col("previous_adjusted_close")
        else:
            growth = 1.0 + value("total_return")
            rounding += 2.0 * _unit(rows, "total_return")
        beyond = growth * before / close
        if "split_ratio" not in rows.columns:
            is_split = beyond.log().abs() >= _LEAST_SPLIT
            rows = rows.with_columns(split_ratio=_or_one(pl.when(is_split).then(beyond)))
        paid = beyond / pl.col("split_ratio") - 1.0
        rows = rows.with_columns(_or_zero((paid > rounding) & paid.is_finite(), paid * close))
    return rows.select(
        pl.exclude(*given, *(f"previous_{c}" for c in ("close", *given)), *(f"_{c}" for c in unread))
    )


def _or_one(ratio: pl.Expr) -> pl.Expr:
    """Return a ratio, or 1 where it is unknown."""
    return pl.when(ratio.is_finite() & (ratio > 0)).then(ratio).otherwise(1.0)


def _or_zero(is_paid: pl.Expr, paid: pl.Expr) -> pl.Expr:
    """Return the dividend: 0 where nothing is paid, or nothing is known."""
    return pl.when(is_paid).then(paid).otherwise(0.0).fill_null(0.0).alias("dividend")


def _unit(rows: pl.DataFrame, column: str) -> float:
    """Return half of the last decimal place in which a column is written."""
    numbers = rows[column].cast(pl.Float64, strict=False).drop_nulls()
    for digits in range(2, _DIGITS):
        scaled = numbers * 10.0**digits
        written = (scaled - scaled.round()).abs() <= 1e-6
        if numbers.is_empty() or float(written.sum()) >= 0.999 * len(numbers):
            return float(0.5 * 10.0**-digits)
    return 0.0
