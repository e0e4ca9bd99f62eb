"""The book of a night on its page: trades by size with cost and limit, and the positions that stay."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from pipelines.nightly.book.describe import total
from pipelines.nightly.result import NightResult
from pipelines.report.tables import Column, number, percent, signed, table, text

SHOWN = 60
"""Trades in the page; the file book.csv has all of them."""


def trade_blocks(result: NightResult) -> Iterator[str]:
    """Show the trades, largest first."""
    if result.book.is_empty():
        return
    book = result.book
    trades = book.filter(pl.col("trade") != 0).sort(pl.col("trade").abs(), descending=True)
    held = book.filter(pl.col("weight") != 0)
    tiles = {
        "trades": f"{trades.height:,}",
        "turnover": f"{0.5 * total(trades['trade'].abs()):.1%}",
        "expected cost": f"{1e4 * total(trades['expected_cost']):.1f} bps",
        "positions": f"{held.height:,}",
        "gross": f"{total(held['weight'].abs()):.1%}",
        "net": f"{total(held['weight']):+.1%}".replace("-", "\N{MINUS SIGN}"),
    }
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles.items())
    yield f'<dl class="tiles">{cells}</dl>'
    if trades.is_empty():
        yield "<p>Nothing is traded.</p>"
        return
    shown = trades.head(SHOWN).with_columns(
        side=pl.when(pl.col("trade") > 0).then(pl.lit("buy")).otherwise(pl.lit("sell")),
        cost=1e4 * pl.col("expected_cost"),
    )
    columns = (
        Column("ticker", "ticker", text, numeric=False),
        Column("side", "side", text, numeric=False),
        Column("trade", "trade", _signed_percent),
        Column("previous", "from", percent(2)),
        Column("weight", "to", percent(2)),
        Column("cost", "cost", number(2), hint="expected cost of the whole order, in bps of NAV"),
        Column("fill_sessions", "sessions", number(0), hint="sessions that the order takes"),
        Column("bound", "limit", text, numeric=False, hint="what holds the order or the weight back"),
    )
    yield f'<div class="trades">{table(shown, columns, label="Trades")}</div>'
    more = (
        f" These are the {SHOWN} largest of {trades.height:,}; book.csv has all."
        if trades.height > SHOWN
        else ""
    )
    yield (
        "<p>Trades and weights (from, to) are in % of NAV, expected costs of the whole order in bps of NAV. "
        f"Sessions counts how long the order takes.{more}</p>"
    )


def _signed_percent(value: float) -> str:
    return signed(2)(100.0 * value)
