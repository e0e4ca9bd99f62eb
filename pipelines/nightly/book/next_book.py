"""The book of a night: the target decided at its close, what is held, the trades, and what they will cost.

The target is the last row of the same book in a backtest of the same signals over the same sessions
(`pipelines.results.book_targets`), and what is held is the account of that backtest at tonight's close.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np
import polars as pl

from backtest.books.inputs import BookTargets
from backtest.books.limit_use import LimitUse
from features.arrays import FloatArray
from pipelines.config.books import BookConfig
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, to_panel
from pipelines.errors import ConfigError, DataError
from pipelines.lake.nightly_tables import Books
from pipelines.nightly.book.bounds import bounds
from pipelines.nightly.book.describe import describe_book
from pipelines.nightly.book.limits import limit_findings, limit_rows
from pipelines.nightly.book.orders import estimate_orders
from pipelines.nightly.book.quarantined import quarantined_tickers
from pipelines.nightly.book.replay import replay
from pipelines.nightly.data import NightData
from pipelines.nightly.exchange import following_session
from pipelines.nightly.finding import Finding
from pipelines.results.book_targets import book_schedule, book_targets, last_limit_uses

_DUST = 1e-12
"""Weights and trades below this are rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class NextBook:
    """The book of a night.

    Attributes
    ----------
    rows
        Rows of the table ``books``: every firm that is held, targeted or to be traded.
    limits
        Rows of the table ``book_limits``; none if nothing was decided tonight.
    findings
        What the night should know of the book: a summary, limits that bind, decisions that were not made.
    """

    rows: pl.DataFrame
    limits: pl.DataFrame
    findings: tuple[Finding, ...]


def nightly_book(config: Config) -> tuple[str, BookConfig]:
    """Return the name and the settings of the book that the nights trade.

    Raises
    ------
    ConfigError
        If ``nightly.book`` is not one of ``backtest.books``.
    """
    books = config.backtest.books
    name = config.nightly.book or next(iter(books), None)
    if name is None or name not in books:
        raise ConfigError(
            f"nightly.book is {name!r}; it must be one of backtest.books: {', '.join(books) or 'none'}."
        )
    return name, books[name]


def trading_delay(config: Config) -> int:
    """Sessions from the decision to the trade: as in the backtest, but at least 1.

    A night starts after the close, so delay 0 cannot be traded.
    """
    delay = config.label.delay if config.backtest.delay is None else config.backtest.delay
    return max(1, delay)


def next_book(config: Config, data: NightData, signals: pl.DataFrame) -> NextBook:
    """Decide the book of a night.

    Parameters
    ----------
    config
        Book, costs, execution and the label's horizon.
    data
        Data of the night, cut at its session.
    signals
        Signals of all nights up to this one, one row per session and ticker: session, ticker, signal (null
        outside the universe) and version. See `pipelines.nightly.book.history.champion_signals`.

    Returns
    -------
    NextBook
        Weights, trades and costs are fractions of the NAV before the trades, at the prices of the session.

    Raises
    ------
    ConfigError
        If ``nightly.book`` does not exist.
    DataError
        If there are no signals, a session has several signals of a firm, or the data lack a field that the
        costs or the execution need.
    """
    name, book = nightly_book(config)
    panel = data.market.panel
    tonight = panel.n_sessions - 1
    last = panel.dates_T[tonight].astype("datetime64[D]").item()
    if last != data.session:
        raise DataError(f"The prices end on {last}, but the night is {data.session}; cut the data there.")
    signal_TN, first = _signals(signals, data.market)
    held, delay = slice(first, tonight + 1), trading_delay(config)
    sessions = panel.dates_T.astype("datetime64[D]").tolist()
    following = following_session(config, data.lake, sessions)
    targets, refusal = _targets(book, signal_TN, data.market, held, config.label.horizon, following=following)
    before = replay(targets.target_TN, config.backtest, panel, first, delay)
    goal_N = targets.target_TN[-1]
    decided = not np.isnan(goal_N).any()
    weight_N = goal_N if decided else before.weight_N + before.open_N
    trade_N = weight_N - before.weight_N
    trade_N[np.abs(trade_N) < _DUST] = 0.0
    quarantined = quarantined_tickers(data.lake, data.session)
    estimates = estimate_orders(trade_N, before.nav, config.backtest, panel, delay, quarantined=quarantined)
    rows = pl.DataFrame(
        {
            "ticker": pl.Series(panel.tickers_N, dtype=pl.String),
            "weight": weight_N,
            "previous": before.weight_N,
            "trade": trade_N,
            "expected_cost": pl.Series(estimates.cost_N).fill_nan(None),
            "fill_sessions": pl.Series(estimates.sessions_N).replace(-1, None),
            "bound": pl.Series(
                bounds(book, weight_N, estimates, panel.group_TN[-1]).tolist(), dtype=pl.String
            ),
            "tradable": estimates.tradable_N,
        }
    ).filter((pl.col("weight") != 0) | (pl.col("previous").abs() >= _DUST) | (pl.col("trade") != 0))
    rows = Books.validate(
        rows.select(
            pl.lit(config.name).alias("config"),
            pl.lit(data.session).alias("session"),
            "ticker",
            pl.lit(name).alias("book"),
            pl.lit(_version(signals)).alias("version"),
            pl.exclude("ticker"),
            pl.lit(dt.datetime.now(dt.UTC)).alias("created_at"),
        ),
        cast=True,
    )
    uses: tuple[LimitUse, ...] = ()
    if decided:
        uses = last_limit_uses(book, signal_TN, panel, held, targets.target_TN)
    findings = describe_book(
        name, config, rows, before, decided=decided, refusal=refusal, notes=_notes(targets)
    )
    limits = limit_rows(config.name, data.session, name, uses)
    return NextBook(rows, limits, (*findings, *limit_findings(uses)))


def _signals(signals: pl.DataFrame, market: Market) -> tuple[FloatArray, int]:
    """The signals on the panel, and the session of the first one."""
    if signals.is_empty():
        raise DataError("There are no signals to build a book from; score a model version first.")
    if signals.select("session", "ticker").is_duplicated().any():
        raise DataError("A session has several signals of one firm; choose the champion's.")
    panel = market.panel
    signal_TN = to_panel(signals.rename({"session": "date"}), "signal", panel)
    first_day = signals["session"].sort().to_numpy()[0]
    return signal_TN, int(np.searchsorted(panel.dates_T, first_day))


def _targets(
    book: BookConfig,
    signal_TN: FloatArray,
    market: Market,
    held: slice,
    horizon: int,
    *,
    following: dt.date | None,
) -> tuple[BookTargets, str | None]:
    """The decisions of all nights, and why there is none at all."""
    nothing_TN = np.full((held.stop - held.start, market.panel.n_firms), np.nan)
    if not book_schedule(book, market.panel, held, following).turn_T.any():
        return BookTargets(nothing_TN), None  # its first session to decide on is still to come
    if not np.isfinite(signal_TN[held]).any():
        return BookTargets(nothing_TN), "No firm has had a signal yet."
    try:
        return book_targets(book, signal_TN, market.panel, held, horizon, following=following), None
    except ValueError as error:
        return BookTargets(nothing_TN), str(error)


def _notes(targets: BookTargets) -> tuple[str, ...]:
    """Notes on tonight's decision."""
    return tuple(note.text for note in targets.notes if note.session == len(targets.target_TN) - 1)


def _version(signals: pl.DataFrame) -> str:
    """Model version of the newest signals."""
    version: str = signals.sort("session")["version"][-1]
    return version
