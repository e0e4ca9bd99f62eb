"""The books of the section ``backtest``: one class of settings for each kind of book.

The names of the settings are those of the rule's dataclass in `backtest.books`, except for the settings that
every book has (`BookSection`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipelines.settings import Section


class BookSection(Section):
    """Settings that every kind of book has."""

    kind: str
    """Selects the kind of book."""
    rebalance_every: int = Field(default=1, ge=1)
    """Sessions from one rebalancing to the next."""


class QuantileBookConfig(BookSection):
    """A long-short book: long the top quantile of forecasts, short the bottom one."""

    kind: Literal["quantile_long_short"]
    """Selects this kind of book."""
    quantiles: int = Field(default=5, ge=2)
    """Number of quantiles; 5 trades the top and bottom fifth."""


class TopKBookConfig(BookSection):
    """A long-only book: the ``k`` highest forecasts, equally weighted."""

    kind: Literal["top_k_long_only"]
    """Selects this kind of book."""
    k: int = Field(default=20, ge=1)
    """Number of positions."""


BookConfig = Annotated[QuantileBookConfig | TopKBookConfig, Field(discriminator="kind")]
"""The settings of a book; ``kind`` selects the class."""

DEFAULT_BOOKS: dict[str, BookConfig] = {
    "long_short": QuantileBookConfig(kind="quantile_long_short"),
    "long_only": TopKBookConfig(kind="top_k_long_only"),
}
"""The books of a config that names none."""
