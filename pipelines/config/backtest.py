"""The section ``backtest`` of a configuration: books, costs and execution."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from backtest.books.book import Book
from backtest.books.ranked import Exposure
from backtest.books.registry import BOOKS
from backtest.books.schedules import Turn
from pipelines.settings import PathSetting, Section

SpreadEstimator = Literal["corwin_schultz", "roll"]


@functools.cache
def _adapter(rule: type[Book]) -> TypeAdapter[Book]:
    """The adapter of a rule's dataclass, which takes a millisecond to make."""
    return TypeAdapter(rule)


class BookSection(Section):
    """Settings that every kind of book has."""

    kind: str
    """Selects the kind of book."""
    rebalance_every: int = Field(default=1, ge=1)
    """Dates with signals from one rebalancing to the next: 5 is a week of daily signals. Sessions without
    signals do not count. With ``rebalance_on``: 2 is every second of its sessions."""
    rebalance_on: Turn | None = None
    """Sessions on which the book may rebalance: the first one from a weekday on, or the first or last of a
    period. If such a session has no signals, the next one that has them takes its place. Null: all."""

    @model_validator(mode="after")
    def _check_rule(self) -> BookSection:
        self.rule(horizon=1)
        return self

    @property
    def needs_sectors(self) -> bool:
        """Whether the book needs the sectors or industries of firms."""
        return "groups" in self.rule(horizon=1).needs

    def rule(self, horizon: int) -> Book:
        """Build the rule.

        Parameters
        ----------
        horizon
            Horizon of the label, for which overlapping decisions are held.

        Raises
        ------
        ValueError
            If the rule refuses a setting.
        """
        return _adapter(BOOKS[self.kind]).validate_python(self._fields(horizon))

    def _fields(self, horizon: int) -> dict[str, Any]:
        """Fields of the rule's dataclass."""
        return self.model_dump(exclude=set(BookSection.model_fields))


class RankedBookSection(BookSection):
    """Settings of books by rank."""

    overlap: bool = False
    """Whether each decision is held for ``label.horizon`` sessions: the book is the average of the decisions
    of that many sessions. False: a decision replaces the one before."""
    inverse_volatility: bool = False
    """Whether the weights of each side are divided by the firms' volatility over 63 sessions."""
    target_volatility: float | None = Field(default=None, gt=0)
    """Annual volatility that every decision is scaled to, 0.1 for 10%, as its weights would have had it over
    the last 126 sessions. Null: no scaling."""
    max_leverage: float = Field(default=4.0, gt=0)
    """Largest gross exposure that ``target_volatility`` may lead to."""

    def _fields(self, horizon: int) -> dict[str, Any]:
        fields = super()._fields(horizon)
        return fields | {"holding": horizon if fields.pop("overlap") else None}


class QuantileBookConfig(RankedBookSection):
    """A long-short book: long the top quantile of forecasts, short the bottom one."""

    kind: Literal["quantile_long_short"]
    """Selects this kind of book."""
    quantiles: int = Field(default=5, ge=2)
    """Number of quantiles; 5 trades the top and bottom fifth."""
    neutral: tuple[Exposure, ...] = ()
    """Exposures to remove: ``sector`` (the groups of ``features.group_by``) and ``beta`` (to the market, over
    252 sessions)."""


class RankBookConfig(RankedBookSection):
    """A long-short book: every firm, in proportion to its rank."""

    kind: Literal["rank_weighted"]
    """Selects this kind of book."""
    gross: float = Field(default=2.0, gt=0)
    """Gross exposure; 2 is +1 long and -1 short."""
    neutral: tuple[Exposure, ...] = ()
    """Exposures to remove: ``sector`` (the groups of ``features.group_by``) and ``beta`` (to the market, over
    252 sessions)."""


class TopKBookConfig(RankedBookSection):
    """A long-only book: the ``k`` highest forecasts, equally weighted."""

    kind: Literal["top_k_long_only"]
    """Selects this kind of book."""
    k: int = Field(default=20, ge=1)
    """Number of positions."""


class TopKDropBookConfig(BookSection):
    """A long-only book of ``k`` firms that replaces only the worst of them."""

    kind: Literal["top_k_drop"]
    """Selects this kind of book."""
    k: int = Field(default=50, ge=1)
    """Number of positions."""
    n_drop: int = Field(default=5, ge=1)
    """Largest number of positions that a rebalancing replaces."""


class LimitsConfig(Section):
    """Limits of an optimised book, as fractions of NAV. Null is no limit."""

    long_only: bool = False
    """Whether short positions are excluded."""
    max_position: float = Field(default=0.05, gt=0)
    """Largest absolute weight of a firm."""
    max_leverage: float = Field(default=2.0, gt=0)
    """Largest gross exposure."""
    min_net: float = 0.0
    """Smallest net exposure."""
    max_net: float = 0.0
    """Largest net exposure. A book that is fully invested has 1 for both."""
    max_volatility: float | None = Field(default=0.1, gt=0)
    """Largest expected annual volatility."""
    max_turnover: float | None = Field(default=None, gt=0)
    """Largest one-way turnover from the last target to the next one. The first book is not limited."""
    max_sector_net: float | None = Field(default=None, ge=0)
    """Largest absolute net weight of a sector (the groups of ``features.group_by``)."""
    max_beta: float | None = Field(default=None, ge=0)
    """Largest absolute beta of the book to the market, over 252 sessions."""


class OptimisedBookConfig(BookSection):
    """The highest expected return within limits on risk, exposures and turnover, by skfolio."""

    kind: Literal["optimised"]
    """Selects this kind of book."""
    rebalance_every: int = Field(default=5, ge=1)
    """Dates with signals from one rebalancing to the next: 5 is a week of daily signals. Sessions without
    signals do not count. With ``rebalance_on``: 2 is every second of its sessions."""
    limits: LimitsConfig = LimitsConfig()
    """Limits on risk, exposures and turnover."""
    covariance_sessions: int = Field(default=252, ge=20)
    """Sessions on which the covariance of returns is estimated."""
    risk_factors: int = Field(default=20, ge=1)
    """Largest number of statistical factors in the covariance; at most a tenth of the firms are used."""


BookConfig = Annotated[
    QuantileBookConfig | TopKBookConfig | TopKDropBookConfig | RankBookConfig | OptimisedBookConfig,
    Field(discriminator="kind"),
]
"""The settings of a book; ``kind`` selects the class."""

DEFAULT_BOOKS: dict[str, BookConfig] = {
    "long_short": QuantileBookConfig(kind="quantile_long_short"),
    "long_only": TopKBookConfig(kind="top_k_long_only"),
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
