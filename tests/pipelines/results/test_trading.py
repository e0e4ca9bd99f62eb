"""Estimated half-spreads, impact, fees and caps of a panel: what a trade uses is known the session before."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from random_markets import panel_of, random_tables

from backtest.costs import corwin_schultz
from features.panel.panel import PRICE_COLUMNS, Panel, build_panel
from pipelines.config.sections import BacktestConfig
from pipelines.dataset.backtest_files import unmatched_tickers
from pipelines.errors import ConfigError, DataError
from pipelines.results.books import book_costs, book_execution

CAPITAL = {"capital": 1e6, "execution": {"window": 10}}
EVERYTHING = {
    "capital": 1e6,
    "execution": {"price": "ohlc", "window": 10},
    "costs": {"half_spread_bps": "corwin_schultz", "spread_window": 10},
}


@pytest.fixture(scope="module")
def panel() -> Panel:
    return panel_of(random_tables(3))


def terms(panel: Panel, settings: dict[str, object], held: slice = slice(None)) -> dict[str, np.ndarray]:
    config = BacktestConfig.model_validate(settings)
    costs, execution = book_costs(config, panel, held), book_execution(config, panel, held, 1)
    arrays: dict[str, object] = {"spread": costs.half_spread_bps, "price": execution.price_over_close_TN}
    if costs.impact is not None:
        arrays["impact"] = costs.impact.volatility_per_root_volume_TN
    if execution.cap is not None:
        arrays["volume"] = execution.cap.dollar_volume_TN
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}


def test_the_default_has_no_impact_no_cap_and_trades_at_the_close(panel: Panel) -> None:
    assert terms(panel, {}) == {}
    costs = book_costs(BacktestConfig(), panel, slice(None))
    assert (costs.half_spread_bps, costs.commission_bps) == (5.0, 0.5)
    assert (costs.borrow_bps_per_year, costs.financing_bps_per_year) == (50.0, 0.0)
    assert set(terms(panel, CAPITAL)) == {"impact", "volume"}
    assert set(terms(panel, {**CAPITAL, "costs": {"impact_coefficient": 0}})) == {"volume"}
    uncapped = {"capital": 1e6, "execution": {"participation_cap": None}}
    assert set(terms(panel, uncapped)) == {"impact"}


def test_impact_and_cap_use_the_sessions_before_the_trade(panel: Panel) -> None:
    got = terms(panel, CAPITAL)
    assert panel.volume_TN is not None
    dollars_TN = panel.raw_close_TN * panel.volume_TN
    index_TN, t, checked = panel.total_return_index_TN, 500, 0
    for n in range(panel.n_firms):
        if not panel.traded_TN[t - 11 : t, n].all() or np.isnan(dollars_TN[t - 10 : t, n]).any():
            continue
        returns = index_TN[t - 10 : t, n] / index_TN[t - 11 : t - 1, n] - 1
        volume = dollars_TN[t - 10 : t, n].mean()
        assert got["volume"][t, n] == pytest.approx(volume, rel=1e-9)
        assert got["impact"][t, n] == pytest.approx(returns.std(ddof=1) / np.sqrt(volume), rel=1e-6)
        checked += 1
    assert checked > 2


def test_estimated_half_spreads_are_lagged_and_unknown_ones_are_the_median(panel: Panel) -> None:
    spread_TN = terms(panel, EVERYTHING)["spread"]
    assert panel.high_TN is not None
    assert panel.low_TN is not None
    estimate_TN = 1e4 * corwin_schultz(panel.high_TN, panel.low_TN, panel.close_TN, 10)
    known_TN = np.isfinite(estimate_TN[:-1])
    np.testing.assert_array_equal(spread_TN[1:][known_TN], estimate_TN[:-1][known_TN])
    filled = 0
    for t in range(20, len(estimate_TN) - 1):
        firms = np.flatnonzero(~known_TN[t])
        np.testing.assert_allclose(spread_TN[t + 1, firms], np.nanmedian(estimate_TN[t]), rtol=1e-14)
        filled += len(firms)
    assert filled > 100
    assert np.isnan(spread_TN[0]).all()
    roll = terms(panel, {"costs": {"half_spread_bps": "roll"}})["spread"]
    assert np.nanmin(roll) >= 0
    assert np.nanmax(roll) > 0


def test_held_sessions_are_cut_from_the_terms(panel: Panel) -> None:
    whole, part = terms(panel, EVERYTHING), terms(panel, EVERYTHING, slice(300, 400))
    assert set(whole) == {"spread", "price", "impact", "volume"}
    for name, array in part.items():
        np.testing.assert_array_equal(array, whole[name][300:400], err_msg=name)


@pytest.mark.parametrize("t", [400, 650])
def test_terms_of_a_session_do_not_change_with_the_session_itself(panel: Panel, t: int) -> None:
    def changed(x_TN: np.ndarray | None) -> np.ndarray:
        assert x_TN is not None
        return np.vstack([x_TN[:t], 1.7 * x_TN[t:]])

    other = dataclasses.replace(
        panel,
        close_TN=changed(panel.close_TN),
        high_TN=changed(panel.high_TN),
        low_TN=changed(panel.low_TN),
        raw_close_TN=changed(panel.raw_close_TN),
        volume_TN=changed(panel.volume_TN),
        total_return_index_TN=changed(panel.total_return_index_TN),
    )
    before, after = terms(panel, EVERYTHING), terms(other, EVERYTHING)
    for name in ("spread", "impact", "volume"):
        np.testing.assert_array_equal(before[name][: t + 1], after[name][: t + 1], err_msg=name)
        assert not np.array_equal(before[name][t + 1 :], after[name][t + 1 :], equal_nan=True), name


def test_fees_of_single_firms_come_from_a_file(panel: Panel, tmp_path: Path) -> None:
    fees = tmp_path / "fees.csv"
    fees.write_text("ticker,bps_per_year\nF2,700\nF0,0\nOTHER,9\n")
    config = BacktestConfig.model_validate({"costs": {"borrow_file": str(fees), "borrow_bps_per_year": 30}})
    costs = book_costs(config, panel, slice(None))
    np.testing.assert_array_equal(costs.borrow_bps_per_year, [[0, 30, 700] + [30] * (panel.n_firms - 3)])
    frame = pl.read_csv(fees)
    frame.write_parquet(tmp_path / "fees.parquet")
    same = BacktestConfig.model_validate(
        {"costs": {"borrow_file": str(tmp_path / "fees.parquet"), "borrow_bps_per_year": 30}}
    )
    np.testing.assert_array_equal(
        book_costs(same, panel, slice(None)).borrow_bps_per_year, costs.borrow_bps_per_year
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("ticker,fee\nF0,3\n", "with columns ticker and bps_per_year"),
        ("ticker,bps_per_year\nF0,dear\n", "with columns ticker and bps_per_year"),
        ("ticker,bps_per_year\nF0,-3\n", "gives F0 a borrow fee of -3"),
        ("ticker,bps_per_year\nF0,\n", "gives F0 a borrow fee of None"),
        ("ticker,bps_per_year\nF0,3\nF0,4\n", "several fees for F0"),
        (None, "no file of borrow fees"),
    ],
)
def test_a_file_of_fees_that_cannot_be_used_is_refused(
    content: str | None, message: str, panel: Panel, tmp_path: Path
) -> None:
    fees = tmp_path / "fees.csv"
    if content is not None:
        fees.write_text(content)
    config = BacktestConfig.model_validate({"costs": {"borrow_file": str(fees)}})
    with pytest.raises(DataError, match=message):
        book_costs(config, panel, slice(None))


@pytest.mark.parametrize(
    ("missing", "settings", "message"),
    [
        ("volume_TN", CAPITAL, "backtest.capital is set, but the data have no volume"),
        ("open_TN", {"execution": {"price": "open"}}, "the data have no open: use close"),
        ("low_TN", {"execution": {"price": "typical"}}, "the data have no low: use close"),
        ("high_TN", {"costs": {"half_spread_bps": "corwin_schultz"}}, "use roll or a number"),
    ],
)
def test_missing_fields_are_named(
    missing: str, settings: dict[str, object], message: str, panel: Panel
) -> None:
    without = dataclasses.replace(panel, **{missing: None})  # type: ignore[arg-type]  # a field's name
    with pytest.raises(DataError, match=message):
        terms(without, settings)


def test_a_price_before_the_close_needs_a_delay(panel: Panel) -> None:
    config = BacktestConfig.model_validate({"execution": {"price": "open"}})
    with pytest.raises(ConfigError, match=r"Set backtest\.delay to 1"):
        book_execution(config, panel, slice(None), 0)


def test_the_terms_are_described_in_one_line() -> None:
    assert BacktestConfig().trading == (
        "half-spread 5 bps, commission 0.5 bps, borrow 50 bps per year, executed at the label's delay"
    )
    config = BacktestConfig.model_validate(
        {
            "capital": 2e7,
            "delay": 1,
            "execution": {"price": "open"},
            "costs": {"half_spread_bps": "roll", "financing_bps_per_year": 600, "borrow_file": "fees.csv"},
        }
    )
    assert config.trading == (
        "half-spread estimated (roll), commission 0.5 bps, impact 1 x volatility x root of participation, "
        "borrow 50 bps per year or by firm, financing 600 bps per year, capital 20,000,000 (at most 10% of "
        "daily volume), executed at delay 1 and the open price"
    )


def test_tickers_with_leading_zeros_find_their_fees_and_limits(panel: Panel, tmp_path: Path) -> None:
    numbered = dataclasses.replace(panel, tickers_N=tuple(f"{n:06d}" for n in range(panel.n_firms)))
    fees, limits = tmp_path / "fees.csv", tmp_path / "limits.csv"
    fees.write_text("ticker,bps_per_year\n000001,500\n")
    limits.write_text("ticker,limit\n000001,0.0001\n")
    config = BacktestConfig.model_validate(
        {"costs": {"borrow_file": str(fees)}, "execution": {"price_limit_file": str(limits)}}
    )
    held = slice(0, panel.n_sessions)
    fee = book_costs(config, numbered, held).borrow_bps_per_year
    assert isinstance(fee, np.ndarray)
    assert fee[0, 1] == 500
    bar_TN = book_execution(config, numbered, held, 1).bar_TN
    assert bar_TN is not None
    assert np.flatnonzero(bar_TN.any(axis=0)).tolist() == [1]


def test_files_of_single_firms_follow_renames(panel: Panel, tmp_path: Path) -> None:
    """F1 and F2 had other tickers; the ticker F0 is of another firm now, and F2 has a row of its own."""
    panel = dataclasses.replace(panel, newest_tickers={"OLD1": "F1", "OLD2": "F2", "F0": "F3", "GONE": "?"})
    file = tmp_path / "firms.csv"
    numbers = {"F0": 10, "OLD1": 20, "F2": 30, "OLD2": 40, "GONE": 50, "TYPO": 60}
    rows = [f"{ticker},{number},{number / 1e6}" for ticker, number in numbers.items()]
    file.write_text("\n".join(["ticker,bps_per_year,limit", *rows]) + "\n")
    config = BacktestConfig.model_validate(
        {"costs": {"borrow_file": str(file)}, "execution": {"price_limit_file": str(file)}}
    )
    fee = book_costs(config, panel, slice(None)).borrow_bps_per_year
    np.testing.assert_array_equal(fee, [[10, 20, 30] + [50] * (panel.n_firms - 3)])
    bar_TN = book_execution(config, panel, slice(None), 1).bar_TN
    assert bar_TN is not None
    assert np.flatnonzero(bar_TN.any(axis=0)).tolist() == [0, 1, 2]
    names = ("costs.borrow_file", "execution.price_limit_file")
    said = [f"2 tickers are in backtest.{name}, but not in the data: GONE, TYPO." for name in names]
    assert list(unmatched_tickers(config, panel)) == said
    assert not list(unmatched_tickers(BacktestConfig(), panel))


def test_a_file_of_other_tickers_is_refused(panel: Panel, tmp_path: Path) -> None:
    file = tmp_path / "firms.csv"
    file.write_text("ticker,bps_per_year,limit\nAAPL.US,30,0.1\nMSFT.US,30,0.1\n")
    costs = BacktestConfig.model_validate({"costs": {"borrow_file": str(file)}})
    limits = BacktestConfig.model_validate({"execution": {"price_limit_file": str(file)}})
    wrong = r"No ticker of .*firms\.csv is in the data, .*'F0' .*'AAPL\.US': .* check backtest\."
    with pytest.raises(ConfigError, match=rf"{wrong}costs\.borrow_file"):
        book_costs(costs, panel, slice(None))
    with pytest.raises(ConfigError, match=rf"{wrong}execution\.price_limit_file"):
        book_execution(limits, panel, slice(None), 1)


@pytest.mark.parametrize(("split", "dividend"), [(1.0, 0.0), (1.0, 0.3), (2.0, 0.0), (1.5, 0.2), (1.0, 12.0)])
def test_a_price_limit_counts_from_the_last_close_without_the_dividend(split: float, dividend: float) -> None:
    """A close of 10 before the ex-date; a dividend above it leaves nothing to count from."""
    reference = 10.0 / split - dividend
    closes = (
        [round(reference * (1.0 + move), 2) for move in (0.1, -0.1, 0.08)] if reference > 0 else [1.0] * 3
    )
    rows = [
        {"date": day, "ticker": ticker, "close": price, "split_ratio": ratio, "dividend": paid}
        for ticker, close in zip("ABC", closes, strict=True)
        for day, price, ratio, paid in (
            ("2024-01-02", 10.0, 1.0, 0.0),
            ("2024-01-03", close, split, dividend),
        )
    ]
    prices = pl.DataFrame(rows).with_columns(pl.col("date").str.to_date())
    absent = [pl.lit(None, pl.Float64).alias(name) for name in PRICE_COLUMNS if name not in prices.columns]
    panel = build_panel(prices.with_columns(absent))
    config = BacktestConfig.model_validate({"execution": {"price_limit": 0.1}})
    bar_TN = book_execution(config, panel, slice(0, 2), 1).bar_TN
    assert bar_TN is not None
    assert bar_TN.tolist() == [[0.0] * 3, [1.0, -1.0, 0.0] if reference > 0 else [0.0] * 3]


def test_price_limits_lots_and_fees_of_a_config(panel: Panel, tmp_path: Path) -> None:
    raw_TN = panel.raw_close_TN
    file = tmp_path / "limits.csv"
    day = panel.dates_T[300].astype("datetime64[D]")
    file.write_text(f"ticker,limit,from_date\n{panel.tickers_N[0]},0.01,\n{panel.tickers_N[0]},0.05,{day}\n")
    settings = {
        "capital": 1e6,
        "costs": {"commission_min": 5.0},
        "execution": {
            "participation_cap": None,
            "unfilled": "carry",
            "price_limit": 0.02,
            "price_limit_file": str(file),
            "lot": 100,
        },
    }
    config = BacktestConfig.model_validate(settings)
    T = panel.n_sessions
    execution = book_execution(config, panel, slice(0, T + 1), 1)
    assert execution.carries
    assert execution.bar_TN is not None
    assert execution.lot_TN is not None
    counts = {-1.0: 0, 1.0: 0}
    days = {day: t for t, day in enumerate(panel.dates_T.astype("datetime64[D]").tolist())}
    rows = random_tables(3)["prices"].select("date", "ticker", "close", "split_ratio", "dividend")
    ex_dates = 0
    for n, ticker in enumerate(panel.tickers_N):
        before, owed = math.nan, 0.0  # the last close and the dividends since, in shares of the session
        for date, _, close, split, dividend in rows.filter(ticker=ticker).sort("date").iter_rows():
            t, before, owed = days[date], before / split, owed / split + dividend
            if close is None:
                continue
            reference, before, ex_dates = before - owed, close, ex_dates + (owed > 0)
            owed = 0.0
            if math.isnan(reference):
                continue
            limit = (0.01 if t < 300 else 0.05) if n == 0 else 0.02
            move = raw_TN[t, n] - reference
            room = max(limit * reference - 0.005, 0.5 * limit * reference)
            near = abs(abs(move) - room) < 1e-6 * reference
            expected = float(np.sign(move)) * (abs(move) >= room)
            assert near or execution.bar_TN[t, n] == expected
            if expected:
                counts[expected] += 1
            units = 1e6 * execution.lot_TN[t, n] * panel.total_return_index_TN[t, n] / raw_TN[t, n]
            assert units == pytest.approx(100)
    assert min(counts.values()) > 20
    assert ex_dates > 20
    assert not execution.bar_TN[T].any()
    assert book_costs(config, panel, slice(None)).commission_minimum == 5e-6
    assert config.trading.endswith(
        "no trade at a price limit of 2%, lots of 100 shares, unfilled orders stay open, executed at the "
        "label's delay"
    )
    with pytest.raises(ValueError, match="commission_min is 5, an amount that needs a capital"):
        BacktestConfig.model_validate({"costs": {"commission_min": 5.0}})
    file.write_text("ticker,limit\nF0,-0.1\n")
    with pytest.raises(DataError, match="gives F0 a limit of -0"):
        book_execution(config, panel, slice(None), 1)
