"""Compiled loops over the firms of a date: sorting, ranks, selection, correlations, quantiles, persistence.

The rules of `features.arithmetic.kernels` apply: arrays are C-contiguous, a kernel starts no threads, and
sums are not reordered. Importing this module imports numba, so it is imported inside functions.

The order of a date is the columns of its known values, lowest value first and equal values in column order.
A sorted panel is passed as its values, their order and their number.

Shape suffixes: R dates, N firms, P pairs of a date, Q quantiles, M measures, E edges.
"""

import numpy as np
import numpy.typing as npt

from features.arithmetic.kernels import ZERO, compiled
from features.arrays import Float32Array, FloatArray, IntArray

UInt64Array = npt.NDArray[np.uint64]


@compiled
def pack_values(bits_RN: UInt64Array, column: np.uint64, packed_RN: UInt64Array) -> None:
    """Pack each value's leading bits and its column into one integer, so that one sort orders both.

    The bits of a float64, read as an unsigned integer, sort like the values after the sign bit is flipped
    and, for negative values, all other bits are inverted. The lowest bits make room for the column;
    `unpack_order` puts values that differ only there in order. ``column`` holds the bits of a column: ``2^b -
    1 >= N - 1``. The output is the largest integer where the value is NaN.
    """
    minus, infinite = np.uint64(1 << 63), np.uint64(0x7FF0000000000000)
    for r in range(bits_RN.shape[0]):
        bits, packed = bits_RN[r], packed_RN[r]
        for i in range(len(bits)):
            known = bits[i] & ~minus <= infinite
            ordered = ~bits[i] if bits[i] > minus else bits[i] | minus  # -0 is 0
            packed[i] = (ordered & ~column) | np.uint64(i) if known else ~np.uint64(0)


@compiled
def unpack_order(
    x_RN: FloatArray, packed_RN: UInt64Array, column: np.uint64, order_RN: IntArray, count_R: IntArray
) -> None:
    """Read each row's order from its sorted packed values, and count the known values.

    ``order_RN`` holds nothing of use beyond the count. Values whose packed digits are equal are sorted here.
    """
    unknown = ~np.uint64(0)
    for r in range(packed_RN.shape[0]):
        packed, x, order = packed_RN[r], x_RN[r], order_RN[r]
        count, close = 0, False
        while count < len(packed) and packed[count] != unknown:
            order[count] = packed[count] & column
            close |= count > 0 and (packed[count] ^ packed[count - 1]) <= column
            count += 1
        count_R[r] = count
        first = 0 if close else count
        for j in range(first + 1, count + 1):
            if j == count or (packed[j] ^ packed[first]) > column:
                if j - first > 1:
                    _sort_run(x, order[first:j])
                first = j


@compiled
def _sort_run(x: FloatArray, run: IntArray) -> None:
    """Sort columns by value and then by column (Shell sort); equal values, the usual case, are in order."""
    gap = 0
    for j in range(1, len(run)):
        if x[run[j]] < x[run[j - 1]]:
            gap = len(run)
    while gap > 1:
        gap = max(gap * 5 // 11, 1)
        for j in range(gap, len(run)):
            moved, k = run[j], j
            while k >= gap:
                other = run[k - gap]
                if x[other] < x[moved] or (x[other] == x[moved] and other < moved):
                    break
                run[k] = other
                k -= gap
            run[k] = moved


Sorted = tuple[FloatArray, IntArray, IntArray]  # values (R, N), order (R, N), count (R,)


@compiled
def _tied(x: FloatArray, order: IntArray, at: int) -> tuple[int, int]:
    """First and end of the places in an order whose values equal the one at a place."""
    first, end = at, at + 1
    while first > 0 and x[order[first - 1]] == x[order[at]]:
        first -= 1
    while end < len(order) and x[order[end]] == x[order[at]]:
        end += 1
    return first, end


@compiled
def select(
    panel: Sorted, size_R: IntArray, high_R: FloatArray, low_R: FloatArray, out_RN: FloatArray
) -> None:
    """Compute ``high * share in the size highest values + low * share in the size lowest values``.

    ``size_R`` is at most the number of known values; 0 selects none.
    """
    for r in range(len(out_RN)):
        x, count, out = panel[0][r], panel[2][r], out_RN[r]
        order, size = panel[1][r, :count], min(size_R[r], count)
        if size <= 0:
            out[:] = 0.0
            continue
        top, bottom, high, low = x[order[count - size]], x[order[size - 1]], high_R[r], low_R[r]
        first, end = _tied(x, order, count - size)
        at_top = (size - (count - end)) / (end - first) * high
        first, end = _tied(x, order, size - 1)
        at_bottom = (size - first) / (end - first) * low
        for i in range(len(x)):
            up = high if x[i] > top else (at_top if x[i] == top else 0.0)
            down = low if x[i] < bottom else (at_bottom if x[i] == bottom else 0.0)
            out[i] = up + down


@compiled
def measure_pairs(
    forecast: Sorted, label: Sorted, tops: tuple[int, int], quantile_RQ: FloatArray, out_RM: FloatArray
) -> None:
    """Measure forecasts against labels on each date, over the firms that have both.

    Each of them is a tuple of values, order and count. ``tops`` are the numbers of highest forecasts for the
    share of labels at or above zero, and for the mean label. ``quantile_RQ`` gets the mean label of each
    quantile, lowest first; NaN with fewer pairs than quantiles. ``out_RM`` gets the number of pairs, tied
    pairs, Pearson correlation, Spearman correlation, share of the highest forecasts whose label is at least
    zero, mean label of the highest forecasts, sum of squared errors and sum of squared labels; NaN where
    undefined.
    """
    N = forecast[0].shape[1]
    x_P, y_P = np.empty(N), np.empty(N)
    column_P, place_N = np.empty(N, np.uint64), np.empty(N)
    mean_P, rise_P = np.empty(N), np.empty(N)
    for r in range(len(out_RM)):
        x, y, out = forecast[0][r], label[0][r], out_RM[r]
        n = ZERO
        for i in range(N):
            x_P[n], y_P[n] = x[i], y[i]
            n += 0 if np.isnan(x[i]) | np.isnan(y[i]) else 1
        out[0] = n
        _moments(x_P[:n], y_P[:n], out)
        _common(forecast[1][r, : forecast[2][r]], y, column_P)
        tied, x_square, middle = 0, 0.0, (n + 1) / 2.0
        first = 0
        for j in range(1, n + 1):  # groups of tied forecasts
            column = column_P[first]
            if j < n and x[column_P[j]] == x[column]:
                continue
            place, size = (first + 1 + j) / 2.0 - middle, j - first
            x_square += size * place * place
            if size == 1:
                place_N[column], mean_P[first] = place, y[column]
                rise_P[first] = 1.0 if y[column] >= 0 else 0.0
            else:
                tied += size
                total, rises = 0.0, 0.0
                for k in range(first, j):
                    place_N[column_P[k]] = place
                    total += y[column_P[k]]
                    rises += 1.0 if y[column_P[k]] >= 0 else 0.0
                mean_P[first:j] = total / size
                rise_P[first:j] = rises / size
            first = j
        out[1] = tied
        _fill_quantiles(mean_P[:n], quantile_RQ[r])
        out[4] = _mean_of_last(rise_P[:n], tops[0])
        out[5] = _mean_of_last(mean_P[:n], tops[1])
        _common(label[1][r, : label[2][r]], x, column_P)
        y_square, product, first = 0.0, 0.0, 0
        for j in range(1, n + 1):  # groups of tied labels
            if j < n and y[column_P[j]] == y[column_P[first]]:
                continue
            place = (first + 1 + j) / 2.0 - middle
            y_square += (j - first) * place * place
            for k in range(first, j):
                product += place * place_N[column_P[k]]
            first = j
        out[3] = _correlation(n, product, x_square, y_square)


@compiled
def _common(order: IntArray, other: FloatArray, column_P: IntArray) -> None:
    """Keep the columns of an order whose other value is known as well."""
    n = 0
    for j in range(len(order)):
        column_P[n] = order[j]
        n += 0 if np.isnan(other[order[j]]) else 1


@compiled
def _moments(x_P: FloatArray, y_P: FloatArray, out_M: FloatArray) -> None:
    """Store Pearson correlation, squared errors and squared labels of a date's pairs.

    The sums of the correlation are those of `features.information_coefficient.ic_by_date`, to the bit.
    """
    n = len(x_P)
    x_sum, y_sum = 0.0, 0.0
    error_square, label_square = 0.0, 0.0
    for j in range(n):
        x_sum += x_P[j]
        y_sum += y_P[j]
        error_square += (y_P[j] - x_P[j]) ** 2
        label_square += y_P[j] ** 2
    out_M[6], out_M[7] = error_square, label_square
    x_mean, y_mean = x_sum / max(n, 1), y_sum / max(n, 1)
    x_square, y_square, product = 0.0, 0.0, 0.0
    x_varies, y_varies = False, False
    for j in range(n):
        x, y = x_P[j] - x_mean, y_P[j] - y_mean
        x_square += x * x
        y_square += y * y
        product += x * y
        x_varies |= x_P[j] != x_P[0]
        y_varies |= y_P[j] != y_P[0]
    out_M[2] = _correlation(n, product, x_square if x_varies else 0.0, y_square if y_varies else 0.0)


@compiled
def _correlation(n: int, product: float, x_square: float, y_square: float) -> float:
    """Correlation from sums over deviations: 0 for a constant x, NaN for a constant y or below 3 pairs."""
    if n < 3 or not y_square > 0.0:
        return np.nan
    size = np.sqrt(x_square) * np.sqrt(y_square)
    return min(max(product / size, -1.0), 1.0) if size > 0.0 else 0.0


@compiled
def _fill_quantiles(value_P: FloatArray, mean_Q: FloatArray) -> None:
    """Compute the mean of each quantile of sorted values; `backtest.forecasts.daily` defines quantiles."""
    n, q = len(value_P), len(mean_Q)
    lower = 0
    for i in range(q):
        upper = -(-(i + 1) * n // q)
        total = 0.0
        for j in range(lower, upper):
            total += value_P[j]
        mean_Q[i] = total / (upper - lower) if n >= q else np.nan
        lower = upper


@compiled
def _mean_of_last(value_P: FloatArray, k: int) -> float:
    """Mean of the last k values; NaN if there are fewer."""
    n = len(value_P)
    if n < k:
        return np.nan
    total = 0.0
    for j in range(n - k, n):
        total += value_P[j]
    return total / k


@compiled
def rank(panel: Sorted, rank_RN: FloatArray) -> None:
    """Rank each date's values from 1; ties share their mean rank, and an unknown value is NaN."""
    for r in range(len(rank_RN)):
        x, order, n, rank_N = panel[0][r], panel[1][r], panel[2][r], rank_RN[r]
        rank_N[:] = np.nan
        first = 0
        for j in range(1, n + 1):
            if j < n and x[order[j]] == x[order[first]]:
                continue
            for k in range(first, j):
                rank_N[order[k]] = (first + 1 + j) / 2.0
            first = j


@compiled
def rank_with_edges(panel: Sorted, quantiles: int, rank_RN: Float32Array, edge_RE: FloatArray) -> None:
    """Rank each date's values, and describe which firms are in the bottom and the top quantile.

    ``panel`` is a tuple of values, order and count. ``rank_RN`` gets the average ranks from 1, exact up to
    2^23 firms; NaN where unknown. ``edge_RE`` gets the rank at the edge of the bottom quantile, the share of
    the firms of that rank that are in it, and its size; then the same of the top quantile. The sizes are 0
    with fewer values than quantiles.
    """
    for r in range(len(rank_RN)):
        x, order, n, rank = panel[0][r], panel[1][r], panel[2][r], rank_RN[r]
        rank[:] = np.nan
        edge_RE[r, :] = 0.0
        bottom, top = -(-n // quantiles), n - -(-(quantiles - 1) * n // quantiles)
        first = 0
        for j in range(1, n + 1):
            if j < n and x[order[j]] == x[order[first]]:
                continue
            place = (first + 1 + j) / 2.0
            for k in range(first, j):
                rank[order[k]] = place
            if n >= quantiles and first < bottom <= j:
                edge_RE[r, 0], edge_RE[r, 1] = place, (bottom - first) / (j - first)
                edge_RE[r, 2] = bottom
            if n >= quantiles and first <= n - top < j:
                edge_RE[r, 3], edge_RE[r, 4] = place, (j - (n - top)) / (j - first)
                edge_RE[r, 5] = top
            first = j


@compiled
def compare_dates(
    now: tuple[Float32Array, FloatArray], then: tuple[Float32Array, FloatArray], out_RM: FloatArray
) -> None:
    """Compare ranks and edges of dates with those of earlier dates, both from `rank_with_edges`.

    ``out_RM`` gets the Pearson correlation of the ranks over the firms known on both dates; the share of the
    bottom quantile that was not in it before; the same of the top quantile. NaN where undefined.
    """
    for r in range(len(out_RM)):
        a, b, e, f = now[0][r], then[0][r], now[1][r], then[1][r]
        n = ZERO
        a_sum, b_sum = 0.0, 0.0
        a_square, b_square, product = 0.0, 0.0, 0.0
        bottom, top = 0.0, 0.0
        for i in range(len(a)):
            x, y = np.float64(a[i]), np.float64(b[i])
            bottom += max(_share_below(x, e[0], e[1]) - _share_below(y, f[0], f[1]), 0.0)
            top += max(_share_below(-x, -e[3], e[4]) - _share_below(-y, -f[3], f[4]), 0.0)
            if np.isnan(x) | np.isnan(y):
                continue
            n += 1
            a_sum += x
            b_sum += y
            a_square += x * x
            b_square += y * y
            product += x * y
        x_square, y_square = n * a_square - a_sum * a_sum, n * b_square - b_sum * b_sum
        known = n >= 3 and x_square > 0.0
        out_RM[r, 0] = _correlation(n, n * product - a_sum * b_sum, x_square, y_square) if known else np.nan
        both = e[2] > 0.0 and f[2] > 0.0
        out_RM[r, 1] = bottom / e[2] if both else np.nan
        out_RM[r, 2] = top / e[5] if both else np.nan


@compiled
def _share_below(rank: float, edge: float, share: float) -> float:
    """Share of a firm in the selection up to an edge; 0 for a firm without a rank."""
    if rank < edge:
        return 1.0
    return share if rank == edge else 0.0
