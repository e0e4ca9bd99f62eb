"""Sums of products at a lead, against loops over pandas and numpy."""

from __future__ import annotations

import numpy as np
import pytest

from backtest.look_ahead.news import correlations, ics, lead_correlations, on_sessions, sums_by_session
from features.arithmetic.kernels import sums_by_date, sums_by_firm


def series() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x_TN, y_TN = rng.standard_normal((2, 400, 20)).astype(np.float32)
    x_TN[rng.random(x_TN.shape) < 0.2] = 0.0
    y_TN[2:] += 0.5 * x_TN[:-2]
    y_TN[rng.random(y_TN.shape) < 0.1] = 0.0
    return x_TN, y_TN


@pytest.mark.parametrize("lead", [0, 2])
def test_sums_by_firm_and_part_equal_those_of_a_loop(lead: int) -> None:
    x_TN, y_TN = series()
    sums_PN5 = np.zeros((4, 20, 5))
    sums_by_firm(x_TN, y_TN, lead, sums_PN5)
    for part in range(4):
        t = np.arange(100 * part, 100 * (part + 1) - lead)
        x, y = x_TN[t].astype(np.float64), y_TN[t + lead].astype(np.float64)
        both = (x != 0) & (y != 0)
        x, y = np.where(both, x, 0.0), np.where(both, y, 0.0)
        expected = np.stack([both, x * y, x**2, y**2, x**4], axis=2).sum(axis=0)
        assert sums_PN5[part] == pytest.approx(expected, rel=1e-12)


def test_sums_by_date_give_the_correlations_of_numpy() -> None:
    x_TN, y_TN = series()
    sums_T6 = np.zeros((400, 6))
    sums_by_date(x_TN, y_TN, 2, sums_T6)
    assert (sums_T6[-2:] == 0).all()
    ic_T, z_T = ics(sums_by_session(x_TN, y_TN, 2))
    known = 0
    for t in range(398):
        both = (x_TN[t] != 0) & (y_TN[t + 2] != 0)
        if both.sum() >= 15:
            known += 1
            assert ic_T[t] == pytest.approx(np.corrcoef(x_TN[t, both], y_TN[t + 2, both])[0, 1], abs=1e-6)
    assert known > 20
    assert np.isfinite(ic_T).sum() == known
    assert np.nanmax(z_T) > 1


def test_correlations_at_a_lead_are_found_by_firm_and_on_some_sessions() -> None:
    x_TN, y_TN = series()
    c_N = lead_correlations(x_TN.astype(np.float64), y_TN.astype(np.float64), 2)
    assert (c_N > 0.2).all()
    assert np.abs(lead_correlations(x_TN.astype(np.float64), y_TN.astype(np.float64), 1)).mean() < 0.1
    sums_PN5 = np.zeros((1, 20, 5))
    sums_by_firm(x_TN, y_TN, 2, sums_PN5)
    assert correlations(sums_PN5[0])[0] == pytest.approx(c_N)
    even_T = np.arange(400) % 2 == 0
    c, t = on_sessions(sums_by_session(x_TN, y_TN, 2), even_T)
    assert c == pytest.approx(0.45, abs=0.06)
    assert t > 8
