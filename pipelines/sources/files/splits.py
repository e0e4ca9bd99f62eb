"""The dates as of which share counts and per-share amounts in a user's statements are stated."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

from pipelines.sources.files.reading import scale
from pipelines.sources.items import SHARE_COUNT, SPLIT_ITEMS

ShareCountsAsOf = Literal["period_end", "known_at", "today"]
_LATER_SPLITS: Final = "later_splits"


def fill_stated_on(frame: pl.DataFrame, rule: ShareCountsAsOf, prices: pl.DataFrame) -> pl.DataFrame:
    """Fill in ``stated_on`` of share counts and per-share amounts where the file lacks it.

    Parameters
    ----------
    frame
        Statement rows with ticker, period_end, known_at, item and value, and the file's ``stated_on`` if it
        has one. Dates may be text if one of them is unreadable.
    rule
        ``period_end``: the numbers include the splits up to the end of the period. ``known_at``: those up to
        the date of publication, as in filings. ``today``: the vendor restated its whole history; the splits
        in the prices after the end of the period are undone, so that the numbers are stated as of that date.
    prices
        The prices, with ``split_ratio`` if the file has it. Without it, nothing is undone; the prices are
        then split-adjusted as well.

    Returns
    -------
    DataFrame
        The rows with ``stated_on``; null for items that are neither counts nor per-share amounts.
    """
    of_split = pl.col("item").is_in(SPLIT_ITEMS)
    recorded = pl.col("stated_on") if "stated_on" in frame.columns else pl.lit(None)
    if rule == "today":
        frame = _undo_later_splits(frame, prices, of_split & recorded.is_null())
    day = pl.col("known_at" if rule == "known_at" else "period_end")
    is_text = pl.String in {
        frame.schema[c] for c in ("stated_on", day.meta.output_name()) if c in frame.columns
    }
    kind = pl.String if is_text else pl.Date
    stated = pl.coalesce(recorded.cast(kind), day.cast(kind))
    return frame.with_columns(pl.when(of_split).then(stated).alias("stated_on"))


def _undo_later_splits(frame: pl.DataFrame, prices: pl.DataFrame, affected: pl.Expr) -> pl.DataFrame:
    if "split_ratio" not in prices.columns:
        return frame
    ratio = pl.col("split_ratio").cast(pl.Float64, strict=False)
    splits = (
        prices.select("ticker", _day(prices, "date").alias("date"), ratio.alias("ratio"))
        .filter((pl.col("ratio") > 0) & (pl.col("ratio") != 1) & pl.col("date").is_not_null())
        .sort("ticker", "date")
        .with_columns(pl.col("ratio").cum_prod(reverse=True).over("ticker").alias(_LATER_SPLITS))
    )
    rows = frame.with_row_index("row").with_columns(_day(frame, "period_end").alias("end"))
    later = (
        rows.select("row", "ticker", "end")
        .drop_nulls()
        .sort("end")
        .join_asof(
            splits.sort("date").select("ticker", "date", _LATER_SPLITS),
            left_on="end",
            right_on="date",
            by="ticker",
            strategy="forward",
            allow_exact_matches=False,
        )
        .select("row", pl.col(_LATER_SPLITS).fill_null(1.0))
    )
    rows = rows.join(later, on="row", how="left", maintain_order="left")
    product = pl.col(_LATER_SPLITS).fill_null(1.0)
    factor = pl.when(pl.col("item") == SHARE_COUNT).then(1.0 / product).otherwise(product)
    rows = scale(rows, "value", pl.when(affected).then(factor).otherwise(1.0))
    return rows.select(frame.columns)


def _day(frame: pl.DataFrame, column: str) -> pl.Expr:
    """Return a column of dates, which may be stored as text, as dates."""
    value = pl.col(column)
    return value.str.to_date("%Y-%m-%d", strict=False) if frame.schema[column] == pl.String else value
