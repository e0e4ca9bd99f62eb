"""``peerglass explain RUN --date D`` explains out-of-sample forecasts of a run and refuses what it cannot."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import yaml
from command import Answer, Call, command
from polars.testing import assert_frame_equal
from scipy.stats import spearmanr

import peerglass
from backtest.splits.folds import Fold
from features.arrays import FloatArray
from models.explain.groups import GroupGameConfig, explain_groups
from pipelines.config.load import load_config
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import plan_folds
from pipelines.errors import ConfigError, DataError
from pipelines.execution.protocol import Hear, Report, Ticket, Work, attempt
from pipelines.explain import games
from pipelines.explain.attribution import explanation_tables, period_table
from pipelines.explain.fitted import families_of
from pipelines.explain.games import ModelExplanation, explain_models
from pipelines.explain.question import find_place
from pipelines.explain.shown import unit_of, unit_of_run
from pipelines.progress import Progress
from pipelines.run.fetch import ingest_config
from pipelines.run.open import load_run_data
from pipelines.run.record import open_run, read_scores
from pipelines.stages import train_config

MODELS = {
    "ridge": {},
    "temporal_peer": {
        "encoder": {"width": 8, "heads": 2},
        "peer_heads": 2,
        "peer_width": 8,
        "fit": {"loss": "ic"},  # without a scale, so that every value is calibrated
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Path:
    """A folder with a trained run of two seeds."""
    folder = tmp_path_factory.mktemp("explained")
    settings = {
        **tiny_settings,
        "models": MODELS,
        "seeds": [4, 7],
        "fit": {"epochs": 1, "batch_dates": 16},
        "audit": {"enabled": False},
        "lake": str(folder / "lake"),
        "output": str(folder / "runs"),
        "label": {"horizon": 1, "delay": 0, "transform": "demean", "clip": 0.01},
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db", "artifacts": str(folder / "artifacts")},
    }
    (folder / "sim.yaml").write_text(yaml.safe_dump(settings))
    config = load_config(folder / "sim.yaml")
    ingest_config(config, lambda _: None)
    train_config(config)
    return folder


@pytest.fixture(scope="module")
def tested(trained: Path) -> pl.DataFrame:
    """Stored forecasts of temporal_peer: date, ticker, forecast (mean over seeds)."""
    run = open_run("latest", trained / "runs")
    _, lake = load_run_data(run, Progress(quiet=True))
    return (
        lake.read("forecasts")
        .filter(pl.col("model") == "temporal_peer")
        .group_by("date", "ticker")
        .agg(pl.col("forecast").mean())
        .sort("date", "ticker")
    )


@pytest.fixture
def explain(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """``peerglass explain latest ...`` on the trained run."""
    call = command(monkeypatch, capsys)
    return lambda *arguments: call("explain", "latest", "--output", str(trained / "runs"), *arguments)


def refused(answer: Answer, code: int, *words: str) -> None:
    """Check that a command ended with one sentence that has these words."""
    assert answer.code == code, answer.err
    last = answer.err.strip().splitlines()[-1]
    assert last.startswith("peerglass: "), answer.err
    assert "bug" not in last
    for word in words:
        assert word in last, last
    assert answer.out == ""


def read(path: Path) -> pl.DataFrame:
    """Read a file of values."""
    return pl.read_parquet(path)


def column(frame: pl.DataFrame, name: str) -> FloatArray:
    """A column of numbers."""
    return frame[name].to_numpy().astype(np.float64)


@pytest.mark.slow(3)
def test_the_values_of_one_forecast_add_up_to_the_stored_forecast(
    explain: Call, tested: pl.DataFrame, tmp_path: Path
) -> None:
    day, ticker, forecast = tested.row(20)
    asked = ["--date", str(day), "--ticker", ticker, "--model", "temporal_peer"]
    answer = explain(*asked, "--out", str(tmp_path / "values.parquet"))
    assert answer.code == 0, answer.err
    for words in ("day 1", "characteristics", "peers", "error", "return over 1 session", "mean of 2 seeds"):
        assert words in answer.out, answer.out
    assert "absent days are masked, and in the messages to peers set to 0" in answer.out
    values = read(tmp_path / "values.parquet")
    peers = set(tested.filter(pl.col("date") == day)["ticker"])
    assert set(values.filter(pl.col("kind") == "firm")["player"]) == peers
    assert values["error"].is_finite().all()
    assert values["forecast"][0] == pytest.approx(forecast, rel=1e-5)
    assert column(values, "base")[0] + column(values, "value").sum() == pytest.approx(forecast, abs=1e-7)
    assert np.abs(column(values, "value")).max() > 0


def test_draws_are_continued_when_more_are_asked_for(
    explain: Call, trained: Path, tested: pl.DataFrame, tmp_path: Path
) -> None:
    day, ticker, _ = tested.row(50)
    asked = ["--date", str(day), "--ticker", ticker, "--model", "temporal_peer", "--peers", "all"]

    def values(name: str, draws: int) -> pl.DataFrame:
        assert explain(*asked, "--draws", str(draws), "--out", str(tmp_path / name)).code == 0
        return read(tmp_path / name)

    few, more = values("few.parquet", 3), values("more.parquet", 12)
    stored = trained / "runs" / open_run("latest", trained / "runs").run_id / "explanations"
    assert any(stored.iterdir())
    shutil.rmtree(stored)
    np.testing.assert_allclose(more["value"], values("again.parquet", 12)["value"], rtol=0, atol=1e-9)
    assert column(more, "error").mean() < column(few, "error").mean()


def test_the_cross_section_of_a_date(explain: Call, tested: pl.DataFrame, tmp_path: Path) -> None:
    day = tested["date"][0]
    answer = explain("--date", str(day), "--model", "temporal_peer", "--out", str(tmp_path / "x.csv"))
    assert answer.code == 0, answer.err
    stored = tested.filter(pl.col("date") == day)
    values = pl.read_csv(tmp_path / "x.csv")
    sums = values.group_by("ticker").agg(
        (pl.col("base").first() + pl.col("value").sum()).alias("sum"), pl.col("forecast").first()
    )
    joined = sums.join(stored, on="ticker", suffix="_stored")
    assert joined.height == stored.height > 10
    np.testing.assert_allclose(joined["sum"], joined["forecast"], atol=1e-7)
    np.testing.assert_allclose(joined["forecast"], joined["forecast_stored"], rtol=1e-5)
    best = stored.sort("forecast")["ticker"]
    assert "mean |value|" in answer.out
    assert answer.out.index(f"  {best[-1]} ") < answer.out.index(f"  {best[0]} ")


def test_the_difference_of_two_dates(explain: Call, tested: pl.DataFrame, tmp_path: Path) -> None:
    own = tested.filter(pl.col("ticker") == tested["ticker"][0])
    (old, _, before), (new, ticker, after) = own.row(0), own.row(-1)
    files = [tmp_path / f"{name}.json" for name in ("new", "old", "difference")]
    base = ["--ticker", ticker, "--model", "temporal_peer"]
    assert explain(*base, "--date", str(new), "--out", str(files[0])).code == 0
    assert explain(*base, "--date", str(old), "--out", str(files[1])).code == 0
    answer = explain(*base, "--date", str(new), "--versus", str(old), "--out", str(files[2]))
    assert answer.code == 0, answer.err
    assert "tested by different folds" in answer.out
    one, other, found = (pl.read_json(file) for file in files)
    sums = column(found, "value").sum() + column(found, "base")[0] - column(found, "base_versus")[0]
    assert sums == pytest.approx(after - before, abs=1e-7)
    at = found.filter(pl.col("player") == "day 1").row(0, named=True)
    a, b = (frame.filter(pl.col("player") == "day 1").row(0, named=True) for frame in (one, other))
    assert at["value"] == pytest.approx(a["value"] - b["value"])
    assert at["error"] == pytest.approx(np.hypot(a["error"], b["error"]))


def test_a_firm_over_time(explain: Call, tested: pl.DataFrame, tmp_path: Path) -> None:
    ticker, dates = tested["ticker"][0], tested["date"].unique().sort()
    own = tested.filter((pl.col("ticker") == ticker) & pl.col("date").is_between(dates[37], dates[42]))
    asked = ["--model", "temporal_peer", "--ticker", ticker, "--date", str(dates[37]), "--to", str(dates[42])]
    answer = explain(*asked, "--draws", "4", "--out", str(tmp_path / "t.parquet"))
    assert answer.code == 0, answer.err
    found = read(tmp_path / "t.parquet")
    assert found["date"].unique().sort().to_list() == own["date"].to_list()
    assert found["fold"].unique().sort().to_list() == [0, 1]
    sums = found.group_by("date", maintain_order=True).agg(pl.col("base").first() + pl.col("value").sum())
    np.testing.assert_allclose(column(sums, "base"), column(own, "forecast"), atol=1e-7)
    assert all(str(day) in answer.out for day in own["date"])
    asked = ["--model", "temporal_peer", "--date", str(dates[0])]
    refused(explain(*asked, "--to", "2001-01-01"), 2, "--to is 2001-01-01, before --date")
    refused(explain(*asked, "--ticker", "NONE", "--to", str(dates[1])), 2, "no firm 'NONE'")
    early = ["--ticker", ticker, "--date", "2001-01-01", "--to", "2001-02-01"]
    refused(
        explain("--model", "ridge", *early), 2, "no out-of-sample forecast from 2001-01-01", str(dates[0])
    )


def test_a_linear_model_is_explained_exactly(
    explain: Call, trained: Path, tested: pl.DataFrame, tmp_path: Path
) -> None:
    day, ticker, _ = tested.row(0)
    asked = ["--date", str(day), "--ticker", ticker, "--model", "ridge"]
    assert explain(*asked, "--engine", "linear", "--out", str(tmp_path / "exact.parquet")).code == 0
    exact = read(tmp_path / "exact.parquet")
    assert (column(exact, "error") == 0).all()
    answer = explain(*asked, "--precision", "0.02", "--out", str(tmp_path / "drawn.parquet"))
    assert answer.code == 0, answer.err
    assert "asked for" in answer.err  # progress
    drawn = read(tmp_path / "drawn.parquet")
    run = open_run("latest", trained / "runs")
    spread = _spread(run.folder.parent, day)
    assert 0 < column(drawn, "error").max() <= 0.02 * spread * (1 + 1e-9)
    assert np.abs(column(drawn, "value") - column(exact, "value")).max() < 5 * 0.02 * spread


def _spread(runs: Path, day: object) -> float:
    """Standard deviation of ridge's forecasts of a date."""
    _, lake = load_run_data(open_run("latest", runs), Progress(quiet=True))
    rows = lake.read("forecasts").filter((pl.col("model") == "ridge") & (pl.col("date") == day))
    return float(np.std(rows.group_by("ticker").agg(pl.col("forecast").mean())["forecast"].to_numpy()))


def test_the_command_explains_as_the_game_of_groups_does(
    explain: Call, trained: Path, tested: pl.DataFrame, tmp_path: Path
) -> None:
    day, ticker, _ = tested.row(0)
    asked = ["--date", str(day), "--ticker", ticker, "--model", "temporal_peer", "--peers", "all"]
    assert explain(*asked, "--precision", "0.05", "--out", str(tmp_path / "v.parquet")).code == 0
    found = read(tmp_path / "v.parquet")
    run = peerglass.open_run("latest", trained / "runs")
    means, errors = [], []
    for seed in (4, 7):
        model = peerglass.load_model(run, "temporal_peer", fold=0, seed=seed)
        families = families_of(run.data[0].characteristic_names)
        sessions = model.sessions(day, day)
        config = GroupGameConfig(permutations=200, seed=99)
        game = explain_groups(model.fitted, model.tensors, sessions, families, config)
        row = [run.data[0].panel.tickers_N[firm] for firm in game.firms_E].index(ticker)
        means.append(game.values_EP[row])
        errors.append(game.error_EP[row])
    error_P = np.sqrt(np.sum(np.square(errors), axis=0)) / 2
    gap_P = np.abs(found["value"].to_numpy() - np.mean(means, axis=0))
    assert (gap_P <= 5 * np.hypot(error_P, found["error"].to_numpy()) + 1e-12).all()


def test_both_ends_of_the_newest_date(explain: Call, tested: pl.DataFrame, tmp_path: Path) -> None:
    asked = ["--date", "latest", "--top", "2", "--model", "temporal_peer"]
    answer = explain(*asked, "--draws", "3", "--out", str(tmp_path / "ends.parquet"))
    assert answer.code == 0, answer.err
    newest = tested.filter(pl.col("date") == tested["date"].max()).sort("forecast")["ticker"].to_list()
    found = read(tmp_path / "ends.parquet")
    assert found["ticker"].unique(maintain_order=True).to_list() == [*newest[:-3:-1], newest[1], newest[0]]
    assert answer.out.index("highest forecasts") < answer.out.index(f"  {newest[-1]} ")
    assert answer.out.index("lowest forecasts") < answer.out.index(f"  {newest[0]} ")
    sums = found.group_by("ticker").agg(
        pl.col("base").first() + pl.col("value").sum(), pl.col("forecast").first()
    )
    np.testing.assert_allclose(sums["base"], sums["forecast"], atol=1e-7)


def test_a_sample_of_a_period(explain: Call, tested: pl.DataFrame, tmp_path: Path) -> None:
    dates = tested["date"].unique().sort()
    asked = ["--date", str(dates[0]), "--to", str(dates[-1]), "--dates", "4", "--model", "ridge"]
    answer = explain(*asked, "--engine", "linear", "--out", str(tmp_path / "p.parquet"))
    assert answer.code == 0, answer.err
    values = read(tmp_path / "p.parquet")
    assert values["date"].n_unique() == 4
    assert set(values.group_by("date").agg(pl.col("ticker").n_unique())["ticker"]) == {8}
    table = period_table(values)
    groups = set(table["group"]) - {"all"}
    assert len(groups) > 1
    everyone = table.filter(pl.col("group") == "all")
    assert set(everyone["forecasts"]) == {32}
    family = everyone["player"][0]
    mean = float(np.abs(column(values.filter(pl.col("player") == family), "value")).mean())
    assert everyone["mean_abs"][0] == pytest.approx(mean)
    assert f"{mean:.6f}"[:6] in answer.out.replace(" ", "")
    assert all(f"  {group} (" in answer.out for group in groups)


def test_the_rank_ic_is_divided_among_the_players(explain: Call, tmp_path: Path) -> None:
    answer = explain("--skill", "--model", "ridge", "--dates", "6", "--out", str(tmp_path / "s.parquet"))
    assert answer.code == 0, answer.err
    table = read(tmp_path / "s.parquet")
    inner = table.filter(pl.col("kind") == "family")
    (base,), (total,) = (table.filter(pl.col("kind") == kind)["value"] for kind in ("base", "total"))
    assert inner["value"].sum() + base == pytest.approx(total, abs=1e-9)
    assert np.abs(column(inner, "value")).max() > 1e-3
    assert (table["error"] > 0).any()
    assert "on 6 test dates" in answer.out
    assert f"{total:+.4f}" in answer.out


def test_absent_characteristics_get_draws_of_the_training_fold(
    explain: Call, tested: pl.DataFrame, tmp_path: Path
) -> None:
    """Given what is kept, a linear model's correlated characteristics share their values."""
    day, ticker, _ = tested.row(0)
    asked = ["--date", str(day), "--ticker", ticker, "--model", "ridge", "--draws", "64"]
    found = {}
    for removal, words in (("train", "of the training fold"), ("conditional", "given the kept")):
        answer = explain(*asked, "--removal", removal, "--out", str(tmp_path / f"{removal}.parquet"))
        assert answer.code == 0, answer.err
        assert words in answer.out
        found[removal] = read(tmp_path / f"{removal}.parquet")
        assert set(found[removal]["removal"]) == {removal}
    exact = explain(
        *(*asked[:-2], "--removal", "train", "--engine", "linear", "--out", str(tmp_path / "exact.parquet"))
    )
    assert exact.code == 0, exact.err
    gap = column(found["train"], "value") - column(read(tmp_path / "exact.parquet"), "value")
    assert (np.abs(gap) <= 5 * column(found["train"], "error") + 1e-9).all()
    assert np.abs(column(found["train"], "value") - column(found["conditional"], "value")).max() > 0


# What it refuses.


def test_dates_and_firms_without_a_forecast(explain: Call, tested: pl.DataFrame) -> None:
    base = ["--model", "temporal_peer", "--date"]
    day = str(tested["date"][0])
    refused(
        explain(*base, "2031-01-01"), 2, "2031-01-01 is not a session", "tests of the run are from " + day
    )
    first = str(tested["date"][0] - dt.timedelta(days=28))  # in the training
    refused(explain(*base, day, "--ticker", "NONE"), 2, "no firm 'NONE'", "check the ticker")
    refused(explain(*base, first), 2, f"{first} has no out-of-sample forecast", day)


def test_options_that_do_not_apply(explain: Call, tested: pl.DataFrame, tmp_path: Path) -> None:
    day, ticker, _ = tested.row(0)
    refused(explain("--ticker", ticker), 2, "--ticker", "--date")
    refused(explain("--removal", "train"), 2, "--removal", "--date")
    refused(explain("--date", "yesterday"), 2, "--date is 'yesterday'", "latest")
    refused(explain("--skill", "--ticker", ticker), 2, "--skill", "--ticker")
    refused(explain("--skill", "--model", "ridge", "--dates", "1"), 2, "--dates is 1", "at least 2")
    refused(explain("--date", str(day)), 2, "ridge, temporal_peer", "--model")
    base = ["--date", str(day), "--model"]
    refused(explain(*base, "lstm"), 2, "no model 'lstm'")
    refused(explain(*base, "ridge", "--peers", "all"), 2, "ridge has no peers")
    refused(explain(*base, "ridge", "--engine", "guess"), 2, "--engine", "permutation, linear, tree")
    refused(explain(*base, "ridge", "--engine", "tree"), 2, "explains lightgbm and double_ensemble only")
    refused(explain(*base, "temporal_peer", "--engine", "linear"), 2, "explains characteristics only")
    refused(explain(*base, "ridge", "--versus", str(day)), 2, "--versus", "--ticker")
    refused(explain(*base, "ridge", "--precision", "0"), 2, "--precision is 0.0")
    refused(explain(*base, "ridge", "--draws", "1"), 2, "--draws is 1")
    refused(
        explain(*base, "ridge", "--removal", "zero"), 2, "--removal is 'zero'", "date, train, conditional"
    )
    refused(
        explain(*base, "ridge", "--removal", "conditional", "--engine", "linear"), 2, "permutation engine"
    )
    refused(explain(*base, "ridge", "--top", "0"), 2, "--top is 0")
    refused(explain(*base, "ridge", "--top", "3", "--ticker", ticker), 2, "--top", "--ticker")
    refused(explain(*base, "ridge", "--dates", "3"), 2, "--dates", "--to")
    refused(explain(*base, "ridge", "--out", str(tmp_path / "x.txt")), 2, "x.txt", ".csv, .parquet, .json")


def test_a_precision_that_is_not_reached(explain: Call, tested: pl.DataFrame, tmp_path: Path) -> None:
    day, ticker, _ = tested.row(30)
    out = tmp_path / "values.csv"
    answer = explain(
        *("--date", str(day), "--ticker", ticker, "--model", "temporal_peer"),
        *("--precision", "1e-9", "--draws", "20", "--out", str(out)),
    )
    refused(answer, 2, "--precision 1e-09 is not reached", "after 20 draws", "it needs about", "--draws")
    assert not out.exists()


@pytest.fixture
def damaged(trained: Path) -> Iterator[Path]:
    """The checkpoint of a seed, restored after the test."""
    run = open_run("latest", trained / "runs")
    folder = run.checkpoint("ridge", 0, 7)
    shutil.copytree(folder, trained / "kept")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    shutil.move(trained / "kept", folder)


def test_a_missing_model_file(explain: Call, tested: pl.DataFrame, damaged: Path) -> None:
    (damaged / "model.safetensors").unlink()
    answer = explain("--date", str(tested["date"][0]), "--model", "ridge")
    refused(answer, 3, "There is no checkpoint in", "fold-0-seed-7", "peerglass train")


def test_a_model_of_other_features(explain: Call, tested: pl.DataFrame, damaged: Path) -> None:
    record = json.loads((damaged / "model.json").read_text())
    names = record["shape"]["characteristic_names"]
    record["shape"]["characteristic_names"] = ["book_to_dreams", *names[1:]]
    (damaged / "model.json").write_text(json.dumps(record))
    answer = explain("--date", str(tested["date"][0]), "--model", "ridge")
    refused(answer, 3, "fold 0, seed 7", "other features", f"without {names[0]}", "with book_to_dreams")


def test_the_step_of_a_run_uses_the_options_of_its_config(trained: Path) -> None:
    run = open_run("latest", trained / "runs")
    dataset, _ = load_run_data(run, Progress(quiet=True))
    folds = plan_folds(dataset, run.config)

    def explained(**options: object) -> ModelExplanation:
        settings = run.config.explain.model_copy(update={"dates": 4, "skill_dates": 4, **options})
        asked = replace(run, config=run.config.model_copy(update={"explain": settings}))
        (explanation,) = explain_models(asked, dataset, folds, ["ridge"], Progress(quiet=True))
        return explanation

    found = explained(removal="train", engine="linear")
    assert {(part.engine, part.removal) for part in found.groups} == {("linear", "train")}
    assert sum(len(part.sessions_D) for part in found.skill) == 4
    assert len(np.unique(np.concatenate([part.sessions_E for part in found.groups]))) == 4
    one = explained(dates=1)
    assert sum(len(np.unique(part.sessions_E)) for part in one.groups) == 1, "four fits share one date"
    tables = explanation_tables(found, dataset, None)
    assert tables["skill"].height == len(found.groups[0].players) + 2
    assert (
        tables["period"].filter(pl.col("group") == "all")["forecasts"][0]
        == 4 * run.config.explain.firms_per_date
    )
    assert json.loads(tables["facts"]["facts"][0])["removal"] == "train"
    with pytest.raises(ConfigError, match=r"explain.precision is 1e-09, and 1,000 draws of the engine"):
        explained(precision=1e-9, dates=1)
    with pytest.raises(ConfigError, match="explains lightgbm and double_ensemble only"):
        explained(engine="tree")


def test_the_skill_that_is_divided_is_the_rank_ic_of_the_report(trained: Path) -> None:
    """That of the label, not of the clipped target that the models were fitted to."""
    run = open_run("latest", trained / "runs")
    dataset, lake = load_run_data(run, Progress(quiet=True))
    folds = plan_folds(dataset, run.config)
    (found,) = explain_models(run, dataset, folds, ["ridge"], Progress(quiet=True))
    stored = lake.read("forecasts").filter((pl.col("model") == "ridge") & pl.col("label").is_not_null())
    seeds = [(fold.index, seed) for fold in folds for seed in run.config.seeds]
    checked, clipped = 0, 0
    for part in found.skill:
        for session, skill in zip(part.sessions_D, part.skill_D, strict=True):
            day = dataset.panel.dates_T[session].astype("datetime64[D]").item()
            own = stored.filter(pl.col("date") == day)
            ics = [
                spearmanr(of_seed["forecast"], of_seed["label"]).statistic
                for fold, seed in seeds
                if not (of_seed := own.filter((pl.col("fold") == fold) & (pl.col("seed") == seed))).is_empty()
            ]
            assert np.abs(np.array(ics) - skill).min() < 1e-6
            checked += 1
            clipped += int((own["label"].abs() > 0.01).any())
    assert checked == run.config.explain.skill_dates or checked == sum(len(fold.test) for fold in folds)
    assert clipped > 0, "the case was made"


def test_the_unit_is_named_where_there_is_one(explain: Call, trained: Path, tested: pl.DataFrame) -> None:
    run = open_run("latest", trained / "runs")
    assert unit_of_run(run, "temporal_peer").name == "bps", "the loss has no scale, and was calibrated"
    lines = [
        json.loads((run.checkpoint("temporal_peer", fold, seed) / "model.json").read_text())["calibration"]
        for fold in (0, 1)
        for seed in (4, 7)
    ]
    assert len({line[0]["slope"] for line in lines}) == 4, "recorded with every fold and seed"
    scores = read_scores(run).filter(pl.col("model") == "temporal_peer").sort("fold", "seed")
    assert scores["calibration_slope"].to_list() == [line[0]["measured"] for line in lines]
    assert unit_of_run(run, "ridge").name == "bps"
    scored = run.config.label.model_copy(update={"transform": "zscore"})
    assert unit_of(run.config.model_copy(update={"label": scored}), "ridge").short == "standard deviations"
    rules = run.config.model_copy(update={"models": {"momentum": {}, **run.config.models}})
    assert unit_of(rules, "momentum").short == "none", "a rule that ranks firms forecasts no return"
    pruned = unit_of_run(replace(run, folder=trained / "pruned"), "temporal_peer")
    assert "no checkpoint is left" in pruned.sentence
    assert "not calibrated" not in pruned.sentence
    path = run.checkpoint("temporal_peer", 0, 4) / "model.json"
    kept = path.read_text()
    old = json.loads(kept)
    del old["calibration"]
    path.write_text(json.dumps(old))
    try:
        day, ticker, _ = tested.row(0)
        answer = explain("--date", str(day), "--ticker", ticker, "--model", "temporal_peer", "--draws", "2")
        assert "unit: none, because temporal_peer was trained with fit.loss ic" in answer.out
        assert "train the config again" in answer.out
        assert unit_of_run(run, "temporal_peer").name == ""
    finally:
        path.write_text(kept)


class Elsewhere:
    """An engine that computes what it is sent, and nothing else; the last task first."""

    threads = 1

    def __init__(self, work: Work[Any, Any, Any]) -> None:
        self._call, self._shared, self._sent = work.call, pickle.dumps(work.shared), list[Any]()

    def has_room(self, device: str, under_way: Collection[Ticket]) -> bool:
        return True

    def submit(self, ticket: Ticket, item: Any) -> None:  # noqa: ANN401 (any task)
        self._sent.append((ticket, pickle.dumps(item)))

    def wait(self, hear: Hear) -> Sequence[Report[Any]]:
        ticket, item = self._sent.pop()
        shared = pickle.loads(self._shared)  # noqa: S301 (made above)
        return [pickle.loads(pickle.dumps(attempt(self._call, shared, pickle.loads(item), ticket, print)))]  # noqa: S301


@pytest.mark.slow(3)
def test_the_step_of_a_run_gives_the_same_on_every_engine(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run("latest", trained / "runs")
    dataset, _ = load_run_data(run, Progress(quiet=True))
    folds, names = plan_folds(dataset, run.config), ["temporal_peer", "ridge"]
    here = list(explain_models(run, dataset, folds, names, Progress(quiet=True)))
    monkeypatch.setattr(games, "open_engine", lambda _, work, jobs, note: nullcontext(Elsewhere(work)))
    sent = list(explain_models(run, dataset, folds, names, Progress(quiet=True)))
    assert [one.model for one in here] == [one.model for one in sent] == names
    assert here[0].fits == sent[0].fits
    assert {fold for fold, _ in here[0].fits} == {0, 1}
    for left, right in zip(here, sent, strict=True):
        assert len(left.groups) == len(right.groups) == run.config.explain.dates, "a date for a fit"
        tables = explanation_tables(left, dataset, None)
        for name, frame in explanation_tables(right, dataset, None).items():
            assert_frame_equal(frame, tables[name], check_exact=True)
        for mine, theirs in zip(left.peers, right.peers, strict=True):
            np.testing.assert_array_equal(mine.phi_NN, theirs.phi_NN)
    logs = sorted(path.name for path in (run.folder / "logs").glob("explain-*"))
    assert logs == [f"explain-{name}-fold-{fold}.log" for name in sorted(names) for fold in range(2)]


def test_the_step_of_a_run_refuses_sessions_with_a_single_firm(trained: Path) -> None:
    run = open_run("latest", trained / "runs")
    dataset, _ = load_run_data(run, Progress(quiet=True))
    folds = plan_folds(dataset, run.config)
    alone_TN = np.zeros_like(dataset.universe_TN)
    alone_TN[:, 0] = True
    with pytest.raises(DataError, match=r"No test session from .* has two firms in the universe"):
        list(
            explain_models(
                run, replace(dataset, universe_TN=alone_TN), folds, ["temporal_peer"], Progress(quiet=True)
            )
        )


def test_a_date_with_a_single_firm() -> None:
    dates_T = np.arange("2020-01-01", "2020-01-05", dtype="datetime64[D]")
    panel = SimpleNamespace(dates_T=dates_T, n_sessions=4, tickers_N=("AAA", "BBB"))
    dataset = cast("Dataset", SimpleNamespace(panel=panel, universe_TN=np.array([[True, False]] * 4)))
    folds = [Fold(0, np.arange(1), np.arange(1, 2), np.arange(2, 4))]
    with pytest.raises(DataError, match="Fewer than two firms are in the universe on 2020-01-03"):
        find_place(dataset, folds, dt.date(2020, 1, 3), None)
    with pytest.raises(ConfigError, match="BBB has no forecast on 2020-01-03, because it is not in the univ"):
        find_place(dataset, folds, dt.date(2020, 1, 3), "BBB")
