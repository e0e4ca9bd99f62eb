"""Whether one model is worse than another by more than a margin: a one-sided paired test of daily series.

A challenger is judged on few sessions, often 20 to 60, so the test must keep its size there: it may call one
of two equal models worse in about 5% of the samples, not more. The Newey-West test of
`backtest.inference.means.mean_test` does, with 4% to 8%. The stationary bootstrap and the Diebold-Mariano
test reject too often if labels overlap.

Shape suffix: T sessions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from backtest.inference.means import LEVEL, MIN_VALUES, fixed_b_p_value, paired_test
from features.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class InferiorityTest:
    """Result of `inferiority_test`.

    Attributes
    ----------
    n : int
        Number of sessions with both values.
    difference, error : float
        Mean of the first series minus that of the second, and its Newey-West error.
    lower, upper : float
        One-sided bounds of the difference. Each is on the wrong side of the true value in a share ``level``
        of the samples.
    p_value : float
        One-sided, of the null hypothesis that the first series is worse by the margin at most.
    is_worse : bool
        Whether the null hypothesis is rejected: the first series is worse by more than the margin.

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(2, 200))
    >>> inferiority_test(x, y, margin=0.5).is_worse
    False
    """

    n: int
    difference: float
    error: float
    lower: float
    upper: float
    p_value: float
    is_worse: bool


def inferiority_test(
    a_T: FloatArray, b_T: FloatArray, *, margin: float = 0.0, overlap: int = 1, level: float = LEVEL
) -> InferiorityTest:
    """Test whether series a is worse than series b by more than a margin, where higher is better.

    The null hypothesis is ``mean(a - b) >= -margin``. The statistic ``(mean(a - b) + margin) / error`` is
    compared with its distribution for a fixed share of Newey-West lags, as in
    `backtest.inference.means.mean_test`.

    Parameters
    ----------
    a_T, b_T : ndarray of shape (T,)
        The two series, such as daily rank ICs of two models. Sessions with a NaN in either are dropped.
    margin : float
        Difference that is tolerated, at least 0, in the unit of the series.
    overlap : int
        Number of consecutive values that share data, such as the sessions that a daily label spans.
    level : float
        One-sided error rate, below 0.5.

    Returns
    -------
    InferiorityTest
        Without variation of ``a - b``, or with fewer than 3 sessions, the p-value is NaN. A constant
        difference below ``-margin`` on 3 sessions or more is worse nevertheless.

    Raises
    ------
    ValueError
        If ``margin`` is negative, ``level`` is not between 0 and 0.5, or as in
        `backtest.inference.means.paired_test`.

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(2, 200))
    >>> inferiority_test(x - 1.0, y, margin=0.1).p_value < 0.05
    True
    """
    if not margin >= 0:
        msg = f"margin is {margin}; it must be at least 0."
        raise ValueError(msg)
    if not 0 < level < 0.5:
        msg = f"level is {level}; a one-sided level is between 0 and 0.5, such as 0.05."
        raise ValueError(msg)
    test = paired_test(a_T, b_T, overlap=overlap, level=2.0 * level)  # two-sided at 10% is one-sided at 5%
    if math.isnan(test.t):
        is_worse = test.n >= MIN_VALUES and test.mean < -margin
        return InferiorityTest(test.n, test.mean, test.error, test.lower, test.upper, math.nan, is_worse)
    t = (test.mean + margin) / test.error
    two_sided = fixed_b_p_value(t, test.n, test.lags)
    p_value = two_sided / 2.0 if t < 0 else 1.0 - two_sided / 2.0
    return InferiorityTest(
        test.n, test.mean, test.error, test.lower, test.upper, p_value, is_worse=p_value < level
    )
