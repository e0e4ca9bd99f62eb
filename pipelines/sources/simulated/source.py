"""The embedded source: a seeded market with a small mean planted in noise, its quotes, and its truth tables.

The return over (s, s+1] of firm i is ``common + own + mu``, with mu decided at the close of ``s - delay``:

    mu       = temporal + peer + characteristic
    temporal = -a * sum_k day_weights[k] * strength(regime[t-k]) * own[t-k] / idiosyncratic_volatility
    peer     =  b * sum_(j leads i with lag l) weight(rule, l) * shock_j[t+1-l]
    characteristic = c * z(z(book/market) + z(gross profit/assets) + 0.7 z(-log market equity))

shock_j is own_j divided by its long-run volatility; z ranks the listed firms and maps the ranks to a standard
normal distribution. Edges and premia are decided again every REVIEW_SESSIONS sessions with what is known at
that close. To find the scales a, b and c, the market is simulated with a first guess, measured, and simulated
again with the same draws. If the edges end before the market does, the scales are those of a market in which
they do not, so that both markets are equal up to that session.

Shape suffixes: T sessions, N firms, R reviews, L lags, K ages in sessions, P parts of mu, E edges, Q
quarters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.special import ndtri

from features.arrays import BoolArray, FloatArray
from features.information_coefficient import average_ranks
from pipelines.sources.base import SourceTables
from pipelines.sources.simulated.config import (
    HALTS_PER_YEAR,
    INDUSTRIES,
    REVERSAL_CALM,
    REVERSAL_TURBULENT,
    REVIEW_SESSIONS,
    SESSIONS_PER_YEAR,
    SIZE_GAP,
    MarketConfig,
)
from pipelines.sources.simulated.firms import (
    Index,
    Shocks,
    SimulatedFirms,
    SimulatedStatements,
    draw_firms,
    draw_shocks,
    draw_statements,
    fundamentals_frame,
    securities_frame,
    supplier_of,
)

PARTS: tuple[str, ...] = ("temporal", "peer", "characteristic")
_PASSES = 3


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedMarket:
    """A simulated market before prices are quoted; NaN where not listed, returns on the first session too."""

    dates_T: npt.NDArray[np.datetime64]
    firms: SimulatedFirms
    shocks: Shocks
    statements: SimulatedStatements
    live_TN: BoolArray
    returns_TN: FloatArray
    dividend_yield_TN: FloatArray  # of the cum-dividend price
    log_size_TN: FloatArray  # log of ex-dividend market equity (USD)
    mu_TNP: FloatArray  # parts of the mean decided at t, as PARTS
    reversal_TNK: FloatArray  # what the own return k sessions ago adds to the temporal part
    shock_TN: FloatArray  # own return over long-run volatility
    reviews: dict[int, Edges]  # session -> edges until the next review
    peer_scale: float  # return per unit of weight and shock


def simulate(config: MarketConfig, seed_sequence: np.random.SeedSequence) -> SimulatedMarket:
    """Simulate a market; each kind of draw has its own random stream."""
    firm_rng, common_rng, own_rng, statement_rng, dividend_rng, leader_rng = (
        np.random.Generator(np.random.PCG64(child)) for child in seed_sequence.spawn(6)
    )
    first = np.busday_offset(np.datetime64(config.start, "D"), 0, roll="forward")
    dates_T = np.busday_offset(first, np.arange(config.sessions))
    firms = draw_firms(config, firm_rng)
    shocks = draw_shocks(config, firms, common_rng, own_rng)
    statements = draw_statements(config, firms, dates_T, statement_rng)
    yield_TN = _dividend_yields(config.sessions, len(firms.ticker_N), dividend_rng)
    tables_2N = leader_rng.random((2, len(firms.ticker_N)))
    builder = _Builder(config, dates_T, firms, shocks, statements, yield_TN, tables_2N)
    shares_P = np.asarray(config.shares) / sum(config.shares)
    scale_P = np.sqrt(shares_P) * config.truth_ic * config.idiosyncratic_volatility
    market = builder.build(scale_P)
    if config.truth_ic == 0:
        return market
    for _ in range(_PASSES - 1):
        part_sd_P, mu_sd, ratio = _measure(market, config.delay)
        realised_P = np.divide(part_sd_P, scale_P, out=np.ones(len(PARTS)), where=scale_P > 0)
        # The parts hardly correlate, so scaling them to the right ratios keeps mu's size near mu_sd.
        target_sd = mu_sd * config.truth_ic / ratio
        scale_P = np.sqrt(shares_P) * target_sd / np.maximum(realised_P, 1e-12)
        market = builder.build(scale_P)
    return market if config.peer_until is None else builder.build(scale_P, config.peer_until)


@dataclass(frozen=True, slots=True, eq=False)
class _Builder:
    """Everything that does not depend on the strength of mu."""

    config: MarketConfig
    dates_T: npt.NDArray[np.datetime64]
    firms: SimulatedFirms
    shocks: Shocks
    statements: SimulatedStatements
    yield_TN: FloatArray
    tables_2N: FloatArray  # uniform draws of the two random tables of leaders

    def build(self, scale_P: FloatArray, peer_until: int | None = None) -> SimulatedMarket:
        """Simulate with the given scales of mu's parts; no edges from session ``peer_until`` on."""
        config, firms, shocks = self.config, self.firms, self.shocks
        n_sessions, n_firms = shocks.own_TN.shape
        live_TN = firms.live(n_sessions)
        shock_TN = shocks.own_TN / firms.volatility_N
        reversal_TNK = scale_P[0] * self._reversal(live_TN)
        mu_TNP = np.zeros((n_sessions, n_firms, len(PARTS)))
        mu_TNP[..., 0] = reversal_TNK.sum(axis=2)
        # Row s + MAX_LAG - 1 is session s: shocks before the first session are 0.
        padded_TN = np.vstack([np.zeros((MAX_LAG - 1, n_firms)), shock_TN])

        unforecast_TN = shocks.common_TN + shocks.own_TN
        returns_TN = unforecast_TN.copy()
        log_size_TN = np.empty((n_sessions, n_firms))
        log_size_TN[0] = firms.log_size_N
        done = 0  # log_size_TN is known up to here
        at_R = np.arange(0, n_sessions, REVIEW_SESSIONS)
        book_RN, profit_RN, assets_RN = (
            self.statements.as_of(item, self.dates_T[at_R])
            for item in ("book_equity", "gross_profit", "total_assets")
        )
        reviews: dict[int, Edges] = {}
        for r, start in enumerate(at_R.tolist()):
            stop = min(start + REVIEW_SESSIONS, n_sessions)
            leads_N = live_TN[start] & (peer_until is None or start < peer_until)
            book_to_market_N = np.log(book_RN[r]) - log_size_TN[start]
            priority_N = self._priority(start, log_size_TN[start], book_to_market_N)
            edges = review_edges(config, firms, priority_N, leads_N)
            reviews[start] = edges
            weights_LNN = edges.weights(n_firms)
            for lag in range(1, MAX_LAG + 1):
                rows = slice(start + MAX_LAG - lag, stop + MAX_LAG - lag)  # shocks of t + 1 - lag
                mu_TNP[start:stop, :, 1] += scale_P[1] * padded_TN[rows] @ weights_LNN[lag - 1].T
            premia = (book_to_market_N, profit_RN[r] / assets_RN[r], -log_size_TN[start])
            value_N, profit_N, small_N = (_rank_normal(premium_N, live_TN[start]) for premium_N in premia)
            score_N = _rank_normal(value_N + profit_N + 0.7 * small_N, live_TN[start])  # of unit variance
            mu_TNP[start:stop, :, 2] = scale_P[2] * score_N
            mu_TNP[start:stop][~live_TN[start:stop]] = 0.0
            earned_from, earned_to = start + 1 + config.delay, min(stop + 1 + config.delay, n_sessions)
            if earned_from < earned_to:
                decided_TNP = mu_TNP[start : start + earned_to - earned_from]
                returns_TN[earned_from:earned_to] += decided_TNP.sum(axis=2)
            # Sessions up to `delay` earn no mu, because no decision has taken effect yet.
            known = min(stop + config.delay, n_sessions - 1)
            new = slice(done + 1, known + 1)
            growth_TN = np.log1p(returns_TN[new]) + np.log1p(-self.yield_TN[new])
            earns_TN = np.arange(done + 1, known + 1)[:, None] > firms.first_N
            grown_TN = np.cumsum(np.where(earns_TN, growth_TN, 0.0), axis=0)
            log_size_TN[new] = log_size_TN[done] + grown_TN
            done = known
        earns_TN = live_TN & (np.arange(n_sessions)[:, None] > firms.first_N)
        mu_TNP[~live_TN] = np.nan
        reversal_TNK[~live_TN] = np.nan
        return SimulatedMarket(
            dates_T=self.dates_T,
            firms=firms,
            shocks=shocks,
            statements=self.statements,
            live_TN=live_TN,
            returns_TN=np.where(earns_TN, returns_TN, np.nan),
            dividend_yield_TN=np.where(earns_TN, self.yield_TN, 0.0),
            log_size_TN=np.where(live_TN, log_size_TN, np.nan),
            mu_TNP=mu_TNP,
            reversal_TNK=reversal_TNK,
            shock_TN=shock_TN,
            reviews=reviews,
            peer_scale=float(scale_P[1]),
        )

    def _priority(self, start: int, log_size_N: FloatArray, book_to_market_N: FloatArray) -> FloatArray:
        """Return what firms are ranked by at a review; no later listing displaces a random leader."""
        if self.config.leaders == "size":
            return log_size_N
        if self.config.leaders == "book_to_market":
            return np.nan_to_num(book_to_market_N, nan=-np.inf)  # no statement yet
        change = self.config.leaders_change
        second = change is not None and start >= change
        began = change if second and change is not None else 0
        priority_N: FloatArray = self.tables_2N[int(second)] - np.maximum(self.firms.first_N - began, 0)
        return priority_N

    def _reversal(self, live_TN: BoolArray) -> FloatArray:
        """Return each recent session's contribution to the temporal part, at scale 1: [T, N, K]."""
        strength_TN = np.where(self.shocks.turbulent_TN, REVERSAL_TURBULENT, REVERSAL_CALM)
        own_TN = -strength_TN * self.shocks.own_TN / self.config.idiosyncratic_volatility
        weights_K = self.config.day_weights
        aged_TNK = np.zeros((*own_TN.shape, len(weights_K)))
        for age, strength in enumerate(weights_K):
            aged_TNK[age:, :, age] = strength * own_TN[: len(own_TN) - age]
        aged_TNK[~live_TN] = 0.0
        return aged_TNK


def returns_affected(values_TN: FloatArray, delay: int) -> FloatArray:
    """Shift returns to the decision that affects them: row t is the return of t+1+delay, NaN at the end."""
    moved_TN = np.full_like(values_TN, np.nan)
    moved_TN[: len(values_TN) - 1 - delay] = values_TN[1 + delay :]
    return moved_TN


def _measure(market: SimulatedMarket, delay: int) -> tuple[FloatArray, float, float]:
    """Return the deviations of the parts and of mu within dates, and the mean of sd(mu) / sd(return)."""
    paid_TN = returns_affected(market.returns_TN, delay)
    known_TN = np.isfinite(paid_TN) & market.live_TN
    wide_T = known_TN.sum(axis=1) > 2
    parts_TNP = np.where(known_TN[..., None], market.mu_TNP, np.nan)[wide_T]
    mu_TN = parts_TNP.sum(axis=2)
    part_sd_P = np.sqrt(np.nanmean(np.nanvar(parts_TNP, axis=1), axis=0))
    mu_sd_T = np.nanstd(mu_TN, axis=1)
    return_sd_T = np.nanstd(np.where(known_TN, paid_TN, np.nan)[wide_T], axis=1)
    return part_sd_P, float(np.sqrt(np.mean(mu_sd_T**2))), float(np.mean(mu_sd_T / return_sd_T))


def _rank_normal(x_N: FloatArray, live_N: BoolArray) -> FloatArray:
    """Rank to a normal over the listed firms with a known value; 0 for all others."""
    known_N = live_N & np.isfinite(x_N)
    z_N = np.zeros(len(x_N))
    z_N[known_N] = ndtri((average_ranks(x_N[None, known_N])[0] - 0.5) / max(known_N.sum(), 1))
    return z_N


def _dividend_yields(n_sessions: int, n_firms: int, rng: np.random.Generator) -> FloatArray:
    """Draw dividends over cum-dividend prices: six firms in ten pay 1% to 4% a year, quarterly."""
    pays_N = rng.random(n_firms) < 0.6
    quarterly_N = np.where(pays_N, rng.uniform(0.01, 0.04, n_firms) / 4.0, 0.0)
    phase_N = rng.integers(0, 63, n_firms)
    ex_TN = np.arange(n_sessions)[:, None] % 63 == phase_N
    yield_TN: FloatArray = np.where(ex_TN, quarterly_N, 0.0)
    return yield_TN


WEIGHTS_BY_LAG: dict[str, dict[int, float]] = {
    "industry": {1: 1.0, 2: 0.6},
    "supplier": {1: 0.8, 3: 0.5},
    "supplier_of_supplier": {2: 0.6},
    "hidden": {1: 0.8},
}
"""Rule -> lag in sessions -> relative weight; lag 1 is the first session after the decision.

A rule says who leads whom. Firms of an industry are ranked by size, by book-to-market or by
a random table (``leaders``). ``industry``: its first firms lead its others; where size leads, those that are
smaller by a factor of at least `SIZE_GAP`. ``supplier``: the first firm of the supplier industry leads
every firm of the customer industry. ``supplier_of_supplier``: so does the first firm of the supplier's
supplier, two hops away through the supplier's first firm. ``hidden``: a randomly drawn firm leads its
follower.
"""
RULES: tuple[str, ...] = tuple(WEIGHTS_BY_LAG)
MAX_LAG = 3


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Edges at one review: firm indices, index into RULES, and index of the firm in between (-1: none)."""

    leader_E: Index
    follower_E: Index
    rule_E: Index
    via_E: Index

    def weights(self, n_firms: int) -> FloatArray:
        """Return relative weights [L, follower N, leader N] for lags 1 to MAX_LAG."""
        weights_LNN = np.zeros((MAX_LAG, n_firms, n_firms))
        for code, rule in enumerate(RULES):
            of_rule_E = self.rule_E == code
            for lag, weight in WEIGHTS_BY_LAG[rule].items():
                weights_LNN[lag - 1, self.follower_E[of_rule_E], self.leader_E[of_rule_E]] = weight
        return weights_LNN


def review_edges(
    config: MarketConfig, firms: SimulatedFirms, priority_N: FloatArray, live_N: BoolArray
) -> Edges:
    """Decide the edges of a review: the listed firms with the highest priority lead."""
    edges: list[tuple[int, int, int, int]] = []  # leader, follower, rule, firm in between

    def add(leading: int, following_E: Index, code: int, through: int = -1) -> None:
        edges.extend((leading, follower, code, through) for follower in following_E.tolist())

    ranked = [
        members_N[np.argsort(-priority_N[members_N], kind="stable")]
        for code in range(len(INDUSTRIES))
        for members_N in (np.flatnonzero(live_N & (firms.industry_N == code)),)
    ]
    supplier = supplier_of()
    for code, members in enumerate(ranked):
        for j in members[:1]:
            follows_E = members != j
            if config.leaders == "size":
                follows_E &= priority_N[j] - priority_N[members] >= np.log(SIZE_GAP)
            add(int(j), members[follows_E], 0)
        if supplier[code] < 0 or not len(ranked[supplier[code]]):
            continue
        j = ranked[supplier[code]][0]
        add(int(j), members, 1)
        beyond = supplier[supplier[code]]
        if beyond >= 0 and len(ranked[beyond]):
            add(int(ranked[beyond][0]), members, 2, int(j))
    hidden_N = np.flatnonzero(live_N & (firms.hidden_leader_N >= 0) & live_N[firms.hidden_leader_N])
    for i in hidden_N:
        add(int(firms.hidden_leader_N[i]), np.asarray([i]), 3)
    return Edges(*np.asarray(edges, dtype=np.int64).reshape(-1, 4).T)


def edges_frame(market: SimulatedMarket, leaders: str) -> pl.DataFrame:
    """Return the edges as a table, one row per leader, follower, lag and spell of consecutive reviews.

    ``weight`` is the return per unit of the leader's shock. A row acts on decision dates in [valid_from,
    valid_to); ``valid_to`` is null if it holds to the end. ``led_by`` is ``random`` for hidden edges.
    """
    key = ["leader", "follower", "rule", "via"]
    frame = pl.concat(
        pl.DataFrame(dict(zip(key, (e.leader_E, e.follower_E, e.rule_E, e.via_E), strict=True))).with_columns(
            review=pl.lit(k, dtype=pl.Int64)
        )
        for k, e in enumerate(market.reviews.values())
    )
    spells = (
        frame.sort(*key, "review")
        .with_columns(spell=pl.col("review") - pl.int_range(pl.len()).over(key))  # constant while unbroken
        .group_by(*key, "spell", maintain_order=True)
        .agg(first=pl.col("review").min(), last=pl.col("review").max())
    )
    lags = [
        (code, lag, market.peer_scale * weight)
        for code, rule in enumerate(RULES)
        for lag, weight in WEIGHTS_BY_LAG[rule].items()
    ]
    kinds = {"rule": pl.Int64, "lag": pl.Int64, "weight": pl.Float64}
    by_lag = pl.DataFrame(lags, schema=kinds, orient="row")
    rows = spells.join(by_lag, on="rule", maintain_order="left_right")
    rule = pl.Series([RULES[code] for code in rows["rule"]], dtype=pl.String)
    by_rule, ticker = rule != "hidden", pl.Series(market.firms.ticker_N)
    review_date = pl.Series([*market.dates_T[list(market.reviews)].astype("datetime64[D]").tolist(), None])
    return rows.select(
        ticker[rows["leader"]].alias("leader"),
        ticker[rows["follower"]].alias("follower"),
        "lag",
        "weight",
        hop=pl.when(rule == "supplier_of_supplier").then(2).otherwise(1),
        explained=by_rule & (leaders != "random"),
        rule=rule,
        led_by=pl.when(by_rule).then(pl.lit(leaders)).otherwise(pl.lit("random")),
        via=pl.Series([None if v < 0 else ticker[v] for v in rows["via"]], dtype=pl.String),
        valid_from=review_date[rows["first"]],
        valid_to=review_date[rows["last"] + 1],
    )


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
