"""Samples of designs are even, and planted shares of variance are found, as in an analysis of variance."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from statsmodels.stats.anova import anova_lm

from backtest.inference.designs import VarianceShare, designs_needed, sample_designs, variance_shares
from features.arrays import FloatArray, IntArray


def planted(
    levels: list[int], shares: dict[tuple[int, ...], float], level_DK: IntArray, rng: np.random.Generator
) -> FloatArray:
    """Results whose effects have exactly these shares over all combinations of levels; the rest is noise."""
    grid = np.array(list(itertools.product(*map(range, levels))))
    result_D = np.zeros(len(level_DK))
    for choices, share in shares.items():
        effect = rng.normal(size=[levels[k] for k in choices])
        for axis in range(effect.ndim):
            effect -= effect.mean(axis=axis, keepdims=True)
        of_grid = effect[tuple(grid[:, k] for k in choices)]
        scale = math.sqrt(share / (of_grid**2).mean())
        result_D += scale * effect[tuple(level_DK[:, k] for k in choices)]
    return result_D + math.sqrt(1.0 - sum(shares.values())) * rng.normal(size=len(level_DK))


def by_choices(found: tuple[VarianceShare, ...]) -> dict[tuple[int, ...], VarianceShare]:
    return {one.choices: one for one in found}


def test_every_level_and_pair_of_levels_is_taken_about_equally_often() -> None:
    levels = [2, 3, 4, 2, 3, 5, 2, 2]
    found = sample_designs(levels, 240)
    assert found.shape == (240, 8)
    assert len({tuple(row) for row in found.tolist()}) == 240
    for k, count in enumerate(levels):
        often = np.bincount(found[:, k], minlength=count)
        assert np.abs(often - 240 / count).max() <= 0.1 * 240 / count + 1, k
    for k, j in itertools.combinations(range(8), 2):
        pairs = Counter(map(tuple, found[:, [k, j]].tolist()))
        assert len(pairs) == levels[k] * levels[j]
        assert min(pairs.values()) >= 0.5 * 240 / len(pairs)


def test_a_larger_sample_begins_with_the_smaller_one_and_ends_with_all_designs() -> None:
    levels = [3, 2, 4]
    whole = sample_designs(levels, 1000)
    assert sorted(map(tuple, whole.tolist())) == list(itertools.product(range(3), range(2), range(4)))
    for count in (1, 2, 5, 16, 24):
        assert (sample_designs(levels, count) == whole[:count]).all()
    assert (sample_designs(levels, 8, seed=1) != whole[:8]).any()


@pytest.mark.parametrize(("rest", "off"), [(0.05, 0.05), (0.3, 0.1)])
def test_planted_shares_are_found_with_200_designs(rest: float, off: float) -> None:
    """Of ten choices four matter, with two interactions; a model of all pairs would need 138 columns."""
    levels = [2, 3, 2, 4, 3, 2, 2, 3, 2, 2]
    shares = {(1,): 0.35, (3,): 0.2, (0,): 0.05, (1, 3): 0.2, (0, 4): 0.2}
    shares = {choices: (1.0 - rest) * share for choices, share in shares.items()}
    wanted = dict.fromkeys([*((k,) for k in range(10)), ()], 0.0) | shares | {(): rest}
    for seed in range(20):
        level_DK = sample_designs(levels, 200, seed)
        result_D = planted(levels, shares, level_DK, np.random.default_rng(seed))
        found = by_choices(variance_shares(level_DK, result_D))
        assert math.isclose(sum(one.share for one in found.values()), 1.0)
        assert wanted.keys() <= found.keys()
        assert max(abs(one.share - wanted.get(choices, 0.0)) for choices, one in found.items()) < off


def test_shares_of_a_balanced_study_are_those_of_an_analysis_of_variance() -> None:
    grid = np.array(list(itertools.product(range(2), range(3), range(2))) * 4)
    rng = np.random.default_rng(2)
    result_D = planted([2, 3, 2], {(0,): 0.3, (1,): 0.2, (1, 2): 0.2}, grid, rng)
    frame = pd.DataFrame(grid, columns=["a", "b", "c"]).assign(y=result_D)
    table = anova_lm(smf.ols("y ~ (C(a) + C(b) + C(c)) ** 2", frame).fit(), typ=2)
    error = table.loc["Residual", "sum_sq"] / table.loc["Residual", "df"]
    effect = ((table["sum_sq"] - table["df"] * error) / len(grid)).drop("Residual")
    wanted = [*(effect / (effect.sum() + error)), error / (effect.sum() + error)]
    found = variance_shares(grid, result_D)
    assert [one.choices for one in found] == [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), ()]
    np.testing.assert_allclose([one.share for one in found], wanted, atol=1e-12)


def test_intervals_contain_the_planted_shares_about_as_often_as_they_say() -> None:
    levels, shares = [2, 3, 3, 2], {(0,): 0.3, (1,): 0.25, (1, 2): 0.15}
    level_DK, hits = np.tile(sample_designs(levels, 36), (3, 1)), Counter[tuple[int, ...]]()
    for draw in range(200):
        result_D = planted(levels, shares, level_DK, np.random.default_rng(draw))
        found = by_choices(variance_shares(level_DK, result_D))
        for choices, share in shares.items():
            hits[choices] += found[choices].lower <= share <= found[choices].upper
    assert 175 <= min(hits.values()) <= max(hits.values()) < 200


def test_noise_alone_has_no_share() -> None:
    levels = [2, 3, 4, 3]
    level_DK = sample_designs(levels, 72)
    rng = np.random.default_rng(0)
    shares = [by_choices(variance_shares(level_DK, rng.normal(size=72))) for _ in range(200)]
    for k in range(4):
        assert abs(np.mean([one[k,].share for one in shares])) < 0.01
    assert abs(np.mean([one[()].share for one in shares]) - 1.0) < 0.02


def test_pairs_are_chosen_where_designs_do_not_suffice_for_all() -> None:
    levels = [3] * 12
    level_DK = sample_designs(levels, 100)
    result_D = planted(levels, {(0,): 0.5, (2, 7): 0.4}, level_DK, np.random.default_rng(0))
    found = by_choices(variance_shares(level_DK, result_D))
    assert [choices for choices in found if len(choices) == 2] == [(2, 7)]
    assert abs(found[2, 7].share - 0.4) < 0.1
    assert abs(found[0,].share - 0.5) < 0.1


def test_designs_without_a_result_and_levels_without_a_design_are_left_out() -> None:
    level_DK = np.array(list(itertools.product(range(2), range(3), range(1))) * 3)
    result_D = planted([2, 3, 1], {(0,): 0.6, (1,): 0.3}, level_DK, np.random.default_rng(0))
    missing_D = np.where(level_DK[:, 1] == 2, np.nan, result_D)
    kept = level_DK[:, 1] < 2
    assert variance_shares(level_DK, missing_D) == variance_shares(level_DK[kept], result_D[kept])
    assert by_choices(variance_shares(level_DK, result_D))[2,].share == 0.0


def test_what_cannot_be_divided_is_refused() -> None:
    assert designs_needed([2, 3]) == 8
    level_DK = sample_designs([2, 3], 6)
    with pytest.raises(ValueError, match=r"6 designs have a result; .* need 8"):
        variance_shares(level_DK, np.arange(6.0))
    with pytest.raises(ValueError, match="infinite"):
        variance_shares(np.tile(level_DK, (2, 1)), np.full(12, np.inf))
    with pytest.raises(ValueError, match="at least 1"):
        sample_designs([], 3)
    equal = variance_shares(np.tile(level_DK, (2, 1)), np.ones(12))
    assert all(math.isnan(one.share) for one in equal)
