"""The tables of the monitoring on a night's page."""

from __future__ import annotations

import html
from collections.abc import Iterator

import polars as pl

from pipelines.nightly.result import NightResult
from pipelines.report.tables import Column, significant, table, text

_ROWS = 20


def monitoring_blocks(result: NightResult) -> Iterator[str]:
    """Show every table of the monitoring, its newest rows first."""
    for name, frame in result.tables.items():
        if name == "attributions" or frame.is_empty():
            continue
        yield f"<h3>{html.escape(name.replace('_', ' '))}</h3>"
        yield table(frame.tail(_ROWS).reverse(), _columns(frame), label=name)


def _columns(frame: pl.DataFrame) -> list[Column]:
    columns = []
    for name, dtype in frame.schema.items():
        title = name.replace("_", " ")
        if dtype.is_float():
            columns.append(Column(name, title, significant(3)))
        else:
            columns.append(Column(name, title, text, numeric=dtype.is_numeric()))
    return columns
