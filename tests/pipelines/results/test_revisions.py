"""``peerglass revisions``: planted corrections, each with its share, against plain loops over coalitions."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from aged_lakes import aged
from command import Call, command
from counted import trial_count
from growing_lakes import Tables, deliver, sessions_of

from pipelines.commands.revisions import FIGURES, RevisionOptions, measure_revisions
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.build import build_dataset
from pipelines.dataset.tables import read_market_tables
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.results.evaluate import evaluate, forecasts_to_arrays
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.evaluations import newest_evaluation
from pipelines.run.record import RecordedRun, open_run
from pipelines.stages import backtest_run, train_config
from pipelines.train.task import collect_arrays, to_tensors

pytestmark = pytest.mark.usefixtures("untracked")
Values = Callable[[frozenset[int]], Sequence[float]]
LADDER = ["long_short.sharpe_net", "ic", "rank_ic"]
LABEL = {"horizon": 1, "delay": 0, "extra_delays": [1], "transform": "demean", "residualise_factors": 0}
FEATURES = {"window": 5, "characteristics": ["momentum_63", "return_1", "book_to_market"]}


@pytest.fixture(scope="module")
def measured_run(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_settings: Mapping[str, Any],
    tiny_tables: Tables,
    untracked: None,
) -> Path:
    """A folder with a measured run of ridge on the sessions up to the 300th, and a copy beside it."""
    folder = tmp_path_factory.mktemp("revisions") / "measured"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        settings = {**tiny_settings, "output": "data/runs", "models": {"ridge": {}}}
        Path("tiny.yaml").write_text(
            yaml.safe_dump({**settings, "features": FEATURES, "label": LABEL}, sort_keys=False)
        )
        deliver(Lake("lake"), tiny_tables, sessions_of(tiny_tables)[299])
        run = train_config(load_config(Path("tiny.yaml")))
        with pytest.raises(DataError, match="has not been measured yet; run 'peerglass backtest"):
            measure_revisions(run, Path("data/runs"), RevisionOptions())
        backtest_run(run, [], Path("data/runs"), echo=lambda _: None)
    shutil.copytree(folder, folder.with_name("copy"))
    return folder


@pytest.fixture
def peerglass(measured_run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """The command line, in the folder with the measured run as it was first: a run records absolute paths."""
    shutil.rmtree(measured_run)
    shutil.copytree(measured_run.with_name("copy"), measured_run)
    monkeypatch.chdir(measured_run)
    return command(monkeypatch, capfd)


def found(call: Call, *options: str) -> dict[str, Any]:
    answer = call("revisions", "latest", "--json", *options)
    assert answer.code == 0, answer.err
    content: dict[str, Any] = json.loads(answer.out)
    return content


def shapley(values: Values, count: int) -> np.ndarray:
    """Mean over all orders of what each player adds, in a plain loop."""
    total = np.zeros((count, len(FIGURES)))
    for order in itertools.permutations(range(count)):
        for at, player in enumerate(order):
            before = frozenset(order[:at])
            total[player] += np.subtract(values(before | {player}), values(before))
    return total / math.factorial(count)


@dataclass
class Measured:
    """The run of the module, measured by plain steps on any tables."""

    run: RecordedRun
    config: Config
    days: np.ndarray
    headline: tuple[float, ...]

    @classmethod
    def latest(cls) -> Measured:
        run = open_run("latest", Path("data/runs"))
        evaluation = newest_evaluation(run)
        assert evaluation is not None
        days = np.array(evaluation.table("ic_series")["date"].unique().sort())
        headline = evaluation.table("ladder").filter(pl.col("delay") == 1).select(LADDER).row(0)
        return cls(run, evaluation.record.apply_to(run.config), days, headline)

    def figures(self, tables: Tables, *, again: bool = False) -> tuple[float, ...]:
        """Measure the stored forecasts on tables, or those that the fitted models make from the tables."""
        dataset = build_dataset(tables, self.config)
        dates_T = dataset.panel.dates_T.astype("datetime64[D]")
        test = np.flatnonzero(np.isin(dates_T, self.days))
        own = (pl.col("run_id") == self.run.run_id) & (pl.col("model") == "ridge")
        stored = Lake("lake").read("forecasts", filters=own)
        forecasts = forecasts_to_arrays(stored, dataset.panel)["ridge"]
        if again:
            forecast_TN = np.full(dataset.universe_TN.shape, np.nan)
            for fold in sorted(set(stored["fold"])):
                fitted, inputs = load_checkpoint(self.run.checkpoint("ridge", fold, 0))
                days = stored.filter(pl.col("fold") == fold)["date"].unique().to_numpy()
                at = np.flatnonzero(np.isin(dates_T, days))
                data = to_tensors(collect_arrays(dataset, self.config.features.window), inputs, "cpu")
                forecast_TN[at] = fitted.forecast(data, at)
            forecasts = {0: forecast_TN}
        return (
            evaluate({"ridge": forecasts}, dataset, self.config, sessions=test)["ladder"]
            .filter(pl.col("delay") == 1)
            .select(LADDER)
            .row(0)
        )

    def tables(self, **versions: int) -> dict[str, pl.DataFrame]:
        """The tables of the run, or of other versions, up to its last session."""
        through = max(Lake("lake").read("prices", self.run.versions["prices"])["date"])
        return read_market_tables(Lake("lake"), {**self.run.versions, **versions}, through)


def assert_shares(rows: Sequence[Mapping[str, Any]], expected: Mapping[tuple[str, str], np.ndarray]) -> None:
    """Compare exact shares with a reference by table and firm."""
    shares = {(row["table"], row["ticker"]): row for row in rows}
    assert shares.keys() == expected.keys()
    for key, row in shares.items():
        moved = [row[f"{name}_moved"] for name in FIGURES]
        np.testing.assert_allclose(moved, expected[key], rtol=0, atol=1e-9)
        assert [row[f"{name}_moved_error"] for name in FIGURES] == [0.0, 0.0, 0.0]


def listed(tables: Tables) -> list[str]:
    """Firms with a price on every session from the 200th to the 310th."""
    rows = tables["prices"].filter(pl.col("date").is_in(sessions_of(tables)[200:310]))
    counts = rows.group_by("ticker").len().filter(pl.col("len") == 110)
    return counts["ticker"].sort().to_list()


def correct(ticker: str, day: dt.date, factor: float) -> None:
    """Multiply the prices of a row, in a commit of its own."""
    rows = Lake("lake").read("prices", filters=(pl.col("ticker") == ticker) & (pl.col("date") == day))
    assert rows.height == 1
    Lake("lake").upsert("prices", rows.with_columns(pl.col("open", "high", "low", "close") * factor))


@pytest.mark.slow(5)
def test_a_lake_without_corrections_has_a_band_of_zero(peerglass: Call, tiny_tables: Tables) -> None:
    before, measured = trial_count(Path("data/runs")), Measured.latest()
    deliver(Lake("lake"), tiny_tables, sessions_of(tiny_tables)[309])  # new sessions are no correction

    for options in ([], ["--inputs"]):
        answer = found(peerglass, *options)
        row = answer["revisions"][0]
        assert tuple(row[name] for name in FIGURES) == measured.headline
        assert answer["band"] == {name: [row[name], row[name]] for name in FIGURES}
        assert [one["compared"] for one in answer["revisions"]].count("data versions") == 1
        assert all(one["compared"] == "statements" for one in answer["shares"])
    assert trial_count(Path("data/runs")) == before
    assert "--since goes further back" in peerglass("revisions", "latest").out


@pytest.mark.slow(5)
def test_statements_as_restated_against_as_filed(peerglass: Call) -> None:
    measured = Measured.latest()
    tables = measured.tables()
    answer = found(peerglass, "--inputs")
    filed: dict[tuple[Any, ...], dict[str, Any]] = {}
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(tables["fundamentals"].to_dicts(), key=lambda row: row["known_at"]):
        item = row["ticker"], row["period_end"], row["item"], row["months"]
        filed.setdefault(item, row)
        last[item] = row
    changed = sorted({item[0] for item, row in filed.items() if last[item]["value"] != row["value"]})
    assert changed, "the market restates nothing"

    def statements(firms: Sequence[str]) -> tuple[float, ...]:
        rows = [
            {**row, "value": last[item]["value"]} if item[0] in firms else row for item, row in filed.items()
        ]
        own = pl.DataFrame(rows, schema=tables["fundamentals"].schema)
        return measured.figures({**tables, "fundamentals": own}, again=True)

    rows = {row["data"]: row for row in answer["revisions"] if row["compared"] == "statements"}
    assert list(rows) == ["as filed", "as published", "as restated"]
    shown = {name: tuple(row[figure] for figure in FIGURES) for name, row in rows.items()}
    assert shown["as filed"] == statements([])
    assert shown["as published"] == measured.headline
    assert shown["as restated"] == statements(changed)
    assert shown["as restated"] != shown["as filed"]
    moved = {name: sum(row[f"{name}_moved"] for row in answer["shares"]) for name in FIGURES}
    difference = np.subtract(shown["as restated"], shown["as filed"])
    np.testing.assert_allclose(list(moved.values()), difference, rtol=0, atol=1e-9)
    assert {row["ticker"] for row in answer["shares"] if row["ticker"]} <= set(changed)


@pytest.mark.slow(5)
def test_planted_corrections_have_their_shares(peerglass: Call, tiny_tables: Tables) -> None:
    days, measured = sessions_of(tiny_tables), Measured.latest()
    firms = listed(tiny_tables)
    deliver(Lake("lake"), tiny_tables, days[309])  # the second version of the prices
    planted = {firms[0]: (days[230], 1.3), firms[2]: (days[250], 0.8), firms[3]: (days[270], 1.15)}
    for ticker, (day, factor) in planted.items():
        correct(ticker, day, factor)
    correct(firms[1], days[305], 2.0)  # after the sessions of the run

    answer = found(peerglass)
    then, now = measured.tables(), measured.tables(prices=Lake("lake").versions()["prices"])
    assert [row["rows"] for row in answer["revisions"]] == [None, 1, 1, 1]
    every = [tuple(row[name] for name in FIGURES) for row in answer["revisions"]]
    assert every[0] == measured.headline
    assert every[-1] == measured.figures(now)
    assert len(set(every)) == 4
    for name, column in zip(FIGURES, zip(*every, strict=True), strict=True):
        assert answer["band"][name] == [min(column), max(column)]

    def values(chosen: frozenset[int]) -> tuple[float, ...]:
        is_new = pl.col("ticker").is_in([list(planted)[at] for at in chosen])
        rows = pl.concat([then["prices"].filter(~is_new), now["prices"].filter(is_new)])
        return measured.figures({**then, "prices": rows})

    expected = shapley(functools.cache(values), len(planted))
    assert abs(expected[:, 1]).min() > 1e-6
    assert_shares(answer["shares"], {("prices", ticker): expected[p] for p, ticker in enumerate(planted)})
    largest = {row["ticker"]: (row["rows"], row["day"]) for row in answer["shares"]}
    assert largest == {ticker: (1, str(day)) for ticker, (day, _) in planted.items()}
    text = peerglass("revisions", "latest").out
    assert f"{every[0][0]:.2f}" in text
    assert all(ticker in text for ticker in planted)
    kept = measured.run.read_table("revisions"), measured.run.read_table("revision_shares")
    assert [None if frame is None else frame.height for frame in kept] == [4, 3]

    page = Path(peerglass("report", "latest").out.strip()).read_text("utf-8")
    section = page[page.index('id="revisions"') : page.index('id="folds"')]
    assert all(ticker in section for ticker in planted)

    later = found(peerglass, "--since", "3")["revisions"][0]
    first = read_market_tables(Lake("lake"), {**measured.run.versions, "prices": 3}, days[309])
    assert later["data"] == "prices 3"
    assert tuple(later[name] for name in FIGURES) == measured.figures(first)

    few = found(peerglass, "--top", "1")["shares"]  # the largest change has a share of its own
    assert [row["ticker"] for row in few if row["ticker"]] == [firms[0]]
    total = np.subtract(every[-1], every[0])
    for rows in (few, answer["shares"]):
        moved = [sum(row[f"{name}_moved"] for row in rows) for name in FIGURES]
        np.testing.assert_allclose(moved, total, rtol=0, atol=1e-9)


@pytest.mark.slow(5)
def test_many_corrections_add_up_and_have_errors(peerglass: Call, tiny_tables: Tables) -> None:
    days, firms = sessions_of(tiny_tables), listed(tiny_tables)
    for at, ticker in enumerate(firms[:8]):
        correct(ticker, days[230], 1.5 + 0.1 * at)  # on one day, so that they interact
    lake = Lake("lake")
    sector = lake.read("securities").filter(pl.col("ticker") == firms[0]).head(1)
    lake.upsert("securities", sector.with_columns(sector=pl.lit("Other")))
    answer = found(peerglass)
    rows = answer["shares"]
    assert len(rows) == 9
    assert {row["table"] for row in rows} == {"prices", "securities"}
    first, last = answer["revisions"][0], answer["revisions"][-1]
    for name in FIGURES:
        moved = sum(row[f"{name}_moved"] for row in rows)
        np.testing.assert_allclose(moved, last[name] - first[name], rtol=0, atol=1e-9)
    assert any(row["ic_moved_error"] > 0 for row in rows)
    assert "Monte Carlo" in peerglass("revisions", "latest").out


@pytest.mark.slow(5)
def test_a_correction_that_is_taken_back_has_no_share(peerglass: Call, tiny_tables: Tables) -> None:
    lake, day = Lake("lake"), sessions_of(tiny_tables)[260]
    since, row = lake.versions()["prices"], lake.read("prices", filters=pl.col("date") == day)
    correct(listed(tiny_tables)[2], day, 1.5)
    lake.upsert("prices", row)
    answer = found(peerglass, "--since", str(since))
    first, wrong, last = ([one[name] for name in FIGURES] for one in answer["revisions"])
    assert first == last != wrong
    assert answer["shares"] == []


@pytest.mark.slow(5)
def test_renamed_firms_and_versions_that_are_gone(peerglass: Call, tiny_tables: Tables) -> None:
    days, firms = sessions_of(tiny_tables), listed(tiny_tables)
    correct(firms[0], days[230], 1.3)
    correct(firms[1], days[250], 0.8)
    before = found(peerglass)["revisions"]
    name = {"ticker": [firms[0]], "from_date": [days[303]], "new_ticker": ["RNMD"]}
    Lake("lake").upsert("renames", pl.DataFrame(name))
    answer = found(peerglass)
    for one, other in zip(before, answer["revisions"], strict=True):
        figures = [[row[name] for name in FIGURES] for row in (one, other)]
        np.testing.assert_allclose(figures[0], figures[1], rtol=1e-9)
    assert "RNMD" in {row["ticker"] for row in answer["shares"]}

    aged(Lake("lake"), "prices", [9.0] * (Lake("lake").versions()["prices"] + 1))
    assert peerglass("lake", "vacuum", "tiny.yaml", "--keep-days", "1").code == 0
    answer = found(peerglass)
    newest = Lake("lake").versions()["prices"]
    read = {row["data"].partition(",")[0] for row in answer["revisions"]}
    assert read == {"prices 1", f"prices {newest}"}  # that of the run, and the newest
    assert "were removed by a vacuum" in answer["notes"][0]


def test_wrong_use_is_said_in_a_sentence(peerglass: Call) -> None:
    wrong = {
        ("latest", "--model", "lstm"): (2, "--model is 'lstm'; run"),
        ("latest", "--since", "soon"): (2, "neither a version"),
        ("latest", "--since", "2000-01-01"): (3, "held no prices"),
        ("nothing",): (2, "No run begins with"),
    }
    for arguments, (code, sentence) in wrong.items():
        answer = peerglass("revisions", *arguments)
        assert (answer.code, sentence in answer.err) == (code, True), answer.err
