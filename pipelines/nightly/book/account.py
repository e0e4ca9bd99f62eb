"""The account of the nights: what real fills have left, and what every session earned beside the backtest.

By the rule, the account is the book that the nights roll forward (`pipelines.nightly.book.holdings`). With a
file of fills or positions, it is replayed from them every night, as far as they are known: a session that
is booked keeps its row, and what arrives later is the revision of a later row.

Shape suffixes: T sessions, N firms, L rows of a ledger.
"""

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from backtest.accounts.accounting import Account, Course
from backtest.accounts.fills import Fills, SharePrices, fills_of_positions, follow_fills, share_prices
from backtest.accounts.market import BookMarket
from backtest.costs import CostModel, Rate
from features.arithmetic.rolling import carry
from features.arrays import FloatArray
from features.panel.delistings import DelistingRule
from features.panel.holding import earned_index
from features.panel.panel import Panel, to_panel
from pipelines.columns import validated
from pipelines.config.schema import Config
from pipelines.config.sections import BacktestConfig
from pipelines.format import abbreviate
from pipelines.lake.lake import Lake
from pipelines.lake.renames import newest_ticker, renamed
from pipelines.lake.schemas import Positions, Profits
from pipelines.nightly.book.holdings import Absent, Actual, Held, Recorded, market_of_nights, place, replay
from pipelines.nightly.book.trades import given_trades, grid, place_trades
from pipelines.nightly.data import NightData
from pipelines.nightly.result import NightFinding
from pipelines.nightly.settings import filled_by
from pipelines.results.books import book_costs, book_execution

_CAPITAL = 1e6  # where no capital is set
_LOOK_BACK = 250  # sessions before the account in which the price of a halted firm is looked for
_REVISED = 1e-4  # revision over NAV from which it is a warning
_WHOLE = 1.0  # shares by which a fill may differ from its order, which may have fractions


def account_capital(config: Config, lake: Lake) -> float:
    """Cash before the first night: that of the account once it has begun."""
    booked = lake.rows("profits", ["capital"], pl.col("config") == config.name)
    if booked.height:
        return float(booked["capital"][0])
    return configured_capital(config)


def configured_capital(config: Config) -> float:
    """Return the capital of the config."""
    return config.nightly.account.capital or config.backtest.capital or _CAPITAL


def with_capital(config: Config, capital: float) -> Config:
    """Return a config whose impact, cap, lots and least commission count from the account's capital."""
    if config.backtest.capital is None:  # neither impact nor cap
        return config
    return config.model_copy(update={"backtest": config.backtest.model_copy(update={"capital": capital})})


@dataclass(frozen=True, slots=True, eq=False)
class Real:
    """The account of a file, from row ``first`` of the panel; firms without data stand behind the panel's."""

    course: Course
    first: int
    tickers: tuple[str, ...]
    prices: SharePrices
    fills: Fills
    actual: Actual


def real_account(config: Config, data: NightData, recorded: Recorded, capital: float) -> Real | None:
    """Replay the fills up to tonight that the config's file knows; None if it has no file."""
    trades, path = given_trades(config), config.nightly.account.fills or config.nightly.account.positions
    if trades is None or path is None:
        return None
    panel, session = data.market.panel, data.session
    trades = trades.filter(pl.col("session") <= session)
    now = [
        newest_ticker(ticker, day, data.renames)
        for ticker, day in trades.select("ticker", "session").iter_rows()
    ]
    trades = trades.with_columns(pl.Series("ticker", now, dtype=pl.String))
    own = (pl.col("config") == config.name) & (pl.col("night") < session)
    booked = data.lake.rows("positions", ["session", "ticker", "price"], own)
    days = panel.dates_T.tolist()
    trades = place_trades(trades, Path(path), days, panel.tickers_N, set(booked["ticker"]))
    first = min([recorded.begun(panel), *trades["t"]])
    others = trades.filter(pl.col("n") >= panel.n_firms).unique("n").sort("n")["ticker"].to_list()
    prices = _prices(data, first, first, others, booked)
    shape, trades = prices.price_TN.shape, trades.with_columns(pl.col("t") - first)
    span = slice(first, panel.n_sessions)
    costs = _padded(book_costs(config.backtest, panel, span), len(others))
    if config.nightly.account.fills:
        paid = pl.col("shares") * pl.col("price")
        fills = Fills(*(grid(trades, value, shape) for value in (pl.col("shares"), paid, pl.col("fee"))))
    else:
        shares_TN = grid(trades, pl.col("shares"), shape)
        listed = {t: shares_TN[t] for t in sorted(set(trades["t"]))}
        at_TN = np.pad(
            _fill_prices(config.backtest, panel, span, prices),
            ((0, 0), (0, len(others))),
            constant_values=np.nan,
        )
        fills = fills_of_positions(listed, prices, at_TN, costs, capital)
    course = follow_fills(fills, prices, costs, capital)
    end, N = course.account, panel.n_firms
    absent = {
        ticker: Absent(float(value), session, 1.0)
        for ticker, value in zip(others, end.value_N[N:], strict=True)
        if value
    }
    open_N = _still_open(recorded, panel, fills, prices, first) / capital
    account = Account(end.value_N[:N], open_N, end.cash)
    return Real(course, first, (*panel.tickers_N, *others), prices, fills, Actual(account, absent))


def _still_open(
    recorded: Recorded, panel: Panel, fills: Fills, prices: SharePrices, first: int
) -> FloatArray:
    """Value of what the fills have left open of the last decision, if its terms keep orders open."""
    open_N, made = np.zeros(panel.n_firms), recorded.made
    if made.is_empty():
        return open_N
    night = made.row(-1, named=True)
    at = int(np.searchsorted(panel.dates_T, np.datetime64(night["session"]))) - first
    terms = BacktestConfig.model_validate(json.loads(night["terms"]))
    span = slice(panel.n_sessions - 1, panel.n_sessions)
    if at < 0 or at + night["delay"] >= len(prices.price_TN):
        return open_N
    if not book_execution(terms, panel, span, night["delay"]).carries:
        return open_N
    left_N = place(
        recorded.of(night["session"]).with_columns(pl.col("shares").fill_null(0.0)),
        "shares",
        panel,
        recorded.renames,
    )
    for t in range(at + 1, len(prices.price_TN)):
        left_N = left_N * prices.split_TN[t, : panel.n_firms] - fills.bought_TN[t, : panel.n_firms]
    ordered_N = place(recorded.of(night["session"]), "trade", panel, recorded.renames)
    left_N[left_N * ordered_N <= 0] = 0.0  # filled, or more than filled
    return left_N * np.nan_to_num(prices.price_TN[-1, : panel.n_firms])


def order_prices(data: NightData, recorded: Recorded, real: Real | None) -> FloatArray:
    """Price of a share tonight, shape (N,), in the unit of the account's first session; NaN without one."""
    panel = data.market.panel
    price_N: FloatArray = panel.raw_close_TN[-1]
    if len(panel.wrong.session_K):
        tonight, begun = panel.n_sessions - 1, recorded.begun(panel)
        prices = _prices(data, tonight, begun, [], pl.DataFrame()) if real is None else real.prices
        price_N = np.where(panel.traded_TN[-1], prices.price_TN[-1, : panel.n_firms], np.nan)
    return price_N


def _prices(data: NightData, first: int, begun: int, others: list[str], booked: pl.DataFrame) -> SharePrices:
    """What a share is worth and pays from row ``first`` of the panel on; other firms keep a booked price.

    Prices are in the unit of row ``begun``, at most ``first``.
    """
    panel = data.market.panel
    before = max(first - _LOOK_BACK, 0)
    market, wrong = market_of_nights(panel, data.tables.get("securities")), panel.wrong
    split_TN, dividend_TN = (
        np.nan_to_num(to_panel(data.tables["prices"], name, panel), nan=absent)
        for name, absent in (("split_ratio", 1.0), ("dividend", 0.0))
    )
    # Rows in another unit earn nothing: a share keeps its unit.
    unit_TN = np.full_like(panel.raw_close_TN, np.nan)
    np.divide(earned_index(panel), panel.total_return_index_TN, out=unit_TN, where=panel.traded_TN)
    unit_TN[wrong.session_K[wrong.price_K], wrong.firm_K[wrong.price_K]] = np.nan
    start_N = carry(unit_TN)[begun]
    unit_TN /= np.where(np.isnan(start_N), 1.0, start_N)
    for t, n in zip(wrong.session_K[~wrong.price_K], wrong.firm_K[~wrong.price_K], strict=True):
        if t > begun and panel.traded_TN[:t, n].any():
            unit_TN[t:, n] *= split_TN[t, n] * (1.0 + dividend_TN[t, n] / panel.raw_close_TN[t, n])
            split_TN[t, n], dividend_TN[t, n] = 1.0, 0.0
    close_TN = panel.raw_close_TN * unit_TN
    part = BookMarket(market.value_TN[before:], market.state_TN[before:])
    found = share_prices(close_TN[before:], split_TN[before:], dividend_TN[before:], part)
    rows, pad = slice(first - before, None), ((0, 0), (0, len(others)))
    price_TN = np.pad(found.price_TN[rows], pad, constant_values=np.nan)
    for at, ticker in enumerate(others, panel.n_firms):
        known = booked.filter(pl.col("ticker") == ticker).drop_nulls("price").sort("session")
        for day, price in known.select("session", "price").iter_rows():
            row = int(np.searchsorted(panel.dates_T, np.datetime64(day))) - first
            price_TN[max(row, 0) :, at] = price
    return SharePrices(
        price_TN,
        np.pad(found.split_TN[rows], pad, constant_values=1.0),
        np.pad(found.dividend_TN[rows], pad),
        np.pad(found.gone_TN[rows], pad),
    )


def _padded(costs: CostModel, others: int) -> CostModel:
    """Add firms to the costs that are given by firm; they have the smallest of them."""
    if not others:
        return costs

    def wide(rate: Rate) -> Rate:
        if not isinstance(rate, np.ndarray):
            return rate
        return np.hstack([rate, np.repeat(np.nanmin(rate, axis=1, keepdims=True), others, axis=1)])

    impact = costs.impact
    if impact is not None:
        rate_TN = wide(impact.volatility_per_root_volume_TN)
        assert isinstance(rate_TN, np.ndarray)
        impact = replace(impact, volatility_per_root_volume_TN=rate_TN)
    spread, borrow = wide(costs.half_spread_bps), wide(costs.borrow_bps_per_year)
    return replace(costs, half_spread_bps=spread, borrow_bps_per_year=borrow, impact=impact)


def _fill_prices(terms: BacktestConfig, panel: Panel, span: slice, prices: SharePrices) -> FloatArray:
    """Price of execution in the unit of the prices of shares; NaN where it is unknown."""
    over_TN = book_execution(terms, panel, span, 1).price_over_close_TN
    close_TN = np.where(panel.traded_TN[span], prices.price_TN[:, : panel.n_firms], np.nan)
    return close_TN if over_TN is None else close_TN * over_TN


def book_sessions(
    config: Config, data: NightData, recorded: Recorded, before: Held, real: Real | None
) -> tuple[dict[str, pl.DataFrame], list[NightFinding]]:
    """Book the sessions after the last night, up to tonight: rows of ``positions`` and ``profits``."""
    capital = account_capital(config, data.lake)
    days = data.market.panel.dates_T.tolist()
    since = recorded.last if recorded.last is not None else days[-2] if len(days) > 1 else dt.date.min
    new = [t for t, day in enumerate(days) if day > since]
    positions = _positions(data, recorded, before, real, capital)
    backtest_nav: dict[dt.date, float] | None = {}
    backtest = _BACKTEST
    if recorded.last is not None and recorded.accounts["session"][0] < days[0]:
        backtest_nav = None  # the lake has lost the prices of the first night
    elif recorded.last is not None:
        own = (pl.col("config") == config.name) & pl.col("session").is_in(recorded.made["session"].implode())
        every = replace(recorded, books=data.lake.rows("books", filters=own))
        rule = DelistingRule(unknown_return=config.label.unknown_delisting_return)
        first, course = replay(every, data.market.panel, data.tables.get("securities"), rule)
        backtest_nav = dict(zip(days[first:], (course.nav_T * capital).tolist(), strict=True))
        names = dict(enumerate(data.market.panel.tickers_N))
        backtest = course.ledger.select(
            (pl.col("session") + first).alias("t"),
            pl.col("firm").replace_strict(names, return_dtype=pl.String).alias("ticker"),
            ((pl.col("pnl") - pl.col("cost")) * capital).alias("backtest_pnl"),
        )
    positions = positions.join(backtest, on=["t", "ticker"], how="full", coalesce=True)
    positions = positions.filter(pl.col("t").is_in(new))
    if real is None:
        positions = pl.concat([positions, _absent(config, data, before, capital)], how="diagonal")
    amounts = ("value", "fee", "charge", "dividend", "pnl", "backtest_pnl")
    positions = positions.with_columns(
        pl.col(*amounts, "bought").fill_null(0.0),
        session=_days(pl.col("t"), days),
        priced_on=_days(pl.col("priced_at"), days),
    ).filter(~pl.all_horizontal(pl.col(*amounts, "bought") == 0))
    positions = positions.with_columns(
        pl.when(pl.col("value") == 0).then(0.0).otherwise("shares").alias("shares"),
        pl.when(pl.col("bought") != 0).then("paid").alias("paid"),
    )
    key = {"config": config.name, "night": data.session, "created_at": dt.datetime.now(dt.UTC)}
    stamped = [pl.lit(value).alias(name) for name, value in key.items()]
    positions = positions.with_columns(stamped).select(Positions.column_names())
    positions = validated(Positions, positions.sort("session", "ticker"))
    rows = _profits(config, data, recorded, before, real, positions, backtest_nav)
    profits = validated(Profits, rows.with_columns(stamped).select(Profits.column_names()))
    said = _findings(config, data, recorded, positions, profits, real)
    return {"positions": positions, "profits": profits}, list(said)


def _positions(
    data: NightData, recorded: Recorded, before: Held, real: Real | None, capital: float
) -> pl.DataFrame:
    """Rows of the account's ledger, in shares and currency; ``t`` and ``priced_at`` are rows of the panel."""
    panel = data.market.panel
    if real is not None:
        course, first, tickers, prices = real.course, real.first, real.tickers, real.prices
        start_N, bought_TN, at_TN = np.zeros(len(tickers)), real.fills.bought_TN, prices.price_TN.copy()
        np.divide(real.fills.paid_TN, bought_TN, out=at_TN, where=bought_TN != 0)
    elif before.course is not None:
        course, first, tickers, start_N = before.course, before.start, panel.tickers_N, before.start_N
        prices = _prices(data, first, recorded.begun(panel), [], pl.DataFrame())
        terms = BacktestConfig.model_validate(json.loads(recorded.accounts["terms"][-1]))
        at_TN = _fill_prices(terms, panel, slice(first, panel.n_sessions), prices)
    else:
        return _EMPTY
    ledger = course.ledger
    t, n = ledger["session"].to_numpy(), ledger["firm"].to_numpy()
    before_L = ledger.select(pl.col("position").shift(1).over("firm", order_by="session")).to_series()
    held_L = np.where(before_L.is_null(), np.append(start_N, 0.0)[n], before_L.fill_null(0.0).to_numpy())
    row_T1 = np.arange(panel.n_sessions)[:, None]
    priced_TN = np.maximum.accumulate(np.where(panel.traded_TN, row_T1, -1), axis=0)
    priced_L = np.where(n < panel.n_firms, priced_TN[t + first, np.minimum(n, panel.n_firms - 1)], -1)
    price_L, last_L = prices.price_TN[t, n], prices.price_TN[np.maximum(t - 1, 0), n]
    with np.errstate(divide="ignore", invalid="ignore"):
        shares_L = ledger["position"].to_numpy() * capital / price_L
        bought_L = ledger["trade"].to_numpy() * capital / at_TN[t, n]
        held_L = np.where(held_L == 0, 0.0, held_L * capital / last_L)
    dividend_L = np.nan_to_num(held_L * prices.split_TN[t, n] * prices.dividend_TN[t, n])
    numbers = {"shares": shares_L, "price": price_L, "bought": bought_L, "paid": at_TN[t, n]}
    frame = ledger.select(
        (pl.col("session") + first).alias("t"),
        pl.Series("ticker", [tickers[firm] for firm in n], dtype=pl.String),
        pl.Series("priced_at", priced_L),
        value=pl.col("position") * capital,
        fee=(pl.col("half_spread") + pl.col("commission") + pl.col("impact")) * capital,
        charge=(pl.col("borrow") + pl.col("financing")) * capital,
        pnl=(pl.col("pnl") - pl.col("cost")) * capital,
        dividend=pl.Series(dividend_L),
    ).with_columns(pl.Series(name, number).fill_nan(None) for name, number in numbers.items())
    return frame.select(_EMPTY.columns)


def _profits(  # noqa: PLR0917  # the account, and what it is compared with
    config: Config,
    data: NightData,
    recorded: Recorded,
    before: Held,
    real: Real | None,
    positions: pl.DataFrame,
    backtest_nav: Mapping[dt.date, float] | None,
) -> pl.DataFrame:
    """Return a row for each session that is booked, without stamps."""
    own = (pl.col("config") == config.name) & (pl.col("session") <= (recorded.last or dt.date.min))
    earlier = data.lake.rows("profits", filters=own).sort("session")
    capital, begun = account_capital(config, data.lake), before.course is not None
    days = data.market.panel.dates_T.tolist()
    course = before.course if real is None else real.course
    first = before.start if real is None else real.first

    def nav_on(t: int) -> float:
        """NAV of the account at the close of a row of the panel."""
        if course is None:
            return capital * before.nav  # cash before the first night, 0 after a ruin
        return capital if t < first else float(course.nav_T[t - first]) * capital

    nav, gross = (earlier[name][-1] if earlier.height else capital for name in ("nav", "gross"))
    rows = list[dict[str, object]]()
    start = before.start + 1 if begun else len(days) - 1
    for t in range(start, len(days)):
        of_day = positions.filter(pl.col("session") == days[t])
        pnl, fee, charge, dividend, value = (
            float(of_day[name].sum()) for name in ("pnl", "fee", "charge", "dividend", "value")
        )
        revision = nav_on(t - 1) - nav if t == start else 0.0
        if nav > 0:
            gross *= max(1.0 + (pnl + fee + charge + revision) / nav, 0.0)
        nav = nav_on(t)
        row = {"session": days[t], "filled_by": filled_by(config), "capital": capital, "nav": nav}
        row |= {"gross": gross, "cash": nav - value, "pnl": pnl, "revision": revision, "fee": fee}
        backtest = None if backtest_nav is None else backtest_nav.get(days[t], capital)
        row |= {"charge": charge, "dividend": dividend, "backtest_nav": backtest}
        rows.append(row | {"positions": of_day.filter(pl.col("value") != 0).height})
    return pl.DataFrame(rows, schema_overrides={"backtest_nav": pl.Float64})


_BACKTEST = pl.DataFrame(schema={"t": pl.Int32, "ticker": pl.String, "backtest_pnl": pl.Float64})
_NUMBERS = ("shares", "price", "value", "bought", "paid", "fee", "charge", "dividend", "pnl")
_EMPTY = pl.DataFrame(
    schema={"t": pl.Int32, "ticker": pl.String, "priced_at": pl.Int64, **dict.fromkeys(_NUMBERS, pl.Float64)}
)


def _days(at: pl.Expr, days: list[dt.date]) -> pl.Expr:
    return at.replace_strict(dict(enumerate(days)), default=None, return_dtype=pl.Date)


def _absent(config: Config, data: NightData, before: Held, capital: float) -> pl.DataFrame:
    """Write the firms that the data do not have, at their last value and the price that was booked last."""
    own = (pl.col("config") == config.name) & (pl.col("night") < data.session)
    booked = data.lake.rows("positions", filters=own).sort("session").unique("ticker", keep="last")
    last = {row["ticker"]: row for row in booked.iter_rows(named=True)}
    days = data.market.panel.dates_T.tolist()
    rows = []
    for ticker, one in before.absent.items():
        price, priced_on = (last.get(ticker, {}).get(name) for name in ("price", "priced_on"))
        value, fee = one.weight * before.nav * capital, one.fee * before.nav * capital
        row = {"ticker": ticker, "value": value, "price": price, "charge": fee, "pnl": -fee}
        row["priced_at"] = days.index(priced_on) if priced_on in days else None
        row["shares"] = value / price if price else None
        rows += [row | {"t": t} for t in range(before.start + 1, len(days))]
    return pl.DataFrame(rows, schema=_EMPTY.schema)


def _findings(  # noqa: PLR0917  # what was booked, and from what
    config: Config,
    data: NightData,
    recorded: Recorded,
    positions: pl.DataFrame,
    profits: pl.DataFrame,
    real: Real | None,
) -> Iterator[NightFinding]:
    """Say what the account earned, what was revised, and how the fills differ from the orders."""
    tonight, first = profits.row(-1, named=True), profits.row(0, named=True)
    capital, over_nav = tonight["capital"], earned(profits)["return"] or 0.0
    said = (
        f"The account is worth {tonight['nav']:,.0f}, of which {tonight['cash']:,.0f} are cash; the session "
        f"earned {tonight['pnl']:+,.0f} ({over_nav:+.2%})."
    )
    if tonight["backtest_nav"] is None:
        said += " The prices begin after the first night, so the backtest of its decisions is unknown."
    else:
        said += f" The backtest of the same decisions would be worth {tonight['backtest_nav']:,.0f}."
    yield NightFinding("account", "ok", said, value=over_nav)
    revision = first["revision"] / first["capital"]
    if abs(revision) > 1e-9:
        yield NightFinding(
            "revision",
            "warn" if abs(revision) > _REVISED else "ok",
            f"Corrected data, or fills that arrived late, change the NAV before {first['session']} by "
            f"{first['revision']:+,.2f} ({revision:+.3%} of the capital). Booked sessions keep their rows; "
            f"the change is the revision of {first['session']}.",
            value=revision,
            limit=_REVISED,
        )
    if configured_capital(config) != capital:
        yield NightFinding(
            "capital",
            "warn",
            f"The config has a capital of {configured_capital(config):,.0f}, but the account goes on with "
            f"the {capital:,.0f} that it began with. For another capital, start under another name.",
        )
    if real is not None:
        yield from _fill_findings(data, recorded, positions.filter(pl.col("session") == data.session), real)


def _fill_findings(
    data: NightData, recorded: Recorded, booked: pl.DataFrame, real: Real
) -> Iterator[NightFinding]:
    """Compare tonight's fills with the orders that were to be filled tonight."""
    days = data.market.panel.dates_T.tolist()
    ordered: dict[str, float] = {}
    if recorded.last is not None:
        at = max(len(days) - 1 - int(recorded.accounts["delay"][-1]), 0)
        split_N = real.prices.split_TN[at + 1 - real.first :].prod(axis=0)
        split = dict(zip(real.tickers, split_N.tolist(), strict=True))
        rows = recorded.of(days[at]).filter(pl.col("tradable"))
        for ticker, session, shares in rows.select("ticker", "session", "shares").drop_nulls().iter_rows():
            if shares:
                name = newest_ticker(ticker, session, recorded.renames)
                ordered[name] = shares * split.get(name, 1.0)
    filled = dict(booked.filter(pl.col("bought") != 0).select("ticker", "bought").iter_rows())
    missing = [one for one in ordered if one not in filled]
    partly = [one for one in ordered if one in filled and abs(filled[one] - ordered[one]) > _WHOLE]
    strange = [one for one in filled if one not in ordered]
    whole = len(ordered) - len(missing) - len(partly)
    said = f"Of {len(ordered)} orders for {data.session}, {whole} were filled"
    sizes = [f"{one} ({filled[one]:,.0f} of {ordered[one]:,.0f} shares)" for one in partly]
    found = {
        "in another size": sizes,
        "not at all": [f"{one} ({ordered[one]:,.0f})" for one in missing],
        "without an order": [f"{one} ({filled[one]:,.0f})" for one in strange],
    }
    parts = [f"{len(names)} {words}: {abbreviate(names, 5)}" for words, names in found.items() if names]
    level: Literal["ok", "warn"] = "warn" if parts else "ok"
    yield NightFinding("fills", level, f"{'; '.join([said, *parts])}.", value=float(len(parts)))


def account_tables(
    lake: Lake, config_name: str, through: dt.date, renames: pl.DataFrame
) -> dict[str, pl.DataFrame]:
    """Read what the page and the commands show of an account, up to a session.

    ``profits`` has all sessions, ``positions`` the newest one, and ``shortfall`` by firm what the account and
    the backtest of its decisions earned since the start, with ``shortfall``, the backtest's P&L minus the
    account's: the largest first.
    """
    own = (pl.col("config") == config_name) & (pl.col("session") <= through)
    profits = lake.rows("profits", filters=own).sort("session")
    positions = lake.rows("positions", filters=own).sort("session", "ticker")
    # the day of its price tells a firm that is held under a former ticker from the next firm with that ticker
    dated = positions.with_row_index("row").with_columns(known=pl.coalesce("priced_on", "session"))
    by_firm = (
        renamed(dated, renames, ["row"], "known")
        .group_by("ticker")
        .agg(pl.col("pnl", "backtest_pnl", "fee", "charge", "dividend").sum())
        .with_columns(shortfall=pl.col("backtest_pnl") - pl.col("pnl"))
        .sort(pl.col("shortfall").abs(), "ticker", descending=[True, False])
    )
    newest = positions.filter(pl.col("session") == profits["session"].max())
    return {"profits": profits, "positions": newest, "shortfall": by_firm}


def earned(profits: pl.DataFrame) -> dict[str, float | None]:
    """P&L of the newest session, and of its month so far with the month's revisions; both over NAV as well.

    Keys: ``pnl``, ``return``, ``pnl_month`` and ``return_month``. A return is None unless the NAV before it
    is above 0.
    """
    month = pl.col("session").dt.truncate("1mo")
    in_month = profits.filter(month == month.max())
    found = {"": profits["pnl"][-1], "_month": (in_month["pnl"] + in_month["revision"]).sum()}
    out, nav = dict[str, float | None](), float(profits["nav"][-1])
    for what, pnl in found.items():
        out[f"pnl{what}"], before = float(pnl), nav - pnl
        out[f"return{what}"] = pnl / before if before > 0 else None
    return out
