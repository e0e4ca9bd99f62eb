"""A whole run on a tiny market, in this process: every command, every model, and a user's signal file."""

from __future__ import annotations

import datetime as dt
import math
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import polars as pl
import pytest
import yaml
from command import Call, command
from nbclient import NotebookClient
from places import ROOT
from stored import measured

from models.registry import MODELS
from pipelines.config.load import load_config
from pipelines.dataset.build import build_dataset
from pipelines.dataset.tables import input_versions, read_tables
from pipelines.lake.lake import Lake
from pipelines.run.record import open_run
from pipelines.train.trials import trial_count


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """The command line, in this process and in the folder of the module's run."""
    return command(monkeypatch, capfd)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, every_model: dict[str, dict[str, Any]]) -> Path:
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
            **every_model,
            "temporal_transformer": {
                **every_model["temporal_transformer"],
                "fit": {"pretrain": {"epochs": 1, "windows_per_epoch": 256}},
            },
        },
        "seeds": [0, 1],
        "label": {"horizon": 1, "delay": 0, "extra_delays": [1]},
    }
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))


@pytest.fixture
def done(peerglass: Call) -> str:
    """The id of the finished run; the first test that needs it runs it."""
    reports = list(Path("runs").glob("*/report.html"))
    if not reports:
        assert peerglass("run", "tiny.yaml").code == 0
        reports = list(Path("runs").glob("*/report.html"))
    return reports[0].parent.name


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
    players = run.read_table("explain_players")
    assert players is not None
    assert set(players["model"]) == {name for name, entry in MODELS.items() if entry.kind == "neural"}
    assert trial_count(Path("runs")) == len(MODELS)


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
    sentence = "The quality rules have set 1 flag(s) on rows that are kept and used: spike_reverts (1)"
    assert sentence not in Path("runs", done, "report.html").read_text(), (
        "the flag was set after the training"
    )
    later = ("tiny.yaml", "--set", "models={zero: {}}", "--set", "name=later", "--set", "output=later")
    assert peerglass("train", *later).code == 0
    assert peerglass("report", "later", "--output", "later").code == 0
    (page,) = Path("later").glob("*/report.html")
    assert sentence in page.read_text()


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


def test_running_again_trains_nothing_and_does_not_change_the_lake(done: str, peerglass: Call) -> None:
    lake = Lake("lake")
    before, forecasts = lake.versions(), lake.read("forecasts")
    ladder = measured(open_run(done, Path("runs")), "ladder")
    answer = peerglass("run", "tiny.yaml")
    assert answer.code == 0, answer.err
    assert not answer.steps
    assert Path(answer.out.splitlines()[-1]) == Path("runs", done, "report.html").resolve()
    assert lake.versions() == before
    assert lake.read("forecasts").equals(forecasts)
    again = measured(open_run(done, Path("runs")), "ladder")
    assert again.equals(ladder)
    assert peerglass("train", "tiny.yaml").out.strip() == done
    assert lake.versions() == before


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


def test_validate_prints_the_resolved_config(done: str, peerglass: Call) -> None:
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
def foresight(done: str) -> Path:
    """A signal file of the next session's return, which a correct backtest must find to be nearly perfect."""
    lake = Lake("lake")
    dataset = build_dataset(read_tables(lake, input_versions(lake)), load_config(Path("tiny.yaml")))
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


def numbers(out: str, delay: int) -> dict[str, float]:
    """The line of the ladder at a delay: heading -> number."""
    block = out.split(f"sessions, delay {delay} (")[1].splitlines()
    headings = re.split(r"\s{2,}", block[1].strip())
    cells = re.split(r"\s{2,}", block[2].strip())
    return {name: float(cell) for name, cell in zip(headings[1:], cells[1:], strict=True) if cell != "-"}


def test_perfect_foresight_earns_at_delay_0_and_nothing_at_delay_1(foresight: Path, peerglass: Call) -> None:
    answer = peerglass("backtest", str(foresight), "--config", "tiny.yaml")
    assert answer.code == 0, answer.err
    assert re.match(r"[\d,]+ signals evaluated, 0 outside the universe dropped", answer.out)
    at_once, later = numbers(answer.out, 0), numbers(answer.out, 1)
    assert at_once["IC"] == pytest.approx(1.0, abs=1e-3)
    assert at_once["rank IC"] == pytest.approx(1.0, abs=1e-3)
    assert (at_once["dates %"], at_once["firms %"], at_once["tied %"]) == (100, 100, 0)
    assert "Sharpe ratio after costs, with a rate of 0 charged on net exposure" in answer.out
    assert at_once["long_only IR"] > 5
    assert "long_short IR" not in at_once
    assert at_once["long_short net"] > 10
    assert at_once["long_only net"] > 5
    assert abs(later["IC"]) < 0.1
    assert later["long_short net"] < 2
    rate = peerglass("backtest", str(foresight), "--config", "tiny.yaml", "--set", "backtest.risk_free=0.3")
    assert "Sharpe ratio after costs, with a rate of 30.00% a year charged on net exposure" in rate.out
    over = numbers(rate.out, 0)
    assert at_once["long_only net"] - over["long_only net"] > 0.5
    assert over["long_only IR"] == at_once["long_only IR"]
    assert over["long_short net"] == pytest.approx(at_once["long_short net"], abs=0.05)
    alone = peerglass("backtest", str(foresight), "--config", "tiny.yaml", "--set", "label.delay=1")
    assert numbers(alone.out, 1)["IC"] == later["IC"]


def test_coverage_and_ties_of_a_signal_are_printed(foresight: Path, peerglass: Call) -> None:
    frame = pl.read_csv(foresight, try_parse_dates=True)
    days = frame["date"].unique().sort()
    dropped = days[1::4].implode()
    rating = frame.filter(~pl.col("date").is_in(dropped)).with_columns(
        pl.col("signal").rank("ordinal").over("date").mod(2)
    )
    rating = rating.filter(pl.col("ticker") != rating["ticker"][0])
    rating.write_csv("rating.csv")
    answer = peerglass("backtest", "rating.csv", "--config", "tiny.yaml")
    assert answer.code == 0, answer.err
    line = numbers(answer.out, 0)
    first, last = rating["date"].sort()[[0, -1]]
    between = frame.filter(pl.col("date").is_between(first, last))
    assert line["dates %"] == pytest.approx(
        100 * rating["date"].n_unique() / between["date"].n_unique(), abs=0.05
    )
    on_its_dates = between.join(rating.select("date").unique(), on="date")
    assert line["firms %"] == pytest.approx(100 * rating.height / on_its_dates.height, abs=0.05)
    assert line["tied %"] == 100.0
    assert f"From {first} to {last} they cover {line['dates %']:.1f}% of the dates" in answer.out


def test_a_signal_in_parquet_with_rows_outside_the_universe(foresight: Path, peerglass: Call) -> None:
    unknown = pl.DataFrame({"date": ["2015-01-05"], "ticker": ["UNKNOWN"], "signal": [1.0]})
    frame = pl.concat([pl.read_csv(foresight), unknown]).with_columns(pl.col("date").str.to_date())
    frame.write_parquet("outside.parquet")
    answer = peerglass("backtest", "outside.parquet", "--config", "tiny.yaml")
    assert answer.code == 0, answer.err
    assert "1 outside the universe dropped" in answer.out
    assert numbers(answer.out, 0)["IC"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("day,ticker,signal\n2015-01-05,AAA,1\n", "lacks the column 'date'"),
        ("date,ticker\n2015-01-05,AAA\n", "lacks the column 'signal'"),
        ("date,ticker,signal\n05/01/2015,AAA,1\n", "dates must be YYYY-MM-DD"),
        ("date,ticker,signal\n2015-01-05,AAA,high\n", "signals numbers"),
        ("date,ticker,signal\n2015-01-05,AAA,inf\n", "is inf; use finite numbers"),
        ("date,ticker,signal\n2015-01-05,AAA,1\n2015-01-05,AAA,2\n", "appears more than once"),
        ("date,ticker,signal\n2015-01-05,UNKNOWN,1\n", "none of the 1 rows"),
        ("date,ticker,signal\n", "none of the 0 rows"),
        ("", "not readable"),
        (None, "There is no signal file at signal.csv"),
    ],
)
def test_a_signal_that_cannot_be_used(done: str, peerglass: Call, text: str | None, words: str) -> None:
    path = Path("signal.csv")
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    before = Lake("lake").versions()
    answer = peerglass("backtest", "signal.csv", "--config", "tiny.yaml")
    assert answer.code == 3, answer.err
    assert answer.out == ""
    last = answer.err.splitlines()[-1]
    assert last.startswith("peerglass: ")
    assert words in last
    assert Lake("lake").versions() == before


def test_a_signal_file_without_a_config_is_a_usage_error(foresight: Path, peerglass: Call) -> None:
    answer = peerglass("backtest", str(foresight))
    assert answer.code == 2
    assert "add --config CONFIG" in answer.err
    answer = peerglass("backtest", "tiny", "--output", "runs", "--set", "label.delay=1")
    assert answer.code == 2
    assert "only backtest.* can be set" in answer.err


def test_the_notebook_reviews_a_run(done: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "notebooks" / "peer_network.ipynb"
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]  # nbformat is partly annotated
    assert all(not cell.get("outputs") for cell in notebook.cells)  # committed without outputs
    monkeypatch.setenv("PEERGLASS_RUN", done)
    monkeypatch.setenv("PEERGLASS_OUTPUT", str(Path("runs").resolve()))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": "."}}
    )
    client.execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("application/vnd.plotly.v1+json" in output.get("data", {}) for output in shown)
    assert any("temporal_peer" in str(output.get("data", {})) for output in shown)
