"""The risk of a book by the model by characteristics, against matrices and plain loops over its positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import pytest
from audit_markets import market as simulated_market

from backtest.analysis.ledger import LedgerRows, ledger_rows
from backtest.analysis.styles import earned_returns
from backtest.risk import OTHER, CharacteristicRisk, book_risk, by_risk, characteristic_risk
from features.arrays import FloatArray
from pipelines.config.load import check_config
from pipelines.dataset.market import Market, build_market
from pipelines.results.books import MeasuredBook
from pipelines.results.evaluate import evaluate
from pipelines.results.evaluate_run import BookAnalysis

FIRST, LAST = 300, 400


@pytest.fixture(scope="module")
def analysed(tiny_settings: Mapping[str, Any]) -> tuple[Market, list[MeasuredBook], BookAnalysis]:
    """A long-short and a long-only book on 60 firms and their tables."""
    config, tables = simulated_market(tiny_settings, 5, {"firms": 60, "sessions": 420})
    universe = config.universe.model_copy(update={"membership": None})
    features = config.features.model_copy(update={"group_by": "sector"})
    config = config.model_copy(update={"universe": universe, "features": features})
    config = check_config(config.model_dump(mode="json") | {"label": {"delay": 1}}, origin="tiny")
    market, books = build_market(tables, config), list[MeasuredBook]()
    analysis = BookAnalysis(market, config)

    def keep(book: MeasuredBook) -> None:
        books.append(book)
        analysis.add(book)

    signal_TN = np.where(
        market.universe_TN, np.random.default_rng(2).normal(size=market.universe_TN.shape), np.nan
    )
    signal_TN[:FIRST] = np.nan
    signal_TN[LAST:] = np.nan
    sessions = np.arange(FIRST, LAST)
    evaluate({"noise": {0: signal_TN}}, market, config, sessions=sessions, on_book=keep)
    return market, books, analysis


def positions(rows: LedgerRows, shape: tuple[int, int]) -> tuple[FloatArray, FloatArray]:
    """Positions at the previous close and at this one, as dense arrays."""
    before_TN, after_TN = np.zeros(shape), np.zeros(shape)
    before_TN[rows.session_R, rows.firm_R] = rows.before_R
    after_TN[rows.session_R, rows.firm_R] = rows.position_R
    return before_TN, after_TN


def of(book: MeasuredBook, market: Market) -> tuple[LedgerRows, CharacteristicRisk, FloatArray]:
    risk = characteristic_risk(market.panel)
    assert len(risk.groups_G) > 1
    return ledger_rows(book.result.ledger), risk.since(book.orders.held.start), book.result.nav_ledger_T


def test_predicted_variances_are_those_of_the_covariance_matrix(
    analysed: tuple[Market, list[MeasuredBook], BookAnalysis],
) -> None:
    market, books, _ = analysed
    firms = np.arange(market.panel.n_firms)
    for book in books:
        rows, risk, nav_T = of(book, market)
        _, after_TN = positions(rows, (len(nav_T), len(firms)))
        asked = np.array([3, 40, 90])
        found = book_risk(rows, risk, nav_T, asked)
        assert found.session_P.tolist() == asked.tolist()
        assert found.names[-1] == "groups"
        for p, t in enumerate(asked):
            weight_N, x_NJ, covariance_JJ = (
                after_TN[t] / nav_T[t],
                risk.exposures(t, firms),
                risk.factor_covariance(t),
            )
            assert covariance_JJ is not None
            matrix_NN = x_NJ @ covariance_JJ @ x_NJ.T + np.diag(np.nan_to_num(risk.specific(t, firms)))
            assert found.variance_P[p] == pytest.approx(weight_N @ matrix_NN @ weight_N, rel=1e-9)
            exposure_J = weight_N @ x_NJ
            single = len(found.names) - 1
            np.testing.assert_allclose(found.exposure_PQ[p, :-1], exposure_J[:single], atol=1e-12)
            assert found.exposure_PQ[p, -1] == pytest.approx(np.abs(exposure_J[single:]).max())
            assert found.part_PQ[p].sum() == pytest.approx(exposure_J @ covariance_JJ @ exposure_J)


def test_sessions_without_a_covariance_are_left_out(
    analysed: tuple[Market, list[MeasuredBook], BookAnalysis],
) -> None:
    market, books, _ = analysed
    rows, risk, nav_T = of(books[0], market)
    early = risk.since(40)  # as if the book had begun before there was one
    found = book_risk(rows, early, nav_T, np.arange(60))
    known = [t for t in range(60) if early.factor_covariance(t) is not None]
    assert 0 < len(known) < 60
    assert found.session_P.tolist() == known


def test_factor_parts_and_the_specific_part_add_up_to_the_return(
    analysed: tuple[Market, list[MeasuredBook], BookAnalysis],
) -> None:
    """The specific part is that of the residuals, firm by firm, and not only what is left."""
    market, books, analysis = analysed
    panel = market.panel
    earned_TN, firms = earned_returns(panel), np.arange(panel.n_firms)
    for book in books:
        rows, risk, nav_T = of(book, market)
        before_TN, _ = positions(rows, (len(nav_T), len(firms)))
        by_name = dict.fromkeys((*risk.names, "specific"), 0.0)
        for t in range(1, len(nav_T)):
            held = np.flatnonzero(before_TN[t])
            x_MJ, f_J = risk.exposures(t - 1, held), np.nan_to_num(risk.return_TJ[risk.first + t])
            for name, earned in zip(risk.names, before_TN[t, held] @ x_MJ * f_J, strict=True):
                by_name[name] += earned
            residual_M = np.nan_to_num(earned_TN[risk.first + t, held]) - x_MJ @ f_J
            by_name["specific"] += float(before_TN[t, held] @ residual_M)
        by_name["groups"] = sum(by_name.pop(name) for name in (*panel.groups_S, OTHER))
        found = {part.key: part for part in by_risk(rows, risk, len(nav_T))}
        assert found.keys() == {*by_name, "costs"}
        for name, expected in by_name.items():
            assert found[name].gross == pytest.approx(expected, abs=1e-9), name
        total = sum(part.net for part in found.values())
        assert total == pytest.approx(nav_T[-1] - 1, abs=1e-9)
        stored = analysis.tables()["contributions"].filter(by="risk", book=book.orders.name)
        np.testing.assert_allclose(stored["net"].to_numpy().sum(), total, atol=1e-9)


def test_the_tables_have_the_last_close_of_every_week(
    analysed: tuple[Market, list[MeasuredBook], BookAnalysis],
) -> None:
    market, books, analysis = analysed
    for book in books:
        keys = {"model": "noise", "book": book.orders.name, "delay": 1}
        risk, exposures = (analysis.tables()[name].filter(**keys) for name in ("risk", "risk_exposures"))
        days = (
            market.panel.dates_T[book.orders.held].astype("datetime64[D]").tolist()[book.result.first_trade :]
        )
        weeks = {day.isocalendar()[:2]: day for day in days}
        assert risk["date"].to_list() == list(weeks.values())
        whole, *parts = (risk[f"{name}volatility"].to_numpy() for name in ("", "factor_", "specific_"))
        np.testing.assert_allclose(parts[0] ** 2 + parts[1] ** 2, whole**2)
        shares = exposures.group_by("date", maintain_order=True).agg(pl.col("variance_share").sum())
        np.testing.assert_allclose(shares["variance_share"], 1.0)
        assert shares["date"].to_list() == risk["date"].to_list()
        assert exposures.filter(key="specific")["exposure"].is_null().all()
        return_T = book.result.return_gross_T
        first = days.index(risk["date"][5]) + (book.result.first_trade or 0)
        after = days.index(risk["date"][6]) + (book.result.first_trade or 0)
        daily = risk["volatility"][5] / np.sqrt(252)
        expected = return_T[first + 1 : after + 1].sum() / (daily * np.sqrt(after - first))
        assert risk["surprise"][5] == pytest.approx(expected)
        assert risk["surprise"][-1] is None
        if book.orders.name == "long_only":
            market_weights = exposures.filter(key="market")["exposure"]
            np.testing.assert_allclose(market_weights, 1.0, atol=0.02)
            assert risk["volatility"].is_between(0.02, 1.0).all()
