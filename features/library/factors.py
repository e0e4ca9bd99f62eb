"""Statistical factors: what firms' returns have in common lately, and what a return is beyond it.

Principal components of the correlations of daily returns (Avellaneda and Lee 2010, "Statistical arbitrage in
the US equities market"), estimated anew on the first session of each month from the sessions before it.

Shape suffixes: T sessions, W sessions of an estimate, N firms, L firms with loadings, K factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.arrays import BoolArray, FloatArray, IntArray, require_shape
from features.panel.derived import cached, daily_return
from features.panel.panel import Panel
from features.panel.tiles import full_panel

WINDOW = 252
"""Sessions that an estimate looks back over; before half of them have passed there is none."""

MONTH = 31
"""Sessions that an estimate is old at most."""

FACTORS = 20
"""Factors behind the features: Avellaneda and Lee take 15, or what explains about half of the variance."""

FIRMS_PER_FACTOR = 4
"""An estimate keeps at most one factor for so many firms: eight firms have no five common causes."""

_OUTLIER = 4.0  # standard deviations at which a return is cut off before it says what is common
_FLAT = 1e-5  # a fraction a day: a firm that moves less than that shares nothing with the others


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Loadings from one month on.

    Attributes
    ----------
    start
        First session that they are used on; they come from the `WINDOW` sessions before it.
    firms_L
        Columns of the panel that have loadings.
    deviation_L
        Standard deviation of their returns, a fraction a day.
    loadings_LK
        Of returns over their standard deviation, orthonormal, the strongest factor first.
    """

    start: int
    firms_L: IntArray
    deviation_L: FloatArray
    loadings_LK: FloatArray


def statistical_factors(panel: Panel, count: int) -> tuple[Estimate, ...]:
    """Estimate the factors of each month.

    Parameters
    ----------
    panel : Panel
        The data.
    count : int
        Factors, at least 1; fewer where there are fewer than `FIRMS_PER_FACTOR` firms for each.

    Returns
    -------
    tuple of Estimate
        By rising start. None for the months before half a window of sessions has passed.

    Notes
    -----
    A firm takes part with returns on at least half of the window's sessions; a missing return counts as its
    mean, and returns are cut off at four standard deviations. An estimate is a function of the rows
    ``start-252..start-1``.
    """
    if count < 1:
        msg = f"The number of statistical factors must be at least 1, not {count}."
        raise ValueError(msg)

    def estimate() -> tuple[Estimate, ...]:
        r_TN = daily_return(panel)
        month_T = panel.dates_T.astype("datetime64[M]")
        starts = np.flatnonzero(month_T[1:] != month_T[:-1]) + 1
        every = (_estimate(r_TN, int(start), count) for start in starts if start >= WINDOW // 2)
        return tuple(one for one in every if one is not None)

    return cached(panel, (statistical_factors, count), estimate)


def _estimate(r_TN: FloatArray, start: int, count: int) -> Estimate | None:
    r_WN = r_TN[max(0, start - WINDOW) : start]
    live_N = np.isfinite(r_WN).sum(axis=0) >= max(2, len(r_WN) // 2)
    firms_L = np.flatnonzero(live_N)
    r_WL = r_WN[:, firms_L]
    deviation_L = np.nanstd(r_WL, axis=0)
    moving_L = deviation_L > _FLAT
    firms_L, r_WL, deviation_L = firms_L[moving_L], r_WL[:, moving_L], deviation_L[moving_L]
    kept = min(count, len(firms_L) // FIRMS_PER_FACTOR)
    if not kept:
        return None
    z_WL = (r_WL - np.nanmean(r_WL, axis=0)) / deviation_L
    z_WL = np.clip(np.nan_to_num(z_WL, nan=0.0), -_OUTLIER, _OUTLIER)
    # the W x W side of the singular value decomposition is the smaller one
    values_W, vectors_WW = np.linalg.eigh(z_WL @ z_WL.T)
    loadings_LK = z_WL.T @ vectors_WW[:, : -kept - 1 : -1] / np.sqrt(values_W[: -kept - 1 : -1])
    return Estimate(start, firms_L, deviation_L, loadings_LK)


def residualise_factors(
    values_TN: FloatArray, inside_TN: BoolArray, estimates: tuple[Estimate, ...]
) -> FloatArray:
    r"""Take from the returns of each date what the factors explain of them.

    ``e = y - a - S Q f`` with ``a, f`` minimising ``sum(((y - a) / s - Q f)^2)``: a regression across the
    date's firms on their loadings Q, in units of each firm's standard deviation s, with an intercept.

    Parameters
    ----------
    values_TN : ndarray of shape (T, N)
        Returns; NaN is unknown.
    inside_TN : ndarray of bool, shape (T, N)
        The firms that count.
    estimates : tuple of Estimate
        By rising start; a date uses the last that has started.

    Returns
    -------
    ndarray of shape (T, N)
        Returns beyond the factors; NaN outside, where the return is unknown, where the firm has no loadings,
        and on dates before the first estimate or with fewer than two firms for each number estimated.
    """
    require_shape("the firms that count", inside_TN, values_TN.shape)
    out_TN = np.full(values_TN.shape, np.nan)
    ends = [*(one.start for one in estimates[1:]), len(values_TN)]
    for one, end in zip(estimates, ends, strict=False):
        # columns of the regression: the intercept, then the loadings
        columns_LK = np.column_stack((1.0 / one.deviation_L, one.loadings_LK))
        for t in range(one.start, end):
            y_L = values_TN[t, one.firms_L]
            known_L = inside_TN[t, one.firms_L] & np.isfinite(y_L)
            if known_L.sum() < 2 * columns_LK.shape[1]:
                continue
            columns_nK, deviation_n, y_n = columns_LK[known_L], one.deviation_L[known_L], y_L[known_L]
            z_n = np.clip(y_n / deviation_n, -_OUTLIER, _OUTLIER)
            gram_KK = columns_nK.T @ columns_nK
            size_K = np.sqrt(np.diag(gram_KK))
            size_K[size_K == 0] = 1.0
            inverse_KK = np.linalg.pinv(gram_KK / np.outer(size_K, size_K), rcond=1e-10, hermitian=True)
            f_K = inverse_KK @ (columns_nK.T @ z_n / size_K) / size_K
            out_TN[t, one.firms_L[known_L]] = y_n - deviation_n * (columns_nK @ f_K)
    return out_TN


def factor_residual(panel: Panel, count: int) -> FloatArray:
    """Compute each day's return beyond ``count`` statistical factors, over the firms that traded.

    Parameters
    ----------
    panel : Panel
        The data, or a tile of them (`features.panel.tiles`): the factors are those of all firms behind it.
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
        return residualise_factors(r_TN, np.isfinite(r_TN), statistical_factors(full, count))

    e_TN = cached(full, (factor_residual, count), compute)
    return e_TN if panel is full else e_TN[:, np.searchsorted(full.tickers_N, panel.tickers_N)]
