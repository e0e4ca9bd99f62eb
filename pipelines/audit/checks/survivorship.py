"""Survivorship: a universe that nobody ever leaves was drawn up by somebody who knew who would stay."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

NAME = "survivorship"
LEAVE_PER_YEAR: Final = 0.05
"""Share of US listed firms that leave their exchange in a year, by merger or failure, is 5% to 10%."""
EXPECTED: Final = 5.0
"""Expected leavers from which on nearly none is no chance: exp(-5) is less than 1 in 100."""
FEW: Final = 0.1
STILL_TRADING: Final = 21


def check(subject: Subject) -> Result:
    """Count the firms that stop trading; a hazard, not a failure: features stay causal, results flatter."""
    panel = subject.dataset.panel
    ever_N = subject.dataset.universe_TN.any(axis=0)
    traded_TN = np.isfinite(panel.close_TN[:, ever_N])
    last_N = len(traded_TN) - 1 - traded_TN[::-1].argmax(axis=0)
    leavers = int((last_N < len(traded_TN) - STILL_TRADING).sum())
    years = float((panel.dates_T[-1] - panel.dates_T[0]).astype("timedelta64[D]").astype(int)) / 365.25
    firms = int(ever_N.sum())
    expected = LEAVE_PER_YEAR * firms * years
    evidence = pl.DataFrame(
        [{"firms": firms, "years": years, "leavers": leavers, "expected_leavers": expected}]
    )
    said = f"{leavers or 'none'} of {firms:,} firms stop trading in {years:.1f} years"
    if expected >= EXPECTED and leavers <= FEW * expected:
        return Result(
            NAME,
            "warn",
            f"Survivorship: {said}, where some {expected:.0f} would be expected; whoever chose them knew "
            "who would stay, and every return here is flattered.",
            evidence,
        )
    return Result(NAME, "pass", f"{said[0].upper()}{said[1:]}.", evidence)
