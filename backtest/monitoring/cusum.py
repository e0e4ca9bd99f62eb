"""The one-sided CUSUM of a daily series, as an e-detector: an alarm when its mean has fallen.

Shape suffix: T sessions.
"""

import math
from dataclasses import dataclass

import numpy as np

from backtest.inference.means import newey_west_error, newey_west_lags
from features.arrays import BoolArray, FloatArray, require_shape


@dataclass(frozen=True, slots=True)
class SkillReference:
    """The distribution of a daily series while nothing is wrong, in its unit."""

    mean: float
    # of a sum of n values divided by ``sqrt(n)``: for dependent values, the root of the long-run variance
    std: float
    n: int  # number of values that the mean was estimated from

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std > 0 and self.n >= 2):
            raise ValueError(
                f"A reference has mean {self.mean}, standard deviation {self.std} and {self.n} values; it "
                "needs finite ones, a positive deviation, and at least 2 values."
            )


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
    ValueError if a value is infinite, the slack or the limit is not positive, or the shapes differ.
    """
    for name, value in (("slack", slack), ("limit", limit)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"The CUSUM's {name} is {value}; it must be positive.")
    if np.isinf(x_T).any():
        raise ValueError("A value of the series is infinite; use NaN for an unknown value.")
    if replaced_T is None:
        replaced_T = np.zeros(len(x_T), dtype=bool)
    require_shape("the replacements", replaced_T, x_T.shape)
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

    Raises
    ------
    ValueError
        If the slack is not positive, or the probability is not between 0 and 1.

    >>> round(detector_limit(0.35, 0.05, sessions=250), 2)
    12.17
    """
    if not (slack > 0 and 0 < false_alarms < 1):
        raise ValueError(
            f"The slack is {slack} and the probability {false_alarms}; use a positive slack and (0, 1)."
        )
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
