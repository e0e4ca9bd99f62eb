"""``peerglass promote`` and ``demote``: who becomes champion, who is refused, and what is recorded."""

from __future__ import annotations

import getpass
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from command import Call, command
from live_versions import Versions
from mlflow import MlflowClient

from backtest.inference.means import MIN_VALUES
from pipelines.commands import versions as commands
from pipelines.nightly.result import ModelVersion, Promotion
from pipelines.nightly.versions import Reason, alias_history, aliases, champion, set_alias
from pipelines.run.record import open_run

BY_HAND = Reason("first", "ann@desk")


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capfd)


@pytest.fixture
def rivals(versions: Versions) -> Versions:
    """The old version as champion, the new one as challenger, and 30 shadow nights of equal skill."""
    versions.write_nights(versions.old, 0.5, range(5, 35), seed=1)
    versions.write_nights(versions.new, 0.5, range(5, 35), seed=2)
    set_alias(versions.lake, "tiny", "champion", versions.old, BY_HAND)
    set_alias(versions.lake, "tiny", "challenger", versions.new, BY_HAND)
    return versions


def mlflow_aliases(versions: Versions) -> dict[str, str]:
    """Alias -> run id of its version in the tracking store."""
    client = MlflowClient(tracking_uri=versions.config.tracking.uri)
    aliases = client.get_registered_model("tiny.ridge").aliases
    return {
        alias: client.get_model_version("tiny.ridge", number).tags["peerglass.run_id"]
        for alias, number in aliases.items()
    }


def test_the_challenger_becomes_champion_and_mlflow_follows(rivals: Versions, peerglass: Call) -> None:
    answer = peerglass("promote", "challenger", "--config", str(rivals.file))
    assert answer.code == 0, answer.err
    assert f"{rivals.new} is the champion of tiny from the next night on." in answer.out
    assert "over 30 shadow sessions" in answer.out
    assert (champion(rivals.lake, "tiny"), aliases(rivals.lake, "tiny")["challenger"]) == (rivals.new, None)
    row = alias_history(rivals.lake, "tiny").filter(alias="champion").to_dicts()[0]
    assert row["by"] == f"{getpass.getuser()}@{socket.gethostname()}"
    assert (row["why"], row["forced"], row["session"]) == ("the guard passed", False, None)
    evidence = json.loads(row["evidence"])
    assert (evidence["sessions"], evidence["refused"]) == (30, [])
    assert mlflow_aliases(rivals) == {"champion": rivals.new.run_id}

    again = peerglass("promote", "challenger", "--config", str(rivals.file))
    assert again.code == 2
    assert "The config 'tiny' has no challenger" in again.err
    rows = alias_history(rivals.lake, "tiny")
    named = peerglass("promote", rivals.new.run_id, "--output", rivals.config.output)
    assert (named.code, named.out) == (0, f"{rivals.new} is the champion of tiny already.\n")
    assert alias_history(rivals.lake, "tiny").equals(rows)


def test_a_version_is_named_by_its_run_its_model_or_its_number(rivals: Versions, peerglass: Call) -> None:
    assert peerglass("track", "sync", str(rivals.file)).code == 0
    client = MlflowClient(tracking_uri=rivals.config.tracking.uri)
    numbers = {
        one.tags["peerglass.run_id"]: one.version for one in client.search_model_versions("name='tiny.ridge'")
    }
    for name in (str(rivals.new), rivals.new.run_id[:-2], f"tiny.ridge/{numbers[rivals.new.run_id]}"):
        set_alias(rivals.lake, "tiny", "champion", rivals.old, BY_HAND)
        answer = peerglass("promote", name, "--config", str(rivals.file))
        assert answer.code == 0, answer.err
        assert champion(rivals.lake, "tiny") == rivals.new
    unknown = peerglass("promote", "models:/tiny.ridge/99", "--config", str(rivals.file))
    assert unknown.code == 2
    assert "has no version 99; it has 1, 2" in unknown.err
    without = peerglass("promote", "tiny.ridge/1", "--output", rivals.config.output)
    assert without.code == 2
    assert "add --config CONFIG" in without.err


def test_a_refusal_is_exit_code_4_and_changes_nothing(versions: Versions, peerglass: Call) -> None:
    versions.write_nights(versions.old, 0.5, range(5, 15), seed=1)
    set_alias(versions.lake, "tiny", "champion", versions.old, BY_HAND)
    rows = alias_history(versions.lake, "tiny")
    answer = peerglass("promote", str(versions.new), "--output", versions.config.output)
    assert answer.code == 4
    assert "is not promoted" in answer.err
    assert "has 0 shadow sessions with a known label" in answer.err
    assert "add --force --why TEXT" in answer.err
    assert alias_history(versions.lake, "tiny").equals(rows)


def test_sessions_that_were_scored_by_hand_are_no_shadow_sessions(
    versions: Versions, peerglass: Call
) -> None:
    set_alias(versions.lake, "tiny", "champion", versions.old, BY_HAND)
    for version in (versions.old, versions.new):
        for after in range(5, 9):
            day = versions.days[versions.at + after].isoformat()
            scored = peerglass("signals", str(versions.file), "--version", str(version), "--date", day)
            assert scored.code == 0, scored.err
    few = ("--set", "nightly.promotion.min_sessions=3", "--set", "nightly.promotion.margin=1.0")
    answer = peerglass("promote", str(versions.new), "--config", str(versions.file), *few)
    assert answer.code == 4
    assert "has 0 shadow sessions with a known label" in answer.err


def test_force_needs_a_reason_and_is_recorded(versions: Versions, peerglass: Call) -> None:
    set_alias(versions.lake, "tiny", "champion", versions.old, BY_HAND)
    name = (str(versions.new), "--output", versions.config.output)
    for unreasoned in (("--force",), ("--force", "--why", " ")):
        answer = peerglass("promote", *name, *unreasoned)
        assert answer.code == 2
        assert "add --why TEXT" in answer.err
    assert champion(versions.lake, "tiny") == versions.old
    answer = peerglass("promote", *name, "--force", "--why", "the feed of the old one ends")
    assert answer.code == 0, answer.err
    assert "The guard was overridden" in answer.out
    row = alias_history(versions.lake, "tiny").filter(alias="champion").to_dicts()[0]
    assert (row["forced"], row["why"]) == (True, "the feed of the old one ends")
    assert "0 shadow sessions" in json.loads(row["evidence"])["refused"][0]


def test_force_does_not_promote_what_cannot_be_scored(versions: Versions, peerglass: Call) -> None:
    set_alias(versions.lake, "tiny", "champion", versions.old, BY_HAND)
    checkpoint = open_run(versions.new.run_id, Path(versions.config.output)).checkpoint("ridge", 0, 0)
    aside = checkpoint.with_name("aside")
    shutil.move(checkpoint, aside)
    try:
        name = (str(versions.new), "--output", versions.config.output)
        answer = peerglass("promote", *name, "--force", "--why", "now")
    finally:
        shutil.move(aside, checkpoint)
    assert answer.code == 3
    assert "no fitted model of seed 0" in answer.err
    assert champion(versions.lake, "tiny") == versions.old


def test_what_is_no_version_for_use_is_named(versions: Versions, peerglass: Call) -> None:
    answer = peerglass("promote", f"{versions.new.run_id}/mlp", "--output", versions.config.output)
    assert answer.code == 2
    assert "has no model 'mlp'; it has ridge" in answer.err
    answer = peerglass("promote", "nobody", "--output", versions.config.output)
    assert answer.code == 2
    assert "No run begins with 'nobody'" in answer.err
    other = versions.file.with_name("other.yaml")
    other.write_text(versions.file.read_text().replace("name: tiny", "name: other"))
    answer = peerglass("promote", str(versions.new), "--config", str(other))
    assert answer.code == 2
    assert "is a version of the config 'tiny', not of 'other'" in answer.err


def test_demote_goes_back_and_needs_an_earlier_champion(rivals: Versions, peerglass: Call) -> None:
    file = str(rivals.file)
    first = peerglass("demote", file, "--why", "slow")
    assert first.code == 2
    assert f"tiny has no earlier champion to go back to from {rivals.old}" in first.err
    assert peerglass("promote", "challenger", "--config", file).code == 0
    assert peerglass("demote", file).code == 2
    assert peerglass("demote", file, "--why", " ").code == 2
    answer = peerglass("demote", file, "--why", "its turnover doubled")
    assert answer.code == 0, answer.err
    assert answer.out == f"{rivals.old} is the champion of tiny again, in place of {rivals.new}.\n"
    assert (champion(rivals.lake, "tiny"), aliases(rivals.lake, "tiny")["challenger"]) == (rivals.old, None)
    row = alias_history(rivals.lake, "tiny").to_dicts()[0]
    assert (row["why"], row["by"]) == ("its turnover doubled", f"{getpass.getuser()}@{socket.gethostname()}")
    assert mlflow_aliases(rivals) == {"champion": rivals.old.run_id}


def test_a_promotion_is_done_although_the_tracking_store_is_gone(rivals: Versions, peerglass: Call) -> None:
    gone = ("--set", "tracking.uri=http://127.0.0.1:9")
    answer = peerglass("promote", "challenger", "--config", str(rivals.file), *gone)
    assert answer.code == 6
    assert "peerglass track sync" in answer.err
    assert champion(rivals.lake, "tiny") == rivals.new
    assert peerglass("track", "sync", str(rivals.file)).code == 0
    assert mlflow_aliases(rivals) == {"champion": rivals.new.run_id}


def test_a_judgement_against_a_champion_that_was_replaced_since_promotes_nobody(
    rivals: Versions, peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, original = ModelVersion("tiny-other", "ridge"), vars(commands)["judge_promotion"]

    def judge(*arguments: Any) -> Promotion:  # noqa: ANN401 (passed on)
        judged: Promotion = original(*arguments)
        set_alias(rivals.lake, "tiny", "champion", other, BY_HAND)
        return judged

    monkeypatch.setattr(commands, "judge_promotion", judge)
    answer = peerglass("promote", "challenger", "--config", str(rivals.file))
    assert answer.code == 3
    assert f"The champion of tiny is {other} by now, and was {rivals.old}; repeat the command." in answer.err
    assert champion(rivals.lake, "tiny") == other


def test_a_demotion_takes_the_alias_from_no_other_version(
    rivals: Versions, peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ModelVersion("tiny-other", "ridge")
    set_alias(rivals.lake, "tiny", "champion", rivals.new, BY_HAND)
    monkeypatch.setattr(
        "pipelines.nightly.versions.require_complete",
        lambda *_: set_alias(rivals.lake, "tiny", "champion", other, BY_HAND),
    )
    answer = peerglass("demote", str(rivals.file), "--why", "its turnover doubled")
    assert answer.code == 3
    assert champion(rivals.lake, "tiny") == other


def test_the_fewest_sessions_of_a_promotion_have_a_test_and_an_interval(
    versions: Versions, peerglass: Call
) -> None:
    versions.write_nights(versions.old, 0.5, range(5, 8), seed=1)
    versions.write_nights(versions.new, 0.5, range(5, 8), seed=2)
    set_alias(versions.lake, "tiny", "champion", versions.old, BY_HAND)
    few = ("--set", "nightly.promotion.min_sessions=2", "--set", "nightly.promotion.margin=1.0")
    refused = peerglass("promote", str(versions.new), "--config", str(versions.file), *few)
    assert refused.code == 2
    assert "nightly.promotion.min_sessions" in refused.err
    few = ("--set", f"nightly.promotion.min_sessions={MIN_VALUES}", "--set", "nightly.promotion.margin=1.0")
    answer = peerglass("promote", str(versions.new), "--config", str(versions.file), *few)
    assert answer.code == 0, answer.err
    assert "over 3 shadow sessions" in answer.out
    assert "90% interval" in answer.out
    assert mlflow_aliases(versions) == {"champion": versions.new.run_id}
