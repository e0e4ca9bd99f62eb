"""The multiverse of a tiny market: its designs, what is fitted and counted, and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from command import Call, command
from counted import trial_count

from backtest.accounts.performance import sharpe
from pipelines import multiverse
from pipelines.config.load import check_config, model_settings
from pipelines.errors import ConfigError
from pipelines.multiverse import Design, default_choices, write_value
from pipelines.train import work
from pipelines.train.task import Task

pytestmark = pytest.mark.usefixtures("untracked")

CHOICES = {
    "label": {"transform": ["demean", "rank"]},
    "folds.scheme": ["expanding", "rolling"],
    "book": ["long_short", "long_only"],
}


class Killed(BaseException):
    """Interrupts a command; no handler catches it."""


@pytest.fixture
def settings(tiny: dict[str, Any]) -> dict[str, Any]:
    """A config with eight designs from four fits of two folds each."""
    features = {"window": 5, "characteristics": ["momentum_63", "return_1", "return_5"]}
    return {**tiny, "models": {"zero": {}, "ridge": {}}, "features": features, "multiverse": CHOICES}


@pytest.fixture
def peerglass(
    tmp_path: Path,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Call:
    """The command line, in a folder with the ingested market of the config."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))
    call = command(monkeypatch, capfd)
    assert call("ingest", "tiny.yaml").code == 0
    return call


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """The tasks that were computed; a task with the number in ``killed`` of this list's attribute ends it."""
    computed: list[Task] = []
    original: Callable[..., Any] = vars(work)["run_task"]

    def run(task: Task, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 (passed on)
        outcome = original(task, *arguments, **options)
        computed.append(task)
        return outcome

    monkeypatch.setattr(work, "run_task", run)
    return computed


def results(kind: str) -> Path:
    (path,) = Path("runs/multiverses").glob(kind)
    return path


@pytest.mark.slow(4)
def test_an_interrupted_multiverse_continues_and_fits_nothing_twice(
    peerglass: Call, fitted: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = vars(work)["run_task"]

    def killed(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 (passed on)
        if len(fitted) == 3:
            raise Killed
        return original(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(work, "run_task", killed)
        with pytest.raises(Killed):
            peerglass("multiverse", "tiny.yaml", "--designs", "8")
    assert len(fitted) == 3
    answer = peerglass("multiverse", "tiny.yaml", "--designs", "8")
    assert answer.code == 0, answer.err
    assert len(fitted) == 8, "two folds of two transforms in two schemes"
    assert all(len(task.fold.test) == 0 for task in fitted), "no test session is forecast"
    assert {task.model for task in fitted} == {"ridge"}
    assert trial_count(Path("runs")) == 8
    assert answer.out.startswith("8 designs of 3 choices, on the ")
    assert "the test, which no design has forecast" in answer.out
    again = peerglass("multiverse", "tiny.yaml", "--designs", "8")
    assert (again.out, len(fitted), trial_count(Path("runs"))) == (answer.out, 8, 8)
    assert "8 of 8 designs were already measured." in again.err
    page = results("*/multiverse.html").read_text("utf-8")
    assert page.count('class="plot"') == 4
    assert "label.transform" in page


@pytest.mark.slow(4)
def test_results_are_those_of_the_daily_series_on_common_sessions(
    peerglass: Call, fitted: list[Task]
) -> None:
    first = peerglass("multiverse", "tiny.yaml", "--designs", "3")
    assert first.code == 0, first.err
    assert "The variance is divided among these choices from 8 designs on." in first.out
    before = len(fitted)
    answer = peerglass("multiverse", "tiny.yaml", "--designs", "8")
    assert answer.code == 0, answer.err
    assert "3 of 8 designs were already measured." in answer.err
    assert len(fitted) == 8
    assert before < 8
    designs = pl.read_parquet(results("*/designs.parquet"))
    assert designs.select("label.transform", "folds.scheme", "book").unique().height == 8
    daily = {path.stem: pl.read_parquet(path) for path in results("*/designs").glob("*.parquet")}
    dates = set.intersection(*(set(one.drop_nulls("excess_net")["date"]) for one in daily.values()))
    assert designs["sessions"].unique().to_list() == [len(dates)]
    excess = [one.filter(pl.col("date").is_in(dates))["excess_net"].to_numpy() for one in daily.values()]
    wanted = sorted((sharpe(one) for one in excess), reverse=True)
    np.testing.assert_allclose(designs["sharpe_net"], wanted)
    outcomes = pl.read_parquet(results("*/outcomes.parquet")).row(0, named=True)
    assert outcomes["deviation"] == pytest.approx(np.std(wanted, ddof=1))
    assert outcomes["interquartile_range"] == pytest.approx(np.subtract(*np.quantile(wanted, [0.75, 0.25])))
    shares = pl.read_parquet(results("*/shares.parquet"))
    for (outcome,), own in shares.partition_by("outcome", as_dict=True).items():
        assert own["share"].sum() == pytest.approx(1.0), outcome
    of_ic = dict(shares.filter(pl.col("outcome") == "IC").select("effect", "share").iter_rows())
    assert of_ic["book"] <= 0, "a book changes no IC"


@pytest.mark.slow(6)
def test_a_design_on_the_test_is_the_run_of_its_settings(peerglass: Call, settings: dict[str, Any]) -> None:
    answer = peerglass("multiverse", "tiny.yaml", "--test")
    assert answer.code == 0, answer.err
    assert "The test was opened" in answer.out
    chosen = {"label.transform": "rank", "folds.scheme": "rolling", "book": "long_short"}
    name = Design.of(check_config(settings, origin="tiny"), chosen).name
    design = pl.read_parquet(results("*/designs") / f"{name}.parquet")
    one = {"label": {**settings["label"], "transform": "rank"}, "models": {"ridge": {}}}
    one |= {"folds": {**settings["folds"], "scheme": "rolling"}}
    Path("one.yaml").write_text(yaml.safe_dump({**settings, **one}))
    trained = peerglass("train", "one.yaml")
    assert trained.code == 0, trained.err
    run = trained.out.strip()
    assert peerglass("backtest", run, "--output", "runs").code == 0
    (evaluation,) = Path("runs", run, "evaluations").iterdir()
    equity = pl.read_parquet(evaluation / "equity.parquet").filter(pl.col("book") == "long_short")
    both = equity.drop_nulls("excess_net").join(design.drop_nulls("excess_net"), on="date", how="full")
    assert both.height > 70
    np.testing.assert_array_equal(both["excess_net"], both["excess_net_right"])
    series = pl.read_parquet(evaluation / "ic_series.parquet").drop_nulls("ic")
    both = series.join(design.drop_nulls("ic"), on="date", how="full")
    np.testing.assert_array_equal(both["ic"], both["ic_right"])
    # the run's books are trials of the multiverse, but for the other book's rows of the same forecasts
    assert trial_count(Path("runs")) == 8


def test_time_that_is_up_starts_nothing(peerglass: Call, fitted: list[Task]) -> None:
    answer = peerglass("multiverse", "tiny.yaml", "--minutes", "0")
    assert answer.code == 3, answer.err
    assert "No design has a result: give more --minutes" in answer.err
    assert fitted == []


def test_choices_are_named_by_paths_or_nested(settings: dict[str, Any]) -> None:
    config = check_config(settings, origin="tiny")
    assert config.multiverse == {
        "label.transform": ("demean", "rank"),
        "folds.scheme": ("expanding", "rolling"),
        "book": ("long_short", "long_only"),
    }
    dates = yaml.safe_load("folds: {train_from: [2010-01-04, 2012-01-04]}")  # YAML reads dates
    dated = check_config({**settings, "multiverse": dates}, origin="tiny").multiverse
    assert dated == {"folds.train_from": ("2010-01-04", "2012-01-04")}
    assert write_value(dated["folds.train_from"][0]) == "2010-01-04"
    with pytest.raises(ConfigError, match=r"multiverse.label.horizon is \[1\]; it must hold distinct values"):
        check_config({**settings, "multiverse": {"label": {"horizon": [1]}}}, origin="tiny")


def test_a_design_has_its_values_one_model_and_one_book(settings: dict[str, Any]) -> None:
    models: dict[str, Any] = {"zero": {}, "ridge": {}, "lightgbm": {}}
    config = check_config({**settings, "models": models}, origin="tiny")
    values = {
        "model": "lightgbm",
        "model.rounds": 7,
        "book.rebalance_every": 5,
        "features.transform.kind": "zscore",
    }
    design = Design.of(config, values).config
    assert design.models == {"lightgbm": {"rounds": 7}}
    assert list(design.backtest.books) == ["long_short"]
    assert design.backtest.books["long_short"].rebalance_every == 5
    assert design.features.transform.kind == "zscore"
    assert Design.of(config, {"label.horizon": 2}).config.models == {"ridge": {}}, "the first that learns"
    for wrong, said in (
        ({"lake": "other"}, "multiverse.lake is no choice of a design"),
        ({"model": "lstm"}, "there is no 'lstm'; choose among zero, ridge, lightgbm"),
        ({"label.transform": "log"}, r"multiverse with label.transform log: label.transform"),
        ({"label.horizn": 2}, "did you mean 'horizon'"),
    ):
        with pytest.raises(ConfigError, match=said):
            Design.of(config, wrong)


def test_a_config_without_choices_has_those_of_papers(settings: dict[str, Any]) -> None:
    models = {"zero": {}, "ridge": {}, "lstm": {"width": 8}}
    config = check_config({**settings, "models": models, "multiverse": {}}, origin="tiny")
    found = default_choices(config)
    assert found["model"] == ("ridge", "lstm")
    assert found["label.transform"] == ("demean", "zscore", "rank")
    assert found["label.horizon"] == (1, 5)
    assert found["seeds"] == ((0,), (1,))
    assert found["book"] == ("long_short", "long_only")
    assert "folds.test" not in found, "max_folds keeps the newest folds, so shorter ones test fewer sessions"
    for path, values in found.items():
        for value in values:
            Design.of(config, {path: value})
    only = check_config({**settings, "models": {"ridge": {}}, "multiverse": {}}, origin="tiny")
    assert not {"model", "seeds", "fit.loss", "features.window"} & default_choices(only).keys()


@pytest.mark.parametrize(
    ("models", "fit", "losses"),
    [
        ({"lstm": {}}, {"loss": "net_utility"}, ("net_utility", "mse", "huber", "ic")),
        ({"portfolio_transformer": {}}, {}, ("sharpe", "mse", "huber", "ic")),
        ({"ridge": {}, "lstm": {"fit": {"loss": "net_utility"}}}, {}, None),  # the config's loss is not read
    ],
)
def test_choices_of_a_loss_are_those_that_its_models_allow(
    models: dict[str, Any], fit: dict[str, Any], losses: tuple[str, ...] | None, settings: dict[str, Any]
) -> None:
    label = {"horizon": 1, "delay": 1}
    given = {**settings, "models": models, "fit": fit, "label": label, "multiverse": {}}
    config = check_config(given, origin="tiny")
    found = default_choices(config)
    assert found.get("fit.loss") == losses
    own = Design.of(config, {path: values[0] for path, values in found.items()}).config
    model = next(iter(own.models))
    assert losses is None or model_settings(own, model).fit.loss == model_settings(config, model).fit.loss
    for path, values in found.items():
        for value in values:
            Design.of(config, {"model": list(models)[-1], path: value})


def test_a_multiverse_needs_walk_forward_folds_and_no_ensemble(settings: dict[str, Any]) -> None:
    config = check_config(
        {**settings, "models": {"ridge": {}, "ensemble": {"members": ["ridge"]}}}, origin="tiny"
    )
    with pytest.raises(ConfigError, match="ensemble is an ensemble, which has no fit of its own"):
        Design.of(config, {"model": "ensemble"})
    live = {"scheme": "live", "through": "2012-01-01", "valid": 20, "embargo": 1}
    choices = {"label.horizon": [1, 2]}
    config = check_config({**settings, "folds": live, "multiverse": choices}, origin="tiny")
    with pytest.raises(ConfigError, match="needs walk-forward folds"):
        multiverse.multiverse(config, 4)


@pytest.mark.slow(4)
def test_designs_that_are_not_shown_stay_in_the_effective_number(peerglass: Call) -> None:
    assert peerglass("multiverse", "tiny.yaml", "--designs", "8").code == 0
    every = pl.read_parquet(results("*/designs.parquet"))["effective_trials"][0]
    assert peerglass("multiverse", "tiny.yaml", "--designs", "2").code == 0
    two = pl.read_parquet(results("*/designs.parquet"))
    assert (two.height, two["trials"][0]) == (2, 8)
    assert two["effective_trials"][0] >= every, "six designs that were tried and are not shown count in full"


@pytest.mark.slow(4)
def test_designs_without_folds_take_no_others_with_them(peerglass: Call, settings: dict[str, Any]) -> None:
    choices = {"folds.train": [settings["folds"]["train"], 100_000], "book": ["long_short", "long_only"]}
    Path("tiny.yaml").write_text(yaml.safe_dump({**settings, "multiverse": choices}))
    answer = peerglass("multiverse", "tiny.yaml")
    assert answer.code == 0, answer.err
    assert "Without a result: folds: " in answer.err
    assert answer.out.startswith("2 designs of 2 choices, on the ")
    assert "2 have no result." in answer.out
    assert trial_count(Path("runs")) == 2, "what cannot be fitted is not tried"


@pytest.mark.slow(4)
def test_designs_of_earlier_rates_are_not_taken_for_those_of_new_ones(
    peerglass: Call, settings: dict[str, Any], tmp_path: Path
) -> None:
    rates = tmp_path / "rates.csv"
    days = pl.date_range(pl.date(1990, 1, 1), pl.date(2035, 1, 1), eager=True)
    pl.DataFrame({"date": days, "rate": 0.0}).write_csv(rates)
    backtest = {**settings["backtest"], "risk_free": str(rates)}
    Path("tiny.yaml").write_text(yaml.safe_dump({**settings, "backtest": backtest}))
    first = peerglass("multiverse", "tiny.yaml", "--designs", "2")
    assert first.code == 0, first.err
    pl.DataFrame({"date": days, "rate": 0.5}).write_csv(rates)
    second = peerglass("multiverse", "tiny.yaml", "--designs", "2")
    assert "designs were already measured" not in second.err
    assert second.out.splitlines()[1] != first.out.splitlines()[1]
