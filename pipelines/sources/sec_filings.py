"""Statements from the SEC's EDGAR through edgartools: every version, with the date on which it became known.

edgartools sends the requests, keeps to the SEC's rate limit and parses the answers;
`pipelines.sources.sec_statements` interprets the facts. edgartools' own settings apply: ``EDGAR_DATA_URL``
and ``EDGAR_BASE_URL`` select a mirror, ``EDGAR_LOCAL_DATA_DIR`` its cache, and ``EDGAR_RATE_LIMIT_PER_SEC``
its request rate.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.sources.base import SourceTables, StoredData, TickerStatus, raise_if_refused, read_tickers
from pipelines.sources.sec_statements import FORMS, FiledStatements, known_on, statement_rows

_BATCH: Final = 20
_FORBIDDEN: Final = 403
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


_COUNTED: Final = {
    "derived": "quarters are differences of two spans from the beginning of the year.",
    "superseded": "versions were superseded on the day on which they became known; the last one is used.",
    "undated": "filings have no acceptance time; they count as known on the day after filing.",
    "partial": "share counts cover one class of several, or an unknown one; they are left out.",
}
"""Count of `FiledStatements` -> what it says."""


def _remarks(read: Sequence[tuple[str, FiledStatements]]) -> SourceTables:
    """Return a delivery without rows that says how the statements of (ticker, statements) were derived."""
    counts = sum((one.counts for _, one in read), Counter[str]())
    notes = tuple(f"{counts[name]:,} {what}" for name, what in _COUNTED.items() if counts[name])
    currencies = sorted({currency for _, one in read for currency in one.foreign})
    hazards = [
        f"Statements of {', '.join(ticker for ticker, one in read if currency in one.foreign)} are in "
        f"{currency}: ratios to prices in dollars are wrong."
        for currency in currencies
    ]
    if summed := [ticker for ticker, one in read if one.counts["summed"]]:
        hazards.append(
            f"Share counts of {', '.join(summed)} are sums over classes of stock: market equity "
            "values every class at the ticker's price."
        )
    return SourceTables({}, notes, tuple(hazards))


class SecSource:
    """The SEC's company facts, requested firm by firm. Only firms with filings that the lake lacks are read.

    ConfigError if the identity has no e-mail address or a ticker is invalid, DataError if the file of tickers
    cannot be read.
    """

    name = "sec"

    def __init__(self, tickers: Sequence[str] | str, identity: str, start: dt.date) -> None:
        if "@" not in identity:
            raise ConfigError(
                f"source.identity is {identity!r}; the SEC requires a name and an e-mail address, such as "
                "'Jane Doe jane@example.com'."
            )
        self._tickers, self._identity, self._start = read_tickers(tickers), identity, start

    def batches(self, stored: StoredData) -> Iterator[SourceTables]:
        """Request every ticker; those that failed are requested once more at the end.

        ConfigError if edgartools is not installed. DataError after the last batch, if the SEC throttled or
        too many tickers had no answer; immediately, if it rejects the identity.
        """
        edgar = _client(self._identity)
        read: list[tuple[str, FiledStatements]] = []
        tickers = self._tickers
        for _ in range(2):
            refused: list[TickerStatus] = []
            for batch in self._batches(edgar, stored, read, tickers):
                refused += [status for status in batch.statuses if status.state in ("failed", "throttled")]
                yield batch
            if not refused or any(status.state == "throttled" for status in refused):
                break
            tickers = tuple(status.ticker for status in refused)
        yield _remarks(read)
        raise_if_refused("the SEC", refused, len(self._tickers), "in ten minutes")

    def _batches(
        self,
        edgar: ModuleType,
        stored: StoredData,
        read: list[tuple[str, FiledStatements]],
        tickers: Sequence[str],
    ) -> Iterator[SourceTables]:
        throttled = False
        for i in range(0, len(tickers), _BATCH):
            frames: list[pl.DataFrame] = []
            statuses: list[TickerStatus] = []
            for ticker in tickers[i : i + _BATCH]:
                status, statements = TickerStatus(ticker, "throttled", "too many requests"), None
                if not throttled:
                    status, statements = self._one(edgar, ticker, stored)
                throttled = status.state == "throttled"
                statuses.append(status)
                if statements is not None:
                    frames.append(statements.rows)
                    read.append((ticker, replace(statements, rows=statements.rows.clear())))
            tables = {"fundamentals": pl.concat(frames)} if frames else {}
            yield SourceTables(tables, _NOTES, _HAZARDS, tuple(statuses))

    def _one(
        self, edgar: ModuleType, ticker: str, stored: StoredData
    ) -> tuple[TickerStatus, FiledStatements | None]:
        """Request one firm. A failure becomes its status; DataError if the SEC rejects the identity."""
        from edgar.exceptions import CompanyNotFoundError, TooManyRequestsError, http_status
        from edgar.httprequests import TRANSPORT_ERRORS

        try:
            return self._ask(edgar, ticker, stored)
        except CompanyNotFoundError:
            return TickerStatus(ticker, "empty", "no filer with that ticker"), None
        except TooManyRequestsError:
            return TickerStatus(ticker, "throttled", "too many requests"), None
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
    ) -> tuple[TickerStatus, FiledStatements | None]:
        company = edgar.Company(ticker)
        filings = company.get_filings(form=list(FORMS), amendments=True).data.to_pylist()
        if not filings:
            return TickerStatus(ticker, "empty", "no annual or quarterly report"), None
        # without the zone, which the feed does not state reliably (see `known_on`)
        accepted = {
            one["accession_number"]: one["acceptanceDateTime"].replace(tzinfo=None) for one in filings
        }
        in_xbrl = {one["accession_number"]: one["filing_date"] for one in filings if one["isXBRL"]}
        due = {key for key, filed in in_xbrl.items() if known_on(filed, accepted[key]) >= self._start}
        if not due:
            return TickerStatus(ticker, "empty", f"no report in XBRL since {self._start}"), None
        if due <= {filing.removesuffix("/A") for filing in stored.filings.get(ticker, ())}:
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
