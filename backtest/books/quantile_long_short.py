"""The quantile long-short book: buy the highest signals and short the lowest ones.

Shape suffixes: T sessions, N firms, D decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from backtest.books.inputs import BookInputs, BookTargets, Need, spread_over_sessions
from backtest.forecasts.ranking import RankSelector, as_signal


@dataclass(frozen=True, slots=True)
class QuantileLongShort:
    """Buy the top quantile and short the bottom one, equally weighted: +1 long, -1 short (gross 2, net 0).

    With n signals at t and ``m = floor(n / quantiles)``, the m highest get weight ``+1/m`` and the m lowest
    ``-1/m``. With a gross exposure of 2, a session's gross return is the difference of the two quantiles'
    mean returns, as in the high-minus-low portfolios of the literature. Ties at the edge of a side share the
    weight that is left. The gross exposure is below 2 only if one group of tied firms extends into both
    sides, because its long and short weights cancel.

    Attributes
    ----------
    quantiles : int
        Number of quantiles, at least 2; a date needs at least as many signals.

    Raises
    ------
    ValueError
        If there are fewer than 2 quantiles.
    """

    kind: ClassVar[str] = "quantile_long_short"
    formula: ClassVar[str] = (
        "+1/m for the m = floor(n/quantiles) highest signals, -1/m for the m lowest; ties share"
    )
    quantiles: int = 5

    def __post_init__(self) -> None:
        if self.quantiles < 2:
            msg = f"quantiles is {self.quantiles}; a long-short book needs at least 2 quantiles."
            raise ValueError(msg)

    @property
    def long_only(self) -> bool:
        """Whether the book holds no short positions: no."""
        return False

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs beyond the signal: none."""
        return frozenset()

    def targets(self, inputs: BookInputs) -> BookTargets:
        """Decide the target weights; see `backtest.books.book.Book.targets`."""
        signal_TN = as_signal("signal", inputs.signal_TN)
        decides_T = inputs.schedule.decisions((~np.isnan(signal_TN)).sum(axis=1), self.quantiles)
        selector = RankSelector(signal_TN[decides_T])
        weight_DN = selector.long_short(selector.count_T // self.quantiles)
        return BookTargets(spread_over_sessions(weight_DN, decides_T))
