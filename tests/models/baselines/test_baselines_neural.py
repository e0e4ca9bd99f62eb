"""mlp, lstm, gru, alstm and tcn against torch's layers and loops over days; momentum by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_panels import options_of
from torch import nn

from models.baselines.recurrent import ALSTM, GRUConfig, GRULayer, LSTMLayer, RecurrentLayer
from models.baselines.tcn import TCN, TCNBlock, TCNConfig
from models.batch import PanelTensors
from models.fitting.config import FitConfig
from models.fitting.fit import NeuralFitted, fit
from models.registry import MODELS
from models.spec import Shape

SHAPE = Shape(3, 2, 12, 1)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("theirs", "layer"), [(nn.LSTM, LSTMLayer), (nn.GRU, GRULayer)])
def test_recurrent_layers_equal_torchs(
    theirs: type[nn.LSTM] | type[nn.GRU], layer: type[RecurrentLayer], layers: int
) -> None:
    torch.manual_seed(0)
    reference = theirs(3, 5, num_layers=layers, batch_first=True).double()
    ours = [layer(3 if depth == 0 else 5, 5).double() for depth in range(layers)]
    with torch.no_grad():
        for depth, one in enumerate(ours):
            one.day.weight.copy_(getattr(reference, f"weight_ih_l{depth}"))
            one.state.weight.copy_(getattr(reference, f"weight_hh_l{depth}"))
            second = getattr(reference, f"bias_hh_l{depth}")
            if layer is GRULayer:
                second[10:] = 0.0  # the bias that only torch has
            one.day.bias.copy_(getattr(reference, f"bias_ih_l{depth}") + second)
    x = torch.randn(7, 9, 3, dtype=torch.float64)
    h = x
    for one in ours:
        h = one(h)
    torch.testing.assert_close(h, reference(x)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("layer", [LSTMLayer, GRULayer])
def test_recurrent_layers_skip_ablated_days(layer: type[RecurrentLayer]) -> None:
    torch.manual_seed(0)
    one = layer(3, 5)
    x = torch.randn(4, 9, 3)
    kept = [0, 1, 4, 5, 7]
    keep = torch.zeros(4, 9, dtype=torch.bool)
    keep[:, kept] = True
    torch.testing.assert_close(one(x, keep)[:, -1], one(x[:, kept])[:, -1])
    assert (one(x, torch.zeros(4, 9, dtype=torch.bool)) == 0).all()


@pytest.mark.parametrize("layer", [LSTMLayer, GRULayer])
def test_recurrent_layers_keep_float32_states_with_autocast(layer: type[RecurrentLayer]) -> None:
    """As on a GPU, where matrix products are in bf16 by default."""
    torch.manual_seed(0)
    one, x = layer(3, 8), torch.randn(40, 60, 3)
    states, gradients = [], []
    for bf16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            states.append(one(x))
        gradients.append(torch.autograd.grad(states[-1].square().mean(), list(one.parameters())))
    assert states[1].dtype == torch.float32
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0.01)
    for found, expected in zip(gradients[1], gradients[0], strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0, atol=0.03 * float(expected.abs().max()))


def test_alstm_weighs_the_kept_days_as_a_loop_does() -> None:
    torch.manual_seed(0)
    module = ALSTM(GRUConfig(width=5, layers=1, dropout=0.0), SHAPE).double()
    x = torch.randn(4, 9, 3, dtype=torch.float64)
    kept = [0, 1, 4, 5, 7]
    keep = torch.zeros(4, 9, dtype=torch.bool)
    keep[:, kept] = True
    first, second = (part for part in module.score if isinstance(part, nn.Linear))
    for m, found in enumerate(module.summarise(x, keep)):
        h = module.layers[0](torch.tanh(x[m : m + 1, kept] @ module.input.weight.T + module.input.bias))[0]
        scores = [(second.weight[0] @ torch.tanh(first.weight @ day + first.bias)).item() for day in h]
        weights = np.exp(scores) / np.exp(scores).sum()
        attended = sum(weight * day for weight, day in zip(weights, h, strict=True))
        assert isinstance(attended, torch.Tensor)
        torch.testing.assert_close(found, torch.cat((h[-1], attended)), rtol=0, atol=1e-12)
    assert (module.summarise(x, torch.zeros_like(keep)) == 0).all()


def test_the_forget_bias_of_the_lstm_starts_at_1() -> None:
    layer = LSTMLayer(3, 5)
    assert (layer.day.bias[5:10] == 1.0).all()


def test_a_tcn_block_equals_a_loop_over_days_and_is_causal_to_the_bit() -> None:
    torch.manual_seed(0)
    block = TCNBlock(3, TCNConfig(width=4, kernel=3, dropout=0.0), dilation=2).double()
    x = torch.randn(1, 3, 12, dtype=torch.float64)

    def convolve(conv: nn.Conv1d, x_CW: torch.Tensor) -> torch.Tensor:
        assert conv.bias is not None
        days = []
        for t in range(x_CW.shape[1]):
            day = conv.bias.clone()
            for k in range(3):
                if t - 2 * k >= 0:
                    day = day + conv.weight[:, :, 2 - k] @ x_CW[:, t - 2 * k]
            days.append(torch.relu(day))
        return torch.stack(days, dim=1)

    assert isinstance(block.residual, nn.Conv1d)
    assert block.residual.bias is not None
    h = convolve(block.second, convolve(block.first, x[0]))
    residual = torch.einsum("dc,cw->dw", block.residual.weight[..., 0], x[0]) + block.residual.bias[:, None]
    torch.testing.assert_close(block(x)[0], torch.relu(residual + h), rtol=0, atol=1e-12)
    later = x.clone()
    later[..., 7:] += 1.0
    assert torch.equal(block(later)[..., :7], block(x)[..., :7])
    assert not torch.equal(block(later)[..., 7:], block(x)[..., 7:])


@pytest.mark.parametrize("window", [1, 2, 5, 12, 29, 30, 60])
@pytest.mark.parametrize("kernel", [2, 3])
def test_the_last_day_of_a_tcn_sees_the_whole_window(window: int, kernel: int) -> None:
    torch.manual_seed(0)
    shape = Shape(3, 2, window, 1)
    module = TCN(TCNConfig(width=16, kernel=kernel, dropout=0.0), shape).double()
    with torch.no_grad():
        for block in module.blocks:  # positive weights, so that no unit is inactive
            for parameter in block.parameters():
                parameter.abs_()
    x = torch.rand(1, 3, window, dtype=torch.float64, requires_grad=True)
    module.blocks(x)[..., -1].sum().backward()
    assert x.grad is not None
    assert (x.grad.abs().sum(dim=1) > 0).all()
    reach = 1 + 2 * (kernel - 1) * (2 ** len(module.blocks) - 1)
    assert reach >= window
    assert len(module.blocks) == 1 or 1 + 2 * (kernel - 1) * (2 ** (len(module.blocks) - 1) - 1) < window


def test_invalid_options_are_refused() -> None:
    for name, options, words in (
        ("mlp", {"layers": 0}, r"layers\n.*greater than or equal to 1"),
        ("mlp", {"recent_days": 13}, "lower recent_days or lengthen the window"),
        ("mlp", {"dropout": 1.0}, r"dropout\n.*less than 1"),
        ("lstm", {"width": 0}, r"width\n.*greater than or equal to 1"),
        ("tcn", {"kernel": 1}, r"kernel\n.*greater than or equal to 2"),
        ("momentum", {}, "momentum needs the characteristic 'momentum_252_21' but the data has no names"),
        ("momentum", {"characteristic": 2}, "column 2 but the data has 2"),
        ("sector_mean", {"recent_days": -1}, r"recent_days\n.*greater than or equal to 0"),
        ("kernel_regression", {"bandwidth": 0.0}, r"bandwidth\n.*greater than 0"),
        ("self_peer", {"market_tokens": -1}, r"market_tokens\n.*greater than or equal to 0"),
    ):
        entry = MODELS[name]
        with pytest.raises(ValueError, match=words):
            entry.build(entry.config(**options), SHAPE)


def order_matters() -> tuple[PanelTensors, np.ndarray]:
    """The target is the sign of the last large move; earlier moves do not matter."""
    rng = np.random.default_rng(0)
    t, n, w = 130, 30, 8
    x = rng.normal(size=(t, n)).astype(np.float32)
    large = np.abs(x) > 1.5
    truth = np.zeros((t, n))
    for s in range(t):
        for lag in range(min(w, s + 1)):
            truth[s] = np.where((truth[s] == 0) & large[s - lag], np.sign(x[s - lag]), truth[s])
    data = PanelTensors.from_arrays(
        channels_TNC=x[..., None],
        characteristics_TNF=rng.normal(size=(t, n, 2)),
        mask_TN=np.ones((t, n), dtype=bool),
        group_TN=np.full((t, n), -1),
        target_TN=truth + 0.5 * rng.normal(size=(t, n)),
        window=w,
    )
    return data, truth


@pytest.mark.parametrize(
    ("name", "least"), [("lstm", 0.75), ("gru", 0.75), ("alstm", 0.75), ("tcn", 0.75), ("mlp", 0.6)]
)
def test_the_order_of_days_is_learned(name: str, least: float) -> None:
    data, truth = order_matters()
    options: dict[str, Any] = {"width": 16, "dropout": 0.0, **({"recent_days": 8} if name == "mlp" else {})}
    model = fit(
        name,
        options_of(name, options),
        data,
        np.arange(8, 90),
        np.arange(90, 105),
        fit_config=FitConfig(epochs=12, batch_dates=4, lr=1e-2, patience=12),
        seed=0,
    )
    assert isinstance(model, NeuralFitted)
    assert not model.module.uses_peers
    test = np.arange(105, 130)
    assert np.corrcoef(model.forecast(data, test).ravel(), truth[test].ravel())[0, 1] > least


def test_momentum_is_the_named_characteristic() -> None:
    data, _ = order_matters()
    model = fit(
        "momentum",
        options_of("momentum", {"characteristic": 1}),
        data,
        np.arange(8, 90),
        np.arange(90, 105),
        fit_config=FitConfig(),
        seed=0,
    )
    test = np.arange(105, 130)
    np.testing.assert_array_equal(model.forecast(data, test), data.characteristics_TNF.numpy()[test][..., 1])
