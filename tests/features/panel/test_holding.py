"""Suspended firms and wrong rows: labels and books against numbers worked out by hand."""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl
import pytest

from backtest.accounts.accounting import account_book
from backtest.costs import CostModel
from features.panel.holding import earned_index, forward_returns, tradable
from features.panel.panel import Panel, build_panel
from pipelines.results.books import book_market

DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=t) for t in range(8)]
Prices = dict[str, list[float | None]]


def panel_of(closes: Prices, wrong: list[tuple[int, str, bool]] = [], **columns: Prices) -> Panel:  # noqa: B006
    rows = [
        {"date": DAYS[t], "ticker": ticker, "close": close}
        | {name: values.get(ticker, [None] * 8)[t] for name, values in columns.items()}
        for ticker, series in closes.items()
        for t, close in enumerate(series)
        if close is not None
    ]
    unknown = pl.lit(None, dtype=pl.Float64)
    names = [name for name in ("open", "high", "low", "volume") if name not in columns]
    prices = pl.DataFrame(rows, infer_schema_length=None).with_columns(
        *(unknown.alias(name) for name in names),
        **{name: pl.lit(1.0 * (name == "split_ratio")) for name in {"split_ratio", "dividend"} - {*columns}},
    )
    prices = prices.with_columns(split_ratio=pl.col("split_ratio").fill_null(1.0))
    frame = pl.DataFrame(
        [(DAYS[t], ticker, price) for t, ticker, price in wrong], ["date", "ticker", "price"], orient="row"
    )
    frame = frame.with_columns(currency=pl.lit(value=False))
    return build_panel(prices, wrong=frame if wrong else None)


def nav_of(panel: Panel, decided: int, weight: float = 1.0) -> np.ndarray:
    """NAV of a book that orders the first firm once, filled at the close of the decision."""
    target_TN = np.full(panel.close_TN.shape, np.nan)
    target_TN[decided] = 0.0
    target_TN[decided, 0] = weight
    return account_book(target_TN, book_market(panel, slice(0, 8)), CostModel(), 0).nav_net_T


def test_a_day_in_pence_earns_nothing_on_either_side() -> None:
    panel = panel_of({"A": [2.0, 2.1, 210.0, 2.2, 2.2, 2.2, 2.2, 2.2], "Z": [1.0] * 8}, [(2, "A", True)])
    np.testing.assert_allclose(nav_of(panel, 0), [1, 1.05, 1.05, *[1.1] * 5], rtol=1e-14)
    np.testing.assert_allclose(nav_of(panel, 2), np.ones(8))  # nothing is traded at the wrong price
    np.testing.assert_allclose(forward_returns(panel, 0, 1)[:4, 0], [0.05, 0, 0, 0], atol=1e-15)
    np.testing.assert_allclose(forward_returns(panel, 0, 2)[:3, 0], [0.05, 2.2 / 2.1 - 1, 0], atol=1e-14)
    np.testing.assert_array_equal(panel.close_TN[:4, 0], [2.0, 2.1, 210.0, 2.2])  # as features know it
    halted = panel_of({"A": [2.0, 200.0, None, None, 2.2, 2.2, 2.2, 2.2], "Z": [1.0] * 8}, [(1, "A", True)])
    np.testing.assert_allclose(earned_index(halted)[:5, 0], [2, 2, 2, 2, 2.2], rtol=1e-14)


def test_a_change_of_unit_earns_nothing_and_later_moves_do() -> None:
    pounds: list[float | None] = [2.0, 2.1, 210.0, 231.0, 231.0, 2.31, 2.541, None]
    panel = panel_of({"A": pounds, "Z": [1.0] * 8}, [(2, "A", False), (5, "A", False)])
    nav_T = [1, 1.05, 1.05, 1.155, 1.155, 1.155, 1.2705, 1.2705]
    np.testing.assert_allclose(nav_of(panel, 0), nav_T, rtol=1e-13)
    np.testing.assert_allclose(nav_of(panel, 2), [1, 1, 1, 1.1, 1.1, 1.1, 1.21, 1.21], rtol=1e-13)
    np.testing.assert_allclose(
        forward_returns(panel, 0, 1)[:7, 0], [0.05, 0, 0.1, 0, 0, 0.1, 0], rtol=1e-12, atol=1e-15
    )
    # a split of prices that are adjusted already, and a dividend above the price
    split = panel_of(
        {"A": [10.0, 11.0, 11.0, 12.1, 12.1, 12.1, 12.1, 12.1], "Z": [1.0] * 8},
        [(2, "A", False), (4, "A", False)],
        split_ratio={"A": [1.0, 1.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0], "Z": [1.0] * 8},
        dividend={"A": [0.0, 0.0, 0.0, 0.0, 50.0, 0.0, 0.0, 0.0], "Z": [0.0] * 8},
    )
    np.testing.assert_allclose(nav_of(split, 0), [1, 1.1, 1.1, *[1.21] * 5], rtol=1e-13)


def test_nothing_is_traded_without_volume() -> None:
    closes: Prices = {"A": [10.0, 10.0, 10.0, 10.0, 12.0, 12.0, 12.0, 12.0], "Z": [1.0] * 8}
    panel = panel_of(closes, volume={"A": [5, 0, 0, 0, 9, 9, None, 9], "Z": [7.0] * 8})
    assert tradable(panel)[:, 0].tolist() == [True, False, False, False, True, True, True, True]
    for weight in (1.0, -1.0):
        np.testing.assert_allclose(nav_of(panel, 2, weight), np.ones(8))  # nothing was sold or bought
        assert nav_of(panel, 0, weight)[-1] == pytest.approx(1 + 0.2 * weight)  # a holder earns the move
    np.testing.assert_allclose(forward_returns(panel, 1, 3)[:3, 0], [0.0, 0.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(forward_returns(panel, 0, 4)[0, 0], 0.2)


def test_a_source_without_volumes_is_not_suspended() -> None:
    closes: Prices = {"A": [10.0] * 8, "I": [5.0] * 8, "Z": [1.0] * 8}
    zeros: list[float | None] = [0.0] * 8
    assert tradable(panel_of(closes)).all()
    assert tradable(panel_of(closes, volume={"A": zeros, "I": zeros, "Z": zeros})).all()
    some: Prices = {"A": [5.0, 0, 0, 5, 5, 5, 5, 5], "I": zeros, "Z": [7, 7, 0, 7, 7, 7, 7, 7]}
    mixed = panel_of(closes, volume=some)
    assert np.argwhere(~tradable(mixed)).tolist() == [
        [1, 0]
    ]  # I is an index; session 2 has no volumes at all


def test_a_delisting_after_a_wrong_last_price_pays_its_return() -> None:
    rows = [(day, "A", 200.0 if t == 4 else 2.0) for t, day in enumerate(DAYS[:5])]
    rows += [(day, "Z", 1.0) for day in DAYS]
    unknown = pl.lit(None, dtype=pl.Float64)
    prices = pl.DataFrame(rows, ["date", "ticker", "close"], orient="row").with_columns(
        **dict.fromkeys(("open", "high", "low", "volume"), unknown),
        split_ratio=pl.lit(1.0),
        dividend=pl.lit(0.0),
    )
    securities = pl.DataFrame(
        {
            "ticker": ["A"],
            "valid_from": [DAYS[0]],
            "valid_to": [None],
            "delisted_on": [DAYS[5]],
            "delisting_return": [-0.5],
            "delisting_reason": ["liquidation"],
            **{key: ["x"] for key in ("sector", "industry", "exchange")},
        },
        schema_overrides={"valid_to": pl.Date},
    )
    wrong = pl.DataFrame({"date": [DAYS[4]], "ticker": ["A"], "price": [True], "currency": [False]})
    panel = build_panel(prices, securities, wrong=wrong)
    np.testing.assert_allclose(earned_index(panel)[:, 0], [2, 2, 2, 2, 2, 1, 1, 1], rtol=1e-14)
