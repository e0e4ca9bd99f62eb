"""Columns and rows of signal files: which are signals, which are left out, and what is refused."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest
from workbooks import write_workbook

from pipelines.errors import ConfigError, DataError
from pipelines.results.signal_file import SignalTable, find_columns, read_signals


def read(path: Path, *wanted: str) -> SignalTable:
    return read_signals(path, find_columns(path, wanted))


def factor_frame(names: tuple[str | None, str | None] = ("date", "asset")) -> pd.DataFrame:
    """A factor frame as `alphalens.utils.get_clean_factor_and_forward_returns` returns it."""
    days = pd.date_range("2015-01-05", periods=3)
    index = pd.MultiIndex.from_product([days, ["B", "A"]], names=list(names))
    values = np.arange(6.0)
    return pd.DataFrame(
        {"1D": values, "5D": values, "factor": values, "group": 1, "factor_quantile": 1}, index=index
    )


@pytest.mark.parametrize("names", [("date", "asset"), (None, None)])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_factor_frame_of_alphalens_has_one_signal(
    tmp_path: Path, names: tuple[str | None, str | None], suffix: str
) -> None:
    path = tmp_path / f"quality.{suffix}"
    frame = factor_frame(names)
    if suffix == "csv":
        frame.to_csv(path)
    else:
        frame.to_parquet(path)
    table = read(path)
    assert table.signals == ("quality",), "a generic name is replaced by the file's"
    assert table.rows["ticker"].to_list() == ["A", "B"] * 3
    assert table.rows["quality"].to_list() == [1.0, 0.0, 3.0, 2.0, 5.0, 4.0]
    assert table.rows["date"][0] == dt.date(2015, 1, 5)
    said = " ".join(table.notes)
    assert "1D, 5D (forward returns of alphalens, which look ahead)" in said
    assert "group, factor_quantile (made by alphalens from the factor)" in said


def test_an_index_that_pandas_wrote_is_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    pd.DataFrame({"date": ["2015-01-05"], "ticker": ["A"], "momentum": [1.0], "name": ["a"]}).to_csv(path)
    table = read(path)
    assert table.signals == ("momentum",)
    assert any("an index without a name" in note for note in table.notes)
    assert any("name (no numbers)" in note for note in table.notes)


def test_columns_are_selected_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    pl.DataFrame({"date": ["2015-01-05"], "ticker": ["A"], "a": [1.0], "b": [2], "c": ["x"]}).write_csv(path)
    assert read(path).signals == ("a", "b")
    assert read(path, "b").signals == ("b",)
    with pytest.raises(ConfigError, match="--signal d: this column is not in the file"):
        find_columns(path, ["d"])
    with pytest.raises(ConfigError, match="--signal c: this column does not hold numbers"):
        find_columns(path, ["c"])


def test_tickers_and_days_are_text(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("date,ticker,x\n2015-01-05T00:00:00,0700,1\n2015-01-05,NA,2\n")
    assert read(path).rows["ticker"].to_list() == ["0700", "NA"]


def test_equal_values_have_one_digest_in_any_format_and_order(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "date": [dt.date(2015, 1, 6), dt.date(2015, 1, 5), dt.date(2015, 1, 5)],
            "ticker": ["A", "B", "A"],
            "x": [1.5, None, -0.0],
        }
    )
    frame.write_csv(tmp_path / "one.csv")
    frame.drop_nulls().reverse().with_columns(x=pl.col("x") + 0.0).write_parquet(tmp_path / "two.parquet")
    one, two = read(tmp_path / "one.csv"), read(tmp_path / "two.parquet")
    assert one.content("x") == two.content("x")
    changed = frame.with_columns(x=pl.col("x") + 1e-12)
    changed.write_parquet(tmp_path / "three.parquet")
    assert read(tmp_path / "three.parquet").content("x") != one.content("x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("date,ticker,x\n2015-01-05,,1\n", "1 rows have no date or no ticker"),
        ("date,ticker,x\n2015-01-05,A,1\n2015-01-05,A,2\n", "A on 2015-01-05 appears more than once"),
        ("date,ticker,x\n2015-01-05,A,-inf\n", "the signal x of A on 2015-01-05 is -inf"),
        ("ticker,x\nA,1\n", "lacks the column 'date'"),
        ("date,ticker,x\n", "has no row"),
        ("date,ticker,x\n2015-01-05,A,text\n", "has no column of numbers"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_text_files_of_other_countries_are_recognised(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "alpha.csv"
    text = (
        "date;ticker;firm;signal\n2015-01-05;A;Süd;1,5\n2015-01-05;B;Nord;-0,25\n2015-01-06;A;Süd;1.234,5\n"
    )
    path.write_bytes(text.encode(encoding))
    table = read(path)
    assert table.rows["alpha"].to_list() == [1.5, -0.25, 1234.5]
    assert "Not measured: firm (no numbers)." in table.notes


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Tokyo", "America/New_York"])
def test_a_midnight_with_a_time_zone_is_the_day_of_that_zone(tmp_path: Path, zone: str) -> None:
    moments = [dt.datetime(2015, 1, 5, tzinfo=ZoneInfo(zone)), dt.datetime(2015, 7, 6, tzinfo=ZoneInfo(zone))]
    frame = pl.DataFrame({"date": moments, "ticker": ["A", "A"], "signal": [1.0, 2.0]})
    frame.write_parquet(tmp_path / "a.parquet")
    frame.with_columns(pl.col("date").dt.to_string("iso:strict")).write_csv(tmp_path / "b.csv")
    for name in ("a.parquet", "b.csv"):
        assert read(tmp_path / name).rows["date"].to_list() == [dt.date(2015, 1, 5), dt.date(2015, 7, 6)]


def test_midnights_of_another_zone_are_refused(tmp_path: Path) -> None:
    moments = [dt.datetime(2015, 1, day, tzinfo=ZoneInfo("Asia/Tokyo")) for day in (5, 6)]
    frame = pl.DataFrame({"date": moments, "ticker": ["A", "A"], "signal": [1.0, 2.0]})
    frame = frame.with_columns(pl.col("date").dt.convert_time_zone("UTC"))
    frame.write_parquet(tmp_path / "a.parquet")
    frame.with_columns(pl.col("date").dt.to_string("iso:strict")).write_csv(tmp_path / "b.csv")
    for name in ("a.parquet", "b.csv"):
        with pytest.raises(DataError, match="midnight of 2015-01-05 in Asia/Tokyo"):
            read(tmp_path / name)


def test_a_signal_that_begins_late_is_one_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    days = pl.date_range(dt.date(2015, 1, 1), dt.date(2015, 12, 31), eager=True)
    late = pl.Series([None] * 300 + [float(n) for n in range(len(days) - 300)])
    frame = pl.DataFrame(
        {"date": days, "ticker": "A", "late": late, "early": 1.0, "none": pl.Series([None] * 365)}
    )
    frame.write_csv(path)
    table = read(path)
    assert table.signals == ("late", "early")
    assert table.rows["late"].to_list() == late.to_list()
    assert "Not measured: none (no numbers)." in table.notes


@pytest.mark.parametrize("suffix", ["csv", "parquet", "xlsx"])
def test_a_wide_file_has_a_column_per_ticker(tmp_path: Path, suffix: str) -> None:
    days = pd.date_range("2015-01-05", periods=3, name="Date")
    frame = pd.DataFrame(
        {"AAPL US Equity": [1.0, np.nan, 3.0], "0700": [4.0, 5.0, 6.0], "cash": 9.0}, index=days
    )
    path = tmp_path / f"positions.{suffix}"
    if suffix == "csv":
        frame.to_csv(path)
    elif suffix == "parquet":
        frame.to_parquet(path)
    else:
        rows = [[day.date(), *(None if np.isnan(x) else x for x in row)] for day, *row in frame.itertuples()]
        write_workbook(path, [["Date", *frame.columns], *rows])
    table = read(path)
    assert table.signals == ("positions",)
    assert table.rows.rows() == [
        (dt.date(2015, 1, 5), "0700", 4.0),
        (dt.date(2015, 1, 5), "AAPL.US", 1.0),
        (dt.date(2015, 1, 6), "0700", 5.0),
        (dt.date(2015, 1, 7), "0700", 6.0),
        (dt.date(2015, 1, 7), "AAPL.US", 3.0),
    ]
    assert table.notes == ("Not measured: cash (cash of positions).",)


def test_usual_names_dates_and_numbers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('Trade Date,Symbol,signal\n1/31/2015,BTC/USDT,"1,234.5"\n2/13/2015,BTC/USDT,(2)\n')
    assert read(path).rows.rows() == [
        (dt.date(2015, 1, 31), "BTC-USDT", 1234.5),
        (dt.date(2015, 2, 13), "BTC-USDT", -2.0),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("date,ticker,x\n2015-01-05,A,1\nsomeday,B,2\n", "1 of the 2 dates of"),
        ("date,returns\n2015-01-05,0.1\n2015-01-06,0.2\n", "one number a date, as a series of returns has"),
        ("date,alpha,beta\n2015-01-05,1,2\n2015-01-05,1,2\n", "lacks the column 'ticker'"),
    ],
)
def test_what_is_wrong_is_quoted(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read(path)
    assert words in str(caught.value)


def test_a_value_far_below_that_is_no_number_is_quoted(tmp_path: Path) -> None:
    days = pl.date_range(dt.date(2015, 1, 1), dt.date(2015, 12, 31), eager=True)
    values = ["1.5"] * 364 + ["much"]
    pl.DataFrame({"date": days, "ticker": "A", "x": values}).write_csv(tmp_path / "x.csv")
    with pytest.raises(
        DataError, match="signal x of A on 2015-12-31 is 'much'; it and 0 more values are no numbers"
    ):
        read(tmp_path / "x.csv")
    with pytest.raises(
        ConfigError, match=r"--signal y: this column is not in the file; .* has the signals x"
    ):
        find_columns(tmp_path / "x.csv", ["y"])
