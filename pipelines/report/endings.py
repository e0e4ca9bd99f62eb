"""The section on endings for unknown reasons: what each book would be worth if they paid less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from pipelines.report.tables import Column, number, percent, table, text
from pipelines.report.theme import Style

_COLUMNS = (
    Column("model", "model", text, numeric=False),
    Column("book", "book", text, numeric=False),
    Column("side", "side", text, numeric=False, hint="a side is a book of its own with that side's weights"),
    Column("paid_out", "paid out", number(0), hint="positions that ended for an unknown reason"),
    *(
        Column(f"sharpe_net_{suffix}", title, number(2), group="net Sharpe if they pay")
        for suffix, title in (("0", "0%"), ("30", "-30%"), ("55", "-55%"))
    ),
    *(
        Column(f"annual_return_net_{suffix}", title, percent(1), group="net return % a year if they pay")
        for suffix, title in (("0", "0%"), ("30", "-30%"), ("55", "-55%"))
    ),
)


def ending_blocks(frame: pl.DataFrame | None, styles: Mapping[str, Style]) -> Iterator[str]:
    """Give the table of every book and side; nothing where no firm ended for an unknown reason."""
    if frame is None or frame.is_empty():
        return
    yield (
        "<p>Some firms stopped trading with no recorded delisting return and no known reason. The table "
        "shows each book if they had paid the last price, 30% less (delistings for performance on NYSE and "
        "AMEX, Shumway 1997) or 55% less (on Nasdaq, Shumway and Warther 1999). Forecasts and weights are "
        "unchanged.</p>"
    )
    yield table(frame, _COLUMNS, label="Books by the return of unknown endings", styles=styles)
