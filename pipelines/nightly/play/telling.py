"""Tell the outcome of a night: the page, the tracking store, alerts, the night's files and its row.

The row in the table ``nights`` comes last, because a night with a row is not played again. A failed night is
told as far as possible: what fails while telling it becomes a note, so that the first error is reported.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import polars as pl

from pipelines.errors import PeerglassError, TrackingError
from pipelines.files import write_text
from pipelines.lake.schemas import schema
from pipelines.nightly.alerts import send_alerts, write_metrics
from pipelines.nightly.monitor.monitor import realised_overlap
from pipelines.nightly.page import render_page
from pipelines.nightly.play.decisions import Decisions, Desk
from pipelines.nightly.play.describe import describe_night, night_document
from pipelines.nightly.record import publish, seal
from pipelines.nightly.result import NightFinding, NightResult, nights_folder, read_nights, write_night
from pipelines.nightly.spool import spool, sync
from pipelines.nightly.versions import alias_history
from pipelines.secrets import redact

PAGE = "nightly.html"


@dataclass(frozen=True, slots=True)
class Told:
    """The outcome of a night.

    Attributes
    ----------
    result
        The outcome as it was told.
    untracked
        The error of the tracking store, if the night's record still waits in the spool.
    """

    result: NightResult
    untracked: TrackingError | None = None


def tell(desk: Desk, night: Decisions, error: Exception | None) -> Told:
    """Tell the outcome of a night; ``error`` ended it, or is None."""
    failed = error is not None
    result = night_result(desk, night, error)
    versions = {} if night.journal is None else night.journal.versions
    untracked: TrackingError | None = None
    if not failed:
        seal(desk.config, desk.lake, result, night.source(), desk.clock.now())
        result = _with_findings(result, publish(desk.config))
    with _attempt(desk, "page", failed=failed):
        _write_page(desk, result)
    started = time.monotonic()
    with _attempt(desk, "tracking record", failed=failed):
        untracked = _track(desk, result)
    result = replace(result, seconds={**result.seconds, "tracking": time.monotonic() - started})
    if untracked is not None:
        result = _with_findings(result, [_untracked_finding(untracked)])
        with _attempt(desk, "page", failed=failed):
            _write_page(desk, result)
    with _attempt(desk, "alerts", failed=failed):
        result = _with_findings(result, send_alerts(desk.config, result))
    with _attempt(desk, "metrics", failed=failed):
        result = _with_findings(result, write_metrics(desk.config, result))
    with _attempt(desk, "document", failed=failed):
        write_text(result.folder / "result.json", night_document(result, versions))
    with _attempt(desk, "row in the table nights", failed=failed):
        write_night(desk.lake, result, night.source(), desk.clock.now())
    if not failed:
        night.decide(recorded=True)
    page = nights_folder(desk.config) / PAGE
    desk.echo(describe_night(result, page if page.is_file() else None))
    return Told(result, untracked)


def tell_no_delivery(
    desk: Desk,
    day: dt.date | None,
    expected: dt.date | None,
    error: PeerglassError,
    findings: Sequence[NightFinding] = (),
) -> None:
    """Tell that there was nothing to decide on.

    Only the session that the exchange's calendar expects gets a row, because a day that a person asked for,
    ``day``, may not be a session. ``findings`` were made before the delivery.
    """
    night = Decisions(desk, day or expected or desk.clock.now().date(), findings=findings)
    result = night_result(desk, night, error)
    with _attempt(desk, "page", failed=True):
        _write_page(desk, result)
    with _attempt(desk, "alerts", failed=True):
        send_alerts(desk.config, result)
    with _attempt(desk, "metrics", failed=True):
        write_metrics(desk.config, result)
    if expected is not None:
        with _attempt(desk, "row in the table nights", failed=True):
            write_night(desk.lake, result, night.source(), desk.clock.now())


def night_result(desk: Desk, night: Decisions, error: Exception | None) -> NightResult:
    """Collect the outcome of a night."""
    failed = error is not None
    history = pl.DataFrame(schema("nights").create_empty())
    promotions = pl.DataFrame(schema("promotions").create_empty())
    with _attempt(desk, "earlier nights", failed=failed):
        history = read_nights(desk.lake, desk.config.name).filter(pl.col("session") < night.session)
        promotions = alias_history(desk.lake, desk.config.name)
    journal, realised = night.journal, night.tables.get("realised_ic", history.clear())
    warned = any(finding.level == "warn" for finding in night.findings)
    return NightResult(
        config=desk.config.name,
        session=night.session,
        state="failed" if failed else "warned" if warned else "done",
        folder=night.folder,
        champion=None if journal is None else journal.champion_version,
        challenger=None if journal is None else journal.challenger_version,
        signals=night.signals,
        book=night.book,
        findings=tuple(night.findings),
        tables=night.tables,
        nights=history,
        promotions=promotions,
        error=None if error is None else _sentence(error),
        seconds={} if journal is None else journal.seconds,
        overlap=realised_overlap(desk.config, realised["session"].unique().sort()),
    )


@contextmanager
def _attempt(desk: Desk, what: str, *, failed: bool) -> Iterator[None]:
    """Run a ``with`` block; for a failed night, an error in it becomes a note."""
    try:
        yield
    except Exception as error:
        if not failed:
            raise
        desk.progress.note(f"The {what} of the failed night could not be written: {_sentence(error)}")


def _sentence(error: Exception) -> str:
    """Return the sentence of an error; that of a bug names its type."""
    if isinstance(error, PeerglassError):
        return str(error)
    return redact(f"a bug ({type(error).__name__}: {error})")


def _write_page(desk: Desk, result: NightResult) -> None:
    page = render_page(result)
    write_text(result.folder / PAGE, page)
    write_text(nights_folder(desk.config) / PAGE, page)


def _track(desk: Desk, result: NightResult) -> TrackingError | None:
    """Send the night to the tracking store; its record waits in the spool if the store cannot take it.

    The night is decided by now. So nothing that is wrong with the store, its driver or a run that it should
    get may keep the night from being recorded.
    """
    spool(desk.config, result)
    try:
        sync(desk.config, desk.lake, desk.progress)
    except TrackingError as error:
        return error
    except PeerglassError as error:
        return TrackingError(str(error))
    return None


def _untracked_finding(error: TrackingError) -> NightFinding:
    return NightFinding(
        check="tracking",
        level="warn",
        sentence=f"The record of the night waits to be sent: {error} The next night sends it, and so does "
        "'peerglass track sync'.",
    )


def _with_findings(result: NightResult, findings: list[NightFinding]) -> NightResult:
    """Add findings; a night that was done becomes one with warnings."""
    warned = result.state == "done" and any(finding.level == "warn" for finding in findings)
    return replace(result, findings=(*result.findings, *findings), state="warned" if warned else result.state)
