"""The search for settings: it uses validation only, counts every trial, and resumes after interruptions."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from counted import trial_count

from models.fitted import NoTrainingSignal
from models.fitting.fit import fit
from models.registry import MODELS
from models.spec import Choice, Range
from pipelines.cli import main as cli
from pipelines.config.load import check_config, load_config
from pipelines.execution.pool import open_engine
from pipelines.lake.lake import Lake
from pipelines.run.record import read_scores
from pipelines.train import tune
from pipelines.train.trials import read_trials
from pipelines.train.tune import nest, with_settings

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def peerglass(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """The command line in this process, in a folder with an ingested tiny market."""
    monkeypatch.chdir(tmp_path)
    small = {"num_leaves": Range(3, 15, integer=True), "learning_rate": Range(0.03, 0.3, log=True)}
    monkeypatch.setattr(MODELS["lightgbm"].build, "space", small)  # the default is for larger markets
    models = {"zero": {}, "lightgbm": {"rounds": 10, "evaluate_every": 5, "min_data_in_leaf": 50}}
    store = {"uri": f"sqlite:///{tmp_path}/mlflow.db", "artifacts": "mlartifacts"}
    settings = {**tiny, "models": models, "tracking": store}
    settings["folds"] = {**tiny["folds"], "max_folds": 1}
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["peerglass", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        output = capsys.readouterr()
        code = exit_info.value.code
        return (code if isinstance(code, int) else 0), output.out, output.err

    assert call("ingest", "tiny.yaml")[0] == 0
    return call


@pytest.mark.parametrize("model", [name for name, entry in MODELS.items() if entry.build.space])
def test_the_bounds_of_a_search_space_are_valid_settings_of_its_model(model: str) -> None:
    from models.fitting.config import FitConfig

    for pick in (0, -1):
        values: dict[str, Any] = {}
        for name, where in MODELS[model].build.space.items():
            if isinstance(where, Choice):
                values[name] = where.values[pick]
            else:
                bound = (where.low, where.high)[pick]
                values[name] = int(bound) if where.integer else bound
        settings = nest(values)
        fit = settings.pop("fit", {})
        MODELS[model].config(**settings)
        FitConfig(**fit)


@pytest.mark.slow(2)
def test_an_extended_search_keeps_its_finished_trials(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "3")
    assert code == 0, err
    assert "lightgbm: 3 trials, 0 of them diverged" in out
    scored: list[Any] = []
    original = tune._mean_score

    def counted(engine: Any, tasks: Any) -> float | None:  # noqa: ANN401 (passed on)
        scored.append(tasks[0].options.model_dump())
        return original(engine, tasks)

    monkeypatch.setattr(tune, "_mean_score", counted)
    code, out, err = peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "5")
    assert code == 0, err
    assert "lightgbm: 5 trials, 0 of them diverged" in out
    assert len(scored) == 2
    assert "3 trials of this search are already finished" in err
    again, same, _ = peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "5")
    assert (again, same) == (0, out)
    assert len(scored) == 2
    ledger = read_trials(Path("runs"))
    assert ledger.height == 5  # exactly the five trials
    leaves = {json.loads(row)["num_leaves"] for row in ledger["config"]}
    assert len(leaves) > 1
    scores = [float(line.split(" ic ")[1].split()[0]) for line in out.splitlines() if ". validation" in line]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) > 1
    assert len(scores) == 5


class Killed(BaseException):
    """Interrupts a command; no handler catches it."""


@pytest.mark.slow(4)
def test_an_interrupted_trial_is_repeated_and_counts_once(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight trials are random; the next two depend on the scores of all finished trials."""
    tried: list[dict[str, Any]] = []
    interrupted = {2, 8}  # indices of the interrupted calls

    def score(_: object, tasks: Any) -> float | None:  # noqa: ANN401 (passed on)
        values = tasks[0].options.model_dump()
        tried.append({name: values[name] for name in ("num_leaves", "learning_rate")})
        if len(tried) - 1 in interrupted:
            raise Killed
        return None if values["num_leaves"] == 3 else -abs(values["learning_rate"] - 0.1)

    monkeypatch.setattr(tune, "_mean_score", score)
    search = ("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "10", "--set")
    for _ in interrupted:
        with pytest.raises(Killed):
            peerglass(*search, "output=killed")
    code, out, err = peerglass(*search, "output=killed")
    assert code == 0, err
    assert "7 trials of this search are already finished and count." in err
    assert (tried[2], tried[8]) == (tried[3], tried[9])
    finished = [values for call, values in enumerate(tried) if call not in interrupted]
    tried.clear()
    interrupted.clear()
    code, same, _ = peerglass(*search, "output=whole")
    assert code == 0
    assert tried == finished
    assert len({str(values) for values in tried}) == 10
    assert same == out
    assert trial_count(Path("killed")) == trial_count(Path("whole")) == 10


@pytest.mark.slow(2)
def test_every_trial_is_tracked_once_even_if_the_tracking_store_was_unreachable(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    from pipelines.errors import TrackingError
    from pipelines.tracking.store import track_trial

    scores = iter([0.01, None, 0.03])
    monkeypatch.setattr(tune, "_mean_score", lambda *_: next(scores))

    def broken(*_: object) -> None:
        raise TrackingError("The tracking store cannot be used.")

    monkeypatch.setattr(tune, "track_trial", broken)
    code, _, err = peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "2")
    assert code == 6, err
    monkeypatch.setattr(tune, "track_trial", track_trial)
    for trials in ("2", "3"):
        code, out, _ = peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", trials)
        assert code == 0
    assert "3 trials, 1 of them diverged" in out
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (experiment,) = (e for e in client.search_experiments() if e.name.endswith("-tune"))
    logged = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    assert [run.data.metrics.get("validation") for run in logged] == [0.01, None, 0.03]
    assert [run.info.run_name.rpartition("-")[2] for run in logged] == ["0", "1", "2"]


def test_the_storage_of_another_version_of_optuna_is_refused_with_a_cure(tmp_path: Path) -> None:
    import sqlite3

    from pipelines.errors import DataError
    from pipelines.train.tune import Study

    Study(tmp_path / "a-search", MODELS["lightgbm"].build.space)
    with sqlite3.connect(tmp_path / "a-search" / "trials.db") as database:
        database.execute("update alembic_version set version_num = 'v0.9.0.a'")
    with pytest.raises(DataError, match=r"another version of Optuna.*delete it to start the search again"):
        Study(tmp_path / "a-search", MODELS["lightgbm"].build.space)


@pytest.mark.slow(2)
def test_the_best_settings_print_as_a_config_and_reach_the_score_they_claim(peerglass: Call) -> None:
    _, out, _ = peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "3")
    claimed = float(out.split("1. validation ic ")[1].split()[0])
    printed = yaml.safe_load(out[out.index("models:") : out.index("The best of")])
    raw = yaml.safe_load(Path("tiny.yaml").read_text())
    assert printed["models"]["lightgbm"]["rounds"] == 10, "settings of the config that were not searched"
    raw["models"] = printed["models"]
    Path("best.yaml").write_text(yaml.safe_dump(raw))
    code, run_id, err = peerglass("train", "best.yaml")
    assert code == 0, err
    from pipelines.run.record import open_run

    score = read_scores(open_run(run_id.strip(), Path("runs")))["valid_ic"]
    assert score.to_list() == pytest.approx([claimed], abs=6e-5)  # four digits are printed


def test_no_test_session_is_forecast(peerglass: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[Any] = []

    def watched(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 (passed on)
        model = fit(*arguments, **options)
        monkeypatch.setattr(type(model), "forecast", lambda *_: pytest.fail("a forecast was made"))
        fitted.append(model)
        return model

    monkeypatch.setattr(tune, "fit", watched)
    assert peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "1")[0] == 0
    assert len(fitted) == 1
    assert not Lake("lake").exists("forecasts")


@pytest.mark.parametrize("folds", [1, 2])
def test_the_answer_says_that_later_folds_validate_on_the_tests_of_earlier_ones(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch, folds: int
) -> None:
    seen: list[set[int]] = []

    def score(_: object, tasks: Any) -> float:  # noqa: ANN401 (passed on)
        valid, test = ({i for one in tasks for i in getattr(one.fold, name)} for name in ("valid", "test"))
        seen[:] = [valid, valid & test]
        return 0.01

    monkeypatch.setattr(tune, "_mean_score", score)
    search = ("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "1")
    code, out, err = peerglass(*search, "--set", f"folds.max_folds={folds}")
    assert code == 0, err
    valid, both = map(len, seen)
    assert (both > 0) == (folds > 1)
    sentence = f"tiny: {both:,} of {valid:,} validation sessions are test sessions of other folds"
    assert (sentence in out) == (folds > 1)


def test_a_loss_of_a_portfolio_reads_the_raw_returns_as_in_training(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    panels: list[Any] = []

    def watched(model: str, options: Any, data: Any, *rest: Any, **how: Any) -> Any:  # noqa: ANN401
        panels.append(data)
        return fit(model, options, data, *rest, **how)

    monkeypatch.setattr(tune, "fit", watched)
    own = "models.linear_portfolio_transformer={}"
    call = ("tune", "tiny.yaml", "--model", "linear_portfolio_transformer", "--trials", "1", "--set", own)
    code, _, err = peerglass(*call, "--set", "label.transform=rank")
    assert code == 0, err
    (data,) = panels
    known = data.target_TN.isfinite()
    assert float(data.return_TN[known].abs().mean()) < 0.1 < float(data.target_TN[known].abs().mean())


def test_a_trial_that_diverges_counts_but_cannot_win(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([None, 0.02, None])
    monkeypatch.setattr(tune, "_mean_score", lambda *_: next(scores))
    code, out, _ = peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "2")
    assert code == 0
    assert "2 trials, 1 of them diverged" in out
    code, out, _ = peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "3")
    assert "3 trials, 2 of them diverged" in out
    assert trial_count(Path("runs")) == 3


def test_a_trial_out_of_memory_has_no_score_and_constant_targets_end_the_search(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_in_fit(error: Exception) -> None:
        def fit(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(tune, "fit", fit)

    raise_in_fit(torch.cuda.OutOfMemoryError("CUDA out of memory."))
    code, out, _ = peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "1")
    assert code == 0
    assert "all 1 trials diverged" in out
    raise_in_fit(NoTrainingSignal("The training targets are all the same."))
    code, out, err = peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "2")
    assert (code, out) == (5, "")
    assert err.splitlines()[-1] == (
        "peerglass: lightgbm, fold 0: The training targets are all the same. Finished trials are kept."
    )


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("ridge", "The config tiny has no model 'ridge'; choose one of lightgbm, zero"),
        ("zero", "zero has no search space"),
    ],
)
def test_models_that_cannot_be_searched(peerglass: Call, model: str, words: str) -> None:
    code, out, err = peerglass("tune", "tiny.yaml", "--model", model)
    assert (code, out) == (2, "")
    assert words in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("encoder", "positions", "widths"),
    [
        ({}, ("learned", "rotary", "relative"), (16, 32, 64)),
        ({"kernel": "linear"}, ("learned",), (16, 32, 64)),
        ({"width": 32, "heads": 16}, ("learned", "relative"), (16, 32, 64)),  # rotary needs a width of 32
        ({"width": 40, "heads": 5}, ("learned", "rotary", "relative"), None),
    ],
)
def test_a_search_leaves_out_what_the_given_options_do_not_allow(
    encoder: dict[str, Any], positions: tuple[str, ...], widths: tuple[int, ...] | None, tiny: dict[str, Any]
) -> None:
    plain, given = (
        check_config({**tiny, "models": {"temporal_transformer": {"encoder": own}}}, origin="tiny")
        for own in ({}, encoder)
    )
    whole: Any = MODELS["temporal_transformer"].build.space
    _, space = tune._searched([plain, given], "temporal_transformer")
    choices = {name: where.values for name, where in space.items() if isinstance(where, Choice)}
    assert choices["encoder.positions"] == positions
    assert choices.get("encoder.width") == widths
    assert {**space, "encoder.positions": 0, "encoder.width": 0} == {
        **whole,
        "encoder.positions": 0,
        "encoder.width": 0,
    }
    assert (str(space) == str(whole)) == (encoder == {}), "a search that was begun continues"
    for values in itertools.product(*choices.values()):
        with_settings(given, "temporal_transformer", dict(zip(choices, values, strict=True)))


def test_the_name_of_a_search_depends_on_everything_that_its_scores_depend_on(peerglass: Call) -> None:
    from pipelines.progress import Progress
    from pipelines.run.open import prepare_run

    names = set()
    for change in ([], ["label.horizon=2"], ["models.lightgbm.rounds=11"], ["seeds=[1]"]):
        run, _, _ = prepare_run(load_config(Path("tiny.yaml"), change), Progress())
        names.add(tune.study_name(run, "lightgbm", MODELS["lightgbm"].build.space))
    assert len(names) == 4


def test_the_share_of_a_trial_is_the_smallest_over_the_markets() -> None:
    scores = [(0.04, -0.01, 0.01), (0.02, -0.03, 0.02), (None, -0.01, 0.02), (0.03, -0.02, 0.018)]
    assert tune.shares_of(scores) == [0.5, 0.5, None, 0.75]
    assert tune.shares_of([(0.02, -0.01), (-0.02, -0.02)]) == [1.0, -1.0]
    assert tune.shares_of([(-0.02, 0.0), (-0.01, -0.1)]) == [0.0, 0.0]
    assert tune.shares_of([(None, 0.1)]) == [None]


def second_market() -> None:
    """A config of another market beside the first one."""
    other = yaml.safe_load(Path("tiny.yaml").read_text())
    other |= {"name": "other", "lake": "other_lake", "source": {**other["source"], "seed": 4}}
    Path("other.yaml").write_text(yaml.safe_dump(other))


SEVERAL = ("tune", "tiny.yaml", "other.yaml", "--model", "lightgbm", "--trials")


@pytest.mark.slow(6)
def test_settings_are_searched_on_several_markets_and_counted_on_each(peerglass: Call) -> None:
    second_market()
    assert peerglass("ingest", "other.yaml")[0] == 0
    code, out, err = peerglass(*SEVERAL, "3")
    assert code == 0, err
    assert "lightgbm: 3 trials on 2 configs, 0 of them diverged" in out
    ledger = read_trials(Path("runs"))
    assert ledger.group_by("market").len()["len"].to_list() == [3, 3]
    # the printed scores are those of each config by itself
    line = next(one for one in out.splitlines() if "1. share" in one)
    printed = yaml.safe_load(out[out.index("models:") : out.index("The best of")])["models"]["lightgbm"]
    assert set(printed) == {"num_leaves", "learning_rate"}
    for name in ("tiny", "other"):
        raw = yaml.safe_load(Path(f"{name}.yaml").read_text())
        raw["models"] = {"lightgbm": raw["models"]["lightgbm"] | printed}
        Path(f"best_{name}.yaml").write_text(yaml.safe_dump(raw))
        _, run_id, _ = peerglass("train", f"best_{name}.yaml")
        from pipelines.run.record import open_run

        (score,) = read_scores(open_run(run_id.strip(), Path("runs")))["valid_ic"]
        assert float(line.split(f"{name} ")[1].split()[0].strip(",)")) == pytest.approx(score, abs=6e-5)


@pytest.mark.slow(5)
def test_an_interrupted_search_on_several_markets_proposes_the_same_settings(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_market()
    assert peerglass("ingest", "other.yaml")[0] == 0
    tried: list[tuple[int, float]] = []
    killed_at = {5, 21}

    def score(_: object, tasks: Any) -> float | None:  # noqa: ANN401 (passed on)
        options = tasks[0].options
        tried.append((options.num_leaves, options.learning_rate))
        if len(tried) - 1 in killed_at:
            raise Killed
        return float(0.02 + 0.01 * options.num_leaves - 0.1 * options.learning_rate)

    monkeypatch.setattr(tune, "_mean_score", score)
    for _ in range(2):
        with pytest.raises(Killed):
            peerglass(*SEVERAL, "11", "--set", "output=killed")
    code, out, err = peerglass(*SEVERAL, "11", "--set", "output=killed")
    assert code == 0, err
    assert "11 trials on 2 configs" in out
    finished = sorted(set(tried))
    tried.clear()
    killed_at.clear()
    killed_at.add(10**9)
    code, same, err = peerglass(*SEVERAL, "11", "--set", "output=whole")
    assert code == 0, err
    assert sorted(set(tried)) == finished
    assert same == out
    assert trial_count(Path("killed")) == trial_count(Path("whole")) == 22


def test_settings_that_were_proposed_and_never_begun_are_proposed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = {"size": Range(3, 15, integer=True), "rate": Range(0.03, 0.3, log=True)}

    def killed(*_: object) -> None:
        raise Killed

    def proposals(folder: Path, killed_at: int) -> list[tuple[Any, ...]]:
        study, tried = tune.Study(folder, space, 2), []
        for n in range(11):
            if n == killed_at:
                monkeypatch.setattr(study._study, "ask", killed)
                with pytest.raises(Killed):
                    study.propose()
                study = tune.Study(folder, space, 2)
            trial, values = study.propose()
            tried.append(tuple(values.values()))
            study.record(trial, [0.01 * float(values["size"]), float(values["rate"])])
        return tried

    assert proposals(tmp_path / "killed", 9) == proposals(tmp_path / "whole", -1)


def test_a_trial_that_diverges_on_one_market_cannot_win(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_market()
    assert peerglass("ingest", "other.yaml")[0] == 0
    scores = iter([0.5, None, 0.02, 0.03, 0.04, 0.01])
    monkeypatch.setattr(tune, "_mean_score", lambda *_: next(scores))
    code, out, err = peerglass(*SEVERAL, "3")
    assert code == 0, err
    assert "3 trials on 2 configs, 1 of them diverged" in out
    first, second = (one for one in out.splitlines() if ". share" in one)
    assert "share 0.500 (tiny +0.0200, other +0.0300)" in first
    assert "share 0.333 (tiny +0.0400, other +0.0100)" in second


def test_of_several_markets_one_at_a_time_has_workers(
    peerglass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_market()
    assert peerglass("ingest", "other.yaml")[0] == 0
    monkeypatch.setattr(tune, "_mean_score", lambda *_: 0.01)
    now, opened = list[object](), list[int]()

    @contextmanager
    def counted(config: Any, *given: Any, **named: Any) -> Iterator[Any]:  # noqa: ANN401 (passed on)
        now.append(config)
        opened.append(len(now))
        with open_engine(config, *given, **named) as engine:
            yield engine
        now.pop()

    monkeypatch.setattr(tune, "open_engine", counted)
    assert peerglass(*SEVERAL, "2")[0] == 0
    assert opened == [1, 1, 1, 1]
    opened.clear()
    assert peerglass("tune", "tiny.yaml", "--model", "lightgbm", "--trials", "2")[0] == 0
    assert opened == [1], "a single one keeps its workers"


def test_configs_with_other_models_are_refused(peerglass: Call) -> None:
    second_market()
    other = yaml.safe_load(Path("other.yaml").read_text())
    Path("other.yaml").write_text(yaml.safe_dump({**other, "models": {"zero": {}}}))
    code, out, err = peerglass(*SEVERAL, "1")
    assert (code, out) == (2, "")
    assert "other has no model 'lightgbm'; choose one of zero." in err.splitlines()[-1]
