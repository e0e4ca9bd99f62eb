"""A prune keeps the runs that nights refer to: present and past champions, challengers and what scored."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from recorded import recorded

from pipelines.commands.runs import plan_prune
from pipelines.config.load import check_config
from pipelines.dataset.tables import open_lake
from pipelines.lake.lake import Lake

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
OUTPUT = Path("runs")
MODELS = ("champion", "past", "challenger", "scored", "shadow", "unused")


@pytest.fixture
def runs(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Name -> id of recorded runs on one lake, which has nights of the config ``tiny``."""
    monkeypatch.chdir(tmp_path)
    made = {}
    for name in MODELS:
        made[name] = recorded(check_config({**tiny, "name": name}, origin="tiny"), {"prices": 1}).run_id
    lake = open_lake(check_config(tiny, origin="tiny"))
    promote(lake, [("champion", made["past"]), ("challenger", made["champion"])])
    promote(lake, [("champion", made["champion"]), ("challenger", made["challenger"])], first=3)
    for session in (1, 2):
        lake.upsert("signals", signals(dt.date(2024, 2, session), made["scored"]))
    lake.upsert("nights", night(dt.date(2024, 2, 1), made["champion"], made["shadow"]))
    return made


def version(run_id: str) -> str:
    return f"{run_id}/ridge"


def promote(lake: Lake, changes: list[tuple[str, str]], first: int = 1) -> None:
    rows = [
        {
            "config": "tiny",
            "number": number,
            "alias": alias,
            "version": version(run_id),
            "session": None,
            "by": "test",
            "why": "test",
            "forced": False,
            "evidence": "{}",
            "created_at": NOW,
        }
        for number, (alias, run_id) in enumerate(changes, start=first)
    ]
    lake.upsert("promotions", pl.DataFrame(rows, schema_overrides={"session": pl.Date}))


def signals(session: dt.date, run_id: str) -> pl.DataFrame:
    row = {
        "config": "tiny",
        "session": session,
        "ticker": "A",
        "version": version(run_id),
        "revision": 1,
        "signal": None,
        "rank": None,
        "seed_dispersion": None,
        "in_universe": False,
        "data_versions": "{}",
        "created_at": NOW,
    }
    return pl.DataFrame(
        [row], schema_overrides=dict.fromkeys(("signal", "rank", "seed_dispersion"), pl.Float64)
    )


def night(session: dt.date, champion: str, challenger: str) -> pl.DataFrame:
    row = {
        "config": "tiny",
        "session": session,
        "state": "done",
        "version": version(champion),
        "challenger": version(challenger),
        "data_versions": "{}",
        "rows": 1,
        "trades": 0,
        "warnings": "[]",
        "error": None,
        "seconds": 1.0,
        "peak_memory_bytes": 1,
        "created_at": NOW,
    }
    return pl.DataFrame([row], schema_overrides={"error": pl.String})


@pytest.mark.parametrize("by_age", [False, True])
def test_only_a_run_that_no_night_refers_to_goes(runs: dict[str, str], by_age: bool) -> None:
    names, days = ([], 90) if by_age else (list(runs.values()), None)
    planned = plan_prune(OUTPUT, names, days, NOW)
    assert [one.run_id for one in planned.removals] == [runs["unused"]]
    assert sorted(planned.kept) == sorted(
        [
            f"{runs['champion']} is the champion of tiny.",
            f"{runs['past']} was the champion of tiny.",
            f"{runs['challenger']} is the challenger of tiny.",
            f"{runs['scored']} scored 2 nights of tiny, the last one 2024-02-02.",
            f"{runs['shadow']} scored 1 night of tiny, the last one 2024-02-01.",
        ]
    )


def test_a_run_whose_lake_is_gone_may_go(runs: dict[str, str]) -> None:
    shutil.rmtree("lake")
    planned = plan_prune(OUTPUT, [runs["champion"]], None, NOW)
    assert [one.run_id for one in planned.removals] == [runs["champion"]]


def test_a_damaged_run_is_kept_for_what_the_lake_of_the_others_says(runs: dict[str, str]) -> None:
    (OUTPUT / runs["past"] / "run.json").write_text("{")
    assert plan_prune(OUTPUT, [runs["past"]], None, NOW).kept == (
        f"{runs['past']} was the champion of tiny.",
    )


def test_a_run_stays_while_its_lake_cannot_tell(runs: dict[str, str]) -> None:
    shutil.rmtree("lake/promotions")
    Path("lake/promotions").write_text("no table")
    planned = plan_prune(OUTPUT, [runs["unused"]], None, NOW)
    assert planned.removals == ()
    assert f"{runs['unused']}: its lake cannot be read" in planned.kept[0]
    assert "so it is unknown whether a night refers to it" in planned.kept[0]
    assert json.loads((OUTPUT / runs["unused"] / "run.json").read_text())["run_id"] == runs["unused"]
