"""Settings of the simulated market, its industries, and their suppliers."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from typing import Literal

INDUSTRIES: dict[str, str] = {
    "Chemicals": "Materials",
    "Metals": "Materials",
    "Machinery": "Industrials",
    "Transport": "Industrials",
    "Semiconductors": "Technology",
    "Software": "Technology",
    "Food": "Consumer",
    "Retail": "Consumer",
}
"""Industry -> sector."""

SUPPLIERS: dict[str, str] = {
    "Semiconductors": "Chemicals",
    "Software": "Semiconductors",
    "Machinery": "Metals",
    "Transport": "Machinery",
    "Retail": "Transport",
    "Food": "Chemicals",
}
"""Customer industry -> supplier industry, without cycles; Chemicals and Metals have no supplier."""

LEADERS = ("size", "book_to_market", "random")
"""What the leaders of an industry can be chosen by."""

AGES = 5
"""Number of own sessions that the temporal part depends on."""

REVERSAL_CALM, REVERSAL_TURBULENT = 1.0, 0.1
"""Strength of the reversal: price pressure on calm days reverses, news on turbulent days hardly does."""

REVIEW_SESSIONS = 21
"""Number of sessions between reviews. At a review, edges and premia are decided again with what is known at
its close."""

SESSIONS_PER_YEAR = 252


@dataclass(frozen=True, slots=True)
class MarketConfig:
    """Settings of the simulated market; the defaults are those of the embedded demo.

    Attributes
    ----------
    start
        First session; the next weekday if it is none.
    sessions
        Number of sessions; every weekday is a session.
    firms
        Approximate number of firms listed at a time; a delisted firm is replaced after 5 to 60 sessions.
    delay
        ``mu`` decided at the close of t affects the return from the close of t+delay to that of t+delay+1.
    temporal_share, peer_share, characteristic_share
        Shares of the cross-sectional variance of ``mu``; only their ratios matter, and 0 removes a part.
    day_weights
        Weights with which the temporal part reverses idiosyncratic returns that are 0, 1, ..., 4 sessions
        old.
    leaders
        What makes a firm lead: its ``size`` (market equity), its ``book_to_market`` (book equity over market
        equity, the highest leads), or a ``random`` table that no data reveal. In a random table a leader
        leads until it is delisted; firms listed earlier succeed it before firms listed later.
    leaders_change
        Session from whose next review on a second random table decides. Null: one table to the end.
    peer_until
        Session from which no firm leads another: edges end with the first review on or after it. Sessions
        before it are the same to the bit as without it. Null: they act to the end.
    truth_ic
        Mean within-date correlation of ``mu`` with the returns that it affects; 0 plants no structure.
    size_gap
        Where size leads, a leader leads those firms of its industry that are smaller by at least this factor.
        Other leaders lead all other firms of their industry.
    industry_leaders
        Number of firms of an industry that can lead it.
    hidden_share
        Share of firms that also follow one firm which no feature identifies.
    market_volatility, idiosyncratic_volatility
        Standard deviations of daily returns: of the market in the long run, and of a typical firm's own part.
    delistings_per_year, halts_per_year
        Expected number per firm and year.
    restated_share
        Share of statements that are restated 60 to 200 days after they were first known.
    bad_ticks
        Number of rows of ``prices`` that break the contract: half have a negative close, half a high below
        the low.

    Raises
    ------
    ValueError
        If a setting is out of range; the message names the setting, its value and what is allowed.
    """

    start: dt.date = dt.date(2014, 1, 2)
    sessions: int = 2600
    firms: int = 120
    delay: int = 0
    temporal_share: float = 0.3
    peer_share: float = 0.5
    characteristic_share: float = 0.2
    day_weights: tuple[float, float, float, float, float] = (1.0, 0.8, 0.6, 0.45, 0.3)
    leaders: Literal["size", "book_to_market", "random"] = "size"
    leaders_change: int | None = None
    peer_until: int | None = None
    truth_ic: float = 0.08
    size_gap: float = 1.5
    industry_leaders: int = 1
    hidden_share: float = 0.1
    market_volatility: float = 0.009
    idiosyncratic_volatility: float = 0.018
    delistings_per_year: float = 0.06
    halts_per_year: float = 0.1
    restated_share: float = 0.05
    bad_ticks: int = 12

    def __post_init__(self) -> None:
        inf = math.inf
        allowed: dict[str, tuple[float, float]] = {
            "sessions": (2 * REVIEW_SESSIONS, inf),
            "firms": (2 * len(INDUSTRIES), 2000),
            "delay": (0, REVIEW_SESSIONS),
            "temporal_share": (0, inf),
            "peer_share": (0, inf),
            "characteristic_share": (0, inf),
            "truth_ic": (0, 0.5),
            "size_gap": (1, inf),
            "industry_leaders": (1, inf),
            "hidden_share": (0, 1),
            "market_volatility": (0, 0.05),
            "idiosyncratic_volatility": (0.001, 0.05),
            "delistings_per_year": (0, 2),
            "halts_per_year": (0, 20),
            "restated_share": (0, 1),
            "bad_ticks": (0, self.sessions * self.firms // 100),
        }
        if self.peer_until is not None:
            allowed["peer_until"] = (REVIEW_SESSIONS, self.sessions)
        if self.leaders_change is not None:
            allowed["leaders_change"] = (REVIEW_SESSIONS, self.sessions)
        for name, (low, high) in allowed.items():
            value = getattr(self, name)
            if not low <= value <= high or math.isinf(value):
                limit = f"between {low} and {high:g}" if high < inf else f"at least {low}"
                msg = f"The simulated market's {name} is {value}; it must be {limit}."
                raise ValueError(msg)
        if sum(self.shares) <= 0:
            msg = (
                "The simulated market's temporal_share, peer_share and characteristic_share are all 0; "
                "set one of them to a positive value, or truth_ic to 0 to plant no structure."
            )
            raise ValueError(msg)
        if len(self.day_weights) != AGES or not all(0 <= w < inf for w in self.day_weights):
            msg = (
                f"The simulated market's day_weights are {list(self.day_weights)}; they must be {AGES} "
                "numbers that are at least 0."
            )
            raise ValueError(msg)
        if sum(self.day_weights) == 0:
            msg = (
                "The simulated market's day_weights are all 0; to plant no temporal part, set temporal_share "
                "to 0."
            )
            raise ValueError(msg)
        if self.leaders not in LEADERS:
            msg = (
                f"The simulated market's leaders is {self.leaders!r}; it must be one of {', '.join(LEADERS)}."
            )
            raise ValueError(msg)
        if self.leaders_change is not None and self.leaders != "random":
            msg = (
                f"The simulated market's leaders_change is {self.leaders_change} but its leaders are chosen "
                f"by {self.leaders}; only random leaders can change at a session."
            )
            raise ValueError(msg)

    @property
    def shares(self) -> tuple[float, float, float]:
        """Temporal, peer and characteristic share."""
        return (self.temporal_share, self.peer_share, self.characteristic_share)
