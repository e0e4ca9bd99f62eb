"""Statements as known at t, by hand and against a slow reference: flows, year earlier, restatements."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.panel.asof import STALE_DAYS, Statements, statements_as_of

Row = dict[str, Any]
nan = float("nan")
D = dt.date
START, SESSIONS = D(2019, 1, 1), 1100
DAYS = [START + dt.timedelta(days=i) for i in range(SESSIONS)]
DATES_T = np.array(DAYS, dtype="datetime64[D]")
QUARTERS = [D(2018, 3, 31), D(2018, 6, 30), D(2018, 9, 30), D(2018, 12, 31), D(2019, 3, 31), D(2019, 6, 30)]


def filed(end: D, known: D, value: float | None, months: int | None = None, item: str = "revenue") -> Row:
    return {
        "ticker": "A",
        "period_end": end,
        "known_at": known,
        "item": item,
        "value": value,
        "months": months,
    }


def known_on(
    rows: list[Row], days: list[D], item: str = "revenue", splits: dict[D, float] | None = None
) -> list[float]:
    """The value of firm A on the given days."""
    split_TN = np.ones((SESSIONS, 2))
    for day, ratio in (splits or {}).items():
        split_TN[DAYS.index(day), 0] = ratio
    frame = pl.DataFrame(rows, schema_overrides={"value": pl.Float64, "months": pl.Int64})
    statements = statements_as_of(frame, DATES_T, ("A", "B"), split_TN)
    assert np.isnan(statements[item][:, 1]).all()
    return [float(statements[item][DAYS.index(day), 0]) for day in days]


def test_trailing_year_sums_four_quarters_as_known_then() -> None:
    rows = [filed(end, end + dt.timedelta(days=40), 10.0 + k, 3) for k, end in enumerate(QUARTERS)]
    rows.append(
        filed(QUARTERS[1], D(2019, 4, 1), 21.0, 3)
    )  # 11 is restated to 21 before the first quarter is published
    days = [D(2019, 2, 8), D(2019, 2, 9), D(2019, 3, 31), D(2019, 4, 1), D(2019, 5, 10), D(2019, 8, 9)]
    # 10+11+12 is not a year; 10+11+12+13; unchanged; 10+21+12+13; 21+12+13+14; 12+13+14+15
    np.testing.assert_array_equal(known_on(rows, days), [nan, 46, 46, 56, 60, 54])


def test_missing_quarter_makes_the_trailing_year_nan() -> None:
    rows = [filed(end, end + dt.timedelta(days=40), 1.0, 3) for end in QUARTERS if end != D(2018, 6, 30)]
    # March 2019 needs June 2018; June 2019 does not
    np.testing.assert_array_equal(known_on(rows, [D(2019, 5, 30), D(2019, 8, 9)]), [nan, 4])


def test_annual_or_unspecified_spans_are_used_and_others_ignored() -> None:
    rows = [
        filed(D(2018, 12, 31), D(2019, 2, 1), 100.0, 12),
        filed(D(2019, 6, 30), D(2019, 8, 1), 70.0, 6),
        filed(D(2019, 12, 31), D(2020, 2, 1), 120.0, None),
    ]
    np.testing.assert_array_equal(
        known_on(rows, [D(2019, 2, 1), D(2019, 9, 1), D(2020, 2, 1)]), [100, 100, 120]
    )


def test_unreported_fourth_quarter_is_year_minus_three_quarters() -> None:
    rows = [filed(end, end + dt.timedelta(days=40), 10.0 + k, 3) for k, end in enumerate(QUARTERS) if k != 3]
    rows.append(filed(D(2018, 12, 31), D(2019, 2, 20), 50.0, 12))  # so the fourth is 50-10-11-12 = 17
    rows.append(filed(D(2018, 12, 31), D(2019, 6, 1), 53.0, 12))  # restated to 20
    days = [D(2019, 2, 20), D(2019, 5, 10), D(2019, 6, 1), D(2019, 8, 9)]
    # the reported year; 11+12+17+14; 11+12+20+14; 12+20+14+15
    np.testing.assert_array_equal(known_on(rows, days), [50, 54, 57, 61])


def test_year_earlier_value_uses_the_version_known_then() -> None:
    rows = [
        filed(D(2017, 12, 30), D(2018, 3, 1), 80.0, None, "total_assets"),
        filed(D(2018, 12, 29), D(2019, 3, 1), 100.0, None, "total_assets"),  # a year of 52 weeks
        filed(
            D(2018, 12, 29), D(2020, 1, 10), 90.0, None, "total_assets"
        ),  # restated before the next period is published
        filed(D(2020, 1, 4), D(2020, 3, 1), 130.0, None, "total_assets"),  # a year of 53 weeks
        filed(
            D(2018, 12, 29), D(2020, 4, 1), 95.0, None, "total_assets"
        ),  # restated after the next period is published
    ]
    days = [D(2019, 2, 28), D(2019, 3, 1), D(2020, 1, 9), D(2020, 1, 10), D(2020, 3, 1), D(2020, 4, 1)]
    np.testing.assert_array_equal(known_on(rows, days, "total_assets"), [80, 100, 100, 90, 130, 130])
    np.testing.assert_array_equal(known_on(rows, days, "total_assets@1y"), [nan, 80, 80, 80, 90, 95])


def test_trailing_year_has_a_year_earlier_value() -> None:
    ends = [D(2017, 6, 30), D(2017, 9, 30), D(2017, 12, 31), *QUARTERS]
    rows = [filed(end, end + dt.timedelta(days=40), 2.0**k, 3) for k, end in enumerate(ends)]
    rows.append(filed(D(2017, 9, 30), D(2019, 6, 1), 1000.0, 3))
    # March 2019: last three quarters of 2018 and its own, 16+32+64+128; a year earlier 1+2+4+8, then
    # 1+1000+4+8
    np.testing.assert_array_equal(known_on(rows, [D(2019, 5, 10)], "revenue"), [240])
    np.testing.assert_array_equal(known_on(rows, [D(2019, 5, 10), D(2019, 6, 1)], "revenue@1y"), [15, 1013])


def test_stale_periods_are_nan() -> None:
    rows = [filed(D(2018, 12, 31), D(2019, 2, 1), 5.0)]
    last = D(2018, 12, 31) + dt.timedelta(days=STALE_DAYS)
    days = [last, last + dt.timedelta(days=1)]
    np.testing.assert_array_equal(known_on(rows, days), [5, nan])
    late = [filed(D(2018, 12, 31), last + dt.timedelta(days=9), 5.0)]
    assert np.isnan(known_on(late, [DAYS[-1]])).all()


def test_share_counts_of_both_periods_are_adjusted_to_t() -> None:
    rows = [
        filed(D(2019, 1, 10), D(2019, 2, 1), 100.0, None, "shares_outstanding"),
        filed(D(2020, 1, 10), D(2020, 2, 1), 330.0, None, "shares_outstanding"),
    ]
    splits = {
        D(2019, 1, 5): 7.0,
        D(2019, 6, 1): 3.0,
        D(2020, 1, 20): 2.0,
    }  # before both dates, between them, after both
    days = [D(2019, 2, 1), D(2019, 6, 1), D(2020, 1, 31), D(2020, 2, 1)]
    shares = known_on(rows, days, "shares_outstanding", splits)
    np.testing.assert_allclose(shares, [100, 300, 600, 660], rtol=1e-15)
    before = known_on(rows, days, "shares_outstanding@1y", splits)
    np.testing.assert_allclose(before, [nan, nan, nan, 600], rtol=1e-15)  # 10% growth, independent of splits


def test_statement_arrays_are_read_only_and_firms_can_be_selected() -> None:
    rows = [
        filed(D(2018, 12, 31), D(2019, 2, 1), 5.0),
        {**filed(D(2018, 12, 31), D(2019, 3, 1), 6.0), "ticker": "C"},
    ]
    statements = statements_as_of(pl.DataFrame(rows), DATES_T, ("A", "B", "C"), np.ones((SESSIONS, 3)))
    assert list(statements) == ["revenue", "revenue@1y"]
    for firms in (slice(0, 2), slice(1, 2), slice(1, 3)):
        part = statements.take_firms(firms)["revenue"]
        np.testing.assert_array_equal(part, statements["revenue"][:, firms])
        np.testing.assert_array_equal(
            statements.take_firms(slice(1, 3)).take_firms(slice(1, 2))["revenue"],
            statements["revenue"][:, 2:],
        )
    with pytest.raises(ValueError, match="read-only"):
        statements["revenue"][0, 0] = 1.0
    empty = statements_as_of(pl.DataFrame(rows), DATES_T, ("X",), np.ones((SESSIONS, 1)))
    assert len(empty) == 0


# A slow reference, written from the definition.


def slow(rows: list[Row], day: D) -> tuple[float, float]:
    """Value of the newest period and of a year earlier, for one firm and item on one day."""
    latest: dict[D, dict[str, float]] = {}
    for row in sorted(rows, key=lambda r: (r["known_at"], r["period_end"])):
        if row["known_at"] <= day and row["months"] in (None, 3, 12):
            version = latest.setdefault(row["period_end"], {})
            if row["months"] == 3:
                version["quarter"] = row["value"]
            else:
                version.pop("year", None)
                version["value"] = row["value"]
                if row["months"] == 12:
                    version["year"] = row["value"]
    if not latest or (day - max(latest)).days > STALE_DAYS:
        return nan, nan

    def near(end: D, days: float) -> D | None:
        gaps = {abs((end - other).days - days): other for other in sorted(latest, reverse=True)}
        return gaps[min(gaps)] if min(gaps) <= 28 else None

    def quarter(end: D) -> float:
        if "quarter" in latest[end] or "year" not in latest[end]:
            return latest[end].get("quarter", nan)
        others = [near(end, 91.3125 * k) for k in (1, 2, 3)]
        return latest[end]["year"] - sum(nan if o is None else latest[o].get("quarter", nan) for o in others)

    def value(end: D | None) -> float:
        if end is None:
            return nan
        if "value" in latest[end]:
            return latest[end]["value"]
        parts = [near(end, 91.3125 * k) for k in range(4)]
        return sum(nan if part is None else quarter(part) for part in parts)

    newest = max(latest)
    return value(newest), value(near(newest, 365.25))


def random_filings(seed: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for ticker in "AB":
        quarterly = rng.random() < 0.7
        for k in range(14):
            end = D(2017, 12, 31) + dt.timedelta(days=int(91.3125 * k + rng.integers(-6, 7)))
            if rng.random() < 0.08 or (not quarterly and k % 4):
                continue
            months = (
                (3 if k % 4 or rng.random() < 0.5 else 12) if quarterly else [12, None][int(rng.integers(2))]
            )
            months = 9 if rng.random() < 0.03 else months
            for delay in sorted(int(d) for d in rng.integers(20, 400, 1 + int(rng.integers(3)))):
                known = end + dt.timedelta(days=delay)
                rows.append({**filed(end, known, float(rng.integers(1, 1000)), months), "ticker": ticker})
    return list({(r["ticker"], r["period_end"], r["known_at"]): r for r in rows}.values())


def laid_out(rows: list[Row]) -> Statements:
    frame = pl.DataFrame(rows, schema_overrides={"months": pl.Int64}).sample(
        fraction=1.0, shuffle=True, seed=1
    )
    return statements_as_of(frame, DATES_T, ("A", "B"), np.ones((SESSIONS, 2)))


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_statements_equal_a_slow_reference(seed: int) -> None:
    rows = random_filings(seed)
    statements = laid_out(rows)
    for n, ticker in enumerate("AB"):
        own = [row for row in rows if row["ticker"] == ticker]
        for t in range(0, SESSIONS, 37):
            actual = [statements[key][t, n] for key in ("revenue", "revenue@1y")]
            np.testing.assert_allclose(actual, slow(own, DAYS[t]), rtol=1e-12)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), t=st.integers(60, SESSIONS - 2))
def test_filings_after_t_do_not_change_values_up_to_t(seed: int, t: int) -> None:
    rows = random_filings(seed)
    until = [row for row in rows if row["known_at"] <= DAYS[t]]
    if not until:
        return
    all_of_them, cut = laid_out(rows), laid_out(until)
    for key in cut:
        assert all_of_them[key][: t + 1].tobytes() == cut[key][: t + 1].tobytes()


def test_random_filings_cover_all_cases() -> None:
    seen: npt.NDArray[np.float64] = np.array(
        [slow([r for r in random_filings(s) if r["ticker"] == "A"], DAYS[700]) for s in range(30)]
    )
    assert (np.isfinite(seen).sum(axis=0) >= 8).all()


def test_many_firms_and_items_are_fast() -> None:
    ends = pl.DataFrame({"period_end": [D(2018, 3, 31) + dt.timedelta(days=91 * k) for k in range(12)]})
    firms = pl.DataFrame({"ticker": [f"F{i:04}" for i in range(448)]})
    items = pl.DataFrame({"item": [f"item_{i}" for i in range(30)]})
    frame = firms.join(items, how="cross").join(ends, how="cross")
    frame = pl.concat(
        [frame.with_columns(known_at=pl.col("period_end").dt.offset_by(f"{lag}d")) for lag in (40, 130)]
    ).with_columns(value=pl.int_range(pl.len()).cast(pl.Float64), months=pl.lit(3, dtype=pl.Int64))
    tickers, split_TN = tuple(firms["ticker"]), np.ones((SESSIONS, 448))
    statements_as_of(frame.head(10), DATES_T, tickers, split_TN)  # compiles the kernels
    started = time.process_time()
    statements = statements_as_of(frame, DATES_T, tickers, split_TN)
    assert len(frame) == 322_560
    assert time.process_time() - started < 5.0  # of the processor; measured: 0.3 s
    assert np.isfinite(statements["item_3@1y"]).any()


def test_share_count_is_adjusted_from_its_stated_date() -> None:
    """A 4-for-1 split on February 1, between the period's end and the filing on March 1."""
    splits = {D(2019, 2, 1): 4.0, D(2019, 6, 3): 2.0}
    days = [D(2019, 3, 1), D(2019, 6, 2), D(2019, 6, 3)]
    original = filed(D(2018, 12, 31), D(2019, 3, 1), 100.0, None, "shares_outstanding")
    for stated_on, value in ((None, 100.0), (D(2018, 12, 31), 100.0), (D(2019, 1, 31), 100.0)):
        row = {**original, "stated_on": stated_on, "value": value}
        assert known_on([row], days, "shares_outstanding", splits) == [400, 400, 800]
    for stated_on in (D(2019, 2, 1), D(2019, 3, 1)):  # the count already contains the split
        row = {**original, "stated_on": stated_on, "value": 400.0}
        assert known_on([row], days, "shares_outstanding", splits) == [400, 400, 800]


def test_per_share_amount_is_divided_by_later_splits() -> None:
    """Quarters of 4 per share before a 4-for-1 split and 1 after it are 4 per year in today's shares."""
    rows = [filed(end, end + dt.timedelta(days=40), 4.0, 3, "eps") for end in QUARTERS[:4]]
    rows.append({**filed(QUARTERS[4], D(2019, 5, 10), 1.0, 3, "eps"), "stated_on": D(2019, 5, 10)})
    rows = [{"stated_on": None, **row} for row in rows]
    splits = {D(2019, 4, 15): 4.0}  # after the quarter's end and before the filing
    days = [D(2019, 2, 9), D(2019, 4, 15), D(2019, 5, 10)]
    assert known_on(rows, days, "eps", splits) == [16, 4, 4]


def test_splits_do_not_change_earlier_counts() -> None:
    rows = [
        {
            **filed(D(2018, 12, 31), D(2019, 3, 1), 400.0, None, "shares_outstanding"),
            "stated_on": D(2019, 2, 1),
        }
    ]
    days = [D(2019, 3, 1), D(2019, 9, 1)]
    one = known_on(rows, days, "shares_outstanding", {D(2019, 2, 1): 4.0})
    other = known_on(rows, days, "shares_outstanding", {D(2019, 2, 1): 4.0, D(2019, 9, 2): 7.0})
    assert one == other == [400, 400]
