"""Statements from the SEC's EDGAR through edgartools: every version, with the date on which it became known.

edgartools sends the requests, keeps to the SEC's rate limit and parses the answers. Its own settings apply:
``EDGAR_DATA_URL`` and ``EDGAR_BASE_URL`` select a mirror, ``EDGAR_LOCAL_DATA_DIR`` its cache, and
``EDGAR_RATE_LIMIT_PER_SEC`` its request rate.

Every filing with a fact for an item and period is one version of it: a 10-Q or 10-K, the comparison column of
next year's filing, an amendment. Within a filing, the best tag of an item is used (`TAGS`), with the span of
a year in annual reports and of a quarter in quarterly ones. Cash flows are reported only from the beginning
of the year: the quarter is the difference to the months up to the previous quarter, as known by then. Another
value of these months is another version of the quarter.

A split after the period and before the filing has retroactive effect on the statements, comparatives included
(SEC Staff Accounting Bulletin, Topic 4.C; ASC 505-10-S99-4 and ASC 260-10-55-12). Share counts and per-share
amounts are therefore stated as of the filing date. The count on the cover page is stated as of its own date.

A market value needs the shares of all classes, so counts of all classes of stock are summed, and those of a
single class dropped. The mean over the period, which earnings per share are computed with, covers all.

Taxonomy: FASB US-GAAP (https://xbrl.us/us-gaap) and the SEC's own ``dei``. In `TAGS`, totals come before
their parts: ``Revenues`` is a firm's total revenue, of which contract revenue is only a part (banks,
insurers). Net income is the parent's share; ``ProfitLoss`` includes the minorities. Payments are positive
where cash is spent, as in the canonical items. Of share counts, the cover page's comes first, which firms
with several classes may give only per class, and the mean over the period last.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from itertools import groupby
from typing import Final, Protocol

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.lake.schemas import empty
from pipelines.sources import base

_BATCH: Final = 20
_FORBIDDEN: Final = 403
_NOTES, _HAZARDS = base.remarks_of("sec")


_COUNTED: Final = {  # count of `FiledStatements` -> what it says
    "derived": "quarters are differences of two spans from the beginning of the year.",
    "superseded": "versions were superseded on the day on which they became known; the last one is used.",
    "undated": "filings have no acceptance time; they count as known on the day after filing.",
    "partial": "share counts cover one class of several, or an unknown one; they are left out.",
}


def _remarks(read: Sequence[tuple[str, FiledStatements]]) -> base.SourceTables:
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
    return base.SourceTables({}, notes, tuple(hazards))


class SecSource:
    """The SEC's company facts, requested firm by firm, if it has filings that the lake lacks."""

    name = "sec"

    def __init__(self, tickers: Sequence[str] | str, identity: str, start: dt.date) -> None:
        if "@" not in identity:
            raise ConfigError(
                f"source.identity is {identity!r}; the SEC requires a name and an e-mail address, such as "
                "'Jane Doe jane@example.com'."
            )
        self._tickers, self._identity, self._start = base.read_tickers(tickers), identity, start

    def batches(self, stored: base.StoredData) -> Iterator[base.SourceTables]:
        """Request every ticker; those that failed are requested once more at the end."""
        try:
            edgar = import_module("edgar")
            import_module("edgar.entity.entity_facts")
        except ImportError as error:
            raise ConfigError(
                f"source sec needs edgartools, which cannot be imported ({error}); "
                "run: pip install 'edgartools>=5.62'"
            ) from error
        edgar.set_identity(self._identity)
        read: list[tuple[str, FiledStatements]] = []
        tickers = self._tickers
        for _ in range(2):
            refused: list[base.TickerStatus] = []
            for batch in self._batches(stored, read, tickers):
                refused += [status for status in batch.statuses if status.state in ("failed", "throttled")]
                yield batch
            if not refused or any(status.state == "throttled" for status in refused):
                break
            tickers = tuple(status.ticker for status in refused)
        yield _remarks(read)
        base.raise_if_refused("the SEC", refused, len(self._tickers), "in ten minutes")

    def _batches(
        self, stored: base.StoredData, read: list[tuple[str, FiledStatements]], tickers: Sequence[str]
    ) -> Iterator[base.SourceTables]:
        throttled = False
        for i in range(0, len(tickers), _BATCH):
            frames: list[pl.DataFrame] = []
            unused: dict[str, frozenset[str]] = {}
            statuses: list[base.TickerStatus] = []
            for ticker in tickers[i : i + _BATCH]:
                status, statements = base.TickerStatus(ticker, "throttled", "too many requests"), None
                if not throttled:
                    status, statements = self._one(ticker, stored)
                throttled = status.state == "throttled"
                statuses.append(status)
                if statements is not None:
                    frames.append(statements.rows)
                    unused[ticker] = statements.unused
                    read.append((ticker, replace(statements, rows=statements.rows.clear())))
            tables = {"fundamentals": pl.concat(frames)} if frames else {}
            yield base.SourceTables(tables, _NOTES, _HAZARDS, tuple(statuses), unused_filings=unused)

    def _one(self, ticker: str, stored: base.StoredData) -> tuple[base.TickerStatus, FiledStatements | None]:
        """Request one firm. A failure becomes its status; DataError if the SEC rejects the identity."""
        from edgar.exceptions import CompanyNotFoundError, TooManyRequestsError, http_status
        from edgar.httprequests import TRANSPORT_ERRORS

        status = partial(base.TickerStatus, ticker)
        try:
            return self._ask(ticker, stored)
        except CompanyNotFoundError:
            return status("empty", "no filer with that ticker"), None
        except TooManyRequestsError:
            return status("throttled", "too many requests"), None
        except TRANSPORT_ERRORS as error:
            code = http_status(error)
            if code == _FORBIDDEN:
                raise DataError(
                    f"the SEC rejects requests by {self._identity!r}: check source.identity, or wait ten "
                    "minutes if there were too many requests"
                ) from error
            what = f"HTTP {code}" if code is not None else f"no answer: {type(error).__name__}"
            return status("failed", what), None
        except (ValueError, KeyError) as error:
            return status("failed", f"unreadable answer: {type(error).__name__}"), None

    def _ask(self, ticker: str, stored: base.StoredData) -> tuple[base.TickerStatus, FiledStatements | None]:
        status, edgar = partial(base.TickerStatus, ticker), import_module("edgar")
        company = edgar.Company(ticker)
        filings = company.get_filings(form=list(FORMS), amendments=True).data.to_pylist()
        if not filings:
            return status("empty", "no annual or quarterly report"), None
        # without the zone, which the feed does not state reliably (see `known_on`)
        accepted = {
            one["accession_number"]: one["acceptanceDateTime"].replace(tzinfo=None) for one in filings
        }
        in_xbrl = {one["accession_number"]: one["filing_date"] for one in filings if one["isXBRL"]}
        due = {key for key, filed in in_xbrl.items() if known_on(filed, accepted[key]) >= self._start}
        if not due:
            return status("empty", f"no report in XBRL since {self._start}"), None
        if due <= {filing.removesuffix(_AMENDED) for filing in stored.filings.get(ticker, ())}:
            return status("unchanged"), None
        edgar.entity.entity_facts.clear_company_facts_cache()
        facts = company.get_facts()
        if facts is None:
            return status("failed", "reports are listed, but their facts are missing"), None
        statements = statement_rows(ticker, facts, accepted, self._start)
        of_rows = {filing.removesuffix(_AMENDED) for filing in statements.rows["filing_id"]}
        settled = dt.datetime.now(dt.UTC).date() - _SETTLED
        unused = frozenset(key for key in due - of_rows if in_xbrl[key] <= settled)
        state = status("empty", "no known US-GAAP fact") if statements.rows.is_empty() else status("ok")
        return state, replace(statements, unused=unused)


TAGS: Final = base.vendor_names("sec")  # item -> tags, best first; without a prefix they are of US-GAAP
assert set(TAGS) == set(base.ITEMS), "every canonical item needs tags"

RANKED: Final = {  # qualified tag -> (item, rank); rank 0 is the best
    tag if ":" in tag else f"us-gaap:{tag}": (item, rank)
    for item, tags in TAGS.items()
    for rank, tag in enumerate(tags)
}
FORMS: Final = ("10-K", "10-Q", "10-KT", "10-QT", "20-F", "40-F")
_ANNUAL: Final = frozenset({"10-K", "10-KT", "20-F", "40-F"})
_AMENDED: Final = "/A"
_CLOSE: Final = dt.time(16, 0)
_EARLY_CLOSE: Final = dt.time(13, 0)
_DAYS_A_MONTH: Final = 365.25 / 12.0
_SETTLED: Final = dt.timedelta(days=7)  # from which a filing without facts has none; they may come late
_SLACK: Final = 2  # days by which the ends of a span may be stated wrong
_COVER: Final = "dei:EntityCommonStockSharesOutstanding"  # stated as of its own date
_MEAN: Final = "us-gaap:WeightedAverageNumberOfSharesOutstandingBasic"  # used as a count at its end
_CLASS_AXIS: Final = "StatementClassOfStockAxis"
_BALANCE: Final = "us-gaap:LiabilitiesAndStockholdersEquity"
_EQUITY: Final = (
    "us-gaap:StockholdersEquityIncludingPortionAttributableToNoncontrollingInterest",
    "us-gaap:StockholdersEquity",
)
_LEAST_OF_MEAN: Final = 0.5  # of the period's mean; a smaller count covers one class, or has another unit
_SCHEMA: Final = empty("fundamentals").drop("source").schema


class Fact(Protocol):
    """The attributes that are read from a fact of edgartools."""

    concept: str  # "us-gaap:Assets"
    unit: str
    period_start: dt.date | None
    period_end: dt.date
    numeric_value: float | None
    accession: str
    form_type: str
    filing_date: dt.date
    dimensions: Mapping[str, str] | None  # axis -> member; None or empty: whole firm


@dataclass(frozen=True, slots=True)
class FiledStatements:
    """Rows for ``fundamentals`` by period, publication date and item; ``counts`` say what was dropped."""

    rows: pl.DataFrame
    counts: Counter[str]
    foreign: frozenset[str]
    unused: frozenset[str] = frozenset()  # filings without a row, which need not be read again


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A fact that may become the value of an item; ``months`` is None for an instant."""

    tag: str
    rank: int
    unit: str
    start: dt.date | None
    months: int | None
    value: float
    member: str = ""  # the class of stock, if the count covers a single class

    @property
    def began(self) -> int:
        """First day of the span; 0 for an instant."""
        return 0 if self.start is None else self.start.toordinal()

    @property
    def of(self) -> tuple[str, str, int]:
        """Tag, unit and first day, which the counts of several classes share."""
        return self.tag, self.unit, self.began


_Candidates = dict[tuple[str, dt.date], list[_Candidate]]  # item and end of its period -> candidates


@dataclass(frozen=True, slots=True)
class _Filing:
    accession: str
    annual: bool
    amended: bool
    known_at: dt.date
    released: dt.date  # its statements include the splits up to this date
    order: tuple[dt.date, dt.datetime, str]
    candidates: _Candidates = field(default_factory=dict)
    balance: dict[dt.date, dict[str, Fact]] = field(default_factory=dict)


def known_on(filed: dt.date, accepted: dt.datetime | None) -> dt.date:
    """Return the first date by whose close the market could know a filing.

    That of acceptance before the close of New York (16:00, or 13:00 on days with an early close), otherwise
    the next; never before the official filing date, and the day after it without an acceptance time. The SEC
    marks the time as UTC, which is not correct for all filers; New York is the later reading, so nothing is
    known too early.
    """
    if accepted is None:
        return filed + dt.timedelta(days=1)
    late = accepted.time() >= (_EARLY_CLOSE if accepted.date() in _early_closes() else _CLOSE)
    return max(filed, accepted.date() + dt.timedelta(days=late))


@cache
def _early_closes() -> frozenset[dt.date]:
    """Days on which New York closes at 13:00, from 2009 on, when statements in XBRL begin."""
    from exchange_calendars import get_calendar

    return frozenset(get_calendar("XNYS", start="2009-01-01").early_closes.date)


def statement_rows(
    ticker: str, facts: Iterable[Fact], accepted: Mapping[str, dt.datetime], since: dt.date
) -> FiledStatements:
    """Convert a firm's facts to rows that became known since a date (``accepted`` is without a zone)."""
    filings = _sort_into_filings(facts, accepted)
    counts = Counter(undated=sum(one.accession not in accepted for one in filings))
    spans: dict[tuple[str, str, dt.date, int], float] = {}  # tag, unit, start, months
    quarters: dict[tuple[str, dt.date], tuple[_Candidate, float]] = {}  # derived: from what, less what
    rows: dict[tuple[str, dt.date, dt.date], tuple[object, ...]] = {}
    foreign: set[str] = set()
    for filing in sorted(filings, key=lambda filing: filing.order):
        _fill_liabilities(filing)
        counts.update(_resolve_share_counts(filing.candidates))
        for fact in (one for candidates in filing.candidates.values() for one in candidates):
            if fact.start is not None and fact.months is not None:
                spans[fact.tag, fact.unit, fact.start, fact.months] = fact.value
        if not filing.annual:
            for period, (longer, subtracted) in quarters.items():
                if period not in filing.candidates and _before(longer, spans) != subtracted:
                    filing.candidates[period] = [longer]
        for (item, end), candidates in filing.candidates.items():
            best = _best(candidates, annual=filing.annual)
            value, months = best.value, best.months
            before = None if filing.annual or item == "eps" else _before(best, spans)
            quarters.pop((item, end), None)
            if before is not None:
                quarters[item, end] = best, before
                value, months = value - before, 3
            if filing.known_at < since:
                continue
            if best.unit[:3].isupper() and not best.unit.startswith("USD"):
                foreign.add(best.unit[:3])
            stated_on = None
            if item in base.SPLIT_ITEMS:
                stated_on = end if best.tag == _COVER else max(end, filing.released)
            key = (item, end, filing.known_at)
            counts.update(derived=before is not None, superseded=key in rows)
            filing_id = filing.accession + (_AMENDED if filing.amended else "")
            known = (ticker, end, filing.known_at, item, value, best.unit)
            rows[key] = (*known, filing_id, months, stated_on, False)
    frame = pl.DataFrame(list(rows.values()), schema=_SCHEMA, orient="row")
    return FiledStatements(frame.sort("item", "period_end", "known_at"), counts, frozenset(foreign))


def _before(longer: _Candidate, spans: Mapping[tuple[str, str, dt.date, int], float]) -> float | None:
    """Return the value up to the quarter with which a span of 6 or 9 months ends; None if it is unknown."""
    if longer.months not in {6, 9} or longer.start is None:
        return None
    return spans.get((longer.tag, longer.unit, longer.start, longer.months - 3))


def _sort_into_filings(facts: Iterable[Fact], accepted: Mapping[str, dt.datetime]) -> list[_Filing]:
    """Group usable facts by filing, item and period."""
    filings: dict[str, _Filing] = {}
    for fact in facts:
        form = fact.form_type.removesuffix(_AMENDED)
        if form not in FORMS or fact.numeric_value is None:
            continue
        if fact.accession not in filings:
            when = accepted.get(fact.accession)
            known_at = known_on(fact.filing_date, when)
            filings[fact.accession] = _Filing(
                fact.accession,
                annual=form in _ANNUAL,
                amended=fact.form_type.endswith(_AMENDED),
                known_at=known_at,
                released=fact.filing_date if when is None else min(fact.filing_date, when.date()),
                order=(known_at, when or dt.datetime.combine(known_at, dt.time.max), fact.accession),
            )
        filing = filings[fact.accession]
        if not fact.dimensions and fact.concept in (_BALANCE, *_EQUITY):
            filing.balance.setdefault(fact.period_end, {})[fact.concept] = fact
        if (candidate := _candidate(fact, fact.numeric_value)) is not None:
            key = (RANKED[fact.concept][0], fact.period_end)
            filing.candidates.setdefault(key, []).append(candidate)
    return [filing for filing in filings.values() if filing.candidates]


def _candidate(fact: Fact, value: float) -> _Candidate | None:
    """Return a fact as a candidate for an item; None if no item has this tag and kind of span."""
    item, rank = RANKED.get(fact.concept, ("", 0))
    member, months = "", None
    if fact.dimensions:  # a part of the firm; the only parts that can be added up are classes of stock
        (axis, member), *others = fact.dimensions.items()
        if item != base.SHARE_COUNT or others or not axis.endswith(_CLASS_AXIS):
            return None
    if fact.period_start is not None and fact.concept != _MEAN:
        months = _months((fact.period_end - fact.period_start).days + 1)
    if not item or (fact.concept != _MEAN and (months is None) == (item in base.FLOWS)) or months == 0:
        return None
    return _Candidate(fact.concept, rank, fact.unit, fact.period_start, months, value, member)


def _months(days: int) -> int:
    """Count the months of a span. Firms that count weeks have quarters of 12 weeks, and one of up to 16."""
    for quarters in (1, 2, 3):
        if 12 * quarters * 7 - _SLACK <= days <= (12 * quarters + 4) * 7 + _SLACK:
            return 3 * quarters
    return round(days / _DAYS_A_MONTH)


def _fill_liabilities(filing: _Filing) -> None:
    """Replace missing liabilities by the balance sheet's total less equity (including minorities)."""
    for end, parts in filing.balance.items():
        equity, total = next((parts[tag] for tag in _EQUITY if tag in parts), None), parts.get(_BALANCE)
        key = ("total_liabilities", end)
        if key in filing.candidates or equity is None or total is None or equity.unit != total.unit:
            continue
        assert total.numeric_value is not None, "a fact without a value is no part"
        assert equity.numeric_value is not None, "a fact without a value is no part"
        rest = total.numeric_value - equity.numeric_value
        filing.candidates[key] = [_Candidate(_BALANCE, 0, total.unit, None, None, rest)]


def _best(candidates: list[_Candidate], *, annual: bool) -> _Candidate:
    """Choose among a filing's facts for one item and period: by tag, then dollars first, then by span."""

    def preference(fact: _Candidate) -> tuple[int, bool, float, int]:
        span = 0.0 if fact.months is None else abs(fact.months - (12 if annual else 3))
        # of means over a span, the shortest span is preferred
        return fact.rank, not fact.unit.startswith(("USD", "shares")), span, -fact.began

    return min(candidates, key=preference)


def _resolve_share_counts(candidates: _Candidates) -> dict[str, int]:
    """Replace a filing's share counts, in place, by counts of the whole firm; count those summed and dropped.

    A count without a class is the firm's, else the counts of its classes add up. Several without a class, a
    single class, and one below `_LEAST_OF_MEAN` of the newest mean are dropped, so that the next tag is used.
    """
    summed = partial = 0
    mean: float | None = None
    for period in sorted(period for period in candidates if period[0] == base.SHARE_COUNT):  # by end date
        kept: list[_Candidate] = []
        given = sorted(candidates.pop(period), key=lambda fact: fact.of)
        for _, facts in groupby(given, key=lambda fact: fact.of):
            same = list(facts)
            of_firm = [fact for fact in same if not fact.member]
            by_class = {fact.member: fact.value for fact in same if fact.member}
            distinct = {(fact.member, fact.value) for fact in same if fact.member}
            partial += 1
            if of_firm and len({fact.value for fact in of_firm}) == 1:
                kept.append(of_firm[0])
            elif not of_firm and 1 < len(by_class) == len(distinct):
                kept.append(replace(same[0], value=sum(by_class.values()), member=""))
                summed += 1
        means = [fact for fact in kept if fact.tag == _MEAN]
        mean = max(means, key=lambda fact: fact.began).value if means else mean
        kept = [fact for fact in kept if mean is None or fact.value >= _LEAST_OF_MEAN * mean]
        partial -= len(kept)
        if kept:
            candidates[period] = kept
    return {"summed": summed, "partial": partial}
