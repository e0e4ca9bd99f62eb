"""The quantile long-short book: buy the highest signals and short the lowest ones.

Shape suffixes: N firms, D decisions.
"""

from typing import Literal

from pydantic import Field

from backtest.books.ranked import LongShortBook
from backtest.forecasts.daily import SortedPanel
from features.arrays import FloatArray


class QuantileLongShort(LongShortBook):
    """A long-short book: long the top quantile of forecasts, short the bottom one.

    With n signals at t and ``m = floor(n / quantiles)``, the m highest get weight ``+1/m`` and the m lowest
    ``-1/m`` (gross 2, net 0). With a gross exposure of 2, a session's gross return is the difference of the
    two quantiles' mean returns, as in the high-minus-low portfolios of the literature. Ties at the edge of a
    side share the weight that is left. The gross exposure is below 2 only if one group of tied firms extends
    into both sides, because its long and short weights cancel.

    Examples
    --------
    >>> import numpy as np
    >>> QuantileLongShort(quantiles=2).select(np.array([[0.3, 0.1, 0.2, 0.4]]))
    array([[ 0.5, -0.5, -0.5,  0.5]])
    """

    kind: Literal["quantile_long_short"] = "quantile_long_short"
    """Selects this kind of book."""
    quantiles: int = Field(default=5, ge=2)
    """Number of quantiles; 5 trades the top and bottom fifth."""

    @property
    def needed(self) -> int:
        """Number of eligible firms that a decision needs: one for each quantile."""
        return self.quantiles

    def select(self, signal_DN: FloatArray) -> FloatArray:
        """Return ``+1/m`` for the highest, ``-1/m`` for the lowest and 0 for the other firms."""
        signals = SortedPanel("signal", signal_DN)
        return signals.long_short(signals.count_T // self.quantiles)
