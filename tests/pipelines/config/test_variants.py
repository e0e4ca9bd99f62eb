"""Variants: several entries of one model in a run, each under its own name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from command import Call, command
from counted import trial_count
from mlflow import MlflowClient
from stored import measured

from models.registry import MODELS
from models.spec import Range
from pipelines.audit.refit import models_to_fit
from pipelines.audit.subject import small_fit_config
from pipelines.config.load import check_config, load_config, model_settings, registry_name
from pipelines.config.schema import Config
from pipelines.dataset.folds import plan_folds
from pipelines.errors import ConfigError
from pipelines.explain.games import explained_models
from pipelines.lake.lake import Lake
from pipelines.pages.describe import describe_ladder
from pipelines.progress import Progress
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.fetch import ingest_config
from pipelines.run.open import prepare_run
from pipelines.run.record import RecordedRun, open_run, read_curves, read_scores
from pipelines.run.warm_start import warm_start_checkpoint
from pipelines.stages import train_config
from pipelines.train.task import stacks_of
from pipelines.train.trials import read_trials
from pipelines.train.walkforward import plan_tasks

MODEL = "temporal_transformer"
ENCODER = {"width": 8, "heads": 2, "layers": 1}
OPTIONS = {"encoder": ENCODER}
PRETRAIN = {"epochs": 1, "windows_per_epoch": 256}
VARIANTS: Mapping[str, Any] = {
    MODEL: OPTIONS,
    "tt_linear": {"model": MODEL, "encoder": {**ENCODER, "kernel": "linear"}},
    "ridge": {},
    "ridge-strong": {"model": "ridge", "alphas": [100.0, 1000.0]},
    "tenth": {"model": MODEL, **OPTIONS, "fit": {"label_share": 0.1}},
    "pretrained_10": {"model": MODEL, **OPTIONS, "fit": {"label_share": 0.1, "pretrain": PRETRAIN}},
}
SEEDS = (0, 1)
TITLE = "temporal_transformer (encoder.width 8, encoder.heads 2, encoder.layers 1)"
HERE = {
    "root": None,
    "lake": "lake",
    "output": "runs",
    "tracking": {"uri": "sqlite:///mlflow.db", "artifacts": "mlartifacts"},
}
"""Places of a config that is built in memory: they are relative to the current folder."""
KEY = ["model", "fold", "seed", "date", "ticker"]


def config_of(tiny: Mapping[str, Any], models: Mapping[str, Any], **changes: Any) -> Config:  # noqa: ANN401 (settings)
    return check_config({**tiny, "models": dict(models), **changes}, origin="a.yaml")


def refused(tiny: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        config_of(tiny, models)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Validation of configs.


def test_an_entrys_model_is_its_model_key_or_its_name(tiny: dict[str, Any]) -> None:
    config = config_of(tiny, VARIANTS, init_from="earlier")
    assert {name: registry_name(config, name) for name in VARIANTS} == {
        MODEL: MODEL,
        "tt_linear": MODEL,
        "ridge": "ridge",
        "ridge-strong": "ridge",
        "tenth": MODEL,
        "pretrained_10": MODEL,
    }
    plain, linear, tenth = (model_settings(config, name) for name in (MODEL, "tt_linear", "tenth"))
    options = plain.options.model_dump()
    assert options["encoder"].items() >= ENCODER.items()
    assert linear.options.model_dump() == {**options, "encoder": {**options["encoder"], "kernel": "linear"}}
    assert tenth.options == plain.options
    assert tenth.fit == plain.fit.model_copy(update={**tiny["fit"], "label_share": 0.1})
    assert tenth.init_from == "earlier"
    assert model_settings(config, "ridge-strong").init_from is None
    assert explained_models(config) == (MODEL, "tt_linear", "tenth", "pretrained_10")


def test_a_misspelt_model_is_reported_with_the_nearest_name_and_the_model_key(tiny: dict[str, Any]) -> None:
    message = refused(tiny, {"temporal_transfomer": {}})
    assert "a.yaml: models.temporal_transfomer is not a known name; did you mean" in message
    assert "'temporal_transformer'? (A variant names its model with the key 'model'.)" in message
    message = refused(tiny, {"mine": {"model": "temporal_transfomer"}})
    assert message == (
        "a.yaml: models.mine.model 'temporal_transfomer' is not a known name; "
        "did you mean 'temporal_transformer'?"
    )
    assert "known here: alstm, cross_peer, " in refused(tiny, {"mine": {"model": None}})


@pytest.mark.parametrize("name", ["Mine", "a/b", "../a", "a.b", "a b", "1st", "_a", "-a", "a" * 42, "", "ä"])
def test_a_name_that_is_no_valid_folder_is_refused(tiny: dict[str, Any], name: str) -> None:
    message = refused(tiny, {name: {"model": "ridge"}})
    assert message.startswith(f"a.yaml: models.{name} is not a valid name; use lower-case letters")


def test_the_name_or_options_of_another_model_are_refused(tiny: dict[str, Any]) -> None:
    assert "models.ridge is the name of a model, but its key 'model' is zero; give the variant" in refused(
        tiny, {"ridge": {"model": "zero"}}
    )
    assert "models.mine.width is not a known name" in refused(tiny, {"mine": {"model": "ridge", "width": 8}})
    assert "models.mine sets pretrain, which needs a day encoder" in refused(
        tiny, {"mine": {"model": "ridge", "fit": {"pretrain": PRETRAIN}}}
    )
    assert config_of(tiny, {"ridge": {"model": "ridge"}, "a-fold-0-seed-0": {"model": "ridge"}}).models


def test_an_inherited_entry_with_another_model_loses_its_options(tmp_path: Path) -> None:
    base = {
        "name": "base",
        "source": {"kind": "sample"},
        "lake": "lake",
        "folds": {"scheme": "expanding", "train": 100, "valid": 20, "test": 20, "embargo": 1},
        "models": {"mine": {"model": "mlp", "width": 8}},
    }
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    child = tmp_path / "child.yaml"
    for entry, expected in (
        ({"model": "ridge"}, {"model": "ridge"}),
        ({"model": "mlp", "dropout": 0.1}, {"model": "mlp", "width": 8, "dropout": 0.1}),
        ({"dropout": 0.1}, {"model": "mlp", "width": 8, "dropout": 0.1}),
    ):
        child.write_text(yaml.safe_dump({"extends": "base.yaml", "models": {"mine": entry}}))
        assert load_config(child).models == {"mine": expected}
    assert load_config(child, ["models.mine.model=zero"]).models == {"mine": {"model": "zero"}}
    assert load_config(child, ["models.more={model: lstm}"]).models["more"] == {"model": "lstm"}


def test_a_redundant_model_key_changes_nothing(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = config_of(tiny, {"ridge": {}, "momentum": {"characteristic": "return_21"}})
    named = config_of(tiny, {"momentum": {"model": "momentum", "characteristic": "return_21"}, "ridge": {}})
    ingest_config(plain, echo=lambda _: None)
    assert train_config(plain) == train_config(named)
    assert read_trials(Path("runs"))["model"].sort().to_list() == ["momentum", "ridge"]


# The run that the following tests share.


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("variants")


@pytest.fixture
def peerglass(
    home: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Call:
    """The command in this process, in the folder of the module's run."""
    monkeypatch.chdir(home)
    settings = {
        **tiny,
        "models": dict(VARIANTS),
        "seeds": list(SEEDS),
        "folds": {**tiny["folds"], "max_folds": 1},
        "features": {"window": 5, "characteristics": ["return_1", "momentum_63", "log_market_equity"]},
        "explain": {**tiny["explain"], "models": ["tt_linear"]},
        "audit": {"enabled": False},
    }
    (home / "tiny.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    return command(monkeypatch, capfd)


@pytest.fixture
def done(peerglass: Call) -> RecordedRun:
    """The finished run; the first test that needs it runs it."""
    if not list(Path("runs").glob("*/report.html")):
        answer = peerglass("run", "tiny.yaml")
        assert answer.code == 0, answer.err
    (report,) = Path("runs").glob("*/report.html")
    return open_run(report.parent.name, Path("runs"))


@pytest.mark.slow(7)
def test_a_variant_forecasts_the_same_as_its_model_alone(
    done: RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Lake("lake").read("forecasts")
    assert together["run_id"].unique().to_list() == [done.run_id]
    assert set(together["model"]) == set(VARIANTS)
    monkeypatch.chdir(tmp_path)
    ingest_config(check_config(plain(done, {"ridge": {}}), origin="alone"), echo=lambda _: None)
    for name in ("tt_linear", "ridge-strong", "pretrained_10"):
        registered = registry_name(done.config, name)
        own = {key: value for key, value in VARIANTS[name].items() if key != "model"}
        alone_id = train_config(check_config(plain(done, {registered: own}), origin="alone"))
        assert alone_id != done.run_id
        alone = Lake("lake").read("forecasts").filter(pl.col("run_id") == alone_id)
        ours = together.filter(pl.col("model") == name).drop("run_id", "model").sort(KEY[1:])
        assert ours.height > 500
        assert alone.drop("run_id", "model").sort(KEY[1:]).equals(ours)
    pair = together.filter(pl.col("model").is_in([MODEL, "tt_linear"])).sort(KEY)
    first, second = (part["forecast"] for part in pair.partition_by("model"))
    assert (first - second).std() > 0.05 * first.std()  # type: ignore[operator]  # a number


def plain(run: RecordedRun, models: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run with other models, in the current folder."""
    return run.config.model_dump(mode="json") | HERE | {"models": dict(models)}


def test_all_tables_and_records_use_the_entries_names(done: RecordedRun) -> None:
    ensembles = done.read_table("ensembles")
    assert ensembles is not None
    assert set(ensembles["model"]) == set(VARIANTS)
    for table in ("ladder", "ic_series", "equity", "costs", "quantiles"):
        assert set(measured(done, table)["model"]) == set(VARIANTS), table
    assert set(read_scores(done)["model"]) == set(VARIANTS)
    assert set(read_curves(done)["model"]) >= set(VARIANTS) - {"ridge", "ridge-strong"}
    for name in VARIANTS:
        fitted, _ = load_checkpoint(done.checkpoint(name, 0, 1))
        assert fitted.name == registry_name(done.config, name)
    page = (done.folder / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in VARIANTS)
    client = MlflowClient(tracking_uri=f"sqlite:///{Path.cwd()}/mlflow.db")
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    every = client.search_runs([experiment.experiment_id])  # runs of other tests are tracked here as well
    (parent,) = [run for run in every if run.info.run_name == done.run_id]
    children = [run for run in every if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(run.data.tags["peerglass.model"] for run in children) == sorted(VARIANTS)
    (linear,) = [run for run in children if run.info.run_name == "tt_linear"]
    assert (linear.data.params["model"], linear.data.params["encoder.kernel"]) == (MODEL, "linear")
    ladder = measured(done, "ladder")
    assert linear.data.metrics["test.rank_ic"] == pytest.approx(
        ladder.filter(pl.col("model") == "tt_linear")["rank_ic"].item()
    )


def test_a_variant_without_checkpoint_is_retrained_to_the_same_forecasts(
    done: RecordedRun, peerglass: Call
) -> None:
    before = Lake("lake").read("forecasts").sort(KEY)
    (done.checkpoint("tt_linear", 0, 1) / "model.json").unlink()
    answer = peerglass("train", "tiny.yaml")
    assert (answer.code, answer.out.strip()) == (0, done.run_id)
    assert [step["message"].split(":")[0] for step in answer.steps] == ["tt_linear fold 0 seed 1"]
    assert Lake("lake").read("forecasts").sort(KEY).equals(before)
    load_checkpoint(done.checkpoint("tt_linear", 0, 1))


def test_trials_are_counted_by_settings_not_by_name(
    done: RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = read_trials(Path("runs"))
    assert ledger.n_unique("forecast") == len(VARIANTS)
    assert ledger["counts"].sum() == 2 * len(VARIANTS), "every model has two books"
    assert set(ledger["model"]) == {MODEL, "ridge"}
    monkeypatch.chdir(tmp_path)
    ridge = {
        "one": {"model": "ridge"},
        "other": {"model": "ridge"},
        "third": {"model": "ridge", "alphas": [1.0]},
    }
    config = check_config(plain(done, ridge), origin="ridges")
    ingest_config(config, echo=lambda _: None)
    train_config(config)
    train_config(check_config(plain(done, {"ridge": {}}), origin="ridge"))
    assert trial_count(Path("runs")) == 2
    assert set(Lake("lake").read("forecasts")["model"]) == {"one", "other", "third", "ridge"}


def test_a_variant_is_explained_under_its_name(done: RecordedRun, peerglass: Call) -> None:
    answer = peerglass("explain", done.run_id, "--output", "runs")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("tt_linear: ")
    for table in ("players", "example", "facts"):
        frame = done.read_table(f"explain_{table}")
        assert frame is not None
        assert frame["model"].unique().to_list() == ["tt_linear"]


@pytest.mark.slow(3)
def test_init_from_finds_the_entry_of_the_same_model(done: RecordedRun, tiny: dict[str, Any]) -> None:
    earlier = done.run_id

    def start(run: str, name: str, registered: str = MODEL) -> Path | None:
        config = check_config(
            plain(done, {name: {"model": registered, **OPTIONS, "init_from": run}})
            | {"folds": {**tiny["folds"], "train": 160, "max_folds": 1}},
            origin="later",
        )
        _, dataset, _ = prepare_run(config, Progress())
        return warm_start_checkpoint(config, dataset, plan_folds(dataset, config)[0], name, seed=1)

    assert start(earlier, "tt_linear") == done.checkpoint("tt_linear", 0, 1)
    assert start(earlier, "anew") == done.checkpoint(MODEL, 0, 1)
    two = {name: VARIANTS[name] for name in ("tt_linear", "tenth")}
    several = train_config(check_config(plain(done, two), origin="several"))
    message = r"several models of type temporal_transformer \(tt_linear, tenth\) and none is named anew"
    with pytest.raises(ConfigError, match=message):
        start(several, "anew")
    one = train_config(check_config(plain(done, {"tenth": VARIANTS["tenth"]}), origin="one"))
    assert start(one, "anew") == open_run(one, Path("runs")).checkpoint("tenth", 0, 1)
    with pytest.raises(
        ConfigError, match=f"run {one} has no model 'seq2seq', only tenth; name a run that has it"
    ):
        start(one, "anew", "seq2seq")


def test_a_variant_is_tuned_in_its_models_space_and_the_best_is_printed_as_an_entry(
    done: RecordedRun, peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODELS[MODEL].build, "space", {"fit.lr": Range(1e-3, 1e-2, log=True)})
    answer = peerglass("tune", "tiny.yaml", "--model", "tt_linear", "--trials", "2")
    assert answer.code == 0, answer.err
    assert "tt_linear: 2 trials" in answer.out
    printed = yaml.safe_load(answer.out[answer.out.index("models:") : answer.out.index("The best of")])
    assert printed["models"]["tt_linear"].keys() == {"model", "encoder", "fit"}
    assert printed["models"]["tt_linear"]["encoder"]["kernel"] == "linear"
    assert printed["models"]["tt_linear"]["model"] == MODEL
    last = read_trials(Path("runs")).row(-1, named=True)
    assert json.loads(last["config"])["encoder"]["kernel"] == "linear"
    answer = peerglass("tune", "tiny.yaml", "--model", "ridge-strong", "--trials", "1")
    assert answer.code == 2
    assert "ridge has no search space" in answer.err
    assert done.run_id


def test_a_wrong_entry_ends_the_command_with_code_2_and_one_sentence(peerglass: Call) -> None:
    for override, words in (
        ("models.mine={}", "models.mine is not a known name"),
        (
            "models.mine={model: rigde}",
            "models.mine.model 'rigde' is not a known name; did you mean 'ridge'?",
        ),
        ("models.Mine={model: ridge}", "models.Mine is not a valid name"),
    ):
        answer = peerglass("validate", "tiny.yaml", "--set", override)
        assert (answer.code, answer.out) == (2, "")
        assert len(answer.err.splitlines()) == 1
        assert words in answer.err


# Parts of the pipeline that depend on a model's kind.


def test_seeds_of_a_variant_are_stacked_and_the_audit_reduces_it(
    done: RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = {"peers": {"model": "self_peer", **ENCODER}, "trees": {"model": "lightgbm"}}
    config = check_config(plain(done, models) | {"stack_seeds": True}, origin="stacked")
    ingest_config(config, echo=lambda _: None)
    run, dataset, _ = prepare_run(config, Progress())
    tasks = list(plan_tasks(run, dataset, plan_folds(dataset, config)))
    (stack,) = stacks_of(tasks, set(), stack_seeds=True)
    assert [task.key for task in stack] == [("peers", 0, 0), ("peers", 0, 1)]
    train_config(config)
    assert set(Lake("lake").read("forecasts")["model"]) == {"peers", "trees"}
    small = small_fit_config(config, ("trees", "peers"))
    assert small.models["trees"]["rounds"] == 40
    assert "rounds" not in small.models["peers"]
    assert models_to_fit_of(config) == ("peers", "trees")


def test_the_audit_pretrains_only_models_with_a_day_encoder(tiny: dict[str, Any]) -> None:
    models = {"mlp": {}, MODEL: OPTIONS, "kept": {"model": MODEL, "fit": {"pretrain": None}}}
    fit = {"pretrain": {"objective": "next_day"}, "layer_decay": 0.9, "lr": 0.02}
    small = small_fit_config(
        check_config({**tiny, "fit": fit, "models": models}, origin="tiny"), tuple(models)
    )
    mlp, attention, kept = (model_settings(small, name).fit for name in models)
    assert {(one.epochs, one.lr, one.valid_dates) for one in (mlp, attention, kept)} == {(1, 0.02, 4)}
    assert attention.pretrain is not None
    assert (attention.pretrain.objective, attention.pretrain.windows_per_epoch) == ("next_day", 512)
    assert kept.pretrain is None


def models_to_fit_of(config: Config) -> tuple[str, ...]:
    """Return the models that the audit would fit."""

    class Subject:
        def __init__(self) -> None:
            self.config = config
            self.budget = type("Budget", (), {"models": 2})

    return models_to_fit(Subject())  # type: ignore[arg-type]  # what is read of a subject


def test_a_long_name_does_not_break_the_ladders_columns(done: RecordedRun) -> None:
    ladder = measured(done, "ladder")
    name = "a-variant-whose-name-is-as-long-as-allowed"[:41]
    longer = ladder.with_columns(pl.col("model").replace({"tt_linear": name}))
    lines = describe_ladder(longer, done.config).splitlines()
    rows = [line for line in lines if line.startswith("  ")]
    assert len(rows) == len(VARIANTS) + 2
    assert len({len(line) for line in rows[:-1]}) == 1
    assert any(line.startswith(f"  {name}  ") for line in rows)
