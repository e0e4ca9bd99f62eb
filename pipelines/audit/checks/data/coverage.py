"""Rows that are missing, or are there, because of what came after them: of inputs and of prices.

The limits are those of the guard on signal files: :mod:`backtest.look_ahead.coverage`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from backtest.look_ahead.coverage import choice_of_rows, gaps_in_prices
from backtest.look_ahead.profile import session_returns
from pipelines.audit.result import Result, of_findings
from pipelines.audit.series import input_values
from pipelines.audit.subject import Subject

NAME: Final = "coverage"


def check(subject: Subject) -> Result:
    """Compare later returns of the rows that an input lacks, and moves across gaps in the prices."""
    panel, chosen = subject.dataset.panel, subject.columns
    index_TN, traded_TN = panel.total_return_index_TN[:, chosen], panel.traded_TN[:, chosen]
    return_TN = session_returns(index_TN, traded_TN)
    findings = {"the prices": gaps_in_prices(index_TN, traded_TN, return_TN)}
    for name in subject.inputs:
        present_TN = np.isfinite(input_values(subject, name)[:, chosen])
        findings[f"input {name}"] = choice_of_rows(
            present_TN, traded_TN, return_TN, subject.config.label.horizon, f"input {name}"
        )
    return of_findings(NAME, findings, "Later returns do not say which rows are missing")
