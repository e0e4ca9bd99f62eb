"""Every characteristic and channel against slow scalar references; windows, warm-up and causality.

The references compute one firm and one session at a time, on the market of `random_markets`. They share no
code with the package.

This file is long because every feature has a slow reference of its own.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_markets import (
    DAYS,
    MAX_HALT,
    SESSIONS,
    TICKERS,
    FloatArray,
    N,
    T,
    Tables,
    nan,
    panel_of,
    quarter_end,
    random_tables,
)
from scipy import stats

from features.library.channels import CHANNELS
from features.library.characteristics import (
    CHARACTERISTICS,
)
from features.library.registry import Feature
from features.panel.panel import Panel, build_panel
from features.panel.universe import UniverseRule, universe


@dataclass(frozen=True)
class Firm:
    """One firm's series as plain arrays over sessions; NaN where unknown."""

    close: FloatArray
    open: FloatArray
    high: FloatArray
    low: FloatArray
    raw: FloatArray
    volume: FloatArray
    r: FloatArray
    group: list[str | None]
    splits: list[float]
    filed: dict[str, list[dict[str, Any]]]

    def last(self, t: int) -> float:
        """Last adjusted close at or before t, at most 20 sessions old."""
        known = [c for c in self.close[max(t - MAX_HALT, 0) : max(t + 1, 0)] if not math.isnan(c)]
        return known[-1] if known else nan

    def dv(self) -> FloatArray:
        return self.raw * self.volume

    def item(self, name: str, t: int, years: int = 0) -> float:
        """A statement's value as known at t, or that of four quarters earlier; flows cover one year."""
        versions: dict[int, float] = {}
        for row in self.filed.get(name, []):  # in the order in which they became known
            if row["known_at"] <= DAYS[t]:
                versions[row["k"]] = row["value"]
        if not versions or (DAYS[t] - quarter_end(max(versions))).days > 548:
            return nan
        k = max(versions) - 4 * years
        if self.filed[name][0]["months"] == 3:
            return sum(versions.get(j, nan) for j in range(k - 3, k + 1))
        value = versions.get(k, nan)
        if name == "shares_outstanding":
            value *= math.prod(self.splits[s] for s in range(t + 1) if DAYS[s] > quarter_end(k))
        return value


def follow(tables: Tables, ticker: str) -> Firm:
    """Follow one share: splits multiply it, and dividends are reinvested at the next close."""
    rows = {row["date"]: row for row in tables["prices"].filter(pl.col("ticker") == ticker).to_dicts()}
    names = ("close", "open", "high", "low", "raw", "volume", "r")
    series = {name: np.full(T, nan) for name in names}
    shares, cash, before, since = 1.0, 0.0, nan, 0
    splits = []
    for t, day in enumerate(DAYS):
        row = rows.get(day, {"close": None, "split_ratio": 1.0, "dividend": 0.0})
        shares *= row["split_ratio"]
        splits.append(row["split_ratio"])
        cash += shares * row["dividend"]
        if row["close"] is None:
            continue
        shares, cash = shares + cash / row["close"], 0.0
        series["raw"][t], series["volume"][t] = row["close"], row["volume"]
        for name in ("close", "open", "high", "low"):
            series[name][t] = nan if row[name] is None else shares * row[name]
        series["r"][t] = nan if t - since > MAX_HALT + 1 else series["close"][t] / before - 1
        before, since = series["close"][t], t
    rows_of = (
        tables["fundamentals"].filter(pl.col("ticker") == ticker).sort("known_at", "period_end").to_dicts()
    )
    filed: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of:
        filed.setdefault(row["item"], []).append(row | {"k": (row["period_end"] - quarter_end(0)).days // 91})
    spells = tables["securities"].filter(pl.col("ticker") == ticker).to_dicts()
    group = [
        next(
            (
                s["industry"]
                for s in spells
                if s["valid_from"] <= d and (s["valid_to"] is None or d < s["valid_to"])
            ),
            None,
        )
        for d in DAYS
    ]
    return Firm(**series, group=group, splits=splits, filed=filed)


def same_weekday(f: Firm, t: int) -> float:
    """The mean of the last 20 weeks on the next weekday (Monday to Friday), by pandas."""
    days = pd.DatetimeIndex(DAYS[: t + 1])
    following = days[-1] + pd.offsets.BDay(1)
    alike = (days >= following - pd.Timedelta(weeks=20)) & (days.day_name() == following.day_name())
    known = pd.Series(f.r[: t + 1])[alike].dropna()
    return float(known.mean()) if len(known) >= 10 else nan


class Market:
    """All firms, with the scalar formulas."""

    def __init__(self, tables: Tables) -> None:
        self.firms = [follow(tables, ticker) for ticker in TICKERS]
        returns = np.array([firm.r for firm in self.firms])
        means = [float(np.mean(c[~np.isnan(c)])) if (~np.isnan(c)).any() else nan for c in returns.T]
        self.m = np.array(means)
        self.residuals: dict[int, FloatArray] = {}
        self.series: dict[tuple[str, int], FloatArray] = {}
        self.beyond: list[FloatArray] = []

    def window(self, x: FloatArray, t: int, w: int, least: int) -> FloatArray | None:
        part = x[max(t - w + 1, 0) : t + 1]
        part = part[~np.isnan(part)]
        return part if len(part) >= least else None

    def trailing(self, f: Firm, t: int, w: int, skip: int = 0) -> float:
        return f.last(t - skip) / f.last(t - w) - 1

    def peers(self, f: Firm, t: int, w: int, skip: int = 0) -> float:
        of_group = [
            self.trailing(g, t, w, skip)
            for g in self.firms
            if f.group[t] is not None and g.group[t] == f.group[t] and not math.isnan(g.close[t])
        ]
        of_group = [x for x in of_group if not math.isnan(x)]
        return float(np.mean(of_group)) if len(of_group) >= 2 else nan

    def pairs(
        self, y: FloatArray, x: FloatArray, t: int, w: int, least: int
    ) -> tuple[FloatArray, FloatArray]:
        """Sessions of the window on which both are known; empty if there are too few."""
        at = [s for s in range(max(t - w + 1, 0), t + 1) if not math.isnan(y[s]) and not math.isnan(x[s])]
        return (y[at], x[at]) if len(at) >= least else (np.array([]), np.array([]))

    def fit(
        self, f: Firm, t: int, w: int = 63, least: int = 0, falling: bool = False
    ) -> tuple[float, FloatArray]:
        """Slope and residuals of the firm's returns on the market's."""
        m = np.where(self.m < 0, self.m, nan) if falling else self.m
        y, x = self.pairs(f.r, m, t, w, least or (w + 1) // 2)
        if len(y) < 3:
            return nan, np.array([])
        design = np.column_stack([np.ones(len(x)), x])
        coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
        return float(coefficients[1]), y - design @ coefficients

    def residual_returns(self, f: Firm) -> FloatArray:
        """The firm's residual_return_1 of every session."""
        if id(f) not in self.residuals:
            beta = [self.fit(f, t)[0] for t in range(T)]
            self.residuals[id(f)] = f.r - np.array([nan, *beta[:-1]]) * self.m
        return self.residuals[id(f)]

    def residualise_factors(self) -> list[FloatArray]:
        """Residual returns of all firms on two components of the 252 sessions before each month."""
        if not self.beyond:
            returns = np.array([firm.r for firm in self.firms])
            residual = np.full(returns.shape, nan)
            starts = [t for t in range(126, T) if DAYS[t].month != DAYS[t - 1].month]
            for start, end in zip(starts, [*starts[1:], T], strict=True):
                past = returns[:, max(0, start - 252) : start]
                live = [i for i in range(N) if (~np.isnan(past[i])).sum() >= past.shape[1] // 2]
                spread = {i: float(np.nanstd(past[i])) for i in live}
                scores = [np.nan_to_num((past[i] - np.nanmean(past[i])) / spread[i]) for i in live]
                common = np.linalg.svd(np.clip(scores, -4, 4), full_matrices=False)[0][:, : len(live) // 4]
                for t in range(start, end):
                    at = [k for k, i in enumerate(live) if not math.isnan(returns[i, t])]
                    design = np.array([[1 / spread[live[k]], *common[k]] for k in at])
                    if len(at) < 2 * (1 + common.shape[1]):
                        continue
                    y = np.array([returns[live[k], t] / spread[live[k]] for k in at])
                    fit = design @ np.linalg.lstsq(design, np.clip(y, -4, 4), rcond=None)[0]
                    for k, left in zip(at, y - fit, strict=True):
                        residual[live[k], t] = left * spread[live[k]]
            self.beyond = list(residual)
        return self.beyond

    def factor_residual(self, f: Firm) -> FloatArray:
        return self.residualise_factors()[next(i for i, firm in enumerate(self.firms) if firm is f)]

    def statistic(
        self, x: FloatArray, t: int, w: int, least: int, of: Callable[[FloatArray], float | np.floating[Any]]
    ) -> float:
        part = self.window(x, t, w, least)
        return nan if part is None else float(of(part))


Reference = Callable[[Market, Firm, int], float]


def half(w: int) -> int:
    return (w + 1) // 2


def mean_of(values: list[float], least: int) -> float:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if len(known) >= least else nan


def deviation(x: FloatArray) -> float:
    return float(np.std(x, ddof=1))


def sgn(x: float) -> float:
    return 0.0 if abs(x) < 1e-12 else math.copysign(1.0, x)


def corr(y: FloatArray, x: FloatArray) -> float:
    return float(np.corrcoef(y, x)[0, 1]) if len(y) else nan


def price_references() -> dict[str, Reference]:
    """Return the scalar formulas of characteristics from prices and volumes, by name."""
    out: dict[str, Reference] = {}

    def returns(w: int) -> None:
        out[f"return_{w}"] = lambda m, f, t: m.trailing(f, t, w)
        out[f"factor_residual_{w}"] = lambda m, f, t: (
            m.statistic(m.factor_residual(f), t, w, half(w), np.mean) / m.statistic(f.r, t, 63, 32, deviation)
        )

    def lagged_return(k: int) -> None:
        out[f"lagged_return_{k}"] = lambda m, f, t: f.r[t - k] if t >= k else nan

    def average_distance(w: int) -> None:
        out[f"average_distance_{w}"] = lambda m, f, t: (
            f.close[t] / np.mean([f.last(t - j) for j in range(w)]) - 1
        )

    def group_relative_return(w: int) -> None:
        out[f"group_relative_return_{w}"] = lambda m, f, t: m.trailing(f, t, w) - m.peers(f, t, w)

    def volume_trend(name: str, w: int, long: int) -> None:
        out[name] = lambda m, f, t: math.log(
            m.statistic(f.dv(), t, w, half(w), np.mean) / m.statistic(f.dv(), t, long, half(long), np.mean)
        )

    def group_return(w: int) -> None:
        out[f"group_return_{w}"] = lambda m, f, t: m.peers(f, t, w)

    def volatility(w: int) -> None:
        out[f"volatility_{w}"] = lambda m, f, t: m.statistic(f.r, t, w, half(w), deviation)

    def momentum(w: int, skip: int) -> None:
        name = f"momentum_{w}_{skip}" if skip else f"momentum_{w}"
        out[name] = lambda m, f, t: m.trailing(f, t, w, skip)

    def beta(w: int) -> None:
        out[f"beta_{w}"] = lambda m, f, t: m.fit(f, t, w)[0]

    def idiosyncratic_volatility(w: int) -> None:
        out[f"idiosyncratic_volatility_{w}"] = lambda m, f, t: standard_error(m.fit(f, t, w)[1])

    def liquidity(w: int) -> None:
        out[f"zero_return_days_{w}"] = lambda m, f, t: m.statistic(
            f.r, t, w, half(w), lambda x: np.mean(np.abs(x) < 1e-12)
        )
        out[f"amihud_{w}"] = lambda m, f, t: (
            1e6
            * m.statistic(
                np.array([abs(r) / v if v > 0 else nan for r, v in zip(f.r, f.dv(), strict=True)]),
                *(t, w, half(w), np.mean),
            )
        )
        out[f"turnover_{w}"] = lambda m, f, t: m.statistic(turnover(m, f), t, w, half(w), np.mean)

    def residual_return(w: int) -> None:
        out[f"residual_return_{w}"] = lambda m, f, t: m.statistic(
            m.residual_returns(f), t, w, half(w), np.mean
        )

    for add, windows in (
        (returns, (1, 2, 3, 5, 10, 21)),
        (lagged_return, (1, 2, 3, 4)),
        (average_distance, (5, 10, 20, 30, 50, 200)),
        (group_relative_return, (1, 5, 21)),
        (group_return, (1, 5, 21, 126)),
        (volatility, (5, 21, 63, 252)),
        (beta, (63, 252)),
        (idiosyncratic_volatility, (21, 63)),
        (liquidity, (21, 252)),
        (residual_return, (5, 21)),
    ):
        for w in windows:
            add(w)
    volume_trend("volume_surprise_1", 1, 21)
    volume_trend("volume_surprise_5", 5, 21)
    volume_trend("volume_trend_5_63", 5, 63)
    volume_trend("volume_trend_21_126", 21, 126)
    for w, skip in ((63, 0), (126, 0), (126, 21), (252, 21), (252, 126)):
        momentum(w, skip)
    span: Callable[[Firm], FloatArray] = lambda f: np.log(f.high / f.low)  # noqa: E731
    night: Callable[[Firm, int], float] = lambda f, t: f.open[t] / f.last(t - 1) - 1  # noqa: E731
    return out | {
        "overnight_return": lambda m, f, t: night(f, t),
        "overnight_return_21": lambda m, f, t: mean_of([night(f, s) for s in range(t - 20, t + 1)], 11),
        "intraday_return_21": lambda m, f, t: m.statistic(f.close / f.open - 1, t, 21, 11, np.mean),
        "high_return": lambda m, f, t: f.high[t] / f.last(t - 1) - 1,
        "market_component_1": lambda m, f, t: m.fit(f, t - 1)[0] * m.m[t],
        "intraday_return": lambda m, f, t: f.close[t] / f.open[t] - 1,
        "close_location": lambda m, f, t: (f.close[t] - f.low[t]) / (f.high[t] - f.low[t]),
        "long_reversal_756_252": lambda m, f, t: m.trailing(f, t, 756, 252),
        "autocorrelation_63": lambda m, f, t: corr(*m.pairs(f.r, np.array([nan, *f.r[:-1]]), t, 63, 32)),
        "high_distance_252": lambda m, f, t: f.close[t] / m.statistic(f.close, t, 252, 126, np.max) - 1,
        "low_distance_252": lambda m, f, t: f.close[t] / m.statistic(f.close, t, 252, 126, np.min) - 1,
        "momentum_change_126": lambda m, f, t: (
            m.trailing(f, t, 126) - (f.last(t - 126) / f.last(t - 252) - 1)
        ),
        "group_relative_momentum_252_21": lambda m, f, t: m.trailing(f, t, 252, 21) - m.peers(f, t, 252, 21),
        "information_discreteness_252_21": lambda m, f, t: (
            -np.sign(m.trailing(f, t, 252, 21))
            * m.statistic(f.r, t - 21, 231, 116, lambda x: np.mean([sgn(v) for v in x]))
        ),
        "residual_momentum_252_21": lambda m, f, t: m.statistic(
            m.residual_returns(f), t - 21, 231, 116, lambda x: np.mean(x) / np.std(x, ddof=1)
        ),
        "same_month_return_1y": lambda m, f, t: f.last(t - 231) / f.last(t - 252) - 1,
        "same_month_return_3y": lambda m, f, t: mean_of(
            [m.trailing(f, t - 231 - 252 * k, 21) for k in range(3)], 2
        ),
        "same_weekday_return_100": lambda m, f, t: same_weekday(f, t),
        "parkinson_21": lambda m, f, t: math.sqrt(
            m.statistic(span(f) ** 2, t, 21, 11, np.mean) / 4 / math.log(2)
        ),
        "garman_klass_21": lambda m, f, t: math.sqrt(
            m.statistic(
                span(f) ** 2 / 2 - (2 * math.log(2) - 1) * np.log(f.close / f.open) ** 2, t, 21, 11, np.mean
            )
        ),
        "rogers_satchell_21": lambda m, f, t: math.sqrt(
            m.statistic(
                np.log(f.high / f.close) * np.log(f.high / f.open)
                + np.log(f.low / f.close) * np.log(f.low / f.open),
                *(t, 21, 11, np.mean),
            )
        ),
        "range": lambda m, f, t: span(f)[t],
        "range_surprise_21": lambda m, f, t: span(f)[t] / m.statistic(span(f), t, 21, 11, np.mean) - 1,
        "maximum_return_21": lambda m, f, t: m.statistic(f.r, t, 21, 11, np.max),
        "minimum_return_21": lambda m, f, t: m.statistic(f.r, t, 21, 11, np.min),
        "skewness_63": lambda m, f, t: m.statistic(f.r, t, 63, 32, stats.skew),
        "kurtosis_63": lambda m, f, t: m.statistic(f.r, t, 63, 32, lambda x: stats.kurtosis(x, fisher=False)),
        "downside_share_63": lambda m, f, t: m.statistic(
            f.r, t, 63, 32, lambda x: np.sum(x[x < 0] ** 2) / np.sum(x**2)
        ),
        "volatility_surprise_5_63": lambda m, f, t: math.log(
            m.statistic(f.r, t, 5, 3, deviation) / m.statistic(f.r, t, 63, 32, deviation)
        ),
        "downside_beta_252": lambda m, f, t: m.fit(f, t, 252, 63, falling=True)[0],
        "market_correlation_252": lambda m, f, t: corr(*m.pairs(f.r, m.m, t, 252, 126)),
        "idiosyncratic_skewness_252": lambda m, f, t: float(stats.skew(m.fit(f, t, 252)[1])),
        "coskewness_252": lambda m, f, t: coskewness(m.fit(f, t, 252)[1], m.pairs(f.r, m.m, t, 252, 126)[1]),
        "residual_return_1": lambda m, f, t: f.r[t] - m.fit(f, t - 1)[0] * m.m[t],
        "log_dollar_volume_21": lambda m, f, t: math.log(m.statistic(f.dv(), t, 21, 11, np.mean)),
        "dollar_volume_variation_63": lambda m, f, t: m.statistic(
            f.dv(), t, 63, 32, lambda x: np.std(x, ddof=1) / np.mean(x)
        ),
        "signed_volume_21": lambda m, f, t: signed(*m.pairs(f.r, f.dv(), t, 21, 11)),
        "return_volume_correlation_63": lambda m, f, t: corr(*m.pairs(f.r, surprise(m, f), t, 63, 32)),
        "roll_spread_63": lambda m, f, t: bounce(*m.pairs(f.r, np.array([nan, *f.r[:-1]]), t, 63, 32)),
        "corwin_schultz_21": lambda m, f, t: mean_of([two_days(f, s) for s in range(t - 20, t + 1)], 11),
        "log_price": lambda m, f, t: math.log(f.raw[t]),
    }


def standard_error(residual: FloatArray) -> float:
    return math.sqrt(float(residual @ residual) / (len(residual) - 2)) if len(residual) else nan


def coskewness(e: FloatArray, x: FloatArray) -> float:
    if not len(e):
        return nan
    d2 = (x - x.mean()) ** 2
    return float(np.mean(e * d2) / (math.sqrt(np.mean(e**2)) * np.mean(d2)))


def signed(r: FloatArray, volume: FloatArray) -> float:
    return float(sum(sgn(a) * b for a, b in zip(r, volume, strict=True)) / volume.sum())


def bounce(r: FloatArray, before: FloatArray) -> float:
    if not len(r):
        return nan
    return 2 * math.sqrt(max(-float(np.mean((r - r.mean()) * (before - before.mean()))), 0.0))


def surprise(m: Market, f: Firm) -> FloatArray:
    """volume_surprise_1 of every session."""
    if ("dv", id(f)) not in m.series:
        daily = [m.statistic(f.dv(), t, 21, 11, np.mean) for t in range(T)]
        m.series["dv", id(f)] = np.array([math.log(v / a) if v > 0 else nan for v, a in zip(f.dv(), daily)])  # noqa: B905
    return m.series["dv", id(f)]


def turnover(m: Market, f: Firm) -> FloatArray:
    """Volume over the shares outstanding known at each session."""
    if ("turnover", id(f)) not in m.series:
        daily = [f.volume[t] / f.item("shares_outstanding", t) for t in range(T)]
        m.series["turnover", id(f)] = np.array(daily)
    return m.series["turnover", id(f)]


def two_days(f: Firm, s: int) -> float:
    """Corwin-Schultz spread from the bars of two sessions; the bar of s is shifted by the overnight gap."""
    if s < 1 or any(math.isnan(x[u]) for x in (f.high, f.low) for u in (s - 1, s)):
        return nan
    high, low, close = f.high[s], f.low[s], f.close[s - 1]
    beta = math.log(high / low) ** 2 + math.log(f.high[s - 1] / f.low[s - 1]) ** 2
    move = close / high if close > high else close / low if close < low else 1.0
    gamma = math.log(max(high * move, f.high[s - 1]) / min(low * move, f.low[s - 1])) ** 2
    k = 3 - 2 * math.sqrt(2)
    alpha = (math.sqrt(2 * beta) - math.sqrt(beta)) / k - math.sqrt(gamma / k)
    return max(2 * (math.exp(alpha) - 1) / (1 + math.exp(alpha)), 0.0)


def over(a: float, b: float) -> float:
    return a / b if b > 0 else nan


def statement_references() -> dict[str, Reference]:
    """Return the scalar formulas of characteristics from statements, by name."""

    def market_value(f: Firm, t: int) -> float:
        return f.item("shares_outstanding", t) * float(f.raw[t])

    def debt(f: Firm, t: int, years: int = 0) -> float:
        parts = [f.item(f"{term}_term_debt", t, years) for term in ("short", "long")]
        return nan if all(map(math.isnan, parts)) else float(np.nansum(parts))

    def working(f: Firm, t: int, years: int) -> float:
        current = f.item("current_assets", t, years) - f.item("cash", t, years)
        return current - (f.item("current_liabilities", t, years) - f.item("short_term_debt", t, years))

    def quotient(a: str, b: str) -> Reference:
        return lambda m, f, t: over(f.item(a, t), f.item(b, t))

    def to_market(a: str) -> Reference:
        return lambda m, f, t: over(f.item(a, t), market_value(f, t))

    def growth(a: str) -> Reference:
        return lambda m, f, t: over(f.item(a, t), f.item(a, t, 1)) - 1

    def change(a: str, b: str) -> Reference:
        return lambda m, f, t: over(f.item(a, t), f.item(b, t)) - over(f.item(a, t, 1), f.item(b, t, 1))

    def to_old_assets(of: Callable[[Firm, int, int], float]) -> Reference:
        return lambda m, f, t: over(of(f, t, 0) - of(f, t, 1), f.item("total_assets", t, 1))

    assets, revenue, equity = "total_assets", "revenue", "book_equity"
    return {
        "log_market_equity": lambda m, f, t: math.log(market_value(f, t)),
        "log_total_assets": lambda m, f, t: math.log(f.item(assets, t)),
        "log_revenue": lambda m, f, t: math.log(f.item(revenue, t)),
        "book_to_market": to_market(equity),
        "earnings_yield": to_market("net_income"),
        "sales_yield": to_market(revenue),
        "cash_flow_yield": to_market("operating_cash_flow"),
        "free_cash_flow_yield": lambda m, f, t: over(
            f.item("operating_cash_flow", t) - f.item("capital_expenditure", t), market_value(f, t)
        ),
        "dividend_yield": to_market("dividends_paid"),
        "research_to_market": to_market("research_and_development"),
        "cash_to_market": to_market("cash"),
        "assets_to_market": to_market(assets),
        "debt_to_market": lambda m, f, t: over(debt(f, t), market_value(f, t)),
        "operating_income_to_enterprise_value": lambda m, f, t: over(
            f.item("operating_income", t), market_value(f, t) + debt(f, t) - f.item("cash", t)
        ),
        "gross_profitability": quotient("gross_profit", assets),
        "return_on_assets": quotient("net_income", assets),
        "cash_profitability": quotient("operating_cash_flow", assets),
        "asset_turnover": quotient(revenue, assets),
        "accruals": lambda m, f, t: over(
            f.item("net_income", t) - f.item("operating_cash_flow", t), f.item(assets, t)
        ),
        "research_to_assets": quotient("research_and_development", assets),
        "capex_to_assets": quotient("capital_expenditure", assets),
        "leverage": quotient("total_liabilities", assets),
        "debt_to_assets": lambda m, f, t: over(debt(f, t), f.item(assets, t)),
        "cash_to_assets": quotient("cash", assets),
        "tangibility": quotient("fixed_assets", assets),
        "retained_earnings_to_assets": quotient("retained_earnings", assets),
        "return_on_equity": quotient("net_income", equity),
        "operating_profitability": quotient("operating_income", equity),
        "gross_margin": quotient("gross_profit", revenue),
        "operating_margin": quotient("operating_income", revenue),
        "net_margin": quotient("net_income", revenue),
        "research_to_sales": quotient("research_and_development", revenue),
        "current_ratio": quotient("current_assets", "current_liabilities"),
        "interest_coverage": quotient("operating_income", "interest_expense"),
        "working_capital_accruals": to_old_assets(working),
        "asset_growth": growth(assets),
        "revenue_growth": growth(revenue),
        "book_equity_growth": growth(equity),
        "research_growth": growth("research_and_development"),
        "capex_growth": growth("capital_expenditure"),
        "inventory_change": to_old_assets(lambda f, t, y: f.item("inventory", t, y)),
        "investment_to_assets": to_old_assets(
            lambda f, t, y: f.item("fixed_assets", t, y) + f.item("inventory", t, y)
        ),
        "debt_change": to_old_assets(debt),
        "earnings_change": to_old_assets(lambda f, t, y: f.item("net_income", t, y)),
        "gross_margin_change": change("gross_profit", revenue),
        "operating_margin_change": change("operating_income", revenue),
        "net_margin_change": change("net_income", revenue),
        "return_on_assets_change": change("net_income", assets),
        "asset_turnover_change": change(revenue, assets),
        "current_ratio_change": change("current_assets", "current_liabilities"),
        "leverage_change": change("total_liabilities", assets),
        "cash_change": change("cash", assets),
        "capex_change": change("capital_expenditure", assets),
        "asset_growth_252": lambda m, f, t: over(f.item(assets, t), f.item(assets, t - 252)) - 1,
        "net_share_issuance": lambda m, f, t: math.log(
            f.item("shares_outstanding", t) / f.item("shares_outstanding", t, 1)
        ),
    }


REFERENCES = price_references() | statement_references()


CHANNEL_REFERENCES: dict[str, Reference] = {
    "return": lambda m, f, t: f.r[t],
    "overnight_return": lambda m, f, t: f.open[t] / f.last(t - 1) - 1,
    "intraday_range": lambda m, f, t: math.log(f.high[t] / f.low[t]),
    "centred_close_location": lambda m, f, t: (
        0.0 if f.high[t] == f.low[t] else (f.close[t] - f.low[t]) / (f.high[t] - f.low[t]) - 0.5
    ),
    "dollar_volume_surprise": lambda m, f, t: math.log(
        f.raw[t] * f.volume[t] / m.statistic(f.raw * f.volume, t, 21, 11, np.mean)
    ),
    "market_relative_return": lambda m, f, t: f.r[t] - m.m[t],
    "group_relative_return": lambda m, f, t: f.r[t] - m.peers(f, t, 1),
    "scaled_return": lambda m, f, t: f.r[t] / m.statistic(f.r, t, 63, 32, deviation),
    "factor_residual": lambda m, f, t: m.factor_residual(f)[t] / m.statistic(f.r, t, 63, 32, deviation),
}


@pytest.fixture(scope="module")
def tables() -> Tables:
    return random_tables(5)


@pytest.fixture(scope="module")
def panel(tables: Tables) -> Panel:
    return panel_of(tables)


@pytest.fixture(scope="module")
def market(tables: Tables) -> Market:
    return Market(tables)


def sessions_of(entry: Feature) -> list[int]:
    """Sessions to compare: the first ones, those around first values and a halt, and some more."""
    rng = np.random.default_rng(entry.warmup)
    first = [start + entry.warmup + k for start in (0, 40) for k in (-1, 0, 1)]
    around_the_halt = [499, 541, 545, 541 + entry.warmup, 561 + entry.warmup, 600]
    drawn = rng.integers(entry.warmup, T, 50)
    return sorted({t for t in (0, 1, 2, *first, *around_the_halt, *drawn.tolist()) if 0 <= t < T})


def by_reference(market: Market, reference: Reference, entry: Feature, sessions: list[int]) -> FloatArray:
    out = np.full((len(sessions), N), nan)
    for i, firm in enumerate(market.firms):
        for row, t in enumerate(sessions):
            listed = entry.warmup == 0 or (t >= entry.warmup and not math.isnan(firm.last(t - entry.warmup)))
            if math.isnan(firm.close[t]) or not listed:
                continue
            try:
                value = reference(market, firm, t)
            except (ValueError, ZeroDivisionError):  # the log of zero or NaN is not finite
                value = nan
            out[row, i] = value if math.isfinite(value) else nan
    return out


@pytest.mark.slow(3)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the references divide by a flat range
@pytest.mark.parametrize("name", sorted(CHARACTERISTICS))
def test_characteristic_equals_its_scalar_reference(panel: Panel, market: Market, name: str) -> None:
    entry = CHARACTERISTICS[name]
    assert name in REFERENCES, "a characteristic needs a slow reference, written from its formula"
    sessions = sessions_of(entry)
    expected = by_reference(market, REFERENCES[name], entry, sessions)
    assert np.isfinite(expected).sum() > 60, "the reference must have values"
    np.testing.assert_allclose(entry.compute(panel)[sessions], expected, rtol=1e-7, atol=1e-11)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_same_weekday_before_holidays_equals_its_scalar_reference(panel: Panel, market: Market) -> None:
    """The next weekday is that of the holiday, because later calendar days are not read."""
    entry = CHARACTERISTICS["same_weekday_return_100"]
    next_weekday = pd.DatetimeIndex(DAYS) + pd.offsets.BDay(1)
    before = [t for t in range(entry.warmup, T) if next_weekday[t] not in SESSIONS]
    assert len(before) > 25, "a calendar with holidays"
    assert set(next_weekday[before].day_name()) == {"Monday", "Tuesday", "Thursday", "Friday"}
    expected = by_reference(market, REFERENCES[entry.name], entry, before)
    assert np.isfinite(expected).sum() > 150
    np.testing.assert_allclose(entry.compute(panel)[before], expected, rtol=1e-7, atol=1e-11)


def test_every_reference_belongs_to_a_characteristic() -> None:
    assert set(REFERENCES) == set(CHARACTERISTICS)
    assert set(CHANNEL_REFERENCES) == set(CHANNELS)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(CHANNELS))
def test_channel_equals_its_scalar_reference(panel: Panel, market: Market, name: str) -> None:
    sessions = sessions_of(CHANNELS[name])
    expected = by_reference(market, CHANNEL_REFERENCES[name], CHANNELS[name], sessions)
    assert np.isfinite(expected).sum() > 300
    np.testing.assert_allclose(CHANNELS[name].compute(panel)[sessions], expected, rtol=1e-8, atol=1e-11)


LATER = 30


@pytest.fixture(scope="module")
def later(tables: Tables) -> Panel:
    """A panel whose history starts 30 sessions later, with the same statements."""
    return panel_of({**tables, "prices": tables["prices"].filter(pl.col("date") >= DAYS[LATER])})


@pytest.mark.parametrize("name", [*CHARACTERISTICS, *CHANNELS])
def test_value_does_not_depend_on_sessions_before_its_window(panel: Panel, later: Panel, name: str) -> None:
    entry = CHARACTERISTICS[name] if name in CHARACTERISTICS else CHANNELS[name]
    assert entry.window > entry.warmup
    since = LATER + entry.window - 1
    longer, shorter = entry.compute(panel)[since:], entry.compute(later)[since - LATER :]
    assert np.isfinite(longer).any(), "lengthen the market"
    np.testing.assert_allclose(shorter, longer, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", [n for n, entry in CHARACTERISTICS.items() if not entry.needs_statements])
def test_first_value_follows_the_warmup(panel: Panel, name: str) -> None:
    values = CHARACTERISTICS[name].compute(panel)[:, TICKERS.index("F7")]
    assert int(np.flatnonzero(np.isfinite(values))[0]) == CHARACTERISTICS[name].warmup


def test_characteristics_are_numerous_and_documented() -> None:
    of_prices = [c for c in CHARACTERISTICS.values() if not c.needs_statements]
    assert len(of_prices) >= 60
    assert len(CHARACTERISTICS) - len(of_prices) >= 40
    assert {c.family for c in CHARACTERISTICS.values()} == set(CHARACTERISTICS.families)
    for entry in (*CHARACTERISTICS.values(), *CHANNELS.values()):
        assert entry.formula
        assert entry.unit
        assert entry.source
        assert "close" in entry.needs


def test_stacked_values_equal_single_ones_in_the_requested_order(panel: Panel) -> None:
    stacked = CHARACTERISTICS.compute(panel, ["log_price", "return_1"])
    assert stacked.dtype == np.float32
    assert stacked.shape == (T, N, 2)
    np.testing.assert_array_equal(
        stacked[:, :, 1], CHARACTERISTICS["return_1"].compute(panel).astype(np.float32)
    )
    assert CHARACTERISTICS.compute(panel).shape[2] == len(CHARACTERISTICS)
    assert CHANNELS.compute(panel).shape == (T, N, len(CHANNELS))


def test_features_with_missing_columns_are_left_out_with_a_message(tables: Tables) -> None:
    silent = tables["prices"].with_columns(
        pl.lit(None, dtype=pl.Float64).alias(name) for name in ("open", "high", "low", "volume")
    )
    panel = build_panel(silent)
    assert panel.fields == {"close"}
    usable, messages = CHARACTERISTICS.available(panel)
    assert "return_5" in usable
    assert "amihud_21" not in usable
    left_out = len(CHARACTERISTICS) - len(usable)
    (message,) = messages
    assert message.startswith("These data have no ")
    assert f": {left_out} characteristics are left out, such as " in message
    assert CHARACTERISTICS.available(panel, ["return_5", "amihud_21"]) == (
        ["return_5"],
        ["These data have no volume: the characteristic amihud_21 is left out."],
    )
    assert CHARACTERISTICS.available(panel, ["overnight_return", "amihud_21", "log_market_equity"])[1] == [
        "These data have no open, volume or shares_outstanding: the characteristics overnight_return, "
        "amihud_21 and log_market_equity are left out."
    ]
    assert CHANNELS.available(panel)[0] == [
        "return",
        "market_relative_return",
        "scaled_return",
        "factor_residual",
    ]
    with pytest.raises(ValueError, match=r"no high or low: the .* centred_close_location is left out"):
        CHANNELS.compute(panel, ["centred_close_location"])
    with pytest.raises(
        ValueError, match=r"close_location is now called centred_close_location; use the new name"
    ):
        CHANNELS.compute(panel, ["close_location"])
    with pytest.raises(ValueError, match=r"Unknown characteristic retrun_5: choose among .*return_5"):
        CHARACTERISTICS.available(panel, ["retrun_5"])


def noise_after(tables: Tables, day: dt.date, seed: int) -> Tables:
    """Replace all data after the day, for every firm, by noise."""
    other = random_tables(seed)
    scale = 1.0 + np.random.default_rng(seed).random()
    prices = other["prices"].with_columns(pl.col("open", "high", "low", "close", "volume") * scale)
    late = pl.DataFrame(
        [{"ticker": t, "valid_from": day + dt.timedelta(days=1), "industry": f"0{t[-1]}"} for t in TICKERS]
    )
    late = late.with_columns(exchange=pl.lit("NYSE"))
    filed = other["fundamentals"].with_columns(pl.col("value") * scale)
    return {
        "prices": pl.concat(
            [tables["prices"].filter(pl.col("date") <= day), prices.filter(pl.col("date") > day)]
        ),
        "securities": pl.concat([tables["securities"], late], how="diagonal"),
        "fundamentals": pl.concat(
            [
                tables["fundamentals"].filter(pl.col("known_at") <= day),
                filed.filter(pl.col("known_at") > day),
            ]
        ),
    }


def known(panel: Panel) -> dict[str, npt.NDArray[np.generic]]:
    """All arrays that are known at the close of each session."""
    rule = UniverseRule(min_price=15.0, min_dollar_volume=3e5, dollar_volume_window=21, min_history=30)
    arrays = {
        "characteristics": CHARACTERISTICS.compute(panel),
        "channels": CHANNELS.compute(panel),
        "universe": universe(panel, rule),
        "group": panel.group_TN,
        "close": panel.close_TN,
    }
    return {**arrays, **panel.statements}


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(t=st.integers(min_value=45, max_value=T - 2), seed=st.integers(min_value=10, max_value=10_000))
def test_future_noise_does_not_change_values_up_to_t(tables: Tables, panel: Panel, t: int, seed: int) -> None:
    other = panel_of(noise_after(tables, DAYS[t], seed))
    assert other.tickers_N == panel.tickers_N
    assert not np.array_equal(other.close_TN[t + 1 :], panel.close_TN[t + 1 :], equal_nan=True)
    before, after = known(panel), known(other)
    for name, array in before.items():
        rows, rows_after = np.ascontiguousarray(array[: t + 1]), np.ascontiguousarray(after[name][: t + 1])
        assert rows.tobytes() == rows_after.tobytes(), name


def test_panel_that_ends_at_t_gives_the_same_bits(tables: Tables, panel: Panel) -> None:
    t = 300
    cut = panel_of(
        {
            **tables,
            "prices": tables["prices"].filter(pl.col("date") <= DAYS[t]),
            "fundamentals": tables["fundamentals"].filter(pl.col("known_at") <= DAYS[t]),
        }
    )
    before, after = known(panel), known(cut)
    for name, array in after.items():
        assert (
            np.ascontiguousarray(before[name][: t + 1]).tobytes() == np.ascontiguousarray(array).tobytes()
        ), name
