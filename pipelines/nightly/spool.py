"""Records of nights on their way to the tracking store: ``<output>/nights/<config>/spool/<session>.json``.

A night writes its record here first, and removes it when the store has it. A store that is gone delays the
records and nothing else: the next night or ``peerglass track sync`` sends them, the oldest first. Sending is
idempotent, so a process that is killed between sending and removing does no harm.
"""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines.config.schema import Config
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.nightly.registry.aliases import challenger, champion
from pipelines.nightly.registry.versions import open_version
from pipelines.nightly.result import NightResult
from pipelines.nightly.version import ModelVersion
from pipelines.progress import Progress
from pipelines.tracking.nights import NightRecord, log_night
from pipelines.tracking.runs import log_run


@dataclass(frozen=True, slots=True)
class Synced:
    """What a synchronisation has sent.

    Attributes
    ----------
    nights
        Sessions of the nights that waited, oldest first.
    versions
        Model versions whose runs are in the store now.
    """

    nights: tuple[dt.date, ...]
    versions: tuple[ModelVersion, ...]


def nights_folder(config: Config) -> Path:
    """Folder of a config's nights."""
    return Path(config.output) / "nights" / config.name


def spool(config: Config, result: NightResult) -> Path:
    """Write the record of a night into the spool, atomically; a second attempt at a night replaces it."""
    record = night_record(config, result, dt.datetime.now(dt.UTC))
    path = nights_folder(config) / "spool" / f"{record.session.isoformat()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(record.model_dump_json(indent=1), encoding="utf-8")
    partial.replace(path)
    return path


def spooled(config: Config) -> list[NightRecord]:
    """Return the records that wait, oldest first.

    Raises
    ------
    DataError
        If one is damaged.
    """
    records = []
    for path in sorted((nights_folder(config) / "spool").glob("*.json")):
        try:
            records.append(NightRecord.model_validate_json(path.read_text(encoding="utf-8")))
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"The spooled record {path} is damaged ({reason}); delete it.") from None
    return records


def sync(config: Config, lake: Lake, progress: Progress) -> Synced:
    """Send to the tracking store what it does not have: runs of model versions, nights, aliases.

    All that is sent is a function of the lake and of the folders of runs and nights. Nothing is sent twice.

    Raises
    ------
    TrackingError
        If the tracking store cannot be reached; what was not sent stays.
    """
    waiting = spooled(config)
    named = [champion(lake, config.name), challenger(lake, config.name)]
    versions = tuple(dict.fromkeys(one for one in named if one is not None))
    with progress.stage("track"):
        for version in versions:
            run = open_version(version, Path(config.output))
            log_run(replace(run, config=run.config.model_copy(update={"tracking": config.tracking})))
        for record in waiting:
            log_night(config, record, nights_folder(config))
            (nights_folder(config) / "spool" / f"{record.session.isoformat()}.json").unlink()
    return Synced(tuple(record.session for record in waiting), versions)


def night_record(config: Config, result: NightResult, ended_at: dt.datetime) -> NightRecord:
    """Summarise a night for the tracking store."""
    own = result.signals
    if result.champion is not None:
        own = own.filter(own["version"] == str(result.champion))
    metrics = {
        "signals": float(own["signal"].is_not_null().sum()) if own.height else 0.0,
        "seconds": sum(result.seconds.values()),
        **{f"seconds.{step}": seconds for step, seconds in result.seconds.items()},
        **{f"findings.{level}": float(_count(result, level)) for level in ("warn", "fail")},
    }
    if result.book.height:
        metrics["trades"] = float((result.book["trade"] != 0).sum())
        metrics["turnover"] = float(result.book["trade"].abs().sum()) / 2.0
    versions = {"champion": result.champion, "challenger": result.challenger}
    nights = nights_folder(config)
    files = [
        path for path in sorted(result.folder.rglob("*")) if path.is_file() and ".partial" not in path.name
    ]
    return NightRecord(
        config=result.config,
        session=result.session,
        ended_at=ended_at,
        error=result.error,
        tags={"state": result.state, **{k: str(v) for k, v in versions.items() if v is not None}},
        metrics=metrics,
        files={path.relative_to(result.folder).as_posix(): str(path.relative_to(nights)) for path in files},
    )


def _count(result: NightResult, level: str) -> int:
    return sum(finding.level == level for finding in result.findings)
