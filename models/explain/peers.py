"""Shapley values of single peers: every firm of a date is a player in the forecasts of all other firms.

Legend: B dates, N firms of a date, D model width, L peer layers, H heads, P players, M coalitions.
Matrices are [target i, source j]: row i has the effects of all firms on the forecast of firm i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch

from features.arrays import BoolArray, FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from models.batch import Ablation, Batch, PanelTensors
from models.explain.engines.engine import Precision, sample
from models.explain.engines.permutation import PermutationEngine
from models.explain.game import FixedGame, Game, Quality, quality
from models.explain.groups import RankAgreement, rank_agreement
from models.explain.players import Explainable, forecast, repeat_batch, unwrap
from models.forecaster import Forecaster

if TYPE_CHECKING:
    import shap

PeerChoice = Literal["attention", "random", "group"]

_PAIR_CELLS = 500_000  # pairs of firms per forward pass, chosen to fit into a CPU cache
_CUDA_FACTOR = 64


@dataclass(frozen=True, slots=True)
class PeerGameConfig:
    """Options of :func:`explain_peers`.

    Attributes
    ----------
    permutations
        Number of antithetic permutations per date.
    max_peer_players
        Maximum number of players per date.
    choice
        Which firms are players of their own if a date has more firms than ``max_peer_players``; the remaining
        firms form one player. ``attention``: the firms that receive the most attention. ``random``: a random
        sample of firms for each date, so that over many dates every pair is observed, whatever its attention.
        ``group`` (for any number of firms): every industry is a player, and so is every firm of unknown
        group; if there are too many players, firms of unknown group are merged into one, then the smallest
        industries.
    seed
        Seed of the permutations and the drawn firms, independently for each date.
    """

    permutations: int = 2
    max_peer_players: int = 150
    choice: PeerChoice = "attention"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.permutations < 1 or self.max_peer_players < 2:
            raise ValueError(
                f"permutations is {self.permutations} and max_peer_players {self.max_peer_players}; "
                "they must be at least 1 and 2."
            )
        if self.choice not in ("attention", "random", "group"):
            raise ValueError(f"choice is {self.choice!r}; it must be one of attention, random, group.")


@dataclass(frozen=True, slots=True, eq=False)
class PeerAttribution:
    """Shapley values of peers for all forecasts of one date.

    Attributes
    ----------
    session
        Session index.
    firms_N
        Panel column of each firm of the date.
    players
        Members of each of the P players, as positions in ``firms_N``. Players are disjoint and cover all
        firms.
    player_names
        Empty for a player of one firm; otherwise a description of the player.
    values_NP, base_N, error_NP
        Rows are targets. ``base_N`` is the forecast without any peer. A firm never attends to its own key, so
        with one peer layer its value for itself is 0. With several layers, its value for itself is the
        information that returns to it through other firms.
    forecast_N
        Forecasts of the complete model.
    phi_NN
        ``values_NP`` by source firm; NaN in the columns of firms that are not players of their own.
    attention_NN
        Attention of firm i to firm j, averaged over layers and heads. Rows sum to 1 minus the weight of the
        null key.
    quality
        Accuracy of the values.
    attention_peers
        Agreement of attention with ``|value|`` over the firms that are players of their own.
    """

    session: int
    firms_N: IntArray
    players: tuple[IntArray, ...]
    player_names: tuple[str, ...]
    values_NP: FloatArray
    base_N: FloatArray
    error_NP: FloatArray
    forecast_N: FloatArray
    phi_NN: FloatArray
    attention_NN: FloatArray
    quality: Quality
    attention_peers: RankAgreement

    def explanation(self, tickers: Sequence[str] | None = None) -> shap.Explanation:
        """Convert to ``shap.Explanation`` [N, P], one row per target; ``tickers`` are those of the panel."""
        import shap

        names = [
            name or (str(self.firms_N[firms[0]]) if tickers is None else tickers[self.firms_N[firms[0]]])
            for firms, name in zip(self.players, self.player_names, strict=True)
        ]
        return shap.Explanation(
            values=self.values_NP,
            base_values=self.base_N,
            data=np.stack([self.attention_NN[:, firms].sum(axis=1) for firms in self.players], axis=1),
            feature_names=names,
            error_std=self.error_NP,
        )


def explain_peers(
    model: Explainable, data: PanelTensors, sessions: IntArray, config: PeerGameConfig | None = None
) -> tuple[PeerAttribution, ...]:
    """Compute Shapley values of every peer for every forecast of some sessions.

    A coalition is the set of firms whose keys are not masked. One forward pass gives the forecasts of all N
    targets for a coalition, so the N games of N players share their evaluations. Embeddings are computed
    once. The values of a date depend on that date, the model and the seed, not on the other dates.

    Parameters
    ----------
    model
        A fitted neural model with peers, or its module in eval mode.
    data
        The panel.
    sessions
        Session indices; each must have a firm in the universe.
    config
        Options.

    Raises
    ------
    ValueError
        If the model has no peers, or its module is in training mode.

    Notes
    -----
    A peer is removed by masking its key, so that no other firm can attend to it.
    """
    config = PeerGameConfig() if config is None else config
    module = unwrap(model)
    if not isinstance(module, Forecaster) or not module.uses_peers:
        raise ValueError("The model has no peers to explain; use one that has, such as temporal_peer.")
    return tuple(_explain_date(module, data, int(session), config) for session in sessions)


def _explain_date(
    module: Forecaster, data: PanelTensors, session: int, config: PeerGameConfig
) -> PeerAttribution:
    batch = data.batch(torch.tensor([session]))
    n_firms = batch.firms_N.numel()
    rng = np.random.default_rng((config.seed, session))
    attention_NN = _attention(module, batch)
    players, names = _players(attention_NN, batch.s_BN[0].cpu().numpy(), config, rng)
    game = _game(module, batch, players)
    shapley = sample(
        FixedGame(game),
        len(players),
        PermutationEngine(),
        Precision(draws=config.permutations),
        seed=int(rng.integers(2**32)),
    ).values
    values_NP, error_NP = shapley.values_PO.T, shapley.error_PO.T
    forecast_N = forecast(module, batch, None)[0]
    phi_NN = np.full((n_firms, n_firms), np.nan)
    singles = [(p, firms[0]) for p, firms in enumerate(players) if not names[p]]
    for p, firm in singles:
        phi_NN[:, firm] = values_NP[:, p]
    return PeerAttribution(
        session=session,
        firms_N=batch.firms_N.cpu().numpy(),
        players=players,
        player_names=names,
        values_NP=values_NP,
        base_N=shapley.base_O,
        error_NP=error_NP,
        forecast_N=forecast_N,
        phi_NN=phi_NN,
        attention_NN=attention_NN,
        quality=quality(values_NP, shapley.base_O, forecast_N, error_NP),
        attention_peers=rank_agreement(_agreement(phi_NN, attention_NN)),
    )


def _players(
    attention_NN: FloatArray, group_N: IntArray, config: PeerGameConfig, rng: np.random.Generator
) -> tuple[tuple[IntArray, ...], tuple[str, ...]]:
    n_firms, max_players = len(group_N), config.max_peer_players
    if config.choice == "group":
        return _group_players(group_N, max_players)
    if n_firms <= max_players:
        return tuple(np.array([firm]) for firm in range(n_firms)), ("",) * n_firms
    if config.choice == "attention":
        order_N = np.argsort(-attention_NN.sum(axis=0), kind="stable")
    else:
        order_N = rng.permutation(n_firms)
    singles, merged = np.sort(order_N[: max_players - 1]), np.sort(order_N[max_players - 1 :])
    return (*(np.array([firm]) for firm in singles), merged), ("",) * len(singles) + (
        f"{len(merged)} other firms",
    )


def _group_players(group_N: IntArray, max_players: int) -> tuple[tuple[IntArray, ...], tuple[str, ...]]:
    # code 0 of a batch is the unknown group, whose firms are players of their own; panel codes are one less
    codes, counts = np.unique(group_N[group_N > 0], return_counts=True)
    order = codes[np.argsort(-counts, kind="stable")]
    players = [np.flatnonzero(group_N == code) for code in order]
    names = [f"group {code - 1}" for code in order]
    singles = np.flatnonzero(group_N == 0)
    players += [np.array([firm]) for firm in singles]
    names += [""] * len(singles)
    if len(players) > max_players:
        players, merged = players[: max_players - 1], players[max_players - 1 :]
        names = [
            *names[: max_players - 1],
            _others(max(len(order) - max_players + 1, 0), min(len(singles), len(merged))),
        ]
        players.append(np.sort(np.concatenate(merged)))
    return tuple(players), tuple(names)


def _others(groups: int, firms: int) -> str:
    def count(number: int, noun: str) -> str:
        return f"{number} {noun}{'' if number == 1 else 's'}"

    parts = [count(groups, "other group")] if groups else []
    return " and ".join([*parts, f"{count(firms, 'firm')} of unknown group"] if firms else parts)


def _game(module: Forecaster, batch: Batch, players: tuple[IntArray, ...]) -> Game:
    device, n_firms = batch.m_BN.device, batch.firms_N.numel()
    player_N = np.empty(n_firms, dtype=np.int64)
    for p, firms in enumerate(players):
        player_N[firms] = p
    step = max(1, _PAIR_CELLS * (_CUDA_FACTOR if device.type == "cuda" else 1) // n_firms**2)
    with torch.inference_mode():
        h_1ND = module.embed(batch)

    def evaluate(keep_MP: BoolArray) -> FloatArray:
        keep_MN = torch.as_tensor(keep_MP[:, player_N], device=device)
        outputs: list[npt.NDArray[np.float64]] = []
        with torch.inference_mode():
            for keep_BN in torch.split(keep_MN, step):
                repeated = repeat_batch(batch, len(keep_BN))
                h_BND = h_1ND.expand(len(keep_BN), -1, -1)
                y_BN = module.mix(h_BND, repeated, Ablation(peers_keep_BN=keep_BN))
                outputs.append(y_BN.double().cpu().numpy())
        return np.concatenate(outputs)

    return evaluate


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


def _agreement(phi_NN: FloatArray, attention_NN: FloatArray) -> FloatArray:
    size_NN = np.abs(phi_NN)  # NaN for firms that are not players of their own: ignored by the correlation
    np.fill_diagonal(size_NN, np.nan)
    return rank_ic_by_date(attention_NN, size_NN)
