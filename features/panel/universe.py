"""The universe: the firms that may be forecast and held at t, selected with what is known at t.

Shape suffixes: T sessions, N firms.
"""

from typing import Literal

import numpy as np
import polars as pl
from pydantic import Field

from features.arrays import BoolArray, DateArray
from features.options import Options
from features.panel.asof import spans
from features.panel.derived import median_dollar_volume
from features.panel.panel import Panel

Schedule = Literal["daily", "weekly", "monthly", "quarterly"]


def decision_sessions(dates_T: DateArray, schedule: Schedule) -> BoolArray:
    """Flag the sessions on which forecasts are made: all, or the first of each week, month or quarter.

    The first session is used because only the next session reveals which session was a period's last.

    Known at the close of t. Weeks start on Monday. The panel's first session counts only for ``daily``,
    because it is unknown whether it is the first of its period.

    Examples
    --------
    >>> decision_sessions(np.arange("2024-01-30", "2024-02-03", dtype="datetime64[D]"), "monthly")
    array([False, False,  True, False])
    """
    decides_T = np.ones(len(dates_T), dtype=np.bool_)
    if schedule != "daily":
        day_T = dates_T.astype("datetime64[D]").astype(np.int64)
        month_T = dates_T.astype("datetime64[M]").astype(np.int64)
        week_T = (day_T + 3) // 7  # day 0, 1970-01-01, was a Thursday
        period_T = {"weekly": week_T, "monthly": month_T, "quarterly": month_T // 3}[schedule]
        decides_T = np.diff(period_T, prepend=period_T[:1]) > 0
    return decides_T


class UniverseRule(Options):
    """Conditions that a firm must meet at the close of ``t``, decided with what is known then.

    Examples
    --------
    >>> UniverseRule(min_price=5.0, min_history=20).min_price
    5.0
    """

    min_price: float | None = Field(default=None, ge=0)
    """Minimum raw (unadjusted) close at ``t``, in the price's currency. Null: no limit."""
    min_dollar_volume: float | None = Field(default=None, ge=0)
    """Minimum trailing median of raw close times volume, in the price's currency per session. Null:
    no limit."""
    dollar_volume_window: int = Field(default=63, ge=1)
    """Number of sessions of the trailing median for ``min_dollar_volume``; half of them must be known."""
    min_history: int = Field(default=60, ge=1)
    """Minimum number of sessions with a price, ``t`` included."""


def universe(panel: Panel, rule: UniverseRule, membership: pl.DataFrame | None = None) -> BoolArray:
    """Select the universe of every session, known at the close of t; causal to the bit.

    A firm belongs to the universe at t if all of these hold: it traded at t; its raw close is at least
    ``min_price``; its trailing median dollar volume is at least ``min_dollar_volume`` (not applied if the
    panel has no volume, see `universe_messages`); it has at least ``min_history`` sessions with a price up to
    t; and it is a member. Events after t have no effect: a firm that is delisted tomorrow is in the universe
    today. ``membership`` has rows of one universe with columns ticker, from_date, to_date. A firm is a member
    while ``from_date <= t < to_date``; a null leaves that side open. Firms without a row are never members.
    ValueError if it has rows of more than one universe.
    """
    traded_TN = ~np.isnan(panel.close_TN)
    member_TN = traded_TN & (np.cumsum(traded_TN, axis=0) >= rule.min_history)
    if rule.min_price is not None:
        member_TN &= panel.raw_close_TN >= rule.min_price
    if rule.min_dollar_volume is not None and panel.volume_TN is not None:
        median_TN = median_dollar_volume(panel, rule.dollar_volume_window)
        member_TN &= median_TN >= rule.min_dollar_volume
    if membership is not None:
        member_TN &= members(membership, panel.dates_T, panel.tickers_N)
    return member_TN


def universe_messages(panel: Panel, rule: UniverseRule) -> tuple[str, ...]:
    """List the limits of the rule that cannot be applied to these data, one sentence each."""
    if rule.min_dollar_volume is not None and panel.volume_TN is None:
        return (
            f"min_dollar_volume ({rule.min_dollar_volume:,.0f}) is not applied: the data have no volume.",
        )
    return ()


def members(membership: pl.DataFrame, dates_T: DateArray, tickers_N: tuple[str, ...]) -> BoolArray:
    """Return the members of every session, as in `universe`."""
    if "universe" in membership.columns and membership["universe"].n_unique() > 1:
        names = ", ".join(map(str, membership["universe"].unique().sort()))
        raise ValueError(f"The membership table has several universes ({names}): filter it to one.")
    rows = membership.filter(pl.col("ticker").is_in(tickers_N))
    member_TN = np.zeros((len(dates_T), len(tickers_N)), dtype=np.bool_)
    for n, first, until in spans(rows, "from_date", "to_date", dates_T, tickers_N):
        member_TN[first:until, n] = True
    return member_TN
