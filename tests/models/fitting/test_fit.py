"""The training loop and stored states, on tiny panels with planted signals."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from rank_correlations import mean_ic, mean_rank_ic
from small_panels import (
    FITTED,
    NAMES,
    NEURAL,
    QUICK,
    SMALL,
    TEST,
    TRAIN,
    VALID,
    C,
    F,
    N,
    S,
    T,
    W,
    arrays,
    fitted,
    options_of,
    panel,
    trained,
)

from models.batch import PanelTensors
from models.fitted import Diverged, EpochRecord, Fitted, FittedState
from models.fitting.config import FitConfig, LossName
from models.fitting.fit import NeuralFitted, fit, restore, untrained
from models.fitting.loop import SingleSeed, draw_firms
from models.fitting.optimizer import RunningMean
from models.forecaster import Forecaster
from models.registry import MODELS

ANY = ("mlp", "temporal_transformer", "temporal_peer")  # for what does not depend on the model


def correlation(model: Fitted, data: PanelTensors, truth_TN: npt.NDArray[np.floating[Any]]) -> float:
    forecast = model.forecast(data, TEST)
    known = np.isfinite(forecast)
    return float(np.corrcoef(forecast[known], truth_TN[TEST][known])[0, 1])


@pytest.mark.parametrize("name", FITTED)
def test_state_round_trip_forecasts_the_same_bits(name: str) -> None:
    data, model = panel(), trained(name)
    back = restore(FittedState(**dataclasses.asdict(model.state())))
    want = model.forecast(data, TEST)
    assert want.dtype == np.float32
    np.testing.assert_array_equal(back.forecast(data, TEST), want)
    np.testing.assert_array_equal(np.isnan(want), ~arrays()["mask_TN"][TEST])
    assert (back.name, back.options, back.shape) == (model.name, model.options, model.shape)
    stored, kept = ([dataclasses.asdict(record) for record in one.history] for one in (back, model))
    np.testing.assert_equal(stored, kept)  # takes NaN as equal, which records themselves do not


@pytest.mark.parametrize("name", FITTED)
def test_a_forecast_depends_on_nothing_after_its_date_nor_on_the_other_dates_asked(name: str) -> None:
    model, given = trained(name), arrays()
    want = model.forecast(panel(given), TEST)
    for key in ("channels_TNC", "characteristics_TNF", "target_TN"):
        given[key] = given[key].copy()
        given[key][81:] = 7.0
    given["mask_TN"][81:] = True
    np.testing.assert_array_equal(model.forecast(panel(given), TEST[:5]), want[:5])
    np.testing.assert_array_equal(model.forecast(panel(), TEST[::-3]), want[::-3])
    assert model.forecast(panel(), TEST[:0]).shape == (0, want.shape[1])
    assert np.nanstd(want) > 0 or name == "zero"


@pytest.mark.parametrize("name", FITTED)
def test_fitting_reads_nothing_but_its_sessions(name: str) -> None:
    given = arrays()
    for key in ("channels_TNC", "characteristics_TNF", "target_TN"):
        given[key] = given[key].copy()
        given[key][VALID[-1] + 1 :] = np.nan
        given[key][: TRAIN[0] - W + 1] = 9.0
    given["target_TN"][TRAIN[-1] + 1 : VALID[0]] = np.nan
    data = panel()
    np.testing.assert_array_equal(
        fitted(name, panel(given)).forecast(data, TEST), trained(name).forecast(data, TEST)
    )


@pytest.mark.parametrize("name", [*NEURAL, "lightgbm"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(name: str) -> None:
    data = panel()
    want = trained(name).forecast(data, TEST)
    torch.manual_seed(99)  # the caller's generator must not matter, nor be moved
    before = torch.random.get_rng_state()
    np.testing.assert_array_equal(fitted(name).forecast(data, TEST), want)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not np.array_equal(fitted(name, seed=4).forecast(data, TEST), want, equal_nan=True)


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    ("name", "loss"),
    [*((name, "mse") for name in NEURAL), *((name, loss) for name in ANY for loss in ("huber", "ic"))],
)
def test_a_linear_signal_is_recovered(name: str, loss: LossName) -> None:
    config = FitConfig(epochs=4, batch_dates=4, lr=2e-2, loss=loss, patience=8)
    data = panel()
    model = fitted(name, config=config)
    truth = arrays()["characteristics_TNF"][:, :, 1]
    assert correlation(model, data, truth) > 0.85
    assert correlation(trained("ridge"), data, truth) > 0.95
    if loss == "mse":  # in the target's unit: the forecasts' slope on the truth is that of the plan
        forecast = model.forecast(data, TEST)
        known = np.isfinite(forecast)
        slope = np.polyfit(truth[TEST][known], forecast[known], 1)[0]
        assert 0.006 < slope < 0.013


def one_leader() -> tuple[PanelTensors, npt.NDArray[np.floating[Any]]]:
    """Firm 0 of each group leads: its last return is the next of its group's other firms."""
    rng = np.random.default_rng(1)
    group = np.arange(N) % S
    leader = np.arange(N) < S
    channels = rng.normal(size=(T, N, C)).astype(np.float32)
    truth = np.where(leader, 0.0, channels[:, group, 0])  # firms 0, 1, 2 lead groups 0, 1, 2
    z = rng.normal(size=(T, N, F)).astype(np.float32)
    z[:, :, 1] = np.where(leader, 2.0, -0.3)
    data = PanelTensors.from_arrays(
        channels_TNC=channels,
        characteristics_TNF=z,
        mask_TN=np.ones((T, N), dtype=bool),
        group_TN=np.tile(group, (T, 1)),
        target_TN=truth + 0.5 * rng.normal(size=(T, N)),
        window=W,
        n_groups=S,
        characteristic_names=NAMES,
    )
    return data, truth


def test_a_planted_leader_is_found_by_peers_and_not_without_them() -> None:
    data, truth = one_leader()
    config = FitConfig(epochs=12, batch_dates=4, lr=2e-2, patience=25)
    with_peers = fitted("temporal_peer", data, config=config)
    without = fitted("temporal_transformer", data, config=FitConfig(epochs=2, lr=1e-2))
    assert correlation(with_peers, data, truth) > 0.8
    assert abs(correlation(without, data, truth)) < 0.15
    assert isinstance(with_peers, NeuralFitted)
    maps = with_peers.module.attention(data.batch(torch.tensor([80])))
    assert maps.peers_BLHNN is not None
    weight = maps.peers_BLHNN[0, 0].detach().amax(0)
    to_leader = weight[torch.arange(S, N), torch.arange(S, N) % S]
    assert float(to_leader.mean()) > 5 * float(weight[S:, S:].mean())


@pytest.mark.parametrize("name", NEURAL)
def test_a_loss_that_is_not_finite_diverges(name: str) -> None:
    given = arrays()
    given["characteristics_TNF"][TRAIN[3]] = 3e38
    with pytest.raises(Diverged, match="lower lr"):
        fitted(name, panel(given), config=FitConfig(epochs=2))


def test_a_learning_rate_out_of_bounds_diverges() -> None:
    with pytest.raises(Diverged, match="lower lr"):
        fitted("self_peer", config=FitConfig(epochs=5, lr=1e30, clip=1e30))


def test_early_stopping_keeps_the_best_weights() -> None:
    data = panel()
    seen: list[EpochRecord] = []
    config = FitConfig(epochs=12, batch_dates=4, lr=3e-2, patience=3, stop_on="rank_ic")
    model = fit(
        "self_peer",
        options_of("self_peer", SMALL["self_peer"]),
        data,
        TRAIN,
        VALID,
        fit_config=config,
        seed=0,
        on_epoch=seen.append,
    )
    assert tuple(seen) == model.history
    assert all(isinstance(record, EpochRecord) for record in seen)
    ics = [record.valid_rank_ic for record in model.history]
    best = int(np.argmax(ics))
    assert len(ics) == min(best + 4, 12)
    target = data.target_TN[torch.as_tensor(VALID)].numpy()
    kept = mean_rank_ic(zip(model.forecast(data, VALID), target, strict=True))
    assert kept == pytest.approx(ics[best], abs=1e-12)


def test_the_learning_rate_warms_up_then_falls_to_nothing() -> None:
    config = FitConfig(epochs=10, dates_per_epoch=8, batch_dates=4, warmup=0.3, patience=10)
    rates = [record.lr for record in fitted("self_peer", config=config).history]
    assert int(np.argmax(rates)) == 2
    assert rates[0] < rates[1] < rates[2] <= config.lr
    assert all(a > b for a, b in itertools.pairwise(rates[2:]))
    assert rates[-1] < 1e-6


def test_dates_one_by_one_give_the_gradient_of_the_batch() -> None:
    data = panel()
    model = fitted("temporal_peer")
    assert isinstance(model, NeuralFitted)
    config = FitConfig(clip=1e9, lr=1.0, weight_decay=0.0)
    dates = torch.tensor([10, 20, 30])
    engine = SingleSeed(model.module, data, config, 0, TRAIN)
    engine.dates_at_once = 2  # so that the step is made in parts
    optimizer = torch.optim.SGD(model.module.parameters(), lr=0.0)
    (loss,), _ = engine.step(dates[None], optimizer)
    got = [p.grad.clone() for p in model.module.parameters() if p.grad is not None]
    batch = data.batch(dates)
    known = batch.m_BN & batch.y_BN.isfinite()
    error = torch.where(known, model.module(batch) - batch.y_BN.nan_to_num(), 0.0) / model.module.target_scale
    whole = (error.square().sum(1) / known.sum(1)).mean()
    model.module.zero_grad()
    whole.backward()
    want = [p.grad for p in model.module.parameters() if p.grad is not None]
    assert float(loss) == pytest.approx(float(whole.detach()), rel=1e-5)
    assert len(got) == len(want) > 10
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_bf16_trains_to_nearly_the_same_forecasts_as_float32() -> None:
    data = panel()
    config = QUICK.model_copy(update={"epochs": 2, "patience": 2, "precision": "float32"})
    whole = fitted("temporal_peer", data, config=config).forecast(data, TEST)
    half = fitted("temporal_peer", data, config=config.model_copy(update={"precision": "bf16"})).forecast(
        data, TEST
    )
    known = np.isfinite(whole)
    assert not np.array_equal(whole[known], half[known])
    np.testing.assert_allclose(half[known], whole[known], atol=0.05 * whole[known].std())


def test_firms_are_drawn_from_known_firms_alone() -> None:
    known = torch.rand(6, 30, generator=torch.Generator().manual_seed(0)) < 0.5
    known[0] = False
    known[1, :] = False
    known[1, 3] = True
    listed = torch.ones(30, dtype=torch.bool)
    drawn = draw_firms(known, listed, 5, torch.Generator().manual_seed(1))
    assert (drawn <= known).all()
    assert drawn.sum(1).tolist() == [0, 1, 5, 5, 5, 5]
    assert torch.equal(draw_firms(known, listed, None, torch.Generator()), known)


@pytest.mark.parametrize("name", [*NEURAL, "ridge", "lightgbm"])
def test_damaged_states_are_refused_with_the_cure(name: str) -> None:
    state = fitted(name).state()
    key = next(key for key, value in state.tensors.items() if value.ndim == 1)
    cure = "fit (it|the model) again"
    damaged: list[FittedState] = [
        FittedState(state.config, {k: v for k, v in state.tensors.items() if k != key}),
        FittedState(state.config, {**state.tensors, key: state.tensors[key].astype(np.float16)}),
        FittedState(state.config, {**state.tensors, key: state.tensors[key][None]}),
        FittedState({k: v for k, v in state.config.items() if k != "shape"}, state.tensors),
    ]
    if state.tensors[key].dtype.kind == "f":
        damaged.append(
            FittedState(state.config, {**state.tensors, key: np.full_like(state.tensors[key], np.nan)})
        )
    else:
        damaged.append(FittedState(state.config, {**state.tensors, key: state.tensors[key][::-1].copy()}))
    damaged.append(FittedState(state.config, {**state.tensors, "surprise": np.zeros(1, dtype=np.float32)}))
    for one in damaged:
        with pytest.raises(ValueError, match=cure):
            restore(one)


def test_calls_that_cannot_work_say_why() -> None:
    data = panel()
    for given, words in (
        (("nonesuch", {}, TRAIN, VALID), "There is no model 'nonesuch'; choose one of zero"),
        (("ridge", {"alpha": 1}, TRAIN, VALID), "alpha is not a known name"),
        (("ridge", {}, np.array([40]), VALID), "None of the 1 training dates"),
        (("ridge", {}, TRAIN, np.array([], dtype=np.int64)), "None of the 0 validation dates"),
        (("ridge", {}, TRAIN, np.array([500])), "the panel has 90 sessions"),
        (("reversal", {"characteristic": "momentum"}, TRAIN, VALID), "return_1, size, noise"),
        (("temporal_peer", {"recent_days": 9}, TRAIN, VALID), "lower recent_days"),
    ):
        name, options, train, valid = given
        with pytest.raises(ValueError, match=words):
            fit(name, options_of(name, options), data, train, valid, fit_config=QUICK, seed=0)
    with pytest.raises(ValueError, match="'mse', 'huber', 'ic'"):
        FitConfig.model_validate({"loss": "mae"})
    model = fitted("ridge")
    longer = PanelTensors.from_arrays(**arrays(), window=6, n_groups=S, characteristic_names=NAMES)
    with pytest.raises(ValueError, match="needs window 5 but the data has 6"):
        model.forecast(longer, TEST)


def test_a_running_mean_follows_its_recurrence_and_leaves_the_weights_as_they_were() -> None:
    module = torch.nn.Linear(2, 1, bias=False)
    mean = RunningMean(module.parameters(), decay=0.9)
    expected = module.weight.detach().clone()
    for step in range(30):
        with torch.no_grad():
            module.weight.add_(step + 1.0)
        weight = mean.weight(step)
        mean.update(torch.tensor(weight) if step % 2 else weight)  # a tensor where steps are recorded
        keep = min(0.9, (1 + step) / (10 + step))
        expected = expected + (1 - keep) * (module.weight.detach() - expected)
    live = module.weight.detach().clone()
    with mean.in_place():
        torch.testing.assert_close(module.weight.detach(), expected)
    assert torch.equal(module.weight, live)


def test_the_averaged_weights_are_the_ones_that_are_kept() -> None:
    data = panel()
    averaged = fitted("self_peer", data, config=QUICK.model_copy(update={"average": 0.99}))
    last = fitted("self_peer", data)
    assert not np.array_equal(averaged.forecast(data, VALID), last.forecast(data, VALID))
    with pytest.raises(ValueError, match=r"average\n.*less than 1"):
        FitConfig(average=1.0)


@pytest.mark.parametrize("stop_on", ["rank_ic", "ic"])
def test_the_kept_weights_are_those_of_the_best_epoch_by_the_score_that_was_asked_for(
    stop_on: Literal["rank_ic", "ic"],
) -> None:
    data = panel()
    config = QUICK.model_copy(
        update={"epochs": 6, "lr": 0.03, "patience": 6, "valid_dates": None, "stop_on": stop_on}
    )
    model = fitted("self_peer", data, config=config)
    target = data.target_TN[torch.tensor(VALID)].numpy()
    pairs = list(zip(model.forecast(data, VALID), target, strict=True))
    best = {
        "rank_ic": max(record.valid_rank_ic for record in model.history),
        "ic": max(record.valid_ic for record in model.history),
    }
    kept = {"rank_ic": mean_rank_ic(pairs), "ic": mean_ic(pairs)}
    assert kept[stop_on] == pytest.approx(best[stop_on], abs=1e-7)  # several dates were validated at once
    assert len({record.valid_ic for record in model.history}) > 1


def test_untrained_is_what_the_same_seed_began_with() -> None:
    data = panel()
    model = fitted("self_peer", data, seed=4)
    assert isinstance(model, NeuralFitted)
    torch.manual_seed(99)
    start = untrained(model, seed=4)
    after = torch.rand(1)
    torch.manual_seed(99)
    assert torch.equal(after, torch.rand(1))  # the caller's random state is left alone
    entry = MODELS["self_peer"]
    torch.manual_seed(4)
    module = entry.build(entry.config(**SMALL["self_peer"]), data.shape)
    assert isinstance(module, Forecaster)
    want = module.state_dict()
    assert all(torch.equal(value, want[key]) for key, value in start.state_dict().items())
    assert any(not torch.equal(value, model.module.state_dict()[key]) for key, value in want.items())
