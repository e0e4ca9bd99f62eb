"""Checks of the data of a night: calendar, coverage, stale prices, corrections, flags and quarantine.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from deltalake import DeltaTable

from pipelines.config.schema import Config
from pipelines.dataset.tables import newest_ticker
from pipelines.errors import DataError
from pipelines.ingest.rules import ticker_calendars
from pipelines.lake.commit import compare
from pipelines.lake.lake import Lake
from pipelines.nightly.data import NightData
from pipelines.nightly.result import Finding, prices_of_night, read_nights, some_of, verdict
from pipelines.nightly.schedule import calendar_end

_MIN_DATES: Final = 20
"""Sessions of an exchange that the data must hold before a gap in them counts."""


@dataclass(frozen=True, slots=True)
class _LastNight:
    """The last night: its table versions, and that of its prices if the lake still has this table."""

    session: dt.date
    versions: Mapping[str, int]
    prices: int | None
    created_at: dt.datetime


def check_data(config: Config, data: NightData, earlier: dt.date | None) -> list[Finding]:
    """Check the data of a night against the calendar, the session before, and the last night, if any.

    Whether the newest session has arrived in time is decided before, when the source is read. A failure of
    ``calendar_end``, ``coverage`` or ``withdrawn`` ends the night; the others warn.
    """
    last = None
    nights = read_nights(data.lake, config.name)
    for row in nights.filter(pl.col("session").eq_missing(earlier)).iter_rows(named=True):
        prices = prices_of_night(data.lake, nights, earlier)
        last = _LastNight(row["session"], json.loads(row["data_versions"]), prices, row["created_at"])
    sessions = data.market.panel.dates_T.astype("datetime64[D]").tolist()
    end = calendar_end(config, data.lake, data.session, sessions)
    return [
        *([] if end is None else [end]),
        *_calendar_findings(config, data, earlier),
        _coverage_finding(config, data, last),
        *_stale_findings(config, data),
        *([] if last is None else _correction_findings(config, data, last)),
        *([] if last is None else vintage_findings(data, last.versions, last.session)),
        *_flag_findings(data, earlier),
        *_quarantine_findings(data, last),
    ]


def _calendar_findings(config: Config, data: NightData, earlier: dt.date | None) -> Iterator[Finding]:
    """Look for sessions of the exchange since the last night that the data do not have."""
    from pipelines.ingest.calendars import sessions_between

    dates_T = data.market.panel.dates_T.astype("datetime64[D]")
    first = earlier if earlier is not None else dates_T[-min(len(dates_T), _MIN_DATES)].item()
    rows = data.tables["prices"].filter(pl.col("date") >= first).select("date", "ticker", "source")
    firms = ticker_calendars(rows, data.tables.get("securities"), config.quality.calendar)
    names = firms["calendar"].drop_nulls().value_counts(sort=True)
    if names.is_empty():
        return
    name = names["calendar"][0]
    expected = sessions_between(name, first, data.session, config.quality.calendar_overrides)
    if not len(expected):
        return  # the calendar does not reach these days (`calendar_end`)
    held = rows.join(firms.filter(pl.col("calendar") == name), on="ticker", how="semi")["date"].unique()
    missing = [str(day) for day in expected.filter(~expected.is_in(held.implode()))]
    count = f"{len(expected)} sessions of {name} from {first} to {data.session}"
    said = f"The data hold all {count}."
    if missing:
        said = f"The data lack {len(missing)} of the {count}: {some_of(missing)}; ask the source for them. "
        said += "Labels across them are unknown."
    yield Finding("calendar", "warn" if missing else "ok", said, value=float(len(missing)), limit=0.0)


def _coverage_finding(config: Config, data: NightData, last: _LastNight | None) -> Finding:
    """Compare the firms with a price tonight with those of the last night, as its data had them."""
    panel, limit = data.market.panel, config.nightly.checks.min_coverage
    tonight = set(np.asarray(panel.tickers_N)[panel.traded_TN[-1]].tolist())
    before, of = _firms_before(data, last)
    if not before:
        return Finding("coverage", "ok", "There is no earlier session to compare coverage with.", limit=limit)
    gone, here = sorted(before - tonight), len(before & tonight)
    share = here / len(before)
    base = f"{here:,} of the {len(before):,} firms priced on {of} have a price on {data.session}"
    if share >= limit or len(gone) == 1:
        return Finding("coverage", "ok", f"{base}.", value=share, limit=limit)
    sentence = (
        f"{base}, which is {share:.1%} (limit {limit:.0%}); without a price are {some_of(gone)}. The "
        "delivery is probably incomplete: run the night again when the source has the rest, or lower "
        "nightly.checks.min_coverage."
    )
    return Finding("coverage", "fail", sentence, value=share, limit=limit)


def _firms_before(data: NightData, last: _LastNight | None) -> tuple[set[str], str]:
    """Firms with a price on the last night's session in that night's data, and words for that session.

    In tonight's data a firm whose whole history was withdrawn would be missing on both sessions. Without a
    night, or where its data cannot be read, it is the session before in tonight's data.
    """
    if last is not None and last.prices is not None:
        of_last = (pl.col("date") == last.session) & pl.col("close").is_not_null()
        try:
            rows = data.lake.read("prices", last.prices, ["ticker", "date", "close"], of_last)
        except DataError:  # a vacuum removed the version
            rows = pl.DataFrame(schema={"ticker": pl.String})
        if rows.height:
            firms = {newest_ticker(firm, last.session, data.renames) for firm in rows["ticker"]}
            return firms, f"{last.session}, in the data of that night,"
    panel = data.market.panel
    if panel.n_sessions < 2:
        return set(), ""
    return set(np.asarray(panel.tickers_N)[panel.traded_TN[-2]].tolist()), "the session before"


def _stale_findings(config: Config, data: NightData) -> Iterator[Finding]:
    """Look for firms whose close and volume repeat the session before."""
    panel, limit = data.market.panel, config.nightly.checks.max_stale
    if panel.volume_TN is None or panel.n_sessions < 2:
        return
    close_TN, volume_TN = panel.raw_close_TN[-2:], panel.volume_TN[-2:]
    both_N = ~np.isnan(close_TN).any(axis=0) & (volume_TN > 0).all(axis=0)
    if not both_N.any():
        return
    same_N = both_N & (close_TN[0] == close_TN[1]) & (volume_TN[0] == volume_TN[1])
    share = float(same_N.sum() / both_N.sum())
    names = np.asarray(panel.tickers_N)[same_N].tolist()
    firms = f"{len(names):,} of {int(both_N.sum()):,} firms"
    yield verdict(
        "stale_prices",
        f"{firms} repeat the close and the volume of the session before",
        f" ({share:.1%}, limit {limit:.0%}): {some_of(names)}. The source has probably copied a session; ask "
        "it for the right prices and run the night again.",
        fine=share <= limit,
        value=share,
        limit=limit,
    )


def _correction_findings(config: Config, data: NightData, last: _LastNight) -> Iterator[Finding]:
    """Count the price rows of past sessions that changed since the last night."""
    if last.prices is None:
        return
    found = price_corrections(data.lake, last.prices, data.versions["prices"], last.session)
    if found is None:
        yield Finding(
            "corrections",
            "warn",
            f"Corrections cannot be counted: version {last.prices} of the prices, from the night of "
            f"{last.session}, was removed by a vacuum. Vacuum less often "
            "(nightly.housekeeping.vacuum_every).",
        )
        return
    panel, limit = data.market.panel, config.nightly.checks.max_corrections
    stored = data.lake.count("prices", last.prices)
    lost = found.withdrawn.filter(~pl.col("ticker").is_in(data.renames["ticker"].implode()))
    withdrawn, most = lost.height / max(stored, 1), config.nightly.checks.max_withdrawn
    if withdrawn > most and lost["ticker"].n_unique() > 1:
        sentence = (
            f"{lost.height:,} of the {stored:,} price rows of the night of {last.session} were "
            f"withdrawn, which is {withdrawn:.1%} (limit {most:.0%}), the earliest of {found.earliest}: "
            f"{some_of(found.tickers)}. The delivery is probably truncated: deliver the rest and run the "
            "night again, or raise nightly.checks.max_withdrawn."
        )
        yield Finding("withdrawn", "fail", sentence, value=withdrawn, limit=most)
        return
    if not found.count:
        sentence = f"No price up to {last.session} has changed since that night."
        yield Finding("corrections", "ok", sentence, value=0.0, limit=limit)
        return
    share = found.count / max(int(panel.traded_TN[-round(panel.periods_per_year) :].sum()), 1)
    yield verdict(
        "corrections",
        f"{found.count:,} price rows up to {last.session} have changed since that night "
        f"({found.changed.height:,} corrected, {found.added.height:,} added, {found.withdrawn.height:,} "
        f"withdrawn), the earliest of {found.earliest}: {some_of(found.tickers)}",
        f". These are {share:.1%} of a year's rows (limit {limit:.1%}), as if the source had another "
        "history: compare it with its documents, and backtest again.",
        fine=share <= limit,
        value=share,
        limit=limit,
    )


def _flag_findings(data: NightData, earlier: dt.date | None) -> Iterator[Finding]:
    """Count the rows that quality rules flag on sessions since the last night."""
    if not data.lake.exists("flags"):
        return
    since = earlier or data.session - dt.timedelta(days=1)
    new = (pl.col("known_on") <= data.session) & (pl.col("known_on") > since)
    flags = data.lake.read("flags", filters=(pl.col("table") == "prices") & ~pl.col("cleared") & new)
    if flags.is_empty():
        yield Finding("quality_flags", "ok", "No price row has a new quality flag.", value=0.0, limit=0.0)
        return
    rules = ", ".join(f"{count:,} {rule}" for rule, count in flags["rule"].value_counts(sort=True).rows())
    sentence = (
        f"{flags.height:,} price rows have a new quality flag ({rules}): "
        f"{some_of(flags['ticker'].unique().sort().to_list())}. 'peerglass quarantine list' shows them; "
        "correct them at the source, or release them."
    )
    yield Finding("quality_flags", "warn", sentence, value=float(flags.height), limit=0.0)


def _quarantine_findings(data: NightData, last: _LastNight | None) -> Iterator[Finding]:
    """Count the rows that were rejected since the last night."""
    if not data.lake.exists("quarantine"):
        return
    rows = data.lake.read("quarantine", filters=pl.col("resolved_at").is_null())
    if last is None:
        sentence = f"The quarantine holds {rows.height:,} rows; the next night reports the new ones."
        yield Finding("quarantine", "ok", sentence, value=float(rows.height))
        return
    rows = rows.filter(pl.col("first_seen") > last.created_at)
    if rows.is_empty():
        yield Finding("quarantine", "ok", "No row has been rejected since the last night.", value=0.0)
        return
    counts = rows.group_by("table", "rule").len().sort(pl.col("len") * -1, "table", "rule")
    rules = ", ".join(f"{count:,} of {table} by {rule}" for table, rule, count in counts.iter_rows())
    sentence = (
        f"{rows.height:,} rows have been rejected since the last night: {rules}. 'peerglass quarantine "
        "list' shows them; correct them at the source, or release them."
    )
    yield Finding("quarantine", "warn", sentence, value=float(rows.height), limit=0.0)


_DATED: Mapping[str, str] = {
    "prices": "date",
    "inputs": "date",
    "fundamentals": "known_at",
    "membership": "from_date",
}
"""Table -> the column that says since when a row is known."""


def vintage_findings(data: NightData, then: Mapping[str, int], through: dt.date) -> list[Finding]:
    """Compare the tables of a night with those of the last one, as ``peerglass audit --vintage`` does.

    Nothing is found if no table has another version, or a vacuum removed the earlier ones.
    """
    from backtest.look_ahead.vintages import compare_vintages

    older: dict[str, pl.DataFrame] = {}
    newer: dict[str, pl.DataFrame] = {"prices": data.tables["prices"]}
    for table, known in _DATED.items():
        before, now = then.get(table), data.versions.get(table)
        if before is None or now is None or before == now:
            continue
        within = pl.col(known) <= through
        if known == "date":  # only the dates of files that differ
            span = differing_dates(data.lake, table, before, now)
            if span is None:
                continue
            within &= pl.col(known).is_between(*span)
        try:
            older[table] = data.lake.read(table, version=before, filters=within)
        except DataError:  # a vacuum removed the version, which the check of corrections reports
            continue
        newer[table] = data.lake.read(table, version=now, filters=within)
    if not older:
        return []
    compared = compare_vintages(older, newer, through)
    return [Finding("vintages", "warn" if compared.verdict == "fail" else "ok", compared.sentence)]


@dataclass(frozen=True, slots=True, eq=False)
class Corrections:
    """Keys (date, ticker) of price rows that differ between two versions of the table."""

    changed: pl.DataFrame
    added: pl.DataFrame
    withdrawn: pl.DataFrame

    @property
    def _rows(self) -> pl.DataFrame:
        return pl.concat([self.changed, self.added, self.withdrawn])

    @property
    def count(self) -> int:
        """Number of rows that differ."""
        return self._rows.height

    @property
    def tickers(self) -> list[str]:
        """Firms with such rows, those with most rows first."""
        return self._rows.group_by("ticker").len().sort(pl.col("len") * -1, "ticker")["ticker"].to_list()

    @property
    def earliest(self) -> dt.date | None:
        """Date of the earliest of these rows; None if there are none."""
        first = self._rows["date"].min()
        return first if isinstance(first, dt.date) else None


def price_corrections(lake: Lake, then: int, now: int, through: dt.date) -> Corrections | None:
    """Compare two versions of the prices on the sessions up to one; None if the earlier one is gone.

    Only the dates of files that differ between the versions are read: a night's delivery adds files and
    leaves the others.
    """
    span = None if then == now else differing_dates(lake, "prices", then, now)
    if span is None:
        return Corrections(*[pl.DataFrame(schema={"date": pl.Date, "ticker": pl.String})] * 3)
    within = pl.col("date").is_between(span[0], min(span[1], through))
    try:
        before = lake.read("prices", version=then, filters=within)
    except DataError:  # a vacuum removed the version
        return None
    after = lake.read("prices", version=now, filters=within)
    changes = compare("prices", after, before.lazy(), pl.lit(value=True))
    parts = (changes.changed, changes.new, changes.withdrawn)
    return Corrections(*(part.select("date", "ticker") for part in parts))


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
