"""Price files as vendors write them: each is recognised, and gives the prices and returns of one market.

This file is long because every vendor's layout is written by a function of its own.
"""

from __future__ import annotations

import datetime as dt
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from given_files import files_source
from workbooks import write_workbook

from pipelines.errors import ConfigError, DataError
from pipelines.sources.base import SourceTables, plain_tickers
from pipelines.sources.files.reading import read_number
from pipelines.sources.files.recognise import recognise_prices
from pipelines.sources.files.source import FilesSource
from pipelines.sources.settings import FilesSourceConfig

SPLIT, PAID = 2.0, 0.5


def _market() -> pl.DataFrame:
    """Three firms on 30 weekdays; AAA pays a dividend on the 9th session, BBB splits on the 17th."""
    rng = np.random.default_rng(8)
    days = [day for i in range(60) if (day := dt.date(2021, 1, 4) + dt.timedelta(days=i)).weekday() < 5][:30]
    parts = []
    for n, ticker in enumerate(("AAA", "BBB", "CCC")):
        split_T, paid_T = np.ones(30), np.zeros(30)
        if ticker == "AAA":
            paid_T[8] = PAID
        if ticker == "BBB":
            split_T[16] = SPLIT
        growth_T = np.exp(rng.normal(0.0, 0.02, 30))
        close_T = np.empty(30)
        before = 1200.0 + 300.0 * n
        for t in range(30):
            before = close_T[t] = round(before * growth_T[t] / split_T[t] - paid_T[t], 2)
        parts.append(
            pl.DataFrame(
                {
                    "date": days,
                    "ticker": ticker,
                    "open": close_T,
                    "high": (close_T * 1.02).round(2),
                    "low": (close_T * 0.98).round(2),
                    "close": close_T,
                    "volume": rng.integers(1_000_000, 9_000_000, 30).astype(float),
                    "split_ratio": split_T,
                    "dividend": paid_T,
                }
            )
        )
    return pl.concat(parts)


MARKET = _market()
SPLIT_ADJUSTED = MARKET.with_columns(
    later=pl.col("split_ratio").shift(-1, fill_value=1.0).reverse().cum_prod().reverse().over("ticker")
).with_columns(pl.col("open", "high", "low", "close", "dividend") / pl.col("later"))
"""Prices divided by the later splits, as Yahoo gives them."""


def total_returns(prices: pl.DataFrame) -> pl.DataFrame:
    """What a holder earns from session to session, from closes, splits and dividends."""
    rows = (
        prices.sort("ticker", "date")
        .with_columns(
            pl.lit(default).alias(name)
            for name, default in (("split_ratio", 1.0), ("dividend", 0.0))
            if name not in prices.columns
        )
        .with_columns(pl.col("dividend").fill_null(0.0))
    )
    earned = (
        (pl.col("close") + pl.col("dividend"))
        * pl.col("split_ratio")
        / pl.col("close").shift().over("ticker")
    )
    return rows.select("date", "ticker", growth=earned)


def adjusted(market: pl.DataFrame) -> pl.DataFrame:
    """The close that grows as a holder's wealth does, equal to the close on the last session."""
    wealth = total_returns(market).with_columns(pl.col("growth").fill_null(1.0).cum_prod().over("ticker"))
    joined = market.sort("ticker", "date").join(wealth, on=["date", "ticker"])
    last = pl.col("close").last().over("ticker") / pl.col("growth").last().over("ticker")
    return joined.with_columns(adjusted=pl.col("growth") * last).drop("growth")


def read(path: Path) -> tuple[FilesSourceConfig, SourceTables]:
    found, _ = recognise_prices(path)
    return found, FilesSource(found).fetch()


def text_file(path: Path, frame: pl.DataFrame, encoding: str = "utf-8") -> Path:
    path.write_bytes(frame.write_csv().encode(encoding))
    return path


def per_ticker(folder: Path, frame: pl.DataFrame, name: str = "{}.csv") -> Path:
    folder.mkdir()
    for (ticker,), firm in frame.group_by("ticker"):
        firm.drop("ticker").write_csv(folder / name.format(ticker))
    return folder


def named(frame: pl.DataFrame, **names: str) -> pl.DataFrame:
    return frame.select(pl.col(ours).alias(theirs) for ours, theirs in names.items())


OHLC = {"open": "Open", "high": "High", "low": "Low", "close": "Close"}


def yahoo_history(folder: Path) -> Path:
    frame = adjusted(MARKET).with_columns(
        pl.when(pl.col("split_ratio") != 1).then("split_ratio").otherwise(0.0)
    )
    frame = frame.with_columns(
        close="adjusted", open="adjusted", high=pl.col("adjusted") * 1.02, low=pl.col("adjusted") * 0.98
    )
    names = {"volume": "Volume", "dividend": "Dividends", "split_ratio": "Stock Splits"}
    return text_file(folder / "p.csv", named(frame, date="Date", ticker="Ticker", **OHLC, **names))


def yahoo_unadjusted(folder: Path) -> Path:
    frame = adjusted(SPLIT_ADJUSTED.with_columns(split_ratio=1.0)).join(
        MARKET.select(
            "date", "ticker", splits=pl.when(pl.col("split_ratio") != 1).then("split_ratio").otherwise(0.0)
        ),
        on=["date", "ticker"],
    )
    names = {"adjusted": "Adj Close", "volume": "Volume", "dividend": "Dividends", "splits": "Stock Splits"}
    return text_file(folder / "p.csv", named(frame, date="Date", ticker="Ticker", **OHLC, **names))


def as_quoted_with_adjusted_closes(folder: Path) -> Path:
    names = {"split_ratio": "Stock Splits", "dividend": "Dividends", "adjusted": "Adj Close"}
    frame = named(adjusted(MARKET), date="Date", ticker="Ticker", **OHLC, volume="Volume", **names)
    return text_file(folder / "p.csv", frame)


def yahoo_page(folder: Path) -> Path:
    frame = adjusted(SPLIT_ADJUSTED.with_columns(split_ratio=1.0))
    names = {"adjusted": "Adj Close", "volume": "Volume"}
    return per_ticker(folder / "firms", named(frame, ticker="ticker", date="Date", **OHLC, **names))


FIELDS = {"Close": "adjusted", "High": "high", "Open": "open", "Volume": "volume"}


def _two_lines(
    frame: pl.DataFrame,
    tickers: list[str],
    *,
    third: bool,
    by_ticker: bool,
    fields: Mapping[str, str] = FIELDS,
) -> str:
    """The columns of yf.download as pandas writes them."""
    pairs = [(field, ticker) for field in fields for ticker in tickers]
    pairs = sorted(pairs, key=lambda pair: pair[1]) if by_ticker else pairs
    lines = [["Price", *(field for field, _ in pairs)], ["Ticker", *(ticker for _, ticker in pairs)]]
    lines = lines[::-1] if by_ticker else lines
    lines += [["Date", *("" for _ in pairs)]] if third else []
    for (day,), rows in frame.group_by("date", maintain_order=True):
        values = {row["ticker"]: row for row in rows.iter_rows(named=True)}
        lines.append([str(day), *(str(values[ticker][fields[field]]) for field, ticker in pairs)])
    return "\n".join(",".join(line) for line in lines) + "\n"


def yahoo_download(folder: Path) -> Path:
    text = _two_lines(adjusted(MARKET).sort("date"), ["AAA", "BBB", "CCC"], third=True, by_ticker=False)
    (folder / "p.csv").write_text(text)
    return folder / "p.csv"


def yahoo_download_unadjusted(folder: Path) -> Path:
    frame = adjusted(SPLIT_ADJUSTED.with_columns(split_ratio=1.0)).sort("date")
    fields = {"Adj Close": "adjusted", "Close": "close", "Volume": "volume"}
    text = _two_lines(frame, ["AAA", "BBB", "CCC"], third=True, by_ticker=False, fields=fields)
    (folder / "p.csv").write_text(text)
    return folder / "p.csv"


def adjusted_with_dividends(folder: Path) -> Path:
    names = {"date": "date", "ticker": "Name", "adjusted": "adj_close", "dividend": "dividend"}
    return text_file(folder / "p.csv", named(adjusted(MARKET), **names))


def yahoo_download_by_ticker(folder: Path) -> Path:
    text = _two_lines(adjusted(MARKET).sort("date"), ["AAA", "BBB", "CCC"], third=False, by_ticker=True)
    (folder / "p.csv").write_text(text)
    return folder / "p.csv"


def yahoo_download_one_each(folder: Path) -> Path:
    for ticker in ("AAA", "BBB", "CCC"):
        firm = adjusted(MARKET).filter(pl.col("ticker") == ticker).sort("date")
        (folder / f"{ticker}.csv").write_text(_two_lines(firm, [ticker], third=True, by_ticker=False))
    return folder / "*.csv"


def yahoo_parquet(folder: Path) -> Path:
    wide = adjusted(MARKET).pivot("ticker", index="date", values=["adjusted", "volume"])
    names = {
        f"{ours}_{ticker}": f"('{theirs}', '{ticker}')"
        for ours, theirs in (("adjusted", "Close"), ("volume", "Volume"))
        for ticker in ("AAA", "BBB", "CCC")
    }
    wide.rename({"date": "Date", **names}).write_parquet(folder / "p.parquet")
    return folder / "p.parquet"


def stooq(folder: Path) -> Path:
    frame = (
        adjusted(MARKET)
        .with_columns(
            close="adjusted",
            day=pl.col("date").dt.to_string("%Y%m%d"),
            zero=pl.lit("000000"),
            d=pl.lit("D"),
            none=pl.lit(0),
        )
        .with_columns(open="close", high=pl.col("close") * 1.02, low=pl.col("close") * 0.98)
    )
    names = {"ticker": "<TICKER>", "d": "<PER>", "day": "<DATE>", "zero": "<TIME>", "open": "<OPEN>",
             "high": "<HIGH>", "low": "<LOW>", "close": "<CLOSE>", "volume": "<VOL>",
             "none": "<OPENINT>"}  # fmt: skip
    folder = folder / "daily"
    folder.mkdir()
    for (ticker,), firm in frame.group_by("ticker"):
        named(firm, **names).write_csv(folder / f"{str(ticker).lower()}.us.txt")
    return folder


def alpha_vantage(folder: Path) -> Path:
    names = {"open": "open", "high": "high", "low": "low", "close": "close", "volume": "volume",
             "adjusted": "adjusted_close", "dividend": "dividend_amount",
             "split_ratio": "split_coefficient"}  # fmt: skip
    frame = named(adjusted(MARKET).sort("date", descending=True), ticker="ticker", date="timestamp", **names)
    return per_ticker(folder / "alpha", frame, "daily_adjusted_{}.csv")


def nasdaq(folder: Path) -> Path:
    frame = SPLIT_ADJUSTED.with_columns(
        pl.format("${}", pl.col("close")).alias("price"), pl.col("date").dt.to_string("%m/%d/%Y")
    )
    names = {"date": "Date", "price": "Close/Last", "volume": "Volume"}
    return per_ticker(folder / "nasdaq", named(frame, ticker="ticker", **names))


def investing(folder: Path) -> Path:
    frame = SPLIT_ADJUSTED.with_columns(
        pl.col("date").dt.to_string("%b %d, %Y"),
        pl.col("close").map_elements(lambda x: f"{x:,.3f}", return_dtype=pl.String),
        pl.format("{}M", pl.col("volume") / 1e6).alias("volume"),
        change=pl.lit("0.10%"),
    )
    names = {"date": "Date", "close": "Price", "volume": "Vol.", "change": "Change %"}
    return per_ticker(folder / "inv", named(frame, ticker="ticker", **names), "{} Historical Data.csv")


def investing_in_german(folder: Path) -> Path:
    """Separated by commas, with decimal commas in quotes."""
    comma = str.maketrans(",.", ".,")
    frame = SPLIT_ADJUSTED.with_columns(
        pl.col("date").dt.to_string("%d.%m.%Y"),
        pl.col("close").map_elements(lambda x: f"{x:,.3f}".translate(comma), return_dtype=pl.String),
        pl.col("volume").map_elements(lambda x: f"{x / 1e6:.6f}M".translate(comma), return_dtype=pl.String),
        change=pl.lit("0,10%"),
    )
    names = {"date": "Datum", "close": "Zuletzt", "volume": "Vol.", "change": "+/- %"}
    return per_ticker(folder / "inv", named(frame, ticker="ticker", **names), "{} Historische Daten.csv")


def eod(folder: Path) -> Path:
    names = {"date": "Date", **OHLC, "adjusted": "Adjusted_close", "volume": "Volume"}
    return per_ticker(folder / "eod", named(adjusted(MARKET), ticker="ticker", **names))


def bloomberg(folder: Path) -> Path:
    lines = [
        "Security,AAA US Equity,,BBB US Equity,,CCC US Equity,",
        "Start Date,1/4/2021,,,,,",
        "Dates,PX_LAST,PX_VOLUME,PX_LAST,PX_VOLUME,PX_LAST,PX_VOLUME",
    ]
    for (day,), rows in SPLIT_ADJUSTED.sort("ticker").group_by("date", maintain_order=True):
        assert isinstance(day, dt.date)
        values = [f"{row['close']},{row['volume']}" for row in rows.iter_rows(named=True)]
        lines.append(f"{day.month}/{day.day}/{day.year},{','.join(values)}")
    (folder / "bbg.csv").write_text("\n".join(lines) + "\n")
    return folder / "bbg.csv"


def crsp(folder: Path) -> Path:
    later = pl.col("split_ratio").shift(-1, fill_value=1.0).reverse().cum_prod().reverse().over("ticker")
    growth = total_returns(MARKET).rename({"growth": "total"})
    before = pl.col("close").shift().over("ticker")
    frame = (
        MARKET.join(growth, on=["date", "ticker"])
        .sort("ticker", "date")
        .with_columns(
            permno=pl.col("ticker").replace_strict({"AAA": 10001, "BBB": 10002, "CCC": 10003}),
            cfacpr=later,
            ret=(pl.col("total") - 1.0).round(6).cast(pl.String).fill_null("C"),
            retx=(pl.col("close") * pl.col("split_ratio") / before - 1.0)
            .round(6)
            .cast(pl.String)
            .fill_null("C"),
        )
    )
    odd = (pl.col("ticker") == "CCC") & (pl.col("date") == dt.date(2021, 1, 20))
    frame = frame.with_columns(
        prc=pl.when(odd).then(-pl.col("close")).otherwise("close"),
        vol=pl.when(odd).then(-99.0).otherwise("volume"),
    )
    names = {"permno": "PERMNO", "date": "date", "prc": "PRC", "vol": "VOL", "ret": "RET", "retx": "RETX",
             "cfacpr": "CFACPR", "low": "BIDLO", "high": "ASKHI"}  # fmt: skip
    return text_file(
        folder / "crsp.csv", named(frame.with_columns(pl.col("date").dt.to_string("%d%b%Y")), **names)
    )


def compustat(folder: Path) -> Path:
    later = pl.col("split_ratio").shift(-1, fill_value=1.0).reverse().cum_prod().reverse().over("ticker")
    frame = MARKET.with_columns(
        gvkey=pl.col("ticker").replace_strict({"AAA": "001001", "BBB": "001002", "CCC": "001003"}),
        iid=pl.lit("01"),
        ajexdi=later,
        div=pl.when(pl.col("dividend") > 0).then("dividend"),
        datadate=pl.col("date").dt.to_string("%Y/%m/%d"),
    )
    names = {"gvkey": "gvkey", "iid": "iid", "datadate": "datadate", "close": "prccd", "volume": "cshtrd",
             "ajexdi": "ajexdi", "div": "div", "ticker": "tic"}  # fmt: skip
    return text_file(folder / "secd.csv", named(frame, **names))


def jkp(folder: Path) -> Path:
    later = pl.col("split_ratio").shift(-1, fill_value=1.0).reverse().cum_prod().reverse().over("ticker")
    frame = MARKET.with_columns(adjfct=later).join(total_returns(MARKET), on=["date", "ticker"])
    frame = frame.with_columns(ret=pl.col("growth") - 1.0, country=pl.lit("USA"), ahead=pl.lit(0.1))
    names = {"ticker": "id", "date": "eom", "country": "excntry", "close": "prc", "adjfct": "adjfct",
             "ret": "ret", "ahead": "ret_exc_lead1m"}  # fmt: skip
    named(frame, **names).write_parquet(folder / "jkp.parquet")
    return folder / "jkp.parquet"


def sharadar(folder: Path) -> Path:
    frame = adjusted(MARKET).join(
        SPLIT_ADJUSTED.select("date", "ticker", part="close"), on=["date", "ticker"]
    )
    names = {
        "ticker": "ticker",
        "date": "date",
        "part": "close",
        "adjusted": "closeadj",
        "close": "closeunadj",
    }
    return text_file(folder / "sep.csv", named(frame, **names))


def workbook(folder: Path) -> Path:
    columns = MARKET.select("date", "ticker", "close", "split_ratio", "dividend")
    header = ["Date", "Ticker", "Last Price", "Split", "Dividend"]
    rows = [list(row) for row in columns.iter_rows()]
    return write_workbook(folder / "p.xlsx", [["Prices of the desk"], [], header, *rows])


def zipped(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "p.csv.zip", "w") as archive:
        archive.writestr("inner.csv", MARKET.write_csv())
    return folder / "p.csv.zip"


def serials(folder: Path) -> Path:
    days = (pl.col("date") - dt.date(1899, 12, 30)).dt.total_days()
    return text_file(folder / "p.csv", MARKET.with_columns(days.alias("date")))


def epochs(folder: Path) -> Path:
    return text_file(
        folder / "p.csv", MARKET.with_columns(pl.col("date").cast(pl.Datetime("ms")).dt.epoch("ms"))
    )


def chinese(folder: Path) -> Path:
    names = {"date": "日期", "code": "股票代码", "open": "开盘价", "close": "收盘价", "volume": "成交量",
             "name": "名称", "split_ratio": "split", "dividend": "dividend"}  # fmt: skip
    frame = MARKET.with_columns(
        code=pl.col("ticker").replace_strict({"AAA": "'600519", "BBB": "'000001", "CCC": "'300750"}),
        name=pl.lit("贵州茅台"),
    )
    return text_file(folder / "p.csv", named(frame, **names), "gb18030")


def korean(folder: Path) -> Path:
    names = {"date": "일자", "code": "종목코드", "close": "종가", "volume": "거래량", "split_ratio": "split",
             "dividend": "dividend"}  # fmt: skip
    frame = MARKET.with_columns(
        code=pl.col("ticker").replace_strict({"AAA": "005930", "BBB": "000660", "CCC": "035420"})
    )
    return text_file(folder / "p.csv", named(frame, **names), "cp949")


def english_header_of_korean_names(folder: Path) -> Path:
    return text_file(folder / "p.csv", MARKET.with_columns(name=pl.lit("삼성전자")), "cp949")


VENDORS: Mapping[Callable[[Path], Path], tuple[str | None, str]] = {
    yahoo_history: ("yahoo_history", "long"),
    yahoo_unadjusted: ("yahoo", "long"),
    as_quoted_with_adjusted_closes: (None, "long"),
    yahoo_page: ("yahoo", "file_per_ticker"),
    yahoo_download: (None, "wide"),
    yahoo_download_unadjusted: ("yahoo", "wide"),
    adjusted_with_dividends: ("adjusted_only", "long"),
    yahoo_download_by_ticker: (None, "wide"),
    yahoo_download_one_each: (None, "wide"),
    yahoo_parquet: (None, "wide"),
    stooq: ("stooq", "long"),
    alpha_vantage: ("alpha_vantage", "file_per_ticker"),
    nasdaq: ("nasdaq", "file_per_ticker"),
    investing: ("investing", "file_per_ticker"),
    investing_in_german: (None, "file_per_ticker"),
    eod: ("adjusted", "file_per_ticker"),
    bloomberg: (None, "wide"),
    crsp: ("crsp", "long"),
    compustat: ("compustat", "long"),
    jkp: ("jkp", "long"),
    sharadar: ("sharadar", "long"),
    workbook: (None, "long"),
    zipped: (None, "long"),
    serials: (None, "long"),
    epochs: (None, "long"),
    chinese: (None, "long"),
    korean: (None, "long"),
    english_header_of_korean_names: (None, "long"),
}
TICKERS: Mapping[Callable[[Path], Path], list[str]] = {
    bloomberg: ["AAA.US", "BBB.US", "CCC.US"],
    crsp: ["10001", "10002", "10003"],
    compustat: ["001001", "001002", "001003"],
    chinese: ["000001", "300750", "600519"],
    korean: ["000660", "005930", "035420"],
}
WITHOUT_DIVIDENDS = (nasdaq, investing, investing_in_german, bloomberg)


@pytest.mark.parametrize("write", VENDORS)
def test_a_vendors_file_is_recognised_and_gives_the_returns_of_the_market(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    found, fetched = read(write(tmp_path))
    assert (found.vendor, found.layout) == VENDORS[write]
    prices = fetched.tables["prices"]
    assert prices.schema["date"] == pl.Date
    assert prices.height == MARKET.height
    market = (
        SPLIT_ADJUSTED.with_columns(dividend=0.0, split_ratio=1.0) if write in WITHOUT_DIVIDENDS else MARKET
    )
    by_code = dict(zip(prices["ticker"].unique().sort(), ("AAA", "BBB", "CCC"), strict=True))
    codes = {
        "600519": "AAA",
        "000001": "BBB",
        "300750": "CCC",
        "005930": "AAA",
        "000660": "BBB",
        "035420": "CCC",
    }
    names = {code: codes.get(code, name) for code, name in by_code.items()}
    prices = prices.with_columns(pl.col("ticker").replace_strict(names))
    got = total_returns(prices).sort("ticker", "date")
    expected = total_returns(market).sort("ticker", "date")
    assert got["date"].to_list() == expected["date"].to_list()
    np.testing.assert_allclose(got["growth"].to_numpy(), expected["growth"].to_numpy(), rtol=5e-6)
    if "volume" in prices.columns:
        expected_volume = MARKET.sort("ticker", "date")["volume"].to_numpy().copy()
        if write is crsp:
            expected_volume[2 * 30 + 12] = 0.0  # a midpoint: nothing was traded
        volume = prices.sort("ticker", "date")["volume"].to_numpy()
        np.testing.assert_allclose(volume, expected_volume)
    assert sorted(names) == TICKERS.get(write, ["AAA", "BBB", "CCC"])


def test_splits_and_dividends_are_those_of_the_market_to_the_day(tmp_path: Path) -> None:
    for n, write in enumerate((crsp, compustat, alpha_vantage, eod, yahoo_unadjusted)):
        (tmp_path / str(n)).mkdir()
        prices = read(write(tmp_path / str(n)))[1].tables["prices"]
        paid = prices.filter(pl.col("dividend") > 0)
        assert paid["date"].to_list() == [MARKET["date"][8]], write
        np.testing.assert_allclose(paid["dividend"].to_numpy(), PAID, rtol=2e-3)
        if write is not yahoo_unadjusted:
            split = prices.filter((pl.col("split_ratio") - 1.0).abs() > 1e-9)
            assert split["date"].to_list() == [MARKET["date"][16]], write
            np.testing.assert_allclose(split["split_ratio"].to_numpy(), SPLIT, rtol=1e-5)


def test_crsp_codes_are_no_prices_volumes_or_returns(tmp_path: Path) -> None:
    text = (
        "permno,date,prc,vol,ret,retx,cfacpr,dlret,dlstcd\n"
        "1,2020-01-02,-10.5,-99,C,C,1,,\n1,2020-01-03,11,100,0.047619,0.047619,1,,\n"
        "1,2020-01-06,0,0,B,B,1,-0.35,574\n2,2020-01-02,20,5,-66.0,-66.0,1,,100\n"
    )
    (tmp_path / "crsp.csv").write_text(text)
    found, fetched = read(tmp_path / "crsp.csv")
    assert found.vendor == "crsp"
    rows = fetched.tables["prices"].select("date", "ticker", "close", "volume", "dividend").rows()
    assert rows == [
        (dt.date(2020, 1, 2), "1", 10.5, 0.0, 0.0),
        (dt.date(2020, 1, 2), "2", 20.0, 5.0, 0.0),
        (dt.date(2020, 1, 3), "1", 11.0, 100.0, 0.0),
    ]
    ended = fetched.tables["securities"].select(
        "ticker", "delisted_on", "delisting_return", "delisting_reason"
    )
    assert ended.rows() == [("1", dt.date(2020, 1, 6), -0.35, "performance")]
    assert "1 closes are negative, which marks the midpoint" in " ".join(fetched.notes)


def test_other_issues_of_a_firm_have_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "secd.csv").write_text(
        "gvkey,iid,datadate,prccd\n001,01,2020-01-02,5\n001,02,2020-01-02,6\n002,03,2020-01-02,7\n"
    )
    prices = read(tmp_path / "secd.csv")[1].tables["prices"]
    assert prices.select("ticker", "close").rows() == [("001", 5.0), ("001.02", 6.0), ("002", 7.0)]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234.50", 1234.5), ("$1,234.50", 1234.5), ("US$12", 12.0), ("1.2M", 1.2e6), ("3b", 3e9),
        ("(1.5)", -1.5), ("2.5%", 0.025), ("1 234.5", 1234.5), ("1'234", 1234.0), ("3.5万", 35000.0),
        ("+7", 7.0), ("₩12,000", 12000.0), ("1e3", 1000.0), ("-0.5", -0.5), ("\u22121.5", -1.5),
    ],
)  # fmt: skip
def test_numbers_with_signs_and_suffixes_are_read(text: str, number: float) -> None:
    assert read_number(pl.DataFrame({"x": [text, None, "2"]}), "x")["x"].to_list() == [number, None, 2.0]


@pytest.mark.parametrize("text", ["12,34", "1.2.3", "M", "1,2345", "12a", "1-2", "--1", "5 apples"])
def test_what_is_no_number_stays_text(text: str) -> None:
    assert read_number(pl.DataFrame({"x": [text, "2"]}), "x")["x"].to_list() == [text, "2"]


def test_tickers_become_plain_and_two_that_become_one_are_refused(tmp_path: Path) -> None:
    given = ["AAPL US Equity", "BTC/USDT", "'600519", "M&M.NS", "BRK B", "BRK.B", "../x", "a/b/c", "^GSPC"]
    plain = ["AAPL.US", "BTC-USDT", "600519", "M_M.NS", "BRK_B", "BRK.B", "../x", "a/b/c", "^GSPC"]
    assert pl.DataFrame({"t": given}).select(plain_tickers(pl.col("t")))["t"].to_list() == plain
    (tmp_path / "a.csv").write_text("date,ticker,close\n2020-01-02,BRK B,1\n2020-01-02,BRK_B,2\n")
    with pytest.raises(DataError, match="'BRK B' and 'BRK_B', which would both be stored as BRK_B"):
        files_source(tmp_path / "a.csv").fetch()


def test_an_archive_of_several_files_and_a_folder_without_files_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        archive.writestr("a.csv", "date,close\n")
        archive.writestr("b.csv", "date,close\n")
    with pytest.raises(DataError, match="contains 2 files, and only archives of one are read"):
        recognise_prices(tmp_path / "p.zip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no file of prices"):
        recognise_prices(tmp_path / "empty")


@pytest.mark.parametrize("pattern", ["", "*.csv"])
def test_notes_and_hidden_files_beside_the_prices_are_left_out(tmp_path: Path, pattern: str) -> None:
    for name in ("BBB", "CCC", "._BBB"):
        (tmp_path / f"{name}.csv").write_text("date,close,volume\n2021-01-04,10.5,1\n2021-01-05,10.75,1\n")
    (tmp_path / "A README.txt").write_text("Prices of two firms.\nClosing auction.\n")
    fetched = read(tmp_path / pattern)[1]
    assert sorted(fetched.tables["prices"]["ticker"].unique()) == ["BBB", "CCC"]


def test_years_are_no_dates_of_excel(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("date,ticker,close\n2019,A,1.5\n2020,A,1.5\n2021,A,1.5\n")
    with pytest.raises(DataError, match="such as '2019', have no usual format"):
        recognise_prices(tmp_path / "p.csv")


def test_a_name_that_is_nearly_right_is_named(tmp_path: Path) -> None:
    path = text_file(tmp_path / "p.csv", MARKET.rename({"close": "PX_LAST"}))
    with pytest.raises(DataError, match=r"no column 'PX_LST' for close \(did you mean 'PX_LAST'\?\)"):
        files_source(path, columns={"close": "PX_LST"}).fetch()
    with pytest.raises(
        ConfigError, match=r"clse, which is not a column of any table \(did you mean close\?\)"
    ):
        files_source(path, columns={"clse": "PX_LAST"})
    with pytest.raises(ValueError, match=r"vendor is 'CRPS', which is not known; did you mean crsp\?"):
        FilesSourceConfig(kind="files", prices="p.csv", vendor="CRPS")


def test_a_file_of_crsps_delistings_is_read_as_firms(tmp_path: Path) -> None:
    text_file(tmp_path / "p.csv", MARKET.with_columns(ticker=pl.col("ticker").replace("AAA", "10001")))
    (tmp_path / "delist.csv").write_text(
        "PERMNO,DLSTDT,DLSTCD,DLRET,COMNAM\n10001,2021-02-12,574,-0.4,ALPHA\nBBB,2021-02-12,241,A,BETA\n"
        "CCC,2021-02-12,100,,GAMMA\n"
    )
    source = files_source(tmp_path / "p.csv", tmp_path / "delist.csv")
    firms = source.fetch().tables["securities"].sort("ticker")
    ended = dt.date(2021, 2, 12)
    assert firms.select("ticker", "name", "delisted_on", "delisting_return", "delisting_reason").rows() == [
        ("10001", "ALPHA", ended, -0.4, "performance"),
        ("BBB", "BETA", ended, None, "merger"),
        ("CCC", "GAMMA", None, None, None),
    ]


def test_returns_of_later_months_are_no_inputs(tmp_path: Path) -> None:
    path = jkp(tmp_path)
    source = files_source(path, vendor="jkp", inputs=path)
    fetched = source.fetch()
    assert sorted(fetched.tables["inputs"]["name"].unique()) == ["adjfct", "prc", "ret"]
    assert "returns of later periods, which are left out: ret_exc_lead1m" in " ".join(fetched.notes)


@pytest.mark.parametrize(("dates", "form"), [
    (["20200131.0", "20200228.0", "20200331.0"], None),
    (["2020-01", "2020-02", "2020-03"], "%Y-%m"),
    (["202001", "202002", "202003"], "%Y%m"),
])  # fmt: skip
def test_days_kept_as_numbers_and_months_are_read(tmp_path: Path, dates: list[str], form: str | None) -> None:
    """A format without a day says that the data are monthly; a month is known on its last day."""
    file = tmp_path / "prices.csv"
    rows = [f"{day},{ticker},{10 + n}" for n, day in enumerate(dates) for ticker in ("AA", "BB")]
    file.write_text("\n".join(["date,ticker,close", *rows]))
    assert recognise_prices(file)[0].date_format == form
    prices = files_source(file, date_format=form).fetch().tables["prices"]
    last = dt.date(2020, 2, 29) if form else dt.date(2020, 2, 28)
    assert prices["date"].unique().sort().to_list() == [dt.date(2020, 1, 31), last, dt.date(2020, 3, 31)]


def test_lines_may_end_in_carriage_returns_alone(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_bytes(b"date,ticker,close\r2020-01-02,AA,1.5\r2020-01-02,BB,2.5\r2020-01-03,AA,1.6\r")
    assert recognise_prices(file)[0].layout == "long"
    assert files_source(file).fetch().tables["prices"]["close"].to_list() == [1.5, 2.5, 1.6]


def test_an_empty_file_beside_others_does_not_stop_the_reading(tmp_path: Path) -> None:
    (tmp_path / "AA.csv").touch()
    for ticker in ("BB", "CC"):
        (tmp_path / f"{ticker}.csv").write_text("Date,Open,Close\n2020-01-02,1,1.5\n2020-01-03,1,1.6\n")
    file, _ = recognise_prices(tmp_path)
    assert file.layout == "file_per_ticker"
    read = files_source(tmp_path, layout="file_per_ticker", columns=dict(file.columns)).fetch()
    assert read.tables["prices"]["ticker"].unique().sort().to_list() == ["BB", "CC"]
    assert "1 of 3 files are empty." in read.notes


@pytest.mark.parametrize("day", ["date", ""])
def test_a_wide_file_may_have_tickers_that_are_names_of_columns(tmp_path: Path, day: str) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(f"{day},AAPL,ID,SID,DT\n2020-01-02,1.5,2.5,3.5,4.5\n2020-01-03,1.6,2.6,3.6,4.6\n")
    read, _ = recognise_prices(file)
    assert read.layout == "wide"
    prices = files_source(file, layout="wide", columns=dict(read.columns)).fetch().tables["prices"]
    assert prices.filter(pl.col("date") == dt.date(2020, 1, 2))["ticker"].to_list() == [
        "AAPL",
        "DT",
        "ID",
        "SID",
    ]
    assert prices["close"].to_list() == [1.5, 4.5, 2.5, 3.5, 1.6, 4.6, 2.6, 3.6]


def test_the_index_of_a_program_is_no_ticker_and_may_hold_the_dates(tmp_path: Path) -> None:
    """Pandas reads an index without a name as ``Unnamed: 0``, and writes it again under this name."""
    file = tmp_path / "wide.csv"
    days = [f"2020-01-{day:02}" for day in (2, 3, 6)]
    file.write_text("Unnamed: 0,Date,AAA,BBB\n" + "".join(f"{i},{day},1.5,2\n" for i, day in enumerate(days)))
    _, fetched = read(file)
    assert sorted(set(fetched.tables["prices"]["ticker"])) == ["AAA", "BBB"]
    for name in ("", "Unnamed: 0"):
        file.write_text(f"{name},ticker,close\n" + "".join(f"{day},AAA,1.5\n" for day in days))
        found, fetched = read(file)
        assert (found.layout, fetched.tables["prices"].height) == ("long", 3)
    with pytest.raises(DataError, match="'Day'"):
        files_source(file, columns={"date": "Day"}).fetch()
