"""Value of a firm without a price, session by session: halted, delisted (paid out), or unknown.

A delisting is either recorded or presumed after a long time without a price. Row t depends only on prices and
records dated <= t: no decision waits to see whether a firm trades again.

Shape suffixes: T sessions, N firms.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from features.arithmetic.rolling import last_known_index
from features.arrays import BoolArray, DateArray, FloatArray

GAP_SHARE, GAP_FIRMS = 0.25, 10
"""A session is a data gap if this share and this number of listed firms lack a price."""


@dataclass(frozen=True, slots=True)
class DelistingRule:
    """Assumptions where no delisting, or no delisting return, is recorded.

    A merger without a recorded return pays the last price.

    Examples
    --------
    >>> DelistingRule(unknown_return=-0.3).unknown_return
    -0.3
    """

    stale_sessions: int = 20
    """A firm without a price for more sessions than this is presumed delisted, for an unknown reason."""
    performance_return: float = -0.30
    """Return of a delisting for performance on NYSE or AMEX (Shumway 1997)."""
    nasdaq_performance_return: float = -0.55
    """Return of a delisting for performance on Nasdaq (Shumway and Warther 1999)."""
    unknown_return: float = 0.0
    """Return of a delisting whose reason is unknown; 0 pays the last price."""


@dataclass(frozen=True, slots=True, eq=False)
class Delistings:
    """Value of firms without a price to a holder, at every close."""

    delisted_TN: BoolArray  # whether holders have been paid out in cash by the close of t
    # whether that payout uses `DelistingRule.unknown_return`, because no return and no reason is recorded
    unknown_TN: BoolArray
    # value as a fraction of the last price: 1, or 1 + delisting return after a delisting, or NaN if unknown
    value_ratio_TN: FloatArray
    # the assumptions that were used, one sentence each, with the number of delistings concerned
    hazards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Delisting:
    """A recorded delisting, known from its own date."""

    day: np.datetime64
    paid: float | None
    reason: str | None


def find_delistings(
    traded_TN: BoolArray,
    dates_T: DateArray,
    tickers_N: tuple[str, ...],
    securities: pl.DataFrame | None,
    rule: DelistingRule,
    *,
    gap_TN: BoolArray | None = None,
) -> Delistings:
    """Value each firm without a price, at every close, with what is known at that close.

    - A recorded delisting pays out on the first session from ``delisted_on`` on that has no price. It pays
      the recorded return or, without one, the return that `DelistingRule` gives for its reason (no reason
      counts as ``unknown``). A price after ``delisted_on`` overrules the record.
    - Without a record, a firm counts as halted for ``rule.stale_sessions`` sessions. On the next session it
      is presumed delisted for an unknown reason. A record that comes later replaces the presumption from its
      own date on: holders then earn its return (`features.panel.holding`). If the firm trades again,
      it is worth its price again, but holders that were paid out no longer own it. Known gaps are
      not among these sessions.
    - The value is unknown in a known gap. It is unknown as well for the missing firms of a session on which
      at least a quarter of the listed firms, and at least ten, lack a price.

    ``securities`` has the columns ticker, valid_from, delisted_on, delisting_return, delisting_reason
    (merger, performance, unknown or null) and exchange. A delisting with its return and reason is known from
    ``delisted_on`` on, an exchange from ``valid_from`` on. ``gap_TN`` says where the price of a listed firm
    is known to be missing from the data; nowhere by default.

    Examples
    --------
    >>> traded = np.array([[True], [False], [False]])
    >>> dates = np.arange("2024-01-01", "2024-01-04", dtype="datetime64[D]")
    >>> find_delistings(traded, dates, ("A",), None, DelistingRule(stale_sessions=1)).delisted_TN.ravel()
    array([False, False,  True])
    """
    T, N = traded_TN.shape
    gap_TN = np.zeros((T, N), np.bool_) if gap_TN is None else gap_TN
    delistings_of, exchanges_of = _read(securities)
    delisted_TN, unknown_TN, value_ratio_TN = *np.zeros((2, T, N), np.bool_), np.ones((T, N))
    assumed: Counter[str] = Counter()
    for n, ticker in enumerate(tickers_N):
        delistings = delistings_of.get(ticker, [])
        traded = np.append(np.flatnonzero(traded_TN[:, n]), T)
        silent = np.flatnonzero(np.diff(traded) > 1)
        counted = np.append(np.flatnonzero(~gap_TN[:, n]), T)
        for last, resumes in zip(traded[silent].tolist(), traded[silent + 1].tolist(), strict=True):
            after = int(np.searchsorted(counted, last)) + rule.stale_sessions + 1
            presumed = int(counted[min(after, len(counted) - 1)])
            endings: list[tuple[int, _Delisting | None]] = [(presumed, None)]
            later = [known for known in delistings if known.day >= dates_T[last]]
            if later:
                at = max(int(np.searchsorted(dates_T, later[0].day)), last + 1)
                endings = [ending for ending in endings if ending[0] < at] + [(at, later[0])]
            kind = None
            for paid_at, record in endings:  # a presumption, then the record that replaces it
                if paid_at >= resumes:
                    continue
                paid, kind = None if record is None else record.paid, None
                if paid is None:
                    kind = "silence" if record is None else record.reason or "unknown"
                    known = [one for since, one in exchanges_of.get(ticker, []) if since <= dates_T[paid_at]]
                    nasdaq = bool(known) and known[-1]
                    failed = rule.nasdaq_performance_return if nasdaq else rule.performance_return
                    paid = {"merger": 0.0, "performance": failed}.get(kind, rule.unknown_return)
                delisted_TN[paid_at:resumes, n] = True
                unknown_TN[paid_at:resumes, n] = kind in {"silence", "unknown"}
                value_ratio_TN[paid_at:resumes, n] = 1.0 + paid
            if kind is not None:
                assumed[kind] += 1
    missing_TN = _gaps(traded_TN, rule.stale_sessions) & ~delisted_TN & ~gap_TN
    gap_TN = gap_TN & ~delisted_TN
    value_ratio_TN[missing_TN | gap_TN] = np.nan
    gaps = int(missing_TN.any(axis=1).sum())
    hazards = list(_hazards(assumed, gaps, rule))
    if sessions := int(gap_TN.any(axis=1).sum()):
        empty = int((~traded_TN.any(axis=1)).sum())
        hazards.append(
            f"{int(gap_TN.sum()):,} price(s) on {sessions:,} session(s) are missing from the data or were "
            f"rejected ({empty:,} session(s) have no price at all): labels across them are unknown."
        )
    return Delistings(delisted_TN, unknown_TN, value_ratio_TN, tuple(hazards))


def _hazards(assumed: Counter[str], gaps: int, rule: DelistingRule) -> Iterator[str]:
    """Report how many delistings of each kind pay an assumed return, and how many sessions are data gaps."""
    unknown = f"{rule.unknown_return:.0%} is paid" if rule.unknown_return else "the last price is paid"
    sentences = {
        "performance": "delisting(s) for performance have no recorded return: "
        f"{rule.performance_return:.0%} is paid, on Nasdaq {rule.nasdaq_performance_return:.0%}.",
        "merger": "merger(s) have no recorded return: the last price is paid.",
        "unknown": f"delisting(s) have neither a recorded return nor a reason: {unknown}.",
        "silence": f"time(s) a firm had no price for more than {rule.stale_sessions} sessions and no "
        f"recorded delisting: presumed delisted for an unknown reason, {unknown}.",
    }
    for kind, sentence in sentences.items():
        if assumed[kind]:
            yield f"{assumed[kind]:,} {sentence}"
    if gaps:
        yield (
            f"{gaps:,} session(s) lack prices for a quarter of the market: labels that end on them are "
            "unknown for the missing firms."
        )


def _gaps(traded_TN: BoolArray, stale_sessions: int) -> BoolArray:
    """Find the cells without a price on sessions with a data gap."""
    seen_TN = last_known_index(traded_TN)
    age_TN = np.arange(len(traded_TN))[:, None] - seen_TN
    missing_TN = (seen_TN >= 0) & (age_TN > 0) & (age_TN <= stale_sessions)
    missing_T = missing_TN.sum(axis=1)
    listed_T = missing_T + traded_TN.sum(axis=1)
    gap_T = (missing_T >= GAP_FIRMS) & (missing_T >= GAP_SHARE * listed_T)
    gaps_TN: BoolArray = missing_TN & gap_T[:, None]
    return gaps_TN


def _read(
    securities: pl.DataFrame | None,
) -> tuple[dict[str, list[_Delisting]], dict[str, list[tuple[np.datetime64, bool]]]]:
    """Read by firm the delistings in their order, and pairs (known from, on Nasdaq)."""
    delistings: dict[str, dict[np.datetime64, _Delisting]] = defaultdict(dict)
    exchanges: dict[str, list[tuple[np.datetime64, bool]]] = defaultdict(list)
    if securities is not None:
        columns = ("ticker", "valid_from", "delisted_on", "delisting_return", "delisting_reason", "exchange")
        rows = securities.sort("valid_from", nulls_last=False).select(columns).iter_rows()
        for ticker, since, day, paid, reason, exchange in rows:
            if day is not None:  # of several rows on one delisting, the latest known value counts
                at = np.datetime64(day, "D")
                before = delistings[ticker].get(at, _Delisting(at, None, None))
                delistings[ticker][at] = _Delisting(
                    at, before.paid if paid is None else paid, before.reason if reason is None else reason
                )
            if exchange is not None:
                known = np.datetime64(since, "D") if since is not None else np.datetime64("0001-01-01", "D")
                exchanges[ticker].append((known, "nasdaq" in exchange.lower()))
    in_order = {ticker: [one for _, one in sorted(by_day.items())] for ticker, by_day in delistings.items()}
    return in_order, dict(exchanges)
