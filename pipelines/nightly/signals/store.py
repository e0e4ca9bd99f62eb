"""The lake's table ``signals``: written once per session, version and data, and never rewritten."""

from __future__ import annotations

import datetime as dt
from typing import Literal

import polars as pl

from pipelines.lake.lake import Lake
from pipelines.lake.pipeline_tables import Signals
from pipelines.nightly.version import ModelVersion
from pipelines.run.locks import Locks

Revision = Literal["first", "newest"]


def write_signals(lake: Lake, frame: pl.DataFrame) -> int:
    """Add the signals of one session and version to the lake, and return their revision.

    Signals of the same session and version on the same data versions are not written again: the revision
    that exists is returned. On other data versions the signals become a new revision. Processes that write
    signals into the same lake wait for each other.

    Parameters
    ----------
    lake
        The lake.
    frame
        As `pipelines.nightly.signals.score.score` returns it.
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
            pl.lit(dt.datetime.now(dt.UTC)).cast(pl.Datetime("us", "UTC")).alias("created_at"),
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
    """Read the stored signals of a config.

    Parameters
    ----------
    lake
        The lake.
    config_name
        Name of the config.
    through
        Last session; None for all sessions.
    version
        Model version; None for all of them.
    revision
        Revision of each session and version: the ``first``, which was used, or the ``newest``.

    Returns
    -------
    polars.DataFrame
        Rows of the table ``signals``, sorted by session, version and ticker; empty if there are none.
    """
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
