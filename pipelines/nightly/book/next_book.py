"""The book of a night: the target decided at its close, what is held, the trades, and their costs.

All rates of an order are those of the session of its trade, known at tonight's close. Shape suffix: N firms.
"""

import datetime as dt
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import dataframely as dy
import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.accounts.market import GONE, KNOWN, TRADABLE
from backtest.books.book import TOLERANCE, Book, LimitUse
from backtest.books.decisions import affordable, book_targets, funded, last_limit_uses
from backtest.books.rules.optimised import Optimised
from backtest.books.schedules import Schedule
from features.arrays import BoolArray, FloatArray, IntArray
from features.panel.cleaned import in_currency_of
from features.panel.delistings import DelistingRule
from features.panel.panel import Panel, to_panel
from pipelines.columns import validated
from pipelines.config.schema import Config
from pipelines.config.sections import BacktestConfig
from pipelines.dataset.market import Market
from pipelines.errors import DataError
from pipelines.format import abbreviate
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import Accounts, BookLimits, Books, Holdings
from pipelines.nightly.book.account import (
    account_capital,
    book_sessions,
    order_prices,
    real_account,
    with_capital,
)
from pipelines.nightly.book.holdings import NOT_IN_THE_DATA, TOO_SMALL, Held, Recorded, hold, place
from pipelines.nightly.data import NightData
from pipelines.nightly.result import NightFinding, follow
from pipelines.nightly.schedule import decision_due, following_session, schedule_text
from pipelines.nightly.settings import nightly_book, trading_delay
from pipelines.results.books import book_costs, book_execution, book_market

_DUST = 1e-12  # weights and trades below this are rounding


@dataclass(frozen=True, slots=True, eq=False)
class NextBook:
    """Rows of the lake's tables that a night writes, in this order, and what it says of them."""

    tables: Mapping[str, pl.DataFrame]
    findings: tuple[NightFinding, ...]


def next_book(config: Config, data: NightData, signals: pl.DataFrame, recorded: Recorded) -> NextBook:
    """Decide the book of a night, as fractions of the NAV before its trades; DataError without signals."""
    name, book = nightly_book(config)
    panel, delay = data.market.panel, trading_delay(config)
    sessions = panel.dates_T.tolist()
    assert sessions[-1] == data.session, "the data are cut at the session of the night"
    following = following_session(config, data.lake, sessions)
    due = decision_due(book, panel.dates_T, following, recorded.accounts)
    decided = _decide(config, book, data.market, follow(signals, recorded.renames), recorded, due)
    rule = DelistingRule(unknown_return=config.label.unknown_delisting_return)
    capital = account_capital(config, data.lake)
    configured, config = config, with_capital(config, capital)
    real = real_account(config, data, recorded, capital)
    actual = None if real is None else real.actual
    before = hold(recorded, panel, data.tables.get("securities"), rule, delay=delay, actual=actual)
    booked, said = book_sessions(configured, data, recorded, before, real)
    price_N, quoted = order_prices(data, recorded, real), in_currency_of(panel, recorded.begun(panel))
    rows, cut = _rows(config, name, data, quoted, before, decided, price_N)
    key = {"config": config.name, "session": data.session, "created_at": dt.datetime.now(dt.UTC)}

    def of_night(table: type[dy.Schema], frame: pl.DataFrame) -> pl.DataFrame:
        whole = frame.with_columns(pl.lit(value).alias(column) for column, value in key.items())
        return validated(table, whole.select(table.column_names()))

    version = signals.sort("session")["version"][-1]
    rows = of_night(Books, rows.with_columns(book=pl.lit(name), version=pl.lit(version)))
    replaced = decided.state == "made" or delay > 1  # `hold` drops what an earlier night called too small
    least = 0.0 if replaced else config.nightly.account.min_trade
    holdings = of_night(Holdings, _holdings(data, before, least))
    terms = config.backtest.model_dump_json(include={"costs", "execution", "capital"})
    if decided.state != "made" and recorded.last is not None:
        terms = recorded.accounts["terms"][-1]  # without a new order, those of the last one go on
    account = {
        "book": name,
        "nav": before.nav,
        "delay": delay,
        "terms": terms,
        "schedule": schedule_text(book),
        "due": due,
        "decision": decided.state,
        "orders": rows.height,
        "positions": holdings.height,
        "waiting": before.waiting,
    }
    accounts = pl.DataFrame([account], schema_overrides={"due": pl.Date, "waiting": pl.Date})
    limits = BookLimits.create_empty().select("book", *_LIMIT).schema
    uses = [(name, *(getattr(use, field) for field in _LIMIT)) for use in decided.uses]
    tables = {
        **{"accounts": of_night(Accounts, accounts), "holdings": holdings, "books": rows, **booked},
        "book_limits": of_night(BookLimits, pl.DataFrame(uses, schema=limits, orient="row")),
    }
    return NextBook(tables, (*said, *_describe(name, config, data.session, rows, before, due, decided, cut)))


_LIMIT = ("name", "value", "limit", "unit", "state")


@dataclass(frozen=True, slots=True, eq=False)
class _Decided:
    """The decision of tonight; ``weight_N`` is None unless it was made."""

    state: Literal["made", "kept", "refused"] | None
    weight_N: FloatArray | None = None
    uses: tuple[LimitUse, ...] = ()
    refusal: str | None = None
    notes: tuple[str, ...] = ()


def _decide(  # noqa: PLR0917  # the inputs of a decision
    config: Config, book: Book, market: Market, signals: pl.DataFrame, recorded: Recorded, due: dt.date | None
) -> _Decided:
    """Decide the target of tonight if a decision is due."""
    if signals.is_empty():
        raise DataError("There are no signals to build a book from; score a model version first.")
    if signals.select("session", "ticker").is_duplicated().any():
        raise DataError("A session has several signals of one firm; choose the champion's.")
    signal_TN = to_panel(signals.rename({"session": "date"}), "signal", market.panel)
    if due is None:
        return _Decided(None)
    panel, horizon = market.panel, config.label.horizon
    made, last_N = recorded.made, None
    if made.height:
        last_N = place(recorded.of(made["session"][-1]), "decided", panel, recorded.renames)
    rows = np.searchsorted(panel.dates_T, made["session"].to_numpy())
    rows = rows[rows > panel.n_sessions - 1 - horizon]  # earlier ones are not held any more
    held = slice(int(rows[0]) if len(rows) else panel.n_sessions - 1, panel.n_sessions)
    turn_T = np.zeros(held.stop - held.start, dtype=np.bool_)
    turn_T[rows - held.start] = True
    turn_T[-1] = True
    if book.continues:
        held, turn_T = slice(panel.n_sessions - 1, panel.n_sessions), turn_T[-1:]
    if not np.isfinite(signal_TN[held]).any():
        return _Decided("refused", refusal="No firm has had a signal yet.")
    try:
        targets = book_targets(
            book, signal_TN, panel, held, horizon, schedule=Schedule(turn_T), last_N=last_N
        )
    except ValueError as error:
        return _Decided("refused", refusal=str(error))
    weight_N, tonight = targets.target_TN[-1], len(targets.target_TN) - 1
    notes = tuple(note.text for note in targets.notes if note.session == tonight)
    if np.isnan(weight_N).any():
        if notes:
            return _Decided("kept", notes=notes)
        few = f"The session has only {np.isfinite(signal_TN[-1]).sum()} signals, too few for the book."
        return _Decided("refused", refusal=few)
    uses = last_limit_uses(book, signal_TN, panel, held, targets.target_TN, last_N)
    return _Decided("made", weight_N, uses, notes=notes)


def _rows(  # noqa: PLR0917  # what a night has
    config: Config,
    name: str,
    data: NightData,
    panel: Panel,
    before: Held,
    decided: _Decided,
    price_N: FloatArray,
) -> tuple[pl.DataFrame, float]:
    """Every firm that is held, targeted or to be traded, with the columns of the table ``books``.

    Closes as quoted of ``panel`` are in the currency of the account.
    """
    quarantined = quarantined_tickers(data.lake, data.session)

    def estimate(trade_N: FloatArray) -> OrderEstimates:
        trade_N[np.abs(trade_N) < _DUST] = 0.0
        delay, nav = trading_delay(config), before.order_nav
        return estimate_orders(trade_N, nav, config.backtest, panel, delay, quarantined=quarantined)

    target_N = before.previous_N + before.rest_N  # what earlier orders leave
    if decided.weight_N is not None:
        target_N = funded(decided.weight_N, before.absent_weight)
    estimates = estimate(target_N - before.previous_N)
    stuck_N = ~estimates.tradable_N
    small_N = np.zeros_like(stuck_N)
    while True:
        weight_N = affordable(target_N, before.previous_N, stuck_N | small_N, before.absent_weight)
        trade_N = weight_N - before.previous_N
        below_N = (np.abs(trade_N) < config.nightly.account.min_trade) & (np.abs(trade_N) >= _DUST)
        if not (below_N & ~small_N).any():
            break
        small_N |= below_N  # they pay for no purchase, which can make others too small
    trade_N[small_N] = 0.0
    estimates = estimate(trade_N)
    bound_N = bounds(config.backtest.books[name], weight_N, estimates, panel.group_TN[-1])
    bound_N[small_N & estimates.tradable_N] = TOO_SMALL
    shares_N = trade_N * before.order_nav * account_capital(config, data.lake) / price_N
    lot = config.backtest.execution.lot
    if lot is not None:
        from backtest.accounts.positions import LOT_ROUNDING

        whole_N = np.sign(shares_N) * np.floor(np.abs(shares_N) / lot + LOT_ROUNDING) * lot
        shares_N = np.where(weight_N == 0.0, shares_N, whole_N)  # odd lots can be closed
    rows = pl.DataFrame(
        {
            "ticker": pl.Series(panel.tickers_N, dtype=pl.String),
            "weight": weight_N,
            "decided": None if decided.weight_N is None else pl.Series(decided.weight_N),
            "previous": before.previous_N,
            "trade": trade_N,
            "expected_cost": pl.Series(estimates.cost_N).fill_nan(None),
            "fill_sessions": pl.Series(estimates.sessions_N).replace(-1, None),
            "bound": pl.Series(bound_N.tolist(), dtype=pl.String),
            "tradable": estimates.tradable_N,
            "price": pl.Series(price_N).fill_nan(None),
            "shares": pl.Series(shares_N).fill_nan(None),
            "held": before.weight_N,
        },
        schema_overrides={"decided": pl.Float64},
    )
    unrecorded = (pl.col("held") != 0) & (pl.col("bound") == DELISTED)  # a recorded delisting was paid out
    rows = rows.with_columns(pl.when(unrecorded).then(pl.lit(NO_PRICE)).otherwise("bound").alias("bound"))
    relevant = (pl.col("previous").abs() >= _DUST) | (pl.col("held").abs() >= _DUST)
    relevant |= pl.any_horizontal(pl.col("weight", "trade", "decided").fill_null(0.0) != 0)
    rows = rows.filter(relevant).drop("held")
    absent = [  # a decision sells what the data do not have, but nothing says at which price
        {
            "ticker": ticker,
            "weight": 0.0 if decided.state == "made" else firm.weight,
            "decided": 0.0 if decided.state == "made" else None,
            "previous": firm.weight,
            "trade": -firm.weight if decided.state == "made" else 0.0,
            "bound": NOT_IN_THE_DATA,
            "tradable": False,
        }
        for ticker, firm in before.absent.items()
    ]
    rows = pl.concat([rows, pl.DataFrame(absent, schema=rows.schema)]).sort("ticker")
    return rows, float((target_N - weight_N).sum())


def _holdings(data: NightData, before: Held, least: float) -> pl.DataFrame:
    """Return the rows of the table ``holdings``, without what is open below ``least``."""
    at_close = pl.DataFrame(
        {
            "ticker": pl.Series(data.market.panel.tickers_N, dtype=pl.String),
            "weight": before.weight_N,
            "open": np.where(np.abs(before.open_N) < least, 0.0, before.open_N),
            "since": pl.Series(before.since_N).cast(pl.Date),
            "growth": before.growth_N,
        }
    ).filter((pl.col("weight").abs() >= _DUST) | (pl.col("open").abs() >= _DUST))
    absent = [(ticker, one.weight, 0.0, one.since, one.growth) for ticker, one in before.absent.items()]
    return pl.concat([at_close, pl.DataFrame(absent, schema=at_close.schema, orient="row")]).sort("ticker")


_SHORT = 1e-4  # smallest cut of the purchases that is said: 0.01% of NAV
MAX_STUCK = 0.05  # largest share of the traded weight in firms that cannot be traded, without a warning


def _describe(  # noqa: PLR0917  # what a night decided and holds
    name: str,
    config: Config,
    session: dt.date,
    rows: pl.DataFrame,
    before: Held,
    due: dt.date | None,
    decided: _Decided,
    cut: float,
) -> Iterator[NightFinding]:
    """Describe the book of a night; ``cut`` is what blocked sales did not pay for, over NAV."""
    trades, schedule = rows.filter(pl.col("trade") != 0).height, schedule_text(config.backtest.books[name])
    turnover, cost = 0.5 * float(rows["trade"].abs().sum()), 1e4 * float(rows["expected_cost"].sum())
    yield NightFinding(
        "book",
        "ok",
        f"{name} holds {rows.filter(pl.col('weight') != 0).height} firms, {rows['weight'].abs().sum():.1%} "
        f"gross and {rows['weight'].sum():+.1%} net, after {trades} trades: one-way turnover "
        f"{turnover:.1%}, expected cost {cost:.1f} bps of NAV.",
    )
    if before.nav <= 0:
        yield NightFinding(
            "ruin",
            "warn",
            f"The account of {name} lost its whole capital; start it again under another name.",
        )
    if before.events:
        yield NightFinding("holdings", "ok", " ".join(before.events))
    yield from _missed(before)
    if due is not None and due < session:
        yield NightFinding(
            "missed decision",
            "warn",
            f"{name} decides tonight for {due}, a session of its schedule ({schedule}) on which no night "
            "decided: the night was not played, had too few signals, or expected another session "
            "(quality.calendar_overrides).",
            subject=name,
        )
    for note in decided.notes:
        yield NightFinding("book limits", "warn", f"{name} made no decision: {note}.", subject=name)
    if decided.refusal is not None:
        yield NightFinding("rebalance", "warn", f"{name} made no decision. {decided.refusal}", subject=name)
    elif decided.state != "made" and not decided.notes:
        left = f"{trades} open orders of earlier nights are still to be filled"
        orders = left if trades else "nothing is traded"
        yield NightFinding("rebalance", "ok", f"{name} does not rebalance tonight ({schedule}); {orders}.")
    held = rows.filter((pl.col("previous") != 0) & pl.col("bound").is_in([NOT_IN_THE_DATA, NO_PRICE]))
    if held.height:
        names = [f"{firm} ({weight:+.2%})" for firm, weight in held.select("ticker", "previous").iter_rows()]
        firms = "1 held firm has" if held.height == 1 else f"{held.height} held firms have"
        yield NightFinding(
            "no prices",
            "warn",
            f"{firms} no price tonight: {abbreviate(names, 5)}. What is held stays at its last value. If "
            "this is no halt, record a new ticker (source.renames) or a delisting (source.securities).",
            value=float(held.height),
        )
    yield from _untradable(rows, cut)
    slow = rows.filter(pl.col("fill_sessions") > 1).sort("fill_sessions", descending=True)
    if not slow.is_empty():
        ticker, sessions = slow.select("ticker", "fill_sessions").row(0)
        cap = config.backtest.execution.participation_cap or 0.0
        yield NightFinding(
            "participation",
            "ok",
            f"{slow.height} of {trades} orders take more than one session at {cap:.0%} of the daily "
            f"dollar volume; {ticker} takes longest, {sessions} sessions.",
            value=float(sessions),
        )
    amounts = [(use, amount(use.value, use.unit), amount(use.limit, use.unit)) for use in decided.uses]
    if amounts:
        binding = ", ".join(f"{use.name} ({limit})" for use, _, limit in amounts if use.state == "binds")
        free = ", ".join(
            f"{use.name} ({value} of {limit})" for use, value, limit in amounts if use.state == "free"
        )
        said = f"Limits that bind: {binding or 'none'}.{f' Free: {free}.' if free else ''}"
        yield NightFinding("limits", "ok", said)
    for use, value, limit in amounts:
        if use.state == "exceeded":
            sentence = f"The book exceeds {use.name}: {value} instead of {limit}."
            yield NightFinding("limits", "warn", sentence, use.name, use.value, use.limit)


def _missed(before: Held) -> Iterator[NightFinding]:
    """Name the orders since the last night that the account did not fill; a broker may have filled them."""
    if before.missed:
        count = len(before.missed)
        orders = "1 order" if count == 1 else f"{count} orders"
        names = abbreviate([f"{ticker} ({trade:+.2%})" for ticker, trade in before.missed.items()], 5)
        yield NightFinding(
            "unfilled",
            "warn",
            f"{orders} of earlier nights had no price in the session of the trade, so the book counts them "
            f"as not filled: {names}. If a broker filled them, the real account differs until the next "
            "trade.",
            value=float(count),
        )


def _untradable(rows: pl.DataFrame, cut: float) -> Iterator[NightFinding]:
    stuck = rows.filter(~pl.col("tradable")).sort(pl.col("trade").abs(), descending=True)
    if stuck.is_empty():
        return
    traded = float(rows["trade"].abs().sum())
    share = float(stuck["trade"].abs().sum()) / traded if traded > 0 else 0.0
    names = [f"{ticker} ({bound})" for ticker, bound in stuck.select("ticker", "bound").iter_rows()]
    credit = (
        f" Their sales pay for nothing, so the purchases are smaller by {cut:.2%} of NAV than decided."
        if cut >= _SHORT
        else ""
    )
    yield NightFinding(
        "untradable",
        "warn" if share > MAX_STUCK or credit else "ok",
        f"{stuck.height} firms of the book cannot be traded as of this close: {abbreviate(names, 5)}; they "
        f"are {share:.1%} of the orders.{credit}",
        value=share,
        limit=MAX_STUCK,
    )


def amount(value: float, unit: str) -> str:
    """Write the value of a limit with its unit; fractions as percentages."""
    if unit in {"of NAV", "a year"}:
        return f"{value:.1%} {unit}"
    return f"{value:.3g} firms" if unit == "firms" else f"beta {value:.3f}"


_BPS = 1e-4
_ROUNDING = 1e-9  # an order that takes 2 + 1e-12 sessions takes 2
CAN_TRADE = ""  # reason of a firm that can be traded
NO_PRICE, DELISTED = "no price", "delisted"  # obstacles


@dataclass(frozen=True, slots=True, eq=False)
class OrderEstimates:
    """Of whole orders: costs over NAV (NaN: untradable), sessions until filled (-1), and obstacles."""

    cost_N: FloatArray
    sessions_N: npt.NDArray[np.int64]
    obstacle_N: npt.NDArray[np.str_]

    @property
    def tradable_N(self) -> BoolArray:  # noqa: N802  # a shape suffix
        """Whether each firm can be traded."""
        tradable_N: BoolArray = self.obstacle_N == CAN_TRADE
        return tradable_N


def estimate_orders(
    trade_N: FloatArray,
    nav: float,
    settings: BacktestConfig,
    panel: Panel,
    delay: int,
    *,
    quarantined: frozenset[str] = frozenset(),
) -> OrderEstimates:
    """Estimate what orders cost and how long they take.

    A session fills at most ``cap * dollar volume``. A fill of size s, in units of the capital before the
    first night, costs ``(half-spread + commission) * s``, the commission at least its minimum, and
    ``coefficient * rate * sqrt(capital) * s^1.5``: the terms of `backtest.costs`. Volume, volatility and
    half-spread of all sessions are those that are known tonight, and prices are tonight's.
    """
    following = slice(panel.n_sessions, panel.n_sessions + 1)
    costs = book_costs(settings, panel, following)
    cap = book_execution(settings, panel, following, delay).cap
    size_N = np.abs(trade_N) * nav
    room_N = np.full(panel.n_firms, np.inf)
    if cap is not None:
        room_N = cap.fraction / cap.capital * cap.dollar_volume_TN[0]
    spread_N = np.broadcast_to(costs.half_spread_bps, (1, panel.n_firms))[0] * _BPS
    rate_N = np.zeros(panel.n_firms)
    if costs.impact is not None:
        rate_N = costs.impact.volatility_per_root_volume_TN[0]
        rate_N = rate_N * costs.impact.coefficient * math.sqrt(costs.impact.capital)
    unknown = {"no half-spread": np.isnan(spread_N), "no volume": np.isnan(rate_N) | ~(room_N > 0)}
    obstacle_N = _obstacles(panel, quarantined, unknown)
    can_N = obstacle_N == CAN_TRADE

    fill_N = np.minimum(np.where(can_N, room_N, np.inf), size_N)  # of every session but the last
    with np.errstate(invalid="ignore"):
        sessions_N = np.ceil(np.where(size_N > 0, size_N / fill_N, 0.0) - _ROUNDING).astype(np.int64)
    whole_N = np.maximum(sessions_N - 1, 0)
    last_N = np.maximum(size_N - whole_N * fill_N, 0.0)
    impact_N = rate_N * (whole_N * fill_N**1.5 + last_N**1.5)
    commission_N = np.maximum(costs.commission_bps * _BPS * size_N, costs.commission_minimum * sessions_N)
    cost_N = spread_N * size_N + commission_N + impact_N
    cost_N = cost_N / nav if nav > 0 else np.zeros_like(cost_N)
    return OrderEstimates(np.where(can_N, cost_N, np.nan), np.where(can_N, sessions_N, -1), obstacle_N)


def _obstacles(
    panel: Panel, quarantined: frozenset[str], unknown: dict[str, BoolArray]
) -> npt.NDArray[np.str_]:
    """Why each firm cannot be traded; the first reason that applies."""
    state_N = book_market(panel, slice(panel.n_sessions - 1, panel.n_sessions)).state_TN[0]
    tradable_N = (state_N & TRADABLE) > 0
    obstacle_N = np.full(panel.n_firms, CAN_TRADE, dtype="<U32")
    for reason, unknown_N in unknown.items():
        obstacle_N[unknown_N] = reason
    obstacle_N[~tradable_N] = NO_PRICE
    obstacle_N[~tradable_N & panel.traded_TN[-1]] = "suspended"
    obstacle_N[~tradable_N & ((state_N & KNOWN) == 0)] = "price unknown"
    obstacle_N[~tradable_N & np.isin(panel.tickers_N, list(quarantined))] = "price in quarantine"
    obstacle_N[(state_N & GONE) > 0] = DELISTED
    return obstacle_N


def quarantined_tickers(lake: Lake, session: dt.date) -> frozenset[str]:
    """Return the tickers whose price row of a session is in quarantine and not resolved."""
    held = (pl.col("table") == "prices") & pl.col("resolved_at").is_null()
    rows = map(json.loads, lake.rows("quarantine", filters=held)["row"])
    return frozenset(str(row.get("ticker")) for row in rows if str(row.get("date"))[:10] == str(session))


def bounds(
    book: Book, weight_N: FloatArray, estimates: OrderEstimates, group_N: IntArray
) -> npt.NDArray[np.object_]:
    """Name the limit that binds each firm; None where there is none."""
    bound_N = np.full(len(weight_N), None, dtype=object)
    if isinstance(book, Optimised):
        most = book.limits.max_sector_net or 0.0
        for group in np.unique(group_N[(weight_N != 0) & (group_N >= 0)]) if most else ():
            net = float(weight_N[group_N == group].sum())
            if abs(net) >= most - TOLERANCE:
                bound_N[(group_N == group) & (np.sign(weight_N) == np.sign(net))] = "sector limit"
        bound_N[np.abs(weight_N) >= book.limits.max_position - TOLERANCE] = "position limit"
    bound_N[estimates.sessions_N > 1] = "participation cap"
    stuck_N = ~estimates.tradable_N
    bound_N[stuck_N] = estimates.obstacle_N[stuck_N]
    return bound_N
