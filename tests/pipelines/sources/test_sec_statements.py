"""Interpretation of XBRL facts: tag, span, unit, quarter, and the date when a filing was known."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.panel.asof import statements_as_of
from pipelines.lake.contracts import check
from pipelines.sources.base import FLOWS, ITEMS
from pipelines.sources.sec import RANKED, TAGS, FiledStatements, known_on, statement_rows

START = dt.date(2010, 1, 1)


@dataclass
class Fact:
    """The attributes of an edgartools fact that are read."""

    concept: str
    period_start: dt.date | None
    period_end: dt.date
    numeric_value: float | None
    accession: str = "1"
    form_type: str = "10-Q"
    filing_date: dt.date = dt.date(2019, 8, 1)
    unit: str = "USD"
    dimensions: Mapping[str, str] | None = None


def fact(  # noqa: PLR0917 (a row)
    tag: str,
    start: str | None,
    end: str,
    value: float | None,
    accession: str = "1",
    form: str = "10-Q",
    filed: str = "2019-08-01",
    unit: str = "USD",
    of_class: str | None = None,
) -> Fact:
    concept = tag if ":" in tag else f"us-gaap:{tag}"
    began = None if start is None else dt.date.fromisoformat(start)
    dimensions = None if of_class is None else {"us-gaap:StatementClassOfStockAxis": of_class}
    ended, day = dt.date.fromisoformat(end), dt.date.fromisoformat(filed)
    return Fact(concept, began, ended, value, accession, form, day, unit, dimensions)


def read(*facts: Fact, since: dt.date = START) -> FiledStatements:
    accepted = {one.accession: dt.datetime.combine(one.filing_date, dt.time(9)) for one in facts}
    return statement_rows("A", facts, accepted, since)


def values(statements: FiledStatements) -> list[tuple[object, ...]]:
    checked = check("fundamentals", statements.rows)
    assert checked.rejected.is_empty()
    rows = checked.valid.sort("item", "period_end", "known_at")
    return rows.select("item", pl.col("period_end").cast(pl.String), "value", "months").rows()


@pytest.mark.parametrize(
    ("filed", "accepted", "expected"),
    [
        ("2019-05-01", "2019-05-01 06:00:00", "2019-05-01"),
        ("2019-05-01", "2019-05-01 15:59:59", "2019-05-01"),
        ("2019-05-01", "2019-05-01 16:00:00", "2019-05-02"),
        ("2019-05-03", "2019-05-03 17:15:00", "2019-05-04"),  # a Friday: the next session is Monday's
        ("2019-05-06", "2019-05-03 18:00:00", "2019-05-06"),  # held back until Monday morning
        ("2019-05-01", "2019-05-01 21:30:00", "2019-05-02"),  # 17:30 in New York where the clock is UTC
        ("2019-05-01", "2019-05-02 01:30:00", "2019-05-02"),  # 21:30 of the day before, likewise
        ("2019-11-29", "2019-11-29 12:59:59", "2019-11-29"),  # the day after Thanksgiving closes at 13:00
        ("2019-11-29", "2019-11-29 13:00:00", "2019-11-30"),
        ("2019-05-01", None, "2019-05-02"),
    ],
)
def test_a_filing_is_known_at_the_first_close_after_its_acceptance(
    filed: str, accepted: str | None, expected: str
) -> None:
    when = None if accepted is None else dt.datetime.fromisoformat(accepted)
    assert known_on(dt.date.fromisoformat(filed), when) == dt.date.fromisoformat(expected)


@given(st.datetimes(dt.datetime(2010, 1, 1), dt.datetime(2030, 1, 1)), st.sampled_from([0, 4, 5]))
def test_nothing_is_known_before_the_next_close_in_either_time_zone(
    message: dt.datetime, hours_ahead: int
) -> None:
    truly = message - dt.timedelta(hours=hours_ahead)  # in New York
    close = dt.datetime.combine(known_on(truly.date(), message), dt.time(16))
    assert close > truly
    assert close - truly <= dt.timedelta(days=1, hours=hours_ahead + 3)  # 3 on days with an early close


def test_the_best_tag_of_a_filing_is_used() -> None:
    contract = "RevenueFromContractWithCustomerExcludingAssessedTax"
    quarter = ("2019-04-01", "2019-06-30")
    both = read(fact(contract, *quarter, 3), fact("Revenues", *quarter, 90))
    assert values(both) == [("revenue", "2019-06-30", 90.0, 3)]
    assert values(read(fact(contract, *quarter, 3))) == [("revenue", "2019-06-30", 3.0, 3)]
    assert values(read(fact("SomethingElse", *quarter, 3))) == []


def test_every_item_has_tags_and_no_tag_has_two_items() -> None:
    assert set(TAGS) == set(ITEMS)
    assert len(RANKED) == sum(len(tags) for tags in TAGS.values())


def test_quarterly_reports_give_the_quarter_and_annual_reports_the_year() -> None:
    spans = (
        fact("Revenues", "2019-01-01", "2019-06-30", 63),
        fact("Revenues", "2019-04-01", "2019-06-30", 33),
    )
    assert values(read(*spans)) == [("revenue", "2019-06-30", 33.0, 3)]
    year = (
        fact("Revenues", "2018-10-01", "2018-12-31", 30, form="10-K"),
        fact("Revenues", "2018-01-01", "2018-12-31", 110, form="10-K"),
    )
    assert values(read(*year)) == [("revenue", "2018-12-31", 110.0, 12)]


def test_52_week_years_and_odd_quarters_have_whole_months() -> None:
    fifty_three = fact("Revenues", "2017-01-29", "2018-02-03", 7, form="10-K")  # 371 days
    assert values(read(fifty_three)) == [("revenue", "2018-02-03", 7.0, 12)]
    twelve_weeks = fact("Revenues", "2019-04-01", "2019-06-23", 7)
    sixteen_weeks = fact("Revenues", "2019-04-01", "2019-07-21", 8)
    assert values(read(twelve_weeks, sixteen_weeks)) == [
        ("revenue", "2019-06-23", 7.0, 3),
        ("revenue", "2019-07-21", 8.0, 3),
    ]
    assert values(read(fact("Revenues", "2019-04-01", "2019-07-31", 8))) == [
        ("revenue", "2019-07-31", 8.0, 4)  # a change of the fiscal year
    ]
    assert values(read(fact("Revenues", "2019-06-25", "2019-06-30", 1))) == []  # a short period


def test_a_year_to_date_cash_flow_gives_its_last_quarter_as_known_then() -> None:
    tag = "NetCashProvidedByUsedInOperatingActivities"
    first = fact(tag, "2019-01-01", "2019-03-31", 9, "q1", filed="2019-05-01")
    restated = fact(tag, "2019-01-01", "2019-03-31", 8, "q1a", form="10-Q/A", filed="2019-06-01")
    half = fact(tag, "2019-01-01", "2019-06-30", 20, "q2", filed="2019-08-01")
    again = fact(tag, "2019-01-01", "2019-06-30", 18, "q2a", form="10-Q/A", filed="2019-09-01")
    nine = fact(tag, "2019-01-01", "2019-09-30", 33, "q3", filed="2019-11-01")
    read_all = read(nine, half, again, restated, first)
    assert values(read_all) == [
        ("operating_cash_flow", "2019-03-31", 9.0, 3),
        ("operating_cash_flow", "2019-03-31", 8.0, 3),
        ("operating_cash_flow", "2019-06-30", 12.0, 3),  # 20 - 8
        ("operating_cash_flow", "2019-06-30", 10.0, 3),  # 18 - 8
        ("operating_cash_flow", "2019-09-30", 15.0, 3),  # 33 - 18
    ]
    assert read_all.counts["derived"] == 3
    assert read_all.rows["filing_id"].to_list() == ["q1", "q1a/A", "q2", "q2a/A", "q3"]
    later = dt.date(2019, 8, 1)  # the earlier value is still used for the difference
    assert values(read(first, half, since=later)) == [("operating_cash_flow", "2019-06-30", 11.0, 3)]
    assert values(read(half)) == [("operating_cash_flow", "2019-06-30", 20.0, 6)]  # nothing to subtract
    other_year = fact(tag, "2018-10-01", "2019-03-31", 9, "q1", filed="2019-05-01")
    assert values(read(other_year, half))[1] == ("operating_cash_flow", "2019-06-30", 20.0, 6)


def test_months_before_a_derived_quarter_that_are_restated_later_give_another_version_of_it() -> None:
    tag = "NetCashProvidedByUsedInOperatingActivities"
    first = fact(tag, "2019-01-01", "2019-03-31", 9, "q1", filed="2019-05-01")
    half = fact(tag, "2019-01-01", "2019-06-30", 20, "q2", filed="2019-08-01")
    restated = fact(tag, "2019-01-01", "2019-03-31", 8, "q1a", form="10-Q/A", filed="2019-09-01")
    nine = fact(tag, "2019-01-01", "2019-09-30", 33, "q3", filed="2019-11-01")
    again = fact(tag, "2019-01-01", "2019-03-31", 8, "next", filed="2020-05-01")
    rows = read(first, half, restated, nine, again).rows.filter(period_end=dt.date(2019, 6, 30))
    assert rows.select(pl.col("known_at").cast(pl.String), "value", "months", "filing_id").rows() == [
        ("2019-08-01", 11.0, 3, "q2"),
        ("2019-09-01", 12.0, 3, "q1a/A"),
    ]
    quarter = fact(tag, "2019-04-01", "2019-06-30", 10, "q2a", form="10-Q/A", filed="2019-08-15")
    assert values(read(first, half, quarter, restated))[2:] == [
        ("operating_cash_flow", "2019-06-30", 11.0, 3),
        ("operating_cash_flow", "2019-06-30", 10.0, 3),  # reported as such: nothing is derived any more
    ]


@pytest.mark.parametrize("weeks", [(16, 12, 12, 12), (12, 12, 12, 16), (12, 12, 12, 17), (13, 13, 13, 14)])
def test_firms_that_count_weeks_have_every_trailing_year(weeks: tuple[int, ...]) -> None:
    """As Kroger (16, 12, 12, 12 weeks) and PepsiCo or Costco (12, 12, 12, 16, sometimes 17) report."""
    flow, sold = "NetCashProvidedByUsedInOperatingActivities", "Revenues"
    facts, filed, expected = [], [], []
    per_week = np.arange(1.0, 3 * sum(weeks) + 1)
    monday = dt.date(2016, 2, 1)

    def spanning(tag: str, first: int, last: int, accession: str, form: str) -> Fact:
        start, end = monday + dt.timedelta(weeks=first), monday + dt.timedelta(weeks=last, days=-1)
        day = end + dt.timedelta(days=30)
        value = per_week[first:last].sum()
        return fact(tag, start.isoformat(), end.isoformat(), value, accession, form, day.isoformat())

    ends = np.cumsum(weeks * 3)
    for n, end in enumerate(int(end) for end in ends):
        year, form = n // 4 * sum(weeks), "10-K" if n % 4 == 3 else "10-Q"
        facts.append(spanning(flow, year, end, str(n), form))  # from the beginning of the year
        facts.append(spanning(sold, year if form == "10-K" else end - weeks[n % 4], end, str(n), form))
        if n >= 3:
            filed.append(monday + dt.timedelta(weeks=end, days=29))
            expected.append(per_week[end - sum(weeks) : end].sum())
    known = statements_as_of(read(*facts).rows, np.array(filed, "datetime64[D]"), ("A",), np.ones((9, 1)))
    assert known["revenue"].ravel().tolist() == expected
    assert known["operating_cash_flow"].ravel().tolist() == expected


def test_earnings_per_share_are_never_differenced() -> None:
    tag = "EarningsPerShareDiluted"
    first = fact(tag, "2019-01-01", "2019-03-31", 1, "q1", filed="2019-05-01", unit="USD per share")
    half = fact(tag, "2019-01-01", "2019-06-30", 3, "q2", unit="USD per share")
    assert values(read(first, half)) == [("eps", "2019-03-31", 1.0, 3), ("eps", "2019-06-30", 3.0, 6)]


def test_flows_need_a_span_and_stocks_an_instant() -> None:
    assert values(read(fact("Revenues", None, "2019-06-30", 3))) == []
    assert values(read(fact("Assets", "2019-04-01", "2019-06-30", 3))) == []
    assert values(read(fact("Assets", None, "2019-06-30", 3))) == [("total_assets", "2019-06-30", 3.0, None)]
    assert values(read(fact("Assets", None, "2019-06-30", None))) == []
    assert "total_assets" not in FLOWS


def test_forms_other_than_reports_are_skipped() -> None:
    for form in ("8-K", "S-1", "10-K405", ""):
        assert values(read(fact("Assets", None, "2019-06-30", 3, form=form))) == []


def test_missing_liabilities_are_total_assets_less_all_equity() -> None:
    end = "2019-06-30"
    minority = "StockholdersEquityIncludingPortionAttributableToNoncontrollingInterest"
    total = fact("LiabilitiesAndStockholdersEquity", None, end, 100)
    parent = fact("StockholdersEquity", None, end, 30)
    everyone = fact(minority, None, end, 40)
    reported = fact("Liabilities", None, end, 55)
    assert ("total_liabilities", end, 60.0, None) in values(read(total, parent, everyone))
    assert ("total_liabilities", end, 70.0, None) in values(read(total, parent))
    assert ("total_liabilities", end, 55.0, None) in values(read(total, parent, reported))
    assert values(read(parent)) == [("book_equity", end, 30.0, None)]


def test_share_counts_come_from_the_cover_then_the_balance_sheet_then_the_mean() -> None:
    cover = fact("dei:EntityCommonStockSharesOutstanding", None, "2019-07-20", 9, unit="shares")
    balance = fact("CommonStockSharesOutstanding", None, "2019-06-30", 10, unit="shares")
    mean = "WeightedAverageNumberOfSharesOutstandingBasic"
    half = fact(mean, "2019-01-01", "2019-06-30", 12, unit="shares")
    quarter = fact(mean, "2019-04-01", "2019-06-30", 11, unit="shares")
    assert values(read(cover, balance, half, quarter)) == [
        ("shares_outstanding", "2019-06-30", 10.0, None),
        ("shares_outstanding", "2019-07-20", 9.0, None),
    ]
    assert values(read(half, quarter)) == [("shares_outstanding", "2019-06-30", 11.0, None)]


def test_dollars_are_preferred_and_other_currencies_are_a_hazard() -> None:
    euro, dollar = (fact("Assets", None, "2019-06-30", v, unit=u) for v, u in ((3, "EUR"), (4, "USD")))
    assert values(read(euro, dollar)) == [("total_assets", "2019-06-30", 4.0, None)]
    assert read(euro, dollar).foreign == frozenset()
    assert read(euro).foreign == {"EUR"}


def test_the_later_of_two_versions_on_one_date_is_used() -> None:
    facts = [
        fact("Assets", None, "2018-12-31", value, accession, form, "2019-02-20")
        for value, accession, form in ((5, "b", "10-K/A"), (4, "a", "10-K"))
    ]
    accepted = {"a": dt.datetime(2019, 2, 20, 8), "b": dt.datetime(2019, 2, 20, 12)}
    statements = statement_rows("A", facts, accepted, START)
    assert values(statements) == [("total_assets", "2018-12-31", 5.0, None)]
    assert statements.rows["filing_id"].to_list() == ["b/A"]
    assert (statements.counts["superseded"], statements.counts["undated"]) == (1, 0)


def test_a_filing_without_acceptance_time_is_known_the_day_after_filing_and_counted() -> None:
    statements = statement_rows("A", [fact("Assets", None, "2019-06-30", 3)], {}, START)
    assert statements.rows["known_at"].to_list() == [dt.date(2019, 8, 2)]
    assert statements.counts["undated"] == 1


COVER, BALANCE, MEAN = (
    "dei:EntityCommonStockSharesOutstanding",
    "CommonStockSharesOutstanding",
    "WeightedAverageNumberOfSharesOutstandingBasic",
)


def stated(statements: FiledStatements) -> list[tuple[object, ...]]:
    checked = check("fundamentals", statements.rows)
    assert checked.rejected.is_empty()
    rows = checked.valid.sort("item", "period_end", "known_at")
    dates = (pl.col(name).cast(pl.String) for name in ("period_end", "known_at", "stated_on"))
    return rows.select("item", "value", *dates).rows()


def equity_of(statements: FiledStatements, split: str, ratio: float, closes: dict[str, float]) -> list[float]:
    """Shares as known on some days times the raw closes."""
    days = sorted({*closes, split})
    dates_T = np.array(days, dtype="datetime64[D]")
    split_TN = np.where(dates_T[:, None] == np.datetime64(split), ratio, 1.0)
    known = statements_as_of(statements.rows, dates_T, ("A",), split_TN)
    return [float(known["shares_outstanding"][days.index(day), 0]) * close for day, close in closes.items()]


def test_a_split_between_period_and_filing_is_not_applied_twice() -> None:
    """100 shares at 40 on June 30, a 4-for-1 split on July 15, filed on August 1: 4,000 throughout."""
    quarter = {"filed": "2019-08-01", "unit": "shares"}
    before = fact(BALANCE, None, "2019-03-31", 100, "q1", filed="2019-05-01", unit="shares")
    closes = {"2019-07-14": 40.0, "2019-07-15": 10.0, "2019-07-31": 10.0, "2019-08-01": 10.0}
    ways = {
        "cover": fact(COVER, None, "2019-07-20", 400, "q2", filed="2019-08-01", unit="shares"),
        "balance": fact(BALANCE, None, "2019-06-30", 400, "q2", **quarter),
        "mean": fact(MEAN, "2019-04-01", "2019-06-30", 400, "q2", **quarter),
    }
    for way, count in ways.items():
        assert equity_of(read(before, count), "2019-07-15", 4.0, closes) == [4000.0] * 4, way
    # a cover page dated before the split is adjusted
    early = fact(COVER, None, "2019-07-10", 100, "q2", filed="2019-08-01", unit="shares")
    assert equity_of(read(before, early), "2019-07-15", 4.0, closes) == [4000.0] * 4
    # and so is an earlier filing
    assert equity_of(read(before), "2019-07-15", 4.0, closes) == [4000.0] * 4


def test_share_counts_and_per_share_amounts_have_stated_on_dates() -> None:
    filed = {"accession": "q2", "filed": "2019-08-01"}
    rows = stated(
        read(
            fact(COVER, None, "2019-07-20", 400, unit="shares", **filed),
            fact(BALANCE, None, "2019-06-30", 399, unit="shares", **filed),
            fact("EarningsPerShareDiluted", "2019-04-01", "2019-06-30", 2, unit="USD per share", **filed),
            fact("Assets", None, "2019-06-30", 9, **filed),
        )
    )
    assert rows == [
        ("eps", 2.0, "2019-06-30", "2019-08-01", "2019-08-01"),
        ("shares_outstanding", 399.0, "2019-06-30", "2019-08-01", "2019-08-01"),
        ("shares_outstanding", 400.0, "2019-07-20", "2019-08-01", "2019-07-20"),
        ("total_assets", 9.0, "2019-06-30", "2019-08-01", None),
    ]


def test_a_filing_held_back_includes_splits_up_to_its_acceptance() -> None:
    late = fact(BALANCE, None, "2019-06-30", 400, filed="2019-08-05", unit="shares")
    accepted = {"1": dt.datetime(2019, 8, 2, 18)}
    assert stated(statement_rows("A", [late], accepted, START)) == [
        ("shares_outstanding", 400.0, "2019-06-30", "2019-08-05", "2019-08-02")
    ]


def test_a_restated_comparative_is_distinguished_from_the_original() -> None:
    """100 shares in 2018, then a 4-for-1 split: the next report says 400 for 2018 and 440 for 2019."""
    first = fact(BALANCE, None, "2018-12-31", 100, "a", "10-K", "2019-02-20", "shares")
    again = fact(BALANCE, None, "2018-12-31", 400, "b", "10-K", "2020-02-20", "shares")
    newest = fact(BALANCE, None, "2019-12-31", 440, "b", "10-K", "2020-02-20", "shares")
    days = ["2019-02-20", "2019-06-03", "2020-02-19", "2020-02-20"]
    dates_T = np.array(days, dtype="datetime64[D]")
    split_TN = np.array([[1.0], [4.0], [1.0], [1.0]])
    known = statements_as_of(read(first, again, newest).rows, dates_T, ("A",), split_TN)
    np.testing.assert_array_equal(known["shares_outstanding"][:, 0], [100, 400, 400, 440])
    # 10% more shares, from new issues only
    np.testing.assert_array_equal(known["shares_outstanding@1y"][:, 0], [np.nan, np.nan, np.nan, 400])
    amended = fact(BALANCE, None, "2018-12-31", 404, "c", "10-K/A", "2019-09-02", "shares")
    known = statements_as_of(read(first, amended).rows, dates_T, ("A",), split_TN)
    np.testing.assert_array_equal(known["shares_outstanding"][:, 0], [100, 400, 404, 404])


def test_share_counts_of_all_classes_are_summed() -> None:
    def cover(value: float, of_class: str | None) -> Fact:
        return fact(COVER, None, "2019-07-20", value, unit="shares", of_class=of_class)

    a, b = cover(300, "us-gaap:CommonClassAMember"), cover(50, "us-gaap:CommonClassBMember")
    both = read(a, b, cover(50, "us-gaap:CommonClassBMember"))  # the same fact twice
    assert values(both) == [("shares_outstanding", "2019-07-20", 350.0, None)]
    assert (both.counts["summed"], both.counts["partial"]) == (1, 0)
    with_total = read(a, b, cover(351, None))  # the firm's own total is preferred
    assert values(with_total) == [("shares_outstanding", "2019-07-20", 351.0, None)]
    assert (with_total.counts["summed"], with_total.counts["partial"]) == (0, 0)


def test_a_share_count_of_a_single_class_is_dropped() -> None:
    one = fact(COVER, None, "2019-07-20", 300, unit="shares", of_class="us-gaap:CommonClassAMember")
    assert values(read(one)) == []
    assert read(one).counts["partial"] == 1
    mean = fact(MEAN, "2019-04-01", "2019-06-30", 345, unit="shares")
    assert values(read(one, mean)) == [("shares_outstanding", "2019-06-30", 345.0, None)]
    # an unmarked single class: far fewer shares than in earnings per share
    unmarked = fact(COVER, None, "2019-07-20", 50, unit="shares")
    left = read(unmarked, mean)
    assert values(left) == [("shares_outstanding", "2019-06-30", 345.0, None)]
    assert left.counts["partial"] == 1
    # two counts at one instant without their classes
    assert values(read(unmarked, fact(COVER, None, "2019-07-20", 300, unit="shares"), mean)) == [
        ("shares_outstanding", "2019-06-30", 345.0, None)
    ]


def test_facts_about_a_part_of_a_firm_are_ignored() -> None:
    segment = fact("Assets", None, "2019-06-30", 3)
    segment.dimensions = {"us-gaap:StatementBusinessSegmentsAxis": "a:CarsMember"}
    assert values(read(segment)) == []
