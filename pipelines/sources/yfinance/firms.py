"""What Yahoo says of a firm beside its prices: its class, and its last quarterly statements.

Yahoo tells how things are today. What the lake has already heard is therefore never rewritten: a class that
changed holds from the day on which that was learnt, and so does a statement item that was restated.
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
from pipelines.sources.yfinance.prices import Chart, ask, main_unit
from pipelines.sources.yfinance.session import NothingThereError, YahooSession

if TYPE_CHECKING:
    import yfinance

_CLASS: Final = ("name", "sector", "industry", "currency", "exchange")
_QUARTER: Final = dt.timedelta(days=91)
_HALF_YEAR: Final = dt.timedelta(days=150)
_COMPLETE: Final = ("net_income", "total_assets", "operating_cash_flow")
"""An item of each statement: Yahoo often has the income statement days before the others."""

_YAHOO: Final[Mapping[str, tuple[str, ...]]] = {
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
"""Canonical item -> Yahoo's names for it; the first that a period has is taken."""

_SPENT: Final = frozenset({"capital_expenditure", "dividends_paid"})
"""Cash paid out: negative at Yahoo, positive here."""


def read_class(
    ticker: yfinance.Ticker, ours: str, chart: Chart, stored: pl.DataFrame | None, today: dt.date
) -> pl.DataFrame:
    """Ask for a firm's name, sector and industry; rows of ``securities``, none if nothing changed.

    What is learnt of a firm for the first time is taken to have held always; a change holds from today. A
    field that Yahoo leaves out stays as it was stored, and no row ever says that a firm was delisted.

    Parameters
    ----------
    ticker
        yfinance's handle.
    ours
        The ticker that the lake knows it by.
    chart
        Its prices, for what their header says.
    stored
        The lake's rows of ``securities`` that hold still; None if it has none.
    today
        Day on which this is learnt.

    Raises
    ------
    YahooError
        If there is no answer.
    """
    info: Mapping[str, Any] = ask(ticker.get_info)
    said = {
        "name": info.get("longName") or info.get("shortName") or chart.name,
        "sector": info.get("sector"),
        "industry": info.get("industry"),
        "currency": chart.currency,
        "exchange": chart.exchange or info.get("fullExchangeName"),
    }
    old = None if stored is None else stored.filter(pl.col("ticker") == ours).sort("valid_from").tail(1)
    if old is None or old.is_empty():
        rows = [{"ticker": ours, "valid_from": STATIC_SINCE, **said}]
        return pl.DataFrame(rows, schema=_columns(Securities))
    was = old.row(0, named=True)
    now = {**was, **{key: value for key, value in said.items() if value is not None}}
    if all(now[key] == was[key] for key in _CLASS):
        return pl.DataFrame(schema=_columns(Securities))
    now["valid_from"] = max(today, was["valid_from"])
    ended = [] if now["valid_from"] == was["valid_from"] else [{**was, "valid_to": today}]
    return pl.DataFrame([*ended, now], schema=_columns(Securities))


def statements_due(ours: str, stored: pl.DataFrame | None, today: dt.date) -> bool:
    """Tell whether Yahoo may have statements that the lake has not.

    So it is if there are none, if the last period lacks one of the three statements, or if another quarter
    has ended since.
    """
    mine = _of(stored, ours)
    if mine.is_empty():
        return True
    last = mine.filter(pl.col("period_end") == pl.col("period_end").max())
    ended: dt.date = last["period_end"][0]
    return ended + _QUARTER < today or not set(_COMPLETE) <= set(last["item"])


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
    """Ask for the quarterly statements; rows of ``fundamentals`` that the lake has not.

    Yahoo has no filing dates, and overwrites what is restated. So a period that is new is taken as known
    ``lag`` after its end; an item that differs from what is stored, or was not there with the rest of its
    period, is a row of its own that is known from today (or from that assumed day, if it is yet to come).

    Yahoo restates share counts and earnings per share for every later split. These splits are taken off
    again, so that a number is stated as of its period's end, and the same before and after a split. A number
    that equals the stored one is not restated yet.

    Parameters
    ----------
    ticker, session
        yfinance's handle, and the session it was made with.
    ours
        The ticker that the lake knows it by.
    stored
        The lake's statement rows with assumed dates; None if it has none.
    splits
        Day -> ex-date and ratio of all splits since then.
    lag
        Assumed time from a period's end to its publication.
    today
        Day on which this is learnt.

    Raises
    ------
    YahooError
        If there is no answer. A firm without statements is no error.
    """
    found: dict[tuple[dt.date, str], float] = {}
    for question in (ticker.get_income_stmt, ticker.get_balance_sheet, ticker.get_cash_flow):
        try:
            found |= _canonical(ask(question, freq="quarterly"))
        except NothingThereError:
            continue
    mine = _of(stored, ours).sort("known_at")
    heard = {(row["period_end"], row["item"]): row["value"] for row in mine.iter_rows(named=True)}
    periods = {period for period, _ in heard}
    months, currency = _months({period for period, _ in found}), _currency(session, ticker.ticker)
    later = {}
    if split_periods := {period for period, item in found if item in SPLIT_ITEMS}:
        events = splits(min(split_periods))
        later = {
            period: math.prod(ratio for ex_date, ratio in events.items() if period < ex_date <= today)
            for period in split_periods
        }
    rows = []
    for (period, item), told in sorted(found.items()):
        known_value = heard.get((period, item), math.nan)
        value = told * later[period] ** (-1 if item == SHARE_COUNT else 1) if item in SPLIT_ITEMS else told
        if any(math.isclose(known_value, same, rel_tol=1e-9) for same in (value, told)):
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


def _canonical(frame: Any) -> dict[tuple[dt.date, str], float]:  # noqa: ANN401 (pandas has no better type for it)
    """Read yfinance's table (an item a row, a period a column) by period end and canonical item."""
    found: dict[tuple[dt.date, str], float] = {}
    for item, names in _YAHOO.items():
        sign = -1.0 if item in _SPENT else 1.0
        for name in reversed([n for n in names if n in frame.index]):  # the first one last: it stays
            for period, value in frame.loc[name].items():
                if math.isfinite(value):
                    found[period.date(), item] = sign * float(value)
    return found


def _months(periods: set[dt.date]) -> int:
    """Months that a flow covers: Yahoo files the half-years of those who report twice a year as quarters."""
    gaps = [after - before for before, after in pairwise(sorted(periods))]
    return 6 if gaps and min(gaps) >= _HALF_YEAR else 3


def _currency(session: YahooSession, symbol: str) -> str | None:
    """Return the currency of the statements, which may differ from that of the prices."""
    for series in session.answer("timeseries", symbol).get("result") or []:
        for values in series.values():
            for value in values if isinstance(values, list) else []:
                if isinstance(value, dict) and value.get("currencyCode"):
                    return main_unit(value["currencyCode"])[0]
    return None


def _of(stored: pl.DataFrame | None, ours: str) -> pl.DataFrame:
    if stored is None:
        return pl.DataFrame(schema=_columns(Fundamentals))
    return stored.filter(pl.col("ticker") == ours)


def _columns(table: type[Securities | Fundamentals]) -> dict[str, pl.DataType]:
    return {name: column.dtype for name, column in table.columns().items()}
