"""Helpers for charts with several models: split a frame by model, and draw the line of one model."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from pipelines.pages.charts.figure import Trace, days, floats
from pipelines.pages.theme import Style, short


def by_model(
    frame: pl.DataFrame, styles: Mapping[str, Style], order: str = "date"
) -> list[tuple[str, Style, pl.DataFrame]]:
    """Split a frame by model in the order of ``styles``, each part sorted; skip models without rows."""
    parts = []
    for model, style in styles.items():
        rows = frame.filter(pl.col("model") == model).sort(order)
        if not rows.is_empty():
            parts.append((model, style, rows))
    return parts


def line(path: pl.DataFrame, model: str, style: Style, hover: str, **changes: object) -> Trace:
    """Draw the column ``y`` over ``date`` in the model's style."""
    return {
        "type": "scatter",
        "x": days(path["date"]),
        "y": floats(path["y"]),
        "mode": "lines",
        "name": short(model),
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "hovertemplate": hover,
        **changes,
    }


def rank_ic() -> pl.Expr:
    """The column ``rank_ic`` as float64, with null for NaN."""
    return pl.col("rank_ic").cast(pl.Float64).fill_nan(None)


def books_of(frame: pl.DataFrame, main: str) -> list[str]:
    """List the books of a frame: the main book first, the others in order of appearance."""
    books: list[str] = frame["book"].unique(maintain_order=True).to_list()
    return sorted(books, key=lambda book: book != main)
