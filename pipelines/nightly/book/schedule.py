"""Whether a book decides tonight: the sessions of its schedule, and the decisions that nights recorded.

Which session is the last of a month is known when the next session is known. A night that was told of a
session which did not come (a holiday, a typhoon) waited for it; the decision is then made by the next night.

Shape suffix: T sessions.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np
import polars as pl

from backtest.books.schedules import periods
from features.arrays import DateArray, IntArray
from pipelines.config.books import BookConfig
from pipelines.results.books import book_schedule


@dataclass(frozen=True, slots=True)
class Due:
    """A decision that is to be made tonight.

    Attributes
    ----------
    session
        Session of the schedule that it belongs to: tonight, or an earlier one whose decision was missed.
    late
        Whether it was missed.
    """

    session: dt.date
    late: bool


def schedule_text(book: BookConfig) -> str:
    """Name the schedule of a book.

    >>> from pipelines.config.books import TopKBookConfig
    >>> schedule_text(TopKBookConfig(kind="top_k_long_only", rebalance_on="month_end", rebalance_every=2))
    'month end, one in 2'
    """
    if book.rebalance_on is None:
        return "every session" if book.rebalance_every == 1 else f"every {book.rebalance_every} sessions"
    every = "" if book.rebalance_every == 1 else f", one in {book.rebalance_every}"
    return f"{book.rebalance_on.replace('_', ' ')}{every}"


def decision_due(
    book: BookConfig, dates_T: DateArray, following: dt.date, accounts: pl.DataFrame
) -> Due | None:
    """Return the decision that tonight has to make; None if there is none.

    Sessions count from the first night that followed this schedule, and every ``rebalance_every``-th of them
    from the first decision, as in a backtest (`backtest.books.schedules.Schedule`). A session is served by
    the night that decided for it or kept the book. After one that refused, for lack of signals, the next
    night decides. A period is served by a night that decided in it, because an unexpected session after
    its end does not make a second decision.

    Parameters
    ----------
    book
        Settings of the book.
    dates_T
        Sessions of the data up to tonight.
    following
        The session that is expected after tonight.
    accounts
        Rows of the table ``accounts`` of the earlier nights, the newest last.
    """
    day_T = dates_T.astype("datetime64[D]")
    accounts = _under(schedule_text(book), accounts)
    first = day_T[-1] if accounts.is_empty() else np.datetime64(accounts["session"][0])
    start = int(np.searchsorted(day_T, first))
    turn_T = book_schedule(book, dates_T, slice(0, len(day_T)), following).turn_T
    turns = start + np.flatnonzero(turn_T[start:])
    if not len(turns):
        return None
    period_T: IntArray = (
        np.arange(len(day_T)) if book.rebalance_on is None else periods(day_T, book.rebalance_on)
    )

    def served(due: dt.date) -> int:
        """Number of turns up to that of a session for which a night decided."""
        if book.rebalance_on is None:
            return int(np.searchsorted(day_T[turns], np.datetime64(due), side="right"))
        at = max(int(np.searchsorted(day_T, np.datetime64(due), side="right")) - 1, 0)
        return int(np.searchsorted(period_T[turns], period_T[at], side="right"))

    decided = accounts.filter(pl.col("due").is_not_null() & (pl.col("decision") != "refused"))
    done = served(decided["due"][-1]) if decided.height else 0
    anchor = served(decided["due"][0]) if decided.height else len(turns)
    wanted = anchor + book.rebalance_every * ((len(turns) - anchor) // book.rebalance_every)
    if wanted <= done or wanted < 1:
        return None
    session: dt.date = day_T[turns[wanted - 1]].item()
    return Due(session, late=session < day_T[-1].item())


def _under(schedule: str, accounts: pl.DataFrame) -> pl.DataFrame:
    """Keep the newest nights in a row that followed a schedule."""
    others = (accounts["schedule"] != schedule).arg_true()
    return accounts if others.is_empty() else accounts[int(others[-1]) + 1 :]
