"""Alpha158 against qlib's own values, and the sets of features that a config can choose."""

from __future__ import annotations

import csv
import datetime as dt
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from qlib_values import FIRMS, SESSIONS, SHOWN, made_prices, values_of_qlib

from features.library.channels import CHANNELS
from features.library.characteristics import CHARACTERISTICS
from features.library.sets import alpha158, characteristics_of, default_channels, default_characteristics
from features.panel.panel import Panel, build_panel

GOLDEN = Path(__file__).parents[2] / "golden" / "alpha158.csv"


@pytest.fixture(scope="module", name="panel")
def panel_fixture() -> Panel:
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=k) for k in range(SESSIONS)]
    columns = {name: x.astype(np.float64).ravel() for name, x in made_prices().items()}
    cells = {
        "date": [day for day in days for _ in range(FIRMS)],
        "ticker": [f"F{n}" for n in range(FIRMS)] * SESSIONS,
    }
    return build_panel(pl.DataFrame({**cells, **columns}).with_columns(split_ratio=1.0, dividend=0.0))


def test_values_equal_those_of_qlib(panel: Panel) -> None:
    ours = {name: alpha158()[name].compute(panel) for name in alpha158()}
    with GOLDEN.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["name"] for row in rows} == set(ours)
    assert len(rows) == 157 * len(SHOWN)
    for row in rows:
        expected = [float(row[f"firm_{n}"]) for n in range(FIRMS)]
        np.testing.assert_allclose(
            ours[row["name"]][int(row["session"])], expected, rtol=1e-5, atol=1e-5, err_msg=row["name"]
        )


def test_all_values_equal_those_of_an_installed_qlib(panel: Panel) -> None:
    pytest.importorskip("qlib", reason="qlib is not installed; the extra `peers` installs it")
    for name, expected_TN in values_of_qlib(made_prices()).items():
        ours_TN = alpha158()[name].compute(panel)
        known = slice(alpha158()[name].warmup, None)
        np.testing.assert_allclose(ours_TN[known], expected_TN[known], rtol=1e-5, atol=1e-5, err_msg=name)


def test_sets_hold_the_features_of_their_names() -> None:
    own = {"mine": "close / open"}
    assert default_characteristics("peerglass", {}) == list(CHARACTERISTICS)
    assert default_characteristics("alpha158", own) == [*alpha158(), "mine"]
    assert default_characteristics("peerglass158", {}) == [*CHARACTERISTICS, *alpha158()]
    assert default_channels("peerglass158") == list(CHANNELS)
    assert default_characteristics("all", own) == [*CHARACTERISTICS, *alpha158(), "mine"]
    every = characteristics_of(own)
    assert list(every) == default_characteristics("all", own)
    assert {every[name].family for name in alpha158()} <= set(CHARACTERISTICS.families)
    assert not set(alpha158()) & set(CHARACTERISTICS)
    windows = {name: every[name].window for name in ("KMID", "ROC60", "MA60", "CORD5")}
    assert windows == {"KMID": 1, "ROC60": 81, "MA60": 80, "CORD5": 26}
