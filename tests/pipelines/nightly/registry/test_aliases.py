"""Aliases of model versions: history, idempotence, demotion, and processes that change them at once."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warm import Process

from pipelines.lake.lake import Lake
from pipelines.nightly.result import ModelVersion
from pipelines.nightly.versions import (
    Reason,
    alias_history,
    aliases,
    champion,
    demotion,
    enter_version,
    previous_champion,
    set_alias,
)

A, B, C = (ModelVersion(f"demo-{letter}", "ridge") for letter in "abc")
DAY = dt.date(2024, 1, 31)
BY_HAND = Reason("better", "ann@desk")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def test_a_lake_without_promotions_names_nobody(lake: Lake) -> None:
    assert champion(lake, "demo") is None
    assert aliases(lake, "demo")["challenger"] is None
    assert previous_champion(lake, "demo") is None
    assert alias_history(lake, "demo").is_empty()


def test_the_first_version_is_champion_and_the_next_challenger(lake: Lake) -> None:
    assert enter_version(lake, "demo", A, "nightly", DAY, why="monthly")
    assert enter_version(lake, "demo", B, "nightly", DAY, why="monthly")
    assert (champion(lake, "demo"), aliases(lake, "demo")["challenger"]) == (A, B)
    assert alias_history(lake, "demo").select(
        "number", "alias", "version", "session", "by", "why", "forced"
    ).rows() == [
        (2, "challenger", "demo-b/ridge", DAY, "nightly", "monthly", False),
        (1, "champion", "demo-a/ridge", DAY, "nightly", "monthly", False),
    ]


def test_a_version_that_has_lost_its_alias_does_not_enter_again(lake: Lake) -> None:
    enter_version(lake, "demo", A, "nightly", DAY, why="monthly")
    enter_version(lake, "demo", B, "nightly", DAY, why="monthly")
    enter_version(lake, "demo", C, "nightly", DAY, why="monthly")
    assert not enter_version(lake, "demo", B, "nightly", DAY, why="monthly")
    assert aliases(lake, "demo")["challenger"] == C


def test_a_promotion_removes_the_challenger_in_the_same_commit(lake: Lake) -> None:
    enter_version(lake, "demo", A, "nightly", DAY, why="monthly")
    enter_version(lake, "demo", B, "nightly", DAY, why="monthly")
    before = lake.version("promotions")
    reason = Reason("the guard passed", "ann@desk", forced=True, evidence={"p_value": 0.4})
    assert set_alias(lake, "demo", "champion", B, reason)
    assert lake.version("promotions") == (before or 0) + 1
    assert (champion(lake, "demo"), aliases(lake, "demo")["challenger"]) == (B, None)
    newest, promoted = alias_history(lake, "demo").head(2).to_dicts()
    assert (newest["alias"], newest["version"], newest["why"]) == ("challenger", None, "became the champion")
    assert (promoted["forced"], json.loads(promoted["evidence"])) == (True, {"p_value": 0.4})


def test_setting_an_alias_again_writes_nothing(lake: Lake) -> None:
    set_alias(lake, "demo", "champion", A, BY_HAND)
    version, rows = lake.version("promotions"), alias_history(lake, "demo")
    assert not set_alias(lake, "demo", "champion", A, Reason("another reason", "bob@desk"))
    assert not set_alias(lake, "demo", "challenger", None, BY_HAND)
    assert lake.version("promotions") == version
    assert alias_history(lake, "demo").equals(rows)


def test_configs_do_not_see_each_other(lake: Lake) -> None:
    set_alias(lake, "demo", "champion", A, BY_HAND)
    set_alias(lake, "other", "champion", B, BY_HAND)
    assert (champion(lake, "demo"), champion(lake, "other")) == (A, B)
    assert alias_history(lake, "other")["number"].to_list() == [1]


def test_the_champion_is_not_its_own_challenger(lake: Lake) -> None:
    set_alias(lake, "demo", "champion", A, BY_HAND)
    with pytest.raises(ValueError, match="demo-a/ridge is the champion"):
        set_alias(lake, "demo", "challenger", A, BY_HAND)


def test_a_change_without_a_reason_is_refused(lake: Lake) -> None:
    with pytest.raises(ValueError, match="why is empty"):
        set_alias(lake, "demo", "champion", A, Reason(" ", "ann@desk"))


@settings(max_examples=6)
@given(moves=st.lists(st.sampled_from([A, B, C, None]), max_size=7))
def test_demotions_undo_promotions_like_a_stack(
    moves: list[ModelVersion | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """None demotes; anything else promotes. The stack of a plain list is the reference."""
    lake, stack = Lake(tmp_path_factory.mktemp("lake")), list[ModelVersion]()
    for move in moves:
        earlier = previous_champion(lake, "demo")
        assert earlier == (stack[-2] if len(stack) > 1 else None)
        if move is not None:
            if not stack or stack[-1] != move:
                stack.append(move)
            set_alias(lake, "demo", "champion", move, BY_HAND)
        elif earlier is not None:
            set_alias(lake, "demo", "champion", earlier, demotion(stack.pop(), "worse", "ann@desk"))
        assert champion(lake, "demo") == (stack[-1] if stack else None)


def test_processes_that_change_aliases_at_once_lose_no_row(lake: Lake) -> None:
    enter_version(lake, "demo", A, "nightly", DAY, why="monthly")
    code = (
        "import sys\n"
        "from pipelines.lake.lake import Lake\n"
        "from pipelines.nightly.versions import Reason, set_alias\n"
        "from pipelines.nightly.result import ModelVersion\n"
        "for n in range(4):\n"
        "    version = ModelVersion(f'demo-{sys.argv[2]}{n}', 'ridge')\n"
        "    set_alias(Lake(sys.argv[1]), 'demo', 'challenger', version, Reason('new', sys.argv[2]))\n"
    )
    started = [Process(code, [lake.root, name]) for name in ("x", "y")]
    for one in started:
        _, err = one.communicate(timeout=300)
        assert one.returncode == 0, err
    rows = alias_history(lake, "demo").reverse()
    assert rows["number"].to_list() == list(range(1, 10))
    for name in ("x", "y"):
        own = rows.filter(pl.col("by") == name)["version"].to_list()
        assert own == [f"demo-{name}{n}/ridge" for n in range(4)]
