"""What several tests count and cut: the trials of a folder, and the tables that are known at a session."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from pipelines.lake.schemas import cut
from pipelines.train.trials import read_trials


def trial_count(output: Path) -> int:
    """Count the trials in the ledger of an output folder, on all of its markets."""
    return int(read_trials(output)["counts"].sum())


def cut_tables(tables: Mapping[str, pl.DataFrame], through: dt.date) -> dict[str, pl.DataFrame]:
    """Cut tables of a source at the close of a session; tables without a known row are left out."""
    known = {table: cut(table, frame, through) for table, frame in tables.items()}
    return {table: frame for table, frame in known.items() if frame.height}
