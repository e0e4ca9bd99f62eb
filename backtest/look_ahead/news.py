"""The news of a series, what its own past does not say, and correlations of two series of news at a lead.

In arrays of news, 0 marks an unknown value.

Shape suffixes: T sessions, N firms, K leads, L lags, P parts of the sample.
"""

from typing import Final

import numpy as np

from features.arithmetic.rolling import lag
from features.arrays import AnyFloatArray, BoolArray, Float32Array, FloatArray, IntArray

TAIL = 5.0
"""Deviations at which a value is clipped, in units of 1.4826 median absolute deviations. A bad tick that is
reversed on the next session must not look like a forecast."""
_ROUNDING = 1e-6
"""Size of a residual, relative to the changes, below which it is rounding: a firm's age has no news."""
_SMOOTH = 0.7
"""Autocorrelation above which a residual is a curve, such as that of the logarithm of an age, and no news."""
_COMMON = 0.9
_STRAIGHT = 1e-3
"""Change of the slope, relative to the mean slope, below which a line is straight: files are rounded."""
_PIECE = 128
LEADS: Final = 252  # largest lead in sessions
_FIRMS: Final = 160  # firms that a mean over firms, or common factors, are made from
_FEWEST: Final = 40
_FEWEST_FIRMS: Final = 15


def mean_of_firms(x_TN: FloatArray) -> FloatArray:
    """Mean [T, 1] over the firms of a date; NaN if none is known."""
    known_TN = np.isfinite(x_TN)
    count_T1 = known_TN.sum(axis=1, keepdims=True)
    total_T1 = np.where(known_TN, x_TN, 0.0).sum(axis=1, keepdims=True)
    return np.where(count_T1 > 0, total_T1 / np.maximum(count_T1, 1), np.nan)


def demeaned(x_TN: FloatArray) -> FloatArray:
    """Subtract the mean over the firms of a date."""
    return np.asarray(x_TN - mean_of_firms(x_TN))


def clipped(x_TN: FloatArray) -> FloatArray:
    """Centre each firm's values, scale them robustly and clip them at `TAIL`; 0 where unknown or constant."""
    out_TN = np.zeros(x_TN.shape)
    for start in range(0, x_TN.shape[1], _PIECE):
        part = x_TN[:, start : start + _PIECE]
        known = np.isfinite(part)
        some = known.any(axis=0)
        if not some.any():
            continue
        held = np.where(known, part, np.nan)[:, some]
        middle = _medians(held)
        off = np.abs(held - middle)
        size = 1.4826 * _medians(off)
        deviation = np.sqrt(np.nanmean(off**2, axis=0))
        # a series that is mostly constant has no median deviation: its moves keep their sizes
        size = np.where(size > 1e-3 * deviation, size, deviation)
        scaled = np.clip((held - middle) / np.where(size > 0, size, np.inf), -TAIL, TAIL)
        place = np.zeros((len(part), int(some.sum())))
        np.copyto(place, scaled, where=np.isfinite(scaled))
        out_TN[:, start : start + _PIECE][:, some] = place
    return out_TN


def _medians(x_TN: FloatArray) -> FloatArray:
    """Median of each firm's known values, at least one; as `np.nanmedian`, which takes five times as long."""
    sorted_TN, count_N = np.sort(x_TN, axis=0), np.isfinite(x_TN).sum(axis=0)  # NaNs are last
    firms_N = np.arange(x_TN.shape[1])
    return np.asarray((sorted_TN[(count_N - 1) // 2, firms_N] + sorted_TN[count_N // 2, firms_N]) / 2)


def is_common(x_TN: FloatArray) -> bool:
    """Whether a column is one number for all firms of nearly every date, such as the market's volatility."""
    known_TN = np.isfinite(x_TN)
    high_T = np.where(known_TN, x_TN, -np.inf).max(axis=1)
    low_T = np.where(known_TN, x_TN, np.inf).min(axis=1)
    several_T = known_TN.sum(axis=1) > 1
    return bool(several_T.any()) and float((high_T == low_T)[several_T].mean()) >= _COMMON


def steps(x_TN: FloatArray) -> FloatArray:
    """Return scaled changes of firms whose value mostly stays the same; NaN columns for all other firms.

    The news of a value that changes once a month are its changes. A regression would make news of the days on
    which nothing happens.
    """
    change_TN = x_TN - lag(x_TN, 1)
    moved_TN = np.isfinite(change_TN) & (change_TN != 0)
    known_N = np.isfinite(change_TN).sum(axis=0)
    still_N = (known_N > 0) & (moved_TN.sum(axis=0) < 0.5 * known_N)
    return np.where(still_N, clipped(np.where(moved_TN, change_TN, np.nan)), np.nan)


def kinks(x_TN: FloatArray) -> FloatArray:
    """Return scaled changes of the slope of firms whose value mostly moves on straight lines; NaN elsewhere.

    The news of a value that was interpolated between dates are the changes of its slope. If the line leads to
    a value that was not known yet, they correlate with the returns of the whole line.
    """
    slope_TN = x_TN - lag(x_TN, 1)
    bend_TN = slope_TN - lag(slope_TN, 1)
    known_TN = np.isfinite(bend_TN)
    count_N = known_TN.sum(axis=0)
    size_N = np.where(known_TN, np.abs(slope_TN), 0.0).sum(axis=0) / np.maximum(count_N, 1)
    bent_TN = known_TN & (np.abs(np.where(known_TN, bend_TN, 0.0)) > _STRAIGHT * size_N)
    line_N = (count_N > 0) & (size_N > 0) & (bent_TN.sum(axis=0) < 0.5 * count_N)
    kinks_TN = clipped(np.where(bent_TN, bend_TN, np.nan))
    # a curve bends a little on every session
    return np.where(line_N & (_persistence(kinks_TN) <= _SMOOTH), kinks_TN, np.nan)


def news(x_TN: FloatArray, lags: int) -> FloatArray:
    """Return what a firm's own past does not say: the residual of a regression on the last ``lags`` values.

    Residuals are clipped (`clipped`); 0 where a value of the regression is unknown (NaN), and for firms
    without news: a series that is a smooth curve of time.
    """
    T, N = x_TN.shape
    out_TN = np.full((T, N), np.nan)
    if lags >= T:
        return np.zeros((T, N))
    for start in range(0, N, _PIECE):
        part = x_TN[:, start : start + _PIECE]
        value_LTN = np.stack([part[lags - k : T - k] for k in range(lags + 1)])
        known_TN = np.isfinite(value_LTN).all(axis=0)
        count_N = np.maximum(known_TN.sum(axis=0), 1)
        value_LTN = np.where(known_TN, value_LTN, 0.0)
        value_LTN -= np.where(known_TN, (value_LTN.sum(axis=1) / count_N)[:, None, :], 0.0)
        square_NLL = np.einsum("atn,btn->nab", value_LTN, value_LTN, optimize=True)
        own = np.arange(lags)
        ridge_N = 1e-8 * np.trace(square_NLL[:, 1:, 1:], axis1=1, axis2=2) + 1e-300
        square_NLL[:, 1 + own, 1 + own] += ridge_N[:, None]
        slope_NL = np.linalg.solve(square_NLL[:, 1:, 1:], square_NLL[:, 1:, :1])[:, :, 0]
        residual_TN = value_LTN[0] - np.einsum("ltn,nl->tn", value_LTN[1:], slope_NL, optimize=True)
        moves_N = np.sqrt((np.where(known_TN, np.diff(value_LTN[:2], axis=0)[0], 0.0) ** 2).mean(axis=0))
        noise_N = np.sqrt((residual_TN**2).mean(axis=0)) < _ROUNDING * moves_N
        out_TN[lags:, start : start + _PIECE] = np.where(known_TN & ~noise_N, residual_TN, np.nan)
    news_TN = clipped(out_TN)
    return np.where(_persistence(news_TN) > _SMOOTH, 0.0, news_TN)


def news_of_input(x_TN: FloatArray) -> Float32Array:
    """News of an input of any kind: changes of a value that is held, kinks of lines, else residuals."""
    steps_TN, kinks_TN = steps(x_TN), kinks(x_TN)
    news_TN = np.where(np.isfinite(kinks_TN), kinks_TN, news(x_TN, 1))
    return np.where(np.isfinite(steps_TN), steps_TN, news_TN).astype(np.float32)


def _persistence(x_TN: FloatArray) -> FloatArray:
    """First autocorrelation per firm; 0 marks an unknown value."""
    product_N, square_N = (x_TN[1:] * x_TN[:-1]).sum(axis=0), (x_TN**2).sum(axis=0)
    return np.asarray(product_N / np.maximum(square_N, 1e-300))


def sums_by_part(x_TN: Float32Array, y_TN: Float32Array, lead: int, parts: int) -> FloatArray:
    """Sums [P, N, 5] of pairs within parts of the sample (`features.arithmetic.kernels.sums_by_firm`)."""
    from features.arithmetic.kernels import sums_by_firm

    sums_PN5 = np.zeros((parts, x_TN.shape[1], 5))
    sums_by_firm(x_TN, y_TN, lead, sums_PN5)
    return sums_PN5


def lead_correlations(x_TN: FloatArray, y_TN: FloatArray, lead: int) -> FloatArray:
    """Correlation per firm of x at t with y at t + lead; 0 for a firm with too few observations."""
    return correlations(sums_by_part(x_TN.astype(np.float32), y_TN.astype(np.float32), lead, 1)[0])[0]


def correlations(sums_N5: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Correlation per firm of two arrays of news, and its |z| under no dependence.

    Both are 0 for a firm with fewer than 40 effective observations. ``sums_N5`` holds pairs, x y, x^2, y^2
    and x^4 (`features.arithmetic.kernels.sums_by_firm`).
    """
    pairs_N, product_N, x_N, y_N, fourth_N = sums_N5.T
    size_N = np.sqrt(x_N * y_N)
    count_N = np.minimum(x_N**2 / np.maximum(fourth_N, 1e-300), pairs_N)
    enough_N = count_N >= _FEWEST
    c_N = np.where(enough_N, product_N / np.maximum(size_N, 1e-300), 0.0)
    z_N = np.abs(c_N) * np.sqrt(count_N) / np.sqrt(np.maximum(1.0 - c_N**2, 1e-6))
    return c_N, z_N


def sums_by_session(x_TN: Float32Array, y_TN: Float32Array, lead: int) -> FloatArray:
    """Sums [T, 6] over the firms of each session; zeros for the last ``lead`` sessions.

    The columns are those of `features.arithmetic.kernels.sums_by_date`.
    """
    from features.arithmetic.kernels import sums_by_date

    sums_T6 = np.zeros((len(x_TN), 6))
    sums_by_date(x_TN, y_TN, lead, sums_T6)
    return sums_T6


def ics(sums_T6: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Correlation over the firms of each session and its |z|; NaN with fewer than 15 firms."""
    count_T, x_T, y_T, product_T, square_x_T, square_y_T = sums_T6.T
    many_T = np.maximum(count_T, 1.0)
    spread_T = np.maximum(square_x_T - x_T**2 / many_T, 0.0) * np.maximum(square_y_T - y_T**2 / many_T, 0.0)
    size_T = np.sqrt(spread_T)
    known_T = (count_T >= _FEWEST_FIRMS) & (size_T > 1e-9 * np.sqrt(square_x_T * square_y_T)) & (size_T > 0)
    ic_T = np.where(known_T, (product_T - x_T * y_T / many_T) / np.maximum(size_T, 1e-300), np.nan)
    z_T = np.abs(np.arctanh(np.clip(ic_T, -0.999, 0.999))) * np.sqrt(np.maximum(count_T - 3, 0))
    return ic_T, z_T


def on_sessions(sums_T6: FloatArray, chosen_T: BoolArray) -> tuple[float, float]:
    """Correlation over all firms on some sessions, and its t statistic over these sessions."""
    rows = sums_T6[chosen_T & (sums_T6[:, 0] > 0)]
    size = float(np.sqrt(rows[:, 4].sum() * rows[:, 5].sum()))
    if len(rows) < _FEWEST_FIRMS or size <= 0:
        return 0.0, 0.0
    product_D = rows[:, 3]
    deviation = float(product_D.std(ddof=1))
    t = float(product_D.mean()) / max(deviation, 1e-300) * np.sqrt(len(rows))
    return float(product_D.sum()) / size, float(t)


def most_known(x_TN: AnyFloatArray) -> IntArray:
    """Choose the firms with most news: at most 160, which are enough for a mean over firms."""
    return np.argsort(-(x_TN != 0).sum(axis=0), kind="stable")[:_FIRMS]


def pooled_correlations(x_TN: AnyFloatArray, y_TN: AnyFloatArray) -> tuple[FloatArray, float]:
    """Mean correlation over firms at leads 1 to 252, and the effective number of observations."""
    chosen = most_known(x_TN)
    x_TN, y_TN = x_TN[:, chosen].astype(np.float64), y_TN[:, chosen].astype(np.float64)
    T = len(x_TN)
    leads = min(LEADS, T // 3)
    size = 1 << (T + leads - 1).bit_length()
    spectrum = np.conj(np.fft.rfft(x_TN, size, axis=0)) * np.fft.rfft(y_TN, size, axis=0)
    product_KN = np.fft.irfft(spectrum, size, axis=0)[1 : leads + 1]
    # the energy of y on as many sessions as x has news
    share_N = np.minimum((x_TN != 0).sum(axis=0) / np.maximum((y_TN != 0).sum(axis=0), 1), 1.0)
    energy_N = np.sqrt((x_TN**2).sum(axis=0) * (y_TN**2).sum(axis=0) * share_N)
    # the effective number of news: (sum of squares)^2 / sum of fourth powers
    effective_N = (x_TN**2).sum(axis=0) ** 2 / np.maximum((x_TN**4).sum(axis=0), 1e-300)
    weight_N = np.where(energy_N > 0, effective_N, 0.0)
    used_N = weight_N >= 5
    if not used_N.any():
        return np.zeros(max(leads, 1)), 0.0
    share_K1 = (T / (T - np.arange(1, leads + 1)))[:, None]
    c_KN = share_K1 * product_KN[:, used_N] / energy_N[used_N]
    c_K = (c_KN * weight_N[used_N]).sum(axis=1) / weight_N[used_N].sum()
    return np.clip(c_K, -1.0, 1.0), float(weight_N[used_N].sum())
