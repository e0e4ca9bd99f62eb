"""Statements from the SEC's EDGAR through edgartools: every version, with the date on which it became known.

edgartools sends the requests, keeps to the SEC's rate limit and parses the answers;
`pipelines.sources.sec_statements` interprets the facts. edgartools' own settings apply: ``EDGAR_DATA_URL``
and ``EDGAR_BASE_URL`` select a mirror, ``EDGAR_LOCAL_DATA_DIR`` its cache, and ``EDGAR_RATE_LIMIT_PER_SEC``
its request rate.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.sources.base import SourceTables, StoredData, TickerStatus, read_tickers
from pipelines.sources.sec_statements import FORMS, Statements, known_on, statement_rows

_BATCH: Final = 20
_FORBIDDEN: Final = 403
_MAX_UNANSWERED: Final = 0.05
"""Maximum share of unanswered tickers; above it, the source counts as refusing."""

_NOTES: Final = (
    "A filing is known on the day of its acceptance if that was before 16:00, otherwise on the next day, and "
    "never before its filing date. The SEC's times are read as New York time, which is never too early.",
    "Statements come from 10-K, 10-Q, 20-F and 40-F filings under US-GAAP. Amendments are included and "
    "marked /A. Earnings releases and restated figures in 8-K filings are not read.",
    "Share counts and per-share amounts of a filing include the splits up to the filing date (SEC Staff "
    "Accounting Bulletin, Topic 4.C); the cover page's count includes those up to its own date.",
)
_HAZARDS: Final = (
    "Tickers are matched to SEC filers as of today: a firm that lost its ticker has no statements, and a "
    "ticker that was reassigned has the statements of the firm that has it now.",
)


class _ThrottledError(Exception):
    """The SEC refuses further requests for now."""


@dataclass(slots=True)
class _Tally:
    """Counts over the statements of all firms so far."""

    derived: int = 0
    superseded: int = 0
    undated: int = 0
    partial: int = 0
    summed: list[str] = field(default_factory=list)
    foreign: dict[str, list[str]] = field(default_factory=dict)

    def add(self, ticker: str, statements: Statements) -> None:
        self.derived += statements.derived
        self.superseded += statements.superseded
        self.undated += statements.undated
        self.partial += statements.partial
        if statements.summed:
            self.summed.append(ticker)
        for currency in sorted(statements.foreign):
            self.foreign.setdefault(currency, []).append(ticker)

    def delivery(self) -> SourceTables:
        """Return the counts as notes and hazards of a delivery without rows."""
        counts = (
            (self.derived, "quarters are differences of two spans from the beginning of the year."),
            (
                self.superseded,
                "versions were superseded on the day on which they became known; the last one is used.",
            ),
            (self.undated, "filings have no acceptance time; they count as known on the day after filing."),
            (self.partial, "share counts cover one class of several, or an unknown one; they are left out."),
        )
        hazards = [
            f"Statements of {', '.join(tickers)} are in {currency}: ratios to prices in dollars are wrong."
            for currency, tickers in sorted(self.foreign.items())
        ]
        if self.summed:
            hazards.append(
                f"Share counts of {', '.join(self.summed)} are sums over classes of stock: market equity "
                "values every class at the ticker's price."
            )
        return SourceTables({}, tuple(f"{count:,} {what}" for count, what in counts if count), tuple(hazards))


class SecSource:
    """The SEC's company facts, requested firm by firm. Only firms with filings that the lake lacks are read.

    ``tickers``: tickers, or the path of a CSV file with a ``ticker`` column. ``identity``: name and e-mail
    address, which the SEC requires of every client. ``start``: first ``known_at`` to read.

    Raises ConfigError if the identity has no e-mail address, there is no ticker, or a ticker is invalid, and
    DataError if the file of tickers is missing or empty.
    """

    def __init__(self, tickers: Sequence[str] | str, identity: str, start: dt.date) -> None:
        if "@" not in identity:
            raise ConfigError(
                f"source.identity is {identity!r}; the SEC requires a name and an e-mail address, such as "
                "'Jane Doe jane@example.com'."
            )
        self._tickers, self._identity, self._start = read_tickers(tickers), identity, start

    @property
    def name(self) -> str:
        """Name of the origin."""
        return "sec"

    def batches(self, stored: StoredData) -> Iterator[SourceTables]:
        """Request every ticker; those that failed are requested once more at the end.

        Raises ConfigError if edgartools is not installed, and DataError after the last batch, if the SEC
        throttled or too many tickers had no answer; immediately, if it rejects the identity.
        """
        edgar = _client(self._identity)
        tally = _Tally()
        failed: list[TickerStatus] = []
        throttled: list[TickerStatus] = []
        for batch in self._batches(edgar, stored, tally, self._tickers):
            failed += [status for status in batch.statuses if status.state == "failed"]
            throttled += [status for status in batch.statuses if status.state == "throttled"]
            yield batch
        if failed and not throttled:
            again, failed = [status.ticker for status in failed], []
            for batch in self._batches(edgar, stored, tally, again):
                failed += [status for status in batch.statuses if status.state == "failed"]
                throttled += [status for status in batch.statuses if status.state == "throttled"]
                yield batch
        yield tally.delivery()
        refused = throttled + failed
        if throttled or len(refused) > _MAX_UNANSWERED * len(self._tickers):
            raise DataError(
                f"the SEC refused {len(refused):,} of {len(self._tickers):,} tickers ({refused[0].detail}): "
                "what arrived is in the lake; repeat the command in ten minutes to continue from there"
            )

    def _batches(
        self,
        edgar: ModuleType,
        stored: StoredData,
        tally: _Tally,
        tickers: Sequence[str],
    ) -> Iterator[SourceTables]:
        refusal: str | None = None
        for i in range(0, len(tickers), _BATCH):
            frames: list[pl.DataFrame] = []
            statuses: list[TickerStatus] = []
            for ticker in tickers[i : i + _BATCH]:
                if refusal is None:
                    try:
                        status, statements = self._one(edgar, ticker, stored)
                    except _ThrottledError as error:
                        refusal = str(error)
                if refusal is not None:
                    statuses.append(TickerStatus(ticker, "throttled", refusal))
                    continue
                statuses.append(status)
                if statements is not None:
                    tally.add(ticker, statements)
                    frames.append(statements.rows)
            tables = {"fundamentals": pl.concat(frames)} if frames else {}
            yield SourceTables(tables, _NOTES, _HAZARDS, tuple(statuses))

    def _one(
        self, edgar: ModuleType, ticker: str, stored: StoredData
    ) -> tuple[TickerStatus, Statements | None]:
        """Request one firm. A failure becomes its status, unless the SEC refuses further requests."""
        from edgar.exceptions import CompanyNotFoundError, TooManyRequestsError, http_status
        from edgar.httprequests import TRANSPORT_ERRORS

        try:
            return self._ask(edgar, ticker, stored)
        except CompanyNotFoundError:
            return TickerStatus(ticker, "empty", "no filer with that ticker"), None
        except TooManyRequestsError as error:
            raise _ThrottledError("too many requests") from error
        except TRANSPORT_ERRORS as error:
            status = http_status(error)
            if status == _FORBIDDEN:
                raise DataError(
                    f"the SEC rejects requests by {self._identity!r}: check source.identity, or wait ten "
                    "minutes if there were too many requests"
                ) from error
            what = f"HTTP {status}" if status is not None else f"no answer: {type(error).__name__}"
            return TickerStatus(ticker, "failed", what), None
        except (ValueError, KeyError) as error:
            return TickerStatus(ticker, "failed", f"unreadable answer: {type(error).__name__}"), None

    def _ask(
        self, edgar: ModuleType, ticker: str, stored: StoredData
    ) -> tuple[TickerStatus, Statements | None]:
        company = edgar.Company(ticker)
        filings = company.get_filings(form=list(FORMS), amendments=True).data.to_pylist()
        if not filings:
            return TickerStatus(ticker, "empty", "no annual or quarterly report"), None
        accepted = {row["accession_number"]: _local_time(row["acceptanceDateTime"]) for row in filings}
        due = {
            row["accession_number"]
            for row in filings
            if row["isXBRL"]
            and known_on(row["filing_date"], accepted[row["accession_number"]]) >= self._start
        }
        if not due:
            return TickerStatus(ticker, "empty", f"no report in XBRL since {self._start}"), None
        if due <= _stored_filings(stored, ticker):
            return TickerStatus(ticker, "unchanged"), None
        edgar.entity.entity_facts.clear_company_facts_cache()
        facts = company.get_facts()
        if facts is None:
            return TickerStatus(ticker, "failed", "reports are listed, but their facts are missing"), None
        statements = statement_rows(ticker, facts, accepted, self._start)
        if statements.rows.is_empty():
            return TickerStatus(ticker, "empty", "no known US-GAAP fact"), None
        return TickerStatus(ticker, "ok"), statements


def _client(identity: str) -> ModuleType:
    """Import edgartools and set the identity."""
    try:
        import edgar
        import edgar.entity.entity_facts
    except ImportError as error:
        raise ConfigError(
            f"source sec needs edgartools, which cannot be imported ({error}); "
            "run: pip install 'edgartools>=5.62'"
        ) from error
    edgar.set_identity(identity)
    return edgar


def _local_time(accepted: dt.datetime) -> dt.datetime:
    """Remove the time zone, which the feed does not state reliably (see `known_on`)."""
    return accepted.replace(tzinfo=None)


def _stored_filings(stored: StoredData, ticker: str) -> set[str]:
    """Return the accession numbers of a firm's filings in the lake."""
    return {filing.removesuffix("/A") for filing in stored.filings.get(ticker, ())}
