"""What a night says of its book: a summary, and what stands in the way of its trades."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

import polars as pl

from backtest.books.book import LimitUse
from pipelines.config.schema import Config
from pipelines.lake.pipeline_tables import BookLimits
from pipelines.nightly.book.holdings import Holdings
from pipelines.nightly.book.orders import NO_PRICE, NOT_IN_THE_DATA
from pipelines.nightly.result import Finding
from pipelines.nightly.schedule import Due, schedule_text

_LISTED = 5  # names in a sentence
_SHORT = 1e-4
"""Smallest cut of the purchases that is said: 0.01% of NAV."""
MAX_STUCK = 0.05
"""Largest share of the traded weight that may be in firms which cannot be traded, without a warning."""


def describe_book(
    name: str,
    config: Config,
    rows: pl.DataFrame,
    before: Holdings,
    *,
    due: Due | None,
    decided: bool,
    refusal: str | None,
    notes: Sequence[str],
    cut: float,
) -> Iterator[Finding]:
    """Describe the book of a night."""
    yield Finding("book", "ok", _summary(name, rows))
    if before.nav <= 0:
        yield Finding(
            "ruin",
            "warn",
            f"The account of {name} lost its whole capital; start it again under another name.",
        )
    if before.events:
        yield Finding("holdings", "ok", " ".join(before.events))
    yield from _missed(before)
    if due is not None and due.late:
        yield Finding(
            "missed decision",
            "warn",
            f"{name} decides tonight for {due.session}, a session of its schedule "
            f"({schedule_text(config.backtest.books[name])}) on which no night decided: the night was not "
            "played, had too few signals, or expected another session (quality.calendar_overrides).",
            subject=name,
        )
    for note in notes:
        yield Finding("book limits", "warn", f"{name} made no decision: {note}.", subject=name)
    if refusal is not None:
        yield Finding("rebalance", "warn", f"{name} made no decision. {refusal}", subject=name)
    elif not decided and not notes:
        yield Finding("rebalance", "ok", _no_rebalance(name, config, rows))
    yield from _without_prices(rows)
    yield from _untradable(rows, cut)
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
    return f"{name} does not rebalance tonight ({schedule_text(config.backtest.books[name])}); {orders}."


def _without_prices(rows: pl.DataFrame) -> Iterator[Finding]:
    """Name the held firms that the source has stopped delivering, every night until that is explained."""
    held = rows.filter((pl.col("previous") != 0) & pl.col("bound").is_in([NOT_IN_THE_DATA, NO_PRICE]))
    if held.is_empty():
        return
    names = [f"{ticker} ({weight:+.2%})" for ticker, weight in held.select("ticker", "previous").iter_rows()]
    listed = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if names[_LISTED:] else "")
    firms = "1 held firm has" if held.height == 1 else f"{held.height} held firms have"
    yield Finding(
        "no prices",
        "warn",
        f"{firms} no price tonight: {listed}. What is held stays at its last value. If this is no halt, "
        "record a new ticker (source.renames) or a delisting (source.securities).",
        value=float(held.height),
    )


def _missed(before: Holdings) -> Iterator[Finding]:
    """Name the orders since the last night that the account did not fill; a broker may have filled them."""
    names = [f"{ticker} ({trade:+.2%})" for ticker, trade in before.missed.items()]
    if not names:
        return
    listed = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if names[_LISTED:] else "")
    orders = "1 order" if len(names) == 1 else f"{len(names)} orders"
    yield Finding(
        "unfilled",
        "warn",
        f"{orders} of earlier nights had no price in the session of the trade, so the book counts them as "
        f"not filled: {listed}. If a broker filled them, the real account differs until the next trade.",
        value=float(len(names)),
    )


def _untradable(rows: pl.DataFrame, cut: float) -> Iterator[Finding]:
    stuck = rows.filter(~pl.col("tradable")).sort(pl.col("trade").abs(), descending=True)
    if stuck.is_empty():
        return
    traded = total(rows["trade"].abs())
    share = total(stuck["trade"].abs()) / traded if traded > 0 else 0.0
    names = [f"{ticker} ({bound})" for ticker, bound in stuck.select("ticker", "bound").iter_rows()]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    credit = (
        f" Their sales pay for nothing, so the purchases are smaller by {cut:.2%} of NAV than decided."
        if cut >= _SHORT
        else ""
    )
    yield Finding(
        "untradable",
        "warn" if share > MAX_STUCK or credit else "ok",
        f"{stuck.height} firms of the book cannot be traded as of this close: {', '.join(names[:_LISTED])}"
        f"{more}; they are {share:.1%} of the orders.{credit}",
        value=share,
        limit=MAX_STUCK,
    )


def _trades(rows: pl.DataFrame) -> int:
    return rows.filter(pl.col("trade") != 0).height


def limit_rows(config: str, session: dt.date, book: str, uses: Sequence[LimitUse]) -> pl.DataFrame:
    """Return the rows of the table ``book_limits``; none if nothing was decided or the book has no limits."""
    now = dt.datetime.now(dt.UTC)
    rows = [(config, session, use.name, book, use.value, use.limit, use.unit, use.state, now) for use in uses]
    return BookLimits.validate(pl.DataFrame(rows, schema=BookLimits.create_empty().schema, orient="row"))


def limit_findings(uses: Sequence[LimitUse]) -> list[Finding]:
    """Say which limits bind; a limit that is exceeded is a warning."""
    if not uses:
        return []
    binding = [f"{use.name} ({amount(use.limit, use.unit)})" for use in uses if use.state == "binds"]
    free = [
        f"{use.name} ({amount(use.value, use.unit)} of {amount(use.limit, use.unit)})"
        for use in uses
        if use.state == "free"
    ]
    said = f"Limits that bind: {', '.join(binding) or 'none'}."
    if free:
        said += f" Free: {', '.join(free)}."
    findings = [Finding("limits", "ok", said)]
    findings += [
        Finding(
            "limits",
            "warn",
            f"The book exceeds {use.name}: {amount(use.value, use.unit)} instead of "
            f"{amount(use.limit, use.unit)}.",
            subject=use.name,
            value=use.value,
            limit=use.limit,
        )
        for use in uses
        if use.state == "exceeded"
    ]
    return findings


def amount(value: float, unit: str) -> str:
    """Write the value of a limit with its unit; fractions as percentages."""
    if unit in {"of NAV", "a year"}:
        return f"{value:.1%} {unit}"
    return f"{value:.3g} firms" if unit == "firms" else f"beta {value:.3f}"
