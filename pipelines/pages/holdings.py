"""The largest positions and trades of every session as compact data, for the picker of the report."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
from markupsafe import Markup

from pipelines.pages.page import in_script

MAX_ROWS = 24_000  # rows of all sessions together: about 0.5 MB
MIN_NAMES = 6  # per session
MAX_NAMES = 60
_SCALE = 1e5  # weights, trades, profits and costs are whole numbers of a tenth of a basis point


@dataclass(frozen=True, slots=True)
class ShownHoldings:
    """What the report keeps of the positions of one book.

    ``rows`` are the firms kept, by date and falling weight; ``totals`` are sums over all firms, and ``kept``
    the number of rows. At most ``names_per_date`` are kept for their weight, and half as many for their
    trade.
    """

    rows: pl.DataFrame
    totals: pl.DataFrame
    names_per_date: int

    @property
    def complete(self) -> bool:
        """Whether every position is kept."""
        return bool((self.totals["kept"] == self.totals["names"]).all())


def select_holdings(positions: pl.DataFrame, max_rows: int = MAX_ROWS) -> ShownHoldings:
    """Keep the largest positions and trades of every session, about ``max_rows`` in all."""
    frame = positions.select(
        "date", "ticker", *(pl.col(name).cast(pl.Float64).fill_nan(0.0).fill_null(0.0) for name in _FIELDS)
    ).sort("date", pl.col("weight").abs(), "ticker", descending=[False, True, False])
    count = min(MAX_NAMES, max(MIN_NAMES, max_rows * 2 // (3 * max(frame["date"].n_unique(), 1))))
    ranks = {
        name: pl.col(name).abs().rank("ordinal", descending=True).over("date") for name in ("weight", "trade")
    }
    rows = frame.filter(
        (ranks["weight"] <= count) | ((ranks["trade"] <= count // 2) & (pl.col("trade") != 0))
    )
    totals = frame.group_by("date", maintain_order=True).agg(
        pl.len().alias("names"),
        pl.col("weight").abs().sum().alias("gross"),
        pl.col("weight").sum().alias("net"),
        pl.col("trade").abs().sum().alias("traded"),
        pl.col("pnl").sum(),
        pl.col("cost").sum(),
    )
    kept = rows.group_by("date").agg(pl.len().alias("kept"))
    return ShownHoldings(rows, totals.join(kept, on="date", how="left", maintain_order="left"), count)


_FIELDS = ("weight", "trade", "pnl", "cost")


def holdings_json(holdings: ShownHoldings) -> Markup:
    """Encode the holdings: numbers in tenths of a basis point, tickers by their place in a list.

    The page's script reads ``days`` (the first day since 1970, then steps), ``totals`` (one list per session:
    names, gross, net, traded, pnl, cost), ``kept`` (rows per session), ``tickers``, ``firm`` (place of each
    row's ticker) and one list per field. Names from the data stay data: the script writes them as text.
    """
    rows, totals = holdings.rows, holdings.totals
    tickers = rows["ticker"].unique().sort().to_list()
    places = {ticker: place for place, ticker in enumerate(tickers)}
    day = totals["date"].cast(pl.Date).to_physical().cast(pl.Int64)
    content = {
        "days": day.diff().fill_null(day.first()).to_list(),
        "totals": [
            [names, *(round(value * _SCALE) for value in values)]
            for names, *values in totals.select("names", "gross", "net", "traded", "pnl", "cost").iter_rows()
        ],
        "kept": totals["kept"].to_list(),
        "tickers": tickers,
        "firm": rows["ticker"].replace_strict(places, return_dtype=pl.Int32).to_list(),
        **{name: (rows[name] * _SCALE).round().cast(pl.Int64).to_list() for name in _FIELDS},
    }
    return in_script(content)
