"""The risk-free rate: aligned with the sessions on which it was known, and required on all of them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.backtest_files import describe_rate, require_rates, risk_free_rates
from pipelines.dataset.build import build_dataset
from pipelines.errors import ConfigError, DataError
from pipelines.results.evaluate import Evaluation, evaluate

SESSIONS = np.array(["2020-01-02", "2020-01-03", "2020-01-06", "2020-01-07", "2020-01-08"], "datetime64[D]")
NO_SCORES = pl.DataFrame(schema={"model": pl.String, "valid_ic": pl.Float64, "valid_rank_ic": pl.Float64})


def write(folder: Path, rows: dict[str, Any], name: str = "rf.csv") -> str:
    path = folder / name
    pl.DataFrame(rows).write_csv(path)
    return str(path)


def test_a_number_is_an_annual_rate() -> None:
    np.testing.assert_array_equal(risk_free_rates(0.0252, SESSIONS), [0.0252 / 252] * 5)
    np.testing.assert_array_equal(risk_free_rates(0.0, SESSIONS), [0.0] * 5)


def test_a_session_has_the_rate_that_was_known_at_the_close_before(tmp_path: Path) -> None:
    values = [0.126, 0.0252, 0.0504]
    rates = {"date": ["2020-01-06", "2020-01-02", "2020-01-05"], "rate": values}
    got = risk_free_rates(write(tmp_path, rates), SESSIONS)
    # the rate of Sunday the 5th was unknown at Friday's close; the rate of the 6th is first used on the 7th
    np.testing.assert_allclose(got, [np.nan, 1e-4, 1e-4, 5e-4, 5e-4])
    values[0] = 0.9
    np.testing.assert_array_equal(risk_free_rates(write(tmp_path, rates), SESSIONS)[:3], got[:3])
    pl.DataFrame(rates).with_columns(pl.col("date").str.to_date()).write_parquet(tmp_path / "rf.parquet")
    np.testing.assert_array_equal(
        risk_free_rates(str(tmp_path / "rf.parquet"), SESSIONS),
        risk_free_rates(write(tmp_path, rates), SESSIONS),
    )


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Tokyo", "America/New_York"])
def test_a_midnight_with_a_time_zone_is_the_day_of_that_zone(tmp_path: Path, zone: str) -> None:
    moments = [dt.datetime(2024, 1, day, tzinfo=ZoneInfo(zone)) for day in (2, 3, 4)]
    path = tmp_path / "rates.parquet"
    pl.DataFrame({"date": moments, "rate": [0.01, 0.02, 0.03]}).write_parquet(path)
    dates_T = np.array(["2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05"], dtype="datetime64[D]")
    rate_T = 252 * risk_free_rates(str(path), dates_T)
    np.testing.assert_allclose(rate_T, [np.nan, 0.01, 0.02, 0.03], rtol=1e-12)


def test_an_outdated_or_missing_rate_is_refused(tmp_path: Path) -> None:
    late = write(tmp_path, {"date": ["2020-01-06"], "rate": [0.01]})
    with pytest.raises(DataError, match=r"rf\.csv has no risk-free rate in the 45 days before 2020-01-03"):
        require_rates(late, risk_free_rates(late, SESSIONS), SESSIONS)
    old = write(tmp_path, {"date": ["2019-11-19"], "rate": [0.01]})  # 45 days before January 3rd
    rate_T = risk_free_rates(old, SESSIONS)
    assert np.isfinite(rate_T).tolist() == [False, True, True, False, False]
    with pytest.raises(DataError, match="before 2020-01-07"):
        require_rates(old, rate_T, SESSIONS)
    require_rates(0.02, risk_free_rates(0.02, SESSIONS), SESSIONS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"date": ["2020-01-02"], "yield": [0.01]}, "lacks the column 'rate'"),
        (
            {"date": ["2020-01-02"], "rate": [1.5]},
            r"the rate of 2020-01-02 is 1\.5; give annual rates as fractions",
        ),
        ({"date": ["2020-01-02"], "rate": ["nan"]}, "is nan; give annual rates as fractions"),
        ({"date": ["02/01/2020"], "rate": [0.01]}, "dates must be YYYY-MM-DD"),
        ({"date": ["2020-01-02"] * 2, "rate": [0.01, 0.02]}, "more than one rate for 2020-01-02"),
    ],
)
def test_an_invalid_file_of_rates_is_refused(tmp_path: Path, rows: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        risk_free_rates(write(tmp_path, rows), SESSIONS)


def test_a_missing_file_and_a_rate_in_per_cent_are_refused(tmp_path: Path, tiny: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="There is no file of risk-free rates"):
        risk_free_rates(str(tmp_path / "none.csv"), SESSIONS)
    with pytest.raises(ConfigError, match=r"risk_free is 3; it must be an annual fraction"):
        check_config({**tiny, "backtest": {"risk_free": 3}}, origin="tiny")


def test_the_rate_is_described() -> None:
    assert describe_rate(0.0) == "a rate of 0"
    assert describe_rate(0.025) == "a rate of 2.50% a year"
    assert describe_rate("/there/tbill.csv") == "the rates in tbill.csv"


def evaluated(tables: dict[str, pl.DataFrame], config: Config, **backtest: Any) -> Evaluation:  # noqa: ANN401
    """Evaluate a constant signal, in which all firms are tied, and a signal without ties."""
    settings = config.model_dump(mode="json")
    settings["backtest"] |= backtest
    config = check_config(settings, origin="tiny")
    dataset = build_dataset(tables, config)
    sessions = np.arange(200, 280)
    constant_TN = np.full(dataset.universe_TN.shape, np.nan)
    constant_TN[sessions] = np.where(dataset.universe_TN[sessions], 1.0, np.nan)
    ordered_TN = np.where(np.isfinite(constant_TN), dataset.characteristics_TNF[..., 0], np.nan)
    forecasts = {"constant": {0: constant_TN}, "ordered": {0: ordered_TN}}
    return evaluate(forecasts, dataset, config, NO_SCORES, truth_TN=None, sessions=sessions)


def test_a_long_only_book_of_a_constant_forecast_equals_its_benchmark_before_costs(
    tiny_tables: dict[str, pl.DataFrame], tiny_config: Config
) -> None:
    free = {"half_spread_bps": 0, "commission_bps": 0, "borrow_bps_per_year": 0}
    without = evaluated(tiny_tables, tiny_config, costs=free)["ladder"]
    row = without.row(by_predicate=pl.col("model") == "constant", named=True)
    assert row["long_only.tracking_error"] == pytest.approx(0, abs=1e-12)
    assert row["long_only.information_ratio"] is None
    assert row["long_short.information_ratio"] is None
    assert (row["ic"], row["rank_ic"], row["tied"], row["coverage_dates"]) == (0, 0, 1, 1)
    assert row["long_only.sharpe_net"] != 0
    assert row["long_short.sharpe_net"] is None
    paid = evaluated(tiny_tables, tiny_config)["ladder"]
    assert paid.filter(pl.col("model") == "constant")["long_only.information_ratio"][0] < -1


def test_the_rate_and_the_benchmark_reach_the_ladder(
    tiny_tables: dict[str, pl.DataFrame], tiny_config: Config, tmp_path: Path
) -> None:
    plain = evaluated(tiny_tables, tiny_config)
    _, ordered = plain["ladder"].iter_rows(named=True)
    nav = {
        (model, book): part["nav_net"].to_numpy()
        for (model, book), part in plain["equity"].partition_by("model", "book", as_dict=True).items()
    }
    free = {"half_spread_bps": 0, "commission_bps": 0, "borrow_bps_per_year": 0}
    gross = evaluated(tiny_tables, tiny_config, costs=free)["equity"]
    own = (pl.col("model") == "constant") & (pl.col("book") == "long_only")
    universe = gross.filter(own)["nav_net"].to_numpy()  # the equal-weighted universe
    active = np.diff(nav["ordered", "long_only"], prepend=1) / np.append(1, nav["ordered", "long_only"][:-1])
    active = (active - np.diff(universe, prepend=1) / np.append(1, universe[:-1])).astype(np.float64)
    assert ordered["long_only.tracking_error"] == pytest.approx(active.std(ddof=1) * np.sqrt(252))
    expected = active.mean() / active.std(ddof=1) * np.sqrt(252)
    assert ordered["long_only.information_ratio"] == pytest.approx(expected)
    assert ordered["tied"] == 0
    dates = plain["equity"]["date"].unique().sort()
    rates = {"date": [day - dt.timedelta(days=7) for day in dates], "rate": [0.2] * len(dates)}
    by_file = evaluated(tiny_tables, tiny_config, risk_free=write(tmp_path, rates))["ladder"]
    assert by_file.equals(evaluated(tiny_tables, tiny_config, risk_free=0.2)["ladder"])
    over = by_file.row(1, named=True)
    assert ordered["long_only.sharpe_net"] - over["long_only.sharpe_net"] > 0.3
    assert over["long_short.sharpe_net"] == pytest.approx(ordered["long_short.sharpe_net"], abs=0.05)
    assert over["long_only.information_ratio"] == ordered["long_only.information_ratio"]
    short = write(tmp_path, {"date": rates["date"][:3], "rate": [0.2] * 3})
    with pytest.raises(DataError, match="no risk-free rate in the 45 days before"):
        evaluated(tiny_tables, tiny_config, risk_free=short)
