"""Size, value, quality and growth from statements, as known at t.

Shape suffixes: T sessions, N firms. ``item[t]`` is the latest value known at t and ``item[1y]`` that of the
period a year earlier, in the version known at t. Flows cover one year
(`features.panel.asof.statements_as_of`). ``market_equity`` is shares outstanding times the raw close and
``debt`` is short-term plus long-term debt.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.rolling import lag
from features.arrays import FloatArray
from features.library.characteristics.amounts import (
    DEBT,
    MARKET_EQUITY,
    NOW,
    SPLIT_REACH,
    YEAR_EARLIER,
    change,
    growth,
    item,
    log_of,
    positive,
    ratio,
    scaled_change,
)
from features.library.characteristics.registry import characteristic
from features.panel.asof import SHARE_COUNT
from features.panel.panel import Panel

ASSETS, EQUITY, REVENUE = item("total_assets"), item("book_equity"), item("revenue")
INCOME, OPERATING_INCOME, GROSS_PROFIT = item("net_income"), item("operating_income"), item("gross_profit")
CASH_FLOW, CAPEX, RESEARCH = (
    item("operating_cash_flow"),
    item("capital_expenditure"),
    item("research_and_development"),
)
CASH, CURRENT_ASSETS, CURRENT_LIABILITIES = item("cash"), item("current_assets"), item("current_liabilities")
LIABILITIES, INVENTORY, FIXED_ASSETS = item("total_liabilities"), item("inventory"), item("fixed_assets")

log_of("log_market_equity", "size", MARKET_EQUITY, "Banz 1981")
log_of("log_total_assets", "size", ASSETS, "Fama and French 1992")
log_of("log_revenue", "size", REVENUE, "Berk 1997")

for _name, _amount, _source in (
    ("book_to_market", EQUITY, "Fama and French 1992"),
    ("earnings_yield", INCOME, "Basu 1977"),
    ("sales_yield", REVENUE, "Barbee, Mukherji and Raines 1996"),
    (
        "cash_flow_yield",
        CASH_FLOW,
        "Lakonishok, Shleifer and Vishny 1994; Desai, Rajgopal and Venkatachalam 2004",
    ),
    (
        "free_cash_flow_yield",
        CASH_FLOW - CAPEX,
        "Lakonishok, Shleifer and Vishny 1994, less capital expenditure",
    ),
    ("dividend_yield", item("dividends_paid"), "Litzenberger and Ramaswamy 1979"),
    ("research_to_market", RESEARCH, "Chan, Lakonishok and Sougiannis 2001"),
    ("cash_to_market", CASH, "Chandrashekar and Rao 2009"),
    ("assets_to_market", ASSETS, "Fama and French 1992"),
    ("debt_to_market", DEBT, "Bhandari 1988"),
):
    ratio(_name, "value", _amount, MARKET_EQUITY, _source)
ratio(
    "operating_income_to_enterprise_value",
    "value",
    OPERATING_INCOME,
    MARKET_EQUITY + DEBT - CASH,
    "Loughran and Wellman 2011",
)

for _name, _amount, _source in (
    ("gross_profitability", GROSS_PROFIT, "Novy-Marx 2013"),
    ("return_on_assets", INCOME, "Balakrishnan, Bartov and Faurel 2010; Hou, Xue and Zhang 2015"),
    ("cash_profitability", CASH_FLOW, "Ball, Gerakos, Linnainmaa and Nikolaev 2016"),
    ("asset_turnover", REVENUE, "Soliman 2008"),
    ("accruals", INCOME - CASH_FLOW, "Sloan 1996; Hribar and Collins 2002"),
    ("research_to_assets", RESEARCH, "Li 2011"),
    ("capex_to_assets", CAPEX, "Titman, Wei and Xie 2004"),
):
    ratio(_name, "quality", _amount, ASSETS, _source, unit="fraction per year")
for _name, _amount, _source in (
    ("leverage", LIABILITIES, "Ohlson 1980"),
    ("debt_to_assets", DEBT, "George and Hwang 2010"),
    ("cash_to_assets", CASH, "Palazzo 2012"),
    ("tangibility", FIXED_ASSETS, "Hahn and Lee 2009"),
    ("retained_earnings_to_assets", item("retained_earnings"), "Altman 1968"),
):
    ratio(_name, "quality", _amount, ASSETS, _source, unit="fraction")
for _name, _amount, _source in (
    ("return_on_equity", INCOME, "Haugen and Baker 1996; Hou, Xue and Zhang 2015"),
    ("operating_profitability", OPERATING_INCOME, "Fama and French 2015, with operating income as profit"),
):
    ratio(_name, "quality", _amount, EQUITY, _source, unit="fraction per year")
for _name, _amount, _source in (
    ("gross_margin", GROSS_PROFIT, "Abarbanell and Bushee 1998"),
    ("operating_margin", OPERATING_INCOME, "Soliman 2008"),
    ("net_margin", INCOME, "Soliman 2008"),
    ("research_to_sales", RESEARCH, "Chan, Lakonishok and Sougiannis 2001"),
):
    ratio(_name, "quality", _amount, REVENUE, _source, unit="fraction of sales")
ratio("current_ratio", "quality", CURRENT_ASSETS, CURRENT_LIABILITIES, "Ou and Penman 1989")
ratio(
    "interest_coverage",
    "quality",
    OPERATING_INCOME,
    item("interest_expense"),
    "Asquith, Gertner and Scharfstein 1994",
)
scaled_change(
    "working_capital_accruals",
    "quality",
    CURRENT_ASSETS - CASH - CURRENT_LIABILITIES + item("short_term_debt"),
    ASSETS,
    "Sloan 1996, before depreciation",
)

for _name, _amount, _source in (
    ("asset_growth", ASSETS, "Cooper, Gulen and Schill 2008"),
    ("revenue_growth", REVENUE, "Lakonishok, Shleifer and Vishny 1994"),
    ("book_equity_growth", EQUITY, "Lockwood and Prombutr 2010"),
    ("research_growth", RESEARCH, "Eberhart, Maxwell and Siddique 2004"),
    ("capex_growth", CAPEX, "Anderson and Garcia-Feijoo 2006"),
):
    growth(_name, _amount, _source)
for _name, _amount, _source in (
    ("inventory_change", INVENTORY, "Thomas and Zhang 2002"),
    ("investment_to_assets", FIXED_ASSETS + INVENTORY, "Lyandres, Sun and Zhang 2008"),
    ("debt_change", DEBT, "Richardson, Sloan, Soliman and Tuna 2005"),
    ("earnings_change", INCOME, "Ball and Brown 1968"),
):
    scaled_change(_name, "growth", _amount, ASSETS, _source)
for _name, _amount, _base, _source in (
    ("gross_margin_change", GROSS_PROFIT, REVENUE, "Abarbanell and Bushee 1998"),
    ("operating_margin_change", OPERATING_INCOME, REVENUE, "Soliman 2008"),
    ("net_margin_change", INCOME, REVENUE, "Soliman 2008"),
    ("return_on_assets_change", INCOME, ASSETS, "Piotroski 2000"),
    ("asset_turnover_change", REVENUE, ASSETS, "Soliman 2008; Piotroski 2000"),
    ("current_ratio_change", CURRENT_ASSETS, CURRENT_LIABILITIES, "Ou and Penman 1989; Piotroski 2000"),
    ("leverage_change", LIABILITIES, ASSETS, "Piotroski 2000"),
    ("cash_change", CASH, ASSETS, "Ou and Penman 1989"),
    ("capex_change", CAPEX, ASSETS, "Titman, Wei and Xie 2004"),
):
    change(_name, _amount, _base, _source)


@characteristic(
    "asset_growth_252",
    "growth",
    needs=("close", "statements:total_assets"),
    warmup=252,
    formula="total_assets[t] / total_assets[t-252] - 1, each as known on its session",
    unit="fraction per year",
    nan_rule="either is not above 0",
    source="Cooper, Gulen and Schill 2008, with the values known at each date",
)
def known_asset_growth(panel: Panel) -> FloatArray:
    """Compute the growth from the assets known 252 sessions ago to those known at t."""
    assets_TN = positive(ASSETS.compute(panel, NOW))
    return assets_TN / lag(assets_TN, 252) - 1.0


@characteristic(
    "net_share_issuance",
    "growth",
    needs=("close", f"statements:{SHARE_COUNT}"),
    window=SPLIT_REACH + 391,  # a year, plus the tolerance for the length of fiscal years
    formula="ln(shares_outstanding[t] / shares_outstanding[1y]), both adjusted for splits up to t",
    unit="log ratio over a year",
    nan_rule="either is not above 0",
    source="Pontiff and Woodgate 2008",
)
def net_share_issuance(panel: Panel) -> FloatArray:
    """Compute the split-adjusted growth of the share count over a year, from issues and buybacks."""
    now_TN, before_TN = (panel.statements[SHARE_COUNT + when] for when in (NOW, YEAR_EARLIER))
    return np.log(positive(now_TN) / positive(before_TN))
