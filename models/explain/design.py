"""Which forecasts of a test period are explained, and the standard errors of means over such a sample.

The design has two stages: dates in even steps, on which the fitted models take turns, then firms of each
date, in proportion from every group.

Legend: N firms of a date, E explained forecasts, D dates, K seeds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from features.arrays import FloatArray, IntArray


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
