"""XBRL tags that each canonical statement item is read from, the best tag first.

Taxonomy: FASB US-GAAP (https://xbrl.us/us-gaap) and the SEC's own ``dei`` (document and entity information).
If a filing has several tags for an item and period, the first one in the list is used. Totals come before
their parts: ``Revenues`` is a firm's total revenue, of which contract revenue is only a part (banks,
insurers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pipelines.sources.items import ITEMS

TAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "revenue": (
        "Revenues",
        "RevenueFromContractWithCustomerExcludingAssessedTax",
        "SalesRevenueNet",
        "RevenueFromContractWithCustomerIncludingAssessedTax",
        "RevenuesNetOfInterestExpense",
        "SalesRevenueGoodsNet",
    ),
    "cost_of_revenue": (
        "CostOfRevenue",
        "CostOfGoodsAndServicesSold",
        "CostOfGoodsSold",
        "CostOfServices",
    ),
    "gross_profit": ("GrossProfit",),
    "research_and_development": (
        "ResearchAndDevelopmentExpense",
        "ResearchAndDevelopmentExpenseExcludingAcquiredInProcessCost",
        "ResearchAndDevelopmentExpenseSoftwareExcludingAcquiredInProcessCost",
    ),
    "selling_general_admin": ("SellingGeneralAndAdministrativeExpense",),
    "operating_income": ("OperatingIncomeLoss",),
    "interest_expense": (
        "InterestExpense",
        "InterestExpenseNonoperating",
        "InterestAndDebtExpense",
        "InterestExpenseDebt",
    ),
    "income_tax": ("IncomeTaxExpenseBenefit",),
    # the parent's share; ProfitLoss includes the minority interest
    "net_income": ("NetIncomeLoss", "NetIncomeLossAvailableToCommonStockholdersBasic", "ProfitLoss"),
    "depreciation": (
        "DepreciationDepletionAndAmortization",
        "DepreciationAmortizationAndAccretionNet",
        "DepreciationAndAmortization",
        "Depreciation",
    ),
    "operating_cash_flow": (
        "NetCashProvidedByUsedInOperatingActivities",
        "NetCashProvidedByUsedInOperatingActivitiesContinuingOperations",
    ),
    "capital_expenditure": (  # payments: positive means cash spent, as in the canonical item
        "PaymentsToAcquirePropertyPlantAndEquipment",
        "PaymentsToAcquireProductiveAssets",
    ),
    "dividends_paid": ("PaymentsOfDividends", "PaymentsOfDividendsCommonStock"),
    "eps": ("EarningsPerShareDiluted", "EarningsPerShareBasicAndDiluted", "EarningsPerShareBasic"),
    "total_assets": ("Assets",),
    "current_assets": ("AssetsCurrent",),
    "cash": (
        "CashAndCashEquivalentsAtCarryingValue",
        "CashCashEquivalentsRestrictedCashAndRestrictedCashEquivalents",
        "CashAndDueFromBanks",
        "Cash",
    ),
    "short_term_investments": (
        "ShortTermInvestments",
        "MarketableSecuritiesCurrent",
        "AvailableForSaleSecuritiesDebtSecuritiesCurrent",
        "AvailableForSaleSecuritiesCurrent",
    ),
    "receivables": (
        "ReceivablesNetCurrent",
        "AccountsReceivableNetCurrent",
        "AccountsNotesAndLoansReceivableNetCurrent",
    ),
    "inventory": ("InventoryNet",),
    "fixed_assets": (
        "PropertyPlantAndEquipmentNet",
        "PropertyPlantAndEquipmentAndFinanceLeaseRightOfUseAssetAfterAccumulatedDepreciationAndAmortization",
    ),
    "total_liabilities": ("Liabilities",),
    "current_liabilities": ("LiabilitiesCurrent",),
    "accounts_payable": (
        "AccountsPayableCurrent",
        "AccountsPayableTradeCurrent",
        "AccountsPayableAndAccruedLiabilitiesCurrent",
    ),
    "short_term_debt": (
        "DebtCurrent",
        "LongTermDebtAndCapitalLeaseObligationsCurrent",
        "LongTermDebtCurrent",
        "ShortTermBorrowings",
        "CommercialPaper",
    ),
    "long_term_debt": (
        "LongTermDebtNoncurrent",
        "LongTermDebtAndCapitalLeaseObligations",
        "LongTermDebt",
    ),
    "book_equity": (
        "StockholdersEquity",
        "StockholdersEquityIncludingPortionAttributableToNoncontrollingInterest",
    ),
    "retained_earnings": ("RetainedEarningsAccumulatedDeficit",),
    # the cover page's count as of the cover page's date, which firms with several classes may give only per
    # class (`pipelines.sources.sec.counts`); the mean over the period comes last
    "shares_outstanding": (
        "dei:EntityCommonStockSharesOutstanding",
        "CommonStockSharesOutstanding",
        "WeightedAverageNumberOfSharesOutstandingBasic",
    ),
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
