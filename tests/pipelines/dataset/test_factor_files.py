"""Published factor returns: the forms in which their sites deliver them, and the periods of sessions."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from pipelines.config.load import check_config, load_config
from pipelines.config.sections import BacktestConfig
from pipelines.dataset.backtest_files import PublishedFactors, join_factors, read_factors
from pipelines.errors import ConfigError, DataError

DAILY = """\
This file was created by CMPT_ME_BEME_OP_INV_RETS_DAILY using the 202401 CRSP database.
The 1-month TBill return is from Ibbotson and Associates, Inc.

,Mkt-RF,SMB,HML,RMW,CMA,RF
20240102,  -0.70,   0.57,   0.46,  -0.51,   0.24,   0.022
20240103,  -1.42,  -0.91,   1.11, -99.99,   0.31,   0.022
20240104,  -0.27,   0.10,  -0.24,   0.22,  -0.33,   0.022
20240105,   0.14,  -0.63,   0.50,   0.17,   0.10,   0.022

Copyright 2024 Eugene F. Fama and Kenneth R. French
"""
MONTHLY = """\
This file was created by CMPT_ME_BEME_OP_INV_RETS using the 202401 CRSP database.

,Mkt-RF,SMB,HML,RF
202310,   -3.19,   -3.88,    0.19,    0.47
202311,    8.84,   -0.12,    1.65,    0.44
202312,    4.87,    7.32,    4.92,    0.43
202401,    0.71,   -5.74,   -2.38,    0.47

 Annual Factors: January-December
,Mkt-RF,SMB,HML,RF
  2022,  -21.58,   -6.82,   25.98,    1.43
  2023,   21.69,   -3.23,  -13.83,    4.95

Copyright 2024 Eugene F. Fama and Kenneth R. French
"""
TEXT = """\
This file was created by CMPT_ME_BEME_RETS using the 202401 CRSP database.

        Mkt-RF     SMB     HML      RF
202310   -3.19   -3.88    0.19    0.47
202311    8.84   -0.12    1.65    0.44

  Annual Factors:
        Mkt-RF     SMB     HML      RF
  2023   21.69   -3.23  -13.83    4.95
"""
Q_DAILY = """\
DATE,R_F,R_MKT,R_ME,R_IA,R_ROE,R_EG
20221227,0.0161,-0.5218,-0.3132,0.9133,0.4871,0.5020
20221228,0.0161,-1.2412,-0.2113,0.0218,0.3312,0.1101
20221229,0.0161,1.8742,0.5521,-0.7711,-0.9120,-0.3187
"""
Q_MONTHLY = (
    "year,month,R_F,R_MKT,R_ME\n2022,9,0.19,-9.35,-1.02\n2022,10,0.23,7.83,0.09\n2022,11,0.29,4.60,-2.67\n"
)
Q_DATED = "year,month,day,R_F,R_MKT\n2022,12,27,0.0161,-0.52\n2022,12,28,0.0161,-1.24\n"
LONG = """\
location,name,freq,weighting,direction,n_stocks,n_stocks_min,date,ret
usa,accruals,monthly,vw_cap,-1,3021,1001,2022-10-31,0.0123
usa,accruals,monthly,vw_cap,-1,3021,1001,2022-11-30,-0.0045
usa,value,monthly,vw_cap,1,3021,1001,2022-10-31,0.0301
usa,value,monthly,vw_cap,1,3021,1001,2022-11-30,
"""


def written(tmp_path: Path, text: str, name: str = "factors.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def read(tmp_path: Path, text: str, name: str = "factors.csv") -> PublishedFactors:
    return read_factors(written(tmp_path, text, name), "backtest.factors.x")


def days(factors: PublishedFactors) -> list[str]:
    return [str(day) for day in factors.end_P]


def test_daily_factors_of_kenneth_french_are_percent(tmp_path: Path) -> None:
    found = read(tmp_path, DAILY)
    assert found.names == ("Mkt-RF", "SMB", "HML", "RMW", "CMA")
    assert days(found) == ["2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05"]
    np.testing.assert_allclose(found.return_PJ[1], [-0.0142, -0.0091, 0.0111, np.nan, 0.0031], rtol=1e-12)
    assert found.rate_P is not None
    np.testing.assert_allclose(found.rate_P, 0.00022, rtol=1e-12)
    assert (found.frequency, found.per_year) == ("daily", 252.0)


def test_monthly_factors_end_before_the_annual_ones(tmp_path: Path) -> None:
    for text, name in ((MONTHLY, "F-F_Research_Data_Factors.CSV"), (TEXT, "F-F_Research_Data_Factors.txt")):
        found = read(tmp_path, text, name)
        assert found.names == ("Mkt-RF", "SMB", "HML")
        assert days(found)[:2] == ["2023-10-31", "2023-11-30"]
        assert days(found)[-1] == ("2024-01-31" if text == MONTHLY else "2023-11-30")
        np.testing.assert_allclose(found.return_PJ[1], [0.0884, -0.0012, 0.0165], rtol=1e-12)
        assert (found.frequency, found.per_year) == ("monthly", 12.0)


def test_the_archive_of_a_file_is_read_as_the_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("F-F_Research_Data_5_Factors_2x3_daily.CSV", DAILY)
    found = read_factors(tmp_path / "a.zip", "x")
    np.testing.assert_array_equal(found.return_PJ, read(tmp_path, DAILY).return_PJ)
    with zipfile.ZipFile(tmp_path / "a.zip", "a") as archive:
        archive.writestr("readme.txt", "")
    with pytest.raises(DataError, match=r"contains 2 files, .*: unpack it"):
        read_factors(tmp_path / "a.zip", "x")


def test_momentum_has_a_file_of_its_own_and_is_joined(tmp_path: Path) -> None:
    head = "Missing data are indicated by -99.99 or -999.\n\n,Mom   \n"
    momentum = f"{head}20240103, 0.61\n20240104, -0.70\n20240108, 0.4\n"
    joined = join_factors("x", [read(tmp_path, DAILY), read(tmp_path, momentum)])
    assert joined.names == ("Mkt-RF", "SMB", "HML", "RMW", "CMA", "Mom")
    assert days(joined)[-2:] == ["2024-01-05", "2024-01-08"]
    np.testing.assert_allclose(joined.return_PJ[:, 5], [np.nan, 0.0061, -0.007, np.nan, 0.004], rtol=1e-12)
    assert np.isnan(joined.return_PJ[4, :5]).all()
    assert joined.rate_P is not None
    assert np.isnan(joined.rate_P[4])
    with pytest.raises(ConfigError, match="more than one of its files has CMA; leave one"):
        join_factors("x", [read(tmp_path, DAILY)] * 2)
    with pytest.raises(ConfigError, match="files are daily and monthly; give files of one frequency"):
        join_factors("x", [read(tmp_path, DAILY), read(tmp_path, MONTHLY)])


def test_q_factors_are_percent_and_jkp_factors_are_fractions(tmp_path: Path) -> None:
    daily, dated, monthly = (read(tmp_path, text) for text in (Q_DAILY, Q_DATED, Q_MONTHLY))
    assert daily.names == ("R_MKT", "R_ME", "R_IA", "R_ROE", "R_EG")
    assert days(daily) == ["2022-12-27", "2022-12-28", "2022-12-29"]
    np.testing.assert_allclose(daily.return_PJ[0], [-0.005218, -0.003132, 0.009133, 0.004871, 0.00502])
    assert days(dated) == days(daily)[:2]
    assert days(monthly) == ["2022-09-30", "2022-10-31", "2022-11-30"]
    for one, rate in ((daily, 0.000161), (monthly, 0.0019)):
        assert one.rate_P is not None
        assert one.rate_P[0] == pytest.approx(rate)
    long = read(tmp_path, LONG)
    assert (long.names, long.rate_P, long.frequency) == (("accruals", "value"), None, "monthly")
    np.testing.assert_array_equal(long.return_PJ, [[0.0123, 0.0301], [-0.0045, np.nan]])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_a_plain_table_is_percent_or_fractions_by_the_size_of_its_values(
    tmp_path: Path, kind: str, unit: float
) -> None:
    rng = np.random.default_rng(0)
    for volatility, step in ((0.008, "1d"), (0.035, "1mo"), (0.003, "1d")):
        value_PJ = rng.normal(0, volatility, (60, 2))
        date = pl.date_range(pl.date(2020, 1, 1), pl.date(2025, 1, 1), step, eager=True).head(60)
        frame = pl.DataFrame({"date": date, "MKT": unit * value_PJ[:, 0], "RF": unit * 1e-4})
        path = tmp_path / f"plain.{kind}"
        frame.with_columns(HML=pl.Series(unit * value_PJ[:, 1])).write_parquet(
            path
        ) if kind == "parquet" else (frame.with_columns(HML=pl.Series(unit * value_PJ[:, 1])).write_csv(path))
        found = read_factors(path, "x")
        assert found.names == ("MKT", "HML")
        np.testing.assert_allclose(found.return_PJ, value_PJ, rtol=1e-12)
        assert found.rate_P is not None
        np.testing.assert_allclose(found.rate_P, 1e-4, rtol=1e-12)


BETWEEN = "date,MKT\n2020-01-02,0.05\n2020-01-03,-0.05\n2020-01-06,0.05\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"no file of factors at .*; check backtest\.factors\.x"),
        ("", "not readable as CSV"),
        ("a,b\n1,2\n", "no column of dates; factor files need date, or year and month"),
        ("date,MKT\n2020-01-02,0.01\n2020-01-02,0.02\n", "more than one row for 2020-01-02"),
        ("date,MKT\n2020-01-02,0.01\n", "has 1 factors on 1 dates"),
        ("date,RF\n2020-01-02,0.01\n2020-01-03,0.01\n", "has 0 factors on 2 dates"),
        ("date,MKT\n2020-01-02,a\n2020-01-03,b\n", "dates must be YYYY-MM-DD, YYYYMMDD or YYYYMM"),
        ("date,MKT\n02.01.2020,0.1\n03.01.2020,0.1\n", "dates must be YYYY-MM-DD, YYYYMMDD or YYYYMM"),
        ("date,MKT\n2020-01-02,inf\n2020-01-03,0.1\n", "infinite values, or no factor with 2 values"),
        ("date,MKT\n2020-03-31,0.1\n2020-06-30,-0.1\n2020-09-30,0.1\n", "has 4 periods a year; give daily"),
        (BETWEEN, "may hold fractions or percent: .* volatility of 0.7"),
        (
            Q_DAILY.replace("0.", "0.00").replace("-1.2", "-0.01").replace("1.8", "0.01"),
            "form of a file in percent",
        ),
        (
            LONG.replace("ret\nusa", "ret\ngbr", 1),
            r"more than one location \(gbr, usa\); keep the rows of one",
        ),
        (LONG.replace("value,", "accruals,"), "more than one ret for a name and date"),
        (
            LONG.replace("0.0", "10.0"),
            "form of a file in fractions, but an annual volatility of .* of percent",
        ),
        (DAILY.replace(",   0.31,   0.022", ""), "line 6 is no date with 6 numbers; download the file again"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "factors.csv" if text is None else written(tmp_path, text)
    with pytest.raises(DataError, match=message):
        read_factors(path, "backtest.factors.x")


def factors_of(dates: list[str], frequency: Any, per_year: float) -> PublishedFactors:  # noqa: ANN401
    end_P = np.array(dates, dtype="datetime64[D]")
    return PublishedFactors(("a",), end_P, np.zeros((len(dates), 1)), None, frequency, per_year)


def test_sessions_belong_to_the_next_date_of_a_file() -> None:
    daily = factors_of(["2024-01-02", "2024-01-03", "2024-01-05", "2024-01-22"], "daily", 252)
    session_T = np.array(
        ["2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05", "2024-01-08", "2024-01-17", "2024-01-23"],
        dtype="datetime64[D]",
    )
    # the first has no beginning; on the 4th the file's market was closed; the 8th is in a hole of the file
    assert daily.periods(session_T).tolist() == [-1, 1, 2, 2, -1, 3, -1]
    weekly = factors_of(["2024-01-05", "2024-01-12"], "weekly", 52)
    assert weekly.periods(session_T).tolist() == [-1, -1, -1, -1, 1, -1, -1]
    monthly = factors_of(["2024-01-31", "2024-02-29"], "monthly", 12)
    assert monthly.periods(session_T).tolist() == [0] * 7
    assert monthly.periods(np.array(["2023-12-29", "2024-02-01"], dtype="datetime64[D]")).tolist() == [-1, 1]


def test_only_months_that_a_book_fills_count() -> None:
    dates_T = np.arange("2024-01-10", "2024-05-16", dtype="datetime64[D]")
    dates_T = dates_T[np.is_busday(dates_T)]
    monthly = factors_of(
        [f"2024-{m:02d}-{d}" for m, d in ((1, 31), (2, 29), (3, 31), (4, 30), (5, 31))], "monthly", 12
    )

    def months(first: str, last: str) -> set[int]:
        held = slice(*np.searchsorted(dates_T, np.array([first, last], dtype="datetime64[D]")))
        return set(monthly.complete(dates_T, held).tolist()) - {-1}

    assert months("2024-02-01", "2024-05-16") == {1, 2, 3}  # the data end in May
    assert months("2024-02-02", "2024-04-30") == {2}
    assert months("2024-01-10", "2024-03-01") == {1}  # the data begin in January
    until_may = dates_T[dates_T < np.datetime64("2024-05-01")]
    assert set(monthly.complete(until_may, slice(20, None)).tolist()) == {-1, 2, 3}


def test_settings_name_a_file_several_files_or_several_entries(tmp_path: Path, tiny: dict[str, Any]) -> None:
    def given(value: object) -> dict[str, tuple[str, ...]]:
        return BacktestConfig.model_validate({"factors": value}).factors

    assert given("data/ff5.csv") == {"ff5": ("data/ff5.csv",)}
    assert given({"q": "q5.csv", "ff6": ["ff5.csv", "mom.csv"]}) == {
        "q": ("q5.csv",),
        "ff6": ("ff5.csv", "mom.csv"),
    }
    with pytest.raises(ConfigError, match=r"factors\.q.* at least 1 item"):
        check_config({**tiny, "backtest": {"factors": {"q": []}}}, origin="tiny")
    for value, files in (
        ("ff5.csv", ["ff5.csv"]),
        ("{f: ff5.csv}", ["ff5.csv"]),
        ("{f: [a/b.csv, /c.csv]}", ["a/b.csv", "/c.csv"]),
    ):
        settings = {**tiny, "backtest": {"factors": yaml.safe_load(value)}}
        (tmp_path / "one.yaml").write_text(yaml.safe_dump(settings))
        config = load_config(tmp_path / "one.yaml")
        assert list(*config.backtest.factors.values()) == [str(tmp_path / file) for file in files]
