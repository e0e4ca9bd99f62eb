"""Shapley values of days, characteristics and peers: which kind of information moved a forecast.

Legend: N firms of a date, F characteristics, S background cells, P players, E explained forecasts,
M coalitions, T sessions, K members of an ensemble, R rows of a forward pass.

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

Forecasts of whole tests. A book's trades depend on the dates before, so its game is not played date by date:
:func:`without_inputs` and :func:`over_sessions` compute the forecasts of every coalition for all dates, and
the caller measures what they pay. Inputs are removed as above, with one difference: a replacement is the same
for all firms of a date. If every firm got a donor of its own, forecasts would differ between firms by their
donors, a book would trade that noise, and its costs would be those of the noise. With one donor for all,
averaged over several donors, what is left between firms is what the kept players say. Without any input,
forecasts are equal. The donors are the same firms on every date on which they are in the universe, so that a
change of donors is not traded either. Covert, Lundberg and Lee (2020), "Understanding global feature
contributions with additive importance measures": absent inputs of all rows come from one background sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from features.arrays import BoolArray, Float32Array, FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from models.baselines.lightgbm import LightGBM
from models.baselines.ridge import Ridge
from models.batch import Batch, PanelTensors
from models.ensemble import EnsembleFitted
from models.explain import shapley
from models.explain.design import stratified_sample
from models.explain.players import (
    Explainable,
    Player,
    PlayerConfig,
    Unwrapped,
    absent_days,
    check_families,
    find_players,
    forecast,
    player_data,
    unwrap,
)
from models.explain.removal import (
    REMOVALS,
    Removal,
    Replacement,
    TrainingCells,
    donors,
    group_game,
    replacement,
    training_cells,
)
from models.spec import require_choice

if TYPE_CHECKING:
    import shap

ENGINES = ("permutation", "linear", "tree")  # `models.explain.shapley`, and `closed_form` twice


@dataclass(frozen=True, slots=True)
class GroupGameConfig:
    """Options of :func:`explain_groups` and :func:`explain_skill`."""

    # antithetic permutations per date. Each draws its own donors, so the background of a forecast are as many
    # firms of the same date. With few donors, ``|value|`` of a family is biased upwards, because it contains
    # the variation of the donors' values
    permutations: int = 8
    # forecasts drawn at random per date, in proportion from every group; None explains every firm
    firms_per_date: int | None = None
    players: PlayerConfig = field(default_factory=PlayerConfig)  # how the inputs are divided into players
    # one of `ENGINES`: ``linear`` is for ridge, ``tree`` for lightgbm and double_ensemble
    engine: str = "permutation"
    # when sampling stops, for each date (``GroupAttribution.reached``); None draws ``permutations`` times
    precision: shapley.Precision | None = None
    # its standard error as a share of the standard deviation of the date's forecasts, instead of a precision
    share: float | None = None
    removal: Removal = "date"  # what replaces absent characteristics
    seed: int = 0  # of the permutations, the donors and the drawn firms, independently for each date

    def __post_init__(self) -> None:
        if self.permutations < 1:
            raise ValueError(f"permutations is {self.permutations}; it must be at least 1.")
        require_choice("engine", self.engine, ENGINES)
        require_choice("removal", self.removal, tuple(REMOVALS))
        if self.share is not None and self.precision is not None:
            raise ValueError("A precision and a share are given; choose one of them.")
        if self.firms_per_date is not None and self.firms_per_date < 1:
            raise ValueError(f"firms_per_date is {self.firms_per_date}; set at least 1, or None for all.")

    def sampling(self, forecast_N: FloatArray) -> shapley.Precision:
        """When sampling stops on a date with these forecasts."""
        if self.share is None:
            return self.precision or shapley.Precision(self.permutations)
        spread = float(np.std(forecast_N))
        if not spread > 0.0:
            raise ValueError(
                "The forecasts are all equal, so no precision can be relative to their standard deviation; "
                "give a standard error in their unit."
            )
        return shapley.Precision(max(2, self.permutations), self.share * spread)


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
    drawn: shapley.Draws | None = None

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

    The players depend on the model: day players need a model that reads days, the peer player needs peers,
    and a plain function has only families, whose columns ``families`` lists (none for an empty mapping).
    Each session must have a firm in the universe. The training sessions ``train`` of the model are needed by
    the removals ``train`` and ``conditional``. The values of a date depend on that date, the model and the
    seed, not on the other dates. Lundberg and Lee (2017), "A unified approach to interpreting model
    predictions"; Jullum, Redelmeier and Aas (2021), "groupShapley", for values of disjoint groups.

    Raises ValueError if families overlap or omit columns, a module is in training mode, ``sessions`` is
    empty, the model has no player, or the engine or the removal does not suit it.
    """
    config = GroupGameConfig() if config is None else config
    players, cells = _prepared(model, data, sessions, families, config, train)
    inner, parts = unwrap(model), []
    for session in np.asarray(sessions).tolist():
        batch = data.batch(torch.tensor([session]))
        n_firms, rng = batch.firms_N.numel(), np.random.default_rng((config.seed, session))
        sample_E: IntArray = np.arange(n_firms)
        if config.firms_per_date is not None and config.firms_per_date < n_firms:
            sample_E = stratified_sample(batch.s_BN[0].cpu().numpy(), config.firms_per_date, rng)
        forecast_N, own = forecast(inner, batch, None)[0], replace(config, seed=int(rng.integers(2**32)))
        part = explain_date(model, batch, session, players, sample_E, own, cells=cells, forecast_N=forecast_N)
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    names = ("sessions_E", "firms_E", "values_EP", "base_E", "error_EP", "forecast_E", "data_EP")
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], **joined, reached=all(part.reached for part in parts), drawn=None)


def _prepared(  # noqa: PLR0917  (the arguments of explain_groups)
    model: Explainable,
    data: PanelTensors,
    sessions: IntArray,
    families: Mapping[str, Sequence[int]],
    config: GroupGameConfig,
    train: IntArray | None,
) -> tuple[tuple[Player, ...], TrainingCells | None]:
    """Players of a model, and cells of its training fold."""
    if len(sessions) == 0:
        raise ValueError("sessions is empty; give at least one session with a firm in the universe.")
    check_families(families, data.shape.n_characteristics)
    first = data.batch(torch.tensor([int(sessions[0])]))
    players = find_players(unwrap(model), first, families, config.players)
    return players, None if train is None else training_cells(data, train, seed=config.seed)


def explain_date(  # noqa: PLR0917  (a model, its input, and what is asked of it)
    model: Explainable,
    batch: Batch,
    session: int,
    players: tuple[Player, ...],
    sample_E: IntArray,
    config: GroupGameConfig,
    *,
    cells: TrainingCells | None,
    forecast_N: FloatArray,
    drawn: shapley.Draws | None = None,
    on_round: shapley.OnRound | None = None,
) -> GroupAttribution:
    """Compute the values of some forecasts of a date; the seed of the config is that of the draws themselves.

    ``cells`` of the training fold may be None for removal ``date``, ``forecast_N`` are the forecasts of the
    complete model, and ``drawn`` are draws of an earlier call with the same arguments, which are continued.
    ValueError if the engine does not suit the model, the players or the removal.
    """
    inner, precision = unwrap(model), config.sampling(forecast_N)
    if config.engine == "permutation":
        game = group_game(
            inner, batch, players, sample_E, replacement(config.removal, batch, cells, config.seed)
        )
        drawn = shapley.sample(
            game, len(players), precision, seed=config.seed, drawn=drawn, on_round=on_round
        )
        values = drawn.values()
    elif config.removal == "conditional":
        raise ValueError(
            f"Engine {config.engine} does not draw given what is kept; use removal date or train, or the "
            "permutation engine."
        )
    else:
        drawn, background = None, donors(config.removal, batch, cells, config.seed)
        background_SF = None if config.removal == "date" else background.z_SF.astype(np.float64)
        z_NF, baseline = batch.z_BNF[0].double().cpu().numpy(), getattr(model, "baseline", None)
        values = closed_form(baseline, config.engine, z_NF, background_SF, players, sample_E)
    return GroupAttribution(
        players=players,
        sessions_E=np.full(len(sample_E), session, dtype=np.int64),
        firms_E=batch.firms_N.cpu().numpy()[sample_E],
        values_EP=values.values_PO.T,
        base_E=values.base_O,
        error_EP=values.error_PO.T,
        forecast_E=forecast_N[sample_E],
        data_EP=np.stack([player_data(player, batch)[sample_E] for player in players], axis=1),
        engine=config.engine,
        removal=config.removal,
        absent_days=absent_days(inner) if players[0].kind == "days" else None,
        reached=precision.reached_by(values.error_PO),
        drawn=drawn,
    )


def mean_over_seeds(
    parts: Sequence[GroupAttribution], scale: Sequence[float] | None = None
) -> GroupAttribution:
    """Average the attributions of the same forecasts by several fitted models, as one of their mean forecast.

    The forecasts of each of the K models are divided by its ``scale`` first, if there is one. The standard
    error of the mean is ``sqrt(sum_k (e_k / scale_k)^2) / K``.
    """
    scaled = list(zip(parts, [1.0] * len(parts) if scale is None else scale, strict=True))
    means: dict[str, Any] = {
        name: np.mean([getattr(part, name) / s for part, s in scaled], axis=0)
        for name in ("values_EP", "base_E", "forecast_E")
    }
    error_EP = np.sqrt(np.sum([(part.error_EP / s) ** 2 for part, s in scaled], axis=0)) / len(parts)
    reached = all(part.reached for part in parts)
    return replace(parts[0], **means, error_EP=error_EP, reached=reached, drawn=None)


def closed_form(  # noqa: PLR0917  (a model, its input, and what is asked of it)
    baseline: object,
    engine: str,
    z_NF: FloatArray,
    background_SF: FloatArray | None,
    players: tuple[Player, ...],
    sample_E: IntArray,
) -> shapley.ShapleyValues:
    """Exact values of single characteristics of ridge (engine ``linear``) or of trees (``tree``), by shap.

    Exact is what permutations estimate for one feature each and the same background. A player's values are
    the sums over its columns. For a linear model, and for players of one column, they are the values of the
    player's own game. For trees and a family of several columns they are not: interactions of two columns are
    shared between their families column by column. Without ``background_SF``, absent characteristics are
    those of the other firms of the date: a firm's own cell is not part of its background.

    ``linear``: ``sum over the columns of w_c (z_c - mean background_c)``, by ``shap.LinearExplainer`` with an
    independent masker. ``tree``: by ``shap.TreeExplainer`` with interventional perturbation (Lundberg et al.
    2020, "From local explanations to global understanding with explainable AI for trees").

    Raises ValueError if the engine does not suit the model or the players.
    """
    import shap

    for player in players:
        if player.kind != "family":
            raise ValueError(
                f"Engine {engine} explains characteristics only, and there is a player of kind "
                f"{player.kind}; use the permutation engine."
            )
    cells_SF, z_EF = z_NF if background_SF is None else background_SF, z_NF[sample_E]
    # all background cells; shap would draw a sample of its own
    masker = shap.maskers.Independent(cells_SF, max_samples=len(cells_SF))
    if engine == "linear" and isinstance(baseline, Ridge):
        explainer = shap.LinearExplainer((baseline.coefficient_F, baseline.intercept), masker)
        value_EF = np.asarray(explainer.shap_values(z_EF), dtype=np.float64).reshape(len(z_EF), -1)
        of_cells_S, of_firms_E = (
            x_XF @ baseline.coefficient_F + baseline.intercept for x_XF in (cells_SF, z_EF)
        )
    elif engine == "tree" and isinstance(baseline, LightGBM):
        booster, scale = baseline.trees()
        explainer = shap.TreeExplainer(
            booster, data=masker, feature_perturbation="interventional", model_output="raw"
        )
        value_EF = scale * np.asarray(explainer.shap_values(z_EF, check_additivity=False), dtype=np.float64)
        of_cells_S, of_firms_E = (
            scale * np.asarray(booster.predict(x_XF), dtype=np.float64) for x_XF in (cells_SF, z_EF)
        )
    else:
        needed = "ridge" if engine == "linear" else "lightgbm and double_ensemble"
        raise ValueError(f"Engine {engine} explains {needed} only; use the permutation engine.")
    base_E, cells = np.full(len(z_EF), float(of_cells_S.mean())), len(cells_SF)
    if background_SF is None and cells > 1:
        # against its own cell a firm's values are 0, so the mean over the others is larger by N / (N - 1)
        value_EF = value_EF * (cells / (cells - 1))
        base_E = (cells * base_E - of_firms_E) / (cells - 1)
    value_PE = np.stack([value_EF[:, list(player.members)].sum(axis=1) for player in players])
    return shapley.ShapleyValues(value_PE, base_E, np.zeros_like(value_PE))


MIN_FIRMS = 3  # with a known target on a date: two have a rank correlation of 1 or -1 whatever happens
REPLACEMENTS = 4  # replacements that a forecast without some inputs is averaged over


@dataclass(frozen=True, slots=True, eq=False)
class SkillAttribution:
    """Shapley values of the skill on D dates."""

    players: tuple[Player, ...]  # P players
    # session index of each date; dates with fewer than `MIN_FIRMS` known targets are left out
    sessions_D: IntArray
    # value of each player on each date. Values and base add up to the skill of the date
    values_DP: FloatArray
    base_D: FloatArray  # skill without any player
    skill_D: FloatArray  # skill of the complete model


def explain_skill(
    model: Explainable,
    data: PanelTensors,
    sessions: IntArray,
    families: Mapping[str, Sequence[int]],
    config: GroupGameConfig,
    *,
    train: IntArray | None = None,
) -> SkillAttribution:
    """Divide a model's skill among its inputs: which group carries the rank IC of some dates.

    The game of a date pays the rank correlation of all its firms' forecasts and targets when only a coalition
    of players takes part, 0 if all forecasts are equal. This is SAGE (Covert, Lundberg and Lee 2020,
    "Understanding global feature contributions with additive importance measures"), with dates in place of
    single predictions. A forecast without some inputs is the mean over `REPLACEMENTS` of them, before its
    skill is measured: the skill of a mean of forecasts is not the mean of their skills. The values need the
    targets of the dates, so they must not choose inputs or models on dates that are then used as a test.

    Arguments and errors are those of :func:`explain_groups`, on sessions that the model was not trained on.
    One permutation is enough: its noise averages out over dates, and the standard error over
    dates contains it.
    """
    players, cells = _prepared(model, data, sessions, families, config, train)
    precision = config.precision or shapley.Precision(config.permutations)
    kept, values, bases, skills = [], [], [], []
    for session in sessions.tolist():
        date_seed = int(np.random.default_rng((config.seed, session)).integers(2**32))
        batch = data.batch(torch.tensor([session]))
        background = replacement(config.removal, batch, cells, date_seed)
        game = _skill_game(unwrap(model), batch, players, background)
        if game is None:
            continue
        found = shapley.sample(shapley.fixed(game), len(players), precision, seed=date_seed).values()
        kept.append(session)
        values.append(found.values_PO[:, 0])
        bases.append(float(found.base_O[0]))
        skills.append(float(game(np.ones((1, len(players)), dtype=np.bool_))[0, 0]))
    return SkillAttribution(
        players=players,
        sessions_D=np.asarray(kept, dtype=np.int64),
        values_DP=np.asarray(values, dtype=np.float64).reshape(-1, len(players)),
        base_D=np.asarray(bases, dtype=np.float64),
        skill_D=np.asarray(skills, dtype=np.float64),
    )


def _skill_game(
    model: Unwrapped, batch: Batch, players: tuple[Player, ...], background: Replacement
) -> shapley.Game | None:
    """Game that pays the skill of a date, [M, 1]; None if too few targets are known."""
    y_N = batch.y_BN[0].double().cpu().numpy()
    known_E = np.flatnonzero(np.isfinite(y_N))
    if len(known_E) < MIN_FIRMS:
        return None
    forecasts, draw_K = group_game(model, batch, players, known_E, background), np.arange(REPLACEMENTS)

    def payoff(keep_MP: BoolArray) -> FloatArray:
        every_ME = forecasts(np.repeat(keep_MP, len(draw_K), axis=0), np.tile(draw_K, len(keep_MP)))
        mean_ME = every_ME.reshape(len(keep_MP), len(draw_K), -1).mean(axis=1)
        ic_M = rank_ic_by_date(mean_ME, np.repeat(y_N[None, known_E], len(mean_ME), axis=0))
        return np.nan_to_num(ic_M)[:, None]  # equal forecasts rank nothing

    return payoff


ROUNDING = 1e-6
"""Differences below this share of the standard deviation of the complete forecasts count as none."""
FLAT = 1e-4
"""And all of a date's, if the largest is below this share: those are of float32."""

OfDate = Callable[[Batch], FloatArray]  # a date's batch -> forecasts [M, N] of M coalitions


def whole_players(
    model: Explainable, data: PanelTensors, session: int, families: Mapping[str, Sequence[int]]
) -> tuple[Player, ...]:
    """List the players of a book's return: each family, all days together, all peers, market tokens."""
    batch = data.batch(torch.tensor([session]))
    return find_players(unwrap(model), batch, families, PlayerConfig(day_starts=(1,)))


def without_inputs(  # noqa: PLR0917  (a model, its players, and how they are removed)
    model: Explainable,
    players: tuple[Player, ...],
    keep_MP: BoolArray,
    block_M: IntArray,
    data: PanelTensors,
    train: IntArray,
    removal: Removal = "date",
    *,
    seed: int = 0,
) -> OfDate:
    """Forecasts of a date when only the players of each coalition take part.

    A forecast without some family is the mean over `REPLACEMENTS` draws; coalitions of the same block share
    them. Days and peers are masked. The training sessions ``train`` give the values of the removals ``train``
    and ``conditional``; no removal uses a session after the date.
    """
    cells = None if removal == "date" else training_cells(data, train, seed=seed)
    families = [p for p, player in enumerate(players) if player.kind == "family"]
    times_M = np.where(keep_MP[:, families].all(axis=1), 1, REPLACEMENTS)
    start_M = np.cumsum(times_M) - times_M
    of_R = np.repeat(np.arange(len(keep_MP)), times_M)
    draw_R = REPLACEMENTS * block_M[of_R] + np.arange(len(of_R)) - start_M[of_R]

    def of_date(batch: Batch) -> FloatArray:
        background = replacement(removal, batch, cells, seed, shared=True)
        game = group_game(unwrap(model), batch, players, np.arange(batch.firms_N.numel()), background)
        mean_MN: FloatArray = np.add.reduceat(game(keep_MP[of_R], draw_R), start_M) / times_M[:, None]
        return mean_MN

    return of_date


def without_members(model: EnsembleFitted, keep_MK: BoolArray) -> OfDate:
    """Forecasts of a date by some members of an ensemble: absent ones add the mean of their forecasts, 0.

    The weights stay those of the complete ensemble.
    """

    def of_date(batch: Batch) -> FloatArray:
        slopes = model.on_date(batch)[1]
        rows = [one.forecast_date(batch).astype(np.float64) for one in model.members.values()]
        part_KN = np.array(
            [slope * (row_N - row_N.mean()) for slope, row_N in zip(slopes, rows, strict=True)]
        )
        return np.asarray(keep_MK @ part_KN)

    return of_date


def over_sessions(
    of_date: OfDate, model: Explainable, data: PanelTensors, sessions: IntArray
) -> Float32Array:
    """Forecasts of M coalitions on some sessions, [M, T, N] over the panel's firms; NaN outside the universe.

    They are differences from the date's first firm over the standard deviation of the complete model's
    forecasts, in multiples of `ROUNDING`, and all 0 if the largest is below `FLAT`: forecasts that differ by
    rounding only are equal, and books share what is equal.
    """
    found: list[Float32Array] = []
    for session in sessions.tolist():
        batch = data.batch(torch.tensor([session]))
        y_MN, spread = of_date(batch), float(np.std(forecast(unwrap(model), batch, None)))
        row_MN = np.full((len(y_MN), data.mask_TN.shape[1]), np.nan, dtype=np.float32)
        steps_MN = (y_MN - y_MN[:, :1]) / spread if spread > 0 else np.zeros_like(y_MN)
        steps_MN[np.ptp(steps_MN, axis=1) < FLAT] = 0.0
        row_MN[:, batch.firms_N.cpu().numpy()] = ROUNDING * np.round(steps_MN / ROUNDING)
        found.append(row_MN)
    return np.stack(found, axis=1)
