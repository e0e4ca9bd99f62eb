"""Drift of a feature: how far the distribution of new values is from that of the training.

Shape suffixes: M values, Q points of a distribution, E edges, B = E + 2 bins.
"""

import math
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from features.arrays import AnyFloatArray, BoolArray, FloatArray, IntArray

POINTS: Final = 501
"""Points that stand for a distribution. The distance of `ks_distance` changes by at most 1/500 by it."""
BINS: Final = 10
_MIN_BLOCKS: Final = 4
"""Stretches of the training that are needed to know how much a feature varies by itself."""
_UNUSUAL: Final = 0.95
"""Quantile over the stretches. The largest would be that of one crisis, or of the first sessions, on which
features with a long window are unknown."""
_FLOOR: Final = 1e-4  # smallest share of a bin: an empty bin would make the index infinite


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """The distribution of a feature's values."""

    points_Q: FloatArray  # quantiles of the known values at even probabilities from 0 to 1; NaN without any
    missing: float  # share of the values that are unknown

    @property
    def edges_E(self) -> FloatArray:  # noqa: N802  # a shape suffix
        """The inner deciles, each once: fewer than nine if many values are equal. Empty without values."""
        inner = self.points_Q[:: (POINTS - 1) // BINS][1:-1]
        return np.unique(inner[~np.isnan(inner)])

    @classmethod
    def of(cls, x_M: AnyFloatArray) -> Self:
        """Measure values; NaN means unknown. ValueError if there is no value at all."""
        if not len(x_M):
            raise ValueError("A distribution needs at least one value; there is none.")
        known = x_M[~np.isnan(x_M)]
        missing = 1.0 - len(known) / len(x_M)
        if not len(known):
            return cls(np.full(POINTS, math.nan), missing)
        ordered = np.sort(known)
        at_Q = np.linspace(0.0, len(ordered) - 1.0, POINTS)
        points_Q = ordered[np.round(at_Q).astype(np.intp)].astype(np.float64)
        return cls(points_Q, missing)


def bin_shares(x_M: AnyFloatArray, edges_E: FloatArray) -> FloatArray:
    """Share of values in each bin, and of unknown values in one of their own, which is the last.

    Bin i holds values above edge i-1 up to edge i, both ends open at the outside.

    Raises ValueError if there is no value, or the edges do not ascend.
    """
    if not len(x_M):
        raise ValueError("Shares need at least one value; there is none.")
    if np.any(np.diff(edges_E) <= 0):
        raise ValueError(f"The edges {edges_E} do not ascend; give each once, in order.")
    unknown_M = np.isnan(x_M)
    bin_M = np.where(unknown_M, len(edges_E) + 1, np.searchsorted(edges_E, x_M, side="left"))
    shares_B: FloatArray = np.bincount(bin_M, minlength=len(edges_E) + 2) / len(x_M)
    return shares_B


def stability_index(expected_B: FloatArray, actual_B: FloatArray) -> float:
    """Population stability index of two sets of shares: ``sum_b (a_b - e_b) ln(a_b / e_b)``.

    Shares below 0.0001 count as 0.0001. It is the sum of both Kullback-Leibler divergences (Jeffreys 1946;
    Siddiqi 2006). For equal distributions and independent values it is about ``(B - 1)(1/n + 1/m)``.

    Raises ValueError if the shapes differ, or shares do not sum to 1.
    """
    if expected_B.shape != actual_B.shape:
        raise ValueError(
            f"There are {len(expected_B)} expected and {len(actual_B)} actual shares; use the same bins."
        )
    for name, shares_B in (("expected", expected_B), ("actual", actual_B)):
        if not (np.all(shares_B >= 0) and math.isclose(shares_B.sum(), 1.0, abs_tol=1e-9)):
            raise ValueError(f"The {name} shares sum to {shares_B.sum()}; they must be shares of a whole.")
    e_B, a_B = np.maximum(expected_B, _FLOOR), np.maximum(actual_B, _FLOOR)
    return float(np.sum((a_B - e_B) * np.log(a_B / e_B)))


def ks_distance(x: FloatArray, y: FloatArray) -> float:
    """Two-sample Kolmogorov-Smirnov distance: the largest difference of the empirical distributions.

    ``sup_v |F_x(v) - F_y(v)|``, which is the statistic of `scipy.stats.ks_2samp`. Its p-value is not used:
    firms of one date move together and features of neighbouring sessions share data, so that values are far
    from independent. NaN if either has no known value.
    """
    x, y = np.sort(x[~np.isnan(x)]), np.sort(y[~np.isnan(y)])
    if not (len(x) and len(y)):
        return math.nan
    at = np.concatenate([x, y])
    below_x, below_y = (np.searchsorted(one, at, side="right") / len(one) for one in (x, y))
    return float(np.abs(below_x - below_y).max())


def stretches(
    values_TN: AnyFloatArray, universe_TN: BoolArray, sessions: IntArray, length: int
) -> dict[str, object]:
    """Measure one feature on some sessions, and how far stretches of them are from all of them.

    The feature is NaN where unknown; the universe says which firms count. Stretches of ``length`` sessions do
    not overlap, and the last one ends with the sessions. The result has points (`Distribution.points_Q`),
    missing, shares (`bin_shares`), blocks (number of stretches), and block_psi, block_ks and block_missing:
    the 95% quantiles of the stretches' stability indices, distances and missing shares; None with fewer than
    4 stretches.
    """
    whole = Distribution.of(values_TN[sessions][universe_TN[sessions]])
    shares_B = bin_shares(values_TN[sessions][universe_TN[sessions]], whole.edges_E)
    psi, ks, missing = [], [], []
    for stop in range(len(sessions), length - 1, -length):
        part = sessions[stop - length : stop]
        x_M = values_TN[part][universe_TN[part]]
        if len(x_M):
            own = Distribution.of(x_M)
            psi.append(stability_index(shares_B, bin_shares(x_M, whole.edges_E)))
            ks.append(ks_distance(whole.points_Q, own.points_Q))
            missing.append(own.missing)
    known = len(psi) >= _MIN_BLOCKS
    known_ks = [value for value in ks if not np.isnan(value)]
    return {
        "points": whole.points_Q.tolist(),
        "missing": whole.missing,
        "shares": shares_B.tolist(),
        "blocks": len(psi),
        "block_psi": float(np.quantile(psi, _UNUSUAL)) if known else None,
        "block_ks": float(np.quantile(known_ks, _UNUSUAL)) if known and known_ks else None,
        "block_missing": float(np.quantile(missing, _UNUSUAL)) if known else None,
    }
