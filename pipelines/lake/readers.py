"""The versions of a lake's tables that runs and nights have read, as the lake itself records them.

The folders of a lake's runs cannot be found from the lake: they depend on the config's ``output``, the
working directory and the machine, and may be gone. A vacuum therefore uses the table ``readers`` in the lake,
which a run fills when it starts, and the table ``signals``, whose rows name the versions that they were
computed from.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import polars as pl

from pipelines.lake.lake import Lake

RecordedVersions = Mapping[str, Mapping[int, Sequence[str]]]
"""Table -> version -> runs and nights that recorded it. A night is named ``CONFIG@SESSION``."""


def record_reader(lake: Lake, run_id: str, versions: Mapping[str, int]) -> None:
    """Record in the lake which versions a run reads, before they are used; repeating it changes nothing.

    Raises
    ------
    DataError
        If a table is not in the lake, or the lake is not writable.
    """
    rows = [
        {"run_id": run_id, "table": table, "version": version, "table_id": lake.table_id(table)}
        for table, version in versions.items()
    ]
    stamp = pl.lit(dt.datetime.now(dt.UTC)).cast(pl.Datetime("us", "UTC"))
    lake.upsert("readers", pl.DataFrame(rows).with_columns(created_at=stamp))


def recorded_in_lake(lake: Lake) -> RecordedVersions:
    """Return the versions of a lake's existing tables that runs and the signals of nights have read.

    A table that was deleted and created again has a new id; versions that runs have read of the former table
    are left out.
    """
    return group_by_version([*_read_by_runs(lake), *_read_by_nights(lake)])


def _read_by_runs(lake: Lake) -> Iterator[tuple[str, int, str]]:
    if not lake.exists("readers"):
        return
    rows = lake.read("readers", columns=["table", "version", "run_id", "table_id"])
    now = {table: lake.table_id(table) for table in rows["table"].unique() if lake.exists(table)}
    for table, version, run_id, table_id in rows.iter_rows():
        if now.get(table) == table_id:
            yield table, version, run_id


def _read_by_nights(lake: Lake) -> Iterator[tuple[str, int, str]]:
    """Return the versions that signals were computed from; every revision of a session counts."""
    if not lake.exists("signals"):
        return
    rows = lake.read("signals", columns=["config", "session", "data_versions"], ordered=False)
    for config, session, versions in rows.unique().iter_rows():
        for table, version in json.loads(versions).items():
            yield table, version, f"{config}@{session}"


def group_by_version(entries: Iterable[tuple[str, int, str]]) -> RecordedVersions:
    """Group (table, version, run) by table and version, each run once."""
    grouped: dict[str, dict[int, list[str]]] = {}
    for table, version, run in sorted(set(entries)):
        grouped.setdefault(table, {}).setdefault(version, []).append(run)
    return grouped


def flatten_versions(recorded: RecordedVersions) -> set[tuple[str, int, str]]:
    """Return the (table, version, run) entries of grouped versions; the inverse of `group_by_version`."""
    return {(t, v, run) for t, versions in recorded.items() for v, runs in versions.items() for run in runs}
