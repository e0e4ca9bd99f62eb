"""Inputs whose windows hold the horizon: what they say beyond past prices, and later returns.

The limits are those of the guard on signal files: :mod:`backtest.look_ahead.beyond`.
"""

from __future__ import annotations

from typing import Final

from backtest.look_ahead.beyond import PastPrices, beyond_past
from backtest.look_ahead.finding import Finding
from backtest.look_ahead.profile import session_returns, standardise
from pipelines.audit.result import Result, of_findings
from pipelines.audit.series import input_values, is_common
from pipelines.audit.subject import Subject

NAME: Final = "beyond_prices"


def check(subject: Subject) -> Result:
    """Explain every input by past prices, and compare what is left with later returns."""
    if not subject.inputs:
        return Result(NAME, "skipped", "The config has no inputs.")
    panel, chosen = subject.dataset.panel, subject.columns
    index_TN, traded_TN = panel.total_return_index_TN[:, chosen], panel.traded_TN[:, chosen]
    past, returns = PastPrices(index_TN), standardise(session_returns(index_TN, traded_TN))
    horizon = subject.config.label.horizon
    findings = {}
    for name in subject.inputs:
        x_TN = input_values(subject, name)[:, chosen]
        x_TN[~traded_TN] = float("nan")
        if is_common(x_TN):
            finding = Finding(NAME, "skipped", "it has one value for all firms of a date")
        else:
            finding = beyond_past(x_TN, past, returns, horizon, f"input {name}")
        findings[f"input {name}"] = finding
    return of_findings(NAME, findings, "What the inputs say beyond past prices tells no later return")
