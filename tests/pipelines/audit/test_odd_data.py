"""Honest data that look odd are not accused, and sparse or incomplete data that know the future are.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from audit_markets import as_input, make_subject

from backtest.look_ahead.finding import Result
from features.panel.panel import build_panel
from pipelines.audit.registry import CHECKS
from pipelines.config.load import check_config
from pipelines.config.schema import Config

Array = npt.NDArray[np.float64]
Bars = dict[str, Array]
T, N = 300, 12
TICK = 0.005


@pytest.fixture(scope="module")
def config(tiny_settings: Mapping[str, Any]) -> Config:
    features = {
        "window": 5,
        "channels": ["return", "centred_close_location"],
        "characteristics": ["return_5", "volatility_21"],
    }
    folds = {"scheme": "expanding", "train": 120, "valid": 40, "test": 60, "embargo": 1}
    settings = {**tiny_settings, "features": features, "folds": folds, "models": {"ridge": {}}}
    return check_config(settings, origin="tiny")


def prices(bars: Bars) -> dict[str, pl.DataFrame]:
    """The lake's prices; bars and dividends that are not given are unknown and 0."""
    sessions, firms = bars["close"].shape
    days = pl.date_range(dt.date(2015, 1, 1), dt.date(2020, 1, 1), "1d", eager=True)
    days = days.filter(days.dt.weekday() < 6)[:sessions]
    given = {name: pl.Series(name, array.ravel()) for name, array in bars.items()}
    unknown = [
        pl.lit(None, dtype=pl.Float64).alias(name)
        for name in ("open", "high", "low", "volume")
        if name not in given
    ]
    frame = pl.DataFrame(
        {
            "date": np.repeat(days.to_numpy(), firms),
            "ticker": np.tile([f"F{n:02}" for n in range(firms)], sessions),
            "dividend": np.zeros(sessions * firms),
            **given,
        }
    )
    return {"prices": frame.with_columns(*unknown, pl.col("date").cast(pl.Date), split_ratio=pl.lit(1.0))}


def walk(rng: np.random.Generator, size: float) -> Array:
    """Log prices: a random walk."""
    own_TN, common_T1 = rng.normal(size=(T, N)), rng.normal(size=(T, 1))
    return np.asarray(np.cumsum(size * (own_TN + 0.5 * common_T1), axis=0) + np.log(rng.uniform(5, 60, N)))


def one_price(log_TN: Array, **more: Array) -> Bars:
    close_TN = np.exp(log_TN).round(4)
    return {"open": close_TN, "high": close_TN, "low": close_TN, "close": close_TN, **more}


def fund(rng: np.random.Generator) -> Bars:
    return one_price(walk(rng, 0.006), volume=np.zeros((T, N)))


def appraised(rng: np.random.Generator) -> Bars:
    """Net asset values of assets that are appraised: a third of a move arrives one session late."""
    log_TN = walk(rng, 0.006)
    log_TN[1:] = 0.67 * log_TN[1:] + 0.33 * log_TN[:-1]
    return one_price(log_TN)


def ticking(rng: np.random.Generator) -> Bars:
    """Prices that move by a tick at most. A third of the firms has bars, and closes in the middle of them."""
    close_TN = 3.0 + TICK * np.cumsum(rng.integers(-1, 2, (T, N)), axis=0)
    open_TN = np.vstack([close_TN[:1], close_TN[:-1]])
    has_range_TN = (np.arange(N) >= 2 * N // 3) & (open_TN != close_TN)
    wide_TN = TICK * (1.0 + rng.integers(0, 2, (T, N)))
    return {
        "open": np.where(has_range_TN, open_TN, close_TN),
        "high": np.where(has_range_TN, close_TN + wide_TN, close_TN),
        "low": np.where(has_range_TN, close_TN - wide_TN, close_TN),
        "close": close_TN,
        "volume": rng.integers(1, 10**5, (T, N)).astype(np.float64),
        "dividend": np.where(rng.random((T, N)) < 0.01, 0.013, 0.0),
    }


def stale(rng: np.random.Generator) -> Bars:
    """Nine of ten sessions have no trade and repeat the close."""
    traded_TN = rng.random((T, N)) < 0.1
    traded_TN[0] = True
    last_TN = np.maximum.accumulate(np.where(traded_TN, np.arange(T)[:, None], 0), axis=0)
    close_TN = np.round(np.exp(np.take_along_axis(walk(rng, 0.015), last_TN, axis=0)), 2)
    open_TN = np.where(traded_TN, np.round(close_TN * np.exp(0.008 * rng.normal(size=(T, N))), 2), close_TN)
    return {
        "open": open_TN,
        "high": np.maximum(open_TN, close_TN),
        "low": np.minimum(open_TN, close_TN),
        "close": close_TN,
        "volume": np.where(traded_TN, 1000.0, 0.0),
    }


def taken_over(rng: np.random.Generator) -> Bars:
    """Half of the firms jump to an offer and stay near it: a large move before closes that repeat."""
    log_TN = walk(rng, 0.015)
    for n in range(0, N, 2):
        at = T // 2 + 3 * n
        log_TN[at:, n] = log_TN[at - 1, n] + 0.3 + np.cumsum(0.0004 * rng.normal(size=T - at))
    close_TN = np.round(np.exp(log_TN), 1)
    open_TN = np.round(close_TN * np.exp(0.008 * rng.normal(size=(T, N))), 1)
    high_TN, low_TN = np.maximum(open_TN, close_TN), np.minimum(open_TN, close_TN)
    return {"open": open_TN, "high": high_TN, "low": low_TN, "close": close_TN}


@pytest.mark.parametrize("make", [fund, appraised, ticking, stale, taken_over])
def test_honest_odd_prices_do_not_fail(make: Callable[[np.random.Generator], Bars], config: Config) -> None:
    subject = make_subject(config, prices(make(np.random.default_rng(4))))
    found = {name: CHECKS[name](subject) for name in ("bars", "ranges", "backfill", "warm_up")}
    assert [one.sentence for one in found.values() if one.verdict == "fail"] == []
    assert found["bars"].verdict == ("warn" if make is appraised else "pass"), found["bars"].sentence
    assert found["warm_up"].verdict == "pass"


def test_levels_of_few_firms_are_skipped_with_the_reason(config: Config) -> None:
    few = {name: array_TN[:, :5] for name, array_TN in fund(np.random.default_rng(1)).items()}
    result = CHECKS["horizons"](make_subject(config, prices(few)))
    assert result.verdict == "skipped"
    assert result.sentence.startswith("Not examined, because fewer than 8 disjoint spans of 21 sessions")


def traded(seed: int = 4) -> Bars:
    return one_price(walk(np.random.default_rng(seed), 0.02))


def later(close_TN: Array, sessions: int) -> Array:
    """Return over the next sessions; NaN where it is not known yet."""
    out_TN = np.full(close_TN.shape, np.nan)
    out_TN[:-sessions] = close_TN[sessions:] / close_TN[:-sessions] - 1.0
    return out_TN


def with_input(
    check: str, value_TN: Array, config: Config, kept_TN: npt.NDArray[np.bool_] | None = None
) -> Result:
    """Result of a check of the traded market with an input, and only with the prices that are kept."""
    tables = prices(traded())
    added = as_input("signal", value_TN, build_panel(tables["prices"]))
    if kept_TN is not None:
        tables = {"prices": tables["prices"].filter(pl.Series(kept_TN.ravel()))}
    return CHECKS[check](make_subject(config, {**tables, "inputs": added}))


CHOSEN: dict[str, Callable[[Array], npt.NDArray[np.bool_]]] = {
    "losers": lambda later_TN: later_TN < np.nanquantile(later_TN, 0.02),
    "moves": lambda later_TN: np.abs(later_TN) > np.nanquantile(np.abs(later_TN), 0.98),
    "random": lambda later_TN: np.random.default_rng(1).random(later_TN.shape) < 0.02,
}


@pytest.mark.parametrize(
    ("rows", "chosen", "verdict"),
    [
        ("input", "losers", "fail"),
        ("input", "moves", "fail"),
        ("input", "random", "pass"),
        ("prices", "losers", "fail"),
        ("prices", "random", "pass"),
    ],
)
def test_rows_that_are_missing_for_later_returns_fail(
    rows: str, chosen: str, verdict: str, config: Config
) -> None:
    kept_TN = ~CHOSEN[chosen](later(traded()["close"], 1))
    noise_TN = np.random.default_rng(2).normal(size=(T, N))
    if rows == "prices":
        result = with_input("coverage", noise_TN, config, kept_TN)
    else:
        result = with_input("coverage", np.where(kept_TN, noise_TN, np.nan), config)
    assert result.verdict == verdict, result.sentence


@pytest.mark.parametrize(("after", "verdict"), [(10, "fail"), (0, "pass")])
def test_an_input_whose_scale_holds_the_horizon_fails(after: int, verdict: str, config: Config) -> None:
    close_TN = traded()["close"]
    score_TN = np.full((T, N), np.nan)
    for t in range(50, T - after):
        held = close_TN[t - 50 : t + after + 1]
        score_TN[t] = (close_TN[t] - held.mean(axis=0)) / held.std(axis=0)
    result = with_input("beyond_prices", score_TN, config)
    assert result.verdict == verdict, result.sentence
    assert "signal" in result.sentence


def test_suspensions_of_equal_length_are_no_knowledge_of_later_volume(config: Config) -> None:
    """Volume is 0 for three sessions, and back after them: the start tells the end, and nothing else."""
    rng = np.random.default_rng(6)
    volume_TN = np.exp(10.0 + 0.3 * rng.normal(size=(T, N))).round()
    for n in range(4):
        for start in range(30 + n, T - 3, 25):
            volume_TN[start : start + 3, n] = 0.0
    tables = prices({**traded(), "volume": volume_TN})
    added = as_input("signal", np.log1p(volume_TN), build_panel(tables["prices"]))
    result = CHECKS["leads"](make_subject(config, {**tables, "inputs": added}))
    assert result.verdict == "pass", result.sentence


def monthly(value_TN: Array) -> Array:
    return np.where(np.arange(T)[:, None] % 21 == 20, value_TN, np.nan)


@pytest.mark.parametrize("check", ["leads", "horizons"])
def test_a_monthly_input_is_examined_on_its_own_dates(check: str, config: Config) -> None:
    close_TN = traded()["close"]
    known = with_input(check, monthly(later(close_TN, 21)), config)
    assert known.verdict == "fail", known.sentence
    assert "signal" in known.sentence
    past_TN = np.vstack([np.full((21, N), np.nan), later(close_TN, 21)[:-21]])
    honest = with_input(check, monthly(past_TN), config)
    assert honest.verdict == "pass", honest.sentence


@pytest.mark.parametrize("check", ["leads", "full_sample", "beyond_prices", "coverage", "timing"])
def test_what_could_not_be_examined_is_skipped_with_the_reason(check: str, config: Config) -> None:
    value_TN = np.full((T, N), np.nan)
    value_TN[[30, 60]] = 1.0
    result = with_input(check, value_TN, config)
    assert result.verdict == "skipped", result.sentence
    assert result.sentence.startswith("Not examined: ")
