"""Players of a forecast, and what the forecasts of a date become without some of them.

Legend: B dates, N firms of a date, W window length, F characteristics, P players, E explained
forecasts, M coalitions, K donors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.batch import Ablation, Batch
from models.explain.game import BoolArray, FloatArray, Game
from models.fitted import Fitted
from models.forecaster import Forecaster

IntArray = npt.NDArray[np.integer]
Kind = Literal["days", "family", "peers"]
ForecastDate = Callable[[Batch], npt.NDArray[np.floating]]
Unwrapped = Forecaster | ForecastDate
Explainable = Fitted | Forecaster | ForecastDate
"""A fitted model, a neural module, or any function of a one-date batch that gives N forecasts."""

_DAY_CELLS = 30_000  # firm-days of one forward pass: on a CPU, what stays in its cache
_CUDA_FACTOR = 64


@dataclass(frozen=True, slots=True)
class Player:
    """A player: its kind, its name, and what it holds (days counted back, or columns)."""

    kind: Kind
    name: str
    members: tuple[int, ...] = ()


def day_blocks(window: int, starts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Blocks of days counted back from the decision session (day 1), up to the window's length.

    ``day_blocks(8, (1, 2, 3, 6))`` is days 1, 2, 3 to 5 and 6 to 8.  Starts beyond the window are
    dropped.

    Raises
    ------
    ValueError
        When the starts do not begin with 1 and rise.
    """
    if not starts or starts[0] != 1 or any(b <= a for a, b in pairwise(starts)):
        raise ValueError(f"day_starts is {tuple(starts)}: begin with day 1, the decision session, and rise.")
    edges = [start for start in starts if start <= window] + [window + 1]
    return tuple(tuple(range(a, b)) for a, b in pairwise(edges))


def unwrap(model: Explainable) -> Unwrapped:
    """Find the neural module of a model, or else its function of a one-date batch.

    Raises
    ------
    ValueError
        When the module is in training mode: its dropout would be explained as well.
    """
    inner: Unwrapped
    if isinstance(model, Fitted):
        module = getattr(model, "module", None)
        inner = module if isinstance(module, Forecaster) else model.forecast_date
    else:
        inner = model
    if isinstance(inner, Forecaster) and inner.training:
        raise ValueError("The module is in training mode, where dropout makes it random: call eval() first.")
    return inner


def repeat_batch(batch: Batch, times: int) -> Batch:
    """The same one-date batch several times, as views."""
    return _each_tensor(batch, lambda tensor: tensor.expand(times, *tensor.shape[1:]))


def _only(batch: Batch, row: int) -> Batch:
    return _each_tensor(batch, lambda tensor: tensor[row : row + 1])


def _each_tensor(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    return Batch(
        x_BNWC=change(batch.x_BNWC),
        z_BNF=change(batch.z_BNF),
        m_BN=change(batch.m_BN),
        s_BN=change(batch.s_BN),
        y_BN=change(batch.y_BN),
        firms_N=batch.firms_N,
        key_BN=None if batch.key_BN is None else change(batch.key_BN),
    )


def find_players(
    model: Unwrapped, batch: Batch, families: Mapping[str, Sequence[int]], day_starts: Sequence[int]
) -> tuple[Player, ...]:
    """Players that a model has: day blocks from the most recent, families, the peers as one.

    Raises
    ------
    ValueError
        When it has none.
    """
    players = []
    if isinstance(model, Forecaster) and (model.uses_days or day_attention(model, batch) is not None):
        for days in day_blocks(batch.x_BNWC.shape[2], day_starts):
            name = f"day {days[0]}" if len(days) == 1 else f"days {days[0]}-{days[-1]}"
            players.append(Player("days", name, days))
    players += [Player("family", name, tuple(columns)) for name, columns in families.items()]
    if isinstance(model, Forecaster) and model.uses_peers:
        players.append(Player("peers", "peers"))
    if not players:
        raise ValueError(
            "The model has neither days nor peers, and no families were given: name its families."
        )
    return tuple(players)


def check_families(families: Mapping[str, Sequence[int]], n_characteristics: int) -> None:
    """Refuse families that share a column or leave one out; no families at all are fine."""
    if families and sorted(c for columns in families.values() for c in columns) != list(
        range(n_characteristics)
    ):
        raise ValueError(
            f"The families hold the columns {sorted(c for columns in families.values() for c in columns)}: "
            f"each of the {n_characteristics} characteristics must belong to exactly one family."
        )


def draw_donors(n_firms: int, donors: int, rng: np.random.Generator) -> IntArray:
    """Draw a donor [K, N] for every firm, so that in each draw every firm gives exactly once.

    A draw is one cycle through all the firms in a random order: nobody is its own donor, unless it
    is alone on its date, where its families then have no value.
    """
    donor_KN = np.empty((donors, n_firms), dtype=np.int64)
    for donor_N in donor_KN:
        order_N = rng.permutation(n_firms)
        donor_N[order_N] = np.roll(order_N, 1)
    return donor_KN


def group_game(
    model: Unwrapped,
    batch: Batch,
    players: tuple[Player, ...],
    donor_KN: IntArray,
    sample_E: IntArray,
) -> Game:
    """Game of a date's players: coalitions [M, P] -> forecasts [M, E], mean over the donors given."""
    device, (n_firms, window) = batch.m_BN.device, batch.x_BNWC.shape[1:3]
    z_NF, donated_KNF = batch.z_BNF[0], batch.z_BNF[0][torch.as_tensor(donor_KN, device=device)]
    step = max(1, _DAY_CELLS * (_CUDA_FACTOR if device.type == "cuda" else 1) // (n_firms * window))

    def play(keep_MP: BoolArray) -> FloatArray:
        days_MW = np.ones((len(keep_MP), window), dtype=np.bool_)
        column_MF = np.ones((len(keep_MP), z_NF.shape[1]), dtype=np.bool_)
        peers_M1 = np.ones((len(keep_MP), 1), dtype=np.bool_)
        for p, player in enumerate(players):
            if player.kind == "days":
                days_MW[:, [window - day for day in player.members]] = keep_MP[:, [p]]
            elif player.kind == "family":
                column_MF[:, list(player.members)] = keep_MP[:, [p]]
            else:
                peers_M1 = keep_MP[:, [p]]
        kinds = {player.kind for player in players}
        outputs = []
        for start in range(0, len(keep_MP), step):
            part = slice(start, start + step)
            column_B1F = torch.as_tensor(column_MF[part], device=device)[:, None, :]
            peers_B1 = torch.as_tensor(peers_M1[part], device=device)
            ablation = Ablation(
                torch.as_tensor(days_MW[part], device=device) if "days" in kinds else None,
                peers_B1.expand(-1, n_firms) if "peers" in kinds else None,
            )
            many = repeat_batch(batch, len(column_B1F))
            by_donor_K = [
                forecast(model, replace(many, z_BNF=torch.where(column_B1F, z_NF, given_NF)), ablation)
                for given_NF in donated_KNF
            ]
            outputs.append(np.mean(by_donor_K, axis=0)[:, sample_E])
        return np.concatenate(outputs)

    return play


def forecast(model: Unwrapped, batch: Batch, ablation: Ablation | None) -> FloatArray:
    """Forecasts [B, N]; a plain function sees one date at a time."""
    if isinstance(model, Forecaster):
        with torch.inference_mode():
            return model(batch, ablation).double().cpu().numpy()  # type: ignore[no-any-return]
    rows = [model(_only(batch, b)) for b in range(len(batch.m_BN))]
    return np.asarray(rows, dtype=np.float64)


def held(player: Player, batch: Batch) -> FloatArray:
    """What a player held for each firm [N]; see ``held_EP`` of `models.explain.groups.GroupAttribution`."""
    if player.kind == "family":
        held_N = batch.z_BNF[0, :, list(player.members)].mean(dim=1)
    elif player.kind == "days":
        window = batch.x_BNWC.shape[2]
        held_N = batch.x_BNWC[0, :, [window - day for day in player.members], 0].mean(dim=1)
    else:
        held_N = batch.m_BN[0].sum() - batch.m_BN[0].to(torch.int64)
    return held_N.double().cpu().numpy()


def day_attention(model: Forecaster, batch: Batch) -> Tensor | None:
    """Day attention [B, N, W] of a model; None when it has no day encoder."""
    with torch.inference_mode():
        return model.attention(batch).days_BNW
