"""Configured books on a market: their inputs, their schedules, and what an evaluation says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from every_book import EVERY_BOOK

from backtest.books import decisions as module
from backtest.books.book import BookInputs, BookTargets
from backtest.books.decisions import book_targets
from backtest.books.registry import BOOKS
from backtest.books.rules.quantile_long_short import QuantileLongShort
from features.arrays import FloatArray
from features.library.characteristics import CHARACTERISTICS
from features.panel.derived import daily_return
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, build_market
from pipelines.errors import ConfigError
from pipelines.pages.describe import describe_ladder, describe_notes
from pipelines.results.books import book_orders
from pipelines.results.evaluate import Evaluation, evaluate

NO_SCORES = pl.DataFrame(schema={"model": pl.String, "valid_ic": pl.Float64, "valid_rank_ic": pl.Float64})


def config(tiny: Mapping[str, Any], books: Mapping[str, Any], **label: object) -> Config:
    labels = {**tiny["label"], "horizon": 3, "delay": 1, **label}
    backtest = {"books": dict(books)}
    features = {**tiny["features"], "group_by": "sector"}
    return check_config({**tiny, "label": labels, "backtest": backtest, "features": features}, origin="books")


@pytest.fixture(scope="module")
def market(tiny_settings: Mapping[str, Any], tiny_tables: dict[str, pl.DataFrame]) -> Market:
    return build_market(tiny_tables, config(tiny_settings, EVERY_BOOK, extra_delays=(2,)))


@pytest.fixture(scope="module")
def signal_TN(market: Market) -> FloatArray:  # noqa: N802  # a shape suffix
    signal_TN: FloatArray = np.where(
        market.universe_TN, np.random.default_rng(0).normal(size=market.universe_TN.shape), np.nan
    )
    signal_TN[:200] = np.nan
    signal_TN[300:] = np.nan
    return signal_TN


def measured(market: Market, signal_TN: FloatArray, settings: Config) -> Evaluation:
    rows_T = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
    return evaluate({"mine": {0: signal_TN}}, market, settings, NO_SCORES, truth_TN=None, sessions=rows_T)


def test_every_kind_of_book_is_measured(
    market: Market, signal_TN: FloatArray, tiny_settings: Mapping[str, Any]
) -> None:
    assert {book["kind"] for book in EVERY_BOOK.values()} == set(BOOKS)
    settings = config(tiny_settings, EVERY_BOOK, extra_delays=(2,))
    result = measured(market, signal_TN, settings)
    assert result["ladder"]["delay"].to_list() == [1, 2]
    for name, long_only in {"quantile": 0, "top": 1, "drop": 1, "rank": 0, "best": 0}.items():
        assert result["ladder"][f"{name}.sharpe_net"].is_finite().all()
        assert result["ladder"][f"{name}.turnover"].min() > 0.001  # type: ignore[operator]  # a number
        assert result["ladder"][f"{name}.information_ratio"].is_not_null().all() == bool(long_only)
    text = describe_ladder(result["ladder"], settings)
    assert all(f"{name} net" in text for name in EVERY_BOOK)


def test_inputs_are_those_of_the_feature_library(
    market: Market,
    signal_TN: FloatArray,
    tiny_settings: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[BookInputs] = []

    def remember(self: QuantileLongShort, inputs: BookInputs) -> BookTargets:
        seen.append(inputs)
        return BookTargets(inputs.signal_TN.astype(np.float64))

    monkeypatch.setattr(QuantileLongShort, "targets", remember)
    held = slice(200, 306)
    for books in (EVERY_BOOK, {"quantile": {"kind": "quantile_long_short"}}):
        book = config(tiny_settings, books).backtest.books["quantile"]
        book_targets(book, signal_TN, market.panel, held, horizon=3)
    full, plain = seen
    names = ["beta_252", "volatility_63"]
    library_TNF = CHARACTERISTICS.compute(market.panel, names)[held]
    for used_TN, library_TN in zip(
        (full.beta_TN, full.volatility_TN), library_TNF.transpose(2, 0, 1), strict=True
    ):
        assert used_TN is not None
        known_TN = np.isfinite(library_TN)  # the library starts after a whole window
        assert known_TN.sum() > 300
        np.testing.assert_allclose(used_TN[known_TN], library_TN[known_TN], rtol=1e-5)
    np.testing.assert_array_equal(full.group_TN, market.panel.group_TN[held])
    assert full.past is not None
    np.testing.assert_array_equal(full.past.window(4, 10), daily_return(market.panel)[195:205])
    np.testing.assert_array_equal(full.signal_TN, signal_TN[held])
    assert (plain.group_TN, plain.beta_TN, plain.volatility_TN, plain.past) == (None, None, None, None)


def test_a_calendar_counts_from_the_dates_of_the_panel(
    market: Market, signal_TN: FloatArray, tiny_settings: Mapping[str, Any]
) -> None:
    settings = config(tiny_settings, EVERY_BOOK)
    rows_T = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
    orders = {one.name: one for one in book_orders(signal_TN, rows_T, market, settings, 1)}
    days_T = market.panel.dates_T[orders["top"].held].astype("datetime64[D]")
    decided = {name: ~np.isnan(one.target_TN).any(axis=1) for name, one in orders.items()}
    months = days_T[decided["top"]].astype("datetime64[M]")
    assert len(months) >= 4
    assert (np.diff(months).astype(int) == 1).all()
    weekdays = (days_T[decided["rank"]].astype(int) + 3) % 7
    assert (weekdays == 4).mean() > 0.8
    assert np.diff(np.flatnonzero(decided["drop"])).tolist() == [2] * (decided["drop"].sum() - 1)
    assert set(np.diff(np.flatnonzero(decided["best"]))) == {5}
    held_TN = np.nan_to_num(orders["quantile"].target_TN[decided["quantile"]])
    assert ((held_TN != 0).sum(axis=1) > 8).any()  # three overlapping decisions of 4 + 4 firms


def test_an_optimised_book_is_decided_once_for_all_delays(
    market: Market,
    signal_TN: FloatArray,
    tiny_settings: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    books = {"best": {"kind": "optimised", "limits": {"max_position": 0.25}, "rebalance_every": 20}}
    settings = config(tiny_settings, books)
    decide = Mock(wraps=module._inputs)
    monkeypatch.setattr(module, "_inputs", decide)
    rows_T = np.flatnonzero(np.isfinite(signal_TN).any(axis=1))
    targets = [next(book_orders(signal_TN, rows_T, market, settings, delay)).target_TN for delay in (1, 2, 2)]
    assert decide.call_count == 1
    np.testing.assert_array_equal(targets[0], targets[1][:-1])
    other_TN = np.where(np.isfinite(signal_TN), -signal_TN, np.nan)
    changed = next(book_orders(other_TN, rows_T, market, settings, 1)).target_TN
    assert decide.call_count == 2
    assert not np.array_equal(changed, targets[0], equal_nan=True)


def test_an_infeasible_date_is_in_the_table_of_notes(
    market: Market, signal_TN: FloatArray, tiny_settings: Mapping[str, Any]
) -> None:
    limits = {"long_only": True, "min_net": 1, "max_net": 1, "max_position": 0.2, "max_volatility": 0.001}
    books = {
        "best": {"kind": "optimised", "limits": limits, "rebalance_every": 50},
        "rank": EVERY_BOOK["rank"],
    }
    notes = measured(market, signal_TN, config(tiny_settings, books, extra_delays=(2,)))["book_notes"]
    assert notes.select("model", "book", "note").unique().rows() == [
        ("mine", "best", "no weights satisfy all limits; there is no book yet")
    ]
    days_T = market.panel.dates_T.astype("datetime64[D]")
    assert notes["date"].to_list() == [days_T[200].item(), days_T[250].item()]
    assert describe_notes(notes) == (
        f"best of mine: notes on 2 dates; the newest, {days_T[250]}: no weights satisfy all limits; there "
        "is no book yet."
    )


def test_a_book_that_needs_sectors_is_refused_where_there_are_none(
    tiny_settings: Mapping[str, Any], tiny_tables: dict[str, pl.DataFrame]
) -> None:
    tables = {name: frame for name, frame in tiny_tables.items() if name != "securities"}
    books = {"plain": {"kind": "rank_weighted"}, "mine": {"kind": "rank_weighted", "neutral": ["sector"]}}
    with pytest.raises(ConfigError, match=r"backtest.books.mine needs sectors, but no firm has 'sector'"):
        build_market(tables, config(tiny_settings, books))
    build_market(tables, config(tiny_settings, {"plain": books["plain"]}))


def test_a_book_that_needs_more_firms_is_named(
    market: Market, signal_TN: FloatArray, tiny_settings: Mapping[str, Any]
) -> None:
    books = {"wide": {"kind": "top_k_drop", "k": 40}}
    with pytest.raises(ConfigError, match=r"backtest.books.wide: The book needs 40 signals per date"):
        measured(market, signal_TN, config(tiny_settings, books))
