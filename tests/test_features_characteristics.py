"""Every characteristic and channel against slow scalar references; and causality to the bit.

The references walk one firm and one session at a time over a random market with halts, listings, a delisting,
splits, dividends, unknown opens, days without volume and flat ranges; they share no code with the package.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from features.channels import CHANNELS, available_channels, compute_channels
from features.characteristics import (
    CHARACTERISTICS,
    available_characteristics,
    compute_characteristics,
)
from features.panel import Panel, build_panel
from features.universe import UniverseRule, universe

T, N = 330, 9
HALT = 20  # a close is carried over so many sessions without one
DAYS = [dt.date(2020, 1, 1) + dt.timedelta(days=i) for i in range(T)]
TICKERS = [f"F{i}" for i in range(N)]
ITEMS = ("shares_outstanding", "book_equity", "total_assets", "gross_profit", "net_income")
Tables = dict[str, pl.DataFrame]
FloatArray = npt.NDArray[np.float64]
nan = float("nan")


def random_tables(seed: int) -> Tables:
    """Draw a market: raw prices that fall on splits and dividends, two groups and a change, statements."""
    rng = np.random.default_rng(seed)
    prices = []
    for i, ticker in enumerate(TICKERS):
        value = 20.0 + 10 * i
        first, last = (40 if i == 1 else 0), (250 if i == 2 else T - 1)
        for t in range(first, last + 1):
            value *= 1.0 if rng.random() < 0.04 else math.exp(rng.normal(0, 0.02))
            split = float(rng.choice([2.0, 0.5, 3.0])) if rng.random() < 0.01 else 1.0
            value /= split
            halted = (i == 3 and 100 <= t < 140) or (t > 5 and rng.random() < 0.03)
            if halted and split == 1.0:
                continue
            close = None if halted else value
            high, low = (
                value * math.exp(abs(rng.normal(0, 0.01))),
                value * math.exp(-abs(rng.normal(0, 0.01))),
            )
            if rng.random() < 0.02:
                high = low = value
            prices.append(
                {
                    "date": DAYS[t],
                    "ticker": ticker,
                    "open": None if rng.random() < 0.03 else float(rng.uniform(low, high)),
                    "high": high,
                    "low": low,
                    "close": close,
                    "volume": 0.0 if rng.random() < 0.02 else float(rng.integers(1_000, 90_000)),
                    "split_ratio": split,
                    "dividend": 0.02 * value if rng.random() < 0.01 else 0.0,
                }
            )
    groups = [
        {"ticker": ticker, "valid_from": DAYS[0], "valid_to": None, "industry": "AB"[i % 2]}
        for i, ticker in enumerate(TICKERS[:7])
    ]
    groups[0]["valid_to"] = DAYS[200]
    groups.append({"ticker": "F0", "valid_from": DAYS[200], "valid_to": None, "industry": "B"})
    statements = [
        {
            "ticker": ticker,
            "period_end": DAYS[max(t - 40, 0)],
            "known_at": DAYS[t] + dt.timedelta(days=int(rng.integers(0, 9))),
            "item": item,
            "value": float(rng.normal(5, 4))
            if item in ("book_equity", "net_income")
            else float(rng.uniform(1, 9)),
        }
        for ticker in TICKERS[:6]
        for t in (45, 130, 200, 230, 290)
        for item in ITEMS
    ]
    nothing = {"sector": None, "delisted_on": None, "delisting_return": None, "exchange": "NYSE"}
    types = {"valid_to": pl.Date, "sector": pl.String, "delisted_on": pl.Date, "delisting_return": pl.Float64}
    return {
        "prices": pl.DataFrame(prices, infer_schema_length=None),
        "securities": pl.DataFrame([row | nothing for row in groups], schema_overrides=types),
        "fundamentals": pl.DataFrame(statements),
    }


def panel_of(tables: Tables) -> Panel:
    return build_panel(tables["prices"], tables["securities"], tables["fundamentals"])


@dataclass(frozen=True)
class Firm:
    """One firm's series as plain arrays over sessions, NaN where not known."""

    close: FloatArray
    open: FloatArray
    high: FloatArray
    low: FloatArray
    raw: FloatArray
    volume: FloatArray
    r: FloatArray
    group: list[str | None]
    items: dict[str, FloatArray]

    def last(self, t: int) -> float:
        """Last adjusted close at or before t, at most 20 sessions old."""
        known = [c for c in self.close[max(t - HALT, 0) : max(t + 1, 0)] if not math.isnan(c)]
        return known[-1] if known else nan


def follow(tables: Tables, ticker: str) -> Firm:
    """Follow one share: splits multiply it, dividends wait for a close and buy more of it."""
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
        series["r"][t] = nan if t - since > HALT + 1 else series["close"][t] / before - 1
        before, since = series["close"][t], t
    items = {item: np.full(T, nan) for item in ITEMS}
    for item in ITEMS:
        filed = (
            tables["fundamentals"].filter((pl.col("ticker") == ticker) & (pl.col("item") == item)).to_dicts()
        )
        for t, day in enumerate(DAYS):
            known = [row for row in filed if row["known_at"] <= day]
            if known:
                newest = max(known, key=lambda row: (row["period_end"], row["known_at"]))
                since = [s for d, s in zip(DAYS, splits, strict=True) if newest["period_end"] < d <= day]
                items[item][t] = newest["value"] * (math.prod(since) if item == "shares_outstanding" else 1.0)
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
    return Firm(**series, group=group, items=items)


class Market:
    """All firms, and the scalar formulas."""

    def __init__(self, tables: Tables) -> None:
        self.firms = [follow(tables, ticker) for ticker in TICKERS]
        returns = np.array([firm.r for firm in self.firms])
        self.m = [float(np.mean(c[~np.isnan(c)])) if (~np.isnan(c)).any() else nan for c in returns.T]

    def window(self, x: FloatArray, t: int, w: int, least: int) -> FloatArray | None:
        part = x[max(t - w + 1, 0) : t + 1]
        part = part[~np.isnan(part)]
        return part if len(part) >= least else None

    def trailing(self, f: Firm, t: int, w: int, skip: int = 0) -> float:
        return f.last(t - skip) / f.last(t - w) - 1

    def peers(self, f: Firm, t: int, w: int) -> float:
        of_group = [
            self.trailing(g, t, w)
            for g in self.firms
            if f.group[t] is not None and g.group[t] == f.group[t] and not math.isnan(g.close[t])
        ]
        of_group = [x for x in of_group if not math.isnan(x)]
        return float(np.mean(of_group)) if len(of_group) >= 2 else nan

    def fit(self, f: Firm, t: int) -> tuple[float, float]:
        at = [s for s in range(max(t - 62, 0), t + 1) if not math.isnan(f.r[s])]
        if len(at) < 32:
            return nan, nan
        x, y = np.array([self.m[s] for s in at]), f.r[at]
        design = np.column_stack([np.ones(len(at)), x])
        coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
        residual = y - design @ coefficients
        return float(coefficients[1]), math.sqrt(float(residual @ residual) / (len(at) - 2))

    def statistic(
        self, x: FloatArray, t: int, w: int, least: int, of: Callable[[FloatArray], float]
    ) -> float:
        part = self.window(x, t, w, least)
        return nan if part is None else float(of(part))


Reference = Callable[[Market, Firm, int], float]


def parsed(name: str) -> int:
    return int(name.rsplit("_", 1)[1])


def references() -> dict[str, Reference]:
    """Give the scalar formula of every characteristic by name."""
    out: dict[str, Reference] = {}
    for w in (1, 2, 3, 5, 10, 21):
        out[f"return_{w}"] = lambda m, f, t, w=w: m.trailing(f, t, w)
    for k in (1, 2, 3, 4):
        out[f"lagged_return_{k}"] = lambda m, f, t, k=k: f.r[t - k] if t >= k else nan
    for w in (5, 10, 20, 30):
        out[f"average_distance_{w}"] = lambda m, f, t, w=w: (
            f.close[t] / np.mean([f.last(t - j) for j in range(w)]) - 1
        )
    for w in (1, 5):
        out[f"group_relative_return_{w}"] = lambda m, f, t, w=w: m.trailing(f, t, w) - m.peers(f, t, w)
    for name, w, long in (
        ("volume_surprise_1", 1, 21),
        ("volume_surprise_5", 5, 21),
        ("volume_trend_5_63", 5, 63),
        ("volume_trend_21_126", 21, 126),
    ):
        out[name] = lambda m, f, t, w=w, long=long: math.log(
            m.statistic(f.raw * f.volume, t, w, (w + 1) // 2, np.mean)
            / m.statistic(f.raw * f.volume, t, long, (long + 1) // 2, np.mean)
        )
    for w in (1, 5, 21):
        out[f"group_return_{w}"] = lambda m, f, t, w=w: m.peers(f, t, w)
    for w in (5, 21, 63):
        out[f"volatility_{w}"] = lambda m, f, t, w=w: m.statistic(
            f.r, t, w, (w + 1) // 2, lambda x: np.std(x, ddof=1)
        )
    span: Callable[[Firm], FloatArray] = lambda f: np.log(f.high / f.low)  # noqa: E731
    return out | {
        "overnight_return": lambda m, f, t: f.open[t] / f.last(t - 1) - 1,
        "high_return": lambda m, f, t: f.high[t] / f.last(t - 1) - 1,
        "market_component_1": lambda m, f, t: m.fit(f, t - 1)[0] * m.m[t],
        "intraday_return": lambda m, f, t: f.close[t] / f.open[t] - 1,
        "close_location": lambda m, f, t: (f.close[t] - f.low[t]) / (f.high[t] - f.low[t]),
        "momentum_63": lambda m, f, t: m.trailing(f, t, 63),
        "momentum_126": lambda m, f, t: m.trailing(f, t, 126),
        "momentum_252_21": lambda m, f, t: m.trailing(f, t, 252, 21),
        "high_distance_252": lambda m, f, t: f.close[t] / m.statistic(f.close, t, 252, 126, np.max) - 1,
        "parkinson_21": lambda m, f, t: math.sqrt(
            m.statistic(span(f) ** 2, t, 21, 11, np.mean) / 4 / math.log(2)
        ),
        "range": lambda m, f, t: span(f)[t],
        "range_surprise_21": lambda m, f, t: span(f)[t] / m.statistic(span(f), t, 21, 11, np.mean) - 1,
        "maximum_return_21": lambda m, f, t: m.statistic(f.r, t, 21, 11, np.max),
        "skewness_63": lambda m, f, t: m.statistic(f.r, t, 63, 32, stats.skew),
        "beta_63": lambda m, f, t: m.fit(f, t)[0],
        "idiosyncratic_volatility_63": lambda m, f, t: m.fit(f, t)[1],
        "residual_return_1": lambda m, f, t: f.r[t] - m.fit(f, t - 1)[0] * m.m[t],
        "log_dollar_volume_21": lambda m, f, t: math.log(m.statistic(f.raw * f.volume, t, 21, 11, np.mean)),
        "amihud_21": lambda m, f, t: (
            1e6
            * m.statistic(
                np.array([abs(r) / v if v > 0 else nan for r, v in zip(f.r, f.raw * f.volume, strict=True)]),
                t,
                21,
                11,
                np.mean,
            )
        ),
        "zero_return_days_21": lambda m, f, t: m.statistic(
            f.r, t, 21, 11, lambda x: np.mean(np.abs(x) < 1e-12)
        ),
        "log_price": lambda m, f, t: math.log(f.raw[t]),
        "log_market_equity": lambda m, f, t: math.log(f.items["shares_outstanding"][t] * f.raw[t]),
        "book_to_market": lambda m, f, t: (
            f.items["book_equity"][t] / f.items["shares_outstanding"][t] / f.raw[t]
        ),
        "gross_profitability": lambda m, f, t: f.items["gross_profit"][t] / f.items["total_assets"][t],
        "return_on_assets": lambda m, f, t: f.items["net_income"][t] / f.items["total_assets"][t],
        "asset_growth": lambda m, f, t: f.items["total_assets"][t] / f.items["total_assets"][t - 252] - 1,
    }


CHANNEL_REFERENCES: dict[str, Reference] = {
    "return": lambda m, f, t: f.r[t],
    "overnight_return": lambda m, f, t: f.open[t] / f.last(t - 1) - 1,
    "intraday_range": lambda m, f, t: math.log(f.high[t] / f.low[t]),
    "close_location": lambda m, f, t: (
        0.0 if f.high[t] == f.low[t] else (f.close[t] - f.low[t]) / (f.high[t] - f.low[t]) - 0.5
    ),
    "dollar_volume_surprise": lambda m, f, t: math.log(
        f.raw[t] * f.volume[t] / m.statistic(f.raw * f.volume, t, 21, 11, np.mean)
    ),
    "market_relative_return": lambda m, f, t: f.r[t] - m.m[t],
    "group_relative_return": lambda m, f, t: f.r[t] - m.peers(f, t, 1),
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


def by_reference(market: Market, reference: Reference, warmup: int) -> FloatArray:
    out = np.full((T, N), nan)
    for i, firm in enumerate(market.firms):
        for t in range(T):
            if math.isnan(firm.close[t]) or math.isnan(firm.last(t - warmup)):
                continue
            try:
                value = reference(market, firm, t)
            except (ValueError, ZeroDivisionError):  # log of zero or of nothing: no finite value
                value = nan
            out[t, i] = value if math.isfinite(value) else nan
    return out


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the references divide by a flat range
@pytest.mark.parametrize("name", sorted(CHARACTERISTICS))
def test_characteristic_equals_its_scalar_reference(panel: Panel, market: Market, name: str) -> None:
    entry = CHARACTERISTICS[name]
    expected = by_reference(market, references()[name], entry.warmup)
    assert np.isfinite(expected).sum() > 100, "the reference must have something to say"
    np.testing.assert_allclose(entry.compute(panel), expected, rtol=1e-8, atol=1e-11)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(CHANNELS))
def test_channel_equals_its_scalar_reference(panel: Panel, market: Market, name: str) -> None:
    expected = by_reference(market, CHANNEL_REFERENCES[name], 0)
    assert np.isfinite(expected).sum() > 1500
    np.testing.assert_allclose(CHANNELS[name].compute(panel), expected, rtol=1e-8, atol=1e-11)


def test_there_are_enough_characteristics_and_each_is_documented() -> None:
    of_prices = [c for c in CHARACTERISTICS.values() if not any("statements" in need for need in c.needs)]
    assert len(of_prices) >= 30
    for entry in (*CHARACTERISTICS.values(), *CHANNELS.values()):
        assert entry.formula
        assert entry.unit
        assert entry.source
        assert "close" in entry.needs


def test_stacked_values_are_the_single_ones_in_float32_and_in_the_order_asked(panel: Panel) -> None:
    stacked = compute_characteristics(panel, ["log_price", "return_1"])
    assert stacked.dtype == np.float32
    assert stacked.shape == (T, N, 2)
    np.testing.assert_array_equal(
        stacked[:, :, 1], CHARACTERISTICS["return_1"].compute(panel).astype(np.float32)
    )
    assert compute_characteristics(panel).shape[2] == len(CHARACTERISTICS)
    assert compute_channels(panel).shape == (T, N, len(CHANNELS))


def test_missing_columns_leave_out_what_needs_them_and_say_so(tables: Tables) -> None:
    silent = tables["prices"].with_columns(
        pl.lit(None, dtype=pl.Float64).alias(name) for name in ("open", "high", "low", "volume")
    )
    panel = build_panel(silent)
    assert panel.fields == {"close"}
    usable, messages = available_characteristics(panel)
    assert "return_5" in usable
    assert "amihud_21" not in usable
    assert all(name in usable or any(name in one for one in messages) for name in CHARACTERISTICS)
    assert any("no volume: the characteristics" in one and "amihud_21" in one for one in messages)
    assert available_channels(panel)[0] == ["return", "market_relative_return"]
    with pytest.raises(ValueError, match=r"no high and no low: the .* close_location is left out"):
        compute_channels(panel, ["close_location"])
    with pytest.raises(ValueError, match=r"Unknown characteristic retrun_5: choose among .*return_5"):
        available_characteristics(panel, ["retrun_5"])


def noise_after(tables: Tables, day: dt.date, seed: int) -> Tables:
    """Replace everything dated after the day, for every firm, by noise of all kinds."""
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
    """Everything that is said to be known at the close of each session."""
    rule = UniverseRule(min_price=15.0, min_dollar_volume=3e5, dollar_volume_window=21, min_history=30)
    arrays = {
        "characteristics": compute_characteristics(panel),
        "channels": compute_channels(panel),
        "universe": universe(panel, rule),
        "group": panel.group_TN,
        "close": panel.close_TN,
    }
    return {**arrays, **panel.statements}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(t=st.integers(min_value=45, max_value=T - 2), seed=st.integers(min_value=10, max_value=10_000))
def test_nothing_after_t_changes_anything_at_or_before_t_to_the_bit(
    tables: Tables, panel: Panel, t: int, seed: int
) -> None:
    other = panel_of(noise_after(tables, DAYS[t], seed))
    assert other.tickers_N == panel.tickers_N
    assert not np.array_equal(other.close_TN[t + 1 :], panel.close_TN[t + 1 :], equal_nan=True)
    before, after = known(panel), known(other)
    for name, array in before.items():
        rows, rows_after = np.ascontiguousarray(array[: t + 1]), np.ascontiguousarray(after[name][: t + 1])
        assert rows.tobytes() == rows_after.tobytes(), name


def test_a_panel_cut_at_t_says_the_same_to_the_bit(tables: Tables, panel: Panel) -> None:
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
