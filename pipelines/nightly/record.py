"""The sealed record of the nights: what was decided, hashed before its outcome is known.

Every finished night appends an entry to ``record.jsonl`` beside the folders of the nights. It has the SHA-256
of the night's signals, orders and settings, and the hash of the entry before, so that no earlier entry can be
changed alone. A copy of the newest hash outside, such as a commit in a git repository, shows that the chain
is not written anew (Haber and Stornetta 1991, "How to time-stamp a digital document").
"""

import datetime as dt
import hashlib
import json
import os
import shutil
import subprocess
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.inference.anytime import BURN_IN, confidence_sequence
from pipelines.config.schema import Config
from pipelines.errors import DataError
from pipelines.files import write_text
from pipelines.format import PERCENT, Kind
from pipelines.lake.lake import Lake
from pipelines.nightly.result import NightFinding, NightResult, NightSource, nights_folder
from pipelines.nightly.settings import trading_delay
from pipelines.run import verify_record
from pipelines.run.chain import append_entry, read_entries
from pipelines.run.identity import APART, CODE, folders_digest
from pipelines.run.record import git_commit
from pipelines.run.registration import FOLDER as REGISTERED
from pipelines.run.verify_record import RECORD, problems

SETTINGS: Final = "settings.json"
_SEALED: Final = ("signals.csv", "book.csv", SETTINGS)
_TABLES: Final = {
    "signals": ("ticker", "version", "revision", "signal", "rank", "in_universe"),
    "books": ("ticker", "weight", "previous", "trade", "expected_cost", "price", "shares"),
}
_PUSH_SECONDS: Final = 60


def seal(config: Config, lake: Lake, result: NightResult, source: NightSource, now: dt.datetime) -> None:
    """Append the entry of a finished night; a repeated night that decided the same adds none.

    The lake has the night's signals and orders, and the night's folder its files. ``now`` is in UTC.
    DataError if ``record.jsonl`` cannot be read.
    """
    decided = {
        "config": config.name,
        "champion": None if result.champion is None else str(result.champion),
        "challenger": None if result.challenger is None else str(result.challenger),
        "code": folders_digest(*CODE, without=APART),
        "commit": git_commit(),
        "data_versions": dict(source.versions),
        "table_ids": dict(source.table_ids),
        "settings": source.settings,
    }
    write_text(result.folder / SETTINGS, json.dumps(decided, indent=1, sort_keys=True))
    content = {
        "files": {
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name in _SEALED
            if (path := result.folder / name).is_file()
        },
        "tables": {
            table: _digest(rows, table, result.session, now)
            for table, rows in _sealed_rows(lake, config.name, result.session).items()
        },
    }
    append_entry(nights_folder(config), result.session.isoformat(), now, content)


def publish(config: Config, *, registered: bool = False) -> list[NightFinding]:
    """Commit the record to the git repository of ``nightly.record``, and push it if that has a remote.

    Whatever hinders it becomes a warning: the next time, the whole record is committed again. The record is
    that of the nights, or of the registrations of the config's output folder.
    """
    if config.nightly.record is None:
        return []
    clone = Path(config.nightly.record)
    name = f"{config.name}{'.registered' if registered else ''}.jsonl"
    try:
        folder = Path(config.output) / REGISTERED if registered else nights_folder(config)
        shutil.copyfile(folder / RECORD, clone / name)
        _git(clone, "add", "--", name)
        if _git(clone, "status", "--porcelain", "--", name):
            _git(clone, "commit", "--quiet", "--message", f"Sealed record of {config.name}", "--", name)
        if _git(clone, "remote"):
            _git(clone, "push", "--quiet")
    except (OSError, subprocess.SubprocessError) as error:
        told = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else ""
        said = told or str(error)
        sentence = (
            f"The record could not be committed to {clone} ({said.splitlines()[-1]}); correct "
            "nightly.record or the repository. The next time, the whole record is committed."
        )
        return [NightFinding("record", "warn", sentence)]
    return []


def verify(config: Config, lake: Lake) -> dict[str, Any]:
    """Compare the records of the nights and of the registrations with their files, and with the lake.

    Returned are config, folder, entries, first and last (sessions), head (the newest hash), in_time,
    sealed_again (sessions of nights that were decided anew; the newest entry counts), registrations (folder,
    entries and head of those in the output folder), and problems (sentences). A night is in time if it was
    sealed, by its clock, at the latest on the session at which its orders are traded. Without nights or
    registrations, first, last or head are None. DataError if nothing was sealed, or a record cannot be read.
    """
    folder, registered = nights_folder(config), Path(config.output) / REGISTERED
    entries, registrations = read_entries(folder), read_entries(registered)
    _require_entries(folder, [*entries, *registrations])
    found = [*problems(folder), *problems(registered)]
    newest = {entry["session"]: entry for entry in entries}
    stored = _sealed_rows(lake, config.name) if entries else {}
    for session, entry in newest.items():
        day, sealed_at = dt.date.fromisoformat(session), dt.datetime.fromisoformat(entry["sealed_at"])
        found += [
            f"The table {table} in the lake differs from what was sealed for the night of {session}."
            for table, digest in entry["tables"].items()
            if _digest(stored[table], table, day, sealed_at) != digest
        ]
    return {
        "config": config.name,
        "folder": str(folder),
        "entries": len(entries),
        "first": entries[0]["session"] if entries else None,
        "last": entries[-1]["session"] if entries else None,
        "head": entries[-1]["hash"] if entries else None,
        "in_time": len(_in_time(config, lake, entries)) if entries else 0,
        "sealed_again": sorted({one["session"] for one in entries if newest[one["session"]] is not one}),
        "registrations": {
            "folder": str(registered),
            "entries": len(registrations),
            "head": registrations[-1]["hash"] if registrations else None,
        },
        "problems": found,
    }


def evidence(config: Config, lake: Lake) -> dict[str, Any]:
    """Say what the nights that were sealed in time have earned, with intervals that hold on every night.

    Returned are config, nights (sealed in time) and figures: for ``rank_ic`` (of the champion's signals) and
    ``return`` (of the account, a session, after costs; it belongs to the newest night whose orders are held)
    the number of sessions, the mean, the bounds of its confidence sequence (null before it has any), and the
    first night at which these exclude zero, or null. DataError if no night was sealed, or the record cannot
    be read.
    """
    folder = nights_folder(config)
    entries = read_entries(folder)
    _require_entries(folder, entries)
    in_time = _in_time(config, lake, entries)
    watched = folder / entries[-1]["session"] / "monitor" / "realised_ic.parquet"
    figures = {}
    if watched.is_file():
        realised = pl.read_parquet(watched).filter(pl.col("role") == "champion").sort("session")
        figures["rank_ic"] = _figure(realised, "rank_ic", in_time, config.label.horizon)
    booked = lake.rows("profits", ["session", "nav", "pnl"], pl.col("config") == config.name).sort("session")
    # what a session earns was decided ``delay`` sessions before the close from which it is held
    earned = booked.select(
        pl.col("session").shift(trading_delay(config) + 1), pl.col("pnl") / (pl.col("nav") - pl.col("pnl"))
    ).drop_nulls()
    figures["return"] = _figure(earned, "pnl", in_time, 1)
    return {"config": config.name, "nights": len(in_time), "figures": figures}


def _figure(rows: pl.DataFrame, name: str, in_time: Collection[str], overlap: int) -> dict[str, Any]:
    """Mean of a daily series on sealed sessions, and its confidence sequence."""
    known = rows.filter(pl.col("session").dt.to_string("iso").is_in([*in_time])).drop_nulls(name)
    lower_T, upper_T = confidence_sequence(known[name].to_numpy(), overlap=overlap)
    apart = np.flatnonzero((lower_T > 0.0) | (upper_T < 0.0))
    bounds = [None if not len(x_T) or np.isnan(x_T[-1]) else float(x_T[-1]) for x_T in (lower_T, upper_T)]
    return {
        "sessions": known.height,
        "mean": known[name].mean(),
        "lower": bounds[0],
        "upper": bounds[1],
        "excludes_zero_since": str(known["session"][int(apart[0])]) if len(apart) else None,
    }


def describe_evidence(found: Mapping[str, Any]) -> str:
    """Format the answer of :func:`evidence` for a terminal."""
    lines = [f"record of {found['config']}: {found['nights']} nights sealed in time"]
    written = {
        "rank_ic": ("rank IC", Kind(4), ""),
        "return": ("return of a session, net", PERCENT.at(3), "%"),
    }
    for name, one in found["figures"].items():
        label, unit, end = written[name]
        mean, lower, upper = (unit.with_sign.text(one[key]) for key in ("mean", "lower", "upper"))
        since = one["excludes_zero_since"]
        said = f"it excludes zero since {since}" if since else "zero is not excluded yet"
        if one["lower"] is None:
            said = f"an interval needs {BURN_IN} independent sessions"
        measured = f"{mean}{end} [{lower}, {upper}] over {one['sessions']} sessions"
        lines.append(f"  {label:24}  {measured if one['sessions'] else 'no session yet'}; {said}")
    return "\n".join([*lines, "The intervals hold at 95% on all nights together, however often one looks."])


def describe(found: Mapping[str, Any]) -> str:
    """Format the answer of :func:`verify` for a terminal."""
    state = f"{len(found['problems'])} problems" if found["problems"] else "whole"
    registered = found["registrations"]
    nights = f"{found['entries']} nights, {found['first']} to {found['last']}"
    sealed = [nights] if found["entries"] else []
    sealed += [f"{registered['entries']} registrations"] if registered["entries"] else []
    lines = [
        f"record of {found['config']}: {'; '.join(sealed)}: {state}",
        *(f"  {sentence}" for sentence in found["problems"]),
    ]
    if found["entries"]:
        lines.append(
            f"  sealed in time  {found['in_time']} of {found['entries']}, by the clock of this machine"
        )
    if found["sealed_again"]:
        lines.append(f"  sealed again    {', '.join(found['sealed_again'])}")
    for one in (found, registered):
        if one["entries"]:
            lines += [
                f"  newest hash     {one['head']}",
                f"  without Peerglass: python {verify_record.__file__} {one['folder']}",
            ]
    return "\n".join(lines)


def _in_time(config: Config, lake: Lake, entries: Sequence[Mapping[str, Any]]) -> set[str]:
    """Sessions whose newest entry was sealed at the latest on the session at which its orders are traded."""
    sessions = [str(day) for day in lake.rows("prices", ["date"])["date"].unique().sort()]
    delay, found = trading_delay(config), set()
    for session, entry in {one["session"]: one for one in entries}.items():
        traded = bisect_right(sessions, session) + delay - 1
        if traded >= len(sessions) or entry["sealed_at"][:10] <= sessions[traded]:
            found.add(session)
    return found


def _require_entries(folder: Path, entries: Sequence[object]) -> None:
    if not entries:
        raise DataError(
            f"There is no record in {folder}; a night seals one, so play one with 'peerglass nightly CONFIG'."
        )


def _sealed_rows(lake: Lake, config: str, session: dt.date | None = None) -> dict[str, pl.DataFrame]:
    """Rows of the sealed tables in the lake, of one session or of all."""
    own = pl.col("config") == config
    if session is not None:
        own &= pl.col("session") == session
    return {
        table: lake.rows(table, ["session", "created_at", *columns], own)
        for table, columns in _TABLES.items()
    }


def _digest(rows: pl.DataFrame, table: str, session: dt.date, until: dt.datetime) -> str:
    """SHA-256 of the rows of a table that a night had when it was sealed, as canonical JSON."""
    columns, own = _TABLES[table], (pl.col("session") == session) & (pl.col("created_at") <= until)
    listed = rows.filter(own).select(columns).sort(columns[:3]).rows()
    return hashlib.sha256(json.dumps(listed, separators=(",", ":")).encode()).hexdigest()


def _git(clone: Path, *arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 (of the user's config)
        ["git", "-C", str(clone), *arguments],  # noqa: S607 (found on the PATH, as git is)
        env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},  # nobody answers at night
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PUSH_SECONDS,
        check=True,
    )
    return done.stdout.strip()
