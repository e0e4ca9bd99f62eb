"""Membership with hindsight: today's members used for all dates, or changes that know later returns.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from features.arrays import BoolArray
from pipelines.audit.event_study import after_events
from pipelines.audit.result import Result
from pipelines.audit.subject import Subject

NAME = "membership"
EARLY_SESSIONS: Final = 21
"""Membership more than this many sessions before a firm's first price shows hindsight."""
EARLY_FIRMS: Final = 2
EARLY_SHARE: Final = 0.05
"""Up to this many firms (or this share) may be explained by gaps in the prices."""
TURNOVER: Final = 0.02
"""Lower bound on the share of members that an index replaces per year; broad indices replace 3% to 10%."""
EXPECTED: Final = 3.0
"""If at least this many changes are expected, no change at all is unlikely: exp(-3) is 1 in 20."""
LEAVERS: Final = 5
CHANCE: Final = 0.001


def check(subject: Subject) -> Result:
    """Look for members before listing, delisted firms that never were members, and lists without changes."""
    name = subject.config.universe.membership
    if name is None:
        return Result(NAME, "skipped", "The config uses no membership table.")
    table = subject.tables["membership"].filter(pl.col("universe") == name)
    facts = _facts(subject, table)
    evidence = pl.DataFrame([facts])
    reasons = []
    if facts["members_before_first_price"] > max(EARLY_FIRMS, EARLY_SHARE * facts["members"]):
        reasons.append(
            f"{facts['members_before_first_price']} firms are members more than {EARLY_SESSIONS} sessions "
            "before their first price"
        )
    if facts["leavers"] >= LEAVERS and facts["chance_of_no_leaver"] < CHANCE:
        reasons.append(
            f"none of the {facts['leavers']} firms that stop trading was ever a member, but "
            f"{facts['stayers_members']} of the {facts['stayers']} others were"
        )
    if facts["changes"] == 0 and facts["expected_changes"] >= EXPECTED:
        reasons.append(f"the {facts['members']} members never change in {facts['years']:.1f} years")
    timed = list(_timed(subject, name))
    if reasons or timed:
        rule = "Today's membership for all dates" if reasons else "Membership that knows later returns"
        return Result(NAME, "fail", f"{rule}: in {name}, {'; '.join([*reasons, *timed])}.", evidence)
    if facts["changes"] == 0 and facts["years"] >= 1.0:
        return Result(
            NAME,
            "warn",
            f"Membership of {name} never changes in {facts['years']:.1f} years: a list made after its first "
            "date contains hindsight.",
            evidence,
        )
    if facts["exits"] == 0 and facts["expected_changes"] >= EXPECTED:
        return Result(
            NAME,
            "warn",
            f"No firm ever leaves {name} in {facts['years']:.1f} years, though firms join: this looks like "
            "the members of the last day with their joining dates.",
            evidence,
        )
    return Result(
        NAME,
        "pass",
        f"{name}: {facts['changes']} changes of {facts['members']} members in {facts['years']:.1f} years, "
        "and no firm is a member long before its listing.",
        evidence,
    )


def _timed(subject: Subject, name: str) -> Iterator[str]:
    """Changes of the list that come before returns that nobody knew."""
    panel = subject.dataset.panel
    member_TN = member_flags(subject) & panel.traded_TN
    was_TN = np.zeros_like(member_TN)
    was_TN[1:] = member_TN[:-1]
    traded_TN = panel.traded_TN.copy()
    traded_TN[1:] &= panel.traded_TN[:-1]  # a first price is no decision of the list, and neither is a halt
    traded_TN[0] = False
    for verb, event_TN in (("leave", was_TN & ~member_TN), ("join", member_TN & ~was_TN)):
        found = after_events(event_TN & traded_TN, panel.total_return_index_TN, panel.traded_TN)
        if found.impossible:
            yield (
                f"firms {verb} before they {'rise' if found.mean > 0 else 'fall'}: after {found.events} such "
                f"changes they earn {found.mean:+.0%} beyond the others in {found.span} sessions (t "
                f"{found.t:+.1f}), so the list was made with later prices"
            )


def member_flags(subject: Subject) -> BoolArray:
    """Whether a firm is a member of the config's universe."""
    panel = subject.dataset.panel
    dates_T = panel.dates_T.astype("datetime64[D]")
    place = {ticker: n for n, ticker in enumerate(panel.tickers_N)}
    member_TN = np.zeros(panel.close_TN.shape, dtype=np.bool_)
    spells = subject.tables["membership"].filter(pl.col("universe") == subject.config.universe.membership)
    for ticker, start, end in spells.select("ticker", "from_date", "to_date").iter_rows():
        if ticker in place:
            since = int(np.searchsorted(dates_T, np.datetime64(start, "D")))
            until = len(dates_T) if end is None else int(np.searchsorted(dates_T, np.datetime64(end, "D")))
            member_TN[since:until, place[ticker]] = True
    return member_TN


def _facts(subject: Subject, table: pl.DataFrame) -> dict[str, float]:
    panel = subject.dataset.panel
    dates_T = panel.dates_T.astype("datetime64[D]")
    traded_TN = np.isfinite(panel.close_TN)
    first_N, last_N = traded_TN.argmax(axis=0), len(dates_T) - 1 - traded_TN[::-1].argmax(axis=0)
    place = {ticker: n for n, ticker in enumerate(panel.tickers_N)}
    member_N = np.zeros(panel.n_firms, dtype=np.bool_)
    early: set[str] = set()
    joined = left = 0
    for ticker, start, end in table.select("ticker", "from_date", "to_date").iter_rows():
        since = int(np.searchsorted(dates_T, np.datetime64(start, "D")))
        until = len(dates_T) if end is None else int(np.searchsorted(dates_T, np.datetime64(end, "D")))
        joined += 0 < since < len(dates_T)
        left += 0 < until < len(dates_T)
        if ticker not in place or since >= until:
            continue
        n = place[ticker]
        member_N[n] = True
        if first_N[n] - since > EARLY_SESSIONS:
            early.add(ticker)
    years = float((dates_T[-1] - dates_T[0]).astype(int)) / 365.25
    left_N = last_N < len(dates_T) - EARLY_SESSIONS
    stayers, leavers = int((~left_N).sum()), int(left_N.sum())
    share = float(member_N[~left_N].mean()) if stayers else 0.0
    none_left = bool(leavers and not member_N[left_N].any())
    members = int(member_N.sum())
    return {
        "members": members,
        "years": years,
        "changes": joined + left,
        "exits": left,
        "expected_changes": TURNOVER * members * years,
        "members_before_first_price": len(early),
        "leavers": leavers,
        "stayers": stayers,
        "stayers_members": int(member_N[~left_N].sum()),
        "chance_of_no_leaver": float((1.0 - share) ** leavers) if none_left else 1.0,
    }
