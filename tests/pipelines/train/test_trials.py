"""The trial ledger: which configurations are the same trial, and that it survives deleted lakes."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from command import Answer, Call, command
from counted import trial_count

from models.registry import MODELS
from pipelines.config.load import check_config, load_config
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, build_dataset
from pipelines.lake.contracts import check
from pipelines.lake.lake import Lake
from pipelines.run.identity import forecasting_settings
from pipelines.train.trials import Scope, Trial, count_trials, read_trials, record_trials
from pipelines.train.trials import record as record_all

pytestmark = pytest.mark.usefixtures("untracked")

RUNS = Path("runs")


@pytest.fixture
def peerglass(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Call:
    """The command line in this process, in a folder with a config of one ridge."""
    monkeypatch.chdir(tmp_path)
    tracking = {"uri": f"sqlite:///{tmp_path}/mlflow.db", "artifacts": "mlartifacts"}
    settings = {
        **tiny,
        "models": {"ridge": {}},
        "features": {"window": 5, "characteristics": ["momentum_63", "return_5"]},
        "tracking": tracking,
    }
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))
    return command(monkeypatch, capfd)


def trained(peerglass: Call, lake: str, *more: str) -> str:
    """Ingest into a lake and train on it; return the run id."""
    at = ("--set", f"lake={lake}")
    ingested = peerglass("ingest", "tiny.yaml", *at)
    assert ingested.code == 0, ingested.err
    answer: Answer = peerglass("train", "tiny.yaml", *at, *more)
    assert answer.code == 0, answer.err
    return answer.out.strip()


@pytest.mark.slow(4)
def test_one_config_on_two_lakes_is_one_trial_with_two_runs_and_survives_the_lakes(peerglass: Call) -> None:
    first = trained(peerglass, "one")
    (tried,) = read_trials(RUNS)["first_tried"]
    second = trained(peerglass, "other")
    assert second != first, "another lake gives another run"
    assert trained(peerglass, "one") == first, "a continued run is the same run"
    (trial,) = read_trials(RUNS).iter_rows(named=True)
    assert (trial["model"], trial["runs"], trial["first_tried"]) == ("ridge", [first, second], tried)

    for lake in ("one", "other"):
        shutil.rmtree(lake)
    assert read_trials(RUNS).row(0, named=True) == trial
    third = trained(peerglass, "one")
    assert third not in (first, second), "the tables were created again"
    (again,) = read_trials(RUNS).iter_rows(named=True)
    assert again == trial | {"runs": [first, second, third]}

    other = trained(peerglass, "other", "--set", "models.ridge.alphas=[1.0]")
    assert trial_count(RUNS) == 2, "counted with the trials on the lake that was deleted"
    assert read_trials(RUNS)["runs"].to_list() == [[first, second, third], [other]]
    backtested = peerglass("report", other, "--output", "runs")
    assert backtested.code == 0, backtested.err
    page = (RUNS / other / "report.html").read_text(encoding="utf-8")
    assert "3 trials in the ledger" in page, "two books, and the other ridge, which was only trained"

    settings = load_config(Path("tiny.yaml"))
    elsewhere = replace(Scope.of(settings), market={"kind": "files"}, lake="elsewhere")
    named = replace(Scope.of(settings), hypothesis="an idea")
    for scope in (elsewhere, named):
        record_all(RUNS, "by hand", [Trial("signal", {"market": scope.market, "content": "x"}, scope)])
    listed = json.loads(peerglass("trials", "list", "--run", other, "--output", "runs", "--json").out)
    assert [(row["model"], row["counts"], row["why"].partition(other)[0]) for row in listed] == [
        ("ridge", True, "trained, not evaluated yet, against "),
        ("ridge", False, "its books count in its place"),
        ("ridge", True, "a forecast with a book of its own, against "),
        ("ridge", True, "a forecast with a book of its own, against "),
        ("signal", False, "another market than "),
        ("signal", True, "trained, not evaluated yet, against "),
    ]


def test_every_output_folder_has_its_own_ledger(peerglass: Call) -> None:
    first = trained(peerglass, "lake")
    second = trained(peerglass, "lake", "--set", "output=elsewhere", "--set", "models.ridge.alphas=[1.0]")
    assert read_trials(RUNS)["runs"].to_list() == [[first]]
    assert read_trials(Path("elsewhere"))["runs"].to_list() == [[second]]
    assert trial_count(Path("nothing")) == read_trials(Path("nothing")).height == 0


# Which changes make a new trial: each config is recorded after a base config with a ridge, as another run.


@pytest.fixture(scope="module")
def dataset(tiny_config: Config, tiny_tables: Mapping[str, Any]) -> Dataset:
    return build_dataset(tiny_tables, tiny_config)


def record(folder: Path, run_id: str, settings: Mapping[str, Any], dataset: Dataset) -> None:
    config = check_config(settings, origin="tiny")
    record_trials(folder, run_id, config, forecasting_settings(config, dataset, {}))


DATED = {
    "scheme": "dated",
    "train_from": "2015-01-01",
    "valid_from": "2016-01-01",
    "test_from": "2017-01-01",
    "test_to": "2018-01-01",
    "embargo": 1,
}
LIVE = {"scheme": "live", "through": "2015-01-01", "valid": 25, "embargo": 1}
FILES = {"kind": "files", "prices": "prices.csv", "end": "2018-01-01"}
RIDGE = MODELS["ridge"].config()
BASE: Mapping[str, Mapping[str, Any]] = {
    "simulated": {"models": {"ridge": {}}},
    "files": {"models": {"ridge": {}}, "source": FILES},
    "dated": {"models": {"ridge": {}}, "folds": DATED},
    "live": {"models": {"ridge": {}}, "folds": LIVE},
}
MARKET = {"kind": "simulated", "seed": 3}
SAME: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "a default written out": ("simulated", {"models": {"ridge": {"alphas": list(RIDGE.alphas)}}}),
    "a number as a string": ("simulated", {"models": {"ridge": {"alphas": [str(a) for a in RIDGE.alphas]}}}),
    "another name of the model": ("simulated", {"models": {"mine": {"model": "ridge"}}}),
    "a fit that ridge does not read": ("simulated", {"fit": {"lr": 0.5, "epochs": 9}}),
    "seeds": ("simulated", {"seeds": [4, 5]}),
    "a lake": ("simulated", {"lake": "elsewhere"}),
    "costs": ("simulated", {"backtest": {"costs": {"half_spread_bps": 50}}}),
    "the default step": ("simulated", {"folds": {"step": 40}}),
    "a later end": ("files", {"source": FILES | {"end": "2019-01-01"}}),
    "no end": ("files", {"source": {key: FILES[key] for key in ("kind", "prices")}}),
    "the same file by another path": ("files", {"source": FILES | {"prices": "./x/../prices.csv"}}),
    "a later end of the test": ("dated", {"folds": DATED | {"test_to": "2019-01-01"}}),
    "a retraining of a night": ("live", {"folds": LIVE | {"through": "2015-02-01"}}),
    "more sessions": (
        "simulated",
        {"source": MARKET | {"market": {"firms": 16, "sessions": 340, "bad_ticks": 4}}},
    ),
}
ANOTHER: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "other settings": ("simulated", {"models": {"ridge": {"alphas": [1.0]}}}),
    "another model": ("simulated", {"models": {"zero": {}}}),
    "a limit on folds": ("simulated", {"folds": {"max_folds": 1}}),
    "no limit on folds": ("simulated", {"folds": {"max_folds": None}}),
    "another embargo": ("simulated", {"folds": {"embargo": 2}}),
    "another label": ("simulated", {"label": {"horizon": 2}}),
    "another universe": ("simulated", {"universe": {"min_price": 2.0}}),
    "other features": ("simulated", {"features": {"window": 6}}),
    "another seed of the market": (
        "simulated",
        {
            "source": {
                "kind": "simulated",
                "seed": 4,
                "market": {"firms": 16, "sessions": 320, "bad_ticks": 4},
            }
        },
    ),
    "another file": ("files", {"source": FILES | {"prices": "other.csv"}}),
    "another start": ("files", {"source": FILES | {"start": "2010-01-01"}}),
    "another start of the test": ("dated", {"folds": DATED | {"test_from": "2017-02-01"}}),
}


def with_changes(tiny: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes. The sections folds, label, universe and features are merged, others replaced."""
    merged = dict(tiny)
    for key, value in changes.items():
        is_merged = key in ("folds", "label", "universe", "features") and "scheme" not in value
        merged[key] = {**merged[key], **value} if is_merged else value
    return merged


@pytest.mark.parametrize("case", [*SAME, *ANOTHER])
def test_changes_that_make_a_new_trial_and_changes_that_do_not(
    case: str, tmp_path: Path, tiny: dict[str, Any], dataset: Dataset
) -> None:
    kind, changes = SAME[case] if case in SAME else ANOTHER[case]
    base = with_changes(tiny, BASE[kind])
    record(tmp_path, "tiny-1", base, dataset)
    record(tmp_path, "tiny-2", with_changes(base, changes), dataset)
    expected = [["tiny-1", "tiny-2"]] if case in SAME else [["tiny-1"], ["tiny-2"]]
    assert read_trials(tmp_path)["runs"].to_list() == expected
    assert trial_count(tmp_path) == len(expected)


def test_equal_models_of_one_run_are_one_trial(
    tmp_path: Path, tiny: dict[str, Any], dataset: Dataset
) -> None:
    models = {
        "ridge": {},
        "written": {"model": "ridge", "alphas": list(RIDGE.alphas)},
        "other": {"model": "ridge", "alphas": [1.0]},
    }
    for _ in range(2):
        record(tmp_path, "tiny-1", {**tiny, "models": models}, dataset)
    ledger = read_trials(tmp_path)
    assert ledger["runs"].to_list() == [["tiny-1"], ["tiny-1"]]
    assert ledger["model"].to_list() == ["ridge", "ridge"]


def test_a_project_that_moves_keeps_its_trials(
    tmp_path: Path, tiny: dict[str, Any], dataset: Dataset
) -> None:
    def settings(project: Path) -> dict[str, Any]:
        source = FILES | {"prices": str(project / "prices.csv")}
        return {**tiny, "models": {"ridge": {}}, "source": source, "lake": str(project / "lake")}

    def counted(project: Path, output: Path) -> int:
        return count_trials(output, Scope.of(check_config(settings(project), origin="tiny"))).trials

    old, new = tmp_path / "old", tmp_path / "new"
    prices = pl.DataFrame({"date": [dt.date(2020, 1, 2)], "ticker": "A", "close": 1.0, "source": "files"})
    prices = check(
        "prices", prices.with_columns(ingested_at=pl.lit(dt.datetime(2020, 1, 3, tzinfo=dt.UTC)))
    ).valid
    Lake(old / "lake").upsert("prices", prices)
    record(old / "runs", "one", settings(old), dataset)
    assert counted(old, old / "runs") == 1
    old.rename(new)
    assert counted(new, new / "runs") == 1
    Lake(old / "lake").upsert("prices", prices)
    assert counted(old, new / "runs") == 1, "by the path of its prices"
    assert counted(tmp_path / "other", new / "runs") == 0
