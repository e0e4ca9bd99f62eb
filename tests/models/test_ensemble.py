"""The arithmetic of ensembles: weights, scales and sums, against the same computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from features.arrays import FloatArray
from models.calibration import Line
from models.ensemble import Combination, EnsembleConfig, choose_weights, combine
from models.registry import MODELS

NAMES = ("strong", "weak", "wrong")


def market(seed: int = 0, seeds: int = 2) -> tuple[list[list[FloatArray]], FloatArray]:
    """Forecasts of three members by each seed (skilled, less skilled, of the wrong sign), and the target."""
    rng = np.random.default_rng(seed)
    signal_DN, noise_DN = rng.standard_normal((2, 60, 40))
    members = []
    for skill in (0.6, 0.2, -0.4):
        own = [skill * signal_DN + rng.standard_normal(signal_DN.shape) for _ in range(seeds)]
        members.append(own)
    for own in members:
        for one_DN in own:
            one_DN[:, :3] = np.nan  # outside the universe
    return members, signal_DN + noise_DN


def z(forecast_DN: FloatArray) -> FloatArray:
    mean, spread = (
        np.nanmean(forecast_DN, axis=1, keepdims=True),
        np.nanstd(forecast_DN, axis=1, keepdims=True),
    )
    return np.asarray((forecast_DN - mean) / spread)


def config(weights: str, **more: float) -> EnsembleConfig:
    return EnsembleConfig.model_validate({"members": NAMES, "weights": weights, **more})


@pytest.mark.parametrize("seeds", [1, 3])
def test_equal_weights_sum_the_standardised_averages_over_seeds(seeds: int) -> None:
    members, target_DN = market(seeds=seeds)
    weights, scales = choose_weights(config("equal"), members, target_DN)
    np.testing.assert_allclose(weights, 1 / 3)
    averages = [np.mean([z(one) for one in own], axis=0) for own in members]
    np.testing.assert_allclose(scales, [np.mean(1 / np.nanstd(one, axis=1)) for one in averages])
    if seeds == 1:
        np.testing.assert_allclose(scales, 1.0)
    else:
        assert (scales > 1.1).all(), "seeds that disagree have an average of a smaller deviation"
    found = combine(config("equal"), members, members, target_DN)
    by_hand = [
        sum(w * c * z(own[s]) for w, c, own in zip(weights, scales, members, strict=True))
        for s in range(seeds)
    ]
    for (combination, valid_DN, _), plain_DN in zip(found, by_hand, strict=True):
        expected = combination.line.intercept + combination.line.slope * plain_DN
        np.testing.assert_allclose(valid_DN, expected, rtol=2e-5, atol=1e-6)
        assert np.isnan(valid_DN[:, :3]).all()


def test_weights_by_ic_are_proportional_and_never_negative() -> None:
    members, target_DN = market()
    weights, _ = choose_weights(config("ic"), members, target_DN)
    averages = [np.mean([z(one) for one in own], axis=0)[:, 3:] for own in members]
    ics = [
        np.mean([np.corrcoef(f, y)[0, 1] for f, y in zip(one, target_DN[:, 3:], strict=True)])
        for one in averages
    ]
    np.testing.assert_allclose(weights, np.maximum(ics, 0) / np.maximum(ics, 0).sum())
    assert weights[2] == 0 < weights[1] < weights[0]


@pytest.mark.parametrize("penalty", [0.05, 1.0])
def test_ridge_is_the_least_squares_of_the_standardised_target(penalty: float) -> None:
    members, target_DN = market()
    weights, _ = choose_weights(config("ridge", penalty=penalty), members, target_DN)
    z_KDN = np.array([z(np.mean([z(one) for one in own], axis=0)) for own in members])[:, :, 3:]
    y_DN = z(target_DN[:, 3:])

    def objective(w_K: FloatArray) -> float:
        error_DN = y_DN - np.tensordot(w_K, z_KDN, axes=1)
        return float((error_DN**2).mean() + penalty * (w_K**2).sum())

    free = minimize(objective, np.full(3, 0.1), bounds=[(0, None)] * 3, tol=1e-12).x
    np.testing.assert_allclose(weights, free / free.sum(), atol=1e-4)


@pytest.mark.parametrize("penalty", [1e-18, 1e-3])
def test_equal_members_share_the_weight_under_any_penalty(penalty: float) -> None:
    members, target_DN = market()
    ridge = config("ridge", penalty=penalty)
    weights, _ = choose_weights(ridge, [members[0], members[0], members[1]], target_DN)
    two = EnsembleConfig(members=NAMES[:2], weights="ridge", penalty=penalty)
    expected, _ = choose_weights(two, members[:2], target_DN)
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-5)
    np.testing.assert_allclose([weights[:2].sum(), weights[2]], expected, atol=2e-4)


def test_members_known_on_other_dates_have_weights_under_any_penalty() -> None:
    members, target_DN = market(seeds=1)
    for member, known in zip(members, ((0, 40), (20, 60), (30, 50)), strict=True):
        constant_D = np.ones(60, dtype=bool)
        constant_D[slice(*known)] = False
        member[0][constant_D] = 0.5  # all forecasts of a date are equal: they have no correlation
    weights, _ = choose_weights(config("ridge", penalty=1e-18), members, target_DN)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights >= 0).all()


def test_a_large_penalty_gives_the_weights_of_ic() -> None:
    members, target_DN = market()
    by_ic, _ = choose_weights(config("ic"), members, target_DN)
    shrunk, _ = choose_weights(config("ridge", penalty=1e6), members, target_DN)
    np.testing.assert_allclose(shrunk, by_ic, atol=1e-5)


@pytest.mark.parametrize("weights", ["ic", "ridge"])
def test_without_a_skilled_member_the_weights_are_equal(weights: str) -> None:
    members, target_DN = market()
    wrong = [members[2]] * 3
    np.testing.assert_allclose(choose_weights(config(weights), wrong, target_DN)[0], 1 / 3)


def test_the_test_forecasts_decide_nothing() -> None:
    members, target_DN = market()
    other, _ = market(seed=9)
    for weights in ("equal", "ic", "ridge"):
        left, right = (combine(config(weights), members, test, target_DN) for test in (members, other))
        assert [one[0] for one in left] == [one[0] for one in right]
        np.testing.assert_array_equal(left[0][1], right[0][1])


def test_many_dates_have_the_bits_of_each_date_and_equal_forecasts_count_nothing() -> None:
    members, _ = market(seeds=1)
    flat_DN = np.where(np.isnan(members[0][0]), np.nan, 5.0)
    combination = Combination((0.5, 0.3, 0.2), (1.0, 2.0, 1.5), Line(0.1, 0.02, 0.02, 0.001))
    together_DN = combination.of_dates([members[0][0], members[1][0], flat_DN])
    for d in range(len(together_DN)):
        alone_N = combination.of_date([one[d, 3:] for one in (members[0][0], members[1][0], flat_DN)])
        assert alone_N.tobytes() == together_DN[d, 3:].tobytes()
    expected = 0.1 + 0.02 * (0.5 * z(members[0][0]) + 0.6 * z(members[1][0]))
    np.testing.assert_allclose(together_DN, expected, rtol=1e-5, atol=1e-7)


def test_a_date_with_one_firm_has_the_mean_forecast() -> None:
    combination = Combination((0.5, 0.5), (1.0, 1.0), Line(0.1, 0.02, 0.02, 0.001))
    assert combination.of_date([np.array([3.0]), np.array([-1.0])]) == pytest.approx([0.1])
    no_firm_DN = np.full((2, 4), np.nan)
    assert np.isnan(combination.of_dates([no_firm_DN, no_firm_DN])).all()


def test_an_ensemble_is_not_built() -> None:
    with pytest.raises(ValueError, match="not fitted by itself"):
        MODELS["ensemble"].build(EnsembleConfig(), None)


def test_members_are_named_once() -> None:
    with pytest.raises(ValueError, match="name every member once"):
        EnsembleConfig(members=("ridge", "ridge"))
