"""The game of one date: the forecasts of some firms when only a coalition of players takes part.

Legend: B coalitions of a forward pass, N firms of a date, W window length, F characteristics, P players,
E explained forecasts, M coalitions, G market tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from features.arrays import BoolArray, FloatArray, IntArray
from models.batch import Ablation, Batch, EqualDates
from models.explain.players import (
    PEER_KINDS,
    Player,
    Unwrapped,
    forecast,
    peer_members,
    repeat_batch,
)
from models.explain.removal import Replacement
from models.explain.shapley import RandomGame

# cells of a forward pass: per coalition and firm, the explained firms and some for its own token
_CELLS = 2_000_000
_OWN_CELLS = 64
_CUDA_FACTOR = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """Inputs that the coalitions keep; None if no player holds such inputs."""

    days_MW: BoolArray | None
    column_MF: BoolArray | None
    peers_MN: BoolArray | None
    tokens_MG: BoolArray | None


def group_game(
    model: Unwrapped,
    batch: Batch,
    players: tuple[Player, ...],
    sample_E: IntArray,
    background: Replacement,
) -> RandomGame:
    """Build the game of a date: coalitions [M, P] and their draws [M] -> forecasts [M, E].

    A forward pass has several coalitions as its dates. Coalitions that keep the same days follow each other,
    so that the day encoder embeds their windows once, and among them those that keep the same
    characteristics, which differ in the masked peers alone.
    """
    cells = batch.firms_N.numel() * (len(sample_E) + _OWN_CELLS)
    step = max(1, _CELLS * (_CUDA_FACTOR if batch.m_BN.is_cuda else 1) // cells)

    def evaluate(keep_MP: BoolArray, draw_M: IntArray) -> FloatArray:
        kept = _kept(keep_MP, players, batch)
        window_M = _different_windows(kept, len(keep_MP))
        input_M = _different_inputs(kept, window_M, draw_M)
        order_M = np.argsort(input_M, kind="stable")
        out_ME = np.empty((len(keep_MP), len(sample_E)))
        for start in range(0, len(keep_MP), step):
            part = order_M[start : start + step]
            repeated = _replaced(batch, kept, draw_M, part, background)
            ablation = _ablation(kept, window_M[part], input_M[part], part, device=batch.m_BN.device)
            out_ME[part] = forecast(model, repeated, ablation, sample_E)
        return out_ME

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


def _different_windows(kept: _Kept, coalitions: int) -> IntArray:
    """Number the different windows: equal for coalitions that keep the same days."""
    if kept.days_MW is None:
        return np.zeros(coalitions, dtype=np.int64)
    packed_MX = np.packbits(kept.days_MW, axis=1)
    return np.unique(packed_MX, axis=0, return_inverse=True)[1].reshape(-1)


def _different_inputs(kept: _Kept, window_M: IntArray, draw_M: IntArray) -> IntArray:
    """Number the different inputs, by window: equal for those that also keep the same characteristics."""
    if kept.column_MF is None:
        return window_M
    packed_MX = np.packbits(kept.column_MF, axis=1).astype(np.int64)
    all_kept_M1 = np.all(kept.column_MF, axis=1)[:, None]  # nothing is replaced, whatever the draw
    rows_MX = np.concatenate(
        (window_M[:, None], np.where(all_kept_M1, -1, draw_M[:, None]), packed_MX), axis=1
    )
    return np.unique(rows_MX, axis=0, return_inverse=True)[1].reshape(-1)


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


def _ablation(
    kept: _Kept, window_B: IntArray, input_B: IntArray, part: IntArray, *, device: torch.device
) -> Ablation:
    def tensor(keep_MX: BoolArray | None) -> Tensor | None:
        return None if keep_MX is None else torch.as_tensor(keep_MX[part], device=device)

    windows, inputs = (
        EqualDates.of(torch.as_tensor(label_B, device=device)) for label_B in (window_B, input_B)
    )
    return Ablation(tensor(kept.days_MW), tensor(kept.peers_MN), tensor(kept.tokens_MG), windows, inputs)
