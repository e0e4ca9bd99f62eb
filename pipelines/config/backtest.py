"""The section ``backtest`` of a configuration: books, costs and execution."""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from backtest.books.book import Book
from backtest.books.registry import BOOKS
from backtest.books.rules.quantile_long_short import QuantileLongShort
from backtest.books.rules.top_k_long_only import TopKLongOnly
from pipelines.settings import PathSetting, Section

SpreadEstimator = Literal["corwin_schultz", "roll"]


if TYPE_CHECKING:
    BookConfig: TypeAlias = Book
else:
    BookConfig = Annotated[reduce(operator.or_, BOOKS.values()), Field(discriminator="kind")]
    """The settings of a book; ``kind`` selects the class."""

DEFAULT_BOOKS: dict[str, BookConfig] = {
    "long_short": QuantileLongShort(kind="quantile_long_short"),
    "long_only": TopKLongOnly(kind="top_k_long_only"),
}
"""The books of a config that names none."""


class CostsConfig(Section):
    """Costs of trades and of positions. Rates are in basis points."""

    half_spread_bps: Annotated[float, Field(ge=0)] | SpreadEstimator = 5.0
    """Half-spread, per traded amount: a number, or an estimate for each firm and session from daily prices.
    ``corwin_schultz`` needs high and low prices; ``roll`` needs closes only (`backtest.costs`)."""
    spread_window: int | None = Field(default=None, ge=2)
    """Sessions that a half-spread is estimated from. Null: 21 for ``corwin_schultz``, 63 for ``roll``."""
    commission_bps: float = Field(default=0.5, ge=0)
    """Commission, per traded amount."""
    commission_min: float = Field(default=0.0, ge=0)
    """Least commission of a trade of one firm in one session, in the currency of the prices. Needs
    ``backtest.capital``."""
    impact_coefficient: float = Field(default=1.0, ge=0)
    """Market impact of a trade, per traded amount: this times daily volatility times the square root of the
    trade's share of daily dollar volume. Applies if ``backtest.capital`` is set; 0: no impact."""
    borrow_bps_per_year: float = Field(default=50.0, ge=0)
    """Fee on the market value of short positions, per year."""
    borrow_file: PathSetting | None = None
    """CSV or Parquet file with columns ticker and bps_per_year: fees of single firms. The others pay
    ``borrow_bps_per_year``."""
    financing_bps_per_year: float = Field(default=0.0, ge=0)
    """Interest on borrowed money, per year. What is borrowed is the value of long positions above the NAV."""


class ExecutionConfig(Section):
    """Price of execution, and the share of a firm's volume that a book may trade."""

    price: Literal["close", "open", "typical", "ohlc"] = "close"
    """Price at which orders are filled. ``typical`` is (high + low + close) / 3 and ``ohlc`` the mean of the
    four prices: proxies of the volume-weighted average price. All but ``close`` need a delay of 1 or more."""
    participation_cap: float | None = Field(default=0.1, gt=0)
    """Largest share of a firm's daily dollar volume that is traded in a session. The rest of an order
    continues in later sessions. Applies if ``backtest.capital`` is set. Null: no cap."""
    unfilled: Literal["carry", "drop"] | None = None
    """What happens to an order, or the rest of it, that cannot be filled: ``carry`` keeps it open until it is
    filled or a new decision replaces it, ``drop`` drops it. Null: ``carry`` under a participation cap, and
    else ``drop``."""
    price_limit: float | None = Field(default=None, gt=0)
    """Largest change of a price in a session, 0.1 for 10%. At the upper limit nothing is bought, and at the
    lower one nothing is sold. Null: no limit."""
    price_limit_file: PathSetting | None = None
    """CSV or Parquet file with columns ticker and limit, and from_date if limits change: limits of single
    firms, such as 0.05 for A-shares under special treatment and 0.2 for other boards. The others have
    ``price_limit``."""
    lot: int | None = Field(default=None, ge=1)
    """Shares of a lot. Orders are rounded towards zero to whole lots; a position can be closed whole. Needs
    ``backtest.capital``. Null: any number of shares."""
    window: int = Field(default=21, ge=2)
    """Sessions over which the daily dollar volume (mean) and the daily volatility of market impact are
    measured. They end before the session of the trade."""


class BacktestConfig(Section):
    """Books and costs of the backtest."""

    books: dict[str, BookConfig] = Field(default=DEFAULT_BOOKS)
    """Name -> book."""
    costs: CostsConfig = CostsConfig()
    """Costs of trades and of positions."""
    execution: ExecutionConfig = ExecutionConfig()
    """Price of execution and participation cap."""
    capital: float | None = Field(default=None, gt=0)
    """Capital of each book at its start, in the currency of the prices. Null: trades are small, without
    market impact and without a participation cap."""
    delay: int | None = Field(default=None, ge=0)
    """Sessions from the decision to the trade. Null: ``label.delay``."""
    risk_free: float | PathSetting = 0.0
    """Risk-free rate that Sharpe ratios are measured over: an annual rate as a fraction (0.03 is 3% a year),
    or a CSV or Parquet file with columns date and rate (`pipelines.dataset.risk_free`)."""

    @property
    def trading(self) -> str:
        """Costs, capital, delay and price of execution in one line."""
        costs, execution = self.costs, self.execution
        spread = costs.half_spread_bps
        parts = [
            f"half-spread {spread:g} bps"
            if isinstance(spread, float)
            else f"half-spread estimated ({spread})",
            f"commission {costs.commission_bps:g} bps"
            + (f", at least {costs.commission_min:g}" if costs.commission_min else ""),
        ]
        if self.capital is not None:
            parts.append(f"impact {costs.impact_coefficient:g} x volatility x root of participation")
        by_firm = "" if costs.borrow_file is None else " or by firm"
        parts.append(f"borrow {costs.borrow_bps_per_year:g} bps per year{by_firm}")
        if costs.financing_bps_per_year:
            parts.append(f"financing {costs.financing_bps_per_year:g} bps per year")
        if self.capital is not None:
            cap = execution.participation_cap
            limit = "no cap" if cap is None else f"at most {cap:.0%} of daily volume"
            parts.append(f"capital {self.capital:,.0f} ({limit})")
        if execution.price_limit is not None:
            parts.append(f"no trade at a price limit of {execution.price_limit:.0%}")
        elif execution.price_limit_file is not None:
            parts.append("no trade at the price limits of single firms")
        if execution.lot is not None:
            parts.append(f"lots of {execution.lot:,} shares")
        if execution.unfilled is not None:
            parts.append(f"unfilled orders {'stay open' if execution.unfilled == 'carry' else 'are dropped'}")
        delay = "the label's delay" if self.delay is None else f"delay {self.delay}"
        price = "" if execution.price == "close" else f" and the {execution.price} price"
        return ", ".join([*parts, f"executed at {delay}{price}"])

    @model_validator(mode="after")
    def _check_capital(self) -> BacktestConfig:
        amounts = {"costs.commission_min": self.costs.commission_min, "execution.lot": self.execution.lot}
        for name, value in amounts.items():
            if value and self.capital is None:
                raise ValueError(f"{name} is {value:g}, an amount that needs a capital; set backtest.capital")
        return self

    @model_validator(mode="after")
    def _check_risk_free(self) -> BacktestConfig:
        if not isinstance(self.risk_free, str) and not abs(self.risk_free) < 1:
            raise ValueError(f"risk_free is {self.risk_free:g}; it must be an annual fraction, 0.05 for 5%")
        return self
