"""Which runs read which versions of a lake, written into the lake itself when a run starts.

A lake cannot be asked where its runs are: their folders follow the config's ``output``, the working directory
and the machine, and may be gone. A vacuum therefore goes by the table ``readers`` in the lake.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from pipelines.lake.lake import Lake

Recorded = Mapping[str, Mapping[int, Sequence[str]]]
"""Table -> version -> the runs that recorded it."""


def record_reader(lake: Lake, run_id: str, versions: Mapping[str, int]) -> None:
    """Enter a run into its lake, before anything is made of what it read; repeating it changes nothing.

    Raises
    ------
    DataError
        If a table is not in the lake, or the lake cannot be written to.
    """
    rows = [
        {"run_id": run_id, "table": table, "version": version, "table_id": lake.table_id(table)}
        for table, version in versions.items()
    ]
    stamp = pl.lit(dt.datetime.now(dt.UTC)).cast(pl.Datetime("us", "UTC"))
    lake.upsert("readers", pl.DataFrame(rows).with_columns(created_at=stamp))


def recorded_in_lake(lake: Lake) -> Recorded:
    """Return the versions of a lake's tables that runs have read, of the tables as they are now.

    A table that was deleted and made again has another id; what was read of the former one is gone.
    """
    if not lake.exists("readers"):
        return {}
    rows = lake.read("readers", columns=["table", "version", "run_id", "table_id"])
    now = {table: lake.table_id(table) for table in rows["table"].unique() if lake.exists(table)}
    return collect(
        (table, version, run_id)
        for table, version, run_id, table_id in rows.iter_rows()
        if now.get(table) == table_id
    )


def collect(entries: Iterable[tuple[str, int, str]]) -> Recorded:
    """Group (table, version, run) by table and version, each run once."""
    found: dict[str, dict[int, list[str]]] = {}
    for table, version, run in sorted(set(entries)):
        found.setdefault(table, {}).setdefault(version, []).append(run)
    return found


def entries(recorded: Recorded) -> set[tuple[str, int, str]]:
    """Take apart what `collect` has put together."""
    return {(t, v, run) for t, versions in recorded.items() for v, runs in versions.items() for run in runs}
