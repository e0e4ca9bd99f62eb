"""Pretraining of day encoders: masks, what the loss counts, what is read, and what a model begins with."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_snapshots import KilledError, Memory
from small_panels import options_of

from models.attention.encoder import DayEncoder, EncoderConfig
from models.batch import PanelTensors
from models.fitted import Fitted, FittedState, NoTrainingSignal
from models.fitting.config import FitConfig, PretrainConfig
from models.fitting.fit import NeuralFitted, fit, restore
from models.fitting.optimizer import AdamW, parameter_groups
from models.fitting.pretraining import (
    DayPredictor,
    draw_masks,
    known_days,
    known_in_windows,
    mask_days,
    pretrain,
    squared_errors,
    windows_of,
)
from models.fitting.snapshot import Snapshot, UnusableSnapshot
from models.registry import MODELS
from models.spec import IncompatibleConfig

T, N, C, W = 70, 8, 2, 6
TRAIN, VALID = np.arange(8, 40), np.arange(44, 56)
OPTIONS: dict[str, dict[str, Any]] = {
    "temporal_transformer": {"encoder": {"width": 8, "heads": 2, "layers": 2}},
    "temporal_peer": {"encoder": {"width": 8, "heads": 2}, "peer_heads": 2},
    "seq2seq": {"encoder": {"width": 8, "heads": 2, "layers": 1}},
}
OBJECTIVES = ("masked_days", "next_day")


def arrays(seed: int = 0) -> dict[str, Any]:
    """Channels that follow an AR(1) of coefficient 0.95 and variance 1; some days of some firms unknown."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(T, N, C))
    for t in range(1, T):
        x[t] = 0.95 * x[t - 1] + math.sqrt(1 - 0.95**2) * x[t]
    x[:20, 0] = np.nan  # listed later
    z = rng.normal(size=(T, N, 3))
    return {
        "channels_TNC": x,
        "characteristics_TNF": z,
        "mask_TN": rng.random((T, N)) < 0.9,
        "group_TN": np.tile(np.arange(N) % 3, (T, 1)),
        "target_TN": 0.3 * z[:, :, 0] + rng.normal(size=(T, N)),
    }


def panel(given: dict[str, Any] | None = None, **changes: Any) -> PanelTensors:  # noqa: ANN401 (settings)
    return PanelTensors.from_arrays(
        **(arrays() if given is None else given), **{"window": W, "n_groups": 3, **changes}
    )


def encoder_of(data: PanelTensors, seed: int = 0) -> DayEncoder:
    torch.manual_seed(seed)
    return DayEncoder(EncoderConfig(width=8, heads=2, layers=1, dropout=0.1), data.shape.n_channels, W)


def fitting(**options: Any) -> FitConfig:  # noqa: ANN401 (settings)
    quick = {"epochs": 2, "batch_dates": 8, "average": 0.5}
    return FitConfig(**{**quick, "pretrain": PretrainConfig(epochs=2, batch=64), **options})


def trained(
    name: str,
    config: FitConfig,
    data: PanelTensors | None = None,
    seed: int = 3,
    **more: Any,  # noqa: ANN401 (passed on)
) -> NeuralFitted:
    data = panel() if data is None else data
    model = fit(
        name, options_of(name, OPTIONS[name]), data, TRAIN, VALID, fit_config=config, seed=seed, **more
    )
    assert isinstance(model, NeuralFitted)
    return model


def bits(fitted: Fitted) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in fitted.tensors().items()}


def test_15_percent_of_the_known_days_are_chosen_and_80_10_10_of_them_hidden_swapped_and_left() -> None:
    generator = torch.Generator().manual_seed(0)
    x_MWC = torch.randn(4000, 20, 3, generator=generator)
    x_MWC[:2000, :9] = 0.0  # unknown
    known = known_days(x_MWC)
    masked = mask_days(x_MWC, draw_masks(4000, 20, int(known.sum()), generator))
    assert not (masked.chosen_MW & ~known).any()
    assert not (masked.token_MW & ~masked.chosen_MW).any()
    for half in (slice(2000), slice(2000, None)):
        share = masked.chosen_MW[half].sum() / known[half].sum()
        assert float(share) == pytest.approx(0.15, abs=0.004)
    assert set(masked.chosen_MW[2000:].sum(dim=1).tolist()) == {3}, "15% of 20 days"
    changed = (masked.x_MWC != x_MWC).any(dim=-1)
    assert not (changed & (~masked.chosen_MW | masked.token_MW)).any()
    chosen = int(masked.chosen_MW.sum())
    assert int(masked.token_MW.sum()) / chosen == pytest.approx(0.8, abs=0.02)
    assert int(changed.sum()) / chosen == pytest.approx(0.1, abs=0.015)
    values = {tuple(day) for day in x_MWC[known].tolist()}
    assert all(tuple(day) in values for day in masked.x_MWC[changed].tolist()), "swapped for real days"


def test_known_days_are_counted_for_every_window() -> None:
    data = panel()
    sessions_P, firms_P = windows_of(data, TRAIN)
    counted = known_days(data.windows(sessions_P, firms_P)).sum(dim=1)
    assert len(set(counted.tolist())) > 1
    assert torch.equal(known_in_windows(data, sessions_P, firms_P), counted)


def test_the_loss_counts_known_channels_of_chosen_days_alone() -> None:
    x_MWC = torch.tensor([[[1.0, 0.0], [2.0, 5.0], [3.0, 3.0]]])
    predicted_MWC = torch.tensor([[[0.0, 9.0], [7.0, 7.0], [1.0, 0.0]]], requires_grad=True)
    chosen_MW = torch.tensor([[True, False, True]])
    total, count = squared_errors(predicted_MWC, x_MWC, chosen_MW)
    assert (float(total.detach()), int(count)) == (1.0 + 4.0 + 9.0, 3)
    total.backward()
    assert predicted_MWC.grad is not None
    assert predicted_MWC.grad.tolist() == [[[-2.0, 0.0], [0.0, 0.0], [-4.0, -6.0]]]


@pytest.mark.parametrize("pooling", ["last", "cls", "attention"])
def test_next_day_is_predicted_from_the_days_up_to_it_by_any_encoder(pooling: Any) -> None:  # noqa: ANN401
    encoder = DayEncoder(EncoderConfig(width=8, heads=2, dropout=0.0, pooling=pooling), C, W)
    module = DayPredictor(encoder, PretrainConfig(objective="next_day"), C, W)
    x_MWC = torch.randn(5, W, C)
    later = x_MWC.clone()
    later[:, 3:] += 1.0
    ours, theirs = (encoder.days(encoder.input(x), causal=True) for x in (x_MWC, later))
    assert torch.equal(ours[:, :3], theirs[:, :3])
    assert not torch.isclose(ours[:, 3:], theirs[:, 3:]).all(dim=-1).any()
    x_MWC[0, :4] = 0.0  # a firm listed on the fifth day: nothing is predicted before something is known
    assert module.errors(x_MWC, ())[1] == 4 * (W - 1) * C + C
    with pytest.raises(IncompatibleConfig, match="the window has one session"):
        DayPredictor(encoder, PretrainConfig(objective="next_day"), C, 1)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_autoregression_is_learnt(objective: Any) -> None:  # noqa: ANN401 (a literal)
    data = panel()
    config = FitConfig(pretrain=PretrainConfig(objective=objective, epochs=20, batch=64, lr=2e-2))
    losses = [record.train_loss for record in pretrain(encoder_of(data), data, TRAIN, config, seed=0)]
    assert losses[0] > 0.6, "near the variance of 1 at first"
    assert losses[-1] < 0.4, "0.0975 is what an AR(1) of 0.95 leaves"


@settings(max_examples=8)
@given(first=st.integers(0, 30), length=st.integers(1, 30), seed=st.integers(0, 9))
def test_nothing_after_the_training_span_and_no_target_is_read(first: int, length: int, seed: int) -> None:
    train = np.arange(first, first + length, 3)
    honest = arrays()
    noisy = {key: np.array(value) for key, value in honest.items()}
    rng = np.random.default_rng(seed)
    after = slice(int(train[-1]) + 1, None)
    noisy["channels_TNC"][after] = rng.normal(size=noisy["channels_TNC"][after].shape)
    noisy["characteristics_TNF"][:] = 7.0
    noisy["mask_TN"][:] = rng.random((T, N)) < 0.5
    noisy["target_TN"][:] = 7.0
    for key, value in list(noisy.items()):  # a firm that nobody had heard of, in the first column
        stranger = value[:, :1].copy()
        if key == "channels_TNC":
            stranger[: after.start] = np.nan
        noisy[key] = np.concatenate([stranger, value], axis=1)
    weights = []
    for part in (honest, noisy):
        data = panel(part)
        sessions_P, _ = windows_of(data, train)
        assert train[0] <= int(sessions_P.min())
        assert int(sessions_P.max()) == train[-1]
        encoder = encoder_of(data)
        pretrain(encoder, data, train, fitting(pretrain=PretrainConfig(epochs=1, batch=64)), seed=seed)
        weights.append(encoder.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_span_without_a_known_day_is_refused() -> None:
    empty = arrays()
    empty["channels_TNC"][:] = np.nan
    with pytest.raises(NoTrainingSignal, match="nothing to pretrain on"):
        windows_of(panel(empty), TRAIN)


@pytest.mark.parametrize(("name", "objective"), zip(OPTIONS, (*OBJECTIVES, "masked_days"), strict=True))
def test_a_pretrained_model_differs_keeps_its_losses_and_comes_back(name: str, objective: Any) -> None:  # noqa: ANN401
    config = fitting(pretrain=PretrainConfig(objective=objective, epochs=2, batch=64))
    model, data = trained(name, config), panel()
    assert [record.epoch for record in model.pretraining] == [0, 1]
    back = restore(FittedState(**dataclasses.asdict(model.state())))
    assert isinstance(back, NeuralFitted)
    assert [record.train_loss for record in back.pretraining] == [r.train_loss for r in model.pretraining]
    np.testing.assert_array_equal(back.forecast(data, VALID), model.forecast(data, VALID))
    assert bits(trained(name, config)) == bits(model), "the same seed gives the same bits"
    assert bits(trained(name, fitting(pretrain=None))) != bits(model)


def test_models_without_a_day_encoder_and_no_pretraining_are_as_before() -> None:
    assert {name for name, entry in MODELS.items() if entry.has_day_encoder} == set(OPTIONS)
    data = panel()
    left, right = (
        fit("mlp", options_of("mlp", {"width": 8}), data, TRAIN, VALID, fit_config=config, seed=1)
        for config in (fitting(layer_decay=0.5), fitting(pretrain=None))
    )
    assert bits(left) == bits(right)


def test_seeds_share_a_pretraining_that_has_a_seed_of_its_own() -> None:
    own = fitting(pretrain=PretrainConfig(epochs=2, batch=64, seed=7))
    first, second = (trained("temporal_peer", own, seed=seed) for seed in (0, 1))
    losses = [[record.train_loss for record in model.pretraining] for model in (first, second)]
    assert losses[0] == losses[1]
    assert bits(first) != bits(second)
    others = [
        [record.train_loss for record in trained("temporal_peer", fitting(), seed=seed).pretraining]
        for seed in (0, 1)
    ]
    assert others[0] != others[1]


@pytest.mark.parametrize(
    ("name", "dies_after"), [("temporal_transformer", 1), ("temporal_peer", 2), ("temporal_peer", 3)]
)
def test_a_fit_killed_in_its_pretraining_or_after_it_ends_with_the_same_bits(
    name: str, dies_after: int
) -> None:
    whole = trained(name, fitting())
    dying = Memory(dies_after=dies_after)
    with pytest.raises(KilledError):
        trained(name, fitting(), snapshots=dying)
    torch.manual_seed(999)  # another process would not have this one's generator
    going_on = Memory(dying.kept)
    resumed = trained(name, fitting(), snapshots=going_on)
    assert going_on.saves == 4 - dies_after, "what was done is not done again"
    assert bits(resumed) == bits(whole)
    for ours, theirs in ((resumed.pretraining, whole.pretraining), (resumed.history, whole.history)):
        assert [(r.epoch, r.train_loss, r.lr) for r in ours] == [
            (r.epoch, r.train_loss, r.lr) for r in theirs
        ]


def test_a_snapshot_that_does_not_say_its_stage_is_refused() -> None:
    with pytest.raises(UnusableSnapshot, match="stage"):
        trained("temporal_peer", fitting(), snapshots=Memory(Snapshot({}, "{}")))


def test_each_layer_has_the_learning_rate_that_was_asked_for() -> None:
    options = {"encoder": {**OPTIONS["temporal_transformer"]["encoder"], "layers": 3, "pooling": "attention"}}
    data = panel()
    model = fit(
        "temporal_transformer",
        options_of("temporal_transformer", options),
        data,
        TRAIN,
        VALID,
        fit_config=fitting(epochs=1),
        seed=0,
    )
    assert isinstance(model, NeuralFitted)
    module = model.module
    config = FitConfig(lr=0.1, warmup=0.0, layer_decay=0.5)
    optimizer = AdamW(parameter_groups(module, config), config, 10)
    rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    wanted = {
        "encoder.input": 0.00625,
        "encoder.position_WD": 0.00625,
        "encoder.blocks.0": 0.0125,
        "encoder.blocks.1": 0.025,
        "encoder.blocks.2": 0.05,
    }
    for name, parameter in module.named_parameters():
        expected = next((lr for prefix, lr in wanted.items() if name.startswith(prefix)), 0.1)
        assert rate[id(parameter)] == pytest.approx(expected), name
        assert (decay[id(parameter)] > 0) == (parameter.ndim >= 2), name
    assert len(rate) == len(list(module.parameters()))
    assert len(parameter_groups(module, FitConfig())) == 2


def test_a_share_of_the_labels_is_whole_dates_drawn_by_the_seed_and_smaller_shares_are_nested() -> None:
    data = panel()
    tenth, third, whole = (set(labelled_dates(data, share, seed=0)) for share in (0.1, 0.3, 1.0))
    assert tenth < third < whole == set(TRAIN.tolist())
    assert (len(tenth), len(third)) == (3, 10)
    assert set(labelled_dates(data, 0.3, seed=1)) != third
    for share in (0.0, 1.1):
        with pytest.raises(ValueError, match="label_share"):
            FitConfig(label_share=share)


def labelled_dates(data: PanelTensors, share: float, seed: int) -> list[int]:
    """Training dates whose labels ridge depends on: losing them changes its weights."""

    def weights(given: PanelTensors) -> dict[str, bytes]:
        config = FitConfig(label_share=share)
        return bits(
            fit(
                "ridge",
                options_of("ridge", {"alphas": [1.0]}),
                given,
                TRAIN,
                VALID,
                fit_config=config,
                seed=seed,
            )
        )

    whole, found = weights(data), []
    for date in TRAIN:
        target_TN = data.target_TN.clone()
        target_TN[date] = target_TN[date].flip(0) + 1.0
        if weights(dataclasses.replace(data, target_TN=target_TN)) != whole:
            found.append(int(date))
    return found


@pytest.mark.parametrize("name", OPTIONS)
def test_a_model_begins_with_the_day_encoder_of_an_earlier_fit_and_nothing_else_of_it(name: str) -> None:
    earlier = trained(name, fitting(epochs=1), seed=5)
    begun: list[Snapshot] = []

    class First(Memory):
        def save(self, snapshot: Snapshot) -> None:
            begun.append(snapshot)
            raise KilledError

    still = FitConfig(epochs=1, lr=1e-30, weight_decay=0.0)
    for start in (None, earlier.state()):
        with pytest.raises(KilledError):
            trained(name, still, start=start, snapshots=First())
    scratch, warm = (snapshot.tensors for snapshot in begun)
    for key, value in earlier.tensors().items():
        if key.startswith("encoder."):
            np.testing.assert_allclose(warm[f"module/{key}"].numpy(), value, atol=1e-20, err_msg=key)
            assert not torch.allclose(warm[f"module/{key}"], scratch[f"module/{key}"]), key
        else:
            torch.testing.assert_close(
                warm[f"module/{key}"], scratch[f"module/{key}"], atol=1e-20, rtol=0, msg=key
            )


@pytest.mark.parametrize(
    ("options", "sizes", "said"),
    [
        ({"width": 16}, {}, "width 8 and this model has 16"),
        ({"heads": 4}, {}, "heads 2 and this model has 4"),
        ({"layers": 1}, {}, "layers 2 and this model has 1"),
        ({"positions": "alibi"}, {}, "positions 'learned' and this model has 'alibi'"),
        ({"pooling": "attention"}, {}, "pool_D of shape None"),
        ({}, {"window": W + 1}, f"window {W} and this model has {W + 1}"),
        ({}, {"channels": C + 1}, r"input.weight of shape \(8, 2\) and this model has \(8, 3\)"),
    ],
)
def test_an_earlier_fit_of_another_shape_is_refused(
    options: dict[str, Any], sizes: dict[str, int], said: str
) -> None:
    name = "temporal_transformer"
    start = trained(name, fitting(epochs=1, pretrain=None)).state()
    changed = arrays()
    if "channels" in sizes:
        changed["channels_TNC"] = np.concatenate([changed["channels_TNC"]] * 2, axis=2)[
            :, :, : sizes["channels"]
        ]
    data = panel(changed, window=sizes.get("window", W))
    with pytest.raises(IncompatibleConfig, match=said):
        fit(
            name,
            options_of(name, {"encoder": {**OPTIONS[name]["encoder"], **options}}),
            data,
            TRAIN,
            VALID,
            fit_config=fitting(),
            seed=0,
            start=start,
        )
    with pytest.raises(IncompatibleConfig, match="remove init_from"):
        fit("mlp", options_of("mlp"), panel(), TRAIN, VALID, fit_config=fitting(), seed=0, start=start)


@pytest.mark.parametrize(
    "wrong", [{"objective": "guess"}, {"epochs": 0}, {"batch": 0}, {"lr": 0.0}, {"windows_per_epoch": 0}]
)
def test_settings_that_cannot_be_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PretrainConfig(**wrong)
    with pytest.raises(ValueError, match="layer_decay"):
        FitConfig(layer_decay=0.0)
