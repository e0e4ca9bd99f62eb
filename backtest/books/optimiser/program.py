"""The convex program of the optimised book: its limits and the numbers of one decision.

Shape suffixes: M firms that may be held.
"""

from __future__ import annotations

from dataclasses import dataclass

from backtest.books.optimiser.covariance import FactorCovariance
from features.arrays import FloatArray, IntArray
from features.panel.periods import SESSIONS_PER_YEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the weights w of a book, as fractions of NAV. None is no limit.

    Attributes
    ----------
    long_only : bool
        ``w_i >= 0``.
    max_position : float
        ``|w_i| <= max_position``.
    max_leverage : float
        ``sum |w_i| <= max_leverage``.
    min_net, max_net : float
        ``min_net <= sum w_i <= max_net``.
    max_volatility : float or None
        ``sqrt(p w' S w) <= max_volatility``, with the covariance S of the returns of a session and p sessions
        in a year.
    max_turnover : float or None
        ``sum |w_i - last_i| / 2 <= max_turnover``, one-way, from the last target.
    max_sector_net : float or None
        ``|sum of w_i in a sector| <= max_sector_net``, for each sector.
    max_beta : float or None
        ``|sum beta_i w_i| <= max_beta``.

    Raises
    ------
    ValueError
        If a limit is out of range.
    """

    long_only: bool = False
    max_position: float = 0.05
    max_leverage: float = 2.0
    min_net: float = 0.0
    max_net: float = 0.0
    max_volatility: float | None = 0.1
    max_turnover: float | None = None
    max_sector_net: float | None = None
    max_beta: float | None = None

    def __post_init__(self) -> None:
        above = {
            "max_position": self.max_position,
            "max_leverage": self.max_leverage,
            "max_volatility": self.max_volatility,
            "max_turnover": self.max_turnover,
        }
        for name, value in above.items():
            if value is not None and value <= 0:
                msg = f"{name} is {value}; it must be above 0."
                raise ValueError(msg)
        for name, value in {"max_sector_net": self.max_sector_net, "max_beta": self.max_beta}.items():
            if value is not None and value < 0:
                msg = f"{name} is {value}; it must be at least 0."
                raise ValueError(msg)
        if self.min_net > self.max_net:
            msg = f"min_net is {self.min_net} and max_net is {self.max_net}; min_net must not be larger."
            raise ValueError(msg)
        if self.long_only and self.max_net <= 0:
            msg = f"max_net is {self.max_net}; a long_only book needs a net exposure above 0, such as 1."
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """The numbers of one decision.

    Attributes
    ----------
    expected_M : ndarray of shape (M,)
        Expected returns, in any unit.
    covariance : FactorCovariance
        Covariance of the returns of a session.
    group_M : ndarray of int, shape (M,), or None
        Sectors; needed for ``max_sector_net``.
    beta_M : ndarray of shape (M,) or None
        Betas; needed for ``max_beta``.
    last_M : ndarray of shape (M,) or None
        Last target weights of these firms. None: there is no book yet, and turnover is not limited.
    forced_sales : float
        Gross last target weight of all other firms, which are sold.
    periods_per_year : float
        Sessions in a year.
    """

    expected_M: FloatArray
    covariance: FactorCovariance
    group_M: IntArray | None = None
    beta_M: FloatArray | None = None
    last_M: FloatArray | None = None
    forced_sales: float = 0.0
    periods_per_year: float = SESSIONS_PER_YEAR


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No weights could be found.

    Attributes
    ----------
    reason : str
        Which limits cannot be met, or how the solver failed.
    """

    reason: str
