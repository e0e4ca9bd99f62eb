"""As of which day share counts and amounts per share of a user's statements are stated."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

from pipelines.sources.files.reading import scale
from pipelines.sources.items import SHARE_COUNT, SPLIT_ITEMS

ShareCountsAsOf = Literal["period_end", "known_at", "today"]
_LATER: Final = "later_splits"


def state_counts(frame: pl.DataFrame, rule: ShareCountsAsOf, prices: pl.DataFrame) -> pl.DataFrame:
    """Fill ``stated_on`` of share counts and amounts per share where the file does not say it.

    Parameters
    ----------
    frame
        Statement rows with ticker, period_end, known_at, item and value, the file's ``stated_on`` if it has
        one. Dates may be text where one of them cannot be read.
    rule
        ``period_end``: the numbers contain the splits up to the period's end. ``known_at``: those up to the
        day of publication, as in filings. ``today``: the vendor restated all of its history; the splits of
        the prices after the period's end are taken off, so that the numbers are stated as of it.
    prices
        The prices, with ``split_ratio`` if the file has it. Without, nothing is taken off: then the prices
        are adjusted for splits as well.

    Returns
    -------
    DataFrame
        The rows with ``stated_on``, null for other items.
    """
    of_split = pl.col("item").is_in(SPLIT_ITEMS)
    told = pl.col("stated_on") if "stated_on" in frame.columns else pl.lit(None)
    if rule == "today":
        frame = _take_off_later_splits(frame, prices, of_split & told.is_null())
    day = pl.col("known_at" if rule == "known_at" else "period_end")
    text = pl.String in {frame.schema[c] for c in ("stated_on", day.meta.output_name()) if c in frame.columns}
    kind = pl.String if text else pl.Date
    stated = pl.coalesce(told.cast(kind), day.cast(kind))
    return frame.with_columns(pl.when(of_split).then(stated).alias("stated_on"))


def _take_off_later_splits(frame: pl.DataFrame, prices: pl.DataFrame, wanted: pl.Expr) -> pl.DataFrame:
    if "split_ratio" not in prices.columns:
        return frame
    ratio = pl.col("split_ratio").cast(pl.Float64, strict=False)
    splits = (
        prices.select("ticker", _day(prices, "date").alias("date"), ratio.alias("ratio"))
        .filter((pl.col("ratio") > 0) & (pl.col("ratio") != 1) & pl.col("date").is_not_null())
        .sort("ticker", "date")
        .with_columns(pl.col("ratio").cum_prod(reverse=True).over("ticker").alias(_LATER))
    )
    rows = frame.with_row_index("row").with_columns(_day(frame, "period_end").alias("end"))
    later = (
        rows.select("row", "ticker", "end")
        .drop_nulls()
        .sort("end")
        .join_asof(
            splits.sort("date").select("ticker", "date", _LATER),
            left_on="end",
            right_on="date",
            by="ticker",
            strategy="forward",
            allow_exact_matches=False,
        )
        .select("row", pl.col(_LATER).fill_null(1.0))
    )
    rows = rows.join(later, on="row", how="left", maintain_order="left")
    product = pl.col(_LATER).fill_null(1.0)
    factor = pl.when(pl.col("item") == SHARE_COUNT).then(1.0 / product).otherwise(product)
    rows = scale(rows, "value", pl.when(wanted).then(factor).otherwise(1.0))
    return rows.select(frame.columns)


def _day(frame: pl.DataFrame, column: str) -> pl.Expr:
    """Read a column of dates that may be text."""
    value = pl.col(column)
    return value.str.to_date("%Y-%m-%d", strict=False) if frame.schema[column] == pl.String else value
