"""The canonical names of statement items: every source maps to them and every feature reads them.

Amounts are in the statement's currency. ``shares_outstanding`` is a count, and ``eps`` an amount per share;
both include the splits up to the row's ``stated_on``, or up to the end of the period if that is null. Flows
cover the number of months given in the row.
"""

from __future__ import annotations

from typing import Final

FLOWS: Final = (
    "revenue",
    "cost_of_revenue",
    "gross_profit",
    "research_and_development",
    "selling_general_admin",
    "operating_income",
    "interest_expense",
    "income_tax",
    "net_income",
    "depreciation",
    "operating_cash_flow",
    "capital_expenditure",  # positive: cash spent
    "dividends_paid",  # positive: cash paid
    "eps",
)
STOCKS: Final = (
    "total_assets",
    "current_assets",
    "cash",  # including cash equivalents
    "short_term_investments",
    "receivables",
    "inventory",
    "fixed_assets",
    "total_liabilities",
    "current_liabilities",
    "accounts_payable",
    "short_term_debt",
    "long_term_debt",
    "book_equity",
    "retained_earnings",
    "shares_outstanding",
)
ITEMS: Final = (*FLOWS, *STOCKS)
SHARE_COUNT: Final = "shares_outstanding"
SPLIT_ITEMS: Final = (SHARE_COUNT, "eps")
"""Items that a split rescales."""
