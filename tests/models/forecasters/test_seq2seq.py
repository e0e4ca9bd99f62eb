"""The decoder block against torch's layer, and seq2seq with and without teacher forcing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from rank_correlations import mean_rank_ic
from small_panels import options_of
from torch import Tensor, nn
from torch_weights import copy_attention, gradient

from models.attention.block import AttentionMask, BlockConfig, DecoderBlock
from models.attention.encoder import EncoderConfig
from models.attention.probe import Site, probing
from models.batch import Ablation, PanelTensors
from models.fitting.config import FitConfig, LossName
from models.fitting.fit import NeuralFitted, fit, restore
from models.forecasters.seq2seq import Seq2Seq, Seq2SeqConfig

B, K, W, D, H = 3, 4, 7, 16, 4
T, N, C, F = 120, 40, 2, 3
TRAIN, VALID, TEST = np.arange(8, 80), np.arange(82, 98), np.arange(100, 118)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("masked", [False, True])
def test_the_block_equals_torchs_decoder_layer(
    norm: Literal["pre", "post"], dtype: torch.dtype, tolerance: float, masked: bool
) -> None:
    torch.manual_seed(0)
    theirs = nn.TransformerDecoderLayer(
        D, H, 4 * D, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm == "pre", dtype=dtype
    )
    ours = DecoderBlock(BlockConfig(width=D, heads=H, norm=norm)).to(dtype)
    copy_attention(ours.attention, theirs.self_attn)
    copy_attention(ours.memory, theirs.multihead_attn)
    for mine, other in (
        (ours.attention_norm, theirs.norm1),
        (ours.memory_norm, theirs.norm2),
        (ours.forward_norm, theirs.norm3),
        (ours.forward_in, theirs.linear1),
        (ours.forward_out, theirs.linear2),
    ):
        with torch.no_grad():
            other.bias.normal_()
            other.weight.normal_()
        mine.load_state_dict(other.state_dict())
    x, memory = torch.randn(B, K, D, dtype=dtype), torch.randn(B, W, D, dtype=dtype)
    direction = torch.randn(B, K, D, dtype=dtype)  # the sum of squares of a normalised output has no gradient
    keep = None
    if masked:
        keep = torch.ones(B, W, dtype=torch.bool)
        keep[1, :3] = False

    def run(block: Callable[..., Tensor], *args: object, **kwargs: object) -> tuple[Tensor, Tensor, Tensor]:
        a, b = x.clone().requires_grad_(), memory.clone().requires_grad_()
        out = block(a, b, *args, **kwargs)
        (out * direction).sum().backward()
        return out, gradient(a), gradient(b)

    actual = run(ours.decode, AttentionMask(keys_BK=keep))
    causal = torch.ones(K, K, dtype=torch.bool).triu(1)
    expected = run(theirs, tgt_mask=causal, memory_key_padding_mask=None if keep is None else ~keep)
    size = max(float(tensor.detach().abs().max()) for tensor in expected)
    for ours_out, theirs_out in zip(actual, expected, strict=True):
        assert theirs_out.abs().max() > 0.01 * size
        torch.testing.assert_close(ours_out, theirs_out, rtol=tolerance, atol=tolerance * size)
    seen: dict[str, Tensor] = {}

    def read(site: Site, weights: Tensor, _: Tensor | None) -> Tensor:
        return seen.setdefault(site.over, weights)

    with probing(ours, read):
        out, weights = ours.decode(x, memory, AttentionMask(keys_BK=keep)), seen["memory"]
    torch.testing.assert_close(out, actual[0], rtol=tolerance, atol=10 * tolerance)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(B, H, K, dtype=dtype))
    if keep is not None:
        assert (weights[1, :, :, :3] == 0).all()


def panel(noise: float = 0.5, horizons: int = 3) -> PanelTensors:
    """A random walk over horizons: each step adds one characteristic and noise."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(T, N, F)).astype(np.float32)
    walk = np.cumsum(z + noise * rng.normal(size=z.shape), axis=2)[:, :, :horizons]
    mask = rng.random((T, N)) < 0.9
    path = walk[:, :, :-1].copy()
    path[rng.random(path.shape) < 0.05] = np.nan
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(T, N, C)),
        characteristics_TNF=z,
        mask_TN=mask,
        group_TN=np.zeros((T, N), dtype=np.int64),
        target_TN=walk[:, :, -1],
        path_TNK=path if horizons > 1 else None,
        window=5,
        n_groups=1,
    )


def random_model(data: PanelTensors) -> Seq2Seq:
    torch.manual_seed(1)
    model = Seq2Seq(Seq2SeqConfig(encoder=EncoderConfig(width=8, heads=2, layers=1, dropout=0.0)), data.shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def test_teacher_forcing_with_its_own_forecasts_gives_the_same_forecasts() -> None:
    data = panel()
    model, batch = random_model(data), data.batch(torch.tensor([20, 21]))
    model.target_scale.fill_(2.5)
    unrolled = model.eval().horizons(batch)
    assert unrolled.shape == (*batch.m_BN.shape, 3)
    assert unrolled[batch.m_BN].std(dim=0).min() > 0.05
    own = dataclasses.replace(batch, path_BNK=unrolled[..., :-1].detach())
    torch.testing.assert_close(model.train().horizons(own), unrolled, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.eval()(batch), unrolled[..., -1])
    assert (unrolled[~batch.m_BN] == 0).all()


def test_forecasts_use_no_targets_and_training_only_those_of_shorter_horizons() -> None:
    data = panel()
    model, batch = random_model(data), data.batch(torch.tensor([20, 21]))
    assert batch.path_BNK is not None
    noisy = dataclasses.replace(batch, path_BNK=1e3 * torch.randn_like(batch.path_BNK))
    assert torch.equal(model.eval().horizons(noisy), model.horizons(batch))
    longer_BNK = batch.path_BNK.clone()
    longer_BNK[..., 1] += 10.0
    later = dataclasses.replace(batch, path_BNK=longer_BNK, y_BN=1e3 * batch.y_BN)
    changed, forced = model.train().horizons(later), model.horizons(batch)
    assert torch.equal(changed[..., :2], forced[..., :2])  # the second horizon depends only on the first
    assert not torch.allclose(changed[..., 2], forced[..., 2])


def test_day_weights_are_those_of_the_horizon_of_the_label() -> None:
    data = panel()
    model, batch = random_model(data).eval(), data.batch(torch.tensor([20]))
    days = model.attention(batch).days_BNW
    assert days is not None
    torch.testing.assert_close(days.sum(dim=-1), batch.m_BN.float())
    ablation = Ablation(days_keep_BW=torch.tensor([[True, False, True, True, True]]))
    ablated = model.attention(batch, ablation).days_BNW
    assert ablated is not None
    assert (ablated[..., 1] == 0).all()
    changed = dataclasses.replace(batch, x_BNWC=batch.x_BNWC.clone())
    changed.x_BNWC[:, :, 1] = 50.0
    torch.testing.assert_close(model(changed, ablation), model(batch, ablation), rtol=0, atol=1e-6)


@pytest.mark.slow(4)
@pytest.mark.parametrize("loss", ["mse", "ic", "quantile"])
def test_every_horizon_is_learned_and_restored(loss: LossName) -> None:
    data = panel()
    config = FitConfig(epochs=12, batch_dates=8, lr=1e-2, patience=12, loss=loss)
    options = {"encoder": {"width": 8, "heads": 2, "layers": 1, "dropout": 0.0}}
    fitted = fit("seq2seq", options_of("seq2seq", options), data, TRAIN, VALID, fit_config=config, seed=0)
    assert isinstance(fitted, NeuralFitted)
    forecasts = fitted.horizons(data, TEST)
    mask, label = data.mask_TN.numpy()[TEST], data.target_TN.numpy()[TEST]
    assert data.path_TNK is not None
    truth = np.concatenate([data.path_TNK.numpy()[TEST], label[..., None]], axis=2)
    assert np.array_equal(np.isnan(forecasts[..., 0]), ~mask)
    for k in range(3):
        rank_ic = mean_rank_ic(zip(forecasts[..., k], np.where(mask, truth[..., k], np.nan), strict=True))
        assert rank_ic > 0.7  # the noise allows about 0.88
    np.testing.assert_array_equal(forecasts[..., -1], fitted.forecast(data, TEST))
    restored = restore(fitted.state())
    assert isinstance(restored, NeuralFitted)
    np.testing.assert_array_equal(restored.horizons(data, TEST), forecasts)


def test_without_shorter_horizons_there_is_one_step() -> None:
    data = panel(horizons=1)
    model = random_model(data)
    assert model.n_horizons == data.shape.n_horizons == 1
    batch = data.batch(torch.tensor([20]))
    assert batch.path_BNK is None
    torch.testing.assert_close(model.train().horizons(batch)[..., 0], model.eval()(batch))
