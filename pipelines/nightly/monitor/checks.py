"""Checks of the data of a night: calendar, coverage, stale prices, corrections, flags and quarantine.

Shape suffixes: T sessions, N firms.
"""

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
import polars as pl
from deltalake import DeltaTable

from pipelines.config.schema import Config
from pipelines.dataset.backtest_files import unmatched_tickers
from pipelines.errors import DataError
from pipelines.format import abbreviate
from pipelines.ingest.rules import ticker_calendars
from pipelines.lake.lake import Lake
from pipelines.lake.renames import newest_ticker
from pipelines.lake.schemas import KNOWN_FROM
from pipelines.lake.storage import compare
from pipelines.nightly.data import NightData
from pipelines.nightly.result import NightFinding, prices_of_night, read_nights, verdict
from pipelines.nightly.schedule import calendar_end

_MIN_DATES: Final = 20  # sessions of an exchange that the data must hold before a gap in them counts


def check_data(config: Config, data: NightData, earlier: dt.date | None) -> list[NightFinding]:
    """Check the data of a night; ``calendar_end``, ``coverage`` and ``withdrawn`` can end it, others warn."""
    checks = _Checks(config, data, earlier)
    of_night = (checks.calendar, checks.coverage, checks.stale, checks.corrections, checks.vintages)
    sessions = data.market.panel.dates_T.tolist()
    end = calendar_end(config, data.lake, data.session, sessions)
    found = [] if end is None else [end]
    for check in (*of_night, checks.flags, checks.quarantine, checks.firm_files):
        found += check()
    return found


class _Checks:
    """The data of a night and of the last one, whose prices are known if the lake still has this table."""

    def __init__(self, config: Config, data: NightData, earlier: dt.date | None) -> None:
        self.config, self.data, self.limits = config, data, config.nightly.checks
        self.panel, self.earlier = data.market.panel, earlier
        self.firms_N = np.asarray(self.panel.tickers_N)
        nights = read_nights(data.lake, config.name)
        rows = nights.filter(pl.col("session").eq_missing(earlier)).rows(named=True)
        self.last: dict[str, Any] | None = rows[0] if rows else None
        self.prices = prices_of_night(data.lake, nights, earlier)

    def calendar(self) -> Iterator[NightFinding]:
        """Look for sessions of the exchange since the last night that the data do not have."""
        from pipelines.ingest.calendars import sessions_between

        data, dates_T = self.data, self.panel.dates_T
        first = self.earlier or dates_T[-min(len(dates_T), _MIN_DATES)].item()
        rows = data.tables["prices"].filter(pl.col("date") >= first).select("date", "ticker", "source")
        firms = ticker_calendars(rows, data.tables.get("securities"), self.config.quality.calendar)
        names = firms["calendar"].drop_nulls().value_counts(sort=True)
        if names.is_empty():
            return
        name = names["calendar"][0]
        expected = sessions_between(name, first, data.session, self.config.quality.calendar_overrides)
        if not len(expected):
            return  # the calendar does not reach these days (`calendar_end`)
        held = rows.join(firms.filter(pl.col("calendar") == name), on="ticker", how="semi")["date"].unique()
        missing = [str(day) for day in expected.filter(~expected.is_in(held.implode()))]
        count = f"{len(expected)} sessions of {name} from {first} to {data.session}"
        yield verdict(
            "calendar",
            f"The data lack {len(missing)} of the {count}" if missing else f"The data hold all {count}",
            f": {abbreviate(missing, 5)}; ask the source for them. Labels across them are unknown.",
            fine=not missing,
            value=float(len(missing)),
            limit=0.0,
        )

    def coverage(self) -> Iterator[NightFinding]:
        """Compare the firms with a price tonight with those of the last night, as its data had them."""
        limit, session = self.limits.min_coverage, self.data.session
        tonight = set(self.firms_N[self.panel.traded_TN[-1]].tolist())
        before, of = self._firms_before()
        if not before:
            said = "There is no earlier session to compare coverage with."
            yield NightFinding("coverage", "ok", said, limit=limit)
            return
        gone, here = sorted(before - tonight), len(before & tonight)
        share = here / len(before)
        said = f"{here:,} of the {len(before):,} firms priced on {of} have a price on {session}"
        fine = share >= limit or len(gone) == 1
        if not fine:
            said += (
                f", which is {share:.1%} (limit {limit:.0%}); without a price are {abbreviate(gone, 5)}. The "
                "delivery is probably incomplete: run the night again when the source has the rest, or lower "
                "nightly.checks.min_coverage"
            )
        yield NightFinding("coverage", "ok" if fine else "fail", f"{said}.", value=share, limit=limit)

    def _firms_before(self) -> tuple[set[str], str]:
        """Firms priced on the last night's session in its own data (else on the one before), and its name."""
        data, session = self.data, self.earlier
        if session is not None and self.prices is not None:
            priced = (pl.col("date") == session) & pl.col("close").is_not_null()
            with suppress(DataError):  # a vacuum removed the version
                rows = data.lake.read("prices", self.prices, ["ticker", "date", "close"], priced)
                if rows.height:
                    firms = {newest_ticker(firm, session, data.renames) for firm in rows["ticker"]}
                    return firms, f"{session}, in the data of that night,"
        if self.panel.n_sessions < 2:
            return set(), ""
        return set(self.firms_N[self.panel.traded_TN[-2]].tolist()), "the session before"

    def stale(self) -> Iterator[NightFinding]:
        """Look for firms whose close and volume repeat the session before."""
        limit, volume_TN = self.limits.max_stale, self.panel.volume_TN
        if volume_TN is None or self.panel.n_sessions < 2:
            return
        close_TN, volume_TN = self.panel.raw_close_TN[-2:], volume_TN[-2:]
        both_N = ~np.isnan(close_TN).any(axis=0) & (volume_TN > 0).all(axis=0)
        if not both_N.any():
            return
        same_N = both_N & (close_TN[0] == close_TN[1]) & (volume_TN[0] == volume_TN[1])
        share, names = float(same_N.sum() / both_N.sum()), self.firms_N[same_N].tolist()
        yield verdict(
            "stale_prices",
            f"{len(names):,} of {int(both_N.sum()):,} firms repeat the close and the volume of the session "
            "before",
            f" ({share:.1%}, limit {limit:.0%}): {abbreviate(names, 5)}. The source has probably copied a "
            "session; ask it for the right prices and run the night again.",
            fine=share <= limit,
            value=share,
            limit=limit,
        )

    def corrections(self) -> Iterator[NightFinding]:
        """Count the price rows of past sessions that changed since the last night."""
        data, last = self.data, self.earlier
        if self.prices is None or last is None:
            return
        found = price_corrections(data.lake, self.prices, data.versions["prices"], last)
        if found is None:
            yield NightFinding(
                "corrections",
                "warn",
                f"Corrections cannot be counted: version {self.prices} of the prices, from the night of "
                f"{last}, was removed by a vacuum. Vacuum less often (nightly.housekeeping.vacuum_every).",
            )
            return
        limit, most = self.limits.max_corrections, self.limits.max_withdrawn
        stored = data.lake.count("prices", self.prices)
        known = pl.col("ticker").is_in(data.renames["ticker"].implode())
        lost = found.filter(pl.col("change") == "withdrawn", ~known)
        withdrawn, earliest = lost.height / max(stored, 1), str(found["date"].min())
        counts = found["ticker"].value_counts().sort(pl.col("count") * -1, "ticker")
        firms = abbreviate(counts["ticker"].to_list(), 5)
        if withdrawn > most and lost["ticker"].n_unique() > 1:
            sentence = (
                f"{lost.height:,} of the {stored:,} price rows of the night of {last} were withdrawn, which "
                f"is {withdrawn:.1%} (limit {most:.0%}), the earliest of {earliest}: "
                f"{firms}. The delivery is probably truncated: deliver the rest and "
                "run the night again, or raise nightly.checks.max_withdrawn."
            )
            yield NightFinding("withdrawn", "fail", sentence, value=withdrawn, limit=most)
            return
        year = int(self.panel.traded_TN[-round(self.panel.periods_per_year) :].sum())
        share = found.height / max(year, 1)
        said = f"No price up to {last} has changed since that night"
        if found.height:
            parts = (f"{(found['change'] == one).sum():,} {one}" for one in CHANGES)
            said = (
                f"{found.height:,} price rows up to {last} have changed since that night "
                f"({', '.join(parts)}), the earliest of {earliest}: {firms}"
            )
        yield verdict(
            "corrections",
            said,
            f". These are {share:.1%} of a year's rows (limit {limit:.1%}), as if the source had another "
            "history: compare it with its documents, and backtest again.",
            fine=share <= limit,
            value=share,
            limit=limit,
        )

    def vintages(self) -> Iterator[NightFinding]:
        """Compare the tables of a night with the last one's, as ``peerglass audit --vintage`` does."""
        from backtest.look_ahead.vintages import compare_vintages

        data, last = self.data, self.earlier
        if self.last is None or last is None:
            return
        then: Mapping[str, int] = json.loads(self.last["data_versions"])
        older: dict[str, pl.DataFrame] = {}
        newer: dict[str, pl.DataFrame] = {"prices": data.tables["prices"]}
        for table in ("prices", "inputs", "fundamentals", "membership"):
            known = KNOWN_FROM[table]
            before, now, within = then.get(table), data.versions.get(table), pl.col(known) <= last
            if before is None or now is None or before == now:
                continue
            if known == "date":  # only the dates of files that differ
                span = differing_dates(data.lake, table, before, now)
                if span is None:
                    continue
                within &= pl.col(known).is_between(*span)
            with suppress(DataError):  # a vacuum removed the version, which the check of corrections reports
                older[table] = data.lake.read(table, version=before, filters=within)
                newer[table] = data.lake.read(table, version=now, filters=within)
        if older:
            compared = compare_vintages(older, newer, last)
            yield NightFinding("vintages", "warn" if compared.verdict == "fail" else "ok", compared.sentence)

    def firm_files(self) -> Iterator[NightFinding]:
        """Name the tickers of the book's files that are no firm of the data."""
        for sentence in unmatched_tickers(self.config.backtest, self.panel):
            yield NightFinding("firm_files", "ok", sentence)

    def flags(self) -> Iterator[NightFinding]:
        """Count the rows that quality rules flag on sessions since the last night."""
        data = self.data
        if not data.lake.exists("flags"):
            return
        since = self.earlier or data.session - dt.timedelta(days=1)
        new = (pl.col("known_on") <= data.session) & (pl.col("known_on") > since)
        flags = data.lake.read("flags", filters=(pl.col("table") == "prices") & ~pl.col("cleared") & new)
        rules = ", ".join(f"{count:,} {rule}" for rule, count in flags["rule"].value_counts(sort=True).rows())
        said = f"price rows have a new quality flag ({rules})"
        if flags.is_empty():
            said = "No price row has a new quality flag"
        tickers = abbreviate(flags["ticker"].unique().sort().to_list(), 5)
        yield _listed("quality_flags", flags.height, said, tickers)

    def quarantine(self) -> Iterator[NightFinding]:
        """Count the rows that were rejected since the last night."""
        if not self.data.lake.exists("quarantine"):
            return
        rows = self.data.lake.read("quarantine", filters=pl.col("resolved_at").is_null())
        if self.last is None:
            sentence = f"The quarantine holds {rows.height:,} rows; the next night reports the new ones."
            yield NightFinding("quarantine", "ok", sentence, value=float(rows.height))
            return
        rows = rows.filter(pl.col("first_seen") > self.last["created_at"])
        counts = rows.group_by("table", "rule").len().sort(pl.col("len") * -1, "table", "rule")
        rules = ", ".join(f"{count:,} of {table} by {rule}" for table, rule, count in counts.iter_rows())
        said = "rows have been rejected since the last night"
        if rows.is_empty():
            said = "No row has been rejected since the last night"
        yield _listed("quarantine", rows.height, said, rules)


def _listed(check: str, count: int, said: str, names: str) -> NightFinding:
    """Warn of rows that ``peerglass quarantine list`` shows, if there are any."""
    base = f"{count:,} {said}" if count else said
    cure = f": {names}. 'peerglass quarantine list' shows them; correct them at the source, or release them."
    return verdict(check, base, cure, fine=not count, value=float(count), limit=0.0)


CHANGES: Final = ("corrected", "added", "withdrawn")


def price_corrections(lake: Lake, then: int, now: int, through: dt.date) -> pl.DataFrame | None:
    """Price rows up to a session that differ between two versions: date, ticker and change (`CHANGES`).

    Only files that differ are read. None if a version is gone.
    """
    span = None if then == now else differing_dates(lake, "prices", then, now)
    if span is None:
        return pl.DataFrame(schema={"date": pl.Date, "ticker": pl.String, "change": pl.String})
    within = pl.col("date").is_between(span[0], min(span[1], through))
    try:
        before = lake.read("prices", version=then, filters=within)
    except DataError:  # a vacuum removed the version
        return None
    after = lake.read("prices", version=now, filters=within)
    changes = compare("prices", after, before.lazy(), pl.lit(value=True))
    parts = zip(CHANGES, (changes.changed, changes.new, changes.withdrawn), strict=True)
    return pl.concat(part.select("date", "ticker", change=pl.lit(name)) for name, part in parts)


def differing_dates(lake: Lake, table: str, then: int, now: int) -> tuple[dt.date, dt.date] | None:
    """First and last date in the files that only one of two versions has; None if they have the same."""
    before, after = (_dates_by_file(lake.storage.view(table, version)) for version in (then, now))
    differing = [(before | after)[path] for path in before.keys() ^ after.keys()]
    if not differing:
        return None
    return min(first for first, _ in differing), max(last for _, last in differing)


def _dates_by_file(opened: DeltaTable | None) -> dict[str, tuple[dt.date, dt.date]]:
    """File -> its first and last date, from the statistics in the table's log."""
    if opened is None:
        return {}
    actions = pl.DataFrame(opened.get_add_actions(flatten=True))
    bounds = [pl.lit(dt.date.min), pl.lit(dt.date.max)]
    for i, name in enumerate(("min.date", "max.date")):
        if name in actions.columns:
            bounds[i] = pl.col(name).cast(pl.Date).fill_null(bounds[i])
    rows: list[tuple[Any, ...]] = actions.select("path", first=bounds[0], last=bounds[1]).rows()
    return {path: (first, last) for path, first, last in rows}
