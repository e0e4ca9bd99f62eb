"""Evaluations: costs and books have their own id, and a report shows the assumptions of its tables."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from command import Call, command

from pipelines.columns import TABLES
from pipelines.config.load import check_config
from pipelines.errors import ConfigError, DataError
from pipelines.results.recount import recount
from pipelines.run.evaluations import (
    EvaluationRecord,
    StoredEvaluation,
    evaluation_code,
    evaluation_id,
    find_evaluation,
    list_evaluations,
    newest_evaluation,
    store_evaluation,
)
from pipelines.run.identity import Identity
from pipelines.run.record import RecordedRun, open_run

pytestmark = pytest.mark.usefixtures("untracked")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run that all tests of the module share."""
    return tmp_path_factory.mktemp("evaluations")


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capfd)


@pytest.fixture
def done(folder: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, peerglass: Call) -> str:
    """The id of a run with a report at a half-spread of 5 bps."""
    monkeypatch.chdir(folder)
    if not list(Path("runs").glob("*/report.html")):
        folds = {**tiny["folds"], "max_folds": 1}
        label = {**tiny["label"], "extra_delays": [1]}
        settings = {**tiny, "models": {"ridge": {}}, "folds": folds, "label": label}
        Path("tiny.yaml").write_text(yaml.safe_dump(settings))
        assert peerglass("ingest", "tiny.yaml").code == 0
        assert peerglass("train", "tiny.yaml").code == 0
        assert peerglass("report", "tiny", "--output", "runs").code == 0
    (report,) = Path("runs").glob("*/report.html")
    return report.parent.name


def assumed(page: str, what: str) -> float:
    """A value of the report's table of assumptions."""
    rows = re.search(r'aria-label="Assumptions">(.*?)</table>', page, re.DOTALL)
    assert rows is not None
    cell = re.search(rf"<td>{what}</td><td class=\"num\">([^<]+)</td>", rows[1])
    assert cell is not None
    return float(cell[1])


def paid(page: str, book: str) -> float:
    """The half-spread costs of a book in the report, in bps of NAV per year."""
    rows = re.search(rf'aria-label="Costs of {book} in basis points.*?</table>', page, re.DOTALL)
    assert rows is not None
    place = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', rows[0]).index("half-spread")
    row = re.search(r"ridge</td>(.*?)</tr>", rows[0])
    assert row is not None
    cells = re.findall(r'<td class="num">([^<]+)</td>', row[1])
    return float(cells[place - 1].replace(",", ""))  # the first header is that of the model


def shown(run_id: str) -> str:
    return Path("runs", run_id, "report.html").read_text(encoding="utf-8")


@pytest.mark.slow(3)
def test_set_on_a_run_adds_an_evaluation(done: str, peerglass: Call) -> None:
    first = shown(done)
    kept = {path: path.read_bytes() for path in Path("runs", done).rglob("*.parquet")}
    expensive = peerglass("backtest", done, "--output", "runs", "--set", "backtest.costs.half_spread_bps=50")
    assert expensive.code == 0, expensive.err
    assert "half-spread 50 bps, commission 0.5 bps" in expensive.out
    for path, content in kept.items():
        assert path.read_bytes() == content, f"{path} belongs to the first evaluation"

    assert peerglass("report", done, "--output", "runs").code == 0
    second = shown(done)
    assert (assumed(first, "half-spread"), assumed(second, "half-spread")) == (5, 50)
    # ten times the half-spread on the same trades: the weights do not depend on costs
    assert paid(second, "long_short") == pytest.approx(10 * paid(first, "long_short"), rel=0.01)
    assert paid(first, "long_short") > 100

    named = re.findall(r"evaluation ([0-9a-f]{10})", first + second)
    assert len(set(named)) == 2
    assert peerglass("report", done, "--output", "runs", "--evaluation", named[0]).code == 0
    again = shown(done)
    assert assumed(again, "half-spread") == 5
    assert paid(again, "long_short") == paid(first, "long_short")
    assert all(name in again for name in named), "the other evaluations are listed"
    for name in ("zzz", ""):  # an empty one, as of a variable that is not set, is not the newest
        unknown = peerglass("report", done, "--output", "runs", "--evaluation", name)
        assert unknown.code == 2
        assert named[0] in unknown.err
        assert named[1] in unknown.err


@pytest.mark.slow(2)
def test_a_repeated_command_with_other_costs_does_not_change_the_assumptions_of_a_report(
    done: str, peerglass: Call
) -> None:
    assert peerglass("backtest", done, "--output", "runs").code == 0
    assert peerglass("report", done, "--output", "runs").code == 0
    before = shown(done)
    assert peerglass("train", "tiny.yaml", "--set", "backtest.costs.half_spread_bps=77").out.strip() == done
    assert peerglass("report", done, "--output", "runs").code == 0
    assert assumed(shown(done), "half-spread") == assumed(before, "half-spread") == 5
    assert paid(shown(done), "long_short") == paid(before, "long_short")
    assert "half_spread_bps: 77" not in shown(done), "nor in the configuration that it shows"

    config = Path("runs", done, "config.yaml")
    config.write_text(re.sub(r"half_spread_bps: [\d.]+", "half_spread_bps: 99.0", config.read_text()))
    assert peerglass("report", done, "--output", "runs").code == 0
    assert assumed(shown(done), "half-spread") == 5
    assert "99.0" not in re.findall(r"half_spread_bps: ([\d.]+)", shown(done))


@pytest.mark.slow(3)
def test_a_repeated_evaluation_is_the_newest_and_is_shown(done: str, peerglass: Call) -> None:
    three = ("--set", "backtest.costs.half_spread_bps=3")
    for options, expected in ((three, 3), (("--set", "backtest.costs.half_spread_bps=4"), 4), (three, 3)):
        assert peerglass("backtest", done, "--output", "runs", *options).code == 0
        assert peerglass("report", done, "--output", "runs").code == 0
        assert assumed(shown(done), "half-spread") == expected
    names = [path.name for path in Path("runs", done, "evaluations").iterdir()]
    assert len(names) == len(set(names))
    assert not [name for name in names if name.startswith(".")]


@pytest.mark.parametrize(
    "override", ["label.delay=1", "backtests.delay=1", "fit.epochs=3", "costs.half_spread_bps=1"]
)
def test_only_backtest_settings_of_a_run_can_change(done: str, peerglass: Call, override: str) -> None:
    answer = peerglass("backtest", done, "--output", "runs", "--set", override)
    assert answer.code == 2
    sentence = answer.err.splitlines()[-1]
    assert override in sentence
    assert "only backtest.* can be set" in sentence
    assert "peerglass train CONFIG --set" in sentence


def test_a_backtest_setting_that_does_not_exist_is_refused_as_in_a_config(done: str, peerglass: Call) -> None:
    answer = peerglass("backtest", done, "--output", "runs", "--set", "backtest.costs.half_spred_bps=1")
    assert answer.code == 2
    assert "did you mean 'half_spread_bps'?" in answer.err


def test_a_report_made_again_is_the_same_to_the_byte(done: str, peerglass: Call) -> None:
    assert peerglass("report", done, "--output", "runs").code == 0
    first = shown(done)
    assert peerglass("report", done, "--output", "runs").code == 0
    assert shown(done) == first


@pytest.mark.slow(3)
def test_changed_rates_in_the_same_file_give_a_new_evaluation(done: str, peerglass: Call) -> None:
    days = pl.date_range(dt.date(2014, 1, 1), dt.date(2017, 1, 1), "1w", eager=True)
    rates, run = Path("rates.csv"), open_run(done, Path("runs"))

    def measured(rate: float, path: Path = rates) -> StoredEvaluation:
        pl.DataFrame({"date": days, "rate": [rate] * len(days)}).write_csv(path)
        answer = peerglass("backtest", done, "--output", "runs", "--set", f"backtest.risk_free={path}")
        assert answer.code == 0, answer.err
        newest = newest_evaluation(run)
        assert newest is not None
        return newest

    def sharpe(evaluation: StoredEvaluation) -> float:
        return float(evaluation.table("ladder")["long_only.sharpe_net"][0])

    none, other = measured(0.0), measured(0.2)
    assert none.record.evaluation != other.record.evaluation
    assert sharpe(none) - sharpe(other) > 0.3, "20% a year less"
    kept = find_evaluation(run, none.record.evaluation)
    assert sharpe(kept) == sharpe(none), "the first is kept"
    content = hashlib.sha256(rates.read_bytes()).hexdigest()
    assert f"in excess of the rates in rates.csv (SHA-256 {content[:10]})" in other.record.assumptions
    assert none.record.assumptions != other.record.assumptions
    assert measured(0.0).record.evaluation == none.record.evaluation
    elsewhere = measured(0.0, Path("copy.csv"))
    assert elsewhere.record.evaluation == none.record.evaluation, (
        "the id depends on the content and not on the path"
    )
    rates.unlink()
    assert recount(run, kept).table("trials")["trials"][0] >= 1, "is shown after its file is gone"


def run_of(folder: Path, tiny: dict[str, Any], **changes: Any) -> RecordedRun:  # noqa: ANN401 (settings)
    config = check_config({**tiny, **changes}, origin="tiny")
    return RecordedRun("tiny-0123456789", config, Identity.nothing(), folder)


def test_the_id_covers_costs_books_their_order_and_delays(tmp_path: Path, tiny: dict[str, Any]) -> None:
    books = tiny["backtest"]["books"]
    changes: list[dict[str, Any]] = [
        {},
        {"backtest": {"books": books, "costs": {"half_spread_bps": 6}}},
        {"backtest": {"books": books, "costs": {"commission_bps": 6}}},
        {"backtest": {"books": books, "costs": {"borrow_bps_per_year": 6}}},
        {"backtest": {"books": books, "delay": 1}},
        {"backtest": {"books": {"long_only": books["long_only"]}}},
        {"backtest": {"books": dict(reversed(books.items()))}},
        {"label": {**tiny["label"], "extra_delays": [1]}},
    ]
    ids = [evaluation_id(run_of(tmp_path, tiny, **change).config) for change in changes]
    assert len(set(ids)) == len(changes)
    same: list[dict[str, Any]] = [
        {"backtest": {"books": books, "costs": {"half_spread_bps": 5}}},
        {"execution": {"workers": 3}},
        {"explain": {}},
    ]
    assert {evaluation_id(run_of(tmp_path, tiny, **change).config) for change in same} == {ids[0]}


def test_an_interrupted_write_does_not_damage_stored_evaluations(
    tmp_path: Path, tiny: dict[str, Any]
) -> None:
    run = run_of(tmp_path, tiny)
    day = dt.date(2020, 1, 2)
    record = EvaluationRecord(
        evaluation="0123456789",
        made_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        backtest=run.config.backtest,
        rates=None,
        delays=(0,),
        code="c",
        commit="c",
        trials=1,
        dates=1,
        first=day,
        last=day,
    )
    table = pl.DataFrame({"x": [1.0]})
    store_evaluation(run, record, {"ladder": table})
    torn = tmp_path / "evaluations" / ".0123456789.1.partial"
    torn.mkdir()
    (torn / "evaluation.json").write_text("{")
    (only,) = list_evaluations(run)
    assert only.table("ladder").equals(table)
    later = record.model_copy(update={"evaluation": "0999999999", "made_at": dt.datetime.now(dt.UTC)})
    store_evaluation(run, later, {"ladder": table})
    assert not torn.exists()
    assert [one.record.evaluation for one in list_evaluations(run)] == ["0999999999", "0123456789"]
    file = tmp_path / "evaluations" / "0999999999" / "ladder.parquet"
    file.write_bytes(file.read_bytes()[:20])
    store_evaluation(run, later, {"ladder": table})
    assert list_evaluations(run)[0].table("ladder").equals(table), "a damaged table is written again"
    with pytest.raises(ConfigError, match=r"More than one evaluation .* begins with '0'"):
        find_evaluation(run, "0")
    (tmp_path / "evaluations" / "0999999999" / "evaluation.json").write_text("{")
    with pytest.raises(DataError, match=r"0999999999 is damaged .*; delete that folder"):
        list_evaluations(run)


def test_a_reworded_table_is_the_same_evaluation_and_a_retyped_one_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = evaluation_code()
    paths = TABLES["paths"]
    ic = replace(paths.columns["ic"], label="other words", meaning="other words")
    for changed, same in ((ic, True), (replace(ic, dtype=pl.Float32()), False)):
        columns = {**paths.columns, "ic": changed}
        tables = {**TABLES, "paths": replace(paths, columns=columns)}
        monkeypatch.setattr("pipelines.run.evaluations.TABLES", tables)
        assert (evaluation_code() == before) == same
