"""The lake's tables `nights` and `signals`."""

from __future__ import annotations

import datetime as dt
import json
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl

from pipelines.dataset.tables import renamed, rows_known
from pipelines.lake.lake import Lake
from pipelines.lake.pipeline_tables import Signals
from pipelines.lake.schemas import schema
from pipelines.nightly.result import Finding, ModelVersion, NightResult
from pipelines.run.locks import Locks

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
    """What a night was decided from: input tables with their versions and ids, and settings."""

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
        "rows": result.signal_count,
        "trades": result.trade_count,
        "warnings": warnings_json(result.findings),
        "error": result.error,
        "seconds": sum(result.seconds.values()),
        "peak_memory_bytes": peak_memory_bytes(),
        "created_at": created_at,
    }
    columns = schema("nights").columns()
    frame = pl.DataFrame([row], schema={name: column.dtype for name, column in columns.items()})
    lake.upsert("nights", frame)


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


Revision = Literal["first", "newest"]


def write_signals(lake: Lake, frame: pl.DataFrame) -> int:
    """Add the signals of one session and version to the lake, and return their revision.

    On the same data versions the revision that exists is returned; on others they become a new one.
    """
    (key,) = frame.select("config", "session", "version", "data_versions").unique().iter_rows(named=True)
    with Locks(wait=True, notify=lambda _: None) as locks:
        locks.lock_signals(lake.root)
        stored = _stored(
            lake,
            (pl.col("config") == key["config"])
            & (pl.col("session") == key["session"])
            & (pl.col("version") == key["version"]),
        )
        revisions = stored.select("revision", "data_versions").unique().sort("revision")
        same = revisions.filter(pl.col("data_versions") == key["data_versions"])
        if same.height:
            return int(same["revision"][0])
        revision = 1 + (int(revisions["revision"][-1]) if revisions.height else 0)
        rows = frame.with_columns(
            pl.lit(revision, dtype=pl.Int64).alias("revision"),
            pl.lit(dt.datetime.now(dt.UTC)).alias("created_at"),
        )
        lake.upsert("signals", rows.select(Signals.column_names()))
        return revision


def read_signals(
    lake: Lake,
    config_name: str,
    *,
    through: dt.date | None = None,
    version: ModelVersion | None = None,
    revision: Revision = "first",
) -> pl.DataFrame:
    """Read the stored signals of a config."""
    wanted = pl.col("config") == config_name
    if through is not None:
        wanted &= pl.col("session") <= through
    if version is not None:
        wanted &= pl.col("version") == str(version)
    rows = _stored(lake, wanted)
    chosen = pl.col("revision").min() if revision == "first" else pl.col("revision").max()
    return rows.filter(pl.col("revision") == chosen.over("session", "version")).sort(
        "session", "version", "ticker"
    )


def count_first_signals(lake: Lake, config_name: str) -> pl.DataFrame:
    """Count the known signals of first revisions: session, version and ``signals``."""
    if not lake.exists("signals"):
        return pl.DataFrame(schema={"session": pl.Date, "version": pl.String, "signals": pl.UInt32})
    columns = ["session", "version", "revision", "signal"]
    rows = lake.read("signals", columns=columns, filters=pl.col("config") == config_name, ordered=False)
    first = pl.col("revision") == pl.col("revision").min()
    return rows.group_by("session", "version").agg(
        (pl.col("signal").is_not_null() & first).sum().alias("signals")
    )


def read_revision(
    lake: Lake, config_name: str, session: dt.date, version: ModelVersion, revision: int
) -> pl.DataFrame:
    """Read one revision of the signals of a session and version, sorted by ticker."""
    return _stored(
        lake,
        (pl.col("config") == config_name)
        & (pl.col("session") == session)
        & (pl.col("version") == str(version))
        & (pl.col("revision") == revision),
    ).sort("ticker")


def _stored(lake: Lake, wanted: pl.Expr) -> pl.DataFrame:
    if not lake.exists("signals"):
        return Signals.create_empty()
    return lake.read("signals", filters=wanted)


CHAMPION: Final = "champion"
CHALLENGER: Final = "challenger"


def known_renames(lake: Lake, session: dt.date, version: int | None = None) -> pl.DataFrame:
    """Return the rows of the table ``renames`` that are known at a session."""
    if not lake.exists("renames"):
        return schema("renames").create_empty()
    return lake.read("renames", version=version, filters=rows_known("renames", session))


def follow(signals: pl.DataFrame, renames: pl.DataFrame) -> pl.DataFrame:
    """Give signals of earlier sessions the newest ticker of their firm, as the prices have it.

    Where a night had the firm under both names, the signal under the new name counts.
    """
    key = [name for name in signals.columns if name in {"role", "session", "version", "ticker"}]
    return renamed(signals, renames, key, "session")


def sessions_of(lake: Lake) -> list[dt.date]:
    """Return the sessions of the prices in the lake, ascending; none if there are no prices."""
    if not lake.exists("prices"):
        return []
    dates = lake.read("prices", columns=["date"], ordered=False)["date"]
    return list(dates.unique().sort())
