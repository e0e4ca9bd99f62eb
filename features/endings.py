"""What a firm without a price is worth, decided session by session: halted, paid out, or not known.

Nothing here waits to see whether a firm comes back: row t depends on prices and records dated <= t.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import polars as pl

from features.arrays import BoolArray, DateArray, FloatArray
from features.rolling import last_known_index

GAP_SHARE, GAP_FIRMS = 0.25, 10  # a session that so many of the listed firms miss is a gap in the data


@dataclass(frozen=True, slots=True)
class EndingRule:
    """What to assume where no delisting, or no delisting return, is recorded.

    Attributes
    ----------
    stale_sessions : int
        A firm without a price for more sessions than this is taken as delisted from then on.
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
    """What a firm without a price is worth to a holder, at every close.

    Attributes
    ----------
    ended_TN : ndarray of bool, shape (T, N)
        Whether a holder has been paid out in cash by the close of t.
    worth_TN : ndarray of shape (T, N)
        Value as a fraction of the last price: 1, after a delisting 1 + its return, NaN where nobody knows.
    hazards : tuple of str
        What was assumed, one sentence each.
    """

    ended_TN: BoolArray
    worth_TN: FloatArray
    hazards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Records:
    """What the listings say, by firm: (known from, delisting return or NaN) and (known from, on Nasdaq)."""

    delistings: dict[str, list[tuple[np.datetime64, float]]]
    exchanges: dict[str, list[tuple[np.datetime64, bool]]]

    def on_nasdaq(self, ticker: str, day: np.datetime64) -> bool:
        known = [nasdaq for since, nasdaq in self.exchanges.get(ticker, []) if since <= day]
        return bool(known) and known[-1]


def find_endings(
    traded_TN: BoolArray,
    dates_T: DateArray,
    tickers_N: tuple[str, ...],
    securities: pl.DataFrame | None,
    rule: EndingRule,
) -> Endings:
    """Decide what each firm without a price is worth, at every close with what is known then.

    - A recorded delisting pays its return on the first session from ``delisted_on`` on that has no price. A
      price after ``delisted_on`` overrules the record.
    - Without a record, a firm is halted for ``rule.stale_sessions`` sessions and on the next one taken as
      delisted, at the assumed return. If it trades again it is worth its price again, but whoever was paid
      out no longer owns it.
    - Where a quarter, and at least ten, of the listed firms have no price on one session, the data have a
      gap: what the missing ones were worth is not known.

    Parameters
    ----------
    traded_TN : ndarray of bool, shape (T, N)
        Whether there is a price.
    dates_T : ndarray of datetime64[D], shape (T,)
        Sessions.
    tickers_N : tuple of str
        Firms.
    securities : polars.DataFrame or None
        Columns ticker, valid_from, delisted_on, delisting_return, exchange. A delisting and its return are
        known from ``delisted_on`` on, an exchange from ``valid_from`` on.
    rule : EndingRule
        Assumptions where nothing is recorded.

    Returns
    -------
    Endings
        Who has been paid out, what a share is worth, and the sentences on what was assumed.
    """
    T, N = traded_TN.shape
    records = _read(securities)
    ended_TN, worth_TN = np.zeros((T, N), dtype=np.bool_), np.ones((T, N))
    assumed = defaulted = 0
    for n, ticker in enumerate(tickers_N):
        delistings = records.delistings.get(ticker, [])
        traded = [*np.flatnonzero(traded_TN[:, n]).tolist(), T]
        for last, resumes in itertools.pairwise(traded):
            if resumes == last + 1:
                continue
            paid_at, paid, recorded = last + rule.stale_sessions + 1, np.nan, False
            later = [record for record in delistings if record[0] >= dates_T[last]]
            if later:
                at = max(int(np.searchsorted(dates_T, later[0][0])), last + 1)
                if at <= paid_at:
                    paid_at, paid, recorded = at, later[0][1], True
            if paid_at >= resumes:
                continue
            if np.isnan(paid):
                nasdaq = records.on_nasdaq(ticker, dates_T[paid_at])
                paid = rule.nasdaq_return if nasdaq else rule.default_return
                defaulted += recorded
            assumed += not recorded
            ended_TN[paid_at:resumes, n] = True
            worth_TN[paid_at:resumes, n] = 1.0 + paid
    gap_TN = _gaps(traded_TN, rule.stale_sessions) & ~ended_TN
    worth_TN[gap_TN] = np.nan
    terms = f"({rule.default_return:.0%}, on Nasdaq {rule.nasdaq_return:.0%})"
    counted = (
        (
            assumed,
            f"time(s) a firm had no price for more than {rule.stale_sessions} sessions and no recorded "
            f"delisting: taken as delisted from then on {terms}.",
        ),
        (defaulted, f"delisting(s) have no recorded return: the default is paid {terms}."),
        (
            int(gap_TN.any(axis=1).sum()),
            "session(s) have no price for a quarter of the market: labels that end there are unknown for the "
            "missing firms.",
        ),
    )
    return Endings(ended_TN, worth_TN, tuple(f"{count:,} {sentence}" for count, sentence in counted if count))


def _gaps(traded_TN: BoolArray, stale_sessions: int) -> BoolArray:
    """Find the cells without a price on sessions that a large part of the market misses."""
    seen_TN = last_known_index(traded_TN)
    age_TN = np.arange(len(traded_TN))[:, None] - seen_TN
    missing_TN = (seen_TN >= 0) & (age_TN > 0) & (age_TN <= stale_sessions)
    missing_T = missing_TN.sum(axis=1)
    listed_T = missing_T + traded_TN.sum(axis=1)
    gap_T = (missing_T >= GAP_FIRMS) & (missing_T >= GAP_SHARE * listed_T)
    gaps_TN: BoolArray = missing_TN & gap_T[:, None]
    return gaps_TN


def _read(securities: pl.DataFrame | None) -> _Records:
    delistings: dict[str, dict[np.datetime64, float]] = defaultdict(dict)
    exchanges: dict[str, list[tuple[np.datetime64, bool]]] = defaultdict(list)
    if securities is not None:
        columns = ("ticker", "valid_from", "delisted_on", "delisting_return", "exchange")
        rows = securities.sort("valid_from", nulls_last=False).select(columns).iter_rows()
        for ticker, since, day, paid, exchange in rows:
            if day is not None:  # of several rows on one delisting, the latest that gives a return counts
                at = np.datetime64(day, "D")
                delistings[ticker][at] = delistings[ticker].get(at, np.nan) if paid is None else paid
            if exchange is not None:
                known = np.datetime64(since, "D") if since is not None else np.datetime64("0001-01-01", "D")
                exchanges[ticker].append((known, "nasdaq" in exchange.lower()))
    return _Records({ticker: sorted(known.items()) for ticker, known in delistings.items()}, dict(exchanges))
