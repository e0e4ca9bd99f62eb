"""Source to lake: every row that a source delivers is stored, or quarantined under the rule it broke.

After a complete delivery, the tables hold what a new lake would hold after this delivery alone, plus the rows
that a user released. Stored rows that are no longer delivered, or that now break their contract, are
withdrawn.

A lake belongs to the source of its prices, which the table ``sources`` records before the rows. A supplement
(`pipelines.lake.schemas.SUPPLEMENTS`) adds statements to any lake and owns none. A file of another market
would replace a lake, and an incomplete download would empty it; both are refused. Files do not name their
market, but the tickers and returns do.
"""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.format import abbreviate
from pipelines.ingest.quarantine import quarantine_changes, released_hashes
from pipelines.ingest.rules import Inspection, Inspector
from pipelines.ingest.settings import QualityConfig
from pipelines.lake.contracts import NONE_REJECTED, Checked, check
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import (
    INPUT_TABLES,
    LEAST_SAME,
    READ_TABLES,
    SAME_RETURN,
    SOURCE_TABLES,
    SUPPLEMENTS,
    empty,
)
from pipelines.lake.storage import UpsertCounts, UpsertPlan
from pipelines.lake.versions import Unfinished
from pipelines.progress import Progress
from pipelines.sources.base import LiveSource, Setting, Source, SourceTables, StoredData, TickerStatus

_DEFAULT_QUALITY: Final = QualityConfig()
_NOTHING: Final = Checked(pl.DataFrame(), NONE_REJECTED, 0)


def ingest(
    source: Source | LiveSource,
    lake: Lake,
    progress: Progress | None = None,
    quality: QualityConfig = _DEFAULT_QUALITY,
    *,
    replace: bool = False,
) -> IngestSummary:
    """Read a source's tables, check them against their contracts, and upsert them into the lake.

    A delivery is checked completely before the lake changes; then each table is one atomic commit, and
    readers use the versions before it until it has ended. The same ingest completes an interrupted one. A
    `Source` makes one delivery, which withdraws what it does not contain (``replace`` accepts most of it); a
    `LiveSource` several, which withdraw nothing.
    IngestStoppedError if a live source refuses after a batch, which stays; other errors leave the lake
    unchanged.
    """
    for table in ("sources", *INPUT_TABLES, "quarantine", "flags"):
        lake.version(table)  # raises before anything is written if there is no Delta table there
    refuse_other_source(lake, source.name)
    if not isinstance(source, LiveSource):
        committer = _Committer(source.name, lake, quality, complete=True, replace=replace)
        committer.commit(source.fetch())
        return committer.close()
    stored, interrupted = stored_data(lake), lake.unfinished() is not None
    committer = _Committer(source.name, lake, quality, stored.last_price)
    try:
        for batch in source.batches(stored):
            committer.commit(batch)
            if not interrupted:  # else a later batch may complete what was interrupted
                committer.settle()
            if progress is not None:
                filled = {table: rows for table, frame in batch.tables.items() if (rows := frame.height)}
                new = ", ".join(f"{rows:,} {table}" for table, rows in filled.items()) or "nothing new"
                progress.step(new + (f" of {len(batch.statuses):,} tickers" if batch.statuses else ""))
    except DataError as error:
        if not committer.summary.batches:
            raise
        raise IngestStoppedError(str(error), committer.summary) from error
    return committer.close()


def prices_to_keep(source: Source, lake: Lake, quality: QualityConfig = _DEFAULT_QUALITY) -> pl.DataFrame:
    """Return the price rows of a complete delivery that `ingest` would keep, and write nothing."""
    refuse_other_source(lake, source.name)
    committer = _Committer(source.name, lake, quality, complete=True)
    return committer.prepare(source.fetch()).checked["prices"].valid


def stored_data(lake: Lake) -> StoredData:
    """Return what the lake already holds, for a live source."""
    prices = lake.rows("prices", ["ticker", "date", "close"])
    first, last = pl.col("date").min(), pl.col("date").max().alias("last")
    by_ticker = prices.group_by("ticker").agg(first, last, pl.col("close").sort_by("date").last())
    spans = by_ticker.sort("ticker").rows()
    filings = lake.rows("fundamentals", ["ticker", "filing_id"]).drop_nulls("filing_id").unique()
    filings_by_ticker = dict(filings.group_by("ticker").agg("filing_id").rows())
    for text in lake.rows("sources", ["unused_filings"])["unused_filings"].drop_nulls():
        for ticker, unused in json.loads(text).items():
            filings_by_ticker[ticker] = [*filings_by_ticker.get(ticker, ()), *unused]
    return StoredData(
        first_price={ticker: first for ticker, first, _, _ in spans},
        last_price={ticker: last for ticker, _, last, _ in spans},
        last_close={ticker: close for ticker, _, _, close in spans},
        securities=lake.rows("securities", filters=pl.col("valid_to").is_null()),
        assumed=lake.rows("fundamentals", filters=pl.col("assumed")),
        filings={ticker: frozenset(of) for ticker, of in filings_by_ticker.items()},
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """A delivery that was checked: what is kept and rejected, and how each table changes."""

    checked: Mapping[str, Checked]
    inspected: Inspection
    plans: Mapping[str, UpsertPlan]
    now: datetime


class _Committer:
    """Commits deliveries one after another and counts what happened to their rows."""

    def __init__(
        self,
        source: str,
        lake: Lake,
        quality: QualityConfig,
        stored: Collection[str] | None = None,
        *,
        complete: bool = False,
        replace: bool = False,
    ) -> None:
        self.summary = IngestSummary(source)
        self._delivery: str | None = None
        self._source, self._lake, self._complete, self._replace = source, lake, complete, replace
        self._released = released_hashes(lake)
        self._inspector = Inspector(
            lake, quality, self._released.get("prices", ()), stored, complete=complete
        )

    def prepare(self, delivered: SourceTables) -> _Prepared:
        """Check a delivery, compare it with the stored rows, and return what is to be written."""
        unknown = sorted(set(delivered.tables) - set(SOURCE_TABLES))
        if unknown or (self._complete and "prices" not in delivered.tables):
            raise ValueError(
                f"source {self._source!r} delivered {sorted(delivered.tables)}: a source must deliver prices "
                f"and may deliver {', '.join(SOURCE_TABLES[1:])}"
            )
        # the empty frames of a live source may lack columns
        tables = {t: frame for t, frame in delivered.tables.items() if self._complete or frame.height}
        now = datetime.now(UTC)
        checked = check_tables(self._source, tables, now, self._released, complete=self._complete)
        if self._complete:
            refuse_other_market(self._lake, self._source, delivered.market)
        inspected = Inspection()
        if "prices" in checked:
            listings = checked["securities"].valid if "securities" in checked else None
            checked["prices"], inspected = self._inspector.inspect(checked["prices"], listings, now)
        batches: dict[str, Checked | pl.DataFrame] = dict(checked)
        if inspected.gaps.height:
            batches = {"gaps": inspected.gaps, **batches}
        if self._complete:  # what is no longer delivered is withdrawn
            batches |= {t: empty(t) for t in INPUT_TABLES if t not in batches and self._lake.exists(t)}
        plans = {}
        for table, rows in batches.items():
            # the rows of a supplement stay
            own = pl.col("source").is_null() if table == "fundamentals" else pl.lit(value=True)
            plans[table] = self._lake.plan(table, rows, scope=own if self._complete else None)
        if self._complete and not delivered.market:
            refuse_other_tickers(self._lake, plans["prices"])
        if self._complete and not self._replace:
            if not delivered.market:
                refuse_other_returns(self._lake, plans["prices"])
            of_source = [plan for table, plan in plans.items() if table in SOURCE_TABLES]
            refuse_partial_delivery(self._lake, self._source, of_source)
        return _Prepared(checked, inspected, plans, now)

    def commit(self, delivered: SourceTables) -> None:
        """Check a delivery, then write the source's notes, the flags, the quarantine and the tables.

        Flags come before prices: a process that is killed in between leaves no unflagged prices. The first
        commit says that the delivery has begun, which holds until `settle`.
        """
        ready = self.prepare(delivered)
        checked, inspected, now = ready.checked, ready.inspected, ready.now
        flags = self._lake.plan("flags", inspected.flags)
        unfinished = self._begin([flags, *ready.plans.values()])
        delivery = self._delivery = uuid.uuid4().hex if unfinished is None else unfinished.delivery
        found = self.summary
        found.notes = tuple(dict.fromkeys((*found.notes, *delivered.notes)))
        found.hazards = tuple(dict.fromkeys((*found.hazards, *delivered.hazards)))
        record_source(self._lake, self._source, delivered, found.notes, delivery, unfinished=unfinished)
        self._lake.apply(flags, delivery)
        rejected = quarantine_changes(self._lake, checked, now, complete=self._complete)
        self._lake.upsert("quarantine", rejected, delivery=delivery)
        for table, plan in ready.plans.items():
            counts = self._lake.apply(plan, delivery)
            if table == "gaps" or (table not in checked and not counts.withdrawn):
                continue
            result = checked.get(table, _NOTHING)
            summary = TableSummary(
                **dataclasses.asdict(counts),
                received=result.valid.height + result.rejected.height + result.collapsed,
                collapsed=result.collapsed,
                quarantined=result.by_rule(),
                flagged=inspected.flagged if table == "prices" else {},
            )
            found.tables[table] = found.tables[table] + summary if table in found.tables else summary
        found.batches += 1
        statuses = {status.ticker: status for status in (*found.statuses, *delivered.statuses)}
        found.statuses = tuple(statuses.values())

    def _begin(self, plans: Iterable[UpsertPlan]) -> Unfinished | None:
        """Return what readers have to be told: an interrupted delivery, or this one if it changes tables."""
        if self._source in SUPPLEMENTS:  # which change one table
            return None
        unfinished = self._lake.unfinished()
        least = 1 if self._complete else 2  # a batch of one commit is atomic; `close` adds to a complete one
        if unfinished is not None or sum(plan.changes_rows for plan in plans) < least:
            return unfinished
        versions = {table: self._lake.version(table) for table in READ_TABLES}
        return Unfinished(uuid.uuid4().hex, {table: one for table, one in versions.items() if one})

    def settle(self) -> None:
        """Let readers use what was committed."""
        began = self._lake.rows("sources", filters=pl.col("unfinished").is_not_null())
        if began.height and self._source not in SUPPLEMENTS:
            ended = began.with_columns(unfinished=pl.lit(None, pl.String))
            self._lake.upsert("sources", ended, delivery=self._delivery)
        self._delivery = None

    def close(self) -> IngestSummary:
        """Check the coverage of the delivered dates, now that every batch is stored."""
        coverage = self._inspector.coverage(datetime.now(UTC))
        self._lake.upsert("flags", coverage.flags, delivery=self._delivery)
        self._lake.upsert("gaps", coverage.gaps, delivery=self._delivery)
        self.settle()
        tables = self.summary.tables
        if coverage.flagged:
            flagged = {**tables["prices"].flagged, **coverage.flagged}
            tables["prices"] = dataclasses.replace(tables["prices"], flagged=flagged)
        self.summary.incomplete = coverage.incomplete
        return self.summary


def check_tables(
    source: str,
    tables: Mapping[str, pl.DataFrame],
    now: datetime,
    released: Mapping[str, Collection[str]],
    *,
    complete: bool = True,
) -> dict[str, Checked]:
    """Split the tables of a source by their contracts; DataError if most rows are rejected."""
    stamps = {"prices": {"source": pl.lit(source), "ingested_at": pl.lit(now)}}
    if source in SUPPLEMENTS:  # it adds statements to another source's lake
        stamps["fundamentals"] = {"source": pl.lit(source)}
    checked = {
        table: check(table, frame.with_columns(**stamps.get(table, {})), released.get(table, ()))
        for table, frame in tables.items()
    }
    if complete:
        for table, split in checked.items():
            refuse_mostly_broken(f"source {source!r}", table, split)
    return checked


_STATES: Final = ("ok", "unchanged", "empty", "throttled", "failed")
_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary(UpsertCounts):
    """What happened to one table's rows: every received one is counted in one of the other numbers."""

    received: int
    collapsed: int
    quarantined: Mapping[str, int]  # rejected rows under the first rule that they broke
    flagged: Mapping[str, int] = field(default_factory=dict)  # stored rows under every rule

    def __add__(self, later: TableSummary) -> TableSummary:
        """Add the counts of two batches of the same table; the version is the later one's."""
        counts = ("received", "added", "updated", "unchanged", "collapsed", "withdrawn")
        return dataclasses.replace(
            later,
            quarantined=_sum(self.quarantined, later.quarantined),
            flagged=_sum(self.flagged, later.flagged),
            **{name: getattr(self, name) + getattr(later, name) for name in counts},
        )


@dataclass(slots=True)
class IngestSummary:
    """The result of an ingest per table, with notes, hazards, statuses and incomplete sessions."""

    source: str
    tables: dict[str, TableSummary] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()
    statuses: tuple[TickerStatus, ...] = ()
    batches: int = 0
    incomplete: tuple[str, ...] = ()


class IngestStoppedError(DataError):
    """A live source stopped answering. ``summary`` describes what is in the lake."""

    def __init__(self, message: str, summary: IngestSummary) -> None:
        super().__init__(message)
        self.summary = summary


def describe_ingest(summary: IngestSummary) -> str:
    """Describe an ingest in a few lines."""
    lines = [f"source {summary.source}"]
    for table, counts in summary.tables.items():
        lines.append(
            f"  {table:<13}{counts.received:>10,} received  {counts.added:>10,} added  "
            f"{counts.updated:>8,} updated  {counts.unchanged:>10,} unchanged  "
            f"{counts.withdrawn:>8,} withdrawn  version {counts.version}"
        )
        for what, by_rule in (("quarantined", counts.quarantined), ("flagged", counts.flagged)):
            lines += [f"    {what} {rows:,} by rule {rule}" for rule, rows in by_rule.items()]
        if counts.collapsed:
            of_prices = "duplicates with an equal close collapsed, the last one kept"
            what = of_prices if table == "prices" else "identical duplicates collapsed"
            lines.append(f"    {counts.collapsed:,} {what}")
    if not summary.tables:
        lines.append("  nothing new")
    lines += [f"  {sentence}" for sentence in summary.incomplete]
    if summary.statuses:  # tickers by status, and the first ones with a status worth a look
        by_state = {state: [one for one in summary.statuses if one.state == state] for state in _STATES}
        said = ", ".join(f"{len(tickers):,} {state}" for state, tickers in by_state.items() if tickers)
        lines.append(f"  tickers      {len(summary.statuses):>10,} requested: {said}")
        again = "; requested again next time"
        for state, then in (("throttled", again), ("failed", again), ("empty", "")):
            names = [f"{one.ticker} ({one.detail})" if one.detail else one.ticker for one in by_state[state]]
            lines += [f"    {state}: {abbreviate(names, _NAMED)}{then}"] if names else []
    lines += [f"  note: {note}" for note in summary.notes]
    lines += [f"  hazard: {hazard}" for hazard in summary.hazards]
    return "\n".join(lines)


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Add counts by rule, most frequent first."""
    total = Counter(first) + Counter(second)
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


_MIN_ROWS: Final = 100  # of a table for a decision; a correction may change a small one completely
_MIN_READ: Final = 20  # minimum number of rows for the decision that a table was misread
_MAX_SHARE: Final = 0.5  # of the stored rows; an incomplete download, or one of new rows, withdraws more


def refuse_other_tickers(lake: Lake, prices: UpsertPlan) -> None:
    """Raise ConfigError if the lake holds prices and none of their tickers is delivered."""
    withdrawn = prices.changes.withdrawn["ticker"]
    if withdrawn.is_empty() or prices.rows.is_empty() or prices.changes.new.height < prices.rows.height:
        return
    if not withdrawn.is_in(prices.rows["ticker"].unique().implode()).any():
        raise ConfigError(
            f"The lake {lake.root} holds prices of other firms, such as {withdrawn[0]}: none of its tickers "
            f"is delivered, so this is another market (with {prices.rows['ticker'][0]}, for example). Name "
            "another folder in 'lake', or delete that one."
        )


def refuse_other_returns(lake: Lake, prices: UpsertPlan) -> None:
    """Raise ConfigError if most closes differ from the stored ones, and so do most of their returns."""
    changed = prices.changes.changed
    if changed.height < max(_MIN_ROWS, _MAX_SHARE * (changed.height + prices.unchanged)):
        return
    key = ["ticker", "date"]
    stored = lake.read("prices", columns=[*key, "close"])
    both = stored.join(prices.rows.select(*key, delivered="close"), on=key).sort(key)
    returns = both.select(
        pl.col(c) / pl.col(c).shift().over("ticker") - 1.0 for c in ("close", "delivered")
    ).drop_nulls()
    agree = returns.select(((pl.col("close") - pl.col("delivered")).abs() <= SAME_RETURN).mean()).item()
    if returns.height >= _MIN_ROWS and agree < LEAST_SAME:
        raise ConfigError(
            f"Of the returns that the lake {lake.root} holds, {agree:.0%} agree with those delivered for the "
            "same tickers and dates, so this is another market: name another folder in 'lake', or delete "
            "that one. If it corrects the same market, run 'peerglass ingest CONFIG --replace' once."
        )


def refuse_mostly_broken(origin: str, table: str, checked: Checked) -> None:
    """Raise DataError if no price is left, or most of 20 rows or more are rejected: it was misread."""
    rejected, valid = checked.rejected.height, checked.valid.height
    broken = rejected + valid >= _MIN_READ and rejected > valid
    if not broken and (valid or table != "prices"):
        return
    if not rejected:
        raise DataError(f"{origin} delivered no price rows: check its dates and files")
    raise DataError(
        f"{origin}: {rejected:,} of {rejected + valid:,} rows of {table} break the rules "
        f"{checked.describe()}: correct the file, or the columns, date format and units that the config "
        "gives for it. Nothing was stored"
    )


def refuse_partial_delivery(lake: Lake, source: str, plans: Iterable[UpsertPlan]) -> None:
    """Raise DataError if a delivery would withdraw more than half of a table of 100 rows or more."""
    for plan in plans:
        n_stored, withdrawn = plan.changes.in_scope, plan.changes.withdrawn.height
        if n_stored >= _MIN_ROWS and withdrawn > _MAX_SHARE * n_stored:
            raise DataError(
                f"source {source!r} no longer delivers {withdrawn:,} of the {n_stored:,} rows of "
                f"{plan.table} in the lake {lake.root}: check that its files are complete; to withdraw "
                "those rows, run 'peerglass ingest CONFIG --replace' once. The lake is unchanged"
            )


_NUMBER: Final = re.compile(r"(?<![A-Za-z_])[-+]?\d[\d,.:-]*")  # or an ISO date; no digit inside a name


def refuse_other_source(lake: Lake, source: str) -> None:
    """Raise ConfigError if the lake holds prices of another source."""
    if source in SUPPLEMENTS or not lake.exists("prices"):
        return
    owners = [name for name in lake.rows("sources", ["source"])["source"] if name not in SUPPLEMENTS]
    if len(owners) != 1:
        owners = lake.read("prices", columns=["source"])["source"].unique().sort().to_list()
    if owners in ([], [source]):
        return
    raise ConfigError(
        f"The lake {lake.root} belongs to source {' and '.join(owners)}, but this config's is {source}: "
        "name another folder in 'lake', or delete that one."
    )


def refuse_other_market(lake: Lake, source: str, market: Mapping[str, Setting]) -> None:
    """Raise ConfigError if the lake holds prices of a market with other settings, of those both have."""
    stored = _stored(lake, source)
    if stored is None or stored["market"] is None or not lake.exists("prices"):
        return
    stored_market = json.loads(stored["market"])
    shared = [name for name in market if name in stored_market]
    if differing := [name for name in shared if stored_market[name] != market[name]]:
        was, now = (", ".join(f"{name} {of[name]}" for name in differing) for of in (stored_market, market))
        raise ConfigError(
            f"The lake {lake.root} holds the {source} market with {was}, but this config's has {now}: name "
            "another folder in 'lake', or delete that one."
        )


def record_source(
    lake: Lake,
    source: str,
    delivered: SourceTables,
    notes: tuple[str, ...],
    delivery: str,
    *,
    unfinished: Unfinished | None,
) -> None:
    """Store a source's notes, which replace earlier ones, and hazards, which replace those of like words."""
    stored = _stored(lake, source) or {}
    names = json.dumps(dict(delivered.market), sort_keys=True)
    unused = json.loads(stored.get("unused_filings") or "{}")
    unused |= {ticker: sorted(of) for ticker, of in delivered.unused_filings.items()}
    all_hazards = (*json.loads(stored.get("hazards", "[]")), *delivered.hazards)
    hazards_by_text = {_NUMBER.sub("#", hazard): hazard for hazard in all_hazards}
    row = {
        "source": [source],
        "notes": [json.dumps(notes or json.loads(stored.get("notes", "[]")))],
        "hazards": [json.dumps(list(hazards_by_text.values()))],
        "market": [stored.get("market", names) if source in SUPPLEMENTS else names],
        "unfinished": [None if unfinished is None else json.dumps(dataclasses.asdict(unfinished))],
        "unused_filings": [json.dumps(unused) if any(unused.values()) else None],
    }
    texts = dict.fromkeys(row, pl.String)
    lake.upsert("sources", pl.DataFrame(row, schema_overrides=texts), delivery=delivery)


def _stored(lake: Lake, source: str) -> dict[str, Any] | None:
    rows = lake.rows("sources", filters=pl.col("source") == source)
    return rows.row(0, named=True) if rows.height else None
