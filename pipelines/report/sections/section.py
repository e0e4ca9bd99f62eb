"""A section of a report: a heading with its blocks of HTML and figures."""

from __future__ import annotations

import html
from dataclasses import dataclass

import plotly.graph_objects as go
import polars as pl

from pipelines.report.tables import Column, text

Block = str | tuple[go.Figure, str]  # HTML, or a figure with its caption in plain text
MODEL_COLUMN = Column("model", "model", text, numeric=False)


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, its anchor in the page, and the blocks under it."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


def paragraph(words: str) -> str:
    """Wrap plain text as an HTML paragraph; the text is escaped."""
    return f"<p>{html.escape(words)}</p>"


def count_sessions(count: int) -> str:
    """Write a number of sessions: "1 session", "2 sessions"."""
    return f"{count} session{'' if count == 1 else 's'}"


def has_values(frame: pl.DataFrame, field: str) -> bool:
    """Whether a frame has a column with at least one value that is neither null nor NaN."""
    series = frame[field] if field in frame.columns else pl.Series(dtype=pl.Null)
    filled = series.fill_nan(None) if series.dtype.is_float() else series
    return filled.drop_nulls().len() > 0
