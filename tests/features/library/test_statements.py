"""Every statement feature by hand, for a firm with round numbers, a restated year and a following year.

All values below are computed by hand from the table in this file, not by the package. The firm reports years
that end on 31 December 2018, 2019 and 2020. 2019 is published in March 2020 and restated in July 2020; 2020
is published in March 2021. Each feature is therefore tested before the restatement, after it, and when the
restated year is the year earlier.
"""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import polars as pl
import pytest

from features.library.characteristics import CHARACTERISTICS
from features.panel.panel import Panel, build_panel

D = dt.date
PRICE = 20.0
FIRST, LAST = D(2019, 1, 1), D(2021, 6, 30)
SPLIT = D(2020, 10, 1)  # a 2-for-1 split; prices are halved from then on
RESTATED, PUBLISHED = D(2020, 7, 1), D(2021, 3, 1)
BEFORE, AFTER, NEXT = RESTATED - dt.timedelta(days=1), RESTATED, PUBLISHED

#                                2018  2019  2019 as restated (None: as it was)  2020
YEARS: dict[str, tuple[float, float, float | None, float]] = {
    "revenue": (400, 500, 450, 600),
    "gross_profit": (100, 200, 150, 240),
    "operating_income": (60, 80, 45, 90),
    "interest_expense": (5, 10, None, 9),
    "net_income": (40, 50, 20, 60),
    "operating_cash_flow": (50, 70, None, 45),
    "capital_expenditure": (20, 30, None, 15),
    "dividends_paid": (8, 10, None, 12),
    "research_and_development": (20, 25, 18, 27),
    "total_assets": (800, 1000, 900, 1200),
    "current_assets": (300, 400, 330, 500),
    "cash": (80, 100, 90, 150),
    "inventory": (60, 90, None, 120),
    "fixed_assets": (350, 410, None, 500),
    "total_liabilities": (400, 600, 540, 660),
    "current_liabilities": (150, 200, None, 250),
    "short_term_debt": (20, 40, None, 50),
    "long_term_debt": (130, 160, None, 190),
    "book_equity": (400, 400, 360, 540),
    "retained_earnings": (200, 250, 225, 300),
    "shares_outstanding": (10, 12.5, None, 24),
}

# name: before the restatement, after it, and with 2020 published. Market equity: 12.5 shares at 20 are 250;
# the 24 shares of 2020, counted after the split and quoted at 10, are 240.
EXPECTED: dict[str, tuple[float, float, float]] = {
    "log_market_equity": (math.log(250), math.log(250), math.log(240)),
    "log_total_assets": (math.log(1000), math.log(900), math.log(1200)),
    "log_revenue": (math.log(500), math.log(450), math.log(600)),
    "book_to_market": (1.6, 1.44, 2.25),
    "earnings_yield": (0.2, 0.08, 0.25),
    "sales_yield": (2.0, 1.8, 2.5),
    "cash_flow_yield": (0.28, 0.28, 0.1875),
    "free_cash_flow_yield": (0.16, 0.16, 0.125),
    "dividend_yield": (0.04, 0.04, 0.05),
    "research_to_market": (0.1, 0.072, 0.1125),
    "cash_to_market": (0.4, 0.36, 0.625),
    "assets_to_market": (4.0, 3.6, 5.0),
    "debt_to_market": (0.8, 0.8, 1.0),
    "operating_income_to_enterprise_value": (
        80 / 350,
        45 / 360,
        90 / 330,
    ),  # 250+200-100, 250+200-90, 240+240-150
    "gross_profitability": (0.2, 150 / 900, 0.2),
    "return_on_assets": (0.05, 20 / 900, 0.05),
    "cash_profitability": (0.07, 70 / 900, 0.0375),
    "asset_turnover": (0.5, 0.5, 0.5),
    "accruals": (-0.02, -50 / 900, 0.0125),
    "research_to_assets": (0.025, 0.02, 0.0225),
    "capex_to_assets": (0.03, 30 / 900, 0.0125),
    "leverage": (0.6, 0.6, 0.55),
    "debt_to_assets": (0.2, 200 / 900, 0.2),
    "cash_to_assets": (0.1, 0.1, 0.125),
    "tangibility": (0.41, 410 / 900, 500 / 1200),
    "retained_earnings_to_assets": (0.25, 0.25, 0.25),
    "return_on_equity": (0.125, 20 / 360, 60 / 540),
    "operating_profitability": (0.2, 0.125, 90 / 540),
    "gross_margin": (0.4, 150 / 450, 0.4),
    "operating_margin": (0.16, 0.1, 0.15),
    "net_margin": (0.1, 20 / 450, 0.1),
    "research_to_sales": (0.05, 0.04, 0.045),
    "current_ratio": (2.0, 1.65, 2.0),
    "interest_coverage": (8.0, 4.5, 10.0),
    # (current assets - cash) - (current liabilities - short-term debt): 90, 140 restated to 80, 150
    "working_capital_accruals": (50 / 800, -10 / 800, 70 / 900),
    "asset_growth": (0.25, 0.125, 300 / 900),
    "revenue_growth": (0.25, 0.125, 150 / 450),
    "book_equity_growth": (0.0, -0.1, 0.5),
    "research_growth": (0.25, -0.1, 0.5),
    "capex_growth": (0.5, 0.5, -0.5),
    "inventory_change": (30 / 800, 30 / 800, 30 / 900),
    "investment_to_assets": (90 / 800, 90 / 800, 120 / 900),
    "debt_change": (50 / 800, 50 / 800, 40 / 900),
    "earnings_change": (10 / 800, -20 / 800, 40 / 900),
    "gross_margin_change": (0.15, 1 / 3 - 0.25, 0.4 - 1 / 3),
    "operating_margin_change": (0.01, -0.05, 0.05),
    "net_margin_change": (0.0, 20 / 450 - 0.1, 0.1 - 20 / 450),
    "return_on_assets_change": (0.0, 20 / 900 - 0.05, 0.05 - 20 / 900),
    "asset_turnover_change": (0.0, 0.0, 0.0),
    "current_ratio_change": (0.0, -0.35, 0.35),
    "leverage_change": (0.1, 0.1, -0.05),
    "cash_change": (0.0, 0.0, 0.025),
    "capex_change": (0.005, 30 / 900 - 0.025, 0.0125 - 30 / 900),
    # 252 sessions before BEFORE and AFTER only 2018 was known; before NEXT, 2019 as first published
    "asset_growth_252": (0.25, 0.125, 0.2),
    "net_share_issuance": (math.log(1.25), math.log(1.25), math.log(24 / 25)),
    # each day, a thousandth of the shares known on that day is traded, before and after the split
    "turnover_21": (0.001, 0.001, 0.001),
    "turnover_252": (0.001, 0.001, 0.001),
}


def shares_known(day: dt.date) -> float:
    """Shares as known on a day, in shares of that day."""
    if day >= PUBLISHED:
        return 24.0
    return (12.5 if day >= D(2020, 3, 1) else 10.0) * (2.0 if day >= SPLIT else 1.0)


@pytest.fixture(scope="module")
def panel() -> Panel:
    days = [FIRST + dt.timedelta(days=i) for i in range((LAST - FIRST).days + 1)]
    price = [PRICE / (2.0 if day >= SPLIT else 1.0) for day in days]
    prices = pl.DataFrame(
        {
            "date": days,
            "ticker": "A",
            "open": price,
            "high": price,
            "low": price,
            "close": price,
            "volume": [0.001 * shares_known(day) for day in days],
            "split_ratio": [2.0 if day == SPLIT else 1.0 for day in days],
            "dividend": 0.0,
        }
    )
    rows = []
    for item, (y2018, y2019, restated, y2020) in YEARS.items():
        known = [
            (D(2018, 12, 31), FIRST, y2018),
            (D(2019, 12, 31), D(2020, 3, 1), y2019),
            (D(2020, 12, 31), PUBLISHED, y2020),
        ]
        if restated is not None:
            known.append((D(2019, 12, 31), RESTATED, restated))
        rows += [
            {
                "ticker": "A",
                "period_end": end,
                "known_at": day,
                "item": item,
                "value": float(value),
                "months": 12,
            }
            for end, day, value in known
        ]
    return build_panel(prices, None, pl.DataFrame(rows))


def test_every_statement_feature_has_a_hand_computed_value() -> None:
    assert set(EXPECTED) == {name for name, entry in CHARACTERISTICS.items() if entry.needs_statements}


@pytest.mark.parametrize("name", EXPECTED)
def test_statement_feature_equals_hand_computation(panel: Panel, name: str) -> None:
    values = CHARACTERISTICS[name].compute(panel)[:, 0]
    at = [int(np.searchsorted(panel.dates_T, np.datetime64(day))) for day in (BEFORE, AFTER, NEXT)]
    np.testing.assert_allclose(values[at], EXPECTED[name], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    "name", ["return_on_assets", "asset_turnover", "revenue_growth", "gross_margin_change"]
)
def test_quarterly_statements_give_the_same_values(panel: Panel, name: str) -> None:
    ends = [D(y, *day) for y in (2018, 2019, 2020) for day in ((3, 31), (6, 30), (9, 30), (12, 31))]
    rows = []
    for item, values in YEARS.items():
        flow = item in ("revenue", "gross_profit", "net_income")
        for k, end in enumerate(ends):
            year = (values[0], values[1], values[3])[k // 4]
            share = (0.1, 0.2, 0.3, 0.4)[k % 4] if flow else 1.0  # quarters of a year's flow
            known = end + dt.timedelta(days=60)
            row = {"ticker": "A", "period_end": end, "item": item, "months": 3 if flow else None}
            rows.append(row | {"known_at": known, "value": share * year})
            if values[2] is not None and k // 4 == 1:
                rows.append(row | {"known_at": RESTATED, "value": share * values[2]})
    days = panel.dates_T.astype("datetime64[D]").tolist()
    prices = pl.DataFrame({"date": days, "ticker": "A", "close": PRICE})
    null = pl.lit(None, dtype=pl.Float64)
    prices = prices.with_columns(
        *(null.alias(column) for column in ("open", "high", "low", "volume")),
        pl.lit(1.0).alias("split_ratio"),
        pl.lit(0.0).alias("dividend"),
    )
    quarterly = build_panel(prices, None, pl.DataFrame(rows))
    value_T = CHARACTERISTICS[name].compute(quarterly)[:, 0]
    # before the quarter of March 2020 is published, the newest year is 2019; a year later it is 2020
    at = [days.index(D(2020, 3, 15)), days.index(D(2021, 3, 15))]
    np.testing.assert_allclose(value_T[at], [EXPECTED[name][0], EXPECTED[name][2]], rtol=1e-12, atol=1e-15)


def test_non_positive_denominator_gives_nan() -> None:
    day = D(2020, 3, 1)
    prices = pl.DataFrame({"date": [day], "ticker": "A", "close": 1.0}).with_columns(
        *(pl.lit(None, dtype=pl.Float64).alias(c) for c in ("open", "high", "low", "volume")),
        pl.lit(1.0).alias("split_ratio"),
        pl.lit(0.0).alias("dividend"),
    )
    values = {
        "net_income": 5.0,
        "book_equity": -2.0,
        "total_assets": 0.0,
        "long_term_debt": 3.0,
        "revenue": 2.0,
    }
    rows = [
        {"ticker": "A", "period_end": day, "known_at": day, "item": item, "value": value}
        for item, value in ({**values, "short_term_debt": None}).items()
    ]
    rows.append({**rows[0], "item": "short_term_debt", "period_end": D(2018, 1, 1), "value": 9.0})  # stale
    panel = build_panel(prices, None, pl.DataFrame(rows))
    assert np.isnan(CHARACTERISTICS["return_on_equity"].compute(panel)).all()
    assert np.isnan(CHARACTERISTICS["return_on_assets"].compute(panel)).all()
    assert CHARACTERISTICS["net_margin"].compute(panel)[0, 0] == 2.5
