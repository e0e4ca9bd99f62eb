"""What is shown counts every trial up to now: one per book, of one market or hypothesis, by assumptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import command
from daily_results import DATES_T, N, config, evaluation, simulated

from backtest.accounts.performance import sharpe
from backtest.inference.overfitting import (
    deflated_sharpe,
    effective_trials,
    probability_of_overfitting,
    rademacher_bound,
)
from pipelines.config.schema import Config
from pipelines.pages.describe import describe_tests
from pipelines.results.comparisons import TradableSeries, significance_table
from pipelines.results.evaluate import Evaluation
from pipelines.results.recount import (
    OF_THE_EVALUATION,
    OF_THE_LEDGER,
    keep_returns,
    recounted_tables,
)
from pipelines.train.trials import Scope, Trial, count_trials, read_trials, record, signal_trials

pytestmark = pytest.mark.usefixtures("untracked")

SIGNAL = {"noise": "digest of its values"}


def changed(settings: Config, **sections: Any) -> Config:  # noqa: ANN401 (settings)
    """A config with other settings, each merged into its section; a source is replaced."""
    raw = settings.model_dump(mode="json")
    for key, value in sections.items():
        raw[key] = {**raw[key], **value} if isinstance(value, Mapping) and key != "source" else value
    return Config.model_validate(raw)


def with_books(number: int) -> Config:
    books = {f"top_{k}": {"kind": "top_k_long_only", "k": k} for k in range(1, number + 1)}
    return changed(config(models={"zero": {}}), backtest={"books": books})


def measured(
    output: Path, result: Evaluation, settings: Config, contents: Mapping[str, str] = SIGNAL
) -> dict[str, pl.DataFrame]:
    """Record, keep and count an evaluation of signals as the commands do."""
    tried = signal_trials(contents, settings)
    record(output, "run", (one for trial in tried.values() for one in trial.traded(settings.backtest.books)))
    keep_returns(output, result["equity"], tried, settings)
    return shown(output, result, settings, contents)


def shown(
    output: Path, result: Evaluation, settings: Config, contents: Mapping[str, str] = SIGNAL
) -> dict[str, pl.DataFrame]:
    stored = significance_table(TradableSeries(result, settings, DATES_T), 1)
    return recounted_tables(result["equity"], stored, signal_trials(contents, settings), settings, output)


def noise_of(settings: Config, seed: int = 0, model: str = "noise") -> Evaluation:
    rng = np.random.default_rng(seed)
    books = {(model, book, 1): 0.01 * rng.normal(size=N) for book in settings.backtest.books}
    return evaluation({(model, 1): rng.normal(size=N)}, books)


def test_every_book_of_a_config_is_a_trial(tmp_path: Path) -> None:
    """52 books without costs on noise were one trial, and the best had a deflated Sharpe ratio of 0.99."""
    settings = with_books(52)
    tables = measured(tmp_path, noise_of(settings), settings)
    table = tables["significance"]
    assert table["trials"].unique().to_list() == [52]
    assert count_trials(tmp_path, Scope.of(settings)).trials == read_trials(tmp_path).height == 52
    best = table.sort("sharpe_net").row(-1, named=True)
    assert best["probabilistic_sharpe"] > 0.97
    assert best["deflated_sharpe"] < 0.6
    overfitting = tables["overfitting"]
    assert overfitting.select("candidates", "variants").rows() == [(OF_THE_EVALUATION, 52)]
    assert 0.2 < overfitting["pbo"][0] < 0.8


def test_the_same_book_is_one_trial_whatever_its_name_its_costs_and_its_delay(tmp_path: Path) -> None:
    plain = with_books(2)
    result = noise_of(plain)
    first = measured(tmp_path, result, plain)["significance"]
    tried = read_trials(tmp_path)["first_tried"]
    again = (
        changed(plain, backtest={"costs": {"half_spread_bps": 50}}),
        changed(plain, backtest={"delay": 3, "capital": 1e6, "execution": {"price": "open"}}),
        changed(plain, backtest={"risk_free": 0.03}),
        changed(plain, label={"extra_delays": [1, 2]}),
        changed(plain, seeds=[4], name="other"),
    )
    for settings in again:
        measured(tmp_path, result, settings)
    renamed = dict(zip(("a", "b"), plain.model_dump(mode="json")["backtest"]["books"].values(), strict=True))
    other_names = changed(plain, backtest={"books": renamed})
    measured(tmp_path, noise_of(other_names, model="renamed"), other_names, {"renamed": SIGNAL["noise"]})
    assert count_trials(tmp_path, Scope.of(plain)).trials == 2
    assert read_trials(tmp_path)["book"].to_list() == list(plain.backtest.books), "the first name stays"
    assert read_trials(tmp_path)["first_tried"].equals(tried), "and so does the time"
    assert shown(tmp_path, result, plain)["significance"].equals(first), (
        "an unchanged signal keeps its figures"
    )
    for settings in (
        with_books(3),
        changed(plain, universe={"min_price": 2.0}),
        changed(plain, label={"horizon": 2}),
    ):
        before = count_trials(tmp_path, Scope.of(plain)).trials
        measured(tmp_path, noise_of(settings), settings)
        assert count_trials(tmp_path, Scope.of(plain)).trials > before


def test_what_was_only_trained_counts_until_it_has_a_book(tmp_path: Path) -> None:
    settings = with_books(3)
    (trial,) = signal_trials(SIGNAL, settings).values()
    record(tmp_path, "run", [trial])
    assert count_trials(tmp_path, Scope.of(settings)).trials == 1
    record(tmp_path, "run", trial.traded(settings.backtest.books))
    assert count_trials(tmp_path, Scope.of(settings)).trials == 3
    assert read_trials(tmp_path)["counts"].to_list() == [False, True, True, True]


def test_figures_are_those_of_the_moment_and_the_text_says_up_to_when(tmp_path: Path) -> None:
    settings = config(models={"zero": {}})
    result = simulated(3, {"noise": 0.03}, delays=(1,))
    first = measured(tmp_path, result, settings)
    other = with_books(30)
    measured(tmp_path, noise_of(other, 1), other, {"noise": "other values"})
    later = shown(tmp_path, result, settings)
    before, after = (tables["significance"]["deflated_sharpe"][0] for tables in (first, later))
    assert later["significance"]["trials"][0] == 32
    assert after < before
    excess_T = result["equity"].filter(pl.col("book") == "long_short")["excess_net"].to_numpy()
    assert after == pytest.approx(deflated_sharpe(excess_T, 32))
    newest = read_trials(tmp_path)["first_tried"].to_list()[-1]
    text = describe_tests(later["significance"], None, later["trials"])
    assert f"given 32 trials in the ledger up to {newest:%Y-%m-%d %H:%M} UTC" in " ".join(text.split())


def test_the_effective_number_and_the_bound_are_those_of_all_returns(tmp_path: Path) -> None:
    """Twenty books that hold nearly the same are far fewer independent trials than twenty."""
    settings = with_books(20)
    rng = np.random.default_rng(5)
    shared_T = 0.01 * rng.normal(size=N) + 0.001
    returns = {("noise", book, 1): shared_T + 0.002 * rng.normal(size=N) for book in settings.backtest.books}
    result = evaluation({("noise", 1): shared_T}, returns)
    tables = measured(tmp_path, result, settings)
    return_TV = np.column_stack(list(returns.values()))
    row = tables["significance"].row(0, named=True)
    assert row["effective_trials"] == pytest.approx(effective_trials(return_TV), rel=1e-2)
    assert 1 < row["effective_trials"] < 4
    assert row["deflated_effective"] == pytest.approx(
        deflated_sharpe(return_TV[:, 0], row["effective_trials"])
    )
    assert row["deflated_effective"] > row["deflated_sharpe"]
    np.testing.assert_allclose(
        tables["significance"]["rademacher_lower"], rademacher_bound(return_TV).lower_V, rtol=1e-9
    )
    (trial,) = signal_trials({"searched": "x"}, settings).values()
    record(tmp_path, "search", [trial])
    without = shown(tmp_path, result, settings)["significance"]["effective_trials"][0]
    assert without == pytest.approx(row["effective_trials"] + 1), "a trial without returns counts in full"


def test_overfitting_compares_results_under_the_same_assumptions_only(tmp_path: Path) -> None:
    cheap, dear = with_books(6), changed(with_books(6), backtest={"costs": {"half_spread_bps": 50}})
    one, other = noise_of(cheap, 1), noise_of(cheap, 2)
    measured(tmp_path, one, cheap)
    measured(tmp_path, other, dear, {"noise": "other values"})
    alone = shown(tmp_path, one, cheap)["overfitting"]
    assert alone.select("candidates", "variants", "trials_left_out").rows() == [(OF_THE_EVALUATION, 6, 6)]
    measured(tmp_path, other, cheap, {"noise": "other values"})
    both = shown(tmp_path, one, cheap)["overfitting"]
    assert both.select("candidates", "variants", "trials_left_out").rows() == [
        (OF_THE_EVALUATION, 6, 0),
        (OF_THE_LEDGER, 12, 0),
    ]
    return_TV = np.column_stack(
        [
            part["excess_net"].to_numpy()
            for part in (*one["equity"].partition_by("book"), *other["equity"].partition_by("book"))
        ]
    )
    expected = probability_of_overfitting(return_TV, blocks=16).probability
    assert both["pbo"][1] == pytest.approx(expected, abs=0.01)


FILES = {"kind": "files", "prices": "prices.csv"}


def scoped(output: Path, number: int, **sections: Any) -> Config:  # noqa: ANN401 (settings)
    """Record a signal with some books on a market; return the config."""
    settings = changed(with_books(number), **{"source": FILES, **sections})
    (trial,) = signal_trials({"noise": json.dumps(sections, default=str)}, settings).values()
    record(output, "run", trial.traded(settings.backtest.books))
    return settings


def test_only_trials_on_the_market_count(tmp_path: Path) -> None:
    real = scoped(tmp_path, 1, lake="real")
    simulated_one = scoped(tmp_path, 9, source={"kind": "simulated", "seed": 3}, lake="demo")
    assert count_trials(tmp_path, Scope.of(real)).trials == 1, "nine simulated trials counted against it"
    assert count_trials(tmp_path, Scope.of(simulated_one)).trials == 9
    other_seed = changed(simulated_one, source={"kind": "simulated", "seed": 4})
    assert count_trials(tmp_path, Scope.of(other_seed)).trials == 0
    for same in (
        {"lake": "real", "source": {**FILES, "reporting_lag_days": 60, "prices": "moved.csv"}},
        {"lake": "copy"},
        {"lake": "other", "source": {**FILES, "reporting_lag_days": 45}},
        {"lake": "copy", "source": {**FILES, "prices": "third.csv"}},
    ):
        before = count_trials(tmp_path, Scope.of(real)).trials
        settings = scoped(tmp_path, 1, **same)
        found = count_trials(tmp_path, Scope.of(real)).trials
        assert found == count_trials(tmp_path, Scope.of(settings)).trials == before + 1, same
    elsewhere = changed(real, lake="elsewhere", source={**FILES, "prices": "another.csv"})
    assert count_trials(tmp_path, Scope.of(elsewhere)).trials == 0


def test_only_trials_of_a_named_hypothesis_count(tmp_path: Path) -> None:
    unnamed = scoped(tmp_path, 5)
    peers = scoped(tmp_path, 2, hypothesis="peers lead")
    assert count_trials(tmp_path, Scope.of(unnamed)).trials == 7, "without a name, the market counts"
    named = count_trials(tmp_path, Scope.of(peers))
    assert (named.trials, named.on_market.height) == (2, 7)
    assert named.reach.endswith(" UTC for the hypothesis peers lead (7 on its market)")
    assert count_trials(tmp_path, Scope.of(changed(unnamed, hypothesis="value"))).trials == 0
    (trial,) = signal_trials({"noise": "{'hypothesis': 'peers lead'}"}, peers).values()
    under_both = [trial, Trial(trial.name, trial.forecast, Scope.of(changed(peers, hypothesis="value")))]
    for one in under_both:
        record(tmp_path, "run", [one])
    assert count_trials(tmp_path, Scope.of(unnamed)).trials == 8, "one trial under two names"
    assert count_trials(tmp_path, Scope.of(peers)).trials == 3


def test_trials_list_and_show_say_what_counts_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    peerglass, place = command(monkeypatch, capfd), ("--output", str(tmp_path))
    assert peerglass("trials", "list", *place).out.strip() == "Nothing has been tried in this folder."
    settings = changed(with_books(2), hypothesis="peers lead")
    (trial,) = signal_trials(SIGNAL, settings).values()
    record(tmp_path, "noise-1", [trial])
    measured(tmp_path, noise_of(settings), settings)
    scoped(tmp_path, 1)
    rows = json.loads(peerglass("trials", "list", "--json", *place).out)
    assert [(row["book"], row["counts"], row["market"]) for row in rows] == [
        (None, False, 1),
        ("top_1", True, 1),
        ("top_2", True, 1),
        ("top_1", True, 2),
    ]
    listed = peerglass("trials", "list", *place)
    assert "no: its books count in its place" in listed.out
    assert "market 1 (simulated seed 7): 2 count (by hypothesis: peers lead 2)" in listed.out
    assert "market 2 (files prices.csv, lake" in listed.out
    shown_one = peerglass("trials", "show", rows[1]["trial"][:14], *place)
    assert shown_one.code == 0, shown_one.err
    first = noise_of(settings)["equity"].filter(pl.col("book") == "top_1")["excess_net"].to_numpy()
    annual = sharpe(first, 365)  # the dates of the test have no weekends
    assert f"{N} sessions, net Sharpe ratio {annual:.2f}" in shown_one.out
    assert "hypotheses peers lead" in " ".join(shown_one.out.split())
    assert "kind: top_k_long_only" in shown_one.out
    monthly = Trial("noise", {**trial.forecast, "label": {"periods_per_year": 12.0}}, trial.scope)
    record(tmp_path, "noise-2", monthly.traded(settings.backtest.books))
    keep_returns(tmp_path, noise_of(settings)["equity"], {"noise": monthly}, settings)
    shown_name = json.loads(peerglass("trials", "list", "--json", *place).out)[-2]["trial"]
    annual = sharpe(first, 12)
    assert f"net Sharpe ratio {annual:.2f}" in peerglass("trials", "show", shown_name, *place).out
    wrong = peerglass("trials", "show", "nothing", *place)
    assert wrong.code == 2
    assert "No trial begins with 'nothing'" in wrong.err
