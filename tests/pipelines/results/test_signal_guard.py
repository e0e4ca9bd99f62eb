"""The look-ahead guard tells doctored signals from honest ones, on a simulated market and on real prices.

The limits of the guard follow from what an honest signal can know (`backtest.look_ahead.returns`). Markets
with other seeds than the ones here were looked at while they were written.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from places import ROOT
from planted_signals import (
    CLEAN,
    DOCTORED,
    HIDDEN,
    Array,
    Ground,
    findings,
    ground,
    simulated_ground,
    truth,
)
from polars.testing import assert_frame_equal

import peerglass
from backtest.look_ahead.finding import answer
from features.panel.panel import build_panel
from pipelines.results import evaluate_signals

pytestmark = pytest.mark.filterwarnings(  # of numpy, for firms without a value while a signal is made
    "ignore:Mean of empty slice", "ignore:Degrees of freedom", "ignore:All-NaN"
)
NASDAQ = ROOT.parent / "shared" / "data" / "nasdaq_prices.parquet"
REAL = [name for name in CLEAN if name != "industry dummy"]
REAL_DOCTORED = [name for name in DOCTORED if name not in ("restated price", "z-score of a longer sample")]
"""The prices have neither splits nor dividends, so that none is restated; few of their scores are extreme."""


class Guarded:
    """The findings on signals of a ground, which are checked together, as columns of one file."""

    def __init__(self, ground: Ground, *families: Mapping[str, Callable[[Ground], Array]]) -> None:
        made = {name: signal(ground) for family in families for name, signal in family.items()}
        assert len(made) == sum(map(len, families))
        self.ground, self.found = ground, findings(made, ground)

    def on(self, name: str) -> pl.DataFrame:
        found = self.found.filter(pl.col("signal") == name)
        assert found.height, f"nothing is said of {name}"
        return found


@pytest.fixture(scope="module")
def simulated() -> Guarded:
    return Guarded(simulated_ground(seed=20261122, firms=110), DOCTORED, CLEAN, HIDDEN, {"the truth": truth})


def verdicts(frame: pl.DataFrame, *wanted: str) -> list[str]:
    return frame.filter(pl.col("verdict").is_in(wanted))["check"].to_list()


@pytest.mark.slow(14)
@pytest.mark.parametrize("name", DOCTORED)
def test_a_doctored_signal_is_flagged(simulated: Guarded, name: str) -> None:
    found = simulated.on(name)
    assert verdicts(found, "fail"), found
    assert found["verdict"][0] == "fail", "the worst finding comes first"


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("weekly return, a day early on a tenth of the days", "leads"),
        ("z-score of a longer sample", "horizons"),
    ],
)
def test_what_only_the_audits_questions_show_is_flagged(simulated: Guarded, name: str, check: str) -> None:
    found = simulated.on(name)
    assert verdicts(found, "fail") == [check]
    (sentence,) = found.filter(pl.col("check") == check)["sentence"]
    assert "he signal" in sentence
    assert "nput signal" not in sentence


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", CLEAN)
def test_an_honest_signal_is_not_flagged(simulated: Guarded, name: str) -> None:
    found = simulated.on(name)
    assert verdicts(found, "fail", "warn") == [], found
    assert len(verdicts(found, "pass")) >= 6, "hardly any check was made"


@pytest.mark.slow(1)
def test_the_truth_of_the_market_is_not_flagged(simulated: Guarded) -> None:
    found = simulated.on("the truth")
    assert verdicts(found, "fail", "warn") == [], found
    highest = found.filter(pl.col("check") == "IC with later returns")["value"].item()
    assert highest > 0.05, "the strongest honest signal is nearly at the limit"


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", HIDDEN)
def test_what_the_file_does_not_show_is_not_claimed(simulated: Guarded, name: str) -> None:
    """The guide names these cases: a guard that flagged them would flag honest signals as well."""
    assert verdicts(simulated.on(name), "fail") == []


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", ["momentum", "peek on Fridays"])
def test_a_signal_alone_has_the_findings_that_it_has_beside_others(simulated: Guarded, name: str) -> None:
    alone = findings({name: {**CLEAN, **DOCTORED}[name](simulated.ground)}, simulated.ground)
    assert_frame_equal(alone, simulated.on(name), rel_tol=1e-9)


@pytest.mark.slow(4)
@pytest.mark.parametrize("horizon", [5, 21])
def test_longer_labels_flag_no_honest_signal(simulated: Guarded, horizon: int) -> None:
    ground = simulated.ground
    signals = {name: CLEAN[name](ground) for name in ("momentum", "slow characteristic", "industry dummy")}
    found = findings({"the truth": truth(ground), **signals}, ground, horizon)
    assert found["signal"].n_unique() == 4
    assert verdicts(found, "fail", "warn") == []


@pytest.fixture(scope="module")
def nasdaq() -> Guarded:
    if not Path(NASDAQ).is_file():
        pytest.skip(f"the prices of the Nasdaq firms are not at {NASDAQ}")
    since = pl.date(2013, 1, 1)
    rows = pl.scan_parquet(NASDAQ).filter((pl.col("date") >= since) & (pl.col("close") > 0)).collect()
    rows = rows.filter(pl.col("ticker").rank("dense") % 8 == 0)  # an eighth of the firms is as good
    prices = rows.with_columns(split_ratio=pl.lit(1.0), dividend=pl.lit(0.0))
    real = ground(build_panel(prices), None, seed=20261122)
    return Guarded(
        real, {name: DOCTORED[name] for name in REAL_DOCTORED}, {name: CLEAN[name] for name in REAL}
    )


@pytest.mark.slow(12)
@pytest.mark.parametrize("name", REAL)
def test_an_honest_signal_on_real_prices_is_not_flagged(nasdaq: Guarded, name: str) -> None:
    found = nasdaq.on(name)
    assert verdicts(found, "fail", "warn") == [], found


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", REAL_DOCTORED)
def test_a_doctored_signal_on_real_prices_is_flagged(nasdaq: Guarded, name: str) -> None:
    assert verdicts(nasdaq.on(name), "fail")


def test_only_links_with_later_returns_are_no_warning_of_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the audit finds remarkable of an input otherwise, such as shares that know splits, is told."""
    asked = ("leads", "horizons", "splits")
    said = {check: lambda _: answer("warn", "Input signal holds shares.") for check in asked}
    monkeypatch.setattr(evaluate_signals, "QUESTIONS", said)
    days = pl.date_range(dt.date(2024, 1, 1), dt.date(2024, 3, 31), "1d", eager=True).alias("date")
    noise = np.random.default_rng(0).normal(0.0, 0.02, (len(days), 12))
    names = [f"F{n:02}" for n in range(12)]
    prices = pl.DataFrame(np.exp(noise.cumsum(axis=0)), names).insert_column(0, days)
    signal = pl.DataFrame(noise[::-1], names).insert_column(0, days)
    found = dict(peerglass.audit_signal(signal, prices).select("check", "verdict").iter_rows())
    assert [found[check] for check in asked] == ["pass", "pass", "warn"]
