"""Survivorship bias: a universe that no firm ever leaves was selected with hindsight."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import polars as pl

from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

NAME = "survivorship"
LEAVE_PER_YEAR: Final = 0.05
"""Assumed share of firms that leave per year. For US listed firms it is 5% to 10%, by merger or failure."""
CHANCE: Final = 0.01
"""Probability of so few leavers, if their number is a Poisson variable, below which the check warns: none
where 5 are expected, or 2 where 10 are."""
FEW: Final = 0.2
"""Maximum share of the expected leavers, because the rate itself differs between markets."""
STILL_TRADING: Final = 21


def check(subject: Subject) -> Result:
    """Count the firms that stop trading; warn if there are too few.

    The verdict is not a failure, because features stay causal; but results are biased.
    """
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
    finding = f"{leavers or 'none'} of {firms:,} firms stop trading in {years:.1f} years"
    chance = sum(
        math.exp(k * math.log(max(expected, 1e-9)) - expected - math.lgamma(k + 1))
        for k in range(leavers + 1)
    )
    if leavers <= FEW * expected and chance < CHANCE:
        return Result(
            NAME,
            "warn",
            f"Survivorship bias: {finding}, but about {expected:.0f} are expected (a chance of "
            f"{chance:.1g}). The universe was probably selected with hindsight, so returns are biased "
            "upwards.",
            evidence,
        )
    return Result(NAME, "pass", f"{finding[0].upper()}{finding[1:]}.", evidence)
