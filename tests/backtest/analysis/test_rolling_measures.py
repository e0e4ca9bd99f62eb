"""Rolling measures and monthly returns, against pandas, statsmodels and hand-computed cases."""

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pytest
import statsmodels.api as sm

from backtest.analysis.history import monthly_returns, rolling_mean_ic, rolling_risk, rolling_window
from backtest.inference.means import critical_value, mean_test, mean_test_lags
from pipelines.pages.charts.books import rolling
from pipelines.pages.figure import model_styles
from pipelines.results.evaluate import forecast_steps


def make_book(sessions: int = 300) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    dates = pl.date_range(dt.date(2021, 1, 1), dt.date(2023, 1, 1), eager=True).head(sessions)
    net = 0.01 * rng.standard_t(4, sessions) + 0.0005
    return pl.DataFrame({"date": dates, "nav_net": np.cumprod(1 + net), "excess_net": net - 0.0001})


def test_the_window_follows_the_length_of_the_test() -> None:
    assert [rolling_window(n) for n in (4, 60, 251, 252, 503, 504, 5_000)] == [2, 15, 62, 63, 63, 126, 126]


def test_rolling_sharpe_and_volatility_equal_those_of_pandas() -> None:
    book, window = make_book(), 63
    nav = book["nav_net"].to_pandas()
    returns, excess = nav / nav.shift(1, fill_value=1.0) - 1, book["excess_net"].to_pandas()
    frame = rolling_risk(book, window)
    assert frame.height == 300 - window + 1
    assert frame["date"][0] == book["date"][window - 1]
    expected = np.sqrt(252) * excess.rolling(window).mean() / excess.rolling(window).std()
    np.testing.assert_allclose(frame["sharpe"], expected[window - 1 :], rtol=1e-9)
    volatility = np.sqrt(252) * returns.rolling(window).std()
    np.testing.assert_allclose(frame["volatility"], volatility[window - 1 :], rtol=1e-9)


def test_the_errors_of_sharpe_and_volatility_are_those_of_simulated_windows() -> None:
    rng = np.random.default_rng(2)
    window, draws = 120, 4_000
    sharpe, volatility, errors = [], [], []
    for _ in range(draws // 4):
        net = rng.normal(0.001, 0.01, window)
        book = pl.DataFrame(
            {
                "date": pl.date_range(dt.date(2021, 1, 1), dt.date(2022, 1, 1), eager=True).head(window),
                "nav_net": np.cumprod(1 + net),
            }
        )
        row = rolling_risk(book, window).row(0, named=True)
        sharpe.append(row["sharpe"])
        volatility.append(row["volatility"])
        errors.append((row["sharpe_error"], row["volatility_error"]))
    typical = np.mean(errors, axis=0)
    assert typical[0] == pytest.approx(np.std(sharpe), rel=0.1)
    assert typical[1] == pytest.approx(np.std(volatility), rel=0.1)


def test_the_error_of_the_rolling_ic_is_that_of_statsmodels() -> None:
    rng = np.random.default_rng(3)
    ic = np.convolve(rng.normal(0.02, 0.1, 104), np.ones(5) / 5, mode="valid")
    dates = pl.date_range(dt.date(2021, 1, 1), dt.date(2022, 1, 1), eager=True).head(100)
    frame = rolling_mean_ic(pl.DataFrame({"date": dates, "rank_ic": ic}), 60, overlap=5)
    lags = mean_test_lags(60, 5)
    assert frame.height == 41
    for row in (0, 17, 40):
        part = ic[row : row + 60]
        fitted = sm.OLS(part, np.ones(60)).fit(
            cov_type="HAC", cov_kwds={"maxlags": lags, "use_correction": False}
        )
        assert frame["rank_ic"][row] == pytest.approx(part.mean(), rel=1e-12)
        assert frame["half"][row] == pytest.approx(critical_value(60, lags) * fitted.bse[0], rel=1e-9)


def test_unknown_ics_are_left_out_and_half_a_window_must_be_known() -> None:
    dates = [dt.date(2024, 1, day) for day in range(1, 9)]
    values = [0.1, None, -0.2, 0.3, float("nan"), None, 0.1, 0.2]
    frame = rolling_mean_ic(pl.DataFrame({"date": dates, "rank_ic": values}, strict=False), 2, overlap=1)
    assert frame["date"].to_list() == dates[1:]
    assert frame["rank_ic"].to_list() == pytest.approx([0.1, -0.2, 0.05, 0.3, None, 0.1, 0.15], nan_ok=True)


def test_monthly_returns_by_hand() -> None:
    book = pl.DataFrame(
        {
            "date": [dt.date(2023, 11, 30), dt.date(2023, 12, 1), dt.date(2023, 12, 29), dt.date(2024, 2, 1)],
            "nav_net": [1.10, 1.21, 1.32, 0.99],
        }
    )
    got = {(year, month): net for year, month, net in monthly_returns(book).iter_rows()}
    assert got == pytest.approx(
        {(2023, 11): 0.10, (2023, 12): 0.20, (2024, 2): -0.25, (2023, 0): 0.32, (2024, 0): -0.25}
    )


def test_months_after_the_ruin_of_a_book_are_unknown() -> None:
    dates = [dt.date(2023, month, 28) for month in (10, 11, 12)] + [dt.date(2024, 1, 31)]
    frame = monthly_returns(pl.DataFrame({"date": dates, "nav_net": [0.9, 0.0, 0.0, 0.0]}))
    assert frame["net"].to_list() == pytest.approx([-1.0, -0.1, -1.0, None, None, None])


def test_months_compound_to_years_and_years_to_the_test() -> None:
    book = make_book()
    frame = monthly_returns(book)
    for year in (2021,):
        months = frame.filter((pl.col("year") == year) & (pl.col("month") > 0))["net"]
        total = frame.filter((pl.col("year") == year) & (pl.col("month") == 0))["net"].item()
        assert months.len() == 10
        assert np.prod(1 + months.to_numpy()) - 1 == pytest.approx(total, abs=1e-12)
    years = frame.filter(pl.col("month") == 0)["net"].to_numpy()
    assert np.prod(1 + years) == pytest.approx(book["nav_net"][-1], rel=1e-12)
    nav = pd.Series(book["nav_net"].to_numpy(), index=pd.to_datetime(book["date"].to_list()))
    ends = nav.resample("ME").last()
    expected = (ends / ends.shift(1, fill_value=1.0) - 1).to_numpy()
    np.testing.assert_allclose(frame.filter(pl.col("month") > 0)["net"], expected, rtol=1e-12)


def test_the_band_is_drawn_for_the_chosen_model_and_others_can_be_switched_on() -> None:
    book = make_book()
    equity = pl.concat([book.with_columns(model=pl.lit(name)) for name in ("a", "b", "ridge")])
    ic = equity.select("date", "model", rank_ic="excess_net")
    styles = model_styles(("a", "b", "ridge"))
    overlaps = dict.fromkeys(styles, 1)
    figures = list(rolling(equity, ic, styles, ("a", "ridge"), window=63, overlaps=overlaps, year=252))
    assert [figure.title.split(",")[0] for figure in figures] == [
        "Rolling net Sharpe ratio",
        "Rolling volatility net of costs",
        "Rolling rank IC",
    ]
    for figure in figures:
        bands = [trace for trace in figure.traces if trace.get("fill") == "toself"]
        lines = {trace["name"]: trace for trace in figure.traces if "fill" not in trace}
        assert [band["legendgroup"] for band in bands] == ["a"]
        assert {name: trace["visible"] for name, trace in lines.items()} == {
            "a": True,
            "b": "legendonly",
            "ridge": True,
        }
        upper = bands[0]["y"][: len(lines["a"]["y"])]
        assert (upper > lines["a"]["y"]).all()
    risk = rolling_risk(book, 63)
    drawn = figures[0].traces[0]["y"][0]
    assert drawn == pytest.approx(risk["sharpe"][0] + 1.96 * risk["sharpe_error"][0], rel=1e-5)
    assert list(rolling(equity.clear(), ic.clear(), styles, ("a",), window=63, overlaps={}, year=252)) == []


@pytest.mark.parametrize(("overlap", "banded"), [(5, True), (15, True), (16, False)])
def test_the_band_of_the_rolling_ic_is_the_interval_of_the_test(overlap: int, *, banded: bool) -> None:
    ic_T = np.convolve(np.random.default_rng(5).normal(0.02, 0.1, 314), np.ones(overlap), "valid")
    dates = pl.date_range(dt.date(2021, 1, 1), dt.date(2023, 1, 1), eager=True).head(len(ic_T))
    ic = pl.DataFrame({"date": dates, "model": "a", "rank_ic": ic_T})
    styles, overlaps = model_styles(("a",)), {"a": overlap}
    (figure,) = rolling(pl.DataFrame(), ic, styles, ("a",), window=63, overlaps=overlaps, year=252)
    assert figure.title == "Rolling rank IC, 63 forecasts"
    *bands, line = figure.traces
    assert len(bands) == banded
    test = mean_test(ic_T[:63], overlap=overlap)
    assert line["y"][0] == pytest.approx(test.mean, rel=1e-5)
    for band in bands:
        assert (band["y"][0], band["y"][-1]) == pytest.approx((test.upper, test.lower), rel=1e-5)


def test_the_rolling_ic_of_a_weekly_signal_counts_forecasts() -> None:
    """A window of 63 sessions has 13 weekly forecasts; 60 of them have windows of 15."""
    dates = pl.date_range(dt.date(2021, 1, 1), dt.date(2023, 1, 1), eager=True).head(300)
    book = pl.DataFrame({"date": dates, "model": "a", "nav_net": 1.0})
    ic = book.gather_every(5).select("date", "model", rank_ic=pl.Series(np.linspace(0.0, 0.59, 60)))
    assert forecast_steps(ic, book) == {"a": 5.0}
    (figure,) = rolling(
        pl.DataFrame(), ic, model_styles(("a",)), ("a",), window=63, overlaps={"a": 1}, year=252
    )
    assert figure.title == "Rolling rank IC, 15 forecasts"
    assert len(figure.traces[-1]["y"]) == 46
    assert figure.traces[-1]["y"][0] == pytest.approx(0.07, rel=1e-5)
    daily = book.select("date", model=pl.lit("b"), rank_ic=pl.lit(0.1))
    both, styles, overlaps = pl.concat([ic, daily]), model_styles(("a", "b")), {"a": 1, "b": 5}
    (figure,) = rolling(pl.DataFrame(), both, styles, ("a", "b"), window=63, overlaps=overlaps, year=252)
    assert figure.title == "Rolling rank IC, 15 forecasts"


@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_a_band_by_the_critical_value_covers_the_mean(horizon: int) -> None:
    """Daily ICs without skill whose labels overlap, in windows of 20 sessions."""
    shock_T = np.random.default_rng(0).normal(size=20_000)
    ic_T = np.convolve(shock_T, np.ones(horizon), "valid")
    dates = pl.date_range(dt.date(1900, 1, 1), dt.date(1999, 1, 1), eager=True).head(len(ic_T))
    frame = rolling_mean_ic(pl.DataFrame({"date": dates, "rank_ic": ic_T}), 20, horizon).drop_nulls()
    half_K = frame["half"].to_numpy()
    assert 0.04 < np.mean(np.abs(frame["rank_ic"].to_numpy()) > half_K) < 0.1
    test = mean_test(ic_T[:20], overlap=horizon)
    assert test.upper - test.mean == pytest.approx(half_K[0])
