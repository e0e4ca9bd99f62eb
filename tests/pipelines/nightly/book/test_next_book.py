"""The book of a night equals the row of a backtest; what is held is the backtest's account at that close."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from features.arrays import FloatArray
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.cut import cut_tables
from pipelines.dataset.market import Market, build_market
from pipelines.lake.lake import Lake
from pipelines.nightly.book.next_book import NextBook, next_book
from pipelines.nightly.data import NightData
from pipelines.results.book_orders import BookOrders, book_orders

BOOKS: dict[str, dict[str, Any]] = {
    "quantile": {
        "kind": "quantile_long_short",
        "quantiles": 4,
        "neutral": ["sector", "beta"],
        "overlap": True,
        "inverse_volatility": True,
        "target_volatility": 0.1,
    },
    "top": {"kind": "top_k_long_only", "k": 4, "rebalance_on": "month_start"},
    "drop": {"kind": "top_k_drop", "k": 5, "n_drop": 1, "rebalance_every": 2},
    "rank": {"kind": "rank_weighted", "neutral": ["beta"], "rebalance_on": "friday"},
    "best": {
        "kind": "optimised",
        "limits": {"max_position": 0.3, "max_sector_net": 0.2, "max_turnover": 0.3},
    },
}
CAPPED: dict[str, Any] = {
    "capital": 2e9,
    "execution": {"participation_cap": 0.05, "window": 10},
    "costs": {"half_spread_bps": "corwin_schultz"},
}
FIRST, NIGHTS = 230, 24


def config(tiny: Mapping[str, Any], book: str, **backtest: object) -> Config:
    return check_config(
        {
            **tiny,
            "label": {**tiny["label"], "horizon": 3, "delay": 1},
            "backtest": {"books": BOOKS, **backtest},
            "features": {**tiny["features"], "group_by": "sector"},
            "nightly": {"book": book},
        },
        origin="nightly book",
    )


def signals_of(market: Market) -> pl.DataFrame:
    """Random signals of the season, as the lake has them: null outside the universe."""
    value_TN = np.random.default_rng(5).normal(size=market.universe_TN.shape)
    frames = []
    for t in range(FIRST, FIRST + NIGHTS):
        inside_N = market.universe_TN[t]
        frames.append(
            pl.DataFrame(
                {
                    "session": [day(market, t)] * market.panel.n_firms,
                    "ticker": list(market.panel.tickers_N),
                    "version": ["run/model"] * market.panel.n_firms,
                    "signal": np.where(inside_N, value_TN[t], np.nan),
                }
            )
        )
    return pl.concat(frames).with_columns(pl.col("signal").fill_nan(None))


def day(market: Market, t: int) -> dt.date:
    date: dt.date = market.panel.dates_T[t].astype("datetime64[D]").item()
    return date


def as_array(signals: pl.DataFrame, market: Market) -> FloatArray:
    signal_TN = np.full(market.universe_TN.shape, np.nan)
    firm = {ticker: n for n, ticker in enumerate(market.panel.tickers_N)}
    session = {day(market, t): t for t in range(market.panel.n_sessions)}
    for date, ticker, value in signals.select("session", "ticker", "signal").iter_rows():
        signal_TN[session[date], firm[ticker]] = np.nan if value is None else value
    return signal_TN


def backtest(settings: Config, signals: pl.DataFrame, market: Market) -> BookOrders:
    signal_TN = as_array(signals, market)
    rows_T = np.arange(FIRST, FIRST + NIGHTS)
    orders = {one.name: one for one in book_orders(signal_TN, rows_T, market, settings, 1)}
    assert settings.nightly.book is not None
    return orders[settings.nightly.book]


def season(
    settings: Config, tables: Mapping[str, pl.DataFrame], market: Market, signals: pl.DataFrame, lake: Lake
) -> Iterator[tuple[int, NextBook]]:
    """Decide the book of every night, each on the data of its session."""
    for t in range(FIRST, FIRST + NIGHTS):
        session = day(market, t)
        known = cut_tables(tables, session)
        data = NightData(session, {}, settings, known, build_market(known, settings), lake)
        yield t, next_book(settings, data, signals.filter(pl.col("session") <= session))


def column(rows: pl.DataFrame, name: str, market: Market) -> FloatArray:
    out_N = np.zeros(market.panel.n_firms)
    for ticker, value in rows.select("ticker", name).iter_rows():
        out_N[market.panel.tickers_N.index(ticker)] = np.nan if value is None else value
    return out_N


@pytest.mark.parametrize("book", list(BOOKS))
def test_a_season_of_nights_decides_the_rows_of_a_backtest(
    book: str, tiny_settings: Mapping[str, Any], tiny_tables: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    settings = config(tiny_settings, book, **CAPPED)
    market = build_market(tiny_tables, settings)
    signals = signals_of(market)
    orders = backtest(settings, signals, market)
    result = orders.run(market.panel, keep_ledger=True)
    decided = kept = 0
    for t, night in season(settings, tiny_tables, market, signals, Lake(tmp_path)):
        target_N = orders.target_TN[t - FIRST]
        held = result.ledger.filter(pl.col("session") == t - FIRST)
        position_N = np.zeros(market.panel.n_firms)
        position_N[held["firm"].to_numpy()] = held["position"].to_numpy() / result.nav_ledger_T[t - FIRST]
        previous_N = column(night.rows, "previous", market)
        np.testing.assert_array_equal(
            previous_N[np.abs(position_N) > 1e-12], position_N[np.abs(position_N) > 1e-12]
        )
        if np.isnan(target_N).any():
            kept += 1
            assert [one.check for one in night.findings if one.check == "rebalance"] == ["rebalance"]
        else:
            decided += 1
            np.testing.assert_array_equal(column(night.rows, "weight", market), target_N)
            trade_N, goal_N = column(night.rows, "trade", market), target_N - previous_N
            np.testing.assert_array_equal(trade_N, np.where(np.abs(goal_N) < 1e-12, 0.0, goal_N))
    assert decided >= (1 if book == "top" else 4)
    assert kept > 0 or book == "quantile"
