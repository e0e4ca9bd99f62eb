"""Forecast frequency, index membership, a user's own inputs, and transforms within a date."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.panel.universe import Schedule, decision_sessions
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.build import FeatureNames, build_dataset, session_features
from pipelines.dataset.characteristics import own_values
from pipelines.dataset.folds import plan_folds
from pipelines.errors import DataError
from pipelines.explain.fitted import families_of
from pipelines.results.evaluate import evaluate

Tables = Mapping[str, pl.DataFrame]
SCHEDULES: tuple[Schedule, ...] = ("daily", "weekly", "monthly", "quarterly")


def period(day: dt.date, schedule: Schedule) -> tuple[int, ...]:
    """The period of a day, by the calendar module instead of arithmetic on numbers of days."""
    iso = day.isocalendar()
    return {
        "daily": (day.toordinal(),),
        "weekly": (iso.year, iso.week),
        "monthly": (day.year, day.month),
        "quarterly": (day.year, (day.month - 1) // 3),
    }[schedule]


@given(
    days=st.lists(st.dates(dt.date(1950, 1, 1), dt.date(2050, 1, 1)), min_size=2, max_size=60, unique=True),
    schedule=st.sampled_from(SCHEDULES),
)
def test_decisions_are_the_first_sessions_of_their_periods(days: list[dt.date], schedule: Schedule) -> None:
    days = sorted(days)
    decision_T = decision_sessions(np.array(days, dtype="datetime64[D]"), schedule)
    assert decision_T[0] == (schedule == "daily")
    for t in range(1, len(days)):
        assert decision_T[t] == (period(days[t], schedule) != period(days[t - 1], schedule)), days[t]
    part_T = decision_sessions(np.array(days[:-1], dtype="datetime64[D]"), schedule)
    np.testing.assert_array_equal(part_T, decision_T[:-1])  # does not depend on the next session


def changed(config: Config, **sections: Any) -> Config:  # noqa: ANN401 (settings)
    raw = config.model_dump(mode="json")
    for name, section in sections.items():
        raw[name] = {**raw[name], **section} if isinstance(section, dict) else section
    return check_config(raw, origin="changed")


def test_a_weekly_config_trains_and_forecasts_on_the_weeks_first_sessions(
    tiny_tables: Tables, tiny_config: Config
) -> None:
    config = changed(tiny_config, label={"forecast_frequency": "weekly", "horizon": 5})
    dataset = build_dataset(tiny_tables, config)
    days = [day.astype("datetime64[D]").item() for day in dataset.panel.dates_T]
    first = [t for t in range(1, len(days)) if days[t].isocalendar()[1] != days[t - 1].isocalendar()[1]]
    assert set(np.flatnonzero(dataset.universe_TN.any(axis=1))) <= set(first)
    folds = plan_folds(dataset, config)
    assert len(folds) == 2
    for fold in folds:
        for segment in (fold.train, fold.valid, fold.test):
            assert set(segment) <= set(first)
        assert fold.train[-1] + 5 < fold.valid[0]
        assert 7 <= len(fold.test) <= 9  # 40 sessions
    rows = np.concatenate([fold.test for fold in folds])
    signal_TN = np.full(dataset.universe_TN.shape, np.nan)
    signal_TN[rows] = np.where(dataset.universe_TN[rows], dataset.characteristics_TNF[rows, :, 0], np.nan)
    result = evaluate(
        {"signal": {0: signal_TN}},
        dataset,
        config,
        pl.DataFrame(schema={"model": pl.String, "valid_ic": pl.Float64, "valid_rank_ic": pl.Float64}),
        truth_TN=None,
        sessions=rows,
    )
    assert result["ic_series"]["date"].to_list() == [days[t] for t in rows]
    nav = result["equity"].filter(pl.col("book") == "long_only")["nav_gross"].to_numpy()
    assert np.count_nonzero(np.diff(nav)) > 60  # traded once a week, marked to market every session


def test_a_segment_without_a_decision_is_named(tiny_tables: Tables, tiny_config: Config) -> None:
    config = changed(tiny_config, label={"forecast_frequency": "quarterly"}, folds={"anchor": "start"})
    with pytest.raises(DataError, match=r"the test segment of fold 0 \(40 sessions\) has no quarterly"):
        plan_folds(build_dataset(tiny_tables, config), config)


def test_the_universe_uses_the_membership_of_each_day(tiny_tables: Tables, tiny_config: Config) -> None:
    free = build_dataset(tiny_tables, tiny_config)
    tickers = free.panel.tickers_N[:6]
    middle = free.panel.dates_T[200].astype("datetime64[D]").item()
    rows = [
        {"universe": "index", "ticker": ticker, "from_date": dt.date(1990, 1, 1), "to_date": None}
        for ticker in tickers[:5]
    ]
    rows[0]["to_date"] = middle  # leaves on the day; the sixth joins on it
    rows.append({"universe": "index", "ticker": tickers[5], "from_date": middle, "to_date": None})
    rows.append(
        {"universe": "other", "ticker": tickers[5], "from_date": dt.date(1990, 1, 1), "to_date": None}
    )
    tables = {**tiny_tables, "membership": pl.DataFrame(rows, schema_overrides={"to_date": pl.Date})}
    config = changed(tiny_config, universe={"membership": "index"})
    inside_TN = build_dataset(tables, config).universe_TN
    expected_TN = free.universe_TN.copy()
    expected_TN[:, 6:] = False
    expected_TN[200:, 0] = False
    expected_TN[:200, 5] = False
    np.testing.assert_array_equal(inside_TN, expected_TN)
    assert inside_TN[:200, 0].any()
    assert inside_TN[200:, 5].any()
    with pytest.raises(DataError, match=r"universe.membership is 'index', but .* has none"):
        build_dataset(tiny_tables, config)
    with pytest.raises(DataError, match=r"universe.membership is 'sp', but .* has index, other"):
        build_dataset(tables, changed(tiny_config, universe={"membership": "sp"}))


def test_a_users_own_inputs_become_characteristics(tiny_tables: Tables, tiny_config: Config) -> None:
    prices = tiny_tables["prices"]
    keyed = prices.select("date", "ticker")
    mine = keyed.with_columns(pl.lit("mine").alias("name"), prices["close"].alias("value"))
    other = keyed.with_columns(pl.lit("other").alias("name"), (-prices["close"]).alias("value"))
    tables = {**tiny_tables, "inputs": pl.concat([other, mine.filter(pl.col("ticker") != mine["ticker"][0])])}
    dataset = build_dataset(tables, tiny_config)
    assert dataset.characteristic_names[-2:] == ("input_mine", "input_other")
    mine_TN, other_TN = (dataset.characteristics_TNF[:, :, k] for k in (-2, -1))
    absent = dataset.panel.tickers_N.index(mine["ticker"][0])
    assert (mine_TN[:, absent] == 0).all()
    t = 250
    inside_N = dataset.universe_TN[t]
    order = np.argsort(dataset.panel.raw_close_TN[t, inside_N])
    assert (np.diff(other_TN[t, inside_N][order]) <= 0).all()
    assert np.ptp(other_TN[t, inside_N]) > 1
    chosen = build_dataset(tables, changed(tiny_config, features={"inputs": ["other"]}))
    assert chosen.characteristic_names[-1] == "input_other"
    assert "input_mine" not in chosen.characteristic_names
    with pytest.raises(DataError, match=r"features.inputs names 'yours', but .* are mine, other"):
        build_dataset(tables, changed(tiny_config, features={"inputs": ["yours"]}))


def test_a_config_chooses_the_transform_within_a_date(tiny_tables: Tables, tiny_config: Config) -> None:
    plain = build_dataset(tiny_tables, tiny_config)
    steps = {
        "kind": "zscore",
        "winsorise": 0.05,
        "neutralise": "group",
        "missing": "median",
        "add_indicator": True,
    }
    config = changed(tiny_config, features={"transform": steps})
    dataset = build_dataset(tiny_tables, config)
    half = len(plain.characteristic_names)
    assert dataset.characteristic_names[:half] == plain.characteristic_names
    assert dataset.characteristic_names[half] == f"{plain.characteristic_names[0]}_missing"
    assert dataset.characteristics_TNF.shape == (*plain.universe_TN.shape, 2 * half)
    assert dataset.characteristics_TNF.flags.c_contiguous
    assert set(np.unique(dataset.characteristics_TNF[:, :, half:])) == {0.0, 1.0}
    column = plain.characteristic_names.index("return_1")
    group_TN, inside_TN = plain.panel.group_TN, plain.universe_TN
    t = 250
    for code in np.unique(group_TN[t, inside_TN[t]]):
        members = inside_TN[t] & (group_TN[t] == code)
        assert abs(dataset.characteristics_TNF[t, members, column].mean()) < 0.5
    assert not np.allclose(dataset.characteristics_TNF[t, :, column], plain.characteristics_TNF[t, :, column])
    families = families_of(dataset.characteristic_names)
    assert sorted(k for columns in families.values() for k in columns) == list(range(2 * half))


def monthly_inputs(prices: pl.DataFrame) -> pl.DataFrame:
    """The number of the month for every firm that trades in it, dated on the month's last day."""
    month = pl.col("date").dt.month_end()
    months = (pl.col("date").dt.year() - 1970) * 12.0 + pl.col("date").dt.month() - 1
    value = months + pl.col("ticker").rank("dense") / 1e3
    return (
        prices.select(month.alias("date"), "ticker", value.alias("value"))
        .unique(["date", "ticker"])
        .select(pl.lit("month").alias("name"), "date", "ticker", "value")
        .sort("date", "ticker")
    )


def test_monthly_inputs_are_said_to_be_unused_and_can_be_held(
    tiny_config: Config, tiny_tables: Tables
) -> None:
    """At the first session of a month, the number of the month before is the newest one."""
    tables = {**tiny_tables, "inputs": monthly_inputs(tiny_tables["prices"])}
    models = {"models": {"ridge": {}}, "label": {"forecast_frequency": "monthly", "horizon": 5}}
    unused = build_dataset(tables, changed(tiny_config, **models))
    said = [note for note in unused.notes if note.startswith("The input month is known on 0 of ")]
    assert len(said) == 1
    assert "features.hold_inputs: 25" in said[0]

    config = changed(tiny_config, **models, features={"hold_inputs": 5})
    held = build_dataset(tables, config)
    assert not [note for note in held.notes if "input month" in note]
    value_TN = own_values(tables["inputs"], held.panel, 5)
    day_T = held.panel.dates_T.astype("datetime64[D]")
    before_T = day_T.astype("datetime64[M]").astype(np.int64) - 1  # months since 1970, of the month before
    decides = np.flatnonzero(held.universe_TN.any(axis=1))
    inside_DN = held.universe_TN[decides] & held.panel.traded_TN[decides - 1]
    assert inside_DN.sum() > 20
    np.testing.assert_array_equal(
        np.floor(value_TN[decides])[inside_DN],
        np.broadcast_to(before_T[decides, None], inside_DN.shape)[inside_DN],
    )
    assert np.isnan(value_TN[decides[0] + 6 : decides[0] + 9]).all(), "held for longer than it should be"


def test_held_inputs_of_a_night_are_those_of_the_whole_history(
    tiny_config: Config, tiny_tables: Tables
) -> None:
    tables = {**tiny_tables, "inputs": monthly_inputs(tiny_tables["prices"])}
    config = changed(tiny_config, models={"ridge": {}}, features={"hold_inputs": 30, "window": 2})
    whole = build_dataset(tables, config)
    names = FeatureNames(channels=whole.channel_names, characteristics=whole.characteristic_names)
    last = session_features(whole, tables, config, names)
    own = whole.characteristic_names.index("input_month")
    np.testing.assert_array_equal(last.characteristics_NF[:, own], whole.characteristics_TNF[-1, :, own])
    assert np.unique(last.characteristics_NF[:, own]).size > 5
