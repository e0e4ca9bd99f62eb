"""The books of the section ``backtest``: one class of settings for each kind of book.

The settings have the names of the fields of the rule's dataclass in `backtest.books`, except for those that
`BookSection` and `RankedBookSection` translate.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from backtest.books.book import Book
from backtest.books.ranked import Exposure
from backtest.books.registry import BOOKS
from backtest.books.schedules import Turn
from pipelines.settings import Section


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
