"""The quality rules for prices, and their application to a delivery: keep, flag or reject its rows.

A rule needs a row's neighbours: the firm's sessions before and after, or the whole market's. A row that
breaks one may be correct, so it is stored and flagged unless the config says otherwise. Rows more than
`MAX_GAP_DAYS` calendar days apart are no neighbours. Only ``spike_that_reverts`` uses a later row, and is
known at that row's close (``known_on``). `DATE_RULES` say that a date is no session at all.

A delivery is checked together with the stored rows around it, so that one session per night gives the same
result as a whole history at once. No rule removes a stored row: what a later session reveals is flagged,
whatever the config says, because removing it would rewrite history with hindsight.

A session without a price or a row in ``gaps`` is a halt, and a holder keeps the last price. A rejected row,
or a session of the exchange without any row, is no halt, so a label across it is unknown.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Final

import polars as pl

from pipelines.format import abbreviate
from pipelines.ingest.calendars import sessions_between, with_sessions
from pipelines.ingest.settings import AS_PUBLISHED, CalendarOverrides, QualityConfig
from pipelines.lake.contracts import Checked, hash_of, quarantined
from pipelines.lake.gaps import DATE_RULES, with_events_of_gaps
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import STAMPS, Flags, Gaps, empty, finite, positive

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


_KEY: Final = ["date", "ticker"]
_GAP, _INFLUENCE = timedelta(days=MAX_GAP_DAYS), timedelta(days=INFLUENCE_DAYS)
_RECENT, _USUAL = timedelta(days=30), timedelta(days=BASELINE_DAYS)
_MAX_NAMED_TICKERS: Final = 300  # more are not filtered by name in the lake, but only by date


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the quality rules find: flags to set and to close, flagged rows by rule, gaps, incompleteness."""

    flags: pl.DataFrame = field(default_factory=lambda: empty("flags"))
    flagged: Mapping[str, int] = field(default_factory=dict)
    gaps: pl.DataFrame = field(default_factory=lambda: empty("gaps"))
    incomplete: tuple[str, ...] = ()


class Inspector:
    """Applies a config's quality rules to rows on their way in; a ``complete`` delivery stands alone."""

    def __init__(
        self,
        lake: Lake,
        config: QualityConfig,
        released: Collection[str] = (),
        stored: Collection[str] | None = None,
        *,
        complete: bool = False,
    ) -> None:
        self._lake, self._config, self._released = lake, config, list(released)
        self._complete = complete
        self._stored = None if stored is None else set(stored)
        self._rules = tuple(rule for rule in PRICE_RULES if getattr(config, rule) != "off")
        self._rejecting = [rule for rule in self._rules if getattr(config, rule) == "reject"]
        self._since: date | None = None

    def inspect(
        self, checked: Checked, securities: pl.DataFrame | None, now: datetime
    ) -> tuple[Checked, Inspection]:
        """Check valid price rows, and the listings that were delivered with them, before they are stored."""
        kept, rejected = checked.valid, checked.rejected
        listings, known = self._listings(securities), self._stored or ()
        if kept.is_empty():
            return checked, Inspection(gaps=rejected_gaps(kept, rejected, listings, self._config, known))
        first, last = _span(kept)
        self._since = first if self._since is None else min(first, self._since)
        flags, flagged = empty("flags"), dict[str, int]()
        if self._rules:
            context = kept.clear() if self._complete else self._read_context(kept, first, last)
            rows = pl.concat([context, kept])
            gaps = self._known_gaps(rejected, first, last)
            violations = self._find_violations(rows, gaps, listings, first, last)
            to_reject = violations.filter(pl.col("rule").is_in(self._rejecting))
            to_reject = to_reject.join(kept, on=_KEY, how="semi") if to_reject.height else to_reject
            to_reject = self._not_stored(to_reject.unique(_KEY, keep="first", maintain_order=True), kept)
            if to_reject.height:
                out = kept.join(to_reject.select(*_KEY, "rule"), on=_KEY, how="inner")
                rejected = pl.concat([rejected, quarantined("prices", out, pl.col("rule"))])
                kept = kept.join(to_reject, on=_KEY, how="anti")
                left = rows.join(to_reject, on=_KEY, how="anti")
                gaps = self._known_gaps(rejected, first, last)
                violations = self._find_violations(left, gaps, listings, first, last)
            tickers = rows["ticker"].unique()
            if self._complete:
                open_flags = self._open_flags(pl.col("rule").is_in(PRICE_RULES))
            else:
                near = pl.col("date").is_between(first - _GAP, last + _INFLUENCE)
                open_flags = self._open_flags(near & pl.col("rule").is_in(self._rules))
                open_flags = open_flags.filter(pl.col("ticker").is_in(tickers.implode()))
            if self._stored is not None:
                self._stored.update(tickers)
            flags, flagged = _update_flags(violations, open_flags, kept, now)
        gaps = rejected_gaps(kept, rejected, listings, self._config, known)
        if self._complete:
            gaps = pl.concat([gaps, missing_sessions(kept, listings, self._config)])
        gaps = gaps.unique(_KEY, keep="first", maintain_order=True)
        return Checked(kept, rejected, checked.collapsed), Inspection(flags, flagged, gaps)

    def coverage(self, now: datetime) -> Inspection:
        """Check which firms have a price on each date, after all rows are stored.

        All stored dates are checked, because an ingest that was stopped or killed has not checked its own.
        """
        if self._since is None or not self._lake.exists("prices"):
            return Inspection()
        recent = pl.col("date") >= self._since - _RECENT - _USUAL
        rows = self._lake.read("prices", columns=["date", "ticker", "source"], ordered=False)
        listings = self._listings(None)
        gaps, known = empty("gaps"), self._lake.rows("gaps")
        if not self._complete:  # what is stored of a rejected row stays
            gaps = missing_sessions(rows, listings, self._config).join(known, on=_KEY, how="anti")
        told = pl.concat([known, gaps]).filter(recent)
        found = Inspection(gaps=gaps, incomplete=tuple(describe_gaps(told, rows)))
        if self._config.coverage_collapse == "off":
            return found
        firms = ticker_calendars(rows, listings, self._config.calendar)
        counts = rows.join(firms, on="ticker", how="left").group_by("calendar", "date").agg(firms=pl.len())
        violations = find_coverage_collapses(counts)
        text = pl.format("{} {} {}", "ticker", "date", "evidence")
        violations = violations.with_columns(row_hash=hash_of(text))
        violations = violations.filter(~pl.col("row_hash").is_in(self._released))
        within = pl.col("rule") == "coverage_collapse"
        delivered_dates = rows.filter(pl.col("date") >= self._since).select("date").unique()
        delivered_keys = violations.select(*_KEY).join(delivered_dates, on="date", how="semi")
        flags, flagged = _update_flags(violations, self._open_flags(within), delivered_keys, now)
        return replace(found, flags=flags, flagged=flagged)

    def _known_gaps(self, rejected: pl.DataFrame, first: date, last: date) -> pl.DataFrame:
        """Return the gaps of rejected rows, and the stored ones near a delivery that is not complete."""
        near = pl.col("date").is_between(first - _GAP - _INFLUENCE, last + _INFLUENCE + _GAP)
        stored = empty("gaps") if self._complete else self._lake.rows("gaps", filters=near)
        return pl.concat([_lost_rows(rejected), stored]).unique(_KEY, keep="first")

    def _find_violations(
        self, rows: pl.DataFrame, gaps: pl.DataFrame, listings: pl.DataFrame | None, first: date, last: date
    ) -> pl.DataFrame:
        """Find the violations in rows that a delivery from ``first`` to ``last`` can affect."""
        config, whole = self._config, with_events_of_gaps(rows, gaps)
        facts = add_neighbours(whole, listings, config.calendar, config.calendar_overrides)
        violations = find_violations(
            facts.filter(pl.col("date").is_between(first - _GAP, last + _INFLUENCE)), self._rules
        )
        flagged_rows = rows.join(violations, on=_KEY, how="inner")
        hashed = flagged_rows.select(*_KEY, "rule", "evidence", "known_on").with_columns(
            row_hash=quarantined("prices", flagged_rows, pl.col("rule"))["row_hash"]
        )
        order = pl.col("rule").cast(pl.Enum(PRICE_RULES))
        return hashed.filter(~pl.col("row_hash").is_in(self._released)).sort("ticker", "date", order)

    def _not_stored(self, to_reject: pl.DataFrame, delivered: pl.DataFrame) -> pl.DataFrame:
        """Drop rows that are stored with the same values, because hindsight removes no stored row."""
        if to_reject.is_empty() or not self._lake.exists("prices"):
            return to_reject
        first, last = _span(to_reject)
        near = pl.col("date").is_between(first, last) & pl.col("ticker").is_in(to_reject["ticker"].to_list())
        stored = self._lake.read("prices", filters=near)
        values = [c for c in delivered.columns if c not in STAMPS]
        same = delivered.join(to_reject, on=_KEY, how="semi").join(
            stored, on=values, how="semi", nulls_equal=True
        )
        if self._complete:  # a calendar is no hindsight, and the source withdraws what it delivers no more
            same = same.join(to_reject.filter(pl.col("rule").is_in(DATE_RULES)), on=_KEY, how="anti")
        return to_reject.join(same, on=_KEY, how="anti")

    def _read_context(self, delivered: pl.DataFrame, first: date, last: date) -> pl.DataFrame:
        """Read the stored rows of the delivered firms that affect the delivery, or are affected by it."""
        tickers = delivered["ticker"].unique()
        if self._stored is not None:
            tickers = tickers.filter(tickers.is_in(list(self._stored)))
        if tickers.is_empty() or not self._lake.exists("prices"):
            return delivered.clear()
        near = pl.col("date").is_between(first - _GAP - _INFLUENCE, last + _INFLUENCE + _GAP)
        if tickers.len() <= _MAX_NAMED_TICKERS:
            near &= pl.col("ticker").is_between(pl.lit(tickers.min()), pl.lit(tickers.max()))
            near &= pl.col("ticker").is_in(tickers.to_list())
        stored = self._lake.read("prices", filters=near)
        return (
            stored.filter(pl.col("ticker").is_in(tickers.implode()))
            .join(delivered, on=_KEY, how="anti")
            .select(delivered.columns)
        )

    def _listings(self, delivered: pl.DataFrame | None) -> pl.DataFrame | None:
        columns = ["ticker", "valid_from", "exchange", "currency"]
        parts = [self._lake.read("securities", columns=columns)] if self._lake.exists("securities") else []
        if delivered is not None:
            parts.append(delivered.select(columns))
        return pl.concat(parts).unique(["ticker", "valid_from"], keep="last") if parts else None

    def _open_flags(self, within: pl.Expr) -> pl.DataFrame:
        return self._lake.rows("flags", filters=(pl.col("table") == "prices") & ~pl.col("cleared") & within)


def _update_flags(
    violations: pl.DataFrame, open_flags: pl.DataFrame, delivered: pl.DataFrame, now: datetime
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Create flags for violations, clear open flags that no longer apply, and count by rule."""
    key = [*_KEY, "rule"]
    raised = violations.with_columns(
        table=pl.lit("prices"), cleared=pl.lit(value=False), flagged_at=pl.lit(now)
    ).select(Flags.column_names())
    cleared = open_flags.join(violations, on=key, how="anti").with_columns(cleared=pl.lit(value=True))
    with_flags = delivered.select(_KEY).join(
        raised, on=_KEY, how="semi"
    )  # the larger frame probes the smaller one: faster
    reported = raised.join(with_flags, on=_KEY, how="semi").select(key)
    reported = pl.concat([reported, raised.join(open_flags, on=key, how="anti").select(key)]).unique()
    counts = reported.group_by("rule").len().sort("len", "rule", descending=[True, False])
    return pl.concat([raised, cleared.select(Flags.column_names())]), dict(counts.iter_rows())


def _span(rows: pl.DataFrame) -> tuple[date, date]:
    first, last = rows["date"].min(), rows["date"].max()
    assert isinstance(first, date)
    assert isinstance(last, date)
    return first, last


_DAILY: Final = 0.5  # daily data have prices on this share of a calendar's sessions, weekly on fewer
_MIN_FIRMS: Final = 5  # sessions that fewer firms of one exchange among several lack are halts of these firms
_NAMED_DAYS: Final = 5
_DOUBTED: Final = {  # of a rejected row -> rules that say that it is wrong, too
    "split_ratio": ("split_without_return",),
    "dividend": ("dividend_above_price", "currency_jump"),
}


def rejected_gaps(
    kept: pl.DataFrame,
    rejected: pl.DataFrame,
    securities: pl.DataFrame | None,
    config: QualityConfig,
    stored: Collection[str] = (),
) -> pl.DataFrame:
    """Return the gaps of rejected rows of firms with prices, here or ``stored``, but without one on the date.

    A date that is no session has only rows with a split or a dividend, under one of `DATE_RULES`.
    """
    lost = _lost_rows(rejected).unique(_KEY, keep="first", maintain_order=True)
    lost = lost.join(kept, on=_KEY, how="anti").filter(pl.col("ticker").is_in({*stored, *kept["ticker"]}))
    if lost.is_empty():
        return empty("gaps")
    source = rejected.select(pl.col("row").str.json_path_match("$.source").alias("source"))[0]
    rows = pl.concat([kept.select(*_KEY, "source"), lost.select(*_KEY).join(source, how="cross")])
    dated = with_dates(rows, securities, config.calendar, config.calendar_overrides)
    session = pl.col("session").fill_null(~pl.col("sparse")) & ~pl.col("rule").is_in(DATE_RULES)
    event = (pl.col("split_ratio") != 1) | (pl.col("dividend") != 0)
    none = (
        pl.when(pl.col("session").is_null()).then(pl.lit("sparse_date")).otherwise(pl.lit("closed_session"))
    )
    found = lost.join(dated, on=_KEY, how="left", maintain_order="left").filter(session | event)
    return found.with_columns(rule=pl.when(session).then("rule").otherwise(none)).select(Gaps.column_names())


def _lost_rows(rejected: pl.DataFrame) -> pl.DataFrame:
    """Return rejected rows as gaps, with the split and the dividend that nothing contradicts."""
    lost = rejected.select(
        pl.col("row").str.json_path_match("$.date").str.to_date("%Y-%m-%d", strict=False).alias("date"),
        pl.col("row").str.json_path_match("$.ticker").alias("ticker"),
        "rule",
        *(
            pl.col("row").str.json_path_match(f"$.{name}").cast(pl.Float64, strict=False).alias(name)
            for name in _DOUBTED
        ),
    )
    paid = finite("dividend") & (pl.col("dividend") >= 0)
    plausible = {"split_ratio": positive("split_ratio"), "dividend": paid}
    return lost.drop_nulls([*_KEY, "rule"]).with_columns(
        pl.when(sound & ~pl.col("rule").is_in(_DOUBTED[name]) & (pl.col(name).n_unique().over(_KEY) == 1))
        .then(name)
        .alias(name)
        for name, sound in plausible.items()
    )


def missing_sessions(
    rows: pl.DataFrame, securities: pl.DataFrame | None, config: QualityConfig
) -> pl.DataFrame:
    """Return gaps of sessions on which no firm of an exchange has a row, but five had before and after."""
    firms = ticker_calendars(rows, securities, config.calendar).drop_nulls()
    parts: list[pl.DataFrame] = [empty("gaps")]
    for (name,), of_calendar in firms.group_by("calendar", maintain_order=True):
        held = rows.join(of_calendar, on="ticker", how="semi")
        spans = held.group_by("ticker").agg(first=pl.col("date").min(), last=pl.col("date").max())
        first, last = spans["first"].min(), spans["last"].max()
        expected = sessions_between(str(name), first, last, config.calendar_overrides)  # type: ignore[arg-type]  # dates
        missing = expected.filter(~expected.is_in(held["date"].unique().implode()))
        if len(missing) > (1 - _DAILY) * len(expected):
            continue
        within = missing.alias("date").to_frame().join(spans, how="cross")
        within = within.filter(pl.col("date").is_between("first", "last", closed="none"))
        if len(of_calendar) < rows["ticker"].n_unique():
            within = within.filter(pl.len().over("date") >= _MIN_FIRMS)
        unknown = pl.lit(None, pl.Float64)
        gap = {"rule": pl.lit("missing_session"), "split_ratio": unknown, "dividend": unknown}
        parts.append(within.select(*_KEY, **gap).sort(_KEY))
    return pl.concat(parts)


def describe_gaps(gaps: pl.DataFrame, rows: pl.DataFrame) -> list[str]:
    """Say in up to two sentences how many sessions are incomplete, and which have no price at all."""
    gaps = gaps.filter(~pl.col("rule").is_in(DATE_RULES)).join(rows, on=_KEY, how="anti")
    held = gaps.join(rows, on="date", how="semi")
    lost = gaps.join(rows, on="date", how="anti").group_by("date").agg("rule").sort("date")
    sentences = []
    if held.height:
        sentences.append(
            f"{_count_of_sessions(held['date'].n_unique())} incomplete: {held.height:,} prices of "
            f"{held['ticker'].n_unique():,} firms are unknown, first on {held['date'].min()!s}. Labels "
            "across them are unknown."
        )
    if lost.height:
        days = abbreviate(lost["date"].to_list(), _NAMED_DAYS)
        calendar = lost.filter(pl.col("rule").list.contains("missing_session")).height
        why = f" ({calendar:,} missing by the calendar)" if calendar else ""
        sentences.append(
            f"{_count_of_sessions(lost.height)} without any price{why}: {days}. Labels across them are "
            "unknown."
        )
    return sentences


def _count_of_sessions(count: int) -> str:
    return f"{count:,} session is" if count == 1 else f"{count:,} sessions are"
