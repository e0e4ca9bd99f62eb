"""The accounts against an independent bookkeeper with share counts, from raw prices and events.

The two NAVs of `backtest.accounts.accounting` share the order of events, the tradability of firms and the
value of halted firms, so their agreement cannot reveal mistakes in these. The loop below was written from the
module's docstring and uses no code of the package. It holds shares, splits them, reinvests dividends, and
reads raw prices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from ending_markets import STALE, START, RawMarket, raw_market
from hypothesis import given, settings
from hypothesis import strategies as st

from backtest.accounts.accounting import run_book
from backtest.costs import CostModel
from features.panel.delistings import DelistingRule
from features.panel.panel import build_panel

HALF_SPREAD, COMMISSION, BORROW = 0.0010, 0.0005, 0.0010  # traded notional; short value per session
UNKNOWN = -0.1  # return of delistings for unknown reasons, chosen so that it affects the accounts
COSTS = CostModel(half_spread_bps=10, commission_bps=5, borrow_bps_per_year=2520)
COLUMNS = (
    "nav",
    "return_gross",
    "half_spread",
    "commission",
    "borrow",
    "turnover",
    "unfilled",
    "unpriced",
    "leverage",
    "cash",
)


@dataclass
class Bookkeeper:
    """A book over share counts. Prices, dividends and shares are per share of the day."""

    market: RawMarket
    cash: float = 1.0
    shares: dict[str, float] = field(default_factory=dict)
    price: dict[str, float] = field(default_factory=dict)  # last close, divided by the splits since
    waiting: dict[str, float] = field(
        default_factory=dict
    )  # dividend per share that has not been reinvested yet
    last: dict[str, int] = field(default_factory=dict)  # session of the last close
    paid_out: set[str] = field(default_factory=set)  # holders have been paid out
    presumed: dict[str, float] = field(default_factory=dict)  # what holders who wait for a record may expect
    borrowed: float = 0.0  # value of short positions after the last trades
    nav: float = 1.0

    def session(self, t: int, order: dict[str, float] | None) -> dict[str, float]:
        """Process session t, with the weights that are traded at its close."""
        market = self.market
        paid_out = {}
        for ticker in market.tickers:
            self.split_and_credit(t, ticker)
            if (t, ticker) in market.close:
                self.reinvest(t, ticker)
            elif ticker in self.last and ticker not in self.paid_out:
                paid = self.ending(t, ticker)
                if paid is not None and self.waits(t, ticker, paid):
                    self.presumed[ticker] = 1.0 + paid
                elif paid is not None:
                    self.presumed.pop(ticker, None)
                    self.paid_out.add(ticker)
                    paid_out[ticker] = self.shares.get(ticker, 0.0) * self.price[ticker] * (1.0 + paid)
                    self.shares[ticker] = 0.0
        borrow = BORROW * self.borrowed
        self.cash += sum(paid_out.values()) - borrow
        before = self.cash + self.value()
        traded = unfilled = 0.0
        wanted = {} if order is None else {x: order[x] * before - self.worth(x) for x in market.tickers}
        share = 1.0
        if order is not None and min(order.values()) >= 0 and sum(order.values()) > 0:
            can = {x: trade for x, trade in wanted.items() if (t, x) in market.close}
            stuck = -sum(min(trade, 0.0) for x, trade in wanted.items() if x not in can)
            lacking = min(sum(can.values()) - self.cash, stuck)
            buys = sum(max(trade, 0.0) for trade in can.values())
            if lacking > 0 and buys > 0:
                share = max(1.0 - lacking / buys, 0.0)
        for ticker, missing in wanted.items():
            trade = missing
            if missing > 0 and (t, ticker) in market.close:
                trade, unfilled = missing * share, unfilled + missing * (1.0 - share)
            if (t, ticker) in market.close:
                self.shares[ticker] = self.shares.get(ticker, 0.0) + trade / self.price[ticker]
                self.cash -= trade
                traded += abs(trade)
            else:
                unfilled += abs(trade)
        self.cash -= (HALF_SPREAD + COMMISSION) * traded
        start, self.nav = self.nav, self.cash + self.value()
        values = {ticker: self.worth(ticker) for ticker in self.price}
        self.borrowed = -sum(value for value in values.values() if value < 0)
        gap = self.missing_in_a_gap(t)
        return {
            "nav": self.nav,
            "return_gross": (before + borrow - start) / start,
            "half_spread": HALF_SPREAD * traded / start,
            "commission": COMMISSION * traded / start,
            "borrow": borrow / start,
            "turnover": traded / 2 / before,
            "unfilled": unfilled / 2 / before,
            "unpriced": sum(abs(values[ticker]) for ticker in gap) / self.nav,
            "leverage": sum(map(abs, values.values())) / self.nav,
            "cash": self.cash / self.nav,
        }

    def split_and_credit(self, t: int, ticker: str) -> None:
        ratio = self.market.split.get((t, ticker), 1.0)
        self.shares[ticker] = self.shares.get(ticker, 0.0) * ratio
        if ticker in self.price:
            self.price[ticker] /= ratio
        self.waiting[ticker] = self.waiting.get(ticker, 0.0) / ratio
        self.waiting[ticker] += self.market.dividend.get((t, ticker), 0.0)

    def reinvest(self, t: int, ticker: str) -> None:
        close = self.market.close[t, ticker]
        self.shares[ticker] *= 1.0 + self.waiting[ticker] / close
        self.waiting[ticker] = 0.0
        self.price[ticker], self.last[ticker] = close, t
        self.paid_out.discard(ticker)
        self.presumed.pop(ticker, None)

    def ending(self, t: int, ticker: str) -> float | None:
        """Return the payout of a firm without a close at t; None while it is halted."""
        record = self.market.records.get(ticker)
        if record is not None:
            day = (record["delisted_on"] - START).days  # type: ignore[operator]
            if day >= self.last[ticker] and t >= day:  # a later close overrules the record
                if record["delisting_return"] is not None:
                    return float(record["delisting_return"])  # type: ignore[arg-type]
                return self.assumed(record)
        return self.assumed(None) if t - self.last[ticker] > STALE else None

    def waits(self, t: int, ticker: str, paid: float) -> bool:
        """Whether a record that comes later, and before any price, changes what is paid."""
        record = self.market.records.get(ticker)
        if record is None:
            return False
        day = (record["delisted_on"] - START).days  # type: ignore[operator]
        priced = any((s, ticker) in self.market.close for s in range(t + 1, day + 1))
        return t < day < self.market.sessions and not priced and self.ending(day, ticker) != paid

    @staticmethod
    def assumed(record: dict[str, object] | None) -> float:
        reason = None if record is None else record["delisting_reason"]
        if record is not None and reason == "performance":
            return -0.55 if record["exchange"] == "NASDAQ" else -0.30
        return 0.0 if reason == "merger" else UNKNOWN

    def missing_in_a_gap(self, t: int) -> list[str]:
        """Return the firms without a price, if these are at least ten and a quarter of the market."""
        silent = [x for x in self.last if 0 < t - self.last[x] <= STALE]
        listed = len(silent) + sum((t, x) in self.market.close for x in self.market.tickers)
        return [x for x in silent if x not in self.paid_out] if len(silent) >= max(10, listed / 4) else []

    def value(self) -> float:
        return sum(self.worth(ticker) for ticker in self.price)

    def worth(self, ticker: str) -> float:
        price = self.price.get(ticker, 0.0) * self.presumed.get(ticker, 1.0)
        return self.shares.get(ticker, 0.0) * price


def random_weights(rng: np.random.Generator, T: int, N: int, *, long_only: bool) -> np.ndarray:
    """Draw weights with gross exposure up to 0.9, with zero weights and sessions without a decision."""
    weight_TN = rng.normal(size=(T, N)) * (rng.random((T, N)) < 0.6)
    weight_TN = np.abs(weight_TN) if long_only else weight_TN
    weight_TN *= rng.uniform(0.2, 1.0, (T, 1)) / np.maximum(np.abs(weight_TN).sum(axis=1, keepdims=True), 1)
    weight_TN[rng.random(T) < 0.5] = np.nan
    return weight_TN


def compare(seed: int, delay: int, *, long_only: bool) -> dict[str, float]:
    """Run both on one market and count the events."""
    market = raw_market(seed)
    panel = build_panel(
        market.prices(), market.securities(), delisting_rule=DelistingRule(STALE, unknown_return=UNKNOWN)
    )
    T, N = panel.close_TN.shape
    assert (T, panel.tickers_N) == (market.sessions, market.tickers)
    target_TN = random_weights(np.random.default_rng(seed), T, N, long_only=long_only)
    traded_TN = ~np.isnan(panel.close_TN)
    book = run_book(
        target_TN,
        panel.total_return_index_TN,
        traded_TN,
        COSTS,
        delay,
        delisted_TN=panel.delisted_TN,
        keep_ledger=True,
    )
    assert book.ruined_at is None
    bookkeeper = Bookkeeper(market)
    rows = []
    for t in range(T):
        decided = t >= delay and not np.isnan(target_TN[t - delay]).any()
        order = dict(zip(panel.tickers_N, target_TN[t - delay].tolist(), strict=True)) if decided else None
        rows.append(bookkeeper.session(t, order))
    own = {name: np.array([row[name] for row in rows]) for name in COLUMNS}
    for name in COLUMNS:
        navs = {"NAV from weights": book.nav_net_T, "NAV from positions": book.nav_ledger_T}
        values: Any = book.costs_T[name] if name in book.costs_T else getattr(book, f"{name}_T", None)
        for what, ours in navs.items() if name == "nav" else ((name, values),):
            np.testing.assert_allclose(ours, own[name], rtol=1e-10, atol=1e-13, err_msg=what)
    released = book.ledger["released"]
    return {
        "paid out": float((released != 0).sum()),
        "unfilled": float((own["unfilled"] > 0).sum()),
        "unpriced": float((own["unpriced"] > 0).sum()),
        "short": float((own["borrow"] > 0).sum()),
    }


@settings(max_examples=100)
@given(seed=st.integers(0, 1_000_000), delay=st.integers(0, 3), long_only=st.booleans())
def test_accounts_equal_those_of_an_independent_bookkeeper(seed: int, delay: int, long_only: bool) -> None:
    compare(seed, delay, long_only=long_only)


def test_random_books_cover_all_events() -> None:
    counts = [compare(seed, 1, long_only=False) for seed in range(60)]
    for name in counts[0]:
        assert sum(count[name] for count in counts) >= 20, name
    markets = [raw_market(seed) for seed in range(20)]
    assert sum(len(market.split) for market in markets) > 100
    halted = sum(key not in market.close for market in markets for key in market.dividend)
    assert halted > 20  # dividends that are reinvested at the next close


def test_bookkeeper_by_hand() -> None:
    """Buy 40% at 10; a 2-for-1 split with a dividend of 1 per new share, a halt, a delisting at -30%."""
    market = RawMarket(
        sessions=5,
        tickers=("A",),
        close={(0, "A"): 10.0, (1, "A"): 5.0},
        split={(1, "A"): 2.0},
        dividend={(1, "A"): 1.0},
        records={"A": {"delisted_on": START.replace(day=START.day + 3), "delisting_return": -0.3}},
    )
    bookkeeper = Bookkeeper(market)
    rows = [bookkeeper.session(t, {"A": 0.4} if t == 0 else None) for t in range(5)]
    # 0.04 shares at 10; costs 0.0015 * 0.4. Then 0.08 shares at 5, 0.08 in cash buys 0.016 more: 0.096 * 5
    nav = [1 - 0.0006, 0.5994 + 0.48, 0.5994 + 0.48, 0.5994 + 0.336, 0.5994 + 0.336]
    assert [row["nav"] for row in rows] == pytest.approx(nav, rel=1e-14)
    assert bookkeeper.shares["A"] == 0.0
