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
from backtest.look_ahead.prices import equal_to_later_return
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


def suspended(rng: np.random.Generator) -> Bars:
    """Four firms are suspended when the file begins, and resume at another price than their last one."""
    bars = limited(rng)
    held_TN = (np.arange(T)[:, None] < 25) & (np.arange(N) < 4)
    return {
        **{name: np.where(held_TN, array[:1], array) for name, array in bars.items()},
        "volume": np.where(held_TN, 0.0, 1000.0),
    }


def limited(rng: np.random.Generator, next_share: float = 0.0) -> Bars:
    """A tenth of a move goes on by the next open, as at a limit; closes may hold some of the next one."""
    news_TN = 0.02 * rng.normal(size=(T, N))
    close_TN = np.cumsum(news_TN, axis=0) + np.log(rng.uniform(5, 60, N))
    open_TN = np.vstack([close_TN[:1], close_TN[:-1] + 0.12 * news_TN[:-1]])
    close_TN[1:] += np.cumsum(0.12 * news_TN[:-1], axis=0)
    open_TN[1:] += np.vstack([np.zeros((1, N)), np.cumsum(0.12 * news_TN[:-2], axis=0)])
    close_TN[:-1] += next_share * np.diff(close_TN, axis=0)
    open_TN, close_TN = np.exp(open_TN).round(3), np.exp(close_TN).round(3)
    return {
        **{"open": open_TN, "close": close_TN},
        **{"high": np.maximum(open_TN, close_TN), "low": np.minimum(open_TN, close_TN)},
    }


@pytest.mark.parametrize(("next_share", "verdict"), [(0.0, "pass"), (0.15, "fail")])
def test_moves_that_go_on_at_the_open_are_no_average_of_later_closes(
    next_share: float, verdict: str, config: Config
) -> None:
    bars = limited(np.random.default_rng(4), next_share)
    result = CHECKS["bars"](make_subject(config, prices(bars)))
    assert result.verdict == verdict, result.sentence
    assert verdict == "pass" or "know the session that follows" in result.sentence


@pytest.mark.parametrize(("early", "verdict"), [(0, "pass"), (1, "fail")])
def test_a_flag_of_limit_moves_only_fails_a_session_early(early: int, verdict: str, config: Config) -> None:
    """Half of the moves to a daily limit go on the next day, for all the firms that reached it."""
    rng = np.random.default_rng(8)
    return_TN = 0.02 * rng.normal(size=(T, N))
    hit_TN = rng.random((T, N)) < 0.08
    return_TN[hit_TN] = 0.1
    return_TN[1:] += np.where(hit_TN[:-1], 0.05, 0.0)
    tables = prices(one_price(np.cumsum(return_TN, axis=0) + 3.0))
    flag_TN = (np.roll(return_TN, -early, axis=0) > 0.095).astype(np.float64)
    added = as_input("signal", flag_TN, build_panel(tables["prices"]))
    result = CHECKS["leads"](make_subject(config, {**tables, "inputs": added}))
    assert result.verdict == verdict, result.sentence


@pytest.mark.parametrize(("leak", "verdict"), [(0.0, "pass"), (0.05, "fail")])
def test_equal_ticks_are_no_later_returns(leak: float, verdict: str) -> None:
    rng = np.random.default_rng(3)
    price_TN = 0.10 + 0.01 * np.abs(np.cumsum(rng.integers(-1, 2, (T, 60)), axis=0))
    past_TN = np.vstack([np.zeros((1, 60)), price_TN[1:] / price_TN[:-1] - 1.0])
    later_TN = np.vstack([past_TN[1:], np.zeros((1, 60))])
    signal_TN = np.where(rng.random((T, 60)) < leak, later_TN, past_TN)
    if leak:
        price_TN = np.exp(np.cumsum(0.02 * rng.normal(size=(T, 60)), axis=0))
        later_TN = np.vstack([price_TN[1:] / price_TN[:-1] - 1.0, np.zeros((1, 60))])
        signal_TN = np.where(rng.random((T, 60)) < leak, later_TN, rng.normal(size=(T, 60)))
    found = equal_to_later_return(signal_TN, price_TN, np.arange(T - 45))
    assert found.verdict == verdict, found.sentence


@pytest.mark.parametrize("make", [fund, appraised, ticking, stale, taken_over, suspended])
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
