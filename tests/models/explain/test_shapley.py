"""Values from permutations against shap's explainers and against enumeration in plain Python."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from attribution_data import enumerated
from scipy import stats

from models.explain.groups import GroupGameConfig
from models.explain.shapley import Precision, fixed, permutation_coalitions, sample

Play = Callable[[np.ndarray], np.ndarray]


def rough(n_players: int, n_outputs: int, seed: int = 0) -> Play:
    """A game with interactions of all orders."""
    weight_PO = np.random.default_rng(seed).normal(size=(n_players, n_outputs))
    return lambda keep: np.asarray(np.tanh(keep @ weight_PO) ** 3 + np.cos(keep @ weight_PO[::-1]))


def test_the_values_of_a_permutation_are_those_of_shap() -> None:
    """The explainer of shap is made to draw the same order."""
    import shap

    play, n_players = rough(9, 2), 9
    order = np.random.default_rng((5, 0)).permutation(n_players)

    class Masker:
        shape = (1, n_players)
        immutable_outputs = True

        def __call__(self, mask: np.ndarray, _: np.ndarray) -> tuple[np.ndarray]:
            return (mask[None, :],)

    explainer = shap.PermutationExplainer(play, Masker())
    masked = shap.utils._masked_model

    def arrange(players: np.ndarray) -> None:
        players[:] = order

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "shuffle", arrange)
        patch.setattr(masked, "_build_fixed_multi_output", masked._build_fixed_multi_output.py_func)
        explained = explainer(
            np.ones((1, n_players)), max_evals=2 * n_players + 1, error_bounds=True, silent=True
        )
    ours = sample(fixed(play), n_players, Precision(draws=1), seed=5).values()
    np.testing.assert_allclose(ours.values_PO, explained.values[0], atol=1e-12)
    np.testing.assert_allclose(ours.error_PO, explained.error_std[0], atol=1e-12)
    np.testing.assert_allclose(ours.base_O, explained.base_values[0])


def test_many_permutations_agree_with_shaps_kernel_explainer() -> None:
    """With all coalitions, the library's regression is exact. Its exact explainer compiles for 20 seconds."""
    import shap

    play = rough(6, 2)
    explainer = shap.KernelExplainer(lambda x: play(x > 0.5), np.zeros((1, 6)))
    theirs = explainer.shap_values(np.ones((1, 6)), nsamples=2**6, silent=True)[0]
    np.testing.assert_allclose(enumerated(play, 6), theirs, atol=1e-8)
    ours = sample(fixed(play), 6, Precision(draws=2000)).values()
    assert (np.abs(ours.values_PO - theirs) <= 5 * ours.error_PO).all()
    assert ours.error_PO.max() < 0.01 * np.abs(theirs).max()


def test_additive_games_dummies_and_symmetric_players() -> None:
    weight_PO = np.random.default_rng(0).normal(size=(8, 4))
    weight_PO[3] = 0.0  # a dummy
    weight_PO[6] = weight_PO[1]  # symmetric players

    def play(keep: np.ndarray) -> np.ndarray:
        return np.asarray(keep @ weight_PO + 0.5)

    found = sample(fixed(play), 8).values()
    np.testing.assert_allclose(found.values_PO, weight_PO, atol=1e-12)
    np.testing.assert_allclose(found.base_O, 0.5)
    np.testing.assert_allclose(found.error_PO, 0.0, atol=1e-12)


def test_dummies_get_zero_and_symmetric_players_equal_values_among_interactions() -> None:
    def play(keep: np.ndarray) -> np.ndarray:
        k = keep.astype(float)
        return np.asarray([np.tanh(k[:, 0] + k[:, 1] - 2.0 * k[:, 2] * k[:, 3])]).T  # player 4 does nothing

    found = sample(fixed(play), 5, Precision(draws=400)).values()
    bound = 5 * found.error_PO[:, 0] + 1e-12
    assert found.values_PO[4, 0] == 0.0
    assert abs(found.values_PO[0, 0] - found.values_PO[1, 0]) <= bound[0] + bound[1]
    assert abs(found.values_PO[2, 0] - found.values_PO[3, 0]) <= bound[2] + bound[3]
    assert found.values_PO[2, 0] < -0.1 < 0.1 < found.values_PO[0, 0]


@pytest.mark.parametrize("draws", [8, 64])
def test_intervals_contain_the_exact_values_and_values_add_up(draws: int) -> None:
    play, n_outputs = rough(10, 500), 500
    exact = enumerated(play, 10)
    found = sample(fixed(play), 10, Precision(draws=draws), seed=3).values()
    gap = play(np.ones((1, 10), dtype=bool))[0] - found.base_O - found.values_PO.sum(axis=0)
    assert np.abs(gap).max() < 1e-10
    inside = np.abs(found.values_PO - exact) <= stats.t.ppf(0.975, draws - 1) * found.error_PO
    assert inside.shape == (10, n_outputs)
    assert 0.93 <= inside.mean() <= 0.99


def test_permutation_coalitions_by_hand() -> None:
    keep = permutation_coalitions(np.array([[2, 0, 1]]))[0].astype(int).tolist()
    assert keep == [[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [1, 1, 0], [0, 1, 0]]


def test_a_random_game_averages_over_its_draws() -> None:
    """Each draw scales the game; the mean of the scales is known."""
    weight_P = np.array([1.0, -2.0, 0.5])

    def play(keep: np.ndarray, draw: np.ndarray) -> np.ndarray:
        scale = np.array([np.random.default_rng((9, int(r))).normal(1.0, 0.5) for r in draw])
        return np.asarray((scale * (1.0 + keep @ weight_P))[:, None])

    found = sample(play, 3, Precision(draws=200)).values()
    scales = [np.random.default_rng((9, r)).normal(1.0, 0.5) for r in range(200)]
    np.testing.assert_allclose(found.values_PO[:, 0], weight_P * np.mean(scales), rtol=1e-8)
    np.testing.assert_allclose(found.base_O, np.mean(scales))
    expected_P = np.abs(weight_P) * np.std(scales, ddof=1) / np.sqrt(200)
    np.testing.assert_allclose(found.error_PO[:, 0], expected_P, rtol=1e-8)


def test_draws_are_continued_as_if_nothing_had_happened() -> None:
    noise = np.random.default_rng(0).normal(size=40)

    def play(keep: np.ndarray, draw: np.ndarray) -> np.ndarray:
        return np.asarray(rough(5, 2)(keep) * (1.0 + noise[draw, None]))

    whole = sample(play, 5, Precision(draws=24), seed=2)
    half = sample(play, 5, Precision(draws=11), seed=2)
    resumed = sample(play, 5, Precision(draws=24), seed=2, drawn=half)
    np.testing.assert_array_equal(resumed.values().values_PO, whole.values().values_PO)
    np.testing.assert_array_equal(resumed.values().error_PO, whole.values().error_PO)
    assert resumed.count == 24
    calls: list[int] = []
    again = sample(play, 5, seed=2, drawn=half, on_round=lambda r, _: calls.append(r))
    np.testing.assert_array_equal(again.values().values_PO, half.values().values_PO)
    assert calls == []
    with pytest.raises(ValueError, match="seed 2, not of"):
        sample(play, 5, seed=3, drawn=half)


def test_sampling_stops_at_the_precision() -> None:
    play, progress = rough(6, 3), []
    precision = Precision(standard_error=0.03, max_draws=5000)
    found = sample(fixed(play), 6, precision, on_round=lambda draws, error: progress.append((draws, error)))
    assert found.values().error_PO.max() <= 0.03
    assert progress[0][0] == 8
    assert progress[-1][0] == found.count < 5000
    assert all(error > 0.03 for _, error in progress[:-1])
    assert np.abs(found.values().values_PO - enumerated(play, 6)).max() < 4 * 0.03


def test_a_precision_out_of_reach_is_said() -> None:
    precision = Precision(standard_error=1e-6, max_draws=10)
    found = sample(fixed(rough(6, 3)), 6, precision)
    assert not precision.reached_by(found.values().error_PO)
    assert found.count == 10


def test_precision_relative_to_the_forecasts() -> None:
    forecasts = np.array([1.0, 2.0, 3.0])
    config = GroupGameConfig(share=0.1)
    assert config.sampling(forecasts).standard_error == pytest.approx(0.1 * forecasts.std())
    with pytest.raises(ValueError, match="all equal"):
        config.sampling(np.ones(3))


def test_one_player_and_invalid_arguments() -> None:
    one = sample(fixed(lambda keep: 1.0 + 3.0 * keep.astype(float)), 1).values()
    np.testing.assert_allclose(one.values_PO, [[3.0]])
    np.testing.assert_allclose(one.base_O, [1.0])
    with pytest.raises(ValueError, match="at least one player"):
        sample(fixed(rough(1, 1)), 0)
    for wrong in ({"draws": 0}, {"standard_error": -1.0}, {"standard_error": 0.1, "max_draws": 4}):
        with pytest.raises(ValueError, match=r"draws is|standard_error is"):
            Precision(**wrong)


def test_equal_coalitions_of_a_fixed_game_are_evaluated_once() -> None:
    calls: list[int] = []

    def play(keep: np.ndarray) -> np.ndarray:
        calls.append(len(keep))
        return np.asarray(keep.astype(float))

    sample(fixed(play), 3, Precision(draws=50))
    assert calls == [8]
