"""Forecasts before a knowledge cutoff count in no figure, whatever they are, and the cutoff is identified."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import yaml
from command import Call, command
from polars.testing import assert_frame_equal

import peerglass
from features.information_coefficient import ic_by_date
from peerglass.frames import read_signals as read_frame
from peerglass.signals import Backtest
from pipelines.config.load import load_config
from pipelines.errors import PeerglassError
from pipelines.results.signal_file import KNOWN_FROM, early_rows, find_columns, read_signals
from pipelines.run.fetch import ingest_config
from pipelines.train.trials import read_trials

T, N = 240, 40
RNG = np.random.default_rng(20261128)
DAYS = [day for day in (dt.date(2023, 1, 2) + dt.timedelta(days=i) for i in range(400)) if day.weekday() < 5][
    :T
]
NAMES = [f"F{n:02}" for n in range(N)]
RETURN_TN = RNG.normal(0, 0.02, (T, N))
CLOSE_TN = np.exp(RETURN_TN.cumsum(axis=0))
CUTOFF = DAYS[130]
LABEL_TN = np.full((T, N), np.nan)
LABEL_TN[:-2] = CLOSE_TN[2:] / CLOSE_TN[1:-1] - 1  # bought one session later
MEMORY_TN = RNG.normal(size=(T, N))  # remembers a little before the cutoff, and knows nothing after
MEMORY_TN[:130] += 0.2 * LABEL_TN[:130] / 0.02


def wide(x_TN: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame(x_TN, schema=NAMES).insert_column(0, pl.Series("date", DAYS))


def long(x_TN: np.ndarray, known_from: pl.Expr | None = None) -> pl.DataFrame:
    rows = wide(x_TN).unpivot(index="date", variable_name="ticker", value_name="chronos")
    return rows if known_from is None else rows.with_columns(known_from=known_from)


PRICES = wide(CLOSE_TN)
ROWS = long(MEMORY_TN, pl.lit(CUTOFF))


def measured(signal: Any, output: Path, *overrides: str) -> Backtest:  # noqa: ANN401 (any frame)
    return peerglass.backtest(signal, PRICES, [f"output={output}", *overrides])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Backtest:
    return measured(ROWS, tmp_path_factory.mktemp("found"))


def same_figures(one: Backtest, other: Backtest) -> None:
    """All tables but the comparison of both sides and its check are equal."""
    assert set(one.polars) == set(other.polars) >= {"ladder", "equity", "significance", "cutoffs"}
    for name, table in one.polars.items():
        if name not in ("cutoffs", "guard"):  # "reach" has the time of the newest trial
            drop = ["reach"] if name == "trials" else []
            assert_frame_equal(table.drop(drop), other.polars[name].drop(drop), abs_tol=0.0, rel_tol=0.0)
    after = pl.col("part") == "after"
    assert_frame_equal(one.polars["cutoffs"].filter(after), other.polars["cutoffs"].filter(after))
    checks = pl.col("check").is_in(["knowledge cutoff", "statistics of the whole sample"]).not_()
    guards = [each.polars["guard"].filter(checks).sort("check") for each in (one, other)]
    assert_frame_equal(*guards)


@pytest.mark.slow(3)
def test_no_figure_changes_when_earlier_forecasts_are_scrambled(found: Backtest, tmp_path: Path) -> None:
    early = pl.col("date") < CUTOFF
    scrambled = ROWS.with_columns(
        chronos=pl.when(early).then(pl.col("chronos").shuffle(4) * 7 + 100).otherwise(pl.col("chronos"))
    )
    other = measured(scrambled, tmp_path)
    same_figures(found, other)
    before = [each.polars["cutoffs"]["ic"][0] for each in (found, other)]
    assert abs(before[1]) < 0.05 < before[0], "what was scrambled had skill"
    assert other.id != found.id
    swept = [each.sweep({"half_spread_bps": [0, 20]}).table for each in (found, other)]
    assert_frame_equal(*swept)


@pytest.mark.slow(3)
def test_figures_are_those_of_a_file_that_begins_at_the_cutoff(found: Backtest, tmp_path: Path) -> None:
    later = ROWS.drop(KNOWN_FROM).filter(pl.col("date") >= CUTOFF)
    other = measured(later, tmp_path)
    assert "cutoffs" not in other.polars
    for name in ("ladder", "equity", "ic_series", "quantiles", "figures", "significance", "ic_decay"):
        assert_frame_equal(found.polars[name], other.polars[name])
    assert found.evaluation.record.first == CUTOFF
    assert found.used == other.used
    left = dict(found.polars["rows"].select("reason", "rows").iter_rows())
    assert left["before the knowledge cutoff"] == 130 * N == found.left_out["chronos"]


def test_both_sides_are_shown_and_memory_fails_the_guard(found: Backtest) -> None:
    before, after = found.polars["cutoffs"].to_dicts()
    by_hand = ic_by_date(MEMORY_TN, LABEL_TN)
    assert before["ic"] == pytest.approx(np.nanmean(by_hand[:130]), abs=1e-9)
    assert after["ic"] == pytest.approx(np.nanmean(by_hand[130:]), abs=1e-9)
    assert (before["dates"], after["dates"]) == (130, T - 2 - 130)
    own = found.polars["ladder"].filter(delay=found.config.label.delay)
    assert after["ic"] == pytest.approx(own["ic"][0], abs=1e-9)
    assert after["ic_t"] == pytest.approx(own["ic_t"][0], abs=1e-9)
    assert before["known_from"] == str(CUTOFF)
    (check,) = found.polars["guard"].filter(check="knowledge cutoff").to_dicts()
    assert check["verdict"] == "fail"
    assert "the skill ends with the training data" in check["sentence"]
    assert found.polars["guard"]["verdict"][0] == "fail"
    page = found.report().read_text("utf-8")
    assert "Knowledge cutoff" in page
    assert "before, not counted" in page


def test_an_honest_signal_passes() -> None:
    honest_TN = np.random.default_rng(9).normal(size=(T, N)) + 0.15 * np.nan_to_num(LABEL_TN) / 0.02
    checks = peerglass.audit_signal(long(honest_TN, pl.lit(CUTOFF)), PRICES)
    (check,) = checks.filter(check="knowledge cutoff").to_dicts()
    assert check["verdict"] == "pass"
    assert "no sign that the skill ends" in check["sentence"]
    without = peerglass.audit_signal(long(honest_TN), PRICES)
    assert "knowledge cutoff" not in without["check"].to_list()


def forms() -> list[Any]:
    """Frames of one signal with its cutoffs, in every form."""
    cutoff = pl.lit(CUTOFF).alias(KNOWN_FROM)
    in_columns = wide(MEMORY_TN).with_columns(cutoff)
    stacked = ROWS.to_pandas().set_index(["date", "ticker"])
    dated = pd.DataFrame(MEMORY_TN, index=pd.DatetimeIndex(DAYS), columns=NAMES).assign(known_from=CUTOFF)
    return [ROWS, ROWS.to_pandas(), stacked, in_columns, in_columns.to_pandas(), dated]


def test_frames_of_every_form_have_cutoffs() -> None:
    later_TN = np.where(np.arange(T)[:, None] >= 130, MEMORY_TN, np.nan)
    expected = peerglass.forecast_metrics(wide(later_TN).fill_nan(None), PRICES)
    for form in forms():
        assert peerglass.forecast_metrics(form, PRICES).rank_ic == expected.rank_ic
        checks = peerglass.audit_signal(form, PRICES)
        checks = checks if isinstance(checks, pl.DataFrame) else pl.from_pandas(checks)
        assert checks.filter(check="knowledge cutoff")["verdict"].to_list() == ["fail"]


@pytest.mark.slow(3)
def test_the_setting_is_the_column(found: Backtest, tmp_path: Path) -> None:
    plain = ROWS.drop(KNOWN_FROM)
    other = measured(plain, tmp_path, f"known_from={CUTOFF}")
    same_figures(found, other)
    assert other.id == found.id, "one content, one name"
    later = measured(plain, tmp_path, f"known_from={DAYS[150]}")
    assert later.id != other.id
    trials = read_trials(tmp_path)
    assert trials.height == 4, "another cutoff is another trial of every book"


def test_each_row_has_the_cutoff_of_the_version_that_made_it() -> None:
    """A model that was trained again: each version counts from its own cutoff on."""
    second = DAYS[160]
    versions = pl.when(pl.col("date") < DAYS[150]).then(pl.lit(DAYS[50])).otherwise(pl.lit(second))
    counted_T = np.array([(DAYS[50] <= day < DAYS[150]) or day >= second for day in DAYS])
    kept_TN = np.where(counted_T[:, None], MEMORY_TN, np.nan)
    found = peerglass.forecast_metrics(long(MEMORY_TN, versions), PRICES)
    assert found.rank_ic == peerglass.forecast_metrics(wide(kept_TN).fill_nan(None), PRICES).rank_ic
    assert found.n_dates == counted_T[:-2].sum()


@pytest.mark.parametrize(
    ("cutoff", "sentence"),
    [
        (
            pl.lit(DAYS[-1] + dt.timedelta(days=1)),
            f"no forecast counts, because the last one is dated {DAYS[-1]}",
        ),
        (pl.lit("soon"), "known_from is of type String; convert it to dates first"),
        (pl.lit(2023), "known_from is of type Int32; convert it to dates first"),
        (pl.when(pl.col("date") > CUTOFF).then(pl.lit(CUTOFF)), "known_from has no date in 5,240 rows"),
    ],
)
def test_a_wrong_cutoff_is_refused(cutoff: pl.Expr, sentence: str, tmp_path: Path) -> None:
    signal = long(MEMORY_TN, cutoff)
    for call in (lambda: measured(signal, tmp_path), lambda: peerglass.forecast_metrics(signal, PRICES)):
        with pytest.raises(PeerglassError, match=sentence) as raised:
            call()
        assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_wrong_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PeerglassError, match=r"known_from is 2023-07-03, and frame has a column known_from"):
        measured(ROWS, tmp_path, "known_from=2023-07-03")
    with pytest.raises(PeerglassError, match="known_from"):
        measured(ROWS.drop(KNOWN_FROM), tmp_path, "known_from=soon")


def test_a_cutoff_with_a_time_of_day_may_be_after_the_close(tmp_path: Path) -> None:
    days = pl.Series([dt.date(2024, 1, 2), dt.date(2024, 1, 3), dt.date(2024, 1, 4)])
    moments = pl.Series(
        [dt.datetime(2024, 1, 1, 21), dt.datetime(2024, 1, 3, 7, 30), dt.datetime(2024, 1, 4)]
    )
    rows = pl.DataFrame({"date": days, "ticker": "A", "chronos": [1.0, 2.0, 3.0], KNOWN_FROM: moments})
    path = tmp_path / "chronos.csv"
    rows.write_csv(path)
    zoned = rows.with_columns(pl.col(KNOWN_FROM).dt.replace_time_zone("America/New_York"))
    frames = [read_frame(rows, "frame"), read_frame(zoned, "frame")]
    for found in (read_signals(path, find_columns(path)).rows, *frames):
        assert found[KNOWN_FROM].to_list() == days.to_list()[:1] + days.to_list()[2:] * 2


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("form", ["long", "wide"])
def test_files_have_cutoffs(tmp_path: Path, form: str, suffix: str) -> None:
    rows = ROWS if form == "long" else wide(MEMORY_TN).with_columns(known_from=pl.lit(CUTOFF))
    path = tmp_path / f"chronos.{suffix}"
    rows.write_csv(path) if suffix == "csv" else rows.write_parquet(path)
    table = read_signals(path, find_columns(path))
    assert table.signals == ("chronos",)
    assert table.rows[KNOWN_FROM].unique().to_list() == [CUTOFF]
    assert early_rows(path, table.rows).sum() == 130 * N
    assert table.rows.height == T * N
    plain = rows.drop(KNOWN_FROM)
    plain.write_csv(path) if suffix == "csv" else plain.write_parquet(path)
    without = read_signals(path, find_columns(path))
    assert not early_rows(path, without.rows).any()
    assert without.content("chronos") != table.content("chronos")
    assert without.since(CUTOFF).content("chronos") == table.content("chronos")


@pytest.mark.parametrize(
    ("cutoffs", "words"),
    [
        (("soon", "soon"), "such as 'soon', have no usual format: write them as 2020-01-31"),
        (("2015-01-05", ""), "1 rows have no known_from"),
        (("", ""), "has no date in the column 'known_from'"),
        (("2024", "2024"), "such as '2024', have no usual format"),
    ],
)
def test_a_wrong_cutoff_of_a_file_is_quoted(tmp_path: Path, cutoffs: tuple[str, str], words: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"date,ticker,x,known_from\n2015-01-05,A,1,{cutoffs[0]}\n2015-01-05,B,2,{cutoffs[1]}\n")
    with pytest.raises(PeerglassError) as caught:
        read_signals(path, find_columns(path))
    assert words in str(caught.value)


@pytest.mark.slow(6)
def test_the_command_shows_both_sides_and_remembers_the_setting(
    tmp_path: Path,
    tiny_settings: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump({**tiny_settings, "models": {"ridge": {}}}))
    ingest_config(load_config(Path("tiny.yaml")), echo=lambda _: None)
    prices = peerglass.prices("tiny.yaml")
    days = prices["date"].unique().sort()
    prices.select("date", "ticker", text_score=-pl.col("total_return")).write_csv("scores.csv")
    peer: Call = command(monkeypatch, capfd)
    cutoff = str(days[len(days) // 2])
    answer = peer(
        "backtest", "scores.csv", "--config", "tiny.yaml", "--force", "--set", f"known_from={cutoff}"
    )
    assert answer.code == 0, answer.err
    assert f"knowledge cutoff {cutoff}: figures are of forecasts from then on" in answer.out
    assert "before, not counted" in answer.out
    assert "before the knowledge cutoff" in answer.out
    folder = Path(answer.out.splitlines()[-1]).parent
    again = peer("backtest", folder.name, "--force", "--json", "--output", "runs")
    assert again.code == 0, again.err
    found = json.loads(again.out)
    assert found["id"] == folder.name
    assert found["dates"]["first"] >= cutoff
    assert [row["part"] for row in found["cutoffs"]] == ["before, not counted", "after"]
