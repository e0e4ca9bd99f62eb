"""Whether the skill of a signal ends where the training data of its forecaster ended.

A language or foundation model may repeat outcomes that were in its training data: its forecasts before the
knowledge cutoff can have skill that no later forecast has. Shape suffix: T sessions.
"""

from typing import Final

import numpy as np

from backtest.inference.means import LEVEL, MeanTest, mean_test
from backtest.look_ahead.finding import Finding
from features.arrays import FloatArray, require_shape

NAME: Final = "knowledge cutoff"
KEPT: Final = 0.5
"""Share of its mean IC that an honest signal keeps from one side to the other.

Published predictors keep three quarters out of sample (McLean and Pontiff 2016).
"""
DAYS: Final = 731
"""Forecasts of two years on each side of their cutoff are compared, so that slow decay is no break."""
FEWEST: Final = 20


def skill_ends(before_T: FloatArray, after_T: FloatArray, *, overlap: int = 1) -> Finding:
    """Test whether the mean IC falls by more than half at a known date.

    Fails if both hold in one-sided tests at 5%: the mean IC before, ``m0``, is above zero, and the mean
    after, ``m1``, is below ``KEPT m0``. As both must hold, at most 5% of the signals fail that keep half of
    their skill or more, or have none. The second test is `mean_test` of a series with mean ``KEPT m0 - m1``,
    which has ``KEPT (n/n0) (ic - m0)`` on the ``n0`` sessions before and ``-(n/n1) (ic - m1)`` on the ``n1``
    after, ``n = n0 + n1``, each plus the mean: its Newey-West error is that of the difference, also if the
    two sides have other variances.

    The daily ICs of forecasts before and after their cutoff have shape (T,), on the same sessions: known when
    the labels are, NaN where there is none. The labels of ``overlap`` consecutive ones overlap. ``value`` is
    the p-value of the second test; skipped with fewer than 20 ICs on a side. ValueError if the shapes differ,
    ``overlap`` is below 1, or an IC is infinite.

    >>> ic_T = np.random.default_rng(0).normal(0.0, 0.1, 1000)
    >>> known = np.arange(1000) >= 500
    >>> before, after = np.where(known, np.nan, ic_T + 0.04), np.where(known, ic_T, np.nan)
    >>> skill_ends(before, after).verdict
    'fail'
    """
    require_shape("the ICs after the cutoff", after_T, before_T.shape)
    ic_T = np.stack([before_T, after_T], axis=1).ravel()  # in order of the sessions
    late_T = np.tile([False, True], len(before_T))[~np.isnan(ic_T)]
    ic_T = ic_T[~np.isnan(ic_T)]
    n, counts = len(ic_T), (int((~late_T).sum()), int(late_T.sum()))
    if min(counts) < FEWEST:
        side = "before" if counts[0] <= counts[1] else "after"
        words = f"Only {min(counts)} sessions of the two years {side} the cutoff have an IC."
        return Finding(NAME, "skipped", words)
    early, late = mean_test(ic_T[~late_T], overlap=overlap), mean_test(ic_T[late_T], overlap=overlap)
    fall = KEPT * early.mean - late.mean
    of_late_T = -n / counts[1] * (ic_T - late.mean)
    of_early_T = KEPT * n / counts[0] * (ic_T - early.mean)
    p_fall = _above_zero(mean_test(fall + np.where(late_T, of_late_T, of_early_T), overlap=overlap))
    said = f"{early.mean:+.3f} in the two years before the cutoff and {late.mean:+.3f} after"
    if _above_zero(early) < LEVEL and p_fall < LEVEL:
        words = (
            f"The mean IC is {said}, less than half (p {p_fall:.2g}): the skill ends with the training data, "
            "as if the model remembered outcomes."
        )
        return Finding(NAME, "fail", words, p_fall, LEVEL)
    words = f"The mean IC is {said}: no sign that the skill ends with the training data (p {p_fall:.2g})."
    return Finding(NAME, "pass", words, p_fall, LEVEL)


def _above_zero(test: MeanTest) -> float:
    """One-sided p-value of a mean above zero; 0 or 1 without variation."""
    if np.isnan(test.p_value):
        return 0.0 if test.mean > 0 else 1.0
    return test.p_value / 2.0 if test.t > 0 else 1.0 - test.p_value / 2.0
