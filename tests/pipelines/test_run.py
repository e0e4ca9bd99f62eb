"""A whole run on a tiny market, in this process: every command, all kinds of models, a user's signals.

This file is long because every command is tried on the same trained run.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from command import Call, command
from counted import trial_count
from page_data import unpack
from stored import measured

from models.registry import MODELS as REGISTERED
from pipelines.config.load import load_config
from pipelines.dataset.build import build_dataset
from pipelines.dataset.tables import input_versions, read_tables
from pipelines.explain.attribution import explain_if_new
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.run.provenance import TaskDone, record
from pipelines.run.record import RecordedRun, open_run
from pipelines.train.trials import read_trials

LIKE_ANOTHER = frozenset(
    {
        *("reversal", "double_ensemble", "lstm", "alstm", "tcn", "tabm"),
        *("kernel_regression", "self_peer", "linear_portfolio_transformer"),
    }
)
"""Models that the pipeline treats as it does another one of the run. Each is fitted, restored and explained
in the tests of `models`, and trained as a task in `test_leakage`."""
MODELS = {name: entry for name, entry in REGISTERED.items() if name not in LIKE_ANOTHER}


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """The command line, in this process and in the folder of the module's run."""
    return command(monkeypatch, capfd)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run that all tests of the module share."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(autouse=True)
def _here(
    folder: Path,
    tiny: dict[str, Any],
    every_model: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    settings = {
        **tiny,
        "models": {
            **{name: every_model[name] for name in MODELS},
            "temporal_transformer": {
                **every_model["temporal_transformer"],
                "fit": {"pretrain": {"epochs": 1, "windows_per_epoch": 256}},
            },
        },
        "seeds": [0, 1],
        "explain": {**tiny["explain"], "skill_dates": 4},
        "label": {"horizon": 1, "delay": 0, "extra_delays": [1]},
    }
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))


@pytest.fixture
def done(peerglass: Call) -> str:
    """The id of the finished run; the first test that needs it runs it."""
    reports = list(Path("runs").glob("tiny-*/report.html"))
    if not reports:
        assert peerglass("run", "tiny.yaml").code == 0
        reports = list(Path("runs").glob("tiny-*/report.html"))
    return reports[0].parent.name


@pytest.mark.slow(28)
def test_run_ends_with_a_report_that_loads_nothing_from_elsewhere(done: str) -> None:
    text = Path("runs", done, "report.html").read_text(encoding="utf-8")
    assert text.lower().startswith("<!doctype html>")
    assert done in text
    fetched = re.findall(
        r"""(?:src|href)\s*=\s*["']?([^"'\s>]+)|@import|url\(\s*["']?([^"')]+)""", text.split("<script")[0]
    )
    assert not [target for pair in fetched for target in pair if "//" in target]
    tags = re.findall(r"<(?:script|link|img|iframe|object|embed|source)\b[^>]*>", text)
    assert tags, "the figures need a script"
    assert not [tag for tag in tags if re.search(r"""(?:src|href|data)\s*=\s*["']?\s*(?:https?:)?//""", tag)]
    for name in MODELS:
        assert name in text


@pytest.mark.slow(1)  # reads the run of the first test
def test_every_model_is_on_the_ladder_and_zero_has_a_correlation_of_zero(done: str) -> None:
    ladder = measured(open_run(done, Path("runs")), "ladder")
    for delay in (0, 1):
        rows = {row["model"]: row for row in ladder.filter(pl.col("delay") == delay).iter_rows(named=True)}
        assert set(rows) == set(MODELS)
        for name, row in rows.items():
            for column in ("ic", "rank_ic"):
                value = row[column]
                if name == "zero":
                    assert value == 0
                else:
                    assert -1 <= value <= 1
            assert row["long_short.turnover"] is not None
            assert (row["coverage_dates"], row["tied"] == 1) == (1, name == "zero")
            assert 0.9 < row["coverage_firms"] <= 1
            assert row["seeds"] == 2


@pytest.mark.slow(1)  # reads the run of the first test
def test_the_truth_on_the_ladder_is_the_ic_of_the_planted_mean(done: str) -> None:
    ladder = measured(open_run(done, Path("runs")), "ladder")
    lake = Lake("lake")
    dataset = build_dataset(read_tables(lake, input_versions(lake)), load_config(Path("tiny.yaml")))
    forecasts = lake.read("forecasts").filter((pl.col("model") == "ridge") & (pl.col("seed") == 0))
    planted = forecasts.join(lake.read("truth_mu"), on=["date", "ticker"])
    assert planted.height == forecasts.height
    t = np.searchsorted(dataset.panel.dates_T, planted["date"].to_numpy())
    n = np.searchsorted(dataset.panel.tickers_N, planted["ticker"].to_numpy())
    truth_ic = {}
    for delay in (0, 1):
        cells = planted.with_columns(label=pl.Series(dataset.labels[delay][t, n]).fill_nan(None))
        daily = cells.drop_nulls("label").group_by("date").agg(ic=pl.corr("mu", "label"))
        rows = ladder.filter((pl.col("model") == "ridge") & (pl.col("delay") == delay))
        truth_ic[delay] = rows["truth_ic"].item()
        assert truth_ic[delay] == pytest.approx(daily["ic"].mean(), abs=1e-9)
    assert truth_ic[0] > max(truth_ic[1], 0.05)  # the planted mean is that of the next session


@pytest.mark.slow(1)  # reads the run of the first test
def test_every_key_has_one_forecast(done: str) -> None:
    frame = Lake("lake").read("forecasts")
    assert frame["run_id"].unique().to_list() == [done]
    key = ["run_id", "model", "fold", "seed", "date", "ticker"]
    assert frame.select(key).n_unique() == frame.height
    cells = frame.group_by("model", "fold", "seed").len()
    assert cells.height == len(MODELS) * 2 * 2
    assert cells.group_by("fold").agg(pl.col("len").n_unique())["len"].to_list() == [1, 1]
    per_fold = frame.group_by("fold").agg(pl.col("date").n_unique()).sort("fold")
    assert per_fold["date"].to_list() == [40, 40]

    config = load_config(Path("tiny.yaml"))
    lake = Lake("lake")
    dataset = build_dataset(read_tables(lake, input_versions(lake)), config)
    label = frame.filter((pl.col("model") == "ridge") & (pl.col("seed") == 0)).sample(50, seed=1)
    total_return_index_TN, tickers = dataset.panel.total_return_index_TN, list(dataset.panel.tickers_N)
    for row in label.iter_rows(named=True):
        t = int(np.searchsorted(dataset.panel.dates_T, np.datetime64(row["date"])))
        n = tickers.index(row["ticker"])
        assert dataset.universe_TN[t, n]
        expected = total_return_index_TN[t + 1, n] / total_return_index_TN[t, n] - 1
        assert (row["label"] is None and math.isnan(expected)) or row["label"] == pytest.approx(expected)


@pytest.mark.slow(1)  # reads the run of the first test
def test_the_table_of_ensembles_has_the_dispersion_between_seeds(done: str, peerglass: Call) -> None:
    run = open_run(done, Path("runs"))
    table, ladder = run.read_table("ensembles"), measured(run, "ladder")
    assert table is not None
    forecasts = Lake("lake").read("forecasts", filters=pl.col("seed") == 0)
    assert table.height == forecasts.height
    means = dict(table.group_by("model").agg(pl.col("seed_dispersion").mean()).iter_rows())
    for row in ladder.iter_rows(named=True):
        assert row["seed_dispersion"] == pytest.approx(means[row["model"]])
    assert means["ridge"] == 0.0, "it does not depend on the seed"
    assert means["temporal_peer"] > 0.01
    assert "deviation between seeds" in Path("runs", done, "report.html").read_text()
    table.filter(pl.col("model") == "ridge").write_csv("ensemble.csv")  # can be used as a signal file
    assert peerglass("backtest", "ensemble.csv", "--config", "tiny.yaml").code == 0


@pytest.mark.slow(1)  # reads the run of the first test
def test_the_tables_of_the_report_exist(done: str) -> None:
    run = open_run(done, Path("runs"))
    names = {path.stem for path in run.folder.glob("tables/*.parquet")}
    names |= {path.stem for path in run.folder.glob("evaluations/*/*.parquet")}
    assert {
        "ladder",
        "ic_series",
        "quantiles",
        "equity",
        "costs",
        "figures",
        "capacity",
        "factor_alpha",
        "contributions",
        "exposures",
        "drawdowns",
        "worst_days",
        "positions",
        "explain_players",
        "explain_edges",
    } <= names
    edges = run.read_table("explain_edges")
    assert edges is not None
    assert edges.height
    with_peers = {name for name, entry in MODELS.items() if getattr(entry.build, "uses_peers", False)}
    assert set(edges["model"]) == with_peers
    assert (edges["leader"] != edges["follower"]).all()
    for table in ("dated_edges", "dated_firms", "firms", "groups", "network", "evidence"):
        frame = run.read_table(f"explain_{table}")
        assert frame is not None
        assert set(frame["model"]) <= with_peers
    assert {f"{name}.graphml" for name in with_peers} == {
        path.name for path in (run.folder / "networks").iterdir()
    }
    # fewer than 20 firms: every pair is stored, so the values of a follower add up to its forecast
    dated, firms = run.read_table("explain_dated_edges"), run.read_table("explain_dated_firms")
    assert dated is not None
    assert firms is not None
    keys = ["model", "date", "fold", "seed"]
    sums = dated.filter(pl.col("model") == "temporal_peer").group_by([*keys, "follower"]).agg(pl.sum("value"))
    joined = sums.join(firms.rename({"ticker": "follower"}), on=[*keys, "follower"])
    assert joined.height == sums.height > 0
    np.testing.assert_allclose(joined["value"], joined["forecast"] - joined["base"], atol=1e-5)
    assert set(dated["attention_rank"]) == set(dated["rank"])
    page = Path("runs", done, "explorer.html").read_text(encoding="utf-8")
    assert with_peers <= {one["model"] for one in unpack(page)["models"]}
    assert 'href="explorer.html"' in Path("runs", done, "report.html").read_text(encoding="utf-8")
    players = run.read_table("explain_players")
    assert players is not None
    assert set(players["model"]) == {name for name, entry in MODELS.items() if entry.kind != "baseline"}
    trials = read_trials(Path("runs"))  # other tests of this module measure signals in the same folder
    own = trials.filter(pl.col("runs").list.contains(done), "counts")
    assert own.height == 2 * len(MODELS), "two books of every model"


@pytest.mark.slow(1)  # reads the run of the first test
def test_the_run_is_tracked_once_with_a_child_for_every_model(done: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{Path.cwd()}/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "tiny"]
    runs = client.search_runs([experiment.experiment_id])  # other tests track their runs here as well
    (parent,) = [one for one in runs if one.info.run_name == done]
    children = [one for one in runs if one.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(one.data.tags["peerglass.model"] for one in children) == sorted(MODELS)
    assert all(one.info.status == "FINISHED" for one in (parent, *children))
    pretrained = [one.data.tags["peerglass.model"] for one in children if "pretrain_loss" in one.data.metrics]
    assert pretrained == ["temporal_transformer"]


@pytest.mark.slow(4)
def test_running_again_trains_nothing_and_does_not_change_the_lake(done: str, peerglass: Call) -> None:
    lake = Lake("lake")
    before, forecasts = lake.versions(), lake.read("forecasts")
    ladder = measured(open_run(done, Path("runs")), "ladder")
    answer = peerglass("run", "tiny.yaml")
    assert answer.code == 0, answer.err
    assert not answer.steps
    assert "explained on" in answer.err
    assert re.search(r"^temporal_peer: \d+ forecasts explained; ", answer.out, re.MULTILINE)
    assert Path(answer.out.splitlines()[-1]) == Path("runs", done, "report.html").resolve()
    assert lake.versions() == before
    assert lake.read("forecasts").equals(forecasts)
    again = measured(open_run(done, Path("runs")), "ladder")
    assert again.equals(ladder)
    assert peerglass("train", "tiny.yaml").out.strip() == done
    assert lake.versions() == before


@pytest.mark.slow(1)  # reads the run of the first test
def test_run_keeps_an_explanation_until_something_changes_that_it_depends_on(
    done: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(Path("runs", done), tmp_path / done)
    run = open_run(done, tmp_path)
    monkeypatch.setattr("pipelines.explain.attribution.explain", lambda *_: "explained again")
    dataset = build_dataset(read_tables(Lake("lake"), run.versions), run.config)

    def is_kept(run: RecordedRun) -> bool:
        return explain_if_new(run, dataset, Lake("lake"), Progress()) != "explained again"

    assert is_kept(run)
    more = run.config.explain.model_copy(update={"dates": run.config.explain.dates + 1})
    assert not is_kept(replace(run, config=run.config.model_copy(update={"explain": more})))
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.explain.attribution._code", lambda: "other code")
        assert not is_kept(run)
    table = run.folder / "tables" / "explain_edges.parquet"
    table.rename(table.with_suffix(".away"))
    assert not is_kept(run)
    table.with_suffix(".away").rename(table)
    assert is_kept(run)
    record(run, TaskDone(model="ridge", fold=0, seed=0, seconds=1.0))
    assert not is_kept(run), "a task has finished since"


@pytest.mark.slow(11)
def test_each_stage_can_be_repeated_alone(done: str, peerglass: Call) -> None:
    run = open_run(done, Path("runs"))
    (run.folder / "report.html").unlink()
    before = {"ladder": measured(run, "ladder"), "explain_edges": run.read_table("explain_edges")}
    shutil.rmtree(run.folder / "evaluations")
    (run.folder / "tables" / "explain_edges.parquet").unlink()
    backtest = peerglass("backtest", done[:-3], "--output", "runs")
    assert backtest.code == 0, backtest.err
    assert all(re.search(rf"^  {name} ", backtest.out, re.MULTILINE) for name in MODELS)
    zero = r"^  zero +0\.0000 +0\.0000 +- +0\.0000 +0\.0000 +- +100\.0 +[\d.]+ +100\.0 "
    assert re.search(zero, backtest.out, re.MULTILINE)
    explain = peerglass("explain", done, "--output", "runs")
    assert explain.code == 0, explain.err
    report = peerglass("report", f"runs/{done}")
    assert report.code == 0, report.err
    assert Path(report.out.strip()).resolve() == (run.folder / "report.html").resolve()
    again = {"ladder": measured(run, "ladder"), "explain_edges": run.read_table("explain_edges")}
    for table, frame in again.items():
        earlier = before[table]
        assert frame is not None
        assert earlier is not None
        assert frame.equals(earlier), f"{table} changed when it was computed again"


def test_validate_prints_the_resolved_config(peerglass: Call) -> None:
    answer = peerglass("validate", "tiny.yaml", "--set", "label.horizon=3")
    assert answer.code == 0
    resolved = yaml.safe_load(answer.out)
    assert resolved["label"]["horizon"] == 3
    assert set(resolved["models"]) == set(MODELS)


def test_doctor_finds_no_error_on_this_machine(peerglass: Call) -> None:
    answer = peerglass("doctor")
    assert answer.code == 0, answer.out
    lines = answer.out.splitlines()
    assert all(line.split()[0] in {"ok", "note"} for line in lines)
    assert any("libraries" in line for line in lines)


# A user's signal file.


@pytest.fixture
def prices(peerglass: Call) -> Lake:
    """The lake with the market's prices, which no run is needed for."""
    if not Lake("lake").exists("prices"):
        assert peerglass("ingest", "tiny.yaml").code == 0
    return Lake("lake")


@pytest.fixture
def foresight(prices: Lake) -> Path:
    """A signal file of the next session's return, which a correct backtest must find to be nearly perfect."""
    config = load_config(Path("tiny.yaml"))
    dataset = build_dataset(read_tables(prices, input_versions(prices)), config)
    t, n = np.nonzero(dataset.universe_TN & np.isfinite(dataset.labels[0]))
    frame = pl.DataFrame(
        {
            "date": dataset.panel.dates_T[t],
            "ticker": np.asarray(dataset.panel.tickers_N)[n],
            "signal": dataset.labels[0][t, n],
        }
    )
    frame.write_csv("foresight.csv")
    return Path("foresight.csv")


def measured_file(peerglass: Call, path: Path, *options: str) -> dict[str, Any]:
    """JSON document of a measured file; a signal that knows the future is measured as well."""
    answer = peerglass("backtest", str(path), "--config", "tiny.yaml", "--json", "--force", *options)
    assert answer.code == 0, answer.err
    found: dict[str, Any] = json.loads(answer.out)
    return found


def at_delay(found: dict[str, Any], delay: int) -> dict[str, Any]:
    return next(row for row in found["results"] if row["delay"] == delay)


@pytest.mark.slow(3)
def test_perfect_foresight_earns_at_delay_0_and_nothing_at_delay_1(foresight: Path, peerglass: Call) -> None:
    found = measured_file(peerglass, foresight)
    at_once, later = at_delay(found, 0), at_delay(found, 1)
    assert found["delays"] == [1, 0], "the delay that can be traded comes first"
    assert at_once["ic"] == pytest.approx(1.0, abs=1e-3)
    assert at_once["rank_ic"] == pytest.approx(1.0, abs=1e-3)
    assert (at_once["coverage_dates"], at_once["coverage_firms"], at_once["tied"]) == (1, 1, 0)
    assert at_once["long_only.information_ratio"] > 5
    assert at_once["long_short.information_ratio"] is None
    assert at_once["long_short.sharpe_net"] > 10
    assert at_once["long_only.sharpe_net"] > 5
    assert abs(later["ic"]) < 0.1
    assert later["long_short.sharpe_net"] < 2
    over = at_delay(measured_file(peerglass, foresight, "--set", "backtest.risk_free=0.3"), 0)
    assert at_once["long_only.sharpe_net"] - over["long_only.sharpe_net"] > 0.5
    assert over["long_only.information_ratio"] == at_once["long_only.information_ratio"]
    assert over["long_short.sharpe_net"] == pytest.approx(at_once["long_short.sharpe_net"], abs=0.05)
    alone = measured_file(peerglass, foresight, "--set", "label.delay=1", "--set", "label.extra_delays=[]")
    assert at_delay(alone, 1)["ic"] == later["ic"]


def test_perfect_foresight_is_not_believed(foresight: Path, peerglass: Call) -> None:
    answer = peerglass("backtest", str(foresight), "--config", "tiny.yaml")
    assert answer.code == 4
    assert "NOT BELIEVABLE: foresight" in answer.out
    assert "foresight is not believable: look-ahead was found." in answer.out
    assert "look-ahead was found in foresight; correct the signal, or add --force" in answer.err
    report = Path(answer.out.splitlines()[-1]).read_text()
    assert "foresight is not believable: look-ahead was found." in report
    assert "Look-ahead guard: " in report
    failed = {
        row["check"] for row in measured_file(peerglass, foresight)["guard"] if row["verdict"] == "fail"
    }
    assert failed >= {"IC with later returns", "equal to a later return"}


@pytest.mark.slow(4)
def test_signals_are_stored_counted_once_and_shown_again(foresight: Path, peerglass: Call) -> None:
    frame = pl.read_csv(foresight).with_columns(pl.col("signal") * 2, noise=pl.col("signal").shuffle(1))
    frame.write_csv("two.csv")  # other values than those that other tests of this module measure
    before = trial_count(Path("runs"))
    found = measured_file(peerglass, Path("two.csv"))
    assert found["trials"] == trial_count(Path("runs")) == before + 4, "every book of every signal is a trial"
    assert {row["model"] for row in found["results"]} == {"signal", "noise"}
    folder = Path(found["paths"]["folder"])
    assert folder.resolve() == (Path("runs") / found["id"]).resolve()
    again = measured_file(peerglass, Path("two.csv"))
    assert again == found, "measuring again changes nothing"
    frame.write_parquet("two.parquet")
    assert measured_file(peerglass, Path("two.parquet"))["id"] == found["id"], "the format does not matter"
    costly = measured_file(peerglass, Path("two.csv"), "--set", "backtest.costs.half_spread_bps=50")
    assert costly["id"] == found["id"]
    assert costly["evaluation"] != found["evaluation"]
    assert costly["trials"] == found["trials"], "other costs are no other trial"
    page = folder / "report.html"
    page.unlink()
    answer = peerglass("report", found["id"], "--output", "runs", "--evaluation", found["evaluation"])
    assert answer.code == 0, answer.err
    assert Path(answer.out.strip()).resolve() == page.resolve()
    assert page.is_file()


def test_coverage_and_ties_of_a_signal_are_measured(foresight: Path, peerglass: Call) -> None:
    frame = pl.read_csv(foresight, try_parse_dates=True)
    days = frame["date"].unique().sort()
    dropped = days[1::4].implode()
    rating = frame.filter(~pl.col("date").is_in(dropped)).with_columns(
        pl.col("signal").rank("ordinal").over("date").mod(2)
    )
    rating = rating.filter(pl.col("ticker") != rating["ticker"][0])
    rating.write_csv("rating.csv")
    found = measured_file(peerglass, Path("rating.csv"))
    line = at_delay(found, 0)
    first, last = rating["date"].sort()[[0, -1]]
    between = frame.filter(pl.col("date").is_between(first, last))
    assert line["coverage_dates"] == pytest.approx(rating["date"].n_unique() / between["date"].n_unique())
    on_its_dates = between.join(rating.select("date").unique(), on="date")
    assert line["coverage_firms"] == pytest.approx(rating.height / on_its_dates.height)
    assert line["tied"] == 1.0
    assert (found["dates"]["first"], found["dates"]["last"]) == (str(first), str(last))


def test_rows_that_are_left_out_are_counted_by_reason(foresight: Path, peerglass: Call) -> None:
    frame = pl.read_csv(foresight).with_columns(pl.col("date").str.to_date())
    monday = frame.filter(pl.col("date").dt.weekday() == 1)["date"][0]
    ticker = frame["ticker"][0]
    odd = pl.DataFrame(
        {
            "date": [monday, monday - dt.timedelta(days=1), dt.date(1999, 1, 4)],
            "ticker": ["UNKNOWN", ticker, ticker],
            "signal": [1.0, 1.0, 1.0],
        }
    )
    pl.concat([frame, odd]).write_parquet("outside.parquet")
    found = measured_file(peerglass, Path("outside.parquet"))
    counts = {row["reason"]: row["rows"] for row in found["rows"] if row["rows"]}
    assert counts == {
        "used": frame.height,
        "unknown ticker": 1,
        "not a session": 1,
        "outside the prices' dates": 1,
    }
    assert at_delay(found, 0)["ic"] == pytest.approx(1.0, abs=1e-3)
    off = next(row for row in found["guard"] if row["check"] == "dated on sessions")
    assert off["verdict"] == "warn"
    assert str(monday - dt.timedelta(days=1)) in off["sentence"]


def test_a_constant_signal_is_refused_or_left_out(foresight: Path, peerglass: Call) -> None:
    frame = pl.read_csv(foresight)
    by_date = pl.col("date").rank("dense").alias("level")  # differs between dates, not between firms
    frame.select("date", "ticker", by_date).write_csv("level.csv")
    trials, folders = trial_count(Path("runs")), sorted(Path("runs").iterdir())
    answer = peerglass("backtest", "level.csv", "--config", "tiny.yaml")
    assert answer.code == 3
    assert "level has the same value for all firms of a date" in answer.err.splitlines()[-1]
    assert answer.out == ""
    assert (trial_count(Path("runs")), sorted(Path("runs").iterdir())) == (trials, folders)

    frame.with_columns(by_date).write_csv("beside.csv")
    answer = peerglass("backtest", "beside.csv", "--config", "tiny.yaml", "--force")
    assert answer.code == 0, answer.err
    assert "Not measured: level (the same value for all firms, on every date)." in answer.out
    assert {row["model"] for row in measured_file(peerglass, Path("beside.csv"))["results"]} == {"signal"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("when,ticker,signal\n2015-01-05,AAA,1\n", "lacks the column 'date'"),
        ("date,ticker\n2015-01-05,AAA\n", "has no column of numbers"),
        ("date,ticker,signal\n05/01/2015,AAA,1\n", "write them as 2020-01-31"),
        ("date,ticker,signal\n2015-01-05,AAA,high\n", "has no column of numbers"),
        ("date,ticker,signal\n2015-01-05,AAA,inf\n", "is inf; use finite numbers"),
        ("date,ticker,signal\n2015-01-05,AAA,1\n2015-01-05,AAA,2\n", "appears more than once"),
        ("date,ticker,signal\n2015-01-05,UNKNOWN,1\n", "none of the 1 rows"),
        ("date,ticker,signal\n", "has no row below its header"),
        ("", "has no row below its header"),
        (None, "There is no signal file at signal.csv"),
    ],
)
def test_a_signal_that_cannot_be_used(prices: Lake, peerglass: Call, text: str | None, words: str) -> None:
    path = Path("signal.csv")
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    before = prices.versions()
    answer = peerglass("backtest", "signal.csv", "--config", "tiny.yaml")
    assert answer.code == 3, answer.err
    assert answer.out == ""
    last = answer.err.splitlines()[-1]
    assert last.startswith("peerglass: ")
    assert words in last
    assert prices.versions() == before


def test_a_signal_file_without_a_config_is_a_usage_error(foresight: Path, peerglass: Call) -> None:
    answer = peerglass("backtest", str(foresight))
    assert answer.code == 2
    assert "add --config CONFIG" in answer.err


@pytest.mark.slow(1)  # reads the run of the first test
def test_an_evaluation_of_a_run_takes_only_settings_of_the_backtest(done: str, peerglass: Call) -> None:
    answer = peerglass("backtest", "tiny", "--output", "runs", "--set", "label.delay=1")
    assert answer.code == 2
    assert "only backtest.* can be set" in answer.err


# The last test, because flags are an input: after it, the config gives a new run.
@pytest.mark.slow(6)
def test_rows_flagged_before_training_are_a_hazard_in_the_report(done: str, peerglass: Call) -> None:
    flag = {
        "table": "prices",
        "ticker": "AAA",
        "date": dt.date(2015, 1, 5),
        "rule": "spike_reverts",
        "row_hash": "0",
        "evidence": "a spike",
        "known_on": dt.date(2015, 1, 6),
        "cleared": False,
        "flagged_at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    }
    cleared = {**flag, "ticker": "BBB", "cleared": True}
    Lake("lake").upsert("flags", pl.DataFrame([flag, cleared]))
    assert peerglass("report", done, "--output", "runs").code == 0
    sentence = "The quality rules have set 1 flag(s) on rows that are kept: spike_reverts (1)"
    assert sentence not in Path("runs", done, "report.html").read_text(), (
        "the flag was set after the training"
    )
    settings = yaml.safe_load(Path("tiny.yaml").read_text())
    later = {**settings, "name": "later", "output": "later", "models": {"zero": {}}}
    Path("later.yaml").write_text(yaml.safe_dump(later))
    assert peerglass("train", "later.yaml").code == 0
    assert peerglass("report", "later", "--output", "later").code == 0
    (page,) = Path("later").glob("*/report.html")
    assert sentence in page.read_text()
