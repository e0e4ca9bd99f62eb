"""The section ``backtest`` of a configuration: books, costs and the delay of execution.

The settings of each kind of book are in :mod:`pipelines.config.books`.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from pipelines.config.books import DEFAULT_BOOKS, BookConfig
from pipelines.settings import PathSetting, Section


class CostsConfig(Section):
    """Trading and borrowing costs, in basis points."""

    half_spread_bps: float = Field(default=5.0, ge=0)
    """Half-spread, per traded amount."""
    commission_bps: float = Field(default=0.5, ge=0)
    """Commission, per traded amount."""
    borrow_bps_per_year: float = Field(default=50.0, ge=0)
    """Borrowing cost of short positions, per year."""


class BacktestConfig(Section):
    """Books and costs of the backtest."""

    books: dict[str, BookConfig] = Field(default=DEFAULT_BOOKS)
    """Name -> book."""
    costs: CostsConfig = CostsConfig()
    """Trading and borrowing costs."""
    delay: int | None = Field(default=None, ge=0)
    """Sessions from the decision to the trade. Null: ``label.delay``."""
    risk_free: float | PathSetting = 0.0
    """Risk-free rate that Sharpe ratios are measured over: an annual rate as a fraction (0.03 is 3% a year),
    or a CSV or Parquet file with columns date and rate (`pipelines.dataset.risk_free`)."""

    @model_validator(mode="after")
    def _check_risk_free(self) -> BacktestConfig:
        if not isinstance(self.risk_free, str) and not abs(self.risk_free) < 1:
            raise ValueError(f"risk_free is {self.risk_free:g}; it must be an annual fraction, 0.05 for 5%")
        return self
