"""The sealed record: a season of nights, what is done to it afterwards, and what the verifiers say of it."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from backtest.inference.anytime import confidence_sequence
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import schema
from pipelines.nightly.record import describe_evidence, evidence, publish, seal, verify
from pipelines.nightly.result import ModelVersion, NightResult, NightSource, night_folder, nights_folder
from pipelines.run import verify_record

NIGHTS = 60
FIRMS = ("AAA", "BBB", "CCC")
NOON = dt.time(21, 30, tzinfo=dt.UTC)
Record = tuple[Config, Lake, list[str]]


def rows_of(config: Config, session: dt.date, number: int, now: dt.datetime) -> list[pl.DataFrame]:
    """Signals and orders of a night, which depend on its number."""
    own = {"config": config.name, "session": session, "created_at": now}
    signals = pl.DataFrame(
        {
            "ticker": FIRMS,
            "version": "run/ridge",
            "revision": 1,
            "signal": [number / 7.0 + i for i in range(3)],
            "rank": [0.0, 0.5, 1.0],
            "seed_dispersion": None,
            "in_universe": True,
            "data_versions": "{}",
        },
        schema_overrides={"revision": pl.Int64, "seed_dispersion": pl.Float64},
    ).with_columns(**{name: pl.lit(value) for name, value in own.items()})
    trade = [0.1, -0.1 * (number % 3), 0.0]
    books = pl.DataFrame(
        {
            "ticker": FIRMS,
            "book": "top",
            "version": "run/ridge",
            "weight": trade,
            "decided": trade,
            "previous": 0.0,
            "trade": trade,
            "expected_cost": 1e-4,
            "fill_sessions": 1,
            "bound": None,
            "tradable": True,
            "price": 10.0,
            "shares": 100.0,
        },
        schema_overrides={"fill_sessions": pl.Int64, "bound": pl.String},
    ).with_columns(**{name: pl.lit(value) for name, value in own.items()})
    return [signals, books]


def seal_night(config: Config, lake: Lake, session: dt.date, number: int, now: dt.datetime) -> None:
    """Seal what a night has written."""
    empty = pl.DataFrame()
    version, folder = ModelVersion("run", "ridge"), night_folder(config, session)
    result = NightResult(
        config.name, session, "done", folder, version, None, empty, empty, (), {}, empty, empty
    )
    seal(config, lake, result, NightSource({"prices": number}, {}, {"book": {"name": "top"}}), now)


@pytest.fixture(scope="module")
def season(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_settings: Mapping[str, Any],
    tiny_tables: Mapping[str, pl.DataFrame],
) -> Record:
    """Sixty sealed nights; each is sealed on the evening of its session, but the last three a week later."""
    folder = tmp_path_factory.mktemp("record")
    config = check_config({**tiny_settings, "output": str(folder / "runs")}, origin="record")
    lake = Lake(folder / "lake")
    lake.upsert("prices", tiny_tables["prices"])
    days = tiny_tables["prices"]["date"].unique().sort()[200 : 200 + NIGHTS].to_list()
    late = [dt.timedelta(days=7 if number >= NIGHTS - 3 else 0) for number in range(NIGHTS)]
    made = [dt.datetime.combine(day, NOON) + wait for day, wait in zip(days, late, strict=True)]
    nights = [rows_of(config, *one) for one in zip(days, range(NIGHTS), made, strict=True)]
    for table, of_all in zip(("signals", "books"), zip(*nights, strict=True), strict=True):
        lake.upsert(table, pl.concat(of_all))
    for number, (session, frames) in enumerate(zip(days, nights, strict=True)):
        night_folder(config, session).mkdir(parents=True)
        for name, frame in zip(("signals", "book"), frames, strict=True):
            frame.write_csv(night_folder(config, session) / f"{name}.csv")
        seal_night(config, lake, session, number, made[number])
    return config, lake, [str(day) for day in days]


def script(folder: Path) -> tuple[int, str]:
    """What the script says without anything of Peerglass."""
    asked = [sys.executable, "-I", verify_record.__file__, str(folder)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=folder.parent)
    assert not done.stderr
    return done.returncode, done.stdout


def test_a_season_that_nobody_touched_is_whole(season: Record) -> None:
    config, lake, days = season
    found = verify(config, lake)
    assert found["problems"] == []
    assert (found["entries"], found["first"], found["last"]) == (NIGHTS, days[0], days[-1])
    assert found["in_time"] == NIGHTS - 3
    assert script(nights_folder(config)) == (0, "The record is whole.\n")


def test_the_script_is_short_and_needs_nothing() -> None:
    text = Path(verify_record.__file__).read_text("utf-8")
    assert len(text.splitlines()) <= 60
    imported = {line.split()[1].partition(".")[0] for line in text.splitlines() if "import " in line[:12]}
    imported |= {line.split()[1] for line in text.splitlines() if line.startswith("from ")}
    assert imported <= {*sys.stdlib_module_names, "collections.abc"}


def test_a_night_that_is_played_again_adds_no_entry(season: Record) -> None:
    config, lake, days = season
    before = (nights_folder(config) / "record.jsonl").read_bytes()
    last = dt.date.fromisoformat(days[-1])
    seal_night(config, lake, last, NIGHTS - 1, dt.datetime.combine(last, NOON) + dt.timedelta(days=7))
    assert (nights_folder(config) / "record.jsonl").read_bytes() == before


def test_a_night_that_was_decided_anew_is_named_and_its_new_entry_counts(
    season: Record, tmp_path: Path
) -> None:
    config, lake, days = season
    copied = config.model_copy(update={"output": str(tmp_path)})
    shutil.copytree(nights_folder(config), nights_folder(copied))
    replaced(nights_folder(copied) / days[-1] / "book.csv", "0.1", "0.3")
    last = dt.date.fromisoformat(days[-1])
    seal_night(copied, lake, last, NIGHTS - 1, dt.datetime.combine(last, NOON) + dt.timedelta(days=9))
    found = verify(copied, lake)
    assert (found["entries"], found["sealed_again"], found["problems"]) == (NIGHTS + 1, [days[-1]], [])
    assert found["in_time"] == NIGHTS - 3


def lines(folder: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the entries of a record, without sealing them again."""
    path = folder / "record.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    changed = change(entries)
    kept = entries if changed is None or not isinstance(changed, list) else changed
    path.write_text("".join(json.dumps(one, sort_keys=True, separators=(",", ":")) + "\n" for one in kept))


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def resealed(entries: list[dict[str, Any]], at: int, **change: Any) -> None:  # noqa: ANN401 (fields)
    """Change an entry and compute its own hash again, as a careful forger does."""
    entries[at] |= change
    entries[at]["hash"] = verify_record.entry_hash(entries[at])


def drop_row(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


TAMPERINGS: Mapping[str, tuple[Callable[[Path, list[str]], object], int]] = {
    "a signal": (lambda f, d: replaced(f / d[5] / "signals.csv", "0.714", "0.814"), 5),
    "a signal of the last night": (lambda f, d: replaced(f / d[59] / "signals.csv", "8.4", "9.4"), 59),
    "a weight": (lambda f, d: replaced(f / d[7] / "book.csv", "0.1", "0.2"), 7),
    "a row of signals": (lambda f, d: drop_row(f / d[9] / "signals.csv"), 9),
    "a row of the book": (lambda f, d: drop_row(f / d[11] / "book.csv"), 11),
    "the file of a book": (lambda f, d: (f / d[12] / "book.csv").unlink(), 12),
    "the settings": (lambda f, d: replaced(f / d[13] / "settings.json", '"top"', '"best"'), 13),
    "the config of a later night": (
        lambda f, d: shutil.copy(f / d[40] / "settings.json", f / d[14] / "settings.json"),
        14,
    ),
    "the model": (lambda f, d: replaced(f / d[15] / "settings.json", "run/ridge", "run/other"), 15),
    "two nights exchanged": (
        lambda f, d: (
            (f / d[16]).rename(f / "x"),
            (f / d[17]).rename(f / d[16]),
            (f / "x").rename(f / d[17]),
        ),
        16,
    ),
    "a night": (lambda f, d: shutil.rmtree(f / d[18]), 18),
    "an entry": (lambda f, d: lines(f, lambda e: e.pop(20)), 20),
    "the first entry": (lambda f, d: lines(f, lambda e: e.pop(0)), 0),
    "the last entry": (lambda f, d: lines(f, lambda e: e.pop()), 59),
    "the order of the entries": (lambda f, d: lines(f, lambda e: e.insert(22, e.pop(23))), 22),
    "an entry twice": (lambda f, d: lines(f, lambda e: e.insert(24, e[24])), 24),
    "a hash of a file": (
        lambda f, d: lines(f, lambda e: e[25]["files"].update({"book.csv": "0" * 64})),
        25,
    ),
    "an entry with a new hash": (lambda f, d: lines(f, lambda e: resealed(e, 26, tables={})), 26),
    "a clock set back": (
        lambda f, d: lines(f, lambda e: resealed(e, 27, sealed_at="2001-01-01T00:00:00+00:00")),
        27,
    ),
    "a night that is dated back": (
        lambda f, d: lines(f, lambda e: resealed(e, 58, session=d[3], number=4)),
        58,
    ),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_a_tampering_is_found_and_the_night_is_named(season: Record, tmp_path: Path, what: str) -> None:
    config, lake, days = season
    copied = config.model_copy(update={"output": str(tmp_path)})
    folder = nights_folder(copied)
    shutil.copytree(nights_folder(config), folder)
    tamper, at = TAMPERINGS[what]
    tamper(folder, days)
    code, said = script(folder)
    assert code == 4
    assert days[at] in said, said
    assert set(said.splitlines()) <= set(verify(copied, lake)["problems"])


def test_a_row_that_was_changed_in_the_lake_alone_is_found(season: Record, tmp_path: Path) -> None:
    config, lake, days = season
    shutil.copytree(lake.root, tmp_path / "lake")
    changed = Lake(tmp_path / "lake")
    session = dt.date.fromisoformat(days[30])
    of_night = (pl.col("session") == session) & (pl.col("ticker") == "BBB")
    rows = changed.rows("books", filters=of_night).with_columns(weight=pl.lit(0.77))
    changed.upsert("books", rows)
    (problem,) = verify(config, changed)["problems"]
    assert problem == (
        f"The table books in the lake differs from what was sealed for the night of {days[30]}."
    )


def test_a_later_revision_of_a_signal_is_no_tampering(season: Record, tmp_path: Path) -> None:
    config, lake, days = season
    shutil.copytree(lake.root, tmp_path / "lake")
    corrected = Lake(tmp_path / "lake")
    session = dt.date.fromisoformat(days[30])
    rows = corrected.rows("signals", filters=pl.col("session") == session)
    later = pl.lit(dt.datetime.now(dt.UTC))
    corrected.upsert(
        "signals", rows.with_columns(revision=pl.lit(2, pl.Int64), created_at=later, signal=pl.lit(0.5))
    )
    assert verify(config, corrected)["problems"] == []


def test_evidence_is_of_the_nights_that_were_sealed_in_time(season: Record, tmp_path: Path) -> None:
    config, lake, days = season
    copied = config.model_copy(update={"output": str(tmp_path)})
    shutil.copytree(nights_folder(config), nights_folder(copied))
    rank_ic_T = np.random.default_rng(6).normal(0.2, 0.1, NIGHTS)
    sessions = [dt.date.fromisoformat(day) for day in days]
    realised = pl.DataFrame({"session": sessions, "rank_ic": rank_ic_T, "role": "champion"})
    path = nights_folder(copied) / days[-1] / "monitor" / "realised_ic.parquet"
    path.parent.mkdir()
    pl.concat([realised, realised.with_columns(role=pl.lit("challenger"))]).write_parquet(path)
    found = evidence(copied, lake)
    assert found["nights"] == NIGHTS - 3
    lower_T, upper_T = confidence_sequence(rank_ic_T[:-3], overlap=config.label.horizon)
    assert found["figures"]["rank_ic"] == {
        "sessions": NIGHTS - 3,
        "mean": pytest.approx(rank_ic_T[:-3].mean()),
        "lower": pytest.approx(lower_T[-1]),
        "upper": pytest.approx(upper_T[-1]),
        "excludes_zero_since": days[39],
    }
    assert found["figures"]["return"]["sessions"] == 0
    said = describe_evidence(found)
    assert f"it excludes zero since {days[39]}" in said
    assert "an interval needs 40 independent sessions" in said


def test_a_return_belongs_to_the_night_that_decided_it(season: Record, tmp_path: Path) -> None:
    config, lake, days = season
    shutil.copytree(lake.root, tmp_path / "lake")
    booked = Lake(tmp_path / "lake")
    return_T = np.random.default_rng(7).normal(0.01, 0.005, NIGHTS)
    nav_T = 1e6 * np.cumprod(1.0 + return_T)
    pnl_T = nav_T - np.append(1e6, nav_T[:-1])
    sessions = [dt.date.fromisoformat(day) for day in days]
    other = dict.fromkeys(("capital", "gross", "cash", "fee", "charge", "dividend", "backtest_nav"), 1.0)
    rows = {
        **{"config": config.name, "session": sessions, "filled_by": "rule", "nav": nav_T, "pnl": pnl_T},
        **{
            **other,
            "revision": 0.0,
            "positions": 1,
            "night": sessions,
            "created_at": dt.datetime.now(dt.UTC),
        },
    }
    empty = schema("profits").create_empty().schema
    booked.upsert("profits", pl.DataFrame(rows).select(pl.col(n).cast(t) for n, t in empty.items()))
    found = evidence(config, booked)["figures"]["return"]
    held = max(1, config.label.delay) + 1  # a decision of t is traded at the close of t + delay
    of_nights = return_T[held:][: NIGHTS - 3]  # the last three nights were sealed late
    assert found["sessions"] == len(of_nights)
    assert found["mean"] == pytest.approx(of_nights.mean())
    lower_T, _ = confidence_sequence(of_nights)
    assert found["lower"] == pytest.approx(lower_T[-1])


def git(folder: Path, *arguments: str) -> str:
    own = ("-c", "user.name=q", "-c", "user.email=q@example.org")
    done = subprocess.run(
        ["git", *own, "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_record_is_committed_and_pushed(
    season: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _, _ = season
    subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "remote")], check=True)
    subprocess.run(
        ["git", "clone", "--quiet", str(tmp_path / "remote"), str(tmp_path / "clone")],
        check=True,
        capture_output=True,
    )
    git(tmp_path / "clone", "config", "user.name", "q")
    git(tmp_path / "clone", "config", "user.email", "q@example.org")
    git(tmp_path / "clone", "commit", "--quiet", "--allow-empty", "--message", "first")
    git(tmp_path / "clone", "push", "--quiet", "--set-upstream", "origin", "HEAD")
    nightly = config.nightly.model_copy(update={"record": str(tmp_path / "clone")})
    published = config.model_copy(update={"nightly": nightly})
    assert publish(config) == []
    assert publish(published) == []
    assert publish(published) == [], "nothing has changed since"
    shown = git(tmp_path / "remote", "show", f"HEAD:{config.name}.jsonl")
    assert shown == (nights_folder(config) / "record.jsonl").read_text().strip()
    assert git(tmp_path / "remote", "rev-list", "--count", "HEAD") == "2"
    shutil.rmtree(tmp_path / "remote")
    (warning,) = publish(published)
    assert warning.level == "warn"
    assert "could not be committed" in warning.sentence
    hook = tmp_path / "clone/.git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\nexec sleep 60\n")
    hook.chmod(0o755)
    git(tmp_path / "clone", "reset", "--quiet", "--hard", "HEAD~1")
    monkeypatch.setattr("pipelines.nightly.record._PUSH_SECONDS", 1.0)
    (warning,) = publish(published)
    assert "timed out after" in warning.sentence
