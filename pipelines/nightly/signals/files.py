"""Files of signals: CSV, Parquet or JSON, with the columns of the lake's table ``signals``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from pipelines.errors import ConfigError
from pipelines.files import write_table

COLUMNS: Final = (
    "config",
    "session",
    "ticker",
    "signal",
    "rank",
    "in_universe",
    "seed_dispersion",
    "version",
    "revision",
    "data_versions",
    "created_at",
)
"""Columns of a file, in order. New columns are only ever added at the end."""
SUFFIXES: Final = (".csv", ".parquet", ".json")


def require_suffix(path: Path) -> None:
    """Raise ConfigError unless a file's suffix names a format that signals are written in."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"Signals cannot be written to {path}: its suffix must be one of {', '.join(SUFFIXES)}."
        )


def write_signals_file(frame: pl.DataFrame, path: Path) -> Path:
    """Write signals to a file, in the format that its suffix names; the write is atomic.

    Parameters
    ----------
    frame
        Rows of the table ``signals``.
    path
        File to write. Its folder is created.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ConfigError
        If the suffix is not one of `SUFFIXES`.
    """
    require_suffix(path)
    rows = frame.select(COLUMNS)
    if path.suffix.lower() != ".parquet":
        rows = rows.with_columns(pl.col("created_at").dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
    return write_table(path, rows)
