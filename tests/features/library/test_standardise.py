"""Cross-sectional transforms against a loop over dates and firms, for every rule."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from features.arithmetic.transforms import rank_normal
from features.library.standardise import TransformRule, transform_characteristics

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int16]
nan = float("nan")
T, N, F = 70, 23, 3

RULES = [
    TransformRule.model_validate(dict(zip(TransformRule.model_fields, parts, strict=True)))
    for parts in itertools.product(
        (None, 0.1),
        ("none", "group"),
        ("rank_normal", "zscore"),
        ("zero", "median", "group_median"),
        (False, True),
    )
]
Market = tuple[npt.NDArray[np.float32], BoolArray, IntArray]


@pytest.fixture(scope="module", name="market")
def random_market() -> Market:
    """Values with ties, gaps, infinities, an empty date, a group without values, one value for a group."""
    rng = np.random.default_rng(0)
    values_TNF = rng.normal(3.0, 2.0, (T, N, F))
    values_TNF[:, 10:18] = values_TNF[:, 2:10]  # ties, sometimes within a group
    values_TNF[rng.random(values_TNF.shape) < 0.2] = nan
    values_TNF[2, :2, 0] = [np.inf, -np.inf]
    values_TNF[5] = nan
    group_TN = rng.integers(-1, 4, (T, N)).astype(np.int16)
    values_TNF[:, :, 1][group_TN == 2] = nan
    values_TNF[10:, :, 2] = 0.1 * (group_TN[10:] + 2)  # constant within the group
    universe_TN = rng.random((T, N)) < 0.8
    universe_TN[7] = False
    return values_TNF.astype(np.float32), universe_TN, group_TN


def slow(
    x: FloatArray, inside: BoolArray, group: IntArray, rule: TransformRule
) -> tuple[FloatArray, FloatArray]:
    """One characteristic on one date: the value and the indicator of every firm."""
    y = np.where(inside & np.isfinite(x), x, nan)
    known = ~np.isnan(y)
    if known.any():
        if rule.winsorise:
            y[known] = np.clip(y[known], *np.quantile(y[known], [rule.winsorise, 1 - rule.winsorise]))
        if rule.neutralise == "group":
            y[group < 0] = nan
            known = ~np.isnan(y)
            for code in set(group.tolist()):
                of = known & (group == code)
                if of.any():
                    y[of] -= y[of].mean()
            y = np.round(y, 6)  # ties stay ties
        if not known.any():
            pass
        elif rule.kind == "rank_normal":
            y[known] = stats.norm.ppf((stats.rankdata(y[known]) - 0.5) / known.sum())
        else:
            y[known] = (y[known] - y[known].mean()) / (y[known].std() if y[known].std() > 1e-9 else 1.0)
    out = y.copy()
    for i in np.flatnonzero(inside & ~known):
        pools = {
            "zero": [],
            "median": [y[known]],
            "group_median": [y[known & (group == group[i]) & (group[i] >= 0)], y[known]],
        }[rule.missing]
        out[i] = next((np.median(pool) for pool in pools if len(pool)), 0.0)
    out[~inside] = 0.0
    return out, (inside & ~known).astype(np.float64)


@pytest.mark.slow(3)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_transforms_equal_a_loop_over_dates_and_firms(rule: TransformRule, market: Market) -> None:
    values_TNF, universe_TN, group_TN = market
    actual = transform_characteristics(values_TNF, universe_TN, group_TN, rule)
    assert actual.dtype == np.float32
    assert actual.shape == (T, N, len(rule.names("abc")))
    for t, f in itertools.product(range(T), range(F)):
        value, indicator = slow(values_TNF[t, :, f].astype(float), universe_TN[t], group_TN[t], rule)
        np.testing.assert_allclose(actual[t, :, f], value, rtol=1e-5, atol=5e-6)
        if rule.add_indicator:
            np.testing.assert_array_equal(actual[t, :, F + f], indicator)


def test_default_is_rank_normal_with_zeros(market: Market) -> None:
    values_TNF, universe_TN, group_TN = market
    expected = np.nan_to_num(rank_normal(values_TNF, universe_TN), nan=0.0)
    actual = transform_characteristics(values_TNF, universe_TN, group_TN, TransformRule())
    assert actual.tobytes() == expected.tobytes()
    assert (actual != 0).any()


@pytest.mark.parametrize("rule", RULES[::5], ids=str)
def test_transforms_ignore_other_dates_and_firms_outside_the_universe(
    rule: TransformRule, market: Market
) -> None:
    values_TNF, universe_TN, group_TN = market
    whole = transform_characteristics(values_TNF, universe_TN, group_TN, rule)
    for t in (0, 3, 64, T - 1):
        one = slice(t, t + 1)
        single = transform_characteristics(values_TNF[one], universe_TN[one], group_TN[one], rule)
        assert whole[one].tobytes() == single.tobytes()
    noisy_TNF = np.where(universe_TN[:, :, None], values_TNF, np.float32(1e9))
    assert whole.tobytes() == transform_characteristics(noisy_TNF, universe_TN, group_TN, rule).tobytes()


def test_names_and_errors(market: Market) -> None:
    values_TNF, universe_TN, group_TN = market
    assert TransformRule().names(["a", "b"]) == ("a", "b")
    assert TransformRule(add_indicator=True).names(["a", "b"]) == ("a", "b", "a_missing", "b_missing")
    with pytest.raises(ValueError, match=r"winsorise\n  Input should be less than 0\.5"):
        TransformRule(winsorise=0.5)
    with pytest.raises(ValueError, match=r"shape of the groups is \(69, 23\); it must be \(70, 23\)"):
        transform_characteristics(values_TNF, universe_TN, group_TN[1:], TransformRule())


def test_firm_without_group_gets_the_median_of_the_date() -> None:
    values = np.array([[[1.0], [2.0], [3.0], [50.0], [60.0], [nan]]])
    group = np.array([[0, 0, 0, -1, -1, -1]], dtype=np.int16)
    universe = np.ones((1, 6), dtype=bool)
    rule = TransformRule(kind="zscore", missing="group_median")
    z = transform_characteristics(values, universe, group, rule)[0, :, 0]
    assert z[5] == z[2]  # 3 is the median of 1, 2, 3, 50, 60; that of the ungrouped is 55
