"""How orders are executed: at which price, and how much of a session's volume they may take.

Shape suffixes: T sessions, N firms.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from backtest.costs import require_capital
from features.arrays import FloatArray

Price = Literal["close", "open", "typical", "ohlc"]
"""Price of execution.

The typical price ``(high + low + close) / 3`` and the mean of open, high, low and close are proxies of the
volume-weighted average price, which daily bars do not hold. A book that buys and sells at such a mean assumes
that its order is spread over the session.
"""

NEEDED: dict[Price, tuple[str, ...]] = {
    "close": (),
    "open": ("open",),
    "typical": ("high", "low"),
    "ohlc": ("open", "high", "low"),
}
"""Fields that a price needs besides the close."""


@dataclass(frozen=True, slots=True, eq=False)
class ParticipationCap:
    """Largest share of a firm's trailing dollar volume that a book trades in a session.

    Raises
    ------
    ValueError
        If the fraction or the capital is not finite and above 0, or a cell is negative.

    Examples
    --------
    >>> ParticipationCap(fraction=0.1, capital=1e6, dollar_volume_TN=np.full((1, 1), 1e7)).fraction
    0.1
    """

    fraction: float
    """Share of the daily dollar volume, above 0; 0.1 is a tenth."""
    capital: float
    """Value of the book before its first session, in the currency of the dollar volume."""
    dollar_volume_TN: FloatArray
    """Trailing daily dollar volume. Row s limits the trades of session s and must be known before them. NaN =
    unknown: the firm cannot be traded."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.fraction) or self.fraction <= 0:
            msg = f"The participation cap is {self.fraction}; it must be a finite fraction above 0."
            raise ValueError(msg)
        require_capital(self.capital)
        if np.any(self.dollar_volume_TN < 0):
            raise ValueError("The dollar volume has a negative cell; use NaN where it is unknown.")


@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """How the orders of a book are executed; the default is the whole order at the close.

    Examples
    --------
    >>> Execution(carry=True).carries
    True
    """

    price_over_close_TN: FloatArray | None = None
    """Price of execution in session s over the close of the same session (`price_over_close`). NaN = unknown:
    the firm cannot be traded. None: orders are executed at the close."""
    cap: ParticipationCap | None = None
    """None: orders of any size are filled."""
    carry: bool | None = None
    """Whether the rest of an order that is not filled stays open until it is filled, a new decision replaces
    it, or the firm is delisted. None: only with a cap."""
    bar_TN: FloatArray | None = None
    """1 where a firm cannot be bought in session s, because its price is at its upper limit, and -1 where it
    cannot be sold (`at_price_limit`). None: there are no limits."""
    lot_TN: FloatArray | None = None
    """Units of the total-return index that are a lot, for a capital of 1 at the start (`lot_units`). Orders
    are rounded towards zero to whole lots; a position can be closed whole. None: any size is traded."""

    @property
    def carries(self) -> bool:
        """Whether the rest of an order stays open."""
        return self.cap is not None if self.carry is None else self.carry


AT_CLOSE = Execution()


def at_price_limit(
    price_TN: FloatArray, reference_TN: FloatArray, limit_TN: FloatArray, tick: float = 0.01
) -> FloatArray:
    """Return where a price is at the limit of the session.

    An exchange rounds the limit ``reference (1 + limit)`` to its tick, so a price within half a tick of it is
    at the limit, unless half a tick is more than half of the limit. At the upper limit there are no sellers,
    at the lower one no buyers.

    Prices are as quoted. The reference is the previous close, without the session's dividend and in its
    shares; the limit is the largest change as a fraction, so 0.1 is 10%; NaN means unknown, or no limit.
    Returned is 1 at the upper limit, -1 at the lower one and 0 elsewhere.

    Examples
    --------
    >>> at_price_limit(np.array([[11.0, 10.5]]), np.array([[10.0, 10.0]]), np.array([[0.1, 0.1]]))
    array([[1., 0.]])
    """
    whole_TN = limit_TN * reference_TN
    room_TN = np.maximum(whole_TN - 0.5 * tick, 0.5 * whole_TN) - 1e-9 * reference_TN
    move_TN = price_TN - reference_TN
    return np.where(move_TN >= room_TN, 1.0, np.where(move_TN <= -room_TN, -1.0, 0.0))


def price_over_close(
    price: Price,
    close_TN: FloatArray,
    *,
    open_TN: FloatArray | None = None,
    high_TN: FloatArray | None = None,
    low_TN: FloatArray | None = None,
) -> FloatArray | None:
    """Compute the price of execution over the close of the same session.

    None for the close. Prices are in one unit and adjusted alike; NaN where one that is needed is unknown.
    ValueError if a field that the price needs is missing.

    Examples
    --------
    >>> price_over_close("open", np.array([[10.0]]), open_TN=np.array([[9.9]]))
    array([[0.99]])
    """
    fields = {"open": open_TN, "high": high_TN, "low": low_TN}
    used: list[FloatArray] = []
    for name in NEEDED[price]:
        field_TN = fields[name]
        if field_TN is None:
            msg = f"Execution at the {price} price needs the field {name}, which the data do not have."
            raise ValueError(msg)
        used.append(field_TN)
    if price == "close":
        return None
    if price == "open":
        return used[0] / close_TN
    return (sum(used, start=close_TN)) / ((len(used) + 1) * close_TN)
