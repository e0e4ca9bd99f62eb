"""The highest and lowest signals of a night, and what moved them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from pipelines.nightly.result import NightResult
from pipelines.pages.tables import Column, number, signed, table, text

SHOWN = 10
"""Names shown at each end."""
_MOVERS = 3


def name_blocks(result: NightResult) -> Iterator[str]:
    """Show the highest and the lowest signals of the champion."""
    ranked = champion_signals(result).drop_nulls("signal").sort("signal", descending=True)
    if ranked.is_empty():
        return
    moved = movers(result.tables.get("attributions"))
    half = min(SHOWN, ranked.height // 2) or 1
    yield '<div class="columns">'
    for title, rows in (("Highest", ranked.head(half)), ("Lowest", ranked.tail(half).reverse())):
        shown = rows.with_columns(
            moved=pl.col("ticker").replace_strict(moved, default=None, return_dtype=pl.String)
        )
        yield f"<div><h3>{title}</h3>{_table(shown, title)}</div>"
    yield "</div>"
    if moved:
        yield (
            "<p>What moved it: Shapley values of blocks of days, families of characteristics and peers, "
            "largest first, in the unit of the signal (standard deviations of the session's forecasts).</p>"
        )


def champion_signals(result: NightResult) -> pl.DataFrame:
    """First revision of the champion's signals in this session; without a champion, of all versions."""
    rows = result.signals
    if result.champion is not None:
        rows = rows.filter(pl.col("version") == str(result.champion))
    return rows.filter(pl.col("revision") == pl.col("revision").min())


def movers(attributions: pl.DataFrame | None) -> dict[str, str]:
    """Ticker -> its largest Shapley values in words, such as ``momentum +0.42, days 1-5 -0.20``."""
    if attributions is None or attributions.is_empty():
        return {}
    ordered = attributions.sort(pl.col("value").abs(), descending=True, maintain_order=True)
    return {
        str(ticker): ", ".join(
            f"{player} {signed(2)(value)}"
            for player, value in rows.head(_MOVERS).select("player", "value").iter_rows()
        )
        for (ticker,), rows in ordered.partition_by("ticker", as_dict=True, maintain_order=True).items()
    }


def _table(rows: pl.DataFrame, title: str) -> str:
    columns = [Column("ticker", "ticker", text, numeric=False), Column("signal", "signal", signed(2))]
    if rows["moved"].null_count() < rows.height:
        columns.append(Column("moved", "what moved it", text, numeric=False, wide=True))
    if rows["seed_dispersion"].null_count() < rows.height:
        hint = "standard deviation of the signal over seeds"
        columns.append(Column("seed_dispersion", "seeds \N{PLUS-MINUS SIGN}", number(2), hint=hint))
    return table(rows, columns, label=f"{title} signals")
