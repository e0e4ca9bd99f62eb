"""The decisions of a book on a panel, and what they can buy while some positions cannot be sold.

Shape suffixes: T sessions, N firms.
"""

import datetime as dt
import hashlib
from dataclasses import replace

import numpy as np

from backtest.books.book import (
    Book,
    BookInputs,
    BookNote,
    BookTargets,
    LimitUse,
    PastReturns,
    spread_over_sessions,
)
from backtest.books.schedules import Schedule, calendar, every_session
from features.arithmetic.rolling import rolling_std
from features.arrays import BoolArray, DateArray, FloatArray, IntArray
from features.panel.cleaned import as_known, not_yet_known
from features.panel.derived import cached, daily_return
from features.panel.panel import Panel

BETA_SESSIONS = 252
VOLATILITY_SESSIONS = 63


def book_targets(
    book: Book,
    signal_TN: FloatArray,
    panel: Panel,
    held: slice,
    horizon: int,
    *,
    schedule: Schedule | None = None,
    last_N: FloatArray | None = None,
) -> BookTargets:
    """Decide the target weights of a configured book on the sessions of ``held``, known at the close of each.

    ``signal_TN`` is the signal on all sessions of the panel, at the close of t; NaN where there is none. At
    least one session of ``held`` has a signal. Betas are slopes on the mean return of all firms over
    `BETA_SESSIONS` sessions, and volatilities are over `VOLATILITY_SESSIONS`; both need half of these
    sessions. The definitions are those of the characteristics ``beta_252`` and ``volatility_63``, but betas,
    volatilities and past returns leave out the wrong rows that are known at the close. Decisions overlap for
    ``horizon`` sessions, that of the label. ``schedule`` names the sessions of ``held`` on which the book
    decides; by default those of its settings. ``last_N`` is the decision before ``held``; None if there is
    none. ValueError if the book needs more firms than there are.
    """

    def decide(held: slice) -> BookTargets:
        when = schedule or book_schedule(book, panel.dates_T, held)
        return book.targets(_inputs(book, when, signal_TN, panel, held, last_N, horizon))

    if schedule is not None or book.kind != "optimised":
        return decide(held)
    # An optimised book takes minutes. Every delay and scenario of an evaluation trades the same decisions, on
    # ranges of sessions that differ only after the last signal.
    signals_T = np.isfinite(signal_TN[held]).any(axis=1)
    asked = slice(held.start, held.start + int(np.flatnonzero(signals_T)[-1]) + 1)

    def decisions() -> tuple[FloatArray, IntArray, tuple[BookNote, ...]]:
        targets = decide(asked)
        session_D = np.flatnonzero(~np.isnan(targets.target_TN).any(axis=1))
        return targets.target_TN[session_D], session_D, targets.notes

    signal = hashlib.sha256(np.ascontiguousarray(signal_TN[asked]).tobytes()).digest()
    key = (book_targets, book, horizon, asked.start, signal)
    weight_DN, session_D, notes = cached(panel, key, decisions)
    decides_T = np.zeros(held.stop - held.start, dtype=np.bool_)
    decides_T[session_D] = True
    return BookTargets(spread_over_sessions(weight_DN, decides_T), notes)


def last_limit_uses(  # noqa: PLR0917  # the arguments of book_targets
    book: Book,
    signal_TN: FloatArray,
    panel: Panel,
    held: slice,
    target_TN: FloatArray,
    last_N: FloatArray | None = None,
) -> tuple[LimitUse, ...]:
    """Measure the decision in the last row of ``target_TN`` of `book_targets` by the book's limits."""
    schedule = every_session(len(target_TN))  # neither the schedule nor the horizon matters to the last one
    return book.limit_uses(_inputs(book, schedule, signal_TN, panel, held, last_N), target_TN)


def _past_returns(panel: Panel, held: slice) -> PastReturns:
    """Returns of sessions; a window of them leaves out the wrong prices that are known at its last close."""
    return_TN = as_known(panel, daily_return, hindsight=True)
    past = PastReturns(return_TN[: held.stop], held.start, panel.periods_per_year)
    if not len(panel.wrong.session_K):
        return past
    return replace(past, delivered_SN=daily_return(panel), not_known_SN=not_yet_known(panel))


def _inputs(  # noqa: PLR0917  # the arguments of book_targets
    book: Book,
    schedule: Schedule,
    signal_TN: FloatArray,
    panel: Panel,
    held: slice,
    last_N: FloatArray | None,
    horizon: int = 1,
) -> BookInputs:
    past = None
    if "returns" in book.needs:
        past = _past_returns(panel, held)
    risk = None
    if "risk" in book.needs:
        from backtest.risk import characteristic_risk  # imports the feature library

        risk = characteristic_risk(panel).since(held.start)

    def volatility() -> FloatArray:
        window, half = VOLATILITY_SESSIONS, (VOLATILITY_SESSIONS + 1) // 2
        return as_known(panel, lambda known: rolling_std(daily_return(known), window, half))

    beta_TN = volatility_TN = None
    if "beta" in book.needs:
        from features.library.characteristics.market import known_beta  # imports the feature library

        beta_TN = known_beta(panel, BETA_SESSIONS)[held]
    if "volatility" in book.needs:
        volatility_TN = cached(panel, (book_targets, "volatility"), volatility)[held]
    return BookInputs(
        signal_TN[held],
        schedule,
        group_TN=panel.group_TN[held] if "groups" in book.needs else None,
        beta_TN=beta_TN,
        volatility_TN=volatility_TN,
        past=past,
        risk=risk,
        last_N=last_N,
        horizon=horizon,
    )


def book_schedule(book: Book, dates_T: DateArray, held: slice, following: dt.date | None = None) -> Schedule:
    """Return the sessions of ``held`` on which a configured book may decide.

    ``following`` is the session after the last one of ``dates_T``, by default the next weekday. It tells a
    book that decides at the end of a period whether the last session is one
    (`backtest.books.schedules.calendar`). In a backtest no signal is that late, because its label must be
    known.
    """
    if book.rebalance_on is None:
        return every_session(held.stop - held.start, book.rebalance_every)
    after = None if following is None else np.datetime64(following)
    whole = calendar(dates_T, book.rebalance_on, book.rebalance_every, after)
    return Schedule(whole.turn_T[held], whole.every)


def funded(target_N: FloatArray, absent: float) -> FloatArray:
    """Scale a long-only target down to what can be bought while absent firms keep their value.

    ``absent`` is the weight of the held firms that the data do not have, and that therefore cannot be sold. A
    target of gross weight S becomes one of at most ``max(S, 1) - absent``, so that it borrows no more than it
    asks for. Other targets are returned as they are.

    >>> funded(np.array([0.5, 0.5]), absent=0.2)
    array([0.4, 0.4])
    """
    gross = float(target_N.sum())
    if absent <= 0 or gross <= 0 or target_N.min() < 0:
        return target_N
    return target_N * min(1.0, max(max(gross, 1.0) - absent, 0.0) / gross)


def affordable(target_N: FloatArray, held_N: FloatArray, stuck_N: BoolArray, absent: float) -> FloatArray:
    """Scale down the purchases of a long-only target that blocked sales would have paid for.

    All purchases are scaled by one factor, as `backtest.accounts.accounting` does when it trades. Afterwards
    they cost no more than the cash, the other sales and what the target borrows anyway. Targets with short
    positions are returned as they are, because their short sales pay; so are the targets of the firms that
    are stuck, which cannot be traded. ``absent`` is the weight of further held firms, which the arrays lack.

    >>> half, third = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5])
    >>> affordable(third, half, np.array([True, False, False]), absent=0.0)
    array([0. , 0.5, 0. ])
    """
    if not stuck_N.any() or target_N.min() < 0:
        return target_N
    trade_N = target_N - held_N
    sent_N = np.where(stuck_N, 0.0, trade_N)
    bought, blocked = float(np.maximum(sent_N, 0.0).sum()), -float(np.minimum(trade_N[stuck_N], 0.0).sum())
    cash = 1.0 - absent - float(held_N.sum() + sent_N.sum())
    borrowed = min(1.0 - absent - float(target_N.sum()), 0.0)
    excess = min(borrowed - cash, blocked, bought)
    if excess <= 0.0:
        return target_N
    return np.where(sent_N > 0.0, held_N + trade_N * (1.0 - excess / bought), target_N)
