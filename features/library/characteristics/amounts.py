"""Amounts from statements, and the formulas that combine one or two of them into a characteristic.

An amount has its latest value (``x[t]``) and its value a year earlier (``x[1y]``,
`features.panel.asof.statements_as_of`). Flows cover one year. Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from features.arrays import FloatArray
from features.library.characteristics.registry import characteristic
from features.panel.asof import SHARE_COUNT, STALE_DAYS
from features.panel.derived import cached_per_panel
from features.panel.panel import Panel

SPLIT_REACH = STALE_DAYS + 1
"""Sessions that a share count can depend on: all splits since its period's end, at one session per day."""
NOW, YEAR_EARLIER = "", "@1y"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number from a firm's statements, in the statements' unit.

    Attributes
    ----------
    text : str
        Its name in formulas.
    items : tuple of str
        Statement items that it is computed from.
    compute : callable
        Panel and time (`NOW` or `YEAR_EARLIER`) -> array of shape (T, N).
    window : int
        Sessions, t included, that it depends on.
    """

    text: str
    items: tuple[str, ...]
    compute: Callable[[Panel, str], FloatArray]
    window: int = 1

    def at(self, when: str) -> str:
        """Format the amount at a time for a formula."""
        return f"{self.text}[{'t' if when == NOW else '1y'}]"

    def __add__(self, other: Amount) -> Amount:
        """Add two amounts; unknown where either is unknown."""
        return self._with(
            other, "+", lambda panel, when: self.compute(panel, when) + other.compute(panel, when)
        )

    def __sub__(self, other: Amount) -> Amount:
        """Subtract an amount; unknown where either is unknown."""
        return self._with(
            other, "-", lambda panel, when: self.compute(panel, when) - other.compute(panel, when)
        )

    def _with(self, other: Amount, sign: str, compute: Callable[[Panel, str], FloatArray]) -> Amount:
        text = f"({self.text.strip('()')} {sign} {other.text})"
        return Amount(text, (*self.items, *other.items), compute, max(self.window, other.window))


def item(name: str) -> Amount:
    """Return a statement item as an amount."""
    return Amount(name, (name,), lambda panel, when: panel.statements[name + when])


def positive(x_TN: FloatArray) -> FloatArray:
    """Keep values above 0, which can be denominators; NaN elsewhere."""
    return np.where(x_TN > 0, x_TN, np.nan)


@cached_per_panel
def market_equity(panel: Panel) -> FloatArray:
    """Compute split-adjusted shares outstanding times the raw close, in the price's currency."""
    return positive(panel.statements[SHARE_COUNT]) * panel.raw_close_TN


def _market_equity_now(panel: Panel, when: str) -> FloatArray:
    assert when == NOW, "market equity has no value a year earlier"
    return market_equity(panel)


def _debt(panel: Panel, when: str) -> FloatArray:
    short_TN, long_TN = (panel.statements[f"{term}_term_debt{when}"] for term in ("short", "long"))
    neither_TN = np.isnan(short_TN) & np.isnan(long_TN)
    return np.where(neither_TN, np.nan, np.nan_to_num(short_TN) + np.nan_to_num(long_TN))


MARKET_EQUITY = Amount("market_equity", (SHARE_COUNT,), _market_equity_now, SPLIT_REACH)
DEBT = Amount("debt", ("short_term_debt", "long_term_debt"), _debt)
"""Short-term plus long-term debt. An unknown one counts as 0, because firms omit items that they lack."""


def _needs(*amounts: Amount) -> tuple[str, ...]:
    return ("close", *(f"statements:{name}" for amount in amounts for name in amount.items))


def _rule(of: str) -> str:
    return f"{of} is not above 0"


def ratio(name: str, family: str, a: Amount, b: Amount, source: str, *, unit: str = "ratio") -> None:
    """Register ``a[t] / b[t]``, NaN unless b is positive."""
    characteristic(
        name,
        family,
        needs=_needs(a, b),
        window=max(a.window, b.window),
        formula=f"{a.at(NOW)} / {b.at(NOW)}",
        unit=unit,
        nan_rule=_rule(b.at(NOW)),
        source=source,
    )(lambda panel: a.compute(panel, NOW) / positive(b.compute(panel, NOW)))


def log_of(name: str, family: str, a: Amount, source: str) -> None:
    """Register ``ln(a[t])``."""
    characteristic(
        name,
        family,
        needs=_needs(a),
        window=a.window,
        formula=f"ln({a.at(NOW)})",
        unit="log currency",
        nan_rule=_rule(a.at(NOW)),
        source=source,
    )(lambda panel: np.log(positive(a.compute(panel, NOW))))


def growth(name: str, a: Amount, source: str) -> None:
    """Register ``a[t] / a[1y] - 1`` in the family growth, NaN unless ``a[1y]`` is positive."""
    characteristic(
        name,
        "growth",
        needs=_needs(a),
        formula=f"{a.at(NOW)} / {a.at(YEAR_EARLIER)} - 1",
        unit="fraction per year",
        nan_rule=_rule(a.at(YEAR_EARLIER)),
        source=source,
    )(lambda panel: a.compute(panel, NOW) / positive(a.compute(panel, YEAR_EARLIER)) - 1.0)


def change(name: str, a: Amount, b: Amount, source: str) -> None:
    """Register the change of ``a / b`` over a year in the family growth, NaN unless both b are positive."""

    def compute(panel: Panel) -> FloatArray:
        now_TN = a.compute(panel, NOW) / positive(b.compute(panel, NOW))
        return now_TN - a.compute(panel, YEAR_EARLIER) / positive(b.compute(panel, YEAR_EARLIER))

    characteristic(
        name,
        "growth",
        needs=_needs(a, b),
        formula=f"{a.at(NOW)} / {b.at(NOW)} - {a.at(YEAR_EARLIER)} / {b.at(YEAR_EARLIER)}",
        unit="change of the ratio over a year",
        nan_rule=f"{b.at(NOW)} or {b.at(YEAR_EARLIER)} is not above 0",
        source=source,
    )(compute)


def scaled_change(name: str, family: str, a: Amount, b: Amount, source: str) -> None:
    """Register ``(a[t] - a[1y]) / b[1y]``, NaN unless ``b[1y]`` is positive."""

    def compute(panel: Panel) -> FloatArray:
        change_TN = a.compute(panel, NOW) - a.compute(panel, YEAR_EARLIER)
        return change_TN / positive(b.compute(panel, YEAR_EARLIER))

    characteristic(
        name,
        family,
        needs=_needs(a, b),
        formula=f"({a.at(NOW)} - {a.at(YEAR_EARLIER)}) / {b.at(YEAR_EARLIER)}",
        unit="fraction per year",
        nan_rule=_rule(b.at(YEAR_EARLIER)),
        source=source,
    )(compute)
