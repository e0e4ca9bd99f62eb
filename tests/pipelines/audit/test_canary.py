"""The canary finds features that read something beside their data, and no honest one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from audit_markets import Array, ahead, make_subject, market

from features.library.characteristics import CHARACTERISTICS
from features.panel.derived import daily_return
from features.panel.panel import Panel, to_panel
from pipelines.audit.registry import CHECKS
from pipelines.audit.subject import Subject

FEATURES = {"window": 5, "channels": ["return"], "characteristics": ["momentum_63", "return_5"]}
Compute = Callable[[Panel], Array]


@pytest.fixture(scope="module")
def base(tiny_settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**tiny_settings, "models": {"ridge": {}}, "features": FEATURES}


@pytest.fixture(scope="module")
def subject(base: dict[str, Any]) -> Subject:
    return make_subject(*market(base, 5))


def plant(patch: pytest.MonkeyPatch, compute: Compute) -> None:
    entry = dataclasses.replace(CHARACTERISTICS["momentum_63"], compute=compute)
    patch.setitem(CHARACTERISTICS, "momentum_63", entry)


def days(panel: Panel) -> Array:
    return panel.dates_T.astype("datetime64[D]")


def cached_by_name(true: Panel, weight: float) -> Compute:
    """Tomorrow's return of a panel that was seen before, in a feature that is honest otherwise."""
    known = {(t, n): x for t, row in zip(days(true).tolist(), ahead(daily_return(true)), strict=True)
             for n, x in zip(true.tickers_N, row, strict=True)}  # fmt: skip

    def compute(panel: Panel) -> Array:
        later = [[known.get((t, n), 0.0) for n in panel.tickers_N] for t in days(panel).tolist()]
        return np.asarray(daily_return(panel) + weight * np.nan_to_num(np.array(later)))

    return compute


def cached_by_place(true: Panel) -> Compute:
    """The same by row and column, whatever these are."""
    later = ahead(daily_return(true))

    def compute(panel: Panel) -> Array:
        t, n = (np.arange(size) % of for size, of in zip(panel.close_TN.shape, later.shape, strict=True))
        return np.asarray(later[np.ix_(t, n)])

    return compute


def of_a_file(true: Panel, folder: Path) -> Compute:
    """A score in a file beside the lake."""
    t, n = np.nonzero(np.isfinite(true.close_TN))
    rows = {"date": days(true)[t], "ticker": np.array(true.tickers_N)[n]}
    value = np.random.default_rng(0).normal(size=len(t))
    pl.DataFrame({**rows, "value": value}).with_columns(pl.col("date").cast(pl.Date)).write_parquet(
        folder / "scores.parquet"
    )
    return lambda panel: to_panel(pl.read_parquet(folder / "scores.parquet"), "value", panel)


def of_tickers(true: Panel) -> Compute:
    """Returns of three firms that are named in the code, and the day's return of the others."""
    total_N = true.total_return_index_TN[-1] / np.nanmax(true.total_return_index_TN[:1])
    chosen = [true.tickers_N[n] for n in np.argsort(-np.nan_to_num(total_N))[:3]]

    def compute(panel: Panel) -> Array:
        listed_N = np.isin(panel.tickers_N, chosen)
        return np.asarray(daily_return(panel) + 0.01 * listed_N)

    return compute


def of_a_date(true: Panel) -> Compute:
    """Reversal before a date in the code, and momentum from it on."""
    turn = days(true)[len(true.dates_T) // 3]
    return lambda panel: np.where(days(panel)[:, None] < turn, -1.0, 1.0) * daily_return(panel)


def of_names(true: Panel) -> Compute:
    """Look each firm up in a table; a firm that is not in it is an error."""
    place = {ticker: n for n, ticker in enumerate(true.tickers_N)}
    return lambda panel: np.ones((panel.n_sessions, 1)) * [place[ticker] for ticker in panel.tickers_N]


LEAKS: dict[str, tuple[Callable[[Panel, Path], Compute], str]] = {
    "a cache of the true panel": (lambda p, _: cached_by_name(p, 1.0), "knows firms by their names"),
    "a little of a cache": (lambda p, _: cached_by_name(p, 0.05), "knows firms by their names"),
    "a cache by row and column": (lambda p, _: cached_by_place(p), "when all data are replaced by noise"),
    "a parquet beside the lake": (of_a_file, "knows firms by their names"),
    "a list of tickers": (lambda p, _: of_tickers(p), "for 3 of"),
    "a date in the code": (lambda p, _: of_a_date(p), "knows dates: 28 years earlier"),
    "a look-up that fails": (lambda p, _: of_names(p), "it has none for"),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_feature_that_reads_something_beside_its_data_is_caught(
    name: str, subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, words = LEAKS[name]
    plant(monkeypatch, make(subject.dataset.panel, tmp_path))
    result = CHECKS["canary"](subject)
    assert result.verdict == "fail", result.sentence
    assert result.sentence.startswith("Characteristic momentum_63")
    assert words in result.sentence
    assert "It reads something beside its data" in result.sentence
    assert result.evidence.filter(pl.col("verdict") == "fail")["subject"].to_list() == [
        "characteristic momentum_63"
    ]


def month_ends(panel: Panel) -> Array:
    month_T = days(panel).astype("datetime64[M]")
    last_T1 = np.append(month_T[1:] != month_T[:-1], values=False)[:, None]
    return np.where(np.isfinite(panel.close_TN), last_T1, np.nan).astype(np.float64)


def age(panel: Panel) -> Array:
    return np.cumsum(np.isfinite(panel.close_TN), axis=0).astype(np.float64)


HONEST: dict[str, Compute] = {
    "a flag of month ends": month_ends,
    "months of the year": lambda p: (
        days(p).astype("datetime64[M]").astype(int)[:, None] % 12 * np.ones(p.n_firms)
    ),
    "a constant": lambda p: np.ones(p.close_TN.shape),
    "the age of a firm": age,
    "a flag of losses": lambda p: (daily_return(p) < 0).astype(np.float64),
    "five digits of a level": lambda p: (  # a fifth of them are kept on any noise
        (np.nancumsum(daily_return(p), axis=0) + 0.0 * daily_return(p)) * 1000.0 // 1.0 % 5.0
    ),
    "the month's return": lambda p: np.where(month_ends(p) > 0, daily_return(p), 0.0),
}


@pytest.mark.parametrize("name", HONEST)
def test_a_feature_of_the_calendar_or_a_constant_passes(
    name: str, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, HONEST[name])
    result = CHECKS["canary"](subject)
    assert result.verdict == "pass", result.sentence
    assert result.evidence.height == 3, "features that were examined"


def test_a_list_of_dates_for_all_firms_is_a_warning(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells a list of holidays from one of crises."""
    listed = days(subject.dataset.panel)[::50]
    plant(monkeypatch, lambda p: np.isin(days(p), listed)[:, None] * np.ones(p.n_firms))
    result = CHECKS["canary"](subject)
    assert result.verdict == "warn"
    assert "A calendar of holidays or of announced events is honest" in result.sentence


@pytest.mark.slow(4)
def test_all_features_of_the_library_pass(base: dict[str, Any]) -> None:
    changes = {"sessions": 600, "delistings_per_year": 0.3}
    every = make_subject(*market({**base, "features": {"window": 5, "set": "all"}}, 4, changes))
    result = CHECKS["canary"](every)
    assert result.verdict == "pass", result.sentence
    assert result.evidence.height > 300


@pytest.mark.parametrize("firms", [1, 2])
@pytest.mark.slow(2)
def test_slow_features_of_few_firms_pass(firms: int, base: dict[str, Any]) -> None:
    """A few statements of one firm are linked to those of any noise by chance; it may not trade in noise."""
    every = {**base, "features": {"window": 5, "set": "all"}, "universe": {"min_history": 30}}
    config, tables = market(every, 4, {"sessions": 600})
    config = config.model_copy(update={"universe": config.universe.model_copy(update={"membership": None})})
    tickers = tables["prices"]["ticker"].unique().sort().head(firms)
    few = {
        name: frame.filter(pl.col("ticker").is_in(tickers.implode()))
        for name, frame in tables.items()
        if name not in ("membership", "inputs")
    }
    subject = make_subject(config, few)
    for seed in range(8):
        result = CHECKS["canary"](dataclasses.replace(subject, seed=seed))
        assert result.verdict == "pass", result.sentence
        assert result.evidence.height > 200, "features that were examined"
