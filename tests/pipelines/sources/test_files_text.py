"""Text files of other countries and programs: separators, decimal commas, encodings, marks, time zones."""

from __future__ import annotations

import gzip
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from given_files import files_source

from pipelines.errors import DataError
from pipelines.sources.files.opening import TextFormat, recognise_text

GERMAN = "date;ticker;close;volume\n2020-01-02;Süd;1.234,5;1.000\n2020-01-03;Süd;1.235,25;2.000.000\n"
EXPECTED = [(date(2020, 1, 2), "Süd", 1234.5, 1000.0), (date(2020, 1, 3), "Süd", 1235.25, 2_000_000.0)]


def prices(path: Path, text: TextFormat | None = None) -> list[tuple[object, ...]]:
    return files_source(path, text=text).fetch().tables["prices"].rows()


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
        ("date;ticker;close;volume\n2020-01-02;A;153,83;46.149\n", ";", ","),
        ('date,ticker,close\n2020-01-02,A,935\n2020-01-02,B,"1,068"\n', ",", "."),
        ("date\tticker\tclose\n2020-01-02\tA\t0,125\n", "\t", ","),
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
        read = files_source(tmp_path / name, layout="wide").fetch().tables["prices"]
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


ZONES = ("Asia/Tokyo", "Asia/Singapore", "Asia/Kolkata", "America/New_York", "Europe/London", "Europe/Berlin")


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("stored_in", ["UTC", None, "America/Chicago"])
def test_midnights_of_another_zone_are_refused_in_every_format(
    tmp_path: Path, zone: str, stored_in: str | None
) -> None:
    moments = pl.Series("date", [datetime(2020, m, 2, tzinfo=ZoneInfo(zone)) for m in range(1, 13)])
    stamps = moments.dt.convert_time_zone(stored_in or "UTC")
    if stored_in is None:
        stamps = stamps.dt.replace_time_zone(None)
    frame = pl.DataFrame([stamps]).with_columns(ticker=pl.lit("A"), close=1.0)
    frame.write_parquet(tmp_path / "a.parquet")
    frame.with_columns(pl.col("date").dt.to_string("iso:strict")).write_csv(tmp_path / "a.csv")
    if stored_in is None:
        frame.with_columns(pl.col("date").dt.to_string("%d/%m/%Y %H:%M")).write_csv(tmp_path / "b.csv")
    for path in tmp_path.iterdir():
        form = "%d/%m/%Y %H:%M" if path.name == "b.csv" else None
        with pytest.raises(DataError, match=f"midnight of .* in .*{zone}.*write the dates of the exchange"):
            files_source(path, date_format=form).fetch()


@pytest.mark.parametrize(
    ("stamp", "said"),
    [
        ("2020-01-{} 16:00:00", "midnight of 2020-01-03 in Asia/Shanghai"),
        ("2020-01-{}T23:59:59", "not midnight in a usual time zone"),
        ("2020-01-{}T00:00:00-05:00", None),
        ("2020-01-{}", None),
    ],
)
def test_one_time_of_day_for_all_rows_is_refused_unless_it_is_midnight(
    tmp_path: Path, stamp: str, said: str | None
) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"{stamp.format(f'{day:02}')},A,1\n" for day in range(2, 20))
    path.write_text(f"date,ticker,close\n{rows}2020-01-20 09:30:00,A,1\nTotal,A,1\n")
    if said is None:
        assert len(prices(path)) == 20
    else:
        with pytest.raises(DataError, match=said):
            prices(path)


@pytest.mark.parametrize(
    ("form", "first", "step"), [("excel", 44_200.6666667, 1), ("epoch", 1_609_689_600, 86_400)]
)
def test_counted_dates_with_a_time_of_day_are_refused(
    tmp_path: Path, form: str, first: float, step: int
) -> None:
    path = tmp_path / "a.csv"
    days = [str(first + step * day) for day in range(5)]
    path.write_text("\n".join(["date,ticker,close", *(f"{day},A,1" for day in days)]))
    with pytest.raises(DataError, match=r"midnight of 2021-01-0\d in Asia/Shanghai"):
        files_source(path, date_format=form).fetch()
    path.write_text("date,ticker,close\n44200,A,1\n")
    if form == "excel":
        assert files_source(path, date_format=form).fetch().tables["prices"]["date"][0] == date(2021, 1, 4)


def test_times_of_day_that_vary_are_days(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"2020-01-{day:02}T{day:02}:{day:02}:00Z,A,1" for day in range(2, 20)]
    path.write_text("\n".join(["date,ticker,close", *rows]))
    assert prices(path)[-1][0] == date(2020, 1, 19)


def test_files_of_a_pattern_with_dates_of_several_types_keep_their_times_of_day(tmp_path: Path) -> None:
    for name, zone in (("a", "UTC"), ("b", None)):
        moments = pl.Series("date", [datetime(2020, 1, day, 16) for day in (2, 3)])
        frame = pl.DataFrame([moments.dt.replace_time_zone(zone)]).with_columns(ticker=pl.lit("A"), close=1.0)
        frame.write_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="midnight of 2020-01-03 in Asia/Shanghai"):
        files_source(tmp_path / "*.parquet").fetch()


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (["02/01/2020", "01/13/2020", "01/14/2020"], "%m/%d/%Y reads every date: correct date_format"),
        (["13/01/2020", "02/01/2020", "01/14/2020"], "two orders of day and month"),
    ],
)
def test_the_order_of_day_and_month_is_one_for_all_rows(tmp_path: Path, days: list[str], said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["date,ticker,close", *(f"{day},A,1" for day in days)]))
    with pytest.raises(DataError, match=said):
        files_source(path, date_format="%d/%m/%Y").fetch()


def test_decimal_commas_in_quotes_may_be_separated_by_commas(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('date,ticker,close,volume\n2020-01-02,A,"1.234,5","1,2M"\n')
    found = recognise_text(path)
    assert (found.separator, found.decimal) == (",", ",")
    assert prices(path, found) == [(date(2020, 1, 2), "A", 1234.5, 1.2e6)]


def test_an_unknown_encoding_is_refused() -> None:
    from pipelines.sources.settings import FilesSourceConfig

    with pytest.raises(ValueError, match="which is no encoding"):
        FilesSourceConfig(kind="files", prices="a.csv", encoding="klingon")
