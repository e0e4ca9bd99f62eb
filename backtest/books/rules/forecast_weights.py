"""The book of a network's own weights: every firm is held, in proportion to its forecast.

Shape suffixes: N firms, D decisions.
"""

from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from backtest.books.ranked import LongShortBook, row_sums
from features.arrays import FloatArray

_ROUNDING = 1e-12  # deviations from the mean below this share of the largest signal are rounding


class ForecastWeights(LongShortBook):
    """Every firm, in proportion to how far its forecast is from the mean forecast of the date.

    ``w_i = G (y_i - y_bar) / sum_j |y_j - y_bar|`` with the gross exposure G; half of it is long and half
    short. ``side: long`` holds the firms above the mean alone, ``w_i = G / 2 * max(y_i - y_bar, 0) / sum_j
    max(y_j - y_bar, 0)``. The sizes of the forecasts count, not only their ranks, so the forecasts should be
    weights: those of a model that was trained with the loss ``sharpe`` or ``net_utility``. Adding a number to
    all forecasts of a date changes nothing, and neither does multiplying them by a positive one. If all
    signals of a date are equal, nothing is held, or with ``side: long`` all firms equally.

    Examples
    --------
    >>> ForecastWeights().select(np.array([[0.05, 0.01, 0.0, np.nan]]))
    array([[ 1.        , -0.33333333, -0.66666667,  0.        ]])
    """

    needed: ClassVar[int] = 2  # one for each side
    kind: Literal["forecast_weights"] = "forecast_weights"
    """Selects this kind of book."""
    gross: float = Field(default=2.0, gt=0)
    """Gross exposure of both sides together; 2 is +1 long and -1 short, or +1 with ``side: long``."""
    side: Literal["both", "long"] = "both"
    """``both`` is dollar-neutral; ``long`` holds the long half alone."""

    @model_validator(mode="after")
    def _check_side(self) -> Self:
        if self.side == "long" and self.neutral:
            raise ValueError(
                f"neutral is {list(self.neutral)}; a long-only book cannot be neutral: remove it."
            )
        return self

    @property
    def long_only(self) -> bool:
        """Whether the book holds no short positions."""
        return self.side == "long"

    def select(self, signal_DN: FloatArray) -> FloatArray:
        """Return the centred signals, scaled to the gross exposure; 0 for other firms."""
        known_DN = ~np.isnan(signal_DN)
        signal_DN = np.where(known_DN, signal_DN, 0.0)
        count_D1 = np.maximum(known_DN.sum(axis=1, keepdims=True), 1)
        weight_DN = np.where(known_DN, signal_DN - row_sums(signal_DN) / count_D1, 0.0)
        weight_DN[np.abs(weight_DN) <= _ROUNDING * np.abs(signal_DN).max(axis=1, keepdims=True)] = 0.0
        if self.long_only:
            equal_D1 = ~weight_DN.any(axis=1, keepdims=True)
            weight_DN = np.where(equal_D1, 1.0 * known_DN, np.maximum(weight_DN, 0.0))
        gross_D1 = row_sums(np.abs(weight_DN))
        wanted = 0.5 * self.gross if self.long_only else self.gross
        weight_DN *= np.divide(wanted, gross_D1, out=np.zeros_like(gross_D1), where=gross_D1 > 0)
        return weight_DN
