"""The table of the tests of all models together."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from daily_results import DATES_T, N, config, evaluation, simulated

from backtest.inference.multiple import confidence_set, superior_books
from pipelines.pages.describe import describe_together
from pipelines.results.comparisons import TradableSeries, multiple_test_table

SKILL = {"ridge": 0.0, "lightgbm": 0.01, "tcn": 0.05, "lstm": 0.0}


def test_the_table_has_the_tests_of_the_returns_at_the_first_delay_that_can_be_traded() -> None:
    models: dict[str, dict[str, Any]] = {name: {} for name in SKILL}
    result = simulated(1, SKILL)
    table = multiple_test_table(TradableSeries(result, config(models=models), DATES_T))
    assert table is not None
    assert table.select("model", "book").rows() == [
        (m, b) for b in ("long_short", "long_only") for m in SKILL
    ]
    first = table.filter(pl.col("book") == "long_short")
    own = result["equity"].filter((pl.col("delay") == 1) & (pl.col("book") == "long_short"))
    return_TV = own.pivot(on="model", index="date", values="excess_net").drop("date").to_numpy()
    expected = superior_books(return_TV)
    assert first["spa_p"].to_list() == [expected.p_value] * 4
    assert first["in_stepm"].to_list() == expected.superior_V.tolist()
    assert 0 < expected.superior_V.sum() < 4
    p_V = confidence_set(return_TV)
    assert first["mcs_p"].to_list() == p_V.tolist()
    assert first["in_mcs"].to_list() == (p_V >= 0.05).tolist()
    sharpe_V = return_TV.mean(axis=0) / return_TV.std(axis=0)
    best = int(sharpe_V[:2].argmax())
    against = superior_books(return_TV[:, 2:] - return_TV[:, [best]])
    assert first["baseline"].to_list() == [None, None, *[list(SKILL)[best]] * 2]
    assert first["baseline_spa_p"].to_list() == [None, None, against.p_value, against.p_value]
    assert first["in_baseline_stepm"].to_list() == [None, None, *against.superior_V.tolist()]
    assert first["sessions"].unique().to_list() == [N]

    text = describe_together(table, None)
    assert f"p {expected.p_value:.3f} (SPA); better than nothing: " in text
    assert f"against {list(SKILL)[best]}, the best baseline: p {against.p_value:.3f} (SPA)" in text
    assert describe_together(None, None) == ""


def test_sessions_and_models_without_returns_are_left_out() -> None:
    rng = np.random.default_rng(0)
    returns = {
        (m, b, 0): 0.01 * rng.normal(size=N) for m in ("ridge", "tcn") for b in ("long_short", "long_only")
    }
    returns["tcn", "long_short", 0][:100] = np.nan
    returns["zero", "long_short", 0] = returns["zero", "long_only", 0] = np.zeros(N)
    ics = {(model, 0): rng.normal(size=N) for model in ("ridge", "tcn", "zero")}
    settings = config(delays=(0,), models={"ridge": {}, "tcn": {}, "zero": {}})
    table = multiple_test_table(TradableSeries(evaluation(ics, returns), settings, DATES_T))
    assert table is not None
    assert table["sessions"].to_list() == [200] * 3 + [300] * 3
    zero = table.filter(pl.col("model") == "zero")
    assert zero["in_stepm"].to_list() == [False, False]
    assert zero["mcs_p"].to_list() == zero["in_mcs"].to_list() == [None, None]
    one = {key: value for key, value in returns.items() if key[0] == "ridge"}
    alone = evaluation({("ridge", 0): ics["ridge", 0]}, one)
    assert (
        multiple_test_table(TradableSeries(alone, config(delays=(0,), models={"ridge": {}}), DATES_T)) is None
    )
