"""Books: trades follow decisions by the delay of the config, and positions earn what comes after them.

The books of the config trade made-up forecasts on a few firms, through the pipeline's own evaluation.
Forecasts and prices are replaced from some sessions on, and trades and profits are compared with other
arithmetic.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from features.arrays import FloatArray, IntArray
from pipelines.audit.checks.results.ensembles import mean_of_standardised
from pipelines.audit.holder import holder_values
from pipelines.audit.noise import replace_future
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject
from pipelines.config.schema import Config
from pipelines.dataset import market as markets
from pipelines.dataset.market import Market
from pipelines.errors import ConfigError, DataError
from pipelines.results import evaluate
from pipelines.results.books import MeasuredBook

NAME = "books"
FIRMS: Final = 100
_BEFORE: Final = 300
_SPAN: Final = 22
"""Sessions before and after t with forecasts, so that a book that decides once a month decides."""
_SLOW_SPAN: Final = 4
"""The same for optimised books, whose decisions take long."""
_CUTS: Final = 6
TOLERANCE: Final = 1e-8
_AGAINST: Final = -0.05
_SCORES: Final = {"model": pl.String, "seed": pl.Int64, "fold": pl.Int64, "valid_ic": pl.Float64} | {
    "valid_rank_ic": pl.Float64
}


@dataclass(frozen=True, slots=True, eq=False)
class _Probe:
    """Books on one market: by (forecasts, book, delay), and the forecasts by name."""

    market: Market
    signals: dict[str, FloatArray]
    books: dict[tuple[str, str, int], MeasuredBook]


def check(subject: Subject) -> Result:
    """Replace forecasts and prices after t, and recompute the trades and profits of the configured books."""
    problems: list[str] = []
    tried = 0
    try:
        for t in _times(subject):
            for problem in _problems(subject, t):
                problems.append(problem)
            tried += 1
    except (ConfigError, DataError, ValueError) as error:
        return Result(NAME, "skipped", f"The books could not trade a sample of {FIRMS} firms: {error}")
    if not tried:
        return Result(NAME, "skipped", "There are too few sessions with a universe.")
    if problems:
        return Result(NAME, "fail", problems[0], pl.DataFrame({"finding": problems}))
    names = ", ".join(subject.config.backtest.books)
    return Result(
        NAME,
        "pass",
        f"{names}: no trade changes before its decision is due when later forecasts or prices are replaced, "
        "trades are those decided, and positions earn the returns that follow.",
    )


def _times(subject: Subject) -> list[int]:
    """Sessions in the middle of a probe: in the last test and, for a full audit, anywhere."""
    spare = _SPAN + subject.config.label.max_delay + subject.config.label.horizon + 2
    decisions = subject.decisions
    usable = decisions[
        (decisions >= decisions[0] + _SPAN) & (decisions < subject.dataset.panel.n_sessions - spare)
    ]
    if not len(usable):
        return []
    rng = np.random.default_rng((subject.seed, 14))
    last = np.intersect1d(usable, subject.folds[-1].test)
    times = [int(rng.choice(last if len(last) else usable))]
    return times if subject.budget.quick else [*times, int(rng.choice(usable))]


def _problems(subject: Subject, t: int) -> Iterator[str]:
    config, day = subject.config, subject.day(t)
    tables = subject.sample_firms(subject.window(t - _BEFORE, t + 2 * _SPAN), FIRMS)
    market = markets.build_market(tables, config)
    at = int(np.searchsorted(market.panel.dates_T, np.datetime64(day)))
    slow = any(book.kind == "optimised" for book in config.backtest.books.values())
    rows = _rows(market, at, _SLOW_SPAN if slow else _SPAN)
    rng = np.random.default_rng((subject.seed, 15, t))
    base_TN = _forecasts(market, rows, rng)
    cuts = sorted(
        {at, *rng.choice(rows[1:-1], min(1 if slow else _CUTS, len(rows) - 2), replace=False).tolist()}
    )
    signals = {"base": base_TN, "turned": -base_TN}
    for cut in cuts:
        other_TN = _forecasts(market, rows, rng)
        signals[f"after {cut}"] = np.where(np.arange(len(base_TN))[:, None] > cut, other_TN, base_TN)
    true = _trade(market, signals, config)
    noisy_market = markets.build_market(replace_future(tables, day, seed=subject.seed + t), config)
    noisy = _trade(noisy_market, {"base": _moved(base_TN, market, noisy_market)}, config)
    for (name, book, delay), measured in true.books.items():
        due = delay if config.backtest.delay is None else config.backtest.delay
        if name.startswith("after "):
            yield from _traded_too_early(
                true.books["base", book, delay], measured, int(name[6:]), due, market
            )
        else:
            yield from _against_forecasts(measured, signals[name], book, name)
    for (_, book, delay), measured in noisy.books.items():
        yield from _knew_prices(true.books["base", book, delay], measured, at, market, noisy_market, book)
    for (name, book, delay), measured in true.books.items():
        if name == "base":
            due = delay if config.backtest.delay is None else config.backtest.delay
            yield from _not_decided(measured, due, market, config, book)
            yield from _profits(measured, tables["prices"], market, config, book)


def _rows(market: Market, at: int, span: int) -> IntArray:
    decisions = np.flatnonzero(market.universe_TN.any(axis=1))
    place = int(np.searchsorted(decisions, at))
    rows: IntArray = decisions[max(place - span, 0) : place + span + 1]
    return rows


def _forecasts(market: Market, rows: IntArray, rng: np.random.Generator) -> FloatArray:
    out_TN = np.full(market.universe_TN.shape, np.nan)
    noise_TN = rng.standard_normal((len(rows), market.panel.n_firms))
    out_TN[rows] = np.where(market.universe_TN[rows], noise_TN, np.nan)
    return out_TN


def _moved(signal_TN: FloatArray, market: Market, other: Market) -> FloatArray:
    """The same forecasts in the rows and columns of another market with the same sessions up to t."""
    out_TN = np.full(other.universe_TN.shape, np.nan)
    place = {ticker: n for n, ticker in enumerate(other.panel.tickers_N)}
    own = [n for n, ticker in enumerate(market.panel.tickers_N) if ticker in place]
    theirs = [place[market.panel.tickers_N[n]] for n in own]
    day = {date: t for t, date in enumerate(other.panel.dates_T.tolist())}
    both = [(t, day[date]) for t, date in enumerate(market.panel.dates_T.tolist()) if date in day]
    out_TN[np.ix_([b for _, b in both], theirs)] = signal_TN[np.ix_([a for a, _ in both], own)]
    return out_TN


def _trade(market: Market, signals: dict[str, FloatArray], config: Config) -> _Probe:
    books: dict[tuple[str, str, int], MeasuredBook] = {}

    def keep(book: MeasuredBook) -> None:
        books[book.model, book.orders.name, book.delay] = book

    rows = np.flatnonzero(np.isfinite(next(iter(signals.values()))).any(axis=1))
    evaluate.evaluate(
        {name: {0: signal_TN} for name, signal_TN in signals.items()},
        market,
        config,
        pl.DataFrame(schema=_SCORES),
        truth_TN=None,
        sessions=rows,
        on_book=keep,
    )
    return _Probe(market, signals, books)


def _ledger(
    book: MeasuredBook, tickers_N: tuple[str, ...], until: int
) -> dict[tuple[int, str], tuple[float, ...]]:
    """Trades and profits up to a session of the panel: (session, ticker) -> both.

    Positions follow from them. When a delisted one becomes cash may depend on a record that comes later.
    """
    first = book.orders.held.start
    rows = book.result.ledger.filter(pl.col("session") + first <= until)
    rows = rows.filter((pl.col("trade") != 0) | (pl.col("pnl") != 0)).select(
        "session", "firm", "trade", "pnl"
    )
    return {(s + first, tickers_N[n]): tuple(amounts) for s, n, *amounts in rows.iter_rows()}


def _traded_too_early(
    base: MeasuredBook, changed: MeasuredBook, cut: int, due: int, market: Market
) -> Iterator[str]:
    tickers_N = market.panel.tickers_N
    left, right = (_ledger(book, tickers_N, cut + due) for book in (base, changed))
    if left == right:
        return
    session, ticker = min(key for key in {*left, *right} if left.get(key) != right.get(key))
    after, on = (str(market.panel.dates_T[t].astype("datetime64[D]")) for t in (cut, session))
    yield (
        f"Book {base.orders.name} trades before its decision: its trade of {ticker} on {on} changes with "
        f"forecasts made after {after}, which are due {due + 1} session(s) later at the earliest."
    )


def _against_forecasts(book: MeasuredBook, signal_TN: FloatArray, name: str, which: str) -> Iterator[str]:
    """A book must hold more of what has a higher forecast, whatever the returns."""
    own_TN = mean_of_standardised({0: signal_TN})[book.orders.held]
    found = []
    for target_N, own_N in zip(book.orders.target_TN, own_TN, strict=True):
        known_N = np.isfinite(own_N) & np.isfinite(target_N)
        if known_N.sum() > 2 and target_N[known_N].std() > 0 and own_N[known_N].std() > 0:
            found.append(float(np.corrcoef(target_N[known_N], own_N[known_N])[0, 1]))
    if found and float(np.mean(found)) < _AGAINST:
        yield (
            f"Book {name} holds against its forecasts ({which}): the correlation of its weights with "
            f"the mean of the seeds' standardised forecasts is {np.mean(found):+.2f}. Was the sign chosen "
            "by later returns?"
        )


def _knew_prices(  # noqa: PLR0917 (two books on two markets)
    true: MeasuredBook, noisy: MeasuredBook, at: int, market: Market, other: Market, name: str
) -> Iterator[str]:
    left = _ledger(true, market.panel.tickers_N, at)
    right = _ledger(noisy, other.panel.tickers_N, at)
    if left == right:
        return
    session, ticker = min(key for key in {*left, *right} if left.get(key) != right.get(key))
    on, after = (str(market.panel.dates_T[t].astype("datetime64[D]")) for t in (session, at))
    yield (
        f"Book {name} knows later prices: its position in {ticker} on {on} changes when all data after "
        f"{after} are replaced by noise."
    )


def _not_decided(book: MeasuredBook, due: int, market: Market, config: Config, name: str) -> Iterator[str]:
    """Trades without a decision that is due, and trades that do not lead to the weights decided."""
    execution = config.backtest.execution
    capped = config.backtest.capital is not None and execution.participation_cap is not None
    if capped or execution.unfilled == "carry" or execution.lot is not None:
        return  # what is not filled is traded later, or left
    target_TN = book.orders.target_TN
    trades = book.result.ledger.filter(pl.col("trade").abs() > 0)
    for (session,), rows in trades.group_by("session", maintain_order=True):
        s = int(str(session))
        decided = s - due >= 0 and np.isfinite(target_TN[s - due]).all()
        on = market.panel.dates_T[book.orders.held.start + s].astype("datetime64[D]")
        if not decided:
            yield f"Book {name} trades on {on}, although no decision was made {due} session(s) earlier."
            return
        if execution.price != "close" or book.result.unfilled_T[s] > 1e-9:
            continue  # purchases wait for sales that cannot be made
        wanted = target_TN[s - due][rows["firm"].to_numpy()]
        held = rows["position"].to_numpy()
        scale = float(held @ wanted) / max(float(wanted @ wanted), 1e-300)
        if np.abs(held - scale * wanted).max() > 1e-6 * max(np.abs(held).max(), 1e-12):
            yield (f"Book {name} holds other weights on {on} than it decided {due} session(s) earlier.")
            return


def _profits(
    book: MeasuredBook, prices: pl.DataFrame, market: Market, config: Config, name: str
) -> Iterator[str]:
    """Profits that are not the return of the position held at the previous close."""
    ledger = book.result.ledger.sort("firm", "session")
    before = pl.col("position").shift(1).over("firm")
    adjacent = pl.col("session").diff().over("firm") == 1
    rows = ledger.with_columns(before=before, adjacent=adjacent).filter(
        pl.col("adjacent") & (pl.col("released") == 0) & (pl.col("before") != 0)
    )
    if config.backtest.execution.price != "close":
        rows = rows.filter(pl.col("trade") == 0)
    firms = rows["firm"].unique().sort().to_numpy().astype(np.int64)
    if not len(firms):
        return
    value_TN = holder_values(prices, market.panel, firms).value_TN
    s = rows["session"].to_numpy() + book.orders.held.start
    n = np.searchsorted(firms, rows["firm"].to_numpy())
    return_R = value_TN[s, n] / value_TN[s - 1, n] - 1.0
    held_R, found_R = rows["before"].to_numpy(), rows["pnl"].to_numpy()
    off_R = np.abs(found_R - held_R * return_R) > TOLERANCE * np.abs(held_R)
    if off_R.any():
        i = int(np.argmax(off_R))
        on = market.panel.dates_T[s[i]].astype("datetime64[D]")
        yield (
            f"Book {name} earns what its positions did not: {found_R[i] / held_R[i]:+.4f} on "
            f"{market.panel.tickers_N[firms[n[i]]]} on {on}, and the prices give {return_R[i]:+.4f}."
        )
