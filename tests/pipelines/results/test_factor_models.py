"""Books against published factors: gross and net, by day and by month, equal to statsmodels."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm
from audit_markets import market as simulated_market

from features.arrays import FloatArray
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.backtest_files import published_factors
from pipelines.dataset.market import Market, build_market
from pipelines.errors import ConfigError
from pipelines.pages.describe import describe_factor_models
from pipelines.results.books import MeasuredBook
from pipelines.results.evaluate import evaluate
from pipelines.results.evaluate_run import BookAnalysis
from pipelines.run.evaluations import EvaluationRecord, StoredEvaluation, assumptions_id, evaluation_id

FIRST = 100  # the first session with a forecast
NAMES = ("Mkt-RF", "SMB", "HML")


@pytest.fixture(scope="module")
def market(tiny_settings: Mapping[str, Any]) -> tuple[Market, Config]:
    config, tables = simulated_market(tiny_settings, 5, {"firms": 24, "sessions": 900})
    settings = {**tiny_settings, "label": {"horizon": 1, "delay": 1}}
    config = check_config(settings, origin="tiny")
    return build_market(tables, config), config


@pytest.fixture(scope="module")
def files(market: tuple[Market, Config], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Daily and monthly factors in percent, as Kenneth French writes them, in two daily files."""
    folder, rng = tmp_path_factory.mktemp("factors"), np.random.default_rng(1)
    panel = market[0].panel
    index_TN = panel.total_return_index_TN
    move_T = np.zeros(panel.n_sessions)
    move_T[1:] = np.nan_to_num(np.nanmean(index_TN[1:] / index_TN[:-1] - 1, axis=1))
    value_TJ = 100 * np.column_stack([move_T, *rng.normal(0, 0.006, (2, len(move_T)))])
    days = panel.dates_T.astype("datetime64[D]").tolist()

    def write(name: str, columns: list[str], rows: list[str]) -> str:
        path = folder / name
        path.write_text("\n".join(["By CRSP.", "", "," + ",".join(columns), *rows, "", "Copyright"]))
        return str(path)

    def lines(labels: list[str], value_TJ: FloatArray) -> list[str]:
        rows = zip(labels, value_TJ, strict=True)
        return [f"{label}," + ",".join(f"{x:9.4f}" for x in row) for label, row in rows]

    daily = [f"{day:%Y%m%d}" for day in days]
    months = sorted({f"{day:%Y%m}" for day in days})
    rate_T = np.full((len(days), 1), 0.012)
    return {
        "two": write("two.csv", [*NAMES[:2], "RF"], lines(daily, np.hstack([value_TJ[:, :2], rate_T]))),
        "third": write("third.csv", ["HML"], lines(daily, value_TJ[:, 2:])),
        "monthly": write(
            "monthly.csv",
            [*NAMES[:2], "RF"],
            lines(months, np.column_stack([rng.normal(0, 4, (len(months), 2)), np.full(len(months), 0.3)])),
        ),
        "bare": write("bare.csv", ["HML"], lines(months, rng.normal(0, 3, (len(months), 1)))),
    }


@pytest.fixture(scope="module")
def measured(market: tuple[Market, Config], files: dict[str, str]) -> tuple[pl.DataFrame, list[MeasuredBook]]:
    entries = {"ff3": [files["two"], files["third"]], "months": files["monthly"], "bare": files["bare"]}
    config = with_factors(market[1], entries)
    panel, books = market[0].panel, list[MeasuredBook]()
    analysis = BookAnalysis(market[0], config)

    def keep(book: MeasuredBook) -> None:
        books.append(book)
        analysis.add(book)

    signal_TN = np.where(
        market[0].universe_TN, np.random.default_rng(2).normal(size=panel.close_TN.shape), np.nan
    )
    signal_TN[:FIRST] = np.nan
    sessions = np.arange(FIRST, panel.n_sessions)
    evaluate({"noise": {0: signal_TN}}, market[0], config, sessions=sessions, on_book=keep)
    return analysis.tables()["factor_models"], books


def with_factors(config: Config, factors: object) -> Config:
    backtest = config.backtest.model_dump(mode="json") | {"factors": factors, "risk_free": 0.05}
    return check_config(config.model_dump(mode="json") | {"backtest": backtest}, origin="tiny")


def read_percent(path: str) -> dict[str, list[float]]:
    """Label -> values, by a reader of its own."""
    rows = [line.split(",") for line in Path(path).read_text().splitlines() if line[:2] == "20"]
    return {label: [float(x) / 100 for x in values] for label, *values in rows}


def own_series(
    book: MeasuredBook, market: Market, entry: str, files: dict[str, str], *, net: bool
) -> tuple[list[float], list[list[float]]]:
    """Excess returns of a book and factors, by a plain loop over its sessions."""
    result, days = book.result, market.panel.dates_T[book.orders.held].astype("datetime64[D]").tolist()
    return_T = result.return_net_T if net else result.return_gross_T
    first = result.first_trade
    assert first is not None
    if entry == "ff3":
        two, third = read_percent(files["two"]), read_percent(files["third"])
        y, x = [], []
        for t in range(first, len(days)):
            *own, rate = two[f"{days[t]:%Y%m%d}"]
            y.append(return_T[t] - (1 - result.cash_T[t - 1] if t else 0.0) * rate)
            x.append([*own, *third[f"{days[t]:%Y%m%d}"]])
        return y, x
    rows = read_percent(files["monthly" if entry == "months" else "bare"])
    y, x = [], []
    for label, values in rows.items():
        of_month = [t for t in range(first, len(days)) if f"{days[t]:%Y%m}" == label]
        every = [d for d in market.panel.dates_T.astype("datetime64[D]").tolist() if f"{d:%Y%m}" == label]
        last = dt.date(int(label[:4]) + (label[4:] == "12"), int(label[4:]) % 12 + 1, 1)
        ends = np.busday_count(max(every) + dt.timedelta(days=1), last) == 0 or every[-1] != days[-1]
        if not of_month or len(of_month) != len(every) or not ends:
            continue
        total, exposure = 1.0, []
        for t in of_month:
            total *= 1 + return_T[t]
            exposure.append(1 - result.cash_T[t - 1] if t else 0.0)
        rate = sum(exposure) / len(exposure) * values[-1] if entry == "months" else sum(exposure) * 0.05 / 252
        y.append(total - 1 - rate)
        x.append(values[:-1] if entry == "months" else values)
    return y, x


@pytest.mark.parametrize("net", [False, True])
@pytest.mark.parametrize("entry", ["ff3", "months", "bare"])
def test_alpha_and_betas_equal_statsmodels_on_the_same_series(
    measured: tuple[pl.DataFrame, list[MeasuredBook]],
    market: tuple[Market, Config],
    files: dict[str, str],
    entry: str,
    net: bool,
) -> None:
    (table, books), per_year = measured, 252 if entry == "ff3" else 12
    assert {book.orders.name for book in books} == {"long_short", "long_only"}
    for book in books:
        own = table.filter(
            pl.col("book") == book.orders.name, pl.col("factors") == entry, pl.col("after_costs") == net
        )
        y, x = own_series(book, market[0], entry, files, net=net)
        assert len(y) > (500 if per_year == 252 else 25)
        assert own["periods"].to_list() == [len(y)] * own.height
        lags = own["lags"][0]
        fitted = sm.OLS(y, sm.add_constant(np.array(x))).fit(cov_type="HAC", cov_kwds={"maxlags": lags})
        unit = np.array([per_year, *[1.0] * len(x[0])])
        np.testing.assert_allclose(own["coefficient"], fitted.params * unit, rtol=1e-8)
        np.testing.assert_allclose(own["error"], fitted.bse * unit, rtol=1e-8)
        np.testing.assert_allclose(own["t"], fitted.tvalues, rtol=1e-8)
        np.testing.assert_allclose(own["r2"], fitted.rsquared, rtol=1e-8)
        assert own["term"].to_list() == [
            "alpha",
            *{"ff3": NAMES, "months": NAMES[:2], "bare": NAMES[2:]}[entry],
        ]
        assert own["frequency"].unique().to_list() == ["daily" if per_year == 252 else "monthly"]


def test_the_long_only_book_of_the_market_has_its_beta_and_costs_lower_alpha(
    measured: tuple[pl.DataFrame, list[MeasuredBook]],
) -> None:
    rows = measured[0].filter(pl.col("factors") == "ff3", pl.col("book") == "long_only")
    beta = rows.filter(pl.col("term") == "Mkt-RF")
    assert (beta["coefficient"] > 0.7).all()
    assert (beta["t"] > 10).all()
    by = dict(rows.filter(pl.col("term") == "alpha").select("after_costs", "coefficient").iter_rows())
    assert by[False] > by[True]
    assert rows["reading"].drop_nulls().len() == 2


def test_the_terminal_has_a_line_for_every_book_and_names_what_is_too_short(
    measured: tuple[pl.DataFrame, list[MeasuredBook]], market: tuple[Market, Config], tmp_path: Path
) -> None:
    table = measured[0]
    record = cast("EvaluationRecord", None)  # is not read
    stored = StoredEvaluation(record, tmp_path, {"factor_models": table.filter(pl.col("factors") != "bare")})
    config = with_factors(market[1], {"ff3": "a.csv", "bare": "b.csv"})
    head, titles, *books, bare, legend = describe_factor_models(stored, config).splitlines()
    assert head == "books at delay 1 against published factors: ff3 (daily returns)"
    assert titles.split()[-4:] == ["periods", *NAMES]
    for line, book in zip(books, ("long_short", "long_only"), strict=True):
        own = table.filter(pl.col("factors") == "ff3", pl.col("book") == book).to_dicts()
        by = {(row["term"], row["after_costs"]): row for row in own}
        shown = [
            f"{100 * by['alpha', net]['coefficient']:+.1f} ({by['alpha', net]['t']:.1f})" for net in (0, 1)
        ]
        shown += [f"{by[name, 1]['coefficient']:.2f} ({by[name, 1]['t']:.1f})" for name in NAMES]
        assert all(cell in line for cell in ("noise", book, *shown))
    assert bare == "bare: the books fill too few periods of these factors for a regression."
    assert legend.startswith("alpha: per year.")
    assert describe_factor_models(stored, market[1]) == ""


def test_factors_are_part_of_the_evaluation_and_not_of_what_returns_depend_on(
    market: tuple[Market, Config], files: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "f.csv"
    path.write_text(Path(files["two"]).read_text())
    plain, own = with_factors(market[1], {}), with_factors(market[1], {"f": str(path)})
    before = evaluation_id(own)
    assert before != evaluation_id(plain)
    assert assumptions_id(own.backtest, 1) == assumptions_id(plain.backtest, 1)
    path.write_text(path.read_text().replace("0.0120", "0.0130"))
    assert evaluation_id(own) != before


def test_factors_more_frequent_than_the_prices_are_refused(
    market: tuple[Market, Config], files: dict[str, str]
) -> None:
    panel = replace(market[0].panel, periods_per_year=12.0)
    with pytest.raises(ConfigError, match=r"factors\.f: the factors are daily, and the prices have 12 sess"):
        published_factors({"f": [files["two"]]}, panel)
    assert list(published_factors({"f": [files["monthly"]]}, panel)) == ["f"]
