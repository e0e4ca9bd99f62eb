"""Wildcards, units, date formats and wide prices in a user's files."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from given_files import files_source

from pipelines.errors import ConfigError, DataError
from pipelines.lake.contracts import check
from pipelines.sources.files.opening import resolve
from pipelines.sources.files.reading import GivenFiles

NOW = pl.lit(datetime(2026, 1, 1, tzinfo=UTC))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def bars(day: str, ticker: str, close: float, volume: float = 10.0) -> str:
    return f"date,ticker,close,volume\n{day},{ticker},{close},{volume}\n"


def test_a_pattern_reads_its_files_in_order_and_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("b", bars("2020-01-03", "A", 2)), ("a", bars("2020-01-02", "A", 1))):
        write(tmp_path / "in" / f"{name}.csv", text)
    write(tmp_path / "in" / "deep" / "c.csv", bars("2020-01-06", "A", 3))
    fetched = files_source(tmp_path / "in" / "*.csv").fetch()
    assert fetched.tables["prices"]["close"].to_list() == [1.0, 2.0]
    assert any(note.startswith("a.csv to b.csv (2 files) has no open, high, low") for note in fetched.notes)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHERE", "in")
    assert files_source(Path("$WHERE/**/?.csv")).fetch().tables["prices"].height == 3
    assert [path.name for path in resolve(Path("in/[ab].csv"))] == ["a.csv", "b.csv"]


def test_a_file_name_with_brackets_is_not_a_pattern(tmp_path: Path) -> None:
    path = write(tmp_path / "prices[1].csv", bars("2020-01-02", "A", 1))
    assert resolve(path) == [path]


def test_csv_and_parquet_of_one_pattern_are_concatenated(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", bars("2020-01-02", "A", 1))
    pl.DataFrame({"date": [date(2020, 1, 3)], "ticker": ["A"], "close": [2], "volume": [5.5]}).write_parquet(
        tmp_path / "b.parquet"
    )
    pl.DataFrame({"date": [date(2020, 1, 6)], "ticker": ["A"], "close": [3.5], "volume": [7]}).write_parquet(
        tmp_path / "c.parquet"
    )
    prices = files_source(tmp_path / "[abc].*").fetch().tables["prices"]
    assert prices.rows() == [
        (date(2020, 1, 2), "A", 1.0, 10.0),
        (date(2020, 1, 3), "A", 2.0, 5.5),
        (date(2020, 1, 6), "A", 3.5, 7.0),
    ]


@pytest.mark.parametrize("value", [[1.5], {"usd": 1.5}, timedelta(days=1)], ids=["list", "struct", "span"])
def test_a_column_of_lists_or_spans_is_named(value: object, tmp_path: Path) -> None:
    file = tmp_path / "prices.parquet"
    pl.DataFrame({"date": ["2020-01-02"], "ticker": ["A"], "PX": [value]}).write_parquet(file)
    with pytest.raises(DataError, match=r"prices.parquet has values of the type .* in the column 'PX': "):
        files_source(file, columns={"close": "PX"}).fetch()


def test_files_of_a_pattern_with_different_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", bars("2020-01-02", "A", 1))
    write(tmp_path / "b.csv", "date,ticker,close\n2020-01-03,A,2\n")
    with pytest.raises(DataError, match=r"b\.csv has no volume, which a\.csv has"):
        files_source(tmp_path / "*.csv").fetch()
    write(tmp_path / "b.csv", "date,ticker,close,volume,dividend\n2020-01-03,A,2,1,0\n")
    with pytest.raises(DataError, match=r"a\.csv has no dividend, which b\.csv has"):
        files_source(tmp_path / "*.csv").fetch()
    row = {"date": [date(2020, 1, 3)], "ticker": ["A"], "close": [2.0]}
    pl.DataFrame(row).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame(row | {"close": ["2,0"]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet stores close as String, but a\.parquet as Float64"):
        files_source(tmp_path / "*.parquet").fetch()


def test_a_pattern_that_matches_no_file_or_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file matches"):
        files_source(tmp_path / "*.csv").fetch()
    write(tmp_path / "a.csv", bars("2020-01-02", "A", 1))
    write(tmp_path / "readme.md", "text")
    with pytest.raises(ConfigError, match=r"readme\.md is neither CSV.*: narrow the pattern"):
        files_source(tmp_path / "*").fetch()


def test_a_header_with_a_duplicate_column_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "date,A,A\n2020-01-02,1,2\n")
    with pytest.raises(DataError, match="several columns named 'A'"):
        files_source(path, layout="wide").fetch()


def test_units_multiply_values_and_leave_unreadable_ones(tmp_path: Path) -> None:
    text = "date,ticker,close,volume\n2020-01-02,A,150,7\n2020-01-02,B,x,8\n"
    prices = (
        files_source(write(tmp_path / "p.csv", text), units={"volume": 100, "close": 0.01})
        .fetch()
        .tables["prices"]
    )
    assert prices["volume"].to_list() == [700.0, 800.0]
    assert prices["close"].to_list() == ["1.5", "x"]


def test_units_without_a_column_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "date,ticker,close\n2020-01-02,A,1\n")
    for units, message in (
        ({"sector": 2.0}, "units names sector, which has no unit"),
        ({"volume": 0.0}, "units multiplies volume by 0.0"),
        ({"close": float("inf")}, "units multiplies close by inf"),
    ):
        with pytest.raises(ConfigError, match=message):
            files_source(path, units=units)
    with pytest.raises(DataError, match="units names volume, which no file contains"):
        files_source(path, units={"volume": 100}).fetch()


def test_dates_that_are_not_iso_need_a_date_format(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "date,ticker,close\n5/1/2015,A,1\n2015-05-04,A,2\n20150505,A,3\n")
    days = files_source(path, date_format="%m/%d/%Y").fetch().tables["prices"]["date"].to_list()
    assert days == [date(2015, 5, 1), date(2015, 5, 4), date(2015, 5, 5)]
    unread = files_source(path).fetch().tables["prices"]["date"].to_list()
    assert unread == ["2015-05-04", "2015-05-05", "5/1/2015"]


def test_wide_closes_become_rows_and_empty_cells_do_not(tmp_path: Path) -> None:
    text = "Day,NA,BRK.B\n2020-01-03,2,\n2020-01-02,1,300\n2020-01-06,nan,x\n"
    source = files_source(write(tmp_path / "w.csv", text), layout="wide", columns={"date": "Day"})
    fetched = source.fetch()
    assert fetched.tables["prices"].rows() == [
        (date(2020, 1, 2), "BRK.B", "300"),
        (date(2020, 1, 2), "NA", "1"),
        (date(2020, 1, 3), "NA", "2"),
        (date(2020, 1, 6), "BRK.B", "x"),
    ]
    assert any(note.startswith("2 cells of w.csv hold no close") for note in fetched.notes)
    stamped = fetched.tables["prices"].with_columns(
        source=pl.lit("files"), ingested_at=pl.lit(0).cast(pl.Datetime("us", "UTC"))
    )
    assert check("prices", stamped).by_rule() == {"close_unreadable": 1}


def test_wide_parquet_files_may_hold_different_tickers(tmp_path: Path) -> None:
    pl.DataFrame({"date": [date(2020, 1, 2)], "A": [1], "B": [2.5]}).write_parquet(tmp_path / "1.parquet")
    pl.DataFrame({"date": [date(2020, 1, 3)], "B": [None], "C": [float("nan")], "D": [4.0]}).write_parquet(
        tmp_path / "2.parquet"
    )
    prices = files_source(tmp_path / "*.parquet", layout="wide", units={"close": 2}).fetch().tables["prices"]
    assert prices.select("ticker", "close").rows() == [("A", 2.0), ("B", 5.0), ("D", 8.0)]


def test_a_wrong_layout_is_refused(tmp_path: Path) -> None:
    long = write(tmp_path / "long.csv", bars("2020-01-02", "A", 1))
    wide = write(tmp_path / "wide.csv", "date,A\n2020-01-02,1\n")
    with pytest.raises(DataError, match=r"set source\.layout to long"):
        files_source(long, layout="wide").fetch()
    with pytest.raises(DataError, match=r"no column 'ticker' for ticker; .* \(or set source.layout to wide"):
        files_source(wide).fetch()
    with pytest.raises(ConfigError, match="columns maps close, but each other column"):
        files_source(wide, layout="wide", columns={"close": "A"}).fetch()
    with pytest.raises(DataError, match="no column besides date"):
        files_source(write(tmp_path / "none.csv", "date\n2020-01-02\n"), layout="wide").fetch()
    with pytest.raises(DataError, match="no column 'date' for date"):
        files_source(write(tmp_path / "day.csv", "Tag,A\n2020-01-02,1\n"), layout="wide").fetch()


def test_a_sign_in_the_name_of_a_file_is_no_count() -> None:
    given = GivenFiles([Path("part#1.csv")])
    given.note(f"{given.label} has no universe.")
    given.note(f"# rows of {given.label} are empty.", 1200)
    given.note("# rows are not there.", 0)
    assert given.notes == ["part#1.csv has no universe.", "1,200 rows of part#1.csv are empty."]


SPLIT = """date,ticker,close,adjusted_close
2020-01-02,A,100.00,50.00
2020-01-03,A,{},{}
2020-01-06,A,51.00,51.00
2020-01-07,A,52.00,52.00
2020-01-02,B,10.00,9.00
2020-01-03,B,9.00,9.00
"""


@pytest.mark.parametrize(("close", "adjusted"), [("", ""), ("0", "0"), ("49.00", "")])
def test_a_split_after_a_day_without_a_close_is_on_the_next_one(
    tmp_path: Path, close: str, adjusted: str
) -> None:
    path = write(tmp_path / "prices.csv", SPLIT.format(close, adjusted))
    prices = files_source(path, vendor="adjusted").fetch().tables["prices"]
    of_a = prices.filter(ticker="A", date=date(2020, 1, 6))
    assert of_a["split_ratio"].item() == pytest.approx(2.0)
    assert of_a["dividend"].item() == 0.0
    others = prices.join(of_a, on=["date", "ticker"], how="anti").filter(pl.col("ticker") == "A")
    assert others["split_ratio"].to_list() == [1.0, 1.0, 1.0]
    assert prices.filter(ticker="B")["dividend"].to_list() == pytest.approx([0.0, 1.0])


def test_a_recorded_split_and_dividend_without_a_close_are_at_the_next_one(tmp_path: Path) -> None:
    """Two for one, a dividend of 0.3 on the new shares, and three for two, while there is no close."""
    text = (
        "date,ticker,close,split_ratio,dividend\n2020-01-02,A,9,1,0\n2020-01-03,A,,2,0\n"
        "2020-01-06,A,,1,0.3\n2020-01-07,A,3,1.5,0.1\n2020-01-08,A,3,1,0\n2020-01-02,B,1,1,0\n"
        "2020-01-03,B,1,1,0.2\n2020-01-08,B,,4,0\n"
    )
    fetched = files_source(write(tmp_path / "prices.csv", text)).fetch()
    rows = fetched.tables["prices"].drop_nulls("close").sort("ticker", "date")
    assert rows["split_ratio"].to_list() == [1, 3, 1, 1, 1]
    assert rows["dividend"].to_list() == pytest.approx([0, 0.3 / 1.5 + 0.1, 0, 0, 0.2])
    assert "3 splits or dividends of days without a close are those of the next one." in fetched.notes
    assert sum("without a close" in note for note in fetched.notes) == 1


def test_a_repeated_row_has_the_split_and_the_dividend_of_its_day(tmp_path: Path) -> None:
    text = SPLIT.format("50.00", "50.00").splitlines(keepends=True)
    doubled = [text[0], *(line for line in text[1:] for _ in range(2))]
    prices = [
        files_source(write(tmp_path / "prices.csv", "".join(lines)), vendor="adjusted")
        .fetch()
        .tables["prices"]
        for lines in (text, doubled)
    ]
    kept = [check("prices", one.with_columns(source=pl.lit("files"), ingested_at=NOW)) for one in prices]
    assert [one.rejected.height for one in kept] == [0, 0]
    assert kept[0].valid.sort("ticker", "date").equals(kept[1].valid.sort("ticker", "date"))
    assert kept[0].valid.filter(pl.col("split_ratio") == 2)["date"].to_list() == [date(2020, 1, 3)]


def test_a_value_that_cannot_be_read_changes_no_other_row(tmp_path: Path) -> None:
    """Numbers with signs, zeros that mean not known, and midpoints are read beside it as without it."""
    row = '2020-01-0{day},{ticker},"{close}",{bar},{bar},{bar},"{volume}"\n'
    sound = [
        row.format(day=day, ticker=ticker, close=close, bar="0", volume="1,200")
        for day, ticker, close in ((2, "A", "1,050.25"), (3, "A", "-1,051.25"), (2, "B", "7"), (3, "B", "8"))
    ]
    broken = row.format(day=6, ticker="A", close="one", bar="0", volume="1")
    broken += row.format(day=6, ticker="B", close="9", bar="two", volume="1")
    broken += row.format(day=7, ticker="B", close="9", bar="0", volume="three")
    header, kept = "date,permno,prc,openprc,askhi,bidlo,vol\n", []
    for lines in (sound, [*sound, broken]):
        path = write(tmp_path / "prices.csv", header + "".join(lines))
        source = files_source(path, vendor="crsp", layout="long", columns={"ticker": "permno"})
        rows = source.fetch().tables["prices"]
        kept.append(check("prices", rows.with_columns(source=pl.lit("files"), ingested_at=NOW)))
    unreadable = ["close_unreadable", "open_unreadable", "volume_unreadable"]
    assert [one.rejected["rule"].sort().to_list() for one in kept] == [[], unreadable]
    assert kept[0].valid.equals(kept[1].valid)
    assert kept[1].valid["close"].sort().to_list() == [7.0, 8.0, 1050.25, 1051.25]
    assert kept[1].valid.filter(close=1051.25).select("volume", "open").row(0) == (0.0, None)
