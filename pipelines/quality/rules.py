"""Rules on prices that need a row's neighbours: the firm's sessions before and after, or the whole market's.

A rule here raises a doubt, not a contradiction: the row satisfies its contract, and may be right. So its rows
are kept and flagged unless the config says otherwise. Two rows of a firm are neighbours if at most
`MAX_GAP_DAYS` calendar days lie between them; rules say nothing across a longer silence. Every rule but
``spike_that_reverts`` is decided with the row and what came before it; a spike is known to have reverted at
the close of the firm's next session, and ``known_on`` says when that was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import dataframely as dy
import polars as pl

from pipelines.lake.columns import named_rule
from pipelines.quality.calendars import with_sessions

MAX_GAP_DAYS: Final = 10
STALE_SESSIONS: Final = 10
REACH_DAYS: Final = MAX_GAP_DAYS * STALE_SESSIONS
"""Calendar days over which one row can bear on the judgement of another of the same firm."""

SPIKE: Final = 1.5
"""Factor by which a close must leave the one before, up or down, to be a spike."""
SPIKE_LEFT: Final = 0.2
"""Share of the spike, in logarithms, that may be left at the next close if it is to count as reverted."""
SPLITS: Final = (1.5, 2.0, 2.5, *(float(n) for n in range(3, 11)), 12.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0)
SPLIT_ROUNDING: Final = 0.04
"""How far, in logarithms, an unexplained ratio of closes (and of the open) may lie from a split's."""
RECORDED_SPLIT: Final = 1.2
"""Recorded splits from this factor on, up or down, must show in the price."""
CURRENCY_FACTOR: Final = 100.0
CURRENCY_ROUNDING: Final = 0.15
USUAL_DAYS: Final = 60
"""Calendar days whose median number of firms a session is compared with."""
COVERAGE: Final = 0.75
FEW_FIRMS: Final = 10
ENOUGH_DATES: Final = 5
"""A date with less than this share of the usual firms, and ten fewer or more, is a gap in the data; what is
usual is said only once five dates are there."""

PRICE_RULES: Final = (
    "spike_that_reverts",
    "split_without_return",
    "return_without_split",
    "currency_jump",
    "stale_run",
    "volume_on_closed_session",
)
"""In the order in which a row that breaks several is rejected."""


def _price() -> dy.Float64:
    return dy.Float64(nullable=True, allow_nan=True, allow_inf=True)


def _reverts() -> pl.Expr:
    """Whether a close is a spike whose next close is back; null while there is no next one."""
    left = (pl.col("unexplained") + pl.col("next_unexplained")).abs()
    size = pl.col("unexplained").abs()
    return (size >= math.log(SPIKE)) & (left <= SPIKE_LEFT * size)


def _unshown() -> pl.Expr:
    """Whether a split is recorded and the close is nearer to the one before as it is than divided by it."""
    split = _log(pl.col("split_ratio"))
    recorded = split.abs() >= math.log(RECORDED_SPLIT)
    return recorded & ((pl.col("step") + split).abs() >= pl.col("step").abs())


def _like_a_split() -> pl.Expr:
    """Whether a close is at a split's ratio from the one before, and so is the open where it is known."""
    close, gap = (
        pl.any_horizontal(_near(column, split, SPLIT_ROUNDING) for split in SPLITS)
        for column in ("unexplained", "gap")
    )
    return close & gap.fill_null(value=True)


def _spike_or_recorded() -> pl.Expr:
    """Whether something else accounts for such a close: a spike, the way back from one, a recorded split."""
    return pl.col("after_spike") | _reverts().fill_null(value=False) | _unshown().fill_null(value=False)


def _other_currency() -> pl.Expr:
    """Whether a close is about 100 times, or a hundredth, of the one before, or the currency is another."""
    hundred = _near("unexplained", CURRENCY_FACTOR, CURRENCY_ROUNDING) & ~pl.col("after_spike")
    changed = pl.col("currency") != pl.col("previous_currency")
    return hundred.fill_null(value=False) | changed.fill_null(value=False)


def _near(column: str, factor: float, rounding: float) -> pl.Expr:
    """Whether a log ratio is that of ``factor``, up or down, to ``rounding``."""
    return (pl.col(column).abs() - math.log(factor)).abs() <= rounding


def _log(ratio: pl.Expr) -> pl.Expr:
    """Logarithm of a ratio; null where a price is not a positive number (a row that a user released)."""
    return pl.when(ratio.is_finite() & (ratio > 0)).then(ratio.log())


class PriceNeighbours(dy.Schema):
    """Price rows with what their neighbours say; a rule is named by the defect, and holds where it is absent.

    ``spike_that_reverts``: the close leaves the one before by `SPIKE` and is back at the next.
    ``split_without_return``: a recorded split that the price does not show; prices adjusted already.
    ``return_without_split``: the price moves as it does at a split, and none is recorded.
    ``currency_jump``: pence for pounds, or another recorded currency.
    ``stale_run``: the `STALE_SESSIONS`-th session in a row, or a later one, that repeats the bar before it.
    ``volume_on_closed_session``: shares traded on a date on which the exchange was closed.

    Log ratios are to the session before: ``step`` of closes as quoted, ``unexplained`` of closes after the
    row's own split and dividend, ``gap`` of the open after the split, ``next_unexplained`` of the next close
    to this one. Null where there is no such neighbour.
    """

    date = dy.Date()
    ticker = dy.String()
    volume = _price()
    split_ratio = _price()
    step = _price()
    unexplained = _price()
    gap = _price()
    next_unexplained = _price()
    repeats = dy.Int64()  # sessions in a row, this one included, that repeat the bar before them
    after_spike = dy.Bool()  # the session before is a spike that reverts
    session = dy.Bool(nullable=True)  # the exchange was open
    currency = dy.String(nullable=True)
    previous_currency = dy.String(nullable=True)

    spike_that_reverts = named_rule(~_reverts())
    split_without_return = named_rule(~_unshown())
    return_without_split = named_rule(~(_like_a_split() & ~_spike_or_recorded()))
    currency_jump = named_rule(~_other_currency())
    stale_run = named_rule(pl.col("repeats") < STALE_SESSIONS)
    volume_on_closed_session = named_rule(pl.col("session") | (pl.col("volume").fill_null(0.0) <= 0.0))


class MarketDates(dy.Schema):
    """How many firms of a calendar have a price on a date, and how many usually have.

    ``coverage_collapse``: a quarter, and at least ten, of the firms that usually have a price have none.
    """

    calendar = dy.String(nullable=True)
    date = dy.Date()
    firms = dy.Float64()
    usual = dy.Float64(nullable=True)

    coverage_collapse = named_rule(
        (pl.col("usual") - pl.col("firms") < FEW_FIRMS) | (pl.col("firms") >= COVERAGE * pl.col("usual"))
    )


_FOR_EVIDENCE: Final = ("previous_close", "close", "next_close", "next_date", "calendar")
_BEFORE, _CLOSE, _NEXT, _SPLIT = (
    pl.col(c).round_sig_figs(6) for c in ("previous_close", "close", "next_close", "split_ratio")
)
_EVIDENCE: Final[Mapping[str, pl.Expr]] = {
    "spike_that_reverts": pl.format("close {} -> {} -> {}", _BEFORE, _CLOSE, _NEXT),
    "split_without_return": pl.format("split ratio {}, close {} -> {}", _SPLIT, _BEFORE, _CLOSE),
    "return_without_split": pl.format("close {} -> {}, split ratio {}", _BEFORE, _CLOSE, _SPLIT),
    "currency_jump": pl.coalesce(
        pl.when(pl.col("currency") != pl.col("previous_currency")).then(
            pl.format("currency {} -> {}", "previous_currency", "currency")
        ),
        pl.format("close {} -> {}", _BEFORE, _CLOSE),
    ),
    "stale_run": pl.format("{} sessions in a row repeat the bar before, close {}", "repeats", _CLOSE),
    "volume_on_closed_session": pl.format("volume {}, {} was closed", "volume", "calendar"),
}


def neighbours(prices: pl.DataFrame, securities: pl.DataFrame | None, calendar: str | None) -> pl.DataFrame:
    """Put beside each price row what its neighbours say.

    Parameters
    ----------
    prices
        Valid rows of ``prices``, each key once, in any order.
    securities
        Valid rows of ``securities`` with the firms' exchanges and currencies over time; None if unknown.
    calendar
        A calendar that holds for every firm; None to go by exchange and currency.

    Returns
    -------
    DataFrame
        By ticker and date: the columns of `PriceNeighbours`, and what evidence quotes.
    """
    rows = with_sessions(_with_listing(prices.sort("ticker", "date"), securities), calendar)
    near = (pl.col("date") - pl.col("date").shift()).dt.total_days() <= MAX_GAP_DAYS
    has_previous = (pl.col("ticker") == pl.col("ticker").shift()) & near
    bar = ("open", "high", "low", "close")
    repeats = pl.all_horizontal(pl.col(c).eq_missing(pl.col(c).shift()) for c in bar) & (
        (pl.col("volume").fill_null(0.0) == 0.0) | (pl.col("volume") == pl.col("volume").shift())
    )
    place, before = pl.int_range(pl.len()), pl.col("previous_close")
    return (
        rows.with_columns(has_previous=has_previous.fill_null(value=False))
        .with_columns(
            has_next=pl.col("has_previous").shift(-1).fill_null(value=False),
            previous_close=_if("has_previous", pl.col("close").shift()),
            previous_currency=_if("has_previous", pl.col("currency").shift()),
            fresh=~(pl.col("has_previous") & repeats & (pl.col("split_ratio") == 1.0)),
        )
        .with_columns(
            step=_log(pl.col("close") / before),
            unexplained=_log((pl.col("close") + pl.col("dividend")) * pl.col("split_ratio") / before),
            gap=_log(pl.col("open") * pl.col("split_ratio") / before),
            next_close=_if("has_next", pl.col("close").shift(-1)),
            next_date=_if("has_next", pl.col("date").shift(-1)),
            repeats=place - pl.when("fresh").then(place).forward_fill(),
        )
        .with_columns(next_unexplained=_if("has_next", pl.col("unexplained").shift(-1)))
        .with_columns(
            after_spike=pl.col("has_previous") & _reverts().shift().fill_null(value=False),
            repeats=pl.col("repeats").cast(pl.Int64),
        )
        .select(*PriceNeighbours.column_names(), *_FOR_EVIDENCE)
    )


def doubts(rows: pl.DataFrame, rules: tuple[str, ...]) -> pl.DataFrame:
    """Apply rules to rows with their neighbours.

    Parameters
    ----------
    rows
        What `neighbours` gives, or some of its rows.
    rules
        Names out of `PRICE_RULES`, at least one.

    Returns
    -------
    DataFrame
        date, ticker, rule, evidence, known_on: one row a row and rule that it breaks, in the order of
        `PRICE_RULES` within a row.
    """
    details = PriceNeighbours.filter(rows, cast=False).failure.details()
    broken = rows.join(details.select("date", "ticker", *rules), on=["ticker", "date"], how="inner")
    found = [
        broken.filter(pl.col(rule) == "invalid").select(
            "date",
            "ticker",
            pl.lit(rule).alias("rule"),
            _EVIDENCE[rule].alias("evidence"),
            (pl.col("next_date") if rule == "spike_that_reverts" else pl.col("date")).alias("known_on"),
        )
        for rule in PRICE_RULES
        if rule in rules
    ]
    return pl.concat(found)


def market_doubts(counts: pl.DataFrame) -> pl.DataFrame:
    """Apply ``coverage_collapse`` to the number of firms by calendar and date.

    Parameters
    ----------
    counts
        calendar, date, firms: every date that has a price, from `USUAL_DAYS` before the first to be judged.

    Returns
    -------
    DataFrame
        date, ticker (``*`` and the calendar), rule, evidence, known_on.
    """
    rows = counts.sort("calendar", "date").with_columns(pl.col("firms").cast(pl.Float64))
    usual = rows.rolling("date", period=f"{USUAL_DAYS}d", closed="left", group_by="calendar").agg(
        pl.col("firms").median().alias("usual"), pl.len().alias("dates")
    )
    judged = rows.join(usual, on=["calendar", "date"], how="left", nulls_equal=True).with_columns(
        usual=pl.when(pl.col("dates") >= ENOUGH_DATES).then("usual")
    )
    broken = MarketDates.filter(judged.select(MarketDates.column_names()), cast=False).failure.invalid()
    return broken.select(
        "date",
        (pl.lit("*") + pl.col("calendar").fill_null("")).alias("ticker"),
        pl.lit("coverage_collapse").alias("rule"),
        pl.format(
            "{} firms have a price, where {} usually have",
            pl.col("firms").cast(pl.Int64),
            pl.col("usual").round().cast(pl.Int64),
        ).alias("evidence"),
        pl.col("date").alias("known_on"),
    )


def calendars(rows: pl.DataFrame, securities: pl.DataFrame | None, calendar: str | None) -> pl.DataFrame:
    """Give each ticker of price rows (date, ticker, source) the calendar that it is held to, null if none."""
    firms = rows.group_by("ticker").agg(pl.col("date").max(), pl.col("source").last()).sort("ticker", "date")
    return with_sessions(_with_listing(firms, securities), calendar).select("ticker", "calendar")


def _with_listing(prices: pl.DataFrame, securities: pl.DataFrame | None) -> pl.DataFrame:
    """Add the exchange and currency recorded for a row's date, or those recorded first for its firm."""
    if securities is None:
        unknown = pl.lit(None, dtype=pl.String)
        return prices.with_columns(exchange=unknown, currency=unknown)
    told = securities.select("ticker", "valid_from", "exchange", "currency").sort("ticker", "valid_from")
    first = told.group_by("ticker").agg(pl.col("exchange", "currency").first().name.prefix("first_"))
    return (
        prices.join_asof(told, left_on="date", right_on="valid_from", by="ticker", check_sortedness=False)
        .join(first, on="ticker", how="left", maintain_order="left")
        .with_columns(
            pl.when(pl.col("valid_from").is_null()).then(f"first_{c}").otherwise(c).alias(c)
            for c in ("exchange", "currency")
        )
        .drop("valid_from", "first_exchange", "first_currency")
    )


def _if(condition: str, value: pl.Expr) -> pl.Expr:
    return pl.when(condition).then(value)
