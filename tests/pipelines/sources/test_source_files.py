"""A user's files: reading, interpretation, and refusals."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path

import polars as pl
import pytest
from given_files import files_source
from places import DATA

from pipelines.errors import ConfigError, DataError
from pipelines.lake.contracts import check

CSV = """date,ticker,open,high,low,close,volume
2020-01-03,BBB,10,11,9,10.5,100
2020-01-02,AAA,10,11,9,10.5,100
2020-01-02,BBB,0,0,0,10.5,NA
"""


def csv(folder: Path, text: str = CSV, name: str = "prices.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_csv_is_sorted_and_typed_and_zero_bars_become_null(tmp_path: Path) -> None:
    fetched = files_source(csv(tmp_path)).fetch()
    assert fetched.tables["prices"].rows() == [
        (date(2020, 1, 2), "AAA", 10.5, 10.0, 11.0, 9.0, 100.0),
        (date(2020, 1, 2), "BBB", 10.5, None, None, None, None),
        (date(2020, 1, 3), "BBB", 10.5, 10.0, 11.0, 9.0, 100.0),
    ]
    output = " ".join(fetched.notes)
    assert "1 rows have open = 0" in output
    assert "no split_ratio, dividend" in output
    assert "No securities file" in output


def test_parquet_and_gzip_give_the_same_as_csv(tmp_path: Path) -> None:
    expected = files_source(csv(tmp_path)).fetch().tables["prices"]
    expected.write_parquet(tmp_path / "prices.parquet")
    assert files_source(tmp_path / "prices.parquet").fetch().tables["prices"].equals(expected)
    (tmp_path / "prices.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    assert files_source(tmp_path / "prices.csv.gz").fetch().tables["prices"].equals(expected)


def test_columns_are_mapped_and_text_tickers_stay_text(tmp_path: Path) -> None:
    text = "Day,Sym,Px\n20200102,NA,1.5\n2020-01-03 00:00:00,007,2\n"
    source = files_source(csv(tmp_path, text), columns={"date": "Day", "ticker": "Sym", "close": "Px"})
    assert source.fetch().tables["prices"].rows() == [
        (date(2020, 1, 2), "NA", 1.5),
        (date(2020, 1, 3), "007", 2.0),
    ]


def test_home_and_environment_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    csv(tmp_path)
    monkeypatch.setenv("PEERGLASS_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("$PEERGLASS_DATA/prices.csv", "${PEERGLASS_DATA}/prices.csv", "~/prices.csv"):
        assert files_source(Path(path)).fetch().tables["prices"].height == 3
    with pytest.raises(ConfigError, match=r"variable \$NOT_SET_HERE, which is not set"):
        files_source(Path("$NOT_SET_HERE/prices.csv")).fetch()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "prices.csv",
            "date,ticker,open\n2020-01-02,A,1\n",
            "no column 'close' for close; its columns are date, ticker, open",
        ),
        ("prices.csv", "date,ticker,close\n", "has a header but no rows"),
        ("prices.csv", "", "cannot be read as csv"),
        ("prices.parquet", "this is text", "cannot be read as parquet"),
    ],
)
def test_a_broken_file_is_refused_with_its_name(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        files_source(csv(tmp_path, text, name)).fetch()


def test_a_missing_file_a_wrong_kind_and_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*prices\.csv"):
        files_source(tmp_path / "prices.csv").fetch()
    with pytest.raises(DataError, match="there is no file"):
        files_source(csv(tmp_path), tmp_path / "securities.csv").fetch()
    with pytest.raises(ConfigError, match=r"neither CSV, Excel nor Parquet"):
        files_source(csv(tmp_path, name="prices.docx")).fetch()
    with pytest.raises(ConfigError, match="columns maps clse, which is not a column of any table"):
        files_source(tmp_path / "prices.csv", columns={"clse": "Close"})
    with pytest.raises(ConfigError, match="start 2021-01-01 is after end 2020-01-01"):
        files_source(tmp_path / "prices.csv", start=date(2021, 1, 1), end=date(2020, 1, 1))
    with pytest.raises(DataError, match="no column 'Px' for close"):
        files_source(csv(tmp_path), columns={"close": "Px"}).fetch()
    with pytest.raises(
        DataError, match="no rows from 2030-01-01 to its end; it has 2020-01-02 to 2020-01-03"
    ):
        files_source(csv(tmp_path), start=date(2030, 1, 1)).fetch()


def test_start_and_end_are_inclusive(tmp_path: Path) -> None:
    source = files_source(csv(tmp_path), start=date(2020, 1, 2), end=date(2020, 1, 2))
    assert source.fetch().tables["prices"]["date"].unique().to_list() == [date(2020, 1, 2)]


def test_unreadable_values_reach_the_contract_unchanged(tmp_path: Path) -> None:
    text = (
        "date,ticker,close,volume\n2020-01-02,A,1,5\n31/12/2020,B,1,5\n2020-01-02,C,x,5\n2020-01-02,D,1,inf\n"
    )
    frame = files_source(csv(tmp_path, text), start=date(2020, 1, 1)).fetch().tables["prices"]
    checked = check("prices", frame.with_columns(source=pl.lit("files"), ingested_at=pl.lit(None)))
    assert "ingested_at_missing" in checked.by_rule()
    stamped = frame.with_columns(source=pl.lit("files"), ingested_at=pl.lit(0).cast(pl.Datetime("us", "UTC")))
    checked = check("prices", stamped)
    assert checked.by_rule() == {
        "close_unreadable": 1,
        "date_unreadable": 1,
        "volume_is_finite_and_not_negative": 1,
    }
    assert any("31/12/2020" in row for row in checked.rejected["row"])
    assert checked.valid["ticker"].to_list() == ["A"]


def test_an_open_outside_the_range_becomes_null_and_is_counted(tmp_path: Path) -> None:
    text = (
        "date,ticker,open,high,low,close\n"
        "2020-01-02,A,278.85,25.67,21.45,23.4\n"  # the open misses a later split; the rest is valid
        "2020-01-02,B,24,25.67,21.45,23.4\n"
        "2020-01-02,C,24,25.67,21.45,50\n"  # the close is outside, which the contract rejects
    )
    fetched = files_source(csv(tmp_path, text)).fetch()
    assert fetched.tables["prices"]["open"].to_list() == [None, 24.0, 24.0]
    assert any(note.startswith("1 rows have an open outside") for note in fetched.notes)


def test_securities_are_static_without_valid_from_and_may_share_the_mapping(tmp_path: Path) -> None:
    static = csv(tmp_path, "ticker,GICS Sector\nAAA,Energy\nCCC,n/a\n", "static.csv")
    fetched = files_source(csv(tmp_path), static, columns={"sector": "GICS Sector"}).fetch()
    assert fetched.tables["securities"].select("ticker", "sector", "valid_from").rows() == [
        ("AAA", "Energy", date(1900, 1, 1)),
        ("CCC", None, date(1900, 1, 1)),
    ]
    assert any("assumed to be valid on all dates" in note for note in fetched.notes)
    assert any(note.startswith("1 of the tickers") for note in fetched.notes)
    dated = csv(
        tmp_path, "ticker,valid_from,delisted_on,delisting_return\nAAA,2001-01-01,2019-05-05,-0.3\n", "d.csv"
    )
    fetched = files_source(csv(tmp_path), dated).fetch()
    assert fetched.tables["securities"].row(0) == ("AAA", date(2001, 1, 1), date(2019, 5, 5), -0.3)
    assert not any("assumed to be valid on all dates" in note for note in fetched.notes)


def test_delisting_reasons_are_words_or_crsp_codes(tmp_path: Path) -> None:
    told = {
        "merger": "merger",
        "Performance ": "performance",
        "UNKNOWN": "unknown",
        "": None,
        "n/a": None,
        "199": "unknown",
        "200": "merger",
        "241.0": "merger",
        "399": "merger",
        "400": "unknown",
        "500": "performance",
        "501": "unknown",
        "520": "performance",
        "584": "performance",
        "585": "unknown",
        "bankrupt": "bankrupt",  # the contract rejects it
    }
    rows = "".join(f"T{n:02},2001-01-01,2019-05-05,{word}\n" for n, word in enumerate(told))
    firms = csv(tmp_path, "ticker,valid_from,delisted_on,dlstcd\n" + rows, "reasons.csv")
    fetched = files_source(csv(tmp_path), firms, columns={"delisting_reason": "dlstcd"}).fetch()
    assert fetched.tables["securities"]["delisting_reason"].to_list() == list(told.values())
    codes = csv(tmp_path, "ticker,dlstcd\nAAA,233\nCCC,574\n", "codes.csv")  # read as integers
    fetched = files_source(csv(tmp_path), codes, columns={"delisting_reason": "dlstcd"}).fetch()
    assert fetched.tables["securities"]["delisting_reason"].to_list() == ["merger", "performance"]


def long_history(leavers: int) -> str:
    rows = [f"{year}-06-30,F{firm:02},10" for year in range(2000, 2011) for firm in range(20)]
    rows += [f"2011-06-30,F{firm:02},10" for firm in range(leavers, 20)]
    return "date,ticker,close\n" + "\n".join(rows) + "\n"


def test_survivorship_is_a_hazard_if_no_firm_leaves(tmp_path: Path) -> None:
    nobody = files_source(csv(tmp_path, long_history(0))).fetch().hazards
    assert len(nobody) == 1
    assert nobody[0].startswith("Survivorship is likely: none of 20 firms stop trading in 11.0 years")
    assert files_source(csv(tmp_path, long_history(3))).fetch().hazards == ()
    told = ("Survivorship: the list is that of 2011.",)
    assert files_source(csv(tmp_path, long_history(0)), hazards=told).fetch().hazards == told


def test_an_incomplete_last_session_is_a_hazard(tmp_path: Path) -> None:
    hazards = files_source(csv(tmp_path, long_history(12))).fetch().hazards
    assert any("last session, 2011-06-30, has 8 firms" in hazard for hazard in hazards)


@pytest.mark.skipif(
    not (DATA / "nasdaq_prices.parquet").exists(), reason="the shared Nasdaq data is not here"
)
def test_the_nasdaq_files_have_the_defects_counted_in_their_readme() -> None:
    source = files_source(
        DATA / "nasdaq_prices.parquet",
        DATA / "nasdaq_industry.csv",
        start=date(2003, 1, 1),
        end=date(2003, 12, 31),
    )
    fetched = source.fetch()
    raw = pl.scan_parquet(DATA / "nasdaq_prices.parquet").filter(pl.col("date").dt.year() == 2003).collect()
    prices = fetched.tables["prices"]
    assert prices.height == raw.height > 100_000
    assert prices["open"].null_count() > (raw["open"] == 0).sum() > 0
    assert fetched.tables["securities"].height == 1026
