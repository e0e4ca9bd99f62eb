"""The look-ahead guard tells doctored signals from honest ones, on a simulated market and on real prices.

The limits of the guard follow from what an honest signal can know (`backtest.look_ahead.returns`). Markets
with other seeds than the ones here were looked at while they were written.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from places import ROOT
from planted_signals import CLEAN, DOCTORED, HIDDEN, Ground, findings, ground, simulated_ground, truth

from features.panel.panel import build_panel

pytestmark = pytest.mark.filterwarnings(  # of numpy, for firms without a value while a signal is made
    "ignore:Mean of empty slice", "ignore:Degrees of freedom", "ignore:All-NaN"
)
NASDAQ = ROOT.parent / "shared" / "data" / "nasdaq_prices.parquet"
NOT_IN_NASDAQ = {"restated price": "the prices have neither splits nor dividends, so nothing is restated"}


@pytest.fixture(scope="module")
def simulated() -> Ground:
    return simulated_ground(seed=20261122)


def verdicts(frame: pl.DataFrame, *wanted: str) -> list[str]:
    return frame.filter(pl.col("verdict").is_in(wanted))["check"].to_list()


@pytest.mark.slow(26)
@pytest.mark.parametrize("name", DOCTORED)
def test_a_doctored_signal_is_flagged(simulated: Ground, name: str) -> None:
    found = findings(DOCTORED[name](simulated), simulated)
    assert verdicts(found, "fail"), found
    assert found["verdict"][0] == "fail", "the worst finding comes first"


@pytest.mark.slow(15)
@pytest.mark.parametrize("name", CLEAN)
def test_an_honest_signal_is_not_flagged(simulated: Ground, name: str) -> None:
    found = findings(CLEAN[name](simulated), simulated)
    assert verdicts(found, "fail", "warn") == [], found
    assert len(verdicts(found, "pass")) >= 6, "hardly any check was made"


def test_the_truth_of_the_market_is_not_flagged(simulated: Ground) -> None:
    found = findings(truth(simulated), simulated)
    assert verdicts(found, "fail", "warn") == [], found
    highest = found.filter(pl.col("check") == "IC with later returns")["value"].item()
    assert highest > 0.05, "the strongest honest signal is nearly at the limit"


@pytest.mark.slow(4)
@pytest.mark.parametrize("name", HIDDEN)
def test_what_the_file_does_not_show_is_not_claimed(simulated: Ground, name: str) -> None:
    """The guide names these cases: a guard that flagged them would flag honest signals as well."""
    assert verdicts(findings(HIDDEN[name](simulated), simulated), "fail") == []


@pytest.mark.slow(7)
@pytest.mark.parametrize("horizon", [5, 21])
def test_longer_labels_flag_no_honest_signal(simulated: Ground, horizon: int) -> None:
    for signal in (truth, CLEAN["momentum"], CLEAN["slow characteristic"], CLEAN["industry dummy"]):
        assert verdicts(findings(signal(simulated), simulated, horizon), "fail", "warn") == []


@pytest.fixture(scope="module")
def nasdaq() -> Ground:
    if not Path(NASDAQ).is_file():
        pytest.skip(f"the prices of the Nasdaq firms are not at {NASDAQ}")
    since = pl.date(2013, 1, 1)
    rows = pl.scan_parquet(NASDAQ).filter((pl.col("date") >= since) & (pl.col("close") > 0)).collect()
    rows = rows.filter(pl.col("ticker").rank("dense") % 5 == 0)  # a fifth of the firms is as good, and faster
    prices = rows.with_columns(split_ratio=pl.lit(1.0), dividend=pl.lit(0.0))
    return ground(build_panel(prices), None, seed=20261122)


@pytest.mark.slow(19)
@pytest.mark.parametrize("name", [name for name in CLEAN if name != "industry dummy"])
def test_an_honest_signal_on_real_prices_is_not_flagged(nasdaq: Ground, name: str) -> None:
    found = findings(CLEAN[name](nasdaq), nasdaq)
    assert verdicts(found, "fail", "warn") == [], found


@pytest.mark.slow(28)
@pytest.mark.parametrize("name", [name for name in DOCTORED if name not in NOT_IN_NASDAQ])
def test_a_doctored_signal_on_real_prices_is_flagged(nasdaq: Ground, name: str) -> None:
    assert verdicts(findings(DOCTORED[name](nasdaq), nasdaq), "fail")
