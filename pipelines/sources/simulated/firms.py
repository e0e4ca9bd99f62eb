"""The firms of the simulated market: listing periods, constant attributes, shocks and quarterly statements.

Shape suffixes: T sessions, N firms, Q quarters, R reviews.
"""

import datetime as dt
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arrays import BoolArray, FloatArray
from pipelines.sources.simulated.config import (
    HIDDEN_SHARE,
    INDUSTRIES,
    MARKET_VOLATILITY,
    SESSIONS_PER_YEAR,
    SUPPLIERS,
    MarketConfig,
)

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedFirms:
    """Every firm that is ever listed, by ticker; arrays are over firms."""

    ticker_N: tuple[str, ...]
    industry_N: Index  # index into INDUSTRIES
    first_N: Index  # first and last listed session
    last_N: Index
    delisting_return_N: FloatArray  # earned after the last session; NaN: still listed
    merger_N: BoolArray
    nasdaq_N: BoolArray
    beta_N: FloatArray
    volatility_N: FloatArray  # long-run standard deviation of the idiosyncratic daily return
    log_size_N: FloatArray  # log of market equity in USD at listing
    price_N: FloatArray  # USD at listing
    hidden_leader_N: Index  # the firm that it follows without an observable reason, or -1

    def live(self, n_sessions: int) -> BoolArray:
        """Return whether each firm is listed on each session: bool [T, N]."""
        t_T = np.arange(n_sessions)[:, None]
        listed: BoolArray = (t_T >= self.first_N) & (t_T <= self.last_N)
        return listed

    @property
    def delisted_N(self) -> BoolArray:  # noqa: N802 (a shape suffix)
        """Whether the firm is delisted before the end of the data."""
        return np.isfinite(self.delisting_return_N)


def draw_firms(config: MarketConfig, rng: np.random.Generator) -> SimulatedFirms:
    """Draw the firms of a market.

    Each of the ``config.firms`` slots, spread evenly over the industries, is held by one firm after another.
    Lifetimes are exponential, and 5 to 60 sessions pass before the next firm is listed.
    """
    lives: list[tuple[int, int, int]] = []  # slot, first session, last session
    mean_life = SESSIONS_PER_YEAR / max(config.delistings_per_year, 1e-9)
    for slot in range(config.firms):
        start = 0
        while start < config.sessions - 5:
            end = start + 20 + int(min(rng.exponential(mean_life), 1e9))
            lives.append((slot, start, min(end, config.sessions - 1)))
            start = end + 1 + int(rng.integers(5, 61))
    n = len(lives)
    # shuffled, so that the order of the tickers carries no information
    slot_N, first_N, last_N = np.asarray(lives)[rng.permutation(n)].T
    industry_N = slot_N % len(INDUSTRIES)
    on_nasdaq = [list(INDUSTRIES).index(name) for name in ("Semiconductors", "Software")]
    nasdaq_N = rng.random(n) < np.where(np.isin(industry_N, on_nasdaq), 0.8, 0.3)
    merger_N = rng.random(n) < 0.5
    failure_N = np.where(nasdaq_N, -0.55, -0.30) + rng.uniform(-0.15, 0.15, n)
    payout_N = np.where(merger_N, rng.uniform(-0.02, 0.12, n), failure_N)
    codes = np.sort(rng.choice(26**4, n, replace=False))  # tickers carry no information about the firm
    return SimulatedFirms(
        ticker_N=tuple("".join(chr(65 + code // 26**k % 26) for k in (3, 2, 1, 0)) for code in codes),
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
        hidden_leader_N=_draw_hidden_leaders(industry_N, first_N, last_N, rng),
    )


def securities_frame(firms: SimulatedFirms, dates_T: npt.NDArray[np.datetime64]) -> pl.DataFrame:
    """Return the firms as the ``securities`` table: one open-ended row per firm (``valid_to`` null)."""
    industries, days_T = list(INDUSTRIES), dates_T.astype("datetime64[D]")
    industry = [industries[code] for code in firms.industry_N]
    delisted = pl.Series(firms.delisted_N)
    return pl.DataFrame(
        {
            "ticker": firms.ticker_N,
            "valid_from": days_T[firms.first_N],
            "name": [f"{kind} {ticker} Inc" for kind, ticker in zip(industry, firms.ticker_N, strict=True)],
            "sector": [INDUSTRIES[kind] for kind in industry],
            "industry": industry,
            "listed_on": days_T[firms.first_N],
            "delisted_on": days_T[firms.last_N],
            "delisting_return": pl.Series(firms.delisting_return_N, nan_to_null=True),
            "delisting_reason": np.where(firms.merger_N, "merger", "performance"),
            "currency": "USD",
            "exchange": np.where(firms.nasdaq_N, "NASDAQ", "NYSE"),
        }
    ).with_columns(
        *(pl.when(delisted).then(c).alias(c) for c in ("delisted_on", "delisting_reason")),
        valid_to=pl.lit(None, dtype=pl.Date),
    )


def supplier_of() -> Index:
    """Return each industry's supplier as an index into INDUSTRIES; -1 for none."""
    industries = list(INDUSTRIES)
    return np.asarray([industries.index(SUPPLIERS[k]) if k in SUPPLIERS else -1 for k in industries])


def _draw_hidden_leaders(industry_N: Index, first_N: Index, last_N: Index, rng: np.random.Generator) -> Index:
    """Draw, for a share of the firms, a leader from an industry that no rule links to theirs; else -1."""
    supplier = supplier_of()
    leader_N = np.full(len(industry_N), -1)
    chosen_N = rng.random(len(industry_N)) < HIDDEN_SHARE
    tie_NN = rng.random((len(industry_N), len(industry_N)))
    for i in np.flatnonzero(chosen_N):
        own = industry_N[i]
        linked = {own, supplier[own], supplier[supplier[own]] if supplier[own] >= 0 else -1}
        overlap_N = np.minimum(last_N, last_N[i]) - np.maximum(first_N, first_N[i])
        eligible_N = ~np.isin(industry_N, list(linked)) & (overlap_N > 0)
        if eligible_N.any():
            leader_N[i] = int(np.argmax(np.where(eligible_N, tie_NN[i], -1.0)))
    return leader_N


_TAIL = 6.0  # degrees of freedom of every Student-t
_GARCH_NEWS, _GARCH_MEMORY = 0.08, 0.90
_MARKET_DRIFT = 0.0004
_SECTOR_VOLATILITY, _INDUSTRY_VOLATILITY = 0.0025, 0.0025
_TURBULENCE = 3.0  # standard deviation of turbulent over calm days
_BECOMES_TURBULENT, _BECOMES_CALM = 0.09, 0.22


@dataclass(frozen=True, slots=True, eq=False)
class Shocks:
    """Unforecastable returns: ``common_TN + own_TN``."""

    common_TN: FloatArray
    own_TN: FloatArray  # 0 before a firm's second listed session and after its last one
    turbulent_TN: BoolArray
    volatility_TN: FloatArray  # deviation of the total return, given the day's market volatility and regime


def draw_shocks(
    config: MarketConfig, firms: SimulatedFirms, common_rng: np.random.Generator, own_rng: np.random.Generator
) -> Shocks:
    """Draw the shocks of every firm on every session.

    Market: GARCH(1,1), ``h[t+1] = h (1 - a - b) + a m[t]^2 + b h[t]`` with a = 0.08, b = 0.90 and
    Student-t(6) innovations of unit variance (Bollerslev 1987). Sectors, industries: independent and normal.
    Own part: Student-t(6), scaled by a two-state Markov regime of each firm (a turbulent spell lasts 4.5
    sessions on average), normalised so that its long-run variance is ``volatility_N**2``.
    """
    n_sessions, n_firms = config.sessions, len(firms.ticker_N)
    market_T, market_vol_T = _garch(config, common_rng)
    sectors = list(dict.fromkeys(INDUSTRIES.values()))
    sector_of_N = np.asarray([sectors.index(s) for s in INDUSTRIES.values()])[firms.industry_N]
    sector_TS = common_rng.normal(0.0, _SECTOR_VOLATILITY, (n_sessions, len(sectors)))
    industry_TS = common_rng.normal(0.0, _INDUSTRY_VOLATILITY, (n_sessions, len(INDUSTRIES)))
    common_TN = (
        market_T[:, None] * firms.beta_N + sector_TS[:, sector_of_N] + industry_TS[:, firms.industry_N]
    )
    turbulent_TN = _regimes(n_sessions, n_firms, own_rng)
    turbulent_share = _BECOMES_TURBULENT / (_BECOMES_TURBULENT + _BECOMES_CALM)
    calm_scale = 1.0 / np.sqrt(1.0 - turbulent_share + turbulent_share * _TURBULENCE**2)
    scale_TN = firms.volatility_N * np.where(turbulent_TN, calm_scale * _TURBULENCE, calm_scale)
    earns_TN = firms.live(n_sessions) & (np.arange(n_sessions)[:, None] > firms.first_N)
    own_TN = np.where(earns_TN, scale_TN * _student(own_rng, (n_sessions, n_firms)), 0.0)
    fixed = _SECTOR_VOLATILITY**2 + _INDUSTRY_VOLATILITY**2
    variance_TN = (market_vol_T[:, None] * firms.beta_N) ** 2 + fixed + scale_TN**2
    return Shocks(common_TN, own_TN, turbulent_TN, np.sqrt(variance_TN))


def _student(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Draw Student-t variates of unit variance, clipped at 8 so that no simple return reaches -1."""
    unit: FloatArray = np.clip(rng.standard_t(_TAIL, shape) * np.sqrt((_TAIL - 2.0) / _TAIL), -8.0, 8.0)
    return unit


def _garch(config: MarketConfig, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    long_run = MARKET_VOLATILITY**2
    z_T = _student(rng, (config.sessions,))
    shock_T, volatility_T = np.empty(config.sessions), np.empty(config.sessions)
    h = long_run
    for t in range(config.sessions):
        volatility_T[t] = np.sqrt(h)
        shock_T[t] = volatility_T[t] * z_T[t]
        h = long_run * (1 - _GARCH_NEWS - _GARCH_MEMORY) + _GARCH_NEWS * shock_T[t] ** 2 + _GARCH_MEMORY * h
    return shock_T + _MARKET_DRIFT, volatility_T


def _regimes(n_sessions: int, n_firms: int, rng: np.random.Generator) -> BoolArray:
    u_TN = rng.random((n_sessions, n_firms))
    turbulent_TN = np.empty((n_sessions, n_firms), dtype=np.bool_)
    state_N = u_TN[0] < _BECOMES_TURBULENT / (_BECOMES_TURBULENT + _BECOMES_CALM)
    turbulent_TN[0] = state_N
    for t in range(1, n_sessions):
        state_N = np.where(state_N, u_TN[t] >= _BECOMES_CALM, u_TN[t] < _BECOMES_TURBULENT)
        turbulent_TN[t] = state_N
    return turbulent_TN


Days = npt.NDArray[np.datetime64]
_QUARTERS_BEFORE_LISTING = 4
_COUNT = "shares_outstanding"


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedStatements:
    """The values that each firm reports for each quarter."""

    period_end_Q: Days
    known_at_NQ: Days  # of publication
    restated_at_NQ: Days  # NaT: never
    revision_NQ: FloatArray  # factor of book equity and gross profit in the restatement
    filed_NQ: BoolArray  # False long before a listing and after a delisting
    items: dict[str, FloatArray]  # item -> [N, Q], USD, as first published

    def value(self, item: str, *, restated: bool) -> FloatArray:
        """Return an item [N, Q] as first published, or as restated."""
        revised = restated and item in ("book_equity", "gross_profit")
        return self.items[item] * self.revision_NQ if revised else self.items[item]

    def as_of(self, item: str, days_R: Days) -> FloatArray:
        """Return the latest version of the last known period's value on each date [R, N]."""
        known_RNQ = self.filed_NQ & (self.known_at_NQ <= days_R[:, None, None])
        period_RN = np.where(known_RNQ, np.arange(len(self.period_end_Q)), -1).max(axis=2)
        firm_N = np.arange(len(self.filed_NQ))
        restated_RN = self.restated_at_NQ[firm_N, period_RN] <= days_R[:, None]  # NaT compares as False
        latest_RN = np.where(
            restated_RN,
            self.value(item, restated=True)[firm_N, period_RN],
            self.value(item, restated=False)[firm_N, period_RN],
        )
        return np.where(period_RN >= 0, latest_RN, np.nan)


def draw_statements(
    config: MarketConfig, firms: SimulatedFirms, dates_T: Days, rng: np.random.Generator
) -> SimulatedStatements:
    """Draw the statements of every firm.

    At listing, log book-to-market is normal(-0.7, 0.6) and assets are 1.5 to 4 times book equity; book equity
    then grows independently of the price. Gross profit over assets is a firm's mean plus an AR(1) with
    coefficient 0.8. Statements are published 20 to 80 days after the end of the quarter.
    """
    # from 18 months before the first session to the last one
    first, last = (day.astype("datetime64[D]").item() for day in (dates_T[0], dates_T[-1]))
    ends = pl.date_range(first - dt.timedelta(days=548), last, "1mo", eager=True).dt.month_end()
    ends = ends.filter((ends.dt.month() % 3 == 0) & (ends <= last))
    period_end_Q = ends.to_numpy().astype("datetime64[D]")
    n, q = len(firms.ticker_N), len(period_end_Q)
    listed_N, left_N = dates_T[firms.first_N], dates_T[firms.last_N]
    growth_NQ = np.cumsum(rng.normal(0.01, 0.03, (n, q)), axis=1)
    at_listing_N = np.clip(np.searchsorted(period_end_Q, listed_N) - 1, 0, q - 1)
    growth_NQ -= growth_NQ[np.arange(n), at_listing_N][:, None]
    log_book_N = firms.log_size_N + rng.normal(-0.7, 0.6, n)
    book_NQ = np.exp(log_book_N[:, None] + growth_NQ)
    assets_NQ = book_NQ * rng.uniform(1.5, 4.0, n)[:, None]
    profit_NQ = _profitability(n, q, rng) * assets_NQ
    income_NQ = 0.4 * profit_NQ - (0.012 + rng.normal(0.0, 0.004, (n, q))) * assets_NQ
    lag_NQ = rng.integers(25, 75, n)[:, None] + rng.integers(-5, 6, (n, q))
    known_at_NQ = period_end_Q + lag_NQ.astype("timedelta64[D]")
    restated_NQ = rng.random((n, q)) < config.restated_share
    later_NQ = known_at_NQ + rng.integers(60, 201, (n, q)).astype("timedelta64[D]")
    revision_NQ = np.exp(rng.normal(0.0, 0.08, (n, q)))
    items = {"book_equity": book_NQ, "total_assets": assets_NQ}
    items |= {"gross_profit": profit_NQ, "net_income": income_NQ}
    # a separate generator, so that adding an item does not change the draws behind the market's truth
    items |= _details(items, rng.spawn(1)[0])
    history_N = (listed_N - np.timedelta64(92 * _QUARTERS_BEFORE_LISTING, "D")).astype("datetime64[D]")
    return SimulatedStatements(
        period_end_Q=period_end_Q,
        known_at_NQ=known_at_NQ,
        restated_at_NQ=np.where(
            restated_NQ & (later_NQ <= left_N[:, None]), later_NQ, np.datetime64("NaT", "D")
        ),
        revision_NQ=revision_NQ,
        filed_NQ=(period_end_Q >= history_N[:, None]) & (known_at_NQ <= left_N[:, None]),
        items=items,
    )


def _details(items: dict[str, FloatArray], rng: np.random.Generator) -> dict[str, FloatArray]:
    """Draw the remaining items [N, Q]: a firm's own share of a total, with 5% of noise each quarter."""
    book_NQ, assets_NQ = items["book_equity"], items["total_assets"]
    profit_NQ, income_NQ = items["gross_profit"], items["net_income"]

    def share(low: float, high: float) -> FloatArray:
        own_N1 = rng.uniform(low, high, (len(book_NQ), 1))
        drawn: FloatArray = own_N1 * np.exp(rng.normal(0.0, 0.05, book_NQ.shape))
        return drawn

    revenue_NQ = profit_NQ / np.minimum(share(0.2, 0.7), 0.95)
    liabilities_NQ = assets_NQ - book_NQ
    current_NQ = assets_NQ * share(0.2, 0.5)
    due_NQ = liabilities_NQ * share(0.2, 0.5)
    short_NQ, long_NQ = due_NQ * share(0.05, 0.3), (liabilities_NQ - due_NQ) * share(0.1, 0.6)
    interest_NQ = 0.012 * (short_NQ + long_NQ)
    before_tax_NQ = np.where(income_NQ > 0, income_NQ / 0.75, income_NQ)
    depreciation_NQ = assets_NQ * share(0.004, 0.015)
    return {
        "revenue": revenue_NQ,
        "cost_of_revenue": revenue_NQ - profit_NQ,
        "research_and_development": revenue_NQ * share(0.01, 0.12),
        "operating_income": before_tax_NQ + interest_NQ,
        "interest_expense": interest_NQ,
        "income_tax": before_tax_NQ - income_NQ,
        "depreciation": depreciation_NQ,
        "operating_cash_flow": income_NQ + depreciation_NQ + assets_NQ * rng.normal(0.0, 0.01, book_NQ.shape),
        "capital_expenditure": depreciation_NQ * share(0.7, 1.8),
        "dividends_paid": np.maximum(income_NQ, 0.0) * share(0.1, 0.6),
        "current_assets": current_NQ,
        "cash": current_NQ * share(0.1, 0.3),
        "receivables": current_NQ * share(0.1, 0.25),
        "inventory": current_NQ * share(0.1, 0.25),
        "fixed_assets": (assets_NQ - current_NQ) * share(0.4, 0.8),
        "total_liabilities": liabilities_NQ,
        "current_liabilities": due_NQ,
        "accounts_payable": due_NQ * share(0.2, 0.5),
        "short_term_debt": short_NQ,
        "long_term_debt": long_NQ,
        "retained_earnings": book_NQ * share(0.2, 0.8),
    }


def fundamentals_frame(
    statements: SimulatedStatements, firms: SimulatedFirms, shares_NQ: FloatArray
) -> pl.DataFrame:
    """Return the statements as the ``fundamentals`` table; restatements are separate rows."""
    ticker_N = np.asarray(firms.ticker_N)
    n, q = statements.filed_NQ.shape
    period_NQ = np.broadcast_to(statements.period_end_Q, (n, q))
    frames = []
    for restated in (False, True):
        known_NQ = statements.restated_at_NQ if restated else statements.known_at_NQ
        published_NQ = statements.filed_NQ & ~np.isnat(known_NQ)
        filing = pl.format("{}-{}-{}", "ticker", "period_end", pl.lit("A" if restated else "Q"))
        for item in (*statements.items, _COUNT):
            value_NQ = shares_NQ if item == _COUNT else statements.value(item, restated=restated)
            columns = {
                "ticker": np.broadcast_to(ticker_N[:, None], (n, q))[published_NQ],
                "period_end": period_NQ[published_NQ].astype("datetime64[D]"),
                "known_at": known_NQ[published_NQ].astype("datetime64[D]"),
                "value": value_NQ[published_NQ],
            }
            texts = {"item": item, "unit": "shares" if item == _COUNT else "USD"}
            rows = pl.DataFrame(columns).with_columns(**{name: pl.lit(text) for name, text in texts.items()})
            stated_on = pl.when(pl.lit(item == _COUNT)).then("period_end")
            frames.append(rows.with_columns(filing_id=filing, stated_on=stated_on))
    key = ("ticker", "period_end", "known_at", "item")
    return pl.concat(frames).select(*key, "value", "unit", "filing_id", "stated_on").sort(key)


def _profitability(n: int, q: int, rng: np.random.Generator) -> FloatArray:
    """Draw quarterly gross profit over assets [N, Q], with a minimum of 0.5%."""
    mean_N = rng.normal(0.08, 0.025, n)
    noise_NQ = rng.normal(0.0, 0.008, (n, q))
    deviation_NQ = np.empty((n, q))
    deviation_NQ[:, 0] = noise_NQ[:, 0] / 0.6  # stationary start: sqrt(1 - 0.8^2) = 0.6
    for k in range(1, q):
        deviation_NQ[:, k] = 0.8 * deviation_NQ[:, k - 1] + noise_NQ[:, k]
    ratio: FloatArray = np.maximum(mean_N[:, None] + deviation_NQ, 0.005)
    return ratio
