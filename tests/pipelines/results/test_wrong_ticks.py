"""A flagged bad tick counts in costs, limits and risk until the next price shows it, and never later."""

from __future__ import annotations

import dataclasses
import operator

import numpy as np
import polars as pl
import pytest
from random_markets import DAYS, random_tables

from backtest.analysis.styles import style_scores
from backtest.books.book import Book
from backtest.books.decisions import book_targets
from backtest.books.rules.quantile_long_short import QuantileLongShort
from backtest.books.rules.rank_weighted import RankWeighted
from backtest.risk import RISK_STYLES
from features.panel.cleaned import as_known
from features.panel.derived import daily_return
from features.panel.holding import earned_index
from features.panel.panel import Panel, WrongRows, build_panel
from pipelines.config.sections import BacktestConfig
from pipelines.results.books import book_costs, book_execution

TICK, FIRM, NEXT = 500, 0, 502  # the firm has no price in between
WINDOW = 20


def wrong_row(*, price: bool) -> WrongRows:
    return WrongRows(np.array([TICK]), np.array([FIRM]), np.array([price]), np.array([not price]))


def market(close: float | None, *, flagged: bool = False) -> Panel:
    """Prices of the tick times ``close``, or no price."""
    at = (pl.col("date") == DAYS[TICK]) & (pl.col("ticker") == f"F{FIRM}")
    bars = ("open", "high", "low", "close")
    prices = random_tables(3)["prices"].filter(
        (pl.col("date") != DAYS[TICK + 1]) | (pl.col("ticker") != f"F{FIRM}")
    )
    prices = prices.with_columns(pl.when(at).then(1.0).otherwise("split_ratio").alias("split_ratio"))
    prices = prices.with_columns(pl.when(at).then(0.0).otherwise("dividend").alias("dividend"))
    times = pl.lit(close, dtype=pl.Float64)
    prices = prices.with_columns(
        pl.when(at).then(pl.col(name) * times).otherwise(name).alias(name) for name in bars
    )
    panel = build_panel(prices)
    if flagged:
        panel = dataclasses.replace(panel, wrong=wrong_row(price=True))
    return panel


@pytest.fixture(scope="module")
def panels() -> tuple[Panel, Panel, Panel]:
    """The market with a flagged tick of four times the price, with the same one unflagged, and without it."""
    flagged, delivered, missing = market(4.0, flagged=True), market(4.0), market(None)
    traded_T = delivered.traded_TN[:, FIRM]
    assert traded_T[[TICK - 1, TICK, NEXT]].all()
    assert not traded_T[TICK + 1 : NEXT].any()
    return flagged, delivered, missing


def terms(panel: Panel, settings: dict[str, object]) -> dict[str, np.ndarray]:
    config, every = BacktestConfig.model_validate(settings), slice(0, panel.n_sessions + 1)
    costs, execution = book_costs(config, panel, every), book_execution(config, panel, every, 1)
    assert costs.impact is not None
    assert execution.cap is not None
    assert execution.bar_TN is not None
    assert isinstance(costs.half_spread_bps, np.ndarray)
    return {
        "impact": costs.impact.volatility_per_root_volume_TN,
        "spread": costs.half_spread_bps,
        "volume": execution.cap.dollar_volume_TN,
        "bar": execution.bar_TN,
    }


@pytest.mark.parametrize("spread", ["roll", "corwin_schultz"])
def test_costs_and_limits_forget_a_tick_once_it_is_known(
    panels: tuple[Panel, Panel, Panel], spread: str
) -> None:
    settings = {
        "capital": 1e6,
        "execution": {"window": WINDOW, "price_limit": 0.2},
        "costs": {"half_spread_bps": spread, "spread_window": WINDOW},
    }
    flagged, delivered, missing = (terms(panel, settings) for panel in panels)
    for name in ("impact", "spread", "volume"):  # row t + 1 is what is known at the close of t
        got, before, after = flagged[name], delivered[name], missing[name]
        np.testing.assert_array_equal(got[: NEXT + 1], before[: NEXT + 1], err_msg=name)
        np.testing.assert_array_equal(got[NEXT + 1 :], after[NEXT + 1 :], err_msg=name)
        assert not np.array_equal(before[NEXT + 1 :], after[NEXT + 1 :], equal_nan=True), name
    np.testing.assert_array_equal(flagged["bar"], missing["bar"])
    assert delivered["bar"][[TICK, NEXT], FIRM].tolist() == [1.0, -1.0]


@pytest.mark.parametrize(
    "book",
    [
        QuantileLongShort(quantiles=3, target_volatility=0.15),
        QuantileLongShort(quantiles=3, inverse_volatility=True),
    ],
    ids=["target", "inverse"],
)
def test_decisions_forget_a_tick_once_it_is_known(panels: tuple[Panel, Panel, Panel], book: Book) -> None:
    held, signal_TN = slice(TICK - 30, TICK + 30), np.tile(-np.arange(9.0), (panels[0].n_sessions, 1))
    flagged, before, after = (book_targets(book, signal_TN, one, held, 1).target_TN for one in panels)
    known = NEXT - held.start
    np.testing.assert_array_equal(flagged[:known], before[:known])
    np.testing.assert_array_equal(flagged[known:], after[known:])
    assert np.abs(before[known:] - after[known:]).max() > 0.05


def test_a_neutral_book_forgets_a_tick_once_it_is_known(panels: tuple[Panel, Panel, Panel]) -> None:
    held, signal_TN = slice(TICK - 30, TICK + 30), np.tile(-np.arange(9.0), (panels[0].n_sessions, 1))
    book = RankWeighted(neutral=("beta",))
    flagged, before, after = (book_targets(book, signal_TN, one, held, 1).target_TN for one in panels)
    known = NEXT - held.start
    np.testing.assert_allclose(flagged[:known], before[:known], rtol=0, atol=1e-12)
    np.testing.assert_allclose(flagged[known:], after[known:], rtol=0, atol=1e-12)
    assert np.abs(before[known:] - after[known:]).max() > 0.02


def test_styles_forget_a_tick_once_it_is_known(panels: tuple[Panel, Panel, Panel]) -> None:
    flagged, before, after = (style_scores(one, one.traded_TN, RISK_STYLES) for one in panels)
    names = [style.name for style in RISK_STYLES if style.family not in {"size", "value"}]
    assert flagged.names == tuple(names)
    scores = (one.score_KTN for one in (flagged, before, after))
    for name, got_TN, before_TN, after_TN in zip(names, *scores, strict=True):
        np.testing.assert_array_equal(got_TN[:NEXT], before_TN[:NEXT], err_msg=name)
        np.testing.assert_array_equal(got_TN[NEXT:], after_TN[NEXT:], err_msg=name)
        assert not np.array_equal(before_TN[NEXT:], after_TN[NEXT:]), name


def test_series_without_wrong_rows(panels: tuple[Panel, Panel, Panel]) -> None:
    flagged, delivered, missing = panels
    assert as_known(delivered, daily_return) is daily_return(delivered)
    for name in ("open_TN", "high_TN", "low_TN", "close_TN", "raw_close_TN", "total_return_index_TN"):
        clean_TN = as_known(flagged, operator.attrgetter(name), hindsight=True)
        np.testing.assert_array_equal(clean_TN, getattr(missing, name), err_msg=name)
        known_TN = as_known(flagged, operator.attrgetter(name))
        np.testing.assert_array_equal(known_TN[:NEXT], getattr(delivered, name)[:NEXT], err_msg=name)


def test_a_limit_is_unknown_on_a_row_in_another_unit(panels: tuple[Panel, Panel, Panel]) -> None:
    panel = dataclasses.replace(panels[1], wrong=wrong_row(price=False))
    bar_TN = book_execution(
        BacktestConfig.model_validate({"execution": {"price_limit": 0.2}}), panel, slice(None), 1
    ).bar_TN
    assert bar_TN is not None
    assert bar_TN[TICK, FIRM] == 0.0


def test_lots_and_volumes_after_a_row_in_another_currency(panels: tuple[Panel, Panel, Panel]) -> None:
    """From the tick on, one firm is quoted in hundredths."""
    pounds = panels[2]
    times_TN = np.ones_like(pounds.close_TN)
    times_TN[NEXT:, FIRM] = 100.0
    names = ("open_TN", "high_TN", "low_TN", "close_TN", "raw_close_TN", "total_return_index_TN")
    changed = {name: getattr(pounds, name) * times_TN for name in names}
    yes, no = np.array([True]), np.array([False])
    wrong = WrongRows(np.array([NEXT]), np.array([FIRM]), no, yes)
    pence = dataclasses.replace(pounds, **changed, wrong=wrong)
    config = BacktestConfig.model_validate(
        {"capital": 1e6, "execution": {"window": WINDOW, "lot": 100, "unfilled": "carry"}}
    )

    def amounts(panel: Panel, held: slice) -> list[np.ndarray]:
        costs, execution = book_costs(config, panel, held), book_execution(config, panel, held, 1)
        assert execution.cap is not None
        assert execution.lot_TN is not None
        assert costs.impact is not None
        value_TN = execution.lot_TN[:-1] * earned_index(panel)[held]
        return [value_TN, execution.cap.dollar_volume_TN, costs.impact.volatility_per_root_volume_TN]

    flat = pounds.raw_close_TN[TICK - 1, FIRM] / pounds.raw_close_TN[NEXT, FIRM]  # the row earns nothing
    for first, times in ((TICK - WINDOW, flat), (NEXT, 100.0)):
        held = slice(first, pounds.n_sessions + 1)
        for power, got, expected in zip(
            (1.0, 1.0, -0.5), amounts(pence, held), amounts(pounds, held), strict=True
        ):
            after = slice(NEXT + WINDOW + 1 - first, None)
            assert np.isfinite(expected[after, FIRM]).any()
            np.testing.assert_allclose(got[after, FIRM], expected[after, FIRM] * times**power, rtol=1e-9)
            others = np.arange(panels[0].n_firms) != FIRM
            np.testing.assert_array_equal(got[:, others], expected[:, others])
