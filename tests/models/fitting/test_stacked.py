"""Seeds that are trained as one: each must end where it ends alone, whatever the others do."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from small_panels import options_of

from features.information_coefficient import ic_by_date, rank_ic_by_date
from models.batch import PanelTensors
from models.fitted import Diverged, EpochRecord
from models.fitting.config import NET_UTILITY, FitConfig, LossName
from models.fitting.fit import fit, fit_stacked
from models.fitting.loop import SingleSeed
from models.fitting.losses import LOSSES, QUANTILE
from models.fitting.optimizer import AdamW
from models.fitting.stacked import StackedSeeds, can_stack, coefficients
from models.forecaster import Forecaster
from models.registry import MODELS

T, N, C, F, W, S = 90, 20, 2, 4, 5, 3
NAMES = ("return_21", "log_market_equity", "a", "b")
TRAIN, VALID, TEST = np.arange(5, 55), np.arange(57, 75), np.arange(77, 90)
SEEDS = (5, 1, 2)
STACKABLE = [name for name, entry in MODELS.items() if getattr(entry.build, "stackable", False)]
WITHOUT_DROPOUT = {"sector_mean", "kernel_regression", "linear_portfolio_transformer"}


@pytest.fixture(scope="module")
def data() -> PanelTensors:
    """Firms come and go, targets and groups are partly unknown, and a little can be learned."""
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(T, N, C)), rng.normal(size=(T, N, F))
    target = 0.02 * (z[..., 0] + x[..., 0] + rng.normal(size=(T, N)))
    target[rng.random((T, N)) < 0.05] = np.nan
    mask = rng.random((T, N)) < 0.85
    mask[20, 1:] = False  # a date of one firm
    mask[20, 0] = True
    target[20, 0] = 0.01
    return PanelTensors.from_arrays(
        channels_TNC=x,
        characteristics_TNF=z,
        mask_TN=mask,
        group_TN=np.tile(rng.integers(-1, S, size=N), (T, 1)),
        target_TN=target,
        window=W,
        n_groups=S,
        characteristic_names=NAMES,
    )


def options(name: str, every_model: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Quick settings; without dropout, whose masks depend on the other seeds."""
    given = every_model[name]
    if "encoder" not in given:
        return given | ({} if name in WITHOUT_DROPOUT else {"dropout": 0.0})
    peers = {"peer_dropout": 0.0} if name == "temporal_peer" else {}
    return given | {"encoder": {**given["encoder"], "dropout": 0.0}} | peers


def compare(name: str, given: dict[str, Any], data: PanelTensors, config: FitConfig) -> list[int]:
    """Fit the seeds as one and each alone; the number of epochs of each."""
    together = fit_stacked(name, options_of(name, given), data, TRAIN, VALID, fit_config=config, seeds=SEEDS)
    for seed, ours in zip(SEEDS, together, strict=True):
        alone = fit(name, options_of(name, given), data, TRAIN, VALID, fit_config=config, seed=seed)
        assert len(ours.history) == len(alone.history)
        for mine, theirs in zip(ours.history, alone.history, strict=True):
            assert mine.valid_ic == pytest.approx(theirs.valid_ic, abs=1e-4)
            assert mine.valid_rank_ic == pytest.approx(theirs.valid_rank_ic, abs=5e-3)  # ranks may swap
            assert mine.train_loss == pytest.approx(theirs.train_loss, abs=1e-4)
            assert mine.valid_pinball == pytest.approx(theirs.valid_pinball, abs=1e-4, nan_ok=True)
            assert mine.lr == theirs.lr
        a, b = ours.forecast(data, TEST), alone.forecast(data, TEST)
        assert (np.isnan(a) == np.isnan(b)).all()
        a, b = (y - np.nanmean(y, axis=1, keepdims=True) for y in (a, b))  # some losses leave the level free
        assert np.nanmax(np.abs(a - b)) < 0.01 * np.nanstd(b)
    return [len(one.history) for one in together]


@pytest.mark.slow(3)
@pytest.mark.parametrize("name", STACKABLE)
def test_a_seed_ends_where_it_ends_alone(
    name: str, data: PanelTensors, every_model: dict[str, dict[str, Any]]
) -> None:
    compare(name, options(name, every_model), data, FitConfig(epochs=3, batch_dates=8, lr=5e-3))


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    ("name", "loss"),
    [
        *(("mlp", loss) for loss in (*LOSSES, QUANTILE, NET_UTILITY)),
        *(("temporal_peer", loss) for loss in ("ic", QUANTILE, NET_UTILITY)),
    ],
)
def test_with_every_loss(
    name: str, loss: LossName, data: PanelTensors, every_model: dict[str, dict[str, Any]]
) -> None:
    compare(name, options(name, every_model), data, FitConfig(epochs=2, batch_dates=8, lr=5e-3, loss=loss))


@pytest.mark.parametrize(
    "more", [{"firms_per_date": 6}, {"average": 0.9}, {"dates_per_epoch": 21, "valid_dates": 7}]
)
def test_with_what_else_the_loop_can_do(
    more: dict[str, Any], data: PanelTensors, every_model: dict[str, dict[str, Any]]
) -> None:
    given = options("temporal_transformer", every_model)
    compare("temporal_transformer", given, data, FitConfig(epochs=3, batch_dates=8, lr=5e-3, **more))


def test_each_seed_stops_by_itself_and_keeps_its_best_weights(
    data: PanelTensors, every_model: dict[str, dict[str, Any]]
) -> None:
    config = FitConfig(epochs=12, batch_dates=8, lr=1e-2, patience=2, stop_on="rank_ic")
    lengths = compare("mlp", options("mlp", every_model), data, config)
    assert len(set(lengths)) > 1, "the seeds must stop in different epochs for this to say anything"
    seen: dict[int, list[EpochRecord]] = {seed: [] for seed in SEEDS}
    together = fit_stacked(
        "mlp",
        options_of("mlp", options("mlp", every_model)),
        data,
        TRAIN,
        VALID,
        fit_config=config,
        seeds=SEEDS,
        on_epoch=[seen[seed].append for seed in SEEDS],
    )
    for seed, ours in zip(SEEDS, together, strict=True):
        assert tuple(seen[seed]) == ours.history
        ics = [record.valid_rank_ic for record in ours.history]
        assert len(ics) == min(int(np.argmax(ics)) + 3, 12)


def test_dropout_differs_from_seed_to_seed_and_repeats_with_the_same_seeds(data: PanelTensors) -> None:
    config = FitConfig(epochs=1, batch_dates=8)
    given = {"width": 8, "dropout": 0.5}
    first = fit_stacked("mlp", options_of("mlp", given), data, TRAIN, VALID, fit_config=config, seeds=SEEDS)
    again = fit_stacked("mlp", options_of("mlp", given), data, TRAIN, VALID, fit_config=config, seeds=SEEDS)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.forecast(data, TEST), two.forecast(data, TEST))
    # the same weights and dates in both places: only the masks can differ
    built = [MODELS["mlp"].build(MODELS["mlp"].config(width=8, dropout=0.5), data.shape) for _ in SEEDS]
    modules = [module for module in built if isinstance(module, Forecaster)]
    for module in modules:
        module.load_state_dict(modules[0].state_dict())
    stack = StackedSeeds(modules, data, config, (7, 7, 7), TRAIN)
    optimizer = AdamW(stack.groups(), config, 10)
    dates_KD = torch.arange(10, 18).repeat(3).expand(3, -1)
    losses_KS, _ = stack.epoch(dates_KD, optimizer)
    assert len(set(losses_KS[:, -1].tolist())) == 3  # the head starts at 0: the first loss knows of no mask


def test_streams_are_joined_also_if_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that ends before would end with an error of its own, and keep its memory."""
    waits: list[tuple[str, str]] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            waits.append((self.name, other.name))

    def compute(k: int) -> int:
        if k == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return k

    monkeypatch.setattr("torch.cuda.current_stream", lambda _: Stream("main"))
    monkeypatch.setattr("torch.cuda.stream", lambda _: nullcontext())
    monkeypatch.setattr("models.fitting.stacked.stream_of", lambda _, number: Stream(f"seed {number - 1}"))
    engine = SimpleNamespace(
        data=SimpleNamespace(device=torch.device("cuda")), modules=[None] * 3, seeds_at_once=3
    )
    with pytest.raises(torch.OutOfMemoryError):
        StackedSeeds._each(cast("Any", engine), compute)
    names = [("seed 0", "main"), ("seed 1", "main"), ("main", "seed 0"), ("main", "seed 1")]
    assert waits == names, "a stream that is not part of the recording may not be joined"


def test_validation_is_in_float32_where_training_is_in_bf16(data: PanelTensors) -> None:
    modules = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        module = MODELS["mlp"].build(MODELS["mlp"].config(), data.shape)
        assert isinstance(module, Forecaster)
        for parameter in module.parameters():  # so that every part matters
            parameter.data += 0.1 * torch.randn_like(parameter)
        modules.append(module.eval())
    engine = StackedSeeds(modules, data, FitConfig(precision="bf16"), SEEDS, TRAIN)
    together = engine.validate(VALID)
    for module, ours_V in zip(modules, together.ic_KV, strict=True):
        alone = SingleSeed(module, data, FitConfig(precision="bf16"), 0, TRAIN)
        np.testing.assert_allclose(ours_V, alone.validate(VALID).ic_KV[0], rtol=0, atol=1e-6)


def test_divergence_is_told_in_the_same_sentence_and_a_stack_names_the_seed(data: PanelTensors) -> None:
    config = FitConfig(epochs=5, batch_dates=8, lr=1e30, clip=1e30)
    words = r"The (training loss|gradient norm){} became (nan|inf): lower lr \(it is 1e\+30\)"
    with pytest.raises(Diverged, match=words.format("")):
        fit("self_peer", options_of("self_peer"), data, TRAIN, VALID, fit_config=config, seed=SEEDS[0])
    with pytest.raises(Diverged, match=words.format(" of seed [512]")):
        fit_stacked("self_peer", options_of("self_peer"), data, TRAIN, VALID, fit_config=config, seeds=SEEDS)


def test_what_cannot_be_stacked_is_refused(data: PanelTensors) -> None:
    assert {"temporal_transformer", "temporal_peer", "self_peer"} <= set(STACKABLE)
    for name in ("cross_peer", "ridge"):
        assert not can_stack(name, FitConfig())
        with pytest.raises(ValueError, match="fit each seed"):
            fit_stacked(name, options_of(name), data, TRAIN, VALID, fit_config=FitConfig(), seeds=SEEDS)


def test_scores_on_tensors_are_those_of_the_arrays() -> None:
    rng = np.random.default_rng(0)
    forecast = rng.normal(size=(9, 30)).round(1).astype(np.float32)  # with ties
    target = rng.normal(size=(9, 30)).astype(np.float32)
    target[rng.random(target.shape) < 0.2] = np.nan
    target[1] = target[1].round()
    forecast[2] = 0.25  # constant
    target[3] = np.where(np.isnan(target[3]), np.nan, 1.0)
    target[4, 2:] = np.nan  # too few
    forecast[5, :3] = np.nan
    target[6] = np.nan
    found = coefficients(*(torch.as_tensor(x) for x in (forecast, target, np.isfinite(target))))
    expected = np.stack([one(forecast, target) for one in (rank_ic_by_date, ic_by_date)])
    assert np.isnan(expected).any()
    assert (expected == 0).any()
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-13)
