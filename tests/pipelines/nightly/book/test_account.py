"""The account of the nights: real fills against a plain loop, and without fills against the backtest."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import command
from night_world import (
    DAYS,
    DELISTED,
    DELISTED_ON,
    DIVIDEND_ON,
    FIRMS,
    FIRST,
    LOST,
    LOST_ON,
    MODEL,
    PAYER,
    RENAMED,
    RETURN,
    SPLIT,
    SPLIT_ON,
    TOLD_ON,
    World,
    play,
    store,
)
from places import ROOT
from polars.testing import assert_frame_equal

from backtest.books.rules.top_k_drop import TopKDrop
from backtest.books.rules.top_k_long_only import TopKLongOnly
from features.panel.panel import to_panel
from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import empty, schema
from pipelines.nightly.book.account import account_tables
from pipelines.nightly.book.trades import read_trades
from pipelines.nightly.data import night_data
from pipelines.progress import Progress
from pipelines.results.books import book_orders

NIGHTS = DAYS[DAYS.index(FIRST) :][:20]
BORROW, FINANCING = 300.0, 200.0  # basis points a year
COSTS = {
    "half_spread_bps": 8.0,
    "commission_bps": 2.0,
    "borrow_bps_per_year": BORROW,
    "financing_bps_per_year": FINANCING,
}


def demo(folder: Path, **account: object) -> Config:
    """The demo's nightly config on another market."""
    costs = [f"backtest.costs.{name}={value}" for name, value in COSTS.items()]
    own = [f"nightly.account.{name}={value}" for name, value in account.items()]
    places = [f"lake={folder / 'lake'}", f"output={folder / 'runs'}", "universe.min_history=5"]
    places.append("backtest.books.long_short.quantiles=3")  # of twelve firms
    return load_config(ROOT / "configs" / "nightly_demo.yaml", [*places, *costs, *own])


def of_backtest(config: Config, **changed: object) -> Config:
    """Change settings of the backtest."""
    return config.model_copy(update={"backtest": config.backtest.model_copy(update=changed)})


def signals_of(world: World, sessions: list[dt.date], through: dt.date) -> pl.DataFrame:
    """Firms to which something happens are liked or disliked, so that they are held when it does."""
    rng = np.random.default_rng(3)
    drawn = {day: rng.normal(size=len(FIRMS)) for day in sessions}
    liking = {RENAMED: 2.0, LOST: 2.0, DELISTED: 2.0, PAYER: -2.0, SPLIT: 1.0}
    rows = [
        (day, world.name(firm, through), str(MODEL), drawn[day][n] + liking.get(firm, 0.0))
        for day in sessions
        if day <= through
        for n, firm in enumerate(FIRMS)
        if world.priced(firm, day)
    ]
    return pl.DataFrame(rows, schema=["session", "ticker", "version", "signal"], orient="row")


@dataclass(frozen=True)
class Fill:
    session: dt.date
    ticker: str
    shares: float
    price: float
    fee: float
    told: dt.date  # the night that finds it in the file


def write(path: Path, fills: list[Fill], through: dt.date) -> None:
    lines = [
        f"{one.session},{one.ticker},{one.shares!r},{one.price!r},{one.fee!r}"
        for one in fills
        if one.told <= through
    ]
    path.write_text("\n".join(["session,ticker,shares,price,fee", *lines]) + "\n")


@dataclass
class Plain:
    """The account by a plain loop over the sessions, from the fills that are known on a night."""

    cash: float
    shares: dict[str, float]
    price: dict[str, float]
    navs: list[float]


def plain_loop(world: World, fills: list[Fill], tonight: dt.date, capital: float) -> Plain:
    cash, shares, price, navs, year = capital, dict[str, float](), dict[str, float](), list[float](), 252.0
    told = [one for one in fills if one.told <= tonight]
    for day in [one for one in NIGHTS if one <= tonight]:
        values = {firm: count * price[firm] for firm, count in shares.items()}
        long, short = (sum(max(sign * value, 0.0) for value in values.values()) for sign in (1, -1))
        cash -= BORROW * 1e-4 / year * short
        cash -= FINANCING * 1e-4 / year * max(long - (navs[-1] if navs else capital), 0.0)
        if day == SPLIT_ON and SPLIT in shares:
            shares[SPLIT] *= 2.0
        if day == DIVIDEND_ON:
            cash += 1.5 * shares.get(PAYER, 0.0)
        for one in told:
            if one.session == day:
                name = "NEW" if one.ticker == RENAMED and tonight >= TOLD_ON else one.ticker
                cash -= one.shares * one.price + one.fee
                shares[name] = shares.get(name, 0.0) + one.shares
                price.setdefault(name, one.price)
        for name in list(shares):
            if name == DELISTED and day >= DELISTED_ON:
                cash += shares.pop(name) * price[name] * (1.0 + RETURN)
                continue
            firm = RENAMED if name == "NEW" else name
            known = world.name(firm, day) == name or tonight >= TOLD_ON
            if world.priced(firm, day) and known:
                price[name] = world.close[firm][day]
        navs.append(cash + sum(count * price[firm] for firm, count in shares.items()))
    return Plain(cash, {firm: count for firm, count in shares.items() if count}, price, navs)


@pytest.mark.slow(30)
def test_twenty_nights_with_fills_that_differ_from_the_orders(tmp_path: Path) -> None:
    world, lake, path = World(), Lake(tmp_path / "lake"), tmp_path / "fills.csv"
    config, rng, fills, capital = (
        demo(tmp_path, fills=path, capital=250_000.0),
        np.random.default_rng(4),
        list[Fill](),
        250_000.0,
    )
    said: dict[dt.date, dict[str, str]] = {}
    for at, session in enumerate(NIGHTS):
        world.deliver(lake, session)
        write(path, fills, session)
        booked = lake.rows("profits")
        made = play(lake, config, session, signals_of(world, NIGHTS, session))
        plain = plain_loop(world, fills, session, capital)

        profits = lake.read("profits").sort("session")
        assert profits.filter(pl.col("session") < session).equals(booked.sort("session")), "booked rows stay"
        tonight = profits.row(-1, named=True)
        assert tonight["session"] == session
        assert tonight["nav"] == pytest.approx(plain.navs[-1], abs=1e-9 * capital)
        assert tonight["cash"] == pytest.approx(plain.cash, abs=1e-9 * capital)
        before = profits["nav"][-2] if at else capital
        assert tonight["nav"] == pytest.approx(
            before + tonight["revision"] + tonight["pnl"], abs=1e-9 * capital
        )
        held = dict(made.tables["positions"].filter(session=session).select("ticker", "shares").iter_rows())
        for firm in {*held, *plain.shares}:
            shares = plain.shares.get(firm, 0.0)
            assert held.get(firm, 0.0) == pytest.approx(shares, abs=1e-9 * capital), (
                session,
                firm,
                held,
                plain,
            )
        weights = dict(made.tables["books"].select("ticker", "previous").iter_rows())
        for firm in {*weights, *plain.shares}:  # orders start from what is held
            value = plain.shares.get(firm, 0.0) * plain.price.get(firm, 0.0)
            assert weights.get(firm, 0.0) == pytest.approx(value / plain.navs[-1], abs=1e-9), (session, firm)
        said[session] = {one.check: one.sentence for one in made.findings if one.level == "warn"}

        following = NIGHTS[at + 1 : at + 4]
        orders = made.tables["books"].select("ticker", "shares").drop_nulls()
        for k, (ticker, shares) in enumerate(orders.iter_rows()):
            kind = (k + at) % 5 if len(following) == 3 else 0
            firm = RENAMED if ticker == "NEW" else ticker
            if not following or shares == 0 or kind == 3:  # 3: missing
                continue
            day = following[1] if kind == 1 else following[0]  # 1: filled a session late
            if not world.priced(firm, day):
                continue
            part = float(rng.uniform(0.2, 0.9)) if kind == 2 else 1.0
            price = world.close[firm][day] * float(rng.uniform(0.99, 1.01))
            told = following[2] if kind == 4 else day  # 4: delivered late
            fee = float(rng.uniform(-0.5, 3.0))
            fills.append(
                Fill(day, world.name(firm, day) if day < TOLD_ON else ticker, shares * part, price, fee, told)
            )
    profits = lake.read("profits").sort("session")
    assert (profits["dividend"] != 0).any(), "a dividend was received or paid"
    assert (profits["charge"] > 0).any()
    assert (profits["revision"].abs() > 1.0).sum() > 3, "fills arrived late"
    assert "not at all" in said[NIGHTS[2]]["fills"]
    assert "in another size" in said[NIGHTS[3]]["fills"]
    assert any("revision" in one for one in said.values())
    shortfall = account_tables(lake, config.name, NIGHTS[-1], empty("renames"))["shortfall"]
    sizes = shortfall["shortfall"].abs()
    assert sizes.is_sorted(descending=True)
    assert sizes[0] > 100.0
    assert shortfall["pnl"].sum() == pytest.approx(profits["pnl"].sum(), abs=1e-9 * capital)
    expected = lake.read("positions").select(pl.col("backtest_pnl") - pl.col("pnl")).to_series().sum()
    assert shortfall["shortfall"].sum() == pytest.approx(expected, abs=1e-9 * capital)


@pytest.mark.slow(20)
@pytest.mark.parametrize("price", ["close", "open"])
def test_without_fills_a_season_is_the_backtest_of_its_signals(tmp_path: Path, price: str) -> None:
    world, lake, sessions = World(troubled=False), Lake(tmp_path / "lake"), DAYS[DAYS.index(FIRST) :]
    config = demo(tmp_path)
    config = of_backtest(config, execution=config.backtest.execution.model_copy(update={"price": price}))
    signals = signals_of(world, sessions, sessions[-1])
    for session in sessions:
        world.deliver(lake, session)
        play(lake, config, session, signals.filter(pl.col("session") <= session))
    data = night_data(config, lake, sessions[-1], Progress())
    panel = data.market.panel
    signal_TN = to_panel(signals.rename({"session": "date"}), "signal", panel)
    rows_T = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
    (orders,) = book_orders(signal_TN, rows_T, data.market, config, config.label.delay)
    book = orders.run(panel, keep_ledger=True)
    profits = lake.read("profits").sort("session")
    assert profits["session"].to_list() == sessions
    np.testing.assert_allclose(profits["nav"] / 1e6, book.nav_ledger_T, rtol=1e-9)
    np.testing.assert_allclose(profits["gross"] / 1e6, book.nav_gross_T, rtol=1e-9)
    np.testing.assert_allclose(profits["backtest_nav"], profits["nav"], rtol=1e-9)
    positions = lake.read("positions")
    np.testing.assert_allclose(positions["backtest_pnl"], positions["pnl"], atol=1e-9 * 1e6)
    by_firm = positions.group_by("ticker").agg(pl.col("pnl").sum()).sort("ticker")
    expected = book.ledger.group_by("firm").agg(pnl=(pl.col("pnl") - pl.col("cost")).sum()).sort("firm")
    assert by_firm["ticker"].to_list() == [panel.tickers_N[n] for n in expected["firm"]]
    np.testing.assert_allclose(by_firm["pnl"] / 1e6, expected["pnl"], atol=1e-9)
    assert profits["dividend"].abs().sum() > 0
    assert (book.nav_ledger_T[-1] - 1.0) ** 2 > 1e-8


def test_a_book_that_continues_goes_on_from_its_decision_and_not_from_what_was_bought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F02 is suspended and cannot be sold, so less of F03 is bought; one firm may be dropped every night."""
    sessions, halted = NIGHTS[:5], NIGHTS[2:4]
    ends = World.priced
    monkeypatch.setattr(
        World, "priced", lambda self, *of: ends(self, *of) and not (of[0] == "F02" and of[1] in halted)
    )
    world, lake = World(troubled=False), Lake(tmp_path / "lake")
    liked = [["F00", "F01", "F02"]] * 2 + [["F03", "F00", "F01"]] + [["F06", "F07", "F00", "F01", "F03"]] * 2
    rows = [
        (day, firm, str(MODEL), 10.0 - firms.index(firm) if firm in firms else -float(n))
        for day, firms in zip(sessions, liked, strict=True)
        for n, firm in enumerate(FIRMS)
        if world.priced(firm, day)
    ]
    signals = pl.DataFrame(rows, schema=["session", "ticker", "version", "signal"], orient="row")
    config = of_backtest(demo(tmp_path), books={"long_short": TopKDrop(kind="top_k_drop", k=3, n_drop=1)})
    made = {}
    for session in sessions:
        world.deliver(lake, session)
        made[session] = play(lake, config, session, signals.filter(pl.col("session") <= session)).tables[
            "books"
        ]
    data = night_data(config, lake, sessions[-1], Progress())
    signal_TN = to_panel(signals.rename({"session": "date"}), "signal", data.market.panel)
    rows_T = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
    (orders,) = book_orders(signal_TN, rows_T, data.market, config, config.label.delay)
    for t, session in enumerate(sessions):
        decided = dict(made[session].filter(pl.col("decided") != 0).select("ticker", "decided").iter_rows())
        firms = np.flatnonzero(orders.target_TN[t])
        assert decided == {data.market.panel.tickers_N[n]: orders.target_TN[t, n] for n in firms}
    cut = made[sessions[2]].filter(ticker="F03").row(0, named=True)
    assert cut["weight"] < cut["decided"] - 0.1
    nav = orders.run(data.market.panel, keep_ledger=True).nav_ledger_T
    np.testing.assert_allclose(lake.read("profits").sort("session")["backtest_nav"] / 1e6, nav, rtol=1e-9)


def test_a_short_position_without_data_pays_the_borrow_fee(tmp_path: Path) -> None:
    """The night of the first session without data is not played, and its fee is booked by the next one."""
    at = DAYS.index(LOST_ON)
    world, lake, sessions = World(), Lake(tmp_path / "lake"), DAYS[at - 3 : at + 3]
    config = demo(tmp_path)
    for session in (day for day in sessions if day != LOST_ON):
        world.deliver(lake, session)
        signals = signals_of(world, sessions, session)
        liking = pl.when(pl.col("ticker") == LOST).then(-9.0).otherwise("signal")
        play(lake, config, session, signals.with_columns(liking.alias("signal")))
    of_firm = lake.read("positions").filter(ticker=LOST).sort("session")
    lost = of_firm.filter(pl.col("session") >= LOST_ON)
    assert lost["session"].to_list() == [LOST_ON, *sessions[4:]]
    assert lost["value"].unique().len() == 1
    assert lost["value"][0] < 0
    paid = lost["value"].abs() * BORROW * 1e-4 / 252
    np.testing.assert_allclose(lost["charge"], paid, rtol=1e-12)
    np.testing.assert_allclose(lost["pnl"], -paid, rtol=1e-12)
    profits = lake.read("profits").sort("session")
    earned = profits["pnl"] + profits["revision"]
    np.testing.assert_allclose(profits["nav"], 1e6 + earned.cum_sum(), rtol=1e-12)
    assert (profits["revision"].abs() < 1e-6).all()


def test_the_shortfall_of_a_firm_is_not_that_of_the_next_firm_with_its_ticker(tmp_path: Path) -> None:
    """A is called B from session 3 on, which is told later, and another firm is A from session 4 on."""
    days, lake = NIGHTS[:6], Lake(tmp_path / "lake")
    of_day = [("A", 1, 1, 1.0), ("A", 3, 2, 2.0), ("B", 4, 4, 4.0), ("A", 5, 5, 8.0), ("A", 4, None, 16.0)]
    amounts = dict.fromkeys(("value", "fee", "charge", "dividend", "pnl"), 0.0)
    rows = [
        {"config": "c", "night": days[t], "session": days[t], "ticker": ticker, "backtest_pnl": pnl}
        | {"priced_on": None if priced is None else days[priced]}
        | amounts
        for ticker, t, priced, pnl in of_day
    ]
    stamps = {"created_at": dt.datetime(2021, 1, 1, tzinfo=dt.UTC)}
    store(lake, "positions", [row | stamps for row in rows])
    numbers = dict.fromkeys(schema("profits").columns(), 0.0) | {"positions": 1, "filled_by": "rule"}
    store(lake, "profits", [numbers | stamps | {"config": "c", "session": days[5], "night": days[5]}])
    renames = pl.DataFrame({"ticker": ["A"], "from_date": [days[3]], "new_ticker": ["B"]})
    shortfall = account_tables(lake, "c", days[5], renames)["shortfall"]
    assert dict(shortfall.select("ticker", "shortfall").iter_rows()) == {"A": 24.0, "B": 7.0}


def test_trades_below_the_threshold_are_no_orders_and_are_not_filled(tmp_path: Path) -> None:
    world, lake = World(troubled=False), Lake(tmp_path / "lake")
    config = demo(tmp_path, min_trade=0.05)
    small = 0
    held: dict[str, float] = {}
    for session in NIGHTS[:6]:
        world.deliver(lake, session)
        made = play(lake, config, session, signals_of(world, NIGHTS, session))
        bought = made.tables["positions"].filter(pl.col("bought") != 0)["ticker"].to_list()
        assert not set(bought) & set(held), "what was no order was not traded"
        below = made.tables["books"].filter(pl.col("bound") == "below min_trade")
        assert (below["trade"] == 0).all()
        assert (below["shares"] == 0).all()
        assert ((below["weight"] - below["previous"]).abs() < 0.05).all()
        held = dict(below.select("ticker", "weight").iter_rows())
        small += below.height
        orders = made.tables["books"].filter(pl.col("trade") != 0)
        assert (orders["trade"].abs() >= 0.05).all()
        nav = made.tables["profits"]["nav"][-1]
        np.testing.assert_allclose(orders["shares"] * orders["price"], orders["trade"] * nav, rtol=1e-12)
    assert small > 3
    profits = lake.read("profits").sort("session")
    assert profits["nav"][-1] != pytest.approx(profits["backtest_nav"][-1], rel=1e-9), (
        "the backtest makes them"
    )


def test_cap_impact_lots_and_commissions_are_of_the_capital_of_the_account(tmp_path: Path) -> None:
    """The account has 100 million; the backtest has as much, less, or less from the second night on."""
    world, large, small, outcomes = World(troubled=False), 1e8, 1e6, []
    for name, capital, backtest in (
        ("one", None, (large, large)),
        ("two", large, (small, small)),
        ("three", None, (large, small)),
    ):
        own = {} if capital is None else {"capital": capital}
        config, lake = demo(tmp_path / name, **own), Lake(tmp_path / name / "lake")
        costs = config.backtest.costs.model_copy(update={"commission_min": 1000.0})
        execution = config.backtest.execution.model_copy(update={"lot": 100})
        for session, amount in zip(NIGHTS[:2], backtest, strict=True):
            world.deliver(lake, session)
            settings = of_backtest(config, costs=costs, execution=execution, capital=amount)
            made = play(lake, settings, session, signals_of(world, NIGHTS, session))
        found = [one.check for one in made.findings if one.check == "capital"]
        assert found == (["capital"] if name == "three" else []), "the config has another capital"
        outcomes.append(
            [
                one.drop("created_at")
                for one in (made.tables["books"], made.tables["positions"], made.tables["profits"])
            ]
        )
    rows, positions, _ = outcomes[0]
    assert (rows["fill_sessions"] > 1).any(), "the cap binds"
    assert (positions.filter(pl.col("bought") != 0)["fee"] >= 1000.0 - 1e-6).all()
    for others in outcomes[1:]:
        for expected, found_ in zip(outcomes[0], others, strict=True):
            assert_frame_equal(found_, expected)


def test_a_split_between_order_and_fill_makes_no_other_size(tmp_path: Path) -> None:
    world, lake, path = World(troubled=False), Lake(tmp_path / "lake"), tmp_path / "fills.csv"
    config, fills = demo(tmp_path, fills=path), list[Fill]()
    before, day = NIGHTS[1:3]
    assert day == SPLIT_ON
    rows = [(one, firm, str(MODEL), -float(n)) for one in (before, day) for n, firm in enumerate(FIRMS)]
    signals = pl.DataFrame(rows, schema=["session", "ticker", "version", "signal"], orient="row")
    for session in (before, day):
        world.deliver(lake, session)
        write(path, fills, session)
        made = play(lake, config, session, signals.filter(pl.col("session") <= session))
        for ticker, shares in (
            made.tables["books"].filter(pl.col("shares") != 0).select("ticker", "shares").iter_rows()
        ):
            count = shares * (2.0 if ticker == SPLIT else 1.0)
            fills.append(Fill(day, ticker, count, world.close[ticker][day], 0.0, day))
    assert SPLIT in made.tables["positions"]["ticker"].to_list()
    (finding,) = [one for one in made.findings if one.check == "fills"]
    assert finding.level == "ok", finding.sentence


def test_costs_that_change_leave_the_backtest_of_earlier_nights_alone(tmp_path: Path) -> None:
    world, lake, config = World(troubled=False), Lake(tmp_path / "lake"), demo(tmp_path)
    dear = of_backtest(config, costs=config.backtest.costs.model_copy(update={"half_spread_bps": 50.0}))
    for at, session in enumerate(NIGHTS[:6]):
        world.deliver(lake, session)
        settings = config if at < 3 else dear
        play(lake, settings, session, signals_of(world, NIGHTS, session))
    profits = lake.read("profits").sort("session")
    assert profits["fee"][-1] > 2.0 * profits["fee"][2]
    np.testing.assert_allclose(profits["backtest_nav"], profits["nav"], rtol=1e-9)
    positions = lake.read("positions")
    np.testing.assert_allclose(positions["backtest_pnl"], positions["pnl"], atol=1e-9 * 1e6)


def test_small_trades_pay_for_no_purchase_and_are_not_made_later(tmp_path: Path) -> None:
    """F05 to F09 rise above their targets by less than min_trade, and F11 replaces F10 with what F10 pays."""
    world, lake, config = World(troubled=False), Lake(tmp_path / "lake"), demo(tmp_path, min_trade=0.02)
    sessions, free = NIGHTS[:4], {"half_spread_bps": 0.0, "commission_bps": 0.0}
    book = {"long_short": TopKLongOnly(kind="top_k_long_only", k=6, rebalance_every=2)}
    config = of_backtest(config, books=book, costs=config.backtest.costs.model_copy(update=free))
    for firm in FIRMS:
        rises = FIRMS[5] <= firm <= FIRMS[9]
        world.close[firm] = {day: 110.0 if rises and day >= sessions[2] else 100.0 for day in DAYS}
    liked = [FIRMS[5:11]] * 2 + [[*FIRMS[5:10], FIRMS[11]]] * 2
    rows = [
        (day, firm, str(MODEL), (2.0 if firm in firms else -2.0) + 0.01 * n)
        for day, firms in zip(sessions, liked, strict=True)
        for n, firm in enumerate(FIRMS)
    ]
    signals = pl.DataFrame(rows, schema=["session", "ticker", "version", "signal"], orient="row")
    made = {}
    for session in sessions:
        world.deliver(lake, session)
        made[session] = play(lake, config, session, signals.filter(pl.col("session") <= session))
    orders = made[sessions[2]].tables["books"]
    assert orders.filter(bound="below min_trade")["ticker"].to_list() == FIRMS[5:10]
    assert (orders["previous"] + orders["trade"]).sum() <= 1.0 + 1e-12, "no purchase is made on credit"
    booked = made[sessions[3]].tables["positions"].filter(pl.col("bought") != 0)
    sent = orders.filter(pl.col("shares") != 0)
    assert booked["ticker"].to_list() == sent["ticker"].to_list() == [FIRMS[10], FIRMS[11]]
    np.testing.assert_allclose(booked["bought"], sent["shares"], rtol=1e-12)


@pytest.mark.parametrize(("delay", "every"), [(1, 20), (2, 20), (2, 4), (3, 5)])
def test_what_a_night_drops_of_an_open_order_is_not_filled_later(
    tmp_path: Path, delay: int, every: int
) -> None:
    """At delays of 2 and 3, a decision that is not traded yet follows the night that drops the rest."""
    world, lake, config = World(troubled=False), Lake(tmp_path / "lake"), demo(tmp_path, min_trade=0.02)
    free = {"half_spread_bps": 0.0, "commission_bps": 0.0, "impact_coefficient": 0.0}
    book = {"long_short": TopKLongOnly(kind="top_k_long_only", k=6, rebalance_every=every)}
    costs = config.backtest.costs.model_copy(update=free)
    config = of_backtest(config, books=book, costs=costs, capital=1e8, delay=delay)
    for firm in FIRMS:
        world.close[firm] = dict.fromkeys(DAYS, 50.0)
    rows = [(day, firm, str(MODEL), 6.0 - abs(n - 6)) for day in NIGHTS for n, firm in enumerate(FIRMS)]
    signals = pl.DataFrame(rows, schema=["session", "ticker", "version", "signal"], orient="row")
    ordered: list[float] = []
    for at, session in enumerate(NIGHTS[: delay + 5]):
        world.deliver(lake, session)
        made = play(lake, config, session, signals.filter(pl.col("session") <= session))
        if at >= delay:  # the cap fills 5% of NAV
            expected = min(ordered[-delay], 1e8 * 0.05 / 50.0)
            bought = made.tables["positions"].filter(ticker=FIRMS[6], session=session)["bought"].sum()
            assert bought == pytest.approx(expected, rel=1e-9), session
        ordered += made.tables["books"].filter(ticker=FIRMS[6])["shares"].to_list()
    assert ordered[2] > 0.0
    assert ordered[3:] == [0.0] * (delay + 2), "1.7% of NAV are left"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("2021-05-17,F01,10,0,0", "Line 3 of .* has the price '0'; it must be a number above 0"),
        ("2021-05-17,F01,ten,5,0", "has the shares 'ten'; it must be a number"),
        ("17.05.2021,F01,10,5,0", "has the session '17.05.2021'; it must be a date such as"),
        ("2021-05-17,F01,10,5,x", "has the fee 'x'; it must be a number, or left out"),
        ("2021-05-16,F01,10,5,", "has the session 2021-05-16, which the prices of the lake do not have"),
        ("2021-05-17,SPY,10,5,", "has the ticker SPY, which the prices of the lake do not have"),
    ],
)
def test_a_wrong_line_of_the_fills_is_named(tmp_path: Path, line: str, says: str) -> None:
    world, lake, path = World(), Lake(tmp_path / "lake"), tmp_path / "fills.csv"
    world.deliver(lake, NIGHTS[1])
    path.write_text(f"session,ticker,shares,price,fee\n2021-05-17,F02,3,70.5,\n{line}\n")
    with pytest.raises(DataError, match=says):
        play(lake, demo(tmp_path, fills=path), NIGHTS[1], signals_of(world, NIGHTS, NIGHTS[1]))


def test_a_file_of_fills_that_is_missing_is_named_with_its_first_line(tmp_path: Path) -> None:
    world, lake, path = World(), Lake(tmp_path / "lake"), tmp_path / "fills.csv"
    world.deliver(lake, NIGHTS[0])
    signals = signals_of(world, NIGHTS, NIGHTS[0])
    with pytest.raises(DataError, match=rf"no file of fills at {path}; .* nightly.account.fills, ") as raised:
        play(lake, demo(tmp_path, fills=path), NIGHTS[0], signals)
    path.write_text(str(raised.value).rpartition("the line ")[2].removesuffix(".") + "\n")
    made = play(lake, demo(tmp_path, fills=path), NIGHTS[0], signals)
    assert made.tables["books"].filter(pl.col("trade") != 0).height > 3


def test_a_file_with_a_column_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "fills.csv"
    path.write_text("session,ticker,Shares,price,shares\n2021-05-17,F01,10,5,10\n")
    with pytest.raises(DataError, match=rf"{path} is not a CSV file of fills \(column 'shares' is duplicate"):
        read_trades(path, "fills", "nightly.account.fills")


def test_a_position_file_stands_for_fills(tmp_path: Path) -> None:
    """Positions are priced by the rule, and what is listed is held."""
    world, lake, path = World(), Lake(tmp_path / "lake"), tmp_path / "positions.csv"
    path.write_text("session,ticker,shares\n2021-05-14,F00,100\n2021-05-14,F04,-50\n2021-05-18,F00,150\n")
    config = demo(tmp_path, positions=path)
    for session in NIGHTS[:3]:
        world.deliver(lake, session)
        made = play(lake, config, session, signals_of(world, NIGHTS, session))
    held = made.tables["positions"].filter(pl.col("shares") != 0)
    assert held.select("ticker", "shares").rows() == [("F00", 150.0)]
    rows = {(row["session"], row["ticker"]): row for row in lake.read("positions").iter_rows(named=True)}
    bought = rows[NIGHTS[2], "F00"]
    assert bought["bought"] == pytest.approx(-50.0)  # 100 were 200 after the split
    assert bought["paid"] == pytest.approx(world.close["F00"][NIGHTS[2]])
    assert bought["fee"] == pytest.approx(10e-4 * 50.0 * world.close["F00"][NIGHTS[2]])


def test_the_account_is_shown_and_reconciled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    peerglass = command(monkeypatch, capfd)
    world, lake, path = World(troubled=False), Lake(tmp_path / "lake"), tmp_path / "fills.csv"
    path.write_text("session,ticker,shares,price,fee\n2021-05-17,F00,200,60.5,3\n2021-05-17,F04,-50,55,\n")
    config = demo(tmp_path, fills=path)
    given = [str(ROOT / "configs" / "nightly_demo.yaml"), "--set", f"lake={tmp_path / 'lake'}"]
    missing = peerglass("account", "show", *given)
    assert missing.code == 3
    assert "has no account of nightly_demo" in missing.err
    for session in NIGHTS[:4]:
        world.deliver(lake, session)
        play(lake, config, session, signals_of(world, NIGHTS, session))
    profits, last = lake.read("profits").sort("session"), NIGHTS[3]
    found = json.loads(peerglass("account", "show", *given, "--json").out)
    nav = 1e6 - 3.0 - 200 * 60.5 + 50 * 55.0 + 400 * world.close["F00"][last] - 50 * world.close["F04"][last]
    nav -= sum(BORROW * 1e-4 / 252 * 50 * world.close["F04"][day] for day in NIGHTS[1:3])
    assert found["nav"] == pytest.approx(nav, rel=1e-9)
    assert found["session"] == str(last)
    assert found["pnl_month"] == pytest.approx(found["nav"] - 1e6, abs=1e-6)
    assert found["pnl"] == pytest.approx(profits["nav"][-1] - profits["nav"][-2], abs=1e-6)
    assert {row["ticker"]: row["shares"] for row in found["positions"]} == {"F00": 400.0, "F04": -50.0}
    assert len(found["sessions"]) == 4
    text = peerglass("account", "show", *given).out
    assert f"account at the close of {last}" in text
    assert f"{found['nav']:,.2f} of 1,000,000.00" in text
    assert max(map(len, text.splitlines())) <= 110

    broker = tmp_path / "broker.csv"
    broker.write_text(f"session,ticker,shares\n{last},F00,400\n{last},F04,-50\n")
    assert "all 2 agree" in peerglass("account", "reconcile", *given[:1], str(broker), *given[1:]).out
    broker.write_text(f"session,ticker,shares\n{last},F00,390\n{last},F07,5\n")
    apart = peerglass("account", "reconcile", *given[:1], str(broker), *given[1:], "--json")
    assert apart.code == 3
    differences = {row["ticker"]: row["difference"] for row in json.loads(apart.out)["differences"]}
    assert differences == {"F00": -10.0, "F04": 50.0, "F07": 5.0}
    broker.write_text("session,ticker,shares\n2021-05-13,F00,390\n")
    unknown = peerglass("account", "reconcile", *given[:1], str(broker), *given[1:])
    assert unknown.code == 3
    assert "which the account of nightly_demo has not booked (booked: 2021-05-14 to" in unknown.err
