"""Players of a forecast, and the forecasts of a date without some of them.

Legend: B dates, N firms of a date, W window length, F characteristics, P players, E explained
forecasts, M coalitions, D draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray
from models.batch import Ablation, Batch
from models.explain.game import RandomGame
from models.fitted import Fitted
from models.forecaster import Forecaster

Kind = Literal["days", "family", "peers"]
ForecastDate = Callable[[Batch], AnyFloatArray]
Unwrapped = Forecaster | ForecastDate
Explainable = Fitted | Forecaster | ForecastDate
"""A fitted model, a neural module, or any function that maps a one-date batch to N forecasts."""

_DAY_CELLS = 30_000  # firm-days per forward pass, chosen to fit into a CPU cache
_CUDA_FACTOR = 64


@dataclass(frozen=True, slots=True)
class Player:
    """A player: kind, name, and members (days counted backwards, or columns of characteristics)."""

    kind: Kind
    name: str
    members: tuple[int, ...] = ()


def day_blocks(window: int, starts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Split a window into blocks of days, counted backwards from the decision session (day 1).

    ``day_blocks(8, (1, 2, 3, 6))`` gives days 1, 2, 3 to 5 and 6 to 8. Starts beyond the window are ignored.

    Raises
    ------
    ValueError
        If the starts do not begin with 1 or are not increasing.
    """
    if not starts or starts[0] != 1 or any(b <= a for a, b in pairwise(starts)):
        raise ValueError(f"day_starts is {tuple(starts)}; it must increase from 1, the decision session.")
    edges = [start for start in starts if start <= window] + [window + 1]
    return tuple(tuple(range(a, b)) for a, b in pairwise(edges))


def unwrap(model: Explainable) -> Unwrapped:
    """Return the neural module of a model, or its forecast function if it has none.

    Raises
    ------
    ValueError
        If the module is in training mode, where dropout makes forecasts random.
    """
    inner: Unwrapped
    if isinstance(model, Fitted):
        module = getattr(model, "module", None)
        inner = module if isinstance(module, Forecaster) else model.forecast_date
    else:
        inner = model
    if isinstance(inner, Forecaster) and inner.training:
        raise ValueError("The module is in training mode, so its dropout is random; call eval() first.")
    return inner


def repeat_batch(batch: Batch, times: int) -> Batch:
    """Repeat a one-date batch along the date axis, as views."""
    return _each_tensor(batch, lambda tensor: tensor.expand(times, *tensor.shape[1:]))


def _one_date(batch: Batch, row: int) -> Batch:
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
    """List the players of a model: day blocks from the most recent one, families, all peers together.

    Raises
    ------
    ValueError
        If there is no player.
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
        raise ValueError("The model has neither days nor peers; give the families of its characteristics.")
    return tuple(players)


def check_families(families: Mapping[str, Sequence[int]], n_characteristics: int) -> None:
    """Raise ValueError unless every column belongs to exactly one family, or there are no families."""
    if families and sorted(c for columns in families.values() for c in columns) != list(
        range(n_characteristics)
    ):
        raise ValueError(
            f"The families have the columns {sorted(c for columns in families.values() for c in columns)}; "
            f"each of the {n_characteristics} characteristics must belong to exactly one family."
        )


def draw_donors(n_firms: int, rng: np.random.Generator) -> IntArray:
    """Draw a donor for each of N firms, [N]; every firm is a donor exactly once.

    The draw is a random cycle through all firms, so no firm is its own donor. The exception is a date with a
    single firm, where the Shapley values of its families are 0.
    """
    donor_N, order_N = np.empty(n_firms, dtype=np.int64), rng.permutation(n_firms)
    donor_N[order_N] = np.roll(order_N, 1)
    return donor_N


def group_game(
    model: Unwrapped, batch: Batch, players: tuple[Player, ...], sample_E: IntArray, seed: int
) -> RandomGame:
    """Build the game of a date: coalitions [M, P] and their draws [M] -> forecasts [M, E].

    The donors of a draw depend only on the seed and the number of the draw.
    """
    device, (n_firms, window) = batch.m_BN.device, batch.x_BNWC.shape[1:3]
    z_NF, kinds = batch.z_BNF[0], {player.kind for player in players}
    step = max(1, _DAY_CELLS * (_CUDA_FACTOR if device.type == "cuda" else 1) // (n_firms * window))

    def evaluate(keep_MP: BoolArray, draw_M: IntArray) -> FloatArray:
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
        drawn_D, which_M = np.unique(draw_M, return_inverse=True)
        donor_DN = np.stack(
            [draw_donors(n_firms, np.random.default_rng((seed, 1, int(draw)))) for draw in drawn_D]
        )
        donor_MN = torch.as_tensor(donor_DN[which_M], device=device)
        outputs = []
        for start in range(0, len(keep_MP), step):
            part = slice(start, start + step)
            column_B1F = torch.as_tensor(column_MF[part], device=device)[:, None, :]
            peers_B1 = torch.as_tensor(peers_M1[part], device=device)
            ablation = Ablation(
                torch.as_tensor(days_MW[part], device=device) if "days" in kinds else None,
                peers_B1.expand(-1, n_firms) if "peers" in kinds else None,
            )
            repeated = repeat_batch(batch, len(column_B1F))
            z_BNF = torch.where(column_B1F, z_NF, z_NF[donor_MN[part]])
            outputs.append(forecast(model, replace(repeated, z_BNF=z_BNF), ablation)[:, sample_E])
        return np.concatenate(outputs)

    return evaluate


def forecast(model: Unwrapped, batch: Batch, ablation: Ablation | None) -> FloatArray:
    """Compute forecasts [B, N]; a plain function is called with one date at a time."""
    if isinstance(model, Forecaster):
        with torch.inference_mode():
            return model(batch, ablation).double().cpu().numpy()  # type: ignore[no-any-return]
    rows = [model(_one_date(batch, b)) for b in range(len(batch.m_BN))]
    return np.asarray(rows, dtype=np.float64)


def player_data(player: Player, batch: Batch) -> FloatArray:
    """Feature value of a player for each firm, [N]: ``data_EP`` in `models.explain.groups`."""
    if player.kind == "family":
        data_N = batch.z_BNF[0, :, list(player.members)].mean(dim=1)
    elif player.kind == "days":
        window = batch.x_BNWC.shape[2]
        data_N = batch.x_BNWC[0, :, [window - day for day in player.members], 0].mean(dim=1)
    else:
        data_N = batch.m_BN[0].sum() - batch.m_BN[0].to(torch.int64)
    return data_N.double().cpu().numpy()


def day_attention(model: Forecaster, batch: Batch) -> Tensor | None:
    """Day attention [B, N, W] of a model; None if it has no day encoder."""
    with torch.inference_mode():
        return model.attention(batch).days_BNW
