"""A season in which the config, the book, the vendor's tickers and the calendar change between the nights.

A plain holder of shares follows the recorded orders. What every night says is held is what the holder has.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from night_world import (
    DAYS,
    DELISTED,
    DELISTED_ON,
    DIVIDEND_ON,
    FIRMS,
    FIRST,
    LIKED,
    LOST,
    LOST_ON,
    MODEL,
    PAYER,
    RENAMED,
    RENAMED_ON,
    RETURN,
    SPLIT,
    SPLIT_ON,
    TOLD_ON,
    World,
    play,
)

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.errors import DataError
from pipelines.lake.lake import Lake

COSTS = {"half_spread_bps": 10.0, "commission_bps": 0.0, "borrow_bps_per_year": 0.0}


def config_of(tiny: Mapping[str, Any], session: dt.date) -> Config:
    """The config is changed five times; the calendar of the data has a holiday that nobody announced."""
    quantiles = 4 if session < dt.date(2021, 5, 18) else 2
    half_spread = 10.0 if session < dt.date(2021, 5, 24) else 40.0
    books = {
        "ls": {"kind": "quantile_long_short", "quantiles": quantiles},
        "top": {"kind": "top_k_long_only", "k": 3, "rebalance_on": "month_end"},
        "drop": {"kind": "top_k_drop", "k": 4, "n_drop": 1, "rebalance_every": 2},
    }
    book = "ls" if session < dt.date(2021, 5, 28) else "top" if session < dt.date(2021, 6, 2) else "drop"
    settings = {
        **tiny,
        "label": {**tiny["label"], "horizon": 1, "delay": 1},
        "universe": {"min_history": 5 if session < dt.date(2021, 5, 21) else 10},
        "backtest": {"books": books, "costs": {**COSTS, "half_spread_bps": half_spread}},
        "nightly": {"book": book},
    }
    return check_config(settings, origin="season")


class Holder:
    """Buys and sells shares as the nights ordered; dividends buy shares at the close of their day."""

    def __init__(self, world: World) -> None:
        self.world, self.cash, self.shares = world, 1.0, dict[str, float]()
        self.last = dict[str, float]()  # newest known close
        self.unsold = set[str]()  # firms that the order knows to be absent
        self.order: tuple[dict[str, float], float] | None = None  # target weights, half-spread

    def close(self, session: dt.date) -> None:
        before = self.weights
        if session == TOLD_ON:
            for held in (self.shares, *([] if self.order is None else [self.order[0]])):
                held["NEW"] = held.get("NEW", 0.0) + held.pop(RENAMED, 0.0)
        for ticker in list(self.shares):
            self.last[ticker] = self.world.quote(ticker, session) or self.last[ticker]
            if ticker == DELISTED and session >= DELISTED_ON:
                self.cash += self.shares.pop(ticker) * self.last[ticker] * (1.0 + RETURN)
            elif (ticker, session) == (SPLIT, SPLIT_ON):
                self.shares[ticker] *= 2.0
            elif (ticker, session) == (PAYER, DIVIDEND_ON):
                self.shares[ticker] *= 1.0 + 1.5 / self.last[ticker]
        if self.order is None:
            return
        weights, rate = self.order
        nav, self.order = self.nav, None
        gone = {firm for firm in self.shares if self.world.quote(firm, session) is None} - self.unsold
        if gone and min(weights.values()) >= 0:  # what is not sold for the order does not pay for it
            gross = sum(weight for firm, weight in weights.items() if firm not in gone)
            room = max(gross, 1.0) - sum(before[firm] for firm in gone)
            weights = {firm: weight * min(1.0, room / gross) for firm, weight in weights.items()}
        for ticker in sorted({*weights, *self.shares}):
            price = self.world.quote(ticker, session)
            if price is None:
                continue
            wanted = weights.get(ticker, 0.0) * nav / price
            traded = wanted - self.shares.pop(ticker, 0.0)
            self.cash -= traded * price + rate * abs(traded) * price
            if wanted:
                self.shares[ticker], self.last[ticker] = wanted, price

    @property
    def nav(self) -> float:
        return self.cash + sum(shares * self.last[firm] for firm, shares in self.shares.items())

    @property
    def weights(self) -> dict[str, float]:
        return {firm: shares * self.last[firm] / self.nav for firm, shares in self.shares.items()}


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.slow(7)
def test_recorded_orders_lead_from_book_to_book(
    world: World, tiny_settings: Mapping[str, Any], tmp_path: Path
) -> None:
    lake, holder, rng = Lake(tmp_path), Holder(world), np.random.default_rng(3)
    signals = pl.DataFrame(
        schema={"session": pl.Date, "ticker": pl.String, "version": pl.String, "signal": pl.Float64}
    )
    told: dict[dt.date, dict[str, str]] = {}
    decided: dict[dt.date, dt.date | None] = {}
    for session in DAYS[DAYS.index(FIRST) :]:
        world.deliver(lake, session)
        config = config_of(tiny_settings, session)
        tonight = [world.name(firm, session) for firm in FIRMS if world.priced(firm, session)]
        new = pl.DataFrame({"session": session, "ticker": tonight, "version": str(MODEL)}).with_columns(
            signal=pl.Series(rng.normal(size=len(tonight))) + 3.0 * pl.col("ticker").is_in(LIKED)
        )
        signals = pl.concat([signals, new])
        made = play(lake, config, session, signals)
        holder.close(session)
        rows = {row["ticker"]: row for row in made.tables["books"].iter_rows(named=True)}
        held = holder.weights
        assert {ticker for ticker, weight in held.items() if weight} <= set(rows), "every held firm has a row"
        for ticker, row in rows.items():
            assert row["trade"] == pytest.approx(row["weight"] - row["previous"], abs=1e-12)
            assert row["previous"] == pytest.approx(held.get(ticker, 0.0), abs=1e-12), (session, ticker)
        assert made.tables["accounts"]["nav"].item() == pytest.approx(holder.nav, rel=1e-12)
        told[session] = {one.check: one.sentence for one in made.findings if one.level == "warn"}
        decided[session] = made.tables["accounts"]["due"].item()
        if made.tables["accounts"]["decision"].item() == "made":
            if session >= LOST_ON:
                assert made.tables["books"]["weight"].sum() + rows[LOST]["previous"] <= 1.0 + 1e-12, (
                    "bought from cash"
                )
            spread = config.backtest.costs.half_spread_bps
            assert isinstance(spread, float)
            holder.unsold = set(made.tables["books"].filter(pl.col("bound") == "not in the data")["ticker"])
            holder.order = ({ticker: row["weight"] for ticker, row in rows.items()}, spread * 1e-4)

    late = {session: due for session, due in decided.items() if due is not None and due < session}
    assert late == {dt.date(2021, 6, 1): dt.date(2021, 5, 28)}, "Memorial Day came between"
    assert "decides tonight for 2021-05-28" in told[dt.date(2021, 6, 1)]["missed decision"]
    gap = [session for session in decided if RENAMED_ON <= session < TOLD_ON]
    assert len(gap) == 3
    assert all(RENAMED in told[session]["no prices"] for session in gap)
    assert all(LOST in told[session]["no prices"] for session in decided if session >= LOST_ON)
    days = [session.day for session, due in decided.items() if due is not None]
    assert days[-4:] == [10, 14, 16, 18], "the last book decides every two sessions, from its first night on"


def test_a_book_without_its_records_is_not_bought_again(
    world: World, tiny_settings: Mapping[str, Any], tmp_path: Path
) -> None:
    lake, sessions = Lake(tmp_path), DAYS[DAYS.index(FIRST) :][:3]
    signals = pl.concat(
        pl.DataFrame({"session": day, "ticker": FIRMS, "version": str(MODEL)}) for day in sessions
    ).with_columns(signal=pl.int_range(pl.len()) % 7 * 1.0)
    for session in sessions[:2]:
        world.deliver(lake, session)
        play(lake, config_of(tiny_settings, session), session, signals.filter(pl.col("session") <= session))
    world.deliver(lake, sessions[2])
    for table in ("books", "holdings"):
        rows = lake.read(table)
        one = rows.filter(pl.col("session") == sessions[1])["ticker"][0]
        lake.upsert(table, rows.filter(pl.col("ticker") != one), scope=pl.lit(value=True))
        with pytest.raises(
            DataError, match=f"night of {sessions[1]}, but the table {table} does not hold it"
        ):
            play(lake, config_of(tiny_settings, sessions[2]), sessions[2], signals)
        lake.upsert(table, rows)
    accounts = lake.read("accounts")
    lake.upsert("accounts", accounts.head(1), scope=pl.lit(value=True))
    with pytest.raises(DataError, match=r"the table accounts does not hold it.*from one backup"):
        play(lake, config_of(tiny_settings, sessions[2]), sessions[2], signals)
