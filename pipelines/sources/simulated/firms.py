"""The firms of the simulated market: listing periods and constant attributes.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arrays import BoolArray, FloatArray
from pipelines.sources.simulated.config import INDUSTRIES, SESSIONS_PER_YEAR, SUPPLIERS, MarketConfig

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Firms:
    """Every firm that is ever listed; arrays are over firms, and firms are sorted by ticker.

    ``first_N`` and ``last_N`` are the indices of the first and last listed session. A holder of a delisted
    firm earns ``delisting_return_N`` after the last one; NaN for a firm that is still listed at the end.
    Firms in ``merger_N`` are delisted for a merger, the others for performance. ``hidden_leader_N`` is the
    firm that it follows without an observable reason, or -1.
    """

    ticker_N: tuple[str, ...]
    industry_N: Index  # index into INDUSTRIES
    first_N: Index
    last_N: Index
    delisting_return_N: FloatArray
    merger_N: BoolArray
    nasdaq_N: BoolArray
    beta_N: FloatArray
    volatility_N: FloatArray  # long-run standard deviation of the idiosyncratic daily return
    log_size_N: FloatArray  # log of market equity in USD at listing
    price_N: FloatArray  # USD at listing
    hidden_leader_N: Index

    def live(self, n_sessions: int) -> BoolArray:
        """Return whether each firm is listed on each session: bool [T, N]."""
        t_T = np.arange(n_sessions)[:, None]
        listed: BoolArray = (t_T >= self.first_N) & (t_T <= self.last_N)
        return listed

    @property
    def delisted_N(self) -> BoolArray:  # noqa: N802 (a shape suffix)
        """Whether the firm is delisted before the end of the data."""
        return np.isfinite(self.delisting_return_N)


def draw_firms(config: MarketConfig, rng: np.random.Generator) -> Firms:
    """Draw the firms of a market.

    Each of the ``config.firms`` slots, spread evenly over the industries, is held by one firm after another.
    Lifetimes are exponential, and 5 to 60 sessions pass before the next firm is listed.
    """
    slots: list[int] = []
    first: list[int] = []
    last: list[int] = []
    mean_life = SESSIONS_PER_YEAR / max(config.delistings_per_year, 1e-9)
    for slot in range(config.firms):
        start = 0
        while start < config.sessions - 5:
            end = start + 20 + int(min(rng.exponential(mean_life), 1e9))
            slots.append(slot)
            first.append(start)
            last.append(min(end, config.sessions - 1))
            start = end + 1 + int(rng.integers(5, 61))
    n = len(slots)
    shuffled_N = rng.permutation(n)  # so that the order of the tickers carries no information
    industry_N = np.asarray(slots)[shuffled_N] % len(INDUSTRIES)
    first_N, last_N = np.asarray(first)[shuffled_N], np.asarray(last)[shuffled_N]
    nasdaq_N = rng.random(n) < np.where(np.isin(industry_N, _indices("Semiconductors", "Software")), 0.8, 0.3)
    merger_N = rng.random(n) < 0.5
    failure_N = np.where(nasdaq_N, -0.55, -0.30) + rng.uniform(-0.15, 0.15, n)
    payout_N = np.where(merger_N, rng.uniform(-0.02, 0.12, n), failure_N)
    return Firms(
        ticker_N=_draw_tickers(n, rng),
        industry_N=industry_N,
        first_N=first_N,
        last_N=last_N,
        delisting_return_N=np.where(last_N < config.sessions - 1, payout_N, np.nan),
        merger_N=merger_N,
        nasdaq_N=nasdaq_N,
        beta_N=np.clip(rng.normal(1.0, 0.25, n), 0.3, 1.8),
        volatility_N=config.idiosyncratic_volatility * np.exp(rng.normal(-0.03, 0.25, n)),
        log_size_N=rng.normal(np.log(2e9), 1.5, n),
        price_N=np.exp(rng.normal(np.log(40.0), 0.5, n)),
        hidden_leader_N=_draw_hidden_leaders(industry_N, first_N, last_N, config.hidden_share, rng),
    )


def securities_frame(firms: Firms, dates_T: npt.NDArray[np.datetime64]) -> pl.DataFrame:
    """Return the firms as the ``securities`` table: one open-ended row per firm (``valid_to`` null)."""
    industries = list(INDUSTRIES)
    industry = [industries[code] for code in firms.industry_N]
    listed_on = pl.Series(dates_T[firms.first_N].astype("datetime64[D]"))
    delisted_on = pl.Series(dates_T[firms.last_N].astype("datetime64[D]"))
    delisted = pl.Series(firms.delisted_N)
    return pl.DataFrame(
        {
            "ticker": firms.ticker_N,
            "valid_from": listed_on,
            "name": [f"{kind} {ticker} Inc" for kind, ticker in zip(industry, firms.ticker_N, strict=True)],
            "sector": [INDUSTRIES[kind] for kind in industry],
            "industry": industry,
            "listed_on": listed_on,
            "delisted_on": delisted_on,
            "delisting_return": pl.Series(firms.delisting_return_N, nan_to_null=True),
            "delisting_reason": np.where(firms.merger_N, "merger", "performance"),
            "currency": "USD",
            "exchange": np.where(firms.nasdaq_N, "NASDAQ", "NYSE"),
        }
    ).with_columns(
        delisted_on=pl.when(delisted).then(pl.col("delisted_on")),
        delisting_reason=pl.when(delisted).then(pl.col("delisting_reason")),
        valid_to=pl.lit(None, dtype=pl.Date),
    )


def supplier_of() -> Index:
    """Return each industry's supplier as an index into INDUSTRIES; -1 for none."""
    industries = list(INDUSTRIES)
    return np.asarray([industries.index(SUPPLIERS[k]) if k in SUPPLIERS else -1 for k in industries])


def _indices(*names: str) -> list[int]:
    return [list(INDUSTRIES).index(name) for name in names]


def _draw_tickers(n: int, rng: np.random.Generator) -> tuple[str, ...]:
    """Draw distinct four-letter tickers, sorted; they carry no information about the firm."""
    codes = np.sort(rng.choice(26**4, n, replace=False))
    return tuple("".join(chr(65 + code // 26**k % 26) for k in (3, 2, 1, 0)) for code in codes)


def _draw_hidden_leaders(
    industry_N: Index, first_N: Index, last_N: Index, share: float, rng: np.random.Generator
) -> Index:
    """Draw, for a share of the firms, a leader from an industry that no rule links to theirs; else -1."""
    supplier = supplier_of()
    leader_N = np.full(len(industry_N), -1)
    chosen_N = rng.random(len(industry_N)) < share
    tie_NN = rng.random((len(industry_N), len(industry_N)))
    for i in np.flatnonzero(chosen_N):
        own = industry_N[i]
        linked = {own, supplier[own], supplier[supplier[own]] if supplier[own] >= 0 else -1}
        overlap_N = np.minimum(last_N, last_N[i]) - np.maximum(first_N, first_N[i])
        eligible_N = ~np.isin(industry_N, list(linked)) & (overlap_N > 0)
        if eligible_N.any():
            leader_N[i] = int(np.argmax(np.where(eligible_N, tie_NN[i], -1.0)))
    return leader_N
