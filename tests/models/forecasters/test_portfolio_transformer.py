"""The portfolio transformer and its linear form: loops over firms, and signals that others complete."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from small_panels import options_of

from models.batch import Ablation, PanelTensors
from models.fitting.config import FitConfig
from models.fitting.fit import NeuralFitted, fit
from models.forecasters.portfolio_transformer import (
    LinearPortfolioTransformer,
    LinearPortfolioTransformerConfig,
    PortfolioTransformer,
    PortfolioTransformerConfig,
)
from pipelines.config.load import check_config, model_settings

T, N, F = 220, 60, 3
TRAIN, VALID, TEST = np.arange(150), np.arange(150, 180), np.arange(180, T)


def market(seed: int = 0) -> tuple[PanelTensors, np.ndarray, np.ndarray]:
    """Returns of a firm's own signal, and of a factor whose sign only the whole cross-section shows.

    Characteristic 2 is characteristic 1 times a sign of the date, and noise. The factor of characteristic 1
    pays that sign: ``0.01 (z_0 + z_1 c)``, with the date's c.
    """
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(T, N, F))
    sign_T1 = rng.choice((-1.0, 1.0), size=(T, 1))
    z[..., 2] = 0.4 * sign_T1 * z[..., 1] + 0.9 * z[..., 2]
    own, cross = 0.01 * z[..., 0], 0.01 * sign_T1 * z[..., 1]
    data = PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(T, N, 1)),
        characteristics_TNF=z,
        mask_TN=rng.random((T, N)) < 0.95,
        group_TN=np.zeros((T, N), dtype=int),
        target_TN=own + cross + 0.03 * rng.normal(size=(T, N)),
        window=1,
    )
    return data, own, cross


@pytest.mark.slow(6)
@pytest.mark.parametrize(
    ("name", "options", "lr"),
    [
        ("linear_portfolio_transformer", {}, 5e-2),
        ("portfolio_transformer", {"width": 16, "heads": 2, "layers": 1, "dropout": 0.0}, 1e-2),
    ],
)
def test_an_own_signal_and_one_that_others_complete_are_learned(
    name: str, options: dict[str, Any], lr: float
) -> None:
    data, own, cross = market()
    config = FitConfig(epochs=25, patience=25, batch_dates=10, lr=lr, loss="sharpe")
    model = fit(name, options_of(name, options), data, TRAIN, VALID, fit_config=config, seed=0)
    forecast = model.forecast(data, TEST)
    known = np.isfinite(forecast)

    def agreement(forecast: np.ndarray, with_: np.ndarray) -> float:
        return float(np.corrcoef(forecast[known], with_[TEST][known])[0, 1])

    assert agreement(forecast, own + cross) > 0.7
    assert min(agreement(forecast, own), agreement(forecast, cross)) > 0.3
    # the sign of the factor comes from the others: what a firm is forecast turns when they are turned
    assert isinstance(model, NeuralFitted)
    moved, paid = [], []
    for session in TEST:
        batch = data.batch(torch.tensor([int(session)]))
        z_BNF = batch.z_BNF.clone()
        z_BNF[:, 1:, 2] *= -1.0
        turned = dataclasses.replace(batch, z_BNF=z_BNF)
        with torch.no_grad():
            moved.append(float(model.module(batch)[0, 0] - model.module(turned)[0, 0]))
        paid.append(cross[session, int(batch.firms_N[0])])
    assert np.corrcoef(moved, paid)[0, 1] > 0.5


def built(linear: bool) -> tuple[LinearPortfolioTransformer | PortfolioTransformer, PanelTensors]:
    data = market()[0]
    torch.manual_seed(0)
    module: LinearPortfolioTransformer | PortfolioTransformer
    if linear:
        module = LinearPortfolioTransformer(LinearPortfolioTransformerConfig(heads=2), data.shape)
    else:
        config = PortfolioTransformerConfig(width=8, heads=2, layers=2)
        module = PortfolioTransformer(config, data.shape)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return module.eval().double(), data


def test_the_linear_form_is_attention_without_softmax() -> None:
    module, data = built(linear=True)
    assert isinstance(module, LinearPortfolioTransformer)
    batch = data.batch(torch.tensor([7]))
    batch = dataclasses.replace(batch, z_BNF=batch.z_BNF.double())
    x = batch.z_BNF[0].numpy()
    for gone in (None, 3):
        keep = np.ones(len(x), dtype=bool)
        if gone is not None:
            keep[gone] = False
        expected = x @ module.own.weight[0].detach().numpy() + module.own.bias.item()
        for w_FF, value_F in zip(
            module._weights().detach().numpy(), module.value_HF.detach().numpy(), strict=True
        ):
            for i in range(len(x)):
                keys = [j for j in range(len(x)) if keep[j] or j == i]
                expected[i] += np.mean([x[i] @ w_FF @ x[j] * (x[j] @ value_F) for j in keys])
        ablation = Ablation(peers_keep_BN=torch.tensor(keep)[None])
        for found in (module(batch, ablation), *([module(batch)] if gone is None else [])):
            np.testing.assert_allclose(found[0].detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_attention_of_the_transformer_is_torchs_own() -> None:
    module, data = built(linear=False)
    assert isinstance(module, PortfolioTransformer)
    batch = data.batch(torch.tensor([7]))
    batch = dataclasses.replace(batch, z_BNF=batch.z_BNF.double())
    h = module.embed(batch)
    for block in module.blocks:
        theirs = torch.nn.TransformerEncoderLayer(
            8, 2, 32, 0.0, "gelu", norm_first=True, batch_first=True, dtype=torch.float64
        ).eval()
        ours = dict(block.named_parameters())
        stacked = [
            torch.cat([ours[f"attention.{part}.{kind}"] for part in ("query", "key", "value")])
            for kind in ("weight", "bias")
        ]
        theirs.load_state_dict(
            {
                "self_attn.in_proj_weight": stacked[0],
                "self_attn.in_proj_bias": stacked[1],
                "self_attn.out_proj.weight": ours["attention.output.weight"],
                "self_attn.out_proj.bias": ours["attention.output.bias"],
                "linear1.weight": ours["forward_in.weight"],
                "linear1.bias": ours["forward_in.bias"],
                "linear2.weight": ours["forward_out.weight"],
                "linear2.bias": ours["forward_out.bias"],
                "norm1.weight": ours["attention_norm.weight"],
                "norm1.bias": ours["attention_norm.bias"],
                "norm2.weight": ours["forward_norm.weight"],
                "norm2.bias": ours["forward_norm.bias"],
            }
        )
        h = theirs(h)
    expected = module.skip(batch.z_BNF) + module.head(module.norm(h))
    torch.testing.assert_close(module(batch), expected[..., 0].float(), rtol=1e-5, atol=1e-6)


def test_a_config_trains_them_on_the_sharpe_ratio_unless_it_says_otherwise(tiny: dict[str, Any]) -> None:
    models = {
        "portfolio_transformer": {},
        "other": {"model": "linear_portfolio_transformer", "fit": {"loss": "ic"}},
        "mlp": {},
    }
    config = check_config({**tiny, "fit": {"epochs": 2}, "models": models}, origin="tiny")
    losses = {name: model_settings(config, name).fit.loss for name in models}
    assert losses == {"portfolio_transformer": "sharpe", "other": "ic", "mlp": "mse"}
    config = check_config({**tiny, "fit": {"loss": "mse"}, "models": models}, origin="tiny")
    assert model_settings(config, "portfolio_transformer").fit.loss == "mse"
