"""Convert XBRL facts to statement rows: choose facts and spans, and the dates when the market knew them.

Every filing with a fact for an item and period is one version of it: a 10-Q or 10-K, the comparison column of
next year's filing, an amendment. Within a filing, the best tag of an item is used (`TAGS`), with the span of
a year in annual reports and of a quarter in quarterly ones. Cash flows are reported only from the beginning
of the year: the quarter is the difference to the months up to the previous quarter, as known by then.

A split after the period and before the filing has retroactive effect on the statements, comparatives included
(SEC Staff Accounting Bulletin, Topic 4.C; ASC 505-10-S99-4 and ASC 260-10-55-12). Share counts and per-share
amounts are therefore stated as of the filing date. The count on the cover page is stated as of its own date.

A market value needs the shares of all classes, so counts of all classes of stock are summed, and those of a
single class dropped. The mean over the period, which earnings per share are computed with, covers all.

Taxonomy: FASB US-GAAP (https://xbrl.us/us-gaap) and the SEC's own ``dei``. In `TAGS`, the best tag comes
first, and totals before their parts: ``Revenues`` is a firm's total revenue, of which contract revenue is
only a part (banks, insurers).
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Protocol

import polars as pl

from pipelines.lake.schemas import empty
from pipelines.sources.base import FLOWS, ITEMS, SHARE_COUNT, SPLIT_ITEMS

TAGS: Final[Mapping[str, tuple[str, ...]]] = {
    item: tuple(tags.split())
    for item, tags in {
        "revenue": (
            "Revenues RevenueFromContractWithCustomerExcludingAssessedTax SalesRevenueNet "
            "RevenueFromContractWithCustomerIncludingAssessedTax RevenuesNetOfInterestExpense "
            "SalesRevenueGoodsNet"
        ),
        "cost_of_revenue": "CostOfRevenue CostOfGoodsAndServicesSold CostOfGoodsSold CostOfServices",
        "gross_profit": "GrossProfit",
        "research_and_development": (
            "ResearchAndDevelopmentExpense ResearchAndDevelopmentExpenseExcludingAcquiredInProcessCost "
            "ResearchAndDevelopmentExpenseSoftwareExcludingAcquiredInProcessCost"
        ),
        "selling_general_admin": "SellingGeneralAndAdministrativeExpense",
        "operating_income": "OperatingIncomeLoss",
        "interest_expense": (
            "InterestExpense InterestExpenseNonoperating InterestAndDebtExpense InterestExpenseDebt"
        ),
        "income_tax": "IncomeTaxExpenseBenefit",
        # the parent's share; ProfitLoss includes the minority interest
        "net_income": "NetIncomeLoss NetIncomeLossAvailableToCommonStockholdersBasic ProfitLoss",
        "depreciation": (
            "DepreciationDepletionAndAmortization DepreciationAmortizationAndAccretionNet "
            "DepreciationAndAmortization Depreciation"
        ),
        "operating_cash_flow": (
            "NetCashProvidedByUsedInOperatingActivities "
            "NetCashProvidedByUsedInOperatingActivitiesContinuingOperations"
        ),
        # payments: positive means cash spent, as in the canonical item
        "capital_expenditure": (
            "PaymentsToAcquirePropertyPlantAndEquipment PaymentsToAcquireProductiveAssets"
        ),
        "dividends_paid": "PaymentsOfDividends PaymentsOfDividendsCommonStock",
        "eps": "EarningsPerShareDiluted EarningsPerShareBasicAndDiluted EarningsPerShareBasic",
        "total_assets": "Assets",
        "current_assets": "AssetsCurrent",
        "cash": (
            "CashAndCashEquivalentsAtCarryingValue "
            "CashCashEquivalentsRestrictedCashAndRestrictedCashEquivalents CashAndDueFromBanks Cash"
        ),
        "short_term_investments": (
            "ShortTermInvestments MarketableSecuritiesCurrent "
            "AvailableForSaleSecuritiesDebtSecuritiesCurrent AvailableForSaleSecuritiesCurrent"
        ),
        "receivables": (
            "ReceivablesNetCurrent AccountsReceivableNetCurrent AccountsNotesAndLoansReceivableNetCurrent"
        ),
        "inventory": "InventoryNet",
        "fixed_assets": (
            "PropertyPlantAndEquipmentNet "
            "PropertyPlantAndEquipmentAndFinanceLeaseRightOfUseAssetAfterAccumulatedDepreciationAndAmortization"
        ),
        "total_liabilities": "Liabilities",
        "current_liabilities": "LiabilitiesCurrent",
        "accounts_payable": (
            "AccountsPayableCurrent AccountsPayableTradeCurrent AccountsPayableAndAccruedLiabilitiesCurrent"
        ),
        "short_term_debt": (
            "DebtCurrent LongTermDebtAndCapitalLeaseObligationsCurrent LongTermDebtCurrent "
            "ShortTermBorrowings CommercialPaper"
        ),
        "long_term_debt": "LongTermDebtNoncurrent LongTermDebtAndCapitalLeaseObligations LongTermDebt",
        "book_equity": (
            "StockholdersEquity StockholdersEquityIncludingPortionAttributableToNoncontrollingInterest"
        ),
        "retained_earnings": "RetainedEarningsAccumulatedDeficit",
        # the cover page's count as of its date, which firms with several classes may give only per class;
        # the mean over the period comes last
        "shares_outstanding": (
            "dei:EntityCommonStockSharesOutstanding CommonStockSharesOutstanding "
            "WeightedAverageNumberOfSharesOutstandingBasic"
        ),
    }.items()
}
assert set(TAGS) == set(ITEMS), "every canonical item needs tags"

COVER: Final = "dei:EntityCommonStockSharesOutstanding"
"""The count on the cover page, which is stated as of its own date."""

AVERAGES: Final = frozenset({"us-gaap:WeightedAverageNumberOfSharesOutstandingBasic"})
"""Tags that cover a span and are used as a count at its end."""


def ranked_tags() -> dict[str, tuple[str, int]]:
    """Return qualified tag -> (item, rank); rank 0 is the best."""
    return {
        tag if ":" in tag else f"us-gaap:{tag}": (item, rank)
        for item, tags in TAGS.items()
        for rank, tag in enumerate(tags)
    }


FORMS: Final = ("10-K", "10-Q", "10-KT", "10-QT", "20-F", "40-F")
_ANNUAL: Final = frozenset({"10-K", "10-KT", "20-F", "40-F"})
_AMENDED: Final = "/A"
_CLOSE: Final = dt.time(16, 0)
_DAYS_A_MONTH: Final = 365.25 / 12.0
_TAGS: Final = ranked_tags()
_CLASS_AXIS: Final = "StatementClassOfStockAxis"
_BALANCE: Final = "us-gaap:LiabilitiesAndStockholdersEquity"
_EQUITY: Final = (
    "us-gaap:StockholdersEquityIncludingPortionAttributableToNoncontrollingInterest",
    "us-gaap:StockholdersEquity",
)
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
    """Rows for the lake's ``fundamentals``, one per period, publication date and item.

    ``counts`` are numbers of quarters that are differences of two spans (``derived``), of versions dropped
    for a later one of the same date (``superseded``), of filings without an acceptance time (``undated``),
    and of share counts that are sums over classes (``summed``) or dropped because they cover one class or an
    unknown one (``partial``). ``foreign`` are the currencies other than the dollar.
    """

    rows: pl.DataFrame
    counts: Counter[str]
    foreign: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Filing:
    accession: str
    annual: bool
    amended: bool
    known_at: dt.date
    released: dt.date  # its statements include the splits up to this date
    order: tuple[dt.date, dt.datetime, str]


_Span = tuple[str, str, dt.date, int]  # tag, unit, start, months


def known_on(filed: dt.date, accepted: dt.datetime | None) -> dt.date:
    """Return the first date by whose close the market could know a filing.

    It is the date of acceptance before 16:00, otherwise the next one; never before the official filing date,
    which EDGAR sets to the next business day after 17:30. The time is read as New York time. The SEC's feed
    marks it as UTC, which is correct for most filers but not for all; New York is the later reading, so
    nothing is known too early. Without an acceptance time, it is the day after the filing date.
    """
    if accepted is None:
        return filed + dt.timedelta(days=1)
    late = accepted.time() >= _CLOSE
    return max(filed, accepted.date() + dt.timedelta(days=late))


def statement_rows(
    ticker: str, facts: Iterable[Fact], accepted: Mapping[str, dt.datetime], since: dt.date
) -> FiledStatements:
    """Convert a firm's facts to statement rows that became known since a date.

    ``accepted`` is accession number -> acceptance time without a zone. ``filing_id`` is the accession number,
    followed by /A for an amendment; ``months`` is the span of a flow, null for an instant; ``stated_on`` is
    the last date whose splits are included in a count or per-share amount. No publication date is assumed.
    """
    filings, periods, counts = _sort_into_filings(facts, accepted)
    counts["undated"] = sum(accession not in accepted for accession in filings)
    spans: dict[_Span, float] = {}
    rows: dict[tuple[str, dt.date, dt.date], tuple[object, ...]] = {}
    foreign: set[str] = set()
    for filing in sorted(filings.values(), key=lambda filing: filing.order):
        own = periods[filing.accession]
        for candidates in own.values():
            for fact in candidates:
                if fact.start is not None and fact.months is not None:
                    spans[fact.tag, fact.unit, fact.start, fact.months] = fact.value
        for (item, end), candidates in own.items():
            best = _best(candidates, annual=filing.annual)
            quarter = None if filing.annual or item == "eps" else _last_quarter(best, spans)
            if filing.known_at < since:
                continue
            if best.unit[:3].isupper() and not best.unit.startswith("USD"):
                foreign.add(best.unit[:3])
            key = (item, end, filing.known_at)
            counts.update(derived=quarter is not None, superseded=key in rows)
            rows[key] = (
                ticker,
                end,
                filing.known_at,
                item,
                best.value if quarter is None else quarter,
                best.unit,
                filing.accession + (_AMENDED if filing.amended else ""),
                best.months if quarter is None else 3,
                _stated_on(item, best, end, filing),
                False,
            )
    frame = pl.DataFrame(list(rows.values()), schema=_SCHEMA, orient="row")
    return FiledStatements(frame.sort("item", "period_end", "known_at"), counts, frozenset(foreign))


def _stated_on(item: str, fact: FactCandidate, end: dt.date, filing: _Filing) -> dt.date | None:
    """Return the last date whose splits a count or per-share amount includes; None for other items."""
    if item not in SPLIT_ITEMS:
        return None
    return end if fact.tag == COVER else max(end, filing.released)


def _sort_into_filings(
    facts: Iterable[Fact], accepted: Mapping[str, dt.datetime]
) -> tuple[dict[str, _Filing], dict[str, dict[Period, list[FactCandidate]]], Counter[str]]:
    """Group usable facts by filing, item and period, and count how share counts were resolved."""
    filings: dict[str, _Filing] = {}
    periods: dict[str, dict[Period, list[FactCandidate]]] = {}
    balance: dict[str, dict[dt.date, dict[str, Fact]]] = {}
    for fact in facts:
        form = fact.form_type.removesuffix(_AMENDED)
        if form not in FORMS or fact.numeric_value is None:
            continue
        if not fact.dimensions and (fact.concept == _BALANCE or fact.concept in _EQUITY):
            balance.setdefault(fact.accession, {}).setdefault(fact.period_end, {})[fact.concept] = fact
        candidate = _candidate(fact)
        if candidate is None:
            continue
        if fact.accession not in filings:
            when = accepted.get(fact.accession)
            known_at = known_on(fact.filing_date, when)
            filings[fact.accession] = _Filing(
                accession=fact.accession,
                annual=form in _ANNUAL,
                amended=fact.form_type.endswith(_AMENDED),
                known_at=known_at,
                released=fact.filing_date if when is None else min(fact.filing_date, when.date()),
                order=(known_at, when or dt.datetime.combine(known_at, dt.time.max), fact.accession),
            )
        item = _TAGS[fact.concept][0]
        periods.setdefault(fact.accession, {}).setdefault((item, fact.period_end), []).append(candidate)
    counts = Counter[str]()
    for accession, own in periods.items():
        _fill_liabilities(own, balance.get(accession, {}))
        summed, partial = resolve_share_counts(own)
        counts.update(summed=summed, partial=partial)
    return filings, periods, counts


def _candidate(fact: Fact) -> FactCandidate | None:
    """Return a fact as a candidate for an item; None if no item has this tag and kind of span."""
    item, rank = _TAGS.get(fact.concept, ("", 0))
    if not item or fact.numeric_value is None:
        return None
    member = ""
    if fact.dimensions:  # a part of the firm; the only parts that can be added up are classes of stock
        axes = list(fact.dimensions.items())
        if item != SHARE_COUNT or len(axes) > 1 or not axes[0][0].endswith(_CLASS_AXIS):
            return None
        member = axes[0][1]
    months = None
    if fact.period_start is not None:
        days = (fact.period_end - fact.period_start).days + 1
        months = round(days / _DAYS_A_MONTH)
    if fact.concept in AVERAGES:
        return FactCandidate(
            fact.concept, rank, fact.unit, fact.period_start, None, fact.numeric_value, member
        )
    if (months is None) == (item in FLOWS) or months == 0:
        return None
    return FactCandidate(fact.concept, rank, fact.unit, fact.period_start, months, fact.numeric_value, member)


def _fill_liabilities(
    own: dict[Period, list[FactCandidate]], balance: Mapping[dt.date, Mapping[str, Fact]]
) -> None:
    """Replace missing liabilities by the balance sheet's total less equity (including minorities)."""
    for end, parts in balance.items():
        equity = next((parts[tag] for tag in _EQUITY if tag in parts), None)
        total = parts.get(_BALANCE)
        if ("total_liabilities", end) in own or equity is None or total is None:
            continue
        if equity.unit != total.unit or total.numeric_value is None or equity.numeric_value is None:
            continue
        rest = total.numeric_value - equity.numeric_value
        own["total_liabilities", end] = [FactCandidate(_BALANCE, 0, total.unit, None, None, rest)]


def _best(candidates: list[FactCandidate], *, annual: bool) -> FactCandidate:
    """Choose among a filing's facts for one item and period: by tag, then dollars first, then by span."""

    def preference(fact: FactCandidate) -> tuple[int, bool, float, int]:
        months = 12 if annual else 3
        days = 0 if fact.start is None else -fact.start.toordinal()  # prefer the mean over the shortest span
        span = 0.0 if fact.months is None else abs(fact.months - months)
        return fact.rank, not fact.unit.startswith(("USD", "shares")), span, days

    return min(candidates, key=preference)


def _last_quarter(fact: FactCandidate, spans: Mapping[_Span, float]) -> float | None:
    """Return the last quarter of a span of six or nine months; None if the months before are unknown."""
    if fact.months not in (6, 9) or fact.start is None:
        return None
    before = spans.get((fact.tag, fact.unit, fact.start, fact.months - 3))
    return None if before is None else fact.value - before


LEAST_OF_MEAN: Final = 0.5
"""A count below this fraction of the mean over the period covers a single class, or is in another unit: no
firm buys back half of its shares before the date of the cover page, and a split in between changes the mean
too."""


@dataclass(frozen=True, slots=True)
class FactCandidate:
    """A fact that may become the value of an item; ``months`` is None for an instant."""

    tag: str
    rank: int
    unit: str
    start: dt.date | None
    months: int | None
    value: float
    member: str = ""  # the class of stock, if the count covers a single class


Period = tuple[str, dt.date]  # item, period's end


def resolve_share_counts(candidates: dict[Period, list[FactCandidate]]) -> tuple[int, int]:
    """Replace a filing's share counts, in place, by counts of the whole firm; count those summed and dropped.

    Among facts of one tag and instant, a count without a class is the firm's. If there is none, the counts of
    two or more classes are added up. Several different counts without a class, a single class, and a count
    below `LEAST_OF_MEAN` times the newest mean of the filing up to that date are dropped, so that the next
    best tag is used.
    """
    periods = sorted(period for period in candidates if period[0] == SHARE_COUNT)
    by_period = {period: candidates.pop(period) for period in periods}
    of_firm = {period: list(_whole_firm_counts(counts)) for period, counts in by_period.items()}
    summed = sum(bool(one.member) for counts in of_firm.values() for one in counts)
    partial = sum(len(_by_tag(by_period[period])) - len(of_firm[period]) for period in periods)
    mean: float | None = None
    for period in periods:  # ascending by end date
        means = [one for one in of_firm[period] if one.tag in AVERAGES]
        mean = max(means, key=_start).value if means else mean
        kept = [one for one in of_firm[period] if mean is None or one.value >= LEAST_OF_MEAN * mean]
        kept = [replace(one, member="") for one in kept]
        partial += len(of_firm[period]) - len(kept)
        if kept:
            candidates[period] = kept
    return summed, partial


def _whole_firm_counts(candidates: list[FactCandidate]) -> Iterator[FactCandidate]:
    """Yield the firm's count for each tag, unit and span; a sum over classes keeps the name of a class."""
    for facts in _by_tag(candidates):
        classes = {fact.member: fact.value for fact in facts if fact.member}
        firm = {fact.value for fact in facts if not fact.member}
        values = {(fact.member, fact.value) for fact in facts if fact.member}
        if len(firm) == 1:
            yield next(fact for fact in facts if not fact.member)
        elif not firm and len(classes) > 1 and len(values) == len(classes):
            yield replace(facts[0], value=sum(classes.values()))


def _by_tag(candidates: list[FactCandidate]) -> list[list[FactCandidate]]:
    def key(fact: FactCandidate) -> tuple[str, str, int]:
        return fact.tag, fact.unit, _start(fact)

    return [list(facts) for _, facts in groupby(sorted(candidates, key=key), key=key)]


def _start(fact: FactCandidate) -> int:
    return 0 if fact.start is None else fact.start.toordinal()
