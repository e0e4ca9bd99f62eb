"""How each firm's price history ends: still trading, delisted, assumed delisted, or fate unknown.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from features.arrays import BoolArray, DateArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class EndingRule:
    """What to assume where no delisting, or no delisting return, is recorded.

    Attributes
    ----------
    stale_sessions : int
        Prices that stop more sessions than this before the panel's end are taken as a delisting.
    default_return : float
        Delisting return of a firm off Nasdaq (Shumway 1997).
    nasdaq_return : float
        Delisting return of a firm on Nasdaq (Shumway and Warther 1999).
    """

    stale_sessions: int
    default_return: float
    nasdaq_return: float


@dataclass(frozen=True, slots=True, eq=False)
class Endings:
    """The end of every firm's prices.

    Attributes
    ----------
    last_N : ndarray of int, shape (N,)
        Last session with a price; -1 without one.
    delisted_N : ndarray of int, shape (N,)
        The same for delisted firms, T for the others.
    return_N : ndarray of shape (N,)
        Delisting return; NaN for firms that are not delisted.
    hazards : tuple of str
        What was assumed, one sentence each.
    """

    last_N: IntArray
    delisted_N: IntArray
    return_N: FloatArray
    hazards: tuple[str, ...]


def find_endings(
    traded_TN: BoolArray,
    dates_T: DateArray,
    tickers_N: tuple[str, ...],
    securities: pl.DataFrame | None,
    rule: EndingRule,
) -> Endings:
    """Decide how each firm's prices end.

    A firm is delisted if ``delisted_on`` is recorded and lies within the panel, or if nothing is recorded
    and its prices stop more than ``rule.stale_sessions`` before the end. A firm that misses the last sessions
    otherwise has an unknown fate.

    Parameters
    ----------
    traded_TN : ndarray of bool, shape (T, N)
        Whether there is a price.
    dates_T : ndarray of datetime64[D], shape (T,)
        Sessions.
    tickers_N : tuple of str
        Firms.
    securities : polars.DataFrame or None
        Columns ticker, valid_from, delisted_on, delisting_return, exchange; each one's last value counts.
    rule : EndingRule
        Assumptions where nothing is recorded.

    Returns
    -------
    Endings
        Sessions, returns and the sentences on what was assumed.
    """
    T, N = traded_TN.shape
    last_N = np.where(traded_TN.any(axis=0), T - 1 - np.argmax(traded_TN[::-1], axis=0), -1)
    recorded_N, return_N, nasdaq_N = (
        np.zeros(N, dtype=np.bool_),
        np.full(N, np.nan),
        np.zeros(N, dtype=np.bool_),
    )
    if securities is not None:
        slots = {ticker: i for i, ticker in enumerate(tickers_N)}
        columns = ("delisted_on", "delisting_return", "exchange")
        known = (
            securities.sort("valid_from", nulls_last=False)
            .group_by("ticker")
            .agg(pl.col(name).drop_nulls().last() for name in columns)
        )
        for ticker, day, paid, exchange in known.select("ticker", *columns).iter_rows():
            if ticker in slots:
                i = slots[ticker]
                recorded_N[i] = day is not None and np.datetime64(day, "D") <= dates_T[-1]
                return_N[i] = np.nan if paid is None else paid
                nasdaq_N[i] = exchange is not None and "nasdaq" in exchange.lower()
    assumed_N = ~recorded_N & (last_N >= 0) & (T - 1 - last_N > rule.stale_sessions)
    ended_N = (recorded_N | assumed_N) & (last_N >= 0)
    default_N = np.where(nasdaq_N, rule.nasdaq_return, rule.default_return)
    defaulted_N = ended_N & np.isnan(return_N)
    unknown_N = ~ended_N & (last_N < T - 1)
    terms = f"({rule.default_return:.0%}, on Nasdaq {rule.nasdaq_return:.0%})"
    return Endings(
        last_N=last_N,
        delisted_N=np.where(ended_N, last_N, T),
        return_N=np.where(ended_N, np.where(np.isnan(return_N), default_N, return_N), np.nan),
        hazards=tuple(
            f"{count:,} {sentence}"
            for count, sentence in (
                (
                    int(assumed_N.sum()),
                    f"firm(s) have prices that stop more than {rule.stale_sessions} sessions before the "
                    "end and no recorded delisting: taken as delisted.",
                ),
                (
                    int(defaulted_N.sum()),
                    f"delisting(s) have no recorded return: the default is paid {terms}.",
                ),
                (
                    int(unknown_N.sum()),
                    "firm(s) miss the last sessions: their fate and last labels are unknown.",
                ),
            )
            if count
        ),
    )
