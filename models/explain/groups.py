"""Shapley values of days, characteristics and peers: which kind of information moved a forecast.

Legend: N firms of a date, P players, E explained forecasts.

Players are disjoint. A player is present or absent for all firms of a date at the same time:

* A block of days is removed by masking it as a key of the day encoder, for every firm. If all days are
  removed, the output of the encoder depends only on its position embeddings. Days that enter a linear map,
  such as those in the messages to peers, are set to 0 instead (`models.forecaster.Forecaster.zeroed_days`).
* A family of characteristics is replaced for every firm (`models.explain.removal`). By default it gets the
  values of another firm of the same date. Every firm donates its values exactly once, so the cross-section of
  the date is preserved.
* Peers (all together, a sector, or a single firm) and market tokens are removed by masking them as keys.

Group codes and positions in the window are never removed. Players with the same information, such as a
momentum characteristic and the days it is computed from, share its Shapley value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from features.arrays import FloatArray, IntArray
from models.baselines.ridge import Ridge
from models.batch import Batch, PanelTensors
from models.explain.closed_forms import closed_form
from models.explain.date_game import group_game
from models.explain.design import stratified_sample
from models.explain.gradients import Differentiable, gradient_values
from models.explain.players import (
    Explainable,
    Player,
    PlayerConfig,
    absent_days,
    check_families,
    find_players,
    forecast,
    player_data,
    unwrap,
)
from models.explain.removal import REMOVALS, Removal, TrainingCells, donors, replacement, training_cells
from models.explain.shapley import Draws, OnRound, Precision, ShapleyValues, relative_precision, sample
from models.forecaster import Forecaster
from models.spec import require_choice

if TYPE_CHECKING:
    import shap

ENGINES = ("permutation", "linear", "tree", "integrated_gradients")
"""Ways to compute the values of a date: `models.explain.shapley`, `closed_forms` and `gradients`."""


@dataclass(frozen=True, slots=True)
class GroupGameConfig:
    """Options of :func:`explain_groups`.

    Attributes
    ----------
    permutations
        Number of antithetic permutations per date, or of paths of gradients. Each draws its own donors, so
        the background of a forecast are as many firms of the same date. With few donors, ``|value|`` of a
        family is biased upwards, because it contains the variation of the donors' values.
    firms_per_date
        Number of forecasts drawn at random per date, in proportion from every group
        (`models.explain.design`); None explains every firm.
    players
        How the inputs are divided into players.
    engine
        ``permutation``, ``linear`` (ridge), ``tree`` (lightgbm) or ``integrated_gradients``.
    precision
        Standard error at which sampling stops, for each date; None draws ``permutations`` times. See
        ``GroupAttribution.reached``.
    share
        Standard error at which sampling stops, as a share of the standard deviation of the date's forecasts
        over firms, in place of ``precision``.
    removal
        What replaces absent characteristics: see `models.explain.removal`.
    seed
        Seed of the permutations, the donors and the drawn firms, independently for each date.
    """

    permutations: int = 8
    firms_per_date: int | None = None
    players: PlayerConfig = field(default_factory=PlayerConfig)
    engine: str = "permutation"
    precision: Precision | None = None
    share: float | None = None
    removal: Removal = "date"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.permutations < 1:
            raise ValueError(f"permutations is {self.permutations}; it must be at least 1.")
        require_choice("engine", self.engine, ENGINES)
        require_choice("removal", self.removal, tuple(REMOVALS))
        if self.share is not None and self.precision is not None:
            raise ValueError("A precision and a share are given; choose one of them.")
        if self.firms_per_date is not None and self.firms_per_date < 1:
            raise ValueError(f"firms_per_date is {self.firms_per_date}; set at least 1, or None for all.")


@dataclass(frozen=True, slots=True, eq=False)
class GroupAttribution:
    """Shapley values of the group players for E forecasts."""

    # P players: day blocks from the most recent one, then families, then the peers
    players: tuple[Player, ...]
    sessions_E: IntArray  # session index and panel column of each forecast
    firms_E: IntArray
    values_EP: FloatArray  # as in :class:`models.explain.shapley.ShapleyValues`, in the forecast's unit
    base_E: FloatArray
    error_EP: FloatArray
    forecast_E: FloatArray  # forecasts of the complete model
    # feature value of each player, for the colours of shap's plots: the mean of a family's characteristics,
    # the mean of the first channel over a block of days, or the number of peers
    data_EP: FloatArray
    engine: str  # how the values were computed
    removal: Removal
    absent_days: str | None  # what becomes of absent days, in words; None if there are no day players
    reached: bool  # whether the precision was reached on every date
    # draws of the permutations of a single date; None for several dates and for other engines
    drawn: Draws | None = None

    @property
    def additivity_error(self) -> float:
        """Largest ``|base + sum of values - forecast|``."""
        return float(np.abs(self.base_E + self.values_EP.sum(axis=1) - self.forecast_E).max())

    @property
    def monte_carlo_error(self) -> float:
        """Mean Monte Carlo standard error of a value."""
        return float(self.error_EP.mean())

    def explanation(self) -> shap.Explanation:
        """Convert to ``shap.Explanation`` [E, P], for shap's plots."""
        import shap

        return shap.Explanation(
            values=self.values_EP,
            base_values=self.base_E,
            data=self.data_EP,
            feature_names=[player.name for player in self.players],
            error_std=self.error_EP,
        )


def explain_groups(
    model: Explainable,
    data: PanelTensors,
    sessions: IntArray,
    families: Mapping[str, Sequence[int]],
    config: GroupGameConfig | None = None,
    *,
    train: IntArray | None = None,
) -> GroupAttribution:
    """Compute Shapley values of day blocks, feature families and peers for the forecasts of some sessions.

    The players depend on the model: day players need a day encoder, the peer player needs peers, and a plain
    function or a baseline has only families. The values of a date depend on that date, the model and the
    seed, not on the other dates.

    Parameters
    ----------
    model
        A fitted model, a neural module in eval mode, or a function of a one-date batch.
    data
        The panel.
    sessions
        Session indices; each must have a firm in the universe.
    families
        Name of each family -> columns of its characteristics; every column belongs to exactly one family. An
        empty mapping means no family players, and requires a model with days or peers.
    config
        Options.
    train
        Training sessions of the model; needed by the removals ``train`` and ``conditional``.

    Raises
    ------
    ValueError
        If families overlap or omit columns, a module is in training mode, ``sessions`` is empty, the model
        has no player, or the engine or the removal does not suit it.

    Notes
    -----
    Lundberg and Lee (2017), "A unified approach to interpreting model predictions"; Jullum, Redelmeier
    and Aas (2021), "groupShapley", for values of disjoint groups.
    """
    config = GroupGameConfig() if config is None else config
    if len(sessions) == 0:
        raise ValueError("sessions is empty; give at least one session with a firm in the universe.")
    inner = unwrap(model)
    check_families(families, data.shape.n_characteristics)
    players = find_players(inner, data.batch(torch.tensor([int(sessions[0])])), families, config.players)
    cells = None if train is None else training_cells(data, train, seed=config.seed)
    parts = []
    for session in np.asarray(sessions).tolist():
        batch = data.batch(torch.tensor([session]))
        n_firms, rng = batch.firms_N.numel(), np.random.default_rng((config.seed, session))
        sample_E: IntArray = np.arange(n_firms)
        if config.firms_per_date is not None and config.firms_per_date < n_firms:
            sample_E = stratified_sample(batch.s_BN[0].cpu().numpy(), config.firms_per_date, rng)
        seed = int(rng.integers(2**32))
        forecast_N = forecast(inner, batch, None)[0]
        precision = Precision(config.permutations) if config.precision is None else config.precision
        if config.share is not None:
            precision = relative_precision(config.share, forecast_N, draws=max(2, config.permutations))
        method = Method(config.engine, config.removal, precision, seed)
        part = explain_date(
            model, batch, session, players, sample_E, method, cells=cells, forecast_N=forecast_N
        )
        parts.append(part)
    return parts[0] if len(parts) == 1 else _joined(parts)


@dataclass(frozen=True, slots=True)
class Method:
    """How the values of a date are computed."""

    engine: str  # as in :class:`GroupGameConfig`. Closed forms and gradients do not draw given what is kept
    removal: Removal
    precision: Precision  # when sampling stops. Gradients take its ``draws``; closed forms need none
    seed: int  # seed of the draws


def explain_date(  # noqa: PLR0917  (a model, its input, and what is asked of it)
    model: Explainable,
    batch: Batch,
    session: int,
    players: tuple[Player, ...],
    sample_E: IntArray,
    method: Method,
    *,
    cells: TrainingCells | None,
    forecast_N: FloatArray,
    drawn: Draws | None = None,
    on_round: OnRound | None = None,
) -> GroupAttribution:
    """Compute the values of some forecasts of a date.

    Raises ValueError if the engine does not suit the model, the players or the removal.

    Parameters
    ----------
    model
        As for :func:`explain_groups`.
    batch, session
        One date, and its session index.
    method
        How to compute the values.
    cells
        Cells of the training fold; None for removal ``date``.
    forecast_N
        Forecasts of the complete model.
    drawn
        Draws of an earlier call with the same arguments, which are continued.
    on_round
        Called after each round of permutations.
    """
    engine, inner = method.engine, unwrap(model)
    if engine == "permutation":
        background = replacement(method.removal, batch, cells, method.seed)
        game = group_game(inner, batch, players, sample_E, background)
        sampled = sample(
            game, len(players), method.precision, seed=method.seed, drawn=drawn, on_round=on_round
        )
        values, reached, drawn = sampled.values, sampled.reached, sampled.drawn
    else:
        values, drawn = _without_coalitions(model, batch, players, sample_E, method, cells=cells), None
        reached = method.precision.reached_by(values.error_PO)
    return GroupAttribution(
        players=players,
        sessions_E=np.full(len(sample_E), session, dtype=np.int64),
        firms_E=batch.firms_N.cpu().numpy()[sample_E],
        values_EP=values.values_PO.T,
        base_E=values.base_O,
        error_EP=values.error_PO.T,
        forecast_E=forecast_N[sample_E],
        data_EP=np.stack([player_data(player, batch)[sample_E] for player in players], axis=1),
        engine=engine,
        removal=method.removal,
        absent_days=absent_days(inner) if players[0].kind == "days" else None,
        reached=reached,
        drawn=drawn,
    )


def mean_over_seeds(
    parts: Sequence[GroupAttribution], scale: Sequence[float] | None = None
) -> GroupAttribution:
    """Average the attributions of the same forecasts by several fitted models, as one of their mean forecast.

    Parameters
    ----------
    parts
        K attributions with the same players and forecasts.
    scale
        What the forecasts of each model are divided by first; None: nothing. The standard error of the mean
        is ``sqrt(sum_k (e_k / scale_k)^2) / K``.
    """
    scale = [1.0] * len(parts) if scale is None else scale

    def mean(of: Callable[[GroupAttribution], FloatArray]) -> FloatArray:
        return np.asarray(np.mean([of(part) / s for part, s in zip(parts, scale, strict=True)], axis=0))

    squared_EP = np.sum([(part.error_EP / s) ** 2 for part, s in zip(parts, scale, strict=True)], axis=0)
    return replace(
        parts[0],
        values_EP=mean(lambda part: part.values_EP),
        base_E=mean(lambda part: part.base_E),
        forecast_E=mean(lambda part: part.forecast_E),
        error_EP=np.sqrt(squared_EP) / len(parts),
        reached=all(part.reached for part in parts),
        drawn=None,
    )


def _joined(parts: Sequence[GroupAttribution]) -> GroupAttribution:
    """Attributions of several dates as one."""
    names = ("sessions_E", "firms_E", "values_EP", "base_E", "error_EP", "forecast_E", "data_EP")
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], **joined, reached=all(part.reached for part in parts), drawn=None)


def _without_coalitions(
    model: Explainable,
    batch: Batch,
    players: tuple[Player, ...],
    sample_E: IntArray,
    method: Method,
    *,
    cells: TrainingCells | None,
) -> ShapleyValues:
    """Values by a closed form or by gradients."""
    if method.removal == "conditional":
        raise ValueError(
            f"Engine {method.engine} does not draw given what is kept; use removal date or train, or the "
            "permutation engine."
        )
    background = donors(method.removal, batch, cells, method.seed)
    if method.engine == "integrated_gradients":
        return gradient_values(
            differentiable(model), batch, players, sample_E, background, draws=method.precision.draws
        )
    baseline, z_NF = getattr(model, "baseline", None), batch.z_BNF[0].double().cpu().numpy()
    background_SF = None if cells is None or method.removal == "date" else cells.z_SF.astype(np.float64)
    return closed_form(baseline, method.engine, z_NF, background_SF, players, sample_E)


def differentiable(model: Explainable) -> Differentiable:
    """Return the forecasts of a neural model or of ridge as a function with gradients.

    Raises ValueError if the model has no gradients.
    """
    inner, baseline = unwrap(model), getattr(model, "baseline", None)
    if isinstance(inner, Forecaster):
        return inner
    if not isinstance(baseline, Ridge):
        raise ValueError("The model has no gradients; use the permutation engine.")
    coefficient_F, intercept = torch.as_tensor(baseline.coefficient_F), baseline.intercept

    def linear(batch: Batch) -> Tensor:
        return batch.z_BNF.double() @ coefficient_F.to(batch.z_BNF.device) + intercept

    return linear
