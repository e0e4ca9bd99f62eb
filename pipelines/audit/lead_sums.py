"""Correlations of two series at a lead: by firm, by date, by kind of date, and over all firms at all leads.

In the arrays, 0 marks an unknown value.

Shape suffixes: T sessions, N firms, K leads, P parts of the sample.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from features.arrays import AnyFloatArray, BoolArray, Float32Array, FloatArray

LEADS: Final = 252
"""Largest lead in sessions."""
_FIRMS: Final = 160
"""Firms whose leads up to a year are looked at; only their mean counts."""
_FEWEST: Final = 40
_FEWEST_FIRMS: Final = 15


def sums_by_part(x_TN: Float32Array, y_TN: Float32Array, lead: int, parts: int) -> FloatArray:
    """Sums [P, N, 5] of pairs within parts of the sample (`features.arithmetic.kernels.sums_by_firm`)."""
    from features.arithmetic.kernels import sums_by_firm

    sums_PN5 = np.zeros((parts, x_TN.shape[1], 5))
    sums_by_firm(x_TN, y_TN, lead, sums_PN5)
    return sums_PN5


def _effective(x_TN: AnyFloatArray) -> FloatArray:
    """Effective number of news per firm: (sum of squares)^2 / sum of fourth powers."""
    square_N, fourth_N = (x_TN**2).sum(axis=0), (x_TN**4).sum(axis=0)
    return np.asarray(square_N**2 / np.maximum(fourth_N, 1e-300))


def lead_correlations(x_TN: FloatArray, y_TN: FloatArray, lead: int) -> FloatArray:
    """Correlation per firm of x at t with y at t + lead; 0 for a firm with too few observations.

    0 marks an unknown value in the arrays.
    """
    sums_PN5 = sums_by_part(x_TN.astype(np.float32), y_TN.astype(np.float32), lead, parts=1)
    return correlations(sums_PN5[0])[0]


def correlations(sums_N5: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Correlation per firm of two arrays of news, and its |z| under no dependence.

    Both are 0 for a firm with fewer than 40 effective observations.

    Parameters
    ----------
    sums_N5
        For each firm: pairs, x y, x^2, y^2 and x^4 (`features.arithmetic.kernels.sums_by_firm`).
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


def pooled_correlations(x_TN: AnyFloatArray, y_TN: AnyFloatArray) -> tuple[FloatArray, float]:
    """Mean correlation over firms at leads 1 to 252, and the effective number of observations."""
    chosen = np.argsort(-(x_TN != 0).sum(axis=0), kind="stable")[:_FIRMS]
    x_TN, y_TN = x_TN[:, chosen].astype(np.float64), y_TN[:, chosen].astype(np.float64)
    T = len(x_TN)
    leads = min(LEADS, T // 3)
    size = 1 << (T + leads - 1).bit_length()
    spectrum = np.conj(np.fft.rfft(x_TN, size, axis=0)) * np.fft.rfft(y_TN, size, axis=0)
    product_KN = np.fft.irfft(spectrum, size, axis=0)[1 : leads + 1]
    # the energy of y on as many sessions as x has news
    share_N = np.minimum((x_TN != 0).sum(axis=0) / np.maximum((y_TN != 0).sum(axis=0), 1), 1.0)
    energy_N = np.sqrt((x_TN**2).sum(axis=0) * (y_TN**2).sum(axis=0) * share_N)
    weight_N = np.where(energy_N > 0, _effective(x_TN), 0.0)
    used_N = weight_N >= 5
    if not used_N.any():
        return np.zeros(max(leads, 1)), 0.0
    share_K1 = (T / (T - np.arange(1, leads + 1)))[:, None]
    c_KN = share_K1 * product_KN[:, used_N] / energy_N[used_N]
    c_K = (c_KN * weight_N[used_N]).sum(axis=1) / weight_N[used_N].sum()
    return np.clip(c_K, -1.0, 1.0), float(weight_N[used_N].sum())
