"""Settings of the simulated market, its industries, and their suppliers."""

import datetime as dt
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from features.options import Options

_INDUSTRIES: dict[str, tuple[str, str | None]] = {  # -> its sector, and its supplier; without cycles
    "Chemicals": ("Materials", None),
    "Metals": ("Materials", None),
    "Machinery": ("Industrials", "Metals"),
    "Transport": ("Industrials", "Machinery"),
    "Semiconductors": ("Technology", "Chemicals"),
    "Software": ("Technology", "Semiconductors"),
    "Food": ("Consumer", "Chemicals"),
    "Retail": ("Consumer", "Transport"),
}
INDUSTRIES = {name: sector for name, (sector, _) in _INDUSTRIES.items()}
SUPPLIERS = {name: supplier for name, (_, supplier) in _INDUSTRIES.items() if supplier is not None}

REVERSAL_CALM, REVERSAL_TURBULENT = 1.0, 0.1  # price pressure on calm days reverses, news hardly does
REVIEW_SESSIONS = 21  # between reviews, which decide edges and premia by what is known at their close
SESSIONS_PER_YEAR = 252
# Where size leads, the one leader of an industry leads those of its firms that are smaller by at least this
# factor. Other leaders lead all other firms of their industry.
SIZE_GAP = 1.5
HIDDEN_SHARE = 0.1  # of firms, which also follow one firm that no feature identifies
MARKET_VOLATILITY = 0.009  # long-run standard deviation of the market's daily returns
HALTS_PER_YEAR = 0.1  # expected, per firm

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class MarketConfig(Options):
    """Settings of the simulated market; the defaults are those of the embedded demo."""

    start: dt.date = dt.date(2014, 1, 2)
    """First session; the next weekday if it is none."""
    sessions: int = Field(default=2600, ge=2 * REVIEW_SESSIONS)
    """Number of sessions; every weekday is a session."""
    firms: int = Field(default=120, ge=2 * len(INDUSTRIES), le=2000)
    """Approximate number of firms listed at a time; a delisted firm is replaced after 5 to 60 sessions."""
    delay: int = Field(default=0, ge=0, le=REVIEW_SESSIONS)
    """``mu`` decided at the close of t affects the return from the close of t+delay to that of t+delay+1."""
    temporal_share: Weight = 0.3
    """Share of the temporal part in the cross-sectional variance of ``mu``. Only the ratios of the three
    shares matter, and 0 removes a part."""
    peer_share: Weight = 0.5
    """Share of the peer part."""
    characteristic_share: Weight = 0.2
    """Share of the characteristic part."""
    day_weights: tuple[Weight, Weight, Weight, Weight, Weight] = (1.0, 0.8, 0.6, 0.45, 0.3)
    """Weights with which the temporal part reverses idiosyncratic returns that are 0, 1, ..., 4 sessions
    old."""
    leaders: Literal["size", "book_to_market", "random"] = "size"
    """What makes a firm lead: its ``size`` (market equity), its ``book_to_market`` (book equity over market
    equity, the highest leads), or a ``random`` table that no data reveal. In a random table a leader leads
    until it is delisted; firms listed earlier succeed it before firms listed later."""
    leaders_change: int | None = None
    """Session from whose next review on a second random table decides. Null: one table to the end."""
    peer_until: int | None = None
    """Session from which no firm leads another: edges end with the first review on or after it. Sessions
    before it are the same to the bit as without it. Null: they act to the end."""
    truth_ic: float = Field(default=0.08, ge=0, le=0.5)
    """Mean within-date correlation of ``mu`` with the returns that it affects; 0 plants no structure."""
    idiosyncratic_volatility: float = Field(default=0.018, ge=0.001, le=0.05)
    """Standard deviation of the daily returns of a typical firm's own part."""
    delistings_per_year: float = Field(default=0.06, ge=0, le=2)
    """Expected number of delistings per firm and year."""
    restated_share: float = Field(default=0.05, ge=0, le=1)
    """Share of statements that are restated 60 to 200 days after they were first known."""
    bad_ticks: int = Field(default=12, ge=0)
    """Number of rows of ``prices`` that break the contract, at most a hundredth: half have a negative close,
    half a high below the low."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        limits = {
            "bad_ticks": (0, self.sessions * self.firms // 100),
            "peer_until": (REVIEW_SESSIONS, self.sessions),
            "leaders_change": (REVIEW_SESSIONS, self.sessions),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{name} is {value}; it must be between {low} and {high}")
        if sum(self.shares) <= 0:
            raise ValueError(
                "temporal_share, peer_share and characteristic_share are all 0; set one of them to a "
                "positive value, or truth_ic to 0 to plant no structure"
            )
        if sum(self.day_weights) == 0:
            raise ValueError("day_weights are all 0; to plant no temporal part, set temporal_share to 0")
        if self.leaders_change is not None and self.leaders != "random":
            raise ValueError(
                f"leaders_change is {self.leaders_change} but leaders is {self.leaders}; only random leaders "
                "can change at a session"
            )
        return self

    @property
    def shares(self) -> tuple[float, float, float]:
        """Temporal, peer and characteristic share."""
        return (self.temporal_share, self.peer_share, self.characteristic_share)
