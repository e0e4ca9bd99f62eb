"""Baselines against scikit-learn and by hand."""

from __future__ import annotations

from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
import torch
from rank_correlations import mean_ic, mean_rank_ic
from sklearn.linear_model import Ridge as SklearnRidge
from small_panels import options_of
from threadpoolctl import threadpool_limits

from models.baselines.lightgbm import LightGBM
from models.batch import PanelTensors
from models.fitted import Fitted
from models.fitting.config import FitConfig
from models.fitting.fit import BaselineFitted, fit, refit, restore
from models.spec import IncompatibleConfig

T, N, F = 60, 30, 4
TRAIN, VALID, TEST = np.arange(0, 35), np.arange(37, 47), np.arange(48, 60)


def panel(seed: int = 0, noise: float = 2.0, *, windows: bool = True) -> PanelTensors:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(T, N, F)) + 0.3
    target = 0.02 * (z @ [1.0, -0.5, 0.0, 0.2] + (z[..., 0] > 0.3) * (z[..., 2] > 0.3)) + 0.005
    target = target + 0.02 * noise * rng.normal(size=(T, N))
    target[rng.random((T, N)) < 0.1] = np.nan
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(T, N, 1)),
        characteristics_TNF=z,
        mask_TN=rng.random((T, N)) < 0.8,
        group_TN=np.zeros((T, N), dtype=int),
        target_TN=target,
        window=2,
        characteristic_names=("return_1", "b", "c", "d"),
        windows=windows,
    )


def cells(data: PanelTensors, dates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    known = (data.mask_TN & data.target_TN.isfinite()).numpy()[dates]
    z, y = data.characteristics_TNF.numpy()[dates][known], data.target_TN.numpy()[dates][known]
    return z.astype(np.float64), y.astype(np.float64)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 10.0])
def test_ridge_equals_sklearn(alpha: float) -> None:
    data = panel()
    ours = fit(
        "ridge", options_of("ridge", {"alphas": [alpha]}), data, TRAIN, VALID, fit_config=FitConfig(), seed=0
    )
    z, y = cells(data, TRAIN)
    theirs = SklearnRidge(alpha=alpha * len(y)).fit(z, y)
    tensors = ours.state().tensors
    np.testing.assert_allclose(tensors["coefficient_F"], theirs.coef_, rtol=0, atol=1e-12)
    np.testing.assert_allclose(tensors["intercept"], theirs.intercept_, rtol=0, atol=1e-12)
    actual = ours.forecast(data, TEST)
    mask = data.mask_TN.numpy()[TEST]
    expected = theirs.predict(data.characteristics_TNF.numpy()[TEST][mask].astype(np.float64))
    np.testing.assert_allclose(actual[mask], expected, rtol=0, atol=1e-8)
    residual = y - theirs.predict(z)
    assert ours.history[0].train_loss == pytest.approx(residual.var() / y.var(), rel=1e-9)


def test_ridge_selects_the_penalty_with_the_best_validation_rank_ic() -> None:
    data = panel(noise=20.0)
    alphas = [1e-4, 1e-2, 0.3, 1.0, 3.0, 100.0]
    ours = fit(
        "ridge", options_of("ridge", {"alphas": alphas}), data, TRAIN, VALID, fit_config=FitConfig(), seed=0
    )
    z, y = cells(data, TRAIN)
    ics = []
    for alpha in alphas:
        theirs = SklearnRidge(alpha=alpha * len(y)).fit(z, y)
        ics.append(
            mean_rank_ic((theirs.predict(a), b) for a, b in (cells(data, np.array([t])) for t in VALID))
        )
    assert [record.valid_rank_ic for record in ours.history] == pytest.approx(ics, abs=1e-9)
    best = SklearnRidge(alpha=alphas[int(np.argmax(ics))] * len(y)).fit(z, y)
    np.testing.assert_allclose(ours.state().tensors["coefficient_F"], best.coef_, rtol=0, atol=1e-10)
    assert len(set(ics)) > 1


def test_ridge_does_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    dates, firms, width = 8, 600, 157  # enough for BLAS to divide the products among threads
    z = rng.normal(size=(dates, firms, width))
    data = PanelTensors.from_arrays(
        channels_TNC=np.zeros((dates, firms, 1)),
        characteristics_TNF=z,
        mask_TN=np.ones((dates, firms), dtype=bool),
        group_TN=np.zeros((dates, firms), dtype=int),
        target_TN=0.01 * z.sum(axis=2) + rng.normal(size=(dates, firms)),
        window=1,
        windows=False,
    )
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            on = (data, np.arange(5), np.arange(5, 8))
            chosen = fit("ridge", options_of("ridge", {}), *on, fit_config=FitConfig(), seed=0)
            again = refit(chosen, *on, fit_config=FitConfig(refit=True), seed=0)
        found.append([one.state().tensors["coefficient_F"] for one in (chosen, again)])
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0]).max() > 0


@pytest.mark.parametrize(
    ("name", "options"), [("ridge", {}), ("lightgbm", {"rounds": 2, "min_data_in_leaf": 20})]
)
def test_a_model_that_reads_no_windows_forecasts_the_same_without_them(
    name: str, options: dict[str, Any]
) -> None:
    full, without = panel(), panel(windows=False)
    assert without.shape == full.shape
    assert without.history_NSC.untyped_storage().nbytes() == 4
    dates = torch.tensor([3, 4])
    assert without.batch(dates).x_BNWC.shape == full.batch(dates).x_BNWC.shape
    fitted = [
        fit(name, options_of(name, options), data, TRAIN, VALID, fit_config=FitConfig(), seed=0)
        for data in (full, without)
    ]
    expected = fitted[0].forecast(full, TEST)
    np.testing.assert_array_equal(fitted[1].forecast(full, TEST), expected)
    np.testing.assert_array_equal(fitted[0].forecast(without, TEST), expected)


def test_zero_and_reversal_follow_their_definitions() -> None:
    data = panel()
    mask = data.mask_TN.numpy()[TEST]
    zero = fit("zero", options_of("zero"), data, TRAIN, VALID, fit_config=FitConfig(), seed=0)
    assert (zero.forecast(data, TEST)[mask] == 0).all()
    assert zero.history[0].valid_rank_ic == 0.0
    for option in ("return_1", 0):
        model = fit(
            "reversal",
            options_of("reversal", {"characteristic": option}),
            data,
            TRAIN,
            VALID,
            fit_config=FitConfig(),
            seed=0,
        )
        np.testing.assert_array_equal(
            model.forecast(data, TEST)[mask], -data.characteristics_TNF.numpy()[TEST][mask][:, 0]
        )
    target = data.target_TN.numpy()[VALID]
    expected = mean_rank_ic(zip(model.forecast(data, VALID), target, strict=True))
    assert model.history[0].valid_rank_ic == pytest.approx(expected, abs=1e-12)
    assert expected < -0.1


@pytest.mark.slow(3)
def test_lightgbm_does_not_depend_on_the_number_of_threads() -> None:
    """To the bit, in sums long enough for LightGBM to share them out, and in the stored text."""
    data, options = wide_panel(), {"min_data_in_leaf": 20, "rounds": 30, "evaluate_every": 10}

    def trained(threads: int, **more: int) -> list[Fitted]:
        given, config = options_of("lightgbm", {**options, **more}), FitConfig()
        first = fit("lightgbm", given, data, TRAIN, VALID, fit_config=config, seed=0, threads=threads)
        return [first, refit(first, data, TRAIN, VALID, fit_config=config, seed=0, threads=threads)]

    alone = trained(1)
    for threads in (2, 4):
        for ours, expected in zip(trained(threads), alone, strict=True):
            np.testing.assert_array_equal(ours.forecast(data, TEST), expected.forecast(data, TEST))
            for name, stored in expected.state().tensors.items():
                np.testing.assert_array_equal(ours.state().tensors[name], stored)
            assert [one.valid_ic for one in ours.history] == [one.valid_ic for one in expected.history]
    asked = trained(1, num_threads=4)[0]
    np.testing.assert_array_equal(asked.forecast(data, TEST), alone[0].forecast(data, TEST))
    assert np.nanstd(alone[0].forecast(data, TEST)) > 0


def wide_panel() -> PanelTensors:
    """A panel with thousands of cells in a leaf, and characteristics of very different sizes."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(T, 400, 12)) * 10.0 ** rng.integers(-3, 4, size=12)
    target = np.tanh(z[..., 0]) + rng.standard_t(3, size=(T, 400))
    return PanelTensors.from_arrays(
        channels_TNC=np.zeros((T, 400, 1)),
        characteristics_TNF=z,
        mask_TN=rng.random((T, 400)) < 0.9,
        group_TN=np.zeros((T, 400), dtype=int),
        target_TN=0.02 * target,
        window=2,
    )


def test_lightgbm_keeps_its_best_round() -> None:
    data = panel(noise=0.5)
    options = {
        "min_data_in_leaf": 20,
        "rounds": 60,
        "evaluate_every": 5,
        "patience": 3,
        "stop_on": "rank_ic",
        "learning_rate": 0.1,
    }

    def run(**more: int) -> Fitted:
        return fit(
            "lightgbm",
            options_of("lightgbm", {**options, **more}),
            data,
            TRAIN,
            VALID,
            fit_config=FitConfig(),
            seed=0,
        )

    model = run()
    ics = [record.valid_rank_ic for record in model.history]
    best = int(np.argmax(ics))
    assert ics[best] > 0.6
    assert len(ics) in (best + 4, 12)
    target = data.target_TN.numpy()
    again = mean_rank_ic(zip(model.forecast(data, VALID), target[VALID], strict=True))
    assert again == pytest.approx(ics[best], abs=1e-6)
    out = mean_rank_ic(zip(model.forecast(data, TEST), target[TEST], strict=True))
    assert out > 0.6
    scale = np.nanstd(model.forecast(data, TEST)) / np.nanstd(target[TEST])
    assert 0.5 < scale < 1.2


def test_lightgbm_respects_max_bin() -> None:
    data = panel(noise=0.5)

    def distinct(max_bin: int) -> int:
        options = {
            "rounds": 1,
            "min_data_in_leaf": 1,
            "num_leaves": 200,
            "learning_rate": 1.0,
            "max_bin": max_bin,
        }
        options |= {"feature_fraction": 1.0, "bagging_fraction": 1.0}
        model = fit(
            "lightgbm", options_of("lightgbm", options), data, TRAIN, VALID, fit_config=FitConfig(), seed=0
        )
        forecast = model.forecast(data, TRAIN)
        return len(np.unique(forecast[~np.isnan(forecast)]))

    assert distinct(2) <= 2**data.shape.n_characteristics < distinct(255)


def test_lightgbm_respects_depth_and_l1_penalty() -> None:
    data = panel(noise=0.5)

    def levels(**given: float) -> int:
        options = {"rounds": 1, "min_data_in_leaf": 1, "num_leaves": 200, **given}
        options |= {"feature_fraction": 1.0, "bagging_fraction": 1.0}
        model = fit(
            "lightgbm", options_of("lightgbm", options), data, TRAIN, VALID, fit_config=FitConfig(), seed=0
        )
        forecast = model.forecast(data, TRAIN)
        return len(np.unique(forecast[~np.isnan(forecast)]))

    assert levels(max_depth=1) == 2
    assert levels(max_depth=2) in (3, 4)
    # no leaf has a sum of errors above the penalty but those of many cells
    assert 2 <= levels(lambda_l1=20.0) < levels(lambda_l1=1.0) < levels()
    plain, limited = options_of("lightgbm", {}), options_of("lightgbm", {"max_depth": 8, "lambda_l1": 2.0})
    assert not {"max_depth", "lambda_l1"} & plain.deciding().keys(), "recorded settings stay as they are"
    assert {"max_depth": 8, "lambda_l1": 2.0}.items() <= limited.deciding().items()


def test_lightgbm_stops_at_the_best_value_of_stop_on() -> None:
    data = panel(noise=10.0)
    target = data.target_TN[torch.tensor(VALID)].numpy()
    scores: dict[str, tuple[float, float]] = {}
    for stop_on in ("rank_ic", "ic"):  # the same trees, stopped at different rounds
        config = {
            "min_data_in_leaf": 20,
            "rounds": 60,
            "evaluate_every": 1,
            "patience": 60,
            "stop_on": stop_on,
            "feature_fraction": 0.7,
            "bagging_fraction": 0.7,
            "lambda_l2": 1.0,
        }
        model = fit(
            "lightgbm", options_of("lightgbm", config), data, TRAIN, VALID, fit_config=FitConfig(), seed=0
        )
        pairs = list(zip(model.forecast(data, VALID), target, strict=True))
        scores[stop_on] = (mean_rank_ic(pairs), mean_ic(pairs))
    assert scores["rank_ic"][0] > scores["ic"][0]
    assert scores["ic"][1] > scores["rank_ic"][1]
    with pytest.raises(ValueError, match="'rank_ic' or 'ic'"):
        fit(
            "lightgbm",
            options_of("lightgbm", {"stop_on": "r2"}),
            data,
            TRAIN,
            VALID,
            fit_config=FitConfig(),
            seed=0,
        )


def test_lightgbm_reads_dates_in_turn_and_grows_the_trees_of_one_float64_array() -> None:
    data = panel()
    options = {"rounds": 20, "evaluate_every": 10, "patience": 9, "min_data_in_leaf": 20, "max_bin": 15}
    ours = fit(
        "lightgbm", options_of("lightgbm", options), data, TRAIN, VALID, fit_config=FitConfig(), seed=3
    )
    assert isinstance(ours, BaselineFitted)
    model = ours.baseline
    assert isinstance(model, LightGBM)
    booster, scale = model.trees()
    z, y = cells(data, TRAIN)
    train_set = lgb.Dataset(z, label=y / y.std(), params={"max_bin": 15, "verbosity": -1})
    theirs = lgb.Booster(model._parameters(3), train_set)
    for _ in range(booster.current_iteration()):
        theirs.update()
    assert scale == y.std()
    np.testing.assert_array_equal(booster.predict(z), theirs.predict(z))
    assert booster.num_trees() == booster.current_iteration() > 0


def lagged_panel(window: int = 6) -> tuple[PanelTensors, np.ndarray]:
    """The target is the move of three days ago, of which the sign of today's decides the size."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(90, N, 2)).astype(np.float32)
    truth = np.zeros((90, N))
    truth[3:] = x[:-3, :, 0] * (1.0 + 0.5 * np.sign(x[3:, :, 1]))
    data = PanelTensors.from_arrays(
        channels_TNC=x,
        characteristics_TNF=rng.normal(size=(90, N, F)),
        mask_TN=rng.random((90, N)) < 0.9,
        group_TN=np.zeros((90, N), dtype=int),
        target_TN=truth + rng.normal(size=(90, N)),
        window=window,
    )
    return data, truth


LAGGED: list[tuple[str, dict[str, Any]]] = [
    ("ridge", {}),
    ("lightgbm", {"rounds": 100, "evaluate_every": 20, "min_data_in_leaf": 10, "lambda_l2": 0}),
    (
        "double_ensemble",
        {"rounds": 60, "evaluate_every": 20, "min_data_in_leaf": 10, "lambda_l2": 0, "sub_models": 2},
    ),
]


@pytest.mark.parametrize(("name", "options"), LAGGED)
def test_lags_show_the_order_of_days_to_baselines(name: str, options: dict[str, Any]) -> None:
    data, truth = lagged_panel()
    train, valid, test = np.arange(6, 60), np.arange(60, 70), np.arange(70, 90)
    found = {}
    for lags in (0, 2, 4):
        given = options_of(name, {**options, "lags": lags})
        model = fit(name, given, data, train, valid, fit_config=FitConfig(), seed=0)
        forecast = model.forecast(data, test)
        np.testing.assert_array_equal(restore(model.state()).forecast(data, test), forecast)
        known = np.isfinite(forecast)
        found[lags] = np.corrcoef(forecast[known], truth[test][known])[0, 1]
        assert ("lags" in given.deciding()) == (lags > 0)
    assert max(found[0], found[2]) < 0.3
    assert found[4] > 0.7
    with pytest.raises(IncompatibleConfig, match="lags is 7 but the window has 6 sessions; lower lags"):
        fit(name, options_of(name, {"lags": 7}), data, train, valid, fit_config=FitConfig(), seed=0)


def test_ridge_with_lags_equals_sklearn_on_the_days_beside_the_characteristics() -> None:
    data, _ = lagged_panel()
    train = np.arange(6, 60)
    ours = fit(
        "ridge",
        options_of("ridge", {"alphas": [0.1], "lags": 3}),
        data,
        train,
        np.arange(60, 70),
        fit_config=FitConfig(),
        seed=0,
    )
    rows, targets = [], []
    for t in train:
        for n in np.flatnonzero(data.known_TN[t].numpy()):
            days = data.channels_TNC[t - 2 : t + 1, n].flatten()
            rows.append(torch.cat((data.characteristics_TNF[t, n], days)).double().numpy())
            targets.append(float(data.target_TN[t, n]))
    theirs = SklearnRidge(alpha=0.1 * len(targets)).fit(rows, targets)
    np.testing.assert_allclose(ours.state().tensors["coefficient_F"], theirs.coef_, rtol=0, atol=1e-12)
