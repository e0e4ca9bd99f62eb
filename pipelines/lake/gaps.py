"""The table ``gaps``: splits and dividends of missing prices."""

from typing import Final

import polars as pl

DATE_RULES: Final = ("closed_session", "sparse_date")
"""Rules whose rows are of no session. Such a row is no gap, and in the table only for its events."""

_KEY: Final = ["date", "ticker"]


def with_events_of_gaps(prices: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Add the splits and dividends of missing prices to the firm's next price.

    The dividend is then per share after the splits in between.

    >>> days = pl.date_range(pl.date(2024, 1, 2), pl.date(2024, 1, 4), eager=True)
    >>> prices = pl.DataFrame({"date": days[::2], "ticker": "A", "split_ratio": 1.0, "dividend": 0.0})
    >>> gaps = pl.DataFrame({"date": days[1:2], "ticker": "A", "split_ratio": 2.0, "dividend": 0.5})
    >>> with_events_of_gaps(prices, gaps).select("split_ratio", "dividend").rows()
    [(1.0, 0.0), (2.0, 0.5)]
    """
    ratio, paid = pl.col("split_ratio").fill_null(1.0), pl.col("dividend").fill_null(0.0)
    events = gaps.select(*_KEY, ratio, paid).filter(
        (pl.col("split_ratio") != 1.0) | (pl.col("dividend") != 0.0)
    )
    if events.is_empty():
        return prices
    of_firms = prices.join(events, on="ticker", how="semi").select(*_KEY, next_date="date").sort("date")
    waiting = events.join(prices, on=_KEY, how="anti").sort("date")
    waiting = waiting.join_asof(of_firms, on="date", by="ticker", strategy="forward", check_sortedness=False)
    split = pl.col("split_ratio")
    after = split.product() / split.cum_prod()  # the splits after each dividend
    found = waiting.group_by("ticker", date="next_date", maintain_order=True).agg(
        gap_split=split.product(), gap_dividend=(pl.col("dividend") / after).sum()
    )
    return (
        prices.join(found, on=_KEY, how="left", maintain_order="left")
        .with_columns(
            split_ratio=split * pl.col("gap_split").fill_null(1.0),
            dividend=pl.col("dividend") + (pl.col("gap_dividend") / split).fill_null(0.0),
        )
        .drop("gap_split", "gap_dividend")
    )
