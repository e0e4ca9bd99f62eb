"""The guard of a promotion: every reason for refusal, and what does not count as a shadow session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from live_versions import Versions, write_audit
from scipy.stats import spearmanr

from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.nightly.data import night_data
from pipelines.nightly.guard import judge_promotion, shadow_ics
from pipelines.nightly.result import ModelVersion, Promotion, read_signals, write_signals
from pipelines.nightly.versions import Reason, open_version, set_alias
from pipelines.progress import Progress
from pipelines.run.record import RecordedRun, open_run


@pytest.fixture
def market(versions: Versions) -> Market:
    return night_data(versions.config, versions.lake, None, Progress()).market


def runs_of(versions: Versions) -> dict[ModelVersion, RecordedRun]:
    return {one: open_version(one, Path(versions.config.output)) for one in (versions.old, versions.new)}


def with_settings(config: Config, **settings: object) -> Config:
    promotion = config.nightly.promotion.model_copy(update=settings)
    return config.model_copy(update={"nightly": config.nightly.model_copy(update={"promotion": promotion})})


def judged(versions: Versions, market: Market, *, every_night: bool = False, **settings: object) -> Promotion:
    """Judge the new version against the old one."""
    set_alias(versions.lake, "tiny", "champion", versions.old, Reason("first", "ann@desk"))
    config = with_settings(versions.config, **settings)
    return judge_promotion(config, versions.lake, market, versions.new, every_night=every_night)


@contextmanager
def moved_away(path: Path) -> Iterator[None]:
    aside = path.with_name(path.name + ".aside")
    shutil.move(path, aside)
    try:
        yield
    finally:
        shutil.move(aside, path)


def test_a_version_as_good_as_the_champion_passes(versions: Versions, market: Market) -> None:
    versions.write_nights(versions.old, 0.5, range(0, 40), seed=1)
    versions.write_nights(versions.new, 0.5, range(5, 40), seed=2)
    found = judged(versions, market)
    assert (found.passed, found.reasons) == (True, ())
    assert found.evidence["sessions"] == 35
    assert (found.evidence["first"], found.evidence["last"]) == (
        str(versions.days[versions.at + 5]),
        str(versions.days[versions.at + 39]),
    )
    assert found.evidence["lower"] < found.evidence["difference"] < found.evidence["upper"]
    assert found.evidence["audit"] == "pass"


def test_a_version_without_skill_is_refused_with_the_numbers(versions: Versions, market: Market) -> None:
    versions.write_nights(versions.old, 1.0, range(5, 40), seed=1)
    versions.write_nights(versions.new, 0.0, range(5, 40), seed=2)
    found = judged(versions, market)
    assert not found.passed
    (reason,) = found.reasons
    assert f"{versions.new} is worse than the champion {versions.old}" in reason
    assert f"over 35 shadow sessions is {-found.evidence['difference']:.4f} lower" in reason
    assert found.evidence["p_value"] < 0.01
    assert judged(versions, market, margin=0.9).passed, "a margin tolerates it"


def test_a_version_that_is_judged_every_night_is_judged_on_its_first_sessions(
    versions: Versions, market: Market
) -> None:
    versions.write_nights(versions.old, 0.5, range(5, 45), seed=1)
    versions.write_nights(versions.new, 0.0, range(5, 25), seed=2)
    versions.write_nights(versions.new, 9.0, range(25, 45), seed=3)
    later = judged(versions, market)
    assert (later.passed, later.evidence["sessions"]) == (True, 40), "what is asked once reads all sessions"
    cut = night_data(versions.config, versions.lake, versions.days[versions.at + 25], Progress()).market
    at_first = judged(versions, cut, every_night=True)
    assert not at_first.passed
    assert judged(versions, market, every_night=True) == at_first
    assert at_first.evidence["last"] == str(versions.days[versions.at + 24])
    assert "every later night says the same" in at_first.reasons[0]


def test_a_proof_is_a_confidence_sequence_over_all_shadow_sessions(
    versions: Versions, market: Market
) -> None:
    versions.write_nights(versions.old, 0.0, range(5, 45), seed=1)
    versions.write_nights(versions.new, 2.0, range(5, 45), seed=2)
    early = night_data(versions.config, versions.lake, versions.days[versions.at + 44], Progress()).market
    unbounded = judged(versions, early, proof=True, margin=0.05, every_night=True)
    assert (unbounded.passed, unbounded.evidence["sessions"]) == (False, 39)
    assert "not yet bounded; it has bounds from 40 sessions on" in unbounded.reasons[0]
    proved = judged(versions, market, proof=True, margin=0.05, every_night=True)
    assert (proved.passed, proved.reasons, proved.evidence["sessions"]) == (True, (), 40)

    found = judged(versions, market, proof=True, margin=0.05)
    runs = runs_of(versions)
    ics = shadow_ics(versions.lake, versions.config, market, runs)
    x = (ics[str(versions.new)] - ics[str(versions.old)]).to_numpy()
    log = -2.0 * np.log(0.1)  # two-sided at 10% is one-sided at 5%
    rho = (log + np.log1p(log)) / 60
    variance = np.var(x) / (1 - 1 / 40 + 1 / (3 * 40**2))
    half = np.sqrt(variance * 2 * (40 * rho + 1) / (40**2 * rho) * np.log(np.sqrt(40 * rho + 1) / 0.1))
    assert found.evidence["lower"] == pytest.approx(x.mean() - half)
    assert found.evidence["p_value"] is None


def test_a_proof_once_given_stands_on_later_nights(
    versions: Versions, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds hold on all nights together, so weak sessions that follow cannot take a proof back."""
    monkeypatch.setattr("backtest.inference.anytime.BURN_IN", 20)  # the market has 40 sessions
    versions.write_nights(versions.old, 0.0, range(5, 45), seed=1)
    versions.write_nights(versions.new, 2.0, range(5, 30), seed=2)
    versions.write_nights(versions.new, -2.0, range(30, 45), seed=3)
    early = night_data(versions.config, versions.lake, versions.days[versions.at + 30], Progress()).market
    first, last = (
        judged(versions, seen, proof=True, margin=0.05, every_night=True) for seen in (early, market)
    )
    assert first.passed
    assert last.passed
    assert (first.evidence["sessions"], last.evidence["sessions"]) == (25, 40)
    assert first.evidence["lower"] == last.evidence["lower"]
    assert judged(versions, market, margin=0.05).evidence["lower"] < last.evidence["lower"]


def test_without_a_proof_a_version_waits(versions: Versions, market: Market) -> None:
    versions.write_nights(versions.old, 1.0, range(5, 45), seed=1)
    versions.write_nights(versions.new, 1.0, range(5, 45), seed=2)
    assert judged(versions, market).passed
    found = judged(versions, market, proof=True)
    assert not found.passed
    assert "is not proved to be as good as the champion" in found.reasons[0]
    assert f"in the long run at least {found.evidence['lower']:+.4f}" in found.reasons[0]


def test_too_few_shadow_sessions_are_refused(versions: Versions, market: Market) -> None:
    versions.write_nights(versions.old, 0.5, range(5, 20), seed=1)
    versions.write_nights(versions.new, 0.5, range(5, 20), seed=2)
    found = judged(versions, market)
    assert not found.passed
    assert "has 15 shadow sessions" in found.reasons[0]
    assert "min_sessions is 20" in found.reasons[0]
    assert judged(versions, market, min_sessions=15).passed


def test_sessions_whose_labels_are_not_known_yet_do_not_count(versions: Versions) -> None:
    versions.write_nights(versions.old, 0.5, range(5, 40), seed=1)
    versions.write_nights(versions.new, 0.5, range(5, 40), seed=2)
    cut = night_data(versions.config, versions.lake, versions.days[versions.at + 20], Progress()).market
    found = judged(versions, cut)
    assert found.evidence["sessions"] == 15, "labels of one session are known up to the one before the last"


def test_sessions_that_a_version_was_trained_on_do_not_count(versions: Versions, market: Market) -> None:
    """Missed nights can be made up for with a version that has seen their labels."""
    versions.write_nights(versions.old, 0.5, range(-20, 40), seed=1)
    versions.write_nights(versions.new, 9.0, range(-20, 30), seed=2)
    found = judged(versions, market)
    assert (found.evidence["first"], found.evidence["sessions"]) == (str(versions.days[versions.at + 5]), 25)


def test_only_the_first_revision_counts(versions: Versions, market: Market) -> None:
    versions.write_nights(versions.old, 0.5, range(5, 40), seed=1)
    versions.write_nights(versions.new, 0.5, range(5, 40), seed=2)
    runs = runs_of(versions)
    before = shadow_ics(versions.lake, versions.config, market, runs)
    assert before.height == 35
    rows = read_signals(versions.lake, "tiny", version=versions.new).drop("revision", "created_at")
    for one in rows.filter(pl.col("session") >= versions.days[versions.at + 30]).partition_by("session"):
        corrected = one.with_columns(-pl.col("signal"), pl.lit("corrected").alias("data_versions"))
        assert write_signals(versions.lake, corrected) == 2
    assert shadow_ics(versions.lake, versions.config, market, runs).equals(before)


def test_the_rank_ics_are_those_of_scipy_on_the_firms_of_both(versions: Versions, market: Market) -> None:
    versions.write_nights(versions.old, 0.5, range(5, 15), seed=1)
    versions.write_nights(versions.new, 0.1, range(5, 15), seed=2)
    runs = runs_of(versions)
    table = shadow_ics(versions.lake, versions.config, market, runs)
    assert table.height == 10
    label_TN, tickers = market.labels[0], list(market.panel.tickers_N)
    for version in runs:
        rows = read_signals(versions.lake, "tiny", version=version).drop_nulls("signal")
        for row in table.iter_rows(named=True):
            own = dict(
                rows.filter(pl.col("session") == row["session"]).select("ticker", "signal").iter_rows()
            )
            t = versions.days.index(row["session"])
            firms = [n for n, one in enumerate(tickers) if one in own and np.isfinite(label_TN[t, n])]
            assert row["firms"] == len(firms)
            expected = spearmanr([own[tickers[n]] for n in firms], label_TN[t, firms]).statistic
            assert row[str(version)] == pytest.approx(expected)


def test_a_version_without_an_audit_or_with_a_failed_one_is_refused(
    versions: Versions, market: Market
) -> None:
    versions.write_nights(versions.old, 0.5, range(5, 40), seed=1)
    versions.write_nights(versions.new, 0.5, range(5, 40), seed=2)
    run = open_run(versions.new.run_id, Path(versions.config.output))
    table = run.folder / "tables" / "audit.parquet"
    with moved_away(table):
        found = judged(versions, market)
        again = f"peerglass audit {versions.new.run_id}"
        assert found.reasons == (f"{versions.new} was never audited; run: {again}.",)
        write_audit(run, "fail")
        assert judged(versions, market).reasons == (f"{versions.new} failed its audit: future.",)
        write_audit(run, "skipped")
        (reason,) = judged(versions, market).reasons
        assert reason.startswith(f"The audit of {versions.new} examined nothing")
        table.unlink()


def test_an_incomplete_version_is_refused(versions: Versions, market: Market) -> None:
    versions.write_nights(versions.old, 0.5, range(5, 40), seed=1)
    versions.write_nights(versions.new, 0.5, range(5, 40), seed=2)
    run = open_run(versions.new.run_id, Path(versions.config.output))
    with moved_away(run.checkpoint("ridge", 0, 0)):
        (reason,) = judged(versions, market).reasons
    assert f"{versions.new} is incomplete: no fitted model of seed 0" in reason


def test_all_reasons_are_given_at_once(versions: Versions, market: Market) -> None:
    versions.write_nights(versions.old, 1.0, range(5, 40), seed=1)
    versions.write_nights(versions.new, 0.0, range(5, 40), seed=2)
    run = open_run(versions.new.run_id, Path(versions.config.output))
    with moved_away(run.checkpoint("ridge", 0, 0)), moved_away(run.folder / "tables" / "audit.parquet"):
        reasons = judged(versions, market).reasons
    assert ["incomplete" in reasons[0], "audited" in reasons[1], "worse" in reasons[2]] == [True] * 3


def test_the_first_champion_needs_no_shadow_sessions(versions: Versions, market: Market) -> None:
    assert judge_promotion(versions.config, versions.lake, market, versions.old).passed
