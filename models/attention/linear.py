"""A linear layer for few inputs and many rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FewInputs(nn.Linear):
    """As ``nn.Linear`` with a bias, faster to train on a CPU if there are few inputs and many rows.

    The gradient of the weight is a product of two narrow matrices with a long sum over the rows. With 18,850
    rows, 7 inputs and 32 outputs, ``x^T g`` takes 0.19 ms on one core, and ``g^T x`` 1.2 ms. PyTorch chooses
    by the layout of the weight in the forward pass, so the weight is copied into the layout of ``x^T g``.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in the base class
        """Map [..., inputs] to [..., outputs]."""
        rows = input.reshape(-1, self.in_features)
        mapped = torch.addmm(self.bias, rows, self.weight.t().contiguous())
        return mapped.view(*input.shape[:-1], self.out_features)
