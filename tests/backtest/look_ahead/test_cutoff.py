"""The test of a break at the knowledge cutoff: its statistic, its size and its power."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

from backtest.inference.means import mean_test_lags
from backtest.look_ahead.returns import FEWEST, KEPT, skill_ends
from features.arrays import FloatArray

SIDE, FIRMS, SIGNALS = 504, 100, 200  # two years on each side; the daily IC has a deviation of 0.1
LATE_T = np.arange(2 * SIDE) >= SIDE


def sides(ic_T: FloatArray) -> tuple[FloatArray, FloatArray]:
    return np.where(LATE_T, np.nan, ic_T), np.where(LATE_T, ic_T, np.nan)


def daily_ics(rng: np.random.Generator, skill_T: FloatArray, horizon: int = 1) -> FloatArray:
    """ICs of a signal whose correlation with returns with fat tails is ``skill_T``; labels may overlap."""
    shape = (2 * SIDE + horizon - 1, FIRMS)
    return_TN = rng.standard_t(4, shape) / np.sqrt(2.0)
    sums_TN = np.lib.stride_tricks.sliding_window_view(return_TN, horizon, axis=0).sum(axis=-1)
    label_TN = sums_TN / np.sqrt(horizon)
    signal_TN = rng.standard_normal(shape)[: len(label_TN)]
    if horizon > 1:  # a signal that moves as slowly as its labels
        for t in range(1, len(signal_TN)):
            signal_TN[t] = 0.9 * signal_TN[t - 1] + np.sqrt(1 - 0.9**2) * signal_TN[t]
    skill_T1 = skill_T[:, None]
    forecast_TN = skill_T1 * label_TN + np.sqrt(1 - skill_T1**2) * signal_TN
    a_TN, b_TN = (x_TN - x_TN.mean(axis=1, keepdims=True) for x_TN in (forecast_TN, label_TN))
    ic_T: FloatArray = (a_TN * b_TN).sum(axis=1) / np.sqrt((a_TN**2).sum(axis=1) * (b_TN**2).sum(axis=1))
    return ic_T


def honest_skills(rng: np.random.Generator) -> list[FloatArray]:
    """Constant, none, decaying to a half within two years, and going up and down over months."""
    days = np.arange(2 * SIDE)
    slow_T = np.convolve(rng.standard_normal(len(days) + 125), np.ones(126) / 126**0.5, mode="valid")
    return [
        np.full(len(days), 0.03),
        np.zeros(len(days)),
        0.045 * 0.5 ** (days / 504.0),
        0.03 + 0.015 * slow_T,
    ]


def verdicts(skills: list[FloatArray], seed: int, horizon: int = 1) -> list[str]:
    rng = np.random.default_rng(seed)
    found: list[str] = []
    for n in range(SIGNALS):
        before_T, after_T = sides(daily_ics(rng, skills[n % len(skills)], horizon))
        found.append(skill_ends(before_T, after_T, overlap=horizon).verdict)
    return found


@pytest.mark.slow(12)
@pytest.mark.parametrize("horizon", [1, 5])
def test_contaminated_signals_are_found_and_honest_ones_are_not_accused(horizon: int) -> None:
    honest = verdicts(honest_skills(np.random.default_rng(5)), 20261128, horizon)
    contaminated = verdicts([np.where(LATE_T, 0.0, 0.03)], 20261129, horizon)
    accused, caught = honest.count("fail") / SIGNALS, contaminated.count("fail") / SIGNALS
    print(f"horizon {horizon}: {accused:.1%} of honest signals accused, {caught:.1%} of contaminated found")
    assert accused <= 0.05
    assert caught >= {1: 0.80, 5: 0.35}[horizon], "labels of five sessions have a fifth of the information"


def test_at_exactly_half_the_skill_the_size_is_that_of_the_level() -> None:
    rng = np.random.default_rng(3)
    skill_T = np.where(LATE_T, KEPT * 0.1, 0.1)  # so much skill that the first test never decides
    ics = (skill_T + rng.normal(0.0, 0.1, 2 * SIDE) for _ in range(1000))
    failed = np.mean([skill_ends(*sides(ic_T)).verdict == "fail" for ic_T in ics])
    assert failed == pytest.approx(0.05, abs=0.02)


def test_the_p_value_is_that_of_a_regression_with_newey_west_errors() -> None:
    """The fall is a combination of the coefficients of a regression of the IC on both sides."""
    rng = np.random.default_rng(1)
    ic_T = np.where(LATE_T, 0.02, 0.04) + rng.normal(0.0, np.where(LATE_T, 0.05, 0.15))
    found = skill_ends(*sides(ic_T))
    x_T2 = np.column_stack([~LATE_T, LATE_T]).astype(float)
    fit = sm.OLS(ic_T, x_T2).fit(
        cov_type="HAC", cov_kwds={"maxlags": mean_test_lags(len(ic_T)), "use_correction": False}
    )
    test = fit.t_test([KEPT, -1.0])
    b = (mean_test_lags(len(ic_T)) + 1) / len(ic_T)
    from scipy.stats import t as student

    p_value = student.sf(test.tvalue.item() * np.sqrt(1 - b + b**2 / 3), 1.5 / b)
    assert found.value == pytest.approx(p_value, rel=1e-9)


def test_both_sides_may_be_on_one_date_and_order_does_not_matter() -> None:
    """Rows of two versions of a model: their ICs are neighbours."""
    rng = np.random.default_rng(2)
    before_T, after_T = rng.normal(0.06, 0.1, 300), rng.normal(0.0, 0.1, 300)
    assert skill_ends(before_T, after_T).verdict == "fail"
    assert skill_ends(after_T, before_T).verdict == "pass"


def test_a_perfect_memory_is_found() -> None:
    ic_T = np.where(LATE_T, np.random.default_rng(0).normal(0.0, 0.1, 2 * SIDE), 1.0)
    found = skill_ends(*sides(ic_T))
    assert found.verdict == "fail"
    assert "mean IC is +1.000" in found.sentence


@pytest.mark.parametrize("short", ["before", "after"])
def test_a_side_with_few_sessions_is_not_judged(short: str) -> None:
    ic_T = np.random.default_rng(0).normal(0.0, 0.1, 2 * SIDE)
    few_T = (
        (np.arange(2 * SIDE) - SIDE < FEWEST - 1)
        if short == "after"
        else (np.arange(2 * SIDE) > SIDE - FEWEST)
    )
    found = skill_ends(*sides(np.where(few_T, ic_T, np.nan)))
    assert found.verdict == "skipped"
    assert f"Only {FEWEST - 1} sessions of the two years {short} the cutoff" in found.sentence
