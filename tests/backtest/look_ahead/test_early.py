"""Firms, rates, periods, events and splits that are known early are told from honest ones like them.

The market is a seeded random walk with two common factors, so that nothing but look-ahead knows a later
return.

Shape suffixes: T sessions, N firms.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

from backtest.look_ahead import bars, leads, splits
from backtest.look_ahead.delivery import Delivery
from features.panel.panel import Panel, build_panel

Array = npt.NDArray[np.float64]
T, N = 700, 40
SESSIONS = pl.date_range(dt.date(2015, 1, 1), dt.date(2019, 1, 1), "1d", eager=True)
SESSIONS = SESSIONS.filter(SESSIONS.dt.weekday() < 6)[:T]
TICKERS = [f"F{n:02}" for n in range(N)]


def rows(**columns: Array) -> pl.DataFrame:
    """Rows of all firms on all sessions where the first column is known."""
    frame = pl.DataFrame({"date": np.repeat(SESSIONS.to_numpy(), N), "ticker": TICKERS * T})
    frame = frame.with_columns(pl.col("date").cast(pl.Date), **{k: x.ravel() for k, x in columns.items()})
    return frame.filter(pl.col(next(iter(columns))).is_not_nan())


@pytest.fixture(scope="module", name="factor_T2")
def made_factors() -> Array:
    return 0.01 * np.random.default_rng(1).normal(size=(T, 2))


@pytest.fixture(scope="module", name="return_TN")
def made_returns(factor_T2: Array) -> Array:
    """Returns with betas of 1 on a first factor, and of both signs on a second one."""
    rng = np.random.default_rng(2)
    own_TN = 0.012 * rng.standard_t(5, (T, N))
    return np.asarray(own_TN + factor_T2[:, :1] + rng.normal(size=N) * factor_T2[:, 1:])


def prices(return_TN: Array) -> pl.DataFrame:
    close_TN = 40.0 * np.exp(np.cumsum(return_TN, axis=0))
    volume_TN = 1e5 * np.exp(0.3 * np.random.default_rng(3).normal(size=(T, N)))
    return rows(close=close_TN, volume=volume_TN).with_columns(
        *(pl.lit(None, pl.Float64).alias(name) for name in ("open", "high", "low")),
        split_ratio=pl.lit(1.0),
        dividend=pl.lit(0.0),
    )


@pytest.fixture(scope="module", name="panel")
def made_panel(return_TN: Array) -> Panel:
    return build_panel(prices(return_TN))


def delivered(
    panel: Panel, value_TN: Array | None = None, name: str = "own", **tables: pl.DataFrame
) -> Delivery:
    names: tuple[str, ...] = ()
    if value_TN is not None:
        names, tables = (name,), {**tables, "inputs": rows(value=value_TN).with_columns(name=pl.lit(name))}
    return Delivery(panel, panel.traded_TN, tables, names, np.arange(panel.n_firms), 1)


def ahead(x_TN: Array, k: int = 1) -> Array:
    """Value k sessions later, or earlier if k is negative."""
    out_TN = np.full(x_TN.shape, np.nan)
    if k > 0:
        out_TN[:-k] = x_TN[k:]
    else:
        out_TN[-k:] = x_TN[:k]
    return out_TN


@pytest.mark.parametrize(("share", "verdicts"), [(1.0, ["warn"]), (0.75, []), (0.5, []), (0.0, [])])
def test_firms_a_session_early_are_told_from_firms_that_close_later(
    share: float, verdicts: list[str], return_TN: Array
) -> None:
    """Five firms have a share of the market's next session in the return of t."""
    moved_TN = return_TN.copy()
    moved_TN[:-1, :5] = (1.0 - share) * return_TN[:-1, :5] + share * return_TN[1:, :5]
    found = list(bars._early_firms(delivered(build_panel(prices(moved_TN)))))
    assert [one.verdict for one in found if one.verdict != "pass"] == verdicts
    if share == 1.0:
        assert "5 firms (F00, F01, F02, ...)" in found[0].sentence
        assert "time zone" in found[0].sentence


@pytest.mark.parametrize("early", [True, False])
def test_funds_that_move_against_the_market_are_accused_only_if_they_are_early(
    early: bool, return_TN: Array
) -> None:
    moved_TN = return_TN.copy()
    moved_TN[:, :5] *= -1.0
    if early:
        moved_TN[:-1, :5] = moved_TN[1:, :5].copy()
    found = list(bars._early_firms(delivered(build_panel(prices(moved_TN)))))
    assert [one.verdict for one in found if one.verdict != "pass"] == (["warn"] if early else [])


def rate(factor_T2: Array, which: int, k: int) -> Array:
    """A rate that moves with a factor of session t + k, and has noise of its own."""
    move_T1 = factor_T2[:, which : which + 1] / 0.01 + np.random.default_rng(4).normal(size=(T, 1))
    return ahead(move_T1, k) if k else move_T1


@pytest.mark.parametrize("exposed", [True, False])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("k", [-1, 0, 1, 2])
def test_a_rate_of_a_later_session_is_told_from_one_of_today(
    exposed: bool, which: int, k: int, factor_T2: Array, panel: Panel
) -> None:
    """One value for all firms, or products with betas of both signs that no return shows."""
    beta_N = np.random.default_rng(5).normal(size=N) if exposed else np.ones(N)
    result = leads.check(delivered(panel, rate(factor_T2, which, k) * beta_N))
    assert result.verdict == ("fail" if k > 0 else "pass"), result.sentence
    if k > 0:
        assert f"of the returns of t+{k}" in result.sentence or "of the market of t+" in result.sentence
        assert "Input own knows later sessions" in result.sentence


WEEK = np.arange(T) // 5


def of_weeks(x_TN: Array, label: str) -> Array:
    """Mean of each five sessions, held from its first or last session, or around its last one."""
    mean_WN = np.stack([x_TN[w == WEEK].mean(axis=0) for w in range(WEEK[-1] + 1)])
    held_TN = mean_WN[WEEK]
    return {"start": held_TN, "nearest": ahead(held_TN, -2), "end": ahead(held_TN, -4)}[label]


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("label", ["start", "nearest", "end"])
@pytest.mark.parametrize("what", ["return", "size", "volume"])
def test_weeks_labelled_at_their_start_are_told_from_weeks_labelled_at_their_end(
    what: str, label: str, sparse: bool, return_TN: Array, panel: Panel
) -> None:
    """Means of weeks, held on all sessions or delivered on one session of the week."""
    noise_TN = 0.01 * np.random.default_rng(6).normal(size=(T, N))
    series: dict[str, Callable[[], Array]] = {
        "return": lambda: return_TN + noise_TN,
        "size": lambda: np.abs(return_TN),
        "volume": lambda: np.log(np.asarray(panel.volume_TN)),
    }
    value_TN = of_weeks(series[what](), label)
    first = {"start": 0, "nearest": 2, "end": 4}[label]
    if sparse:
        value_TN = np.where((np.arange(T) % 5 == first)[:, None], value_TN, np.nan)
    result = leads.check(delivered(panel, value_TN))
    allowed = {"start": {"fail"}, "nearest": {"fail", "warn"}, "end": {"pass"}}
    assert result.verdict in allowed[label], result.sentence
    said = " ".join(result.evidence["sentence"])
    assert ("every 5 sessions" in said) is (label != "end")


@pytest.mark.parametrize("label", ["start", "nearest", "end"])
def test_a_weak_weekly_figure_is_told_by_its_equal_links_with_both_sides_of_its_steps(
    label: str, return_TN: Array, panel: Panel
) -> None:
    """A daily figure with a correlation of 0.2 with its session's return, as the mean of each week."""
    noise_TN = np.random.default_rng(9).normal(size=(T, N))
    result = leads.check(delivered(panel, of_weeks(return_TN / 0.02 + 5.0 * noise_TN, label)))
    assert result.verdict in ({"pass"} if label == "end" else {"warn", "fail"}), result.sentence
    assert ("as strongly as with those before the step" in result.sentence) is (label != "end")


def test_an_honest_weekly_forecast_is_not_accused(return_TN: Array, panel: Panel) -> None:
    """A figure of each week that has an IC of 0.07 with the returns of the week to come."""
    week_WN = np.stack([return_TN[w == WEEK].sum(axis=0) for w in range(WEEK[-1] + 1)])
    noise_WN = np.random.default_rng(10).normal(size=week_WN.shape)
    forecast_WN = 0.07 * week_WN / week_WN.std() + noise_WN
    result = leads.check(delivered(panel, ahead(forecast_WN[WEEK], 1)))  # known at the close before the week
    assert result.verdict == "pass", result.sentence


def countdown(spread: float, kind: str) -> Array:
    """Sessions, or days, to the next event of each firm; its date is known, estimated or announced."""
    rng = np.random.default_rng(7)
    out_TN = np.full((T, N), np.nan)
    day_T = SESSIONS.to_numpy().astype("datetime64[D]").astype(float)
    day_T = np.concatenate([day_T, day_T[-1] + 1 + np.arange(2000)])
    for n in range(N):
        event_E = 5 + np.cumsum(np.maximum(np.rint(60 + spread * rng.normal(size=20)), 20)).astype(int)
        for before, at in zip([-1, *event_E], event_E, strict=False):
            inside = np.arange(before + 1, min(at + 1, T))
            left = (at - inside).astype(float)
            if kind == "days":
                left = day_T[at] - day_T[inside]
            elif kind == "announced":
                left = np.where(left <= 20 + n % 7, left, np.nan)
            elif kind == "estimated":
                left = np.where(left <= 12, left, np.maximum(before + 60 - inside, 13))
            out_TN[inside, n] = left
    return out_TN


@pytest.mark.parametrize(
    ("spread", "kind", "found"),
    [
        (15.0, "known", True),
        (15.0, "days", True),
        (15.0, "announced", False),
        (15.0, "estimated", False),
        (0.0, "known", False),
        (3.0, "known", False),
    ],
)
def test_event_dates_that_were_known_too_early_are_told_from_estimates_and_rules(
    spread: float, kind: str, found: bool, panel: Panel
) -> None:
    result = leads.check(delivered(panel, countdown(spread, kind)))
    assert result.verdict == ("fail" if found else "pass"), result.sentence
    assert ("knows dates of events before they were announced" in result.sentence) is found


SPLIT_AT = 200 + 15 * np.arange(N // 2)
"""Session of the split of every second firm: 2 for 1, and 3 for 1 of some."""


def split_market(return_TN: Array, *, adjusted_volume: bool) -> tuple[pl.DataFrame, Array, Array]:
    """Prices and volumes as quoted; the factor of splits so far, and of those to come."""
    ratio_TN = np.ones((T, N))
    ratio_TN[SPLIT_AT, np.arange(0, N, 2)] = np.where(np.arange(N // 2) % 3 == 0, 3.0, 2.0)
    done_TN: Array = np.asarray(np.cumprod(ratio_TN, axis=0), dtype=np.float64)
    left_TN: Array = np.asarray(done_TN[-1] / done_TN, dtype=np.float64)
    frame = prices(return_TN)
    whole = {name: frame[name].to_numpy().reshape(T, N) for name in ("close", "volume")}
    volume_TN = whole["volume"] if adjusted_volume else whole["volume"] / left_TN
    made = rows(close=whole["close"] * left_TN, volume=volume_TN, split_ratio=ratio_TN)
    missing = [pl.lit(None, pl.Float64).alias(name) for name in ("open", "high", "low")]
    return made.with_columns(*missing, dividend=pl.lit(0.0)), done_TN, left_TN


@pytest.mark.parametrize("adjusted", [True, False])
def test_volumes_adjusted_for_later_splits_are_told_from_volumes_as_traded(
    adjusted: bool, return_TN: Array
) -> None:
    table = split_market(return_TN, adjusted_volume=adjusted)[0]
    result = splits.check(delivered(build_panel(table), prices=table))
    assert result.verdict == ("fail" if adjusted else "pass"), result.sentence
    assert ("Volumes were adjusted for later splits" in result.sentence) is adjusted
    assert result.evidence.height == N // 2  # a row for each split
    step = result.evidence["volume_step"].median()
    assert step == pytest.approx(0.0 if adjusted else np.log(2.0), abs=0.15)


@pytest.mark.parametrize(
    ("what", "name", "verdict", "words"),
    [
        ("shares of t, adjusted prices", "own", "fail", "Input own jumps by the ratio at 20 of 20 splits"),
        ("adjusted shares, quoted prices", "own", "warn", "has no step at 20 of 20 splits"),
        ("both of t", "own", "pass", ""),
        ("reported shares, quoted prices", "own", "pass", ""),
        ("price", "own", "pass", ""),
        ("adjusted shares", "shares_out", "warn", "Input shares_out holds shares that were adjusted"),
        ("adjusted shares", "staff", "pass", ""),
        ("shares", "shares_out", "pass", ""),
        ("reported shares", "shares_out", "pass", ""),
    ],
)
@pytest.mark.parametrize("prices_too", [True, False])
def test_shares_and_capital_that_know_splits_are_told_from_those_as_of_the_date(  # noqa: PLR0917
    what: str, name: str, verdict: str, words: str, prices_too: bool, return_TN: Array
) -> None:
    """As the audit asks with the prices, and as the guard on signal files asks without them."""
    table, done_TN, left_TN = split_market(return_TN, adjusted_volume=False)
    panel = build_panel(table)
    share_N = 1e6 * np.exp(np.random.default_rng(8).normal(size=N))
    reported_TN = ahead(done_TN, -70)  # reports show splits later
    value_TN = {
        "shares of t, adjusted prices": share_N * done_TN * panel.raw_close_TN / left_TN,
        "adjusted shares, quoted prices": share_N * done_TN[-1] * panel.raw_close_TN,
        "both of t": share_N * done_TN * panel.raw_close_TN,
        "reported shares, quoted prices": share_N * reported_TN * panel.raw_close_TN,
        "price": panel.raw_close_TN,
        "adjusted shares": share_N * done_TN[-1] + np.arange(T)[:, None] // 63,
        "shares": share_N * done_TN,
        "reported shares": share_N * reported_TN,
    }[what]
    result = splits.check(delivered(panel, value_TN, name, prices=table), prices=prices_too)
    assert result.verdict == verdict, result.sentence
    assert words in result.sentence


def test_a_market_without_splits_is_not_examined(panel: Panel, return_TN: Array) -> None:
    assert splits.check(delivered(panel, prices=prices(return_TN))).verdict == "skipped"


def paying(return_TN: Array, early: int, share: float, *, falls: float = 1.0) -> pl.DataFrame:
    """Prices of firms that pay a share of their price every 63 sessions, recorded so many sessions early."""
    close_TN = prices(return_TN)["close"].to_numpy().reshape(T, N).copy()
    dividend_TN = np.zeros((T, N))
    for n in range(N):
        for t in range(20 + n, T - 20, 63):
            dividend_TN[t - early, n] = share * close_TN[t - 1, n]
            close_TN[t:, n] *= 1.0 - falls * share
    missing = [pl.lit(None, pl.Float64).alias(name) for name in ("open", "high", "low", "volume")]
    made = rows(close=close_TN, dividend=dividend_TN)
    return made.with_columns(*missing, split_ratio=pl.lit(1.0))


@pytest.mark.parametrize(
    ("early", "share", "falls", "verdict", "words"),
    [
        (0, 0.005, 1.0, "pass", "on the recorded session"),
        (0, 0.02, 1.0, "pass", "on the recorded session"),
        (0, 0.02, 0.7, "pass", "on the recorded session"),  # after taxes
        (1, 0.02, 1.0, "fail", "before their ex-dates"),
        (3, 0.02, 1.0, "fail", "3 session(s) after it"),
        (-2, 0.02, 1.0, "fail", "2 session(s) before it"),
        (0, 0.02, 0.0, "warn", "counted twice"),
    ],
)
def test_dividends_dated_on_another_session_are_told_from_those_on_which_prices_fall(  # noqa: PLR0917
    early: int, share: float, falls: float, verdict: str, words: str, return_TN: Array
) -> None:
    table = paying(return_TN, early, share, falls=falls)
    result = splits.check(delivered(build_panel(table), prices=table))
    assert (result.verdict, words in result.sentence) == (verdict, True), result.sentence


def test_nine_dividends_are_not_examined(return_TN: Array) -> None:
    table = paying(return_TN, 1, 0.02).with_columns(pl.col("dividend").cast(pl.Float64))
    paid = table.filter(pl.col("dividend") > 0).head(9).select("date", "ticker", kept=True)
    kept = table.join(paid, on=["date", "ticker"], how="left", maintain_order="left")
    kept = kept.with_columns(dividend=pl.when("kept").then("dividend").otherwise(0.0)).drop("kept")
    assert splits.check(delivered(build_panel(kept), prices=kept)).verdict == "skipped"
