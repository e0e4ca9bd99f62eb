"""The lake's table ``nights``: one row per config and session."""

from __future__ import annotations

import datetime as dt
import json
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipelines.lake.lake import Lake
from pipelines.lake.schemas import schema
from pipelines.nightly.finding import Finding
from pipelines.nightly.result import NightResult

FINISHED = ("done", "warned")
"""States of a night that is not played again."""


def read_nights(lake: Lake, config_name: str) -> pl.DataFrame:
    """Return the nights of a config, newest first; no rows if there are none."""
    if not lake.exists("nights"):
        return schema("nights").create_empty()
    nights = lake.read("nights", filters=pl.col("config") == config_name)
    return nights.sort("session", descending=True)


def finished_before(nights: pl.DataFrame, session: dt.date) -> pl.DataFrame:
    """Keep the finished nights before a session, in the order given."""
    return nights.filter((pl.col("session") < session) & pl.col("state").is_in(FINISHED))


def prices_of_night(lake: Lake, nights: pl.DataFrame, session: dt.date | None) -> int | None:
    """Return the version of the prices that a night read.

    None if there is no such night, or if the table that it read was since replaced by another one.
    """
    rows = nights.filter(pl.col("session") == session) if session is not None else nights.clear()
    if rows.is_empty() or not lake.exists("prices"):
        return None
    ids = json.loads(rows["table_ids"][0] or "{}")
    if "prices" in ids and ids["prices"] != lake.table_id("prices"):
        return None
    version: int | None = json.loads(rows["data_versions"][0]).get("prices")
    return version


@dataclass(frozen=True, slots=True)
class NightSource:
    """What a night was decided from.

    Attributes
    ----------
    versions
        Input table -> version.
    table_ids
        Input table -> id of the Delta table.
    settings
        What decides the orders (`pipelines.nightly.changes.traded_settings`).
    """

    versions: Mapping[str, int]
    table_ids: Mapping[str, str]
    settings: Mapping[str, Any]


def write_night(lake: Lake, result: NightResult, source: NightSource, created_at: dt.datetime) -> None:
    """Write the row of a night; a repeated night replaces it."""
    champion = None if result.champion is None else str(result.champion)
    row = {
        "config": result.config,
        "session": result.session,
        "state": result.state,
        "version": champion,
        "challenger": None if result.challenger is None else str(result.challenger),
        "data_versions": json.dumps(dict(sorted(source.versions.items()))),
        "table_ids": json.dumps(dict(sorted(source.table_ids.items()))),
        "settings": json.dumps(source.settings, sort_keys=True),
        "rows": signal_count(result),
        "trades": trade_count(result),
        "warnings": warnings_json(result.findings),
        "error": result.error,
        "seconds": sum(result.seconds.values()),
        "peak_memory_bytes": peak_memory_bytes(),
        "created_at": created_at,
    }
    columns = schema("nights").columns()
    frame = pl.DataFrame([row], schema={name: column.dtype for name, column in columns.items()})
    lake.upsert("nights", frame)


def signal_count(result: NightResult) -> int:
    """Return the number of the champion's signals."""
    if result.champion is None or result.signals.is_empty():
        return 0
    of_champion = pl.col("version") == str(result.champion)
    return result.signals.filter(of_champion & pl.col("signal").is_not_null()).height


def trade_count(result: NightResult) -> int:
    """Return the number of firms that the book trades."""
    return 0 if result.book.is_empty() else result.book.filter(pl.col("trade") != 0.0).height


def warnings_json(findings: Iterable[Finding]) -> str:
    """Write the warnings as JSON: check, subject and sentence of each."""
    return json.dumps(
        [
            {"check": finding.check, "subject": finding.subject, "sentence": finding.sentence}
            for finding in findings
            if finding.level == "warn"
        ]
    )


def read_warnings(text: str) -> tuple[Finding, ...]:
    """Read the warnings of a night that `warnings_json` has written."""
    return tuple(Finding(one["check"], "warn", one["sentence"], one["subject"]) for one in json.loads(text))


def peak_memory_bytes() -> int:
    """Return the largest resident memory so far, of this process or of one of its finished children."""
    kilobytes = max(
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return kilobytes * 1024
