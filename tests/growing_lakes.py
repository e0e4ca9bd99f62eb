"""Lakes that hold a simulated market as it was known at the close of a session."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import numpy as np
import polars as pl
from counted import cut_tables

from pipelines.lake.lake import Lake

Tables = Mapping[str, pl.DataFrame]


def sessions_of(tables: Tables) -> list[dt.date]:
    """Sessions of the prices, ascending."""
    return sorted(tables["prices"]["date"].unique().to_list())


def deliver(lake: Lake, tables: Tables, through: dt.date) -> None:
    """Write into a lake what is known of a market at the close of a session."""
    for table, frame in cut_tables(tables, through).items():
        lake.upsert(table, frame)


def same_bits(left: pl.Series, right: pl.Series) -> bool:
    """Whether two columns of numbers are equal to the bit, with nulls at the same places."""
    return (
        left.null_count() == right.null_count()
        and left.is_null().equals(right.is_null())
        and np.array_equal(
            left.drop_nulls().to_numpy().view(np.int64), right.drop_nulls().to_numpy().view(np.int64)
        )
    )
