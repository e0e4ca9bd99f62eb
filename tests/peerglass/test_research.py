"""The calls of research on frames: every one takes pandas and polars, wide and long, and answers in kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import statsmodels.api as sm
import yaml
from scipy.stats import pearsonr

import peerglass
from pipelines.train.trials import read_trials

T, N = 90, 12
RNG = np.random.default_rng(5)
DAYS = pd.bdate_range("2023-01-02", periods=T)
NAMES = [f"F{n:02}" for n in range(N)]
RETURN_TN = RNG.normal(0, 0.02, (T, N))
CLOSE_TN = 20 * np.exp(RETURN_TN.cumsum(axis=0))
VOLUME_TN = RNG.integers(1_000, 9_000, (T, N)).astype(float)
NOISE_TN = RNG.normal(size=(T, N))
NEXT_TN = np.vstack([RETURN_TN[2:], np.zeros((2, N))])  # bought a session later, held for one
GOOD_TN = 20 * NEXT_TN + RNG.normal(size=(T, N))
"""A signal with skill: noise and a part of the return that follows."""
SETTINGS = ["backtest.books={mine: {kind: quantile_long_short, quantiles: 4}}"]


def wide(x_TN: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(x_TN, index=DAYS, columns=NAMES)


def long(**columns: np.ndarray) -> pd.DataFrame:
    stacked = {name: wide(x_TN).stack() for name, x_TN in columns.items()}
    return pd.DataFrame(stacked).rename_axis(["date", "ticker"])


def polars(frame: pd.DataFrame) -> pl.DataFrame:
    indexed = isinstance(frame.index, pd.MultiIndex)
    return pl.from_pandas((frame if indexed else frame.rename_axis("date")).reset_index())


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "pandas wide": wide,
    "pandas index": lambda x_TN: long(signal=x_TN),
    "pandas columns": lambda x_TN: long(signal=x_TN).reset_index(),
    "pandas series": lambda x_TN: long(signal=x_TN)["signal"].rename_axis(["date", "asset"]),
    "pandas series of tickers first": lambda x_TN: long(signal=x_TN)["signal"].swaplevel(),
    "pandas two levels": lambda x_TN: pd.concat({"signal": wide(x_TN)}, axis=1),
    "polars wide": lambda x_TN: polars(wide(x_TN)),
    "polars long": lambda x_TN: polars(long(signal=x_TN)).sample(fraction=1, shuffle=True, seed=1),
}
SHORT = ("pandas wide", "pandas index", "polars wide", "polars long")


def rows_of(table: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401 (either kind)
    """Rows of a table of either kind, comparable across kinds; an index is part of them."""
    if isinstance(table, pd.DataFrame):
        table = pl.from_pandas(table.reset_index(drop=table.index.names == [None]))
    dates = pl.selectors.datetime().dt.date()
    floats = pl.selectors.float().cast(pl.Float64).fill_nan(None)
    rows: list[tuple[Any, ...]] = table.with_columns(dates).with_columns(floats).rows()
    return rows


def measured(form: str, folder: Path) -> peerglass.Backtest:
    make = FORMS[form]
    return peerglass.backtest(make(GOOD_TN), make(CLOSE_TN), [f"output={folder / 'runs'}", *SETTINGS])


CALLS: dict[str, Callable[[str, Path], Any]] = {
    "features": lambda form, _: peerglass.features(FORMS[form](CLOSE_TN), ["return_1", "mean(close, 5)"]),
    "audit_signal": lambda form, _: peerglass.audit_signal(FORMS[form](NOISE_TN), FORMS[form](CLOSE_TN)),
    "run_book": lambda form, _: peerglass.run_book(FORMS[form](NOISE_TN), FORMS[form](CLOSE_TN)).weights,
    "backtest": lambda form, folder: measured(form, folder).ladder,
    "sweep": lambda form, folder: (
        measured(form, folder).sweep({"quantiles": [3, 4]}).table[["signal", "quantiles", "sharpe_net"]]
    ),
    "compare": lambda form, folder: (
        peerglass.compare(
            FORMS[form](NOISE_TN),
            FORMS[form](GOOD_TN),
            market=FORMS[form](CLOSE_TN),
            overrides=[f"output={folder / 'runs'}", *SETTINGS],
        ).tests
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("research")


@pytest.fixture(scope="module")
def backtest(folder: Path) -> peerglass.Backtest:
    """Two signals of pandas."""
    signals = long(noise=NOISE_TN, good=GOOD_TN)
    return peerglass.backtest(signals, wide(CLOSE_TN), [f"output={folder / 'two'}", *SETTINGS])


@pytest.mark.slow(30)
@pytest.mark.parametrize("call", CALLS)
def test_every_call_takes_every_form_and_answers_in_its_kind(call: str, folder: Path) -> None:
    on_frames = call in ("features", "audit_signal", "run_book")
    found: dict[str, Any] = {form: CALLS[call](form, folder) for form in (FORMS if on_frames else SHORT)}
    first = rows_of(found["polars wide"])
    assert len(first) > 0
    for form, table in found.items():
        assert isinstance(table, pl.DataFrame if form.startswith("polars") else pd.DataFrame), form
        if call in ("features", "run_book") and isinstance(table, pd.DataFrame) and form != "pandas columns":
            assert list(table.index.names) == ["date", "ticker"], form
        assert rows_of(table) == first, form


def test_forecasts_and_prices_of_every_form_have_the_same_metrics() -> None:
    found = {
        form: peerglass.forecast_metrics(make(GOOD_TN), make(CLOSE_TN)).ic for form, make in FORMS.items()
    }
    assert set(found.values()) == {found["polars wide"]}
    assert found["polars wide"] > 0.1


def test_a_backtest_of_prices_equals_that_of_a_lake_with_the_same_prices(
    folder: Path, backtest: peerglass.Backtest
) -> None:
    closes = polars(long(close=CLOSE_TN))
    closes.write_csv(folder / "prices.csv")
    settings = {
        "name": "own",
        "source": {"kind": "files", "prices": "prices.csv"},
        "lake": "lake",
        "universe": {"min_history": 1},
        "output": "runs_of_lake",
        "folds": {"scheme": "expanding", "train": 20, "valid": 10, "test": 10, "embargo": 1},
        "models": {"zero": {}},
        "backtest": {"books": {"mine": {"kind": "quantile_long_short", "quantiles": 4}}},
    }
    (folder / "own.yaml").write_text(yaml.safe_dump(settings))
    peerglass.ingest(folder / "own.yaml")
    other = peerglass.backtest(long(noise=NOISE_TN, good=GOOD_TN), folder / "own.yaml")
    assert rows_of(other.ladder) == rows_of(backtest.ladder)
    assert rows_of(other.tables["equity"]) == rows_of(backtest.tables["equity"])
    assert other.used == backtest.used


def test_the_ladder_and_the_books_equal_other_ways_to_compute_them(backtest: peerglass.Backtest) -> None:
    label_TN = CLOSE_TN[2:] / CLOSE_TN[1:-1] - 1  # bought one session later, held for one
    by_hand = [pearsonr(x_N, y_N).statistic for x_N, y_N in zip(GOOD_TN[:-2], label_TN, strict=True)]
    (row,) = backtest.ladder[backtest.ladder["model"] == "good"].to_dict("records")
    assert row["ic"] == pytest.approx(np.mean(by_hand), abs=1e-12)
    costs = backtest.config.backtest.costs.model_dump()
    book = peerglass.run_book(long(good=GOOD_TN), wide(CLOSE_TN), quantiles=4, costs=costs)
    assert row["mine.sharpe_net"] == pytest.approx(book.metrics.sharpe_net, abs=1e-12)
    sweep = backtest.sweep({"quantiles": [3, 4], "half_spread_bps": costs["half_spread_bps"]})
    same = sweep.table[(sweep.table["signal"] == "good") & (sweep.table["quantiles"] == 4)]
    assert same["sharpe_net"].item() == pytest.approx(book.metrics.sharpe_net, abs=1e-12)
    assert "<html" in sweep.page.read_text("utf-8")


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "The sweep is empty; name a setting"),
        ({"quantile": [3]}, "The sweep names 'quantile', which is no setting"),
        ({"quantiles": [3, 3]}, "The sweep lists a value of quantiles twice: 3,3"),
        ({"quantiles": [1]}, "The sweep is not valid: backtest.books.mine.*quantiles"),
        ({"delay": range(200), "quantiles": range(2, 103)}, "The sweep has 20,200 combinations"),
    ],
)
def test_a_wrong_sweep_is_told_in_words_of_python(
    backtest: peerglass.Backtest, grid: dict[str, list[int]], message: str
) -> None:
    with pytest.raises(peerglass.PeerglassError, match=message) as raised:
        backtest.sweep(grid)
    assert "--" not in str(raised.value)


def test_the_books_of_a_frame_of_prices_fit_its_firms(folder: Path) -> None:
    found = peerglass.backtest(wide(NOISE_TN), wide(CLOSE_TN), [f"output={folder / 'sized'}"])
    books = found.config.backtest.books
    assert list(books) == ["long_short", "long_only"]
    assert books["long_short"].model_dump()["quantiles"] == 4
    assert books["long_only"].model_dump()["k"] == 3


def test_every_book_is_a_trial_that_is_counted_once(folder: Path, backtest: peerglass.Backtest) -> None:
    assert {"good", "noise"} == set(read_trials(folder / "two")["model"])
    before = peerglass.backtest(backtest.like, wide(CLOSE_TN), [f"output={folder / 'two'}", *SETTINGS])
    more = peerglass.backtest(-wide(NOISE_TN), wide(CLOSE_TN), [f"output={folder / 'two'}", *SETTINGS])
    assert more.trials == before.trials + 1 == read_trials(folder / "two").height
    assert peerglass.open_run(backtest.id, folder / "two").models == ("noise", "good")


def test_the_difference_of_two_signals_has_the_t_of_statsmodels(backtest: peerglass.Backtest) -> None:
    found = peerglass.compare(backtest)
    label_TN = CLOSE_TN[2:] / CLOSE_TN[1:-1] - 1
    ic_T, other_T = (
        np.array([pearsonr(x_N, y_N).statistic for x_N, y_N in zip(x_TN[:-2], label_TN, strict=True)])
        for x_TN in (GOOD_TN, NOISE_TN)
    )
    (row,) = found.tests.to_dict("records")
    assert (row["name"], row["reference"], row["dates"]) == ("good", "noise", T - 2)
    fit = sm.OLS(ic_T - other_T, np.ones(T - 2)).fit(cov_type="HAC", cov_kwds={"maxlags": row["lags"]})
    assert row["ic_difference"] == pytest.approx(fit.params[0], abs=1e-12)
    assert row["ic_t"] == pytest.approx(fit.tvalues[0], rel=1e-9)
    assert found.figures["name"].to_list() == ["noise", "good"]
    assert "against noise" in repr(found)


def test_features_equal_pandas_and_say_what_is_left_out() -> None:
    prices = long(close=CLOSE_TN, Volume=VOLUME_TN)
    formulas = {"ratio": "mean(close, 5) / close", "spread": "std(volume, 10)"}
    found = peerglass.features(prices, formulas)
    close = wide(CLOSE_TN)
    ratio = (close.rolling(5).mean() / close).iloc[5:]
    np.testing.assert_allclose(found["ratio"].unstack().iloc[5:], ratio, rtol=1e-6)
    deviation = wide(VOLUME_TN).rolling(10).std(ddof=1).iloc[-1]
    ours = found["spread"].unstack().iloc[-1].to_numpy(dtype=float)
    np.testing.assert_allclose(ours, deviation.to_numpy(), rtol=1e-6)
    with pytest.warns(UserWarning, match=r"^\d+ of 157 features need columns .*: .* and \d+ more\.$"):
        own = peerglass.features(polars(close), "alpha158")
    assert {"MA5", "ROC60"} <= set(own.columns)
    assert "VMA5" not in own.columns


def test_the_tear_sheet_is_that_of_the_command(backtest: peerglass.Backtest) -> None:
    page = backtest.report()
    assert page == backtest.folder.resolve() / "report.html"
    text = page.read_text("utf-8")
    assert "noise" in text
    assert "The prices come from a frame" in text
    assert backtest.plot().data
    assert backtest.plot("ic_decay").data


def test_what_a_notebook_shows_is_short_and_escaped(folder: Path, backtest: peerglass.Backtest) -> None:
    long_name = "<script>alert(1)</script>" + "x" * 200
    many = {
        long_name: GOOD_TN,
        **{f"a rather long name of a signal {k}": NOISE_TN + k * GOOD_TN for k in range(9)},
    }
    found = peerglass.backtest(long(**many), wide(CLOSE_TN), [f"output={folder / 'many'}", *SETTINGS])
    shown = [
        found._repr_html_(),
        found.sweep({"quantiles": [3, 4]})._repr_html_(),
        peerglass.compare(found)._repr_html_(),
        peerglass.run_book(wide(GOOD_TN), wide(CLOSE_TN))._repr_html_(),
        peerglass.forecast_metrics(wide(GOOD_TN), wide(CLOSE_TN))._repr_html_(),
    ]
    for text in shown:
        assert 100 < len(text) < 2000
        assert "<script" not in text
    assert "5 more rows" in shown[0]
    metrics = peerglass.forecast_metrics(wide(GOOD_TN), wide(CLOSE_TN))
    assert [f"<td>{metrics.n_dates}</td>" in shown[-1], f"<td>{metrics.ic:.4f}</td>" in shown[-1]] == [
        True,
        True,
    ]
    assert f" {1e4 * metrics.quantile_returns[-1]:.1f}." in shown[-1]
    assert "no look-ahead found" in backtest._repr_html_()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: peerglass.features(wide(CLOSE_TN), "momentun"),
            "no feature or set 'momentun'; the sets are",
        ),
        (lambda: peerglass.features(wide(CLOSE_TN), "mean(close, 5"), "column"),
        (lambda: peerglass.features(wide(CLOSE_TN), "amihud_21"), "no volume"),
        (lambda: peerglass.compare(wide(NOISE_TN), wide(GOOD_TN)), "given a frame: pass market="),
        (lambda: peerglass.backtest(wide(NOISE_TN)["F00"], wide(CLOSE_TN)), "series of one number a date"),
        (lambda: peerglass.backtest(wide(NOISE_TN), wide(CLOSE_TN), ["label.horizn=5"]), "horizn"),
        (lambda: peerglass.backtest(wide(NOISE_TN), -wide(CLOSE_TN)), "price of F00 on .* is -"),
        (lambda: peerglass.forecast_metrics(long(a=NOISE_TN, b=GOOD_TN), wide(CLOSE_TN)), "columns a, b"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(peerglass.PeerglassError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
