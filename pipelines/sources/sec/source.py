"""Statements from the SEC's EDGAR through edgartools: every version, and the day on which it was known.

edgartools asks, throttles itself to the SEC's limit and parses; what a fact means is settled in
`sec_statements`. Its own settings hold here too: ``EDGAR_DATA_URL`` and ``EDGAR_BASE_URL`` name a mirror,
``EDGAR_LOCAL_DATA_DIR`` its cache, ``EDGAR_RATE_LIMIT_PER_SEC`` its pace.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.sources.base import Known, SourceTables, TickerStatus
from pipelines.sources.sec.statements import FORMS, Statements, known_on, statement_rows
from pipelines.sources.tickers import read_tickers

_BATCH: Final = 20
_FORBIDDEN: Final = 403
_FEW_SILENT: Final = 0.05
"""Share of the tickers that may go without an answer before the source counts as refusing."""

_NOTES: Final = (
    "A filing is known on the day of its acceptance if that was before 16:00, else on the next, and never "
    "before its filing date; the SEC's clock is read as New York's, at worst a day late and never early.",
    "Statements are those of 10-K, 10-Q, 20-F and 40-F filings under US-GAAP, amendments included, which are "
    "marked /A; earnings releases and restated figures in 8-K filings are not read.",
    "Share counts and amounts per share of a filing contain the splits up to the filing's day (SEC Staff "
    "Accounting Bulletin, Topic 4.C), the cover page's count those up to its own day.",
)
_HAZARDS: Final = (
    "Tickers are matched to SEC filers as of today: a firm that lost its ticker has no statements, and a "
    "ticker that was given to another firm has that firm's.",
)


class _ThrottledError(Exception):
    """The SEC asks to stop for now."""


@dataclass(slots=True)
class _Tally:
    """What was done to the statements of all firms so far."""

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
        """Say it, with no rows."""
        told = (
            (self.derived, "quarters are the difference of two spans reported from the year's beginning."),
            (
                self.superseded,
                "versions were superseded on the day on which they became known: the last counts.",
            ),
            (self.undated, "filings have no acceptance time: known on the day after their filing date."),
            (self.partial, "share counts are of one class of several, or of an unknown one: left out."),
        )
        hazards = [
            f"Statements of {', '.join(tickers)} are in {currency}: ratios with prices in dollars are wrong."
            for currency, tickers in sorted(self.foreign.items())
        ]
        if self.summed:
            hazards.append(
                f"Share counts of {', '.join(self.summed)} are sums over classes of stock: market equity "
                "takes every class at the ticker's price."
            )
        return SourceTables({}, tuple(f"{count:,} {what}" for count, what in told if count), tuple(hazards))


class SecSource:
    """The SEC's company facts, asked firm by firm; only firms with filings that the lake has not are read.

    Parameters
    ----------
    tickers
        Tickers, or the path of a CSV with a ``ticker`` column.
    identity
        Name and e-mail address, which the SEC asks of every client.
    start
        First known_at to take.

    Raises
    ------
    ConfigError
        If the identity has no e-mail address, or there is no ticker or one that cannot be one.
    DataError
        If the file of tickers is missing or has none.
    """

    def __init__(self, tickers: Sequence[str] | str, identity: str, start: dt.date) -> None:
        if "@" not in identity:
            raise ConfigError(
                f"source.identity is {identity!r}; the SEC asks for a name and an e-mail address, such as "
                "'Jane Doe jane@example.com'."
            )
        self._tickers, self._identity, self._start = read_tickers(tickers), identity, start

    @property
    def name(self) -> str:
        """Name of the origin."""
        return "sec"

    def batches(self, known: Known) -> Iterator[SourceTables]:
        """Ask for every ticker, those that failed once more at the end.

        Raises
        ------
        ConfigError
            If edgartools is not installed.
        DataError
            After the last batch, if the SEC throttled or more than a few tickers had no answer; or at once,
            if it takes offence at the identity.
        """
        edgar = _client(self._identity)
        tally = _Tally()
        failed: list[TickerStatus] = []
        throttled: list[TickerStatus] = []
        for batch in self._batches(edgar, known, tally, self._tickers):
            failed += [status for status in batch.statuses if status.state == "failed"]
            throttled += [status for status in batch.statuses if status.state == "throttled"]
            yield batch
        if failed and not throttled:
            again, failed = [status.ticker for status in failed], []
            for batch in self._batches(edgar, known, tally, again):
                failed += [status for status in batch.statuses if status.state == "failed"]
                throttled += [status for status in batch.statuses if status.state == "throttled"]
                yield batch
        yield tally.delivery()
        refused = throttled + failed
        if throttled or len(refused) > _FEW_SILENT * len(self._tickers):
            raise DataError(
                f"the SEC refused {len(refused):,} of {len(self._tickers):,} tickers ({refused[0].detail}): "
                "what arrived is in the lake, and the same command continues from there; try again in ten "
                "minutes"
            )

    def _batches(
        self,
        edgar: ModuleType,
        known: Known,
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
                        status, statements = self._one(edgar, ticker, known)
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

    def _one(self, edgar: ModuleType, ticker: str, known: Known) -> tuple[TickerStatus, Statements | None]:
        """Ask for one firm; what goes wrong becomes its status, unless the SEC wants no more questions."""
        from edgar.exceptions import CompanyNotFoundError, TooManyRequestsError, http_status
        from edgar.httprequests import TRANSPORT_ERRORS

        try:
            return self._ask(edgar, ticker, known)
        except CompanyNotFoundError:
            return TickerStatus(ticker, "empty", "no filer of that ticker"), None
        except TooManyRequestsError as error:
            raise _ThrottledError("too many requests") from error
        except TRANSPORT_ERRORS as error:
            status = http_status(error)
            if status == _FORBIDDEN:
                raise DataError(
                    f"the SEC forbids requests as {self._identity!r}: check source.identity, or wait ten "
                    "minutes if there were too many"
                ) from error
            what = f"HTTP {status}" if status is not None else f"no answer: {type(error).__name__}"
            return TickerStatus(ticker, "failed", what), None
        except (ValueError, KeyError) as error:
            return TickerStatus(ticker, "failed", f"unreadable answer: {type(error).__name__}"), None

    def _ask(self, edgar: ModuleType, ticker: str, known: Known) -> tuple[TickerStatus, Statements | None]:
        company = edgar.Company(ticker)
        filings = company.get_filings(form=list(FORMS), amendments=True).data.to_pylist()
        if not filings:
            return TickerStatus(ticker, "empty", "no annual or quarterly report"), None
        accepted = {row["accession_number"]: _clock(row["acceptanceDateTime"]) for row in filings}
        wanted = {
            row["accession_number"]
            for row in filings
            if row["isXBRL"]
            and known_on(row["filing_date"], accepted[row["accession_number"]]) >= self._start
        }
        if not wanted:
            return TickerStatus(ticker, "empty", f"no report in XBRL since {self._start}"), None
        if wanted <= _stored(known, ticker):
            return TickerStatus(ticker, "unchanged"), None
        edgar.entity.entity_facts.clear_company_facts_cache()
        facts = company.get_facts()
        if facts is None:
            return TickerStatus(ticker, "failed", "reports are listed and their facts are not there"), None
        statements = statement_rows(ticker, facts, accepted, self._start)
        if statements.rows.is_empty():
            return TickerStatus(ticker, "empty", "no US-GAAP fact that we know"), None
        return TickerStatus(ticker, "ok"), statements


def _client(identity: str) -> ModuleType:
    """Import edgartools and introduce ourselves."""
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


def _clock(accepted: dt.datetime) -> dt.datetime:
    """Take off the time zone, which the feed does not tell reliably (`sec_statements.known_on`)."""
    return accepted.replace(tzinfo=None)


def _stored(known: Known, ticker: str) -> set[str]:
    """Accession numbers of a firm's filings in the lake."""
    return {filing.removesuffix("/A") for filing in known.filings.get(ticker, ())}
