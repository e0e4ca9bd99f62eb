"""Which forecasts of a test period are explained, and figures over such a sample with their errors.

The design has two stages: dates in even steps, on which the fitted models take turns, then firms of each
date, in proportion from every group. Forecasts of one date share its data, so whole dates are the sampled
units of errors and are resampled in the bootstrap.

Legend: N firms of a date, E explained forecasts, P units, D dates, K seeds, R resamples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from features.arrays import FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RESAMPLES = 2000
LEVEL = 0.90  # coverage of all intervals: each side is a one-sided test at 5%


def evenly_spaced(sessions: IntArray, count: int) -> IntArray:
    """Select at most ``count`` sessions in even steps, starting half a step after the first."""
    count = min(count, len(sessions))
    places = (np.arange(count) + 0.5) * len(sessions) / max(count, 1)
    return np.asarray(sessions[places.astype(np.int64)])


def take_turns(tests: Sequence[IntArray], seeds: int, count: int) -> list[list[IntArray]]:
    """Divide ``count`` dates among the fitted models of all folds and seeds, so that every date counts once.

    The dates are chosen in even steps from the test sessions of all folds together; with fewer sessions, all
    of them. Of the folds that test a date (combinatorial folds test it several times), and of the K seeds,
    the next one in turn explains it. For each fold and seed, its dates ascend; none if there are fewer dates
    than models.

    Examples
    --------
    >>> [[part.tolist() for part in fold] for fold in take_turns([np.arange(4), np.arange(4, 8)], 2, 4)]
    [[[1], [3]], [[5], [7]]]
    """
    turns: list[list[list[int]]] = [[[] for _ in range(seeds)] for _ in tests]
    for turn, session in enumerate(evenly_spaced(np.unique(np.concatenate(list(tests))), count).tolist()):
        testing = [of_fold for of_fold, test in zip(turns, tests, strict=True) if session in test]
        fewest = min(testing, key=lambda of_fold: sum(map(len, of_fold)))
        fewest[turn % seeds].append(session)
    return [[np.array(dates, dtype=np.int64) for dates in of_fold] for of_fold in turns]


def stratified_sample(group_N: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Draw ``count`` of N firms, each with the same probability, in proportion from every group.

    Systematic sampling from a list sorted by group, with firms in random order within a group: the number
    drawn from a group of n firms is ``count n / N``, rounded up or down. Positions of the firms, ascending.
    """
    n_firms = len(group_N)
    if count >= n_firms:
        return np.arange(n_firms)
    shuffled_N = rng.permutation(n_firms)
    listed_N = shuffled_N[np.argsort(group_N[shuffled_N], kind="stable")]
    step = n_firms / count
    places = (rng.random() + np.arange(count)) * step
    return np.sort(listed_N[np.minimum(places.astype(np.int64), n_firms - 1)])


def mean_over_sample(value_E: FloatArray, session_E: npt.NDArray[Any]) -> tuple[float, float]:
    """Mean over forecasts, and its standard error with whole dates as the sampled units.

    Forecasts of a date share its data and its draws, so they are not independent. With ``r_d`` the sum of
    ``value - mean`` over the forecasts of date d, the error is ``sqrt(D / (D - 1) sum_d r_d^2) / E`` (Cochran
    1977, "Sampling techniques", chapter 11, for equal probabilities). NaN for a single date.
    """
    mean = float(value_E.mean())
    dates, row_E = np.unique(session_E, return_inverse=True)
    if len(dates) < 2:
        return mean, float("nan")
    residual_D = np.bincount(row_E, value_E - mean)
    squared = float((residual_D**2).sum()) * len(dates) / (len(dates) - 1)
    return mean, float(np.sqrt(squared) / len(value_E))


@dataclass(frozen=True, slots=True)
class FigureOverDates:
    """A figure with its 90% interval; NaN where it could not be measured."""

    value: float  # the figure and its interval. With a single date, the interval is unknown (NaN)
    low: float
    high: float
    dates: int  # number of dates

    def columns(self, name: str) -> dict[str, Any]:
        """Figure, interval (with the name in front, but of ``value`` and ``weight``) and number of dates."""
        prefix = "" if name in ("value", "weight") else f"{name}_"
        return {name: self.value, f"{prefix}low": self.low, f"{prefix}high": self.high, "dates": self.dates}


UNKNOWN = FigureOverDates(float("nan"), float("nan"), float("nan"), 0)


def columns_of(row: DataclassInstance) -> dict[str, Any]:
    """A row of a table: the fields of a dataclass, and the columns of each figure; ``dates`` of the first."""
    columns: dict[str, Any] = {}
    for one in fields(row):
        found = getattr(row, one.name)
        own = found.columns(one.name) if isinstance(found, FigureOverDates) else {one.name: found}
        columns |= {name: value for name, value in own.items() if name not in columns}
    return columns


def mean_over_dates(value_E: FloatArray, session_E: IntArray, seed: int = 0) -> FigureOverDates:
    """Mean over dates of the mean over the forecasts of a date; NaN values are left out."""
    return ratio_over_dates(value_E, np.ones(len(value_E)), session_E, seed)


def ratio_over_dates(
    top_E: FloatArray, bottom_E: FloatArray, session_E: IntArray, seed: int = 0
) -> FigureOverDates:
    """Ratio of two means over dates, resampled together; NaN values are left out in both.

    A resample whose denominator is not positive counts as infinite on the side of its numerator, so that a
    denominator that may be 0 gives a wide interval.
    """
    return _over_dates((top_E, bottom_E), session_E, seed, _ratio)[0]


def _over_dates(
    columns: tuple[FloatArray, ...], session_E: IntArray, seed: int, *figures: Callable[..., FloatArray]
) -> list[FigureOverDates]:
    """Figures of the means of some columns over dates; forecasts that are NaN in one of them are left out."""
    known_E = np.isfinite(np.stack(columns)).all(axis=0)
    if not known_E.any():
        return [UNKNOWN] * len(figures)
    dates_D, row_E = np.unique(session_E[known_E], return_inverse=True)
    dates, count_D = len(dates_D), np.bincount(row_E)
    mean_KD = [np.bincount(row_E, value_E[known_E]) / count_D for value_E in columns]
    values = [float(figure(*(mean_D.mean(keepdims=True) for mean_D in mean_KD))[0]) for figure in figures]
    if dates < 2:
        return [FigureOverDates(value, float("nan"), float("nan"), dates) for value in values]
    drawn_RD = _resamples(dates, seed)
    mean_KR = [mean_D[drawn_RD].mean(axis=1) for mean_D in mean_KD]
    return [_estimate(value, figure(*mean_KR), dates) for value, figure in zip(values, figures, strict=True)]


@functools.lru_cache(maxsize=8)
def _resamples(dates: int, seed: int) -> IntArray:
    """Drawn dates, [R, D], read-only: the figures of a run are many and mostly of equally many dates."""
    drawn_RD = np.random.default_rng(seed).integers(dates, size=(RESAMPLES, dates))
    drawn_RD.flags.writeable = False
    return drawn_RD


@functools.lru_cache(maxsize=64)
def _wider(dates: int) -> float:
    """Factor that makes a percentile interval of D dates as wide as Student's t interval."""
    from scipy import stats

    side = (1 + LEVEL) / 2
    return float(stats.t.ppf(side, dates - 1) / stats.norm.ppf(side) * np.sqrt(dates / (dates - 1)))


def _estimate(value: float, resampled_R: FloatArray, dates: int) -> FigureOverDates:
    """Percentile interval, widened as Student's t interval is wider than the normal one.

    A bootstrap of few dates is too narrow, because the variance of D resampled dates is that of the
    population times (D - 1) / D and is itself uncertain.
    """
    if not np.isfinite(value):
        return FigureOverDates(float(value), -np.inf, np.inf, dates)
    low, high = np.quantile(resampled_R, ((1 - LEVEL) / 2, (1 + LEVEL) / 2), method="inverted_cdf")
    wider = _wider(dates)
    below, above = (
        wider * gap if np.isfinite(gap) else np.inf for gap in (value - float(low), float(high) - value)
    )
    return FigureOverDates(float(value), float(value - below), float(value + above), dates)


def _ratio(top: FloatArray, bottom: FloatArray) -> FloatArray:
    unknown = np.where(top == 0.0, np.nan, np.copysign(np.inf, top))
    found: FloatArray = np.where(bottom > 0.0, top / np.where(bottom > 0.0, bottom, 1.0), unknown)
    return np.nan_to_num(found, nan=0.0, posinf=np.inf, neginf=-np.inf)


def rank_correlation(importance_EP: FloatArray, other_EP: FloatArray) -> FloatArray:
    """Spearman correlation over the units of each forecast, [E].

    0 if one of the two is constant, because it ranks no unit above another; NaN with fewer than three units
    that both know. Values that differ by rounding alone are equal.
    """
    first_EP, second_EP = settled(importance_EP), settled(other_EP)
    known_EP = np.isfinite(first_EP) & np.isfinite(second_EP)
    first_EP, second_EP = np.where(known_EP, first_EP, np.nan), np.where(known_EP, second_EP, np.nan)
    correlation_E = rank_ic_by_date(first_EP, second_EP)
    constant_E = np.isnan(correlation_E) & (known_EP.sum(axis=1) >= 3)
    correlation_E[constant_E] = 0.0
    return correlation_E


def settled(importance_EP: FloatArray) -> FloatArray:
    """Round to 1e-5 of the largest ``|value|`` of each row, so that rounding errors rank nothing."""
    largest_E1 = np.nanmax(np.abs(importance_EP), axis=1, keepdims=True, initial=0.0)
    return np.asarray(np.round(importance_EP / np.where(largest_E1 > 0.0, largest_E1, 1.0), 5))


def corrected_over_dates(
    agreement_E: FloatArray, repeat_E: FloatArray, session_E: IntArray, seed: int = 0
) -> tuple[FigureOverDates, FigureOverDates]:
    """Correct a mean rank correlation with a noisy importance for its noise; also return its reliability.

    ``mean agreement / sqrt(reliability)``, where the importance is the mean of two independent estimates, and
    the reliability follows from the rank correlation ``repeat_E`` of the two (Spearman 1904, "The proof and
    measurement of association between two things"). Dates are resampled for the agreement and the reliability
    together, so the interval contains the error of the correction. A resample whose reliability is not
    positive counts as the largest correlation on the side of its numerator. Values and intervals are at most
    1 in size.
    """

    def corrected(agreement: FloatArray, repeat: FloatArray) -> FloatArray:
        reliability = np.maximum(reliability_of_mean(repeat), 0.0)
        return np.clip(_ratio(agreement, np.sqrt(reliability)), -1.0, 1.0)

    def reliability(_: FloatArray, repeat: FloatArray) -> FloatArray:
        return reliability_of_mean(repeat)

    found = _over_dates((agreement_E, repeat_E), session_E, seed, corrected, reliability)
    agreed, repeated = (
        FigureOverDates(one.value, max(one.low, -1.0), min(one.high, 1.0), one.dates) for one in found
    )
    return agreed, repeated


def reliability_of_mean(correlation: FloatArray) -> FloatArray:
    """Reliability of the mean of two independent estimates, from their correlation (Spearman-Brown)."""
    known = np.maximum(correlation, 0.0)
    return np.where(correlation > 0.0, 2.0 * known / (1.0 + known), correlation)
