"""When a version is trained: hand-made calendars, promotions and warnings."""

from __future__ import annotations

import datetime as dt
import json

import polars as pl
import pytest

from pipelines.config.nights import RetrainConfig
from pipelines.lake.schemas import schema
from pipelines.nightly.training import last_training, retraining_due
from pipelines.nightly.versions import named

SESSIONS = [dt.date(2024, 1, 25) + dt.timedelta(days=i) for i in range(14)]  # to 2024-02-07


def promotions(*rows: tuple[str, str | None, dt.date | None]) -> pl.DataFrame:
    """Rows of the table, newest first: alias, version and session, numbered from 1."""
    columns = ("alias", "version", "session")
    frame = pl.DataFrame(
        [dict(zip(columns, row, strict=True)) | {"number": i} for i, row in enumerate(rows, 1)],
        schema={"number": pl.Int64, "alias": pl.String, "version": pl.String, "session": pl.Date},
    )
    return frame.reverse() if rows else schema("promotions").create_empty()


def nights(*warnings: list[tuple[str, str | None]]) -> pl.DataFrame:
    """Nights, newest first, with these warnings."""
    texts = [json.dumps([{"check": c, "subject": s, "sentence": "."} for c, s in one]) for one in warnings]
    return pl.DataFrame({"warnings": texts}, schema={"warnings": pl.String})


def why(config: RetrainConfig, day: dt.date, table: pl.DataFrame, before: pl.DataFrame | None = None) -> str:
    """Why a version is trained on a day; "" if none is."""
    due = retraining_due(
        config, [s for s in SESSIONS if s <= day], table, nights() if before is None else before
    )
    return "" if due is None else f"{due.alias}: {due.why}"


@pytest.mark.parametrize("when", ["never", "sessions", "monthly"])
def test_the_first_night_trains_the_champion(when: str) -> None:
    config = RetrainConfig.model_validate({"when": when})
    assert why(config, SESSIONS[0], promotions()) == "champion: first version"


def test_monthly_is_the_first_night_of_another_month() -> None:
    table = promotions(("champion", "a/m", SESSIONS[0]))
    days = [day for day in SESSIONS if why(RetrainConfig(), day, table)]
    assert days == [day for day in SESSIONS if day.month == 2]  # until one of them trains
    trained = promotions(("champion", "a/m", SESSIONS[0]), ("challenger", "b/m", dt.date(2024, 2, 2)))
    assert [day for day in SESSIONS if day.month == 2 and why(RetrainConfig(), day, trained)] == []


def test_a_number_of_sessions_counts_from_the_last_training() -> None:
    config = RetrainConfig(when="sessions", every=5)
    table = promotions(("champion", "a/m", SESSIONS[0]), ("challenger", "b/m", SESSIONS[3]))
    assert next(SESSIONS.index(day) for day in SESSIONS if why(config, day, table)) == 8
    assert why(config, SESSIONS[8], table) == f"challenger: 5 sessions since the training of {SESSIONS[3]}"


def test_a_promotion_is_not_a_training() -> None:
    table = promotions(
        ("champion", "a/m", SESSIONS[0]),
        ("challenger", "b/m", SESSIONS[1]),
        ("champion", "b/m", SESSIONS[5]),
        ("challenger", None, SESSIONS[5]),
    )
    assert last_training(table) == SESSIONS[1]
    assert str(named(table, "champion")) == "b/m"


def test_an_alarm_retrains_once() -> None:
    config = RetrainConfig(when="never", on_drift=True)
    table = promotions(("champion", "a/m", SESSIONS[0]))
    alarm: list[tuple[str, str | None]] = [("drift", "return_5"), ("coverage", None)]
    assert why(config, SESSIONS[3], table, nights(alarm, [])) == "challenger: alarm of drift of return_5"
    assert why(config, SESSIONS[4], table, nights(alarm, alarm, [])) == ""
    assert why(config, SESSIONS[4], table, nights([("coverage", None)])) == ""
    assert why(RetrainConfig(when="never"), SESSIONS[3], table, nights(alarm, [])) == ""


def test_a_champion_that_no_night_trained_is_followed_by_a_training() -> None:
    table = promotions(("champion", "a/m", None))
    assert why(RetrainConfig(), SESSIONS[0], table) == "challenger: no training by a night is recorded"
    assert why(RetrainConfig(when="never"), SESSIONS[0], table) == ""
