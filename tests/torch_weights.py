"""Copy the weights of torch's attention into ours, so that tests can compare the two."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.attention.block import MultiHeadAttention


def gradient(leaf: Tensor) -> Tensor:
    """Return the gradient of a leaf tensor after a backward pass; it must have one."""
    assert leaf.grad is not None
    return leaf.grad


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    """Draw random biases for torch's layer, and copy its weights and biases into ours."""
    with torch.no_grad():
        theirs.in_proj_bias.normal_()
        theirs.out_proj.bias.normal_()
        for layer, weight, bias in zip(
            (ours.query, ours.key, ours.value),
            theirs.in_proj_weight.chunk(3),
            theirs.in_proj_bias.chunk(3),
            strict=True,
        ):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        ours.output.load_state_dict(theirs.out_proj.state_dict())
