"""Faithfulness of the importances of single forecasts: every method's ranking, put to the same test.

Units (days or peers) are removed, or added, in the order of an importance, the most important first. With
``f`` the forecast, ``A`` all units and ``top_k`` the k most important ones:

* deletion ``|f(A) - f(A without top_k)|`` and insertion ``|f(top_k) - f(none)|``;
* comprehensiveness, the mean of the deletion curve, and sufficiency, the mean of ``|f(A) - f(top_k)|``, both
  over k = 10%, 20% and 50% of the units (DeYoung et al. 2020, "ERASER", section 4; their 1% and 5% are less
  than one of ten days). High comprehensiveness and low sufficiency mean that the importance is faithful;
* the cumulative change ``sum_(j <= k) |f(A without top_j) - f(A without top_(j-1))|``, as a share of its
  total over all units. In the other curves a unit that raises the forecast and one that lowers it cancel,
  although both were important. Here they do not. The total differs between orders, because removed keys pass
  their weight on to those that remain; as a share, it says how early the changes come, which is what an order
  is for.

Days. The units are blocks of equal length, because the attention and the effect of a block both grow with
its length. Only the days of the forecast's own firm are removed, since its attention over days speaks of
these alone. (The players of `models.explain.groups` are removed for every firm at once.)

Peers. The units are the other firms of the date. The forecast's own firm is never removed.

Legend: N firms of a date, W window length, P units, S steps of a curve, E forecasts, M coalitions,
K background draws, D model width.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from features.arrays import BoolArray, FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from models.attention.probe import Probe, Site, permuted, probing, uniform
from models.batch import Ablation, Batch, PanelTensors
from models.explain.attention import importance
from models.explain.design import settled
from models.explain.players import each_tensor, forecast, repeat_batch
from models.explain.removal import Donors, TrainingCells, donors, training_cells
from models.explain.shapley import Precision, fixed, sample
from models.forecaster import Forecaster

Over = Literal["days", "peers"]
UnitRemoval = Literal["mask", "date", "train"]
REMOVALS: tuple[UnitRemoval, ...] = ("mask", "date", "train")
"""What becomes of removed units: they are masked as keys, or get the data of another firm of the date, or of
a random firm and session of the training fold (`models.explain.removal`)."""

UnitGame = Callable[[BoolArray], FloatArray]  # coalitions [M, P], True: kept -> the forecast [M]

STEPS = 8  # points of a path of integrated gradients

_CELLS = 400_000  # numbers of the windows, or pairs of firms, per forward pass


def equal_blocks(window: int, most: int) -> tuple[IntArray, ...]:
    """Equal blocks of positions in a window, newest first; days that are left over are never removed."""
    length = -(-window // most)
    ends = range(window, window % length, -length)
    return tuple(np.arange(end - length, end) for end in ends)


def drawn(donors: Donors, batch: Batch, draws: int) -> Batch:
    """What replaces removed information: the first K draws of some donors, as K dates."""
    none_F = np.zeros(batch.z_BNF.shape[2], dtype=np.bool_)
    z_KNF = np.stack([donors.characteristics(none_F, k) for k in range(draws)])
    return replace(
        repeat_batch(batch, draws),
        x_BNWC=torch.stack([donors.windows(k) for k in range(draws)]),
        z_BNF=torch.as_tensor(z_KNF, device=batch.m_BN.device),
    )


def unit_game(  # noqa: PLR0917  (a forecast, its units, and what replaces them)
    over: Over,
    module: Forecaster,
    batch: Batch,
    target: int,
    units: tuple[IntArray, ...],
    background: Batch | None = None,
) -> UnitGame:
    """Build the game of one firm's forecast over its own days, or over its peers.

    The units are positions in the window, or of firms of the date. Removed units get the data of the
    background, averaged over its draws; without one they are masked as keys. What is in no unit is always
    kept. Peers whose data are replaced stay members of their groups.
    """
    draws = 1 if background is None else len(background.x_BNWC)
    make = _without_days if over == "days" else _without_peers
    masked, cells = make(module, batch, target, background, draws)
    unit_X = np.full(batch.x_BNWC.shape[2 if over == "days" else 1], -1)
    for p, members in enumerate(units):
        unit_X[members] = p

    def play(keep_MP: BoolArray) -> FloatArray:
        keep_MX = torch.as_tensor(np.where(unit_X >= 0, keep_MP[:, unit_X], True), device=batch.m_BN.device)
        outputs = []
        with torch.inference_mode():
            for part_MX in torch.split(keep_MX, max(1, _CELLS // (cells * draws))):
                y_MK = masked(part_MX).double().reshape(len(part_MX), draws)
                outputs.append(y_MK.mean(dim=1).cpu().numpy())
        return np.concatenate(outputs)

    return play


Masked = tuple[Callable[[Tensor], Tensor], int]  # coalitions [M, X] -> forecasts [M K]; size of a pass


def _without_days(
    module: Forecaster, batch: Batch, target: int, background: Batch | None, draws: int
) -> Masked:
    own = replace(
        each_tensor(batch, lambda tensor: tensor[:, target : target + 1]),
        firms_N=batch.firms_N[target : target + 1],
    )
    with torch.inference_mode():
        others_1ND = module.embed(batch) if module.uses_peers else None

    def forecast(keep_MW: Tensor) -> Tensor:
        if background is None:
            ablation = Ablation(days_keep_BW=keep_MW)
            h_B1D = module.embed(repeat_batch(own, len(keep_MW)), ablation)
        else:
            other_KWC = background.x_BNWC[:, target].to(own.x_BNWC.dtype)
            x_MKWC = torch.where(keep_MW[:, None, :, None], own.x_BNWC[0], other_KWC)
            repeated = repeat_batch(own, len(keep_MW) * draws)
            h_B1D = module.embed(replace(repeated, x_BNWC=x_MKWC.flatten(0, 1)[:, None]))
        if others_1ND is None:
            return module.mix(h_B1D, repeat_batch(own, len(h_B1D)))[:, 0]
        h_BND = others_1ND.repeat(len(h_B1D), 1, 1)
        h_BND[:, target] = h_B1D[:, 0]
        return module.mix(h_BND, repeat_batch(batch, len(h_B1D)))[:, target]

    return forecast, batch.m_BN.shape[1] ** 2 if others_1ND is not None else own.x_BNWC[0].numel()


def _without_peers(
    module: Forecaster, batch: Batch, target: int, background: Batch | None, draws: int
) -> Masked:
    n_firms = batch.m_BN.shape[1]
    with torch.inference_mode():
        h_1ND = module.embed(batch)
        other_KND = h_1ND if background is None else module.embed(background)

    def forecast(keep_MN: Tensor) -> Tensor:
        repeated = repeat_batch(batch, len(keep_MN) * draws)
        if background is None:
            h_BND = h_1ND.expand(len(keep_MN), -1, -1)
            return module.mix(h_BND, repeated, Ablation(peers_keep_BN=keep_MN))[:, target]
        keep_MKN1 = keep_MN[:, None, :, None].expand(-1, draws, -1, 1)
        mixed = replace(
            repeated,
            x_BNWC=torch.where(keep_MKN1[..., None], batch.x_BNWC, background.x_BNWC).flatten(0, 1),
            z_BNF=torch.where(keep_MKN1, batch.z_BNF, background.z_BNF).flatten(0, 1),
        )
        return module.mix(torch.where(keep_MKN1, h_1ND, other_KND).flatten(0, 1), mixed)[:, target]

    return forecast, n_firms * max(n_firms, batch.x_BNWC[0, 0].numel())


def integrated_gradients(
    module: Forecaster, batch: Batch, target: int, over: Over, background: Batch
) -> FloatArray:
    """Integrate the gradient of a forecast from a background to the data; the mean over its draws.

    Over ``days``, the paths are of the own window, and every other input stays: [W], oldest first. Over
    ``peers``, they are of the windows and characteristics of all other firms: [N], 0 for the target.
    """
    moves_N1 = torch.zeros_like(batch.m_BN[0][:, None])
    moves_N1[target] = True
    own_tokens = over == "days" and module.uses_peers
    moving_N1 = moves_N1 if over == "days" else ~moves_N1

    def forecast(moved: Batch) -> Tensor:
        if not own_tokens:
            return module(moved)  # type: ignore[no-any-return]
        # the own token alone: recent days that are sent to other firms are not the encoder's
        h_BND = torch.where(moves_N1, module.embed(moved), module.embed(batch))
        return module.mix(h_BND, repeat_batch(batch, len(moved.x_BNWC)))

    values = list[FloatArray]()
    for x_NWC, z_NF in zip(background.x_BNWC, background.z_BNF, strict=True):
        start = replace(
            batch,
            x_BNWC=torch.where(moving_N1[..., None], x_NWC, batch.x_BNWC),
            z_BNF=batch.z_BNF if over == "days" else torch.where(moving_N1, z_NF, batch.z_BNF),
        )
        of_x, of_z = path_contributions(forecast, start, batch, target, STEPS)
        own = of_x[target].sum(dim=-1) if over == "days" else of_x.sum(dim=(1, 2)) + of_z.sum(dim=1)
        values.append(own.cpu().numpy())
    return np.asarray(np.mean(values, axis=0))


def path_contributions(
    forecast: Callable[[Batch], Tensor], start: Batch, end: Batch, target: int, points: int
) -> tuple[Tensor, Tensor]:
    """Integrated gradients of a forecast for all cells of windows, [N, W, C], and characteristics, [N, F].

    The contribution of a cell is its change on the straight path between two dates times the mean gradient
    along the path, by Gauss-Legendre quadrature. Sundararajan, Taly and Yan (2017), "Axiomatic attribution
    for deep networks".
    """
    node_K, weight_K = np.polynomial.legendre.leggauss(points)
    place_B = torch.as_tensor((node_K + 1.0) / 2.0, dtype=end.z_BNF.dtype, device=end.z_BNF.device)
    changes = (end.x_BNWC - start.x_BNWC, end.z_BNF - start.z_BNF)
    x_BNWC = (start.x_BNWC + place_B[:, None, None, None] * changes[0]).requires_grad_()
    z_BNF = (start.z_BNF + place_B[:, None, None] * changes[1]).requires_grad_()
    y_BN = forecast(replace(repeat_batch(end, points), x_BNWC=x_BNWC, z_BNF=z_BNF))
    weight_B = torch.as_tensor(weight_K / 2.0, dtype=y_BN.dtype, device=y_BN.device)
    slopes = torch.autograd.grad(y_BN[:, target] @ weight_B, (x_BNWC, z_BNF), allow_unused=True)
    of_windows, of_characteristics = (
        (torch.zeros_like(change[0]) if slope is None else slope.sum(dim=0) * change[0]).double()
        for slope, change in zip(slopes, changes, strict=True)
    )
    return of_windows, of_characteristics


CHANGED = ("uniform", "permuted")  # weights at inference in place of those as trained
_SITES = {"days": ("days", "memory", "pooling"), "peers": ("peers",)}


@dataclass(frozen=True, slots=True, eq=False)
class Intervened:
    """Forecasts of D dates with and without their attention weights."""

    session_D: IntArray
    # rank IC with the target ``as trained`` and under ``uniform`` and ``permuted`` attention; NaN where the
    # targets are unknown
    ic: Mapping[str, FloatArray]
    # mean ``|forecast - other forecast|`` [D] in the unit of the forecast: under ``uniform`` and ``permuted``
    # attention, and with everything ``removed`` (no day in the day encoder, or no peer)
    moved: Mapping[str, FloatArray]


def intervene(
    module: Forecaster, data: PanelTensors, sessions: IntArray, over: Over, seed: int
) -> Intervened:
    """Forecast dates with uniform, permuted and no attention over days or peers; other weights stay."""
    generator = torch.Generator().manual_seed(seed)
    ics, moves = [], []
    for session in sessions:
        batch = data.batch(torch.tensor([int(session)]))
        plain_N = _forecast(module, batch)
        even_N = under(module, batch, only(over, uniform))
        mixed_N = under(module, batch, only(over, permuted(generator)))
        y_N = batch.y_BN[0].double().cpu().numpy()
        ics.append(rank_ic_by_date(np.stack([plain_N, even_N, mixed_N]), np.tile(y_N, (3, 1))))
        others = (even_N, mixed_N, _without(module, batch, over))
        moves.append([float(np.abs(plain_N - other_N).mean()) for other_N in others])
    ic, moved = (
        dict(zip(names, np.array(rows, dtype=np.float64).reshape(-1, 3).T, strict=True))
        for names, rows in ((("as trained", *CHANGED), ics), ((*CHANGED, "removed"), moves))
    )
    return Intervened(np.asarray(sessions, dtype=np.int64), ic, moved)


def under(module: Forecaster, batch: Batch, probe: Probe) -> FloatArray:
    """Forecasts [N] of one date with the weights that a probe returns."""
    with probing(module, probe):
        return _forecast(module, batch)


def only(over: Over, probe: Probe) -> Probe:
    """Restrict a probe to the weights over days or over peers."""

    def restricted(site: Site, weights: Tensor, keep: Tensor | None) -> Tensor:
        return probe(site, weights, keep) if site.over in _SITES[over] else weights

    return restricted


def _without(module: Forecaster, batch: Batch, over: Over) -> FloatArray:
    """Forecasts [N] without any day in the day encoder, or without any peer."""
    if over == "peers":
        return _forecast(module, batch, Ablation(peers_keep_BN=torch.zeros_like(batch.m_BN)))
    none_1W = torch.zeros_like(batch.x_BNWC[:, 0, :, 0], dtype=torch.bool)
    with torch.inference_mode():
        y_BN = module.mix(module.embed(batch, Ablation(days_keep_BW=none_1W)), batch)
        return y_BN[0].double().cpu().numpy()


def shuffled(module: Forecaster, seed: int) -> Forecaster:
    """Copy a model and shuffle the values within each of its parameters.

    Adebayo et al. (2018), "Sanity checks for saliency maps", randomise parameters: an explanation that stays
    the same does not depend on what was learned. Values are shuffled rather than drawn anew, because several
    layers start at 0 here, and a model that starts there forecasts a constant.
    """
    changed = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in changed.parameters():
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return changed.eval()


def _forecast(module: Forecaster, batch: Batch, ablation: Ablation | None = None) -> FloatArray:
    return np.asarray(forecast(module, batch, ablation)[0])


RANDOM = "random"
SHAP = "shap"
MIN_UNITS = 3  # fewest units that a ranking says anything about

SHARES = (0.1, 0.2, 0.5)  # shares of the units at which comprehensiveness and sufficiency are measured

SHUFFLES = 4  # copies of the model with shuffled parameters per date


@dataclass(frozen=True, slots=True)
class FaithfulConfig:
    """Options of the measures."""

    # antithetic permutations of each of the two independent estimates of the Shapley values of days
    permutations: int = 4
    day_units: int = 12  # largest number of blocks of days
    background: int = 4  # draws of the removals that replace information, and of integrated gradients
    random_orders: int = 3  # random orders per forecast, whose curves are averaged
    steps: int = 12  # number of steps of the curves, about
    # whether Shapley values are computed for the first copy with shuffled parameters too
    shuffled_shap: bool = True
    seed: int = 0  # seed of all draws, independently for each session and firm


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Curves of one order of removal, in the unit of the forecast; the cumulative one is a share."""

    share_S: FloatArray  # share of the units that are removed or added, from 0 to 1
    deletion_S: FloatArray  # the curves of the module's description
    insertion_S: FloatArray
    cumulative_S: FloatArray
    comprehensiveness: float  # its two means
    sufficiency: float

    def area(self, curve: str) -> float:
        """Area under ``deletion``, ``insertion`` or ``cumulative``, over the share of the units."""
        return float(np.trapezoid(getattr(self, f"{curve}_S"), self.share_S))


@dataclass(frozen=True, slots=True, eq=False)
class ForecastMeasures:
    """Rankings and curves of one forecast, over its own days or its peers."""

    session: int  # the session, and the panel column of the firm
    firm: int
    # method -> importance [P] of each unit: ``shap`` (``|value|``), ``integrated_gradients``, ``attention``,
    # ``rollout``, ``gradient``; for days also ``shap_once``, one of the two estimates whose mean is ``shap``
    importance: Mapping[str, FloatArray]
    # A second estimate, independent of ``shap_once``; None for peers, whose two estimates are in
    # `models.explain.peers`
    again_P: FloatArray | None
    # the same importances [S, P] of S copies of the model with shuffled parameters; empty where not computed
    shuffled: Mapping[str, FloatArray]
    # (method, removal) -> curves; ``random`` is the mean over random orders
    curves: Mapping[tuple[str, UnitRemoval], Curves]


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredModel:
    """One fitted model with what its measures need."""

    module: Forecaster  # the model, in eval mode
    data: PanelTensors  # the panel
    train: IntArray  # sessions that the model was trained on
    config: FaithfulConfig  # options
    cells: TrainingCells = field(init=False)  # A sample of the training fold

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", training_cells(self.data, self.train, seed=self.config.seed))

    def shuffles(self, session: int) -> list[Forecaster]:
        """Shuffled copies of the model, drawn anew for each session: intervals contain their variance."""
        rng = np.random.default_rng((self.config.seed, 2, session))
        return [shuffled(self.module, int(rng.integers(2**32))) for _ in range(SHUFFLES)]

    def backgrounds(self, batch: Batch, seed: int) -> dict[UnitRemoval, Batch]:
        """What replaces removed information, except under ``mask``."""
        draws = self.config.background
        return {
            "date": drawn(donors("date", batch, None, seed), batch, draws),
            "train": drawn(donors("train", batch, self.cells, seed), batch, draws),
        }


Values = tuple[FloatArray, FloatArray | None]
"""Shapley values of a date's peers [target, source] by the model, and by its first shuffled copy. NaN: the
source is no player of its own, and is never removed."""


def measure(
    model: MeasuredModel, over: Over, session: int, firms: IntArray, values: Values | None = None
) -> list[ForecastMeasures]:
    """Measure the rankings of the own days, or of the peers, of some firms' forecasts on one session.

    Firms (panel columns) outside the universe of the session are left out, and so are those with fewer than
    three units. ``values`` are those of the peers; those of days are computed here. Empty if the model has no
    such attention.
    """
    batch, found = model.data.batch(torch.tensor([session])), []
    targets_E = np.flatnonzero(np.isin(batch.firms_N.cpu().numpy(), firms))
    by_attention = importance(over, model.module, batch, targets_E) if len(targets_E) else {}
    if not by_attention:
        return []
    copies = model.shuffles(session)
    by_copy = [importance(over, copy, batch, targets_E) for copy in copies]
    for row, target in enumerate(targets_E.tolist()):
        if values is None:
            units = equal_blocks(batch.x_BNWC.shape[2], model.config.day_units)
        else:
            known = np.isfinite(values[0][target])
            known[target] = False
            units = tuple(np.flatnonzero(known)[:, None])
        if len(units) < MIN_UNITS:
            continue
        every = {
            method: np.stack([one[method][row] for one in (by_attention, *by_copy)])
            for method in by_attention
        }
        found.append(_measured(model, over, session, batch, target, units, every, copies[0], values))
    return found


def _measured(  # noqa: PLR0917  (a forecast of a model, its units, and what is known of them)
    model: MeasuredModel,
    over: Over,
    session: int,
    batch: Batch,
    target: int,
    units: tuple[IntArray, ...],
    attention: Mapping[str, FloatArray],
    copy: Forecaster,
    values: Values | None,
) -> ForecastMeasures:
    """Measure one forecast; ``attention`` is that of the model, and of its shuffled copies, by method."""
    config, firm = model.config, int(batch.firms_N[target])
    rng = np.random.default_rng((config.seed, session, firm))
    backgrounds = model.backgrounds(batch, int(rng.integers(2**32)))

    def by_unit(value_SX: FloatArray) -> FloatArray:
        return np.stack([value_SX[..., members].sum(axis=-1) for members in units], axis=-1)

    def game(removal: UnitRemoval, module: Forecaster = model.module) -> UnitGame:
        return unit_game(over, module, batch, target, units, backgrounds.get(removal))

    def shapley(module: Forecaster = model.module) -> FloatArray:
        play, seed = game("mask", module), int(rng.integers(2**32))
        random_game = fixed(lambda keep_MP: play(keep_MP)[:, None])
        found = sample(random_game, len(units), Precision(config.permutations), seed=seed)
        return found.values().values_PO[:, 0]

    by_method = {method: by_unit(value_SX) for method, value_SX in attention.items()}
    by_shuffled = {method: value_SP[1:] for method, value_SP in by_method.items()}
    once_P = again_P = random_P = None
    if values is None:
        once_P, again_P = shapley(), shapley()
        shap_P, random_P = 0.5 * (once_P + again_P), shapley(copy) if config.shuffled_shap else None
    else:
        shap_P = by_unit(values[0][target])
        random_P = None if values[1] is None else by_unit(values[1][target])
    if random_P is not None:
        by_shuffled[SHAP] = np.abs(random_P)[None]
    slope_X = integrated_gradients(model.module, batch, target, over, backgrounds["date"])
    sizes = {
        SHAP: np.abs(shap_P),
        "integrated_gradients": np.abs(by_unit(slope_X)),
        **{method: value_SP[0] for method, value_SP in by_method.items()},
    }
    orders = [order_of(settled(value_P[None])[0], rng) for value_P in sizes.values()]
    orders += [rng.permutation(len(units)) for _ in range(config.random_orders)]
    of_orders: dict[tuple[str, UnitRemoval], Curves] = {}
    for removal in REMOVALS:
        every = curves(game(removal), orders, steps_of(len(units), config.steps))
        of_orders |= {(method, removal): one for method, one in zip(sizes, every, strict=False)}
        if config.random_orders:
            of_orders[RANDOM, removal] = mean_of(every[len(sizes) :])
    if once_P is not None:
        sizes["shap_once"] = np.abs(once_P)
    return ForecastMeasures(
        session, firm, sizes, None if again_P is None else np.abs(again_P), by_shuffled, of_orders
    )


def steps_of(n_units: int, most: int = 12) -> IntArray:
    """Numbers of removed units at which curves are evaluated: all up to ``most``, else about ``most``.

    Beyond ``most`` units the steps are small at first, where orders differ, and include the shares of
    :data:`SHARES`.
    """
    if n_units <= most:
        return np.arange(n_units + 1)
    small = np.round(np.geomspace(1, n_units, most - len(SHARES)))
    named = np.ceil(np.array(SHARES) * n_units)
    return np.unique(np.concatenate([[0, n_units], small, named])).astype(np.int64)


def curves(game: UnitGame, orders: Sequence[IntArray], steps_S: IntArray) -> list[Curves]:
    """Evaluate the curves of several orders of one forecast's units, in one call of the game.

    The orders name all units from the most to the least important. ``steps_S`` are numbers of removed units,
    from 0 to that of all: those of :func:`steps_of`.
    """
    length = len(orders[0])
    without_OSP = np.argsort(orders, axis=1)[:, None, :] >= steps_S[:, None]
    both_OS2P = np.stack([without_OSP, ~without_OSP], axis=2)
    keep_MP, place_M = np.unique(both_OS2P.reshape(-1, length), axis=0, return_inverse=True)
    values_OS2 = game(keep_MP)[place_M.reshape(-1)].reshape(len(orders), len(steps_S), 2)
    at_S = [int(np.argmin(np.abs(steps_S - np.ceil(share * length)))) for share in SHARES]
    found, share_S = [], steps_S / length
    for without_S, alone_S in values_OS2.swapaxes(1, 2):
        deletion_S, change_S = np.abs(without_S[0] - without_S), np.abs(np.diff(without_S))
        total = change_S.sum()  # equal changes if nothing changes
        cumulative_S = np.concatenate([[0.0], change_S.cumsum() / total]) if total > 0.0 else share_S
        whole, kept = (x_S[at_S].mean() for x_S in (deletion_S, np.abs(without_S[0] - alone_S)))
        curves_S = (deletion_S, np.abs(alone_S - alone_S[0]), cumulative_S)
        found.append(Curves(share_S, *curves_S, float(whole), float(kept)))
    return found


def order_of(importance_P: FloatArray, rng: np.random.Generator) -> IntArray:
    """Units from the most to the least important; ties in random order, so that no position wins them."""
    shuffled_P = rng.permutation(len(importance_P))
    return np.asarray(shuffled_P[np.argsort(-importance_P[shuffled_P], kind="stable")])


def mean_of(every: Sequence[Curves]) -> Curves:
    """Average curves at the same steps."""
    names = ("deletion_S", "insertion_S", "cumulative_S", "comprehensiveness", "sufficiency")
    deletion_S, insertion_S, cumulative_S, whole, kept = (
        np.mean([getattr(one, name) for one in every], axis=0) for name in names
    )
    return Curves(every[0].share_S, deletion_S, insertion_S, cumulative_S, float(whole), float(kept))
