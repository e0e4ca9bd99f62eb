"""What the quality rules do to a delivery of prices: keep, flag or reject its rows, beside what is stored.

A delivery is judged together with the stored rows around it, so that one session a night finds what a whole
history in one go finds. No rule takes a stored row out: what a later session reveals about it is flagged,
whatever the config says, because removing it would rewrite history with hindsight. A source may withdraw it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

import polars as pl

from pipelines.lake.contracts import quarantined
from pipelines.lake.lake import Lake
from pipelines.lake.pipeline_tables import Flags
from pipelines.lake.schemas import STAMPS
from pipelines.quality.rules import (
    MAX_GAP_DAYS,
    PRICE_RULES,
    REACH_DAYS,
    USUAL_DAYS,
    calendars,
    doubts,
    market_doubts,
    neighbours,
)
from pipelines.quality.settings import QualityConfig

_KEY: Final = ["date", "ticker"]
_GAP, _REACH = timedelta(days=MAX_GAP_DAYS), timedelta(days=REACH_DAYS)
_RECENT, _USUAL = timedelta(days=30), timedelta(days=USUAL_DAYS)
_FEW_TICKERS: Final = 300
"""Up to this many tickers are looked for by name in the lake; beyond, dates alone narrow the search."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """A delivery after inspection.

    Attributes
    ----------
    kept
        Its rows that go on to the lake.
    rejected
        Its rows that go to the quarantine, as `contracts.Checked.rejected` has them.
    flags
        Rows of the table ``flags``: doubts raised, and former ones that no longer hold.
    flagged
        Rule -> doubts about rows of this delivery, and about stored rows that it brought to light.
    """

    kept: pl.DataFrame
    rejected: pl.DataFrame
    flags: pl.DataFrame
    flagged: Mapping[str, int]


class Inspector:
    """Applies a config's quality rules to what goes into a lake.

    Parameters
    ----------
    lake
        Where the stored rows around a delivery are read.
    config
        Which rules reject, flag, or are off.
    released
        Hashes of price rows, and of doubts about whole dates, that a user accepted.
    stored
        Tickers that the lake has prices of; None if that is not known. Others' rows are not looked for.
    whole
        Whether a delivery takes the place of everything that is stored, so that it is judged by itself.
    """

    def __init__(
        self,
        lake: Lake,
        config: QualityConfig,
        released: Collection[str] = (),
        stored: Collection[str] | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self._lake, self._config, self._released = lake, config, list(released)
        self._whole = whole
        self._stored = None if stored is None else set(stored)
        self._rules = tuple(rule for rule in PRICE_RULES if getattr(config, rule) != "off")
        self._rejecting = [rule for rule in self._rules if getattr(config, rule) == "reject"]
        self._since: date | None = None

    def inspect(self, delivered: pl.DataFrame, securities: pl.DataFrame | None, now: datetime) -> Inspected:
        """Judge valid price rows before they are stored.

        Parameters
        ----------
        delivered
            Rows that satisfy the contract of ``prices``, each key once.
        securities
            Valid rows of ``securities`` that were delivered with them.
        now
            When the doubts are raised.
        """
        none = quarantined("prices", delivered.clear(), pl.lit(None, dtype=pl.String))
        if delivered.is_empty():
            return Inspected(delivered, none, Flags.create_empty(), {})
        first, last = _span(delivered)
        self._since = first if self._since is None else min(first, self._since)
        if not self._rules:
            return Inspected(delivered, none, Flags.create_empty(), {})
        around = delivered.clear() if self._whole else self._around(delivered, first, last)
        rows = pl.concat([around, delivered])
        listings = self._listings(securities)
        found = self._doubts(rows, listings, first, last)
        wrong = found.filter(pl.col("rule").is_in(self._rejecting))
        wrong = wrong.join(delivered, on=_KEY, how="semi") if wrong.height else wrong
        wrong = self._not_stored(wrong.unique(_KEY, keep="first", maintain_order=True), delivered)
        rejected = none
        if wrong.height:
            out = delivered.join(wrong.select(*_KEY, "rule"), on=_KEY, how="inner")
            rejected = quarantined("prices", out, pl.col("rule"))
            delivered = delivered.join(wrong, on=_KEY, how="anti")
            found = self._doubts(rows.join(wrong, on=_KEY, how="anti"), listings, first, last)
        tickers = rows["ticker"].unique()
        if self._whole:
            former = self._open_flags(pl.col("rule").is_in(PRICE_RULES))
        else:
            within = pl.col("date").is_between(first - _GAP, last + _REACH) & pl.col("rule").is_in(
                self._rules
            )
            former = self._open_flags(within).filter(pl.col("ticker").is_in(tickers.implode()))
        if self._stored is not None:
            self._stored.update(tickers)
        flags, flagged = _settle(found, former, delivered, now)
        return Inspected(delivered, rejected, flags, flagged)

    def coverage(self, now: datetime) -> tuple[pl.DataFrame, dict[str, int]]:
        """Judge how many firms have a price on each date, once everything that was to come is stored.

        Returns
        -------
        flags
            Rows of the table ``flags``.
        flagged
            Rule -> doubts about dates from the first one that was delivered on, or newly raised ones.
        """
        if self._since is None or self._config.coverage_collapse == "off":
            return Flags.create_empty(), {}
        start = self._since - _RECENT
        rows = self._lake.read(
            "prices", columns=["date", "ticker", "source"], filters=pl.col("date") >= start - _USUAL
        )
        firms = calendars(rows, self._listings(None), self._config.calendar)
        counts = rows.join(firms, on="ticker", how="left").group_by("calendar", "date").agg(firms=pl.len())
        found = market_doubts(counts).filter(pl.col("date") >= start)
        texts = found.select(pl.format("{} {} {}", "ticker", "date", "evidence")).to_series()
        found = found.with_columns(
            row_hash=pl.Series([hashlib.sha256(t.encode()).hexdigest()[:32] for t in texts], dtype=pl.String)
        ).filter(~pl.col("row_hash").is_in(self._released))
        within = pl.col("rule") == "coverage_collapse"
        if not self._whole:
            within &= pl.col("date") >= start
        fresh = rows.filter(pl.col("date") >= self._since).select("date").unique()
        judged = found.select(*_KEY).join(fresh, on="date", how="semi")
        return _settle(found, self._open_flags(within), judged, now)

    def _doubts(
        self, rows: pl.DataFrame, listings: pl.DataFrame | None, first: date, last: date
    ) -> pl.DataFrame:
        """Find the doubts about rows that a delivery from ``first`` to ``last`` may bear on."""
        facts = neighbours(rows, listings, self._config.calendar)
        found = doubts(facts.filter(pl.col("date").is_between(first - _GAP, last + _REACH)), self._rules)
        whole = rows.join(found, on=_KEY, how="inner")
        hashed = whole.select(*_KEY, "rule", "evidence", "known_on").with_columns(
            row_hash=quarantined("prices", whole, pl.col("rule"))["row_hash"]
        )
        order = pl.col("rule").cast(pl.Enum(PRICE_RULES))
        return hashed.filter(~pl.col("row_hash").is_in(self._released)).sort("ticker", "date", order)

    def _not_stored(self, wrong: pl.DataFrame, delivered: pl.DataFrame) -> pl.DataFrame:
        """Leave out rows that are stored with the same values: no rule takes a stored row out."""
        if wrong.is_empty() or not self._lake.exists("prices"):
            return wrong
        first, last = _span(wrong)
        near = pl.col("date").is_between(first, last) & pl.col("ticker").is_in(wrong["ticker"].to_list())
        stored = self._lake.read("prices", filters=near)
        values = [c for c in delivered.columns if c not in STAMPS]
        same = delivered.join(wrong, on=_KEY, how="semi").join(
            stored, on=values, how="semi", nulls_equal=True
        )
        return wrong.join(same, on=_KEY, how="anti")

    def _around(self, delivered: pl.DataFrame, first: date, last: date) -> pl.DataFrame:
        """Read the stored rows of the delivered firms that bear on the delivery, or on which it bears."""
        tickers = delivered["ticker"].unique()
        if self._stored is not None:
            tickers = tickers.filter(tickers.is_in(list(self._stored)))
        if tickers.is_empty() or not self._lake.exists("prices"):
            return delivered.clear()
        near = pl.col("date").is_between(first - _GAP - _REACH, last + _REACH + _GAP)
        if tickers.len() <= _FEW_TICKERS:
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
        if not self._lake.exists("flags"):
            return Flags.create_empty()
        return self._lake.read("flags", filters=(pl.col("table") == "prices") & ~pl.col("cleared") & within)


def _settle(
    found: pl.DataFrame, former: pl.DataFrame, delivered: pl.DataFrame, now: datetime
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Raise the doubts that were found, clear the former ones that were not, and count by rule."""
    key = [*_KEY, "rule"]
    raised = found.with_columns(
        table=pl.lit("prices"),
        cleared=pl.lit(value=False),
        flagged_at=pl.lit(now).cast(pl.Datetime("us", "UTC")),
    ).select(Flags.column_names())
    gone = former.join(found, on=key, how="anti").with_columns(cleared=pl.lit(value=True))
    doubted = delivered.select(_KEY).join(raised, on=_KEY, how="semi")  # the many probe the few: quicker
    news = raised.join(doubted, on=_KEY, how="semi").select(key)
    news = pl.concat([news, raised.join(former, on=key, how="anti").select(key)]).unique()
    counts = news.group_by("rule").len().sort("len", "rule", descending=[True, False])
    return pl.concat([raised, gone.select(Flags.column_names())]), dict(counts.iter_rows())


def _span(rows: pl.DataFrame) -> tuple[date, date]:
    first, last = rows["date"].min(), rows["date"].max()
    assert isinstance(first, date)
    assert isinstance(last, date)
    return first, last
