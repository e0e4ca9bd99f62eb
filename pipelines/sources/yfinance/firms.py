"""Yahoo's data about a firm except its prices: classification and latest quarterly statements.

Yahoo describes the present. What the lake already holds is therefore never rewritten: a changed
classification is valid from the day on which it was learnt, and so is a restated statement item.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from pipelines.lake.source_tables import Fundamentals, Securities
from pipelines.sources.items import FLOWS, SHARE_COUNT, SPLIT_ITEMS
from pipelines.sources.sample import STATIC_SINCE
from pipelines.sources.yfinance.prices import Chart, call_yfinance, main_unit
from pipelines.sources.yfinance.session import NoDataError, YahooSession

if TYPE_CHECKING:
    import yfinance

_CLASSIFICATION: Final = ("name", "sector", "industry", "currency", "exchange")
_QUARTER: Final = dt.timedelta(days=91)
_HALF_YEAR: Final = dt.timedelta(days=150)
_ONE_PER_STATEMENT: Final = ("net_income", "total_assets", "operating_cash_flow")
"""One item of each statement: Yahoo often has the income statement days before the others."""

_YAHOO_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "revenue": ("TotalRevenue", "OperatingRevenue"),
    "cost_of_revenue": ("CostOfRevenue",),
    "gross_profit": ("GrossProfit",),
    "research_and_development": ("ResearchAndDevelopment",),
    "selling_general_admin": ("SellingGeneralAndAdministration",),
    "operating_income": ("OperatingIncome",),
    "interest_expense": ("InterestExpense",),
    "income_tax": ("TaxProvision",),
    "net_income": ("NetIncome",),
    "eps": ("DilutedEPS", "BasicEPS"),
    "depreciation": ("DepreciationAndAmortization", "DepreciationAmortizationDepletion"),
    "operating_cash_flow": ("OperatingCashFlow",),
    "capital_expenditure": ("CapitalExpenditure",),
    "dividends_paid": ("CashDividendsPaid", "CommonStockDividendPaid"),
    "total_assets": ("TotalAssets",),
    "current_assets": ("CurrentAssets",),
    "cash": ("CashAndCashEquivalents",),
    "short_term_investments": ("OtherShortTermInvestments",),
    "receivables": ("Receivables", "AccountsReceivable"),
    "inventory": ("Inventory",),
    "fixed_assets": ("NetPPE",),
    "total_liabilities": ("TotalLiabilitiesNetMinorityInterest",),
    "current_liabilities": ("CurrentLiabilities",),
    "accounts_payable": ("AccountsPayable",),
    "short_term_debt": ("CurrentDebt", "CurrentDebtAndCapitalLeaseObligation"),
    "long_term_debt": ("LongTermDebt", "LongTermDebtAndCapitalLeaseObligation"),
    "book_equity": ("StockholdersEquity", "CommonStockEquity"),
    "retained_earnings": ("RetainedEarnings",),
    "shares_outstanding": ("OrdinarySharesNumber", "ShareIssued"),
}
"""Canonical item -> Yahoo's names for it; the first name that a period has is used."""

_CASH_PAID: Final = frozenset({"capital_expenditure", "dividends_paid"})
"""Cash paid out: negative in Yahoo's data, positive here."""


def read_classification(
    ticker: yfinance.Ticker, ours: str, chart: Chart, stored: pl.DataFrame | None, today: dt.date
) -> pl.DataFrame:
    """Request a firm's name, sector and industry, as rows of ``securities``; no rows if nothing changed.

    The first known values are assumed to have always been valid; a change is valid from today. A field that
    Yahoo omits keeps its stored value, and no row ever records a delisting.

    Parameters
    ----------
    ticker
        yfinance's handle.
    ours
        The ticker in the lake.
    chart
        Its prices, of which the header is used.
    stored
        The lake's rows of ``securities`` that are still valid; None if it has none.
    today
        Date of the request.

    Raises
    ------
    YahooError
        If there is no answer.
    """
    info: Mapping[str, Any] = call_yfinance(ticker.get_info)
    reported = {
        "name": info.get("longName") or info.get("shortName") or chart.name,
        "sector": info.get("sector"),
        "industry": info.get("industry"),
        "currency": chart.currency,
        "exchange": chart.exchange or info.get("fullExchangeName"),
    }
    old = None if stored is None else stored.filter(pl.col("ticker") == ours).sort("valid_from").tail(1)
    if old is None or old.is_empty():
        rows = [{"ticker": ours, "valid_from": STATIC_SINCE, **reported}]
        return pl.DataFrame(rows, schema=_columns(Securities))
    was = old.row(0, named=True)
    now = {**was, **{key: value for key, value in reported.items() if value is not None}}
    if all(now[key] == was[key] for key in _CLASSIFICATION):
        return pl.DataFrame(schema=_columns(Securities))
    now["valid_from"] = max(today, was["valid_from"])
    ended = [] if now["valid_from"] == was["valid_from"] else [{**was, "valid_to": today}]
    return pl.DataFrame([*ended, now], schema=_columns(Securities))


def statements_due(ours: str, stored: pl.DataFrame | None, today: dt.date) -> bool:
    """Return whether Yahoo may have statements that the lake lacks.

    This is the case if the lake has none, if the last period lacks one of the three statements, or if another
    quarter has ended since.
    """
    own = _rows_of(stored, ours)
    if own.is_empty():
        return True
    last = own.filter(pl.col("period_end") == pl.col("period_end").max())
    ended: dt.date = last["period_end"][0]
    return ended + _QUARTER < today or not set(_ONE_PER_STATEMENT) <= set(last["item"])


def read_statements(
    ticker: yfinance.Ticker,
    session: YahooSession,
    ours: str,
    stored: pl.DataFrame | None,
    splits: Callable[[dt.date], Mapping[dt.date, float]],
    *,
    lag: dt.timedelta,
    today: dt.date,
) -> pl.DataFrame:
    """Request the quarterly statements, as rows of ``fundamentals`` that the lake lacks.

    Yahoo has no filing dates and overwrites restated values. A new period is therefore assumed to be known
    ``lag`` after its end. An item that differs from the stored value, or was missing from its period, becomes
    a separate row that is known from today (or from the assumed date, if that is in the future).

    Yahoo restates share counts and earnings per share for every later split. These splits are undone, so that
    a number is stated as of the end of its period and is the same before and after a split. If
    Yahoo's number equals the stored one, Yahoo has not restated it yet.

    Parameters
    ----------
    ticker, session
        yfinance's handle, and the session that it was created with.
    ours
        The ticker in the lake.
    stored
        The lake's statement rows with assumed dates; None if it has none.
    splits
        Date -> ex-date and ratio of all splits since then.
    lag
        Assumed time from the end of a period to its publication.
    today
        Date of the request.

    Raises
    ------
    YahooError
        If there is no answer. A firm without statements is no error.
    """
    values_by_period: dict[tuple[dt.date, str], float] = {}
    for method in (ticker.get_income_stmt, ticker.get_balance_sheet, ticker.get_cash_flow):
        try:
            values_by_period |= _canonical(call_yfinance(method, freq="quarterly"))
        except NoDataError:
            continue
    own = _rows_of(stored, ours).sort("known_at")
    stored_values = {(row["period_end"], row["item"]): row["value"] for row in own.iter_rows(named=True)}
    periods = {period for period, _ in stored_values}
    months, currency = _months({period for period, _ in values_by_period}), _currency(session, ticker.ticker)
    later = {}
    if split_periods := {period for period, item in values_by_period if item in SPLIT_ITEMS}:
        events = splits(min(split_periods))
        later = {
            period: math.prod(ratio for ex_date, ratio in events.items() if period < ex_date <= today)
            for period in split_periods
        }
    rows = []
    for (period, item), reported_value in sorted(values_by_period.items()):
        known_value = stored_values.get((period, item), math.nan)
        value = (
            reported_value * later[period] ** (-1 if item == SHARE_COUNT else 1)
            if item in SPLIT_ITEMS
            else reported_value
        )
        if any(math.isclose(known_value, same, rel_tol=1e-9) for same in (value, reported_value)):
            continue
        published = period + lag
        rows.append(
            {
                "ticker": ours,
                "period_end": period,
                "known_at": max(published, today) if period in periods else published,
                "item": item,
                "value": value,
                "unit": "shares" if item == SHARE_COUNT else currency,
                "months": months if item in FLOWS else None,
                "stated_on": period if item in SPLIT_ITEMS else None,
                "assumed": True,
            }
        )
    return pl.DataFrame(rows, schema=_columns(Fundamentals))


def _canonical(frame: Any) -> dict[tuple[dt.date, str], float]:  # noqa: ANN401 (yfinance is not typed)
    """Convert yfinance's table of items by period to (period end, canonical item) -> value."""
    values_by_period: dict[tuple[dt.date, str], float] = {}
    for item, names in _YAHOO_NAMES.items():
        sign = -1.0 if item in _CASH_PAID else 1.0
        for name in reversed(
            [n for n in names if n in frame.index]
        ):  # the preferred name last: it overwrites the others
            for period, value in frame.loc[name].items():
                if math.isfinite(value):
                    values_by_period[period.date(), item] = sign * float(value)
    return values_by_period


def _months(periods: set[dt.date]) -> int:
    """Return the months that a flow covers: Yahoo files half-yearly statements as quarters."""
    gaps = [after - before for before, after in pairwise(sorted(periods))]
    return 6 if gaps and min(gaps) >= _HALF_YEAR else 3


def _currency(session: YahooSession, symbol: str) -> str | None:
    """Return the currency of the statements, which may differ from the currency of the prices."""
    for series in session.answer("timeseries", symbol).get("result") or []:
        for values in series.values():
            for value in values if isinstance(values, list) else []:
                if isinstance(value, dict) and value.get("currencyCode"):
                    return main_unit(value["currencyCode"])[0]
    return None


def _rows_of(stored: pl.DataFrame | None, ours: str) -> pl.DataFrame:
    if stored is None:
        return pl.DataFrame(schema=_columns(Fundamentals))
    return stored.filter(pl.col("ticker") == ours)


def _columns(table: type[Securities | Fundamentals]) -> dict[str, pl.DataType]:
    return {name: column.dtype for name, column in table.columns().items()}
