"""Delivered data that know the future are caught, and honest data that look alike pass.

This file is long because every mechanism of a leak stands next to honest data that look like it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from audit_markets import as_input, make_subject

from backtest.look_ahead.finding import Result
from backtest.look_ahead.hindsight import span_ics
from backtest.look_ahead.noise import replace_future
from features.panel.panel import Panel, build_panel
from pipelines.audit.refit import differences_until
from pipelines.audit.registry import CHECKS
from pipelines.audit.subject import Subject
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.build import build_dataset

Array = npt.NDArray[np.float64]
Tables = dict[str, pl.DataFrame]
T, N = 1050, 32
BARS = ("open", "high", "low", "close")


@pytest.fixture(scope="module")
def config(tiny_settings: Mapping[str, Any]) -> Config:
    features = {"window": 5, "channels": ["return"], "characteristics": ["return_5"]}
    return check_config({**tiny_settings, "features": features, "models": {"ridge": {}}}, origin="tiny")


@pytest.fixture(scope="module")
def tables() -> Tables:
    """A random walk with volume that follows the size of returns, in cents."""
    rng = np.random.default_rng(5)
    size_TN = np.exp(0.3 * rng.normal(size=(T, N)))
    intraday_TN, night_TN = 0.016 * size_TN * rng.normal(size=(T, N)), 0.008 * rng.normal(size=(T, N))
    common_T1 = 0.006 * rng.normal(size=(T, 1))
    log_TN = np.cumsum(intraday_TN + night_TN + common_T1, axis=0)
    close_TN = np.round(40.0 * np.exp(log_TN), 2)
    open_TN = np.round(40.0 * np.exp(log_TN - intraday_TN), 2)
    days = pl.date_range(dt.date(2010, 1, 1), dt.date(2016, 1, 1), "1d", eager=True)
    days = days.filter(days.dt.weekday() < 6)[:T]
    prices = pl.DataFrame(
        {
            "date": np.repeat(days.to_numpy(), N),
            "ticker": np.tile([f"F{n:02}" for n in range(N)], T),
            "open": open_TN.ravel(),
            "high": np.maximum(open_TN, close_TN).ravel(),
            "low": np.minimum(open_TN, close_TN).ravel(),
            "close": close_TN.ravel(),
            "volume": np.round(
                1e5 * np.exp(20.0 * np.abs(intraday_TN) + 0.2 * rng.normal(size=(T, N)))
            ).ravel(),
        }
    )
    securities = pl.DataFrame(
        {
            "ticker": [f"F{n:02}" for n in range(N)],
            "valid_from": [days[0]] * N,
            "industry": [f"group {n % 4}" for n in range(N)],
        }
    )
    blank = [pl.lit(None, dtype=pl.Date).alias(name) for name in ("listed_on", "delisted_on", "valid_to")]
    texts = [pl.lit(None, dtype=pl.String).alias(name) for name in ("sector", "delisting_reason", "exchange")]
    return {
        "prices": prices.with_columns(
            pl.col("date").cast(pl.Date), split_ratio=pl.lit(1.0), dividend=pl.lit(0.0)
        ),
        "securities": securities.with_columns(
            *blank, *texts, delisting_return=pl.lit(None, dtype=pl.Float64)
        ),
    }


@pytest.fixture(scope="module")
def panel(tables: Tables) -> Panel:
    return build_panel(tables["prices"], tables["securities"])


def ahead(x_TN: Array, k: int = 1) -> Array:
    out_TN = np.full_like(x_TN, np.nan)
    out_TN[:-k] = x_TN[k:]
    return out_TN


def past(panel: Panel, k: int = 5) -> Array:
    out_TN = np.full((T, N), np.nan)
    out_TN[k:] = panel.close_TN[k:] / panel.close_TN[:-k] - 1.0
    return out_TN


def examine(name: str, config: Config, tables: Tables, *added: pl.DataFrame) -> Result:
    inputs = {"inputs": pl.concat(added)} if added else {}
    return CHECKS[name](make_subject(config, {**tables, **inputs}))


def some_firms(panel: Panel) -> Array:
    x_TN = past(panel)
    return np.where(np.arange(N) < 2, ahead(x_TN), x_TN)


def some_days(panel: Panel) -> Array:
    x_TN = past(panel)
    return np.where((np.arange(T) % 10 == 3)[:, None], ahead(x_TN), x_TN)


def last_part(panel: Panel) -> Array:
    x_TN = past(panel)
    return np.where(((np.arange(T) > 900)[:, None]) & (np.arange(N) < 12), ahead(x_TN), x_TN)


def next_quarter(panel: Panel) -> Array:
    return ahead(panel.close_TN, 63) / panel.close_TN - 1.0


def mixed(panel: Panel) -> Array:
    tomorrow_TN = ahead(past(panel, 1)) / 0.02
    return 0.12 * tomorrow_TN + np.random.default_rng(1).normal(size=(T, N))


@pytest.mark.parametrize(
    ("compute", "verdict", "names"),
    [
        (some_firms, "fail", "2 firms (F0"),
        (some_days, "fail", "dates ("),
        (last_part, "fail", "the return of t+1 between"),
        (next_quarter, "fail", "of t+63 over all firms"),
        (mixed, "warn", "may know the next session"),
    ],
)
def test_input_that_is_early_somewhere_is_caught(  # noqa: PLR0917 (fixtures)
    compute: Callable[[Panel], Array], verdict: str, names: str, config: Config, tables: Tables, panel: Panel
) -> None:
    result = examine("leads", config, tables, as_input("signal", compute(panel), panel))
    assert result.verdict == verdict, result.sentence
    assert names in result.sentence
    assert "signal" in result.sentence
    assert not result.evidence.is_empty()


def scaled(panel: Panel) -> Array:
    x_TN = panel.close_TN
    z_TN = np.clip((x_TN - x_TN.mean(axis=0)) / x_TN.std(axis=0), -1.5, 1.5)
    return np.asarray(z_TN - z_TN.mean(axis=1, keepdims=True))


@pytest.mark.parametrize("where", ["Fridays", "sessions of March", "the firms of size quintile 1 of 5"])
def test_a_weak_mixture_on_some_dates_or_firms_is_caught(
    where: str, config: Config, tables: Tables, panel: Panel
) -> None:
    """A third of tomorrow's return: too weak for single firms and dates, and small over all of them."""
    tomorrow_TN = np.vstack([past(panel, 1)[1:], np.full((1, N), np.nan)])
    noise_TN = np.random.default_rng(8).normal(size=(T, N)) * np.nanstd(tomorrow_TN)
    days_T = panel.dates_T.astype("datetime64[D]")
    assert panel.volume_TN is not None
    smallest = np.argsort((panel.raw_close_TN * panel.volume_TN).mean(axis=0), kind="stable")[:7]
    chosen_TN = {
        "Fridays": ((days_T.astype(np.int64) + 3) % 7 == 4)[:, None] & np.ones((1, N), np.bool_),
        "sessions of March": (days_T.astype("datetime64[M]").astype(np.int64) % 12 == 2)[:, None]
        & np.ones((1, N), np.bool_),
        "the firms of size quintile 1 of 5": np.ones((T, 1), np.bool_) & np.isin(np.arange(N), smallest),
    }[where]
    mixed_TN = np.where(chosen_TN, noise_TN + 0.4 * np.nan_to_num(tomorrow_TN), noise_TN)
    result = examine("leads", config, tables, as_input("signal", mixed_TN, panel))
    assert result.verdict == "fail", result.sentence
    assert any(where in row for row in result.evidence["check"]), result.evidence["check"]


@pytest.mark.parametrize(("later", "verdict"), [(True, "warn"), (False, "pass")])
def test_codes_drawn_up_from_later_correlations_warn(
    later: bool, verdict: str, config: Config, tables: Tables, panel: Panel
) -> None:
    """Firms move in groups that change every half year; codes know the next half year, or the last one."""
    rng = np.random.default_rng(4)
    half = 130
    member_PN = rng.integers(0, 6, (T // half + 1, N))
    common_T6 = 0.02 * rng.normal(size=(T, 6))
    part_T = np.arange(T) // half
    grouped_TN = np.take_along_axis(common_T6, member_PN[part_T], axis=1)
    close_TN = panel.close_TN * np.exp(np.cumsum(grouped_TN, axis=0))
    rows = [
        (f"F{n:02}", day.item(), f"cluster {member_PN[part if later else part - 1, n]}")
        for part in range(1, T // half)
        for day in panel.dates_T.astype("datetime64[D]")[[part * half]]
        for n in range(N)
    ]
    drawn = pl.DataFrame(rows, schema=["ticker", "valid_from", "industry"], orient="row")
    firms = tables["securities"].drop("valid_from", "industry").join(drawn, on="ticker")
    codes = firms.select(tables["securities"].columns)
    doctored = {**with_bars(tables, panel, open=close_TN, close=close_TN), "securities": codes}
    result = CHECKS["codes"](make_subject(config, doctored))
    assert result.verdict == verdict, result.sentence
    if later:
        assert "The groups may know later returns" in result.sentence


def test_level_scaled_with_its_future_is_caught(config: Config, tables: Tables, panel: Panel) -> None:
    """Clipped and demeaned by date, it has no exact moments, and its IC with the next session is small."""
    signal = as_input("signal", scaled(panel), panel)
    assert examine("fingerprints", config, tables, signal).verdict == "pass"
    result = examine("horizons", config, tables, signal)
    assert result.verdict == "fail", result.sentence
    assert "input signal has an IC of -0." in result.sentence


def honest(panel: Panel) -> dict[str, Array]:
    rng = np.random.default_rng(2)
    close_TN, five_TN = panel.close_TN, past(panel)
    moves_TN = np.nan_to_num(past(panel, 1))
    rises_TN, sizes_TN = np.maximum(moves_TN, 0.0), np.abs(moves_TN)
    window = np.ones(3)
    up_TN = np.apply_along_axis(lambda x: np.convolve(x, window)[:T], 0, rises_TN)
    all_TN = np.apply_along_axis(lambda x: np.convolve(x, window)[:T], 0, sizes_TN)
    return {
        "age": np.tile(np.arange(1.0, T + 1)[:, None], (1, N)),
        "log_age": np.tile(np.log(np.arange(1.0, T + 1))[:, None], (1, N)),
        "events": np.cumsum(rng.random((T, N)) < 0.05, axis=0).astype(np.float64),
        "drawdown": close_TN / np.maximum.accumulate(close_TN, axis=0) - 1.0,
        "rsi": 100.0 * up_TN / np.maximum(all_TN, 1e-12),
        "rank": np.where(np.isfinite(five_TN), np.argsort(np.argsort(five_TN, axis=1), axis=1) / N, np.nan),
        "slow_rank": np.argsort(np.argsort(panel.close_TN, axis=1), axis=1) / N,
        "noise": rng.normal(size=(T, N)),
        "momentum": past(panel, 126),
        "return": past(panel, 1),
        "monthly": np.repeat(past(panel, 21)[::21], 21, axis=0)[:T],
        "highest": np.maximum.accumulate(close_TN, axis=0),
        "market": np.tile(np.abs(moves_TN).mean(axis=1, keepdims=True), (1, N)),
        "large_moves": (sizes_TN > 2.5 * sizes_TN.mean(axis=0)).astype(np.float64),
    }


@pytest.fixture(scope="module")
def honest_subject(config: Config, tables: Tables, panel: Panel) -> Subject:
    inputs = [as_input(name, x_TN, panel) for name, x_TN in honest(panel).items()]
    return make_subject(config, {**tables, "inputs": pl.concat(inputs)})


@pytest.mark.parametrize(
    "check",
    ["fingerprints", "full_sample", "leads", "horizons", "timing", "backfill", "bars", "ranges", "codes"],
)
def test_bounded_counting_ageing_and_ranked_inputs_pass(check: str, honest_subject: Subject) -> None:
    result = CHECKS[check](honest_subject)
    assert result.verdict == "pass", result.sentence
    assert not result.evidence.is_empty() or check in ("leads", "full_sample", "ranges")


def with_bars(tables: Tables, panel: Panel, **changed: Array) -> Tables:
    """Prices with other columns; high and low hold them."""
    columns = {name: pl.Series(name, array.ravel()) for name, array in changed.items()}
    frame = tables["prices"].sort("date", "ticker").with_columns(**columns)
    return {
        **tables,
        "prices": frame.with_columns(
            high=pl.max_horizontal("open", "close"), low=pl.min_horizontal("open", "close")
        ),
    }


def next_open(panel: Panel) -> dict[str, Array]:
    assert panel.open_TN is not None
    return {"open": np.vstack([panel.open_TN[1:], panel.close_TN[-1:]])}


def centred(panel: Panel) -> dict[str, Array]:
    close_TN = panel.close_TN.copy()
    close_TN[1:-1] = 0.8 * panel.close_TN[1:-1] + 0.1 * (panel.close_TN[:-2] + panel.close_TN[2:])
    return {"close": close_TN}


def winsorised(panel: Panel) -> dict[str, Array]:
    low, high = np.quantile(panel.close_TN, [0.02, 0.98], axis=0)
    return {"close": np.clip(panel.close_TN, low, high)}


def filled_back(panel: Panel) -> dict[str, Array]:
    close_TN = panel.close_TN.copy()
    for n in range(N):
        for start in range(50 + n, T - 20, 200):
            close_TN[start : start + 6, n] = close_TN[start + 6, n]
    return {"close": close_TN}


def moved(panel: Panel) -> dict[str, Array]:
    return {"close": np.vstack([panel.close_TN[1:], panel.close_TN[-1:]])}


def adjusted(panel: Panel) -> dict[str, Array]:
    factor_T1 = 0.993 ** (np.arange(T)[::-1] // 63)[:, None]
    return {"close": panel.close_TN * factor_T1}


@pytest.mark.parametrize(
    ("doctor", "verdict", "names"),
    [
        (next_open, "fail", "The open is that of a later session"),
        (centred, "fail", "The closes are averages"),
        (winsorised, "fail", "Closes are clipped"),
        (filled_back, "fail", "filled backwards"),
        (moved, "fail", "Closes and volume are of different sessions"),
        (adjusted, "warn", "adjusted with later events"),
    ],
)
def test_doctored_prices_are_caught(  # noqa: PLR0917 (fixtures)
    doctor: Callable[[Panel], dict[str, Array]],
    verdict: str,
    names: str,
    config: Config,
    tables: Tables,
    panel: Panel,
) -> None:
    result = examine("bars", config, with_bars(tables, panel, **doctor(panel)))
    assert result.verdict == verdict, result.sentence
    assert names in result.sentence or any(names in row for row in result.evidence["sentence"])


def test_quotes_in_sixteenths_before_those_in_cents_are_no_alarm(
    config: Config, tables: Tables, panel: Panel
) -> None:
    """US prices were quoted in fractions of a dollar until 2001."""
    assert panel.open_TN is not None
    early_T1 = np.arange(T)[:, None] < T // 2
    bars = {
        name: np.where(early_T1, np.round(16.0 * price_TN) / 16.0, price_TN)
        for name, price_TN in (("open", panel.open_TN), ("close", panel.close_TN))
    }
    result = examine("bars", config, with_bars(tables, panel, **bars))
    assert result.verdict == "pass", result.sentence


def interpolated(panel: Panel) -> Array:
    """Half-yearly momentum at every 21st session, with straight lines between them."""
    knots = np.arange(126, T, 21)
    x_TN = past(panel, 126)
    lines = [np.interp(np.arange(T), knots, x_TN[knots, n]) for n in range(N)]
    return np.where(np.arange(T)[:, None] >= 126, np.stack(lines, axis=1), np.nan)


def extended(panel: Panel) -> Array:
    """The line through the last two of these values, extended to today."""
    x_TN, t = past(panel, 126), np.arange(T)
    last = np.maximum(t // 21 * 21, 147)
    slope_TN = (x_TN[last] - x_TN[last - 21]) / 21.0
    return np.where(t[:, None] >= 147, x_TN[last] + slope_TN * (t - last)[:, None], np.nan)


@pytest.mark.parametrize(("compute", "verdict"), [(interpolated, "fail"), (extended, "pass")])
def test_lines_to_a_later_value_are_caught(
    compute: Callable[[Panel], Array], verdict: str, config: Config, tables: Tables, panel: Panel
) -> None:
    result = examine("leads", config, tables, as_input("signal", compute(panel), panel))
    assert result.verdict == verdict, result.sentence
    if verdict == "fail":
        assert "with the returns of t+21" in " ".join(result.evidence["sentence"])


def betas(panel: Panel, sessions: slice) -> Array:
    """Return less beta times the market's, with betas of some sessions."""
    return_TN = past(panel, 1)
    market_T = np.nan_to_num(return_TN).mean(axis=1)
    own_TN, own_T = np.nan_to_num(return_TN[sessions]), np.nan_to_num(market_T[sessions])
    return np.asarray(return_TN - np.outer(market_T, own_T @ own_TN / (own_T @ own_T)))


def deciles(panel: Panel, *, so_far: bool) -> Array:
    """Decile of the five-day return within the firm's whole sample, or within its past."""
    x_TN = np.nan_to_num(past(panel))
    if not so_far:
        return np.asarray(np.argsort(np.argsort(x_TN, axis=0), axis=0) * 10.0 // T)
    below_TN = np.stack([(x_TN[: t + 1] <= x_TN[t]).mean(axis=0) for t in range(T)])
    return np.minimum(below_TN * 10.0 // 1.0, 9.0)


@pytest.mark.parametrize(
    ("compute", "names"),
    [
        (lambda panel: betas(panel, slice(0, T)), "Input signal is the return less common series"),
        (lambda panel: betas(panel, slice(0, 252)), None),
        (lambda panel: deciles(panel, so_far=False), "has the same distribution for every firm"),
        (lambda panel: deciles(panel, so_far=True), None),
        (lambda panel: panel.close_TN - panel.close_TN.mean(axis=0), "has a mean of exactly 0"),
        (lambda _: np.tile((np.arange(T) // 63 % 4.0)[:, None], (1, N)) + np.arange(N) % 4, None),
    ],
)
def test_fits_on_the_whole_sample_are_caught(
    compute: Callable[[Panel], Array], names: str | None, config: Config, tables: Tables, panel: Panel
) -> None:
    result = examine("full_sample", config, tables, as_input("signal", compute(panel), panel))
    assert result.verdict == ("fail" if names else "pass"), result.sentence
    if names:
        assert names in result.sentence
        assert result.evidence["subject"].to_list() == ["input signal"]


def two_sessions(tables: Tables, panel: Panel, first: int) -> Tables:
    """Highs and lows of a session and of the one after it, or before it."""
    assert panel.high_TN is not None
    assert panel.low_TN is not None
    other = np.clip(np.arange(T) + first, 0, T - 1)
    high_TN = np.maximum(panel.high_TN, panel.high_TN[other])
    low_TN = np.minimum(panel.low_TN, panel.low_TN[other])
    columns = {"high": pl.Series(high_TN.ravel()), "low": pl.Series(low_TN.ravel())}
    return {**tables, "prices": tables["prices"].sort("date", "ticker").with_columns(**columns)}


def next_opens_as_closes(tables: Tables, panel: Panel, *, closes: bool) -> Tables:
    """Four firms whose closes are the next opens, or whose opens are the previous closes."""
    assert panel.open_TN is not None
    open_TN, close_TN = panel.open_TN.copy(), panel.close_TN.copy()
    if closes:
        close_TN[:-1, :4] = open_TN[1:, :4]
    else:
        open_TN[1:, :4] = close_TN[:-1, :4]
    return with_bars(tables, panel, open=open_TN, close=close_TN)


def with_common_nights(tables: Tables, panel: Panel) -> Tables:
    """The prices with a move of all firms between close and open."""
    night_T1 = np.cumsum(0.006 * np.random.default_rng(3).normal(size=(T, 1)), axis=0)
    assert panel.open_TN is not None
    prices = {"open": panel.open_TN * np.exp(night_T1), "close": panel.close_TN * np.exp(night_T1)}
    return with_bars(tables, panel, **prices)


@pytest.mark.parametrize(
    ("doctor", "names"),
    [
        (lambda tables, panel: two_sessions(tables, panel, 1), "Highs and lows reach ahead"),
        (lambda tables, panel: two_sessions(tables, panel, -1), None),
        (
            lambda tables, panel: next_opens_as_closes(tables, panel, closes=True),
            "4 firms (F00, F01, F02, ...",
        ),
        (lambda tables, panel: next_opens_as_closes(tables, panel, closes=False), None),
    ],
)
def test_bars_that_hold_the_next_session_are_caught(
    doctor: Callable[[Tables, Panel], Tables], names: str | None, config: Config, tables: Tables, panel: Panel
) -> None:
    nights = with_common_nights(tables, panel)
    result = examine("ranges", config, doctor(nights, build_panel(nights["prices"], nights["securities"])))
    assert result.verdict == ("fail" if names else "pass"), result.sentence
    if names:
        assert names in result.sentence


@pytest.mark.parametrize("later", [True, False])
def test_an_index_that_firms_leave_before_they_fall_is_caught(
    later: bool, config: Config, tables: Tables, panel: Panel
) -> None:
    """Firms leave before their worst 21 sessions, or after them."""
    move_TN = panel.close_TN[21:] / panel.close_TN[:-21]
    worst_N = move_TN.argmin(axis=0) + (0 if later else 21)
    days = panel.dates_T.astype("datetime64[D]")
    rows = [("index", f"F{n:02}", days[0].item(), days[worst_N[n]].item()) for n in range(N)]
    schema = {"universe": pl.String, "ticker": pl.String, "from_date": pl.Date, "to_date": pl.Date}
    listed = {**tables, "membership": pl.DataFrame(rows, schema=schema, orient="row")}
    universe = config.universe.model_copy(update={"membership": "index"})
    result = examine("membership", config.model_copy(update={"universe": universe}), listed)
    assert (
        "Membership that knows later returns: in index, firms leave before they fall" in result.sentence
    ) is later


def test_groups_and_tickers_made_from_returns_are_caught(config: Config, tables: Tables) -> None:
    ends = (
        tables["prices"]
        .sort("date")
        .group_by("ticker")
        .agg(total=pl.col("close").last() / pl.col("close").first())
    )
    ranked = ends.sort("total").with_row_index("place")
    codes = ranked.select(
        "ticker", code=pl.concat_str(pl.lit("group "), (pl.col("place") // 5).cast(pl.String))
    )
    securities = (
        tables["securities"].join(codes, on="ticker").with_columns(industry=pl.col("code")).drop("code")
    )
    result = examine("codes", config, {**tables, "securities": securities})
    assert result.verdict == "fail"
    assert "The groups know later returns" in result.sentence

    names = ranked.select(
        "ticker", renamed=pl.concat_str(pl.lit("A"), pl.col("place").cast(pl.String).str.zfill(3))
    )
    sorted_tables = {
        name: frame.join(names, on="ticker").with_columns(ticker=pl.col("renamed")).drop("renamed")
        for name, frame in tables.items()
    }
    result = examine("codes", config, sorted_tables)
    assert result.verdict == "fail"
    assert "The order of the tickers" in result.sentence


def test_ics_over_spans_need_enough_of_them() -> None:
    rng = np.random.default_rng(0)
    value_TN, index_TN = rng.normal(size=(300, 20)), np.exp(rng.normal(0, 0.01, (300, 20)).cumsum(axis=0))
    for sessions in (0, 10, 21, 22, 7 * 21 + 1):
        assert span_ics(value_TN[:sessions], index_TN[:sessions], np.ones((sessions, 20), bool), 21) is None
    facts = span_ics(value_TN, index_TN, np.ones((300, 20), bool), 21)
    assert facts is not None
    assert facts[2] == 14


def test_static_means_of_the_whole_sample_are_suspect(config: Config, tables: Tables, panel: Panel) -> None:
    rng = np.random.default_rng(7)
    drift_N = np.nanmean(past(panel, 1), axis=0)
    fitted = examine("horizons", config, tables, as_input("fitted", np.tile(drift_N, (T, 1)), panel))
    assert fitted.verdict in ("warn", "fail"), fitted.sentence
    assert "fitted" in fitted.sentence
    drawn = np.tile(rng.normal(size=N), (T, 1))
    assert examine("horizons", config, tables, as_input("drawn", drawn, panel)).verdict == "pass"


def test_renumbered_groups_are_no_difference(config: Config, tables: Tables) -> None:
    """A firm that is listed late has an industry of its own; without it all codes move by one."""
    late = tables["prices"]["date"].unique().sort()[600]
    first = pl.col("ticker") == "F00"
    prices = tables["prices"].filter(~first | (pl.col("date") >= late))
    securities = tables["securities"].with_columns(
        industry=pl.when(first).then(pl.lit("A group of its own")).otherwise("industry"),
        valid_from=pl.when(first).then(pl.lit(late)).otherwise("valid_from"),
    )
    listed = {**tables, "prices": prices, "securities": securities}
    day = tables["prices"]["date"].unique().sort()[500]
    true = build_dataset(listed, config)
    noisy = build_dataset(replace_future(listed, day, seed=1), config)
    assert true.panel.groups_S != noisy.panel.groups_S
    assert not differences_until(500, true, noisy)
    swapped = dataclasses.replace(
        noisy, panel=dataclasses.replace(noisy.panel, groups_S=tuple(reversed(noisy.panel.groups_S)))
    )
    assert [diff.what for diff in differences_until(500, true, swapped)] == ["the panel's group"]
