"""Shapley values of days, characteristics and peers: which kind of information moved a forecast.

Legend: B dates, N firms of a date, W window length, C channels, F characteristics, P players,
E explained forecasts, M coalitions.

Players are disjoint. A player is present or absent for all firms of a date at the same time:

* A block of days is removed by masking it as a key of the day encoder, for every firm. If all days are
  removed, the output of the encoder depends only on its position embeddings. Days that enter a linear map,
  such as those in the messages to peers, are set to 0 instead (`models.forecaster.Forecaster.zeroed_days`).
* A family of characteristics, or a channel, is replaced for every firm (`models.explain.removal`). By default
  it gets the values of another firm of the same date. Every firm donates its values exactly once, so the
  cross-section of the date is preserved.
* Peers (all together, a sector, or a single firm) and market tokens are removed by masking them as keys.

Group codes and positions in the window are never removed. Players with the same information, such as a
momentum characteristic and the days it is computed from, share its Shapley value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from features.arrays import FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from models.baselines.lightgbm import LightGBM
from models.baselines.ridge import Ridge
from models.batch import Batch, PanelTensors
from models.explain.closed_forms import Background, Trees, columns_of, linear_values, tree_values
from models.explain.date_game import group_game
from models.explain.design import stratified_sample
from models.explain.engines.samplers import SAMPLERS
from models.explain.gradients import Differentiable, GradientConfig, gradient_values
from models.explain.players import (
    Explainable,
    Player,
    PlayerConfig,
    Unwrapped,
    absent_days,
    check_families,
    day_attention,
    find_players,
    forecast,
    player_data,
    unwrap,
)
from models.explain.removal import REMOVALS, Removal, TrainingCells, replacement, training_cells
from models.explain.shapley import (
    OnRound,
    Precision,
    Quality,
    SamplerState,
    ShapleyValues,
    quality,
    relative_precision,
    sample,
)
from models.forecaster import Forecaster
from models.spec import require_choice

if TYPE_CHECKING:
    import shap


@dataclass(frozen=True, slots=True)
class GroupGameConfig:
    """Options of :func:`explain_groups`.

    Attributes
    ----------
    permutations
        Number of antithetic permutations per date, or of draws of another engine. Each draws its own donors,
        so the background of a forecast are as many firms of the same date. With few donors, ``|value|`` of a
        family is biased upwards, because it contains the variation of the donors' values.
    firms_per_date
        Number of forecasts drawn at random per date, in proportion from every group
        (`models.explain.design`); None explains every firm.
    players
        How the inputs are divided into players.
    engine
        ``permutation``, ``kernel``, ``exact``, ``linear`` (ridge), ``tree`` (lightgbm),
        ``integrated_gradients`` or ``expected_gradients`` (`models.explain.engines`).
    precision
        Standard error at which sampling stops, for each date; None draws ``permutations`` times. See
        ``GroupAttribution.reached``.
    share
        Standard error at which sampling stops, as a share of the standard deviation of the date's forecasts
        over firms, in place of ``precision``.
    removal
        What replaces absent characteristics and channels: see `models.explain.removal`.
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


@dataclass(frozen=True, slots=True)
class RankAgreement:
    """Spearman correlation of attention with ``|value|``: mean over forecasts, and number of forecasts.

    Forecasts with fewer than three players, or with equal values for all players, are not counted. The mean
    is NaN if the number is 0.
    """

    mean: float
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class GroupAttribution:
    """Shapley values of the group players for E forecasts.

    Attributes
    ----------
    players
        P players: day blocks from the most recent one, then families, then the peers.
    sessions_E, firms_E
        Session index and panel column of each forecast.
    values_EP, base_E, error_EP
        As in :class:`models.explain.shapley.ShapleyValues`, in the forecast's unit.
    forecast_E
        Forecasts of the complete model.
    data_EP
        Feature value of each player, for the colours of shap's plots: the mean of a family's characteristics,
        the mean of the first channel over a block of days, or the number of peers.
    quality
        Accuracy of the values.
    attention_days
        Agreement of day attention with ``|value|`` over day blocks; None if there are no day players.
    engine, removal
        How the values were computed.
    absent_days
        What becomes of absent days, in words; None if there are no day players.
    degrees_E
        Degrees of freedom of the errors of each forecast; 0 if its values are exact.
    reached
        Whether the precision was reached on every date.
    """

    players: tuple[Player, ...]
    sessions_E: IntArray
    firms_E: IntArray
    values_EP: FloatArray
    base_E: FloatArray
    error_EP: FloatArray
    forecast_E: FloatArray
    data_EP: FloatArray
    quality: Quality
    attention_days: RankAgreement | None
    engine: str
    removal: Removal
    absent_days: str | None
    degrees_E: IntArray
    reached: bool

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
        has no player, or the removal needs training sessions.

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
    first = data.batch(torch.tensor([int(sessions[0])]))
    players = find_players(inner, first, families, config.players)
    cells = None if train is None else training_cells(data, train, seed=config.seed)
    parts = [_explain_date(model, data, int(session), players, config, cells=cells) for session in sessions]
    values_EP, base_E, error_EP, forecast_E, data_EP, firms_E, agreement_E, degrees_E, reached_E = (
        np.concatenate(columns) for columns in zip(*parts, strict=True)
    )
    return GroupAttribution(
        players=players,
        sessions_E=np.repeat(np.asarray(sessions, dtype=np.int64), [len(part[1]) for part in parts]),
        firms_E=firms_E,
        values_EP=values_EP,
        base_E=base_E,
        error_EP=error_EP,
        forecast_E=forecast_E,
        data_EP=data_EP,
        quality=quality(values_EP, base_E, forecast_E, error_EP),
        attention_days=rank_agreement(agreement_E) if players[0].kind == "days" else None,
        engine=config.engine,
        removal=config.removal,
        absent_days=absent_days(inner) if players[0].kind == "days" else None,
        degrees_E=degrees_E,
        reached=bool(reached_E.all()),
    )


def rank_agreement(correlation_E: FloatArray) -> RankAgreement:
    """Compute the mean and the number of the correlations that are not NaN."""
    known_E = correlation_E[np.isfinite(correlation_E)]
    return RankAgreement(float(known_E.mean()) if known_E.size else float("nan"), int(known_E.size))


def _explain_date(
    model: Explainable,
    data: PanelTensors,
    session: int,
    players: tuple[Player, ...],
    config: GroupGameConfig,
    *,
    cells: TrainingCells | None,
) -> tuple[npt.NDArray[Any], ...]:
    batch = data.batch(torch.tensor([session]))
    n_firms = batch.firms_N.numel()
    rng = np.random.default_rng((config.seed, session))
    sample_E: IntArray = np.arange(n_firms)
    if config.firms_per_date is not None and config.firms_per_date < n_firms:
        sample_E = stratified_sample(batch.s_BN[0].cpu().numpy(), config.firms_per_date, rng)
    seed = int(rng.integers(2**32))
    forecast_N = forecast(unwrap(model), batch, None)[0]
    precision = Precision(config.permutations) if config.precision is None else config.precision
    if config.share is not None:
        precision = relative_precision(config.share, forecast_N, draws=max(2, config.permutations))
    method = Method(config.engine, config.removal, precision, seed)
    found = date_values(model, batch, players, sample_E, method, cells=cells)
    shapley, values_EP = found.values, found.values.values_PO.T
    return (
        values_EP,
        shapley.base_O,
        shapley.error_PO.T,
        forecast_N[sample_E],
        np.stack([player_data(player, batch)[sample_E] for player in players], axis=1),
        batch.firms_N.cpu().numpy()[sample_E],
        _day_agreement(unwrap(model), batch, players, values_EP, sample_E),
        np.full(len(sample_E), shapley.degrees),
        np.full(len(sample_E), found.reached),
    )


def _day_agreement(
    model: Unwrapped,
    batch: Batch,
    players: tuple[Player, ...],
    values_EP: FloatArray,
    sample_E: IntArray,
) -> FloatArray:
    blocks = [(p, player.members) for p, player in enumerate(players) if player.kind == "days"]
    days_BNW = day_attention(model, batch) if blocks and isinstance(model, Forecaster) else None
    if days_BNW is None:
        return np.full(len(sample_E), np.nan)
    days_EW = days_BNW[0].double().cpu().numpy()[sample_E]
    window = days_EW.shape[1]
    attention_EP = np.stack(
        [days_EW[:, [window - day for day in members]].sum(axis=1) for _, members in blocks], axis=1
    )
    size_EP = np.abs(values_EP[:, [p for p, _ in blocks]])
    return rank_ic_by_date(attention_EP, size_EP)


ENGINES = (*SAMPLERS, "linear", "tree", "integrated_gradients", "expected_gradients")
"""Names of all engines."""


@dataclass(frozen=True, slots=True)
class Method:
    """How the values of a date are computed.

    Attributes
    ----------
    engine
        One of `ENGINES`.
    removal
        What replaces absent characteristics and channels. Closed forms and gradients do not draw given what
        is kept.
    precision
        When sampling stops. Gradients take its ``draws``; closed forms need none.
    seed
        Seed of the draws.
    """

    engine: str
    removal: Removal
    precision: Precision
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class DateValues:
    """Values of a date's forecasts.

    Attributes
    ----------
    values
        The values and their errors.
    reached
        Whether the precision was reached.
    state
        Draws of a sampling engine, from which :func:`date_values` can continue; None for other engines.
    """

    values: ShapleyValues
    reached: bool
    state: SamplerState | None = None


def date_values(
    model: Explainable,
    batch: Batch,
    players: tuple[Player, ...],
    sample_E: IntArray,
    method: Method,
    *,
    cells: TrainingCells | None,
    state: SamplerState | None = None,
    on_round: OnRound | None = None,
) -> DateValues:
    """Compute the values of some forecasts of a date.

    Parameters
    ----------
    model
        A fitted model, a neural module in eval mode, or a function of a one-date batch.
    batch
        One date.
    players
        P players.
    sample_E
        Positions of the explained firms.
    method
        How to compute the values.
    cells
        Cells of the training fold; None for removal ``date``.
    state
        Draws of an earlier call with the same arguments, which are continued.
    on_round
        Called after each round of a sampling engine.

    Raises
    ------
    ValueError
        If the engine does not suit the model, the players or the removal.
    """
    if method.engine in SAMPLERS:
        background = replacement(method.removal, batch, cells, method.seed)
        game = group_game(unwrap(model), batch, players, sample_E, background)
        sampled = sample(
            game,
            len(players),
            SAMPLERS[method.engine],
            method.precision,
            seed=method.seed,
            state=state,
            on_round=on_round,
        )
        return DateValues(sampled.values, sampled.reached, sampled.state)
    if method.removal == "conditional":
        raise ValueError(
            f"Engine {method.engine} does not draw given what is kept; use removal date or train, or the "
            "permutation engine."
        )
    if method.engine in ("linear", "tree"):
        return DateValues(_closed_form(model, batch, players, sample_E, method, cells=cells), True)
    found = gradient_values(
        differentiable(model),
        batch,
        players,
        sample_E,
        replacement(method.removal, batch, cells, method.seed),
        seed=method.seed,
        config=GradientConfig(
            "integrated" if method.engine == "integrated_gradients" else "expected", method.precision.draws
        ),
    )
    asked = method.precision.standard_error
    return DateValues(found.values, asked is None or bool(found.values.error_PO.max() <= asked))


def differentiable(model: Explainable) -> Differentiable:
    """Return the forecasts of a neural model or of ridge as a function with gradients.

    Raises
    ------
    ValueError
        If the model has no gradients.
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


def _closed_form(
    model: Explainable,
    batch: Batch,
    players: tuple[Player, ...],
    sample_E: IntArray,
    method: Method,
    *,
    cells: TrainingCells | None,
) -> ShapleyValues:
    baseline = getattr(model, "baseline", None)
    columns_P = columns_of(tuple((player.kind, player.members) for player in players), method.engine)
    z_NF = batch.z_BNF[0].double().cpu().numpy()
    if method.removal == "date":
        background = Background(z_NF, with_firms=True)
    elif cells is not None:
        background = Background(cells.z_SF.astype(np.float64), with_firms=False)
    else:
        raise ValueError(f"Removal {method.removal} draws from the training fold; give its sessions.")
    if method.engine == "linear" and isinstance(baseline, Ridge):
        return linear_values(
            baseline.coefficient_F, baseline.intercept, z_NF[sample_E], background, columns_P
        )
    if method.engine == "tree" and isinstance(baseline, LightGBM):
        return tree_values(Trees(*baseline.trees()), z_NF[sample_E], background, columns_P)
    needed = "ridge" if method.engine == "linear" else "lightgbm"
    raise ValueError(f"Engine {method.engine} explains {needed} only; use the permutation engine.")
