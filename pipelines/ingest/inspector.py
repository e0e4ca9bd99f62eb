"""Apply the quality rules to a delivery of prices: keep, flag or reject its rows, and record what is missing.

A delivery is checked together with the stored rows around it, so that one session per night gives the same
result as a whole history at once. No rule removes a stored row: what a later session reveals is flagged,
whatever the config says, because removing it would rewrite history with hindsight.

A session without a price or a row in ``gaps`` is a halt, and a holder keeps the last price. A rejected row,
or a session of the exchange without any row, is no halt, so a label across it is unknown.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Final

import polars as pl

from pipelines.format import abbreviate
from pipelines.ingest import rules
from pipelines.ingest.calendars import sessions_between
from pipelines.ingest.settings import QualityConfig
from pipelines.lake.contracts import Checked, quarantined
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import STAMPS, Flags, Gaps, empty

_KEY: Final = ["date", "ticker"]
_GAP, _INFLUENCE = timedelta(days=rules.MAX_GAP_DAYS), timedelta(days=rules.INFLUENCE_DAYS)
_RECENT, _USUAL = timedelta(days=30), timedelta(days=rules.BASELINE_DAYS)
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
        self._rules = tuple(rule for rule in rules.PRICE_RULES if getattr(config, rule) != "off")
        self._rejecting = [rule for rule in self._rules if getattr(config, rule) == "reject"]
        self._since: date | None = None

    def inspect(
        self, checked: Checked, securities: pl.DataFrame | None, now: datetime
    ) -> tuple[Checked, Inspection]:
        """Check valid price rows, and the listings that were delivered with them, before they are stored."""
        kept, rejected = checked.valid, checked.rejected
        if kept.is_empty():
            return checked, Inspection()
        first, last = _span(kept)
        self._since = first if self._since is None else min(first, self._since)
        listings = self._listings(securities)
        flags, flagged = empty("flags"), dict[str, int]()
        if self._rules:
            context = kept.clear() if self._complete else self._read_context(kept, first, last)
            rows = pl.concat([context, kept])
            violations = self._find_violations(rows, listings, first, last)
            to_reject = violations.filter(pl.col("rule").is_in(self._rejecting))
            to_reject = to_reject.join(kept, on=_KEY, how="semi") if to_reject.height else to_reject
            to_reject = self._not_stored(to_reject.unique(_KEY, keep="first", maintain_order=True), kept)
            if to_reject.height:
                out = kept.join(to_reject.select(*_KEY, "rule"), on=_KEY, how="inner")
                rejected = pl.concat([rejected, quarantined("prices", out, pl.col("rule"))])
                kept = kept.join(to_reject, on=_KEY, how="anti")
                left = rows.join(to_reject, on=_KEY, how="anti")
                violations = self._find_violations(left, listings, first, last)
            tickers = rows["ticker"].unique()
            if self._complete:
                open_flags = self._open_flags(pl.col("rule").is_in(rules.PRICE_RULES))
            else:
                near = pl.col("date").is_between(first - _GAP, last + _INFLUENCE)
                open_flags = self._open_flags(near & pl.col("rule").is_in(self._rules))
                open_flags = open_flags.filter(pl.col("ticker").is_in(tickers.implode()))
            if self._stored is not None:
                self._stored.update(tickers)
            flags, flagged = _update_flags(violations, open_flags, kept, now)
        gaps = rejected_gaps(kept, rejected, listings, self._config)
        if self._complete:
            gaps = pl.concat([gaps, missing_sessions(kept, listings, self._config)])
        gaps = gaps.unique(_KEY, keep="first", maintain_order=True)
        return Checked(kept, rejected, checked.collapsed), Inspection(flags, flagged, gaps)

    def coverage(self, now: datetime) -> Inspection:
        """Check which firms have a price on each date, after all rows are stored."""
        if self._since is None:
            return Inspection()
        start = self._since - _RECENT
        recent = pl.col("date") >= start - _USUAL
        rows = self._lake.rows("prices", columns=["date", "ticker", "source"], filters=recent)
        listings = self._listings(None)
        gaps = empty("gaps") if self._complete else missing_sessions(rows, listings, self._config)
        known = self._lake.rows("gaps", filters=recent)
        found = Inspection(
            gaps=gaps, incomplete=tuple(describe_gaps(pl.concat([known, gaps]).unique(_KEY), rows))
        )
        if self._config.coverage_collapse == "off":
            return found
        firms = rules.ticker_calendars(rows, listings, self._config.calendar)
        counts = rows.join(firms, on="ticker", how="left").group_by("calendar", "date").agg(firms=pl.len())
        violations = rules.find_coverage_collapses(counts).filter(pl.col("date") >= start)
        texts = violations.select(pl.format("{} {} {}", "ticker", "date", "evidence")).to_series()
        violations = violations.with_columns(
            row_hash=pl.Series([hashlib.sha256(t.encode()).hexdigest()[:32] for t in texts], dtype=pl.String)
        ).filter(~pl.col("row_hash").is_in(self._released))
        within = pl.col("rule") == "coverage_collapse"
        if not self._complete:
            within &= pl.col("date") >= start
        delivered_dates = rows.filter(pl.col("date") >= self._since).select("date").unique()
        delivered_keys = violations.select(*_KEY).join(delivered_dates, on="date", how="semi")
        flags, flagged = _update_flags(violations, self._open_flags(within), delivered_keys, now)
        return replace(found, flags=flags, flagged=flagged)

    def _find_violations(
        self, rows: pl.DataFrame, listings: pl.DataFrame | None, first: date, last: date
    ) -> pl.DataFrame:
        """Find the violations in rows that a delivery from ``first`` to ``last`` can affect."""
        config = self._config
        facts = rules.add_neighbours(rows, listings, config.calendar, config.calendar_overrides)
        violations = rules.find_violations(
            facts.filter(pl.col("date").is_between(first - _GAP, last + _INFLUENCE)), self._rules
        )
        flagged_rows = rows.join(violations, on=_KEY, how="inner")
        hashed = flagged_rows.select(*_KEY, "rule", "evidence", "known_on").with_columns(
            row_hash=quarantined("prices", flagged_rows, pl.col("rule"))["row_hash"]
        )
        order = pl.col("rule").cast(pl.Enum(rules.PRICE_RULES))
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
            same = same.join(to_reject.filter(pl.col("rule").is_in(rules.DATE_RULES)), on=_KEY, how="anti")
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


def rejected_gaps(
    kept: pl.DataFrame, rejected: pl.DataFrame, securities: pl.DataFrame | None, config: QualityConfig
) -> pl.DataFrame:
    """Return the gaps of rejected rows on sessions, of firms with prices and without a valid one then."""
    lost = rejected.filter(~pl.col("rule").is_in(rules.DATE_RULES)).select(
        pl.col("row").str.json_path_match("$.date").str.to_date("%Y-%m-%d", strict=False).alias("date"),
        pl.col("row").str.json_path_match("$.ticker").alias("ticker"),
        "rule",
    )
    lost = lost.drop_nulls().unique(_KEY, keep="first", maintain_order=True)
    lost = lost.join(kept, on=_KEY, how="anti").join(kept, on="ticker", how="semi")
    if lost.is_empty():
        return empty("gaps")
    source = pl.lit(kept["source"][0]).alias("source")
    rows = pl.concat([kept.select(*_KEY, "source"), lost.select(*_KEY, source)])
    dated = rules.with_dates(rows, securities, config.calendar, config.calendar_overrides)
    session = pl.col("session").fill_null(~pl.col("sparse"))
    return lost.join(dated.filter(session), on=_KEY, how="semi").select(Gaps.column_names())


def missing_sessions(
    rows: pl.DataFrame, securities: pl.DataFrame | None, config: QualityConfig
) -> pl.DataFrame:
    """Return gaps of sessions on which no firm of an exchange has a row, but five had before and after."""
    firms = rules.ticker_calendars(rows, securities, config.calendar).drop_nulls()
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
        rule = pl.lit("missing_session").alias("rule")
        parts.append(within.select(*_KEY, rule).sort(_KEY))
    return pl.concat(parts)


def describe_gaps(gaps: pl.DataFrame, rows: pl.DataFrame) -> list[str]:
    """Say in up to two sentences how many sessions are incomplete, and which have no price at all."""
    gaps = gaps.join(rows, on=_KEY, how="anti")
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
