"""``peerglass compare`` on model versions: only sessions that both forecast unseen, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import Call, command
from live_versions import Versions

from features.information_coefficient import ic_by_date
from features.panel.panel import to_panel
from pipelines.commands.versions import is_version
from pipelines.nightly.data import night_data
from pipelines.nightly.result import read_signals
from pipelines.nightly.versions import Reason, set_alias
from pipelines.progress import Progress


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capfd)


def test_versions_are_compared_on_their_common_unseen_sessions(versions: Versions, peerglass: Call) -> None:
    versions.write_nights(versions.old, 1.0, range(-5, 40), seed=1)
    versions.write_nights(versions.new, 0.1, range(-5, 45), seed=2)
    set_alias(versions.lake, "tiny", "champion", versions.old, Reason("first", "ann@desk"))
    set_alias(versions.lake, "tiny", "challenger", versions.new, Reason("new", "ann@desk"))
    file = str(versions.file)
    answer = peerglass("compare", "champion", "challenger", "--config", file, "--delay", "0", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    names = [row["name"] for row in found["figures"]]
    assert names == [str(versions.old), str(versions.new)]
    assert [row["dates"] for row in found["figures"]] == [35, 35]
    (test,) = found["tests"]
    assert (test["beats"], test["ic_difference"] < 0) == ("no", True)

    market = night_data(versions.config, versions.lake, None, Progress()).market
    first, last = versions.days[versions.at + 5], versions.days[versions.at + 39]
    for version, row in zip((versions.old, versions.new), found["figures"], strict=True):
        signals = read_signals(versions.lake, "tiny", version=version)
        own = signals.filter(pl.col("session").is_between(first, last)).rename({"session": "date"})
        ic_T = ic_by_date(to_panel(own, "signal", market.panel), market.labels[0])
        assert row["ic"] == pytest.approx(float(np.nanmean(ic_T)))

    named = (str(versions.old), str(versions.new), "--output", versions.config.output)
    text = peerglass("compare", *named)
    assert text.code == 0, text.err
    assert f"against {versions.old}" in text.out


def test_what_cannot_be_compared_is_said(versions: Versions, peerglass: Call) -> None:
    named = (str(versions.old), str(versions.new))
    output = ("--output", versions.config.output)
    answer = peerglass("compare", *named, *output)
    assert answer.code == 3
    assert "No session was forecast at night by all of" in answer.err
    mixed = peerglass("compare", str(versions.old), versions.new.run_id, *output)
    assert mixed.code == 2
    assert "compare versions with versions" in mixed.err
    without = peerglass("compare", "champion", "challenger")
    assert without.code == 2
    assert "add --config CONFIG" in without.err
    versions.write_nights(versions.old, 1.0, range(5, 10), seed=1)
    versions.write_nights(versions.new, 0.1, range(5, 10), seed=2)
    few = peerglass("compare", *named, *output)
    assert few.code == 3
    assert "dates in common, and a test needs at least 20" in few.err
    book = peerglass("compare", *named, *output, "--book", "nothing")
    assert book.code == 2
    assert "has no book 'nothing'; it has long_short, long_only" in book.err


def test_the_folder_of_a_run_is_no_version(tmp_path: Path) -> None:
    assert not is_version(str(tmp_path))
    assert not is_version("demo-1a2b:ridge")
    assert is_version("demo-1a2b/ridge")
