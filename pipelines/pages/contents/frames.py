"""Checks that every part of a report shares: required columns and missing values.

Null and NaN both mean "not known"; the report shows either as a dash.
"""

from __future__ import annotations

import math

import polars as pl


def require_columns(name: str, frame: pl.DataFrame | None, columns: tuple[str, ...]) -> None:
    """Raise ValueError if the frame called ``name`` lacks one of ``columns``; None passes."""
    if frame is None:
        return
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(f"The report's {name} frame lacks {', '.join(missing)}; add the column(s).")


def is_missing(value: object) -> bool:
    """Whether a value is not known: None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))
