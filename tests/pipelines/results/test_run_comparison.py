"""``peerglass compare``: figures on common dates, paired tests, and what differs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from command import Call, command

from peerglass.runs import open_run as open_python_run
from pipelines.config.load import load_config
from pipelines.errors import ConfigError, DataError
from pipelines.results.recount import recount
from pipelines.results.run_comparison import compare, open_candidate
from pipelines.run.evaluations import newest_evaluation
from pipelines.run.fetch import ingest_config
from pipelines.run.record import open_run
from pipelines.stages import backtest_run, train_config
from pipelines.train.trials import record, signal_trials

pytestmark = pytest.mark.usefixtures("untracked")

LABEL = {"horizon": 1, "delay": 1, "transform": "demean", "extra_delays": [2]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> tuple[Path, str, str]:
    """The folder of two measured runs of one market, and their ids; the second one is longer and dearer."""
    home = tmp_path_factory.mktemp("compare")
    models = {"ridge": {}, "mlp": {"width": 8}}
    places = {"lake": f"{home}/lake", "output": f"{home}/runs"}
    tracking = {"uri": f"sqlite:///{home}/mlflow.db", "artifacts": f"{home}/artifacts"}
    settings = {**tiny_settings, **places, "label": LABEL, "models": models, "tracking": tracking}
    (home / "a.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    other = {**settings, "name": "other", "fit": {**settings["fit"], "epochs": 3}}
    (home / "b.yaml").write_text(yaml.safe_dump(other, sort_keys=False))
    ids = []
    ingest_config(load_config(home / "a.yaml"), print)
    for file, costs in (("a.yaml", "5"), ("b.yaml", "9")):
        ids.append(train_config(load_config(home / file)))
        overrides = [f"backtest.costs.half_spread_bps={costs}"]
        backtest_run(ids[-1], overrides, home / "runs", echo=print)
    return home / "runs", ids[0], ids[1]


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capfd)


@pytest.mark.slow(5)
def test_two_models_of_one_run_have_the_tests_of_its_evaluation(runs: tuple[Path, str, str]) -> None:
    output, first, _ = runs
    result = compare([open_candidate(f"{first}:{model}", output) for model in ("ridge", "mlp")])
    evaluation = newest_evaluation(open_run(first, output))
    assert evaluation is not None
    stored = evaluation.table("comparisons").filter(pl.col("model") == "mlp", pl.col("rival") == "ridge")
    ours, theirs = result.tests.row(0, named=True), stored.row(0, named=True)
    for key in ("dates", "ic_difference", "ic_lower", "ic_p", "dm_t", "sharpe_difference", "sharpe_upper"):
        assert ours[key] == pytest.approx(theirs[key], rel=1e-9), key
    assert ours["beats"] == theirs["beats"]
    assert result.differences == {f"{first}:mlp": ()}
    counted = recount(open_run(first, output), evaluation)
    significance = counted.table("significance").filter(pl.col("book") == "long_short")
    for row in result.figures.iter_rows(named=True):
        model = row["name"].partition(":")[2]
        (known,) = significance.filter(pl.col("model") == model).iter_rows(named=True)
        assert row["ic"] == pytest.approx(known["ic"])
        assert row["sharpe_net"] == pytest.approx(known["sharpe_net"])
        for key in ("deflated_sharpe", "trials", "deflated_effective", "effective_trials"):
            assert row[key] == pytest.approx(known[key]), key


def test_trials_count_up_to_the_comparison(runs: tuple[Path, str, str]) -> None:
    output, first, second = runs
    names = [f"{one}:mlp" for one in (first, second)]
    before = compare([open_candidate(name, output) for name in names]).figures
    assert before["trials"].to_list() == [6, 6], "mlp twice and ridge, with two books each, at any costs"
    run = open_run(first, output)
    (trial,) = signal_trials({"later": "digest"}, run.config).values()
    record(output, "later", trial.traded(run.config.backtest.books))
    after = compare([open_candidate(name, output) for name in names]).figures
    assert after["trials"].to_list() == [8, 8]
    assert (after["deflated_sharpe"] < before["deflated_sharpe"]).all()
    assert (after["effective_trials"] <= 8).all()


def test_what_differs_is_named(runs: tuple[Path, str, str]) -> None:
    output, first, second = runs
    result = compare([open_candidate(f"{one}:mlp", output) for one in (first, second)])
    phrases = result.differences[f"{second}:mlp"]
    assert any(phrase.endswith("epochs (2 -> 3)") for phrase in phrases), phrases
    assert any("half_spread_bps" in phrase and "9" in phrase for phrase in phrases), phrases
    assert not any(phrase.startswith("table") for phrase in phrases), "they read the same data"


def test_only_common_dates_count(runs: tuple[Path, str, str]) -> None:
    output, first, _ = runs
    whole = open_candidate(f"{first}:ridge", output)
    dates = whole.daily.drop_nulls("ic")["date"]
    cut = open_candidate(f"{first}:mlp", output)
    shorter = cut.daily.filter(pl.col("date") >= dates[10])
    result = compare([whole, replace(cut, daily=shorter)])  # as if the run had been tested later
    ridge = result.figures.row(0, named=True)
    assert ridge["dates"] == len(dates) - 10
    assert ridge["ic"] == pytest.approx(whole.daily.filter(pl.col("date") >= dates[10])["ic"].mean())
    with pytest.raises(DataError, match="3 dates in common, and a test needs at least 20"):
        compare([whole, replace(cut, daily=shorter.tail(5))])
    with pytest.raises(DataError, match=r"0 dates in common.*:mlp has None to None"):
        compare([whole, replace(cut, daily=shorter.clear())])


def test_ics_of_different_labels_are_not_compared(runs: tuple[Path, str, str]) -> None:
    output, first, _ = runs
    one, two = open_candidate(f"{first}:ridge", output), open_candidate(f"{first}:mlp", output, delay=2)
    row = compare([one, two]).tests.row(0, named=True)
    assert row["ic_difference"] is None
    assert np.isfinite(row["sharpe_difference"])
    assert row["beats"] != "yes"


def test_the_command_prints_the_comparison_and_its_json(runs: tuple[Path, str, str], peerglass: Call) -> None:
    output, first, second = runs
    place = ("--output", str(output))
    shown = peerglass("compare", first, second, *place)
    assert shown.code == 0, shown.err
    chosen = open_candidate(first, output).name
    assert f"against {chosen}" in shown.out
    assert "beats: " in shown.out
    document = json.loads(peerglass("compare", first, second, "--json", *place).out)
    assert document["figures"][0]["name"] == chosen
    assert set(document) == {"level", "figures", "tests", "differences"}
    assert document["tests"][0]["beats"] in ("yes", "no", "unclear")


def test_measured_signals_are_taken_by_the_name_that_is_listed(
    runs: tuple[Path, str, str], peerglass: Call
) -> None:
    output, first, _ = runs
    place = ("--output", str(output))
    rows = open_python_run(first, output).forecasts(["ridge"]).select("date", "ticker", alpha="forecast")
    file = output.parent / "alpha.csv"
    rows.write_csv(file)
    answer = peerglass("backtest", str(file), "--config", str(output.parent / "a.yaml"), "--force")
    assert answer.code == 0, answer.err
    listed = peerglass("runs", "list", *place).out.splitlines()
    (name,) = [line.split()[0] for line in listed if line.startswith("alpha-")]

    compared = peerglass("compare", name, f"{first}:ridge", "--json", *place)
    assert compared.code == 0, compared.err
    document = json.loads(compared.out)
    assert [row["name"] for row in document["figures"]] == [f"{name}:alpha", f"{first}:ridge"]
    assert not any("label" in phrase for phrase in document["differences"][f"{first}:ridge"])

    again = peerglass("backtest", name, "--force", "--set", "backtest.costs.half_spread_bps=7", *place)
    assert again.code == 0, again.err
    assert f"{name}, evaluation" in again.out, "the same signals on the same data have the same name"
    opened = open_python_run(name, output)
    assert len(opened.evaluations) == 2
    assert opened.models == ("alpha",)
    assert opened.table("ladder")["model"].to_list()[:1] == ["alpha"]
    with pytest.raises(ConfigError, match="are measured signals, which have no forecasts"):
        opened.forecasts()
    file.unlink()
    gone = peerglass("backtest", name, *place)
    assert (gone.code, "alpha.csv, which is not there" in gone.err) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("{0}:ridge",), "at least two different models"),
        (("{0}:ridge", "{0}:ridge"), "at least two different models"),
        (("{0}:ridge", "{0}:forest"), "has no model 'forest'; it has ridge, mlp"),
        (("{0}", "{1}", "--delay", "7"), "has no delay 7; it has 1, 2"),
        (("{0}", "{1}", "--book", "mine"), "has no book 'mine'; it has long_short, long_only"),
        (("{0}", "nobody"), "No run begins with 'nobody'"),
    ],
)
def test_mistakes_end_with_one_sentence(
    runs: tuple[Path, str, str], peerglass: Call, arguments: tuple[str, ...], advice: str
) -> None:
    output, first, second = runs
    answer = peerglass("compare", *(one.format(first, second) for one in arguments), "--output", str(output))
    assert answer.code == 2
    assert advice in answer.err
