"""Networks of papers: what each computes, against loops, and a structure that only it can learn."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from small_panels import options_of
from torch import Tensor

from models.baselines.tabm import Members, PiecewiseLinear, TabM, TabMConfig
from models.batch import Ablation, Batch, PanelTensors
from models.fitting.config import FitConfig
from models.fitting.fit import fit
from models.fitting.losses import LOSSES, horizons_loss
from models.forecasters.master import Master, MasterConfig
from models.forecasters.stock_mixer import Mixer, StockMixer, StockMixerConfig
from models.spec import IncompatibleConfig

T, N, W = 180, 16, 4
TRAIN, VALID, TEST = np.arange(5, 120), np.arange(122, 145), np.arange(147, T)


def panel(target: np.ndarray, x: np.ndarray, z: np.ndarray, window: int = W) -> PanelTensors:
    rng = np.random.default_rng(9)
    return PanelTensors.from_arrays(
        channels_TNC=x,
        characteristics_TNF=z,
        mask_TN=rng.random(target.shape) < 0.95,
        group_TN=np.zeros(target.shape, dtype=int),
        target_TN=target,
        window=window,
    )


def random_batch(seed: int = 0) -> tuple[PanelTensors, Batch]:
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(20, 7, 2)), rng.normal(size=(20, 7, 3))
    data = panel(rng.normal(size=(20, 7)), x, z, window=6)
    return data, data.batch(torch.tensor([12, 15]))


def randomised(module: Any) -> Any:  # noqa: ANN401 (the same module)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def learned(
    name: str, options: dict[str, Any], data: PanelTensors, truth: np.ndarray, lr: float = 1e-2
) -> float:
    """Correlation of the test forecasts with the forecastable part."""
    config = FitConfig(epochs=12, batch_dates=4, lr=lr, patience=12, valid_dates=23, stop_on="ic")
    model = fit(name, options_of(name, options), data, TRAIN, VALID, fit_config=config, seed=0)
    forecast = model.forecast(data, TEST)
    known = np.isfinite(forecast)
    if not forecast[known].std():
        return 0.0
    return float(np.corrcoef(forecast[known], truth[TEST][known])[0, 1])


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    ("name", "options", "sides", "lr"),
    [
        ("stock_mixer", {"market": 8, "width": 8, "dropout": 0.0, "days": 2, "scales": (1,)}, 2, 1e-2),
        ("master", {"width": 8, "day_heads": 2, "dropout": 0.0, "days": 2}, 1, 5e-3),
    ],
)
def test_firms_learn_from_what_happened_to_other_firms(
    name: str, options: dict[str, Any], sides: int, lr: float
) -> None:
    """Leaders have a high first characteristic; their shocks reach all others, or those of their side."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(T, N, 1))
    leads, left = np.arange(N) < 4, np.arange(N) % sides == 0
    z = np.stack([np.where(leads, 1.5, -0.5), np.where(left, 1.0, -1.0)], axis=-1) * np.ones((T, 1, 1))
    shock = [x[:, leads & side, 0].sum(axis=1, keepdims=True) for side in (left, ~left)]
    truth = np.where(leads, 0.0, sides / 2 * np.where(left, *shock))
    data = panel(truth + 0.3 * rng.normal(size=(T, N)), x, z)
    alone = learned("mlp", {"recent_days": 2, "dropout": 0.0}, data, truth)
    assert abs(alone) < 0.25
    assert learned(name, options, data, truth, lr) > 0.6


def test_options_that_leave_a_model_without_parts_are_refused() -> None:
    data, _ = random_batch()
    with pytest.raises(IncompatibleConfig, match="reads 3 days but its shortest scale is 4; add the scale 1"):
        StockMixer(StockMixerConfig(days=3, scales=(4, 8)), data.shape)
    for refused in (lambda: StockMixerConfig(scales=()), lambda: MasterConfig(spans=())):
        with pytest.raises(ValidationError, match="at least 1 item"):
            refused()
    with pytest.raises(ValidationError, match="less than or equal to 256"):  # edges beyond the outer ones
        TabMConfig(bins=2000)


@pytest.mark.slow(3)
def test_tabm_learns_a_wave_of_a_characteristic() -> None:
    rng = np.random.default_rng(3)
    x, z = rng.normal(size=(T, N, 1)), rng.normal(size=(T, N, 3))
    truth = np.sin(3.0 * z[..., 1])
    data = panel(truth + 0.7 * rng.normal(size=(T, N)), x, z)
    options = {"networks": 8, "width": 16, "bins": 8, "recent_days": 0, "dropout": 0.0}
    config = FitConfig()
    ridge = fit("ridge", options_of("ridge"), data, TRAIN, VALID, fit_config=config, seed=0)
    linear = ridge.forecast(data, TEST)
    known = np.isfinite(linear)
    assert abs(np.corrcoef(linear[known], truth[TEST][known])[0, 1]) < 0.5
    assert learned("tabm", options, data, truth) > 0.85


def test_an_encoding_is_linear_between_the_edges_and_keeps_the_value() -> None:
    embedding = PiecewiseLinear(2, bins=5, size=3)
    z = torch.linspace(-4.0, 4.0, 200)[:, None].expand(-1, 2)
    code = embedding.encode(z)
    edges = torch.cat((embedding.left_T, torch.tensor([3.0])))
    torch.testing.assert_close((code * embedding.width_T).sum(-1) + edges[0], z, rtol=0, atol=1e-5)
    inside = code[(z[:, 0].abs() < 3.0)]
    assert ((inside >= 0) & (inside <= 1)).all()
    assert ((inside > 0) & (inside < 1)).sum(-1).max() == 1
    shares = torch.special.ndtr(edges[1:-1])
    torch.testing.assert_close(shares, torch.arange(1, 5) / 5)
    expected = torch.stack([code[:, f] @ embedding.weight_FTE[f] + embedding.bias_FE[f] for f in range(2)], 1)
    torch.testing.assert_close(embedding(z), expected.flatten(1))


def test_each_member_is_a_network_of_its_own_on_a_common_matrix() -> None:
    layer = randomised(Members(4, 5, 3, first=True))
    x = torch.randn(6, 4, 5)
    for m in range(4):
        expected = (x[:, m] * layer.r_MI[m]) @ layer.weight.T * layer.s_MO[m] + layer.bias_MO[m]
        torch.testing.assert_close(layer(x)[:, m], expected)
    signs = Members(50, 20, 3, first=True).r_MI
    assert set(signs.flatten().tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize("loss", ["mse", "ic"])
def test_tabm_is_trained_on_the_mean_of_its_members_losses(loss: Any) -> None:  # noqa: ANN401
    data, batch = random_batch()
    module = randomised(TabM(TabMConfig(networks=3, width=4, dropout=0.0, recent_days=2), data.shape))
    known = batch.m_BN & batch.y_BN.isfinite()
    forecast = module(batch)
    members = module.train().horizons(batch)
    assert members.shape == (3, *batch.m_BN.shape, 1)
    torch.testing.assert_close(members.mean(dim=0)[..., 0], forecast)
    ours = horizons_loss(module, FitConfig(loss=loss), members, batch, known)
    each = [LOSSES[loss](one[..., 0], batch.y_BN, known) for one in members]
    torch.testing.assert_close(ours, torch.stack(each).mean())
    assert abs(ours - LOSSES[loss](forecast, batch.y_BN, known)) > 1e-3


def test_days_mix_with_earlier_days_alone() -> None:
    mixer = randomised(Mixer(5, 2, 0.0))
    mixer.channel_norm, mixer.time_norm = torch.nn.Identity(), torch.nn.Identity()
    x = torch.randn(3, 5, 2)
    later = x.clone()
    later[:, 3:] += 1.0
    before, after = mixer(x), mixer(later)
    torch.testing.assert_close(after[:, :3], before[:, :3], rtol=0, atol=0)
    earlier = x.clone()
    earlier[:, 0] += 1.0
    assert ((mixer(earlier) - before).abs().amax(dim=(0, 2)) > 1e-4).all()


def test_market_states_are_means_over_the_other_firms() -> None:
    data, batch = random_batch()
    module = randomised(StockMixer(StockMixerConfig(market=3, width=4, group_width=2), data.shape))
    h = module.embed(batch)
    removed = torch.zeros_like(batch.m_BN)
    removed[:, 2] = True
    ablation = Ablation(peers_keep_BN=~removed)
    actual = module.mix(h, batch, ablation)
    identity = torch.cat((batch.z_BNF, module.group(batch.s_BN)), dim=-1)
    gives, takes = module.gives(identity).softmax(-1), module.takes(identity).softmax(-1)
    for b, i in batch.m_BN.nonzero().tolist():
        message = torch.zeros(4)
        for m in range(3):
            total, state = 1.0, torch.zeros(4)
            for j in batch.m_BN[b].nonzero()[:, 0].tolist():
                if j not in (i, 2):
                    total = total + gives[b, j, m]
                    state = state + gives[b, j, m] * module.value(h[b, j])
            message = message + takes[b, i, m] * torch.nn.functional.hardswish(state / total)
        own = module.skip(batch.z_BNF[b, i]) + module.head(torch.nn.functional.hardswish(h[b, i]))
        torch.testing.assert_close(actual[b, i], (own + module.readout(message))[0], rtol=0, atol=1e-5)


def test_the_market_is_the_mean_and_deviation_of_the_universe() -> None:
    data, batch = random_batch()
    module = randomised(Master(MasterConfig(width=8, day_heads=2, spans=(2, 60)), data.shape))
    x = module.embed(batch)[..., 3:].unflatten(-1, (6, 2))
    torch.testing.assert_close(x, batch.x_BNWC)
    market = module.market(x, batch, None)
    for b, i in batch.m_BN.nonzero().tolist():
        present = batch.x_BNWC[b][batch.m_BN[b]].numpy()
        parts = [present[:, -span:].reshape(-1, 2) for span in (2, 6)]
        expected = np.concatenate([p.mean(axis=0) for p in parts] + [p.std(axis=0) for p in parts])
        np.testing.assert_allclose(market[b, i].numpy(), expected, atol=1e-4)


def test_the_gate_opens_for_some_inputs_at_the_cost_of_others() -> None:
    """It depends on the market alone, its factors sum to the number of inputs, and beta makes them equal."""
    data, batch = random_batch()
    seen: list[Tensor] = []
    for beta in (1.0, 1e6):
        module = randomised(Master(MasterConfig(width=8, day_heads=2, beta=beta), data.shape))
        z_inputs: list[Tensor] = []
        module.now.register_forward_pre_hook(lambda _, given, kept=z_inputs: kept.append(given[0]))
        module(batch)
        seen.append(z_inputs[0] / batch.z_BNF)
    gate, even = (one[batch.m_BN] for one in seen)
    torch.testing.assert_close(even, torch.ones_like(even), rtol=0, atol=1e-4)
    first = gate[: int(batch.m_BN[0].sum())]
    torch.testing.assert_close(first, first[:1].expand_as(first), rtol=1e-4, atol=1e-5)
    assert gate.std() > 0.05
    assert (gate.sum(dim=-1) < 5).all()


def test_master_attends_to_other_firms_day_by_day() -> None:
    data, batch = random_batch()
    module = randomised(Master(MasterConfig(width=4, day_heads=2, firm_heads=2, days=3), data.shape))
    layer, h = module.over_firms, torch.randn(2, 7, 3, 4)[:, : batch.m_BN.shape[1]]
    keep = (batch.m_BN[:, None] & ~torch.eye(batch.m_BN.shape[1], dtype=torch.bool))[:, None]
    actual, x = layer(h, keep), layer.norm(h)
    q, k, v = layer.query(x), layer.key(x), layer.value(x)
    for b in range(2):
        for t in range(3):
            heads = []
            for at in (slice(0, 2), slice(2, 4)):
                logits = (q[b, :, t, at] @ k[b, :, t, at].T / math.sqrt(2)).masked_fill(
                    ~keep[b, 0], -math.inf
                )
                heads.append(logits.softmax(-1) @ v[b, :, t, at])
            mixed = h[b, :, t] + layer.output(torch.cat(heads, dim=-1))
            expected = mixed + layer.feed_forward(layer.forward_norm(mixed))
            torch.testing.assert_close(actual[b, :, t], expected, rtol=1e-4, atol=1e-5)
    noisy = dataclasses.replace(batch, x_BNWC=batch.x_BNWC + 1.0)
    assert not torch.allclose(module(noisy), module(batch), atol=1e-3)
