"""The book of a night on its page: its limits, and the trades by size with cost and what holds them back."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from pipelines.nightly.book.describe import amount, total
from pipelines.nightly.result import NightResult
from pipelines.pages.tables import Column, number, percent, signed, table, text

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
        "expected cost, bps": f"{1e4 * total(trades['expected_cost']):.1f}",
        "positions": f"{held.height:,}",
        "gross": f"{total(held['weight'].abs()):.1%}",
        "net": f"{total(held['weight']):+.1%}".replace("-", "\N{MINUS SIGN}"),
    }
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles.items())
    yield f'<dl class="tiles">{cells}</dl>'
    yield limit_block(result)
    if trades.is_empty():
        yield "<p>Nothing is traded.</p>"
        return
    shown = trades.head(SHOWN).with_columns(
        side=pl.when(pl.col("trade") > 0).then(pl.lit("buy")).otherwise(pl.lit("sell")),
        cost=1e4 * pl.col("expected_cost"),
    )
    columns = [
        Column("ticker", "ticker", text, numeric=False),
        Column("side", "side", text, numeric=False),
        Column("trade", "trade, %", _signed_percent),
        Column("previous", "from, %", percent(2)),
        Column("weight", "to, %", percent(2)),
        Column("cost", "cost, bps", number(2), hint="expected cost of the whole order, in bps of NAV"),
    ]
    slow = shown.filter(pl.col("fill_sessions") > 1).height > 0
    if slow:
        columns.append(Column("fill_sessions", "sessions", number(0), hint="sessions that the order takes"))
    if shown["bound"].null_count() < shown.height:
        columns.append(Column("bound", "held back by", text, numeric=False, hint="what holds it back"))
    yield f'<div class="trades">{table(shown, columns, label="Trades")}</div>'
    more = (
        f" These are the {SHOWN} largest of {trades.height:,}; book.csv has all."
        if trades.height > SHOWN
        else ""
    )
    pace = "Sessions counts how long the order takes." if slow else "Every order takes one session."
    yield (
        "<p>Trades and weights (from, to) are in % of NAV, expected costs of the whole order in bps of NAV. "
        f"{pace}{more}</p>"
    )


def limit_block(result: NightResult) -> str:
    """Show the limits of the book's rule: those that bind first."""
    limits = result.tables.get("limits")
    if limits is None or limits.is_empty():
        return ""
    order = pl.col("state").replace_strict({"exceeded": 0, "binds": 1, "free": 2})
    ordered = limits.sort(order, maintain_order=True)
    shown = ordered.with_columns(
        amount=pl.Series(_amounts(ordered, "value")), allowed=pl.Series(_amounts(ordered, "limit"))
    )
    columns = (
        Column("name", "limit of the book", text, numeric=False),
        Column("state", "state", text, numeric=False, hint="binds: the book is at the limit"),
        Column("amount", "book", text),
        Column("allowed", "limit", text),
    )
    return table(shown, columns, label="Limits of the book")


def _amounts(limits: pl.DataFrame, field: str) -> list[str]:
    return [amount(row[field], row["unit"]) for row in limits.iter_rows(named=True)]


def _signed_percent(value: float) -> str:
    return signed(2)(100.0 * value)
