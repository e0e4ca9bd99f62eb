"""``refit``: what validation chose is fitted anew with validation among the training sessions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from small_panels import NEURAL, QUICK, SMALL, TEST, TRAIN, VALID, arrays, options_of, panel

from models.batch import PanelTensors
from models.fitted import EpochRecord, Fitted, best_record
from models.fitting.config import FitConfig
from models.fitting.fit import fit, refit
from models.fitting.snapshot import Snapshot
from models.fitting.stacked import can_stack
from models.registry import MODELS

BOTH = np.union1d(TRAIN, VALID)
ONE = QUICK.model_copy(update={"epochs": 1, "dates_per_epoch": None, "refit": True})
SEVERAL = QUICK.model_copy(update={"epochs": 3, "patience": 3, "refit": True})


def fitted(name: str, data: PanelTensors, config: FitConfig, train: np.ndarray = TRAIN) -> Fitted:
    return fit(name, options_of(name, SMALL[name]), data, train, VALID, fit_config=config, seed=0)


def again(chosen: Fitted, data: PanelTensors, config: FitConfig) -> Fitted:
    return refit(chosen, data, TRAIN, VALID, fit_config=config, seed=0)


def same_tensors(left: Fitted, right: Fitted) -> bool:
    a, b = left.tensors(), right.tensors()
    assert set(a) == set(b)
    return all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", NEURAL)
def test_a_refit_is_the_fit_on_training_and_validation_sessions(name: str) -> None:
    data = panel()
    chosen = fitted(name, data, ONE)
    before = chosen.forecast(data, TEST)
    model = again(chosen, data, ONE)
    assert same_tensors(model, fitted(name, data, ONE, train=BOTH))
    assert not same_tensors(model, chosen)
    assert model.history == chosen.history
    np.testing.assert_array_equal(chosen.forecast(data, TEST), before)


def test_as_many_epochs_as_validation_found_best_of_the_same_schedule() -> None:
    data = panel()
    chosen = fitted("temporal_peer", data, SEVERAL)
    ends = []
    for best in range(3):
        scores = [0.1 if epoch == best else 0.0 for epoch in range(3)]
        chosen.history = tuple(
            dataclasses.replace(record, valid_ic=score)
            for record, score in zip(chosen.history, scores, strict=True)
        )
        ends.append(again(chosen, data, SEVERAL))
    assert not same_tensors(ends[0], ends[1])
    assert not same_tensors(ends[1], ends[2])
    # Validation that lies in the training set steers nothing but the choice of the epoch.
    seen: list[float] = []
    whole = fit(
        "temporal_peer",
        options_of("temporal_peer", SMALL["temporal_peer"]),
        data,
        BOTH,
        VALID,
        fit_config=SEVERAL,
        seed=0,
        on_epoch=lambda record: seen.append(record.valid_ic),
    )
    assert same_tensors(ends[int(np.argmax(seen))], whole)


def test_ridge_keeps_its_penalty_and_lightgbm_its_rounds() -> None:
    data = panel()
    ridge = fitted("ridge", data, ONE)
    alphas = list(MODELS["ridge"].config().alphas)
    alpha = alphas[best_record(ridge.history)]
    alone = fit("ridge", options_of("ridge", {"alphas": (alpha,)}), data, BOTH, VALID, fit_config=ONE, seed=0)
    for key, value in again(ridge, data, ONE).tensors().items():
        np.testing.assert_allclose(value, alone.tensors()[key], rtol=1e-10, err_msg=key)
    trees = fitted("lightgbm", data, ONE)
    rounds = 10 * (1 + best_record(trees.history, "ic"))
    options = {**SMALL["lightgbm"], "rounds": rounds, "evaluate_every": rounds}
    alone = fit("lightgbm", options_of("lightgbm", options), data, BOTH, VALID, fit_config=ONE, seed=0)
    model = again(trees, data, ONE)
    np.testing.assert_array_equal(model.forecast(data, TEST), alone.forecast(data, TEST))
    assert not np.array_equal(model.forecast(data, TEST), trees.forecast(data, TEST))


@pytest.mark.slow(2)
@pytest.mark.parametrize("name", [name for name in SMALL if name not in ("zero", "reversal", "momentum")])
def test_it_reads_validation_labels_and_none_after_them(name: str) -> None:
    data, given = panel(), arrays()
    chosen = fitted(name, data, ONE)
    model = again(chosen, data, ONE)
    rng = np.random.default_rng(5)
    later = {**given, "target_TN": given["target_TN"].copy()}
    outside = np.setdiff1d(np.arange(len(later["target_TN"])), BOTH)
    later["target_TN"][outside] = rng.normal(size=later["target_TN"][outside].shape)
    assert same_tensors(again(chosen, panel(later), ONE), model)
    inside = {**given, "target_TN": given["target_TN"].copy()}
    inside["target_TN"][VALID[-1]] = rng.normal(size=inside["target_TN"][VALID[-1]].shape)
    assert not same_tensors(again(chosen, panel(inside), ONE), model)


@pytest.mark.parametrize("name", ["zero", "reversal", "momentum"])
def test_a_rule_has_nothing_to_learn(name: str) -> None:
    data = panel()
    chosen = fitted(name, data, ONE)
    np.testing.assert_array_equal(again(chosen, data, ONE).forecast(data, TEST), chosen.forecast(data, TEST))


def test_a_share_of_the_labels_stays_a_share_and_validation_comes_whole() -> None:
    data = panel()
    part = ONE.model_copy(update={"label_share": 0.3, "valid_dates": 4})
    chosen = fitted("temporal_transformer", data, part)
    learnable = [t for t in TRAIN if t != 40]  # nobody is in the universe there
    order = np.random.default_rng(0).permutation(len(learnable))
    kept = np.array(learnable)[order[: round(0.3 * len(learnable))]]
    want = fitted("temporal_transformer", data, ONE, train=np.union1d(kept, VALID))
    assert same_tensors(again(chosen, data, part), want)


class Once:
    """Keeps the newest snapshot, and dies after a few."""

    def __init__(self, lives: int) -> None:
        self.lives = lives
        self.kept: Snapshot | None = None

    def load(self) -> Snapshot | None:
        return self.kept

    def save(self, snapshot: Snapshot) -> None:
        self.kept, self.lives = snapshot, self.lives - 1
        if self.lives == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("pretrained", [False, True])
def test_a_killed_refit_goes_on_to_the_same_bits(pretrained: bool) -> None:
    from models.fitting.config import PretrainConfig

    data = panel()
    how = PretrainConfig(epochs=1, windows_per_epoch=64) if pretrained else None
    config = SEVERAL.model_copy(update={"pretrain": how})
    chosen = fitted("temporal_peer", data, config)
    last = dataclasses.replace(chosen.history[-1], valid_rank_ic=1.0, valid_ic=1.0)
    chosen.history = (*chosen.history[:-1], last)
    whole = again(chosen, data, config)
    snapshots = Once(2)
    with pytest.raises(KeyboardInterrupt):
        refit(chosen, data, TRAIN, VALID, fit_config=config, seed=0, snapshots=snapshots)
    resumed = refit(chosen, data, TRAIN, VALID, fit_config=config, seed=0, snapshots=snapshots)
    assert same_tensors(resumed, whole)


def test_the_best_record_is_the_first_of_equals_and_never_unknown() -> None:
    def record(score: float, ic: float) -> EpochRecord:
        return EpochRecord(0, 0.0, score, 0.0, 0.0, ic)

    history = [record(np.nan, 0.0), record(0.2, 0.0), record(0.2, 0.3)]
    assert best_record(history) == 1
    assert best_record(history, "ic") == 2


def test_seeds_that_are_fitted_again_are_not_stacked() -> None:
    assert can_stack("temporal_peer", FitConfig())
    assert not can_stack("temporal_peer", FitConfig(refit=True))
