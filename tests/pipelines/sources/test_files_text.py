"""Text files of other countries and programs: separators, decimal commas, encodings, marks, time zones."""

from __future__ import annotations

import gzip
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from pipelines.errors import DataError
from pipelines.sources.files.source import FilesSource
from pipelines.sources.files.text import TextFormat, recognise_text

GERMAN = "date;ticker;close;volume\n2020-01-02;Süd;1.234,5;1.000\n2020-01-03;Süd;1.235,25;2.000.000\n"
EXPECTED = [(date(2020, 1, 2), "Süd", 1234.5, 1000.0), (date(2020, 1, 3), "Süd", 1235.25, 2_000_000.0)]


def prices(path: Path, text: TextFormat | None = None) -> list[tuple[object, ...]]:
    return FilesSource(path, text=text).fetch().tables["prices"].rows()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16"])
def test_semicolons_and_decimal_commas_are_read_and_recognised_in_every_encoding(
    tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "prices.csv"
    path.write_bytes(GERMAN.encode(encoding))
    assert prices(path, TextFormat(";", ",", encoding)) == EXPECTED
    found = recognise_text(path)
    assert (found.separator, found.decimal) == (";", ",")
    assert prices(path, found) == EXPECTED


def test_a_gzipped_file_is_recognised_and_read(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv.gz"
    path.write_bytes(gzip.compress(GERMAN.encode("latin-1")))
    assert prices(path, recognise_text(path)) == EXPECTED


@pytest.mark.parametrize(
    ("text", "separator", "decimal"),
    [
        ("date,ticker,close\n2020-01-02,A,1.5\n", ",", "."),
        ("date\tticker\tclose\n2020-01-02\tA\t1,5\n", "\t", ","),
        ("date|ticker|close\n2020-01-02|A|1,234.5\n", "|", "."),
        ('date,ticker,name,close\n2020-01-02,A,"Inc; the",1.5\n', ",", "."),
        ("date;ticker;close\n2020-01-02;A;15\n", ";", "."),
    ],
)
def test_the_separator_and_the_decimal_mark_are_recognised(
    tmp_path: Path, text: str, separator: str, decimal: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    found = recognise_text(path)
    assert (found.separator, found.decimal, found.encoding) == (separator, decimal, "utf-8")


def test_thousands_with_a_decimal_point_are_read_where_a_comma_does_not_separate_columns(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("date;ticker;close;volume\n2020-01-02;A;1,234.5;12,000\n")
    assert prices(path, TextFormat(";")) == [(date(2020, 1, 2), "A", 1234.5, 12000.0)]


def test_a_wrong_encoding_ends_with_its_cure(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(GERMAN.encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.csv is not encoded as UTF-8: set its encoding"):
        prices(path, TextFormat(";", ","))
    with pytest.raises(DataError, match="is not encoded as utf-32"):
        prices(path, TextFormat(";", ",", "utf-32"))


def test_an_unnamed_first_column_of_a_wide_file_holds_the_dates(tmp_path: Path) -> None:
    frame = pl.DataFrame({"": ["2020-01-02", "2020-01-03"], "A": [1.5, 2.0], "B": [3.0, None]})
    frame.write_csv(tmp_path / "wide.csv")
    frame.rename({"": "__index_level_0__"}).write_parquet(tmp_path / "wide.parquet")
    for name in ("wide.csv", "wide.parquet"):
        read = FilesSource(tmp_path / name, layout="wide").fetch().tables["prices"]
        assert read.select("date", "ticker", "close").rows() == [
            (date(2020, 1, 2), "A", 1.5),
            (date(2020, 1, 2), "B", 3.0),
            (date(2020, 1, 3), "A", 2.0),
        ]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Tokyo", "America/New_York", "UTC"])
def test_a_midnight_with_a_time_zone_is_the_day_of_that_zone(tmp_path: Path, zone: str) -> None:
    moments = [datetime(2020, 1, day, tzinfo=ZoneInfo(zone)) for day in (2, 3)]
    frame = pl.DataFrame({"date": moments, "ticker": ["A", "A"], "close": [1.0, 2.0]})
    frame.write_parquet(tmp_path / "a.parquet")
    frame.with_columns(pl.col("date").dt.to_string("iso:strict")).write_csv(tmp_path / "a.csv")
    for name in ("a.parquet", "a.csv"):
        assert [row[0] for row in prices(tmp_path / name)] == [date(2020, 1, 2), date(2020, 1, 3)], name


def test_midnights_that_were_written_in_utc_are_refused_because_they_are_a_day_early(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("date,ticker,close\n2020-01-01T23:00:00Z,A,1\n2020-07-01T22:00:00Z,A,2\n")
    with pytest.raises(DataError, match=r"late evening of UTC.*write the dates of the exchange"):
        prices(path)


def test_one_mark_for_two_purposes_is_refused() -> None:
    from pipelines.sources.settings import FilesSourceConfig

    with pytest.raises(ValueError, match="separator and decimal are both ','"):
        FilesSourceConfig(kind="files", prices="a.csv", decimal=",")
    with pytest.raises(ValueError, match="which is no encoding"):
        FilesSourceConfig(kind="files", prices="a.csv", encoding="klingon")
