"""double_ensemble: its weights and draws by hand, its trees as a mean, and labels that are partly wrong."""

from __future__ import annotations

import math
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
from scipy.stats import rankdata
from small_panels import options_of

from models.baselines import double_ensemble
from models.baselines.double_ensemble import (
    DoubleEnsemble,
    DoubleEnsembleConfig,
    cell_weights,
    draw_characteristics,
    joined_text,
)
from models.baselines.lightgbm import LightGBM
from models.batch import PanelTensors
from models.fitted import Fitted, NoTrainingSignal, best_record
from models.fitting.config import FitConfig
from models.fitting.fit import BaselineFitted, fit, refit

T, N, F = 120, 60, 12
TRAIN, VALID, TEST = np.arange(75), np.arange(75, 90), np.arange(90, T)
TREES = {"rounds": 100, "evaluate_every": 10, "patience": 10, "num_leaves": 15, "min_data_in_leaf": 20}


def panel(seed: int, wrong: float) -> tuple[PanelTensors, np.ndarray, np.ndarray]:
    """Labels of which a share has the wrong sign, the true signal, and which labels are wrong."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(T, N, F))
    signal = z[..., 0] + 0.7 * z[..., 1] * (z[..., 2] > 0)
    is_wrong = rng.random((T, N)) < wrong
    is_wrong[TEST] = False
    target = np.where(is_wrong, -signal + 0.5 * rng.normal(size=(T, N)), signal + rng.normal(size=(T, N)))
    data = PanelTensors.from_arrays(
        channels_TNC=np.zeros((T, N, 1)),
        characteristics_TNF=z,
        mask_TN=np.ones((T, N), dtype=bool),
        group_TN=np.zeros((T, N), dtype=int),
        target_TN=0.02 * target,
        window=1,
    )
    return data, signal, is_wrong


def trained(name: str, data: PanelTensors, **more: Any) -> Fitted:  # noqa: ANN401 (options)
    options = options_of(name, {**TREES, "learning_rate": 0.1, **more})
    return fit(name, options, data, TRAIN, VALID, fit_config=FitConfig(), seed=0)


def correlation(model: Fitted, data: PanelTensors, signal: np.ndarray) -> float:
    forecast = model.forecast(data, TEST)
    return float(np.mean([np.corrcoef(forecast[i], signal[t])[0, 1] for i, t in enumerate(TEST)]))


@pytest.mark.slow(5)
def test_it_resists_wrong_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    data, signal, is_wrong = panel(1, 0.3)
    weights: list[tuple[float, float]] = []
    wrong_M = is_wrong[TRAIN].ravel()

    def seen(start_M: np.ndarray, end_M: np.ndarray, loss_M: np.ndarray, *rest: Any) -> np.ndarray:  # noqa: ANN401
        weight_M = cell_weights(start_M, end_M, loss_M, *rest)
        hard_M = loss_M > np.median(loss_M)
        weights.append((weight_M[wrong_M & hard_M].mean(), weight_M[~wrong_M & hard_M].mean()))
        return weight_M

    monkeypatch.setattr(double_ensemble, "cell_weights", seen)
    model = trained("double_ensemble", data)
    assert len(weights) == 5
    assert all(of_wrong < 0.98 * of_right for of_wrong, of_right in weights), weights
    assert len(model.history) == 6
    assert correlation(model, data, signal) > correlation(trained("lightgbm", data), data, signal) + 0.03


def test_its_errors_name_it_and_not_the_trees_that_it_is_made_of() -> None:
    data, _, _ = panel(0, 0.2)
    data.target_TN[VALID] = 1.0
    with pytest.raises(NoTrainingSignal, match=r"^double_ensemble has no validation score"):
        trained("double_ensemble", data, sub_models=1)
    with pytest.raises(NoTrainingSignal, match=r"^lightgbm has no validation score"):
        trained("lightgbm", data)
    model = DoubleEnsemble(DoubleEnsembleConfig(), data.shape)
    with pytest.raises(ValueError, match="tensor 'more' that double_ensemble does not have"):
        model.load({"text": np.zeros(1), "scale": np.ones(1), "more": np.ones(1)})


def test_the_first_sub_model_is_lightgbm_and_the_trees_are_those_of_all() -> None:
    data, _, _ = panel(0, 0.2)
    plain, one = trained("lightgbm", data), trained("double_ensemble", data, sub_models=1)
    np.testing.assert_array_equal(one.forecast(data, TEST), plain.forecast(data, TEST))
    several = trained("double_ensemble", data, sub_models=3, shuffled_cells=300)
    best = plain.history[best_record(plain.history, "ic")]
    assert several.history[0].valid_ic == pytest.approx(best.valid_ic)
    kept = best_record(several.history, "ic")
    assert kept > 0
    assert isinstance(several, BaselineFitted)
    assert isinstance(several.baseline, DoubleEnsemble)
    assert several.baseline.trees()[0].num_trees() == 10 * (1 + several.history[kept].epoch)
    again = refit(several, data, TRAIN, VALID, fit_config=FitConfig(), seed=0)
    assert isinstance(again, BaselineFitted)
    assert isinstance(again.baseline, LightGBM)
    assert again.baseline.trees()[0].num_trees() == several.baseline.trees()[0].num_trees()
    z = data.characteristics_TNF[TEST[0]].numpy().astype(np.float64)
    own = trained("double_ensemble", data, sub_models=3, shuffled_cells=300)
    np.testing.assert_array_equal(own.forecast(data, TEST), several.forecast(data, TEST))
    booster, scale = several.baseline.trees()
    np.testing.assert_allclose(booster.predict(z) * scale, several.forecast(data, TEST)[0], rtol=1e-5)


def test_joined_trees_give_the_sum_of_the_outputs() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    boosters: list[lgb.Booster] = []
    for rounds in (12, 1):
        train_set = lgb.Dataset(x, label=x[:, 0] + rng.normal(size=300) + 2.0, params={"verbosity": -1})
        booster = lgb.Booster({"objective": "regression", "verbosity": -1, "num_leaves": 5}, train_set)
        for _ in range(rounds):
            booster.update()
        boosters.append(lgb.Booster(model_str=booster.model_to_string()))
    joined = lgb.Booster(model_str=joined_text([booster.model_to_string() for booster in boosters]))
    assert joined.num_trees() == 13
    expected = sum(np.asarray(booster.predict(x)) for booster in boosters)
    np.testing.assert_allclose(np.asarray(joined.predict(x)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", [1, 3])
def test_weights_follow_the_formula(k: int) -> None:
    rng = np.random.default_rng(0)
    start, end, loss = (rng.random(50) for _ in range(3))
    config = DoubleEnsembleConfig(loss_share=0.7, curve_share=1.2, weight_bins=4, decay=0.5)
    h = 0.7 * rankdata(-loss) / 50 + 1.2 * rankdata(rankdata(end) / rankdata(start)) / 50
    edges = np.linspace(h.min(), h.max(), 5)
    expected = np.empty(50)
    for i in range(50):
        b = next(b for b in range(4) if h[i] <= edges[b + 1] or b == 3)
        same = [j for j in range(50) if edges[b] < h[j] <= edges[b + 1] or (b == 0 and h[j] == edges[0])]
        expected[i] = 1 / (0.5**k * np.mean(h[same]) + 0.1)
    np.testing.assert_allclose(cell_weights(start, end, loss, k, config), expected, rtol=1e-12)


def test_useful_characteristics_are_drawn_more_often() -> None:
    g = np.concatenate((np.full(10, 0.5), np.full(30, 0.01), np.full(20, -0.2)))
    rng = np.random.default_rng(0)
    drawn = np.stack([draw_characteristics(g, (0.8, 0.7, 0.6, 0.5, 0.4), rng) for _ in range(50)])
    counts = [drawn[:, part].sum(axis=1) for part in (slice(0, 10), slice(10, 40), slice(40, 60))]
    # of five bins of equal width from 0.5 down to -0.2, these are the first, the fourth and the last
    assert [set(count) for count in counts] == [{8}, {math.ceil(0.5 * 30)}, {8}]
    assert len({tuple(one) for one in drawn}) > 40
