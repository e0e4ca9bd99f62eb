"""Returns in known periods of stress, against a plain calculation on the prices of an index."""

import datetime as dt

import numpy as np
import polars as pl
import pytest

from backtest.analysis.history import CRISES, crisis_returns


def make_path(first: dt.date, last: dt.date) -> pl.DataFrame:
    days = pl.date_range(first, last, eager=True)
    days = days.filter(days.dt.weekday() <= 5)
    rng = np.random.default_rng(4)
    paths = {name: np.cumprod(1 + rng.normal(0, 0.01, len(days))) for name in ("net", "index")}
    return pl.DataFrame({"date": days, **paths})


def test_the_windows_are_in_order_and_none_is_empty() -> None:
    assert all(one.first < one.last for one in CRISES)
    assert [one.first for one in CRISES] == sorted(one.first for one in CRISES)
    assert len({one.name for one in CRISES}) == len(CRISES)


def test_only_crises_that_are_covered_as_a_whole_are_measured() -> None:
    names = [one.name for one in CRISES]
    inside = crisis_returns(make_path(dt.date(2018, 1, 26), dt.date(2020, 3, 22)))["crisis"].to_list()
    assert inside == ["Volatility spike", "End of 2018"]
    assert crisis_returns(make_path(dt.date(1980, 1, 1), dt.date(2026, 1, 1)))["crisis"].to_list() == names
    assert crisis_returns(make_path(dt.date(2012, 1, 2), dt.date(2013, 1, 2))).height == 0
    assert crisis_returns(make_path(dt.date(2012, 1, 2), dt.date(2013, 1, 2)).clear()).height == 0


def test_returns_and_the_largest_fall_are_those_of_a_plain_loop() -> None:
    path = make_path(dt.date(2006, 1, 2), dt.date(2021, 1, 1))
    path = path.filter(pl.col("date") != dt.date(2020, 2, 19))  # a holiday: the close before counts
    closes = {day: (net, index) for day, net, index in path.iter_rows()}
    found = crisis_returns(path)
    assert "Covid crash" in found["crisis"].to_list()
    assert found.height > 8
    for row in found.iter_rows(named=True):
        start = max(day for day in closes if day <= row["first"])
        days = [day for day in closes if start <= day <= row["last"]]
        for place, name in enumerate(("net", "index")):
            assert row[name] == pytest.approx(closes[days[-1]][place] / closes[days[0]][place] - 1)
        peak, depth = 0.0, 0.0
        for day in days:
            peak = max(peak, closes[day][0])
            depth = max(depth, 1 - closes[day][0] / peak)
        assert row["depth"] == pytest.approx(depth)
