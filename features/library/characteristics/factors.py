"""Residuals of returns on statistical factors, averaged over recent sessions.

Shape suffixes: T sessions, N firms. ``e`` is the residual of the day's return on 20 statistical factors
(`features.library.factors`), which are estimated at the start of each month from the 252 sessions before it.
"""

from __future__ import annotations

from features.arithmetic.rolling import rolling_mean, rolling_std
from features.library.characteristics.registry import characteristic
from features.library.characteristics.volatility import half
from features.library.factors import FACTORS, MONTH, WINDOW, factor_residual
from features.library.registry import Compute
from features.panel.derived import daily_return


def _mean_residual(window: int) -> Compute:
    return lambda panel: (
        rolling_mean(factor_residual(panel, FACTORS), window, half(window))
        / rolling_std(daily_return(panel), 63, half(63))
    )


for _window in (1, 2, 3, 5, 10, 21):
    characteristic(
        f"factor_residual_{_window}",
        "reversal",
        warmup=WINDOW + MONTH + _window,
        formula=f"mean(e[t-{_window - 1}..t]) / volatility_63, e the residual of r on 20 factors",
        unit="standard deviations per day",
        nan_rule=f"fewer than {half(_window)} e known; no variation",
        source="Avellaneda and Lee 2010",
    )(_mean_residual(_window))
