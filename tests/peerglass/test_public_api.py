"""``import peerglass``: a finished run is opened, read, scored again and explained."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from api_models import MODELS

import peerglass
from pipelines.results.recount import recount


@pytest.fixture
def run(api_project: Path, monkeypatch: pytest.MonkeyPatch) -> peerglass.Run:
    monkeypatch.chdir(api_project)
    return peerglass.open_run()


def test_a_run_is_opened_by_any_of_its_names(run: peerglass.Run, api_project: Path) -> None:
    for name in ("latest", "tiny", run.id, str(run.folder), api_project / "data" / "runs" / run.id):
        assert peerglass.open_run(name).id == run.id
    assert peerglass.open_run(output=api_project / "data/runs").id == run.id
    assert run.models == tuple(MODELS)
    assert run.config.lake == f"{api_project}/lake"
    listed = peerglass.list_runs()
    assert listed["run"].to_list() == [run.id]
    assert listed["started"].dtype == pl.Datetime("us", "UTC")
    assert peerglass.list_runs(api_project / "none").height == 0


def test_tables_of_the_run_and_of_its_evaluation_are_read(run: peerglass.Run) -> None:
    assert {"ladder", "equity", "ensembles", "explain_players"} <= set(run.tables)
    may_be_empty = ("endings", "explain_evidence")  # no edge is found among so few firms
    for name in run.tables:
        assert run.table(name).height > 0 or name in may_be_empty, name
    assert set(run.table("ladder")["model"]) == set(MODELS)
    (evaluation,) = run.evaluations
    assert run.table("ladder", evaluation[:4]).equals(run.table("ladder"))
    with pytest.raises(peerglass.PeerglassError, match=r"no table 'laddr'; choose among: .*ladder"):
        run.table("laddr")
    assert run.report().read_text(encoding="utf-8").lower().startswith("<!doctype html>")


def test_only_tables_that_can_be_read_are_listed(run: peerglass.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "overfitting" in run.tables
    monkeypatch.setattr("pipelines.results.recount.MIN_SESSIONS", 10**6)
    run = peerglass.open_run(run.folder)
    assert "overfitting" not in run.tables, "the run has too few sessions for it"
    assert {"significance", "trials"} <= set(run.tables)
    with pytest.raises(peerglass.PeerglassError, match="no table 'overfitting'"):
        run.table("overfitting")


def test_trials_are_counted_once_until_the_ledger_changes(
    run: peerglass.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    state = [0]

    def counting(*arguments: Any) -> Any:  # noqa: ANN401  # those of recount
        calls.append(1)
        return recount(*arguments)

    monkeypatch.setattr("peerglass.runs.recount", counting)
    monkeypatch.setattr("peerglass.runs.ledger_state", lambda _: tuple(state))
    assert {"significance", "trials"} <= set(run.tables)
    assert run.table("significance").height > 0
    assert len(calls) == 1
    state[0] += 1
    assert run.table("trials").height == 1
    assert len(calls) == 2


def test_forecasts_have_one_row_per_firm_and_date(run: peerglass.Run) -> None:
    rows = run.forecasts()
    assert rows.columns == ["date", "ticker", "model", "fold", "seed", "forecast", "label"]
    assert set(rows["model"]) == set(MODELS)
    assert set(rows["seed"]) == {4, 7}
    assert rows.height > 1000
    assert not rows.select("date", "ticker", "model", "seed").is_duplicated().any()
    assert run.forecasts(["ridge"]).equals(rows.filter(pl.col("model") == "ridge"))
    with pytest.raises(peerglass.PeerglassError, match="no model 'ridg', only ridge, lightgbm"):
        run.forecasts(["ridg"])


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("fold", [0, 1])
def test_a_stored_model_repeats_its_forecasts_to_the_bit(run: peerglass.Run, model: str, fold: int) -> None:
    stored = run.forecasts([model]).filter((pl.col("fold") == fold) & (pl.col("seed") == 7))
    scored = peerglass.load_model(run, model, fold, seed=7).score()
    wanted = stored.select("date", "ticker", "forecast").sort("date", "ticker")
    assert scored.height > 300
    assert scored.select("date", "ticker").equals(wanted.select("date", "ticker"))
    ours = scored["forecast"].cast(pl.Float32).to_numpy()
    assert ours.tobytes() == wanted["forecast"].cast(pl.Float32).to_numpy().tobytes()
    assert np.unique(ours).size > 10


def test_defaults_are_the_last_fold_and_the_first_seed(run: peerglass.Run) -> None:
    model = peerglass.load_model(run.id, "ridge")
    assert (model.fold.index, model.seed) == (1, 4)
    days = run.data[0].panel.dates_T.astype("datetime64[D]")
    last: dt.date = days[model.fold.test[-1]].item()
    one = model.score(last, last)
    assert one["date"].unique().to_list() == [last]
    assert one.equals(model.score().filter(pl.col("date") == last))
    later = model.score(first=last, last=days[-1].item())
    assert later["date"].max() > last  # type: ignore[operator]  # dates
    with pytest.raises(peerglass.PeerglassError, match="may have seen it in training or validation"):
        model.score(first=days[model.fold.test[0] - 1].item())
    with pytest.raises(peerglass.PeerglassError, match="no session between 2999-01-01"):
        model.score(dt.date(2999, 1, 1), dt.date(2999, 2, 1))


@pytest.mark.parametrize(
    ("model", "fold", "seed", "sentence"),
    [
        ("mlp", None, None, "no model 'mlp', only ridge, lightgbm, temporal_peer"),
        ("ridge", 2, None, "no fold 2, only 0 to 1"),
        ("ridge", None, 0, "no seed 0, only 4, 7"),
    ],
)
def test_a_model_that_is_not_there_is_named(
    run: peerglass.Run, model: str, fold: int | None, seed: int | None, sentence: str
) -> None:
    with pytest.raises(peerglass.PeerglassError, match=sentence):
        peerglass.load_model(run, model, fold, seed)


@pytest.mark.parametrize("name", ["ridge", "temporal_peer"])
def test_an_explanation_adds_up_to_the_forecast(run: peerglass.Run, name: str) -> None:
    model = peerglass.load_model(run, name)
    last: dt.date = run.data[0].panel.dates_T[model.fold.test[-1]].astype("datetime64[D]").item()
    found = peerglass.explain(model, permutations=2)
    scored = model.score(last, last)
    rows = found.forecasts
    assert rows.select("date", "ticker").equals(scored.select("date", "ticker"))
    np.testing.assert_allclose(rows["forecast"], scored["forecast"], rtol=0, atol=1e-5)
    total_E = rows["base_value"].to_numpy() + found.explanation.values.sum(axis=1)
    np.testing.assert_allclose(total_E, rows["forecast"], rtol=0, atol=1e-5)
    assert found.additivity_error < 1e-5
    assert len(found.explanation.feature_names) == found.explanation.values.shape[1] > 2
    few = rows["ticker"].to_list()[2:4]
    some = peerglass.explain(model, tickers=few, permutations=2)
    assert some.forecasts["ticker"].to_list() == few
    np.testing.assert_array_equal(some.explanation.values, found.explanation.values[2:4])
    with pytest.raises(peerglass.PeerglassError, match="NONE is not in the universe"):
        peerglass.explain(model, tickers=["NONE"])


def test_public_names_are_documented_and_nothing_else_is_there() -> None:
    assert set(peerglass.__all__) <= set(dir(peerglass))
    for name in peerglass.__all__:
        assert getattr(peerglass, name).__doc__
    assert peerglass.__version__.count(".") == 2
    with pytest.raises(AttributeError, match=r"has no attribute 'opn_run'; it has .*open_run"):
        peerglass.opn_run  # noqa: B018 (the access is the test)
