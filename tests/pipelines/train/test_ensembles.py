"""Ensembles in a run: from their config to forecasts, checkpoints, explanations and nights."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from command import Call, command

from models.ensemble import EnsembleFitted
from models.explain.groups import GroupGameConfig, explain_groups, explain_skill
from pipelines.config.load import check_config, load_config, members_of
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import plan_folds
from pipelines.errors import ConfigError, DataError
from pipelines.explain.fitted import families_of
from pipelines.lake.lake import Lake
from pipelines.nightly.loaded import _load_pyfunc
from pipelines.progress import Progress
from pipelines.results.evaluate_run import evaluate_run
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.fetch import ingest_config
from pipelines.run.identity import forecasting_settings
from pipelines.run.open import prepare_run
from pipelines.run.provenance import TaskDone, read_provenance
from pipelines.run.record import RecordedRun, read_scores
from pipelines.stages import write_report
from pipelines.train.task import Arrays, collect_arrays, to_tensors
from pipelines.train.trials import model_trials
from pipelines.train.walkforward import combine_members, kept_file, plan_tasks, train

TREES = {"rounds": 10, "evaluate_every": 5, "min_data_in_leaf": 50}
PEERS = {"model": "temporal_peer", "encoder": {"width": 8, "heads": 2}, "peer_heads": 2}
MEMBERS = {"ridge": {}, "lightgbm": TREES, "peers": PEERS}
FEATURES = {"characteristics": ["return_1", "return_5", "volatility_21", "momentum_63"], "window": 5}


def config_of(home: Path, tiny: Mapping[str, Any], **changes: Any) -> Config:  # noqa: ANN401 (settings)
    mix = {"model": "ensemble", "members": MEMBERS, "weights": "ridge"}
    settings = {
        **tiny,
        "lake": str(home / "lake"),
        "output": str(home / "runs"),
        "tracking": {"uri": f"sqlite:///{home}/mlflow.db", "artifacts": str(home / "mlartifacts")},
        "features": FEATURES,
        "models": {"ridge": {}, "mix": mix, "zero": {}},
        "seeds": [3, 5],
    }
    return check_config({**settings, **changes}, origin="test")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Mapping[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("ensembles")
    ingest_config(config_of(folder, tiny_settings), echo=lambda _: None)
    return folder


Trained = tuple[RecordedRun, Dataset, Lake]


def trained(config: Config) -> Trained:
    run, dataset, lake = prepare_run(config, Progress())
    train(run, dataset, lake, Progress())
    return run, dataset, lake


@pytest.fixture(scope="module")
def done(home: Path, tiny_settings: Mapping[str, Any]) -> Trained:
    return trained(config_of(home, tiny_settings))


def stored_weights(run: RecordedRun, fold: int, seed: int = 3) -> dict[str, float]:
    config = json.loads((run.checkpoint("mix", fold, seed) / "model.json").read_text())
    weights: dict[str, float] = config["weights"]
    return weights


def test_members_that_models_does_not_list_are_entries_after_the_others(
    home: Path, tiny_settings: Mapping[str, Any]
) -> None:
    config = config_of(home, tiny_settings)
    assert list(config.models) == ["ridge", "mix", "zero", "lightgbm", "peers"]
    assert config.models["mix"]["members"] == ["ridge", "lightgbm", "peers"]
    assert config.models["peers"] == PEERS
    assert members_of(config, "mix") == ("ridge", "lightgbm", "peers")
    again = check_config(config.model_dump(mode="json"), origin="again")
    assert again.models == config.models
    alone = config_of(home, tiny_settings, models={"ensemble": {}})
    assert list(alone.models) == ["ensemble", "lightgbm", "gru", "temporal_transformer", "temporal_peer"]


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"ensemble": {"members": ["ridgee"]}}, "'ridgee' is not a known name; did you mean 'ridge'?"),
        ({"ensemble": {"members": []}}, "list the names of models"),
        ({"ensemble": {"members": {"ridge": 3}}}, "give its settings"),
        ({"ensemble": {"members": {"ridge": {"alphas": [1.0]}}}, "ridge": {}}, "has other settings than"),
        (
            {"ensemble": {"members": ["ridge", "two"]}, "two": {"model": "ensemble"}},
            "two is an ensemble itself",
        ),
        ({"ensemble": {"members": ["ensemble"]}}, "ensemble is an ensemble itself"),
        ({"ensemble": {"weight": "ic"}}, "weight"),
        ({"ensemble": {"members": {"big": {"model": "temporal_pear"}}}}, "did you mean 'temporal_peer'?"),
        ({"ensemble": {"members": {"big": {"model": ["ridge"]}}}}, "is not a known name"),
        ({"ensemble": {"members": ["ridge", "ridge"]}}, "name every member once"),
        ({"ensemble": {"fit": {"refit": True}}}, "give fit to its members"),
    ],
)
def test_wrong_members_are_refused_in_one_sentence(
    home: Path, tiny_settings: Mapping[str, Any], models: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(home, tiny_settings, models=models)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_that_null_removes_is_no_member_by_default(tmp_path: Path) -> None:
    base = {
        "name": "base",
        "source": {"kind": "simulated"},
        "lake": "lake",
        "folds": {"scheme": "expanding", "train": 60, "valid": 20, "test": 20, "embargo": 1},
        "models": {"ridge": {}, "lightgbm": {}},
    }
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))

    def child(ensemble: object) -> Config:
        models = {"lightgbm": None, "ensemble": ensemble}
        (tmp_path / "child.yaml").write_text(yaml.safe_dump({"extends": "base.yaml", "models": models}))
        return load_config(tmp_path / "child.yaml")

    config = child({})
    assert list(config.models) == ["ridge", "ensemble", "gru", "temporal_transformer", "temporal_peer"]
    assert members_of(config, "ensemble") == ("gru", "temporal_transformer", "temporal_peer")
    with pytest.raises(ConfigError, match=r"names lightgbm, which models\.lightgbm: null removes"):
        child({"members": ["ridge", "lightgbm"]})


def test_a_config_changes_the_members_that_another_one_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADS", "4")
    given = {"init_from": "./a", "peer_heads": "${HEADS}"}
    base = {
        "name": "base",
        "source": {"kind": "simulated"},
        "lake": "lake",
        "folds": {"scheme": "expanding", "train": 60, "valid": 20, "test": 20, "embargo": 1},
        "models": {"ensemble": {"members": {"ridge": {}, "zero": {}, "wide": {**PEERS, **given}}}},
    }
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    config = load_config(tmp_path / "base.yaml")
    assert config.models["wide"]["init_from"] == str(tmp_path / "a")
    assert config.from_environment() == {"models.wide.peer_heads": "4"}
    changes = {"zero": None, "wide": {"model": "lightgbm", "num_leaves": 4}}
    child = {"extends": "base.yaml", "models": {"ensemble": {"members": changes}}}
    (tmp_path / "child.yaml").write_text(yaml.safe_dump(child))
    models = load_config(tmp_path / "child.yaml").models
    assert models["ensemble"]["members"] == ["ridge", "wide"]
    assert models["wide"] == changes["wide"]
    assert "zero" not in models


def forecasts_of(run: RecordedRun, lake: Lake, model: str, seed: int) -> pl.DataFrame:
    own = (pl.col("run_id") == run.run_id) & (pl.col("model") == model) & (pl.col("seed") == seed)
    return lake.read("forecasts", filters=own).sort("date", "ticker")


def test_forecasts_are_the_weighted_sum_of_the_members_standardised_forecasts(done: Trained) -> None:
    run, _, lake = done
    for seed in (3, 5):
        combined = forecasts_of(run, lake, "mix", seed)
        total = pl.lit(0.0)
        for member in ("ridge", "lightgbm", "peers"):
            own = forecasts_of(run, lake, member, seed)
            assert own.select("date", "ticker").equals(combined.select("date", "ticker"))
            combined = combined.with_columns(own["forecast"].alias(member))
        for fold, part in combined.group_by("fold"):
            config = json.loads((run.checkpoint("mix", int(fold[0]), seed) / "model.json").read_text())
            (line,) = config["calibration"]
            assert sum(config["weights"].values()) == pytest.approx(1.0)
            total = sum(
                w * config["scales"][name] * (pl.col(name) - pl.col(name).mean()) / pl.col(name).std(ddof=0)
                for name, w in config["weights"].items()
            )
            expected = part.sort("date").select(
                pl.col("forecast"), (line["intercept"] + line["slope"] * total).over("date").alias("expected")
            )
            np.testing.assert_allclose(expected["forecast"], expected["expected"], rtol=1e-4, atol=1e-8)
    assert combined["fold"].n_unique() == 2


def test_members_are_trained_once(done: Trained) -> None:
    run, _, _ = done
    tasks = [(one.model, one.fold, one.seed) for one in read_provenance(run) if isinstance(one, TaskDone)]
    assert len(tasks) == len(set(tasks)) == 5 * 2 * 2
    scores = read_scores(run).filter(pl.col("model") == "mix")
    assert scores["valid_rank_ic"].is_finite().all()
    assert scores.height == 4


def panel_of(run: RecordedRun, dataset: Dataset, fold: int = 1, seed: int = 5) -> Any:  # noqa: ANN401
    """The restored ensemble, its panel and the fold."""
    fitted, inputs = load_checkpoint(run.checkpoint("mix", fold, seed))
    arrays: Arrays = collect_arrays(dataset, run.config.features.window)
    (chosen,) = [one for one in plan_folds(dataset, run.config) if one.index == fold]
    return fitted, to_tensors(arrays, inputs, "cpu"), chosen


def test_a_restored_ensemble_gives_the_stored_forecasts_to_the_bit(done: Trained) -> None:
    run, dataset, lake = done
    fitted, data, fold = panel_of(run, dataset)
    assert isinstance(fitted, EnsembleFitted)
    forecast_BN = fitted.forecast(data, fold.test)
    stored = forecasts_of(run, lake, "mix", 5).filter(pl.col("fold") == 1)
    rows, columns = np.nonzero(np.isfinite(forecast_BN))
    mine = pl.DataFrame(
        {
            "date": dataset.panel.dates_T[fold.test][rows],
            "ticker": np.asarray(dataset.panel.tickers_N)[columns],
            "forecast": forecast_BN[rows, columns].astype(np.float64),
        }
    ).with_columns(pl.col("date").cast(pl.Date))
    assert mine.sort("date", "ticker").equals(stored.select("date", "ticker", "forecast"))
    # what MLflow is given: the folder of the ensemble alone
    again, _ = load_checkpoint(run.checkpoint("mix", 1, 5))
    assert again.state().config == fitted.state().config


@pytest.mark.slow(1)
def test_the_weights_are_a_table_and_in_the_report(done: Trained) -> None:
    run, dataset, lake = done
    evaluation = evaluate_run(run, dataset, lake, Progress())
    rows = evaluation.table("ensemble_weights")
    assert rows.height == 2 * 3
    for fold in (0, 1):
        own = rows.filter(pl.col("fold") == fold)
        assert own["model"].unique().to_list() == ["mix"]
        assert dict(own.select("member", "member_weight").iter_rows()) == stored_weights(run, fold)
    page = write_report(run, evaluation, dataset, lake, Progress()).read_text()
    (shown,) = re.findall(r"<h3>Weights of ensembles</h3>.*?</table>", page, re.DOTALL)
    body = shown.partition("<tbody>")[2]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in body.split("<tr")[1:]]
    written = [[re.sub("<[^>]*>", "", cell).strip() for cell in row][1:] for row in cells]
    assert written == [
        [member, *(f"{stored_weights(run, fold)[member]:.2f}" for fold in (0, 1))]
        for member in ("ridge", "lightgbm", "peers")
    ]


def changed(dataset: Dataset, dates: Any) -> Dataset:  # noqa: ANN401 (session indices)
    """The dataset with other targets and labels on some dates."""
    target_TN, rng = dataset.target_TN.copy(), np.random.default_rng(0)
    target_TN[dates] = rng.standard_normal(target_TN[dates].shape).astype(np.float32)
    labels = {delay: label_TN.copy() for delay, label_TN in dataset.labels.items()}
    for label_TN in labels.values():
        label_TN[dates] = rng.standard_normal(label_TN[dates].shape)
    return replace(dataset, target_TN=target_TN, labels=labels)


def test_weights_see_validation_labels_and_no_others(done: Trained) -> None:
    run, dataset, _ = done
    for fold in plan_folds(dataset, run.config):
        tasks = [task for task in plan_tasks(run, dataset, [fold]) if task.model == "mix"]

        def weights(data: Dataset, tasks: Any = tasks) -> list[dict[str, float]]:  # noqa: ANN401
            return [outcome.state.config["weights"] for _, outcome in combine_members(run, data, tasks)]

        others = np.setdiff1d(np.arange(dataset.panel.n_sessions), fold.valid)
        assert weights(changed(dataset, others)) == weights(dataset) == [stored_weights(run, fold.index)] * 2
        assert weights(changed(dataset, fold.valid)) != weights(dataset)


def test_an_interrupted_run_repeats_what_is_missing(done: Trained) -> None:
    run, dataset, lake = done
    stored = forecasts_of(run, lake, "mix", 3)
    (run.folder / "scores" / "mix-fold-0-seed-3.json").unlink()
    kept_file(run, ("peers", 1, 3)).unlink()
    before = len(read_provenance(run))
    train(run, dataset, lake, Progress())
    again = [one for one in read_provenance(run)[before:] if isinstance(one, TaskDone)]
    assert {(one.model, one.fold, one.seed) for one in again} == {("mix", 0, 3), ("peers", 1, 3)}
    assert kept_file(run, ("peers", 1, 3)).is_file()
    assert forecasts_of(run, lake, "mix", 3).equals(stored)
    (run.folder / "scores" / "mix-fold-0-seed-3.json").unlink()
    file = kept_file(run, ("peers", 0, 5))
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    with pytest.raises(DataError, match=r"peers-fold-0-seed-5\.npz is damaged .* delete it and train again"):
        train(run, dataset, lake, Progress())
    file.write_bytes(whole)
    train(run, dataset, lake, Progress())
    assert forecasts_of(run, lake, "mix", 3).equals(stored)


def test_weights_come_from_the_fits_before_a_refit(
    done: Trained, home: Path, tiny_settings: Mapping[str, Any]
) -> None:
    refitted, _, lake = trained(config_of(home, tiny_settings, fit={**tiny_settings["fit"], "refit": True}))
    for fold in (0, 1):
        assert stored_weights(refitted, fold) == stored_weights(done[0], fold)
    own, before = (forecasts_of(run, lake, "mix", 3)["forecast"] for run in (refitted, done[0]))
    assert not own.equals(before), "the refitted members forecast"


def test_the_ledger_counts_members_and_ensembles_by_their_settings(
    done: Trained, home: Path, tiny_settings: Mapping[str, Any]
) -> None:
    _, dataset, _ = done

    def keys(members: dict[str, Any], **more: str | float) -> dict[str, Any]:
        models = {"mix": {"model": "ensemble", "members": members, **more}}
        config = config_of(home, tiny_settings, models=models)
        trials = model_trials(config, forecasting_settings(config, dataset, {}))
        assert set(trials) == {"mix", *members}
        return {name: trial.key for name, trial in trials.items()}

    first = keys({"ridge": {}, "trees": {"model": "lightgbm", **TREES}})
    renamed = keys({"ridge": {}, "bushes": {"model": "lightgbm", **TREES}})
    other = keys({"ridge": {}, "trees": {"model": "lightgbm", **TREES, "rounds": 20}})
    assert first["mix"] == renamed["mix"] != other["mix"]
    assert first["trees"] == renamed["bushes"] != other["trees"]
    same = {"ridge": {}, "trees": {"model": "lightgbm", **TREES}}
    assert keys(same, weights="ic")["mix"] != first["mix"]
    assert keys(same, penalty=2.0)["mix"] == first["mix"], "equal weights have no penalty"
    assert keys(same, weights="ridge", penalty=2.0)["mix"] != keys(same, weights="ridge")["mix"]


def test_values_add_up_to_the_ensembles_forecast_and_are_those_of_the_members(done: Trained) -> None:
    run, dataset, _ = done
    fitted, data, fold = panel_of(run, dataset)
    families = families_of(dataset.characteristic_names)
    options = GroupGameConfig(permutations=3, seed=1)
    dates = fold.test[[3]]
    found = explain_groups(fitted, data, dates, families, options)
    kinds = [player.kind for player in found.players]
    assert kinds == sorted(kinds, key=("days", "family", "peers").index)
    assert set(kinds) == {"days", "family", "peers"}
    assert found.absent_days == "masked, and in the messages to peers set to 0, the centre of each channel"
    forecast_E = fitted.forecast(data, dates)[0, found.firms_E]
    np.testing.assert_allclose(found.forecast_E, forecast_E, rtol=1e-6)
    spread = float(forecast_E.std())
    np.testing.assert_allclose(found.base_E + found.values_EP.sum(axis=1), forecast_E, atol=1e-5 * spread)
    # the weighted sums of the members' values, which are drawn separately here
    intercept, slopes = fitted.on_date(data.batch(torch.tensor([int(dates[0])])))
    wide = explain_groups(fitted, data, dates, families, GroupGameConfig(permutations=400, seed=1))
    total_EP, error_EP = np.zeros_like(wide.values_EP), wide.error_EP**2
    for slope, member in zip(slopes, fitted.members.values(), strict=True):
        own = explain_groups(member, data, dates, families, GroupGameConfig(permutations=400, seed=2))
        at = [wide.players.index(player) for player in own.players]
        total_EP[:, at] += slope * own.values_EP
        error_EP[:, at] += (slope * own.error_EP) ** 2
        intercept += slope * own.base_E.mean()
    assert (np.abs(total_EP - wide.values_EP) <= 6 * np.sqrt(error_EP) + 1e-6 * spread).all()
    assert intercept == pytest.approx(wide.base_E.mean(), abs=0.2 * spread)
    skill = explain_skill(fitted, data, fold.test[:6], families, GroupGameConfig(permutations=1))
    np.testing.assert_allclose(skill.base_D + skill.values_DP.sum(axis=1), skill.skill_D, atol=1e-9)


@pytest.mark.slow(20)
def test_an_ensemble_is_the_champion_of_a_night(
    tmp_path: Path,
    tiny_settings: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    peerglass: Call = command(monkeypatch, capfd)
    settings = {
        **tiny_settings,
        "features": FEATURES,
        "label": {"horizon": 1, "delay": 1},
        "folds": {"scheme": "rolling", "train": 120, "valid": 25, "test": 40, "embargo": 1},
        "models": {"ensemble": {"members": MEMBERS}, "zero": {}},
        "seeds": [0, 1],
        "audit": {"enabled": False},
        "nightly": {"attributed": 2, "retrain": {"when": "never"}, "checks": {"retry_minutes": 0}},
    }
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))
    answer = peerglass("nightly", "tiny.yaml")
    assert answer.code == 0, answer.err
    lake = Lake("lake")
    champion = lake.read("promotions").sort("number")["version"][0]
    run_id, _, model = champion.partition("/")
    assert model == "ensemble"
    signals = lake.read("signals").filter(pl.col("signal").is_not_null())
    assert signals.height > 10
    config = yaml.safe_load((Path("runs") / run_id / "config.yaml").read_text())
    assert set(config["models"]) == {"ensemble", *MEMBERS}, "zero is not trained"
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    version = client.get_model_version_by_alias("tiny.ensemble", "champion")
    assert version.run_id is not None
    loaded = _load_pyfunc(client.download_artifacts(version.run_id, "model", str(tmp_path)))
    assert set(loaded.fitted) == {0, 1}
    assert all(isinstance(fitted, EnsembleFitted) for fitted, _ in loaded.fitted.values())
    (moved,) = Path("runs", "nights", "tiny").glob("*/attributions.parquet")
    values = pl.read_parquet(moved).filter(pl.col("version") == champion)
    sums = values.group_by("ticker").agg(pl.col("value").sum() + pl.col("base").first(), pl.first("signal"))
    assert {"days", "family", "peers"} <= set(values["kind"])
    np.testing.assert_allclose(sums["value"], sums["signal"], atol=1e-5)
    joined = sums.join(signals, on="ticker", suffix="_night")
    assert joined.height == 4
    np.testing.assert_allclose(joined["signal"], joined["signal_night"], atol=1e-5)
    again = peerglass("nightly", "tiny.yaml")
    assert again.code == 0
    assert "already done" in again.out
