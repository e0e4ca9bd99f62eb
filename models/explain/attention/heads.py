"""What each attention head looks at: own group, large firms, recent days; each figure with its null.

Legend: N firms of a date, H heads, W window length, D dates, R draws.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from features.arrays import FloatArray, IntArray
from models.explain.attention.record import AttentionRecord
from models.explain.faithful.statistics import Estimate, mean_over_dates

Trait = Literal["own_group", "large_firms", "no_peer", "effective_firms", "recent_days", "effective_days"]

RECENT = 3
"""Number of newest days of the trait ``recent_days``."""

_DRAWS = 20


@dataclass(frozen=True, slots=True)
class HeadTrait:
    """One figure about one head.

    Attributes
    ----------
    over
        ``days`` or ``peers``.
    layer, head
        Counted from 1.
    trait
        ``own_group``: share of the weight of peers on the target's group. ``large_firms``: mean size rank of
        the peers, weighted; 1 is the largest firm and 0 the smallest. ``no_peer``: weight of the null key.
        ``recent_days``: weight of the newest three days. ``effective_firms``, ``effective_days``:
        ``exp(entropy)`` of the weights, the number of equal weights that would be as concentrated.
    estimate
        Mean over dates.
    null
        The figure if the weights of every query were permuted among its keys; NaN if there is no such null.
    """

    over: Literal["days", "peers"]
    layer: int
    head: int
    trait: Trait
    estimate: Estimate
    null: float


@dataclass(frozen=True, slots=True, eq=False)
class DateAttention:
    """The attention of one date with what firms are.

    Attributes
    ----------
    session
        Session index.
    record
        The weights.
    group_N
        Group codes of the firms; 0 means unknown.
    size_N
        A characteristic that grows with size; None if the panel has none.
    """

    session: int
    record: AttentionRecord
    group_N: IntArray
    size_N: FloatArray | None


def head_traits(dates: Iterable[DateAttention], seed: int = 0) -> list[HeadTrait]:
    """Describe every head of every layer by its traits, averaged over dates; a seed for all draws."""
    found: dict[tuple[Literal["days", "peers"], int, int, Trait], list[tuple[int, float, float]]] = {}
    for date in dates:
        rng = np.random.default_rng((seed, date.session))
        for layer, weights_NHQK in enumerate(date.record.days):
            newest_NHW = weights_NHQK[:, :, -1, : date.record.window].double().cpu().numpy()
            for head in range(newest_NHW.shape[1]):
                for trait, value, null in _of_days(newest_NHW[:, head]):
                    found.setdefault(("days", layer, head, trait), []).append((date.session, value, null))
        for layer, weights_HNN in enumerate(date.record.peers):
            for head, weights_NN in enumerate(weights_HNN.double().cpu().numpy()):
                for trait, value, null in _of_peers(weights_NN, date, rng):
                    found.setdefault(("peers", layer, head, trait), []).append((date.session, value, null))
    traits = []
    for (over, layer, head, trait), rows in found.items():
        session_D, value_D, null_D = (np.array(column) for column in zip(*rows, strict=True))
        estimate = mean_over_dates(value_D, session_D, seed)
        traits.append(HeadTrait(over, layer + 1, head + 1, trait, estimate, float(null_D.mean())))
    return traits


def _of_days(weights_NW: FloatArray) -> list[tuple[Trait, float, float]]:
    window = weights_NW.shape[1]
    share_NW = weights_NW / np.maximum(weights_NW.sum(axis=1, keepdims=True), 1e-12)
    return [
        ("recent_days", float(share_NW[:, -RECENT:].sum(axis=1).mean()), min(RECENT, window) / window),
        ("effective_days", float(_effective(share_NW).mean()), float("nan")),
    ]


def _of_peers(
    weights_NN: FloatArray, date: DateAttention, rng: np.random.Generator
) -> list[tuple[Trait, float, float]]:
    n_firms = len(weights_NN)
    total_N = weights_NN.sum(axis=1)
    share_NN = weights_NN / np.maximum(total_N[:, None], 1e-12)
    used_N = total_N > 0.0
    rows: list[tuple[Trait, float, float]] = [
        ("no_peer", float(1.0 - total_N.mean()), float("nan")),
        ("effective_firms", float(_effective(share_NN[used_N]).mean()), float("nan")),
    ]
    if not used_N.any() or n_firms < 3:
        return rows
    mixed_RNN = [_permuted_rows(share_NN, rng) for _ in range(_DRAWS)]
    known_N = (date.group_N > 0) & used_N
    if known_N.any():
        same_NN = date.group_N[:, None] == date.group_N[None, :]

        def own(share: FloatArray) -> float:
            return float((share * same_NN).sum(axis=1)[known_N].mean())

        rows.append(("own_group", own(share_NN), float(np.mean([own(one) for one in mixed_RNN]))))
    if date.size_N is not None:
        rank_N = date.size_N.argsort().argsort() / (n_firms - 1.0)

        def size(share: FloatArray) -> float:
            return float((share @ rank_N)[used_N].mean())

        rows.append(("large_firms", size(share_NN), float(np.mean([size(one) for one in mixed_RNN]))))
    return rows


def _effective(share_NK: FloatArray) -> FloatArray:
    logs_NK = np.log(np.where(share_NK > 0.0, share_NK, 1.0))
    effective_N: FloatArray = np.exp(-(share_NK * logs_NK).sum(axis=1))
    return effective_N


def _permuted_rows(share_NN: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Permute the weights of every target among the other firms."""
    n_firms = len(share_NN)
    other_NM = share_NN[~np.eye(n_firms, dtype=np.bool_)].reshape(n_firms, n_firms - 1)
    mixed_NN = np.zeros_like(share_NN)
    mixed_NN[~np.eye(n_firms, dtype=np.bool_)] = rng.permuted(other_NM, axis=1).reshape(-1)
    return mixed_NN
