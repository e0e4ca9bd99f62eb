"""The profile of a signal: its correlations with the returns of single sessions before and after its date.

What a signal computed from the past knows of returns ends at its date. The profile shows where it ends.

How large the correlation of an honest signal can be: a daily IC of 0.15 forecasts 2% of the variance of
single-session returns. With 300 firms and daily trades that is a Sharpe ratio above 20 before costs (Grinold
1989: the square root of breadth times the IC). The best published daily signals have ICs of 0.02 to 0.06, and
the true mean of the simulated market, which no model can beat, 0.08. Longer horizons: the IC of a signal that
never fades grows with the square root of the horizon, that of a signal for one session falls with it. The
ceiling grows with the fourth root, which leaves room for slow signals.

Shape suffixes: T sessions, N firms, D sampled dates of the signal, K lags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from features.arrays import BoolArray, Float32Array, FloatArray, IntArray

MIN_FIRMS: Final = 10
"""Fewest firms of a date that is used."""

_BLOCKS: Final = 20  # a long signal is sampled in blocks of consecutive dates, so that weekdays are even
_LONGEST, _SHORTEST = 40, 15  # dates of a block
_CELLS: Final = 400_000  # sampled cells from which blocks are shorter: broad markets need fewer dates
CEILING: Final = 0.15
"""Mean IC with the return of one session above which a signal is not believed."""

REMARKABLE: Final = 0.10
"""Mean IC with the return of one session above which a person should look."""

_ERRORS = 4.0  # standard errors that an estimate must lie above the ceiling
_HONEST_DEVIATION = 0.15  # of the daily ICs of factor-like signals; guards small samples

_CLIP = 6.0  # mean absolute deviations; one wrong price must not decide a correlation


@dataclass(frozen=True, slots=True, eq=False)
class Standardised:
    """Values in units of their date's mean absolute deviation, clipped; 0 where unknown.

    Attributes
    ----------
    value_DN : ndarray of float32
    known_DN : ndarray of float32
        1 where the value is known, 0 elsewhere.
    """

    value_DN: Float32Array
    known_DN: Float32Array

    def of(self, firms_N: IntArray) -> Standardised:
        """Return some columns."""
        return Standardised(self.value_DN[:, firms_N], self.known_DN[:, firms_N])

    def at(self, rows_D: IntArray) -> Standardised:
        """Return some rows; a row outside the array is unknown."""
        inside_D = (rows_D >= 0) & (rows_D < len(self.value_DN))
        if inside_D.all():
            return Standardised(self.value_DN[rows_D], self.known_DN[rows_D])
        rows_D = np.where(inside_D, rows_D, 0)
        keep_D1 = inside_D[:, None].astype(np.float32)
        return Standardised(self.value_DN[rows_D] * keep_D1, self.known_DN[rows_D] * keep_D1)


def session_returns(index_TN: FloatArray, traded_TN: BoolArray | None = None) -> FloatArray:
    """Returns of single sessions: row t from the close of t-1 to that of t; NaN: unknown.

    Parameters
    ----------
    index_TN : total return index, carried over sessions without a price.
    traded_TN : True where a firm has a price; only returns between two prices are then known. None: a carried
        price earns 0.
    """
    out_TN = np.full(index_TN.shape, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        out_TN[1:] = index_TN[1:] / index_TN[:-1] - 1.0
    if traded_TN is not None:
        out_TN[1:][~(traded_TN[1:] & traded_TN[:-1])] = np.nan
    out_TN[~np.isfinite(out_TN)] = np.nan
    return out_TN


def sample_dates(signal_TN: FloatArray) -> IntArray:
    """Choose the dates of a signal that its profile is computed from, ascending.

    All dates with at least `MIN_FIRMS` firms. If there are many, 20 blocks of 15 to 40 consecutive ones,
    evenly spaced over the whole file.
    """
    firms_T = np.isfinite(signal_TN).sum(axis=1)
    dates_T: IntArray = np.flatnonzero(firms_T >= MIN_FIRMS)
    if not len(dates_T):
        return dates_T
    block = int(np.clip(_CELLS / _BLOCKS / firms_T[dates_T].mean(), _SHORTEST, _LONGEST))
    if len(dates_T) <= _BLOCKS * block:
        return dates_T
    first = np.linspace(0, len(dates_T) - block, _BLOCKS).astype(np.int64)
    return np.unique(dates_T[(first[:, None] + np.arange(block)).ravel()])


def standardise(x_DN: FloatArray) -> Standardised:
    """Centre and scale each date robustly and clip it. A constant date becomes 0."""
    known_DN = np.isfinite(x_DN)
    x_DN = np.where(known_DN, x_DN, 0.0)
    count_D1 = np.maximum(known_DN.sum(axis=1, keepdims=True), 1)
    value_DN = x_DN
    for _ in range(2):  # the second pass centres without the outliers that the first one clipped
        centred_DN = np.where(known_DN, value_DN - value_DN.sum(axis=1, keepdims=True) / count_D1, 0.0)
        scale_D1 = np.abs(centred_DN).sum(axis=1, keepdims=True) / count_D1
        scale_D1[scale_D1 <= 1e-12 * np.abs(x_DN).max(axis=1, keepdims=True, initial=0.0)] = np.inf
        value_DN = np.clip(centred_DN / scale_D1, -_CLIP, _CLIP)
    return Standardised(value_DN.astype(np.float32), known_DN.astype(np.float32))


def correlations(x: Standardised, y: Standardised, axis: int = 1) -> FloatArray:
    """Correlation per date (``axis=1``) or per firm (``axis=0``) over the cells where both are known.

    Returns
    -------
    ndarray of shape (D,) or (N,)
        NaN with fewer than `MIN_FIRMS` cells, or if one side is constant.
    """
    paths = "dn,dn->d" if axis == 1 else "dn,dn->n"

    def total(a_DN: Float32Array, b_DN: Float32Array) -> FloatArray:
        summed: FloatArray = np.einsum(paths, a_DN, b_DN).astype(np.float64)
        return summed

    n = total(x.known_DN, y.known_DN)
    safe = np.maximum(n, 1.0)
    mean_x, mean_y = total(x.value_DN, y.known_DN) / safe, total(x.known_DN, y.value_DN) / safe
    var_x = total(x.value_DN * x.value_DN, y.known_DN) / safe - mean_x**2
    var_y = total(x.known_DN, y.value_DN * y.value_DN) / safe - mean_y**2
    cov = total(x.value_DN, y.value_DN) / safe - mean_x * mean_y
    usable = (n >= MIN_FIRMS) & (var_x > 1e-6) & (var_y > 1e-6)
    out = np.full(n.shape, np.nan)
    out[usable] = cov[usable] / np.sqrt(var_x[usable] * var_y[usable])
    return out


def cumulated(y: Standardised, horizon: int) -> Standardised:
    """Sum of the next ``horizon`` sessions' values at each session; known where the next session is known."""
    total_TN = np.cumsum(y.value_DN, axis=0, dtype=np.float32)
    out_TN, known_TN = np.zeros_like(total_TN), np.zeros_like(total_TN)
    if horizon < len(total_TN):
        out_TN[:-horizon] = total_TN[horizon:] - total_TN[:-horizon]
        known_TN[:-horizon] = y.known_DN[1 : len(total_TN) - horizon + 1]
    return Standardised(out_TN * known_TN, known_TN)


def ceiling(horizon: int) -> float:
    """Highest believable mean IC with the return over ``horizon`` sessions: ``0.15 horizon^(1/4)``."""
    return float(CEILING * horizon**0.25)


def lower_bound(ic_D: FloatArray, overlap: int = 1) -> float:
    """Size that the mean of daily ICs has at least: ``|mean|`` less four standard errors.

    Parameters
    ----------
    ic_D
        Daily ICs; NaN is left out.
    overlap
        Number of consecutive dates whose returns overlap, which have that many times fewer independent ICs.

    Returns
    -------
    float
        Negative if the mean may be zero; NaN without a date.
    """
    known = ic_D[~np.isnan(ic_D)]
    if not len(known):
        return float("nan")
    deviation = max(float(known.std(ddof=1)) if len(known) > 1 else 0.0, _HONEST_DEVIATION)
    independent = max(len(known) / overlap, 1.0)
    return abs(float(known.mean())) - _ERRORS * deviation / float(np.sqrt(independent))


def mean_of(ic_D: FloatArray) -> float:
    """Mean of the known ICs; NaN if there are none."""
    known = ic_D[~np.isnan(ic_D)]
    return float(known.mean()) if len(known) else float("nan")
