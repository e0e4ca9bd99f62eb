"""Linear layers with aligned widths are linear layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)

from models.attention.layers import FewInputs, Linear, aligned


@pytest.mark.parametrize(
    ("inputs", "outputs"), [(7, 32), (54, 16), (16, 7), (3, 5), (8, 16), (5, 1), (1, 32)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_zeros_change_no_output_and_no_gradient(inputs: int, outputs: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(inputs, outputs, bias=bias).double()
    x = torch.randn(3, 11, inputs, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 11, outputs, dtype=torch.float64)
    found = []
    for y in (aligned(x, layer.weight, layer.bias), F.linear(x, layer.weight, layer.bias)):
        assert y.shape == (3, 11, outputs)
        found.append([y, *torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()])])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_products_on_a_device_have_widths_in_multiples_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    linear = F.linear

    def noted(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        seen.append(tuple(weight.shape))
        assert x.shape[-1] == weight.shape[1]
        return linear(x, weight, bias)

    monkeypatch.setattr(F, "linear", noted)
    for layer in (Linear(54, 10), FewInputs(7, 32)):
        assert layer.to("meta")(torch.empty(2, layer.in_features, device="meta")).shape == (
            2,
            layer.out_features,
        )
    assert seen == [(16, 56), (32, 8)]
    Linear(54, 10)(torch.zeros(2, 54))
    assert seen[-1] == (10, 54), "on a CPU the product is as it was"
