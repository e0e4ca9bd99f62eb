"""Monitoring of signals in use: loss of skill, drift of what they are made from, and their behaviour.

Loss of skill is seen by a one-sided CUSUM of a daily series. Drift is how far the distribution of a feature's
new values is from that of the training. Signals are frames with the columns session, role, version, ticker,
signal and seed_dispersion; the role is ``champion`` or ``challenger``, and a signal is known.

Shape suffixes: T sessions, M values, Q points of a distribution, E edges, B = E + 2 bins.
"""

import math
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import polars as pl

from backtest.inference.means import newey_west_error, newey_west_lags
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
_UNRELATED: Final = 1.0 / 3.0  # mean absolute difference of two independent ranks that are uniform on [0, 1]


@dataclass(frozen=True, slots=True)
class SkillReference:
    """The distribution of a daily series while nothing is wrong, in its unit."""

    mean: float
    # of a sum of n values divided by ``sqrt(n)``: for dependent values, the root of the long-run variance
    std: float
    n: int  # number of values that the mean was estimated from


@dataclass(frozen=True, slots=True, eq=False)
class Cusum:
    """A CUSUM by session."""

    sum_T: FloatArray  # the sum after the session, from 0 to the limit
    alarm_T: BoolArray  # whether the alarm stands after the session


def lower_cusum(
    x_T: FloatArray,
    reference: SkillReference,
    *,
    slack: float,
    limit: float,
    replaced_T: BoolArray | None = None,
) -> Cusum:
    """Accumulate how far a series stays below its reference, and raise an alarm at a limit.

    ``S_t = min(h, log(1 + exp(2 k (S_{t-1} + (mean - x_t) / std - k))) / (2 k))`` with slack k and limit h,
    both positive and in standard deviations, and S = 0 before the first session. ``exp(2 k S_t) - 1`` is the
    sum, over every session on which a loss may have begun, of the likelihood ratio of a mean that is 2 k
    deviations lower (Shiryaev 1963; Roberts 1966); Page's (1954) CUSUM has the largest of them instead. Each
    is an e-process of a mean that has not fallen, if values, given those before, have at most the tails of a
    normal distribution, so the sum is an e-detector (Shin, Ramdas and Rinaldo 2023), which gives the limit
    (`detector_limit`).

    NaN leaves S unchanged. The alarm starts when S reaches h. It ends when S is back at half of it, or when
    the model behind the series is replaced, which also sets S to 0: ``replaced_T`` says whether a new model
    made the value of the session, and an older one that of the session before. A replacement without an alarm
    changes nothing, so that a slow loss of skill is seen although the model is trained again every month.
    """
    if replaced_T is None:
        replaced_T = np.zeros(len(x_T), dtype=bool)
    sum_T, alarm_T = np.zeros(len(x_T)), np.zeros(len(x_T), dtype=bool)
    total, alarm = 0.0, False
    below_T = (reference.mean - x_T) / reference.std - slack
    for t, (below, replaced) in enumerate(zip(below_T.tolist(), replaced_T.tolist(), strict=True)):
        if alarm and replaced:
            total, alarm = 0.0, False
        if not math.isnan(below):
            total = min(limit, float(np.logaddexp(0.0, 2.0 * slack * (total + below))) / (2.0 * slack))
        alarm = total >= limit or (alarm and total > limit / 2.0)
        sum_T[t], alarm_T[t] = total, alarm
    return Cusum(sum_T, alarm_T)


def detector_limit(slack: float, false_alarms: float, *, sessions: int) -> float:
    """Limit h that a series without a loss reaches within some sessions with a given probability at most.

    ``log(1 + sessions / false_alarms) / (2 k)``: without a loss, the expected sum of the likelihood ratios is
    the number of sessions, so it exceeds ``sessions / false_alarms`` with at most the probability
    ``false_alarms`` (Doob). The bound takes the mean and the deviation of the reference as known.

    >>> round(detector_limit(0.35, 0.05, sessions=250), 2)
    12.17
    """
    return math.log1p(sessions / false_alarms) / (2.0 * slack)


def typical_delay(slack: float, limit: float) -> float:
    """Sessions until S reaches its limit, if every value is lower by what the slack is made for: ``2 k``.

    With ``I = 2 k^2``, ``log(1 + (exp(2 k h) - 1) (1 - exp(-I))) / I``. Random values take about as long.
    """
    information = 2.0 * slack**2
    return math.log1p(math.expm1(2.0 * slack * limit) * -math.expm1(-information)) / information


def reference_of(rank_ic_T: FloatArray, overlap: int) -> SkillReference | None:
    """Return mean and long-run standard deviation of daily rank ICs; None without variation.

    Neighbouring ICs are alike: skill changes slowly, and labels of several sessions overlap. The deviation is
    the Newey-West error of the mean times ``sqrt(n)``, with at least ``3 (overlap - 1)`` lags: a sum of ICs
    varies as if they were independent with this deviation.
    """
    known_T = rank_ic_T[~np.isnan(rank_ic_T)]
    if len(known_T) < 2:
        return None
    lags = max(newey_west_lags(len(known_T)), 3 * (overlap - 1))
    std = newey_west_error(known_T, lags) * math.sqrt(len(known_T))
    return SkillReference(float(known_T.mean()), std, len(known_T)) if std > 0 else None


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
    """
    unknown_M = np.isnan(x_M)
    bin_M = np.where(unknown_M, len(edges_E) + 1, np.searchsorted(edges_E, x_M, side="left"))
    shares_B: FloatArray = np.bincount(bin_M, minlength=len(edges_E) + 2) / len(x_M)
    return shares_B


def stability_index(expected_B: FloatArray, actual_B: FloatArray) -> float:
    """Population stability index of two sets of shares: ``sum_b (a_b - e_b) ln(a_b / e_b)``.

    Shares below 0.0001 count as 0.0001. It is the sum of both Kullback-Leibler divergences (Jeffreys 1946;
    Siddiqi 2006). For equal distributions and independent values it is about ``(B - 1)(1/n + 1/m)``.
    """
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
    missing, shares (`bin_shares`), and block_psi, block_ks and block_missing: the 95% quantiles of the
    stretches' stability indices, distances and missing shares; None with fewer than 4 stretches.
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
        "block_psi": float(np.quantile(psi, _UNUSUAL)) if known else None,
        "block_ks": float(np.quantile(known_ks, _UNUSUAL)) if known and known_ks else None,
        "block_missing": float(np.quantile(missing, _UNUSUAL)) if known else None,
    }


def mean_dispersion(signals: pl.DataFrame) -> pl.DataFrame:
    """Mean seed dispersion by session and role; no row for a single seed."""
    return (
        signals.drop_nulls("seed_dispersion")
        .group_by("session", "role", "version")
        .agg(mean_dispersion=pl.col("seed_dispersion").mean())
        .sort("role", "session")
    )


def rank_turnover(signals: pl.DataFrame) -> pl.DataFrame:
    """Mean absolute change of the rank since the session before, over that of two unrelated signals."""
    size = pl.len().over("session", "role")
    ranked = signals.with_columns(
        rank=(pl.col("signal").rank("average").over("session", "role") - 0.5) / size,
        order=pl.col("session").rank("dense").over("role"),
    )
    before = ranked.select("role", "ticker", order=pl.col("order") + 1, rank_before="rank")
    return (
        ranked.join(before, on=["role", "ticker", "order"], how="inner")
        .group_by("session", "role", "version")
        .agg(
            firms=pl.len().cast(pl.Int64),
            turnover=(pl.col("rank") - pl.col("rank_before")).abs().mean() / _UNRELATED,
        )
        .sort("role", "session")
    )


def agreement_of(signals: pl.DataFrame) -> pl.DataFrame:
    """Rank correlation of the signals of champion and challenger by session."""
    keys = ["session", "ticker"]
    one = signals.filter(pl.col("role") == "champion").select(*keys, champion="signal")
    other = signals.filter(pl.col("role") == "challenger").select(*keys, challenger="signal")
    return (
        one.join(other, on=keys, how="inner")
        .group_by("session")
        .agg(
            firms=pl.len().cast(pl.Int64),
            rank_correlation=pl.corr("champion", "challenger", method="spearman"),
        )
        .with_columns(pl.col("rank_correlation").fill_nan(None))
        .sort("session")
    )
