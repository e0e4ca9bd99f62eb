"""``peerglass init``: configs for files as users have them, and refusals of files that cannot be read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from command import Call, command

from pipelines.config.load import load_config
from pipelines.lake.lake import Lake

DAYS = 260


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    monkeypatch.chdir(tmp_path)
    return command(monkeypatch, capfd)


@pytest.fixture(scope="module")
def bars() -> pl.DataFrame:
    """Prices of nine firms on 260 weekdays, rounded so that text files hold them exactly."""
    rng = np.random.default_rng(4)
    start = dt.date(2020, 1, 1)
    days = [day for i in range(400) if (day := start + dt.timedelta(days=i)).weekday() < 5][:DAYS]
    parts = []
    for n in range(9):
        close_T = (1500 * np.exp(np.cumsum(rng.normal(0, 0.02, DAYS)))).round(2)
        volume_T = rng.integers(1_000, 90_000, DAYS).astype(float)
        parts.append(
            pl.DataFrame(
                {"date": days, "ticker": f"F{n}", "name": "Süd", "close": close_T, "volume": volume_T}
            )
        )
    return pl.concat(parts)


def _commas(frame: pl.DataFrame) -> pl.DataFrame:
    """Numbers as German programs write them: 1.234,5."""
    text = pl.col("close", "volume").map_elements(
        lambda x: f"{x:,.2f}".translate(str.maketrans(",.", ".,")), return_dtype=pl.String
    )
    return frame.with_columns(text)


def german(frame: pl.DataFrame) -> bytes:
    frame = _commas(frame).with_columns(pl.col("date").dt.to_string("%d.%m.%Y"))
    names = {"date": "Datum", "ticker": "Symbol", "close": "Kurs", "volume": "Volumen"}
    return frame.rename(names).write_csv(separator=";").encode("latin-1")


def american(frame: pl.DataFrame) -> bytes:
    frame = frame.with_columns(pl.col("date").dt.to_string("%m/%d/%Y"))
    names = {"date": "Trade Date", "ticker": "PERMNO", "close": "Adj. Close", "volume": "Vol"}
    return frame.rename(names).write_csv().encode()


def marked(frame: pl.DataFrame) -> bytes:
    return b"\xef\xbb\xbf" + frame.write_csv(separator="\t").encode()


def zoned(frame: pl.DataFrame) -> bytes:
    text = pl.col("date").dt.to_string("%Y-%m-%dT00:00:00+02:00")
    return frame.with_columns(text).write_csv().encode()


def indexed(frame: pl.DataFrame) -> bytes:
    return frame.with_row_index("").write_csv().encode()


def wide(frame: pl.DataFrame) -> bytes:
    closes = frame.drop("name").pivot(on="ticker", index="date", values="close").rename({"date": ""})
    return closes.write_csv().encode()


@pytest.mark.parametrize("write", [german, american, marked, zoned, indexed, wide])
def test_a_config_is_written_that_ingests_every_price_of_the_file(
    write: Callable[[pl.DataFrame], bytes], bars: pl.DataFrame, peerglass: Call
) -> None:
    Path("prices.csv").write_bytes(write(bars))
    answer = peerglass("init", "prices.csv")
    assert answer.code == 0, answer.err
    assert f"{bars.height:,} prices of 9 firms, {DAYS} sessions from 2020-01-01" in answer.out
    assert peerglass("validate", "prices.yaml").code == 0
    ingested = peerglass("ingest", "prices.yaml")
    assert ingested.code == 0, ingested.err
    stored = Lake(load_config(Path("prices.yaml")).lake).read("prices").sort("ticker", "date")
    expected = bars.sort("ticker", "date")
    assert stored["date"].to_list() == expected["date"].to_list()
    assert stored["ticker"].to_list() == expected["ticker"].to_list()
    np.testing.assert_array_equal(stored["close"].to_numpy(), expected["close"].to_numpy())
    if write is not wide:
        np.testing.assert_array_equal(stored["volume"].to_numpy(), expected["volume"].to_numpy())


def test_validate_opens_the_files_and_checks_their_columns(bars: pl.DataFrame, peerglass: Call) -> None:
    Path("prices.csv").write_text(bars.write_csv())
    assert peerglass("init", "prices.csv").code == 0
    assert "prices.csv" in peerglass("validate", "prices.yaml").out
    pl.DataFrame({"ticker": ["F1"], "branch": ["x"]}).write_csv("firms.csv")
    firms = ("--set", "source.securities=firms.csv")
    assert peerglass("validate", "prices.yaml", *firms).code == 0
    for arguments, words in (
        ((*firms, "--set", "source.columns.sector=gics"), "for sector; its columns are ticker, branch"),
        (("--set", "source.membership=index.csv"), "there is no file"),
        (("--set", "source.columns.volume=shares"), "prices.csv has no column 'shares' for volume"),
        (("--set", "source.units.close=-1"), "close_is_positive"),
    ):
        answer = peerglass("validate", "prices.yaml", *arguments)
        assert (answer.code, words in answer.err, answer.out) == (3, True, ""), (arguments, answer)
    assert not Path("data").exists(), "nothing is stored"


@pytest.mark.slow(7)
def test_the_config_runs_from_ingest_to_report(bars: pl.DataFrame, peerglass: Call) -> None:
    Path("kurse.csv").write_bytes(german(bars))
    assert peerglass("init", "kurse.csv", "--config", "mine.yaml").code == 0
    quick = ("--set", "audit.enabled=false", "--set", "fit.epochs=1", "--set", "models.lightgbm.rounds=20")
    answer = peerglass("run", "mine.yaml", *quick)
    assert answer.code == 0, answer.err
    assert Path(answer.out.splitlines()[-1]).is_file()


@pytest.mark.parametrize("sessions", [160, 200, 420, 800, 2500])
def test_folds_fit_the_length_of_the_history(sessions: int, tmp_path: Path) -> None:
    from pipelines.config.draft import draft_config

    days = pl.date_range(dt.date(2005, 1, 3), dt.date(2020, 1, 1), eager=True)
    days = days.filter(days.dt.weekday() < 6).head(sessions)
    rng = np.random.default_rng(1)
    parts = [
        pl.DataFrame({"date": days, "ticker": f"F{n}", "close": np.exp(rng.normal(3, 0.1, sessions))})
        for n in range(5)
    ]
    pl.concat(parts).write_parquet(tmp_path / "p.parquet")
    settings = yaml.safe_load(draft_config(tmp_path / "p.parquet", tmp_path).text)
    folds, label = settings["folds"], settings["label"]
    assert set(label) == {"horizon", "delay"}, "a draft does not repeat defaults"
    gap = label["delay"] + label["horizon"] + folds["embargo"]
    needed = folds["train"] + folds["valid"] + 2 * gap + folds["test"] + label["delay"] + label["horizon"]
    usable = sessions - settings["universe"]["min_history"]
    assert needed <= usable
    assert (usable - needed) % folds["test"] < 5, "the folds cover the history but for rounding"
    assert min(folds["valid"], folds["test"]) >= 20


def test_an_existing_config_is_kept_unless_forced(bars: pl.DataFrame, peerglass: Call) -> None:
    Path("prices.csv").write_bytes(marked(bars))
    Path("prices.yaml").write_text("mine")
    kept = peerglass("init", "prices.csv")
    assert (kept.code, Path("prices.yaml").read_text()) == (2, "mine")
    assert "--force" in kept.err
    assert peerglass("init", "prices.csv", "--force").code == 0
    assert "name: prices" in Path("prices.yaml").read_text()


def _per_ticker(frame: pl.DataFrame) -> None:
    Path("firms").mkdir()
    for (ticker,), firm in frame.group_by("ticker"):
        firm.select(Date="date", Close="close", Volume="volume").write_csv(Path("firms", f"{ticker}.csv"))


@pytest.mark.parametrize("given", ["firms", "firms/F*.csv"])
def test_a_folder_or_a_pattern_of_one_file_per_ticker_is_ingested_under_the_files_names(
    given: str, bars: pl.DataFrame, peerglass: Call
) -> None:
    _per_ticker(bars)
    answer = peerglass("init", given, "--config", "mine.yaml")
    assert (answer.code, answer.err) == (0, "")
    assert "layout: file_per_ticker" in Path("mine.yaml").read_text()
    assert peerglass("ingest", "mine.yaml").code == 0
    stored = Lake(load_config(Path("mine.yaml")).lake).read("prices")
    assert sorted(stored["ticker"].unique()) == [f"F{n}" for n in range(9)]
    assert stored.height == bars.height


def test_splits_of_zero_are_no_splits(bars: pl.DataFrame, peerglass: Call) -> None:
    bars.with_columns(split_ratio=pl.when(pl.col("ticker") == "F1").then(0.0).otherwise(1.0)).write_csv(
        "p.csv"
    )
    answer = peerglass("init", "p.csv")
    assert answer.code == 0, answer.err
    assert f"{DAYS} rows have split_ratio = 0, which is read as no split" in answer.out
    assert f"{bars.height:,} prices of 9 firms" in answer.out


def test_a_row_of_totals_is_counted_and_quoted(bars: pl.DataFrame, peerglass: Call) -> None:
    Path("p.csv").write_text(bars.write_csv() + "Total,,,,\n2020-01-0\n")
    answer = peerglass("init", "p.csv")
    assert answer.code == 0, answer.err
    assert "2 rows cannot be used as prices and will be quarantined" in answer.out
    assert "date '2020-01-0'" in answer.out or "date 'Total'" in answer.out


def test_a_value_that_is_wrong_is_quoted_with_what_is_allowed(bars: pl.DataFrame, peerglass: Call) -> None:
    bars.with_columns(ticker=pl.format("{}/x/y", "ticker")).write_csv("p.csv")
    answer = peerglass("init", "p.csv")
    assert answer.code == 3
    assert "ticker 'F0/x/y'" in answer.err
    assert "letters, digits and . - _ ^ =" in answer.err
    bars.with_columns(close=pl.format("{}?", "close")).write_csv("p.csv")
    assert f"close '{bars['close'][0]}?' of F0" in peerglass("init", "p.csv").err


def _days(frame: pl.DataFrame, form: str) -> bytes:
    return frame.with_columns(pl.col("date").dt.to_string(form)).write_csv().encode()


def _doubled(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("close") * 2)


def _few_days(frame: pl.DataFrame) -> bytes:
    return _days(frame.filter(pl.col("date").dt.day() == pl.col("date").dt.month()), "%d/%m/%Y")


REFUSED: Mapping[str, tuple[Callable[[pl.DataFrame], bytes], int, str]] = {
    "signals": (lambda f: f.select("date", "ticker", alpha="volume").write_csv().encode(), 2, "are signals"),
    "no dates": (lambda f: f.select("ticker", "close").write_csv().encode(), 3, "looks like a date"),
    "no tickers": (
        lambda f: f.rename({"ticker": "x"}).drop("name").write_csv().encode(),
        3,
        "tickers to ticker",
    ),
    "two orders": (_few_days, 3, "give one with --date-format"),
    "constant NaN": (
        lambda f: f.with_columns(close=pl.lit("NaN")).write_csv().encode(),
        3,
        "break the rules",
    ),
    "two closes a day": (lambda f: pl.concat([f, _doubled(f)]).write_csv().encode(), 3, "break the rules"),
    "header only": (lambda f: f.head(0).write_csv().encode(), 3, "has no row below its header"),
    "too short": (
        lambda f: f.filter(pl.col("date") < dt.date(2020, 3, 1)).write_csv().encode(),
        3,
        "at least",
    ),
    "one series": (
        lambda f: f.filter(pl.col("ticker") == "F1").select("date", "close", "volume").write_csv().encode(),
        3,
        "each named after its ticker (this one would be prices)",
    ),
    "words for dates": (
        lambda f: f.with_columns(date=pl.format("day {}", "date")).write_csv().encode(),
        3,
        "260 of the 260 dates of prices.csv, such as 'day 2020-01-01', have no usual format",
    ),
    "one firm": (lambda f: f.filter(pl.col("ticker") == "F1").write_csv().encode(), 3, "more firms"),
    "late evenings": (lambda f: _days(f, "%Y-%m-%dT23:00:00Z"), 3, "dates of the exchange"),
    "binary": (lambda _: bytes(range(256)) * 50, 3, "prices.csv"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_and_nothing_is_written(
    case: str, bars: pl.DataFrame, peerglass: Call
) -> None:
    write, code, advice = REFUSED[case]
    Path("prices.csv").write_bytes(write(bars))
    answer = peerglass("init", "prices.csv")
    assert (answer.code, Path("prices.yaml").exists()) == (code, False), answer.err
    assert advice in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_the_advice_on_dates_works(bars: pl.DataFrame, peerglass: Call) -> None:
    names = {day: f"{day:%d/%m/%Y}" for day in bars["date"].unique()}
    odd = bars.with_columns(pl.col("date").replace_strict(names, return_dtype=pl.String))
    Path("prices.csv").write_bytes(odd.write_csv().encode())
    assert peerglass("init", "prices.csv", "--date-format", "%m/%d/%Y").code == 3
    assert peerglass("init", "prices.csv", "--date-format", "%d/%m/%Y").code == 0
