"""The section on delistings with unknown return: each book under three assumptions on that return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from pipelines.pages.tables import Column, number, percent, table, text
from pipelines.pages.theme import Style

_COLUMNS = (
    Column("model", "model", text, numeric=False),
    Column("book", "book", text, numeric=False),
    Column(
        "side",
        "side",
        text,
        numeric=False,
        hint="long and short: a book of only the long or only the short weights",
    ),
    Column("paid_out", "positions", number(0), hint="positions in firms delisted for an unknown reason"),
    *(
        Column(f"sharpe_net_{suffix}", title, number(2), group="net Sharpe at delisting return")
        for suffix, title in (("0", "0%"), ("30", "\N{MINUS SIGN}30%"), ("55", "\N{MINUS SIGN}55%"))
    ),
    *(
        Column(
            f"annual_return_net_{suffix}", title, percent(1), group="net return % / year at delisting return"
        )
        for suffix, title in (("0", "0%"), ("30", "\N{MINUS SIGN}30%"), ("55", "\N{MINUS SIGN}55%"))
    ),
)


def delisting_blocks(frame: pl.DataFrame | None, styles: Mapping[str, Style]) -> Iterator[str]:
    """Show the table of every book and side; nothing if no firm was delisted for an unknown reason."""
    if frame is None or frame.is_empty():
        return
    yield (
        "<p>Some firms were delisted with no recorded delisting return and no known reason. The table "
        "shows each book if their delisting return is 0%, \N{MINUS SIGN}30% (performance-related "
        "delistings on NYSE and AMEX, Shumway 1997) or \N{MINUS SIGN}55% (the same on Nasdaq, Shumway and "
        "Warther 1999). Forecasts and weights do not change.</p>"
    )
    yield table(frame, _COLUMNS, label="Books by the return of unknown delistings", styles=styles)
