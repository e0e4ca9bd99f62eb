"""Rules for prices that need a row's neighbours: the firm's sessions before and after, or the whole market's.

A row that breaks one may be correct, so it is stored and flagged unless the config says otherwise. Rows more
than `MAX_GAP_DAYS` calendar days apart are no neighbours. Only ``spike_that_reverts`` uses a later row, and
is known at that row's close (``known_on``). `DATE_RULES` say that a date is no session at all.
"""

import math
from collections.abc import Mapping
from typing import Final

import polars as pl

from pipelines.ingest.calendars import with_sessions
from pipelines.ingest.settings import AS_PUBLISHED, CalendarOverrides

MAX_GAP_DAYS: Final = 10
STALE_SESSIONS: Final = 10
INFLUENCE_DAYS: Final = MAX_GAP_DAYS * STALE_SESSIONS  # days within which a row affects another's check
SPIKE: Final = 1.5  # factor, up or down, between a close and the one before that makes it a spike
SPIKE_REMAINDER: Final = 0.2  # share of a reverted spike (log) that may remain at the next close
TICK: Final = 0.01
FEW_TICKS: Final = 2  # no error: a penny share moves by large factors from one price to the next
SPLITS: Final = (1.5, 2.0, 2.5, *(float(n) for n in range(3, 11)), 12.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0)
SPLIT_ROUNDING: Final = 0.04  # log tolerance between a ratio of closes (and of opens) and a split's
RECORDED_SPLIT: Final = 1.3
MISSED_SHARE: Final = 0.5
"""Recorded splits of at least this factor, up or down, must show in the price. One does not show if the move
without it is smaller than the move with it by this share of the split, in logarithms. A smaller split, or a
smaller share, could be a session's true return: prices of A-shares rise by up to 20%."""
CURRENCY_FACTOR: Final = 100.0
CURRENCY_ROUNDING: Final = 0.15
BASELINE_DAYS: Final = 60  # calendar days over which the usual number of firms, a median, is computed
MIN_COVERAGE: Final = 0.75  # of the usual number of firms; a date with less is a gap if ten or more lack
MIN_MISSING_FIRMS: Final = 10
MIN_DATES: Final = 5  # from which the usual number of firms is computed; far fewer firms are a gap
SPARSE: Final = 0.1
SPARSE_DATES: Final = 20
"""A date with a row for less than this share of the usual number of firms is no session. The usual number is
the median of this many dates before it, or of as many after it if that is less: markets grow and shrink. For
the first dates it is the median of the five that follow."""

DATE_RULES: Final = ("closed_session", "sparse_date")


def _log(ratio: pl.Expr) -> pl.Expr:
    """Return the logarithm of a ratio; null if a price in it is not positive (a row that a user released)."""
    return pl.when(ratio.is_finite() & (ratio > 0)).then(ratio.log())


def _is_near_factor(column: str, factor: float, rounding: float) -> pl.Expr:
    """Return whether a log ratio equals ``factor``, up or down, within ``rounding``."""
    return (pl.col(column).abs() - math.log(factor)).abs() <= rounding


_MOVED = pl.col("close") - pl.col("previous_close") / pl.col("split_ratio")
_FEW_TICKS: Final = _MOVED.abs() < (FEW_TICKS + 0.5) * TICK  # from the close before, in own shares
_SIZE = pl.col("log_return").abs()
_REMAINS = (pl.col("log_return") + pl.col("next_log_return")).abs() <= SPIKE_REMAINDER * _SIZE
_REVERTS: Final = (math.log(SPIKE) <= _SIZE) & _REMAINS & ~_FEW_TICKS  # null if there is no next one
_LOG_SPLIT, _RAW = _log(pl.col("split_ratio")), pl.col("raw_log_return")
_SPLIT_NOT_IN_PRICE: Final = (_LOG_SPLIT.abs() >= math.log(RECORDED_SPLIT)) & (
    (_RAW + _LOG_SPLIT).abs() - _RAW.abs() >= MISSED_SHARE * _LOG_SPLIT.abs()
)
"""Whether a recorded split does not show: the close is much nearer to the previous one unsplit."""
_CLOSE_SPLITS, _OPEN_SPLITS = (
    pl.any_horizontal(_is_near_factor(column, split, SPLIT_ROUNDING) for split in SPLITS)
    for column in ("log_return", "open_log_return")
)
_LOOKS_LIKE_SPLIT: Final = _CLOSE_SPLITS & _OPEN_SPLITS.fill_null(value=True) & ~_FEW_TICKS
"""Whether the close, and the open if known, changes by the ratio of a usual split."""
_WORTH = pl.coalesce(pl.col("last_close") / pl.col("split_ratio"), pl.col("close"))
_PAYS_MORE: Final = (pl.col("dividend") > _WORTH).fill_null(value=False)  # than the share was worth
_OTHERWISE_EXPLAINED: Final = pl.any_horizontal(  # by a spike, its reversal or a recorded split
    "after_spike", _REVERTS.fill_null(value=False), _SPLIT_NOT_IN_PRICE.fill_null(value=False), _PAYS_MORE
)
_HUNDREDFOLD = _is_near_factor("log_return", CURRENCY_FACTOR, CURRENCY_ROUNDING) & ~pl.col("after_spike")
_CURRENCIES_DIFFER = pl.col("currency") != pl.col("previous_currency")

_BEFORE, _CLOSE, _NEXT, _SPLIT = (
    pl.col(c).round_sig_figs(6) for c in ("previous_close", "close", "next_close", "split_ratio")
)
_RULES: Final[Mapping[str, tuple[pl.Expr, pl.Expr]]] = {
    "closed_session": (~pl.col("session"), pl.format("{} was closed", "calendar")),
    "sparse_date": (
        pl.col("sparse") & ~pl.col("session").fill_null(value=False),
        pl.format("{} firms have a row, {} usually do", "firms", pl.col("usual").cast(pl.Int64)),
    ),
    "spike_that_reverts": (_REVERTS, pl.format("close {} -> {} -> {}", _BEFORE, _CLOSE, _NEXT)),
    "split_without_return": (
        _SPLIT_NOT_IN_PRICE,
        pl.format("split ratio {}, close {} -> {}", _SPLIT, _BEFORE, _CLOSE),
    ),
    "return_without_split": (
        _LOOKS_LIKE_SPLIT & ~_OTHERWISE_EXPLAINED,
        pl.format("close {} -> {}, split ratio {}", _BEFORE, _CLOSE, _SPLIT),
    ),
    "currency_jump": (
        _HUNDREDFOLD.fill_null(value=False) | _CURRENCIES_DIFFER.fill_null(value=False),
        pl.when(_CURRENCIES_DIFFER)
        .then(pl.format("currency {} -> {}", "previous_currency", "currency"))
        .otherwise(pl.format("close {} -> {}", _BEFORE, _CLOSE)),
    ),
    "dividend_above_price": (
        _PAYS_MORE,
        pl.format(
            "dividend {}, close {} -> {}",
            pl.col("dividend").round_sig_figs(6),
            pl.col("last_close").round_sig_figs(6).cast(pl.String).fill_null("unknown"),
            _CLOSE,
        ),
    ),
    "stale_run": (
        pl.col("repeats") >= STALE_SESSIONS,
        pl.format("{} consecutive sessions repeat the bar before, close {}", "repeats", _CLOSE),
    ),
}
"""Rule (`pipelines.ingest.settings.QualityConfig`) -> where a row of `add_neighbours` breaks it, and the
evidence. A row that breaks several is rejected under the first."""
PRICE_RULES: Final = tuple(_RULES)


def add_neighbours(
    prices: pl.DataFrame,
    securities: pl.DataFrame | None,
    calendar: str | None,
    overrides: CalendarOverrides = AS_PUBLISHED,
) -> pl.DataFrame:
    """Add the values of neighbours to rows of ``prices``, by ticker and date; null where there is none.

    Log returns since the last session: ``raw_log_return`` as quoted, ``log_return`` after split and dividend,
    ``open_log_return`` after the split, ``next_log_return`` to the next. ``repeats`` counts sessions that
    repeat the bar before. ``calendar`` applies to every firm; None uses exchange and currency.
    """
    rows = with_dates(prices.sort("ticker", "date"), securities, calendar, overrides)
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
            previous_close=_where("has_previous", pl.col("close").shift()),
            last_close=pl.col("close").shift().over("ticker"),
            previous_currency=_where("has_previous", pl.col("currency").shift()),
            new_bar=~(pl.col("has_previous") & repeats & (pl.col("split_ratio") == 1.0)),
        )
        .with_columns(
            raw_log_return=_log(pl.col("close") / before),
            log_return=_log((pl.col("close") + pl.col("dividend")) * pl.col("split_ratio") / before),
            open_log_return=_log(pl.col("open") * pl.col("split_ratio") / before),
            next_close=_where("has_next", pl.col("close").shift(-1)),
            next_date=_where("has_next", pl.col("date").shift(-1)),
            repeats=place - pl.when("new_bar").then(place).forward_fill(),
        )
        .with_columns(next_log_return=_where("has_next", pl.col("log_return").shift(-1)))
        .with_columns(after_spike=pl.col("has_previous") & _REVERTS.shift().fill_null(value=False))
    )


def with_dates(
    rows: pl.DataFrame,
    securities: pl.DataFrame | None,
    calendar: str | None,
    overrides: CalendarOverrides = AS_PUBLISHED,
) -> pl.DataFrame:
    """Add to rows the calendar, its ``session``, the ``firms`` then, ``usual`` and ``sparse``."""
    dated = with_sessions(_with_listing(rows, securities), calendar, overrides)
    counts = rows.group_by("date").agg(firms=pl.len()).sort("date")
    of = pl.col("firms").cast(pl.Float64)
    before, after = (
        series.shift().rolling_median(SPARSE_DATES, min_samples=MIN_DATES) for series in (of, of.reverse())
    )
    soon = of.reverse().shift().rolling_median(MIN_DATES).reverse()  # a market that starts with few firms
    usual = pl.when(before.is_null()).then(soon).otherwise(pl.min_horizontal(before, after.reverse()))
    counts = counts.with_columns(usual=usual).with_columns(
        sparse=(pl.col("firms") < SPARSE * pl.col("usual")).fill_null(value=False)
    )
    return dated.join(counts, on="date", how="left", maintain_order="left")


def find_violations(rows: pl.DataFrame, rules: tuple[str, ...]) -> pl.DataFrame:
    """Apply some of `PRICE_RULES`: date, ticker, rule, evidence, known_on, a row per violation."""
    # polars 2 panics when it formats columns of different chunks, hence rechunk
    return pl.concat(
        rows.filter(broken)
        .rechunk()
        .select(
            "date",
            "ticker",
            pl.lit(rule).alias("rule"),
            evidence.alias("evidence"),
            (pl.col("next_date") if rule == "spike_that_reverts" else pl.col("date")).alias("known_on"),
        )
        for rule, (broken, evidence) in _RULES.items()
        if rule in rules
    )


def find_coverage_collapses(counts: pl.DataFrame) -> pl.DataFrame:
    """Apply ``coverage_collapse`` to firms by calendar and date, from `BASELINE_DAYS` before the first."""
    rows = counts.sort("calendar", "date")
    usual = rows.rolling("date", period=f"{BASELINE_DAYS}d", closed="left", group_by="calendar").agg(
        pl.col("firms").median().alias("usual"), pl.len().alias("dates")
    )
    judged = rows.join(usual, on=["calendar", "date"], how="left", nulls_equal=True)
    missing = pl.col("usual") - pl.col("firms")
    broken = judged.filter(
        (pl.col("dates") >= MIN_DATES)
        & (missing >= MIN_MISSING_FIRMS)
        & (pl.col("firms") < MIN_COVERAGE * pl.col("usual"))
    )
    return broken.select(
        "date",
        (pl.lit("*") + pl.col("calendar").fill_null("")).alias("ticker"),
        pl.lit("coverage_collapse").alias("rule"),
        pl.format(
            "{} firms have a price, {} usually do", "firms", pl.col("usual").round().cast(pl.Int64)
        ).alias("evidence"),
        pl.col("date").alias("known_on"),
    )


def ticker_calendars(
    rows: pl.DataFrame, securities: pl.DataFrame | None, calendar: str | None
) -> pl.DataFrame:
    """Return the calendar of each ticker in price rows (date, ticker, source); null if it has none."""
    firms = rows.group_by("ticker").agg(pl.col("date").max(), pl.col("source").last()).sort("ticker", "date")
    return with_sessions(_with_listing(firms, securities), calendar).select("ticker", "calendar")


def _with_listing(prices: pl.DataFrame, securities: pl.DataFrame | None) -> pl.DataFrame:
    """Add the exchange and currency recorded for a row's date, or else the first recorded for its firm."""
    if securities is None:
        unknown = pl.lit(None, dtype=pl.String)
        return prices.with_columns(exchange=unknown, currency=unknown)
    listings = securities.select("ticker", "valid_from", "exchange", "currency").sort("ticker", "valid_from")
    first = listings.group_by("ticker").agg(pl.col("exchange", "currency").first().name.prefix("first_"))
    return (
        prices.join_asof(listings, left_on="date", right_on="valid_from", by="ticker", check_sortedness=False)
        .join(first, on="ticker", how="left", maintain_order="left")
        .with_columns(
            pl.when(pl.col("valid_from").is_null()).then(f"first_{c}").otherwise(c).alias(c)
            for c in ("exchange", "currency")
        )
        .drop("valid_from", "first_exchange", "first_currency")
    )


def _where(condition: str, value: pl.Expr) -> pl.Expr:
    return pl.when(condition).then(value)
