"""Amounts from statements, and the few ways in which characteristics are made of two of them.

An amount is known now (``x[t]``) and as it was a year earlier (``x[1y]``,
`features.panel.asof.statements_as_of`); flows are those of a year. Shape suffixes: T sessions, N firms.
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
"""Sessions that a share count can depend on: the splits since its period's end, at one session a day."""
NOW, YEAR_EARLIER = "", "@1y"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of a firm's statements, in their unit.

    Attributes
    ----------
    text : str
        What it is called in formulas.
    items : tuple of str
        The statement items that it is made of.
    give : callable
        Panel and time (`NOW` or `YEAR_EARLIER`) -> array of shape (T, N).
    reach : int
        Sessions that it depends on.
    """

    text: str
    items: tuple[str, ...]
    give: Callable[[Panel, str], FloatArray]
    reach: int = 1

    def at(self, when: str) -> str:
        """Write the amount at a time in a formula."""
        return f"{self.text}[{'t' if when == NOW else '1y'}]"

    def __add__(self, other: Amount) -> Amount:
        """Add two amounts; unknown where either is."""
        return self._with(other, "+", lambda panel, when: self.give(panel, when) + other.give(panel, when))

    def __sub__(self, other: Amount) -> Amount:
        """Subtract an amount; unknown where either is."""
        return self._with(other, "-", lambda panel, when: self.give(panel, when) - other.give(panel, when))

    def _with(self, other: Amount, sign: str, give: Callable[[Panel, str], FloatArray]) -> Amount:
        text = f"({self.text.strip('()')} {sign} {other.text})"
        return Amount(text, (*self.items, *other.items), give, max(self.reach, other.reach))


def item(name: str) -> Amount:
    """Give a statement item as an amount."""
    return Amount(name, (name,), lambda panel, when: panel.statements[name + when])


def positive(x_TN: FloatArray) -> FloatArray:
    """Keep what can be a denominator."""
    return np.where(x_TN > 0, x_TN, np.nan)


@cached_per_panel
def market_equity(panel: Panel) -> FloatArray:
    """Compute shares outstanding, splits included, times the raw close, in the price's currency."""
    return positive(panel.statements[SHARE_COUNT]) * panel.raw_close_TN


def _market_equity_now(panel: Panel, when: str) -> FloatArray:
    assert when == NOW, "market equity is known now alone"
    return market_equity(panel)


def _debt(panel: Panel, when: str) -> FloatArray:
    short_TN, long_TN = (panel.statements[f"{term}_term_debt{when}"] for term in ("short", "long"))
    neither_TN = np.isnan(short_TN) & np.isnan(long_TN)
    return np.where(neither_TN, np.nan, np.nan_to_num(short_TN) + np.nan_to_num(long_TN))


MARKET_EQUITY = Amount("market_equity", (SHARE_COUNT,), _market_equity_now, SPLIT_REACH)
DEBT = Amount("debt", ("short_term_debt", "long_term_debt"), _debt)
"""Short-term plus long-term debt; one unknown counts as none: firms leave out what they do not have."""


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
        window=max(a.reach, b.reach),
        formula=f"{a.at(NOW)} / {b.at(NOW)}",
        unit=unit,
        nan_rule=_rule(b.at(NOW)),
        source=source,
    )(lambda panel: a.give(panel, NOW) / positive(b.give(panel, NOW)))


def log_of(name: str, family: str, a: Amount, source: str) -> None:
    """Register ``ln(a[t])``."""
    characteristic(
        name,
        family,
        needs=_needs(a),
        window=a.reach,
        formula=f"ln({a.at(NOW)})",
        unit="log currency",
        nan_rule=_rule(a.at(NOW)),
        source=source,
    )(lambda panel: np.log(positive(a.give(panel, NOW))))


def growth(name: str, a: Amount, source: str) -> None:
    """Register ``a[t] / a[1y] - 1`` in the family growth, NaN unless the year earlier was positive."""
    characteristic(
        name,
        "growth",
        needs=_needs(a),
        formula=f"{a.at(NOW)} / {a.at(YEAR_EARLIER)} - 1",
        unit="fraction a year",
        nan_rule=_rule(a.at(YEAR_EARLIER)),
        source=source,
    )(lambda panel: a.give(panel, NOW) / positive(a.give(panel, YEAR_EARLIER)) - 1.0)


def change(name: str, a: Amount, b: Amount, source: str) -> None:
    """Register the change of ``a / b`` over a year in the family growth, NaN unless b was and is positive."""

    def compute(panel: Panel) -> FloatArray:
        now_TN = a.give(panel, NOW) / positive(b.give(panel, NOW))
        return now_TN - a.give(panel, YEAR_EARLIER) / positive(b.give(panel, YEAR_EARLIER))

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
    """Register ``(a[t] - a[1y]) / b[1y]``, NaN unless b was positive."""

    def compute(panel: Panel) -> FloatArray:
        change_TN = a.give(panel, NOW) - a.give(panel, YEAR_EARLIER)
        return change_TN / positive(b.give(panel, YEAR_EARLIER))

    characteristic(
        name,
        family,
        needs=_needs(a, b),
        formula=f"({a.at(NOW)} - {a.at(YEAR_EARLIER)}) / {b.at(YEAR_EARLIER)}",
        unit="fraction a year",
        nan_rule=_rule(b.at(YEAR_EARLIER)),
        source=source,
    )(compute)
