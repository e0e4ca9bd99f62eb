"""The null of shuffled peers: normal scores of the sources of a target, and dates with shuffled sources.

An edge j -> i is a claim about firm j. It is tested against dates on which the sources are shuffled: every
target keeps its values, but at random places, independently for each date. No firm is then a particular peer
of another one, while the sizes of the values and their differences between targets and dates are preserved.

Under this null the rank of source j among the n - 1 sources of target i is uniform on every date, and
independent between dates. The normal score ``s = Phi^-1(rank / n)`` (van der Waerden 1952) is divided by its
standard deviation over the sources, with divisor n - 2. It has mean 0 and variance (n - 2) / (n - 1), and its
sum over D dates divided by ``sqrt(D)`` is close to normal even for few dates. The variance below 1 makes the
test conservative: with divisor n - 1, a source would be found at the 5% level in up to 12% of all cases if
there are few sources and few dates, because such sums take few values. Large shocks on single dates cannot
make an edge; being among the largest on most dates can.

Legend: n firms of a date. Matrices are [target i, source j].
"""

from __future__ import annotations

import numpy as np

from features.arrays import BoolArray, FloatArray


def normal_scores(size_nn: FloatArray) -> FloatArray:
    """Standardised normal score of each source among those of its target; tied sources share their rank.

    0 on the diagonal, for pairs that were not measured (NaN), and for targets whose sources are all tied.
    """
    from scipy import stats
    from scipy.special import ndtri

    known_nn = _measured(size_nn)
    count_n1 = known_nn.sum(axis=1, keepdims=True)
    # pairs that were not measured get the lowest ranks, which are then subtracted
    rank_nn = stats.rankdata(np.where(known_nn, size_nn, -np.inf), axis=1) - (len(size_nn) - count_n1)
    score_nn = np.where(known_nn, ndtri(np.where(known_nn, rank_nn, 1.0) / (count_n1 + 1.0)), 0.0)
    score_nn -= np.where(known_nn, score_nn.sum(axis=1, keepdims=True) / np.maximum(count_n1, 1), 0.0)
    spread_n1 = np.sqrt((score_nn**2).sum(axis=1, keepdims=True) / np.maximum(count_n1 - 1, 1))
    standard_nn: FloatArray = np.where(spread_n1 > 1e-9, score_nn / np.maximum(spread_n1, 1e-9), 0.0)
    return standard_nn


def shuffled_sources(value_nn: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Values of a date with its measured sources in a random order, the same for all targets.

    A source that would fall onto the diagonal changes places with the one that replaces the target itself, so
    that every target keeps exactly its own values.
    """
    n = len(value_nn)
    drawn = np.flatnonzero(_measured(value_nn).any(axis=0))
    source_n = np.arange(n)
    source_n[drawn] = rng.permutation(drawn)
    source_nn = np.broadcast_to(source_n, (n, n)).copy()
    own_nn = (source_nn == np.arange(n)[:, None]) & ~np.eye(n, dtype=np.bool_)
    source_nn[own_nn] = source_n[np.nonzero(own_nn)[0]]
    np.fill_diagonal(source_nn, np.arange(n))
    return np.take_along_axis(value_nn, source_nn, axis=1)


def _measured(value_nn: FloatArray) -> BoolArray:
    measured: BoolArray = np.isfinite(value_nn) & ~np.eye(len(value_nn), dtype=np.bool_)
    return measured
