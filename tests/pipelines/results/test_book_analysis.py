"""The analysis tables of an evaluation on a simulated market."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pytest
from audit_markets import market as simulated_market

from backtest.books.schedules import calendar
from features.arrays import FloatArray
from features.library.characteristics import CHARACTERISTICS
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, build_market
from pipelines.pages.describe import describe_decisions, describe_factors
from pipelines.results.books import MeasuredBook
from pipelines.results.evaluate import Evaluation, evaluate
from pipelines.results.evaluate_run import BookAnalysis

NO_SCORES = pl.DataFrame(schema={"model": pl.String, "valid_ic": pl.Float64, "valid_rank_ic": pl.Float64})
FIRST = 300  # the first session with a forecast
KEYS = ("model", "book", "delay")


@dataclass(frozen=True)
class Analysed:
    """An evaluation with its analysis, and the books that were analysed."""

    config: Config
    market: Market
    evaluation: Evaluation
    tables: Mapping[str, pl.DataFrame]
    books: list[MeasuredBook]


def analyse(market: Market, config: Config, signals: Mapping[str, FloatArray]) -> Analysed:
    analysis, books = BookAnalysis(market, config), []

    def keep(book: MeasuredBook) -> None:
        books.append(book)
        analysis.add(book)

    forecasts = {name: {0: signal_TN} for name, signal_TN in signals.items()}
    sessions = np.arange(FIRST, market.panel.n_sessions)
    evaluation = evaluate(
        forecasts, market, config, NO_SCORES, truth_TN=None, sessions=sessions, on_book=keep
    )
    return Analysed(config, market, evaluation, analysis.tables(), books)


def known(market: Market, x_TN: FloatArray) -> FloatArray:
    out_TN = np.where(market.universe_TN, x_TN, np.nan)
    out_TN[:FIRST] = np.nan
    return out_TN


@pytest.fixture(scope="module")
def analysed(tiny_settings: Mapping[str, Any]) -> Analysed:
    """The signals reversal, momentum and noise on 80 firms and 900 sessions, at the delays 0 and 1."""
    changes = {"firms": 80, "sessions": 900, "truth_ic": 0.3, "peer_share": 0.0, "characteristic_share": 0.0}
    config, tables = simulated_market(tiny_settings, 5, changes)
    settings = {
        **tiny_settings,
        "label": {"horizon": 1, "delay": 0, "extra_delays": [1]},
        "backtest": {
            **tiny_settings["backtest"],
            "risk_free": 0.02,
            "costs": {"half_spread_bps": 1, "commission_bps": 0, "borrow_bps_per_year": 50},
        },
    }
    config = check_config(settings, origin="tiny")
    market = build_market(tables, config)
    rng = np.random.default_rng(0)
    return_TN = CHARACTERISTICS.compute(market.panel, ["return_1"])[:, :, 0].astype(float)
    momentum_TN = CHARACTERISTICS.compute(market.panel, ["momentum_252_21"])[:, :, 0].astype(float)
    signals = {
        "reversal": known(market, -return_TN),
        "momentum": known(market, momentum_TN),
        "noise": known(market, rng.normal(size=return_TN.shape)),
    }
    return analyse(market, config, signals)


def of(frame: pl.DataFrame, model: str, book: str, delay: int) -> pl.DataFrame:
    return frame.filter(pl.col("model") == model, pl.col("book") == book, pl.col("delay") == delay)


def terms(analysed: Analysed, model: str, delay: int) -> dict[str, dict[str, Any]]:
    """Rows of the factor regression of a model's long-short book, by term."""
    table = of(analysed.tables["factor_alpha"], model, "long_short", delay)
    return {row["term"]: row for row in table.iter_rows(named=True)}


def test_every_book_is_in_every_table(analysed: Analysed) -> None:
    expected = {
        (model, book, delay)
        for model in ("reversal", "momentum", "noise")
        for book in ("long_short", "long_only")
        for delay in (0, 1)
    }
    assert "positions" in analysed.tables
    assert len(analysed.tables) == 10
    for name in set(analysed.tables) - {"positions"}:
        frame = analysed.tables[name]
        in_table = {key for key in expected if key[2] == 1} if name == "capacity" else expected
        assert set(frame.select(KEYS).unique().iter_rows()) == in_table, name
        assert not frame.select(pl.col(pl.Float64).is_nan().any()).to_numpy().any(), name


def test_every_second_of_the_weekly_dates_with_signals_is_used(analysed: Analysed) -> None:
    market, weekly_T = analysed.market, calendar(analysed.market.panel.dates_T, "week_end").turn_T
    signal_TN = known(market, np.where(weekly_T[:, None], market.panel.raw_close_TN, np.nan))
    dates = int(np.isfinite(signal_TN).any(axis=1).sum())
    books = {"kind": "top_k_long_only", "k": 5, "rebalance_every": 2}
    backtest = analysed.config.backtest.model_dump() | {"books": {"long_only": books}}
    config = check_config(analysed.config.model_dump() | {"backtest": backtest}, origin="tiny")
    figures = analyse(market, config, {"weekly": signal_TN}).tables["figures"]
    assert dates > 100
    assert figures["signal_dates"].to_list() == [dates, dates]
    assert figures["decisions"].to_list() == [(dates + 1) // 2] * 2
    assert describe_decisions(figures).endswith(f"decided: long_only {(dates + 1) // 2} of {dates}")


def test_figures_are_those_of_the_ladder(analysed: Analysed) -> None:
    figures = analysed.tables["figures"]
    for row in analysed.evaluation["ladder"].iter_rows(named=True):
        for book in ("long_short", "long_only"):
            one = of(figures, row["model"], book, row["delay"]).row(0, named=True)
            for name in ("sharpe_net", "sharpe_gross", "turnover", "annual_return_net", "max_drawdown_net"):
                assert one[name] == row[f"{book}.{name}"]
    assert of(figures, "noise", "long_only", 0)["net_exposure"].item() == pytest.approx(1.0, abs=0.02)
    assert of(figures, "noise", "long_short", 0)["net_exposure"].item() == pytest.approx(0.0, abs=0.02)
    assert of(figures, "noise", "long_short", 0)["leverage"].item() == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("delay", [0, 1])
def test_a_signal_that_is_only_reversal_is_called_reversal(analysed: Analysed, delay: int) -> None:
    rows = terms(analysed, "reversal", delay)
    assert rows["alpha"]["reading"].startswith("Its returns are explained by reversal (R2 0.")
    assert rows["reversal_1"]["t"] > 10
    assert rows["reversal_1"]["variance_share"] > 0.5
    assert rows["alpha"]["r2"] > 0.7
    assert not (rows["alpha"]["coefficient"] > 0 and rows["alpha"]["p_value"] < 0.05)
    earned = {row["term"]: row["per_year"] for row in rows.values()}
    of_reversal = sum(value for term, value in earned.items() if term.startswith("reversal"))
    assert of_reversal > 0.5 * sum(earned.values()) > 0.1
    assert terms(analysed, "noise", delay)["alpha"]["r2"] < 0.3
    assert terms(analysed, "noise", delay)["alpha"]["reading"].startswith("Its factors explain little")
    assert terms(analysed, "momentum", delay)["momentum"]["variance_share"] > 0.5


def test_the_terminal_has_a_line_for_every_model_and_names_the_factors(analysed: Analysed) -> None:
    lines = describe_factors(analysed.tables["factor_alpha"], "long_short", 1).splitlines()
    assert lines[0] == (
        "long_short net of costs at delay 1 against factors of the same firms "
        "(market, size, value, momentum, reversal, volatility)"
    )
    assert [line.split()[0] for line in lines[1:]] == ["reversal", "momentum", "noise"]
    assert "Its returns are explained by reversal (R2 0." in lines[1]
    assert "size" not in describe_factors(
        analysed.tables["factor_alpha"].filter(pl.col("term") != "size"), "long_short", 1
    )


def test_the_market_explains_a_long_only_book(analysed: Analysed) -> None:
    table = of(analysed.tables["factor_alpha"], "noise", "long_only", 0)
    market = table.row(by_predicate=pl.col("term") == "market", named=True)
    assert market["coefficient"] == pytest.approx(1.0, abs=0.15)
    assert market["variance_share"] > 0.4
    assert market["t"] > 10


def test_every_partition_adds_up_to_the_return_of_the_book(analysed: Analysed) -> None:
    sums = (
        analysed.tables["contributions"]
        .group_by(*KEYS, "by")
        .agg(pl.col("gross", "cost", "net").sum(), pl.len())
    )
    assert sums.height == 3 * 2 * 2 * 5
    for book in analysed.books:
        ours = of(sums, book.model, book.orders.name, book.delay)
        assert set(ours["by"]) == {"sector", "side", "factor", "risk", "name"}
        for row in ours.iter_rows(named=True):
            assert row["len"] > 1
            assert row["net"] == pytest.approx(book.result.nav_net_T[-1] - 1.0, abs=1e-12)
            assert row["gross"] == pytest.approx(book.result.ledger["pnl"].to_numpy().sum(), abs=1e-12)
            assert row["gross"] - row["cost"] == pytest.approx(row["net"], abs=1e-12)


def test_reversal_loads_on_the_style_of_its_name(analysed: Analysed) -> None:
    styles = of(analysed.tables["exposures"], "reversal", "long_short", 0).filter(pl.col("kind") == "style")
    means = dict(styles.select("key", "mean").iter_rows())
    assert max(means, key=lambda key: means[key]) == "reversal_1"
    assert means["reversal_1"] > 1.5
    assert (styles["low"] <= styles["mean"]).all()
    assert (styles["mean"] <= styles["high"]).all()
    sectors = of(analysed.tables["exposures"], "noise", "long_only", 0).filter(pl.col("kind") == "sector")
    assert sectors["mean"].sum() == pytest.approx(1.0, abs=0.05)
    assert set(sectors["key"]) <= {*analysed.market.panel.groups_S, "unknown"}


def test_drawdowns_and_worst_days_name_dates_and_firms(analysed: Analysed) -> None:
    for book in analysed.books:
        dates_T = analysed.market.panel.dates_T[book.orders.held].astype("datetime64[D]")
        returns = dict(zip(dates_T.tolist(), book.result.return_net_T, strict=True))
        days = of(analysed.tables["worst_days"], book.model, book.orders.name, book.delay)
        assert days["rank"].to_list() == list(range(1, days.height + 1))
        assert days["return_net"].to_list() == sorted(returns.values())[: days.height]
        assert all(returns[row["date"]] == row["return_net"] for row in days.iter_rows(named=True))
        falls = of(analysed.tables["drawdowns"], book.model, book.orders.name, book.delay)
        assert falls["depth"][0] == pytest.approx(book.metrics.max_drawdown_net)
        assert falls["depth"].is_sorted(descending=True)
        for row in falls.iter_rows(named=True):
            assert row["peak"] < row["trough"]
            assert row["recovered"] is None or row["recovered"] > row["trough"]
        for names in (*days["names"], *falls["names"]):
            for name in names:
                ticker, lost = name.split(" ")
                assert ticker in analysed.market.panel.tickers_N
                assert lost.startswith("-")
                assert lost.endswith("%")


def test_positions_are_those_of_the_first_book_at_the_first_tradable_delay(analysed: Analysed) -> None:
    positions = analysed.tables["positions"]
    assert positions.columns == ["model", "book", "date", "ticker", "weight", "trade", "pnl", "cost"]
    assert positions["book"].unique().to_list() == ["long_short"]
    book = next(one for one in analysed.books if one.model == "noise" and one.delay == 1)
    ours = positions.filter(pl.col("model") == "noise")
    daily = ours.group_by("date").agg(pl.col("pnl", "cost").sum(), pl.col("weight").abs().sum()).sort("date")
    dates_T = analysed.market.panel.dates_T[book.orders.held].astype("datetime64[D]")
    at = np.searchsorted(dates_T, daily["date"].to_numpy())
    net_T = (daily["pnl"] - daily["cost"]).to_numpy()
    np.testing.assert_allclose(net_T, book.result.return_net_T[at], atol=1e-6)
    np.testing.assert_allclose(daily["weight"].to_numpy(), book.result.leverage_T[at], atol=1e-5)
    assert daily.height > 500


def test_a_book_that_never_trades_has_figures_and_nothing_else(analysed: Analysed) -> None:
    constant_TN = known(analysed.market, np.zeros(analysed.market.universe_TN.shape))
    tables = analyse(analysed.market, analysed.config, {"zero": constant_TN}).tables
    assert of(tables["figures"], "zero", "long_short", 1)["turnover"].item() == 0
    for name in ("factor_alpha", "drawdowns", "worst_days"):
        assert of(tables[name], "zero", "long_short", 1).height == 0
        assert of(tables[name], "zero", "long_only", 1).height > 0
    parts = of(tables["contributions"], "zero", "long_short", 1)
    assert parts.filter(pl.col("by").is_in(["name", "sector"])).height == 0
    assert (parts["net"] == 0).all()
    assert tables["positions"].height == 0


def test_capacity_falls_with_capital_from_the_sharpe_ratio_of_the_book(analysed: Analysed) -> None:
    for book in ("long_short", "long_only"):
        points = of(analysed.tables["capacity"], "reversal", book, 1)
        assert points.height == 9
        assert points["capital"].is_sorted()
        assert points["sharpe_net"].is_sorted(descending=True)
        assert points["participation_p95"][0] < 4e-5
        assert points["participation_p95"][-1] > 0.08
        figures = of(analysed.tables["figures"], "reversal", book, 1)
        assert figures["sharpe_net"].item() - 0.6 < points["sharpe_net"][0] < figures["sharpe_net"].item()
        assert points["unfilled"][-1] > points["unfilled"][0]


def test_styles_that_the_data_do_not_allow_are_named(analysed: Analysed) -> None:
    bare = build_market({"prices": _prices(analysed)}, analysed.config)
    signals = {"noise": known(bare, np.random.default_rng(1).normal(size=bare.universe_TN.shape))}
    result = analyse(bare, analysed.config, signals)
    assert "capacity" not in result.tables
    assert "size" not in result.tables["factor_alpha"]["term"].to_list()
    assert set(result.tables["contributions"]["by"]) == {
        "side",
        "factor",
        "risk",
        "name",
    }  # there are no sectors
    assert set(result.tables["exposures"]["kind"]) == {"style"}


def _prices(analysed: Analysed) -> pl.DataFrame:
    panel = analysed.market.panel
    frame = pl.DataFrame(panel.raw_close_TN, schema=list(panel.tickers_N)).with_columns(date=panel.dates_T)
    return (
        frame.unpivot(index="date", variable_name="ticker", value_name="close")
        .filter(pl.col("close").is_not_nan())
        .with_columns(
            *(pl.lit(None, dtype=pl.Float64).alias(name) for name in ("open", "high", "low", "volume")),
            split_ratio=1.0,
            dividend=0.0,
        )
        .sort("date", "ticker")
    )
