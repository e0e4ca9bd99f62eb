"""The Shapley values of one model, as a report shows them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from pipelines.report.contents.faithfulness import ModelFaithfulness
from pipelines.report.contents.frames import require_columns

PLAYER_COLUMNS = ("kind", "player", "mean_abs_shap", "error")
CONTRIBUTION_COLUMNS = ("player", "value", "error")
EDGE_COLUMNS = ("leader", "follower", "weight", "share", "same_group")


@dataclass(frozen=True, slots=True)
class ExampleForecast:
    """The decomposition of one forecast: ``base_value`` plus all contributions equals ``forecast``.

    Attributes
    ----------
    date, ticker
        The date and the firm of the forecast.
    base_value, forecast
        The model's output without any player and with all players; in the unit of the forecast.
    contributions
        player, value, error: Shapley values with their Monte Carlo standard errors, in the unit of the
        forecast.
    """

    date: str
    ticker: str
    base_value: float
    forecast: float
    contributions: pl.DataFrame

    def __post_init__(self) -> None:
        """Check the columns of the frame."""
        require_columns("contributions", self.contributions, CONTRIBUTION_COLUMNS)


@dataclass(frozen=True, slots=True)
class ModelAttribution:
    """Shapley values of one model's forecasts, with measures of their reliability.

    Attributes
    ----------
    model
        Name of the model, as in the ladder.
    n_forecasts
        Number of forecasts explained.
    players
        kind (days, features, peers), player, mean_abs_shap and error (mean Monte Carlo standard error of the
        player's values), in the unit of the forecast. Players without an error are not drawn.
    additivity_max_abs, additivity_relative
        Largest |base + sum of values - forecast|: in the unit of the forecast, and as a fraction of
        mean |forecast - base|.
    monte_carlo_error
        Mean standard error of a Shapley value, in the unit of the forecast; None if all coalitions were
        evaluated, so that the values are exact.
    faithfulness
        The verdict on the model's attention; None without attention.
    example
        Decomposition of one forecast.
    edges
        leader, follower, weight (mean |SHAP| of the leader in the follower's forecast), share (fraction of
        the total weight), same_group (bool, null if unknown).
    homophily, homophily_by_chance
        Fraction of the total edge weight within a group, and the fraction expected for random pairs.
    """

    model: str
    n_forecasts: int
    players: pl.DataFrame
    additivity_max_abs: float
    additivity_relative: float
    monte_carlo_error: float | None = None
    faithfulness: ModelFaithfulness | None = None
    example: ExampleForecast | None = None
    edges: pl.DataFrame | None = None
    homophily: float | None = None
    homophily_by_chance: float | None = None

    def __post_init__(self) -> None:
        """Check the columns of every frame."""
        require_columns("players", self.players, PLAYER_COLUMNS)
        require_columns("edges", self.edges, EDGE_COLUMNS)
