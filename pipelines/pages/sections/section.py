"""A section of a report: a heading with its blocks of HTML and figures."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import polars as pl

from pipelines.pages.charts.figure import Figure
from pipelines.pages.contents.report import ReportData
from pipelines.pages.tables import Column, text

Block = str | tuple[Figure, str]  # HTML, or a figure with its caption in plain text
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


def shown_rows(frame: pl.DataFrame | None, data: ReportData, model: str | None = None) -> pl.DataFrame:
    """The rows of the verdict's delay and the main book, and of one model if it is named.

    A frame without one of these columns is about all delays, books or models. None gives an empty frame.
    """
    if frame is None:
        return pl.DataFrame()
    wanted = {"delay": data.header.verdict_delay, "book": data.header.main_book, "model": model}
    for column, value in wanted.items():
        if column in frame.columns and value is not None:
            frame = frame.filter(pl.col(column) == value)
    return frame


def main_model(data: ReportData, best: str | None) -> str:
    """The model that a section is about: the chosen one, or the first if none was chosen."""
    return best if best is not None else data.models[0]


def in_book(data: ReportData, model: str) -> str:
    """Name a model and the main book."""
    return f"{model} in {data.header.main_book}"


def beside(blocks: Iterable[Block]) -> Iterator[Block]:
    """Set figures beside each other where the screen is wide enough."""
    yield '<div class="beside">'
    yield from blocks
    yield "</div>"
