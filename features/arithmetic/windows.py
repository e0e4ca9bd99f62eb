"""Compiled loops of the operators of expressions: over a window of sessions, and over the groups of a date.

The rules are those of `features.arithmetic.kernels`. A window is read value by value, from the oldest to the
newest, so no other row has an effect.

Shape suffixes: T sessions, R some of the sessions, W sessions of a window, N firms, S groups.
"""

import numpy as np
import numpy.typing as npt

from features.arithmetic.kernels import compiled, rolling_count
from features.arrays import FloatArray, IntArray


@compiled
def rolling_rank(x_TN: FloatArray, window: int, min_count: float, out_TN: FloatArray) -> None:
    """Rank the value at t among the known values of the window, as a share; ties share their mean rank."""
    count_TN = np.empty_like(x_TN)
    rolling_count(x_TN, window, count_TN)
    for t in range(len(x_TN)):
        now, out, count = x_TN[t], out_TN[t], count_TN[t]
        out[:] = 0.5
        for s in range(max(t - window + 1, 0), t + 1):
            x = x_TN[s]
            for i in range(len(x)):
                out[i] += (1.0 if x[i] < now[i] else 0.0) + (0.5 if x[i] == now[i] else 0.0)
        for i in range(len(out)):
            known = count[i] >= min_count and not np.isnan(now[i])
            out[i] = out[i] / count[i] if known else np.nan


@compiled
def rolling_argmax(x_TN: FloatArray, window: int, min_count: float, out_TN: FloatArray) -> None:
    """Find the place of the largest known value in the window: ``window`` is t; of equal ones the oldest."""
    count_TN, best_N = np.empty_like(x_TN), np.empty(x_TN.shape[1])
    rolling_count(x_TN, window, count_TN)
    for t in range(len(x_TN)):
        out, count = out_TN[t], count_TN[t]
        best_N[:] = -np.inf
        out[:] = np.nan
        for s in range(max(t - window + 1, 0), t + 1):
            x, place = x_TN[s], float(s - t + window)
            for i in range(len(x)):
                larger = x[i] > best_N[i]
                best_N[i] = x[i] if larger else best_N[i]
                out[i] = place if larger else out[i]
        for i in range(len(out)):
            out[i] = out[i] if count[i] >= min_count else np.nan


@compiled
def rolling_product(x_TN: FloatArray, window: int, min_count: float, out_TN: FloatArray) -> None:
    """Multiply the known values of the window."""
    count_TN = np.empty_like(x_TN)
    rolling_count(x_TN, window, count_TN)
    for t in range(len(x_TN)):
        out, count = out_TN[t], count_TN[t]
        out[:] = 1.0
        for s in range(max(t - window + 1, 0), t + 1):
            x = x_TN[s]
            for i in range(len(x)):
                out[i] *= 1.0 if np.isnan(x[i]) else x[i]
        for i in range(len(out)):
            out[i] = out[i] if count[i] >= min_count else np.nan


@compiled
def rolling_weighted(x_TN: FloatArray, weight_W: FloatArray, min_count: float, out_TN: FloatArray) -> None:
    """Average the known values of the window with weights from the oldest session to t."""
    window, count_TN, weight_N = len(weight_W), np.empty_like(x_TN), np.empty(x_TN.shape[1])
    rolling_count(x_TN, window, count_TN)
    for t in range(len(x_TN)):
        out, count = out_TN[t], count_TN[t]
        out[:] = 0.0
        weight_N[:] = 0.0
        for s in range(max(t - window + 1, 0), t + 1):
            x, weight = x_TN[s], weight_W[s - t + window - 1]
            for i in range(len(x)):
                known = not np.isnan(x[i])
                out[i] += weight * x[i] if known else 0.0
                weight_N[i] += weight if known else 0.0
        for i in range(len(out)):
            out[i] = out[i] / weight_N[i] if count[i] >= min_count else np.nan


SLOPE, RSQUARE, RESIDUAL = 0, 1, 2


@compiled
def rolling_trend(x_TN: FloatArray, part: int, window: int, min_count: float, out_TN: FloatArray) -> None:
    """Regress the known values of the window on their places 1..window, and give a part of the result.

    ``SLOPE`` per session, ``RSQUARE`` (NaN without variation), or the ``RESIDUAL`` of the value at t. Values
    are summed as differences from the window's first, and a variation that is only rounding is none, so that
    slope and residual are 0 without it.
    """
    N = x_TN.shape[1]
    sums_6N, base_N = np.empty((6, N)), np.empty(N)
    n, k, kk, x_sum, kx, xx = sums_6N[0], sums_6N[1], sums_6N[2], sums_6N[3], sums_6N[4], sums_6N[5]
    for t in range(len(x_TN)):
        sums_6N[:] = 0.0
        for s in range(max(t - window + 1, 0), t + 1):
            x, place = x_TN[s], float(s - t + window)
            for i in range(N):
                known = 0.0 if np.isnan(x[i]) else 1.0
                base_N[i] = x[i] if n[i] == 0.0 else base_N[i]
                value = x[i] - base_N[i] if known else 0.0
                n[i] += known
                k[i] += known * place
                kk[i] += known * place * place
                x_sum[i] += value
                kx[i] += value * place
                xx[i] += value * value
        now, out = x_TN[t], out_TN[t]
        for i in range(N):
            count = max(n[i], 1.0)
            covariance = kx[i] - k[i] * x_sum[i] / count
            variance = kk[i] - k[i] * k[i] / count
            variation, base = xx[i] - x_sum[i] * x_sum[i] / count, base_N[i]
            square = xx[i] + base * (2.0 * x_sum[i] + count * base)
            varies = variation > 1e-14 * square
            slope = covariance / variance if varies or count < 2.0 else 0.0
            if part == SLOPE:
                answer = slope
            elif part == RSQUARE:
                answer = min(slope * covariance / variation, 1.0) if varies else np.nan
            elif varies or count < 2.0 or np.isnan(now[i]):
                answer = now[i] - base - x_sum[i] / count - slope * (window - k[i] / count)
            else:
                answer = 0.0
            out[i] = answer if n[i] >= min_count else np.nan


@compiled
def rank_by_group(
    packed_RN: npt.NDArray[np.uint64], group_RN: IntArray, n_groups: int, out_RN: FloatArray
) -> None:
    """Rank within the group of the date: ties share their mean rank, over the group's count of known values.

    ``packed`` is sorted (`features.arithmetic.kernels.pack_with_column`). NaN where unknown and for group -1.
    """
    before_S, equal_S = np.empty(n_groups), np.empty(n_groups)
    column, unknown = np.uint64(0xFFFFFFFF), ~np.uint64(0)
    for r in range(len(out_RN)):
        packed, group, out = packed_RN[r], group_RN[r], out_RN[r]
        out[:] = np.nan
        before_S[:] = 0.0
        equal_S[:] = 0.0
        known = len(packed)
        while known > 0 and packed[known - 1] == unknown:
            known -= 1
        first = 0
        for j in range(1, known + 1):
            if j < known and packed[j] >> np.uint64(32) == packed[first] >> np.uint64(32):
                continue
            for place in range(first, j):
                at = group[packed[place] & column]
                if at >= 0:
                    equal_S[at] += 1.0
            for place in range(first, j):
                i = packed[place] & column
                if group[i] >= 0:
                    out[i] = before_S[group[i]] + 0.5 * (equal_S[group[i]] + 1.0)
            for place in range(first, j):
                at = group[packed[place] & column]
                if at >= 0:
                    before_S[at] += equal_S[at]
                    equal_S[at] = 0.0
            first = j
        for i in range(len(out)):
            out[i] = out[i] / before_S[group[i]] if group[i] >= 0 else np.nan


DEMEAN, ZSCORE, SCALE = 0, 1, 2


@compiled
def compare_by_group(
    x_RN: FloatArray, group_RN: IntArray, n_groups: int, what: int, out_RN: FloatArray
) -> None:
    """Compare known values with their group's on the date; NaN where unknown and for group -1.

    ``DEMEAN`` subtracts the mean, ``ZSCORE`` also divides by the population deviation (0 where all are
    equal), ``SCALE`` divides by the sum of absolute values. Values are summed as differences from the group's
    first, so that equal values have no rounding.
    """
    sums_5S = np.empty((5, n_groups))
    count, total, size, square, base = sums_5S[0], sums_5S[1], sums_5S[2], sums_5S[3], sums_5S[4]
    for r in range(len(x_RN)):
        x, group, out = x_RN[r], group_RN[r], out_RN[r]
        sums_5S[:] = 0.0
        for i in range(len(x)):
            if group[i] >= 0 and not np.isnan(x[i]):
                base[group[i]] = x[i] if count[group[i]] == 0.0 else base[group[i]]
                count[group[i]] += 1.0
                total[group[i]] += x[i] - base[group[i]]
                size[group[i]] += abs(x[i])
        for i in range(len(x)):
            g = group[i]
            mean = total[g] / count[g]
            out[i] = np.nan if g < 0 else x[i] / size[g] if what == SCALE else x[i] - base[g] - mean
            if what == ZSCORE and g >= 0 and not np.isnan(out[i]):
                square[g] += out[i] * out[i]
        if what == ZSCORE:
            for i in range(len(x)):
                g = group[i]
                if g >= 0 and not np.isnan(out[i]):
                    std = np.sqrt(square[g] / count[g])
                    out[i] = out[i] / std if std > 1e-14 * size[g] / count[g] else 0.0
