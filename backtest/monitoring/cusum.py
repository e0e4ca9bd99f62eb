"""The one-sided CUSUM of a daily series: an alarm when its mean has fallen.

Shape suffixes: T sessions, S states of a Markov chain.
"""

import functools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from backtest.inference.means import newey_west_error, newey_west_lags
from features.arithmetic.parallel import one_blas_thread
from features.arrays import BoolArray, FloatArray, require_shape

_STATES: Final = 120  # states of the Markov chain; with 60 the probabilities differ by less than 0.001
_NODES: Final = 9  # points of the Gauss-Hermite rule over the error of the reference's mean


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

    ``S_t = min(h, max(0, S_{t-1} + (mean - x_t) / std - k))`` with slack k and limit h, both positive and in
    standard deviations, and S = 0 before the first session (Page 1954; Montgomery, Introduction to
    Statistical Quality Control, chapter 9). NaN leaves S unchanged. The alarm starts when S reaches h. It
    ends when S is back at 0, or when the model behind the series is replaced, which also sets S to 0:
    ``replaced_T`` says whether a new model made the value of the session, and an older one that of the
    session before. A replacement without an alarm changes nothing, so that a slow loss of skill is seen
    although the model is trained again every month. ValueError if a value is infinite, the slack or the limit
    is not positive, or the shapes differ.
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
            total = min(limit, max(0.0, total + below))
        alarm = total >= limit or (alarm and total > 0.0)
        sum_T[t], alarm_T[t] = total, alarm
    return Cusum(sum_T, alarm_T)


def alarm_probability(slack: float, limit: float, *, sessions: int, shift: float = 0.0) -> float:
    """Probability that the CUSUM reaches its limit within some sessions.

    For independent normal values whose mean is ``shift`` standard deviations below the reference; slack and
    limit are k and h of `lower_cusum`. S is approximated by a Markov chain on 120 intervals from 0 to the
    limit (Brook and Evans 1972).
    """
    chain_SS = _chain(slack, limit, shift)
    return 1.0 - float(np.linalg.matrix_power(chain_SS, sessions)[0].sum())


def mean_delay(slack: float, limit: float, *, shift: float) -> float:
    """Mean number of sessions until the CUSUM reaches its limit, with the assumptions of `alarm_probability`.

    This is the average run length from S = 0: ``e_0' (I - Q)^-1 1`` with the chain's transitions Q.
    """
    chain_SS = _chain(slack, limit, shift)
    return float(np.linalg.solve(np.eye(len(chain_SS)) - chain_SS, np.ones(len(chain_SS)))[0])


@functools.lru_cache(maxsize=64)
def limit_for(slack: float, false_alarms: float, *, sessions: int, n: int | None = None) -> float:
    """Limit h, in standard deviations, that an undisturbed series reaches with a given probability.

    The slack is positive and in standard deviations, and the probability ``false_alarms`` is between 0 and 1;
    else a ValueError. ``n`` is the number of values that the reference's mean was estimated from. Its error,
    normal with deviation ``1 / sqrt(n)``, moves every later value alike; the probability is the mean over it.
    None: the mean is known.
    """
    if not (slack > 0 and 0 < false_alarms < 1):
        raise ValueError(
            f"The slack is {slack} and the probability {false_alarms}; use a positive slack and (0, 1)."
        )
    nodes, weights = np.polynomial.hermite_e.hermegauss(1 if n is None else _NODES)
    weights = weights / weights.sum()
    shifts = np.zeros(1) if n is None else nodes / math.sqrt(n)

    def excess(limit: float) -> float:
        chances = [alarm_probability(slack, limit, sessions=sessions, shift=float(s)) for s in shifts]
        return float(weights @ np.asarray(chances)) - false_alarms

    high = 4.0
    with one_blas_thread():
        while excess(high) > 0:
            high *= 2.0
        return float(brentq(excess, 1e-3, high, xtol=1e-3))


def _chain(slack: float, limit: float, shift: float) -> FloatArray:
    """Transitions between the states below the limit: 0, and the middles of intervals above it.

    State 0 stands for S up to half an interval, state i for S around ``i w``, with the width
    ``w = 2 h / (2 S - 1)``, as in Brook and Evans.
    """
    width = 2.0 * limit / (2 * _STATES - 1)
    step_SS = width * (np.arange(_STATES)[None, :] - np.arange(_STATES)[:, None])
    upper_SS = ndtr(step_SS + width / 2.0 + slack - shift)
    chain_SS: FloatArray = upper_SS - ndtr(step_SS - width / 2.0 + slack - shift)
    chain_SS[:, 0] = upper_SS[:, 0]
    return chain_SS


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
