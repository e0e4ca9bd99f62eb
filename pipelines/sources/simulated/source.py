"""The embedded source: quotes of a seeded market with planted structure, and its truth tables.

`pipelines.sources.simulated.market` simulates the market; this module converts it to raw prices, splits,
dividends, volume, halts, bad ticks and truth. Shape suffixes: T sessions, N firms, Q quarters.
"""

import numpy as np
import polars as pl

from features.arrays import BoolArray, FloatArray
from pipelines.sources.base import SourceTables
from pipelines.sources.simulated.config import (
    HALTS_PER_YEAR,
    REVIEW_SESSIONS,
    SESSIONS_PER_YEAR,
    MarketConfig,
)
from pipelines.sources.simulated.firms import Index, fundamentals_frame, securities_frame
from pipelines.sources.simulated.market import PARTS, SimulatedMarket, edges_frame, simulate

__all__ = ["MarketConfig", "SimulatedSource"]


class SimulatedSource:
    """A simulated market as a source: the same config and seed give the same tables to the bit."""

    name = "simulated"

    def __init__(self, config: MarketConfig, seed: int) -> None:
        if seed < 0:
            raise ValueError(f"The simulated market's seed is {seed}; it must be at least 0.")
        self.config = config
        self.seed = seed

    def fetch(self) -> SourceTables:
        """Simulate the market and return its tables, with its truth.

        ``truth_mu``: ``mu`` is the mean, known at the close of ``date``, of the return over the session that
        ends delay + 1 sessions later, and the sum of its three parts. ``truth_edges``: ``weight`` times the
        leader's ``shock`` of lag - 1 sessions ago is what an edge adds to ``peer``. ``truth_days``: ``day_k``
        is what the own return k sessions ago adds to ``temporal``; ``shock`` is the own return over its
        long-run volatility.
        """
        # The number and order of children are fixed; a new kind of draw must be added at the end.
        market_seed, quote_seed, tick_seed = np.random.SeedSequence(self.seed).spawn(3)
        market = simulate(self.config, market_seed)
        quotes, quoted_TN = quote(market, quote_seed)
        tick_rng = np.random.Generator(np.random.PCG64(tick_seed))
        truth_mu, truth_days = _truth_frames(market, self.config.delay)
        settings = self.config.model_dump(
            exclude={"sessions"}
        )  # a longer market has the same firms and shocks
        weights = " ".join(f"{weight:g}" for weight in self.config.day_weights)
        return SourceTables(
            tables={
                "prices": prices_frame(self.config, market, quotes, quoted_TN, tick_rng),
                "securities": securities_frame(market.firms, market.dates_T),
                "fundamentals": fundamentals_frame(
                    market.statements, market.firms, shares_at(market, quotes)
                ),
                "truth_mu": truth_mu,
                "truth_edges": edges_frame(market, self.config.leaders),
                "truth_days": truth_days,
            },
            market={"seed": self.seed, **settings, "start": str(self.config.start), "day_weights": weights},
            hazards=(
                "The prices are simulated with planted structure: a result on them shows that the "
                "pipeline works, not that a model earns money.",
            ),
        )


def _truth_frames(market: SimulatedMarket, delay: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the truth per (date, ticker): the parts of mu, and each day's share of its temporal part."""
    n_sessions = len(market.dates_T)
    leaves_N = np.where(market.firms.delisted_N, market.firms.last_N, n_sessions + delay)
    paid_TN = market.live_TN & (np.arange(n_sessions)[:, None] + 1 + delay <= leaves_N)
    t_R, n_R = np.nonzero(paid_TN)
    key = {"date": market.dates_T[t_R], "ticker": np.asarray(market.firms.ticker_N)[n_R]}
    parts_RP = market.mu_TNP[t_R, n_R]
    days_RK = market.reversal_TNK[t_R, n_R]
    truth_mu = pl.DataFrame(
        key | {"mu": parts_RP.sum(axis=1)} | {name: parts_RP[:, p] for p, name in enumerate(PARTS)}
    )
    truth_days = pl.DataFrame(
        key
        | {"turbulent": market.shocks.turbulent_TN[t_R, n_R], "shock": market.shock_TN[t_R, n_R]}
        | {f"day_{age}": days_RK[:, age] for age in range(days_RK.shape[1])}
    )
    return truth_mu, truth_days


_OVERNIGHT_SHARE = 0.25  # of a day's variance
_SPLIT_ABOVE, _REVERSE_SPLIT_BELOW = 150.0, 3.0  # USD
_DAILY_TURNOVER = 0.004  # shares traded over shares outstanding


Quotes = dict[str, FloatArray]  # column of ``prices``, or ``shares`` -> values [T, N]; NaN where not listed


def quote(market: SimulatedMarket, seed_sequence: np.random.SeedSequence) -> tuple[Quotes, BoolArray]:
    """Quote a market; the second array is False where there is no row: not listed, or halted.

    The closes are such that ``close[t] * split[t] * (1 + dividend[t] / close[t]) / close[t-1] - 1`` is the
    market's total return, to rounding. Given a day's return R (log, from the adjusted previous close), its
    overnight part is normal(f R, f (1 - f) v) with f = 0.25 and v the day's variance. High and low are the
    extremes of Brownian bridges from open to close, ``(x + sqrt(x^2 - 2 v' ln U)) / 2``, so that the range
    reflects the day's volatility. Volume increases with the regime and with the size of the day's own return.
    """
    split_rng, path_rng, volume_rng, halt_rng = (
        np.random.Generator(np.random.PCG64(child)) for child in seed_sequence.spawn(4)
    )
    firms, live_TN = market.firms, market.live_TN
    unsplit_TN = firms.price_N * np.exp(market.log_size_TN - firms.log_size_N)
    split_TN = _splits(unsplit_TN, firms.last_N, split_rng)
    multiple_TN = np.cumprod(split_TN, axis=0)
    close_TN = unsplit_TN / multiple_TN
    yield_TN = market.dividend_yield_TN
    dividend_TN = np.where(live_TN, close_TN * yield_TN / (1.0 - yield_TN), np.nan)

    previous_TN = np.vstack([close_TN[:1], close_TN[:-1]]) / split_TN - np.nan_to_num(dividend_TN)
    previous_TN = np.where(np.isnan(previous_TN), close_TN, previous_TN)  # a firm's first session opens flat
    day_TN = np.log(close_TN / previous_TN)
    variance_TN = market.shocks.volatility_TN**2
    overnight_sd_TN = np.sqrt(_OVERNIGHT_SHARE * (1.0 - _OVERNIGHT_SHARE) * variance_TN)
    overnight_TN = _OVERNIGHT_SHARE * day_TN + overnight_sd_TN * path_rng.standard_normal(live_TN.shape)
    open_TN = previous_TN * np.exp(overnight_TN)
    intraday_TN = day_TN - overnight_TN
    bridge_TN = -2.0 * (1.0 - _OVERNIGHT_SHARE) * variance_TN
    up_TN, down_TN = (np.log(path_rng.uniform(1e-12, 1.0, live_TN.shape)) for _ in range(2))
    top_TN = open_TN * np.exp((intraday_TN + np.sqrt(intraday_TN**2 + bridge_TN * up_TN)) / 2.0)
    bottom_TN = open_TN * np.exp((intraday_TN - np.sqrt(intraday_TN**2 + bridge_TN * down_TN)) / 2.0)

    shares_TN = np.exp(firms.log_size_N) / firms.price_N * multiple_TN
    log_turnover_TN = (
        0.3 * volume_rng.standard_normal(live_TN.shape)
        + 0.1 * volume_rng.standard_normal(live_TN.shape[1])
        + 0.5 * market.shocks.turbulent_TN
        + 0.1 * np.abs(market.shock_TN)
    )
    event_TN = (split_TN != 1.0) | (yield_TN > 0)
    turnover_TN = np.ceil(_DAILY_TURNOVER * shares_TN * np.exp(log_turnover_TN))
    drawn_TN = halt_rng.random(live_TN.shape) < HALTS_PER_YEAR / SESSIONS_PER_YEAR
    halted_TN = _may_be_missing(live_TN, event_TN) & drawn_TN
    quotes = {
        "open": open_TN,
        "high": np.maximum(top_TN, np.maximum(open_TN, close_TN)),
        "low": np.minimum(bottom_TN, np.minimum(open_TN, close_TN)),
        "close": close_TN,
        "volume": np.where(live_TN, turnover_TN, np.nan),
        "split_ratio": split_TN,
        "dividend": dividend_TN,
        "shares": np.where(live_TN, shares_TN, np.nan),
    }
    return quotes, live_TN & ~halted_TN


def prices_frame(
    config: MarketConfig,
    market: SimulatedMarket,
    quotes: Quotes,
    quoted_TN: BoolArray,
    rng: np.random.Generator,
) -> pl.DataFrame:
    """Return the quotes as ``prices``, with ``config.bad_ticks`` invalid rows on days without events."""
    event_TN = (quotes["split_ratio"] != 1.0) | (quotes["dividend"] > 0)
    t_R, n_R = np.nonzero(quoted_TN)
    values = {name: array_TN[t_R, n_R] for name, array_TN in quotes.items() if name != "shares"}
    eligible = np.flatnonzero(_may_be_missing(market.live_TN, event_TN)[t_R, n_R])
    broken = rng.permutation(eligible)[: config.bad_ticks]
    values["close"][broken[::2]] *= -1.0
    values["high"][broken[1::2]], values["low"][broken[1::2]] = (
        values["low"][broken[1::2]],
        values["high"][broken[1::2]],
    )
    tickers = np.asarray(market.firms.ticker_N)
    return pl.DataFrame({"date": market.dates_T[t_R], "ticker": tickers[n_R], **values})


def shares_at(market: SimulatedMarket, quotes: Quotes) -> FloatArray:
    """Return shares outstanding at the end of each quarter [N, Q]; before listing, those at listing."""
    session_Q = np.searchsorted(market.dates_T, market.statements.period_end_Q, side="right") - 1
    at_NQ = np.clip(session_Q, market.firms.first_N[:, None], market.firms.last_N[:, None])
    shares_NQ: FloatArray = quotes["shares"][at_NQ, np.arange(len(at_NQ))[:, None]]
    return shares_NQ


def _may_be_missing(live_TN: BoolArray, event_TN: BoolArray) -> BoolArray:
    """Return where a price may be missing: listed yesterday, today and tomorrow, without an event today."""
    missing_ok_TN = live_TN & ~event_TN
    missing_ok_TN[1:] &= live_TN[:-1]
    missing_ok_TN[:-1] &= live_TN[1:]
    missing_ok_TN[[0, -1]] = False
    return missing_ok_TN


def _splits(unsplit_TN: FloatArray, last_N: Index, rng: np.random.Generator) -> FloatArray:
    """Decide at each review which firms split (2 or 4 for 1) or reverse-split (1 for 10) before the next."""
    n_sessions, n_firms = unsplit_TN.shape
    split_TN = np.ones((n_sessions, n_firms))
    multiple_N = np.ones(n_firms)
    for start in range(0, n_sessions, REVIEW_SESSIONS):
        day_N = rng.integers(start + 1, start + REVIEW_SESSIONS, size=(n_firms,), dtype=np.int64)
        price_N = unsplit_TN[start] / multiple_N  # NaN where not listed: no comparison holds
        ratio_N = np.select(
            [price_N > 2 * _SPLIT_ABOVE, price_N > _SPLIT_ABOVE, price_N < _REVERSE_SPLIT_BELOW],
            [4.0, 2.0, 0.1],
            1.0,
        )
        ratio_N = np.where(day_N <= last_N, ratio_N, 1.0)
        (firm_R,) = np.nonzero(ratio_N != 1.0)
        split_TN[day_N[firm_R], firm_R] = ratio_N[firm_R]
        multiple_N *= ratio_N
    return split_TN
