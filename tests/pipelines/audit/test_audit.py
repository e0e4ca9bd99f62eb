"""The audit catches every kind of planted leak and passes clean markets."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from audit_markets import (
    LEAKS,
    LEAVERS,
    Array,
    Leak,
    correctly_dated_splits,
    current_members,
    make_subject,
    market,
)

from backtest.look_ahead.finding import Finding, Result, Verdict, conclude, counts, summary_line
from features.library.channels import CHANNELS
from features.library.characteristics import CHARACTERISTICS
from features.panel import derived
from features.panel.panel import Panel
from models.registry import MODELS
from pipelines.audit import command as audit_command
from pipelines.audit.checks import skill
from pipelines.audit.command import Audit, Depth, describe, run_checks
from pipelines.audit.registry import CHECKS
from pipelines.config.schema import Config
from pipelines.dataset import folds as dataset_folds
from pipelines.errors import ConfigError
from pipelines.pages.page import Page
from pipelines.pages.report import shown_evidence
from pipelines.progress import Progress
from pipelines.run.identity import Identity
from pipelines.run.record import RecordedRun
from pipelines.tracking.store import audit_verdict
from pipelines.train import task as tasks

SEEDS = range(int(os.environ.get("PEERGLASS_AUDIT_SEEDS", "2")))
QUICK_MODELS = ("ridge", "temporal_peer")
FEATURES = (
    "momentum_63",
    "return_1",
    "return_5",
    "group_return_1",
    "volatility_21",
    "amihud_21",
    "log_market_equity",
    "book_to_market",
    "gross_profitability",
)


@pytest.fixture(scope="session")
def base(tiny_settings: Mapping[str, Any], every_model: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Few characteristics, for speed; tests/pipelines/audit/test_leakage.py covers all of them."""
    return {
        **tiny_settings,
        "models": {name: every_model[name] for name in QUICK_MODELS},
        "features": {"window": 5, "characteristics": list(FEATURES)},
    }


@pytest.mark.slow(6)
@pytest.mark.parametrize("name", LEAKS)
def test_planted_leak_is_caught_and_named(
    name: str, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    leak: Leak = LEAKS[name]
    subject = make_subject(*leak.plant(monkeypatch, *market(base, 3, leak.market)))
    result = CHECKS[leak.caught_by](subject)
    assert result.verdict == leak.verdict, result.sentence
    assert leak.names in result.sentence
    assert "{" not in result.sentence, "a placeholder without its value"
    shown = shown_evidence(result.evidence)
    rows = Page().table(shown["rows"], shown["columns"], name).count("<tr")
    assert 1 < rows == 1 + min(result.evidence.height, 20), "the report shows them, below a heading"


def test_all_kinds_of_leaks_are_covered() -> None:
    kinds = {name.partition(",")[0].partition(" of prices")[0].partition(" in prices")[0] for name in LEAKS}
    assert kinds == {
        "backfilled NaN",
        "centred window",
        "full-sample maximum normalisation",
        "full-sample z-score",
        "forecast of a shorter horizon that knew it",
        "groups fitted on test",
        "label overlap",
        "off-by-one channel",
        "rank over all dates so far",
        "restated value at original date",
        "scaler fitted on test",
        "shorter label that spans more than it says",
        "split applied before its ex-date",
        "target scaled over all dates",
        "target leaked through a sector mean",
        "today's membership for all dates",
        "universe that needs t+1",
    }


def test_group_means_with_firms_that_join_later_are_caught(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tables = market(base, 3, {"firms": 40, "sessions": 800})
    days = tables["prices"]["date"].unique().sort()
    firms = tables["prices"].select("ticker").unique().sort("ticker").with_row_index("n")
    joins = firms.select(
        pl.lit("index").alias("universe"),
        "ticker",
        days.gather((firms["n"] % 2) * 500).alias("from_date"),
        pl.lit(None, dtype=pl.Date).alias("to_date"),
    )
    listed = {**tables, "membership": joins}
    config = config.model_copy(
        update={"universe": config.universe.model_copy(update={"membership": "index"})}
    )
    clean = CHECKS["future"](make_subject(config, listed))
    assert clean.verdict == "pass", clean.sentence

    tile_of = derived.take_firms

    def of_all_firms(*panel_and_firms: Any) -> Panel:  # noqa: ANN401 (passed on)
        return dataclasses.replace(tile_of(*panel_and_firms), members_TN=None)

    monkeypatch.setattr(derived, "take_firms", of_all_firms)
    result = CHECKS["future"](make_subject(config, listed))
    assert result.verdict == "fail"
    assert "group_return_1 used future data" in result.sentence


@pytest.mark.slow(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_clean_market_has_no_failures_or_warnings(seed: int, base: dict[str, Any]) -> None:
    """Set PEERGLASS_AUDIT_SEEDS=20 to try twenty markets. Every other one has many delistings."""
    config, tables = market(base, seed, LEAVERS if seed % 2 else {})
    settings = config.audit.model_copy(update={"seed": seed})
    audit = run_checks(
        dataclasses.replace(
            make_subject(config.model_copy(update={"audit": settings}), tables, quick=len(SEEDS) < 10),
            seed=seed,
        ),
        Progress(),
    )
    alarms = [f"{r.check}: {r.sentence}" for r in audit.results if r.verdict in ("fail", "warn")]
    assert not alarms
    passed = {r.check for r in audit.results if r.verdict == "pass"}
    of_runs = {"retrained", "performance"}
    unchecked = {"splits", "codes", "vintages", *of_runs}  # a small market may have no split
    assert set(CHECKS) - passed <= unchecked


def test_correctly_dated_splits_pass(base: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    result = CHECKS["splits"](make_subject(*correctly_dated_splits(monkeypatch, *market(base))))
    assert result.verdict == "pass"
    assert result.evidence.height >= 4


def test_fits_are_not_checkable_without_an_earlier_delivery(base: dict[str, Any]) -> None:
    result = CHECKS["vintages"](make_subject(*market(base)))
    assert (result.verdict, result.degree) == ("skipped", "not checkable")
    assert "regressions in sample" in result.sentence
    assert "Give the files of an earlier day" in result.sentence


def test_universe_without_leavers_warns(base: dict[str, Any]) -> None:
    config, tables = market(base, 3, {"delistings_per_year": 0.0, "firms": 40, "sessions": 800})
    all_firms = config.universe.model_copy(update={"membership": None})
    config = config.model_copy(update={"universe": all_firms})
    result = CHECKS["survivorship"](make_subject(config, tables))
    assert result.verdict == "warn"
    assert "none of 40 firms" in result.sentence


def test_short_membership_list_without_changes_warns(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"delistings_per_year": 0.0}
    result = CHECKS["membership"](make_subject(*current_members(monkeypatch, *market(base, 3, changes))))
    assert result.verdict == "warn"


def test_membership_without_leavers_warns(base: dict[str, Any]) -> None:
    changes = {"delistings_per_year": 0.0, "firms": 60, "sessions": 800}
    config, tables = market(base, 3, changes)
    days = tables["prices"]["date"].unique().sort()
    joined = tables["prices"].select("ticker").unique().sort("ticker").with_row_index("n")
    stays = joined.select(
        pl.lit("index").alias("universe"),
        "ticker",
        days.gather(joined["n"] * 10).alias("from_date"),
        pl.lit(None, dtype=pl.Date).alias("to_date"),
    )
    result = CHECKS["membership"](make_subject(config, {**tables, "membership": stays}))
    assert result.verdict == "warn"
    assert "No firm ever leaves" in result.sentence


def since_ever(panel: Panel) -> Array:
    total_TN = np.cumsum(np.nan_to_num(panel.close_TN), axis=0)
    return total_TN / np.arange(1, len(total_TN) + 1)[:, None]


def test_feature_beyond_its_declared_window_is_caught(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = dataclasses.replace(CHANNELS["return"], compute=since_ever)
    monkeypatch.setitem(CHANNELS, "return", entry)
    subject = make_subject(*market(base))
    assert CHECKS["future"](subject).verdict == "pass", "it looks back, not ahead"
    result = CHECKS["warm_up"](subject)
    assert result.verdict == "fail"
    assert "Channel return" in result.sentence


def test_characteristic_of_statements_beyond_its_declared_window_is_caught(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = dataclasses.replace(CHARACTERISTICS["log_total_assets"], compute=since_ever)
    assert entry.needs_statements
    monkeypatch.setitem(CHARACTERISTICS, "log_total_assets", entry)
    features = {**base["features"], "characteristics": ["log_total_assets"]}
    result = CHECKS["warm_up"](make_subject(*market({**base, "features": features})))
    assert result.verdict == "fail"
    assert "Characteristic log_total_assets" in result.sentence


def test_training_on_test_dates_fails_shuffled_labels_and_forecasts(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = dataset_folds.plan_folds

    def greedy(dataset: Any, config: Config) -> Any:  # noqa: ANN401 (patched)
        return [
            dataclasses.replace(fold, train=np.concatenate([fold.train, fold.valid, fold.test]))
            for fold in honest(dataset, config)
        ]

    monkeypatch.setattr(dataset_folds, "plan_folds", greedy)
    subject = make_subject(*market(base))
    shuffled_result = CHECKS["shuffled_labels"](subject)
    assert shuffled_result.verdict == "fail"
    assert "test data leak into the fit" in shuffled_result.sentence
    assert CHECKS["forecasts"](subject).verdict == "fail"
    assert "share sessions" in CHECKS["label_spans"](subject).sentence or (
        CHECKS["label_spans"](subject).verdict == "fail"
    )


def test_weights_fitted_on_the_test_are_caught(base: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    honest = tasks.run_task

    def greedy(task: Any, arrays: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401 (patched)
        wide = np.concatenate([task.fold.train, task.fold.valid, task.fold.test])
        return honest(dataclasses.replace(task, fold=dataclasses.replace(task.fold, train=wide)), arrays)

    monkeypatch.setattr("pipelines.train.work.run_task", greedy)
    result = CHECKS["fit_scope"](make_subject(*market(base)))
    assert result.verdict == "fail"
    assert "outside its training and validation sessions" in result.sentence


def test_labels_are_permuted_within_dates_where_known() -> None:
    rng = np.random.default_rng(0)
    target_TN = rng.normal(size=(7, 30)).astype(np.float32)
    target_TN[rng.random(target_TN.shape) < 0.3] = np.nan
    permuted_TN = skill.permute_within_dates(target_TN, rng)
    assert (np.isnan(permuted_TN) == np.isnan(target_TN)).all()
    for before, after in zip(target_TN, permuted_TN, strict=True):
        assert np.allclose(np.sort(before), np.sort(after), equal_nan=True)
        assert not np.array_equal(before, after, equal_nan=True)


def test_null_deviation_equals_that_of_permutations() -> None:
    rng = np.random.default_rng(1)
    forecast = rng.exponential(size=12).astype(np.float32)
    label = rng.standard_t(3, size=12)
    ics = [np.corrcoef(forecast, rng.permutation(label))[0, 1] for _ in range(20_000)]
    null = skill.compare_with_null(forecast[None, :], label[None, :])
    assert null["null_deviation"] == pytest.approx(np.std(ics), rel=0.02)


def test_few_dates_with_overlapping_labels_prove_no_feature_too_good() -> None:
    """Features whose true IC is the limit: by Newey-West errors, 5% of them exceeded it by four."""
    rng = np.random.default_rng(3)
    total = np.cumsum(rng.normal(size=(200, 81)), axis=1)
    daily = 0.15 + 0.1 * (total[:, 21:] - total[:, :-21]) / np.sqrt(21)
    measured = [skill.measured(ic_D, 0.15, overlap=21)["excess"] or 0.0 for ic_D in daily]
    assert max(measured) <= 0
    known = skill.measured(np.full(60, 0.9), 0.15, overlap=21)
    assert (known["excess"] or 0.0) > 0


def test_checks_are_skipped_only_by_name(base: dict[str, Any]) -> None:
    everything = tuple(CHECKS)
    config, tables = market({**base, "audit": {"skip": list(everything)}})
    audit = run_checks(make_subject(config, tables), Progress())
    assert counts(audit.table) == {"skipped": len(CHECKS)}
    config, tables = market({**base, "audit": {"skip": ["futur"]}})
    with pytest.raises(ConfigError, match=r"unknown check 'futur'"):
        run_checks(make_subject(config, tables), Progress())


def test_a_check_that_examined_nothing_of_its_subjects_is_skipped() -> None:
    """Also if a subject was looked at several times, as a book is around several sessions."""
    nothing = Finding("book", "skipped", "it made no trade", subject="book a")
    assert conclude([nothing, nothing], "Fine.").verdict == "skipped"
    found = conclude([nothing, Finding("book", "pass", subject="book a")], "Fine.")
    assert (found.verdict, found.sentence) == ("pass", "Fine.")


def test_stored_forecasts_of_few_firms_are_not_called_examined(base: dict[str, Any]) -> None:
    subject = make_subject(*market(base))
    few_TN = np.where(np.arange(subject.dataset.panel.n_firms) < 5, 1.0, np.nan)
    few_TN = few_TN * np.random.default_rng(0).normal(size=subject.dataset.universe_TN.shape)
    for tested, what in (({"ridge": {0: few_TN}}, "stored forecasts of ridge"), ({}, "stored forecasts")):
        vars(subject)["tested"] = tested
        (found,) = skill.guarded(subject)
        assert (found.verdict, found.subject) == ("skipped", what)


def test_a_quick_audit_does_not_replace_a_full_one_that_failed(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard of a promotion reads the last audit, and only a full one looks at stored weights."""
    config, _ = market(base)
    run = RecordedRun("a", config, Identity.nothing(), tmp_path)
    verdicts: dict[Depth, Verdict] = {"full": "fail", "quick": "pass"}
    audits = {depth: Audit((Result("retrained", one, "As told."),), depth) for depth, one in verdicts.items()}
    monkeypatch.setattr(audit_command, "make_subject", lambda *_, **__: None)
    monkeypatch.setattr(audit_command, "run_checks", lambda *_: audits["quick"])
    for stored, verdict in ((None, "pass"), ("full", "fail")):
        if stored is not None:
            audit_command.save_audit(audits["full"], run)
        audit_command.audit_before_training(run, None, None, Progress(), print)  # type: ignore[arg-type]
        assert audit_verdict(run) == verdict


def test_audit_reports_counts_and_worst_verdict() -> None:
    audit = Audit(
        (
            Result("one", "pass", "Fine."),
            Result("two", "warn", "Hm.", pl.DataFrame({"x": [1.0, float("nan")]})),
            Result("three", "fail", "No."),
            Result("four", "skipped", "Nothing there."),
            Result("five", "fail", "Never.", exact=True),
        ),
        "full",
    )
    assert audit.verdict == "fail"
    assert summary_line(audit.table) == "2 failures, 1 passed, 1 warning, 1 skipped"
    lines = [" ".join(line.split()) for line in describe(audit).splitlines()]
    assert lines[1:5] == [
        "warn two Evidence. Hm.",
        "fail three Evidence. No.",
        "skipped four Nothing there.",
        "fail five Proof. Never.",
    ]
    degrees = ["nothing found", "evidence", "evidence", "not checkable", "proof"]
    assert audit.table["degree"].to_list() == degrees
    assert '"x": null' in audit.to_json()


def test_every_family_has_an_ic_limit() -> None:
    from pipelines.audit.checks.skill import IC_LIMITS, OTHER_FAMILIES

    for entry in CHARACTERISTICS.values():
        record = IC_LIMITS.get(entry.family, OTHER_FAMILIES)
        assert 0 < record.short <= record.long < 0.5
        assert record.reason
    assert {"ridge", "lightgbm"} <= set(MODELS)


def test_on_a_market_of_few_firms_every_check_ends_with_a_sentence(base: dict[str, Any]) -> None:
    config, tables = market(base)
    kept = tables["prices"]["ticker"].unique().sort().head(5).implode()
    few = {
        name: frame.filter(pl.col("ticker").is_in(kept)) if "ticker" in frame.columns else frame
        for name, frame in tables.items()
    }
    audit = run_checks(make_subject(config, few), Progress())
    assert {result.check for result in audit.results} == set(CHECKS)
    assert all(result.sentence for result in audit.results)
