"""What a night finds and leaves: findings, model versions, its outcome, and the tables nights and signals."""

import datetime as dt
import json
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF
from typing import Any, Literal, Self

import polars as pl
from pydantic import BaseModel, ConfigDict

from pipelines.config.schema import Config
from pipelines.lake.lake import Lake
from pipelines.lake.renames import renamed
from pipelines.lake.schemas import Signals, rows_known, schema
from pipelines.run.locks import Locks


@dataclass(frozen=True, slots=True)
class NightFinding:
    """The result of one check; a failure ends the night, ``subject`` None means the whole night."""

    check: str
    level: Literal["ok", "warn", "fail"]
    sentence: str
    subject: str | None = None
    value: float | None = None
    limit: float | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """Check and subject: two findings with the same key are about the same thing."""
        return (self.check, self.subject)


def verdict(
    check: str,
    base: str,
    otherwise: str,
    *,
    fine: bool,
    value: float | None = None,
    limit: float | None = None,
    subject: str | None = None,
) -> NightFinding:
    """Say what was seen, and if it is not fine, ``otherwise``: the limit and the cure, as a warning."""
    sentence = f"{base}." if fine else f"{base}{otherwise}"
    return NightFinding(check, "ok" if fine else "warn", sentence, subject, value, limit)


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One model of one run that was trained for use."""

    run_id: str
    model: str

    def __str__(self) -> str:
        return f"{self.run_id}/{self.model}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``RUN/MODEL``; ValueError if the text is not of that form."""
        run_id, slash, model = text.partition("/")
        if not (run_id and slash and model):
            raise ValueError(f"{text!r} is not the name of a model version; it must be RUN/MODEL")
        return cls(run_id, model)


class Retraining(BaseModel):
    """The decision to train a version: why, and the alias that it gets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    why: str
    alias: Literal["champion", "challenger"]


class Promotion(BaseModel):
    """The guard's judgement of a version: whether it may be the champion, reasons why not, and numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    passed: bool
    reasons: tuple[str, ...]
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class NightResult:
    """The outcome of one night: its state, its rows of the lake's tables, and what was found."""

    config: str
    session: dt.date
    state: str
    folder: Path
    champion: ModelVersion | None
    challenger: ModelVersion | None
    signals: pl.DataFrame
    book: pl.DataFrame
    findings: tuple[NightFinding, ...]
    tables: Mapping[str, pl.DataFrame]
    nights: pl.DataFrame
    promotions: pl.DataFrame
    error: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    overlap: int = 1  # consecutive realised rank ICs whose labels overlap

    @property
    def signal_count(self) -> int:
        """Number of the champion's signals."""
        if self.champion is None or self.signals.is_empty():
            return 0
        of_champion = pl.col("version") == str(self.champion)
        return self.signals.filter(of_champion & pl.col("signal").is_not_null()).height

    @property
    def trade_count(self) -> int:
        """Number of firms that the book trades."""
        return self.book.filter(pl.col("trade") != 0.0).height

    @property
    def turnover(self) -> float:
        """Half the sum of the absolute trades over NAV; 0 without a book."""
        return 0.5 * float(self.book["trade"].abs().sum())

    @property
    def expected_cost(self) -> float:
        """Expected cost of the orders over NAV; 0 without a book."""
        return float(self.book["expected_cost"].sum())


def nights_folder(config: Config) -> Path:
    """Folder of all nights of a config."""
    return Path(config.output) / "nights" / config.name


def night_folder(config: Config, session: dt.date) -> Path:
    """Folder of one night's files."""
    return nights_folder(config) / session.isoformat()


FINISHED = ("done", "warned")  # states of a night that is not played again


def read_nights(lake: Lake, config_name: str) -> pl.DataFrame:
    """Return the nights of a config, newest first; no rows if there are none."""
    return lake.rows("nights", filters=pl.col("config") == config_name).sort("session", descending=True)


def finished_before(nights: pl.DataFrame, session: dt.date) -> pl.DataFrame:
    """Keep the finished nights before a session, in the order given."""
    return nights.filter((pl.col("session") < session) & pl.col("state").is_in(FINISHED))


def prices_of_night(lake: Lake, nights: pl.DataFrame, session: dt.date | None) -> int | None:
    """Version of the prices that a night read; None without a night, or if the table was replaced since."""
    rows = nights.filter(pl.col("session").eq_missing(session)).select("data_versions", "table_ids").rows()
    if not rows or not lake.exists("prices"):
        return None
    versions, ids = (json.loads(text or "{}") for text in rows[0])
    same = ids.get("prices", lake.table_id("prices")) == lake.table_id("prices")
    return versions.get("prices") if same else None


@dataclass(frozen=True, slots=True)
class NightSource:
    """What a night was decided from: input tables with their versions and ids, and settings."""

    versions: Mapping[str, int]
    table_ids: Mapping[str, str]
    settings: Mapping[str, Any]


def write_night(lake: Lake, result: NightResult, source: NightSource, created_at: dt.datetime) -> None:
    """Write the row of a night; a repeated night replaces it."""
    row = {
        "config": result.config,
        "session": result.session,
        "state": result.state,
        "version": None if result.champion is None else str(result.champion),
        "challenger": None if result.challenger is None else str(result.challenger),
        "data_versions": json.dumps(source.versions, sort_keys=True),
        "table_ids": json.dumps(source.table_ids, sort_keys=True),
        "settings": json.dumps(source.settings, sort_keys=True),
        "rows": result.signal_count,
        "trades": result.trade_count,
        "warnings": warnings_json(result.findings),
        "error": result.error,
        "seconds": sum(result.seconds.values()),
        "peak_memory_bytes": peak_memory_bytes(),
        "created_at": created_at,
    }
    lake.upsert("nights", pl.DataFrame([row], schema=schema("nights").create_empty().schema))


def warnings_json(findings: Iterable[NightFinding]) -> str:
    """Write the warnings as JSON: check, subject and sentence of each."""
    fields = ("check", "subject", "sentence")
    warnings = [one for one in findings if one.level == "warn"]
    return json.dumps([{name: getattr(one, name) for name in fields} for one in warnings])


def read_warnings(text: str) -> tuple[NightFinding, ...]:
    """Read the warnings of a night that `warnings_json` has written."""
    return tuple(
        NightFinding(one["check"], "warn", one["sentence"], one["subject"]) for one in json.loads(text)
    )


def peak_memory_bytes() -> int:
    """Return the largest resident memory so far, of this process or of one of its finished children."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (RUSAGE_SELF, RUSAGE_CHILDREN))


def write_signals(lake: Lake, frame: pl.DataFrame) -> int:
    """Add signals of one session and version; the newest revision if it is on the same data and equal."""
    key = frame.select("config", "session", "version").unique().row(0, named=True)
    (data_versions,) = frame["data_versions"].unique()
    same = pl.all_horizontal(pl.col(name) == value for name, value in key.items())
    with Locks(wait=True, notify=lambda _: None) as locks:
        locks.lock_in_lake(lake.root, ".signals", "The signals in the lake")
        stored = lake.rows("signals", filters=same)
        on_data = stored.filter(pl.col("data_versions") == data_versions)
        newest = on_data.filter(pl.col("revision") == pl.col("revision").max()).sort("ticker")
        if newest.select(frame.columns).equals(frame.sort("ticker")):
            return int(newest["revision"][0])
        revision = 1 + max(stored["revision"], default=0)
        rows = frame.with_columns(
            revision=pl.lit(revision, dtype=pl.Int64), created_at=pl.lit(dt.datetime.now(dt.UTC))
        )
        lake.upsert("signals", rows.select(Signals.column_names()))
        return revision


def read_signals(
    lake: Lake,
    config_name: str,
    *,
    through: dt.date | None = None,
    version: ModelVersion | str | None = None,
    tonight: tuple[dt.date, str] | None = None,
) -> pl.DataFrame:
    """Read the signals of a config that were used (`_used`); all versions by default."""
    wanted = pl.col("config") == config_name
    if through is not None:
        wanted &= pl.col("session") <= through
    if version is not None:
        wanted &= pl.col("version") == str(version)
    rows = _used(lake.rows("signals", filters=wanted), lake, config_name, tonight)
    return rows.sort("session", "version", "ticker")


def count_signals(lake: Lake, config_name: str) -> pl.DataFrame:
    """Count the known signals that were used: session, version and ``signals``."""
    columns = ["session", "version", "revision", "data_versions", "created_at", "signal"]
    rows = schema("signals").create_empty().select(columns)
    if lake.exists("signals"):
        rows = lake.read("signals", columns=columns, filters=pl.col("config") == config_name, ordered=False)
    counted = pl.col("signal").count().alias("signals")
    return _used(rows, lake, config_name).group_by("session", "version").agg(counted)


def _used(
    rows: pl.DataFrame, lake: Lake, config_name: str, tonight: tuple[dt.date, str] | None = None
) -> pl.DataFrame:
    """Keep of each session and version the revision of its night, or the first where no night used it.

    That of a night is the newest on its data when it ended. ``tonight`` is the session of a night that has no
    row yet, with its data versions as JSON.
    """
    nights = read_nights(lake, config_name).filter(pl.col("state").is_in(FINISHED))
    nights = nights.select("session", "data_versions", ended="created_at")
    if tonight is not None:
        now = (*tonight, dt.datetime.max.replace(tzinfo=dt.UTC))
        nights = pl.concat([nights, pl.DataFrame([now], schema=nights.schema, orient="row")])
    key = ["session", "version"]
    every = rows.select(*key, "revision", "data_versions", "created_at").unique()
    of_nights = every.join(nights, on=["session", "data_versions"])
    others = every.join(of_nights, on=key, how="anti")
    first, by_then = pl.col("revision").min(), pl.col("created_at") <= pl.col("ended")
    newest = pl.col("revision").filter(by_then).max().fill_null(first)  # a clock may have been set back
    used = pl.concat([of_nights.group_by(key).agg(newest), others.group_by(key).agg(first)])
    return rows.join(used, on=[*key, "revision"], how="semi")


def read_revision(
    lake: Lake, config_name: str, session: dt.date, version: ModelVersion, revision: int
) -> pl.DataFrame:
    """Read one revision of the signals of a session and version, sorted by ticker."""
    wanted = (pl.col("config") == config_name) & (pl.col("session") == session)
    wanted &= (pl.col("version") == str(version)) & (pl.col("revision") == revision)
    return lake.rows("signals", filters=wanted).sort("ticker")


def known_renames(lake: Lake, session: dt.date, version: int | None = None) -> pl.DataFrame:
    """Return the rows of the table ``renames`` that are known at a session."""
    if not lake.exists("renames"):
        return schema("renames").create_empty()
    return lake.read("renames", version=version, filters=rows_known("renames", session))


def follow(signals: pl.DataFrame, renames: pl.DataFrame) -> pl.DataFrame:
    """Give earlier signals their firm's newest ticker; the signal under the new name counts."""
    key = [name for name in signals.columns if name in {"role", "session", "version", "ticker"}]
    return renamed(signals, renames, key, "session")


def sessions_of(lake: Lake) -> list[dt.date]:
    """Return the sessions of the prices that a night can read, ascending; none if there are none.

    During an ingest these are the prices before it, as in `Lake.versions_to_read`.
    """
    unfinished = lake.unfinished()
    version = lake.version("prices") if unfinished is None else unfinished.versions.get("prices")
    if version is None:
        return []
    dates = lake.read("prices", version, columns=["date"], ordered=False)
    return list(dates["date"].unique().sort())
