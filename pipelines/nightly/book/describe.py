"""What a night says of its book: a summary, and what stands in the way of its trades."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from pipelines.config.schema import Config
from pipelines.nightly.book.replay import Holdings
from pipelines.nightly.finding import Finding

_LISTED = 5  # names in a sentence
MAX_STUCK = 0.05
"""Largest share of the traded weight that may be in firms which cannot be traded, without a warning."""


def describe_book(
    name: str,
    config: Config,
    rows: pl.DataFrame,
    before: Holdings,
    *,
    decided: bool,
    refusal: str | None,
    notes: Sequence[str],
) -> tuple[Finding, ...]:
    """Describe the book of a night.

    Parameters
    ----------
    name
        Name of the book.
    config
        The configuration.
    rows
        Rows of the table ``books``.
    before
        What was held before the trades.
    decided
        Whether the book decided a new target tonight.
    refusal
        Why the book has never decided; None if it has.
    notes
        Why tonight's decision was not made as configured.

    Returns
    -------
    tuple of Finding
        Checks ``book``, ``rebalance``, ``book limits``, ``untradable`` and ``participation``.
    """
    return tuple(_findings(name, config, rows, before, decided, refusal, notes))


def _findings(  # noqa: PLR0917  # the arguments of describe_book
    name: str,
    config: Config,
    rows: pl.DataFrame,
    before: Holdings,
    decided: bool,
    refusal: str | None,
    notes: Sequence[str],
) -> Iterator[Finding]:
    yield Finding("book", "ok", _summary(name, rows))
    if before.ruined:
        yield Finding(
            "ruin",
            "warn",
            f"The account of {name} lost its whole capital; start it again under another name.",
        )
    for note in notes:
        yield Finding("book limits", "warn", f"{name} made no decision: {note}.", subject=name)
    if refusal is not None:
        yield Finding("rebalance", "warn", f"{name} has not decided yet. {refusal}", subject=name)
    elif not decided and not notes:
        yield Finding("rebalance", "ok", _no_rebalance(name, config, rows))
    yield from _untradable(rows)
    slow = rows.filter(pl.col("fill_sessions") > 1).sort("fill_sessions", descending=True)
    if not slow.is_empty():
        ticker, sessions = slow.select("ticker", "fill_sessions").row(0)
        cap = config.backtest.execution.participation_cap or 0.0
        yield Finding(
            "participation",
            "ok",
            f"{slow.height} of {_trades(rows)} orders take more than one session at {cap:.0%} of the daily "
            f"dollar volume; {ticker} takes longest, {sessions} sessions.",
            value=float(sessions),
        )


def _summary(name: str, rows: pl.DataFrame) -> str:
    turnover, cost = 0.5 * total(rows["trade"].abs()), 1e4 * total(rows["expected_cost"])
    return (
        f"{name} holds {rows.filter(pl.col('weight') != 0).height} firms, {total(rows['weight'].abs()):.1%} "
        f"gross and {total(rows['weight']):+.1%} net, after {_trades(rows)} trades: one-way turnover "
        f"{turnover:.1%}, expected cost {cost:.1f} bps of NAV."
    )


def total(values: pl.Series) -> float:
    """Sum of the known values of a column."""
    return float(values.sum())


def _no_rebalance(name: str, config: Config, rows: pl.DataFrame) -> str:
    left = _trades(rows)
    orders = f"{left} open orders of earlier nights are still to be filled" if left else "nothing is traded"
    return f"{name} does not rebalance tonight ({_schedule(name, config)}); {orders}."


def _schedule(name: str, config: Config) -> str:
    book = config.backtest.books[name]
    if book.rebalance_on is None:
        return "every session" if book.rebalance_every == 1 else f"every {book.rebalance_every} sessions"
    every = "" if book.rebalance_every == 1 else f", one in {book.rebalance_every}"
    return f"{book.rebalance_on.replace('_', ' ')}{every}"


def _untradable(rows: pl.DataFrame) -> Iterator[Finding]:
    stuck = rows.filter(~pl.col("tradable")).sort(pl.col("trade").abs(), descending=True)
    if stuck.is_empty():
        return
    traded = total(rows["trade"].abs())
    share = total(stuck["trade"].abs()) / traded if traded > 0 else 0.0
    names = [f"{ticker} ({bound})" for ticker, bound in stuck.select("ticker", "bound").iter_rows()]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    yield Finding(
        "untradable",
        "warn" if share > MAX_STUCK else "ok",
        f"{stuck.height} firms of the book cannot be traded as of this close: {', '.join(names[:_LISTED])}"
        f"{more}; they are {share:.1%} of the orders.",
        value=share,
        limit=MAX_STUCK,
    )


def _trades(rows: pl.DataFrame) -> int:
    return rows.filter(pl.col("trade") != 0).height
