"""Statements from a user's files: wide and long layouts, canonical names, units and known_at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from given_files import files_source

from features.panel.asof import statements_as_of
from pipelines.errors import ConfigError, DataError
from pipelines.lake.contracts import check
from pipelines.sources.base import SourceTables
from pipelines.sources.settings import ShareCountsAsOf

WIDE = (
    "Symbol,period_end,Total Revenue,Capital Expenditures,Total Assets,Current\n"
    "AAA,2019-12-31,1.5,-0.2,10,0\n"
    "AAA,2018-12-31,NA,-0.1,9,4\n"
    "BBB,2019-12-31,7,0,x,5\n"
)
ITEMS = {
    "revenue": "Total Revenue",
    "capital_expenditure": "Capital Expenditures",
    "total_assets": "Total Assets",
    "current_assets": "Current",
}
SYMBOL = {"fundamentals.ticker": "Symbol"}
SINCE = date(2019, 12, 31), date(2018, 12, 31)


def fetch(
    folder: Path,
    text: str,
    *,
    items: Mapping[str, str] | None = None,
    months: int | None = None,
    zero_means_missing: tuple[str, ...] = (),
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, float] | None = None,
) -> SourceTables:
    (folder / "prices.csv").write_text("date,ticker,close\n2020-01-02,AAA,1\n2020-01-02,BBB,1\n")
    (folder / "s.csv").write_text(text)
    return files_source(
        folder / "prices.csv",
        fundamentals=folder / "s.csv",
        items=items or {},
        statement_months=months,
        zero_means_missing=zero_means_missing,
        columns=columns or {},
        units=units or {},
    ).fetch()


def test_one_column_per_item_becomes_one_row_per_item_in_canonical_units_and_signs(tmp_path: Path) -> None:
    fetched = fetch(
        tmp_path,
        WIDE,
        items=ITEMS,
        months=12,
        zero_means_missing=("current_assets",),
        columns=SYMBOL,
        units={"capital_expenditure": -1, "revenue": 1000},
    )
    checked = check("fundamentals", fetched.tables["fundamentals"])
    assert checked.by_rule() == {"value_unreadable": 1}
    assert checked.valid.select("ticker", "period_end", "item", "value", "months").sort(
        "ticker", "period_end", "item"
    ).rows() == [
        ("AAA", date(2018, 12, 31), "capital_expenditure", 0.1, 12),
        ("AAA", date(2018, 12, 31), "current_assets", 4.0, None),
        ("AAA", date(2018, 12, 31), "total_assets", 9.0, None),
        ("AAA", date(2019, 12, 31), "capital_expenditure", 0.2, 12),
        ("AAA", date(2019, 12, 31), "revenue", 1500.0, 12),
        ("AAA", date(2019, 12, 31), "total_assets", 10.0, None),
        ("BBB", date(2019, 12, 31), "capital_expenditure", 0.0, 12),
        ("BBB", date(2019, 12, 31), "current_assets", 5.0, None),
        ("BBB", date(2019, 12, 31), "revenue", 7000.0, 12),
    ]
    output = " ".join(fetched.notes)
    assert "1 zeros of current_assets in s.csv are treated as not reported" in output
    assert "1 empty values of s.csv are ignored" in output
    assert "no statements" not in output


def test_an_assumed_lag_is_marked_on_every_row_and_is_a_hazard(tmp_path: Path) -> None:
    fetched = fetch(tmp_path, WIDE, items=ITEMS, columns=SYMBOL)
    rows = check("fundamentals", fetched.tables["fundamentals"]).valid
    assert rows["assumed"].all()
    assert (rows["known_at"] - rows["period_end"]).unique().to_list() == [timedelta(days=90)]
    assert rows["months"].null_count() == rows.height
    (hazard,) = fetched.hazards
    assert hazard.startswith("Assumed reporting lag: all 11 rows of s.csv have no publication date")
    assert "90 days after the end of their period" in hazard
    assert "the last restated one" in hazard


LONG = (
    "ticker,period_end,item,value,known_at,unit,filing_id,months\n"
    "AAA,2018-12-31,Sales,10,2019-02-20,USD,f1,12\n"
    "AAA,2018-12-31,Sales,8,2019-06-03 21:00:00,USD,f2,12\n"
    "AAA,2018-12-31,total_assets,50,,USD,f1,12\n"
    "AAA,2018-12-31,Headcount,7,2019-02-20,,f1,\n"
)


def test_one_row_per_item_keeps_versions_units_and_filings(tmp_path: Path) -> None:
    fetched = fetch(tmp_path, LONG, items={"revenue": "Sales"})
    rows = check("fundamentals", fetched.tables["fundamentals"]).valid
    columns = ("item", "value", "known_at", "unit", "filing_id", "months", "assumed")
    assert rows.select(columns).rows() == [
        ("revenue", 10.0, date(2019, 2, 20), "USD", "f1", 12, False),
        ("revenue", 8.0, date(2019, 6, 4), "USD", "f2", 12, False),  # published after the close
        ("total_assets", 50.0, date(2019, 3, 31), "USD", "f1", None, True),
    ]
    assert any("not mapped and are ignored: Headcount" in note for note in fetched.notes)
    (hazard,) = fetched.hazards
    assert hazard.startswith("Assumed reporting lag: 1 of 3 rows")
    assert "restated" not in hazard


@pytest.mark.parametrize(
    "moment", ["2019-06-03 09:00 PM", "2019-06-03T21:00:00 EST", "2019-06-03T21:00:00-04"]
)
def test_a_time_of_day_that_is_not_understood_may_be_after_the_close(tmp_path: Path, moment: str) -> None:
    fetched = fetch(tmp_path, LONG.replace("2019-06-03 21:00:00", moment), items={"revenue": "Sales"})
    assert date(2019, 6, 4) in fetched.tables["fundamentals"]["known_at"]


def test_a_restatement_in_a_file_is_visible_from_its_own_date(tmp_path: Path) -> None:
    rows = check(
        "fundamentals", fetch(tmp_path, LONG, items={"revenue": "Sales"}).tables["fundamentals"]
    ).valid
    dates_T = np.array(["2019-02-19", "2019-02-20", "2019-06-03", "2019-06-04"], dtype="datetime64[D]")
    known = statements_as_of(rows, dates_T, ("AAA",), np.ones((4, 1)))
    np.testing.assert_array_equal(known["revenue"][:, 0], [np.nan, 10.0, 10.0, 8.0])


def test_publication_dates_with_a_single_version_are_a_hazard(tmp_path: Path) -> None:
    text = "ticker,period_end,known_at,revenue\nAAA,2018-12-31,2019-02-20,1\nAAA,2019-12-31,2020-02-20,2\n"
    fetched = fetch(tmp_path, text)
    assert not fetched.tables["fundamentals"]["assumed"].any()
    assert [hazard.partition(":")[0] for hazard in fetched.hazards] == ["Statements as last restated"]


def test_fractional_months_reject_their_rows(tmp_path: Path) -> None:
    text = "ticker,period_end,revenue,months\nAAA,2018-12-31,1,12\nAAA,2019-12-31,2,2.5\nBBB,2019-12-31,3,\n"
    checked = check("fundamentals", fetch(tmp_path, text).tables["fundamentals"])
    assert checked.by_rule() == {"months_unreadable": 1}
    assert checked.valid["months"].to_list() == [12, None]


def test_files_of_a_pattern_may_have_different_items_and_dates(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("date,ticker,close\n2020-01-02,AAA,1\n")
    (tmp_path / "s1.csv").write_text("ticker,period_end,revenue\nAAA,2018-12-31,1\n")
    pl.DataFrame(
        {
            "ticker": ["AAA"],
            "period_end": [date(2019, 12, 31)],
            "known_at": [date(2020, 3, 1)],
            "total_assets": [5],
        }
    ).write_parquet(tmp_path / "s2.parquet")
    source = files_source(tmp_path / "prices.csv", fundamentals=tmp_path / "s[12].*")
    rows = check("fundamentals", source.fetch().tables["fundamentals"]).valid
    assert rows.select("item", "value", "known_at", "assumed").rows() == [
        ("revenue", 1.0, date(2019, 3, 31), True),
        ("total_assets", 5.0, date(2020, 3, 1), False),
    ]


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="items names sales, which is not a statement item"):
        files_source(tmp_path / "p.csv", fundamentals=tmp_path / "s.csv", items={"sales": "Sales"})
    with pytest.raises(ConfigError, match="zero_means_missing names sales"):
        files_source(tmp_path / "p.csv", fundamentals=tmp_path / "s.csv", zero_means_missing=("sales",))
    with pytest.raises(
        ConfigError, match=r"columns maps fundamentals\.volume, which is not a column of any table"
    ):
        fetch(tmp_path, WIDE, columns={"fundamentals.volume": "x"})
    with pytest.raises(DataError, match="no column 'Sales' for the item revenue"):
        fetch(tmp_path, WIDE, items={"revenue": "Sales"}, columns=SYMBOL)
    with pytest.raises(DataError, match="no known statement item; its columns are Symbol, period_end, Total"):
        fetch(tmp_path, WIDE, columns=SYMBOL)
    with pytest.raises(
        DataError, match="no item 'Turnover' for the item revenue; its items are Headcount, Sales"
    ):
        fetch(tmp_path, LONG, items={"revenue": "Turnover"})
    with pytest.raises(DataError, match="no column 'Filed' for known_at"):
        fetch(tmp_path, WIDE, items=ITEMS, columns={**SYMBOL, "known_at": "Filed"})
    with pytest.raises(DataError, match="no column 'Sym' for ticker"):
        fetch(tmp_path, WIDE, items=ITEMS, columns={"fundamentals.ticker": "Sym"})
    with pytest.raises(DataError, match="units names eps, which no file contains"):
        fetch(tmp_path, WIDE, items=ITEMS, columns=SYMBOL, units={"eps": 2})
    with pytest.raises(DataError, match="holds no value of any item"):
        fetch(tmp_path, "ticker,period_end,revenue\nAAA,2019-12-31,\n")


COUNTS = (
    "ticker,period_end,known_at,shares_outstanding,eps,total_assets{more}\n"
    "AAA,2019-12-31,2020-02-28,{count},{eps},10{day}\n"
)
SPLITS = "date,ticker,close,split_ratio\n" + "".join(
    f"2020-{day},AAA,{40 if ratio == 1 and day < '02-03' else 10 if day < '06-01' else 5},{ratio}\n"
    for day, ratio in (("01-02", 1), ("02-03", 4), ("02-28", 1), ("05-29", 1), ("06-01", 2), ("06-02", 1))
)


@pytest.mark.parametrize(
    ("rule", "mapped", "count", "eps"),
    [
        ("period_end", None, 100, 8),  # before both splits
        ("known_at", None, 400, 2),  # after the split of 4 for 1
        ("today", None, 800, 1),  # after both
        ("period_end", "2020-02-03", 400, 2),
        ("period_end", "2020-02-28", 400, 2),
        ("known_at", "2020-02-02", 100, 8),
    ],
)
def test_share_counts_are_split_adjusted_from_their_stated_on_date(
    tmp_path: Path, rule: ShareCountsAsOf, mapped: str | None, count: int, eps: int
) -> None:
    """100 shares at 40, split 4 for 1 before the publication and 2 for 1 after it: 4,000 all along."""
    (tmp_path / "p.csv").write_text(SPLITS)
    more, day = ("", "") if mapped is None else (",stated_on", f",{mapped}")
    (tmp_path / "s.csv").write_text(COUNTS.format(count=count, eps=eps, more=more, day=day))
    fetched = files_source(
        tmp_path / "p.csv",
        fundamentals=tmp_path / "s.csv",
        share_counts_as_of=rule,
        statement_months=12,
    ).fetch()
    assert any("as of when share counts" in note for note in fetched.notes) == (mapped is None)
    checked = check("fundamentals", fetched.tables["fundamentals"])
    assert checked.rejected.is_empty()
    stated = dict(checked.valid.select("item", pl.col("stated_on").is_null()).iter_rows())
    assert stated == {"shares_outstanding": False, "eps": False, "total_assets": True}
    prices = fetched.tables["prices"].sort("date")
    known = statements_as_of(
        checked.valid,
        prices["date"].to_numpy().astype("datetime64[D]"),
        ("AAA",),
        prices["split_ratio"].cast(pl.Float64).to_numpy()[:, None],
    )
    close_T = prices["close"].cast(pl.Float64).to_numpy()
    equity_T = known["shares_outstanding"][:, 0] * close_T
    np.testing.assert_array_equal(equity_T, [np.nan, np.nan, 4000, 4000, 4000, 4000])
    np.testing.assert_array_equal(known["eps"][2:, 0] / close_T[2:], [0.2] * 4)


@pytest.mark.parametrize("ticker", ["AAA", "BBB"])  # of the statements: the former or the newest one
def test_splits_since_are_those_of_the_firm_under_all_of_its_tickers(tmp_path: Path, ticker: str) -> None:
    """AAA becomes BBB between its splits; another firm takes over AAA, and splits 3 for 1."""
    prices = re.sub(r"(2020-0[56]-..),AAA", r"\1,BBB", SPLITS) + "2020-06-02,AAA,7,3\n"
    (tmp_path / "p.csv").write_text(prices)
    (tmp_path / "r.csv").write_text("ticker,from_date,new_ticker\nAAA,2020-05-01,BBB\n")
    counts = COUNTS.format(count=800, eps=1, more="", day="").replace("AAA", ticker)
    (tmp_path / "s.csv").write_text(counts)
    fetched = files_source(
        tmp_path / "p.csv",
        fundamentals=tmp_path / "s.csv",
        renames=tmp_path / "r.csv",
        share_counts_as_of="today",
        statement_months=12,
    ).fetch()
    rows = fetched.tables["fundamentals"]
    assert rows["ticker"].unique().to_list() == [ticker]
    values = dict(rows.select("item", "value").iter_rows())
    assert (values["shares_outstanding"], values["eps"]) == (100.0, 8.0)


def test_a_count_cannot_include_a_split_after_its_publication(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(SPLITS)
    (tmp_path / "s.csv").write_text(COUNTS.format(count=800, eps=1, more=",stated_on", day=",2020-06-01"))
    checked = check(
        "fundamentals",
        files_source(tmp_path / "p.csv", fundamentals=tmp_path / "s.csv").fetch().tables["fundamentals"],
    )
    assert checked.by_rule() == {"stated_between_period_end_and_known_at": 2}
    with pytest.raises(ConfigError, match="share_counts_as_of is today, but prices end on 2020-03-01"):
        files_source(
            tmp_path / "p.csv",
            fundamentals=tmp_path / "s.csv",
            share_counts_as_of="today",
            end=date(2020, 3, 1),
        )


def test_compustat_quarters_are_known_on_the_day_after_rdq(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("date,ticker,close\n2020-01-02,001001,5\n")
    (tmp_path / "fundq.csv").write_text(
        "gvkey,datadate,rdq,fqtr,indfmt,datafmt,consol,atq,niq,oancfy,cshoq,epspxq\n"
        "001001,2020/03/31,2020/05/01,1,INDL,STD,C,100,5,7,2,2.5\n"
        "001001,2020/06/30,,2,INDL,STD,C,110,6,16,2,3\n"
        "001001,2020/03/31,2020/05/01,1,FS,STD,C,999,9,9,9,9\n"
    )
    source = files_source(tmp_path / "p.csv", fundamentals=tmp_path / "fundq.csv")
    rows = source.fetch().tables["fundamentals"].sort("item", "period_end")
    march, june = date(2020, 3, 31), date(2020, 6, 30)
    assert rows.select("period_end", "known_at", "item", "value", "months", "assumed").rows() == [
        (march, date(2020, 5, 2), "eps", 2.5, 3, False),
        (june, date(2020, 9, 28), "eps", 3.0, 3, True),
        (march, date(2020, 5, 2), "net_income", 5e6, 3, False),
        (june, date(2020, 9, 28), "net_income", 6e6, 3, True),
        (march, date(2020, 5, 2), "operating_cash_flow", 7e6, 3, False),
        (june, date(2020, 9, 28), "operating_cash_flow", 16e6, 6, True),
        (march, date(2020, 5, 2), "shares_outstanding", 2e6, None, False),
        (june, date(2020, 9, 28), "shares_outstanding", 2e6, None, True),
        (march, date(2020, 5, 2), "total_assets", 1e8, None, False),
        (june, date(2020, 9, 28), "total_assets", 1.1e8, None, True),
    ]
    assert rows["ticker"].unique().to_list() == ["001001"]


def test_compustat_years_cover_twelve_months(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("date,ticker,close\n2020-01-02,001001,5\n")
    (tmp_path / "funda.csv").write_text("gvkey,datadate,at,sale\n001001,31DEC2019,100,50\n")
    source = files_source(tmp_path / "p.csv", fundamentals=tmp_path / "funda.csv")
    rows = source.fetch().tables["fundamentals"].sort("item")
    assert rows.select("item", "value", "months", "known_at").rows() == [
        ("revenue", 50e6, 12, date(2020, 3, 30)),
        ("total_assets", 1e8, None, date(2020, 3, 30)),
    ]
