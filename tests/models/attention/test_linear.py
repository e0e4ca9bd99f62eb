"""The linear layer for few inputs: equal to ``nn.Linear``, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.attention.layers import FewInputs


@pytest.mark.parametrize("shape", [(7,), (5, 7), (3, 4, 7), (0, 4, 7)], ids=str)
def test_it_equals_the_library_forward_and_backward(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    ours, theirs = FewInputs(7, 3).double(), nn.Linear(7, 3).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(*shape[:-1], 3, dtype=torch.float64)
    leaves = []
    for layer in (ours, theirs):
        y = layer(x)
        torch.testing.assert_close(y, nn.functional.linear(x, theirs.weight, theirs.bias), rtol=0, atol=1e-14)
        leaves.append(torch.autograd.grad((y * weight).sum(), (x, layer.weight, layer.bias)))
    for mine, other in zip(*leaves, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_windows_that_are_views_of_one_date_need_no_copy_by_the_caller() -> None:
    layer, x = FewInputs(7, 3), torch.randn(1, 4, 7)
    torch.testing.assert_close(layer(x.expand(5, -1, -1)), layer(x).expand(5, -1, -1))
