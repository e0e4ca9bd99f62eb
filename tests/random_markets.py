"""A random market with everything that a feature must handle, as tables of a lake.

Halts, listings, a delisting, splits, dividends, unknown opens, days without volume, flat ranges, quarterly
statements and restatements.
"""

from __future__ import annotations

import datetime as dt
import functools
import math

import exchange_calendars as xcals
import numpy as np
import numpy.typing as npt
import polars as pl

from features.panel.panel import Panel, build_panel

T, N = 1000, 9
MAX_HALT = 20  # maximum halt over which a close is carried
SESSIONS = xcals.get_calendar("XNYS", start="2020-01-02", end="2024-06-03").sessions
DAYS: list[dt.date] = [session.date() for session in SESSIONS[:T]]  # with weekends and holidays in between
TICKERS = [f"F{i}" for i in range(N)]
FLOWS = (
    *("revenue", "gross_profit", "research_and_development", "operating_income", "interest_expense"),
    *("net_income", "operating_cash_flow", "capital_expenditure", "dividends_paid"),
)
STOCKS = (
    *("total_assets", "current_assets", "cash", "inventory", "fixed_assets", "total_liabilities"),
    *("current_liabilities", "short_term_debt", "long_term_debt", "book_equity", "retained_earnings"),
    "shares_outstanding",
)
ANY_SIGN = ("book_equity", "net_income", "operating_income", "operating_cash_flow", "retained_earnings")
QUARTERLY = ("F0", "F1", "F2", "F7")  # their flows are quarterly; the others give no span
Tables = dict[str, pl.DataFrame]
FloatArray = npt.NDArray[np.float64]
nan = float("nan")


def random_tables(seed: int) -> Tables:
    """Simulate a market: raw prices with splits and dividends, two groups with a change, statements."""
    rng = np.random.default_rng(seed)
    prices = []
    for i, ticker in enumerate(TICKERS):
        value = 20.0 + 10 * i
        first, last = (40 if i == 1 else 0), (650 if i == 2 else T - 1)
        for t in range(first, last + 1):
            value *= 1.0 if rng.random() < 0.04 else math.exp(rng.normal(0, 0.02))
            split = float(rng.choice([2.0, 0.5, 3.0])) if rng.random() < 0.01 else 1.0
            value /= split
            halted = (i == 3 and 500 <= t < 540) or (t > 5 and i != 7 and rng.random() < 0.03)
            if halted and split == 1.0:
                continue
            close = None if halted else value
            high, low = (
                value * math.exp(abs(rng.normal(0, 0.01))),
                value * math.exp(-abs(rng.normal(0, 0.01))),
            )
            if i != 7 and rng.random() < 0.02:
                high = low = value
            prices.append(
                {
                    "date": DAYS[t],
                    "ticker": ticker,
                    "open": None if i != 7 and rng.random() < 0.03 else float(rng.uniform(low, high)),
                    "high": high,
                    "low": low,
                    "close": close,
                    "volume": 0.0 if i != 7 and rng.random() < 0.02 else float(rng.integers(1_000, 90_000)),
                    "split_ratio": split,
                    "dividend": 0.02 * value if rng.random() < 0.01 else 0.0,
                }
            )
    groups = [
        {"ticker": ticker, "valid_from": DAYS[0], "valid_to": None, "industry": "AB"[i % 2]}
        for i, ticker in enumerate(TICKERS[:8])
    ]
    groups[0]["valid_to"] = DAYS[400]
    groups.append({"ticker": "F0", "valid_from": DAYS[400], "valid_to": None, "industry": "B"})
    statements = [
        {
            "ticker": ticker,
            "period_end": quarter_end(k),
            "known_at": quarter_end(k) + dt.timedelta(days=int(days)),
            "item": item,
            "value": float(rng.normal(5, 4)) if item in ANY_SIGN else float(rng.uniform(1, 9)),
            "months": 3 if item in FLOWS and ticker in QUARTERLY else None,
        }
        for ticker in TICKERS
        for k in range(23)
        for item in (*FLOWS, *STOCKS)
        if ticker != "F8" and (ticker != "F6" or k < 9) and rng.random() < 0.97  # F6 stops filing statements
        for days in sorted({int(rng.integers(20, 80)), *(rng.integers(90, 400, rng.integers(0, 2)))})
    ]
    nothing = dict.fromkeys(("sector", "delisted_on", "delisting_return", "delisting_reason", "exchange"))
    types = {"valid_to": pl.Date, "delisted_on": pl.Date, "delisting_return": pl.Float64}
    types |= dict.fromkeys(("sector", "delisting_reason", "exchange"), pl.String)
    return {
        "prices": pl.DataFrame(prices, infer_schema_length=None),
        "securities": pl.DataFrame([row | nothing for row in groups], schema_overrides=types),
        "fundamentals": pl.DataFrame(
            statements, infer_schema_length=None, schema_overrides={"months": pl.Int64}
        ),
    }


@functools.cache
def quarter_end(k: int) -> dt.date:
    return DAYS[0] - dt.timedelta(days=500) + dt.timedelta(days=91 * k)


def panel_of(tables: Tables) -> Panel:
    return build_panel(tables["prices"], tables["securities"], tables["fundamentals"])
