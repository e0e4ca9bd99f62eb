"""The steps of one night, in order. Each reads what its predecessor committed and can be repeated harmlessly.

A night that was killed is played again from its first step, on the table versions and with the decisions
that its journal holds (`pipelines.nightly.play.journal`). Every table is written by upsert, every file
atomically, and training resumes, so the repeated steps change nothing that was committed.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.config.schema import Config
from pipelines.dataset.tables import input_versions
from pipelines.errors import DataError
from pipelines.files import remove_partial, write_table
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import schema
from pipelines.nightly.book.account import account_tables
from pipelines.nightly.book.holdings import read_recorded
from pipelines.nightly.book.next_book import next_book
from pipelines.nightly.book.trades import given_trades
from pipelines.nightly.data import NightData, champion_signals, night_data
from pipelines.nightly.guard import judge_promotion
from pipelines.nightly.monitor.checks import check_data
from pipelines.nightly.monitor.monitor import monitor
from pipelines.nightly.play.journal import (
    Journal,
    discard_journal,
    lost_since,
    read_journal,
    write_journal,
)
from pipelines.nightly.result import (
    ModelVersion,
    NightFinding,
    NightSource,
    finished_before,
    night_folder,
    read_nights,
    read_signals,
    write_signals,
)
from pipelines.nightly.schedule import Clock
from pipelines.nightly.scoring import attribute, ends, score
from pipelines.nightly.settings import champion_findings, traded_settings
from pipelines.nightly.training import retraining_due, train_live
from pipelines.nightly.versions import (
    Alias,
    AliasChangedError,
    Reason,
    alias_history,
    aliases,
    enter_version,
    set_alias,
)
from pipelines.progress import Progress
from pipelines.run.locks import Locks


class CheckFailedError(DataError):
    """A check of the night's data failed, so nothing was decided."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What all nights of a command share.

    Attributes
    ----------
    config, lake
        The config and its lake.
    progress
        Reports progress and notes.
    locks
        The locks of the command, among them that of the nights.
    echo
        Prints results.
    clock
        Tells the time that is stored with a night.
    """

    config: Config
    lake: Lake
    progress: Progress
    locks: Locks
    echo: Callable[[str], None]
    clock: Clock


class Decisions:
    """The part of a night that decides: from the data to the book, and the figures that are watched.

    Parameters
    ----------
    desk
        What all nights of a command share.
    session
        The session at whose close the night decides.
    ingest
        Seconds of the delivery before the night, which count as its first step.
    findings
        What was found before the night began.

    Attributes
    ----------
    journal
        What has been decided so far; None before the night has begun.
    signals, book
        Rows of the lake's tables for this session; empty before their steps.
    findings, tables
        As in `NightResult`.
    """

    def __init__(
        self, desk: Desk, session: dt.date, ingest: float = 0.0, findings: Sequence[NightFinding] = ()
    ) -> None:
        self._desk, self.session, self._ingest = desk, session, ingest
        self.folder: Path = night_folder(desk.config, session)
        self.journal: Journal | None = None
        self.signals = pl.DataFrame(schema("signals").create_empty())
        self.book = pl.DataFrame(schema("books").create_empty())
        self.findings = list(findings)
        self.tables: dict[str, pl.DataFrame] = {}

    def make(self) -> None:
        """Run the steps.

        Raises
        ------
        CheckFailedError
            If a check of the data failed.
        PeerglassError
            Any error of a step. What was committed stays, and the night can be played again.
        """
        self._begin()
        config, lake, progress = self._desk.config, self._desk.lake, self._desk.progress
        with self.timed("data"):
            data = night_data(config, lake, self.session, progress, self._begun.versions)
        with self.timed("checks"):
            self._check(data)
            given_trades(config)  # a file that is missing or wrong is named before anything is trained
        with self.timed("training"):
            self._train_if_due(data)
        self._choose_versions()
        if self._begun.champion_version is not None:
            self.findings += champion_findings(self._begun.champion_version, config)
        with self.timed("signals"):
            self._write_signals(data)
        with self.timed("book"):
            self._write_book(data)
        with self.timed("monitoring"):
            self._watch(data)
        if config.nightly.attributed:
            with self.timed("attribution"):
                self._attribute(data)
        with self.timed("promotion"):
            self._promote_if_allowed(data)

    def begin_anew_if_undecided(self) -> None:
        """After an error before the models were fixed, let the next call begin anew on the newest data."""
        if self.journal is None or not self.journal.chose_versions:
            discard_journal(self.folder)

    @property
    def _begun(self) -> Journal:
        assert self.journal is not None, "the night has begun"
        return self.journal

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the time of a ``with`` block to the seconds of a step, in the journal if it ends well."""
        started = time.monotonic()
        yield
        self._add_seconds(step, time.monotonic() - started)

    def _add_seconds(self, step: str, more: float) -> None:
        seconds = self._begun.seconds
        self.decide(seconds={**seconds, step: seconds.get(step, 0.0) + more})

    def decide(self, **decision: Any) -> None:  # noqa: ANN401 (fields of the journal)
        """Write a decision into the journal, before anything acts on it."""
        self.journal = write_journal(self.folder, self._begun.model_copy(update=decision))

    def _begin(self) -> None:
        """Fix the table versions of the night; a night that was interrupted keeps those it began with."""
        lake = self._desk.lake
        self.journal = read_journal(self.folder)
        if self.journal is not None and (lost := lost_since(self.journal, lake, self._desk.config.name)):
            self.findings.append(
                NightFinding(
                    "journal",
                    "warn",
                    f"The journal of the night of {self.session} is newer than the lake ({lost}), as after a "
                    "restore from a backup. It was discarded, and the night is decided anew.",
                )
            )
            self._desk.progress.note(self.findings[-1].sentence)
            discard_journal(self.folder)
            self.journal = None
        if self.journal is None:
            versions = input_versions(lake)
            ids = {table: lake.table_id(table) for table in versions}
            begun = Journal(session=self.session, versions=versions, table_ids=ids)
            self.journal = write_journal(self.folder, begun)
        else:
            remove_partial(self.folder)
        self._add_seconds("ingest", self._ingest)

    def source(self) -> NightSource:
        """What the night was decided from; without tables before it has begun."""
        settings = traded_settings(self._desk.config)
        if self.journal is None:
            return NightSource({}, {}, settings)
        return NightSource(self.journal.versions, self.journal.table_ids, settings)

    def _check(self, data: NightData) -> None:
        """Check the data that arrived; a failure ends the night before anything is decided."""
        desk = self._desk
        earlier = finished_before(read_nights(desk.lake, desk.config.name), self.session)
        found = check_data(desk.config, data, None if earlier.is_empty() else earlier["session"][0])
        self.findings += found
        failures = [finding.sentence for finding in found if finding.level == "fail"]
        if failures:
            raise CheckFailedError(" ".join(failures))

    def _train_if_due(self, data: NightData) -> None:
        """Train a version if the schedule says so, and enter it as champion or challenger."""
        desk, name = self._desk, self._desk.config.name
        if not self._begun.judged_retraining:
            sessions = [day.item() for day in data.market.panel.dates_T.astype("datetime64[D]")]
            earlier = finished_before(read_nights(desk.lake, name), self.session)
            due = retraining_due(
                desk.config.nightly.retrain, sessions, alias_history(desk.lake, name), earlier
            )
            self.decide(judged_retraining=True, retraining=due)
        due = self._begun.retraining
        if due is None:
            return
        if self._begun.trained is None:
            desk.progress.note(f"A new version is trained: {due.why}.")
            trained = train_live(desk.config, data, desk.progress, desk.locks, desk.echo)
            self.decide(trained=str(trained))
        version = ModelVersion.parse(self._begun.trained or "")
        enter_version(desk.lake, name, version, "nightly", self.session, why=due.why)

    def _choose_versions(self) -> None:
        """Fix champion and challenger before the first is scored; a promotion counts from the next night."""
        if self._begun.chose_versions:
            return
        versions = aliases(self._desk.lake, self._desk.config.name)
        texts = {alias: None if version is None else str(version) for alias, version in versions.items()}
        self.decide(chose_versions=True, **texts)

    def _write_signals(self, data: NightData) -> None:
        """Score the versions, and store the signals in the lake and in the night's folder."""
        desk = self._desk
        for version in (self._begun.champion_version, self._begun.challenger_version):
            if version is not None:
                write_signals(desk.lake, score(version, desk.config, data))
        tonight = (self.session, data.data_versions)
        stored = read_signals(desk.lake, desk.config.name, through=self.session, tonight=tonight)
        self.signals = stored.filter(pl.col("session") == self.session)
        write_table(self.folder / "signals.csv", self.signals)
        write_table(self.folder / "signals.parquet", self.signals)

    def _write_book(self, data: NightData) -> None:
        """Decide the book from the champion's signals and the recorded orders, and store it."""
        desk, name, best = self._desk, self._desk.config.name, self._begun.champion_version
        assert best is not None, "a night without a champion trains one"
        tonight = (self.session, data.data_versions)
        stored = read_signals(desk.lake, name, through=self.session, tonight=tonight)
        nights = read_nights(desk.lake, name)
        traded = champion_signals(stored, nights, self.session, best)
        recorded = read_recorded(desk.lake, name, nights, self.session, data.renames)
        made = next_book(desk.config, data, traded, recorded)
        self.findings += made.findings
        for table, rows in made.tables.items():
            night = pl.col("night" if "night" in rows.columns else "session")
            desk.lake.upsert(table, rows, scope=(pl.col("config") == name) & (night == self.session))
        self.tables |= account_tables(desk.lake, name, self.session, data.renames)
        self.tables["limits"] = made.tables["book_limits"]
        this_night = (pl.col("config") == name) & (pl.col("session") == self.session)
        self.book = desk.lake.rows("books", filters=this_night)
        write_table(self.folder / "book.csv", self.book)
        write_table(self.folder / "limits.csv", self.tables["limits"])

    def _watch(self, data: NightData) -> None:
        """Compute the figures that are watched, and store their tables in the night's folder."""
        best = self._begun.champion_version
        assert best is not None, "a night without a champion trains one"
        watched = monitor(self._desk.config, data, best, self._begun.challenger_version)
        self.findings += watched.findings
        self.tables.update(watched.tables)
        for table, frame in watched.tables.items():
            write_table(self.folder / "monitor" / f"{table}.parquet", frame)

    def _attribute(self, data: NightData) -> None:
        """Attribute the highest and lowest signals of the champion, for the page."""
        config, best = self._desk.config, self._begun.champion_version
        assert best is not None, "a night without a champion trains one"
        tickers = ends(self.signals, best, config.nightly.attributed)
        self.tables["attributions"] = attribute(best, config, data, tickers)
        write_table(self.folder / "attributions.parquet", self.tables["attributions"])

    def _promote_if_allowed(self, data: NightData) -> None:
        """Promote the challenger if the config allows it and the guard passes; it trades from the next night.

        The judgement is made on the aliases that the night began with, and kept in the journal.
        """
        desk, best, rival = self._desk, self._begun.champion_version, self._begun.challenger_version
        if not desk.config.nightly.promotion.automatic or rival is None:
            return
        if self._begun.promotion is None:
            judged = judge_promotion(desk.config, desk.lake, data.market, rival, every_night=True)
            self.decide(promotion=judged)
        decided = self._begun.promotion
        assert decided is not None, "it was just written"
        if not decided.passed:
            said = f"The challenger is not promoted. {' '.join(decided.reasons)}"
            self.findings.append(NightFinding("promotion", "ok", said))
            return
        reason = Reason("the guard passed", "nightly", self.session, evidence=decided.evidence)
        said = f"The guard passed, so the challenger {rival} is the champion from the next night on."
        began: dict[Alias, ModelVersion | None] = {"champion": best, "challenger": rival}
        try:
            set_alias(desk.lake, desk.config.name, "champion", rival, reason, decided_on=began)
        except AliasChangedError:  # by a person, who may also have undone this promotion
            said = f"{rival} is not promoted, because champion or challenger changed since the night began."
        self.findings.append(NightFinding("promotion", "ok", said))
