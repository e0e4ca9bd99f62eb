"""Shapley values of single peers: every firm of a date is a player in the forecasts of all other firms.

Legend: B dates, N firms of a date, L peer layers, H heads, K drawn firms.
Matrices are [target i, source j]: row i has the effects of all firms on the forecast of firm i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from features.arrays import BoolArray, FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from models.batch import Ablation, Batch, PanelTensors
from models.explain.players import Explainable, forecast, repeat_batch, unwrap
from models.forecaster import Forecaster
from models.panel_memory import in_parts, variants_at_once

_PAIR_CELLS = 500_000  # pairs of firms per forward pass, chosen to fit into a CPU cache
_NESTED_TOKENS = 50_000  # tokens per pass over nested sets of peers
_FIRM_BYTES = (
    8_192  # on a GPU, of a firm in a coalition: token, queries, keys, values and feed-forward network
)
_TOKEN_BYTES = 4_096  # on a GPU, of a token in a nested set: sums over the order in float64


@dataclass(frozen=True, slots=True)
class PeerGameConfig:
    """Options of :func:`explain_peers`."""

    # antithetic pairs of orders per date, R. Squares need at least two independent pairs
    permutations: int = 16
    # if a date has more firms, this many are drawn at random (:func:`drawn_firms`): as followers if the model
    # evaluates nested sets of peers at once (one peer layer), and as leaders otherwise. The game is the same:
    # all firms of the date are peers, and only some pairs are measured
    max_firms: int = 150
    seed: int = 0  # of the drawn firms and, independently for each date, of the orders

    def __post_init__(self) -> None:
        if self.permutations < 2 or self.max_firms < 2:
            raise ValueError(
                f"permutations is {self.permutations} and max_firms is {self.max_firms}; "
                "both must be at least 2."
            )


@dataclass(frozen=True, slots=True, eq=False)
class PeerAttribution:
    """Shapley values of peers for the forecasts of one date."""

    session: int  # session index
    firms_N: IntArray  # panel column of each firm of the date
    # Shapley value of source j in the forecast of target i, in the forecast's unit; NaN for pairs that were
    # not measured. A firm's own key is never masked for itself, so with one peer layer its value for itself
    # is 0. With several layers, or a gate that reads the market, it is the information that returns to it
    # through other firms
    phi_NN: FloatArray
    # unbiased estimate of the squared Shapley value: ``phi_NN ** 2 - error_NN ** 2``, the mean of the
    # products of independent pairs of orders. It may be negative
    square_NN: FloatArray
    error_NN: FloatArray  # monte Carlo standard error of ``phi_NN``
    # rank correlation, over the peers of each target, of ``|value|`` from the first half of the orders with
    # that from the second half. The halves are independent, so it tells how well the values repeat
    repeat_N: FloatArray
    base_N: FloatArray  # forecast without any peer
    forecast_N: FloatArray  # forecasts of the complete model
    # attention of firm i to firm j, averaged over layers and heads. Rows sum to 1 minus the weight of the
    # null key
    attention_NN: FloatArray


def drawn_firms(mask_DN: BoolArray, config: PeerGameConfig) -> IntArray | None:
    """Draw the firms of a network, which are the same on all its dates, so that an edge can be followed.

    They are drawn at random from the firms that are in the universe on at least half of the dates, and then
    from the others if these are too few. On a date on which a drawn firm is not in the universe, no other
    firm takes its place. Panel columns, ascending; None if no date has more than ``max_firms`` firms: all are
    measured then.
    """
    if mask_DN.sum(axis=1).max(initial=0) <= config.max_firms:
        return None
    order_N = np.random.default_rng((config.seed, 1)).permutation(mask_DN.shape[1])
    dates_N = mask_DN.sum(axis=0)[order_N]
    rank_N = np.where(dates_N == 0, 2, 2 * dates_N < len(mask_DN))  # often, sometimes and never
    return np.sort(order_N[np.argsort(rank_N, kind="stable")[: config.max_firms]])


def explain_peers(
    model: Explainable,
    data: PanelTensors,
    sessions: IntArray,
    config: PeerGameConfig | None = None,
    *,
    drawn: IntArray | None = None,
) -> tuple[PeerAttribution, ...]:
    """Compute Shapley values of the peers for the forecasts of some sessions.

    A coalition is the set of firms whose keys are not masked, so that no other firm can attend to the others.
    R random orders of the firms and their reverses are walked; the value of a firm is the mean of its steps,
    and the mean of an order and its reverse is one independent draw. The values of a date depend on that
    date, the model and the seed, not on the other dates; which of its pairs are measured depends on the dates
    of the network. Castro, Gomez and Tejada (2009), "Polynomial calculation of the Shapley value based on
    sampling"; Mitchell et al. (2022), "Sampling permutations for Shapley value estimation", for the
    antithetic pairs.

    Each session must have a firm in the universe; one without any drawn firm is left out of the result.
    ``drawn`` are the firms of the network, from :func:`drawn_firms`, if these sessions are a part of it; None
    draws them from these sessions. ValueError if the model has no peers, or its module is in training mode.
    """
    config = PeerGameConfig() if config is None else config
    module = unwrap(model)
    if not isinstance(module, Forecaster) or not module.uses_peers:
        raise ValueError("The model has no peers to explain; use one that has, such as temporal_peer.")
    if drawn is None:
        drawn = drawn_firms(data.mask_TN[torch.as_tensor(np.array(sessions))].cpu().numpy(), config)
    dates = [_explain_date(module, data, int(session), drawn, config) for session in sessions]
    return tuple(date for date in dates if date is not None)


def _explain_date(
    module: Forecaster, data: PanelTensors, session: int, drawn: IntArray | None, config: PeerGameConfig
) -> PeerAttribution | None:
    """Explain one date; None if none of the drawn firms is in its universe."""
    batch = data.batch(torch.tensor([session]))
    game, firms_N = PeerGame.of(module, batch), batch.firms_N.cpu().numpy()
    every_N = np.arange(len(firms_N))
    drawn_K = every_N if drawn is None else np.flatnonzero(np.isin(firms_N, drawn))
    if not len(drawn_K):
        return None
    followers_n, leaders_K = (drawn_K, every_N) if game.nested else (every_N, drawn_K)
    rng = np.random.default_rng((config.seed, session))
    total_nK, squares_nK = np.zeros((2, len(followers_n), len(leaders_K)))
    first_nK, half = total_nK, config.permutations // 2
    for pair in range(config.permutations):
        order_N = rng.permutation(len(firms_N))
        forward_nK = game.steps(order_N, followers_n, leaders_K)
        draw_nK = 0.5 * (forward_nK + game.steps(order_N[::-1], followers_n, leaders_K))
        total_nK = total_nK + draw_nK
        if pair + 1 == half:
            first_nK = total_nK
        squares_nK += draw_nK**2
    draws = config.permutations
    phi_nK = total_nK / draws
    variance_nK = np.maximum(squares_nK / draws - phi_nK**2, 0.0) / (draws - 1)  # of the mean over draws
    phi_NN, square_NN, error_NN = np.full((3, len(firms_N), len(firms_N)), np.nan)
    at = np.ix_(followers_n, leaders_K)
    phi_NN[at], square_NN[at], error_NN[at] = phi_nK, phi_nK**2 - variance_nK, np.sqrt(variance_nK)
    first_NN, second_NN = np.full((2, *phi_NN.shape), np.nan)
    first_NN[at], second_NN[at] = first_nK / half, (total_nK - first_nK) / (draws - half)
    base_N = game.forecasts(np.zeros((1, len(firms_N)), dtype=np.bool_))[0]
    forecast_N, attention_NN = forecast(module, batch, None)[0], _attention(module, batch)
    size_NN = np.abs(first_NN)
    np.fill_diagonal(size_NN, np.nan)
    repeat_N = rank_ic_by_date(np.abs(second_NN), size_NN)
    shapley = (phi_NN, square_NN, error_NN, repeat_N)
    return PeerAttribution(session, firms_N, *shapley, base_N, forecast_N, attention_NN)


def attention_matrices(
    module: Forecaster, data: PanelTensors, sessions: IntArray
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Yield, for each session, the panel columns of its firms and their attention [target, source]."""
    for session in sessions:
        batch = data.batch(torch.tensor([int(session)]))
        yield batch.firms_N.cpu().numpy(), _attention(module, batch)


def _attention(module: Forecaster, batch: Batch) -> FloatArray:
    with torch.inference_mode():
        peers_BLHNN = module.attention(batch).peers_BLHNN
    assert peers_BLHNN is not None, "a model with peers has peer attention"
    return peers_BLHNN[0].double().mean(dim=(0, 1)).cpu().numpy()


@dataclass(frozen=True, slots=True, eq=False)
class PeerGame:
    """The game of one date in which every firm is a peer of all others."""

    module: Forecaster  # A model with peers, in eval mode
    batch: Batch  # one date
    h_1ND: Tensor  # tokens of the firms, which do not depend on peers

    @classmethod
    def of(cls, module: Forecaster, batch: Batch) -> PeerGame:
        """Embed the firms of a date."""
        with torch.inference_mode():
            return cls(module, batch, module.embed(batch))

    @property
    def n_firms(self) -> int:
        """N."""
        return self.batch.firms_N.numel()

    @property
    def nested(self) -> bool:
        """Whether a walk costs about as much as one forecast, instead of N + 1."""
        return self._nested(np.arange(self.n_firms), np.arange(1)) is not None

    def forecasts(self, keep_MN: BoolArray) -> FloatArray:
        """Forecasts [M, N] of coalitions of peers."""
        on_cpu = _PAIR_CELLS // self.n_firms**2
        step = variants_at_once(self._device, on_cpu, _FIRM_BYTES * self.n_firms)
        every_MN, parts = torch.as_tensor(keep_MN, device=self._device), list[FloatArray]()

        def compute(at: slice) -> None:
            keep_BN = every_MN[at]
            h_BND = self.h_1ND.expand(len(keep_BN), -1, -1)
            repeated = repeat_batch(self.batch, len(keep_BN))
            y_BN = self.module.mix(h_BND, repeated, Ablation(peers_keep_BN=keep_BN))
            parts.append(y_BN.double().cpu().numpy())

        with torch.inference_mode():
            in_parts(len(every_MN), step, compute)
        return np.concatenate(parts)

    def steps(self, order_N: IntArray, followers_n: IntArray, leaders_K: IntArray) -> FloatArray:
        """Changes [n, K] of the followers' forecasts when each leader joins the firms before it in an order.

        With nested sets of peers (:attr:`nested`) the cost grows with the number of followers, otherwise with
        the number of leaders.
        """
        nested_Pn = self._nested(order_N, followers_n)
        place_N = np.empty_like(order_N)
        place_N[order_N] = np.arange(len(order_N))
        place_K = place_N[leaders_K]
        if nested_Pn is None:
            # sets of peers that are needed: the first p firms, for p the places before and after each leader
            prefix_P = np.unique(np.concatenate((place_K, place_K + 1)))
            forecast_PN = self.forecasts(place_N[None, :] < prefix_P[:, None])
            before_K = np.searchsorted(prefix_P, place_K)
            step_KN = forecast_PN[before_K + 1] - forecast_PN[before_K]
            return np.ascontiguousarray(step_KN[:, followers_n].T)
        return np.ascontiguousarray((nested_Pn[place_K + 1] - nested_Pn[place_K]).T)

    def _nested(self, order_N: IntArray, followers_n: IntArray) -> FloatArray | None:
        tokens = self.n_firms + 1
        chunk = variants_at_once(self._device, _NESTED_TOKENS // tokens, _TOKEN_BYTES * tokens)
        order = torch.as_tensor(order_N.copy(), device=self._device)
        parts = []
        with torch.inference_mode():
            for followers in torch.split(torch.as_tensor(followers_n, device=self._device), chunk):
                y_Pn = self.module.mix_nested(self.h_1ND, self.batch, order, followers)
                if y_Pn is None:
                    return None
                parts.append(y_Pn.double().cpu().numpy())
        return np.concatenate(parts, axis=1)

    @property
    def _device(self) -> torch.device:
        return self.batch.m_BN.device
