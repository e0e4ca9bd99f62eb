"""Comparisons with baselines: when a model beats one, how often equal models do, and how it is printed."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from daily_results import DATES_T, N, config, simulated

from backtest.accounts.performance import sharpe
from backtest.inference.bootstrap import sharpe_difference
from backtest.inference.means import diebold_mariano, mean_test, paired_test
from pipelines.format import number
from pipelines.pages.describe import describe_comparison, describe_tests, describe_years
from pipelines.results.comparisons import (
    TradableSeries,
    comparison_table,
    deciding_rows,
    significance_table,
    yearly_table,
)
from pipelines.results.evaluate import Evaluation
from pipelines.run.evaluations import tradable_delay


@pytest.mark.parametrize(
    ("delays", "expected"), [((0, 1, 3), 1), ((0, 3, 1), 1), ((2, 1), 1), ((2, 0), 2), ((0,), 0)]
)
def test_the_first_delay_that_can_be_traded(delays: tuple[int, ...], expected: int) -> None:
    assert tradable_delay(delays) == expected


def test_the_tables_are_the_tests_at_the_first_delay_that_can_be_traded() -> None:
    skill = {"ridge": 0.02, "lightgbm": 0.03, "tcn": 0.05}
    result = simulated(1, skill)
    table = comparison_table(TradableSeries(result, config(horizon=5), DATES_T))
    assert table is not None
    pairs = table.select("model", "baseline", "rival").rows()
    assert pairs == [
        ("ridge", "lightgbm", "lightgbm"),
        ("lightgbm", "ridge", "ridge"),
        ("tcn", "ridge", "ridge"),
        ("tcn", "lightgbm", "lightgbm"),
    ]
    row = table.row(2, named=True)

    def series(frame: pl.DataFrame, model: str, value: str, **where: object) -> np.ndarray:
        own = [pl.col(key) == value for key, value in {"model": model, "delay": 1, **where}.items()]
        return frame.filter(*own)[value].to_numpy()

    ics = [series(result["ic_series"], model, "ic") for model in ("tcn", "ridge")]
    books = [series(result["equity"], model, "excess_net", book="long_short") for model in ("tcn", "ridge")]
    test = paired_test(*ics, overlap=5)
    dm = diebold_mariano(1 - ics[1], 1 - ics[0], horizon=5)
    difference = sharpe_difference(*books)
    assert (row["delay"], row["dates"], row["lags"], row["book"]) == (1, N, test.lags, "long_short")
    assert (row["ic_difference"], row["ic_lower"], row["ic_upper"]) == (test.mean, test.lower, test.upper)
    assert (row["ic_t"], row["ic_p"]) == (test.t, test.p_value)
    assert (row["dm_t"], row["dm_p"]) == (dm.t, dm.p_value)
    assert row["dm_t"] > 0
    assert row["sharpe_difference"] == pytest.approx(sharpe(books[0]) - sharpe(books[1]))
    assert (row["sharpe_lower"], row["sharpe_p"]) == (difference.lower, difference.p_value)

    alone = significance_table(TradableSeries(result, config(horizon=5), DATES_T), trials=40)
    assert alone.select("model", "book").rows() == [
        (model, book) for model in skill for book in ("long_short", "long_only")
    ]
    first = alone.row(4, named=True)
    ic = mean_test(ics[0], overlap=5)
    assert (first["model"], first["delay"], first["trials"]) == ("tcn", 1, 40)
    assert (first["ic"], first["ic_lower"], first["ic_p"]) == (ic.mean, ic.lower, ic.p_value)
    assert first["sharpe_net"] == pytest.approx(sharpe(books[0]))
    assert first["sharpe_lower"] < first["sharpe_net"] < first["sharpe_upper"]
    assert 0 < first["deflated_sharpe"] < first["probabilistic_sharpe"] < 1


def answers(result: Evaluation, **kwargs: Any) -> dict[tuple[str, str], str]:  # noqa: ANN401 (settings)
    table = comparison_table(TradableSeries(result, config(**kwargs), DATES_T))
    assert table is not None
    return {(row["model"], row["baseline"]): row["beats"] for row in deciding_rows(table)}


@pytest.mark.slow(5)
def test_equal_models_rarely_beat_each_other_and_a_better_one_does() -> None:
    two: dict[str, Any] = {"models": {"ridge": {}, "tcn": {}}, "delays": (1,)}
    equal = [
        answers(simulated(seed, {"ridge": 0.02, "tcn": 0.02}, delays=(1,)), **two)["tcn", "ridge"]
        for seed in range(300)
    ]
    assert np.mean([answer == "yes" for answer in equal]) <= 0.07
    assert np.mean([answer == "no" for answer in equal]) <= 0.07
    assert equal.count("unclear") >= 0.86 * 300
    better = [
        answers(simulated(seed, {"ridge": 0.01, "tcn": 0.06}, delays=(1,)), **two) for seed in range(20)
    ]
    assert {answer["tcn", "ridge"] for answer in better} == {"yes"}
    worse = answers(simulated(0, {"ridge": 0.06, "tcn": 0.01}, delays=(1,)), **two)
    assert worse == {("tcn", "ridge"): "no"}


def test_a_higher_ic_that_costs_eat_up_is_not_a_yes() -> None:
    result = simulated(3, {"ridge": 0.01, "tcn": 0.06}, delays=(1,))
    two: dict[str, Any] = {"models": {"ridge": {}, "tcn": {}}, "delays": (1,)}
    dear = result["equity"].with_columns(
        excess_net=pl.col("excess_net") - pl.when(pl.col("model") == "tcn").then(0.003).otherwise(0.0)
    )
    slightly = {"ic_series": result["ic_series"], "equity": dear}
    assert answers(slightly, **two) == {("tcn", "ridge"): "unclear"}
    table = comparison_table(TradableSeries(slightly, config(**two), DATES_T))
    assert table is not None
    assert "net Sharpe not higher" in describe_comparison(table.row(0, named=True))
    very = dear.with_columns(
        excess_net=pl.col("excess_net") - pl.when(pl.col("model") == "tcn").then(0.005).otherwise(0.0)
    )
    ruined = {"ic_series": result["ic_series"], "equity": very}
    assert answers(ruined, **two) == {("tcn", "ridge"): "no"}
    table = comparison_table(TradableSeries(ruined, config(**two), DATES_T))
    assert table is not None
    assert "net Sharpe difference -" in describe_comparison(table.row(0, named=True))


def test_a_baseline_with_variants_is_beaten_by_what_beats_all_of_them() -> None:
    models = {
        "ridge": {},
        "ridge-strong": {"model": "ridge", "alphas": [1.0]},
        "tcn": {},
        "tcn-wide": {"model": "tcn"},
    }
    skill = {"ridge": 0.0, "ridge-strong": 0.05, "tcn": 0.05, "tcn-wide": 0.11}
    found = answers(simulated(2, skill, delays=(1,)), delays=(1,), models=models)
    assert found == {("tcn", "ridge"): "unclear", ("tcn-wide", "ridge"): "yes"}
    table = comparison_table(
        TradableSeries(simulated(2, skill, delays=(1,)), config(delays=(1,), models=models), DATES_T)
    )
    assert table is not None
    assert table.filter(pl.col("model") == "tcn").select("rival", "beats").rows()[0] == ("ridge", "yes")
    assert [row["rival"] for row in deciding_rows(table)] == ["ridge-strong", "ridge-strong"]


def test_identical_and_untraded_models_are_unclear() -> None:
    result = simulated(4, {"ridge": 0.02, "tcn": 0.02}, delays=(1,))
    same = result["ic_series"].filter(pl.col("model") == "ridge").with_columns(model=pl.lit("tcn"))
    idle = result["equity"].with_columns(
        excess_net=pl.when(pl.col("model") == "tcn").then(0.0).otherwise(pl.col("excess_net"))
    )
    copied = {
        "ic_series": pl.concat([result["ic_series"].filter(pl.col("model") == "ridge"), same]),
        "equity": idle,
    }
    two: dict[str, Any] = {"models": {"ridge": {}, "tcn": {}}, "delays": (1,)}
    table = comparison_table(TradableSeries(copied, config(**two), DATES_T))
    assert table is not None
    row = table.row(0, named=True)
    assert (row["beats"], row["ic_difference"], row["ic_p"], row["sharpe_difference"]) == (
        "unclear",
        0.0,
        None,
        None,
    )
    alone = significance_table(TradableSeries(copied, config(**two), DATES_T), trials=0).filter(
        pl.col("model") == "tcn"
    )
    assert alone["sharpe_net"].to_list() == [None, None]
    assert alone["deflated_sharpe"].to_list() == [None, None]


def test_without_a_baseline_nothing_is_compared() -> None:
    only: dict[str, Any] = {"models": {"tcn": {}, "zero": {}}, "delays": (1,)}
    result = simulated(5, {"tcn": 0.02, "zero": 0.0}, delays=(1,))
    assert comparison_table(TradableSeries(result, config(**only), DATES_T)) is None
    lone = simulated(5, {"ridge": 0.02}, delays=(1,))
    assert comparison_table(TradableSeries(lone, config(models={"ridge": {}}, delays=(1,)), DATES_T)) is None


def test_tests_are_printed_with_one_line_per_model() -> None:
    result, settings = simulated(6, {"ridge": 0.02, "lightgbm": 0.02, "tcn": 0.021}), config()
    comparisons = comparison_table(TradableSeries(result, settings, DATES_T))
    significance = significance_table(TradableSeries(result, settings, DATES_T), trials=12)
    text = describe_tests(significance, comparisons)
    lines = text.splitlines()
    assert lines[0] == "tests at delay 1, long_short net of costs, intervals at 95%"
    assert len([line for line in lines if line.startswith("  ")]) == 3
    assert comparisons is not None
    row = comparisons.filter(pl.col("model") == "tcn").row(0, named=True)
    assert row["beats"] == "unclear"
    bounds = f"[{row['ic_lower']:+.4f}, {row['ic_upper']:+.4f}]"
    assert f"beats ridge: unclear (IC difference {row['ic_difference']:+.4f} {bounds})" in lines[3]
    assert "beats lightgbm: " in lines[3]
    assert "12 trials" in text
    single = describe_tests(significance.with_columns(delay=pl.lit(0)), None)
    assert single.splitlines()[0].startswith("tests at delay 0 (cannot be traded; set label.extra_delays")
    assert "beats" not in single


def test_the_comparisons_by_year_are_the_tests_of_the_dates_of_each_year() -> None:
    skill = {"ridge": 0.02, "lightgbm": 0.03, "tcn": 0.05}
    result = simulated(1, skill)
    assert yearly_table(TradableSeries(result, config(), DATES_T)) is None, "all dates are of one year"
    dates_T = DATES_T + np.timedelta64(100, "D")
    later = [
        frame.with_columns(pl.col("date").dt.offset_by("100d"))
        for frame in (result["ic_series"], result["equity"])
    ]
    moved = {"ic_series": later[0], "equity": later[1]}
    table = yearly_table(TradableSeries(moved, config(horizon=3), dates_T))
    assert table is not None
    assert table["year"].unique(maintain_order=True).to_list() == ["all", "2020", "2021"]

    own = [pl.col("model") == "tcn", pl.col("rival") == "lightgbm", pl.col("year") == "2021"]
    row = table.row(by_predicate=pl.all_horizontal(own), named=True)
    in_2021 = pl.col("date").dt.year() == 2021
    ics = [
        later[0].filter(in_2021, pl.col("model") == model, pl.col("delay") == 1)["ic"].to_numpy()
        for model in ("tcn", "lightgbm")
    ]
    book = [pl.col("model") == "tcn", pl.col("delay") == 1, pl.col("book") == "long_short"]
    test = paired_test(*ics, overlap=3)
    assert (row["dates"], row["ic_difference"], row["ic_t"]) == (len(ics[0]), test.mean, test.t)
    assert row["ic"] == pytest.approx(ics[0].mean())
    assert row["sharpe_net"] == pytest.approx(
        sharpe(later[1].filter(in_2021, *book)["excess_net"].to_numpy())
    )
    pooled = comparison_table(TradableSeries(moved, config(horizon=3), dates_T))
    assert pooled is not None
    both = table.filter(pl.col("year") == "all").select("model", "rival", "ic_difference", "ic_t", "dates")
    assert both.equals(pooled.select(both.columns)), "the years together are the comparison itself"

    text = describe_years(table)
    assert (
        text.splitlines()[0]
        == "by year at delay 1: IC (t of the difference to lightgbm, net Sharpe of long_short)"
    )
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["all", "lightgbm", "ridge", "tcn"]
    cells = f"{number(row['ic'], 4)} ({number(row['ic_t'], 1)}, {number(row['sharpe_net'], 2)})"
    assert text.splitlines()[-1].endswith(cells)
