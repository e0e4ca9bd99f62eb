"""Schemas of the tables that a source may give, and the kinds of columns and rules that all schemas use."""

from __future__ import annotations

from datetime import date
from typing import Final

import dataframely as dy
import polars as pl

RANGE_TOLERANCE: Final = 0.005
"""How far a close or an open may lie outside [low, high], relative to the bound: vendors round and adjust the
four prices separately. In the Nasdaq files 78 closes of 3.7 million are outside, 48 by more than this."""

EARLIEST: Final = date(1800, 1, 1)
LATEST: Final = date(2200, 1, 1)
"""First and last plausible date of a price. A date outside was read wrongly."""

TICKER_PATTERN: Final = r"^[A-Za-z0-9^=][A-Za-z0-9.^=_-]{0,31}$"
"""Letters, digits and ``. - _ ^ =``, as in BRK.B, BF-B, ^GSPC, 7203.T and EURUSD=X. A slash, angle bracket,
quote, ampersand or space is refused: a ticker from data must not become a path or HTML."""

INPUT_PATTERN: Final = r"^[a-z][a-z0-9_]{0,40}$"
"""Names of a user's own inputs, which become feature names."""

RUN_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Run ids, which name partition folders."""


def plain_ticker(column: str) -> pl.Expr:
    """True where a ticker matches `TICKER_PATTERN` and has no ``..`` in it."""
    return pl.col(column).str.contains(TICKER_PATTERN) & ~pl.col(column).str.contains("..", literal=True)


def finite(column: str) -> pl.Expr:
    """True where a number is neither NaN nor infinite."""
    return pl.col(column).is_finite()


def positive(column: str) -> pl.Expr:
    """True where a number is finite and above 0."""
    return finite(column) & (pl.col(column) > 0)


def measure(*, nullable: bool = False) -> dy.Float64:
    """Make a float column that admits NaN and infinities: named rules of the schema check its range."""
    return dy.Float64(nullable=nullable, allow_nan=True, allow_inf=True)


def key_date() -> dy.Date:
    """Make a date column of the primary key."""
    return dy.Date(primary_key=True)


def key_text() -> dy.String:
    """Make a text column of the primary key."""
    return dy.String(primary_key=True)


def stamp(*, nullable: bool = False) -> dy.Datetime:
    """Make a column of times of writing, in UTC."""
    return dy.Datetime(nullable=nullable, time_unit="us", time_zone="UTC")


def within_range(column: str) -> pl.Expr:
    """Tell whether a price lies in ``[low (1 - tol), high (1 + tol)]``, tol = `RANGE_TOLERANCE`.

    True where the price or a bound is null, and where high < low, which has a rule of its own.
    """
    above = (pl.col(column) <= pl.col("high") * (1.0 + RANGE_TOLERANCE)).fill_null(value=True)
    below = (pl.col(column) >= pl.col("low") * (1.0 - RANGE_TOLERANCE)).fill_null(value=True)
    return (above & below) | (pl.col("high") < pl.col("low")).fill_null(value=False)


def named_rule(holds: pl.Expr) -> object:
    """Make a `dataframely.rule` from an expression. Its name is the attribute it is assigned to.

    A row for which the expression is null satisfies the rule.
    """
    return dy.rule()(lambda _: holds)


class Prices(dy.Schema):
    """Daily bars as quoted, one row per session and firm. A null open, high, low or volume is unknown."""

    date, ticker = key_date(), key_text()
    open, high, low = measure(nullable=True), measure(nullable=True), measure(nullable=True)
    close, volume, split_ratio = measure(), measure(nullable=True), measure()
    dividend, source, ingested_at = measure(), dy.String(), stamp()

    ticker_is_plain = named_rule(plain_ticker("ticker"))
    date_is_plausible = named_rule(pl.col("date").is_between(EARLIEST, LATEST))
    close_is_positive = named_rule(positive("close"))
    open_is_positive = named_rule(positive("open"))
    high_is_positive = named_rule(positive("high"))
    low_is_positive = named_rule(positive("low"))
    high_not_below_low = named_rule(pl.col("high") >= pl.col("low"))
    close_within_range = named_rule(within_range("close"))
    open_within_range = named_rule(within_range("open"))
    volume_is_finite_and_not_negative = named_rule(finite("volume") & (pl.col("volume") >= 0))
    split_ratio_is_positive = named_rule(positive("split_ratio"))
    dividend_is_finite_and_not_negative = named_rule(finite("dividend") & (pl.col("dividend") >= 0))


class Gaps(dy.Schema):
    """Prices that are missing although the session is known: a row was rejected, or the session is missing.

    Ingest writes this table. A firm without a row here and in ``prices`` is halted.
    """

    date, ticker = key_date(), key_text()
    rule = dy.String()


class Securities(dy.Schema):
    """A firm's name, sector, industry and listing for valid_from <= t < valid_to (null: still valid)."""

    ticker, valid_from = key_text(), key_date()
    name, sector = dy.String(nullable=True), dy.String(nullable=True)
    industry, listed_on = dy.String(nullable=True), dy.Date(nullable=True)
    delisted_on, delisting_return = dy.Date(nullable=True), measure(nullable=True)
    delisting_reason = dy.String(nullable=True)  # merger, performance or unknown; null is unknown
    currency, exchange = dy.String(nullable=True), dy.String(nullable=True)
    valid_to = dy.Date(nullable=True)

    ticker_is_plain = named_rule(plain_ticker("ticker"))
    valid_to_after_valid_from = named_rule(pl.col("valid_to") > pl.col("valid_from"))
    delisted_not_before_listed = named_rule(pl.col("delisted_on") >= pl.col("listed_on"))
    delisting_return_at_least_minus_one = named_rule(
        finite("delisting_return") & (pl.col("delisting_return") >= -1.0)
    )
    delisting_reason_is_merger_performance_or_unknown = named_rule(
        pl.col("delisting_reason").is_in(["merger", "performance", "unknown"])
    )


class Fundamentals(dy.Schema):
    """Statement items as published. A restatement is another row with a later known_at.

    ``stated_on`` is for share counts and amounts per share: the last day whose splits they contain. It is
    the cover page's day, the filing's day where statements are restated for splits, or the period's end.
    Null means the period's end, and is used for all other items.
    """

    ticker, period_end, known_at, item = key_text(), key_date(), key_date(), key_text()
    value, unit, filing_id = measure(), dy.String(nullable=True), dy.String(nullable=True)
    # span of a flow (3, 6, 9, 12); null: a balance at a date, or unknown
    months = dy.Int64(nullable=True, min=1)
    stated_on = dy.Date(nullable=True)
    assumed = dy.Bool()  # known_at is period_end plus an assumed lag, not a recorded date of publication
    # the source that added the row to another source's lake; null: the lake's own source
    source = dy.String(nullable=True)

    ticker_is_plain = named_rule(plain_ticker("ticker"))
    known_after_period_end = named_rule(pl.col("known_at") >= pl.col("period_end"))
    stated_between_period_end_and_known_at = named_rule(
        pl.col("stated_on").is_between(pl.col("period_end"), pl.col("known_at"))
    )
    value_is_finite = named_rule(finite("value"))


class Membership(dy.Schema):
    """Spells of index membership, from_date <= t < to_date (null: still a member)."""

    universe, ticker, from_date = key_text(), key_text(), key_date()
    to_date = dy.Date(nullable=True)

    ticker_is_plain = named_rule(plain_ticker("ticker"))
    to_date_after_from_date = named_rule(pl.col("to_date") > pl.col("from_date"))


class Renames(dy.Schema):
    """New tickers of firms: from ``from_date`` on, the firm that was called ``ticker`` is ``new_ticker``."""

    ticker, from_date = key_text(), key_date()
    new_ticker = dy.String()

    ticker_is_plain = named_rule(plain_ticker("ticker"))
    new_ticker_is_plain = named_rule(plain_ticker("new_ticker"))
    new_ticker_differs = named_rule(pl.col("new_ticker") != pl.col("ticker"))


class Inputs(dy.Schema):
    """A user's own numbers by date and firm, as delivered. The audit checks whether they were known then."""

    name, date, ticker = key_text(), key_date(), key_text()
    value = measure()

    ticker_is_plain = named_rule(plain_ticker("ticker"))
    name_is_plain = named_rule(pl.col("name").str.contains(INPUT_PATTERN))
    value_is_finite = named_rule(finite("value"))


class TruthMu(dy.Schema):
    """The simulated market's conditional mean return per decision date and firm, and its three parts."""

    date, ticker = key_date(), key_text()
    mu, temporal, peer = measure(), measure(), measure()
    characteristic = measure()

    parts_are_finite = named_rule(
        pl.all_horizontal(finite(c) for c in ("mu", "temporal", "peer", "characteristic"))
    )


class TruthEdges(dy.Schema):
    """The simulated market's graph: what a leader's shock adds to the follower's mean after lag sessions.

    An edge acts on decision dates in [valid_from, valid_to). ``explained`` is true where features reveal it,
    ``rule`` names the rule that made it, ``led_by`` what the rule chose the leader by, and ``via`` is the
    firm between the two when hop = 2.
    """

    leader, follower, lag = key_text(), key_text(), dy.Int64(primary_key=True, min=0)
    hop, valid_from = dy.Int64(primary_key=True, min=1), key_date()
    valid_to, weight, explained = dy.Date(nullable=True), measure(), dy.Bool()
    rule, led_by = dy.String(nullable=True), dy.String(nullable=True)
    via = dy.String(nullable=True)

    weight_is_finite = named_rule(finite("weight"))
    valid_to_after_valid_from = named_rule(pl.col("valid_to") > pl.col("valid_from"))


class TruthDays(dy.Schema):
    """The simulated market's temporal part by day: day_k is due to the firm's return k sessions earlier."""

    date, ticker = key_date(), key_text()
    turbulent, shock, day_0 = dy.Bool(), measure(), measure()
    day_1, day_2, day_3 = measure(), measure(), measure()
    day_4 = measure()

    parts_are_finite = named_rule(
        pl.all_horizontal(finite(c) for c in ("shock", "day_0", "day_1", "day_2", "day_3", "day_4"))
    )
