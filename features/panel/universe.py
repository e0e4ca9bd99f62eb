"""The universe: which firms may be forecast and held at t, decided with what is known at t.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from features.arrays import BoolArray, DateArray
from features.panel.derived import median_dollar_volume
from features.panel.panel import Panel

Schedule = Literal["daily", "weekly", "monthly", "quarterly"]


def decision_sessions(dates_T: DateArray, schedule: Schedule) -> BoolArray:
    """Tell on which sessions forecasts are made: all, or the first of every week, month or quarter.

    The first and not the last: that a session is a period's last is known from the next one alone.

    Parameters
    ----------
    dates_T : ndarray of datetime64[D], shape (T,)
        Sessions, sorted.
    schedule : {"daily", "weekly", "monthly", "quarterly"}
        Weeks start on Monday.

    Returns
    -------
    ndarray of bool, shape (T,)
        Known at the close of t. The panel's first session counts for ``daily`` alone: whether it is its
        period's first is not known.
    """
    decides_T = np.ones(len(dates_T), dtype=np.bool_)
    if schedule != "daily":
        day_T = dates_T.astype("datetime64[D]").astype(np.int64)
        month_T = dates_T.astype("datetime64[M]").astype(np.int64)
        week_T = (day_T + 3) // 7  # day 0, 1970-01-01, was a Thursday
        period_T = {"weekly": week_T, "monthly": month_T, "quarterly": month_T // 3}[schedule]
        decides_T = np.diff(period_T, prepend=period_T[:1]) > 0
    return decides_T


@dataclass(frozen=True, slots=True)
class UniverseRule:
    """What a firm must fulfil at the close of t.

    Attributes
    ----------
    min_price : float or None
        Least raw close, in the price's currency; None for no limit.
    min_dollar_volume : float or None
        Least trailing median of raw close times volume, in currency a day; None for no limit.
    dollar_volume_window : int
        Sessions of that median; half of them must be known.
    min_history : int
        Least number of sessions with a price, t included.
    """

    min_price: float | None = None
    min_dollar_volume: float | None = None
    dollar_volume_window: int = 63
    min_history: int = 60

    def __post_init__(self) -> None:
        if self.dollar_volume_window < 1 or self.min_history < 1:
            msg = (
                f"A universe needs dollar_volume_window >= 1 and min_history >= 1, not "
                f"{self.dollar_volume_window} and {self.min_history}."
            )
            raise ValueError(msg)


def universe(panel: Panel, rule: UniverseRule, membership: pl.DataFrame | None = None) -> BoolArray:
    """Decide the universe of every session.

    A firm is in at t if it traded at t, its raw close is at least ``min_price``, its trailing median dollar
    volume at least ``min_dollar_volume`` (not asked for if the panel has no volume: see
    `universe_messages`), it has at least ``min_history`` priced sessions up to t, and it is a member. What
    happens after t plays no role: a firm that is delisted tomorrow is in today.

    Parameters
    ----------
    panel : Panel
        The data.
    rule : UniverseRule
        The limits.
    membership : polars.DataFrame, optional
        One universe's rows, columns ticker, from_date, to_date; a member on ``from_date <= t < to_date``
        (null: open). Firms without a row are never members.

    Returns
    -------
    ndarray of bool, shape (T, N)
        Known at the close of t, causal to the bit.

    Raises
    ------
    ValueError
        If ``membership`` holds rows of more than one universe.
    """
    traded_TN = ~np.isnan(panel.close_TN)
    member_TN = traded_TN & (np.cumsum(traded_TN, axis=0) >= rule.min_history)
    if rule.min_price is not None:
        member_TN &= panel.raw_close_TN >= rule.min_price
    if rule.min_dollar_volume is not None and panel.volume_TN is not None:
        median_TN = median_dollar_volume(panel, rule.dollar_volume_window)
        member_TN &= median_TN >= rule.min_dollar_volume
    if membership is not None:
        member_TN &= _members(membership, panel.dates_T, panel.tickers_N)
    return member_TN


def universe_messages(panel: Panel, rule: UniverseRule) -> tuple[str, ...]:
    """Say which limits of the rule these data cannot answer, one sentence each."""
    if rule.min_dollar_volume is not None and panel.volume_TN is None:
        return (
            f"The limit min_dollar_volume = {rule.min_dollar_volume:,.0f} is not applied: no volume here.",
        )
    return ()


def _members(membership: pl.DataFrame, dates_T: DateArray, tickers_N: tuple[str, ...]) -> BoolArray:
    if "universe" in membership.columns and membership["universe"].n_unique() > 1:
        names = ", ".join(map(str, membership["universe"].unique().sort()))
        msg = f"The membership table holds several universes ({names}): filter it to one."
        raise ValueError(msg)
    slots = {ticker: i for i, ticker in enumerate(tickers_N)}
    member_TN = np.zeros((len(dates_T), len(tickers_N)), dtype=np.bool_)
    for ticker, start, end in membership.select("ticker", "from_date", "to_date").iter_rows():
        if ticker in slots:
            first = 0 if start is None else np.searchsorted(dates_T, np.datetime64(start, "D"), side="left")
            until = (
                len(dates_T)
                if end is None
                else np.searchsorted(dates_T, np.datetime64(end, "D"), side="left")
            )
            member_TN[first:until, slots[ticker]] = True
    return member_TN
