"""The unforecastable part of simulated returns: market, sectors, industries and firms' own shocks.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.arrays import BoolArray, FloatArray
from pipelines.sources.simulated.config import INDUSTRIES, MarketConfig
from pipelines.sources.simulated.firms import Firms

_TAIL = 6.0  # degrees of freedom of every Student-t
_GARCH_NEWS, _GARCH_MEMORY = 0.08, 0.90
_MARKET_DRIFT = 0.0004
_SECTOR_VOLATILITY, _INDUSTRY_VOLATILITY = 0.0025, 0.0025
_TURBULENCE = 3.0  # standard deviation of turbulent over calm days
_BECOMES_TURBULENT, _BECOMES_CALM = 0.09, 0.22


@dataclass(frozen=True, slots=True, eq=False)
class Shocks:
    """Unforecastable returns: ``common_TN + own_TN``.

    ``own_TN`` is 0 before a firm's second listed session and after its last one. ``volatility_TN`` is the
    standard deviation of a firm's total return on the day, given the day's market volatility and regime.
    """

    common_TN: FloatArray
    own_TN: FloatArray
    turbulent_TN: BoolArray
    volatility_TN: FloatArray


def draw_shocks(
    config: MarketConfig, firms: Firms, common_rng: np.random.Generator, own_rng: np.random.Generator
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
    long_run = config.market_volatility**2
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
