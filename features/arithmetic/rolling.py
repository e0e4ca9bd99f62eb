"""Causal rolling statistics on ``[T, N]`` arrays, NaN aware and causal to the bit.

Row t of every result is a fixed sequence of elementwise operations on rows t-W+1..t. No other row affects
it, not even in its last bit. Running sums (differences of ``cumsum``) are avoided: they are causal, but they
accumulate the rounding of all past rows, and one huge value spoils every later window. Sums and maxima are
built by doubling: the sum over 2m sessions is the sum of two adjacent sums over m. This takes about 2 log2(W)
passes over a tile of firms that stays in the processor's cache (`features.panel.derived`,
`features.arithmetic.kernels`), and it rounds like a pairwise sum.

Windows count sessions, not prices: a session without a price occupies its place and contributes nothing.
All rolling functions take values of shape (T, N), NaN where unknown; ``window``, the number of sessions, t
included, at least 1 (ValueError below); and ``min_count``, the number of known values below which the result
is NaN. A smaller ``min_count`` than the statistic needs is raised to that.

Shape suffixes: T sessions, N firms.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from features.arithmetic.parallel import firm_blocks, for_each
from features.arrays import AnyFloatArray, BoolArray, Float32Array, FloatArray, IntArray, frozen

Floats = TypeVar("Floats", Float32Array, FloatArray)
Work = Callable[[list[FloatArray], list[FloatArray]], None]


def map_tiles(
    work: Work, *x_TN: AnyFloatArray, answers: int = 1, dtype: npt.DTypeLike = np.float64
) -> list[FloatArray]:
    """Run a kernel on tiles of firms, with contiguous inputs of the given type.

    ``work`` receives the input tiles and ``answers`` output arrays of the same shape.
    """
    T, N = x_TN[0].shape
    out_TN: list[FloatArray] = [np.empty((T, N), dtype) for _ in range(answers)]

    def one(firms: slice) -> None:
        inputs = [frozen(np.ascontiguousarray(x[:, firms], dtype=dtype)) for x in x_TN]
        if inputs[0].shape == (T, N):
            work(inputs, out_TN)
            return
        places = [np.empty_like(inputs[0]) for _ in out_TN]
        work(inputs, places)
        for out, place in zip(out_TN, places, strict=True):
            out[:, firms] = place

    for_each(one, firm_blocks(T, N))
    return out_TN


def lag(x_TN: FloatArray, k: int) -> FloatArray:
    """Return the value k sessions ago.

    ``x[t-k]``; NaN in the first k rows. ValueError if k is negative, which would look ahead.

    Examples
    --------
    >>> lag(np.array([[1.0], [2.0], [3.0]]), 1).ravel()
    array([nan,  1.,  2.])
    """
    if k < 0:
        raise ValueError(f"The lag is {k} sessions; it must be at least 0, or it would look ahead.")
    out_TN = np.empty_like(x_TN)
    out_TN[:k] = np.nan
    out_TN[k:] = x_TN[: len(x_TN) - k] if k < len(x_TN) else x_TN[:0]
    return out_TN


def last_known_index(known_TN: BoolArray) -> IntArray:
    """Return the index of the last session <= t with a known value; -1 before the first."""
    index_TN = np.where(known_TN, np.arange(len(known_TN))[:, None], -1)
    filled: IntArray = np.maximum.accumulate(index_TN, axis=0)
    return filled


def carry(x_TN: FloatArray, longest: float = np.inf) -> FloatArray:
    """Carry each firm's last known value forward over NaN.

    ``x[s]`` with s the last session <= t where x is not NaN. NaN before the first known value and where
    ``t - s`` exceeds ``longest``.

    Examples
    --------
    >>> carry(np.array([[1.0], [np.nan], [3.0]])).ravel()
    array([1., 1., 3.])
    """
    return carry_and_age(x_TN, longest)[0]


def carry_and_age(x_TN: FloatArray, longest: float) -> tuple[FloatArray, FloatArray]:
    """Carry values as `carry` does, and count the sessions since the last known one (infinite before it)."""
    from features.arithmetic import kernels

    carried_TN, age_TN = map_tiles(
        lambda x, out: kernels.carry(x[0], longest, out[0], out[1]), x_TN, answers=2
    )
    return carried_TN, age_TN


def _rolling(
    kernel: str,
    window: int,
    least: int | None,
    *x_TN: AnyFloatArray,
    answers: int = 1,
    dtype: npt.DTypeLike = np.float64,
) -> list[FloatArray]:
    """Run a compiled loop of `features.arithmetic.kernels`, which is imported when it is needed."""
    from features.arithmetic import kernels

    if window < 1:
        raise ValueError(f"The rolling window is {window} sessions; it must be at least 1.")
    loop, counts = getattr(kernels, kernel), () if least is None else (float(least),)
    x_TN = tuple(np.broadcast_to(x, x_TN[0].shape) for x in x_TN)
    return map_tiles(lambda x, out: loop(*x, window, *counts, *out), *x_TN, answers=answers, dtype=dtype)


def rolling_count(x_TN: AnyFloatArray, window: int) -> FloatArray:
    """Count the known values among the last ``window`` sessions: exact, as float64.

    Examples
    --------
    >>> rolling_count(np.array([[1.0], [np.nan], [3.0]]), 2).ravel()
    array([1., 1., 1.])
    """
    return _rolling("rolling_count", window, None, x_TN)[0]


def rolling_sum(x_TN: FloatArray, window: int) -> FloatArray:
    """Sum the known values of the last ``window`` sessions. NaN counts as 0; the sum of no value is 0.

    Examples
    --------
    >>> rolling_sum(np.array([[1.0], [2.0], [3.0]]), 2).ravel()
    array([1., 3., 5.])
    """
    return _rolling("rolling_sum", window, None, x_TN)[0]


def rolling_mean(x_TN: FloatArray, window: int, min_count: int) -> FloatArray:
    """Average the known values of the last ``window`` sessions, in x's unit; ``min_count`` is at least 1.

    Examples
    --------
    >>> rolling_mean(np.array([[1.0], [2.0], [6.0]]), 2, 2).ravel()
    array([nan, 1.5, 4. ])
    """
    return _rolling("rolling_mean", window, max(min_count, 1), x_TN)[0]


def rolling_std(x_TN: FloatArray, window: int, min_count: int) -> FloatArray:
    """Compute the sample standard deviation (n - 1) of the known values of the last ``window`` sessions.

    The variance is computed as ``E[x^2] - E[x]^2``, which is accurate for returns but not for price levels,
    whose mean is large relative to the deviation. A deviation below 1e-7 of the root mean square is treated
    as rounding and set to 0. In x's unit; ``min_count`` is at least 2.

    Examples
    --------
    >>> rolling_std(np.array([[1.0], [3.0], [1.0]]), 2, 2).ravel().round(3)
    array([  nan, 1.414, 1.414])
    """
    return _rolling("rolling_std", window, max(min_count, 2), x_TN)[0]


def rolling_skewness(x_TN: FloatArray, window: int, min_count: int) -> FloatArray:
    """Compute the skewness ``m3 / m2^1.5`` (population moments) of the known values of a window.

    A pure number, NaN without variation; accurate for returns (`rolling_std`). ``min_count`` is at least 3.

    Examples
    --------
    >>> rolling_skewness(np.array([[0.0], [0.0], [3.0]]), 3, 3).ravel().round(3)
    array([  nan,   nan, 0.707])
    """
    return _rolling("rolling_skewness", window, max(min_count, 3), x_TN)[0]


def rolling_regression(
    y_TN: FloatArray, x_TN: FloatArray, window: int, min_count: int
) -> tuple[FloatArray, FloatArray]:
    """Regress y on x, with an intercept, over the sessions of the window on which both are known.

    ``x_TN`` has shape (T, N), or (T, 1) for one regressor of all firms. Moments are computed as in
    `rolling_std`; see there on accuracy. ``min_count`` is at least 3.

    Returns
    -------
    slope_TN : ndarray of shape (T, N)
        ``cov(x, y) / var(x)``; NaN where x does not vary.
    residual_TN : ndarray of shape (T, N)
        Standard error of the regression, ``sqrt(RSS / (n - 2))``, in y's unit.

    Examples
    --------
    >>> y, x = np.array([[2.0], [4.0], [6.0]]), np.array([[1.0], [2.0], [3.0]])
    >>> slope, residual = rolling_regression(y, x, 3, 3)
    >>> slope.ravel().round(6), residual.ravel().round(6)
    (array([nan, nan,  2.]), array([nan, nan,  0.]))
    """
    slope_TN, residual_TN = _rolling("rolling_regression", window, max(min_count, 3), y_TN, x_TN, answers=2)
    return slope_TN, residual_TN


def rolling_max(x_TN: FloatArray, window: int, min_count: int) -> FloatArray:
    """Compute the largest known value of the last ``window`` sessions; ``min_count`` is at least 1.

    Examples
    --------
    >>> rolling_max(np.array([[1.0], [3.0], [2.0]]), 2, 1).ravel()
    array([1., 3., 3.])
    """
    return _rolling("rolling_max", window, max(min_count, 1), x_TN)[0]


def rolling_median(x_TN: Floats, window: int, min_count: int) -> Floats:
    """Compute the median of the known values of the last ``window`` sessions, in unit and float type of x.

    A median selects values and averages at most two of them, so it accumulates no rounding error.
    ``min_count`` is at least 1.

    Examples
    --------
    >>> rolling_median(np.array([[1.0], [5.0], [2.0]]), 3, 1).ravel()
    array([1., 3., 2.])
    """
    median = _rolling("rolling_median", window, max(min_count, 1), x_TN, dtype=x_TN.dtype)
    return median[0].astype(x_TN.dtype, copy=False)


FLAT = 1e-14  # of the mean square: a variance below it is rounding


def rolling_correlation(y_TN: FloatArray, x_TN: FloatArray, window: int, min_count: int) -> FloatArray:
    """Correlate two series (Pearson) over the sessions of the window on which both are known.

    ``x_TN`` has shape (T, N), or (T, 1) for one series. Deviations must not be small relative to the means;
    NaN for a series without variation. ``min_count`` is at least 1.

    Examples
    --------
    >>> y, x = np.array([[1.0], [2.0], [3.0]]), np.array([[3.0], [2.0], [1.0]])
    >>> rolling_correlation(y, x, 3, 3).ravel().round(6)
    array([nan, nan, -1.])
    """
    return _rolling("rolling_correlation", window, max(min_count, 1), y_TN, x_TN)[0]


def residual_skewness(
    y_TN: FloatArray, x_TN: FloatArray, window: int, min_count: int
) -> tuple[FloatArray, FloatArray]:
    r"""Compute the skewness and coskewness of the residuals of a regression of y on x.

    With ``e`` the residuals of the regression with an intercept over the window and ``d = x - mean(x)``:
    skewness ``E[e^3] / E[e^2]^1.5``, coskewness ``E[e d^2] / (E[e^2]^0.5 E[d^2])`` (Harvey and Siddique
    2000).

    Pure numbers, NaN where x or the residuals do not vary. Arguments are those of `rolling_regression`.

    Examples
    --------
    >>> y, x = np.random.default_rng(0).normal(size=(2, 60, 1))
    >>> [part[-1, 0].round(2).item() for part in residual_skewness(y, x, 60, 30)]
    [-0.02, 0.16]
    """
    both_TN = ~(np.isnan(y_TN) | np.isnan(x_TN))
    y_TN, x_TN = np.where(both_TN, y_TN, np.nan), np.where(both_TN, x_TN, np.nan)

    def mean(values_TN: FloatArray) -> FloatArray:
        return rolling_mean(values_TN, window, min_count)

    y, x, yy, yx, xx = mean(y_TN), mean(x_TN), mean(y_TN * y_TN), mean(y_TN * x_TN), mean(x_TN * x_TN)
    var_y, cov, var_x = yy - y * y, yx - y * x, xx - x * x
    # third central moments, from raw moments
    yyy = mean(y_TN * y_TN * y_TN) - 3.0 * y * yy + 2.0 * y * y * y
    yyx = mean(y_TN * y_TN * x_TN) - 2.0 * y * yx - x * yy + 2.0 * y * y * x
    yxx = mean(y_TN * x_TN * x_TN) - 2.0 * x * yx - y * xx + 2.0 * y * x * x
    xxx = mean(x_TN * x_TN * x_TN) - 3.0 * x * xx + 2.0 * x * x * x
    moves = var_x > FLAT * xx
    slope = cov / np.where(moves, var_x, 1.0)
    var_e = var_y - slope * cov
    known = moves & (var_y > FLAT * yy) & (var_e > 1e-9 * var_y)
    var_e = np.where(known, var_e, 1.0)
    third = yyy - 3.0 * slope * yyx + 3.0 * slope * slope * yxx - slope * slope * slope * xxx
    skewness_TN = np.where(known, third / (var_e * np.sqrt(var_e)), np.nan)
    joint = yxx - slope * xxx
    coskewness_TN = np.where(known, joint / (np.sqrt(var_e) * np.where(known, var_x, 1.0)), np.nan)
    return skewness_TN, coskewness_TN


def roll_spread(return_TN: FloatArray, window: int) -> FloatArray:
    """Compute the spread that the autocovariance of returns implies (Roll 1984).

    ``2 sqrt(max(-cov(r[s], r[s-1]), 0))`` over ``s = t-window+1..t``, population covariance. Trades alternate
    between bid and ask, so a price that bounces is followed by its reversal.

    Returns are fractions; NaN means unknown. 0 if the autocovariance is not negative. NaN if fewer than half
    of the window's pairs of neighbouring returns are known.

    Examples
    --------
    >>> bounce = np.array([[0.01], [-0.01]] * 5)  # between bid and ask
    >>> roll_spread(bounce, 9)[-1].round(3)
    array([0.02])
    """
    before_TN = lag(return_TN, 1)
    both_TN = return_TN * before_TN
    known_TN, least = ~np.isnan(both_TN), (window + 1) // 2
    mean_TN = rolling_mean(np.where(known_TN, return_TN, np.nan), window, least)
    mean_before_TN = rolling_mean(np.where(known_TN, before_TN, np.nan), window, least)
    covariance_TN = rolling_mean(both_TN, window, least) - mean_TN * mean_before_TN
    return 2.0 * np.sqrt(np.maximum(-covariance_TN, 0.0))


def corwin_schultz_spread(
    high_TN: FloatArray, low_TN: FloatArray, close_TN: FloatArray, window: int
) -> FloatArray:
    """Compute the spread that high-low ranges of one day and of two days imply (Corwin and Schultz 2012).

    The range of two days has twice the variance of one day but the same spread. With
    ``b = ln(H/L)^2`` of s-1 plus that of s, ``g = ln(H/L)^2`` of both days together, ``k = 3 - 2 sqrt(2)``
    and ``a = (sqrt(2b) - sqrt(b)) / k - sqrt(g / k)``, the spread of a pair of days is
    ``2 (exp(a) - 1) / (1 + exp(a))``, or 0 if that is negative. High and low of s are first shifted by the
    overnight gap: a close of s-1 outside the range of s moves the range to that close.

    Prices are positive and in one unit; NaN means unknown. The spreads of neighbouring days are averaged over
    ``window`` sessions; NaN if fewer than half of its pairs are known.

    Examples
    --------
    >>> high, low = np.full((5, 1), 10.1), np.full((5, 1), 9.9)
    >>> corwin_schultz_spread(high, low, np.full((5, 1), 10.0), 2)[-1].round(4)
    array([0.02])
    """
    high_TN, low_TN = np.log(high_TN), np.log(low_TN)
    before_high_TN, before_low_TN = lag(high_TN, 1), lag(low_TN, 1)
    before_TN = lag(np.log(close_TN), 1)
    gap_TN = np.maximum(before_TN - high_TN, 0.0) + np.minimum(before_TN - low_TN, 0.0)
    one_TN = (high_TN - low_TN) ** 2 + (before_high_TN - before_low_TN) ** 2
    high_TN, low_TN = high_TN + gap_TN, low_TN + gap_TN
    two_TN = (np.maximum(high_TN, before_high_TN) - np.minimum(low_TN, before_low_TN)) ** 2
    k = 3.0 - 2.0 * np.sqrt(2.0)
    a_TN = (np.sqrt(2.0 * one_TN) - np.sqrt(one_TN)) / k - np.sqrt(two_TN / k)
    spread_TN = np.maximum(2.0 * np.tanh(0.5 * a_TN), 0.0)
    return rolling_mean(spread_TN, window, (window + 1) // 2)
