"""The Shapley values of one model, as a report shows them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from pipelines.pages.contents.faithfulness import ModelFaithfulness
from pipelines.pages.contents.frames import require_columns

PLAYER_COLUMNS = ("kind", "player", "mean_abs_shap", "error")
CONTRIBUTION_COLUMNS = ("player", "value", "error")
SKILL_COLUMNS = ("kind", "player", "value", "error", "dates")
EDGE_COLUMNS = ("leader", "follower", "weight", "error", "t", "q", "found", "same_group")
NETWORK_COLUMNS = ("measure", "value", "null_mean", "null_low", "null_high", "number")
EVIDENCE_COLUMNS = ("kind", "leader", "follower", "slope", "error", "t", "p", "q")


@dataclass(frozen=True, slots=True)
class ExampleForecast:
    """The decomposition of one forecast: ``base_value`` plus all contributions equals ``forecast``.

    Attributes
    ----------
    date, ticker
        The date and the firm of the forecast.
    base_value, forecast
        The model's output without any player and with all players.
    contributions
        player, value, error: Shapley values with their Monte Carlo standard errors.
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
    unit
        Unit of all values: ``bps of return``, or ``unit of the forecast`` if that is no return.
    unit_sentence
        What is forecast, in words.
    n_forecasts
        Number of forecasts explained.
    players
        kind (days, features, peers), player, mean_abs_shap and error (mean Monte Carlo standard error of the
        player's values). Players without an error are not drawn.
    additivity_max_abs, additivity_relative
        Largest |base + sum of values - forecast|, and the same as a fraction of mean |forecast - base|.
    monte_carlo_error
        Mean standard error of a Shapley value; None if all coalitions were evaluated, so that the values are
        exact.
    removal, absent_days
        What replaced absent characteristics, and what became of absent days; None if not recorded, and for
        models without days.
    skill
        kind, player, value, error, dates: the rank IC on test dates, divided among the players; the kinds
        ``base`` and ``total`` are the rank IC without any player and of the complete model.
    faithfulness
        The verdict on the model's attention; None without attention.
    example
        Decomposition of one forecast.
    edges
        leader, follower, weight (root mean square of the leader's Shapley value in the follower's forecast),
        error (standard error of the weight), t and q (against shuffled peers), found (q of at most 5%),
        same_group (bool, null if unknown).
    network
        measure, value, null_mean, null_low, null_high, number: measures of the whole network.
    evidence
        kind (edge or random), leader, follower, slope, error, t, p, q: followers' next returns on leaders'
        returns over the test.
    """

    model: str
    unit: str
    unit_sentence: str
    n_forecasts: int
    players: pl.DataFrame
    additivity_max_abs: float
    additivity_relative: float
    monte_carlo_error: float | None = None
    removal: str | None = None
    absent_days: str | None = None
    skill: pl.DataFrame | None = None
    faithfulness: ModelFaithfulness | None = None
    example: ExampleForecast | None = None
    edges: pl.DataFrame | None = None
    network: pl.DataFrame | None = None
    evidence: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        """Check the columns of every frame."""
        require_columns("players", self.players, PLAYER_COLUMNS)
        require_columns("skill", self.skill, SKILL_COLUMNS)
        require_columns("edges", self.edges, EDGE_COLUMNS)
        require_columns("network", self.network, NETWORK_COLUMNS)
        require_columns("evidence", self.evidence, EVIDENCE_COLUMNS)
