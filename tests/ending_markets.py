"""Random raw prices with halts, gaps, splits, dividends and delistings, as rows and as lake tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from features.arithmetic.rolling import carry
from features.arrays import BoolArray
from features.panel.panel import Panel

START = dt.date(2021, 3, 1)
STALE = 4
REASONS = ("merger", "performance", "unknown", None)
SECURITIES = {
    "ticker": pl.String,
    "valid_from": pl.Date,
    "valid_to": pl.Date,
    "sector": pl.String,
    "industry": pl.String,
    "delisted_on": pl.Date,
    "delisting_return": pl.Float64,
    "delisting_reason": pl.String,
    "exchange": pl.String,
}
"""Columns of ``securities`` that a panel reads."""


def securities_table(rows: Iterable[Mapping[str, object]]) -> pl.DataFrame:
    """Build the securities table of a panel from rows; columns missing in a row are null."""
    return pl.DataFrame([{name: row.get(name) for name in SECURITIES} for row in rows], schema=SECURITIES)


@dataclass(frozen=True)
class RawMarket:
    """Rows by (session, ticker), and delisting records by ticker; session t is the day START + t."""

    sessions: int
    tickers: tuple[str, ...]
    close: dict[tuple[int, str], float]
    split: dict[tuple[int, str], float]
    dividend: dict[tuple[int, str], float]
    records: dict[str, dict[str, object]]

    def prices(self) -> pl.DataFrame:
        keys = sorted({*self.close, *self.split, *self.dividend})
        close = pl.Series([self.close.get(key) for key in keys], dtype=pl.Float64)
        columns = {
            "date": [START + dt.timedelta(days=t) for t, _ in keys],
            "ticker": [ticker for _, ticker in keys],
            "close": close,
            "split_ratio": [self.split.get(key, 1.0) for key in keys],
            "dividend": [self.dividend.get(key, 0.0) for key in keys],
        }
        empty = pl.lit(None, dtype=pl.Float64)
        return pl.DataFrame(columns).with_columns(
            empty.alias(name) for name in ("open", "high", "low", "volume")
        )

    def securities(self) -> pl.DataFrame:
        return securities_table([{"ticker": ticker} | record for ticker, record in self.records.items()])


def raw_market(seed: int, sessions: int = 36, firms: int = 13) -> RawMarket:
    """Draw a market. The last ticker trades on every session, so that every session occurs in the prices."""
    rng = np.random.default_rng(seed)
    tickers = tuple(f"F{n:02}" for n in range(firms))
    close, split, dividend = {}, {}, {}
    records: dict[str, dict[str, object]] = {}
    days = [START + dt.timedelta(days=t) for t in range(sessions)]
    gap = rng.random(sessions) < 0.04  # sessions that most of the market misses
    for ticker in tickers:
        price = float(rng.uniform(5, 200))
        always = ticker == tickers[-1]
        first = int(rng.integers(0, 6)) if rng.random() < 0.3 and not always else 0
        silent_until, gone_after = first, sessions
        if rng.random() < 0.4:
            gone_after = int(rng.integers(first, sessions))
        if rng.random() < 0.5:
            delisted_at = min(max(gone_after + int(rng.integers(-2, 3 * STALE)), 0), sessions - 1)
            paid = float(rng.choice([-1.0, -0.6, 0.15])) if rng.random() < 0.5 else None
            records[ticker] = {
                "valid_from": days[0],
                "delisted_on": days[delisted_at],
                "delisting_return": paid,
                "delisting_reason": REASONS[int(rng.integers(0, 4))],
                "exchange": str(rng.choice(["NYSE", "NASDAQ"])),
            }
        for t in range(first, sessions):
            price *= float(np.exp(rng.normal(0, 0.03)))
            if rng.random() < 0.06:
                silent_until = t + int(rng.integers(1, 2 * STALE + 2))
            absent = t < silent_until or t > gone_after or (gap[t] and rng.random() < 0.95)
            if rng.random() < 0.05 and not (absent and t > gone_after):
                split[t, ticker] = float(rng.choice([2.0, 3.0, 0.2]))
                price /= split[t, ticker]
            if rng.random() < 0.07 and not (absent and t > gone_after):
                dividend[t, ticker] = price * float(rng.uniform(0.001, 0.05))
            if always or not absent:
                close[t, ticker] = price
    present = {ticker for _, ticker in (*close, *split, *dividend)}
    return RawMarket(sessions, tuple(x for x in tickers if x in present), close, split, dividend, records)


def holders_paid(panel: Panel) -> BoolArray:
    """Whether holders have their money: the firm is worthless, or delisted and no later record changes it."""
    value_TN = carry(panel.total_return_index_TN)
    gone_TN: BoolArray = value_TN == 0
    for n in range(panel.n_firms):
        for t in np.flatnonzero(panel.delisted_TN[:, n]):
            ends = np.flatnonzero(~panel.delisted_TN[t:, n])
            spell = value_TN[t : t + int(ends[0]) if len(ends) else None, n]
            gone_TN[t, n] |= bool((spell == spell[0]).all())
    return gone_TN
