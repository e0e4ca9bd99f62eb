"""The book of a night: the target decided at its close, what is held, the trades, and what they will cost.

The target is the decision of the same book in a backtest of the same signals (`backtest.books.decisions`).
What is held comes from recorded orders (`pipelines.nightly.book.holdings`). Shape suffixes: T sessions, N
firms.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from backtest.books.book import Book, BookTargets, LimitUse
from backtest.books.decisions import book_targets, last_limit_uses
from backtest.books.funding import affordable, funded
from backtest.books.schedules import Schedule
from features.arrays import FloatArray
from features.panel.delistings import DelistingRule
from features.panel.panel import to_panel
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.errors import DataError
from pipelines.lake.pipeline_tables import Accounts, Books
from pipelines.lake.pipeline_tables import Holdings as HoldingRows
from pipelines.nightly.book.describe import describe_book, limit_findings, limit_rows
from pipelines.nightly.book.holdings import Holdings, Recorded, hold, place
from pipelines.nightly.book.orders import (
    DELISTED,
    NO_PRICE,
    NOT_IN_THE_DATA,
    OrderEstimates,
    bounds,
    estimate_orders,
    quarantined_tickers,
)
from pipelines.nightly.data import NightData
from pipelines.nightly.result import Finding, follow
from pipelines.nightly.schedule import Due, decision_due, following_session, schedule_text
from pipelines.nightly.settings import nightly_book, trading_delay

_DUST = 1e-12
"""Weights and trades below this are rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class NextBook:
    """Rows of the tables ``books``, ``holdings``, ``accounts`` and ``book_limits`` of a night."""

    rows: pl.DataFrame
    holdings: pl.DataFrame
    account: pl.DataFrame
    limits: pl.DataFrame
    findings: tuple[Finding, ...]


def next_book(config: Config, data: NightData, signals: pl.DataFrame, recorded: Recorded) -> NextBook:
    """Decide the book of a night; weights, trades and costs are fractions of the NAV before the trades.

    ``signals`` are those of the champion of each night up to this one
    (`pipelines.nightly.data.champion_signals`). DataError if there are none, or what is held cannot be
    followed.
    """
    name, book = nightly_book(config)
    panel, delay = data.market.panel, trading_delay(config)
    last = panel.dates_T[-1].astype("datetime64[D]").item()
    if last != data.session:
        raise DataError(f"The prices end on {last}, but the night is {data.session}; cut the data there.")
    following = following_session(config, data.lake, panel.dates_T.astype("datetime64[D]").tolist())
    due = decision_due(book, panel.dates_T, following, recorded.accounts)
    decided = _decide(config, book, data.market, follow(signals, recorded.renames), recorded, due)
    rule = DelistingRule(unknown_return=config.label.unknown_delisting_return)
    before = hold(recorded, panel, data.tables.get("securities"), delay, rule)
    rows, cut = _rows(config, name, data, before, decided)
    rows = Books.validate(
        rows.select(
            pl.lit(config.name).alias("config"),
            pl.lit(data.session).alias("session"),
            "ticker",
            pl.lit(name).alias("book"),
            pl.lit(_version(signals)).alias("version"),
            pl.exclude("ticker"),
            pl.lit(dt.datetime.now(dt.UTC)).alias("created_at"),
        ).select(Books.column_names()),
        cast=True,
    )
    findings = describe_book(
        name,
        config,
        rows,
        before,
        due=due,
        decided=decided.state == "made",
        refusal=decided.refusal,
        notes=decided.notes,
        cut=cut,
    )
    holdings = _holdings(config, data, before)
    return NextBook(
        rows,
        holdings,
        _account(config, data, before, decided, due, recorded, counts=(rows.height, holdings.height)),
        limit_rows(config.name, data.session, name, decided.uses),
        (*findings, *limit_findings(decided.uses)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Decided:
    """The decision of tonight; ``weight_N`` is None unless it was made."""

    state: Literal["made", "kept", "refused"] | None
    weight_N: FloatArray | None = None
    uses: tuple[LimitUse, ...] = ()
    refusal: str | None = None
    notes: tuple[str, ...] = ()


def _decide(  # noqa: PLR0917  # the inputs of a decision
    config: Config,
    book: Book,
    market: Market,
    signals: pl.DataFrame,
    recorded: Recorded,
    due: Due | None,
) -> _Decided:
    """Decide the target of tonight if a decision is due."""
    signal_TN = _signals(signals, market)
    if due is None:
        return _Decided(None)
    panel, horizon = market.panel, config.label.horizon
    made, last_N = recorded.made, None
    if made.height:
        last_N = place(recorded.of(made["session"][-1]), "weight", panel, recorded.renames)
    rows = np.searchsorted(panel.dates_T.astype("datetime64[D]"), made["session"].to_numpy())
    rows = rows[rows > panel.n_sessions - 1 - horizon]  # earlier ones are not held any more
    held = slice(int(rows[0]) if len(rows) else panel.n_sessions - 1, panel.n_sessions)
    turn_T = np.zeros(held.stop - held.start, dtype=np.bool_)
    turn_T[rows - held.start] = True
    turn_T[-1] = True
    if book.kind in _CONTINUED:
        held, turn_T = slice(panel.n_sessions - 1, panel.n_sessions), turn_T[-1:]
    if not np.isfinite(signal_TN[held]).any():
        return _Decided("refused", refusal="No firm has had a signal yet.")
    try:
        targets = book_targets(
            book, signal_TN, panel, held, horizon, schedule=Schedule(turn_T), last_N=last_N
        )
    except ValueError as error:
        return _Decided("refused", refusal=str(error))
    weight_N, notes = targets.target_TN[-1], _notes(targets)
    if np.isnan(weight_N).any():
        if notes:
            return _Decided("kept", notes=notes)
        few = f"The session has only {np.isfinite(signal_TN[-1]).sum()} signals, too few for the book."
        return _Decided("refused", refusal=few)
    uses = last_limit_uses(book, signal_TN, panel, held, targets.target_TN, last_N)
    return _Decided("made", weight_N, uses, notes=notes)


_CONTINUED = ("top_k_drop", "optimised")
"""Kinds of books whose decision depends on the decision before it."""


def _target(decided: _Decided, before: Holdings) -> FloatArray:
    """Return the weights that the orders lead to: tonight's target, or what earlier orders leave."""
    if decided.weight_N is not None:
        return funded(decided.weight_N, before.absent_weight)
    return before.previous_N + before.rest_N


def _rows(
    config: Config, name: str, data: NightData, before: Holdings, decided: _Decided
) -> tuple[pl.DataFrame, float]:
    """Every firm that is held, targeted or to be traded, with the columns of the table ``books``."""
    panel, quarantined = data.market.panel, quarantined_tickers(data.lake, data.session)

    def estimate(trade_N: FloatArray) -> OrderEstimates:
        trade_N[np.abs(trade_N) < _DUST] = 0.0
        delay, nav = trading_delay(config), before.order_nav
        return estimate_orders(trade_N, nav, config.backtest, panel, delay, quarantined=quarantined)

    target_N = _target(decided, before)
    estimates = estimate(target_N - before.previous_N)
    stuck_N = ~estimates.tradable_N
    weight_N = affordable(target_N, before.previous_N, stuck_N, before.absent_weight)
    trade_N = weight_N - before.previous_N
    estimates = estimate(trade_N)
    bound_N = bounds(config.backtest.books[name], weight_N, estimates, panel.group_TN[-1])
    rows = pl.DataFrame(
        {
            "ticker": pl.Series(panel.tickers_N, dtype=pl.String),
            "weight": weight_N,
            "previous": before.previous_N,
            "trade": trade_N,
            "expected_cost": pl.Series(estimates.cost_N).fill_nan(None),
            "fill_sessions": pl.Series(estimates.sessions_N).replace(-1, None),
            "bound": pl.Series(bound_N.tolist(), dtype=pl.String),
            "tradable": estimates.tradable_N,
            "held": before.weight_N,
        }
    )
    unrecorded = (pl.col("held") != 0) & (pl.col("bound") == DELISTED)  # a recorded delisting was paid out
    rows = rows.with_columns(pl.when(unrecorded).then(pl.lit(NO_PRICE)).otherwise("bound").alias("bound"))
    relevant = (pl.col("previous").abs() >= _DUST) | (pl.col("held").abs() >= _DUST)
    rows = rows.filter(relevant | (pl.col("weight") != 0) | (pl.col("trade") != 0)).drop("held")
    rows = pl.concat([rows, _absent_rows(before, rows.schema, sold=decided.state == "made")]).sort("ticker")
    return rows, float((target_N - weight_N).sum())


def _absent_rows(before: Holdings, schema: pl.Schema, *, sold: bool) -> pl.DataFrame:
    """Held firms that the data do not have: a decision sells them, but nothing says at which price."""
    rows = [
        {
            "ticker": ticker,
            "weight": 0.0 if sold else firm.weight,
            "previous": firm.weight,
            "trade": -firm.weight if sold else 0.0,
            "bound": NOT_IN_THE_DATA,
            "tradable": False,
        }
        for ticker, firm in before.absent.items()
    ]
    return pl.DataFrame(rows, schema=schema)


def _holdings(config: Config, data: NightData, before: Holdings) -> pl.DataFrame:
    """Return the rows of the table ``holdings``."""
    at_close = pl.DataFrame(
        {
            "ticker": pl.Series(data.market.panel.tickers_N, dtype=pl.String),
            "weight": before.weight_N,
            "open": before.open_N,
            "since": pl.Series(before.since_N).cast(pl.Date),
            "growth": before.growth_N,
        }
    ).filter((pl.col("weight").abs() >= _DUST) | (pl.col("open").abs() >= _DUST))
    absent = [(ticker, one.weight, 0.0, one.since, one.growth) for ticker, one in before.absent.items()]
    rows = pl.concat([at_close, pl.DataFrame(absent, schema=at_close.schema, orient="row")]).sort("ticker")
    stamped = rows.with_columns(
        config=pl.lit(config.name), session=pl.lit(data.session), created_at=pl.lit(dt.datetime.now(dt.UTC))
    )
    return HoldingRows.validate(stamped.select(HoldingRows.column_names()), cast=True)


def _account(  # noqa: PLR0917  # what a night decided and holds
    config: Config,
    data: NightData,
    before: Holdings,
    decided: _Decided,
    due: Due | None,
    recorded: Recorded,
    *,
    counts: tuple[int, int],
) -> pl.DataFrame:
    """Return the row of the table ``accounts``; without a new order, the terms of the last one go on."""
    name, book = nightly_book(config)
    terms = config.backtest.model_dump_json(include={"costs", "execution", "capital"})
    if decided.state != "made" and recorded.last is not None:
        terms = recorded.accounts["terms"][-1]
    row = {
        "config": config.name,
        "session": data.session,
        "book": name,
        "nav": before.nav,
        "delay": trading_delay(config),
        "terms": terms,
        "schedule": schedule_text(book),
        "due": None if due is None else due.session,
        "decision": decided.state,
        "orders": counts[0],
        "positions": counts[1],
        "waiting": before.waiting,
        "created_at": dt.datetime.now(dt.UTC),
    }
    return Accounts.validate(pl.DataFrame([row], schema=Accounts.create_empty().schema))


def _signals(signals: pl.DataFrame, market: Market) -> FloatArray:
    """The signals on the panel, NaN where there is none."""
    if signals.is_empty():
        raise DataError("There are no signals to build a book from; score a model version first.")
    if signals.select("session", "ticker").is_duplicated().any():
        raise DataError("A session has several signals of one firm; choose the champion's.")
    return to_panel(signals.rename({"session": "date"}), "signal", market.panel)


def _notes(targets: BookTargets) -> tuple[str, ...]:
    """Notes on tonight's decision."""
    return tuple(note.text for note in targets.notes if note.session == len(targets.target_TN) - 1)


def _version(signals: pl.DataFrame) -> str:
    """Model version of the newest signals."""
    version: str = signals.sort("session")["version"][-1]
    return version
