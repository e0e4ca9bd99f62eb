"""Series that the checks of the data compare: inputs, returns, volume, and their news.

The news of a series is what its own past does not say: the residual of a regression on its earlier values.

Shape suffixes: T sessions, N firms, L lags.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from features.arrays import FloatArray
from features.panel.derived import daily_return
from pipelines.audit.subject import Subject
from pipelines.dataset.market import to_panel

TAIL = 5.0
"""Deviations at which a value is clipped, in units of 1.4826 median absolute deviations. A bad tick that is
reversed on the next session must not look like a forecast."""
_ROUNDING = 1e-6
"""Size of a residual, relative to the changes, below which it is rounding: a firm's age has no news."""
_SMOOTH = 0.7
"""Autocorrelation above which a residual is a curve, such as that of the logarithm of an age, and no news."""
_COMMON = 0.9
_LARGEST = 0.6
"""Largest |log return| that is taken for a return."""
_STRAIGHT = 1e-3
"""Change of the slope, relative to the mean slope, below which a line is straight: files are rounded."""
_PIECE = 128


def input_values(subject: Subject, name: str) -> FloatArray:
    """Values [T, N] of an input as delivered; NaN = not known."""
    rows = subject.tables["inputs"].filter(pl.col("name") == name)
    return to_panel(rows, "value", subject.dataset.panel)


def residual_returns(subject: Subject) -> FloatArray:
    """Daily returns [T, N] less their mean over the firms of the date; NaN without a return or with an error.

    Moves beyond -45% and +82% are left out. Nearly all are prices of another firm, bad ticks, or splits that
    were not recorded, and they repeat: a flag of large moves would seem to know the jump back.
    """
    return_TN = daily_return(subject.dataset.panel)
    with np.errstate(divide="ignore", invalid="ignore"):
        usual_TN = np.abs(np.log1p(return_TN)) <= _LARGEST
    return demeaned(np.where(usual_TN, return_TN, np.nan))


def demeaned(x_TN: FloatArray) -> FloatArray:
    """Subtract the mean over the firms of a date."""
    known_TN = np.isfinite(x_TN)
    total_T1 = np.where(known_TN, x_TN, 0.0).sum(axis=1, keepdims=True)
    return np.asarray(x_TN - total_T1 / np.maximum(known_TN.sum(axis=1, keepdims=True), 1))


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
        middle = np.nanmedian(held, axis=0)
        off = np.abs(held - middle)
        size = 1.4826 * np.nanmedian(off, axis=0)
        deviation = np.sqrt(np.nanmean(off**2, axis=0))
        # a series that is mostly constant has no median deviation: its moves keep their sizes
        size = np.where(size > 1e-3 * deviation, size, deviation)
        scaled = np.clip((held - middle) / np.where(size > 0, size, np.inf), -TAIL, TAIL)
        place = np.zeros((len(part), int(some.sum())))
        np.copyto(place, scaled, where=np.isfinite(scaled))
        out_TN[:, start : start + _PIECE][:, some] = place
    return out_TN


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
    change_TN = np.full(x_TN.shape, np.nan)
    change_TN[1:] = np.diff(x_TN, axis=0)
    moved_TN = np.isfinite(change_TN) & (change_TN != 0)
    known_N = np.isfinite(change_TN).sum(axis=0)
    still_N = (known_N > 0) & (moved_TN.sum(axis=0) < 0.5 * known_N)
    return np.where(still_N, clipped(np.where(moved_TN, change_TN, np.nan)), np.nan)


def kinks(x_TN: FloatArray) -> FloatArray:
    """Return scaled changes of the slope of firms whose value mostly moves on straight lines; NaN elsewhere.

    The news of a value that was interpolated between dates are the changes of its slope. If the line leads to
    a value that was not known yet, they correlate with the returns of the whole line.
    """
    slope_TN = np.full(x_TN.shape, np.nan)
    slope_TN[1:] = np.diff(x_TN, axis=0)
    bend_TN = np.full(x_TN.shape, np.nan)
    bend_TN[1:] = np.diff(slope_TN, axis=0)
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

    Parameters
    ----------
    x_TN
        Values; NaN = not known.
    lags
        Number of earlier values.

    Returns
    -------
    ndarray of shape (T, N)
        Residuals, clipped (`clipped`); 0 where a value of the regression is unknown, and for firms without
        news: a series that is a smooth curve of time.
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


def _persistence(x_TN: FloatArray) -> FloatArray:
    """First autocorrelation per firm; 0 marks an unknown value."""
    product_N, square_N = (x_TN[1:] * x_TN[:-1]).sum(axis=0), (x_TN**2).sum(axis=0)
    return np.asarray(product_N / np.maximum(square_N, 1e-300))
