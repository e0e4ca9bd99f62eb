"""Quarterly statements of the simulated firms: published with a lag, and sometimes restated.

Shape suffixes: N firms, Q quarters, R reviews.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arrays import BoolArray, FloatArray
from pipelines.sources.simulated.config import MarketConfig
from pipelines.sources.simulated.firms import Firms

Days = npt.NDArray[np.datetime64]
_QUARTERS_BEFORE_LISTING = 4
_COUNT = "shares_outstanding"


@dataclass(frozen=True, slots=True, eq=False)
class Statements:
    """The values that each firm reports for each quarter.

    ``known_at_NQ`` is the date of first publication, ``restated_at_NQ`` that of the restatement (NaT: never),
    which multiplies book equity and gross profit by ``revision_NQ``. ``filed_NQ`` is False for quarters that
    ended long before the firm was listed, or whose statement was not published before it was delisted.
    """

    period_end_Q: Days
    known_at_NQ: Days
    restated_at_NQ: Days
    revision_NQ: FloatArray
    filed_NQ: BoolArray
    items: dict[str, FloatArray]  # item -> [N, Q], USD, as first published

    def value(self, item: str, *, restated: bool) -> FloatArray:
        """Return an item [N, Q] as first published, or as restated."""
        revised = restated and item in ("book_equity", "gross_profit")
        return self.items[item] * self.revision_NQ if revised else self.items[item]

    def as_of(self, item: str, days_R: Days) -> FloatArray:
        """Return the latest version of the last known period's value on each date [R, N]."""
        known_RNQ = self.filed_NQ & (self.known_at_NQ <= days_R[:, None, None])
        period_RN = np.where(known_RNQ, np.arange(len(self.period_end_Q)), -1).max(axis=2)
        firm_N = np.arange(len(self.filed_NQ))
        restated_RN = self.restated_at_NQ[firm_N, period_RN] <= days_R[:, None]  # NaT compares as False
        latest_RN = np.where(
            restated_RN,
            self.value(item, restated=True)[firm_N, period_RN],
            self.value(item, restated=False)[firm_N, period_RN],
        )
        return np.where(period_RN >= 0, latest_RN, np.nan)


def draw_statements(
    config: MarketConfig, firms: Firms, dates_T: Days, rng: np.random.Generator
) -> Statements:
    """Draw the statements of every firm.

    At listing, log book-to-market is normal(-0.7, 0.6) and assets are 1.5 to 4 times book equity; book equity
    then grows independently of the price. Gross profit over assets is a firm's mean plus an AR(1) with
    coefficient 0.8. Statements are published 20 to 80 days after the end of the quarter.
    """
    period_end_Q = _quarter_ends(*(_day(dates_T[t]) for t in (0, -1)))
    n, q = len(firms.ticker_N), len(period_end_Q)
    listed_N, left_N = dates_T[firms.first_N], dates_T[firms.last_N]
    growth_NQ = np.cumsum(rng.normal(0.01, 0.03, (n, q)), axis=1)
    at_listing_N = np.clip(np.searchsorted(period_end_Q, listed_N) - 1, 0, q - 1)
    growth_NQ -= growth_NQ[np.arange(n), at_listing_N][:, None]
    log_book_N = firms.log_size_N + rng.normal(-0.7, 0.6, n)
    book_NQ = np.exp(log_book_N[:, None] + growth_NQ)
    assets_NQ = book_NQ * rng.uniform(1.5, 4.0, n)[:, None]
    profit_NQ = _profitability(n, q, rng) * assets_NQ
    income_NQ = 0.4 * profit_NQ - (0.012 + rng.normal(0.0, 0.004, (n, q))) * assets_NQ
    lag_NQ = rng.integers(25, 75, n)[:, None] + rng.integers(-5, 6, (n, q))
    known_at_NQ = period_end_Q + lag_NQ.astype("timedelta64[D]")
    restated_NQ = rng.random((n, q)) < config.restated_share
    later_NQ = known_at_NQ + rng.integers(60, 201, (n, q)).astype("timedelta64[D]")
    revision_NQ = np.exp(rng.normal(0.0, 0.08, (n, q)))
    # a separate generator, so that adding an item does not change the draws behind the market's truth
    items = {
        "book_equity": book_NQ,
        "total_assets": assets_NQ,
        "gross_profit": profit_NQ,
        "net_income": income_NQ,
    }
    items |= _details(items, rng.spawn(1)[0])
    history_N = (listed_N - np.timedelta64(92 * _QUARTERS_BEFORE_LISTING, "D")).astype("datetime64[D]")
    return Statements(
        period_end_Q=period_end_Q,
        known_at_NQ=known_at_NQ,
        restated_at_NQ=np.where(
            restated_NQ & (later_NQ <= left_N[:, None]), later_NQ, np.datetime64("NaT", "D")
        ),
        revision_NQ=revision_NQ,
        filed_NQ=(period_end_Q >= history_N[:, None]) & (known_at_NQ <= left_N[:, None]),
        items=items,
    )


def _details(items: dict[str, FloatArray], rng: np.random.Generator) -> dict[str, FloatArray]:
    """Draw the remaining items [N, Q] from their totals; none of them affects returns.

    Liabilities are assets less book equity. Every other item is a share of a total: a firm's own share, times
    exp(normal(0, 0.05)) each quarter.
    """
    book_NQ, assets_NQ = items["book_equity"], items["total_assets"]
    profit_NQ, income_NQ = items["gross_profit"], items["net_income"]

    def share(low: float, high: float) -> FloatArray:
        own_N1 = rng.uniform(low, high, (len(book_NQ), 1))
        drawn: FloatArray = own_N1 * np.exp(rng.normal(0.0, 0.05, book_NQ.shape))
        return drawn

    revenue_NQ = profit_NQ / np.minimum(share(0.2, 0.7), 0.95)
    liabilities_NQ = assets_NQ - book_NQ
    current_NQ = assets_NQ * share(0.2, 0.5)
    due_NQ = liabilities_NQ * share(0.2, 0.5)
    short_NQ, long_NQ = due_NQ * share(0.05, 0.3), (liabilities_NQ - due_NQ) * share(0.1, 0.6)
    interest_NQ = 0.012 * (short_NQ + long_NQ)
    before_tax_NQ = np.where(income_NQ > 0, income_NQ / 0.75, income_NQ)
    depreciation_NQ = assets_NQ * share(0.004, 0.015)
    return {
        "revenue": revenue_NQ,
        "cost_of_revenue": revenue_NQ - profit_NQ,
        "research_and_development": revenue_NQ * share(0.01, 0.12),
        "operating_income": before_tax_NQ + interest_NQ,
        "interest_expense": interest_NQ,
        "income_tax": before_tax_NQ - income_NQ,
        "depreciation": depreciation_NQ,
        "operating_cash_flow": income_NQ + depreciation_NQ + assets_NQ * rng.normal(0.0, 0.01, book_NQ.shape),
        "capital_expenditure": depreciation_NQ * share(0.7, 1.8),
        "dividends_paid": np.maximum(income_NQ, 0.0) * share(0.1, 0.6),
        "current_assets": current_NQ,
        "cash": current_NQ * share(0.1, 0.3),
        "receivables": current_NQ * share(0.1, 0.25),
        "inventory": current_NQ * share(0.1, 0.25),
        "fixed_assets": (assets_NQ - current_NQ) * share(0.4, 0.8),
        "total_liabilities": liabilities_NQ,
        "current_liabilities": due_NQ,
        "accounts_payable": due_NQ * share(0.2, 0.5),
        "short_term_debt": short_NQ,
        "long_term_debt": long_NQ,
        "retained_earnings": book_NQ * share(0.2, 0.8),
    }


def fundamentals_frame(statements: Statements, firms: Firms, shares_NQ: FloatArray) -> pl.DataFrame:
    """Return the statements as the ``fundamentals`` table; restatements are separate rows.

    ``shares_NQ`` is the number of shares outstanding at the end of the quarter. A restatement repeats it, so
    it is always stated as of that date.
    """
    ticker_N = np.asarray(firms.ticker_N)
    n, q = statements.filed_NQ.shape
    period_NQ = np.broadcast_to(statements.period_end_Q, (n, q))
    frames = []
    for restated in (False, True):
        known_NQ = statements.restated_at_NQ if restated else statements.known_at_NQ
        published_NQ = statements.filed_NQ & ~np.isnat(known_NQ)
        filing = pl.format("{}-{}-{}", "ticker", "period_end", pl.lit("A" if restated else "Q"))
        for item in (*statements.items, _COUNT):
            value_NQ = shares_NQ if item == _COUNT else statements.value(item, restated=restated)
            frames.append(
                pl.DataFrame(
                    {
                        "ticker": np.broadcast_to(ticker_N[:, None], (n, q))[published_NQ],
                        "period_end": period_NQ[published_NQ].astype("datetime64[D]"),
                        "known_at": known_NQ[published_NQ].astype("datetime64[D]"),
                        "value": value_NQ[published_NQ],
                    }
                ).select(
                    "ticker",
                    "period_end",
                    "known_at",
                    pl.lit(item).alias("item"),
                    "value",
                    pl.lit("shares" if item == _COUNT else "USD").alias("unit"),
                    filing.alias("filing_id"),
                    pl.when(pl.lit(item == _COUNT)).then("period_end").alias("stated_on"),
                )
            )
    return pl.concat(frames).sort("ticker", "period_end", "known_at", "item")


def _day(date: np.datetime64) -> dt.date:
    day = date.astype("datetime64[D]").item()
    assert isinstance(day, dt.date)
    return day


def _quarter_ends(first: dt.date, last: dt.date) -> Days:
    """Return the last days of calendar quarters, from 18 months before the first session to the last one."""
    months = pl.date_range(first - dt.timedelta(days=548), last, "1mo", closed="both", eager=True)
    days = months.dt.month_end()
    ends: Days = days.filter((days.dt.month() % 3 == 0) & (days <= last)).to_numpy().astype("datetime64[D]")
    return ends


def _profitability(n: int, q: int, rng: np.random.Generator) -> FloatArray:
    """Draw quarterly gross profit over assets [N, Q], with a minimum of 0.5%."""
    mean_N = rng.normal(0.08, 0.025, n)
    noise_NQ = rng.normal(0.0, 0.008, (n, q))
    deviation_NQ = np.empty((n, q))
    deviation_NQ[:, 0] = noise_NQ[:, 0] / 0.6  # stationary start: sqrt(1 - 0.8^2) = 0.6
    for k in range(1, q):
        deviation_NQ[:, k] = 0.8 * deviation_NQ[:, k - 1] + noise_NQ[:, k]
    ratio: FloatArray = np.maximum(mean_N[:, None] + deviation_NQ, 0.005)
    return ratio
