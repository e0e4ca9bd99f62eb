"""The quantile long-short book: buy the highest signals and short the lowest ones.

Shape suffixes: N firms, D decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from backtest.books.ranked import Exposure, RankedBook
from backtest.forecasts.daily import RankSelector
from features.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class QuantileLongShort(RankedBook):
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
    neutral : tuple of str
        Exposures to remove: sector, beta (`backtest.books.ranked.neutralise`).

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    kind: ClassVar[str] = "quantile_long_short"
    formula: ClassVar[str] = (
        "+1/m for the m = floor(n/quantiles) highest signals, -1/m for the m lowest; ties share"
    )
    quantiles: int = 5
    neutral: tuple[Exposure, ...] = ()

    def __post_init__(self) -> None:
        RankedBook.__post_init__(self)
        if self.quantiles < 2:
            msg = f"quantiles is {self.quantiles}; a long-short book needs at least 2 quantiles."
            raise ValueError(msg)

    @property
    def long_only(self) -> bool:
        """Whether the book holds no short positions: no."""
        return False

    @property
    def needed(self) -> int:
        """Number of eligible firms that a decision needs: one for each quantile."""
        return self.quantiles

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """Exposures that the book removes."""
        return self.neutral

    def select(self, signal_DN: FloatArray) -> FloatArray:
        """Return ``+1/m`` for the highest, ``-1/m`` for the lowest and 0 for the other firms."""
        selector = RankSelector(signal_DN)
        return selector.long_short(selector.count_T // self.quantiles)
