"""Forward adjustment for splits and dividends, and the total return index through halts and delistings.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import numpy as np

from features.arithmetic.rolling import carry
from features.arrays import FloatArray


def forward_factor(close_TN: FloatArray, split_TN: FloatArray, dividend_TN: FloatArray) -> FloatArray:
    r"""Compute the forward adjustment ``F_t = prod_{s<=t} split_s (1 + dividend_s / close_s)``.

    Backward adjustment rewrites past prices at every new event, so yesterday's adjusted price would depend
    on tomorrow's dividend. Forward adjustment multiplies from the first session on: row t depends only on
    rows <= t, to the bit, and returns are the same.

    A dividend is per share after that day's split and is reinvested at the close of its ex-date. If the firm
    does not trade on the ex-date, the dividend is reinvested at the next close, divided by any splits in
    between.

    Parameters
    ----------
    close_TN : ndarray of shape (T, N)
        Raw closes; NaN = no trade.
    split_TN : ndarray of shape (T, N)
        New shares per old share on the ex-date, 1 otherwise.
    dividend_TN : ndarray of shape (T, N)
        Cash per share on the ex-date, 0 otherwise.

    Returns
    -------
    ndarray of shape (T, N)
        The factor; 1 before the first event.
    """
    step_TN = split_TN.copy()
    waiting_N = np.zeros(close_TN.shape[1])
    for t in range(len(close_TN)):
        waiting_N = waiting_N / split_TN[t] + dividend_TN[t]
        if waiting_N.any():
            traded_N = ~np.isnan(close_TN[t])
            paid_N = traded_N & (waiting_N > 0)
            step_TN[t, paid_N] *= 1.0 + waiting_N[paid_N] / close_TN[t, paid_N]
            waiting_N[traded_N] = 0.0
    factor_TN: FloatArray = np.multiply.accumulate(step_TN, axis=0)
    return factor_TN


def total_return_index(close_TN: FloatArray, value_ratio_TN: FloatArray) -> FloatArray:
    """Compute the total return index: the value of one share through halts and delistings.

    Parameters
    ----------
    close_TN : ndarray of shape (T, N)
        Forward-adjusted closes; NaN = no trade.
    value_ratio_TN : ndarray of shape (T, N)
        Value of a share without a price, as a fraction of its last price
        (`features.panel.delistings.find_delistings`).

    Returns
    -------
    ndarray of shape (T, N)
        The adjusted close; during a halt the last close; after a delisting the constant
        ``last * (1 + delisting return)``. NaN before the first price and where the value is unknown. Row t
        depends only on rows <= t.
    """
    return np.where(np.isnan(close_TN), carry(close_TN) * value_ratio_TN, close_TN)
