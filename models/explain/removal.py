"""Forecasts of coalitions of a date, and what absent players get: other firms, or draws of the training fold.

A replacement never is a zero. Which one is right depends on the question (Janzing et al. 2020, Aas et al.
2021): ``date`` and ``train`` ask what the model does with the input; ``conditional`` also credits an input
with what it says about the others.

Legend: B coalitions of a forward pass, N firms of a date, W window length, C channels, F characteristics,
P players, E explained forecasts, M coalitions, G market tokens, S training cells.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from features.arrays import BoolArray, Float32Array, FloatArray, IntArray
from models.batch import Ablation, Batch, EqualDates, PanelTensors
from models.ensemble import EnsembleFitted
from models.explain.players import (
    PEER_KINDS,
    Player,
    Unwrapped,
    forecast,
    peer_members,
    players_of,
    repeat_batch,
    unwrap,
)
from models.explain.shapley import RandomGame
from models.panel_memory import in_parts, variants_at_once

Removal = Literal["date", "train", "conditional"]
REMOVALS: dict[Removal, str] = {
    "date": "the values of another firm of the same date",
    "train": "the values of a random firm and session of the training fold",
    "conditional": "draws given the kept characteristics, from a Gaussian copula of the training fold",
}
"""What replaces an absent characteristic or channel."""


class Replacement(Protocol):
    """Replacements for the firms of one date; those of a draw depend only on the seed and its number."""

    def characteristics(self, kept_F: BoolArray, draw: int) -> Float32Array:
        """Replacement values [N, F], given the columns that are kept; the kept columns are ignored."""
        ...


def draw_donors(n_firms: int, rng: np.random.Generator) -> IntArray:
    """Draw a donor for each of N firms, [N]; every firm is a donor exactly once.

    The draw is a random cycle through all firms, so no firm is its own donor. The exception is a date with a
    single firm, where the Shapley values of its families are 0.
    """
    donor_N, order_N = np.empty(n_firms, dtype=np.int64), rng.permutation(n_firms)
    donor_N[order_N] = np.roll(order_N, 1)
    return donor_N


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCells:
    """A sample of the firms and sessions of a training fold."""

    data: PanelTensors  # the panel
    session_S: IntArray  # sessions and panel columns of the cells; each firm was in the universe
    firm_S: IntArray

    @property
    def z_SF(self) -> Float32Array:  # noqa: N802 - a shape suffix
        """Characteristics of the cells."""
        at = (torch.as_tensor(self.session_S), torch.as_tensor(self.firm_S))
        z_SF: Float32Array = self.data.characteristics_TNF.cpu()[at].numpy()
        return z_SF

    def windows(self, chosen_N: IntArray) -> Tensor:
        """Windows [N, W, C] of some cells."""
        at = (self.session_S[chosen_N], self.firm_S[chosen_N])
        return self.data.windows(*(torch.as_tensor(index, device=self.data.device) for index in at))


def training_cells(
    data: PanelTensors, sessions: IntArray, *, most: int = 4096, seed: int = 0
) -> TrainingCells:
    """Sample at most ``most`` cells of the universe on training sessions; ValueError if there is none."""
    chosen_T = torch.as_tensor(np.array(sessions))  # a copy, as the sessions of a fold cannot be written to
    row_S, firm_S = np.nonzero(data.mask_TN[chosen_T].cpu().numpy())
    if not len(row_S):
        raise ValueError("No firm is in the universe on any of the training sessions; give other sessions.")
    chosen = np.random.default_rng(seed).permutation(len(row_S))[:most]
    return TrainingCells(data, np.asarray(sessions)[row_S[chosen]], firm_S[chosen])


@dataclass(frozen=True, slots=True, eq=False)
class Donors:
    """Other firms of the date, or cells of the training fold, that give all of their inputs."""

    z_SF: Float32Array  # characteristics of the possible donors
    windows_of: Callable[[IntArray], Tensor]  # windows [N, W, C] of some donors
    choose: Callable[[np.random.Generator], IntArray]  # a donor for each of N firms
    seed: int

    def characteristics(self, kept_F: BoolArray, draw: int) -> Float32Array:
        """Characteristics [N, F] of the donors, whatever is kept."""
        return self.z_SF[self._chosen(draw)]

    def windows(self, draw: int) -> Tensor:
        """Windows [N, W, C] of the donors."""
        return self.windows_of(self._chosen(draw))

    def _chosen(self, draw: int) -> IntArray:
        return self.choose(np.random.default_rng((self.seed, 1, draw)))


class ConditionalDraws:
    """Absent characteristics are drawn given the kept ones, from a Gaussian copula of the training fold.

    Each column becomes normal scores ``q = Phi^-1((rank - 1/2) / S)`` of its rank among the training cells,
    with middle ranks for ties. Scores are taken as jointly normal with the correlation C of the training
    cells. Given the kept scores ``q_k`` of a firm, absent scores are drawn from the normal distribution with
    mean ``C_ak C_kk^-1 q_k`` and covariance ``C_aa - C_ak C_kk^-1 C_ka``, and mapped back to values of the
    training cells. Only characteristics are conditioned on, not days or peers, and dependence is only that
    of a Gaussian copula. Aas, Jullum and Loland (2021), "Explaining individual predictions when features are
    dependent: more accurate approximations to Shapley values".
    """

    def __init__(self, cells: TrainingCells, batch: Batch, seed: int, *, shared: bool = False) -> None:
        self._shared = shared
        self._sorted_SF: Float32Array = np.sort(cells.z_SF, axis=0)
        self._q_NF = self._scores(batch.z_BNF[0].cpu().numpy())
        q_SF, self._seed = self._scores(cells.z_SF), seed
        spread_F = q_SF.std(axis=0)
        q_SF = (q_SF - q_SF.mean(axis=0)) / np.where(spread_F > 0, spread_F, 1.0)
        shrunk_FF = 0.999 * (q_SF.T @ q_SF) / len(q_SF)  # so that equal columns can be inverted
        np.fill_diagonal(shrunk_FF, 1.0)
        self._c_FF: FloatArray = shrunk_FF
        self._laws: dict[bytes, tuple[FloatArray, FloatArray]] = {}

    def characteristics(self, kept_F: BoolArray, draw: int) -> Float32Array:
        """Draws of the absent columns."""
        n_firms, count = self._q_NF.shape
        rows = 1 if self._shared else n_firms
        noise_NF = np.random.default_rng((self._seed, 1, draw)).normal(size=(rows, count))
        slope_KA, root_AA = self._law(kept_F)
        q_NA = self._q_NF[:, kept_F] @ slope_KA + noise_NF[:, ~kept_F] @ root_AA.T
        out_NF: Float32Array = np.zeros((n_firms, count), dtype=np.float32)
        out_NF[:, ~kept_F] = self._values(q_NA, ~kept_F)
        return out_NF

    def _law(self, kept_F: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Slopes on the kept scores, and a root of the covariance of the absent ones."""
        key = kept_F.tobytes()
        if key not in self._laws:
            c_KK, c_KA = self._c_FF[np.ix_(kept_F, kept_F)], self._c_FF[np.ix_(kept_F, ~kept_F)]
            slope_KA = np.linalg.solve(c_KK, c_KA)
            covariance_AA = self._c_FF[np.ix_(~kept_F, ~kept_F)] - c_KA.T @ slope_KA
            value_A, vector_AA = np.linalg.eigh(covariance_AA)
            root_AA: FloatArray = vector_AA * np.sqrt(np.maximum(value_A, 0.0))
            self._laws[key] = (slope_KA.astype(np.float64), root_AA)
        return self._laws[key]

    def _scores(self, z_XF: Float32Array) -> FloatArray:
        from scipy.special import ndtri

        cells = len(self._sorted_SF)
        q_XF = np.empty(z_XF.shape)
        for column, sorted_S in enumerate(self._sorted_SF.T):
            below = np.searchsorted(sorted_S, z_XF[:, column], "left")
            upto = np.searchsorted(sorted_S, z_XF[:, column], "right")
            q_XF[:, column] = ndtri(np.clip((below + upto) / 2.0, 0.5, cells - 0.5) / cells)
        return q_XF

    def _values(self, q_NA: FloatArray, absent_F: BoolArray) -> Float32Array:
        from scipy.special import ndtr

        cells = len(self._sorted_SF)
        place_NA = np.minimum((ndtr(q_NA) * cells).astype(np.int64), cells - 1)
        values_NA: Float32Array = np.take_along_axis(self._sorted_SF[:, absent_F], place_NA, axis=0)
        return values_NA


def replacement(
    removal: Removal, batch: Batch, cells: TrainingCells | None, seed: int, *, shared: bool = False
) -> Replacement:
    """Build the replacements of a date; ValueError if the removal is unknown, or lacks training cells.

    ``shared`` gives all firms of the date the same draw: one donor, or one draw of the noise.
    """
    if removal == "conditional" and cells is not None:
        return ConditionalDraws(cells, batch, seed, shared=shared)
    return donors(removal, batch, cells, seed, shared=shared)


def donors(
    removal: Removal, batch: Batch, cells: TrainingCells | None, seed: int, *, shared: bool = False
) -> Donors:
    """Build the donors for ``train``, or ``date``, where every firm gives its values exactly once.

    With ``shared`` one donor gives its values to all firms, itself included. For ``date`` it is the first
    firm of the date in a random order of all firms, so that dates of the same seed have the same donor.
    """
    if removal not in REMOVALS:
        raise ValueError(f"removal is {removal!r}; choose one of {', '.join(REMOVALS)}.")
    x_NWC, n_firms = batch.x_BNWC[0], batch.firms_N.numel()
    if removal == "date":
        firms_N = batch.firms_N.cpu().numpy()

        def first(rng: np.random.Generator) -> IntArray:
            return np.full(n_firms, rng.random(int(firms_N.max()) + 1)[firms_N].argmin())

        return Donors(
            batch.z_BNF[0].cpu().numpy(),
            lambda chosen_N: x_NWC[torch.as_tensor(chosen_N, device=x_NWC.device)],
            first if shared else lambda rng: draw_donors(n_firms, rng),
            seed,
        )
    if cells is None:
        raise ValueError(f"Removal {removal} draws from the training fold; give its sessions.")
    z_SF = cells.z_SF
    drawn = 1 if shared else n_firms
    return Donors(
        z_SF, cells.windows, lambda rng: np.resize(rng.integers(0, len(z_SF), drawn), n_firms), seed
    )


# cells of a forward pass: per coalition and firm, the explained firms and some for its own token
_CELLS = 2_000_000
_OWN_CELLS = 64
_CELL_BYTES = 128  # on a GPU: weights of four heads, their logits, masks and biases


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """Inputs that the coalitions keep; None if no player holds such inputs."""

    days_MW: BoolArray | None
    column_MF: BoolArray | None
    peers_MN: BoolArray | None
    tokens_MG: BoolArray | None


def group_game(
    model: Unwrapped, batch: Batch, players: tuple[Player, ...], sample_E: IntArray, background: Replacement
) -> RandomGame:
    """Build the game of a date: coalitions [M, P] and their draws [M] -> forecasts [M, E].

    A forward pass has several coalitions as its dates. Coalitions that keep the same days follow each other,
    so that the day encoder embeds their windows once, and among them those that keep the same
    characteristics, which differ in the masked peers alone.

    The game of an ensemble is the sum of its members' games with the same draws. A member's forecasts are
    standardised by the mean and the deviation of its whole forecasts of the date, for every coalition, so
    that values are the weighted sums of the members' values, and add up to the ensemble's forecast.
    """
    if isinstance(model, EnsembleFitted):
        return _ensemble_game(model, batch, players, sample_E, background)
    cells = batch.firms_N.numel() * (len(sample_E) + _OWN_CELLS)
    step = variants_at_once(batch.m_BN.device, _CELLS // cells, _CELL_BYTES * cells)

    def evaluate(keep_MP: BoolArray, draw_M: IntArray) -> FloatArray:
        nonlocal step
        kept = _kept(keep_MP, players, batch)
        window_M, input_M = _different(kept, draw_M)
        order_M = np.argsort(input_M, kind="stable")
        out_ME = np.empty((len(keep_MP), len(sample_E)))

        def compute(at: slice) -> None:
            part = order_M[at]
            days_BW, peers_BN, tokens_BG = (
                None if keep_MX is None else torch.as_tensor(keep_MX[part], device=batch.m_BN.device)
                for keep_MX in (kept.days_MW, kept.peers_MN, kept.tokens_MG)
            )
            windows, inputs = (
                EqualDates.of(torch.as_tensor(number_M[part], device=batch.m_BN.device))
                for number_M in (window_M, input_M)
            )
            repeated = _replaced(batch, kept, draw_M, part, background)
            ablation = Ablation(days_BW, peers_BN, tokens_BG, windows, inputs)
            out_ME[part] = forecast(model, repeated, ablation, sample_E)

        step = in_parts(len(keep_MP), step, compute)
        return out_ME

    return evaluate


def _ensemble_game(
    model: EnsembleFitted,
    batch: Batch,
    players: tuple[Player, ...],
    sample_E: IntArray,
    background: Replacement,
) -> RandomGame:
    intercept, slopes = model.on_date(batch)
    members = [unwrap(member) for member in model.members.values()]
    places = [players_of(member, batch, players) for member in members]
    games = [
        group_game(member, batch, tuple(players[p] for p in own), sample_E, background)
        for member, own in zip(members, places, strict=True)
    ]

    def evaluate(keep_MP: BoolArray, draw_M: IntArray) -> FloatArray:
        parts = [
            slope * game(keep_MP[:, own], draw_M)
            for slope, game, own in zip(slopes, games, places, strict=True)
        ]
        return np.asarray(intercept + np.sum(parts, axis=0))

    return evaluate


def _kept(keep_MP: BoolArray, players: tuple[Player, ...], batch: Batch) -> _Kept:
    n_firms, window = batch.x_BNWC.shape[1:3]
    sizes = {
        "days": window,
        "family": batch.z_BNF.shape[2],
        "peers": n_firms,
        "market": 1 + max((player.members[0] for player in players if player.kind == "market"), default=0),
    }
    kept: dict[str, BoolArray] = {}
    for p, player in enumerate(players):
        kind = "peers" if player.kind in PEER_KINDS else player.kind
        keep_MX = kept.setdefault(kind, np.ones((len(keep_MP), sizes[kind]), dtype=np.bool_))
        if kind == "peers":
            members = peer_members(player, batch).cpu().numpy().nonzero()[0].tolist()
        else:
            members = [window - day for day in player.members] if kind == "days" else list(player.members)
        keep_MX[:, members] = keep_MP[:, [p]]
    return _Kept(*(kept.get(kind) for kind in sizes))


def _different(kept: _Kept, draw_M: IntArray) -> tuple[IntArray, IntArray]:
    """Number the different windows, and the different inputs by window, of the coalitions."""
    window_M = np.zeros_like(draw_M)
    if kept.days_MW is not None:
        packed_MX = np.packbits(kept.days_MW, axis=1)
        window_M = np.unique(packed_MX, axis=0, return_inverse=True)[1].reshape(-1)
    if kept.column_MF is None:
        return window_M, window_M
    all_kept_M = kept.column_MF.all(axis=1)  # nothing is replaced, whatever the draw
    rows_MX = np.column_stack(
        [window_M, np.where(all_kept_M, -1, draw_M), np.packbits(kept.column_MF, axis=1)]
    )
    return window_M, np.unique(rows_MX, axis=0, return_inverse=True)[1].reshape(-1)


def _replaced(batch: Batch, kept: _Kept, draw_M: IntArray, part: IntArray, background: Replacement) -> Batch:
    """Repeat the batch for some coalitions, with the replacements of what they do not keep."""
    repeated = repeat_batch(batch, len(part))
    if kept.column_MF is None:
        return repeated
    z_NF = batch.z_BNF[0].cpu().numpy()
    z_BNF = np.empty((len(part), *z_NF.shape), dtype=np.float32)
    known: dict[tuple[int, bytes], FloatArray] = {}
    for b, m in enumerate(part):
        kept_F = kept.column_MF[m]
        key = (int(draw_M[m]), kept_F.tobytes())
        if key not in known:
            known[key] = np.where(kept_F, z_NF, background.characteristics(kept_F, key[0]))
        z_BNF[b] = known[key]
    return replace(repeated, z_BNF=torch.as_tensor(z_BNF, device=batch.m_BN.device))
