"""How much of a limit a decision uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["free", "binds", "exceeded"]
Unit = Literal["of NAV", "a year", "beta", "firms"]

TOLERANCE = 1e-6
"""Distance from a limit below which it binds: the solver of the optimised book is accurate to about 1e-8."""


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit of a book, and what the weights of one decision amount to.

    Attributes
    ----------
    name : str
        The setting, such as ``max_turnover``; ``neutral sector`` and ``neutral beta`` for neutrality.
    value : float
        What the weights amount to; at least 0 except for a net exposure. Of several sectors or firms, the
        largest.
    limit : float
        Largest value that is allowed. Neutrality allows 0.
    unit : str
        ``of NAV`` and ``a year`` (a volatility) are fractions, ``beta`` and ``firms`` are numbers.
    least : bool
        Whether the limit is the smallest value that is allowed instead.
    """

    name: str
    value: float
    limit: float
    unit: Unit = "of NAV"
    least: bool = False

    @property
    def excess(self) -> float:
        """By how much the value is beyond the limit; below 0 it is within."""
        return self.limit - self.value if self.least else self.value - self.limit

    @property
    def state(self) -> State:
        """``binds`` if the value is at the limit up to `TOLERANCE`, ``free`` within it, else ``exceeded``."""
        if abs(self.excess) <= TOLERANCE:
            return "binds"
        return "free" if self.excess < 0 else "exceeded"
