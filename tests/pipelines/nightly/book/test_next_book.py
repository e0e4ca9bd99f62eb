"""The book of a night equals the row of a backtest; what is held is the backtest's account at that close.

What is held comes from the rows that the nights before have recorded.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from counted import cut_tables
from every_book import EVERY_BOOK

from backtest.accounts.accounting import account_book
from backtest.accounts.market import BookMarket
from backtest.books.decisions import BETA_SESSIONS
from features.arrays import FloatArray
from features.library.characteristics.market import market_regression
from features.panel.derived import daily_return
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, build_market
from pipelines.lake.lake import Lake
from pipelines.nightly.book.holdings import Recorded
from pipelines.nightly.book.next_book import NextBook, next_book
from pipelines.nightly.data import NightData
from pipelines.nightly.result import follow
from pipelines.results.books import BookOrders, book_costs, book_execution, book_market, book_orders

CAPPED: dict[str, Any] = {
    "capital": 2e9,
    "execution": {"participation_cap": 0.05, "window": 10},
    "costs": {"half_spread_bps": "corwin_schultz"},
}
FIRST, NIGHTS = 230, 24


def config(tiny: Mapping[str, Any], book: str, **backtest: Any) -> Config:  # noqa: ANN401 (settings)
    return check_config(
        {
            **tiny,
            "label": {**tiny["label"], "horizon": 3, "delay": 1},
            "backtest": {"books": EVERY_BOOK} | backtest,
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
    """Decide the book of every night, each on the data of its session and the records of those before."""
    recorded = Recorded.nothing()
    for t in range(FIRST, FIRST + NIGHTS):
        session = day(market, t)
        known = cut_tables(tables, session)
        data = NightData(session, {}, settings, known, build_market(known, settings), lake)
        made = next_book(settings, data, signals.filter(pl.col("session") <= session), recorded)
        recorded = after(recorded, made)
        yield t, made


def after(recorded: Recorded, made: NextBook) -> Recorded:
    """What the next night finds in the lake."""
    return Recorded(
        pl.concat([recorded.accounts, made.tables["accounts"]]),
        made.tables["holdings"],
        pl.concat([recorded.books, made.tables["books"]]),
        recorded.renames,
    )


def made_nav(night: NextBook) -> float:
    nav: float = night.tables["accounts"]["nav"].item()
    return nav


def column(rows: pl.DataFrame, name: str, market: Market) -> FloatArray:
    out_N = np.zeros(market.panel.n_firms)
    for ticker, value in rows.select("ticker", name).iter_rows():
        out_N[market.panel.tickers_N.index(ticker)] = np.nan if value is None else value
    return out_N


@pytest.mark.slow(5)
@pytest.mark.parametrize("book", list(EVERY_BOOK))
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
        previous_N = column(night.tables["books"], "previous", market)
        np.testing.assert_allclose(previous_N, position_N, rtol=1e-12, atol=1e-12)
        assert made_nav(night) == pytest.approx(result.nav_ledger_T[t - FIRST], rel=1e-12)
        if np.isnan(target_N).any():
            kept += 1
            assert [one.check for one in night.findings if one.check == "rebalance"] == ["rebalance"]
        else:
            decided += 1
            np.testing.assert_array_equal(column(night.tables["books"], "weight", market), target_N)
            trade_N, goal_N = column(night.tables["books"], "trade", market), target_N - previous_N
            np.testing.assert_array_equal(trade_N, np.where(np.abs(goal_N) < 1e-12, 0.0, goal_N))
    assert decided >= (1 if book == "top" else 4)
    assert kept > 0 or book in {"quantile", "weights"}, "these two decide every night"


FLAT = 200
"""Sessions after the night, with tonight's prices, in which all orders are filled."""


def continued(
    settings: Config, data: NightData, orders_TN: FloatArray, delay: int
) -> tuple[pl.DataFrame, float]:
    """Account for all decisions at prices that stay as they are tonight; the NAV before tonight's trades."""
    panel = data.market.panel
    known = book_market(panel, slice(FIRST, panel.n_sessions))
    market = BookMarket(
        np.concatenate([known.value_TN, np.repeat(known.value_TN[-1:], FLAT, axis=0)]),
        np.concatenate([known.state_TN, np.repeat(known.state_TN[-1:], FLAT, axis=0)]),
    )
    held = slice(FIRST, panel.n_sessions + FLAT)
    target_TN = np.full((held.stop - held.start, panel.n_firms), np.nan)
    target_TN[: len(orders_TN)] = orders_TN
    result = account_book(
        target_TN,
        market,
        book_costs(settings.backtest, panel, held),
        delay,
        execution=book_execution(settings.backtest, panel, held, delay),
        keep_ledger=True,
    )
    return result.ledger, float(result.nav_ledger_T[len(orders_TN) - 2 + delay])


# not of a long-only book: it buys less than it ordered by the costs that it has to pay
@pytest.mark.slow(4)
@pytest.mark.parametrize(("book", "delay"), [("rank", 1), ("rank", 2), ("best", 1)])
def test_trades_and_costs_are_those_of_an_account_at_unchanged_prices(
    book: str,
    delay: int,
    tiny_settings: Mapping[str, Any],
    tiny_tables: dict[str, pl.DataFrame],
    tmp_path: Path,
) -> None:
    costs = {"half_spread_bps": "corwin_schultz", "borrow_bps_per_year": 0.0}
    settings = config(tiny_settings, book, **{**CAPPED, "capital": 2e7, "costs": costs, "delay": delay})
    market = build_market(tiny_tables, settings)
    signals = signals_of(market)
    orders = backtest(settings, signals, market)
    rests = several = 0
    for t, night in season(settings, tiny_tables, market, signals, Lake(tmp_path)):
        session = day(market, t)
        known = cut_tables(tiny_tables, session)
        data = NightData(session, {}, settings, known, build_market(known, settings), Lake(tmp_path))
        ledger, nav = continued(settings, data, orders.target_TN[: t - FIRST + 1], delay)
        firms = np.array([market.panel.tickers_N.index(ticker) for ticker in data.market.panel.tickers_N])
        traded = ledger.filter(pl.col("session") >= t - FIRST + delay)
        sums = traded.group_by("firm").agg(
            pl.col("trade").sum(),
            cost=pl.sum_horizontal("half_spread", "commission", "impact").sum(),
            sessions=(pl.col("trade").abs() > 1e-12).sum(),
        )
        trade_N, cost_N, sessions_N = (np.zeros(market.panel.n_firms) for _ in range(3))
        for name, out_N in (("trade", trade_N), ("cost", cost_N), ("sessions", sessions_N)):
            out_N[firms[sums["firm"].to_numpy()]] = sums[name].to_numpy()
        able = column(night.tables["books"], "tradable", market) == 1.0
        np.testing.assert_allclose(
            column(night.tables["books"], "trade", market)[able], trade_N[able] / nav, atol=1e-9
        )
        np.testing.assert_allclose(
            column(night.tables["books"], "expected_cost", market)[able],
            cost_N[able] / nav,
            rtol=1e-5,
            atol=1e-9,
        )
        capped = column(night.tables["books"], "fill_sessions", market)
        real = able & (np.abs(trade_N) > 1e-6)
        np.testing.assert_array_equal(capped[real], sessions_N[real])
        several += int((capped[real] > 1).sum())
        rests += int(np.isnan(orders.target_TN[t - FIRST]).any() and real.any())
        slow = night.tables["books"].filter(pl.col("fill_sessions") > 1)
        assert set(slow["bound"]) <= {"participation cap"}
    assert several > 10
    assert rests > 0


def one_night(settings: Config, tables: Mapping[str, pl.DataFrame], lake: Lake, nights: int = 1) -> NextBook:
    """The book of the last of some nights."""
    market = build_market(tables, settings)
    played = season(settings, tables, market, signals_of(market), lake)
    return [made for _, made in itertools.islice(played, nights)][-1]


def test_a_book_waits_for_its_first_day(
    tiny_settings: Mapping[str, Any], tiny_tables: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    made = one_night(config(tiny_settings, "top"), tiny_tables, Lake(tmp_path))
    assert made.tables["books"].is_empty()
    found = {one.check: one for one in made.findings}
    assert {name: one.level for name, one in found.items()} == {
        "account": "ok",
        "book": "ok",
        "rebalance": "ok",
    }
    assert "month start" in found["rebalance"].sentence


def test_a_book_that_is_too_large_says_so(
    tiny_settings: Mapping[str, Any], tiny_tables: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    books = {"top": {"kind": "top_k_long_only", "k": 40}}
    made = one_night(config(tiny_settings, "top", books=books), tiny_tables, Lake(tmp_path))
    assert made.tables["books"].is_empty()
    (finding,) = [one for one in made.findings if one.level == "warn"]
    assert "needs 40 signals per date" in finding.sentence
    assert made.tables["accounts"]["decision"].item() == "refused"


def test_an_infeasible_decision_keeps_the_last_book(
    tiny_settings: Mapping[str, Any], tiny_tables: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    limits = {"long_only": True, "min_net": 1, "max_net": 1, "max_position": 0.2, "max_volatility": 0.001}
    books = {"best": {"kind": "optimised", "limits": limits}}
    made = one_night(config(tiny_settings, "best", books=books), tiny_tables, Lake(tmp_path))
    (finding,) = [one for one in made.findings if one.level == "warn"]
    assert finding.check == "book limits"
    assert "there is no book yet" in finding.sentence


def test_a_binding_position_limit_is_named(
    tiny_settings: Mapping[str, Any], tiny_tables: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    limits = {"max_position": 0.1, "max_volatility": None}
    books = {"best": {"kind": "optimised", "limits": limits}}
    rows = one_night(config(tiny_settings, "best", books=books), tiny_tables, Lake(tmp_path)).tables["books"]
    full = rows.filter(pl.col("weight").abs() > 0.0999)
    assert full.height > 3
    assert set(full["bound"]) == {"position limit"}
    assert rows.filter(pl.col("weight").abs() < 0.09)["bound"].is_null().all()


def test_the_limits_of_the_book_are_named_with_their_values(
    tiny_settings: Mapping[str, Any], tiny_tables: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    """The quantile book is neutral to sectors and beta, and scaled to 10% a year."""
    settings = config(tiny_settings, "quantile")
    made = one_night(settings, tiny_tables, Lake(tmp_path))
    market = build_market(tiny_tables, settings)
    weight_N = column(made.tables["books"], "weight", market)
    return_LN = daily_return(market.panel)[FIRST - 125 : FIRST + 1]
    sectors_N = market.panel.group_TN[FIRST]
    expected = {
        "neutral sector": max(abs(weight_N[sectors_N == code].sum()) for code in set(sectors_N.tolist())),
        "neutral beta": abs(np.nansum(market_regression(market.panel, BETA_SESSIONS)[0][FIRST] * weight_N)),
        "target_volatility": np.sqrt(252) * (np.nan_to_num(return_LN) @ weight_N).std(ddof=1),
        "max_leverage": np.abs(weight_N).sum(),
    }
    found = {row["name"]: row for row in made.tables["book_limits"].iter_rows(named=True)}
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name]["value"] == pytest.approx(value, abs=1e-9), name
    assert {name: row["state"] for name, row in found.items()} == {
        "neutral sector": "binds",
        "neutral beta": "binds",
        "target_volatility": "binds",
        "max_leverage": "free",
    }
    assert found["target_volatility"]["value"] == pytest.approx(0.1)
    (finding,) = [one for one in made.findings if one.check == "limits"]
    assert finding.sentence.startswith(
        "Limits that bind: neutral sector (0.0% of NAV), neutral beta (beta 0.000), target_volatility (10.0% "
        "a year). Free: max_leverage ("
    )


def test_a_turnover_limit_binds_from_the_second_decision_on(
    tiny_settings: Mapping[str, Any], tiny_tables: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    settings, lake = config(tiny_settings, "best"), Lake(tmp_path)
    first = one_night(settings, tiny_tables, lake)
    assert "max_turnover" not in first.tables["book_limits"]["name"], "the first book is not limited"
    between = one_night(settings, tiny_tables, lake, nights=3)
    assert between.tables["book_limits"].is_empty(), "the book decides every five sessions"
    second = one_night(settings, tiny_tables, lake, nights=6)
    (row,) = second.tables["book_limits"].filter(pl.col("name") == "max_turnover").iter_rows(named=True)
    assert (row["value"], row["limit"], row["state"]) == (pytest.approx(0.3), 0.3, "binds")


def test_a_night_that_had_a_firm_under_both_names_counts_the_signal_of_the_new_one() -> None:
    first, second = dt.date(2022, 6, 7), dt.date(2022, 6, 8)
    given = [(first, "OLD", 1.0), (second, "OLD", 2.0), (second, "NEW", 3.0)]
    schema = {"session": pl.Date, "ticker": pl.String, "signal": pl.Float64}
    renames = pl.DataFrame({"ticker": ["OLD"], "from_date": [dt.date(2022, 6, 9)], "new_ticker": ["NEW"]})
    named = follow(pl.DataFrame(given, schema=schema, orient="row"), renames)
    assert named.sort("session").rows() == [(first, "NEW", 1.0), (second, "NEW", 3.0)]


def test_a_firm_without_a_price_is_held_and_cannot_be_traded(
    tiny_settings: Mapping[str, Any], tiny_tables: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    settings = config(tiny_settings, "top", books={"top": {"kind": "top_k_long_only", "k": 6}})
    market = build_market(tiny_tables, settings)
    nights = 6
    tonight, lake = day(market, FIRST + nights - 1), Lake(tmp_path)
    played = itertools.islice(season(settings, tiny_tables, market, signals_of(market), lake), nights - 1)
    recorded = Recorded.nothing()
    for _, one in played:
        recorded = after(recorded, one)
    before = recorded.of(day(market, FIRST + nights - 2))
    held = before.filter((pl.col("weight") > 0) & (pl.col("previous") > 0.1))["ticker"]
    lost, halted = held[0], held[1]
    gone = (pl.col("date") == tonight) & pl.col("ticker").is_in([lost, halted])
    prices = tiny_tables["prices"].filter(~gone)
    row = {"date": str(tonight), "ticker": lost}
    quarantine = pl.DataFrame(
        {
            "table": ["prices"],
            "row": [json.dumps(row)],
            "resolved_at": pl.Series([None], dtype=pl.Datetime("us", "UTC")),
        }
    )
    known = cut_tables({**tiny_tables, "prices": prices}, tonight)
    market = build_market(known, settings)
    signals = signals_of(build_market(tiny_tables, settings)).filter(pl.col("session") <= tonight)
    missing = pl.col("ticker").is_in([lost, halted]) & (pl.col("session") == tonight)
    signals = signals.with_columns(signal=pl.when(missing).then(None).otherwise(pl.col("signal")))
    stored, rows_of = {"quarantine": quarantine}, Lake.rows

    def read(
        self: Lake, table: str, columns: list[str] | None = None, filters: pl.Expr | None = None
    ) -> pl.DataFrame:
        whole = rows_of(self, table, columns, filters)
        return whole if filters is None or table not in stored else stored[table].filter(filters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lake, "rows", read)
        data = NightData(tonight, {}, settings, known, market, lake)
        made = next_book(settings, data, signals, recorded)
    rows = {row["ticker"]: row for row in made.tables["books"].iter_rows(named=True)}
    for ticker, why in ((lost, "price in quarantine"), (halted, "no price")):
        row = rows[ticker]
        assert (row["tradable"], row["bound"], row["weight"]) == (False, why, 0.0)
        assert row["previous"] > 0.05
        assert row["expected_cost"] is None
        assert row["fill_sessions"] is None
    (finding,) = [one for one in made.findings if one.check == "untradable"]
    assert finding.level == "warn"
    assert lost in finding.sentence
    assert halted in finding.sentence
    sent = {ticker: row["trade"] for ticker, row in rows.items() if row["tradable"]}
    cash = 1.0 - sum(row["previous"] for row in rows.values())
    assert sum(sent.values()) == pytest.approx(cash, abs=1e-12), "no purchase is made with borrowed money"
    cut = 1.0 - sum(row["weight"] for row in rows.values())
    assert cut > 0.1
    assert f"the purchases are smaller by {cut:.2%} of NAV than decided" in finding.sentence
    for row in rows.values():
        assert row["previous"] + row["trade"] == pytest.approx(row["weight"], abs=1e-12)


def test_a_book_that_decides_at_the_end_of_a_week_knows_the_holidays_of_its_exchange(
    tiny_settings: Mapping[str, Any], tiny_tables: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    tonight = dt.date(2014, 7, 3)  # a Thursday; the Fourth of July was a Friday
    settings = config(tiny_settings, "top", books={"top": {**EVERY_BOOK["top"], "rebalance_on": "week_end"}})
    known = cut_tables(tiny_tables, tonight)
    market = build_market(known, settings)
    tickers = np.asarray(market.panel.tickers_N)[market.universe_TN[-1]]
    signals = pl.DataFrame(
        {"ticker": tickers, "signal": np.arange(float(len(tickers)))}, schema_overrides={"ticker": pl.String}
    ).with_columns(session=pl.lit(tonight), version=pl.lit("run/model"))
    for calendar, decides in (("XNYS", True), (None, False)):  # without a calendar, Friday is a session
        named = settings.quality.model_copy(update={"calendar": calendar})
        own = settings.model_copy(update={"quality": named})
        data = NightData(tonight, {}, own, known, market, Lake(tmp_path))
        made = next_book(own, data, signals, Recorded.nothing())
        assert (made.tables["books"].height == 4) is decides
