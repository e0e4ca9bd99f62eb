"""Metrics, books and checks of signals in plain frames, without a config and a lake."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.stats import spearmanr

import peerglass
from backtest.accounts.accounting import run_book
from backtest.books.book import BookInputs
from backtest.books.rules.top_k_long_only import TopKLongOnly
from backtest.books.schedules import every_session
from backtest.costs import CostModel
from backtest.inference.means import newey_west_lags
from pipelines.errors import PeerglassError

T, N = 60, 12
RNG = np.random.default_rng(0)
DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in range(90)]
DAYS = [day for day in DAYS if day.weekday() < 5][:T]
CLOSE_TN = np.exp(RNG.normal(0, 0.02, (T, N)).cumsum(axis=0))
SIGNAL_TN = RNG.normal(size=(T, N))
NAMES = [f"F{n:02}" for n in range(N)]


def wide(x_TN: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame(x_TN, schema=NAMES).insert_column(0, pl.Series("date", DAYS))


def forms(x_TN: np.ndarray) -> list[pl.DataFrame | pd.DataFrame]:
    """One table in every form that is understood."""
    first = wide(x_TN)
    long = first.unpivot(index="date", variable_name="ticker", value_name="x").sample(fraction=1.0, seed=1)
    pandas = pd.DataFrame(x_TN, index=pd.DatetimeIndex(DAYS), columns=NAMES)
    keyed = long.to_pandas().set_index(["ticker", "date"])
    stacked = pd.DataFrame({"x": pandas.stack()})
    return [first, long, first.to_pandas(), long.to_pandas(), pandas, stacked, keyed]


def _twice(frame: pl.DataFrame) -> pd.DataFrame:
    table = frame.to_pandas().set_index("date")
    return pd.concat([table, table[["F00"]]], axis=1)


def _levels(frame: pl.DataFrame) -> pd.DataFrame:
    long = frame.unpivot(index="date", variable_name="ticker").with_columns(kind=pl.lit("x"))
    return long.to_pandas().set_index(["kind", "date", "ticker"])


def _without(frame: pl.DataFrame, key: str) -> pl.DataFrame:
    """The same in long form, without a key in three rows of one date."""
    long = _long(frame)
    here = (pl.col("date") == DAYS[7]) & pl.col("ticker").is_in(NAMES[:3])
    return long.with_columns(pl.when(~here).then(pl.col(key)).alias(key))


def _infinite(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(F03=pl.when(pl.col("date") >= DAYS[-2]).then(np.inf).otherwise("F03"))


def _long(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.unpivot(index="date", variable_name="ticker", value_name="close")


def test_every_form_of_a_frame_gives_the_same_metrics() -> None:
    found = [
        peerglass.forecast_metrics(signal, prices).rank_ic
        for signal, prices in zip(forms(SIGNAL_TN), forms(CLOSE_TN), strict=True)
    ]
    assert len(set(found)) == 1
    assert len(found) == 7
    return_TN = CLOSE_TN[2:] / CLOSE_TN[1:-1] - 1  # bought one session later, held for one
    by_hand = [spearmanr(x_N, y_N).statistic for x_N, y_N in zip(SIGNAL_TN[:-2], return_TN, strict=True)]
    assert found[0] == pytest.approx(np.mean(by_hand), abs=1e-12)


def on_calendar_days(x_TN: np.ndarray) -> pl.DataFrame:
    """Closes in long form: a row for each firm on each calendar day."""
    days = pl.DataFrame({"date": pl.date_range(DAYS[0], DAYS[-1], eager=True)})
    rows = days.join(wide(x_TN).fill_nan(None), on="date", how="left")
    return rows.unpivot(index="date", variable_name="ticker", value_name="close")


def test_dates_without_any_close_are_no_sessions_in_either_form() -> None:
    close_TN = CLOSE_TN.copy()
    close_TN[20] = close_TN[30:33, 2] = close_TN[:, 5] = np.nan
    as_wide, long = wide(close_TN).fill_nan(None), on_calendar_days(close_TN)
    expected = peerglass.forecast_metrics(wide(SIGNAL_TN), as_wide)
    daily = peerglass.run_book(wide(SIGNAL_TN), as_wide).daily
    assert daily.height == T - 1
    for prices in (long, long.to_pandas()):
        found = peerglass.forecast_metrics(wide(SIGNAL_TN), prices)
        for figure in ("ic", "ic_t", "rank_ic", "n_dates", "n_pairs"):
            assert getattr(found, figure) == getattr(expected, figure), figure
        assert peerglass.run_book(wide(SIGNAL_TN), prices).daily.equals(daily)


def test_splits_and_dividends_of_dates_without_a_close_count_on_the_next_session() -> None:
    """By hand: a dividend and two splits on a weekend give the return of holding the shares."""
    monday = next(t for t in range(5, T) if DAYS[t].weekday() == 0)
    saturday, sunday = (DAYS[monday] - dt.timedelta(days=days) for days in (2, 1))
    last, close = CLOSE_TN[monday - 1, 0], CLOSE_TN[monday, 0]
    events = [(saturday, "F00", 2.0, 0.3), (sunday, "F00", 5.0, 0.0), (DAYS[monday], "F00", 1.0, 0.1)]
    events.append((DAYS[-1] + dt.timedelta(days=1), "F00", 2.0, 0.0))
    given = pl.DataFrame(events, schema=["date", "ticker", "split_ratio", "dividend"], orient="row")
    rows = on_calendar_days(CLOSE_TN).join(given, on=["date", "ticker"], how="full", coalesce=True)
    found = peerglass.features(rows, {"rise": "close / delay(close, 1) - 1"})
    assert found["date"].n_unique() == T
    firm = found.filter(pl.col("ticker") == "F00")
    cash = 2 * 0.3 + 10 * 0.1  # of one share
    assert firm.filter(date=DAYS[monday])["rise"][0] == pytest.approx(
        (10 * close + cash) / last - 1, rel=1e-5
    )
    plain = peerglass.features(wide(CLOSE_TN), {"rise": "close / delay(close, 1) - 1"})
    assert found.filter(pl.col("ticker") != "F00").equals(plain.filter(pl.col("ticker") != "F00"))
    assert peerglass.features(rows.sort("close"), {"rise": "close / delay(close, 1) - 1"}).equals(found)


def _of_yahoo(close_TN: np.ndarray) -> pl.DataFrame:
    """Closes with yfinance's columns of events: ten for one of F03 in session 30, and a dividend before."""
    rows = _long(wide(close_TN)).rename({"close": "Close"})
    split, paid = ((pl.col("ticker") == "F03") & (pl.col("date") == DAYS[t]) for t in (30, 20))
    return rows.with_columns(
        pl.when(split).then(10).otherwise(0).alias("Stock Splits"),
        pl.when(paid).then(0.05).otherwise(0.0).alias("Dividends"),
    ).sample(fraction=1.0, seed=2, shuffle=True)


def test_splits_under_yahoos_names_count_only_if_closes_fall_at_them() -> None:
    rise = {"rise": "close / delay(close, 1) - 1"}
    quoted_TN = CLOSE_TN.copy()
    quoted_TN[30:, 3] /= 10.0
    quoted = _of_yahoo(quoted_TN)
    ours = quoted.rename({"Stock Splits": "split_ratio", "Dividends": "dividend"})
    found = peerglass.features(quoted, rise)
    assert found.equals(peerglass.features(ours, rise)), "0 is no split"
    firm = found.filter(pl.col("ticker") == "F03")["rise"]
    assert firm[30] == pytest.approx(CLOSE_TN[30, 3] / CLOSE_TN[29, 3] - 1, rel=1e-5)
    assert firm[20] == pytest.approx((CLOSE_TN[20, 3] + 0.05) / CLOSE_TN[19, 3] - 1, rel=1e-5)
    with pytest.warns(
        UserWarning, match="columns Stock Splits and Dividends .* are not used, .*rename to split"
    ):
        adjusted = peerglass.features(_of_yahoo(CLOSE_TN), rise)
    assert adjusted.equals(peerglass.features(wide(CLOSE_TN), rise))
    with pytest.warns(UserWarning, match="column Dividends of the prices is not used"):
        peerglass.features(quoted.rename({"Stock Splits": "split_ratio"}), rise)
    without = _of_yahoo(CLOSE_TN).with_columns(pl.col("Stock Splits", "Dividends") * 0.0)
    assert peerglass.features(without, rise).equals(adjusted), "without a word"


def _stamped(frame: pl.DataFrame, zone: str, hour: int = 0) -> pl.DataFrame:
    """The same with times of a zone, written in UTC."""
    local = (pl.col("date").cast(pl.Datetime("us")) + pl.duration(hours=hour)).dt.replace_time_zone(zone)
    return frame.with_columns(local.dt.convert_time_zone("UTC"))


@pytest.mark.parametrize("zone", ["Asia/Hong_Kong", "Asia/Tokyo", "Europe/Berlin", "Australia/Sydney"])
@pytest.mark.parametrize("form", [lambda x: x, pl.DataFrame.to_pandas, _long])
def test_midnights_of_another_zone_in_utc_are_refused(
    zone: str, form: Callable[[pl.DataFrame], pl.DataFrame | pd.DataFrame]
) -> None:
    signal, close = form(_stamped(wide(SIGNAL_TN), zone)), form(_stamped(wide(CLOSE_TN), zone))
    with pytest.raises(
        PeerglassError, match=r"forecast are in UTC, and 2023-12-31 .* midnight of 2024-01-01 in"
    ):
        peerglass.forecast_metrics(signal, wide(CLOSE_TN))
    with pytest.raises(PeerglassError, match=r"dates of the prices are in UTC.* convert them"):
        peerglass.run_book(wide(SIGNAL_TN), close)


@pytest.mark.parametrize(
    ("zone", "hour"),
    [
        ("UTC", 0),
        ("America/New_York", 0),
        ("America/New_York", 16),
        ("Asia/Tokyo", 15),
        ("UTC", 9),
        ("Europe/London", 0),
    ],
)
def test_times_in_utc_of_the_same_day_are_read(zone: str, hour: int) -> None:
    expected = peerglass.forecast_metrics(wide(SIGNAL_TN), wide(CLOSE_TN)).ic
    assert peerglass.forecast_metrics(_stamped(wide(SIGNAL_TN), zone, hour), wide(CLOSE_TN)).ic == expected
    winter = pl.col("date") < dt.date(2024, 2, 1)  # closes of New York that are midnights in Moscow
    few = wide(SIGNAL_TN).filter(winter)
    stamped = _stamped(few, "America/New_York", 16)
    prices = wide(CLOSE_TN)
    assert peerglass.forecast_metrics(stamped, prices).ic == peerglass.forecast_metrics(few, prices).ic
    there = _stamped(wide(SIGNAL_TN), "Asia/Tokyo").with_columns(
        pl.col("date").dt.convert_time_zone("Asia/Tokyo")
    )
    assert peerglass.forecast_metrics(there, wide(CLOSE_TN)).ic == expected


def test_given_labels_are_used_instead_of_prices() -> None:
    found = peerglass.forecast_metrics(wide(SIGNAL_TN), label=wide(0.5 * SIGNAL_TN))
    assert found.ic == pytest.approx(1.0)
    assert found.n_pairs == T * N


@pytest.mark.parametrize(("every", "horizon"), [(21, 21), (21, 50), (1, 5)])
def test_metrics_are_those_of_a_backtest_whatever_the_dates_of_the_forecasts(
    tmp_path: Path, every: int, horizon: int
) -> None:
    rng, days = np.random.default_rng(2), pd.bdate_range("2021-01-04", periods=420)
    close_TN = np.exp(rng.normal(0, 0.02, (420, N)).cumsum(axis=0))
    close_TN[rng.random(close_TN.shape) < 0.02] = np.nan
    prices = pd.DataFrame(close_TN, index=days, columns=NAMES)
    label = prices.ffill().shift(-1 - horizon) / prices.ffill().shift(-1) - 1
    forecast = (label + rng.normal(0, 1.0, label.shape)).iloc[63:320:every].where(prices.notna())
    found = peerglass.forecast_metrics(forecast, prices, horizon=horizon)
    settings = [f"output={tmp_path}", f"label.horizon={horizon}"]
    ladder = peerglass.backtest(forecast, prices, settings).polars["ladder"]
    names = ("ic", "ic_t", "coverage_dates", "coverage_firms")
    assert [getattr(found, name) for name in names] == pytest.approx(ladder.select(names).row(0), rel=1e-12)
    assert found.lags == max(-(-horizon // every) - 1, newey_west_lags(found.n_dates))
    assert found.coverage_dates == pytest.approx(1 / every, rel=0.1)
    alone = peerglass.forecast_metrics(forecast, label=label.reindex(forecast.index), horizon=horizon)
    assert alone.lags == found.lags
    assert alone.ic_t == pytest.approx(found.ic_t, rel=0.05)
    assert alone.coverage_dates == 1.0


def test_a_book_of_a_frame_equals_the_accounts_of_its_arrays() -> None:
    costs = {"half_spread_bps": 7.0, "commission_bps": 0.0}
    found = peerglass.run_book(wide(SIGNAL_TN), wide(CLOSE_TN), "top_k_long_only", k=3, costs=costs)
    target_TN = TopKLongOnly(k=3).targets(BookInputs(SIGNAL_TN, every_session(T))).target_TN
    expected = run_book(target_TN, CLOSE_TN, np.ones((T, N), dtype=bool), CostModel(7.0, 0.0), 1)
    np.testing.assert_allclose(found.daily["return_net"], expected.return_net_T, atol=1e-14)
    assert found.weights.height == 3 * T
    assert found.metrics.turnover > 0.3


def test_tomorrows_return_fails_the_audit_and_noise_does_not() -> None:
    ahead_TN = np.full((T, N), np.nan)
    ahead_TN[:-1] = CLOSE_TN[1:] / CLOSE_TN[:-1] - 1
    assert "fail" in peerglass.audit_signal(wide(ahead_TN).fill_nan(None), wide(CLOSE_TN))["verdict"]
    honest = peerglass.audit_signal(wide(SIGNAL_TN), wide(CLOSE_TN))
    assert "fail" not in honest["verdict"]
    assert honest["sentence"].str.ends_with(".").all(), "every check says what it found"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, p: peerglass.forecast_metrics(s), "pass exactly one"),
        (lambda s, p: peerglass.forecast_metrics(s.drop("date"), p), "give a column date"),
        (lambda s, p: peerglass.forecast_metrics(s.cast({"date": pl.String}), p), "str.to_date"),
        (lambda s, p: peerglass.forecast_metrics(s.rename({n: n.lower() for n in NAMES}), p), "in common"),
        (lambda s, p: peerglass.run_book(s, p, "best"), "'optimised', 'quantile_long_short'"),
        (lambda s, p: peerglass.run_book(s, p, k=3), "k is not a known name; choose among"),
        (lambda s, p: peerglass.run_book(s, p, quantiles=30), "lower its size"),
        (lambda s, p: peerglass.run_book(s, p.with_columns(F00=-pl.col("F00"))), "price of F00 on .* is -"),
        (lambda s, p: peerglass.run_book(s, p, neutral=["sector"]), "run it by a config"),
        (lambda s, p: peerglass.audit_signal(s.with_columns(x=pl.lit("a")), p), "numbers"),
        (lambda s, p: peerglass.forecast_metrics(s, p, delay=-1), "delay is -1"),
        (lambda s, p: peerglass.audit_signal(s, p, horizon=0), "horizon 0"),
        (lambda s, p: peerglass.run_book(s, p, horizon=0), "horizon 0"),
        (lambda s, p: peerglass.run_book(s, p, costs=s.columns), "valid dictionary"),
        (lambda s, p: peerglass.forecast_metrics(s.lazy(), p), "LazyFrame; pass a frame"),
        (lambda s, p: peerglass.forecast_metrics(s.rows(), p), "list; pass a frame"),
        (lambda s, p: peerglass.forecast_metrics(_twice(s), p), "two columns 'F00'"),
        (lambda s, p: peerglass.forecast_metrics(_levels(s), p), "3 levels"),
        (lambda s, p: peerglass.forecast_metrics(s, p.clear()), "prices have no close at all"),
        (
            lambda s, p: peerglass.forecast_metrics(s, _without(p, "date")),
            "date is missing in 3 of 720 .* prices",
        ),
        (
            lambda s, p: peerglass.run_book(s, _without(p, "ticker")),
            "ticker is missing in 3 .* of the prices",
        ),
        (
            lambda s, p: peerglass.run_book(_without(s, "date"), p),
            "date is missing in 3 .* of the signal; fill",
        ),
        (
            lambda s, p: peerglass.audit_signal(_without(s, "ticker"), p),
            "ticker is missing in 3 .* signal; fill",
        ),
        (lambda s, p: peerglass.features(_without(p, "ticker").to_pandas(), "MA5"), "ticker is missing in 3"),
        (lambda s, p: peerglass.features(_without(p, "date").to_pandas(), "MA5"), "date is missing in 3"),
        (lambda s, p: peerglass.run_book(s, _infinite(p)), "The close has an infinite value in 2 .* F03 on"),
        (
            lambda s, p: peerglass.run_book(s, _long(_infinite(p))),
            "The close has an infinite value in 2 of 720",
        ),
        (
            lambda s, p: peerglass.run_book(_infinite(s), p),
            "signal 'signal' has an infinite value in 2 of 720",
        ),
        (lambda s, p: peerglass.forecast_metrics(s, label=_infinite(p)), "The label has an infinite value"),
        (lambda s, p: peerglass.run_book(s, _long(p).cast({"close": pl.String})), "close .* String"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(
    call: Callable[[pl.DataFrame, pl.DataFrame], object], message: str
) -> None:
    with pytest.raises(PeerglassError, match=message) as raised:
        call(wide(SIGNAL_TN), wide(CLOSE_TN))
    assert "\n" not in str(raised.value)
