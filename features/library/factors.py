"""Statistical factors of recent returns, and the residual returns that they do not explain.

Principal components of the correlation matrix of daily returns (Avellaneda and Lee 2010, "Statistical
arbitrage in the US equities market"), re-estimated on the first session of each month from earlier sessions.

Shape suffixes: T sessions, W sessions of an estimate, D sessions that use it, N firms, L firms with loadings,
K factors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from features.arithmetic.parallel import one_blas_thread
from features.arrays import BoolArray, FloatArray, IntArray, require_shape
from features.panel.derived import cached, daily_return, full_panel
from features.panel.panel import Panel

WINDOW = 252
"""Sessions in an estimation window; there is no estimate until half of them have passed."""

MONTH = 31
"""Maximum age of an estimate, in sessions."""

FACTORS = 20
"""Factors used by the features. Avellaneda and Lee take 15, or as many as explain half of the variance."""

FIRMS_PER_FACTOR = 4
"""Minimum number of firms per factor: eight firms cannot identify five common factors."""

_OUTLIER = 4.0  # returns are clipped at this many standard deviations before estimation
_FLAT = 1e-5  # fraction per day: firms with a smaller standard deviation are left out


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Factor loadings in use from one month's first session on.

    Attributes
    ----------
    start
        First session that uses them; they are estimated from the `WINDOW` sessions before it.
    firms_L
        Columns of the panel that have loadings.
    deviation_L
        Standard deviation of their returns, a fraction per day.
    loadings_LK
        Loadings of the standardised returns, orthonormal over the firms of the factors, the strongest factor
        first.
    """

    start: int
    firms_L: IntArray
    deviation_L: FloatArray
    loadings_LK: FloatArray


def statistical_factors(panel: Panel, count: int) -> tuple[Estimate, ...]:
    """Estimate the factor loadings of each month.

    Parameters
    ----------
    panel : Panel
        The data.
    count : int
        Number of factors, at least 1; reduced where there are fewer than `FIRMS_PER_FACTOR` firms per factor.

    Returns
    -------
    tuple of Estimate
        In order of ``start``. Months before half a window has passed have no estimate.

    Notes
    -----
    A firm is included if it has returns on at least half of the window's sessions. Missing returns are set to
    the firm's mean, and returns are clipped at four standard deviations. An estimate depends only on rows
    ``start-252..start-1``. Of a universe with a list, the factors are those of the firms that have been on it
    by then (`Panel.members_TN`), and the loadings of other firms those of their returns on these factors.
    """
    if count < 1:
        msg = f"The number of statistical factors is {count}; it must be at least 1."
        raise ValueError(msg)

    def estimate() -> tuple[Estimate, ...]:
        r_TN, among_TN = daily_return(panel), panel.members_TN
        month_T = panel.dates_T.astype("datetime64[M]")
        starts = np.flatnonzero(month_T[1:] != month_T[:-1]) + 1
        with one_blas_thread():
            every = [
                _estimate(r_TN, int(start), count, None if among_TN is None else among_TN[start - 1])
                for start in starts
                if start >= WINDOW // 2
            ]
        return tuple(one for one in every if one is not None)

    return cached(panel, (statistical_factors, count), estimate)


def _estimate(r_TN: FloatArray, start: int, count: int, among_N: BoolArray | None) -> Estimate | None:
    r_WN = r_TN[max(0, start - WINDOW) : start]
    live_N = np.isfinite(r_WN).sum(axis=0) >= max(2, len(r_WN) // 2)
    firms_L = np.flatnonzero(live_N)
    r_WL = r_WN[:, firms_L]
    deviation_L = np.nanstd(r_WL, axis=0)
    moving_L = deviation_L > _FLAT
    firms_L, r_WL, deviation_L = firms_L[moving_L], r_WL[:, moving_L], deviation_L[moving_L]
    among_L = np.ones(len(firms_L), dtype=np.bool_) if among_N is None else among_N[firms_L]
    kept = min(count, int(among_L.sum()) // FIRMS_PER_FACTOR)
    if not kept:
        return None
    every_WL = (r_WL - np.nanmean(r_WL, axis=0)) / deviation_L
    every_WL = np.clip(np.nan_to_num(every_WL, nan=0.0), -_OUTLIER, _OUTLIER)
    z_WL = every_WL if among_L.all() else every_WL[:, among_L]
    if z_WL.shape[1] <= z_WL.shape[0]:
        values_L, vectors_LL = np.linalg.eigh(z_WL.T @ z_WL)
        values_K, loadings_LK = values_L[: -kept - 1 : -1], vectors_LL[:, : -kept - 1 : -1]
    else:  # the same loadings from the smaller matrix, W x W
        values_W, vectors_WW = np.linalg.eigh(z_WL @ z_WL.T)
        values_K = values_W[: -kept - 1 : -1]
        loadings_LK = z_WL.T @ vectors_WW[:, : -kept - 1 : -1] / np.sqrt(values_K)
    if not among_L.all():  # for the firms above these are their own loadings again
        loadings_LK = every_WL.T @ (z_WL @ loadings_LK) / values_K
    return Estimate(start, firms_L, deviation_L, loadings_LK)


def residualise_factors(
    values_TN: FloatArray,
    inside_TN: BoolArray,
    estimates: tuple[Estimate, ...],
    sessions: int = 1,
    *,
    among_TN: BoolArray | None = None,
) -> FloatArray:
    r"""Compute the residual returns of each date after a cross-sectional regression on the factor loadings.

    ``e = y - a - S Q f`` with ``a, f`` minimising ``sum(((y - a) / s - Q f)^2)``: a regression with intercept
    across the date's firms, on their loadings Q, in units of each firm's standard deviation s (S = diag(s)).
    For a and f, not for e, ``y / s`` is clipped at four standard deviations of a return over ``sessions``:
    ``4 sqrt(sessions)``.

    Parameters
    ----------
    values_TN : ndarray of shape (T, N)
        Returns; NaN is unknown.
    inside_TN : ndarray of bool, shape (T, N)
        Firms to include.
    estimates : tuple of Estimate
        In order of ``start``; a date uses the latest one that has started.
    sessions : int
        Sessions of the panel that each return spans.
    among_TN : ndarray of bool, shape (T, N), optional
        Firms that the regression is fitted to; by default all that are included.

    Returns
    -------
    ndarray of shape (T, N)
        Residual returns. NaN outside ``inside_TN``, where the return is unknown, where the firm has no
        loadings, and on dates before the first estimate or with fewer than two firms per coefficient.
    """
    require_shape("the mask of firms", inside_TN, values_TN.shape)
    out_TN = np.full(values_TN.shape, np.nan)
    limit = _OUTLIER * math.sqrt(sessions)
    ends = [*(one.start for one in estimates[1:]), len(values_TN)]
    for one, end in zip(estimates, ends, strict=False):
        # columns of the regression: the intercept, then the loadings
        columns_LK = np.column_stack((1.0 / one.deviation_L, one.loadings_LK))
        y_DL = values_TN[one.start : end, one.firms_L]
        shown_DL = inside_TN[one.start : end, one.firms_L] & np.isfinite(y_DL)
        known_DL = shown_DL if among_TN is None else shown_DL & among_TN[one.start : end, one.firms_L]
        before_L = None
        for t, y_L, known_L, shown_L in zip(range(one.start, end), y_DL, known_DL, shown_DL, strict=True):
            if known_L.sum() < 2 * columns_LK.shape[1]:
                continue
            # the regression is prepared anew where the firms are not those of the date before
            if before_L is None or not np.array_equal(known_L, before_L):
                before_L, columns_nK, deviation_n = known_L, columns_LK[known_L], one.deviation_L[known_L]
                gram_KK = columns_nK.T @ columns_nK
                size_K = np.sqrt(np.diag(gram_KK))
                size_K[size_K == 0] = 1.0
                inverse_KK = np.linalg.pinv(gram_KK / np.outer(size_K, size_K), rcond=1e-10, hermitian=True)
            y_n = y_L[known_L]
            z_n = np.clip(y_n / deviation_n, -limit, limit)
            f_K = inverse_KK @ (columns_nK.T @ z_n / size_K) / size_K
            if among_TN is None:
                out_TN[t, one.firms_L[known_L]] = y_n - deviation_n * (columns_nK @ f_K)
            else:
                explained_n = one.deviation_L[shown_L] * (columns_LK[shown_L] @ f_K)
                out_TN[t, one.firms_L[shown_L]] = y_L[shown_L] - explained_n
    return out_TN


def factor_residual(panel: Panel, count: int) -> FloatArray:
    """Compute each day's residual return on ``count`` statistical factors, over the firms that traded.

    Parameters
    ----------
    panel : Panel
        The data, or a tile of them (`features.panel.derived`). The factors are those of all firms, or of the
        firms that have been on the universe's list.
    count : int
        As in `statistical_factors`.

    Returns
    -------
    ndarray of shape (T, N)
        Known at the close of t, from rows ``t-283..t``; NaN as in `residualise_factors`.
    """
    full = full_panel(panel)

    def compute() -> FloatArray:
        r_TN = daily_return(full)
        estimates = statistical_factors(full, count)
        return residualise_factors(r_TN, np.isfinite(r_TN), estimates, among_TN=full.members_TN)

    e_TN = cached(full, (factor_residual, count), compute)
    return e_TN if panel is full else e_TN[:, np.searchsorted(full.tickers_N, panel.tickers_N)]
