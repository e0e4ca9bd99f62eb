"""The embedded source: a seeded market with planted structure, and its truth tables.

:mod:`pipelines.sources.simulated.market` simulates the market; this module converts it to tables.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import polars as pl

from pipelines.sources.base import Setting, SourceTables
from pipelines.sources.simulated.config import MarketConfig
from pipelines.sources.simulated.edges import edges_frame
from pipelines.sources.simulated.firms import securities_frame
from pipelines.sources.simulated.market import PARTS, Market, simulate
from pipelines.sources.simulated.quotes import prices_frame, quote, shares_at
from pipelines.sources.simulated.statements import fundamentals_frame

__all__ = ["MarketConfig", "SimulatedSource"]


class SimulatedSource:
    """A simulated market as a source.

    Parameters
    ----------
    config
        The market's settings.
    seed
        The same config and seed give the same tables to the bit. A setting changes only the draws that it
        concerns: removing a part of ``mu`` leaves all shocks, firms and statements unchanged.

    Raises
    ------
    ValueError
        If the seed is negative.
    """

    name = "simulated"

    def __init__(self, config: MarketConfig, seed: int) -> None:
        if seed < 0:
            msg = f"The simulated market's seed is {seed}; it must be at least 0."
            raise ValueError(msg)
        self.config = config
        self.seed = seed

    def fetch(self) -> SourceTables:
        """Simulate the market and return its tables.

        Returns
        -------
        SourceTables
            ``prices``, ``securities`` and ``fundamentals`` like any other source, and the truth:

            ``truth_mu``: date, ticker, mu, temporal, peer, characteristic. ``mu`` is the mean, known at the
            close of ``date``, of the return from the close of date+delay to that of date+delay+1 (in
            sessions), and the sum of the other three. A (date, ticker) is missing if the firm is delisted
            before that return.

            ``truth_edges``: leader, follower, lag, weight, hop, explained, rule, led_by, via, valid_from,
            valid_to. ``led_by`` is what makes the leader lead: size, book_to_market or random.
            ``weight`` times the leader's ``shock`` of lag-1 sessions ago is the contribution of this edge to
            ``peer``, on decision dates in [valid_from, valid_to).

            ``truth_days``: date, ticker, turbulent, shock, day_0 ... day_4. ``day_k`` is the contribution of
            the firm's own return k sessions ago to ``temporal``; they sum to it. ``shock`` is its own
            unforecastable return on ``date`` divided by its long-run volatility.
        """
        # The number and order of children are fixed; a new kind of draw must be added at the end.
        market_seed, quote_seed, tick_seed = np.random.SeedSequence(self.seed).spawn(3)
        market = simulate(self.config, market_seed)
        quotes = quote(self.config, market, quote_seed)
        tick_rng = np.random.Generator(np.random.PCG64(tick_seed))
        truth_mu, truth_days = _truth_frames(market, self.config.delay)
        return SourceTables(
            tables={
                "prices": prices_frame(self.config, market, quotes, tick_rng),
                "securities": securities_frame(market.firms, market.dates_T),
                "fundamentals": fundamentals_frame(
                    market.statements, market.firms, shares_at(market, quotes)
                ),
                "truth_mu": truth_mu,
                "truth_edges": edges_frame(
                    market.reviews, market.dates_T, market.firms, market.peer_scale, self.config.leaders
                ),
                "truth_days": truth_days,
            },
            market=self._identity(),
            hazards=(
                "The prices are simulated with planted structure: a result on them shows that the "
                "pipeline works, not that a model earns money.",
            ),
        )

    def _identity(self) -> dict[str, Setting]:
        """Return the settings that identify this market: the seed and every setting except its length.

        A longer market has the same firms and shocks. Its earlier prices differ slightly, because the
        strength of the forecastable part is calibrated over the whole length.
        """
        settings = {f.name: getattr(self.config, f.name) for f in fields(self.config) if f.name != "sessions"}
        weights = " ".join(f"{weight:g}" for weight in self.config.day_weights)
        return {"seed": self.seed, **settings, "start": str(self.config.start), "day_weights": weights}


def _truth_frames(market: Market, delay: int) -> tuple[pl.DataFrame, pl.DataFrame]:
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
