"""Records of nights on their way to the tracking store: ``<output>/nights/<config>/spool/<session>.json``.

A night writes its record here first, and removes it when the store has it. The next night or ``peerglass
track sync`` sends what waits, the oldest first; sending twice does no harm. A damaged record is set aside.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
from pydantic import BaseModel, ConfigDict

from pipelines.config.schema import Config
from pipelines.errors import DataError, one_line
from pipelines.files import write_text
from pipelines.lake.lake import Lake
from pipelines.nightly.result import ModelVersion, NightResult, nights_folder, peak_memory_bytes
from pipelines.nightly.versions import aliases, open_version
from pipelines.progress import Progress
from pipelines.run.record import git_commit
from pipelines.tracking import store
from pipelines.tracking.runs import log_run


class TrackedNight(BaseModel):
    """What the store is told about a night; tags may change later, files are relative to its nights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str
    session: dt.date
    ended_at: dt.datetime
    error: str | None = None
    tags: dict[str, str] = {}
    metrics: dict[str, float] = {}
    files: dict[str, str] = {}


def _log_night(config: Config, night: TrackedNight, nights: Path) -> None:
    """Log a night. Logging it again changes only what has changed. A file that is gone is left out."""
    own = {"config": night.config, "session": night.session.isoformat()}
    tags = {f"peerglass.{key}": value for key, value in own.items()}
    with store.open_store(config) as client:
        experiment = store.experiment_of(client, config, "-nightly")
        query = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in tags.items())
        began = store.milliseconds(night.ended_at - dt.timedelta(seconds=night.metrics.get("seconds", 0.0)))
        found = client.search_runs([experiment], query, max_results=1) or [
            client.create_run(experiment, start_time=began, tags=tags, run_name=own["session"])
        ]
        store.log(client, found[0], parameters=own, tags=night.tags, metrics={0: night.metrics})
        files = {place: nights / path for place, path in night.files.items() if (nights / path).is_file()}
        store.log_artifacts(client, found[0].info.run_id, files)
        store.end_run(client, found[0], night.error, night.ended_at)


@dataclass(frozen=True, slots=True)
class Synced:
    """Sessions of the nights that were sent, and the model versions whose runs are in the store now."""

    nights: tuple[dt.date, ...]
    versions: tuple[ModelVersion, ...]


def spool(config: Config, result: NightResult) -> Path:
    """Write the record of a night into the spool, atomically; a second attempt at a night replaces it."""
    night = tracked_night(config, result, dt.datetime.now(dt.UTC))
    return write_text(_spool_file(config, night.session), night.model_dump_json(indent=1))


def _spool_file(config: Config, session: dt.date) -> Path:
    return nights_folder(config) / "spool" / f"{session.isoformat()}.json"


def spooled(config: Config, notify: Callable[[str], None]) -> list[TrackedNight]:
    """Return the records that wait, oldest first; a damaged one is renamed, and ``notify`` hears of it."""
    records = []
    for path in sorted((nights_folder(config) / "spool").glob("*.json")):
        try:
            night = TrackedNight.model_validate_json(path.read_bytes())
            if (night.config, night.session.isoformat()) != (config.name, path.stem):
                raise ValueError(f"it is that of {night.config}, night of {night.session}")
        except ValueError as error:
            aside = path.replace(path.with_name(f"{path.name}.damaged"))
            notify(
                f"The spooled record of the night of {path.stem} is damaged ({one_line(error)}), so it is "
                f"not sent to the tracking store. It was renamed to {aside}; the results of the night are in "
                "the lake."
            )
            continue
        records.append(night)
    return records


def sync(config: Config, lake: Lake, progress: Progress) -> Synced:
    """Send to the tracking store what it does not have: runs of model versions, nights, aliases."""
    waiting = spooled(config, progress.note)
    with progress.stage("track"):
        for night in waiting:
            _log_night(config, night, nights_folder(config))
            _spool_file(config, night.session).unlink(missing_ok=True)
    versions = mirror_aliases(config, lake, progress)
    return Synced(tuple(night.session for night in waiting), versions)


def describe_synced(synced: Synced, config: Config) -> str:
    """Say what was sent, in one line."""
    nights = f"{len(synced.nights)} night{'' if len(synced.nights) == 1 else 's'}"
    span = f" ({synced.nights[0]} to {synced.nights[-1]})" if synced.nights else ""
    versions = ", ".join(map(str, synced.versions)) or "none"
    return f"{config.name}: {nights} sent{span}; versions with an alias: {versions}."


def tracked_night(config: Config, result: NightResult, ended_at: dt.datetime) -> TrackedNight:
    """Summarise a night for the tracking store: figures as metrics, the folder's files as artifacts."""
    levels = Counter(finding.level for finding in result.findings)
    metrics = {
        "signals": float(result.signal_count),
        "trades": float(result.trade_count),
        "seconds": sum(result.seconds.values()),
        "peak_memory_bytes": float(peak_memory_bytes()),
        **{f"seconds.{step}": seconds for step, seconds in result.seconds.items()},
        **{f"findings.{level}": float(levels[level]) for level in ("ok", "warn", "fail")},
    }
    if result.book.height:
        metrics["turnover"] = result.turnover
    realised = result.tables.get("realised_ic", pl.DataFrame())
    if not realised.is_empty():  # of the newest session whose label the night knows
        newest = realised.filter(pl.col("session") == pl.col("session").max().over("role"))
        for row in newest.iter_rows(named=True):
            known = {figure: row[figure] for figure in ("ic", "rank_ic") if row[figure] is not None}
            metrics |= {f"realised.{row['role']}.{figure}": float(value) for figure, value in known.items()}
    profits = result.tables.get("profits", pl.DataFrame())
    if not profits.is_empty():
        from pipelines.nightly.book.account import earned

        figures = {"nav": profits["nav"][-1], "gross": profits["gross"][-1], **earned(profits)}
        metrics |= {f"account.{name}": float(value) for name, value in figures.items() if value is not None}
    versions = {"champion": result.champion, "challenger": result.challenger}
    tags = {alias: str(version) for alias, version in versions.items() if version is not None}
    tags |= {"state": result.state, store.NOTE_TAG: _note(result, metrics)}
    return TrackedNight(
        config=result.config,
        session=result.session,
        ended_at=ended_at,
        error=result.error,
        tags=tags | store.who_and_what() | store.commit_tags(git_commit()),
        metrics=metrics,
        files={
            path.relative_to(result.folder).as_posix(): path.relative_to(nights_folder(config)).as_posix()
            for path in sorted(result.folder.rglob("*"))
            if path.is_file() and not path.name.endswith(".partial")
        },
    )


def _note(result: NightResult, metrics: Mapping[str, float]) -> str:
    """Describe a night in Markdown: its state, signals, trades and account, then the warnings."""
    lines = [f"Night of {result.session} of the config `{result.config}`: {result.error or result.state}."]
    if result.champion is not None:
        lines.append(f"`{result.champion}` gave {result.signal_count:,} signals.")
    if result.book.height:
        lines.append(
            f"The book {result.book['book'][0]} has {result.trade_count:,} trades, with a turnover of "
            f"{result.turnover:.1%} and an expected cost of {1e4 * result.expected_cost:.1f} bp."
        )
    if "account.pnl" in metrics:
        lines.append(f"P&L {metrics['account.pnl']:+,.0f}, NAV {metrics['account.nav']:,.0f}.")
    warnings = [f"- {one.sentence}" for one in result.findings if one.level == "warn"]
    return "\n\n".join((" ".join(lines), *(["\n".join(warnings)] if warnings else [])))


def mirror_aliases(config: Config, lake: Lake, progress: Progress) -> tuple[ModelVersion, ...]:
    """Send the runs of champion and challenger, unless they are gone, and set MLflow's aliases."""
    named = aliases(lake, config.name)
    versions = tuple(version for version in named.values() if version is not None)
    with progress.stage("track"):
        for version in versions:
            try:
                run = open_version(version, Path(config.output))
            except DataError as error:
                progress.note(f"{error} It is not sent to the tracking store.")
                continue
            log_run(replace(run, config=run.config.model_copy(update={"tracking": config.tracking})))
        pairs = {alias: None if one is None else (one.run_id, one.model) for alias, one in named.items()}
        store.set_aliases(config, {str(alias): pair for alias, pair in pairs.items()})
    return versions
