"""The table of what an evaluation assumes: costs, capital, execution and the risk-free rate."""

from __future__ import annotations

import polars as pl

from pipelines.config.backtest import BacktestConfig
from pipelines.config.schema import Config
from pipelines.dataset.risk_free import describe_rate
from pipelines.results.comparisons import tradable_delay


def assumptions(config: Config) -> pl.DataFrame:
    """Return the rows of the report: assumption, value (null where it is not a number) and unit."""
    costs, delay = config.backtest.costs, config.backtest.delay
    if delay is None:
        delay = tradable_delay(config.label.delays)  # the delay of the verdict and of the key figures
    price = config.backtest.execution.price
    at = "the close" if price == "close" else f"the {price} price"
    rows = [
        _half_spread(costs.half_spread_bps),
        ("commission", costs.commission_bps, "bps of traded notional"),
        *_capital(config.backtest),
        (
            "borrow on shorts",
            costs.borrow_bps_per_year,
            "bps of short value per year"
            + ("" if costs.borrow_file is None else "; some firms have fees of their own"),
        ),
        ("financing", costs.financing_bps_per_year, "bps of borrowed money per year"),
        ("execution delay", float(delay), f"sessions after the decision, at {at}"),
        *_risk_free(config.backtest.risk_free),
    ]
    return pl.DataFrame(rows, schema=["assumption", "value", "unit"], orient="row")


def _half_spread(setting: float | str) -> tuple[str, float | None, str]:
    """The half-spread as a row of the assumptions."""
    if isinstance(setting, str):
        return "half-spread", None, f"bps of traded notional, estimated by firm and session ({setting})"
    return "half-spread", setting, "bps of traded notional"


def _capital(settings: BacktestConfig) -> list[tuple[str, float | None, str]]:
    """Capital, impact and participation cap as rows of the assumptions; none without a capital."""
    if settings.capital is None:
        return []
    cap = settings.execution.participation_cap
    limit = [] if cap is None else [("participation cap", 100 * cap, "% of daily dollar volume")]
    return [
        ("capital", settings.capital, "currency of the prices"),
        (
            "impact",
            settings.costs.impact_coefficient,
            "times daily volatility times the root of the trade's share of daily dollar volume",
        ),
        *limit,
    ]


def _risk_free(setting: float | str) -> list[tuple[str, float | None, str]]:
    """The risk-free rate as a row of the assumptions."""
    if isinstance(setting, str):
        return [("risk-free rate", None, f"per year: {describe_rate(setting)}")]
    return [("risk-free rate", 100 * setting, "% per year, on net exposure")]
